"""Check bits of a protected memory: parity, or single error correction with double error detection (SECDED).

A code word is the data, then its check bits. Parity has one: the word's ones are even. SECDED is Hamming's code with an
odd number of ones in every column (Hsiao): bit i of the data belongs to the checks that are set in `columns(width)[i]`,
an odd number of them, three or more; check k to itself. An error of one bit gives a syndrome with an odd number of
ones, which names the bit; one of two bits an even number that is not zero.

Source: M. Y. Hsiao, A class of optimal minimum odd-weight-column SEC-DED codes, IBM J. Res. Dev. 14 (1970).
"""

from enum import Enum
from functools import cache
from itertools import combinations, count

from golden.function_params import check


class Verdict(Enum):
    """What a code word's check bits say of it."""

    GOOD = "good"
    CORRECTED = "corrected"
    DETECTED = "detected"


PROTECTIONS = ("none", "parity", "secded")


@cache
def columns(width: int) -> tuple[int, ...]:
    """The checks that each bit of the data belongs to, as a mask; ones are spread evenly over the checks."""
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
    """Check bits for `width` bits of data. Raises `ParamError` for an unknown protection."""
    check(protection in PROTECTIONS, "protect", protection, f"must be one of {', '.join(PROTECTIONS)}")
    if protection != "secded":
        return int(protection == "parity")
    return next(k for k in count(1) if 2 ** (k - 1) - k >= width)  # columns of odd weight 3 and more


def encode(data: int, width: int, protection: str) -> int:
    """The code word of `data`."""
    if protection == "none":
        return data
    if protection == "parity":
        return data | (data.bit_count() & 1) << width
    checks = 0
    for i, column in enumerate(columns(width)):
        checks ^= column if data >> i & 1 else 0
    return data | checks << width


def decode(word: int, width: int, protection: str) -> tuple[int, Verdict]:
    """The data of a code word, corrected if one bit is wrong, and what became of it."""
    data = word & (1 << width) - 1
    syndrome = (encode(data, width, protection) ^ word) >> width
    if not syndrome:
        return data, Verdict.GOOD
    if protection == "secded" and syndrome.bit_count() == 1:
        return data, Verdict.CORRECTED  # the check bit itself
    if protection == "secded" and syndrome in columns(width):
        return data ^ 1 << columns(width).index(syndrome), Verdict.CORRECTED
    return data, Verdict.DETECTED
