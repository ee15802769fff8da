"""Retrieval policies: what of a stream's KV cache is attended, kept, moved and dropped, and what it costs.

A run (`golden.policies.policy_run`) takes a stream block by block: the prompt, a frame, a question, one generated
token. For a block it asks the policy's `plan` which tokens enter the decoder, then at every layer writes the block's
keys and values into the `History`, enters them in the policy's `Store`, shows them to `append` and calls `select` with
the `Step`: the layer's queries and the keys and values that have arrived. Light attention (`attention`) then runs over
the `Selected` tokens. After the last layer the policy's `end` does what is left, such as eviction.

No policy can look ahead: what it gets holds nothing that has not arrived, and history is read-only. No policy can
attend to what is not in device memory: the run refuses it. So everything that a policy reads has been paid for in the
`Ledger`. A token is named by its index in the stream, for good.
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
ABSENT, DEVICE, HOST, PRUNED, REPRESENTED = range(5)  # places of a token's K and V
PLACES = ("absent", "device", "host", "pruned", "represented")
DIRECTIONS = ("in", "out")  # host to device, device to host
REASONS = {
    "offload": "K and V that leave device memory for the first time",
    "fetch": "K and V that a layer found missing and waited for",
    "prefetch": "K and V fetched for a later layer, or by a prediction made before the layer",
    "refresh": "what is moved in order to compute K and V anew",
    "index": "what the policy keeps to choose by: representatives, hashes, partial keys",
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
    """A policy that attends to what it does not hold, or counts what does not exist; a defect of the policy."""


@dataclass(frozen=True)
class Shape:
    """The model that a policy serves; query head h reads KV head h // group.

    A key at position p has its pairs (i, i + head_size / 2) turned by p * frequencies[layer][i] radians.
    """

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    frequencies: tuple[tuple[float, ...], ...] | None = None  # [layers][head_size / 2]; None: not known
    epsilon: float | None = None  # of its RMS norms; None: not known

    def __post_init__(self):
        for name in ("layers", "heads", "kv_heads", "head_size"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        check(self.heads % self.kv_heads == 0, "heads", self.heads, f"must be a multiple of kv_heads = {self.kv_heads}")
        if self.frequencies is not None:
            sizes = [len(own) for own in self.frequencies]
            want = [self.head_size // 2] * self.layers
            check(sizes == want, "frequencies", sizes, f"must be head_size / 2 numbers a layer, {want}")

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.heads // self.kv_heads

    @property
    def entry_bytes(self) -> int:
        """Bytes of K and V of one token, one KV head and one layer, in BF16."""
        return 4 * self.head_size


@dataclass(frozen=True)
class Block:
    """Tokens start to stop of the stream, which arrive together."""

    index: int  # of the block in the stream
    stage: str  # of `STAGES`
    start: int
    stop: int
    visual: np.ndarray | None = None  # [T, width] FP32: vision tokens of a frame, where the source has them
    frame: Frame | None = None  # the decoded frame with its motion and type, where the source has it

    @property
    def tokens(self) -> np.ndarray:
        """Indices of the block's tokens, int64 [T]."""
        return np.arange(self.start, self.stop)


@dataclass(frozen=True)
class Plan:
    """What of a block enters the decoder, and how."""

    admit: np.ndarray | None = None  # [T] bool: tokens that do; the others are pruned by rule. None: all
    refresh: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # earlier tokens computed anew
    positions: np.ndarray | None = None  # [rows] rotary positions of refreshed, then admitted tokens. None: indices


@dataclass(frozen=True)
class Step:
    """One layer of one block, as a policy sees it. Q, K and V hold BF16 values in FP32, after rotary."""

    layer: int  # 0 to shape.layers - 1 of those that run
    block: Block
    rows: np.ndarray  # [T] int64, T at least 1: tokens whose queries these are, rising; refreshed ones come first
    q: np.ndarray  # [T, heads, head_size]
    k: np.ndarray  # [kv_heads, n, head_size], read-only: all keys that have arrived, the block's own included
    v: np.ndarray  # the same
    x: np.ndarray | None = None  # [T, width] FP32: input of the attention, where a decoder runs
    ahead: np.ndarray | None = None  # [T, heads, head_size]: queries of the next layer guessed from x, where it runs

    @property
    def n(self) -> int:
        """Tokens that have arrived."""
        return self.k.shape[1]


@dataclass(frozen=True)
class Selected:
    """What light attention reads."""

    keep: np.ndarray  # [kv_heads, n] bool: tokens; those after a row are masked by the run
    k: np.ndarray | None = None  # [kv_heads, n, head_size]: stored keys where they are not the exact ones
    v: np.ndarray | None = None  # the same for values
    turn: np.ndarray | None = None  # [up to n] int: positions that stored keys move on by (`turn_keys`), 0 past its end
    extra_k: np.ndarray | None = None  # [kv_heads, m, head_size]: keys of no token, such as centroids, seen by all rows
    extra_v: np.ndarray | None = None  # the same for values
    add: np.ndarray | None = None  # [T, heads, head_size]: added to the attention's output


class Ledger:
    """Every byte moved, every operation, and the memory held, from the first block on.

    `moved[direction, reason]` bytes and `pieces[direction, reason]` contiguous transfers; `done[kind]` operations;
    `held[place]` and `peak[place]` bytes in device and host memory.
    """

    def __init__(self) -> None:
        self.moved: Counter[tuple[str, str]] = Counter()
        self.pieces: Counter[tuple[str, str]] = Counter()
        self.done: Counter[str] = Counter()
        self.held = {"device": 0, "host": 0}
        self.peak = {"device": 0, "host": 0}

    def move(self, direction: str, reason: str, size: int, pieces: int = 1) -> None:
        """Count `size` bytes over the link in `pieces` transfers."""
        if direction not in DIRECTIONS or reason not in REASONS or size < 0 or pieces < 0:
            raise PolicyError(f"move {direction!r} {reason!r} {size} in {pieces}: no such direction, reason or size")
        if size:
            self.moved[direction, reason] += int(size)
            self.pieces[direction, reason] += int(pieces)

    def work(self, kind: str, count: int) -> None:
        """Count operations of a kind of `OPERATIONS`."""
        if kind not in OPERATIONS or count < 0:
            raise PolicyError(f"work {kind!r} {count}: no such kind or count")
        if count:
            self.done[kind] += int(count)

    def sort(self, entries: int, times: int = 1) -> None:
        """Count `times` sorts of `entries` entries: n ceil(log2 n) comparisons each."""
        self.work("sort", times * entries * max(0, int(entries) - 1).bit_length())

    def hold(self, place: str, change: int) -> None:
        """Bytes taken (or, negative, given back) in device or host memory."""
        held = self.held[place] + int(change)
        if held < 0:
            raise PolicyError(f"{place} memory: {-change} bytes given back of {self.held[place]} held")
        self.held[place] = held
        self.peak[place] = max(self.peak[place], held)

    def totals(self) -> dict[str, int]:
        """All counts under flat names: `in.fetch`, `pieces.in.fetch`, `ops.attention`, `device`, `device.peak`, ..."""
        out = {f"{d}.{r}": self.moved[d, r] for d in DIRECTIONS for r in REASONS if self.moved[d, r]}
        out |= {f"pieces.{d}.{r}": self.pieces[d, r] for d in DIRECTIONS for r in REASONS if self.pieces[d, r]}
        out |= {f"ops.{kind}": self.done[kind] for kind in OPERATIONS if self.done[kind]}
        out |= self.held
        return out | {f"{place}.peak": size for place, size in self.peak.items()}


class Store:
    """Where the K and V of every token are, by layer and KV head; moving them counts in the ledger.

    A token is `ABSENT` until its layer has run, then on the device; it may go to the host (`offload`), come back for as
    long as a layer needs it (`fetch`, `release`: the host keeps its copy), or leave for good: `PRUNED` by a rule, or
    `REPRESENTED` by something that the policy keeps. Masks are bool, [kv_heads, n] or [n] for all heads alike.
    """

    def __init__(self, shape: Shape, ledger: Ledger, entry_bytes: int | None = None):
        self.shape = shape
        self.ledger = ledger
        self.entry_bytes = shape.entry_bytes if entry_bytes is None else entry_bytes
        self._place = np.zeros((shape.layers, shape.kv_heads, 1024), np.uint8)
        self._here = np.zeros(self._place.shape, bool)
        self._guests = [False] * shape.layers  # whether a layer has fetched entries
        self.length = 0

    def arrive(self, n: int) -> None:
        """The stream has n tokens now."""
        self.length = n
        while n > self._place.shape[2]:
            self._place = np.concatenate([self._place, np.zeros_like(self._place)], axis=2)
            self._here = np.concatenate([self._here, np.zeros_like(self._here)], axis=2)

    def place(self, layer: int) -> np.ndarray:
        """Place of every token in a layer, uint8 [kv_heads, n]."""
        return self._place[layer, :, : self.length]

    def on_device(self, layer: int) -> np.ndarray:
        """Tokens that device memory holds now, resident or fetched, bool [kv_heads, n]."""
        resident = self.place(layer) == DEVICE
        return resident | self._here[layer, :, : self.length] if self._guests[layer] else resident

    def readable(self, layer: int, block: Block) -> np.ndarray:
        """Tokens that the block can attend to, bool [kv_heads, n]: those on the device, and its own.

        Keys and values of its own tokens have just been computed, even where the policy has sent them to the host.
        """
        own = self.on_host(layer)
        own[:, : block.start] = False
        return self.on_device(layer) | own

    def missing(self, layer: int) -> np.ndarray:
        """Tokens that a fetch would move: on the host and not fetched, bool [kv_heads, n]."""
        return self.on_host(layer) & ~self._here[layer, :, : self.length]

    def on_host(self, layer: int) -> np.ndarray:
        """Tokens whose home is the host, fetched or not, bool [kv_heads, n]."""
        return self.place(layer) == HOST

    def append(self, layer: int, tokens: np.ndarray) -> None:
        """Enter new tokens of a layer on the device; a refreshed token that is not absent is overwritten in place."""
        place = self._place[layer]
        new = tokens[place[0, tokens] == ABSENT]
        place[:, new] = DEVICE
        self.ledger.hold("device", len(new) * self.shape.kv_heads * self.entry_bytes)

    def offload(self, layer: int, mask: np.ndarray, pieces: int | None = None) -> np.ndarray:
        """Send those of the masked tokens that are resident to the host; returns which, [kv_heads, n]."""
        going = (self.place(layer) == DEVICE) & mask
        np.copyto(self.place(layer), HOST, where=going)
        size = int(np.count_nonzero(going)) * self.entry_bytes
        self.ledger.move("out", "offload", size, runs(going) if pieces is None else pieces)
        self.ledger.hold("device", -size)
        self.ledger.hold("host", size)
        return going

    def fetch(self, layer: int, mask: np.ndarray, reason: str = "fetch", pieces: int | None = None) -> np.ndarray:
        """Copy those of the masked tokens that are on the host alone to the device; returns which, [kv_heads, n].

        Transfers are counted as runs of adjacent tokens of a head, or as `pieces` where the layout is another.
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
        """Free the masked tokens (or those of a slice) for good, wherever they are; returns which of n (or of it).

        Absent ones can be dropped too; a fetched copy stays until `release`.
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
        """Entries (token, layer, KV head) of the stream in every place, under the names of `PLACES`."""
        counts = np.bincount(self._place[:, :, : self.length].ravel(), minlength=len(PLACES))
        return dict(zip(PLACES, counts.tolist(), strict=True))


class Policy:
    """Base of the policies. `params` is a frozen dataclass of `golden.function_params.parameter` fields.

    A subclass sets `source` (paper, section, equations), keeps its state in plain attributes (a run is interrupted and
    resumed by pickling), counts its prediction and index work in `self.ledger`, its memory other than K
    and V by `self.ledger.hold`, and moves K and V by `self.store` alone. The run counts attention and linear layers and
    releases a layer's fetched copies after its attention.
    """

    source: ClassVar[str]
    uses_ahead: bool = False  # whether `select` wants `Step.ahead`
    turns: ClassVar[bool] = False  # whether `Selected.turn` moves keys, by the shape's rotary frequencies

    def __init__(self, params: Any, shape: Shape, entry_bytes: int | None = None):
        known = not self.turns or shape.frequencies is not None
        check(known, "frequencies", None, f"must be known, as {type(self).__name__} turns keys: record the trace again")
        self.params = params
        self.shape = shape
        self.ledger = Ledger()
        self.store = Store(shape, self.ledger, entry_bytes)

    def plan(self, block: Block) -> Plan:
        """What of a block enters the decoder; called once, before its first layer. Default: all of it."""
        return Plan()

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """K and V [T, kv_heads, head_size] of tokens [T] are on the device now, before `select`. Default: nothing.

        Where a trace has no queries for a block, its layers get `append` without `select`.
        """

    def select(self, step: Step) -> Selected:
        """What one layer attends to. Everything in `keep` must be on the device when this returns."""
        raise NotImplementedError

    def end(self, block: Block) -> None:
        """After a block's last layer. Default: nothing."""

    def offload_but(self, layer: int, first: int, last: int) -> np.ndarray:
        """Send a layer's resident tokens except the first and the last few to the host; returns which."""
        n = self.store.length
        old = np.zeros(n, bool)
        old[first : max(first, n - last)] = True
        return self.store.offload(layer, old)


class Growing:
    """BF16 values in FP32, [lead, n, width], n growing at a cost that does not depend on it; pickled as BF16."""

    def __init__(self, lead: int, width: int):
        self._data = np.zeros((lead, 256, width), np.float32)
        self.n = 0

    def resize(self, n: int) -> None:
        """Make it n long; what is new is zero."""
        while n > self._data.shape[1]:
            self._data = np.concatenate([self._data, np.zeros_like(self._data)], axis=1)
        self.n = n

    def append(self, x: np.ndarray) -> None:
        """Put x [lead, T, width] at the end."""
        start = self.n
        self.resize(start + x.shape[1])
        self.data[:, start:] = x

    @property
    def data(self) -> np.ndarray:
        """What it holds, [lead, n, width]."""
        return self._data[:, : self.n]

    def __getstate__(self) -> tuple[np.ndarray, int]:
        used = self._data[:, : max(self.n, 1)]  # something to double
        return (used.view(np.uint32) >> 16).astype(np.uint16), self.n

    def __setstate__(self, state: tuple[np.ndarray, int]) -> None:
        bits, self.n = state
        self._data = (bits.astype(np.uint32) << 16).view(np.float32)


class History:
    """Keys and values of one layer as they arrive."""

    def __init__(self, shape: Shape):
        self._k, self._v = (Growing(shape.kv_heads, shape.head_size) for _ in range(2))

    def write(self, tokens: np.ndarray, k: np.ndarray, v: np.ndarray, n: int) -> None:
        """Put K and V [T, kv_heads, head_size] of tokens (some may be older) of a stream of n tokens."""
        for store, x in ((self._k, k), (self._v, v)):
            store.resize(n)
            store.data[:, tokens] = x.swapaxes(0, 1)

    @property
    def k(self) -> np.ndarray:
        """Keys, read-only, [kv_heads, n, head_size]."""
        return _sealed(self._k.data)

    @property
    def v(self) -> np.ndarray:
        """Values, the same."""
        return _sealed(self._v.data)


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    rows: np.ndarray,
    chosen: Selected,
    frequencies: Sequence[float] | None = None,
) -> tuple[np.ndarray, int]:
    """Light attention: output FP32 [T, heads, head_size] and its MACs. `frequencies`: of the layer, for `chosen.turn`.

    Row t of `q` [T, heads, head_size] attends to the tokens of `chosen.keep` up to its own index `rows[t]` (rising),
    and to the extra keys. Scores are scaled by head_size^-0.5; FP32 throughout. A row that may attend to nothing
    gives 0. Softmax and sum go over the keys a chunk at a time, so that scores stay in a core's cache.
    """
    t, heads, size = q.shape
    k = k if chosen.k is None else chosen.k
    v = v if chosen.v is None else chosen.v
    kv_heads = len(k)
    group = heads // kv_heads
    scaled = by_kv_head(q * np.float32(size**-0.5), kv_heads)
    moved, turned = np.zeros(0, np.int64), k[:, :0]
    if chosen.turn is not None and chosen.turn.any():
        assert frequencies is not None  # `Policy` refuses a shape without them where `turns` is set
        moved = np.flatnonzero(chosen.turn)
        turned = turn_keys(k[:, moved], chosen.turn[moved], frequencies)
    y = np.zeros(q.shape, np.float32)
    by_head = y.reshape(t, kv_heads, group, size).swapaxes(0, 1)
    macs = 0
    alike = bool((chosen.keep[1:] == chosen.keep[:1]).all())  # heads that keep the same are done at once
    for heads_of in [slice(0, kv_heads)] if alike else [slice(g, g + 1) for g in range(kv_heads)]:
        keep = chosen.keep[heads_of.start]
        at = np.flatnonzero(keep)
        seen = np.searchsorted(at, rows, side="right")
        own = keep[moved]  # of the keys that move
        slots, turned_own = np.searchsorted(at, moved[own]), turned[heads_of, own]
        cuts = np.searchsorted(slots, np.arange(0, len(at) + _CHUNK, _CHUNK)).tolist()  # of the slots, by chunk
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
    """Entries at [n], rising, of x [heads, all, d]; neighbours are not copied."""
    first, last = int(at[0]), int(at[-1])
    if last - first == len(at) - 1:
        return x[:, first : last + 1]
    return _copied(x, at)


def _copied(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """A copy of entries at [n] of x [heads, all, d]; a take over all heads would copy the cache first."""
    out = np.empty((len(x), len(at), x.shape[2]), x.dtype)
    for head, mine in zip(x, out, strict=True):
        head.take(at, axis=0, out=mine, mode="clip")  # the default mode takes to a buffer first
    return out


_CHUNK = 1024  # keys whose scores are in work at once
_ROWS = 144  # query rows, the same: 0.6 MB of scores a head
_HIDDEN, _LOWEST = np.float32(-np.inf), np.finfo(np.float32).min


class _Softmax:
    """Softmax-weighted sum of values for queries [heads, T x group, d] of tokens [T], over keys that come in parts."""

    def __init__(self, q: np.ndarray, tokens: np.ndarray):
        self.q, self.group = q, q.shape[1] // len(tokens)
        step = max(1, _ROWS // self.group)  # tokens of a block of rows; where tokens jump, their keys end elsewhere
        runs_of = pairwise([0, *(np.flatnonzero(np.diff(tokens) > step) + 1).tolist(), len(tokens)])
        self.blocks = [slice(i, min(i + step, b)) for a, b in runs_of for i in range(a, b, step)]
        self.parts: list[tuple[np.ndarray, ...] | None] = [None] * len(self.blocks)  # largest score, weight, sum

    def rows(self, x: np.ndarray, tokens: slice) -> np.ndarray:
        """Rows of tokens."""
        return x[:, self.group * tokens.start : self.group * tokens.stop]

    def add(self, k: np.ndarray, v: np.ndarray, seen: np.ndarray) -> None:
        """Keys and values [heads, n, d], of which token t sees the first seen[t], rising."""
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
        """Put the sum over all that was added into `out` [heads, T, group, d], which keeps rows that saw nothing."""
        for part, tokens in zip(self.parts, self.blocks, strict=True):
            if part is not None:
                _, weight, total = part
                total /= np.maximum(weight, np.float32(1e-30))
                out[:, tokens] = total.reshape(len(out), -1, *out.shape[2:])


def by_kv_head(q: np.ndarray, kv_heads: int) -> np.ndarray:
    """Queries [T, heads, d] as rows of their KV heads, [kv_heads, T x group, d], heads running fastest."""
    t, heads, size = q.shape
    return q.reshape(t, kv_heads, heads // kv_heads, size).swapaxes(0, 1).reshape(kv_heads, -1, size)


def turn_keys(k: np.ndarray, delta: np.ndarray, frequencies: Sequence[float]) -> np.ndarray:
    """Rotate keys [..., n, d] on by `delta` [n] positions and round them to BF16, as they are stored.

    R(p_new - p_old) k of CodecSight, Equation 5; pairs (i, i + d / 2) turn by `frequencies` [d / 2] a position.
    """
    half = k.shape[-1] // 2
    angle = np.asarray(delta)[:, None] * np.asarray(frequencies)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    a, b = k[..., :half], k[..., half:]
    return bf16(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1))


def bf16(x: np.ndarray) -> np.ndarray:
    """FP32 values rounded to the nearest BF16, ties to even, still as FP32; finite values only."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    out = bits >> 16
    out &= 1
    out += 0x7FFF
    out += bits
    out &= 0xFFFF0000
    return out.view(np.float32)


def runs(mask: np.ndarray) -> int:
    """Runs of adjacent True along the last axis of [..., n]."""
    if mask.shape[-1] == 0:
        return 0
    return int(np.count_nonzero(mask[..., 0]) + np.count_nonzero(mask[..., 1:] & ~mask[..., :-1]))


def _sealed(a: np.ndarray) -> np.ndarray:
    a = a.view()
    a.flags.writeable = False
    return a
