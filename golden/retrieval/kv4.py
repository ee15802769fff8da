"""KV4: keys and values in 4 bits a number, the format of entries in offload memory, with exact rules for every bit.

An entry of BF16 numbers is cut into groups of `group` numbers. Each group packs alone into group / 2 bytes, a quarter
of its size, so a packed entry stays as aligned as the entry was. Number i is the nibble i, low nibble of a byte first:
its code c. The low bits of 14 of the codes hold the header of the group, so the scale costs no space:

=======  =====  ======================================================================================================
header   field  meaning
=======  =====  ======================================================================================================
0 to 7   e      exponent. 0: every number is zero. 255: every number is NaN. Otherwise the step is
                s = (4 + j) * 2^(e - 131)
8, 9     j      significand of the step
10 - 13  z      codes below zero
=======  =====  ======================================================================================================

Header bit b lies in bit 0 of the code of number b * group / 16, and these numbers have 3-bit codes.

Packing. Subnormals count as zero. P is the largest number of the group and -N the least one; each is 0 if there is
none of its sign. With E the larger exponent field of the two, t = ceil(P / u) + ceil(N / u) in units u =
2^(E - 134).

- s is the least step that is at least t * u / 15 and has e >= 1. It depends on t and E alone (`STEPS`).
- m(x) = floor(|x| / s). z = min(15, m(N) + 1), or 0 without a negative number.
- c = z + m(x), for a negative number z - 1 - m(x), held within 0 to 15.
- A group of zeros packs into zeros. A group with an infinity or a NaN has e = 255 and no other bit.

Expanding. A code stands for the middle of its step, v = (c - z + 1/2) * s. A 3-bit code, whose c is even, stands for
the middle of two steps: v = (c - z + 1) * s. Either has at most 8 significant bits, so v is a BF16 number as it is. A v
below 2^-126 in magnitude becomes +0; one of 2^128 or more becomes the largest finite number of its sign.

Error: |v - x| <= s / 2, with a 3-bit code s; and s <= (P + N) / 12 + 2^(E - 137), unless e is 1. Zeros among other
numbers come back as s / 2.

Hardware needs one group at a time: `hdl.retrieval.kv4_codec`. Source: Oaken, V-Rex [13] (groups by token, 4 bits);
the format is this project's own.
"""

import numpy as np

from openvrex.golden.function_params import check

GROUPS = (16, 32, 64, 128)
RATIO = 4  # bytes of an entry for each byte of the packed one
HEADER = 14
ZEROS, NANS = 0, 255  # e of a group of zeros, of NaNs
NAN, LARGEST = 0x7FC0, 0x7F7F
# (d, j) of steps, and the largest t for which each is taken: e = E - 3 + d, and 15 * (4 + j) * 2^d >= t.
STEPS = tuple((d, j, 15 * (4 + j) << d) for d in (1, 2, 3) for j in range(4) if 128 <= 15 * (4 + j) << d < 720)


def step_of(top: int, t: int) -> tuple[int, int]:
    """(e, j) of the step of a group with E = `top` and this t."""
    d, j = next((d, j) for d, j, most in STEPS if most >= t)
    e = top - 3 + d
    return (e, j) if e >= 1 else (1, 0)


def pack(numbers: np.ndarray, group: int) -> np.ndarray:
    """Pack BF16 numbers, given as uint16 [..., n], into uint8 [..., n / 2]; `group` divides n."""
    bits = _grouped(numbers, group, group).astype(np.int64)
    exponent, negative = bits >> 7 & 255, bits >> 15
    size = np.where(exponent, bits & 0x7FFF, 0)
    negative &= size > 0
    p, n = (np.max(np.where(negative == sign, size, 0), axis=-1) for sign in (0, 1))
    top = np.maximum(p, n) >> 7
    t = sum(-(-_significand(x) >> np.minimum(top - (x >> 7), 8)) for x in (p, n))
    at = np.searchsorted([most for *_, most in STEPS], t)
    d, j = (np.array([step[k] for step in STEPS])[at] for k in (0, 1))
    e, j = np.maximum(top - 3 + d, 1), np.where(top - 3 + d < 1, 0, j)

    def steps(x: np.ndarray, e: np.ndarray, j: np.ndarray) -> np.ndarray:
        return (_significand(x) >> np.clip(e + 3 - (x >> 7), 0, 8)) // (4 + j)

    z = np.where(n > 0, np.minimum(steps(n, e, j) + 1, 15), 0)
    e, j, z = e[..., None], j[..., None], z[..., None]
    m = steps(size, e, j)
    code = np.clip(np.where(negative, z - 1 - m, z + m), 0, 15)
    dead = (top == 0) | (top == 255)
    code[dead] = 0
    header = np.where(dead, np.where(top == 255, NANS, ZEROS), e[..., 0] | j[..., 0] << 8 | z[..., 0] << 10)
    at = _places(group)
    code[..., at] = code[..., at] & 14 | header[..., None] >> np.arange(HEADER) & 1
    nibbles = code.reshape(*numbers.shape[:-1], numbers.shape[-1] // 2, 2)
    return (nibbles[..., 0] | nibbles[..., 1] << 4).astype(np.uint8)


def expand(packed: np.ndarray, group: int) -> np.ndarray:
    """Expand uint8 [..., n / 2] into BF16 numbers, uint16 [..., n]."""
    data = _grouped(packed, group, group // 2).astype(np.int64)
    code = np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], group)
    at = _places(group)
    header = ((code[..., at] & 1) << np.arange(HEADER)).sum(axis=-1)[..., None]
    e, j, z = header & 255, header >> 8 & 3, header >> 10
    half = np.ones(group, np.int64)  # the middle of a code's step, in half steps
    half[at] = 2
    code[..., at] &= 14
    u = 2 * (code - z) + half
    a = np.abs(u) * (4 + j)
    lead = np.frexp(a)[1].astype(np.int64) - 1
    exponent = e + lead - 5
    out = exponent << 7 | (a << 7 >> np.maximum(lead, 0)) & 127
    out = np.where(exponent > 254, LARGEST, out) | (u < 0) << 15
    out = np.where((a == 0) | (exponent < 1) | (e == ZEROS), 0, out)
    out = np.where(e == NANS, NAN, out)
    return out.reshape(*packed.shape[:-1], 2 * packed.shape[-1]).astype(np.uint16)


def copied(x: np.ndarray, group: int) -> np.ndarray:
    """FP32 [..., n] of BF16 numbers as they come back from offload memory."""
    bits = (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return (expand(pack(bits, group), group).astype(np.uint32) << 16).view(np.float32)


def check_group(group: int, numbers: int, what: str) -> None:
    """Raise `ParamError` unless `what` of so many numbers is whole groups."""
    check(group in GROUPS, "kv4_group", group, f"must be one of {GROUPS}, or 0: entries at home stay BF16")
    check(numbers % group == 0, "kv4_group", group, f"must divide the {numbers} numbers of {what}")


def _grouped(x: np.ndarray, group: int, size: int) -> np.ndarray:
    check(group in GROUPS, "kv4_group", group, f"must be one of {GROUPS}")
    check(x.shape[-1] % size == 0, "n", x.shape[-1], f"must be a multiple of {size}: whole groups of {group} numbers")
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _places(group: int) -> np.ndarray:
    """The numbers of a group whose codes hold the header."""
    return np.arange(HEADER) * (group // 16)


def _significand(size: np.ndarray) -> np.ndarray:
    """Significand with the leading one of a magnitude's bits; 0 of a zero."""
    return np.where(size > 0, size & 127 | 128, 0)
