"""The 4-bit format of entries at home: against exact rationals, over all numbers and all codes; rules, error bound."""

from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.retrieval.kv4 import GROUPS, HEADER, LARGEST, NAN, NANS, RATIO, expand, pack
from openvrex.scripts.check.verify_command import FIXTURE
from tb.tests.golden.retrieval.kv4_samples import ENDS, groups_of_every_number, value

EVERY = np.arange(1 << 16, dtype=np.uint16)
TOP = Fraction(255, 128) * 2**127  # the largest finite number
TINY = Fraction(1, 2**126)
STEPS = {(e, j): (4 + j) * Fraction(2) ** (e - 131) for e in range(1, 255) for j in range(4)}
RISING = sorted(STEPS, key=lambda key: STEPS[key])


def rounded(x: Fraction) -> int:
    """The bits of a number that BF16 holds, by the module's rules at the ends of the range."""
    if abs(x) < TINY:
        return 0
    out = float(min(abs(x), TOP))
    assert Fraction(out) == min(abs(x), TOP)
    bits = int(np.array(out, np.float32).view(np.uint32))
    assert bits & 0xFFFF == 0, f"{x} is no BF16 number"
    return bits >> 16 | (x < 0) << 15


def header_of(numbers: np.ndarray) -> tuple[int, int, int]:
    """e, j and z of a group, by their definition."""
    if ((numbers >> 7 & 255) == 255).any():
        return NANS, 0, 0
    x = [value(int(b)) for b in numbers]
    p, n = max(0, *x), max(0, *(-v for v in x))
    if p == n == 0:
        return 0, 0, 0
    top = max(int(b) >> 7 & 255 for b in numbers)
    u = Fraction(2) ** (top - 134)
    t = ceil(p / u) + ceil(n / u)
    e, j = next(key for key in RISING if 15 * STEPS[key] >= t * u)
    return e, j, min(15, floor(n / STEPS[e, j]) + 1) if n else 0


def packed(numbers: np.ndarray) -> np.ndarray:
    """A group's nibbles, by the definition."""
    e, j, z = header_of(numbers)
    codes = np.zeros(len(numbers), int)
    if e not in (0, NANS):
        for i, bits in enumerate(numbers):
            x = value(int(bits))
            m = floor(abs(x) / STEPS[e, j])
            codes[i] = min(15, max(0, z - 1 - m if x < 0 else z + m))
    for b in range(HEADER):
        i = b * len(numbers) // 16
        codes[i] = codes[i] & 14 | (e | j << 8 | z << 10) >> b & 1
    return codes


def nibbles(data: np.ndarray) -> np.ndarray:
    return np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)


@pytest.mark.parametrize("group", GROUPS)
def test_packing_equals_the_definition(group):
    """Random groups of every spread, with numbers of all kinds among them."""
    rng = np.random.default_rng(group)
    for spread in (1, 3, 9, 30, 256):
        low = rng.integers(0, 256 - spread + 1, size=(12, 1))
        exponents = low + rng.integers(0, spread, size=(12, group))
        x = rng.integers(0, 2, (12, group)) << 15 | exponents << 7 | rng.integers(0, 128, (12, group))
        x[:3] &= 0x7FFF
        x[3:6] |= 0x8000
        got = nibbles(pack(x.astype(np.uint16), group))
        assert np.array_equal(got, [packed(row) for row in x])


@pytest.mark.slow
@pytest.mark.parametrize("ends", [*ENDS[:4], *(pytest.param(ends, marks=pytest.mark.nightly) for ends in ENDS[4:])])
def test_every_number_packs_and_comes_back_within_the_bound(ends):
    """All numbers that a group with these ends can hold; the bound holds, is reached nearly, and codes are exact."""
    group = 64
    x = groups_of_every_number(group, ends)
    e, j, _ = header_of(x[0])
    step, back = STEPS[e, j], expand(pack(x, group), group)
    places = {b * group // 16 for b in range(HEADER)}
    off = {True: Fraction(0), False: Fraction(0)}
    for i in range(2, group):
        for before, after in zip(x[:, i].tolist(), back[:, i].tolist(), strict=True):
            wide = i in places
            off[wide] = max(off[wide], abs(value(before) - value(after)))
    flushed = TINY if step < 2 * TINY else 0  # a middle below 2^-126 comes back as zero
    assert off[False] <= step / 2 + flushed
    assert off[True] <= step + flushed
    assert off[False] > step * Fraction(4, 10)
    u = Fraction(2) ** (max(b >> 7 & 255 for b in ends) - 134)
    assert e == 1 or step <= (value(ends[0]) - value(ends[1])) / 12 + u / 8


def test_every_code_expands_to_the_middle_of_its_step():
    """All codes at all places of all headers but a few e: the number is exact, or at an end of the range."""
    group = 16
    for e in (1, 2, 5, 6, 7, 128, 247, 248, 249, 253, 254):
        for j in range(4):
            for z in range(16):
                header = e | j << 8 | z << 10
                codes = np.tile(np.arange(16)[:, None], (1, group))
                at = np.arange(HEADER)
                codes[:, at] = codes[:, at] & 14 | header >> at & 1
                data = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
                got = expand(data, group)
                for i in (0, 15):
                    half = 1 if i == 0 else Fraction(1, 2)
                    want = [rounded((c - z + half) * STEPS[e, j]) for c in (codes[:, i] & (14 if i == 0 else 15))]
                    assert got[:, i].tolist() == want


def test_groups_that_are_not_numbers():
    zeros = np.array([0, 0x8000, 1, 0x807F] * 8, np.uint16)
    assert not pack(zeros, 32).any()
    assert not expand(np.zeros(16, np.uint8), 32).any()
    for bad in (0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F81):
        x = np.arange(0x3F00, 0x3F40).astype(np.uint16)
        x[37] = bad
        back = expand(pack(x, 32), 32)
        assert (back[32:] == NAN).all()
        assert (back[:32] & 0x7F80 != 0x7F80).all()  # the group beside it is as it was
    both = np.array([0x7F7F, 0xFF7F] * 8, np.uint16)
    assert set(expand(pack(both, 16), 16).tolist()) <= {LARGEST, LARGEST | 0x8000, *range(0x7E00, 0x7F7F)} | set(
        range(0xFE00, 0xFF7F)
    )
    assert (pack(EVERY.reshape(-1, 16), 16).reshape(-1) >= 0).all()  # any 16 numbers pack


def test_any_bytes_expand():
    """Memory that nobody wrote expands to something, without a warning."""
    data = np.random.default_rng(1).integers(0, 256, (512, 64)).astype(np.uint8)
    for group in GROUPS:
        assert expand(data, group).shape == (512, 128)


def test_real_entries(record_property):
    """Keys and values of a real stream: a quarter of the bytes, and the error of each kind of entry."""
    trace = Trace.load(FIXTURE)
    for name, x in (("keys", trace.k), ("values", trace.v)):
        for group in GROUPS[:3]:
            bits = x.view(np.uint16)
            data = pack(bits, group)
            assert data.nbytes * RATIO == bits.nbytes
            back = expand(data, group).view(BF16).astype(np.float64)
            own = x.astype(np.float64)
            error = np.linalg.norm(back - own) / np.linalg.norm(own)
            record_property(f"{name}, groups of {group}", f"{error:.3f}")
            assert error < 1 / 4  # a sanity check: random codes give more than 1


def test_errors():
    with pytest.raises(ParamError, match=r"kv4_group=24: must be one of \(16, 32, 64, 128\)"):
        pack(np.zeros(48, np.uint16), 24)
    with pytest.raises(ParamError, match="n=24: must be a multiple of 16"):
        expand(np.zeros(24, np.uint8), 32)
