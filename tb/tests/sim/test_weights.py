"""Weights of 4 and 8 bits in the simulator: bytes, cycles and times of a pass, and what is refused."""

from dataclasses import replace

import pytest

from openvrex.golden.arithmetic.packed_weights import Packing
from openvrex.golden.program.isa import Opcode, encode
from openvrex.golden.program.layer_compiler import GEMMS
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.hdl.execution.weight_expander import WeightExpander
from openvrex.hdl.params import override, preset
from openvrex.sim.system import limits
from openvrex.sim.system.device_memory import arrays
from openvrex.sim.system.pages_pass import PagesPass
from openvrex.sim.system.passes import selected
from openvrex.sim.system.platforms import EDGE, PLATFORMS, Vrex
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import HEADS, MODELS, WEIGHTS, Decoder
from openvrex.sim.units.loader_time import LoaderTime, unpacked
from openvrex.sim.units.lxe_time import busy
from openvrex.sim.units.sequencer_time import trace
from tb.tests.commands import refuses, tried

FOUR = replace(EDGE, name="edge8x", system=preset("edge8x"))
SMALL = MODELS["smollm2-135m"]
PACKED = [name for name, packing in WEIGHTS.items() if packing]


@pytest.mark.parametrize("name", PACKED)
def test_bytes_are_those_of_the_compiled_arrays(name):
    """Of a layer's products; SmolLM2's width is no multiple of 128, so its groups are of 32."""
    model = FOUR.held(Decoder(), f"{name}+bf16")
    share = PagesPass(FOUR, PageParams(), Point(4096, model=model)).share()
    own = sum(share.plan[f"{n}_weight"].size for n in GEMMS)
    assert own * share.shares.cores == model.layer_bytes
    each = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "gptq": 16.5, "gptq-zeros": 17}[name]  # bytes of 32 weights
    assert model.layer_bytes / model.layer_weights == each / 32
    assert model.pass_bytes < Decoder().pass_bytes / (1.5 if name == "q8_0" else 2.5)


def test_a_group_that_does_not_fit_is_refused():
    point = Point(4096, model=FOUR.held(SMALL, "gptq"))
    with pytest.raises(ValueError, match="group=128: must divide a slice of .* take groups of 32"):
        PagesPass(replace(FOUR, system=override(preset("omni"), ["entry_bytes=256"])), PageParams(), point).frame()


@pytest.mark.parametrize("policy", ["pages", "resv"])
def test_device_memory_holds_less(policy):
    """What the arrays of weights lose is what the products have less."""
    models = [FOUR.held(Decoder(), name) for name in ("bf16", "q4_0")]
    points = [Point(4096, policy=policy, model=model) for model in models]
    if policy == "pages":
        sizes = [PagesPass(FOUR, PageParams(), point).arrays["weights"] for point in points]
    else:
        sizes = [arrays(FOUR, point, selected(point, None))["weights"] for point in points]
    assert sizes[0] - sizes[1] == models[0].pass_bytes - models[1].pass_bytes


def test_the_model_suits_the_cores():
    """Weights have 4 bits where cores expand them, the vocabulary's 8, unless --weights says otherwise."""

    def packings(on: Vrex, weights: str = "") -> tuple[Packing | None, Packing | None]:
        held = on.held(Decoder(), weights)
        return held.packing, held.head_packing

    assert packings(FOUR) == packings(FOUR, "q4_0") == (WEIGHTS["q4_0"], HEADS["q8_0"])
    assert packings(FOUR, "gptq+q4_0") == (WEIGHTS["gptq"], HEADS["q4_0"])
    assert packings(FOUR, "q4_0+bf16") == (WEIGHTS["q4_0"], None)
    assert packings(FOUR, "bf16+q8_0") == (None, HEADS["q8_0"])
    assert packings(FOUR, "bf16") == packings(EDGE) == (None, None)
    assert FOUR.held(Decoder()).sizes["packing"] == WEIGHTS["q4_0"]


@pytest.mark.parametrize("command", ["engines --platform edge --batch 1 --stage token", "prediction --cached 1024"])
def test_other_commands_take_what_the_cores_expand(command, monkeypatch):
    """`-p lxe.weights=true` changes times there, too."""
    monkeypatch.setattr(limits, "ENGINES", limits.ENGINES[:1])
    runs = [tried("simulate", *command.split(), *more) for more in ([], ["-p", "lxe.weights=true"])]
    assert [run.exit_code for run in runs] == [0, 0]
    assert len({run.stdout for run in runs}) == 2


def test_a_load_counts_by_the_words_that_it_makes():
    """LOADs that follow each other take this long in the loader's time view, and a cycle more for each word of scales
    behind the first, and between two of them the expander's latency and the beats of the first scales.
    """
    core = FOUR.core
    plan = PagesPass(FOUR, PageParams(), Point(4096, model=FOUR.held(Decoder()))).share().plan
    steps = trace(core, [encode(i) for i in plan.program("down", "down")], {1: 1 << 34}, 1 << 20).steps
    loads = [s for s in steps if s.op == Opcode.LOAD and not s.beat["skip"]]
    packed = [s.beat for s in loads if unpacked(core, s.beat)]
    assert sum(unpacked(core, c) for c in packed) == plan["down_weight"].size * 32 // 9 // 128
    some = packed[:4]
    took = LoaderTime(core, 1).run(some).words
    count = sum(busy(core, s)["load"] for s in loads if any(s.beat is c for c in some))
    scales = sum(-(-(c["rows"] + 1) // Packing.of(c["stride"]).words) - 1 for c in some)
    between = WeightExpander.LATENCY + 2 * core.dpe.n_w // core.lxe.bus_bytes
    assert took[-1] - took[0] + 1 == count + scales + (len(some) - 1) * between


@pytest.mark.parametrize("name", HEADS)
def test_a_vocabulary_takes_as_long_as_its_bytes(name):
    """Its program reads what a head in memory has; the device memory limits it."""
    model = FOUR.held(Decoder(), f"q4_0+{name}")
    assert model.head_bytes / (model.width * model.vocab) == {"bf16": 2, "q8_0": 34 / 32, "q4_0": 18 / 32}[name]
    took = PagesPass(FOUR, PageParams(), Point(1024, model=model)).token()
    [stage] = [s for s in took.stages if s.name == "vocabulary"]
    assert model.head_bytes < stage.bytes < model.head_bytes + 8e6  # activations, logits
    assert took.named("vocabulary") == pytest.approx(stage.bytes / FOUR.bandwidth)


def test_a_frame_and_a_token_take_less():
    def seconds(name: str) -> tuple[float, float]:
        one = PagesPass(FOUR, PageParams(), Point(40960, model=FOUR.held(Decoder(), name)))
        return one.frame().seconds, one.token().seconds

    times = {name: seconds(name) for name in ("bf16", "q8_0", "q4_0")}
    frames, tokens = zip(*times.values(), strict=True)
    assert sorted(frames, reverse=True) == list(frames)
    assert sorted(tokens, reverse=True) == list(tokens)
    assert tokens[0] > 2 * tokens[-1]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("pass --weights q4_0", "weights='q4_0': need -p lxe.weights=true, or --preset edge8x"),
        ("frames --preset edge8x --platform edge --weights q5_0", "weights='q5_0': must be one of bf16, q4_0"),
        ("pass --preset edge8x --weights q4_0+q6_k", "weights='q4_0+q6_k': must have one of bf16, q8_0, q4_0 behind"),
        ("pass --weights bf16+q8_0", "weights='bf16+q8_0': need -p lxe.weights=true, or --preset edge8x"),
        ("pass --platform agx --policy flexgen --weights q4_0", "weights='q4_0': must be bf16 on a GPU"),
        ("policies --policy full --weights q4_1 --cache 1024", "weights='q4_1': need -p lxe.weights=true"),
        ("layer --weights q4_0", "weights='q4_0': need -p lxe.weights=true"),
    ],
)
def test_what_is_refused_in_one_line(words, reason):
    assert set(PLATFORMS) >= {"agx", "edge"}
    run = refuses("simulate", *words.split())
    assert reason in run.stderr
