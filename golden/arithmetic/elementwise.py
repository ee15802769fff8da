"""Functions of one BF16 operand, bit for bit: exp, reciprocal, reciprocal square root, SiLU; and score codes.

| operand       | exp      | 1/x             | 1/sqrt(x) | SiLU                      |
| ------------- | -------- | --------------- | --------- | ------------------------- |
| NaN           | NaN      | NaN             | NaN       | NaN                       |
| +inf          | +inf     | +0              | +0        | +inf                      |
| -inf          | +0       | -0              | NaN       | -0                        |
| +0, subnormal | 1        | +inf            | +inf      | +0                        |
| -0, subnormal | 1        | -inf            | -inf      | -0                        |
| other x < 0   | > 0      | < 0             | NaN       | < 0, or -0                |
| overflow      | x > 88.5 | none            | none      | none                      |
| underflow     | x < -87  | beyond +-2^126  | none      | within +-2^-125, x < -91.5 |

Overflow gives +inf, underflow a zero with the sign of the exact value; NaN is 0x7fc0; subnormal operands are zeros of
their sign. The rest is as in `golden.arithmetic.numerics`; 1/sqrt(-0) = -inf is IEEE 754's rSqrt.

All four go through logarithms, so that they share their tables: with l = log2|x|, t = |x| log2(e) and
h = log2(1 + 2^-t)

    exp(x) = 2^t, 2^-t for x < 0           1/x = +-2^-l
    1/sqrt(x) = 2^(-l/2)                   SiLU(x) = x / (1 + e^-x) = 2^(l - h), -2^(l - h - t) for x < 0

Numbers are integers in units of 2^-10, rounded down; a minus is the ones' complement, which keeps them so, and
`ANTILOG` takes the middle of the unit.

Over all operands (`tb/tests/golden/arithmetic/test_elementwise.py`) 1/x and 1/sqrt(x) are correctly rounded, exp and
SiLU faithfully: off by less than 0.69 and 0.93 units in the last place, not the nearest number for 131 and 439
operands. exp, 1/x and 1/sqrt(x) are monotonic, and so is SiLU on either side of its minimum at -1.278.
"""

import numpy as np

from golden.arithmetic.numerics import BF16, flush
from golden.arithmetic.score_codes import encode
from golden.function_params import ScoreFormat

FRAC = 10  # fraction bits of a logarithm
ONE = 1 << FRAC
LOG2_E = 1.4426950408889634
T_BITS = FRAC + 8  # of t; from |x| = 128 on it is all ones, beyond the range of every result
NAN, INF = 0x7FC0, 0x7F80


def _log2(x: int, unit: int) -> int:
    """floor(unit * log2(x)), exactly."""
    return (x**unit).bit_length() - 1


def _log_table() -> np.ndarray:
    """log2(1 + f / 128), f = 0 to 127. Ten entries are one off: so every reciprocal and root is correctly rounded, and
    `ANTILOG` gives f back."""
    log = np.array([_log2(128 + f, ONE) - 7 * ONE for f in range(128)])
    log[[40, 43, 51]] += 1
    log[[16, 17, 34, 56, 87, 126, 127]] -= 1
    return log


def _antilog_table() -> np.ndarray:
    """128 * (2^((i + 1/2) / 1024) - 1) to the nearest integer, i = 0 to 1023; the last ones are 128, a carry."""
    limits = [_log2(257 + 2 * y, 2 * ONE) - 16 * ONE for y in range(128)]  # log2 of y + 1/2, in halves of the unit
    return np.searchsorted(limits, 2 * np.arange(ONE) + 1)


def _sigmoid_table() -> np.ndarray:
    """The line of each eighth passes through its middle, but for an offset, the one with most correct roundings; even
    entries save a bit of logic."""
    middle = np.log2(1 + 2.0 ** -(np.arange(128) / 8 + 1 / 16))
    gain = np.repeat(SLOPE, 2) * 15
    start = 2 * np.floor((ONE + 1.5 - ONE * middle - gain / 4) / 2)
    return np.minimum(start, ONE - 1 - gain // 2).astype(np.int64)


LOG = _log_table()
ANTILOG = _antilog_table()

# 2^15 log2(e) (1 + f / 128) is HIGH of f's upper three bits plus LOW of its lower four.
PRODUCT_FRAC = 15
HIGH = np.array([int((8 + i) * LOG2_E * 2**12) for i in range(8)])
LOW = np.array([round(i * LOG2_E * 2**8) for i in range(16)])

# 1024 (1 - h) as a straight line in every eighth of t < 16: SIGMOID is its start; SLOPE, one per quarter, what it gains
# in half units every sixteenth of the eighth. It ends at 1023, and ANTILOG does not mind the missing unit.
SLOPE = np.array([8, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2] + [1] * 10 + [0] * 42)
SIGMOID = _sigmoid_table()


def exp(x: np.ndarray) -> np.ndarray:
    """e^x of BF16 numbers, BF16."""
    sign, exponent, fraction = _parts(x)
    t = _natural(exponent, fraction)
    return _bf16(_power(127 * ONE + np.where(sign, ~t, t)), _is_nan(x))


def reciprocal(x: np.ndarray) -> np.ndarray:
    """1/x of BF16 numbers, BF16."""
    sign, exponent, fraction = _parts(x)
    y = _power(254 * ONE + ~_logarithm(exponent, fraction))
    return _bf16(np.where(exponent, y, INF) | sign << 15, _is_nan(x))


def rsqrt(x: np.ndarray) -> np.ndarray:
    """1/sqrt(x) of BF16 numbers, BF16."""
    sign, exponent, fraction = _parts(x)
    y = _power((381 * ONE + ~_logarithm(exponent, fraction)) >> 1)
    y = np.where(exponent == 255, 0, y)
    return _bf16(np.where(exponent, y, INF) | sign << 15, _is_nan(x) | (sign & (exponent > 0)))


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + e^-x) of BF16 numbers, BF16."""
    sign, exponent, fraction = _parts(x)
    t = _natural(exponent, fraction)
    y = _power(_logarithm(exponent, fraction) - ONE + _sigmoid(t) + np.where(sign, ~t, 0))
    return _bf16(y | sign << 15, _is_nan(x))


def score_code(y: np.ndarray, fmt: ScoreFormat) -> np.ndarray:
    """Score codes of BF16 numbers in [0, 1]: y * 2^value_bits to the nearest value of the format, ties to even, uint16.

    Above the top code's value the code is the top one; that of NaN and of all below 0 is 0.
    """
    bits = np.ascontiguousarray(y).view(np.uint16)
    y = np.where(bits <= INF, flush(y), BF16(0)).astype(np.float64)
    return encode(np.ldexp(np.minimum(y, 1.0), fmt.value_bits), fmt).astype(np.uint16)


def _parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sign, biased exponent and fraction."""
    bits = np.ascontiguousarray(x).view(np.uint16).astype(np.int64)
    return bits >> 15, bits >> 7 & 0xFF, bits & 0x7F


def _is_nan(x: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(x).view(np.uint16) & 0x7FFF) > INF


def _bf16(bits: np.ndarray, nan: np.ndarray) -> np.ndarray:
    return np.where(nan, NAN, bits).astype(np.uint16).view(BF16)


def _logarithm(exponent: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    """127 + log2|x|."""
    return exponent * ONE + LOG[fraction]


def _natural(exponent: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    """t = |x| log2(e)."""
    product = HIGH[fraction >> 4] + LOW[fraction & 15]
    right = 127 + PRODUCT_FRAC - FRAC - exponent
    t = np.where(right < 0, product << 1, product >> np.clip(right, 0, 31))
    return np.where(exponent < 127 + 7, t, (1 << T_BITS) - 1)


def _sigmoid(t: np.ndarray) -> np.ndarray:
    """1024 (1 - h(t)), 2 to 1023."""
    i = np.minimum(t, 16 * ONE - 1)
    return SIGMOID[i >> 7] + (SLOPE[i >> 8] * (i >> 3 & 15) >> 1)


def _power(y: np.ndarray) -> np.ndarray:
    """2^(y / ONE - 127) as the bits of a BF16 number, infinite or zero beyond its range."""
    bits = np.clip((y >> FRAC) * 128 + ANTILOG[y & ONE - 1], 0, INF)
    return np.where(bits < 128, 0, bits)
