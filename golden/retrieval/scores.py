"""Scores of queries against clusters, and the score codes that the WTU compares.

A row is one query token of one query head. Its score of a cluster is s = q . Key_cluster, exact and rounded once to
FP32. The product uses the key slice of one KV head: query head h of H uses KV head h // (H / kv_heads).

A score map turns a row of scores into codes. The codes are the same on every platform.

* exp: the code of 2^(k / 256) x 2^value_bits, with k = rint(256 log2(e) / sqrt(head_dim) x (s - max)). The table
  `exp_codes` holds these codes. The maximum has the top code; a result below about 2^-(value_bits + 1) of it has
  code 0.
* vpe: the code of exp(s' - max s') as the VPE computes it (`golden.program.vector_programs.score_codes`). Here
  s' = s x scale, with 1/sqrt(head_dim) rounded to BF16. The difference is rounded to FP32 and to BF16; exp is BF16.
* shift: s - min, scaled so that the maximum has the top value, and rounded to the format with ties to even. A constant
  row has the top code everywhere.
* clip: max(s, 0), scaled and rounded as for shift. A row without a score above zero has code 0 everywhere, and then
  every cluster is selected.
* raw: s itself, for the paper's equations as they stand; hardware does not offer it. A code is a signed integer with a
  magnitude of `RAW_BITS` bits. It is s divided by the power of two above the row's largest magnitude, times
  2^RAW_BITS, rounded. All scores of a row share this scale, which changes no selection. Scores must be finite.

The maps exp and vpe contain attention's 1/sqrt(head_dim). The other maps are linear and do not need it.

Special scores: NaN has code 0 and takes no part in the row's maximum and minimum. An infinite maximum has the top code,
and all other scores of the row have code 0. Minus infinity has code 0 and takes no part in the minimum.

Source: V-Rex section IV-C, Fig. 9 step 3.
"""

from functools import lru_cache
from math import isqrt, sqrt

import numpy as np

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.arithmetic.elementwise import exp, score_code
from openvrex.golden.arithmetic.numerics import matmul, to_bf16
from openvrex.golden.arithmetic.score_codes import encode, value
from openvrex.golden.arithmetic.vector import fma, order
from openvrex.golden.function_params import RAW_BITS, DotFormat, ParamError, ReSVParams, ScoreFormat, check

STEPS = 256  # steps of the exp map per factor of two
LOG2_E = 1.4426950408889634


def scores(q: np.ndarray, key_cluster: np.ndarray, kv_heads: int, fmt: DotFormat | None = None) -> np.ndarray:
    """Scores of every query against every cluster, FP32 [T, H, C].

    `q` [T, H, head_dim] are BF16 queries, post-rotary. `key_cluster` [C, kv_heads x head_dim] BF16 holds one slice per
    KV head. The products are exact and rounded once, or those of the DPE with format `fmt`. Raises `ParamError` if H
    is not a multiple of `kv_heads`.
    """
    rows, heads, dim = q.shape
    if heads % kv_heads:
        raise ParamError(f"query heads={heads}: must be a multiple of kv_heads = {kv_heads}")
    slices = key_cluster.reshape(len(key_cluster), kv_heads, dim)
    out = np.empty((rows, heads, len(key_cluster)), np.float32)
    group = heads // kv_heads
    for g in range(kv_heads):
        part = slice(g * group, (g + 1) * group)
        own = q[:, part].reshape(-1, dim)
        products = dot(own, slices[:, g], fmt) if fmt else _matmul(own, slices[:, g])
        out[:, part] = products.reshape(rows, group, -1)
    return out


def _matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`numerics.matmul`, but faster: float64 sums of two plain rows are exact in any order.

    A row is plain if its length, in units of the last bit of its smallest number, is below 2^26. The products of
    two plain rows are multiples of a common unit. By Cauchy and Schwarz their magnitudes sum to at most the product of
    the lengths, below 2^52 units.
    """
    (x, plain_a), (y, plain_b) = _plain(a), _plain(b)
    out = (x @ y.T).astype(np.float32) + np.float32(0)
    if not plain_a.all():
        out[~plain_a] = matmul(a[~plain_a], b)
    if not plain_b.all():
        out[:, ~plain_b] = matmul(a, b[~plain_b])
    return out


def _plain(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """BF16 rows [N, n] as float64, with zeros for rows that are not plain; and which rows are plain, [N] bool."""
    bits = np.ascontiguousarray(x).view(np.uint16)
    field = (bits >> 7) & 0xFF  # biased exponent; 0 for a zero or a subnormal
    lowest = np.where(field == 0, 255, field).min(axis=1, initial=255).astype(np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        number = np.where(field == 0, 0, bits).astype(np.uint32)
        wide = (number << 16).view(np.float32).astype(np.float64)
        length = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        plain = (length < np.ldexp(1.0, lowest - 134 + 26)) & (lowest > 71) & (length < 2.0**60)
    plain |= length == 0
    return np.where(plain[:, None], wide, 0.0), plain


def codes(s: np.ndarray, params: ReSVParams, head_dim: int) -> np.ndarray:
    """Score codes of each row of `s` [R, C] FP32 by the map `params.score_map`, uint16 [R, C] (int64 for "raw").

    `head_dim` enters the maps "exp" and "vpe". Raises `ParamError` for "raw" scores that are not finite.
    """
    if s.shape[1] == 0:
        return np.zeros(s.shape, np.uint16)
    if params.score_map == "raw":
        return raw_codes(s)
    if params.score_map == "vpe":
        return exponential_codes(s, 1 / sqrt(head_dim), params.score)
    if params.score_map == "exp" and np.isfinite(s).all():
        return _exp_codes(s, params.score, head_dim)
    s = s.astype(np.float64)
    valid = ~np.isnan(s)
    top = np.max(s, axis=1, keepdims=True, where=valid, initial=-np.inf)
    at_top = valid & (s == top) & (top > -np.inf)  # handled apart: infinity minus infinity is NaN
    if params.score_map == "exp":
        table = exp_codes(params.score)
        down = np.subtract(top, s, where=valid & ~at_top & (top > -np.inf), out=np.full(s.shape, np.inf))
        steps = np.rint(np.minimum(down * (STEPS * LOG2_E / sqrt(head_dim)), len(table) - 1))
        return table[np.where(at_top, 0, steps).astype(np.int64)]
    if params.score_map == "shift":
        floor = np.min(s, axis=1, keepdims=True, where=valid & (s > -np.inf), initial=np.inf)
    else:
        floor = np.zeros(top.shape)
        at_top &= top > 0
    above = np.subtract(s, floor, where=valid & (s > floor) & ~at_top, out=np.zeros(s.shape))
    span = np.subtract(top, floor, where=top > floor, out=np.ones(top.shape))
    last = (1 << params.score.bits) - 1
    out = np.where(at_top, last, encode(above / span * value(last, params.score), params.score))
    return out.astype(np.uint16)


def raw_codes(s: np.ndarray) -> np.ndarray:
    """Codes of the map "raw": int64 [R, C], in proportion to the scores `s` [R, C] of each row.

    Raises `ParamError` for a score that is infinite or NaN.
    """
    check(bool(np.isfinite(s).all()), "scores", "infinite or NaN", "raw scores must be finite; use another score_map")
    _, exponent = np.frexp(np.abs(s).max(axis=1, keepdims=True))
    return np.rint(np.ldexp(s.astype(np.float64), RAW_BITS - exponent)).astype(np.int64)


def _exp_codes(s: np.ndarray, fmt: ScoreFormat, head_dim: int) -> np.ndarray:
    """Codes of the map "exp" for finite scores; it takes a few rows at a time, which stay in the processor's cache."""
    table = exp_codes(fmt)
    out = np.empty(s.shape, np.uint16)
    step = max(1, (1 << 15) // s.shape[1])
    for i in range(0, len(s), step):
        down = s[i : i + step].astype(np.float64)
        np.subtract(down.max(axis=1, keepdims=True), down, out=down)
        down *= STEPS * LOG2_E / sqrt(head_dim)
        np.minimum(down, len(table) - 1, out=down)
        out[i : i + step] = table.take(np.rint(down, out=down).astype(np.int32))
    return out


def exponential_codes(s: np.ndarray, factor: float, fmt: ScoreFormat) -> np.ndarray:
    """Codes of the map "vpe" for scores FP32 [R, C] times a factor, which is rounded to BF16."""
    scale, one = (to_bf16(np.full(s.shape, x)) for x in (factor, 1.0))
    scaled = fma(s.astype(np.float32), scale, np.full(s.shape, -0.0, np.float32))
    best = np.take_along_axis(scaled, order(scaled).argmax(axis=1)[:, None], axis=1)
    return score_code(exp(to_bf16(fma(scaled, one, -np.broadcast_to(best, s.shape)))), fmt)


@lru_cache
def exp_codes(fmt: ScoreFormat) -> np.ndarray:
    """Codes of the map "exp" for k = 0, -1, -2, ... (steps of 1/256 octave) down to the first code of 0, uint16.

    The computation uses integers only, as hardware would: a table of 256 significands
    round(2^(significand_bits - 1 + f / 256)) is shifted by the octave. A right shift rounds half up.
    """
    p = fmt.significand_bits
    significands = [_exp2(p - 1, f) for f in range(STEPS)]
    out: list[int] = []
    while not out or out[-1] > 0:
        octave, f = divmod(STEPS * fmt.value_bits - len(out), STEPS)
        shift = octave - (p - 1)
        if shift >= 0:
            out.append(min((shift << fmt.man_bits) + significands[f], (1 << fmt.bits) - 1))
        else:
            out.append((significands[f] + (1 << (-shift - 1))) >> -shift)
    return np.array(out, np.uint16)


def _exp2(n: int, f: int) -> int:
    """round(2^(n + f / 256)) in integers: eight nested square roots give the floor of twice the number."""
    x = 1 << (STEPS * (n + 1) + f)
    for _ in range(8):
        x = isqrt(x)
    return (x + 1) >> 1
