"""Every compiled program is the one on record, instruction by instruction.

A change of the compiler that shall leave programs alone is held to that here. After one that shall not, compare stores
and cycles, then write the record again: `python -m tb.tests.golden.program.test_compiled_programs`.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.state_space import StateSpaceParams
from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.mosaic_clusters import Threshold
from openvrex.golden.program import cluster_stages as stages
from openvrex.golden.program import vector_programs as rows_of
from openvrex.golden.program.centroid_stages import CentroidPlan
from openvrex.golden.program.core_compiler import CorePlan, RetrievalShape
from openvrex.golden.program.encoder_compiler import EncoderPlan, EncoderShape
from openvrex.golden.program.head_compiler import HeadPlan
from openvrex.golden.program.isa import Instruction, LxeFormat, encode, vector
from openvrex.golden.program.layer_compiler import LayerPlan
from openvrex.golden.program.layer_memory import LayerShape, Team
from openvrex.golden.program.mosaic_plan import FramePlan, MosaicPlan
from openvrex.golden.program.page_stages import PagePlan
from openvrex.golden.program.scan_compiler import BranchPlan
from openvrex.golden.program.share_plan import SharePlan
from openvrex.golden.program.shares import Shares
from openvrex.golden.program.stage_plan import Plan
from openvrex.golden.program.steered_stages import HALVE
from openvrex.golden.program.window_plan import WindowPlan
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.tb.library.runner import ROOT

RECORD = Path(__file__).with_name("compiled_programs.json")
Programs = Iterator[tuple[str, list[Instruction]]]

FMT = LxeFormat(lanes=4, w_depth=16, x_depth=64, depth=64, i_depth=1 << 12)
SHAPE = LayerShape(width=16, heads=4, kv_heads=2, head_size=8, ffn=24, tokens=3, recent=16, entries=24)
CORE = LxeFormat(i_depth=1 << 12)  # the sizes of preset `core`
LLAMA = LayerShape(width=4096, heads=4, kv_heads=1, head_size=128, ffn=1024, tokens=10, recent=256, entries=3840)
RETRIEVAL = RetrievalShape(n_hp=8, clusters=32, sinks=2)
HISTORY = StateSpaceParams(state=4)
PAGES = PageParams(page=2, mean=4, numbers=2)
PICTURE = EncoderShape(layers=2, width=8, heads=2, ffn=96, side=3, patch=10, cells=2, projector=(12, 8))


def of(plan: Plan) -> Programs:
    """The program of each stage, and one of all."""
    names = [stage.name for stage in plan.stages]
    yield from ((name, plan.program(name, name)) for name in names)
    yield "whole", plan.program()


def shares(cores: int, heads: int, ahead: int = -1, **how: int) -> Programs:
    """All phases of two cores."""
    whole = replace(SHAPE, width=32, ffn=32, kv_heads=4, heads=8)
    for core in (0, cores - 1):
        plan = SharePlan(Shares(whole, 4, cores, heads), FMT, replace(RETRIEVAL, ahead=ahead), core)
        yield from ((f"{phase} of {core}", program) for phase in plan.phases if (program := plan.phase(phase)))


def steps(plan: MosaicPlan) -> Programs:
    """What Mosaic does in one layer, or with frames."""
    row, word = partial(stages.at_register, size=plan.width), partial(stages.at_register, size=plan.fmt.lanes)
    weighed = word(stages.WEIGHED)
    numbers = word(stages.STATS, dtype=np.float32)
    parts: dict[str, tuple[Callable, ...]] = {
        "copy": (lambda c: c.copy(),),
        "directions": (lambda c: c.directions(row(stages.DST), None),),
        "visit": (lambda c: c.visit(),),
        "probe": (lambda c: c.probe(0),),
        "absorb": (lambda c: c.absorb(), lambda c: c.probe(1)),
        "ranks": (plan.ranks,),
        "visual": (plan.visual_ranks,),
        "move": (lambda c: c.average(row(stages.DST), 0, numbers, weighed),),
    }
    sized: dict[str, tuple[Callable, ...]] = {
        "middle": (
            lambda c: c.directions(plan["y"], plan["norms"]),
            lambda c: c.average(plan["middle"], 0, None, None),
        ),
        "put": (
            lambda c: c.average(row(stages.DST), 0, None, weighed),
            lambda c: c.put_stats(),
            lambda c: c.put_pair(),
        ),
        "centre": (lambda c: c.centre_told(),),
        "label": (lambda c: c.label(3),),
        **{f"seed {k}": (lambda c, k=k: c.seed_told(k),) for k in range(3)},
    }
    if plan.steered:
        parts["assign"] = (lambda c: c.assign(),)
        sized["halve"] = HALVE
    yield from ((name, plan.made(name, *some)) for name, some in parts.items())
    yield from ((name, plan.made(name, *some, many=12)) for name, some in sized.items())


def mosaic(fmt: LxeFormat) -> Programs:
    limit = Threshold(0.25, 0.5, 16.0)
    plan = MosaicPlan(replace(SHAPE, recent=32, entries=0), fmt, 8, 8, 40, 20, limit)
    yield from (("ask", plan.ask()), ("attend", plan.attend()))
    yield from steps(plan)


def rows() -> Programs:
    """The programs of rows that stand alone."""
    fmt, x = FMT.vector, np.ones(30, np.float32)
    made = {
        "softmax": rows_of.softmax(x, 0.25, fmt, 3, 4),
        "codes": rows_of.score_codes(x, 0.25, fmt, 3, 5),
        "norm": rows_of.rms_norm(x, x.astype(BF16), 1e-5, fmt, 3, 20, 4),
        "halves": rows_of.rotary(x[:16], 16, "halves", fmt, 4, table_at=8),
        "neighbours": rows_of.rotary(x[:16], 8, "neighbours", fmt, 4, table_at=8),
        "mean": rows_of.cluster_mean(30, 700, fmt, 3, 20, 4),
    }
    yield from ((name, [vector(step.instruction) for step in some]) for name, some in made.items())


def frames() -> Programs:
    fmt = replace(FMT, to_register=True)
    plan = FramePlan(16, 5, fmt, 8, 12, 20, Threshold(0.25, 0.5, 16.0))
    yield "frame", plan.made("frame", plan.take_frame)
    yield "assign", plan.made("assign", lambda c: c.assign())


MADE: dict[str, Callable[[], Programs]] = {
    "layer": lambda: of(LayerPlan(SHAPE, FMT)),
    "layer in parts": lambda: of(LayerPlan(replace(SHAPE, entries=400), replace(FMT, depth=32))),
    "member": lambda: of(LayerPlan(replace(SHAPE, entries=100), FMT, team=Team(1, 3))),
    "member in parts": lambda: of(LayerPlan(replace(SHAPE, entries=2000), replace(FMT, depth=32), team=Team(1, 3))),
    "window": lambda: of(WindowPlan(replace(SHAPE, entries=0), FMT, 6)),
    "hybrid window": lambda: of(
        WindowPlan(replace(SHAPE, entries=0), replace(FMT, features="hybrid"), 0, history=HISTORY)
    ),
    "branch": lambda: of(BranchPlan(SHAPE, replace(FMT, features="hybrid"), StateSpaceParams(state=8))),
    "head": lambda: of(HeadPlan(SHAPE, FMT, 601)),
    "centroid": lambda: of(CentroidPlan(SHAPE, FMT, 27)),
    "core": lambda: of(CorePlan(SHAPE, FMT, RETRIEVAL)),
    "core, many clusters": lambda: of(CorePlan(SHAPE, FMT, replace(RETRIEVAL, clusters=600, centre=False))),
    "core ahead": lambda: of(CorePlan(SHAPE, FMT, replace(RETRIEVAL, ahead=1))),
    "core behind": lambda: of(CorePlan(SHAPE, FMT, replace(RETRIEVAL, fetched=True))),
    "shares": lambda: shares(2, 2),
    "shares ahead": lambda: shares(2, 2, ahead=1),
    "shares of two tables ahead": lambda: shares(2, 1, ahead=2),
    "teams": lambda: shares(4, 2),
    "teams ahead": lambda: shares(4, 2, ahead=1),
    "mosaic": lambda: mosaic(FMT),
    "steered mosaic": lambda: mosaic(replace(FMT, to_register=True)),
    "frames": frames,
    "pages": lambda: of(PagePlan(replace(SHAPE, recent=8), FMT, 16, PAGES)),
    "pages of codes": lambda: of(
        PagePlan(replace(SHAPE, recent=8), replace(FMT, codes=2, halves=True, depth=64, w_depth=128), 16, PAGES)
    ),
    "rows": rows,
    "encoder": lambda: of(EncoderPlan(PICTURE, FMT)),
    "encoder of three": lambda: of(EncoderPlan(PICTURE, FMT, 1, 3)),
    "encoder, rows read together": lambda: of(EncoderPlan(PICTURE, FMT, 1, 2, True)),
    "large layer": lambda: of(LayerPlan(LLAMA, CORE)),
    "large core": lambda: of(CorePlan(LLAMA, CORE, RetrievalShape(clusters=1024, ahead=1))),
}


def digests(made: str) -> dict[str, str]:
    """Digest and length of each program."""
    return {
        name: f"{len(program)} {sha256(b''.join(encode(i).to_bytes(32, 'little') for i in program)).hexdigest()[:16]}"
        for name, program in MADE[made]()
    }


@pytest.mark.parametrize("made", MADE)
def test_programs_are_those_on_record(made):
    assert digests(made) == json.loads(RECORD.read_text())[made]


def test_every_plan_has_programs_on_record():
    """A new plan's programs go into `MADE`."""

    def below(plan: type) -> Iterator[str]:
        for kind in plan.__subclasses__():
            if kind.__module__.startswith("openvrex.golden."):
                yield kind.__name__
            yield from below(kind)

    source = Path(__file__).read_text()
    assert [name for name in below(Plan) if f"{name}(" not in source] == []
    assert set(json.loads(RECORD.read_text())) == set(MADE)


@pytest.mark.parametrize("plan", [LayerPlan(SHAPE, FMT), CorePlan(SHAPE, FMT, RETRIEVAL)], ids=["layer", "core"])
def test_a_plan_of_more_tokens_is_refused(plan):
    with pytest.raises(ParamError, match="tokens=4: must be at most the plan's 3"):
        plan.of(4)


@pytest.mark.parametrize(
    ("what", "where"),
    [
        (r"add=(NEVER|-1 <<)", {"compiler"}),  # negative counts: `fence`
        (r"\.items = |, self\.items\b", {"compiler"}),  # swaps of instruction lists: `when`, `loop`, `rounds`
        (r"(?<![.\w])(Loop|repeat)\(", {"compiler", "loop_rolling"}),
        (r"Post\.RSQRT", {"recipes"}),
        # Registers by number, not from `scalars`: where a formula numbers those of rows that are in work at once.
        (
            r"Scalar\(\w|scalar_[abcd]=\d",
            {"attention_stages", "centroid_stages", "encoder_stages", "score_stages", "recipes", "vector_programs"},
        ),
        (r"negate_c=1, post=Post\.(RECIPROCAL|ROUND)", {"recipes"}),  # arg-max, halves of a number
    ],
)
def test_control_flow_and_recipes_are_written_once(what, where):
    modules = [path for folder in ("program", "policies") for path in (ROOT / "golden" / folder).glob("*.py")]
    assert {path.stem for path in modules if re.search(what, path.read_text())} == where


if __name__ == "__main__":
    RECORD.write_text(json.dumps({made: digests(made) for made in MADE}, indent=1) + "\n")
