"""The VPE's functions of one BF16 operand, bit for bit: exp, 1/x, 1/sqrt(x) and SiLU, and the score codes of results.

A VPE with the feature "hybrid" also has expm1(x) = e^x - 1 and softplus(x) = log(1 + e^x), for selective scans.

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
754's rSqrt. The same rules hold for the two functions of "hybrid":

| operand       | expm1    | softplus             |
| ------------- | -------- | -------------------- |
| NaN           | NaN      | NaN                  |
| +inf          | +inf     | +inf                 |
| -inf          | -1       | +0                   |
| +0, subnormal | +0       | log 2                |
| -0, subnormal | -0       | log 2                |
| other x < 0   | < 0      | > 0, or +0           |
| overflow      | x > 88.5 | none                 |
| underflow     | none     | x < -87              |

Method: every function adds logarithms and then takes one power of two, so that all four share their tables. With
l = log2|x|, t = |x| log2(e) and h = log2(1 + 2^-t),

    exp(x) = 2^t, 2^-t for x < 0           1/x = +-2^-l
    1/sqrt(x) = 2^(-l/2)                   SiLU(x) = x / (1 + e^-x) = 2^(l - h), -2^(l - h - t) for x < 0

Logarithms are integers in units of 2^-10, rounded down. The ones' complement negates them, which rounds the negative
down too. `ANTILOG` takes the power at the middle of the unit.

The functions of "hybrid" add one more term, a function of t that straight lines approximate as they do h:

    expm1(x) = +-2^(l + g), times 2^t for x > 0, where g = log2((1 - 2^-t) / |x|); from t = 2 on, 2^g' with
    g' = log2(1 - 2^-t) in place of 2^(l + g)
    softplus(x) = 2^(s - t) for x < 0, where s = log2(log(1 + 2^-t) 2^t); 2^c with c = log2(softplus(x)) for 0 < x and
    t < 1.5; 2^(l + q) with q = log2(softplus(x) / x) above

Accuracy over all 65,536 operands (`tb/tests/golden/arithmetic/test_elementwise.py`):

| function | error in units in the last place | operands without the nearest result | monotonic |
| --- | --- | --- | --- |
| 1/x, 1/sqrt(x) | correctly rounded | 0 | yes |
| exp | below 0.69 | 131 | yes |
| SiLU | below 0.93 | 439 | on either side of its minimum at -1.278 |
| expm1 | below 0.990 | 583 | but for three pairs of neighbours, below -3 |
| softplus | below 0.90 | 509 | but for three pairs of neighbours, between -0.2 and 0 |

Source: the VPE is V-Rex's (section V-A); these algorithms are this project's own.
"""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, flush
from openvrex.golden.arithmetic.score_codes import encode
from openvrex.golden.function_params import ScoreFormat

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


@dataclass(frozen=True)
class Lines:
    """Straight lines, one for each eighth of t < 16, that approximate a function of t in units of 1 / ONE.

    start : the value at the lower end of each line, the upper end of one that falls
    slope : gain in half units per sixteenth of an eighth, below zero for a line that falls
    """

    start: np.ndarray
    slope: np.ndarray

    @classmethod
    def of(cls, start: str, slope: str, end: int) -> "Lines":
        """Lines from lists of numbers; those behind the lists are level at `end`."""
        starts, slopes = (np.array(text.split(), np.int64) for text in (start, slope))
        pad = [(0, 128 - len(numbers)) for numbers in (starts, slopes)]
        return cls(np.pad(starts, pad[0], constant_values=end), np.pad(slopes, pad[1]))

    def at(self, t: np.ndarray) -> np.ndarray:
        """The approximation; from t = 16 on that of the last sixteenth below."""
        i = np.minimum(t, 16 * ONE - 1)
        slope, step = self.slope[i >> 7], i >> 3 & 15
        return self.start[i >> 7] + (np.abs(slope) * np.where(slope < 0, 15 - step, step) >> 1)


# Lines of the functions of "hybrid". Starts and slopes are chosen so that every result is within a unit in the last
# place, and few are not the nearest. The starts of EXPM1 and SOFTPLUS_BELOW are 3 modulo 4, which saves a bit of
# logic in hardware. All values lie between 0 and 1023. A function that ends at 1024 ends at 1023, for which ANTILOG
# gives the same result.
# 1024 (1 + g) for t < 2 and 1024 (1 + g') above.
EXPM1 = Lines.of(
    start=(
        "963 899 835 775 715 655 603 543 487 431 379 323 271 219 167 115 599 639 675 707 739 763 787 807 827 843 "
        "859 871 891 899 911 919 927 935 943 951 955 963 967 971 979 983 987 987 991 995 995 999 1003 1003 1007 "
        "1007 1007 1007 1011 1011 1011 1011 1011 1015 1019 1015 1019 1019 1019 1019 1019 1019 1019 1019 1019 1019"
    ),
    slope=("-8 -8 -8 -8 -8 -8 -7 -7 -7 -7 -7 -7 -6 -6 -7 -7 5 5 4 4 3 3 3 3 2 2 2 2 1 1 1 1 1 1 1 1 1 1 1 1"),
    end=ONE - 1,
)
# 1024 (1 + s).
SOFTPLUS_BELOW = Lines.of(
    start=(
        "483 519 551 583 615 643 667 691 715 735 759 779 795 811 827 843 859 871 883 895 903 911 919 923 935 943 "
        "947 955 959 963 971 979 975 979 987 991 991 995 999 1003 999 999 1003 1003 1007 1011 1011 1011 1011 1015 "
        "1015 1015 1015 1015 1019 1019 1019 1019 1019 1019 1019 1019 1019 1023 1019"
    ),
    slope=("4 4 4 4 3 3 3 3 3 3 2 2 2 2 2 2 1 1 1 1 1 1 2 2 1 1 1 1 1 1 0 0 1 1 0 0 0 0 0 0 1 1 1 1"),
    end=ONE - 1,
)
# 1024 c + SOFTPLUS_BASE for t < 1.5 and 1024 q above.
SOFTPLUS_ABOVE = Lines.of(
    start=(
        "7 97 187 277 358 445 527 610 684 760 838 910 330 285 253 220 196 172 153 134 117 103 94 83 73 65 57 51 "
        "44 40 33 30 30 26 24 22 19 17 15 14 12 11 10 8 8 7 7 6 5 4 4 4 3 3 3 2 2 2 2 2 1 1 1 1 1 1 1 1 1 1 1"
    ),
    slope=("11 11 11 10 11 10 10 9 10 10 9 9 -6 -6 -4 -4 -3 -3 -2 -2 -2 -2 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1"),
    end=0,
)
SOFTPLUS_BASE = 544
# BF16 bits of the least |x| with t >= 2 and with t >= 1.5, from where on the other formula holds.
EXPM1_TURN, SOFTPLUS_TURN = 0x3FB2, 0x3F86
SOFTPLUS_LOW = 0x3A00  # of 2^-11: softplus of a smaller |x| is that of a number below zero, log 2


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


def expm1(x: np.ndarray) -> np.ndarray:
    """e^x - 1 of BF16 numbers of any shape, BF16. For a VPE with the feature "hybrid"."""
    sign, exponent, fraction = _parts(x)
    t = _natural(exponent, fraction)
    near = (exponent << 7 | fraction) < EXPM1_TURN
    base = np.where(near, _logarithm(exponent, fraction) - ONE, 126 * ONE)
    y = _power(base + np.where(t < 16 * ONE, EXPM1.at(t), ONE - 1) + np.where(sign, 0, t))
    return _bf16(y | sign << 15, _is_nan(x))


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + e^x) of BF16 numbers of any shape, BF16. For a VPE with the feature "hybrid"."""
    sign, exponent, fraction = _parts(x)
    t = _natural(exponent, fraction)
    below = 126 * ONE + np.where(t < 16 * ONE, SOFTPLUS_BELOW.at(t), ONE - 1) + ~t
    magnitude = exponent << 7 | fraction
    base = np.where(magnitude < SOFTPLUS_TURN, 127 * ONE - SOFTPLUS_BASE, _logarithm(exponent, fraction))
    above = base + np.where(t < 16 * ONE, SOFTPLUS_ABOVE.at(t), 0)
    return _bf16(_power(np.where(sign | (magnitude < SOFTPLUS_LOW), below, above)), _is_nan(x))


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
