"""Scores of clusters against queries and their unsigned codes (V-Rex section IV-C, Fig. 9 step 3).

A row is one query token of one query head; its scores are s = q . Key_cluster over the key slice of the KV head that
the query head shares (query head h of H uses KV head h // (H / kv_heads)), exact and rounded once to FP32.
Attention's 1/sqrt(head_dim) is part of the "exp" map; "shift" and "clip" are linear and do not need it.

Maps of a row, every code the same on every platform:

* exp: the code of 2^(k / 256) x 2^value_bits with k = rint(256 log2(e) / sqrt(head_dim) x (s - max)), from `exp_codes`;
  the maximum has the top code and what is below about 2^-(value_bits + 1) of it has code 0.
* vpe: the code of exp(s' - max s') as the VPE computes it (`golden.program.vector_programs.score_codes`): s' = s x
  scale with 1/sqrt(head_dim) rounded to BF16, the difference rounded to FP32 and to BF16, exp in BF16.
* shift: s - min, scaled so that the maximum has the top value and rounded to the format, ties to even. A constant row
  has the top code everywhere.
* clip: max(s, 0), the same. A row without a score above zero is all zeros (and then selects every cluster).
* raw: s itself, for the paper's equations as they stand. No hardware: a code is a signed integer of `RAW_BITS` bits and
  a sign, s in units of 2^-RAW_BITS of the power of two above the row's largest magnitude, rounded; a factor that all
  scores of a row share changes no selection. Finite scores only.

A NaN score has code 0 and takes no part in the row's maximum and minimum. If the maximum is infinite it has the top
code and the rest of the row 0; a score of minus infinity has code 0 and takes no part in the minimum.
"""

from functools import lru_cache
from math import isqrt, sqrt

import numpy as np

from golden.arithmetic.dot import dot
from golden.arithmetic.elementwise import exp, score_code
from golden.arithmetic.numerics import matmul, to_bf16
from golden.arithmetic.score_codes import encode, value
from golden.arithmetic.vector import fma, order
from golden.function_params import RAW_BITS, DotFormat, ParamError, ReSVParams, ScoreFormat, check

STEPS = 256  # of the exp map's argument in a factor of two
LOG2_E = 1.4426950408889634


def scores(q: np.ndarray, key_cluster: np.ndarray, kv_heads: int, fmt: DotFormat | None = None) -> np.ndarray:
    """Scores of every query row, FP32 [T, H, C]: exact products rounded once, or the DPE's of format `fmt`.

    `q` [T, H, head_dim] BF16, after the rotary embedding; `key_cluster` [C, kv_heads x head_dim] BF16, one slice per
    KV head. `ParamError` if H is not a multiple of `kv_heads`.
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
    """The same as `numerics.matmul`, sooner: plain rows first, whose float64 sums are exact in any order.

    Of a plain row, the length in units of its smallest number's last bit is below 2^26. Products of two such rows are
    multiples of a common unit, and their magnitudes sum to at most the product of the lengths (Cauchy and Schwarz).
    """
    (x, plain_a), (y, plain_b) = _plain(a), _plain(b)
    out = (x @ y.T).astype(np.float32) + np.float32(0)
    if not plain_a.all():
        out[~plain_a] = matmul(a[~plain_a], b)
    if not plain_b.all():
        out[:, ~plain_b] = matmul(a, b[~plain_b])
    return out


def _plain(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, n] of BF16 as float64, 0 where they are not plain, and which are [N] bool."""
    bits = np.ascontiguousarray(x).view(np.uint16)
    field = (bits >> 7) & 0xFF
    lowest = np.where(field == 0, 255, field).min(axis=1, initial=255).astype(np.int64)  # 0: zero or subnormal
    with np.errstate(invalid="ignore", over="ignore"):
        number = np.where(field == 0, 0, bits).astype(np.uint32)
        wide = (number << 16).view(np.float32).astype(np.float64)
        length = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        plain = (length < np.ldexp(1.0, lowest - 134 + 26)) & (lowest > 71) & (length < 2.0**60)
    plain |= length == 0
    return np.where(plain[:, None], wide, 0.0), plain


def codes(s: np.ndarray, params: ReSVParams, head_dim: int) -> np.ndarray:
    """Score codes of `s` [R, C] FP32, rows apart, [R, C] uint16 (raw: int64). `head_dim` scales the exp map alone."""
    if s.shape[1] == 0:
        return np.zeros(s.shape, np.uint16)
    if params.score_map == "raw":
        return raw_codes(s)
    if params.score_map == "vpe":
        return _vpe_codes(s, params.score, head_dim)
    if params.score_map == "exp" and np.isfinite(s).all():
        return _exp_codes(s, params.score, head_dim)
    s = s.astype(np.float64)
    valid = ~np.isnan(s)
    top = np.max(s, axis=1, keepdims=True, where=valid, initial=-np.inf)
    at_top = valid & (s == top) & (top > -np.inf)  # infinity minus itself would be NaN
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
    """Signed integers [R, C] int64 in proportion to scores `s`; `ParamError` for one that is not finite."""
    check(bool(np.isfinite(s).all()), "scores", "infinite or NaN", "raw scores must be finite")
    _, exponent = np.frexp(np.abs(s).max(axis=1, keepdims=True))
    return np.rint(np.ldexp(s.astype(np.float64), RAW_BITS - exponent)).astype(np.int64)


def _exp_codes(s: np.ndarray, fmt: ScoreFormat, head_dim: int) -> np.ndarray:
    """The exp map of finite scores, some rows at a time so that they stay in a core's cache."""
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


def _vpe_codes(s: np.ndarray, fmt: ScoreFormat, head_dim: int) -> np.ndarray:
    scale, one = (to_bf16(np.full(s.shape, x)) for x in (1 / sqrt(head_dim), 1.0))
    scaled = fma(s.astype(np.float32), scale, np.full(s.shape, -0.0, np.float32))
    best = np.take_along_axis(scaled, order(scaled).argmax(axis=1)[:, None], axis=1)
    return score_code(exp(to_bf16(fma(scaled, one, -np.broadcast_to(best, s.shape)))), fmt)


@lru_cache
def exp_codes(fmt: ScoreFormat) -> np.ndarray:
    """Codes of the exp map at k = 0, -1, -2, ... (octaves / 256), as far as they exceed 0, and one 0. Integers only.

    The hardware's form: a table of 256 significands round(2^(significand_bits - 1 + f / 256)), shifted by the octave;
    what a right shift drops is rounded half up.
    """
    p = fmt.significand_bits
    significands = [_exp2(p - 1, f) for f in range(STEPS)]
    out = []
    while not out or out[-1] > 0:
        octave, f = divmod(STEPS * fmt.value_bits - len(out), STEPS)
        shift = octave - (p - 1)
        if shift >= 0:
            out.append(min((shift << fmt.man_bits) + significands[f], (1 << fmt.bits) - 1))
        else:
            out.append((significands[f] + (1 << (-shift - 1))) >> -shift)
    return np.array(out, np.uint16)


def _exp2(n: int, f: int) -> int:
    """round(2^(n + f / 256)) in integers: eight nested square roots give the floor of twice that."""
    x = 1 << (STEPS * (n + 1) + f)
    for _ in range(8):
        x = isqrt(x)
    return (x + 1) >> 1
