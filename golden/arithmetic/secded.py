"""Check bits that protect a memory against bit errors: parity, or SECDED.

A code word is the data followed by its check bits, which sit above the data.

* Parity has one check bit. It makes the number of ones in the word even, so one wrong bit is detected.
* SECDED (single error correction, double error detection) is Hsiao's form of the Hamming code. Data bit i takes part in
  the checks that are set in `columns(width)[i]`. Their number is odd and at least three. Check bit k takes part in
  check k alone. One wrong bit gives a syndrome with an odd number of ones, which identifies the bit. Two wrong bits
  give a syndrome with an even number of ones that is not zero.

Source: M. Y. Hsiao, A class of optimal minimum odd-weight-column SEC-DED codes, IBM J. Res. Dev. 14 (1970).
"""

from enum import Enum
from functools import cache
from itertools import combinations, count

from openvrex.golden.function_params import check


class Verdict(Enum):
    """What the decoder found in a code word."""

    GOOD = "good"  # no error
    CORRECTED = "corrected"  # one wrong bit, corrected
    DETECTED = "detected"  # wrong bits that cannot be corrected


PROTECTIONS = ("none", "parity", "secded")


@cache
def columns(width: int) -> tuple[int, ...]:
    """The checks of each data bit, as one bit mask per data bit.

    The ones are spread evenly over the checks, so that the checks are XOR trees of about equal size.
    """
    checks = check_bits(width, "secded")
    out: list[int] = []
    load = [0] * checks
    for ones in range(3, checks + 1, 2):
        free = [sum(1 << k for k in at) for at in combinations(range(checks), ones)]
        while free and len(out) < width:
            best = min(free, key=lambda c: (sum(load[k] for k in range(checks) if c >> k & 1), c))
            free.remove(best)
            out.append(best)
            load = [n + (best >> k & 1) for k, n in enumerate(load)]
    return tuple(out)


def check_bits(width: int, protection: str) -> int:
    """Number of check bits for `width` data bits. Raises `ParamError` for an unknown protection."""
    check(protection in PROTECTIONS, "protect", protection, f"must be one of {', '.join(PROTECTIONS)}")
    if protection != "secded":
        return int(protection == "parity")
    return next(k for k in count(1) if 2 ** (k - 1) - k >= width)  # k checks have so many columns of odd weight >= 3


def encode(data: int, width: int, protection: str) -> int:
    """The code word of `data`: `width` data bits, then the check bits of the protection."""
    if protection == "none":
        return data
    if protection == "parity":
        return data | (data.bit_count() & 1) << width
    checks = 0
    for i, column in enumerate(columns(width)):
        checks ^= column if data >> i & 1 else 0
    return data | checks << width


def decode(word: int, width: int, protection: str) -> tuple[int, Verdict]:
    """Decode a code word: its data, corrected where the protection can, and the verdict."""
    data = word & (1 << width) - 1
    syndrome = (encode(data, width, protection) ^ word) >> width
    if not syndrome:
        return data, Verdict.GOOD
    if protection == "secded" and syndrome.bit_count() == 1:
        return data, Verdict.CORRECTED  # a check bit was wrong, the data is good
    if protection == "secded" and syndrome in columns(width):
        return data ^ 1 << columns(width).index(syndrome), Verdict.CORRECTED
    return data, Verdict.DETECTED
