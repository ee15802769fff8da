"""4-bit and 8-bit weights: how memory holds them, and the BF16 numbers by which the DPE multiplies.

A matrix is cut along its inputs into groups of 32 or 128 weights. A weight is a number q, of 4 bits or, by one rule, a
signed one of 8. Its group has a scale d, and by the matrix's `Rule` nothing else, a minimum m or a zero point z:

=======  =================  =============================================================================
rule     weight             files
=======  =================  =============================================================================
SCALE    d (q - 8)          Q4_0 of GGUF; GPTQ and AWQ where all zero points are 8
MINIMUM  d q + m            Q4_1 of GGUF
ZERO     d (q - z)          GPTQ and AWQ with zero points, z from 0 to 31
BYTE     d q, q of 8 bits   Q8_0 of GGUF; groups of 32 only
=======  =================  =============================================================================

d and m are FP16. The exact weight is rounded to FP32, which is what the package `gguf` makes of it, and then to BF16:
so the core multiplies by that package's number, rounded once. A zero is +0. Groups whose d or m is not finite are
refused where matrices are read (`PackedMatrix`); hardware takes exponent 31 of FP16 as a power of two like all others.

Memory holds weights in packs. A pack is a word of scales, then words of q. A word of memory has 2 * lanes bytes, so
`lanes` halfwords, or four words of W of 4 bits, or two of 8:

* Word of scales: d of each group, one behind the other; with a minimum or a zero point each is followed by it.
* Words of q: some words of W each, number l of a word of W in bits 4 l or 8 l up. Words of W that stand one behind the
  other in a tree fill groups one after the other.

So a pack has as many words of W as a group has weights, or half as many with minimum or zero point. The last pack of
an array may be cut short behind any word of q. With groups of 32, 64 lanes and SCALE, a pack is 9 words of memory for
32 words of W: 36 bytes of bus a word of W, where BF16 takes 128. With BYTE it is 17 words, so 68 bytes.

Source: formats of GGML (Q4_0, Q4_1, Q8_0), GPTQ and AWQ; their order in memory is this project's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.function_params import check

GROUPS = 32, 128
SMALLEST = -24  # exponent of FP16's smallest number
ZERO_BITS = 5  # of a zero point


class Rule(IntEnum):
    """What a group has beside its scale. The value is that of a LOAD's `stride`, 4 more with groups of 128."""

    SCALE = 1
    MINIMUM = 2
    ZERO = 3
    BYTE = 4  # nothing, but numbers have 8 bits


@dataclass(frozen=True)
class Packing:
    """How an array's weights are packed. Raises `ParamError` for a group of a size that the rule does not have."""

    rule: Rule
    group: int = GROUPS[0]

    def __post_init__(self) -> None:
        sizes = GROUPS[:1] if self.rule == Rule.BYTE else GROUPS
        check(self.group in sizes, "group", self.group, f"must be {' or '.join(map(str, sizes))}")

    @classmethod
    def of(cls, code: int) -> "Packing":
        """The packing that a LOAD's `stride` stands for. Raises `ParamError` for another number."""
        check(0 < code < 8, "stride", code, "must be 1 to 7 for 4-bit or 8-bit weights")
        return cls(Rule.BYTE) if code == Rule.BYTE else cls(Rule(code & 3), GROUPS[code >> 2])

    @property
    def code(self) -> int:
        """The `stride` of a LOAD."""
        return self.rule + 4 * GROUPS.index(self.group)

    @property
    def bits(self) -> int:
        """Bits of a number."""
        return 8 if self.rule == Rule.BYTE else 4

    @property
    def each(self) -> int:
        """Words of W of a word of memory."""
        return 16 // self.bits

    @property
    def numbers(self) -> int:
        """Halfwords of a group in a word of scales."""
        return 2 if self.rule in (Rule.MINIMUM, Rule.ZERO) else 1

    @property
    def words(self) -> int:
        """Words of memory of a pack."""
        return 1 + self.made // self.each

    @property
    def made(self) -> int:
        """Words of W of a pack."""
        return self.group // self.numbers

    def read(self, made: int) -> int:
        """Words of memory that hold so many words of W, a multiple of `each`."""
        return -(-made // self.made) + made // self.each

    def makes(self, read: int) -> int:
        """Words of W of so many words of memory."""
        return self.each * (read - -(-read // self.words))

    def sources(self, read: int) -> np.ndarray:
        """Which of so many words of memory hold weights, not scales."""
        return np.flatnonzero(np.arange(read) % self.words)

    def fits(self, read: int) -> bool:
        """Whether an array may have so many words of memory: its last one holds weights."""
        return read % self.words != 1


def weights(q: np.ndarray, scale: np.ndarray, other: np.ndarray, rule: Rule) -> np.ndarray:
    """Weights of numbers `q` (uint8, any shape), BF16; scale, other : bits of d and of m or z, uint16."""
    d = _units(scale)
    exact = d * (q.view(np.int8) if rule == Rule.BYTE else q).astype(np.int64)
    if rule == Rule.MINIMUM:
        exact += _units(other)
    elif rule != Rule.BYTE:
        exact -= d * (8 if rule == Rule.SCALE else (other & (1 << ZERO_BITS) - 1).astype(np.int64))
    return to_bf16(np.ldexp(exact.astype(np.float32), SMALLEST))  # an integer is rounded once to FP32


def _units(bits: np.ndarray) -> np.ndarray:
    """FP16 numbers as multiples of 2^SMALLEST, int64: below 2^41, as exponent 31 is one like others."""
    exponent, fraction = bits >> 10 & 31, (bits & 1023).astype(np.int64)
    size = np.where(exponent > 0, 1024 + fraction, fraction) << np.maximum(exponent, 1).astype(np.int64) - 1
    return np.where(bits >> 15, -size, size)


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix [inputs, outputs] of 4-bit or 8-bit weights.

    q : numbers, uint8 [inputs, outputs], those of 8 bits as two's complement
    scales : bits of d, and of m or z, uint16 [groups, outputs, 1 or 2]
    packing : its rule, and its group: of `group` inputs each, the last one may be shorter

    Raises `ParamError` for arrays that do not belong together, and for a scale or minimum that is not finite.
    """

    q: np.ndarray
    scales: np.ndarray
    packing: Packing

    def __post_init__(self) -> None:
        inputs, outputs = self.q.shape
        want = -(-inputs // self.packing.group), outputs, self.packing.numbers
        check(self.scales.shape == want, "scales", self.scales.shape, f"must be {want} for weights {self.q.shape}")
        floats = self.scales[..., : 1 if self.packing.rule == Rule.ZERO else None]
        bad = int((floats >> 10 & 31 == 31).sum())
        check(bad == 0, "scales", f"{bad} of {floats.size}", "must be finite: get the file anew")

    @property
    def shape(self) -> tuple[int, ...]:
        """Inputs and outputs."""
        return self.q.shape

    @cached_property
    def bf16(self) -> np.ndarray:
        """The matrix by which the core multiplies, BF16 [inputs, outputs]."""
        each = self.scales.repeat(self.packing.group, axis=0)[: len(self.q)]
        return weights(self.q, each[..., 0], each[..., -1], self.packing.rule)

    def outputs(self, which: np.ndarray | slice) -> "PackedMatrix":
        """The matrix of some outputs."""
        return PackedMatrix(self.q[:, which], self.scales[:, which], self.packing)

    def inputs(self, which: np.ndarray) -> "PackedMatrix":
        """The matrix of some inputs, which must be whole groups, else `ParamError`."""
        group = self.packing.group
        first = which[::group]
        whole = np.array_equal((first[:, None] + np.arange(group)).reshape(-1), which) and not (first % group).any()
        check(whole, "inputs", len(which), f"must be whole groups of {group} weights: take groups of {GROUPS[0]}")
        return PackedMatrix(self.q[which], self.scales[first // group], self.packing)

    def of_32(self) -> "PackedMatrix":
        """The same matrix with groups of 32, the scales of larger ones repeated."""
        many = self.packing.group // GROUPS[0]
        scales = self.scales.repeat(many, axis=0)[: -(-len(self.q) // GROUPS[0])]
        return PackedMatrix(self.q, scales, Packing(self.packing.rule))

    def by_rule(self, rule: Rule) -> "PackedMatrix":
        """The same matrix, of rule SCALE, with minima of -8 d or zero points of 8.

        Raises `ParamError` for a minimum that is no FP16 number, and for a matrix of another rule.
        """
        own = self.packing.rule
        if own == rule:
            return self
        check(own == Rule.SCALE, "rule", own.name, f"must be SCALE to become {rule.name}")
        if rule == Rule.ZERO:
            other = np.full_like(self.scales, 8)
        else:
            with np.errstate(over="ignore"):  # `PackedMatrix` refuses what is infinite
                other = (np.float16(-8) * self.scales.view(np.float16)).view(np.uint16)
        return PackedMatrix(self.q, np.concatenate([self.scales, other], axis=-1), Packing(rule, self.packing.group))

    @classmethod
    def beside(cls, *some: "PackedMatrix") -> "PackedMatrix":
        """Matrices of the same inputs side by side. Raises `ParamError` for others, and for several packings."""
        kinds = sorted({(x.packing.rule.name, x.packing.group, len(x.q)) for x in some})
        check(len(kinds) == 1, "matrices", kinds, "must have the same rule, groups and inputs: they lie side by side")
        return cls(np.hstack([x.q for x in some]), np.hstack([x.scales for x in some]), some[0].packing)


def alike(some: Sequence[PackedMatrix], lengths: Sequence[int]) -> list[PackedMatrix]:
    """The same matrices with one packing for all, as a core's programs need it.

    Matrices of rule SCALE become those of the other rule, where there is one. Groups of 128 become groups of 32 where
    some are, or where one of `lengths` of inputs is not whole groups: a matrix's inputs, or a segment that is loaded
    alone.
    """
    [*others] = {x.packing.rule for x in some} - {Rule.SCALE}
    check(len(others) < 2, "rules", sorted(r.name for r in others), "must be one, and SCALE")
    rule, small = others[0] if others else Rule.SCALE, {x.packing.group for x in some} != {GROUPS[1]}
    small |= any(n % GROUPS[1] for n in lengths)
    return [(x.of_32() if small else x).by_rule(rule) for x in some]


Matrix = np.ndarray | PackedMatrix  # [inputs, outputs]


def vector(x: Matrix) -> np.ndarray:
    """Weights that are no matrix, such as those of a norm, as numbers."""
    assert not isinstance(x, PackedMatrix)
    return x


def part(matrix: Matrix, inputs: np.ndarray | None = None, outputs: np.ndarray | None = None) -> Matrix:
    """Some inputs and outputs of a matrix, all if not given."""
    if isinstance(matrix, PackedMatrix):
        some = matrix if inputs is None else matrix.inputs(inputs)
        return some if outputs is None else some.outputs(outputs)
    numbers = matrix if inputs is None else matrix[inputs]
    return numbers if outputs is None else numbers[:, outputs]


def pack(q: np.ndarray, scales: np.ndarray, packing: Packing) -> np.ndarray:
    """Words of memory, uint8 [words, 2 * lanes], of words of W.

    q : uint8 [words of W, lanes] · scales : uint16 [groups, 1 or 2], those of groups in the order of the weights

    Raises `ParamError` where words of W are not whole groups and whole words of memory.
    """
    made, lanes = q.shape
    whole = made % packing.each == 0 and made * lanes == len(scales) * packing.group
    reason = f"must be words of memory, and hold {packing.group} weights for each of {len(scales)} scales"
    check(whole, "words of weights", (made, lanes), reason)
    out = np.zeros((packing.read(made), 2 * lanes), np.uint8)
    at = np.arange(len(out)) % packing.words > 0  # words of q
    pairs = q.reshape(made * lanes // 2, 2)
    out[at] = (pairs if packing.bits == 8 else pairs[:, 0] | pairs[:, 1] << 4).reshape(-1, 2 * lanes)
    some = np.zeros(((~at).sum(), lanes), "<u2")
    some.reshape(-1)[: scales.size] = scales.reshape(-1)
    out[~at] = some.view(np.uint8)
    return out


def expanded(memory: np.ndarray, packing: Packing) -> np.ndarray:
    """The words of W of words of memory, uint8 [N, 2 * lanes]: bits of BF16 numbers, uint16 [words of W, lanes].

    Raises `ParamError` where the last word of memory holds scales.
    """
    check(packing.fits(len(memory)), "words of memory", len(memory), "must end with weights")
    lanes = memory.shape[1] // 2
    at = np.arange(len(memory)) % packing.words > 0
    held = memory[at].reshape(-1)
    q = (held if packing.bits == 8 else np.stack([held & 15, held >> 4], axis=1)).reshape(-1, lanes)
    scales = np.ascontiguousarray(memory[~at]).view("<u2").reshape(-1, packing.numbers)
    each = scales.repeat(packing.group, axis=0)[: q.size].reshape(*q.shape, packing.numbers)
    return weights(q, each[..., 0], each[..., -1], packing.rule).view(np.uint16)
