"""4-bit weights: equal to the package `gguf`, rounded once, and to exact rationals; packs; a real file's matrices."""

import gguf
import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.arithmetic.packed_weights import GROUPS, PackedMatrix, Packing, Rule, expanded, pack, part, weights
from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs.decoder import N_LAYERS, Decoder, four_bits
from openvrex.tb.library.transfer_traffic import exact_weight

EVERY = np.arange(1 << 16, dtype=np.uint16)
FINITE = EVERY[np.isfinite(EVERY.view(np.float16))]
TYPES = {
    Rule.SCALE: gguf.GGMLQuantizationType.Q4_0,
    Rule.MINIMUM: gguf.GGMLQuantizationType.Q4_1,
    Rule.BYTE: gguf.GGMLQuantizationType.Q8_0,
}
PACKINGS = [Packing.of(code) for code in range(1, 8)]


def same(got: np.ndarray, want: np.ndarray) -> bool:
    """Equal as numbers, and bit for bit but for the sign of a zero, which golden does not keep."""
    bits = np.ascontiguousarray(want).view(np.uint16)
    return bool((np.ascontiguousarray(got).view(np.uint16) == np.where(bits == 0x8000, 0, bits)).all())


def of_gguf(rule: Rule, scales: np.ndarray, q: np.ndarray) -> np.ndarray:
    """What the package makes of blocks: scales [N, 1 or 2], q [N, 32]; BF16 [N, 32]."""
    held = q if rule == Rule.BYTE else q[:, :16] | q[:, 16:] << 4
    blocks = np.concatenate([scales.astype("<u2").view(np.uint8), held], axis=1)
    return to_bf16(gguf.dequantize(blocks, TYPES[rule]))


def test_every_scale_and_number_is_that_of_gguf():
    """Q4_0: all finite scales by all 16 numbers."""
    q = np.tile(np.arange(16, dtype=np.uint8), (len(FINITE), 2))
    got = weights(q, FINITE[:, None], FINITE[:, None], Rule.SCALE)
    assert same(got, of_gguf(Rule.SCALE, FINITE[:, None], q))


def test_every_scale_and_number_of_8_bits_is_that_of_gguf():
    """Q8_0: all finite scales by all 256 numbers."""
    for q in np.arange(256, dtype=np.uint8).reshape(-1, 32):
        own = np.tile(q, (len(FINITE), 1))
        got = weights(own, FINITE[:, None], FINITE[:, None], Rule.BYTE)
        assert same(got, of_gguf(Rule.BYTE, FINITE[:, None], own))


def pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales and minima: any, and minima near a multiple of the scale, up to FP16's step away."""
    rng = np.random.default_rng(3)
    d, m = FINITE[rng.integers(0, len(FINITE), (2, count))]
    with np.errstate(over="ignore"):
        near = (-d.view(np.float16) * rng.integers(0, 16, count)).astype(np.float16)
    near = np.where(np.isfinite(near), near, 1).astype(np.float16).view(np.uint16) ^ rng.integers(0, 2, count)
    return d, np.where(rng.random(count) < 0.5, near, m).astype(np.uint16)


def test_minima_are_those_of_gguf():
    """Q4_1: 100,000 pairs, also ones whose sum FP32 rounds before BF16 does."""
    d, m = pairs(100_000)
    q = np.tile(np.arange(16, dtype=np.uint8), (len(d), 2))
    got = weights(q, d[:, None], m[:, None], Rule.MINIMUM)
    assert same(got, of_gguf(Rule.MINIMUM, np.stack([d, m], axis=1), q))
    once = to_bf16(d.view(np.float16).astype(float)[:, None] * q + m.view(np.float16).astype(float)[:, None])
    assert not same(got, once), "no sum is rounded twice"


@pytest.mark.parametrize("rule", Rule)
def test_equal_exact_rationals(rule):
    d, m = pairs(1000)
    q = np.random.default_rng(1).integers(0, 256 if rule == Rule.BYTE else 16, len(d)).astype(np.uint8)
    got = weights(q, d, m, rule).view(np.uint16).tolist()
    scales = [np.array(pair, "<u2").tobytes() for pair in zip(d, m, strict=True)]
    assert got == [exact_weight(Packing(rule), raw, 0, int(x)) for raw, x in zip(scales, q, strict=True)]


@pytest.mark.parametrize("own", PACKINGS, ids=lambda p: f"{p.rule.name.lower()}-{p.group}")
@pytest.mark.parametrize("lanes", [8, 16, 64])
def test_packs_hold_what_was_put_in(lanes, own):
    """One word of weights, a whole pack, and one that is cut short behind another."""
    rng, group, rule = np.random.default_rng(lanes), own.group, own.rule
    least = max(own.each, group // lanes)
    assert Packing.of(own.code) == own
    for made in (least, own.made, own.made + least):
        count = made * lanes // group
        q, scales = rng.integers(0, 1 << own.bits, (made, lanes)), rng.integers(0, 1 << 16, (count, own.numbers))
        memory = pack(q.astype(np.uint8), scales.astype(np.uint16), own)
        assert memory.shape == (own.read(made), 2 * lanes)
        assert (own.makes(len(memory)), own.each * len(own.sources(len(memory)))) == (made, made)
        each = scales.astype(np.uint16).repeat(group, axis=0).reshape(made, lanes, -1)
        want = weights(q.astype(np.uint8), each[..., 0], each[..., -1], rule).view(np.uint16)
        np.testing.assert_array_equal(expanded(memory, own), want)
    assert not own.fits(own.words + 1)
    with pytest.raises(ParamError, match="must end with weights"):
        expanded(np.zeros((own.words + 1, 2 * lanes), np.uint8), own)


def test_bytes_of_a_word_of_w():
    """36, 40 and 68 bytes with groups of 32, as the files have; less with groups of 128."""
    sizes = {(p.rule, p.group): 128 * p.words / p.made for p in PACKINGS}
    four = {(r, g): 32 + 128 / g * (1 + (r > 1)) for r in Rule if r < Rule.BYTE for g in GROUPS}
    assert sizes == four | {(Rule.BYTE, 32): 68}


def random(inputs: int, outputs: int, packing: Packing) -> PackedMatrix:
    rng = np.random.default_rng(inputs)
    shape = -(-inputs // packing.group), outputs, packing.numbers
    scales = FINITE[rng.integers(0, len(FINITE), shape)]
    return PackedMatrix(rng.integers(0, 16, (inputs, outputs)).astype(np.uint8), scales, packing)


def test_parts_of_a_matrix():
    own = random(256, 12, Packing(Rule.ZERO, 128))
    rows, columns = np.arange(128, 256), np.array([7, 1, 3])
    assert (part(own, rows, columns).bf16 == part(own.bf16, rows, columns)).all()
    assert (own.of_32().bf16 == own.bf16).all()
    assert (part(own.of_32(), np.arange(32, 96)).bf16 == own.bf16[32:96]).all()
    assert (PackedMatrix.beside(own, own).bf16 == np.hstack([own.bf16] * 2)).all()
    with pytest.raises(ParamError, match="must be whole groups of 128 weights: take groups of 32"):
        own.inputs(np.arange(32, 96))
    with pytest.raises(ParamError, match="must be whole groups of 32"):
        own.of_32().inputs(np.r_[0:16, 32:48])


def test_the_last_group_may_be_ragged():
    """224 inputs in groups of 128 are 7 groups of 32."""
    own = random(224, 5, Packing(Rule.SCALE, 128))
    assert own.scales.shape[0] == 2
    assert (own.of_32().scales.shape[0], (own.of_32().bf16 == own.bf16).all()) == (7, True)


def test_bad_matrices_are_refused():
    own = random(64, 3, Packing(Rule.MINIMUM))
    with pytest.raises(ParamError, match=r"scales=\(2, 3, 2\): must be \(2, 3, 1\) for weights"):
        PackedMatrix(own.q, own.scales, Packing(Rule.SCALE))
    spoilt = own.scales.copy()
    spoilt[0, 0, 1] = 0x7C00
    with pytest.raises(ParamError, match="scales='1 of 12': must be finite"):
        PackedMatrix(own.q, spoilt, own.packing)
    with pytest.raises(ParamError, match="matrices=.*must have the same rule, groups and inputs"):
        PackedMatrix.beside(own, random(64, 3, Packing(Rule.SCALE)))
    with pytest.raises(ParamError, match="group=64: must be 32 or 128"):
        Packing(Rule.SCALE, 64)
    with pytest.raises(ParamError, match="group=128: must be 32"):
        Packing(Rule.BYTE, 128)
    for code in (0, 8, 9):
        with pytest.raises(ParamError, match="stride"):
            Packing.of(code)


@pytest.mark.parametrize("layers", [2, pytest.param(N_LAYERS, marks=pytest.mark.nightly)])
def test_a_real_file_s_matrices_are_those_of_its_decoder(layers):
    """SmolLM2's Q4_1: rotary order undone, queries, keys and values side by side; bit for bit."""
    decoder = Decoder(layers, 1)
    for whole, own in zip(decoder.layers, decoder.four_bits(), strict=True):
        assert set(own) == set(whole)
        for name, x in own.items():
            if isinstance(x, PackedMatrix):
                assert x.packing == Packing(Rule.MINIMUM)
                assert same(x.bf16, to_bf16(whole[name]))
        assert sum(isinstance(x, PackedMatrix) for x in own.values()) == 4


def test_another_type_is_refused_by_name():
    tensor = Decoder._read()[1]["token_embd.weight"]
    with pytest.raises(ParamError, match="emb: type='Q8_0': must be Q4_0 or Q4_1"):
        four_bits(tensor, "emb")
