"""Decoder layers with 4-bit weights on golden cores: numbers are those of the same layers in BF16, and less is read."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from openvrex.golden.arithmetic.packed_weights import Matrix, Packing, Rule
from openvrex.golden.arithmetic.vector import Bank, Format, Op, Source
from openvrex.golden.arithmetic.vector import Instruction as Vector
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.isa import Instruction, LoadTo, Opcode, Queue, Status, StoreTo, vector
from openvrex.golden.program.layer_compiler import GEMMS, LayerPlan
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.lxe_model import Lxe, LxeError, Memory, Region, simulate
from openvrex.golden.program.share_plan import SharePlan
from openvrex.golden.program.system_host import SystemHost
from openvrex.hdl.params import CoreParams, override, preset
from openvrex.tb.library.random_layers import cut_as, quantised, turns, weights
from tb.tests.by_day import by_day

SHAPE = LayerShape(width=128, heads=16, kv_heads=2, head_size=16, ffn=128, tokens=3, recent=8, entries=24)
SIZES = ("entry_bytes=64", "recent=8", "blocks=64", "clusters=12", "n_ctx=8", "lxe.i_depth=1024", "vpe.depth=64")
SIZES += ("w_depth=128", "x_depth=256", "bus_bytes=4")
LAYERS, PASSES = 1, 4
PACKINGS = [Packing(Rule.SCALE), Packing(Rule.MINIMUM), Packing(Rule.ZERO, 128), Packing(Rule.SCALE, 128)]
NAMES = [f"{p.rule.name.lower()}-{p.group}" for p in PACKINGS]
RUNS = {name: (p, 1) for name, p in zip(NAMES, PACKINGS, strict=True)} | {"team": (PACKINGS[1], 4)}


@cache
def core(weights: bool = True) -> CoreParams:
    return override(preset("tiny"), [*SIZES, f"lxe.weights={str(weights).lower()}"]).core


@cache
def layers(packing: Packing) -> tuple[list[dict[str, Matrix]], list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(1)
    own = [quantised(weights(SHAPE, rng), packing) for _ in range(LAYERS)]
    return [x for x, _ in own], [x for _, x in own]


def host(cores: int, own: list, packing: Packing | None) -> SystemHost:
    planes = [np.random.default_rng(k).normal(size=(16, SHAPE.kv_heads * SHAPE.head_size)) for k in range(LAYERS)]
    p = core(packing is not None)
    function, sizes = replace(p.dre.function(), th_hd=3), p.dre.sizes()
    retrieval, shape = RetrievalShape.of(sizes, function.centre), replace(SHAPE, packing=packing)
    return SystemHost(shape, p.core_format(), retrieval, own, planes, function, sizes, cores=cores)


def played(h: SystemHost) -> list[np.ndarray]:
    """The outputs of some passes."""
    out = []
    for k in range(PASSES):
        hidden = np.random.default_rng(k).normal(size=(SHAPE.tokens, SHAPE.width)).astype(np.float32)
        h.begin(hidden, *turns(SHAPE, k * SHAPE.tokens), k * SHAPE.tokens)
        for layer in range(LAYERS):
            for phase, group in h.steps(layer):
                h.run(phase, layer, group)
        out.append(h.get(0, "hidden"))
    return out


@pytest.mark.parametrize("how", by_day(RUNS, "minimum-32", "team"))
def test_every_number_is_that_of_the_same_layers_in_bf16(how, monkeypatch):
    """Alone, and in teams of two, which share columns and sums. Sums are cut alike, where they might not be."""
    packing, cores = RUNS[how]
    four, whole = layers(packing)
    own = host(cores, four, packing)
    monkeypatch.setattr(SharePlan, "_cut_share", cut_as(packing))
    plain = host(cores, whole, None)
    assert [p.cuts for p in plain.plans[0]] == [p.cuts for p in own.plans[0]]
    for got, want in zip(played(own), played(plain), strict=True):
        np.testing.assert_array_equal(got, want)
    assert own.cores[0].dre.level(0) > 2, "nothing was clustered"


@pytest.mark.parametrize("packing", PACKINGS, ids=NAMES)
def test_programs_are_as_long_and_read_less(packing):
    """The same instructions but for the LOADs of weights, which read as many words as the packing says."""
    four = LayerPlan(replace(SHAPE, packing=packing), core().lxe_format())
    whole = LayerPlan(SHAPE, four.fmt, four.cuts)
    assert [len(s.items) for s in four.stages] == [len(s.items) for s in whole.stages]
    ratio = packing.words / packing.made
    for name in GEMMS:
        assert four[f"{name}_weight"].size == whole[f"{name}_weight"].size * ratio
        less = whole.costs(0)[name].loaded - four.costs(0)[name].loaded
        assert less == whole[f"{name}_weight"].size * (1 - ratio)


@pytest.mark.parametrize("packing", PACKINGS, ids=NAMES)
def test_slices_of_keys_are_the_same_for_any_number_of_cores(packing):
    """They decide how sums are rounded, on which the retrieval rests; a slice holds whole groups."""
    words = {host(n, layers(packing)[0], packing).plans[0][0].cuts["qkv"].words for n in (1, 2, 4)}
    assert len(words) == 1
    assert min(words) * core().dpe.n_w % packing.group == 0


def test_weights_of_another_kind_are_refused():
    plan = LayerPlan(replace(SHAPE, packing=PACKINGS[0]), core().lxe_format())
    for own in (layers(PACKINGS[1])[0][0], layers(PACKINGS[0])[1][0]):
        with pytest.raises(ParamError, match="qkv weights='others': must be 4-bit weights of"):
            plan.pack(own)
    with pytest.raises(ParamError, match=r"lxe\.weights=False: must be true for 4-bit weights"):
        LayerPlan(replace(SHAPE, packing=PACKINGS[0]), core(False).lxe_format())
    with pytest.raises(ParamError, match="group=128: must divide a slice of 192 weights: take groups of 32"):
        LayerPlan(replace(SHAPE, width=192, packing=PACKINGS[2]), core().lxe_format())


def test_a_bus_that_brings_no_word_of_8_bits_in_a_beat_is_refused():
    with pytest.raises(ParamError, match=r"bus_bytes=4: must be at least 8 with lxe\.weights"):
        override(preset("tiny"), [*SIZES, "dpe.n_h=8", "dpe.n_w=8", "vpe.n_w=8", "lxe.weights=true"]).core.lxe_format()


def load(rows: int, words: int = 1, **fields: int) -> list[Instruction]:
    own = {"target": LoadTo.W, "wide": 1, "stride": 1, "rows": rows - 1, "words": words - 1}
    return [Instruction(Opcode.LOAD, own | fields), Instruction(Opcode.HALT, {})]


def lxe(packed: bool = True) -> Lxe:
    return Lxe(core(packed).lxe_format(), Memory([Region("w", 0, 0x4000)]))


@pytest.mark.parametrize(
    ("program", "packed", "reason"),
    [
        (load(10), True, "rows=9: the last word must hold weights, not scales"),
        (load(1), True, "rows=0: the last word must hold weights, not scales"),
        (load(9, to=127, step=1), True, "words 127 to 134 are outside W of 128 words"),
        (load(9, stride=8), True, "FP32 words go between memory and VPE only"),
        (load(9, addr=4), True, "addr=0x4: must be a multiple of a word's 8 bytes"),
        (load(9), False, "FP32 words go between memory and VPE only"),
        (load(9, wide=0), True, "stride=0x1: must be a multiple of a word's 8 bytes"),
    ],
)
def test_what_a_core_refuses(program, packed, reason):
    with pytest.raises(LxeError, match=reason) as e:
        lxe(packed).run(program)
    assert e.value.status == Status.RANGE


def test_scales_that_nobody_wrote_are_noticed():
    """A MUL of weights whose scales are unknown is refused, as of any unknown number."""
    own = lxe()
    size = {"rows": 0, "tiles": 0, "chunks": 0, "keep": 3, "start": 1, "end": 1}
    program = [
        Instruction(Opcode.LOAD, {"target": LoadTo.X, "addr": 0x1000}),
        load(9, signal=1)[0],
        Instruction(Opcode.MUL, size | {"wait": 1}),
        Instruction(Opcode.HALT, {}),
    ]
    unknown = np.zeros(own.memory.regions[0].size, bool)
    own.memory.regions[0].unknown = unknown
    with pytest.raises(LxeError, match="1 words are left in the queue of MUL words"):
        own.run(program)
    unknown[2] = True
    with pytest.raises(LxeError, match="of which no tree has all: 0 was never written"):
        lxe_with(unknown).run(program)


def lxe_with(unknown: np.ndarray) -> Lxe:
    out = lxe()
    out.memory.regions[0].unknown = unknown
    return out


def test_order_of_words_that_a_load_makes():
    """The check of hazards sees each word of W that a LOAD makes, and each word of memory that it reads."""
    size = {"rows": 0, "tiles": 7, "chunks": 0, "keep": 3, "start": 1, "end": 1}
    words = Vector(a=Source.STREAM, wide=1, words=7, keep=3, write=Bank.C)
    out = Vector(op=Op.STORE, words=0, keep=3, format=Format.WIDE)

    def problems(wait: int, to: int) -> list[str]:
        program = [
            Instruction(Opcode.LOAD, {"target": LoadTo.X, "addr": 0x1000}),
            load(9, step=1, signal=1)[0],
            Instruction(Opcode.MUL, size | {"wait": wait}),
            vector(words, source=Queue.MUL),
            vector(out),
            Instruction(Opcode.STORE, {"target": StoreTo.MEMORY, "wide": 1, "addr": to}),
            Instruction(Opcode.HALT, {}),
        ]
        return simulate(program, {}, core().lxe_format()).problems()

    assert problems(1, 0x2000) == []
    assert problems(1, 8 * 7) == []  # words of weights that have been read before the MUL
    late = [line for line in problems(0, 0x2000) if "both use W word" in line]
    assert [line.partition(" both")[0] for line in late] == ["instruction 2 (MUL) and instruction 1 (LOAD)"]
    assert any("both use memory at 0x0" in line for line in problems(0, 0))
