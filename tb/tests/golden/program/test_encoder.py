"""A vision encoder on golden cores: each stage within its bounds of FP64, for any number of cores; GELU; refusals."""

from collections.abc import Callable
from dataclasses import replace
from math import erfc

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import Bank, Format, Instruction, Machine, Op, Step, VectorFormat
from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs.codec import PruneParams, Pruner, patches_of
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.inputs.video import read
from openvrex.golden.inputs.vision import Projector, VisionEncoder, pool
from openvrex.golden.program.encoder_compiler import EncoderPlan, EncoderShape, grid
from openvrex.golden.program.encoder_host import EncoderHost
from openvrex.golden.program.isa import LoadTo, Opcode
from openvrex.golden.program.lxe_model import simulate
from openvrex.golden.program.recipes import GELU_SLOPE, STREAM, Row, Scalar, fp32, gelu
from openvrex.golden.program.sequencer_model import register_values, sequence
from openvrex.golden.program.vector_programs import Steps, rows, words_of
from openvrex.hdl.params import preset
from openvrex.tb.library.runner import ROOT
from openvrex.tb.library.small_encoder import FORMAT, SHAPE, EncoderCores, encoder, exact, model, patches
from tb.tests.golden.inputs.trace_samples import models

ROUND = 2.0**-8  # largest relative error of a rounding to BF16
# Two words a head, slices of K, two tokens without a patch, cells that overlap; more sums than banks keep; one token.
LONG = replace(SHAPE, width=16, ffn=96, layers=1, extra=2, projector=(8,))
MANY = replace(LONG, heads=4, side=5)
ONE = EncoderShape(layers=1, width=4, heads=1, ffn=4, side=1, patch=3, extra=0, shown=0, cells=1, projector=(4,))
SHAPES = {"short": SHAPE, "long": LONG, "many": MANY, "one": ONE}


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """GELU in its form with tanh, FP64."""
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-GELU_SLOPE * x * (1 + 0.044715 * x * x)))


def test_gelu_over_all_numbers():
    """Within 2^-7 of |x| of both forms, and the bounds of its docstring; infinity stays, other numbers become NaN."""
    x = np.arange(1 << 16, dtype=np.uint16).view(BF16)
    fmt, steps = VectorFormat(n=64, depth=1024), Steps()
    fp32(steps, GELU_SLOPE, Scalar(15))
    steps.append(Step(Instruction(a=STREAM, words=1023, keep=63, write=Bank.A | Bank.B), words_of(x, fmt)))
    gelu(steps, Row(0, 1024), Scalar(15))
    steps.append(Step(Instruction(op=Op.STORE, words=1023, keep=63, format=Format.HALF)))
    [bits] = rows(Machine(fmt).run(steps))
    with np.errstate(invalid="ignore"):  # NaN among them
        y, wide = bits.view(BF16).astype(np.float64), x.astype(np.float64)
    finite = np.isfinite(wide)
    wide, got = wide[finite], y[finite]
    with_erf = wide * 0.5 * np.vectorize(erfc)(-wide / 2**0.5)
    for want in (with_erf, gelu_tanh(wide)):
        error = np.abs(got - want)
        assert (error <= 2.0**-7 * np.abs(wide) + 2.0**-126).all()  # a subnormal is a zero
        assert error[np.abs(wide) < 1e3].max() < 0.0108
    near = (np.abs(wide) < 1) & (np.abs(with_erf) > 2.0**-125)
    last = 2.0 ** (np.floor(np.log2(np.abs(with_erf[near]))) - 7)
    assert (np.abs(got - with_erf)[near] / last).max() < 1.9
    assert y[0x7F80] == np.inf
    assert np.isnan(y[~finite]).sum() == 255  # of NaN, and of -infinity, times zero


@pytest.mark.parametrize("name", SHAPES)
def test_every_stage_is_within_its_bounds(name):
    """What a stage leaves in memory, from what it has found there: within roundings of FP64."""
    shape = SHAPES[name]
    own, w, picture = encoder(shape, FORMAT, model(shape, 4)), model(shape, 4), patches(shape, 5)
    host = own.host
    host.begin(picture)
    for step in host.steps():
        for stage in step.stages:
            before = {a: host.get(a).astype(np.float64) for a in host.plans[0].work.arrays}
            program = host.plans[0].program(stage, stage)
            own.run(replace(step, stages=(stage,), programs=[program]))
            CHECKS[stage](host, w.layers[step.layer or 0], before)


def product(name: str, x: str, y: str, residual: str = "") -> Callable:
    """Checks a product: FP32 sums lose some bits below the largest term, a BF16 result is rounded."""

    def check(host: EncoderHost, layer: dict, before: dict) -> None:
        matrix, bias = layer[name], layer[f"{name}_bias"]
        close_product(host, before[x], matrix, bias + (before[residual] if residual else 0), y, name == "up")

    return check


def by_token(x: np.ndarray) -> np.ndarray:
    """An array as [tokens, numbers]; `qkv` is [heads, tokens, head size]."""
    return x if x.ndim == 2 else x.transpose(1, 0, 2).reshape(x.shape[1], -1)


def close_product(host: EncoderHost, x: np.ndarray, matrix: np.ndarray, added: np.ndarray, y: str, bent: bool) -> None:
    x = x[:, : len(matrix)]
    want, got = x @ matrix + added, by_token(host.get(y))
    terms = np.abs(x) @ np.abs(matrix) + np.abs(added)
    lost = terms * len(matrix) * (2.0 ** (2 - FORMAT.window) + 2.0**-22)
    if bent:
        lost = 1.13 * (lost + ROUND * np.abs(want)) + 2.0**-7 * np.abs(want)
        want = gelu_tanh(want)
    elif got.dtype == BF16:
        lost = lost + ROUND * np.abs(want)
    assert (np.abs(got.astype(np.float64) - want) <= lost).all(), y


def norm(host: EncoderHost, layer: dict, before: dict) -> None:
    """x - mean, its quotient by the deviation, and the deviation are off by a rounding each."""
    x, got = before["hidden"], host.get("norm").astype(np.float64)
    close_norm(x, got, host.shape.epsilon, 1.0, 0.0)


def close_norm(x: np.ndarray, got: np.ndarray, epsilon: float, weight: np.ndarray | float, bias: np.ndarray | float):
    x = x - x.mean(-1, keepdims=True)
    want = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight
    assert (np.abs(got - want - bias) <= 3.1 * ROUND * np.abs(want) + 2.0**-14 * (1 + np.abs(bias))).all()


def attend(host: EncoderHost, layer: dict, before: dict) -> None:
    """A weight is off by the rounding of its exponent, times the exponent, and that of the exponential."""
    s = host.shape
    q, k, v = (by_token(x).reshape(s.tokens, s.heads, -1).transpose(1, 0, 2) for x in np.split(before["qkv"], 3))
    scores = q @ k.transpose(0, 2, 1)
    less = scores - scores.max(-1, keepdims=True)
    p = np.exp(less)
    p /= p.sum(-1, keepdims=True)
    off = p * (1.01 * ROUND * np.abs(less) + 2 * ROUND)
    want = p @ v
    lost = off @ np.abs(v) + np.abs(want) * (off.sum(-1, keepdims=True) + 1.1 * ROUND) + 2.0**-16
    got = host.get("attention").astype(np.float64).reshape(s.tokens, s.heads, -1).transpose(1, 0, 2)
    assert (np.abs(got - want) <= lost).all()


def embed(host: EncoderHost, layer: dict, before: dict) -> None:
    w = host.weights
    close_product(host, before["patches"], w.embed, w.positions, "hidden", False)


def last_norm(host: EncoderHost, layer: dict, before: dict) -> None:
    w = host.weights
    close_norm(before["hidden"], host.get("tokens").astype(np.float64), host.shape.epsilon, *w.norm)


def pooled(host: EncoderHost, layer: dict, before: dict) -> None:
    s, x = host.shape, before["tokens"]
    patch = x[s.extra :].reshape(s.side, s.side, -1)
    cells = host.plans[0].cells
    want = np.concatenate([x[: s.shown], [patch[a.start : a.stop, b.start : b.stop].mean((0, 1)) for a, b in cells]])
    got = host.get("pooled").astype(np.float64)
    assert (np.abs(got - want) <= 1.1 * ROUND * np.abs(want) + 2.0**-20).all()


def project(k: int) -> Callable:
    """Checks a product of the projector."""

    def check(host: EncoderHost, layer: dict, before: dict) -> None:
        last = len(host.weights.projector) - 1
        x = before["pooled" if not k else f"projected_{k - 1}"]
        y = "embeddings" if k == last else f"projected_{k}"
        close_product(host, x, *host.weights.projector[k], y, k < last)

    return check


CHECKS: dict[str, Callable] = {
    "embed": embed,
    "norm1": norm,
    "qkv": product("qkv", "norm", "qkv"),
    "attend": attend,
    "output": product("output", "attention", "hidden", "hidden"),
    "norm2": norm,
    "up": product("up", "norm", "inner"),
    "down": product("down", "inner", "hidden", "hidden"),
    "last_norm": last_norm,
    "pool": pooled,
    "project_0": project(0),
    "project_1": project(1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_any_number_of_cores_computes_the_same(name):
    """Columns, rows, heads and patches are dealt out; some cores have no part in a stage."""
    shape, idle = SHAPES[name], set()
    w, picture = model(shape, 6), patches(shape, 7)
    want = encoder(shape, FORMAT, w)(picture)
    for cores, common in ((2, False), (3, False), (8, False), (2, True), (6, True)):
        own = encoder(shape, FORMAT, w, cores, common)
        np.testing.assert_array_equal(own(picture), want)
        idle |= {step.stages[0] for step in own.host.steps() if None in step.programs}
    assert "attend" in idle
    tokens, embeddings = exact(shape, w, picture)
    assert np.abs(want - embeddings).max() < 0.02 * np.abs(tokens).max()


def test_programs_are_ordered_by_semaphores_alone():
    for shape in SHAPES.values():
        for core, cores in ((0, 1), *((core, 3) for core in range(3))):
            plan = EncoderPlan(shape, FORMAT, core, cores)
            for stage in plan.stages:
                registers = plan.registers(0, 1 << 20, 1 << 21)
                assert not simulate(plan.program(stage.name, stage.name), registers, plan.fmt).problems()


@pytest.mark.parametrize("cores", [1, 3])
def test_pictures_encoded_in_part(cores):
    """As if a picture had the kept groups alone; whole pictures before and behind do not matter, nor do the cores."""
    shape = replace(SHAPE, side=4)
    w, picture = model(shape, 9), patches(shape, 3)
    own = encoder(shape, FORMAT, w, cores)
    whole = own(picture)
    for groups in ([], [2], [0, 3], [0, 1, 2, 3]):
        keep = np.isin(np.arange(4), groups).reshape(2, 2)
        part = own.host.of(len(groups))
        part.begin(picture, keep)
        for step in part.steps():
            own.run(step)
        tokens, embeddings = exact(shape, w, picture, keep)
        assert part.embeddings.shape == (1 + len(groups), 8)
        assert np.abs(part.embeddings - embeddings).max() < 0.02 * np.abs(tokens).max()
    np.testing.assert_array_equal(own(picture), whole)


def test_cores_that_read_together_load_the_same_rows():
    """All cores of a group have the same LOADs to X, in the same order, in products alone."""
    plans = [EncoderPlan(SHAPE, FORMAT, core, 6, True) for core in range(6)]
    seen = set()
    for stage in plans[0].names:
        group = plans[0].group(stage)
        loads = [rows_read(plan, stage) for plan in plans]
        for core, own in enumerate(loads):
            assert group == 1 or own == loads[core // group * group]
            together = [addr < plans[0].together for addr, *_ in own]
            assert all(together) if stage in plans[0].grids else not any(together)
        seen.add(group)
    assert seen == {1, 2}


def rows_read(plan: EncoderPlan, stage: str) -> list[tuple[int, int, int, int]]:
    """Address, rows, words and stride of each LOAD to X of a stage."""
    if stage not in [own.name for own in plan.stages]:
        return []
    registers = register_values(plan.registers(0, 1 << 20, 1 << 21))
    steps = sequence(plan.program(stage, stage), registers, plan.fmt)
    loads = [i for i in steps if i.op == Opcode.LOAD and i["target"] == LoadTo.X]
    return [(i.addr, i["rows"], i["words"], i["stride"]) for i in loads]


def test_a_second_picture_leaves_nothing_of_the_first():
    w, first, second = model(SHAPE, 8), patches(SHAPE, 1), patches(SHAPE, 2)
    own = encoder(SHAPE, FORMAT, w)
    own(first)
    np.testing.assert_array_equal(own(second), encoder(SHAPE, FORMAT, w)(second))


def test_a_grid_moves_the_fewest_words():
    """Weights of two tiles fill W: all columns to one core each, if its rows would be read as often otherwise."""
    cores = replace(FORMAT, lanes=64, w_depth=32, x_depth=512, depth=64)
    found = grid(576, 16, 64, 8, cores, False)
    assert (found.columns, found.cut.tiles, found.cut.slices) == (8, 2, 1)
    assert grid(576, 64, 16, 8, cores, False) is None
    assert grid(576, 64, 16, 8, cores, True).cut.slices == 4


@pytest.mark.parametrize(
    ("changes", "fmt", "message"),
    [
        ({"width": 6, "heads": 1}, {}, "width=6: must be a multiple of lanes = 4"),
        ({"heads": 4}, {}, "head_size=2: must be a multiple of lanes = 4"),
        ({"heads": 3}, {}, "heads=3: must divide width = 8"),
        ({"projector": (6,)}, {}, "projector=6: must be a multiple of lanes"),
        ({"kept": 2}, {}, "group=2: must divide side = 3"),
        ({"side": 4, "kept": 5}, {}, "kept=5: must be 0 to 4, the groups of a picture"),
        ({"side": 4, "extra": 0, "shown": 0, "kept": 0}, {}, "kept=0: must be at least 1"),
        ({"shown": 2}, {}, "shown=2: must be 0 to extra = 1"),
        ({"cells": 4}, {}, "cells=4: must be at most side = 3"),
        ({"side": 9}, {}, "tokens=82: need 42 words of W for keys and values of a head"),
        ({}, {"depth": 2}, "width=8: needs 4 words of a bank"),
        ({"side": 5}, {"depth": 4}, "words of a bank for a row of scores"),
        ({}, {"x_depth": 4}, "words of X"),
        ({"width": 72, "heads": 18}, {"depth": 64}, "inputs of qkv=72: must fit 16 words of W"),
    ],
)
def test_what_does_not_fit_is_named(changes, fmt, message):
    with pytest.raises(ParamError, match=message.replace("(", r"\(")):
        EncoderPlan(replace(SHAPE, **changes), replace(FORMAT, **fmt))


def test_a_picture_or_weights_of_another_size_are_refused():
    own = encoder(SHAPE, FORMAT, model(SHAPE, 1))
    with pytest.raises(ParamError, match="patches=.*must be"):
        own(patches(LONG, 1)[:-1])
    with pytest.raises(ParamError, match="layers=1: must be 2"):
        EncoderHost(SHAPE, FORMAT, model(replace(SHAPE, layers=1), 1))


@models
@pytest.mark.nightly
def test_the_real_encoder():
    """DINOv2 on a frame, whole and with the patches that CodecSight keeps, near FP32; docs/lxe.md has the errors."""
    encoder_, core = VisionEncoder(), preset("core").core.core_format()
    first, second = read("world", 2, None, 224)
    want = encoder_(first.picture)
    projector = Projector.fit(pool(want, 10), Decoder(1, 1).embeddings)
    whole = EncoderCores(EncoderHost(encoder_.shape(10, Decoder.width), core, encoder_.folded(projector)))
    got = whole(encoder_.pixels(first.picture))
    errors = off(whole.host.get("tokens"), want), off(got, projector(pool(want, 10)))
    page = " ".join((ROOT / "docs/lxe.md").read_text().split())
    tokens, embeddings = (f"{error:.1%}".replace("%", " %") for error in errors)
    assert (
        f"tokens are off by {tokens} of FP32's, root mean square, and the decoder's embeddings by {embeddings}." in page
    )
    keep = Pruner(PruneParams(grid=16))
    keep(first)
    some = keep(second)
    assert 0 < some.sum() < some.size
    part = whole.host.of(int(some.sum()))
    part.begin(encoder_.pixels(second.picture), some)
    for step in part.steps():
        whole.run(step)
    known = encoder_(second.picture, patches_of(some, 2))
    groups = known[1:].reshape(8, 2, 8, 2, -1).mean((1, 3))[some]
    assert off(part.embeddings, projector(np.concatenate([known[:1], groups]))) < 0.01


def off(got: np.ndarray, want: np.ndarray) -> float:
    """Distance relative to the length."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
