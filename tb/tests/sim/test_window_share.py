"""Policies with a window in the simulator: cycles of the host's programs, demand of the policy, whole passes."""

from dataclasses import replace

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.registry import override
from openvrex.golden.policies.window_decisions import windowed
from openvrex.golden.program.isa import encode
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.window_slots import Piece
from openvrex.hdl.params import CLOCK, preset
from openvrex.hdl.params import override as changed
from openvrex.sim.system import core_policies
from openvrex.sim.system.accelerator import seconds
from openvrex.sim.system.core_pass import Given
from openvrex.sim.system.core_policies import Row, compare, curve
from openvrex.sim.system.layer_share import Layer
from openvrex.sim.system.passes import simulate
from openvrex.sim.system.platforms import EDGE, SERVER, Vrex
from openvrex.sim.system.selection import PUBLISHED
from openvrex.sim.system.share_cycles import COUNTS, CoreShare
from openvrex.sim.system.timeline import Pass, Point
from openvrex.sim.system.window_demand import BlockDemand, WindowDemand, demand
from openvrex.sim.system.window_pass import NAMES, WindowPass
from openvrex.sim.system.window_share import WindowShare
from openvrex.sim.system.workload import MODELS, Decoder, traced
from openvrex.sim.units.lxe_time import LxeTime
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.library import small_models
from openvrex.tb.library.small_windows import SmallDecoder, frame, policy, segments
from openvrex.tb.library.window_stream import WindowStream

LATENCY = 100


# Cycles


@pytest.mark.parametrize("name", ["streamingllm", "codecsight"])
def test_one_core_s_cycles_are_those_of_the_host_s_programs(name):
    """`test_window_run.py` holds the latter equal to the RTL. Bursts are those of tokens in the first slots."""
    system = changed(preset("tiny"), [*small_models.SIZES])
    stream = WindowStream(policy(name), segments(), SmallDecoder(), system.core, 5)
    s, seen = stream.plan.shape, set()
    model = Decoder(2, s.width, s.heads, s.kv_heads, s.head_size, s.ffn, small_models.VOCABULARY)
    for one in stream:
        one.run()
        step, n = one.step, len(one.step.of.tokens)
        many = len(step.registers) > 4 and step.registers[Register.REST]  # a pass in two runs of slots
        if step.registers[Register.SLOT] % 4096 or many:
            continue
        share = WindowShare(system, model, n, s.tokens, s.recent, 0, LATENCY)
        is_pass = isinstance(step.of, Piece)
        stages = share.layer() if is_pass else share.turning(n, step.of.fresh)
        steps = trace(system.core, [encode(i) for i in step.program], step.registers, 100_000).steps
        want = int(LxeTime(system.core, LATENCY).run(steps).finished.max())
        assert total(list(stages.values()))["cycles"] == want
        seen.add(n if is_pass else "fresh" if step.of.fresh else "turned")
    assert {"fresh", 3} <= seen


@pytest.mark.parametrize(("name", "cores"), [("edge8", 8), ("server48", 48)])
def test_several_cores_compute_as_with_retrieval_that_fetches_all(name, cores):
    """Programs of the same plan, so the same cycles; the window's own stages are there, retrieval's are not."""
    system = preset(name)
    ring, behind = 256, 768
    window = WindowShare(system, Decoder(), 10, 10, ring, behind, LATENCY)
    stages, other = window.layer(), CoreShare(system, Decoder().sizes, 10, ring + behind, 1.0, LATENCY).layer()
    assert window.shares.cores == cores
    own = {"norm1", "output", "norm2", "gate_up", "down"} | (
        {"add_output", "add_down"} if window.shares.parts > 1 else set()
    )
    own |= {"values"} | ({"qkv", "join", "softmax"} if window.shares.members > 1 else set())
    for stage in own:
        assert stages[stage]["cycles"] == other[stage]["cycles"], stage
    assert set(stages) - own == {"rotary", "append", "scores"} | (
        {"entries"} if window.shares.members > 1 else {"qkv", "softmax"}
    )
    assert stages["rotary"]["cycles"] == 0 or window.shares.members == 1  # it runs beside the leader's stages
    weights = 2 * Decoder().layer_weights
    assert weights < total(list(stages.values()))["bytes"] < 1.4 * weights
    assert window.barriers == {8: 4, 48: 9}[cores]


def test_older_entries_of_full_attention_take_what_slots_take():
    """An entry behind the pool needs no mask; beside that, both programs attend alike.

    A mask is more words of a LOAD that both have, so each of its beats and words delays what follows by a cycle at
    most.
    """
    pool, behind = (
        total(list(WindowShare(preset("edge8"), Decoder(), 10, 10, slots, more, LATENCY).layer().values()))
        for slots, more in ((3840, 0), (256, 3584))
    )
    masks = {unit: pool[unit] - behind[unit] for unit in ("dpe", "vpe", "load", "store")}
    assert (masks["dpe"], masks["store"]) == (0, 0)
    assert behind["cycles"] < pool["cycles"] <= behind["cycles"] + masks["vpe"] + masks["load"]


# Demand


def frames(count: int = 8, gop: int = 4) -> list:
    return [frame(i, [0, 1], gop) for i in range(count)]


def test_what_a_policy_asks_for_is_what_its_class_decides():
    d = demand(windowed("streamingllm"), Decoder(), 2000)
    assert d.frames == (BlockDemand((10,), ((4, False),)),) * len(d.frames)
    assert d.token == BlockDemand((1,), ((4, False),))
    assert (d.held, d.most, d.rows, d.drops) == (4 + 256 + 10, 16, 10.0, True)  # the prompt has 16
    early = demand(windowed("streamingllm"), Decoder(), 100, frames=1)
    assert early.frames == (BlockDemand((10,), ()),)  # nothing is dropped yet
    full = demand(windowed("full"), Decoder(), 500)
    assert (len(full.frames), full.frames[0].turned, full.drops) == (1, (), False)
    assert full.held == pytest.approx(500 + 10, abs=10)


def test_a_window_s_figures_repeat():
    """A stream of 1M tokens is not played to its end, and asks what a shorter one asks."""
    for name in ("streamingllm", "codecsight"):
        p = windowed(name)
        p = replace(p, params=override(p.params, {"window": "8", "stride": "4"} if name == "codecsight" else {}))
        few, many = (demand(p, Decoder(), n, frames(), frame_tokens=4) for n in (4000, 1 << 20))
        assert replace(few, cached=1 << 20) == many, name


def test_codecsight_prunes_refreshes_and_turns():
    p = windowed("codecsight")
    p = replace(p, params=override(p.params, {"window": "8", "stride": "4"}))
    d = demand(p, Decoder(), 400, frames(), at_once=6, frame_tokens=4)
    sizes = [sum(f.passes) for f in d.frames]
    assert min(sizes) < 4, "no token was pruned"
    assert max(sizes) > 4, "no token was refreshed"
    assert any(f.turned for f in d.frames)
    assert max(max(f.passes) for f in d.frames) <= d.most <= 6
    bare = demand(p, Decoder(), 400, frame_tokens=4)  # without codec data
    assert [sum(f.passes) for f in bare.frames] == [4] * len(bare.frames)


def test_a_pool_has_whole_pairs_of_tiles_and_masks_for_all():
    d = WindowDemand(9000, (BlockDemand((10,), ()),), BlockDemand((1,), ()), 270, 10, True)
    assert d.slots(128, 4096, 256) == (384, 0)
    assert replace(d, held=4096).slots(128, 4096, 256) == (4096, 0)
    with pytest.raises(ParamError, match="slots=4224: must be at most 4096, whose masks a core holds: shrink"):
        replace(d, held=4097).slots(128, 4096, 256)
    assert replace(d, held=4097, drops=False).slots(128, 4096, 256) == (256, 3841)


# Passes


def total(stages: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(counts[name] for counts in stages) for name in COUNTS}


def full(v: Vrex, cache: int, **point) -> WindowPass:
    return WindowPass(v, demand(windowed("full"), Decoder(), cache), Point(cache, **point))


@pytest.mark.parametrize("v", [EDGE, SERVER], ids=["edge", "server"])
@pytest.mark.parametrize("rows", [10, 1], ids=["frame", "token"])
def test_full_attention_takes_what_work_alone_predicts(v, rows):
    """The accelerator's model counts the busiest unit of each stage; here programs are played.

    Encoder, vocabulary and gap are the same. Elsewhere a stage of the model may be longer by the two waits for memory
    that it adds, and by beats that the program loads beside the stage before: as many as W and X hold. It may be
    shorter by the cycles in which the busiest unit of the program waits, and by the bytes of other cores, which the
    program counts like those of core 0. So all units' work must be alike.
    """
    w, core = full(v, 4096), v.core
    at = Point(4096 + 2 * core.dpe.n_w, rows=rows, frame=rows > 1, policy="resident")  # as many pairs of tiles
    played, counted = w.frame() if rows > 1 else w.token(), simulate(v, at)
    for name in ("vision", "gap", "vocabulary"):
        assert played.named(name) == counted.named(name)
    layer = w.share(rows).layer()
    ahead = (core.dpe.n_h * core.dpe.w_depth + core.dpe.x_depth) * 2 * core.dpe.n_w // core.lxe.bus_bytes
    for name, stages in NAMES.items():
        own = [layer[stage] for stage in stages if stage in layer]
        busiest = [max(counts[unit] for unit in ("dpe", "vpe", "load", "store", "reads", "writes")) for counts in own]
        idle = sum(max(0, counts["cycles"] - most) for counts, most in zip(own, busiest, strict=True))
        more = (moved(played, name) - moved(counted, name)) / v.bandwidth
        took, said = played.named(name), counted.named(name)
        assert took <= said + Decoder().layers * idle / CLOCK + max(0.0, more) + 1e-9, name
        alone = (2 * v.latency + ahead) / CLOCK
        if name == "qkv":  # the model also hashes and joins keys, and cuts the product in two
            of_keys = Layer(v.system, Decoder(), 1, rows, v.latency).prediction(0, True)
            said -= Decoder().layers * (seconds(v, [of_keys["hash"], of_keys["cluster"]]) + alone)
        assert said - Decoder().layers * len(own) * alone <= took, name
    assert played.fetched == 0
    entries = w.held_bytes - w.largest.window.work.size * v.cores  # without what programs pass on
    assert entries == pytest.approx(4096 * Decoder().token_bytes, rel=0.04)


def moved(p: Pass, name: str) -> float:
    """Bytes of the stages of a name."""
    return sum(s.bytes for s in p.stages if s.name == name)


def test_a_mean_frame_is_the_mean_of_its_frames():
    few, many = BlockDemand((2,), ()), BlockDemand((10, 6), ((4, True),))
    d = WindowDemand(900, (few, many, few, few), BlockDemand((1,), ()), 300, 10, True)
    w = WindowPass(EDGE, d, Point(900))
    own = w.frames()
    assert own[0] < own[1]
    assert w.frame().seconds == pytest.approx((3 * own[0] + own[1]) / 4)
    assert w.frame().named("turn") == pytest.approx(replaced(w, (many,)).frame().named("turn") / 4)
    assert replaced(w, (few,)).frame().named("turn") == 0


def replaced(w: WindowPass, blocks: tuple) -> WindowPass:
    return WindowPass(w.v, replace(w.d, frames=blocks), w.point)


def test_batches_are_refused():
    with pytest.raises(ParamError, match="batch=2: must be 1"):
        full(EDGE, 1024, batch=2)


# Tables


def test_the_table_says_what_each_policy_takes():
    found = {name: windowed(name) for name in ("full", "hybrid", "streamingllm")}
    rows = compare(EDGE, {"resv": found["full"], **found}, Decoder(), (5120,), Given(traced(Decoder())))
    by = {row.policy: row for row in rows}
    assert by["resv"].home == 5120 * Decoder().token_bytes / 1e6
    assert by["resv"].fetched > 0 < by["resv"].device
    assert by["full"].attended > 5120 > by["resv"].attended > by["streamingllm"].attended
    assert by["full"].frame > by["streamingllm"].frame
    assert by["hybrid"].lacks.startswith("slots=4224: must be at most 4096")
    assert by["streamingllm"].limit == "device memory"
    shown = curve(EDGE, rows, traced(Decoder()))
    assert [row[0] for row in shown.rows] == list(by)
    assert shown.rows[2][2:10] == ("-",) * 8
    small = replace(EDGE, capacity=15 << 30)
    assert (
        "GiB of device memory"
        in compare(small, {"full": found["full"]}, Decoder(), (5120,), Given(traced(Decoder())))[0].lacks
    )


def test_a_refusal_is_told_once():
    """Lengths that lack the same make one line of the table; what differs by length makes a line each."""
    rows = [Row("mosaic", 1024 * n, lacks="cores=8: must be 1") for n in (1, 4, 10)]
    rows += [Row("full", 1024 * n, lacks=f"{n} of 3 GiB") for n in (4, 5)] + [Row("resv", 1000, limit="link")]
    shown = curve(EDGE, rows, traced(Decoder())).rows
    assert [row[:2] for row in shown] == [("mosaic", "1K, 4K, 10K"), ("full", "4K"), ("full", "5K"), ("resv", "1,000")]
    assert {len(row) for row in shown} == {11}


def test_what_limits_a_pass():
    """The link with a slow drive, the memory with many cores, the cores with one."""
    shares, at = traced(Decoder(), policy=PUBLISHED), Point(40960)
    assert core_policies.limit(EDGE, simulate(EDGE, at, shares)) == "link"
    one = replace(EDGE, system=preset("core"))
    w = full(one, 1024)
    assert core_policies.limit(one, w.frame()) == "cores"
    assert core_policies.limit(EDGE, full(EDGE, 1024).frame()) == "device memory"


def test_smollm2_has_the_shape_that_runs_on_the_rtl():
    from openvrex.golden.inputs.decoder import N_LAYERS
    from openvrex.golden.inputs.decoder import Decoder as Real

    m = MODELS["smollm2-135m"]
    assert (m.layers, m.width, m.heads, m.kv_heads, m.head) == (
        N_LAYERS, Real.width, Real.heads, Real.kv_heads, Real.head_size
    )  # fmt: skip
    row = core_policies.row(
        replace(EDGE, system=preset("core")),
        "streamingllm",
        windowed("streamingllm"),
        Point(1024, model=m),
        Given(traced(m)),
    )
    assert isinstance(row, Row)
    assert not row.lacks
