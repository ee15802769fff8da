"""Where the keys and values of every token are, and what moving them costs."""

import numpy as np

from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.ledger import Ledger

ABSENT, DEVICE, HOST, PRUNED, REPRESENTED = range(5)  # places of a token's K and V, see `Store`
PLACES = ("absent", "device", "host", "pruned", "represented")


class Store:
    """Knows where the K and V of every token are, by layer and KV head; each move counts in the ledger.

    A token is `ABSENT` until its layer has run, then on the `DEVICE`. `offload` sends it to the `HOST`. `fetch` copies
    it back for as long as a layer needs it, and `release` forgets the copy; the host keeps its own. `drop` removes a
    token for good: it is `PRUNED` by a rule, or `REPRESENTED` by data that the policy keeps. Masks are bool,
    [kv_heads, n], or [n] for all heads alike.

    host_bytes : bytes of an entry on the host and on the way to and from it; as on the device if not given
    """

    def __init__(self, shape: Shape, ledger: Ledger, entry_bytes: int | None = None, host_bytes: int | None = None):
        self.shape = shape
        self.ledger = ledger
        self.entry_bytes = shape.entry_bytes if entry_bytes is None else entry_bytes
        self.host_bytes = self.entry_bytes if host_bytes is None else host_bytes
        self._place = np.zeros((shape.layers, shape.kv_heads, 1024), np.uint8)
        self._here = np.zeros(self._place.shape, bool)  # tokens with a fetched copy
        self._guests = [False] * shape.layers  # whether a layer holds fetched copies
        self.length = 0

    def arrive(self, n: int) -> None:
        """Tell the store that the stream has n tokens now."""
        self.length = n
        while n > self._place.shape[2]:
            self._place = np.concatenate([self._place, np.zeros_like(self._place)], axis=2)
            self._here = np.concatenate([self._here, np.zeros_like(self._here)], axis=2)

    def place(self, layer: int) -> np.ndarray:
        """Place of every token in a layer, uint8 [kv_heads, n]: `ABSENT` to `REPRESENTED`."""
        return self._place[layer, :, : self.length]

    def on_device(self, layer: int) -> np.ndarray:
        """Tokens that device memory holds now, resident or fetched, bool [kv_heads, n]."""
        resident = self.place(layer) == DEVICE
        return resident | self._here[layer, :, : self.length] if self._guests[layer] else resident

    def readable(self, layer: int, block: Block) -> np.ndarray:
        """Tokens that the block can attend to, bool [kv_heads, n]: those on the device and its own.

        Keys and values of its own tokens have just been computed, so it can read them even if they are on the host.
        """
        own = self.on_host(layer)
        own[:, : block.start] = False
        return self.on_device(layer) | own

    def missing(self, layer: int) -> np.ndarray:
        """Tokens that a fetch would move, as they are on the host and not fetched yet, bool [kv_heads, n]."""
        return self.on_host(layer) & ~self._here[layer, :, : self.length]

    def on_host(self, layer: int) -> np.ndarray:
        """Tokens whose home is the host, fetched or not, bool [kv_heads, n]."""
        return self.place(layer) == HOST

    def append(self, layer: int, tokens: np.ndarray) -> None:
        """Enter new tokens of a layer on the device. A refreshed token keeps its place and is overwritten there."""
        place = self._place[layer]
        new = tokens[place[0, tokens] == ABSENT]
        place[:, new] = DEVICE
        self.ledger.hold("device", len(new) * self.shape.kv_heads * self.entry_bytes)

    def offload(self, layer: int, mask: np.ndarray, pieces: int | None = None) -> np.ndarray:
        """Send the masked tokens that are resident to the host; returns which, bool [kv_heads, n].

        pieces : transfers to count; runs of adjacent tokens of a head if not given
        """
        going = (self.place(layer) == DEVICE) & mask
        np.copyto(self.place(layer), HOST, where=going)
        n = int(np.count_nonzero(going))
        size = n * self.host_bytes
        self.ledger.move("out", "offload", size, runs(going) if pieces is None else pieces)
        self.ledger.hold("device", -n * self.entry_bytes)
        self.ledger.hold("host", size)
        return going

    def fetch(self, layer: int, mask: np.ndarray, reason: str = "fetch", pieces: int | None = None) -> np.ndarray:
        """Copy the masked tokens that are only on the host to the device; returns which, bool [kv_heads, n].

        pieces : transfers to count; runs of adjacent tokens of a head if not given
        """
        coming = self.missing(layer) & mask
        n = int(np.count_nonzero(coming))
        if n:
            self._here[layer, :, : self.length] |= coming
            self._guests[layer] = True
            self.ledger.move("in", reason, n * self.host_bytes, runs(coming) if pieces is None else pieces)
            self.ledger.hold("device", n * self.entry_bytes)
        return coming

    def release(self, layer: int) -> None:
        """Forget the fetched copies of a layer."""
        if self._guests[layer]:
            here = self._here[layer, :, : self.length]
            self.ledger.hold("device", -int(np.count_nonzero(here)) * self.entry_bytes)
            here[:] = False
            self._guests[layer] = False

    def drop(self, layer: int, mask: np.ndarray | slice, represented: bool = False) -> np.ndarray:
        """Free the masked tokens (or a slice) for good, wherever they are; returns which, of n (or of the slice).

        Absent tokens can be dropped, too. A fetched copy stays until `release`.
        """
        place = self.place(layer)
        if isinstance(mask, slice):
            place = place[:, mask]
            going = place <= HOST
        else:
            going = (place <= HOST) & mask
        for where, name, size in ((DEVICE, "device", self.entry_bytes), (HOST, "host", self.host_bytes)):
            self.ledger.hold(name, -int(np.count_nonzero(going & (place == where))) * size)
        np.copyto(place, REPRESENTED if represented else PRUNED, where=going)
        return going

    def census(self) -> dict[str, int]:
        """Number of entries (token, layer, KV head) of the stream in every place, by the names of `PLACES`."""
        counts = np.bincount(self._place[:, :, : self.length].ravel(), minlength=len(PLACES))
        return dict(zip(PLACES, counts.tolist(), strict=True))


def runs(mask: np.ndarray) -> int:
    """Number of runs of adjacent True values along the last axis of [..., n]."""
    if mask.shape[-1] == 0:
        return 0
    return int(np.count_nonzero(mask[..., 0]) + np.count_nonzero(mask[..., 1:] & ~mask[..., :-1]))
