"""Mosaic in the simulator: its programs against those of a real run, the demand against the policy, whole passes."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.mosaic import Mosaic, MosaicParams
from openvrex.golden.policies.mosaic_clusters import Threshold
from openvrex.golden.policies.mosaic_core import Job
from openvrex.golden.policies.policy import LayerBlock
from openvrex.golden.policies.policy_run import Run
from openvrex.golden.policies.registry import Entry
from openvrex.golden.program.cluster_stages import ROWS
from openvrex.golden.program.isa import Opcode, encode
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.mosaic_plan import MosaicPlan
from openvrex.hdl.params import CLOCK, preset
from openvrex.hdl.params import override as changed
from openvrex.sim.system.core_pass import Given
from openvrex.sim.system.core_policies import compare
from openvrex.sim.system.mosaic_demand import WORLD, MosaicDemand
from openvrex.sim.system.mosaic_pass import MosaicPass
from openvrex.sim.system.mosaic_share import MosaicShare, parts
from openvrex.sim.system.platforms import EDGE, Vrex
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.window_demand import PROMPT
from openvrex.sim.system.workload import MODELS, Decoder, traced
from openvrex.sim.units.loader_time import cut
from openvrex.sim.units.lxe_time import LxeTime
from openvrex.sim.units.sequencer_time import Executed, trace
from openvrex.tb.library import small_mosaic
from openvrex.tb.library.core_simulator import LATENCY as RTL_LATENCY
from openvrex.tb.library.mosaic_stream import MosaicStream
from openvrex.tb.library.runner import ROOT

LATENCY = 100
HARDWARE = MosaicParams(arithmetic="hardware")
COPIES = ("append", "gather", "offload", "fetch", "prefetch")
OF_K_MEANS = ("middle", "seed", "label", "move", "put")
ALONE = ("ask", "attend", "visual_codes", "codes", "visit", "directions", "probe", "absorb, probe", "absorb")
CORE = replace(EDGE, system=preset("core"))


# Programs


@pytest.fixture(scope="module")
def ran() -> tuple[MosaicStream, dict[tuple[int, int], list[Job]]]:
    """A stream in which every kind of event happens, and its programs by block and layer."""
    stream = small_mosaic.stream(small_mosaic.shown())
    jobs: dict[tuple[int, int], list[Job]] = defaultdict(list)
    for one in stream:
        one.run()
        if not one.job.kind.startswith("visual "):  # of a frame, not of a layer: the simulator leaves it to the host
            jobs[one.block.index, one.job.layer].append(one.job)
    return stream, jobs


@pytest.fixture(scope="module")
def share(ran) -> MosaicShare:
    """The simulator's share of that stream, with its rooms."""
    stream, s = ran[0], ran[0].plan.shape
    model = Decoder(2, s.width, s.heads, s.kv_heads, s.head_size, s.ffn, 99)
    out = MosaicShare(replace(preset("tiny"), core=stream.p), model, MosaicDemand(HARDWARE, WORLD, 100), LATENCY)
    out.__dict__["plan"] = stream.plan
    return out


KNOWN: dict[tuple, tuple[int, list[Executed]]] = {}  # programs that have been played


def played(stream: MosaicStream, job: Job) -> tuple[int, list[Executed]]:
    """Cycles and steps of a program. `test_mosaic_run.py` holds the cycles equal to the RTL's."""
    key = named(job), tuple(job.registers.items())
    if key not in KNOWN:
        KNOWN[key] = _play(stream, job)
    return KNOWN[key]


def _play(stream: MosaicStream, job: Job) -> tuple[int, list[Executed]]:
    steps = trace(stream.p, [encode(i) for i in job.program], job.registers, 1_000_000).steps
    return int(LxeTime(stream.p, LATENCY).run(steps).finished.max()), steps


def bursts(stream: MosaicStream, steps: list[Executed]) -> list[tuple]:
    """How each transfer is cut."""
    moves = [s for s in steps if s.op in (Opcode.LOAD, Opcode.STORE) and not s.beat["skip"]]
    return [cut(stream.p, s.beat, joined=s.op == Opcode.LOAD) for s in moves]


def k_means(share: MosaicShare, own: list[Job]) -> list[Job]:
    """The simulator's programs of a K-means like that of a run, without gathering."""
    members = next(j.size for j in own if j.kind == "middle")
    rounds, centres = (sum(j.kind == kind for j in own) - (kind == "seed") for kind in ("label", "seed"))
    jobs = share.split(members, rounds, members) if centres == 2 else share.create(members, centres, rounds)
    return [j for j in jobs if j.kind in OF_K_MEANS]


def named(job: Job) -> tuple:
    """A program without its addresses: what it does, its words, the rows of its loop."""
    return job.kind, tuple(encode(i) for i in job.program), job.registers[int(ROWS)]


def groups(jobs: list[Job]) -> Iterator[list[Job]]:
    """Programs in turn: those of a K-means together, any other alone."""
    own: list[Job] = []
    for job in jobs:
        if own and (job.kind not in OF_K_MEANS or job.kind == "middle"):
            yield own
            own = []
        if job.kind in OF_K_MEANS:
            own.append(job)
        else:
            yield [job]
    if own:
        yield own


def single(share: MosaicShare, job: Job) -> Job:
    """The simulator's program like one of a run."""
    n, kind = job.size, job.kind
    if kind in COPIES:
        return share.copy(kind, n)[0]
    if kind in ("ask", "attend"):
        return (share.ask(n) if kind == "ask" else share.attend(n))[0]
    if kind in ("codes", "visual_codes"):
        return next(j for j in share.choose() if j.kind == kind)
    tokens = n if kind in ("visit", "directions") else 2
    return next(j for j in share.assign(tokens, True) if j.kind == kind)


@pytest.mark.slow
def test_a_run_s_programs_are_those_that_the_simulator_counts(ran, share):
    """All programs of a stream: as many in each K-means, the same words, and cycles as bursts allow.

    Addresses change nothing but where bursts end. A program of the simulator starts at the first row of each array, so
    it has the fewest bursts. A further burst delays what follows by the memory's latency and its own beats at most.
    """
    stream, runs = ran
    longest = stream.p.lxe.burst_bytes // stream.p.lxe.bus_bytes
    seen: Counter[str] = Counter()
    for jobs in runs.values():
        for own in groups(jobs):
            several = own[0].kind == "middle"
            for job, like in zip(own, k_means(share, own) if several else [single(share, own[0])], strict=True):
                assert named(job) == named(like)
                (real, a), (said, b) = played(stream, job), played(stream, like)
                one, other = bursts(stream, a), bursts(stream, b)
                more = sum(map(len, one)) - sum(map(len, other))
                seen[job.kind] += 1
                seen["equal" if one == other else "more bursts"] += 1
                if one == other:
                    assert real == said, job.kind
                else:
                    assert said < real <= said + more * (LATENCY + longest + 1), job.kind
    assert set(seen) == {*COPIES, *OF_K_MEANS, *ALONE, "equal", "more bursts"}, "a kind of program never ran"
    assert seen["equal"] > 10 * seen["more bursts"]


def test_a_mean_frame_is_the_mean_over_all_verdicts(share):
    """Of each pattern of tokens that are taken or not, with its probability, by the driver's rule for programs."""
    tokens, broken = 4, 0.3
    taken, none = (share.counts(share.assign(tokens, below))["cycles"] for below in (True, False))
    alone = {j.kind: share.counts([j])["cycles"] for j in share.assign(tokens, True)}
    want = 0.0
    for pattern in product((True, False), repeat=tokens):
        cycles = alone["visit"] + alone["directions"]
        for before, _ in zip((False, *pattern), pattern, strict=False):
            cycles += alone["absorb, probe" if before else "probe"]
        cycles += alone["absorb"] * pattern[-1]
        want += cycles * np.prod([1 - broken if one else broken for one in pattern])
    assert (1 - broken) * taken + broken * none == pytest.approx(want)


def test_what_is_linear_is_right_on_average():
    assert parts(3.0) == [(3, 1.0)]
    assert dict(parts(2.25)) == {2: 0.75, 3: 0.25}


def test_k_means_takes_the_rounds_and_centres_that_are_laid_down(share):
    for rounds in (2, 3, 4):
        kinds = Counter(j.kind for j in share.split(7, rounds, 3))
        assert (kinds["label"], kinds["move"], kinds["put"], kinds["gather"]) == (rounds, 2 * rounds - 2, 2, 3)
    kinds = Counter(j.kind for j in share.create(8, 3, 2))
    assert (kinds["seed"], kinds["move"], kinds["put"]) == (4, 3, 3)


# Demand


def recorded() -> dict:
    rows = json.loads((ROOT / "docs/results/paper.json").read_text())["mosaic-hardware"]["rows"]
    return next(r for r in rows if (r["trace"], r["arithmetic"]) == ("world", "hardware"))


def test_habits_are_what_was_recorded():
    r = recorded()
    frames = 36 * r["frames"]
    assert WORLD.split == pytest.approx(r["at_once"] / r["tokens"], abs=5e-5)
    assert WORLD.deferred == pytest.approx(r["deferred"] / r["tokens"], abs=5e-5)
    assert WORLD.cluster == pytest.approx(frames / r["clusters"], abs=0.02)
    assert WORLD.visual == pytest.approx(r["frames"] / r["visual"], abs=5e-3)
    assert WORLD.opened == pytest.approx((r["visual"] - r["built"]) / (r["frames"] - r["first"]), abs=5e-5)
    for name, digits in (("members", 2), ("rounds", 2), ("together", 2), ("over", 3)):
        assert getattr(WORLD, name) == round(r[name], digits), name
    line = next(
        x for x in (ROOT / "docs/papers/comparison.md").read_text().splitlines() if "that prefetch had brought" in x
    )
    assert f"| {WORLD.covered:.1%} |" in line


def policy_of(p: MosaicParams, cached: int, tokens: int = 10) -> Run:
    """The policy behind `cached` tokens of random keys: a prompt, then frames. Similar frames, so clusters grow."""
    rng = np.random.default_rng(5)
    shape = Shape(1, 2, 1, 8, ((1.0,) * 4,))
    run, at, base = Run(Mosaic(p, shape)), 0, rng.normal(size=(tokens, 1, 8))
    while at < cached:
        size = tokens if at else PROMPT
        block = Block(len(run.records), "frame" if at else "prompt", at, at + size)
        _, rows, _ = run.begin(block)
        k = (base if at else rng.normal(size=(size, 1, 8))) + 0.2 * rng.normal(size=(size, 1, 8))
        run.take(0, rows, k.astype(np.float32), k.astype(np.float32))
        q = np.repeat(k, 2, axis=1).astype(np.float32)
        h = run.histories[0]
        run.policy.select(LayerBlock(0, block, rows, q, h.k, h.v))
        run.policy.store.release(0)
        run.finish(block)
        at += size
    return run


@pytest.mark.parametrize("cached", [86, 96, 266])
def test_tokens_at_home_are_the_policy_s(cached):
    """Before the first clusters nothing is at home; later all but prompt, window, and entries that wait."""
    p = replace(HARDWARE, recent=60, build=8, semantic=Threshold(0.05, 0.1))
    policy = policy_of(p, cached).policy
    assert isinstance(policy, Mosaic)
    waits = int(policy.layers[0].buffered.sum())
    d = MosaicDemand(p, WORLD, cached)
    assert int(policy.store.on_host(0).sum()) in range(d.home - waits, d.home + 1)
    assert (d.home > 0) == (cached >= 96)


def test_a_layer_fetches_what_the_layer_before_has_not_brought():
    d = MosaicDemand(HARDWARE, WORLD, 10240)
    assert d.home == 10240 - PROMPT - 256
    assert d.wanted == pytest.approx(-(-d.home // 10) * WORLD.over)
    assert d.fetched(False) == pytest.approx(d.wanted * (1 - WORLD.covered))
    assert d.fetched(True) == d.wanted
    alone = replace(d, params=replace(HARDWARE, prefetch="none"))
    assert alone.fetched(False) == d.wanted
    assert alone.tokens < d.tokens
    assert MosaicDemand(replace(HARDWARE, ratio=1.0), WORLD, 1024).wanted == 1024 - PROMPT - 256


def test_what_no_core_runs_is_refused():
    with pytest.raises(ParamError, match="mosaic.prefetch='input': must be one of none, query"):
        MosaicDemand(replace(HARDWARE, prefetch="input"), WORLD, 100)
    with pytest.raises(ParamError, match="mosaic.semantic_level"):
        MosaicDemand(replace(HARDWARE, visual_level=False, semantic_level=False), WORLD, 100)
    d = MosaicDemand(HARDWARE, WORLD, 1024)
    with pytest.raises(ParamError, match="cores=8: must be 1 for mosaic"):
        _ = MosaicShare(preset("edge8"), Decoder(), d, LATENCY).plan
    with pytest.raises(ParamError, match="slots=13312: must be at most 4096, whose masks a core holds"):
        _ = MosaicShare(preset("core"), Decoder(), replace(d, cached=40960), LATENCY).plan
    with pytest.raises(ParamError, match="batch=2: must be 1"):
        MosaicPass(CORE, d, Point(1024, batch=2))


# Passes

SMALL = MODELS["smollm2-135m"]


def passed(v: Vrex, cached: int = 2048, **changes: object) -> MosaicPass:
    params = replace(HARDWARE, **changes)  # type: ignore[arg-type]
    return MosaicPass(v, MosaicDemand(params, WORLD, cached), Point(cached, model=SMALL))


@pytest.mark.slow
def test_a_frame_has_each_program_of_each_layer():
    """Cycles of the timeline are those of the programs, where neither link nor memory is slower."""
    w = passed(CORE)
    frame, layers = w.frame(), SMALL.layers
    for names, stage in ((("ask",), "ask"), (("attend",), "attend"), (("fetch", "prefetch"), "copy")):
        own = [w.share.layer(0, i == 0, i == layers - 1) for i in range(layers)]
        want = sum(x[name]["cycles"] for x in own for name in names) / CLOCK
        assert sum(s.end - s.start for s in frame.stages if (s.name, s.resource) == (stage, "LXE")) == (
            pytest.approx(want)
        ), stage
    own = w.share.layer()
    assert frame.named("assign") == pytest.approx(own["assign"]["cycles"] * layers / CLOCK)
    assert not w.token().named("assign", "split", "create", "offload", "vision")
    moved = w.d.fetched(True) + (layers - 1) * (w.d.fetched(False) + w.d.wanted)
    assert frame.fetched == pytest.approx(moved * SMALL.entry_bytes)


def test_a_copy_waits_for_its_entries_and_attention_for_the_copy():
    frame = passed(CORE).frame()
    fetches = [s for s in frame.stages if s.resource == "link"]
    assert len(fetches) == 2 * SMALL.layers - 1
    for layer in range(1, SMALL.layers - 1):
        own = [s for s in frame.stages if s.layer == layer]
        copies, attend = [s for s in own if s.name == "copy"], next(s for s in own if s.name == "attend")
        before, demanded = fetches[2 * layer - 1], fetches[2 * layer]
        assert before.layer == layer - 1
        assert copies[0].start >= before.end
        assert copies[1].start >= demanded.end
        assert attend.start >= copies[1].end
        assert demanded.start >= next(s for s in own if s.name == "choose").end


@pytest.mark.slow
def test_without_prefetch_a_layer_chooses_once():
    with_, without = passed(CORE), passed(CORE, prefetch="none")
    assert without.frame().fetched < with_.frame().fetched
    assert without.frame().named("choose") < with_.frame().named("choose")
    early = passed(CORE, 64).frame()
    assert not early.named("choose", "copy", "fetch")
    assert early.fetched == 0


@pytest.mark.slow
def test_the_table_has_mosaic_beside_the_others():
    rows = compare(CORE, {"mosaic": mosaic()}, SMALL, (1024, 40960), Given(traced(SMALL)))
    assert rows[0].attended == MosaicDemand(HARDWARE, WORLD, 1024).attended
    assert rows[0].home == MosaicDemand(HARDWARE, WORLD, 1024).home * SMALL.token_bytes / 1e6
    assert rows[0].limit == "cores"
    assert rows[1].lacks.startswith("slots=13312")
    small = replace(CORE, capacity=1 << 20)
    assert "GiB of device memory" in compare(small, {"mosaic": mosaic()}, SMALL, (1024,), Given(traced(SMALL)))[0].lacks


def mosaic() -> Entry:
    return Entry(Mosaic, HARDWARE)


# What ran on the RTL


def test_the_simulator_s_cycles_are_those_that_ran_on_the_rtl():
    """Layers of SmolLM2 on 16 lanes: the tables of docs/run.md, with the rooms of that run."""
    page = (ROOT / "docs/run.md").read_text()
    sizes = ("dpe.n_h=16", "dpe.n_w=16", "vpe.n_w=16", "vpe.depth=128", "bus_bytes=32")
    assert all(f"-p {size}" in page for size in sizes)
    share = MosaicShare(changed(preset("small"), list(sizes)), SMALL, MosaicDemand(HARDWARE, WORLD, 100), RTL_LATENCY)
    shape = LayerShape(tokens=10, recent=128, entries=0)  # 73 tokens and 48 clusters, in whole pairs of tiles
    limit = HARDWARE.semantic
    share.__dict__["plan"] = MosaicPlan(shape, share.system.core.lxe_format(), 48, 16, 73, 32, limit)

    def cycles(jobs: list[Job], *kinds: str) -> int:
        return round(share.counts([j for j in jobs if j.kind in kinds])["cycles"])

    for name, tokens in (("4, frame", 10), ("7, question", 9), ("8, generation", 1)):
        row = next(x for x in page.splitlines() if x.startswith(f"| {name} |")).split(" | ")
        took = cycles(share.ask(tokens), "ask") + cycles(share.attend(tokens), "attend")
        assert row[4] == f"{2 * took:,}"  # two layers
        assert row[5] == f"{3 * cycles(share.choose(), 'codes', 'visual_codes'):,}"  # and the next layer's choice
    probe, both, absorb = (cycles(share.assign(2, True), kind) for kind in ("probe", "absorb, probe", "absorb"))
    page = " ".join(page.split())
    assert f"the nearest of 48 clusters takes {probe} cycles a token" in page
    assert f"to join it {both - probe} before the next probe or {absorb} alone" in page
    made = [j for j in share.create(20, 5, 2) if j.kind != "visit"]
    assert f"five clusters {share.counts(made)['cycles']:,}, in {len(made)} programs." in page
