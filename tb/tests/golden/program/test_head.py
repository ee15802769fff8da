"""Norm, language head and arg-max on a golden LXE: against NumPy, with ties and corners of logits."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.packed_weights import PackedMatrix, Packing, Rule
from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.program.head_compiler import HeadPlan
from openvrex.golden.program.isa import LxeFormat, Opcode, words_read
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.lxe_model import simulate
from openvrex.golden.program.sequencer_model import register_values, sequence
from openvrex.hdl.params import preset
from openvrex.tb.library.head_runs import CORNERS, HeadRun
from openvrex.tb.library.random_layers import packed

FMT = LxeFormat(lanes=4, w_depth=16, x_depth=16, depth=8, i_depth=128)
SIZES = [1, 3, 4, 5, 16, 17, 94, 96]  # of the vocabulary; a part of the logits holds 16


@pytest.mark.parametrize("size", SIZES)
def test_argmax_of_corners(size):
    """The lowest number of the largest logit, as NumPy finds it; both words hold their result in all lanes."""
    run = HeadRun(FMT, 8, size)
    rng = np.random.default_rng(size)
    cases = [logits(size).astype(np.float32) for logits in CORNERS.values()]
    cases += [rng.integers(-3, 4, size=size).astype(np.float32) for _ in range(4)]
    for logits in cases:
        run.put_logits(logits)
        run.run("argmax")
        assert run.token == np.argmax(logits)
        token, top = run.get("next")[0]
        assert (token == run.token).all()
        assert (top == logits.max()).all()


def test_a_maximum_that_is_not_finite_gives_no_token():
    run = HeadRun(FMT, 8, 20)
    for bad in (np.inf, np.nan):
        run.put_logits(np.where(np.arange(20) == 7, bad, 1.0) if bad == np.inf else np.full(20, bad))
        run.run("argmax")
        assert run.token == np.inf


def test_differences_below_the_smallest_number_are_ties():
    """FP32 numbers of the VPE have no subnormals: 2^-120 and the next number are equal to it."""
    run, low = HeadRun(FMT, 8, 20), np.float32(2.0**-120)
    run.put_logits(np.where(np.arange(20) == 9, np.nextafter(low, np.float32(1)), low))
    run.run("argmax")
    assert run.token == 0


@pytest.mark.parametrize(("width", "size"), [(8, 94), (24, 33), (4, 3)])
def test_the_head_equals_numpy(width, size):
    """Logits within the bounds of BF16 norms and of sums; the token is that of the stored logits."""
    run, rng = HeadRun(FMT, width, size), np.random.default_rng(width)
    norm, head = to_bf16(1 + rng.normal(size=width) / 8), to_bf16(rng.normal(size=(size, width)))
    for name, x in run.plan.pack(norm, head.T).items():
        run.put(name, x)
    seen = set()
    for _ in range(4):
        hidden = rng.normal(size=width).astype(np.float32)
        run.put("hidden", hidden)
        run.run()
        x = hidden.astype(np.float64)
        x = x / np.sqrt((x * x).mean() + run.plan.shape.epsilon) * norm.astype(np.float64)
        got = run.get("norm").astype(np.float64).reshape(-1)
        assert (np.abs(got - x) <= np.abs(x) * 3.1 * 2.0**-8).all()
        size_of = np.abs(head.astype(np.float64)) @ np.abs(got)
        lost = size_of * width * (2.0 ** (2 - FMT.window) + 2.0**-23)
        logits = run.get("logits")[0]
        assert (np.abs(logits[:size] - head.astype(np.float64) @ got) <= lost).all()
        assert (logits[size:] == logits[size - 1]).all()
        assert run.token == np.argmax(logits[:size])
        seen.add(run.token)
    assert len(seen) > 1 or size < 4


@pytest.mark.parametrize("packing", [Packing(Rule.BYTE), Packing(Rule.SCALE)], ids=["byte", "scale"])
def test_a_packed_head_equals_its_bf16_copy(packing):
    """Every number that the program leaves, of a ragged vocabulary; less is read."""
    rng = np.random.default_rng(3)
    held_against_bf16(packed(rng.normal(size=(64, 94)), packing), replace(FMT, depth=32, weights=True), rng)


def test_the_head_of_smollm2_in_8_bits_equals_its_bf16_copy():
    """Its embeddings, of Q8_0."""
    p = preset("small").core.lxe_format()
    fmt = LxeFormat(16, p.window, p.w_depth, p.x_depth, 128, p.i_depth, weights=True)
    head = Decoder(0, 1).packed_head()
    assert head.packing == Packing(Rule.BYTE)
    held_against_bf16(head, fmt, np.random.default_rng(4))


def bytes_read(run: HeadRun) -> int:
    fmt = run.plan.fmt
    steps = sequence(run.program(), register_values(run.registers), fmt)
    return fmt.word_bytes * sum(words_read(i, fmt) for i in steps if i.op == Opcode.LOAD)


def held_against_bf16(head: PackedMatrix, fmt: LxeFormat, rng: np.random.Generator) -> None:
    """Run a head [width, vocabulary] from memory as it is and as BF16 numbers, and compare memory."""
    width, vocabulary = head.shape
    own = HeadRun(fmt, width, vocabulary, head.packing)
    plain = HeadRun(fmt, width, vocabulary, None, own.plan.cuts["head"])
    norm, hidden = 1 + rng.normal(size=width) / 8, rng.normal(size=width)
    for run, matrix in ((own, head), (plain, head.bf16.astype(np.float32))):
        for name, x in run.plan.pack(norm, matrix).items():
            run.put(name, x)
        run.put("hidden", hidden)
        run.run()
    for name in ("norm", "logits", "next"):
        assert (own.get(name) == plain.get(name)).all()
    assert own.token == np.argmax(own.get("logits"))
    read, whole = (bytes_read(run) for run in (own, plain))
    assert whole - read == plain.plan["head_weight"].size - own.plan["head_weight"].size
    ratio = head.packing.words / head.packing.made
    assert own.plan["head_weight"].size == pytest.approx(plain.plan["head_weight"].size * ratio, rel=0.06)


def test_a_packed_head_that_does_not_fit_is_refused():
    for fmt, width, reason in (
        (FMT, 64, r"lxe\.weights=False: must be true for a packed head"),
        (replace(FMT, weights=True), 24, "group=32: must divide a slice of 24 weights"),
    ):
        with pytest.raises(ParamError, match=reason):
            HeadPlan(LayerShape(width=width), fmt, 94, packing=Packing(Rule.BYTE))


def test_the_program_is_ordered_by_semaphores_alone():
    run = HeadRun(FMT, 8, 94)
    for name, x in run.plan.pack(np.ones(8), np.ones((8, 94))).items():
        run.put(name, x)
    run.put("hidden", np.ones(8))
    assert not simulate(run.program(), run.registers, FMT).problems()


def test_the_head_of_smollm2_fits():
    """49,152 tokens of 576 numbers, on 16 lanes: the weights, and a program of a few loops."""
    p = preset("small").core.lxe_format()
    plan = HeadPlan(LayerShape(), LxeFormat(16, p.window, p.w_depth, p.x_depth, 128, p.i_depth), 49152)
    assert len(plan.program()) < 128
    assert plan["head_weight"].size == 49152 * 576 * np.dtype(BF16).itemsize


def test_vocabularies_that_do_not_fit_are_refused():
    for size, reason in ((0, "must be at least 1 token"), (1 << 24, "must be below 2\\^24")):
        with pytest.raises(ParamError, match=f"vocabulary={size}: {reason}"):
            HeadPlan(LayerShape(width=8), FMT, size)
