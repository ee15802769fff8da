"""Light attention: softmax attention over the tokens that a policy selected."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


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
