"""Coded pages in the simulator: its programs against those of a decoder's run, whole passes."""

import json
import re
from dataclasses import replace

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.pages_policy import CodedPages, PagesPolicyParams
from openvrex.golden.policies.registry import Entry
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.page_choice_stages import FRESH, MARKS
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.hdl.params import CLOCK, SystemParams
from openvrex.sim.system.core_pass import Given
from openvrex.sim.system.page_share import EARLY, PageShare
from openvrex.sim.system.pages_pass import PagesPass, equipped
from openvrex.sim.system.platforms import EDGE, SERVER
from openvrex.sim.system.selection import records
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import Decoder, constant
from openvrex.sim.units.dre_time import DreTime
from openvrex.tb.library import small_models
from openvrex.tb.library.model_stream import ModelStream
from openvrex.tb.library.pass_time import PassTime
from openvrex.tb.library.runner import ROOT
from openvrex.tb.library.small_models import CODES, PAGE, SHAPE
from tb.tests.commands import vrex

PAGE_TEXT = (ROOT / "docs/simulator.md").read_text()
LATENCY = 32
MODEL = {"width": SHAPE.width, "heads": SHAPE.heads, "kv_heads": SHAPE.kv_heads, "head_size": SHAPE.head_size}


MORE = ("n_ctx=8", "blocks=256")  # for several streams


def small(cached: int, streams: int = 1) -> PageShare:
    system = SystemParams(core=small_models.params(*CODES, *MORE))
    own = system, MODEL | {"ffn": SHAPE.ffn}, SHAPE.tokens, cached, 0.0, LATENCY
    return PageShare(*own, pages=PAGE, streams=streams)


@pytest.mark.parametrize("streams", [1, 2])
def test_programs_are_those_of_a_decoder_s_run(streams):
    """Registers, entries and cycles of passes that a golden core executes; the RTL takes the cycles of the time view
    (`test_pass_engine.py`). A burst may end elsewhere, as arrays lie elsewhere.
    """
    own = small_models.page_model(3)
    h = small_models.page_host(own, more=MORE, streams=streams)
    given = [small_models.parts(own, [3, 3, 3, 3, 3, 3, 3, 3], seed) for seed in range(streams)]
    stream = ModelStream(h, given, 0)
    time, seen = PassTime(small_models.params(*CODES, *MORE), stream.core, stream.ports, LATENCY), []
    whole = []
    for one in stream:
        step, registers = one.step, one.registers
        with time.recorded() as what:
            one.run()
        cycles, _ = time.cycles(one.program, registers, what)
        if step.layer is None or step.tokens < SHAPE.tokens or step.start < 12:
            continue
        share = small(step.start, streams)
        if share.start != step.start or step.phase in ("hash", "code"):  # which this pass has not
            continue
        bases = {Register.WEIGHTS, Register.KV, Register.CONTEXT, Register.OUT, Register.STREAM}
        bases |= {MARKS, FRESH} if step.phase == "rest" else set()
        given = {k: n for k, n in registers.items() if k not in bases}
        assert given == {k: n for k, n in share.registers(step.phase).items() if k not in bases}
        played = share.played(share.held(DreTime), step.phase, share.phases[step.phase])
        total = sum(counts["cycles"] for counts in played.values())
        if step.phase != "attention":
            assert total + 1 == cycles  # the last one gives the status
        elif h.system.cores[0].registers[Register.ENTRIES] == share.entries:  # no page that is at home in part
            assert total + 1 == pytest.approx(cycles, rel=0.02)
            whole.append(step.start)
        seen.append(step.phase)
    assert whole
    assert set(seen) == set(share.phases) - {"hash", "code"}


def test_a_layer_s_stages_are_those_of_the_program():
    """Codes are read as they lie in memory: 8 bytes of 64 numbers' words; a mean pass has its part of `code`."""
    share = PageShare(equipped(EDGE)[0].system, Decoder().sizes, 10, 8192, 0.0, EDGE.latency)
    stages, params, rows = share.layer(), share.pages, 40
    assert set(stages) == {stage.name for stage in share.plan.stages} - set(share.phases[EARLY])
    tokens = -(-share.candidates // 128) * 128 * params.page  # two steps of 64 pages at least
    assert stages["rank"]["dpe"] == tokens // (64 * params.page) * rows * (params.page // 2 + 128 // 64)
    codes, means = tokens * params.code_bytes, tokens // params.mean * 2 * 128
    queries, scores = rows * 2 * (128 + 64), tokens // params.page * 4
    assert stages["rank"]["bytes"] == codes + means + queries + scores
    assert (
        stages["code"]["cycles"] * share.pages.mean / share.tokens
        == share.played(share.held(DreTime), "code", ["code"])["code"]["cycles"]
    )


FAR = replace(EDGE, home="link")


def passes(cache: int, v=FAR, batch: int = 1, **changes) -> PagesPass:
    own = Entry(CodedPages, PagesPolicyParams(**changes))
    return PagesPass.of(v, own, Point(cache, batch), Given(constant("none", 0.0, 0.0, Decoder())))


def test_a_frame_fetches_as_much_however_long_the_cache_is():
    """What grows with the cache: scores, placing, and what the WTU reads."""
    short, long = passes(8192), passes(65536)
    frames = short.frame(), long.frame()
    fetched = {round(f.fetched) for f in frames}
    every = 520 * Decoder().token_bytes  # 512 tokens and a page with sinks, of every layer and KV head
    assert fetched == {round((1 - short.found("frame")) * every)}
    predicted = [f.named("predict") for f in frames]
    least = (65536 - 8192) / 512 * (64 * 4 + 2 * 2) * Decoder().layers / CLOCK  # of the port to W
    assert least < predicted[1] - predicted[0] < 1.6 * least
    visible = [f.named("predict", "fetch") + f.named("select") / 2 for f in frames]  # `select` is there on both engines
    assert frames[1].seconds - frames[0].seconds == pytest.approx(visible[1] - visible[0], rel=0.02)
    assert short.token().seconds < frames[0].seconds
    assert short.attended(frames[0]) == 256 + 520


def test_a_long_question_takes_passes_of_several_sections():
    """Passes of 64 tokens load weights a quarter as often as those of 16, which is what a bank of scores holds."""
    short, long = (PagesPass(EDGE, PageParams(), Point(8192, rows=rows, frame=False)) for rows in (16, 256))
    assert (short.batches(16), long.batches(256)) == ([1], [4] * 4)
    one, all_of_it = short.question(), long.question()
    assert all_of_it.named("gap") == pytest.approx(4 * one.named("gap"))
    assert all_of_it.named("fetch") == pytest.approx(16 * one.named("fetch"))
    assert all_of_it.named("vocabulary") == pytest.approx(one.named("vocabulary"))
    layers = [p.seconds - p.named("vocabulary") for p in (one, all_of_it)]
    assert 4 * layers[0] < layers[1] < 10 * layers[0]
    assert [len(part) for part in ([*long.batches(25)], [*long.batches(65)])] == [1, 2]


def test_attention_waits_for_pages_and_placing_does_not_show():
    frame = passes(40960).frame()
    own = {name: [s for s in frame.stages if s.name == name and s.layer == 3] for name in ("fetch", "attention")}
    [fetch], [attention] = own["fetch"], own["attention"]
    assert attention.start == fetch.end
    placed = next(s for s in frame.stages if s.name == "cluster" and s.layer == 3)
    predict = next(s for s in frame.stages if s.name == "predict" and s.layer == 3)
    assert placed.end < predict.start
    assert 5e-6 < placed.end - placed.start < 10e-6  # a key looks at the newest tile of pages
    slow = passes(40960, EDGE.changed("hcu.newest=false")).frame()  # or at all of them
    assert slow.named("cluster") > 10 * frame.named("cluster")


def test_members_of_a_team_score_pages_of_their_own():
    """Six cores a KV head: a sixth of the pairs of steps each, and what a core alone does once, all do."""
    alone, member = (
        PageShare(equipped(v)[0].system, Decoder().sizes, 10, 40960, 0.0, v.latency) for v in (EDGE, SERVER)
    )
    assert (alone.shares.members, member.shares.members) == (1, 6)
    own, part = alone.layer(), member.layer()
    pairs = -(-alone.candidates // 128)
    assert part["rank"]["dpe"] * pairs == own["rank"]["dpe"] * -(-pairs // 6)
    assert part["turn"]["dpe"] == own["turn"]["dpe"]
    assert part["ring"]["dpe"] == own["resident"]["dpe"] > part["resident"]["dpe"]
    assert set(part) - set(own) == {"qkv", "ring", "join"} | {"add_output", "add_down"} & set(part)
    far, near = (passes(8192, replace(SERVER, home=home)).frame() for home in ("link", "device"))
    assert near.seconds < far.seconds
    own = passes(8192, replace(SERVER, home="link"))
    assert 4e6 < (own.held_bytes - own.arrays["kept"]) / 256 < 8e6  # of a table, mostly codes and means


def test_what_a_budget_and_a_link_cost():
    plain = FAR.changed("kept=0")  # no page is found in device memory
    many, few = passes(8192, plain).frame(), passes(8192, plain, budget=64).frame()
    assert few.fetched / many.fetched == (64 + 8) / (512 + 8)
    assert few.seconds < many.seconds
    near = passes(8192, replace(SERVER, system=plain.system)).frame()  # entries in the host's memory
    assert near.named("fetch") < many.named("fetch") / 4


def test_pages_that_were_fetched_are_found():
    """The share that was recorded, by places for a page of a set; all are kept, so places take memory."""
    r, m, pages = records()["world"]["pages"], Decoder(), 512 // 8 + 1
    none, some, many = (passes(8192, FAR.changed(f"kept={n}")) for n in (0, 64, 512))
    assert none.found("frame") == 0 < some.found("frame") < many.found("frame") < 1
    assert "found" not in none.note
    assert f"{many.found('frame'):.0%} of them kept" in many.note
    for one in (some, many):
        assert one.frame().fetched == pytest.approx((1 - one.found("frame")) * none.frame().fetched)
        assert one.frame().seconds < none.frame().seconds
    assert many.arrays["kept"] == m.layers * m.kv_heads * 512 * 8 * 512
    tables = many.arrays["tables"] - none.arrays["tables"]
    assert many.held_bytes - none.held_bytes == many.arrays["kept"] + tables
    assert r.kept("frame", 1 << 20, pages) == r.found["frame"]["2048"]
    assert r.kept("text", 1, pages) == r.found["text"]["8"]
    assert r.kept("frame", 64, r.pages["frame"]) == pytest.approx(r.found["frame"]["64"])
    one, two, four, eight = (f"{100 * r.kept('frame', n * pages, pages):.0f} %" for n in (1, 2, 4, 8))
    said = f"{one} with one, {two} with two, {four} with four, {eight} with eight, as here"
    assert said in " ".join(PAGE_TEXT.split())
    share = many.share()
    bursts, _ = share.held(DreTime).kvmu.kv.found(0, share.chosen)
    kept = {k % 512 for k in share.chosen[: round(many.found("frame") * len(share.chosen))]}  # two may have one place
    assert sum(b.near for b in bursts) == len(kept)


def test_blocks_longer_than_a_page_are_never_whole():
    """Then nothing is found, and nothing kept; of a page of several blocks only the first is."""
    long, none = (passes(8192, FAR.changed("block_slots=32", f"kept={n}")) for n in (512, 0))
    assert long.found("frame") == 0
    assert "kept" not in long.note
    assert long.frame().fetched == none.frame().fetched
    share = replace(long.share(), found=0.9)  # the hardware finds none, whatever is laid down
    assert not any(b.near or b.keep for b in share.held(DreTime).kvmu.kv.found(0, share.chosen)[0])
    half, all_of_it = (passes(8192, FAR.changed(f"block_slots={n}", "kept=512")) for n in (4, 8))
    saved = [1 - one.frame().fetched / none.frame().fetched for one in (half, all_of_it)]
    assert saved[0] == pytest.approx(saved[1] / 2)


def test_device_memory_grows_by_the_room_of_the_tables():
    """8 bytes a token for codes, 1 for a mean; all tables have room for the preset's clusters."""
    small, large = (passes(8192, FAR.changed(f"clusters={n}")).held_bytes for n in (8192, 16384))
    tokens = 8192 * PageParams.page * Decoder().layers * Decoder().kv_heads
    assert 9 * tokens < large - small < 12 * tokens


def test_a_batch_loads_weights_once():
    """Of streams whose rows fit a bank; more streams are several batches. Rows that cores read together count once."""
    one, four, many = (passes(8192, batch=n) for n in (1, 4, 16))
    assert (one.batches(10), four.batches(10), many.batches(10)) == ([1], [4], [6, 5, 5])
    assert (many.batches(1), passes(8192, batch=65).batches(1)) == ([16], [33, 32])
    share = four.share(10, 4)
    stages, alone, plan = share.layer(), one.share().layer(), share.plan
    weights, columns = plan["gate_up_weight"], len(share.shares.product("gate_up", 0).tiles) * 64
    assert stages["gate_up"]["bytes"] == weights.size + stages["gate_up"]["rows"] + 40 * columns * 2
    assert stages["gate_up"]["dpe"] == 4 * alone["gate_up"]["dpe"]
    for name in ("resident", "rank", "scores", "values"):  # of one stream
        assert stages[name]["dpe"] == alone[name]["dpe"]
    frames = one.frame(), four.frame()
    assert frames[1].named("fetch") == pytest.approx(4 * frames[0].named("fetch"))
    assert frames[1].fetched == 4 * frames[0].fetched
    apart = passes(8192, FAR.changed("common=false"), batch=4).frame()
    assert sum(s.bytes for s in apart.stages) > sum(s.bytes for s in frames[1].stages)
    held, single = four.arrays, one.arrays
    for name in ("codes", "fetched", "rings", "kept"):
        assert held[name] == 4 * single[name]
    own = Decoder().layers * Decoder().kv_heads * plan.context_bytes - single["codes"] - single["fetched"]
    assert held["weights"] - single["weights"] == 3 * own  # matrices of codes
    with pytest.raises(ParamError, match="n_ctx=64: must be at least 128: a core has a context"):
        passes(8192, FAR.changed("n_ctx=64"), batch=4).frame()


def test_entries_that_fit_stay_in_device_memory():
    """Nothing crosses the link while all blocks fit; beyond that, the share of those that do not."""
    link, device = passes(8192), passes(8192, EDGE)
    blocks = -(-(8192 + 10 - 256) // 8) * 8 * Decoder().token_bytes  # with those of the frame
    assert device.held_bytes - link.held_bytes == pytest.approx(blocks, rel=0.001)
    assert (device.home, device.frame().fetched) == (0, 0)
    frames = device.frame(), link.frame()
    took = [frame.named("fetch") for frame in frames]
    assert took[0] < took[1]
    assert frames[1].seconds - frames[0].seconds == pytest.approx(took[1] - took[0])
    few = passes(8192, replace(EDGE, capacity=device.device_bytes - blocks // 4))
    assert few.home == pytest.approx(blocks / 4, rel=0.001)
    assert few.frame().fetched == pytest.approx(link.frame().fetched / 4, rel=0.001)
    assert device.frame().seconds < few.frame().seconds < link.frame().seconds


@pytest.mark.parametrize(
    ("v", "cache", "message"),
    [
        (EDGE, 200_000, "clusters=16384: must be at least 24994, pages of 199,946 tokens"),
        (EDGE.changed("kvmu.blocks=4096"), 40960, "blocks=4096: must be more"),
    ],
)
def test_what_the_hardware_cannot_do(v, cache, message):
    with pytest.raises(ParamError, match=re.escape(message)):
        passes(cache, v).frame()


def test_what_a_frame_would_gain_from_one_pass_and_more_fetches():
    """As the archive of decisions says."""
    got = json.loads(vrex("simulate", "pass", "--preset", "edge8", "--cache", "40960", "--json").stdout)
    ms = {stage["name"]: 1e3 * stage["seconds"] for stage in got["stages"]}
    text = " ".join((ROOT / "docs/archive/decisions.md").read_text().split())
    said = f"takes {1e3 * got['seconds']:.1f} ms, of which attention takes {ms['attention']:.1f} and all fetches "
    assert f"{said}{ms['fetch']:.1f}" in text
