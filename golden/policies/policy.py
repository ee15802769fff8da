"""The interface of retrieval policies, and the parts that all share: ledger, store, history and light attention.

A retrieval policy decides which tokens of a stream's KV cache each layer attends to, where their keys and values are,
and which are dropped. A run (`golden.policies.policy_run`) feeds it a stream block by block; a block is the prompt, a
frame, a question or one generated token. For each block:

1. `plan` says which tokens enter the decoder.
2. In every layer, the run writes the block's keys and values into the `History`, enters them in the policy's `Store`
   and shows them to `append`.
3. `select` gets a `Step`, the layer's queries with all keys and values that have arrived, and returns the `Selected`
   tokens. Light attention (`attention`) runs over these.
4. After the last layer, `end` does the rest, such as eviction.

Two rules make the costs honest. A policy cannot look ahead: it gets only data that has arrived, and the history is
read-only. It cannot attend to a token that is not in device memory: the run refuses that. So the `Ledger` has counted
every byte that a policy reads. A token keeps its name, its index in the stream, for good.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from golden.function_params import check
from golden.inputs.video import Frame

STAGES = ("prompt", "frame", "question", "generation")
ABSENT, DEVICE, HOST, PRUNED, REPRESENTED = range(5)  # places of a token's K and V, see `Store`
PLACES = ("absent", "device", "host", "pruned", "represented")
DIRECTIONS = ("in", "out")  # host to device, device to host
REASONS = {
    "offload": "K and V that leave device memory for the first time",
    "fetch": "K and V that a layer found missing and waited for",
    "prefetch": "K and V fetched for a later layer, or by a prediction made before the layer",
    "refresh": "data moved to compute K and V anew",
    "index": "data that the policy keeps to choose tokens: representatives, hashes, partial keys",
}
OPERATIONS = {
    "linear": "MACs of the decoder's projections and feed-forward layers",
    "attention": "MACs of q k and p v over attended tokens, causal pairs only",
    "prediction": "MACs that choose tokens: query by representative, partial query by partial key",
    "index": "MACs and additions that keep the index: hash projections, running means, clustering distances",
    "compare": "comparisons: Hamming distances, thresholds, maxima",
    "sort": "comparisons of sorting, n log2 n of n entries",
    "elementwise": "multiplications and additions of single numbers: rotation, quantisation",
    "state": "MACs of a recurrent state: convolution, scan, its projections",
    "vision": "MACs of the vision encoder",
}


class PolicyError(ValueError):
    """A defect of a policy: it attends to a token that it does not hold, or counts something that does not exist."""


@dataclass(frozen=True)
class Shape:
    """The sizes of the model that a policy serves.

    Query head h reads KV head h // group. Rotary embedding turns the pair (i, i + head_size / 2) of a key at position p
    by p * frequencies[layer][i] radians. Frequencies and epsilon are None where they are not known. Raises `ParamError`
    for sizes that do not fit together.
    """

    layers: int
    heads: int  # query heads
    kv_heads: int
    head_size: int  # numbers of a head
    frequencies: tuple[tuple[float, ...], ...] | None = None  # radians a position, [layers][head_size / 2]
    epsilon: float | None = None  # of the RMS norms

    def __post_init__(self):
        for name in ("layers", "heads", "kv_heads", "head_size"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        check(self.heads % self.kv_heads == 0, "heads", self.heads, f"must be a multiple of kv_heads = {self.kv_heads}")
        if self.frequencies is not None:
            sizes = [len(own) for own in self.frequencies]
            want = [self.head_size // 2] * self.layers
            check(sizes == want, "frequencies", sizes, f"must be head_size / 2 numbers for each layer, {want}")

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def entry_bytes(self) -> int:
        """Bytes of K and V for one token, one KV head and one layer, in BF16."""
        return 4 * self.head_size


@dataclass(frozen=True)
class Block:
    """Tokens of the stream that arrive together."""

    index: int  # number of the block in the stream
    stage: str  # one of `STAGES`
    start: int  # first token
    stop: int  # first token behind the block
    visual: np.ndarray | None = None  # [T, width] FP32: vision tokens of a frame, if the source has them
    frame: Frame | None = None  # the decoded frame with its motion and type, if the source has it

    @property
    def tokens(self) -> np.ndarray:
        """Indices of the block's tokens, int64 [T]."""
        return np.arange(self.start, self.stop)


@dataclass(frozen=True)
class Plan:
    """The tokens of a block that enter the decoder, and their positions."""

    admit: np.ndarray | None = None  # [T] bool: tokens that enter; the others are pruned. None: all enter
    refresh: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # earlier tokens to compute anew
    positions: np.ndarray | None = None  # [rows] rotary positions, refreshed tokens first. None: indices


@dataclass(frozen=True)
class Step:
    """One layer of one block, as a policy sees it. Q, K and V are BF16 values held in FP32, after rotary embedding."""

    layer: int  # 0 to shape.layers - 1
    block: Block
    rows: np.ndarray  # [T] int64, T at least 1: tokens of the queries, rising; refreshed ones come first
    q: np.ndarray  # [T, heads, head_size]
    k: np.ndarray  # [kv_heads, n, head_size], read-only: all keys that have arrived, those of the block included
    v: np.ndarray  # values, the same
    x: np.ndarray | None = None  # [T, width] FP32: input of the layer's attention, if a decoder runs
    ahead: np.ndarray | None = None  # [T, heads, head_size]: next layer's queries guessed from x, if a decoder runs

    @property
    def n(self) -> int:
        """Tokens that have arrived."""
        return self.k.shape[1]


@dataclass(frozen=True)
class Selected:
    """The tokens, keys and values that light attention reads."""

    keep: np.ndarray  # [kv_heads, n] bool: tokens to attend to; the run masks those after a row
    k: np.ndarray | None = None  # [kv_heads, n, head_size]: stored keys, if they differ from the exact ones
    v: np.ndarray | None = None  # the same for values
    turn: np.ndarray | None = None  # [up to n] int: positions to turn stored keys by (`turn_keys`), 0 past its end
    extra_k: np.ndarray | None = None  # [kv_heads, m, head_size]: keys of no token, such as centroids, seen by all rows
    extra_v: np.ndarray | None = None  # the same for values
    add: np.ndarray | None = None  # [T, heads, head_size]: to be added to the output of the attention


class Ledger:
    """Counts every byte moved, every operation and the memory held, from the first block on.

    moved, pieces : bytes, and contiguous transfers, by direction (`DIRECTIONS`) and reason (`REASONS`)
    done : operations by kind (`OPERATIONS`)
    held, peak : bytes in device and host memory, now and at most

    Raises `PolicyError` for an unknown name or a negative count.
    """

    def __init__(self) -> None:
        self.moved: Counter[tuple[str, str]] = Counter()
        self.pieces: Counter[tuple[str, str]] = Counter()
        self.done: Counter[str] = Counter()
        self.held = {"device": 0, "host": 0}
        self.peak = {"device": 0, "host": 0}

    def move(self, direction: str, reason: str, size: int, pieces: int = 1) -> None:
        """Count `size` bytes that cross the link in `pieces` transfers."""
        if direction not in DIRECTIONS or reason not in REASONS or size < 0 or pieces < 0:
            raise PolicyError(
                f"move {direction!r} {reason!r} {size} in {pieces}: unknown direction or reason, or a negative count"
            )
        if size:
            self.moved[direction, reason] += int(size)
            self.pieces[direction, reason] += int(pieces)

    def work(self, kind: str, count: int) -> None:
        """Count `count` operations of a kind."""
        if kind not in OPERATIONS or count < 0:
            raise PolicyError(f"work {kind!r} {count}: unknown kind, or a negative count")
        if count:
            self.done[kind] += int(count)

    def sort(self, entries: int, times: int = 1) -> None:
        """Count `times` sorts of `entries` entries: n ceil(log2 n) comparisons each."""
        self.work("sort", times * entries * max(0, int(entries) - 1).bit_length())

    def hold(self, place: str, change: int) -> None:
        """Count `change` bytes taken in device or host memory; negative for bytes given back."""
        held = self.held[place] + int(change)
        if held < 0:
            raise PolicyError(f"{place} memory: {-change} bytes given back, but only {self.held[place]} are held")
        self.held[place] = held
        self.peak[place] = max(self.peak[place], held)

    def totals(self) -> dict[str, int]:
        """All counts by flat names such as `in.fetch`, `pieces.in.fetch`, `ops.attention`, `device`, `device.peak`."""
        out = {f"{d}.{r}": self.moved[d, r] for d in DIRECTIONS for r in REASONS if self.moved[d, r]}
        out |= {f"pieces.{d}.{r}": self.pieces[d, r] for d in DIRECTIONS for r in REASONS if self.pieces[d, r]}
        out |= {f"ops.{kind}": self.done[kind] for kind in OPERATIONS if self.done[kind]}
        out |= self.held
        return out | {f"{place}.peak": size for place, size in self.peak.items()}


class Store:
    """Knows where the K and V of every token are, by layer and KV head; each move counts in the ledger.

    A token is `ABSENT` until its layer has run, then on the `DEVICE`. `offload` sends it to the `HOST`. `fetch` copies
    it back for as long as a layer needs it, and `release` forgets the copy; the host keeps its own. `drop` removes a
    token for good: it is `PRUNED` by a rule, or `REPRESENTED` by data that the policy keeps. Masks are bool,
    [kv_heads, n], or [n] for all heads alike.
    """

    def __init__(self, shape: Shape, ledger: Ledger, entry_bytes: int | None = None):
        self.shape = shape
        self.ledger = ledger
        self.entry_bytes = shape.entry_bytes if entry_bytes is None else entry_bytes
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
        size = int(np.count_nonzero(going)) * self.entry_bytes
        self.ledger.move("out", "offload", size, runs(going) if pieces is None else pieces)
        self.ledger.hold("device", -size)
        self.ledger.hold("host", size)
        return going

    def fetch(self, layer: int, mask: np.ndarray, reason: str = "fetch", pieces: int | None = None) -> np.ndarray:
        """Copy the masked tokens that are only on the host to the device; returns which, bool [kv_heads, n].

        pieces : transfers to count; runs of adjacent tokens of a head if not given
        """
        coming = self.missing(layer) & mask
        size = int(np.count_nonzero(coming)) * self.entry_bytes
        if size:
            self._here[layer, :, : self.length] |= coming
            self._guests[layer] = True
            self.ledger.move("in", reason, size, runs(coming) if pieces is None else pieces)
            self.ledger.hold("device", size)
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
        for where, name in ((DEVICE, "device"), (HOST, "host")):
            self.ledger.hold(name, -int(np.count_nonzero(going & (place == where))) * self.entry_bytes)
        np.copyto(place, REPRESENTED if represented else PRUNED, where=going)
        return going

    def census(self) -> dict[str, int]:
        """Number of entries (token, layer, KV head) of the stream in every place, by the names of `PLACES`."""
        counts = np.bincount(self._place[:, :, : self.length].ravel(), minlength=len(PLACES))
        return dict(zip(PLACES, counts.tolist(), strict=True))


class Policy:
    """Base of all policies. `params` is a frozen dataclass of `golden.function_params.parameter` fields.

    A subclass must

    * set `source`: paper, section, equations;
    * keep its state in plain attributes, as a run is pickled to be resumed later;
    * count its prediction and index work in `self.ledger`, and its memory other than K and V by `self.ledger.hold`;
    * move K and V only by `self.store`.

    The run counts attention and linear layers, and releases a layer's fetched copies after its attention.
    """

    source: ClassVar[str]
    uses_ahead: bool = False  # whether `select` needs `Step.ahead`
    turns: ClassVar[bool] = False  # whether `Selected.turn` moves keys, by the shape's rotary frequencies

    def __init__(self, params: Any, shape: Shape, entry_bytes: int | None = None):
        known = not self.turns or shape.frequencies is not None
        check(
            known,
            "frequencies",
            None,
            f"must be known, because {type(self).__name__} turns keys: record the trace again",
        )
        self.params = params
        self.shape = shape
        self.ledger = Ledger()
        self.store = Store(shape, self.ledger, entry_bytes)

    def plan(self, block: Block) -> Plan:
        """Say which tokens of a block enter the decoder. Called once, before its first layer. Default: all."""
        return Plan()

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Learn of new tokens [T]: their K and V [T, kv_heads, head_size] are on the device now. Default: nothing.

        Called before `select`. Where a trace has no queries for a block, there is no `select`.
        """

    def select(self, step: Step) -> Selected:
        """Choose the tokens that a layer attends to. All of `keep` must be on the device when this returns."""
        raise NotImplementedError

    def end(self, block: Block) -> None:
        """Finish a block after its last layer. Default: nothing."""

    def offload_but(self, layer: int, first: int, last: int) -> np.ndarray:
        """Send a layer's resident tokens to the host, except its `first` first and `last` last ones; returns which."""
        n = self.store.length
        old = np.zeros(n, bool)
        old[first : max(first, n - last)] = True
        return self.store.offload(layer, old)


class Growing:
    """An array of BF16 values, held in FP32, that grows along its middle axis: [lead, n, width].

    Growing costs constant time per token, whatever n is. The array is pickled as BF16.
    """

    def __init__(self, lead: int, width: int):
        self._data = np.zeros((lead, 256, width), np.float32)
        self.n = 0

    def resize(self, n: int) -> None:
        """Make the array n long; new values are zero."""
        while n > self._data.shape[1]:
            self._data = np.concatenate([self._data, np.zeros_like(self._data)], axis=1)
        self.n = n

    def append(self, x: np.ndarray) -> None:
        """Append x [lead, T, width]."""
        start = self.n
        self.resize(start + x.shape[1])
        self.data[:, start:] = x

    @property
    def data(self) -> np.ndarray:
        """The values, [lead, n, width]."""
        return self._data[:, : self.n]

    def __getstate__(self) -> tuple[np.ndarray, int]:
        used = self._data[:, : max(self.n, 1)]  # at least one, so that it can double
        return (used.view(np.uint32) >> 16).astype(np.uint16), self.n

    def __setstate__(self, state: tuple[np.ndarray, int]) -> None:
        bits, self.n = state
        self._data = (bits.astype(np.uint32) << 16).view(np.float32)


class History:
    """All keys and values of one layer that have arrived."""

    def __init__(self, shape: Shape):
        self._k, self._v = (Growing(shape.kv_heads, shape.head_size) for _ in range(2))

    def write(self, tokens: np.ndarray, k: np.ndarray, v: np.ndarray, n: int) -> None:
        """Write K and V [T, kv_heads, head_size] of tokens [T], new or refreshed, of a stream of n tokens."""
        for store, x in ((self._k, k), (self._v, v)):
            store.resize(n)
            store.data[:, tokens] = x.swapaxes(0, 1)

    @property
    def k(self) -> np.ndarray:
        """Keys, read-only, [kv_heads, n, head_size]."""
        return _sealed(self._k.data)

    @property
    def v(self) -> np.ndarray:
        """Values, read-only, [kv_heads, n, head_size]."""
        return _sealed(self._v.data)


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    rows: np.ndarray,
    chosen: Selected,
    frequencies: Sequence[float] | None = None,
) -> tuple[np.ndarray, int]:
    """Light attention over the selected tokens: the output, FP32 [T, heads, head_size], and its MACs.

    q : [T, heads, head_size] · k, v : [kv_heads, n, head_size] · rows : [T], tokens of the queries, rising
    frequencies : of the layer, needed for `chosen.turn`

    Row t attends to the tokens of `chosen.keep` up to its own index rows[t], and to the extra keys. Scores are scaled
    by head_size^-0.5; all arithmetic is FP32. A row that may attend to nothing gives 0. Softmax and sum take the keys a
    chunk at a time, so that the scores stay in a core's cache.
    """
    t, heads, size = q.shape
    k = k if chosen.k is None else chosen.k
    v = v if chosen.v is None else chosen.v
    kv_heads = len(k)
    group = heads // kv_heads
    scaled = by_kv_head(q * np.float32(size**-0.5), kv_heads)
    moved, turned = np.zeros(0, np.int64), k[:, :0]
    if chosen.turn is not None and chosen.turn.any():
        assert frequencies is not None  # `Policy` refuses a shape without them if `turns` is set
        moved = np.flatnonzero(chosen.turn)
        turned = turn_keys(k[:, moved], chosen.turn[moved], frequencies)
    y = np.zeros(q.shape, np.float32)
    by_head = y.reshape(t, kv_heads, group, size).swapaxes(0, 1)
    macs = 0
    alike = bool((chosen.keep[1:] == chosen.keep[:1]).all())  # heads that keep the same tokens are computed together
    for heads_of in [slice(0, kv_heads)] if alike else [slice(g, g + 1) for g in range(kv_heads)]:
        keep = chosen.keep[heads_of.start]
        at = np.flatnonzero(keep)
        seen = np.searchsorted(at, rows, side="right")
        own = keep[moved]  # moved keys that this head attends to
        slots, turned_own = np.searchsorted(at, moved[own]), turned[heads_of, own]
        cuts = np.searchsorted(slots, np.arange(0, len(at) + _CHUNK, _CHUNK)).tolist()  # moved keys by chunk
        softmax = _Softmax(scaled[heads_of], rows)
        extra = 0
        if chosen.extra_k is not None:
            assert chosen.extra_v is not None  # extra keys come with their values
            extra = chosen.extra_k.shape[1]
            softmax.add(chosen.extra_k[heads_of], chosen.extra_v[heads_of], np.full(t, extra))
        for i, first, last in zip(range(0, len(at), _CHUNK), cuts[:-1], cuts[1:], strict=True):
            part = at[i : i + _CHUNK]
            if first < last:
                keys = _copied(k[heads_of], part)
                keys[:, slots[first:last] - i] = turned_own[:, first:last]
            else:
                keys = _take(k[heads_of], part)
            softmax.add(keys, _take(v[heads_of], part), seen - i)
        softmax.mean(by_head[heads_of])
        macs += (heads_of.stop - heads_of.start) * 2 * size * group * int((seen + extra).sum())
    if chosen.add is not None:
        y += chosen.add
    return y, macs


def _take(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Entries `at` [n], rising, of x [heads, all, d]; a view where they are adjacent."""
    first, last = int(at[0]), int(at[-1])
    if last - first == len(at) - 1:
        return x[:, first : last + 1]
    return _copied(x, at)


def _copied(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """A copy of entries `at` [n] of x [heads, all, d], by head: a take over all heads would copy the cache first."""
    out = np.empty((len(x), len(at), x.shape[2]), x.dtype)
    for head, mine in zip(x, out, strict=True):
        head.take(at, axis=0, out=mine, mode="clip")  # the default mode copies to a buffer first
    return out


_CHUNK = 1024  # keys whose scores are computed at once
_ROWS = 144  # query rows whose scores are computed at once: 0.6 MB of scores for each head
_HIDDEN, _LOWEST = np.float32(-np.inf), np.finfo(np.float32).min


class _Softmax:
    """Softmax-weighted sum of values over keys that come in parts, for queries q [heads, T x group, d] of tokens [T].

    It keeps the largest score, the weight and the sum of each block of rows, and rescales them when a part has a larger
    score.
    """

    def __init__(self, q: np.ndarray, tokens: np.ndarray):
        self.q, self.group = q, q.shape[1] // len(tokens)
        step = max(1, _ROWS // self.group)  # tokens of a block of rows; a block ends where tokens jump
        runs_of = pairwise([0, *(np.flatnonzero(np.diff(tokens) > step) + 1).tolist(), len(tokens)])
        self.blocks = [slice(i, min(i + step, b)) for a, b in runs_of for i in range(a, b, step)]
        self.parts: list[tuple[np.ndarray, ...] | None] = [None] * len(self.blocks)  # largest score, weight, sum

    def rows(self, x: np.ndarray, tokens: slice) -> np.ndarray:
        """The rows of x [heads, T x group, ...] that belong to tokens."""
        return x[:, self.group * tokens.start : self.group * tokens.stop]

    def add(self, k: np.ndarray, v: np.ndarray, seen: np.ndarray) -> None:
        """Add keys and values [heads, n, d], of which token t sees the first seen[t], rising."""
        n = k.shape[1]
        for b, tokens in enumerate(self.blocks):
            own = seen[tokens]
            first, last = max(0, int(own[0])), min(n, int(own[-1]))
            if last <= 0:
                continue
            s = self.rows(self.q, tokens) @ k[:, :last].swapaxes(1, 2)
            if first < last:
                late = np.arange(first, last) >= own[:, None]
                np.copyto(s.reshape(len(s), -1, self.group, last)[..., first:], _HIDDEN, where=late[:, None])
            top = s.max(axis=2, keepdims=True, initial=_LOWEST)
            old = self.parts[b]
            if old is not None:
                top = np.maximum(top, old[0])
            s -= top
            np.exp(s, out=s)
            weight, total = s @ np.ones((last, 1), np.float32), s @ v[:, :last]
            if old is not None:
                fade = np.exp(old[0] - top)
                weight += old[1] * fade
                total += old[2] * fade
            self.parts[b] = top, weight, total

    def mean(self, out: np.ndarray) -> None:
        """Write the weighted means to `out` [heads, T, group, d]; rows that saw no key stay as they are."""
        for part, tokens in zip(self.parts, self.blocks, strict=True):
            if part is not None:
                _, weight, total = part
                total /= np.maximum(weight, np.float32(1e-30))
                out[:, tokens] = total.reshape(len(out), -1, *out.shape[2:])


def by_kv_head(q: np.ndarray, kv_heads: int) -> np.ndarray:
    """Queries [T, heads, d] sorted by KV head: [kv_heads, T x group, d], with the heads of a group innermost."""
    t, heads, size = q.shape
    return q.reshape(t, kv_heads, heads // kv_heads, size).swapaxes(0, 1).reshape(kv_heads, -1, size)


def turn_keys(k: np.ndarray, delta: np.ndarray, frequencies: Sequence[float]) -> np.ndarray:
    """Rotate keys [..., n, d] by `delta` [n] positions and round them to BF16, as they are stored.

    The pair (i, i + d / 2) turns by frequencies[i] radians a position. Source: R(p_new - p_old) k of CodecSight,
    Equation 5.
    """
    half = k.shape[-1] // 2
    angle = np.asarray(delta)[:, None] * np.asarray(frequencies)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    a, b = k[..., :half], k[..., half:]
    return bf16(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1))


def bf16(x: np.ndarray) -> np.ndarray:
    """FP32 values rounded to the nearest BF16, ties to even, and kept as FP32. For finite values only."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    out = bits >> 16
    out &= 1
    out += 0x7FFF
    out += bits
    out &= 0xFFFF0000
    return out.view(np.float32)


def runs(mask: np.ndarray) -> int:
    """Number of runs of adjacent True values along the last axis of [..., n]."""
    if mask.shape[-1] == 0:
        return 0
    return int(np.count_nonzero(mask[..., 0]) + np.count_nonzero(mask[..., 1:] & ~mask[..., :-1]))


def _sealed(a: np.ndarray) -> np.ndarray:
    a = a.view()
    a.flags.writeable = False
    return a
