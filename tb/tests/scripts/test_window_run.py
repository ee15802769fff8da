"""`vrex run windows`: windows on the RTL of a core; every byte and cycle, events, resumption, messages."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from distributed import Client

from openvrex.hdl.emit import emit
from openvrex.scripts.run import policy_run, run_folder
from openvrex.scripts.run.pass_engine import PassEngine
from openvrex.scripts.run.windows_command import WindowRun
from openvrex.synth.sweep import dask_run
from openvrex.tb.library import small_models
from openvrex.tb.library.core_simulator import CoreSimulator
from openvrex.tb.library.page_rules import faults
from openvrex.tb.library.small_windows import HISTORY, SmallDecoder, policy, seen, segments
from openvrex.tb.library.window_stream import WindowStream
from tb.tests.commands import tried, vrex
from tb.tests.golden.inputs.trace_samples import models

# Streams so short that little is simulated, and windows so small that they move all the same.
SHORT = {
    "streamingllm": (segments(frames=3, question=1), {"sinks": 2, "recent": 4}),
    "codecsight": (segments(frames=4, prompt=2, question=1), {"window": 3, "stride": 2}),
    "hybrid": (segments(frames=2, question=1), {"block_tokens": 2, "sink_blocks": 1, "recent_blocks": 2}),
    # With the history branch: a prompt of one token, and a question longer than a pass.
    "history": (segments(frames=2, prompt=1), {"recent_blocks": 2, "block_tokens": 2} | HISTORY),
}
# Its core: a program memory that cuts a layer into two programs.
BRANCH = "features=hybrid", "lxe.i_depth=256"
POLICY = {"history": "hybrid"}  # of a stream, where it is not named after its policy


@pytest.fixture(scope="module")
def client():
    """A worker in this process."""
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as own:
        yield own


@pytest.fixture
def small(monkeypatch, client):
    """The command with the small decoder and its streams in place of a video in SmolLM2."""

    def stream(video, options, folder, progress, model):
        given = SHORT[video][0]
        decoder = SmallDecoder()
        decoder.layers = decoder.layers[: options.depth]
        source = {"stream": video, "depth": options.depth}
        return SimpleNamespace(segments=given[:-1], decoder=decoder, source=source, fallbacks=["is small"])

    monkeypatch.setattr(policy_run, "DecoderStream", stream)
    monkeypatch.setattr(dask_run, "cluster", lambda *where: nullcontext(client))


def words(name: str, layers: int, **more) -> list:
    policy, sizes = POLICY.get(name, name), small_models.SIZES + BRANCH * (name == "history")
    own = [x for key, value in (SHORT[name][1] | more).items() for x in ("-p", f"{policy}.{key}={value}")]
    core = [x for size in sizes for x in ("-p", size)]
    asked = [policy, "--video", name, "--layers", layers, "--generate", 1, "--at-once", 5]
    return [*asked, "--preset", "tiny", *core, *own]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("codecsight", 2),
        *(
            pytest.param(name, layers, marks=pytest.mark.nightly)
            for name, layers in (("streamingllm", 1), ("hybrid", 1), ("history", 2))
        ),
    ],
)
def test_a_policy_on_the_rtl(name, layers, small, tmp_path):
    """Every store, all memory and every cycle of a stream, in which every kind of event happens."""
    got = vrex("run", "windows", *words(name, layers), "-o", tmp_path, "--json")
    assert got.stderr == "note: is small\n"
    result = json.loads(got.stdout)
    assert not result["differences"]
    assert not WindowRun.missing(result)
    rows, policy = result["blocks"], POLICY.get(name, name)
    whole = sum(one["passes"] for one in rows) * layers + turns(result, layers)
    assert (result["steps"] > whole) == (name == "history")  # a long layer is cut into two programs
    assert result["steps"] >= whole
    assert [one["tokens"] for one in rows] == [len(s.x) for s in SHORT[name][0]]
    assert sum(one["refreshed"] for one in rows) == result["events"]["refreshed"]
    assert sum(one["turned"] for one in rows) == result["events"]["turned"]
    for one in rows:
        assert one["cycles"] == one["predicted"]
        assert one["compared"] > one["stored"]
        assert (one["turning"] > 0) == (one["turned"] > 0)
        assert one["error"] is None or 0 < one["error"] < one["bound"] < layers * (8 + 2 * (name == "history")) * 2**-7
        assert (one["from_full"] is None) == (one["error"] is None)
    first = rows[0]  # nothing is dropped yet, so the policy is full attention
    assert (first["from_full"] == first["error"]) == (name != "history")
    assert any(one["from_full"] and one["from_full"] > 2 * one["error"] for one in rows), "no token was missed"
    page = (tmp_path / "report.html").read_text()
    assert not faults(page)
    assert "Every store and all memory equal golden." in page
    pruned = ["Masks on the RTL"] * (policy == "codecsight")
    assert [s.title for s in run_folder.load(tmp_path)] == [f"{policy} on the RTL", "Events", *pruned]
    assert bool(result["mask"]) == bool(pruned)
    if pruned:
        frames = [one for one, s in zip(rows, SHORT[name][0], strict=True) if s.frame is not None]
        assert result["mask"]["each"] == [one["rows"] - one["refreshed"] - one["tokens"] % 2 for one in frames]
        assert result["mask"]["kept"] < result["mask"]["tokens"]
        assert result["mask"]["cycles"] == result["mask"]["predicted"]
    if policy == "hybrid":
        return

    # The same once more: nothing runs again. Then two passes are repeated.
    before = (tmp_path / "passes" / "passes.jsonl").read_bytes()
    again = tried("run", "windows", *words(name, layers), "-o", tmp_path)
    assert "Pruned tokens never entered" in again.stdout
    assert (tmp_path / "passes" / "passes.jsonl").read_bytes() == before
    some = tried("run", "windows", *words(name, layers), "-o", tmp_path, "--from", 1, "--to", 2)
    assert (
        some.stdout.splitlines()[0]
        == ("1: frame 1, pass 1, layer 0: equal", "1: prompt 0, pass 0, layer 1: equal")[layers - 1]
    ), some.output


def turns(result: dict, layers: int) -> int:
    """Programs that turn keys: those of a block lie side by side here."""
    return layers * sum(one["turned"] > 0 for one in result["blocks"])


@pytest.mark.slow
def test_frames_encoded_in_part_on_the_rtl(tmp_path, client):
    """The patches of the tokens that CodecSight keeps, then the tokens: every byte and cycle; frames of three sizes."""
    own, given = small_models.params(), segments(frames=3, prompt=2, question=1, after=0)
    decoder = SmallDecoder()
    decoder.layers = decoder.layers[:1]
    vision, _ = seen(given, own)
    out = WindowStream(policy("codecsight"), given, decoder, own, 5, vision=vision)
    simulator = CoreSimulator(emit("core", own), own, [["lxe.dpe.chunks"]])
    records = PassEngine(tmp_path, out, simulator, {}).run(lambda: client)
    assert len(records) == out.total
    assert not [line for one in records for line in one["differences"]]
    assert [one["cycles"] for one in records] == [one["predicted"] for one in records]
    sizes = {one["block"]: one["tokens"] for one in records if one["kind"] == "vision"}
    assert len(set(sizes.values())) > 1
    wanted = {i: 1 + 4 * int(frame.keep.sum()) for i, frame in vision.frames.items() if frame.keep.any()}
    assert sizes == wanted


class KilledError(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("name", ["streamingllm", pytest.param("history", marks=pytest.mark.nightly)])
def test_a_killed_run_goes_on(name, tmp_path, client):
    """Slots, places and turned keys are as if nothing had stopped the run between a turn and its pass.

    The history branch's state is, too, where the run stops between two programs of a layer.
    """
    own = small_models.params(*BRANCH * (name == "history"))
    simulator = CoreSimulator(emit("core", own), own, [["lxe.dpe.chunks"]])
    given, params = SHORT[name]
    decoder = SmallDecoder()
    decoder.layers = decoder.layers[:1]

    def stream() -> WindowStream:
        return WindowStream(policy(POLICY.get(name, name), **params), given, decoder, own, 5)

    stop = 6 if name == "streamingllm" else 5

    want = stream()
    for one in want:
        one.run()

    def kill(executed, played):
        if executed == stop:
            raise KilledError

    with pytest.raises(KilledError):
        PassEngine(tmp_path, stream(), simulator, {}).run(lambda: client, kill)
    out = stream()
    records = PassEngine(tmp_path, out, simulator, {}).run(lambda: client)
    assert len(records) == out.total
    if name == "streamingllm":
        assert [one["kind"] for one in records[4:7]] == ["turn", "layer", "turn"]
    else:
        assert [one["part"] for one in records[stop - 1 : stop + 1]] == [0, 1]
    assert out.events == want.events
    assert not [line for one in records for line in one["differences"]]
    assert all((a == b).all() for a, b in zip(out.outputs, want.outputs, strict=True))


def test_events_that_never_happened_are_told():
    events = {"pruned": 3, "dropped": 0, "refreshed": 0, "turned": 4}
    result = {"policy": "codecsight", "params": {}, "events": events}
    assert WindowRun.missing(result) == [
        "codecsight: nothing was dropped or refreshed in this stream: more --frames or a smaller window "
        "(-p codecsight.NAME=VALUE) shows it"
    ]
    assert not WindowRun.missing({"policy": "full", "params": {}, "events": {}})
    events = {"dropped": 5, "scanned": 3, "carried": 0, "evicted": 1}
    hybrid = {"policy": "hybrid", "params": {"ssm": "disabled"}, "events": events}
    assert not WindowRun.missing(hybrid)
    assert "hybrid: nothing was carried in" in WindowRun.missing(hybrid | {"params": {"ssm": "random"}})[0]


@models
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("streamingllm", {"recent": 20}),
        ("codecsight", {"window": 3, "stride": 2}),
        ("hybrid", {"block_tokens": 8, "recent_blocks": 2}),
        ("hybrid", {"block_tokens": 8, "recent_blocks": 2, "ssm": "random"}),
    ],
)
def test_two_layers_of_the_real_decoder(name, params, tmp_path):
    """Real weights, frames and motion vectors: every store, all memory, every cycle, and the policy in FP32."""
    sizes = "dpe.n_h=16", "dpe.n_w=16", "vpe.n_w=16", "vpe.depth=128", "bus_bytes=32"
    sizes += ("features=hybrid",) * ("ssm" in params)
    core = [x for size in sizes for x in ("-p", size)]
    own = [x for key, value in params.items() for x in ("-p", f"{name}.{key}={value}")]
    asked = ["--frames", 6, "--tokens", 10, "--gop", 2, "--generate", 1, "--question", "What?"]
    got = vrex("run", "windows", name, *asked, *core, *own, "-o", tmp_path, "--json")
    result = json.loads(got.stdout)
    assert not result["differences"]
    assert not WindowRun.missing(result)
    for one in result["blocks"]:
        assert one["cycles"] == one["predicted"]
        # What the branch moves hidden states by is measured, so that its error counts by no more than its share.
        assert one["error"] is None or 0 < one["error"] < one["bound"]
