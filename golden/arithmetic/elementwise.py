"""The VPE's functions of one BF16 operand, bit for bit: exp, 1/x, 1/sqrt(x) and SiLU, and the score codes of results.

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

Overflow gives +inf. Underflow gives a zero with the sign of the exact value. A NaN result is 0x7fc0, and a subnormal
operand counts as a zero of its sign. `golden.arithmetic.numerics` states all other rules; 1/sqrt(-0) = -inf is IEEE
754's rSqrt.

Method: every function adds logarithms and then takes one power of two, so that all four share their tables. With
l = log2|x|, t = |x| log2(e) and h = log2(1 + 2^-t),

    exp(x) = 2^t, 2^-t for x < 0           1/x = +-2^-l
    1/sqrt(x) = 2^(-l/2)                   SiLU(x) = x / (1 + e^-x) = 2^(l - h), -2^(l - h - t) for x < 0

Logarithms are integers in units of 2^-10, rounded down. The ones' complement negates them, which rounds the negative
down too. `ANTILOG` takes the power at the middle of the unit.

Accuracy over all 65,536 operands (`tb/tests/golden/arithmetic/test_elementwise.py`):

| function | error in units in the last place | operands without the nearest result | monotonic |
| --- | --- | --- | --- |
| 1/x, 1/sqrt(x) | correctly rounded | 0 | yes |
| exp | below 0.69 | 131 | yes |
| SiLU | below 0.93 | 439 | on either side of its minimum at -1.278 |

Source: the VPE is V-Rex's (section V-A); these algorithms are this project's own.
"""

import numpy as np

from golden.arithmetic.numerics import BF16, flush
from golden.arithmetic.score_codes import encode
from golden.function_params import ScoreFormat

FRAC = 10  # fraction bits of a logarithm
ONE = 1 << FRAC
LOG2_E = 1.4426950408889634
T_BITS = FRAC + 8  # bits of t; from |x| = 128 on t is all ones, and every function overflows or underflows
NAN, INF = 0x7FC0, 0x7F80  # BF16


def _log2(x: int, unit: int) -> int:
    """floor(unit * log2(x)), exact."""
    return (x**unit).bit_length() - 1


def _log_table() -> np.ndarray:
    """log2(1 + f / 128) for f = 0 to 127.

    Ten entries are shifted by one unit. With them every reciprocal and root is correctly rounded, and `ANTILOG` maps
    an entry back to its f.
    """
    log = np.array([_log2(128 + f, ONE) - 7 * ONE for f in range(128)])
    log[[40, 43, 51]] += 1
    log[[16, 17, 34, 56, 87, 126, 127]] -= 1
    return log


def _antilog_table() -> np.ndarray:
    """128 * (2^((i + 1/2) / 1024) - 1) rounded to the nearest integer, for i = 0 to 1023.

    The last entries are 128, a carry into the exponent.
    """
    # An entry steps from y to y + 1 where the exact value passes y + 1/2; its logarithm here in half units.
    limits = [_log2(257 + 2 * y, 2 * ONE) - 16 * ONE for y in range(128)]
    return np.searchsorted(limits, 2 * np.arange(ONE) + 1)


def _sigmoid_table() -> np.ndarray:
    """Start values of the straight lines that approximate 1024 (1 - h), one line per eighth of t.

    A line passes through the exact value at the middle of its eighth, plus an offset. All lines share this offset; it
    is the one that rounds most SiLU results correctly. Entries are even, which saves a bit of logic in hardware.
    """
    middle = np.log2(1 + 2.0 ** -(np.arange(128) / 8 + 1 / 16))
    gain = np.repeat(SLOPE, 2) * 15
    start = 2 * np.floor((ONE + 1.5 - ONE * middle - gain / 4) / 2)
    return np.minimum(start, ONE - 1 - gain // 2).astype(np.int64)


LOG = _log_table()
ANTILOG = _antilog_table()

# The product 2^15 log2(e) (1 + f / 128) is HIGH[upper three bits of f] + LOW[lower four bits of f].
PRODUCT_FRAC = 15
HIGH = np.array([int((8 + i) * LOG2_E * 2**12) for i in range(8)])
LOW = np.array([round(i * LOG2_E * 2**8) for i in range(16)])

# 1024 (1 - h) is approximated by a straight line in every eighth of t < 16. SIGMOID holds the start of each line.
# SLOPE, one entry per quarter, is the gain in half units per sixteenth of an eighth. The last line ends at 1023 instead
# of 1024; ANTILOG gives the same result for both.
SLOPE = np.array([8, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2] + [1] * 10 + [0] * 42)
SIGMOID = _sigmoid_table()


def exp(x: np.ndarray) -> np.ndarray:
    """e^x of BF16 numbers of any shape, BF16. Special cases: see the module's table."""
    sign, exponent, fraction = _parts(x)
    t = _natural(exponent, fraction)
    return _bf16(_power(127 * ONE + np.where(sign, ~t, t)), _is_nan(x))


def reciprocal(x: np.ndarray) -> np.ndarray:
    """1/x of BF16 numbers of any shape, BF16, correctly rounded."""
    sign, exponent, fraction = _parts(x)
    y = _power(254 * ONE + ~_logarithm(exponent, fraction))
    return _bf16(np.where(exponent, y, INF) | sign << 15, _is_nan(x))


def rsqrt(x: np.ndarray) -> np.ndarray:
    """1/sqrt(x) of BF16 numbers of any shape, BF16, correctly rounded; NaN below zero."""
    sign, exponent, fraction = _parts(x)
    y = _power((381 * ONE + ~_logarithm(exponent, fraction)) >> 1)
    y = np.where(exponent == 255, 0, y)
    return _bf16(np.where(exponent, y, INF) | sign << 15, _is_nan(x) | (sign & (exponent > 0)))


def silu(x: np.ndarray) -> np.ndarray:
    """SiLU, x / (1 + e^-x), of BF16 numbers of any shape, BF16."""
    sign, exponent, fraction = _parts(x)
    t = _natural(exponent, fraction)
    y = _power(_logarithm(exponent, fraction) - ONE + _sigmoid(t) + np.where(sign, ~t, 0))
    return _bf16(y | sign << 15, _is_nan(x))


def score_code(y: np.ndarray, fmt: ScoreFormat) -> np.ndarray:
    """Score codes of BF16 numbers in [0, 1], uint16 of the same shape.

    The code is that of the format's value nearest to y * 2^value_bits, ties to even. It saturates at the top code.
    NaN and negative numbers have code 0.
    """
    bits = np.ascontiguousarray(y).view(np.uint16)
    y = np.where(bits <= INF, flush(y), BF16(0)).astype(np.float64)
    return encode(np.ldexp(np.minimum(y, 1.0), fmt.value_bits), fmt).astype(np.uint16)


def _parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split BF16 numbers into sign, biased exponent and 7-bit fraction, int64 each."""
    bits = np.ascontiguousarray(x).view(np.uint16).astype(np.int64)
    return bits >> 15, bits >> 7 & 0xFF, bits & 0x7F


def _is_nan(x: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(x).view(np.uint16) & 0x7FFF) > INF


def _bf16(bits: np.ndarray, nan: np.ndarray) -> np.ndarray:
    return np.where(nan, NAN, bits).astype(np.uint16).view(BF16)


def _logarithm(exponent: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    """(127 + log2|x|) * ONE, of a biased exponent and a fraction."""
    return exponent * ONE + LOG[fraction]


def _natural(exponent: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    """t * ONE = |x| log2(e) * ONE, of a biased exponent and a fraction; saturates at `T_BITS` ones."""
    product = HIGH[fraction >> 4] + LOW[fraction & 15]
    right = 127 + PRODUCT_FRAC - FRAC - exponent
    t = np.where(right < 0, product << 1, product >> np.clip(right, 0, 31))
    return np.where(exponent < 127 + 7, t, (1 << T_BITS) - 1)


def _sigmoid(t: np.ndarray) -> np.ndarray:
    """1024 (1 - h(t)), from 2 to 1023."""
    i = np.minimum(t, 16 * ONE - 1)
    return SIGMOID[i >> 7] + (SLOPE[i >> 8] * (i >> 3 & 15) >> 1)


def _power(y: np.ndarray) -> np.ndarray:
    """2^(y / ONE - 127) as the bits of a BF16 number; infinite above the range, zero below it."""
    bits = np.clip((y >> FRAC) * 128 + ANTILOG[y & ONE - 1], 0, INF)
    return np.where(bits < 128, 0, bits)
