"""Passes on golden and on the RTL: every byte compared, resumed, dealt out, repeated with waveforms."""

import json
import pickle
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.isa import Status
from openvrex.golden.program.model_host import Picture
from openvrex.scripts.run.pass_engine import RECORDS, PassEngine, alone
from openvrex.synth.sweep.dask_run import cluster
from openvrex.tb.checks.core_checks import AHEAD, ALONE, LAYERS, SHAPE, begin, emitted, host, params, ports
from openvrex.tb.library import small_models
from openvrex.tb.library.core_host import CoreHost
from openvrex.tb.library.core_simulator import CoreSimulator
from openvrex.tb.library.model_stream import ModelStream
from openvrex.tb.library.pass_files import Change, Image, Played
from openvrex.tb.library.pass_player import Comparison
from openvrex.tb.library.pass_stream import Pass, Place, arrays, places
from openvrex.tb.library.runner import emit
from openvrex.tb.library.small_encoder import patches
from openvrex.tb.library.waveforms import suffix

FRAMES = 4
MORE = ("n_ctx=8", "blocks=256")  # for two streams, and for long passes; all coded pages here share a simulator


@cache
def simulator() -> CoreSimulator:
    """Of the core that runs layers."""
    return CoreSimulator(emitted(), params(), [["lxe.dpe.chunks"], ["lxe.vpe.loads", "lxe.vpe.stores"]])


class Layers:
    """Random frames through two random layers; `executed` has the passes that golden has run."""

    def __init__(self, how: list[dict] = ALONE):
        self.rng = np.random.default_rng(1)
        self.host: CoreHost = host(self.rng, SHAPE, how)
        self.core, self.ports = self.host.core, ports(self.host)
        self.executed: list[str] = []

    def of(self, name: str, layer: int) -> Pass:
        """A layer on what is in memory, without cycles of its stages."""
        h, registers = self.host, dict(enumerate(self.core.registers)) | self.host.registers(layer)

        def run():
            self.executed.append(name)
            return h.run(layer)

        def facts(result):
            return {"clusters": self.core.dre.level(layer), "stored": sum(w.data.size for w in result.writes)}

        def where():
            return places(((a, h.address(a, layer)) for a in arrays(h.plans[layer])), h.memory)

        return Pass(name, h.program(layer), registers, run, facts, where)

    def __iter__(self) -> Iterator[Pass]:
        for frame in range(FRAMES):
            begin(self.host, self.rng, frame * SHAPE.tokens)
            for layer in range(LAYERS):
                yield self.of(f"frame {frame}, layer {layer}", layer)


@pytest.fixture(scope="module")
def client():
    """A worker in this process."""
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as own:
        yield own


def run(folder: Path, connect, stream: Layers | None = None, progress=lambda golden, rtl: None) -> list[dict]:
    return PassEngine(folder, stream or Layers(), simulator(), {}).run(connect, progress)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, client):
    """The folder and the records of a run that nothing has stopped."""
    folder = tmp_path_factory.mktemp("whole") / "passes"
    return folder, run(folder, lambda: client)


def files(folder: Path) -> dict[str, object]:
    """What golden has left in a folder, and the samples of the RTL."""
    out: dict[str, object] = {"image": (folder / "image").read_bytes()}
    for path in folder.glob("*.npz"):
        with np.load(path) as file:
            out[path.name] = {name: file[name].tobytes() for name in file.files if name != "seconds"}
    last, registers, dre, time = pickle.loads((folder / "state").read_bytes())
    return out | {
        "state": (last, registers, dre.kv.fresh, [t.counts.tolist() for t in dre.tables.values()], pickle.dumps(time))
    }


def test_every_byte_equals_golden(whole):
    folder, records = whole
    assert [one["name"] for one in records] == [f"frame {f}, layer {i}" for f in range(FRAMES) for i in range(LAYERS)]
    for one in records:
        assert (one["status"], one["differences"]) == (Status.DONE.name, [])
        assert one["beats"] * params().lxe.bus_bytes == one["stored"]
        assert one["compared"] > one["beats"] * params().lxe.bus_bytes
        assert one["counters"]["lxe.storer.beats"] == one["beats"]
    assert [one["cycles"] for one in records] == [one["predicted"] for one in records]
    samples = PassEngine(folder, Layers(), simulator(), {}).samples(3)
    assert samples[0].tolist() == [0, 0, 0]
    counts = [count(records[3], *names) for names in simulator().counters]
    assert samples[-1].tolist() == [records[3]["cycles"], *counts]
    assert records[-1]["clusters"] > records[0]["clusters"]


def count(record: dict, *names: str) -> int:
    return sum(record["counters"][name] for name in names)


def test_a_layer_may_fetch_for_the_next(tmp_path, client):
    """The number of fetched entries goes from pass to pass in a register, and the RTL is reset in between."""
    records = run(tmp_path / "passes", lambda: client, Layers(AHEAD))
    assert not any(one["differences"] for one in records)


def test_workers_change_nothing(whole, tmp_path):
    with cluster(workers=2) as two:
        records = run(tmp_path / "passes", lambda: two)
    assert records == whole[1]
    assert files(tmp_path / "passes") == files(whole[0])


class KilledError(Exception):
    pass


def model_stream() -> ModelStream:
    """A prompt in two passes, a frame, a picture, a question and two tokens, on a small decoder and a small encoder."""
    own, vision = small_models.model(1, tied=False), small_models.vision()
    h = small_models.host(own, vision=vision)
    prompt, frame, question = small_models.parts(own, [4, 3, 2])
    return ModelStream(h, [[prompt, frame, Picture(patches(vision.shape, 2)), question]], 2)


def test_a_whole_decoder_equals_golden_and_goes_on(tmp_path, client):
    """Every step of a stream; stopped in the middle, it generates the tokens that golden does."""
    core = emit("core", small_models.params())
    own = CoreSimulator(core, small_models.params(), [["lxe.dpe.chunks"]])
    want = model_stream()
    for one in want:
        one.run()
    stop = 30

    def kill(executed, played):
        if executed == stop:
            raise KilledError

    with pytest.raises(KilledError):
        PassEngine(tmp_path, model_stream(), own, {}).run(lambda: client, kill)
    stream = model_stream()
    records = PassEngine(tmp_path, stream, own, {}).run(lambda: client)
    steps = small_models.LAYERS * (4 + small_models.SHAPE.kv_heads)
    seen = [one for one in records if one["phase"] == "vision"]
    assert len(records) == 6 * steps + 2 + len(seen)
    assert {one["of"] for one in seen} == {3}
    assert {"vision embed", "vision attend", "vision pool"} <= {stage for one in seen for stage in one["stages"]}
    assert not [line for one in records for line in one["differences"]]
    assert {one["status"] for one in records} == {Status.DONE.name}
    said = [token for one in records if one["phase"] == "head" for _, token, _ in one["said"]]
    assert said == stream.host.tokens == want.host.tokens
    assert sum(one.get("entries", 0) for one in records) > 10
    assert [one["cycles"] for one in records] == [one["predicted"] for one in records]
    assert len({one["name"] for one in records}) == len(records)


def equal(stream, p, folder, client) -> list[dict]:
    """The records of a stream on a core, each of another name: with no difference, and in the cycles predicted."""
    own = CoreSimulator(emit("core", p), p, [["lxe.dpe.chunks"]])
    records = PassEngine(folder, stream, own, {}).run(lambda: client)
    assert not [line for one in records for line in one["differences"]]
    assert {one["status"] for one in records} == {Status.DONE.name}
    assert [one["cycles"] for one in records] == [one["predicted"] for one in records]
    assert len({one["name"] for one in records}) == len(records)
    return records


def test_a_decoder_with_coded_pages_equals_golden(tmp_path, client):
    """Every store, all memory and every cycle; keys are coded, pages chosen within a budget, fetched whole and in part.

    `test_page_host.py` holds what golden chooses against the definition.
    """
    own, p = small_models.page_model(3), small_models.params(*MORE, *small_models.CODES)
    h = small_models.page_host(own, more=MORE)
    stream = ModelStream(h, [small_models.parts(own, [4, 3, 3, 3, 2])], 2)
    records = equal(stream, p, tmp_path, client)
    tables = small_models.LAYERS * small_models.SHAPE.kv_heads
    assert sum(one["phase"] == "code" for one in records) == tables * (h.length // small_models.PAGE.mean)
    fetched = [one["entries"] for one in records if one["phase"] == "attention"]
    assert {0, 6} <= set(fetched)
    assert set(fetched) & {1, 3, 5}


@pytest.mark.parametrize("pages", [False, True], ids=["clusters", "pages"])
def test_a_batch_equals_golden(pages, tmp_path, client):
    """Two streams whose products run together, each step after a reset; every store, all memory and every cycle."""
    more = (*MORE, *(small_models.CODES if pages else ()))
    own, p = (small_models.page_model if pages else small_models.model)(3), small_models.params(*more)
    h = small_models.page_host(own, more=more, streams=2) if pages else small_models.host(own, p, streams=2)
    given = [small_models.parts(own, sizes, seed) for seed, sizes in enumerate(([3, 3, 3, 3], [3, 3, 2, 3, 3]))]
    stream = ModelStream(h, given, 2)
    records = equal(stream, p, tmp_path, client)
    assert [len(x) for x in stream.outputs] == [5, 6]
    said = [(n, token) for one in records for n, token, _ in one.get("said", ())]
    assert [[token for n, token in said if n == k] for k in range(2)] == [x.tokens for x in h.said]
    assert all(sum(one.get("entries", 0) for one in records if f"stream {k}" in one["name"]) > 10 for k in range(2))


@pytest.mark.parametrize("pages", [False, True], ids=["clusters", "pages"])
def test_a_pass_longer_than_the_hcu_holds_equals_golden(pages, tmp_path, client):
    """A pass of three sections, one of a single, three again: every store, all memory and every cycle."""
    more = (*MORE, *(small_models.CODES if pages else ()))
    own, p = (small_models.page_model if pages else small_models.model)(3), small_models.params(*more)
    h = small_models.page_host(own, more=more, at_once=9) if pages else small_models.host(own, p, at_once=9)
    stream = ModelStream(h, [small_models.parts(own, [9, 3, 8])], 1)
    records = equal(stream, p, tmp_path, client)
    assert [len(x) for x in stream.outputs[0].values()] == [9, 3, 8]
    attended, ffn = ([one for one in records if one["phase"] == phase] for phase in ("attention", "ffn"))
    assert len(attended) == (3 + 1 + 3) * small_models.LAYERS * small_models.SHAPE.kv_heads
    assert [one["tokens"] for one in ffn] == [n for n in (9, 3, 8) for _ in range(small_models.LAYERS)]
    assert max(one["tokens"] for one in ffn) > p.dre.hcu.frame
    assert sum(one["entries"] for one in attended) > 20


@pytest.mark.parametrize(("golden", "rtl"), [(3, 0), (FRAMES * LAYERS, 3)])
def test_a_stopped_run_goes_on(golden, rtl, whole, tmp_path, client):
    """The second run has the same bytes, executes on golden what the first has not, and plays the same."""
    folder = tmp_path / "passes"

    def stop(executed, played):
        if executed >= golden and played >= rtl:
            raise KilledError

    with pytest.raises(KilledError):
        run(folder, lambda: client, progress=stop)
    with (folder / RECORDS).open("a") as out:
        out.write('{"number": 5, "na')  # as of a process that was killed while it wrote
    first = [json.loads(line)["number"] for line in (folder / RECORDS).read_text().splitlines()[:-1]]
    again, played = Layers(), []
    before = {path.name for path in folder.glob("0*.npz")}
    records = run(folder, lambda: client, again, lambda executed, ended: played.append(ended))
    assert len(again.executed) == FRAMES * LAYERS - len(before)
    assert records == whole[1]
    assert files(folder) == files(whole[0])
    lines = [json.loads(line)["number"] for line in (folder / RECORDS).read_text().splitlines()]
    assert lines[: len(first)] == first
    assert sorted(lines) == list(range(FRAMES * LAYERS))


def test_a_run_that_is_over_does_nothing(whole):
    again = Layers()
    assert run(whole[0], None, again) == whole[1]
    assert not again.executed


def test_another_run_begins_anew(whole, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "passes")
    assert PassEngine(folder, Layers(), simulator(), {}).records
    assert not PassEngine(folder, Layers(), simulator(), {"layers": 3}).records
    assert sorted(path.name for path in folder.iterdir()) == ["key"]


def test_a_flipped_weight_bit_is_told(tmp_path, client):
    stream = Layers()
    engine = PassEngine(tmp_path / "passes", stream, simulator(), {})
    assert len(list(engine.golden())) == FRAMES * LAYERS
    h = stream.host
    data = np.memmap(engine.files.image, np.uint8, "r+")
    data[h.address(h.plans[1]["down_weight"], 1) + 1] ^= 0x40  # the highest bit of an exponent
    data.flush()
    records = run(tmp_path / "passes", lambda: client)
    for one in records:
        assert bool(one["differences"]) == one["name"].endswith("layer 1")
    stored, end = records[1]["differences"]
    assert records[1]["name"] == "frame 0, layer 1"
    element = r"hidden \[0, 0\]: RTL \S+, golden \S+"
    assert_matches(stored, rf"beat \d+ of {records[1]['beats']}: {element}")
    assert_matches(end, f"at the end: {element}")


def assert_matches(text: str, pattern: str) -> None:
    assert re.fullmatch(pattern, text), text


@pytest.mark.nightly
def test_passes_are_repeated_with_waveforms(whole, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "passes")
    engine = PassEngine(folder, stream := Layers(), simulator(), {})
    text = (folder / RECORDS).read_text()
    got = engine.repeat(2, 3, waves=True)
    assert [(one["name"], one["differences"]) for one in got] == [("frame 1, layer 0", []), ("frame 1, layer 1", [])]
    assert (folder / RECORDS).read_text() == text
    assert not stream.executed
    for number in (2, 3):
        assert (folder / "waves" / f"pass_{number}.{suffix()}").stat().st_size
        assert "bench_core.unit.host_valid" in (folder / "waves" / f"pass_{number}.gtkw").read_text()


@pytest.mark.parametrize(
    ("first", "last", "why"), [(3, 2, "--from=3: must be at most"), (2, 8, "--to=8: must be below 8, the number")]
)
def test_a_range_that_there_is_not(first, last, why, whole):
    with pytest.raises(ParamError, match=why):
        PassEngine(whole[0], Layers(), simulator(), {}).repeat(first, last, waves=False)


# A pass that stores two words in one array, and an array that nothing writes.

CHANGED = np.arange(64, dtype=np.uint8)


@pytest.fixture
def comparison(tmp_path):
    (tmp_path / "image").write_bytes(bytes(256))
    nothing = Change(np.zeros(0, np.int64), np.zeros((0, 64), np.uint8), np.zeros((0, 64), bool))
    data, known = CHANGED[:16].reshape(2, 8), np.ones((2, 8), bool)
    known[1, 6:] = False
    after = np.zeros((1, 64), np.uint8)
    after[0, :16] = CHANGED[:16]
    unknown = np.zeros((1, 64), bool)
    unknown[0, 14:16] = True
    places = [Place("q", 64, (2, 4), BF16), Place("ring", 128, (4, 4), BF16)]
    golden = Played(
        "frame 0, layer 1", {}, "", {}, nothing, Change(np.array([1]), after, unknown),
        np.array([64, 72]), data, known, places,
    )  # fmt: skip
    image = Image(tmp_path / "image")
    return Comparison(golden, image, np.zeros(256, np.uint8), 8)


def beats(compare: Comparison, *changes: tuple[int, int, int, int]) -> np.ndarray:
    """The beats of a run that is right but for (beat, port, word, byte 0)."""
    out = np.zeros(3, compare.record)
    out["port"], out["word"], out["strobes"] = [0, 0, 1], [8, 9, 20], 255
    out["data"][:2] = CHANGED[:16].reshape(2, 8)
    for beat, port, word, low in changes:
        out["port"][beat], out["word"][beat], out["data"][beat, 0] = port, word, low
    return out


def undefined(out: np.ndarray) -> np.ndarray:
    out["data"][1, 6:] = 255
    return out


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize(
    ("make", "want"),
    [
        (beats, []),
        (lambda c: undefined(beats(c)), []),
        (
            lambda c: beats(c, (1, 0, 9, 1)),
            [r"beat 1 of 2: q \[1, 0\]: RTL \S+, golden \S+", r"at the end: q \[1, 0\]: RTL .*"],
        ),
        (
            lambda c: beats(c, (1, 0, 10, 8)),
            [r"beat 1 of 2 is stored to 0x50, golden's to 0x48 \(q\)", r"at the end: q \[1, 0\]: .*"],
        ),
        (lambda c: beats(c)[:1], ["1 beats are stored, golden stores 2", r"at the end: q \[1, 0\]: .*"]),
        (lambda c: beats(c)[[0, 1, 1, 2]], ["more than the 2 beats that golden stores"]),
        (lambda c: beats(c, (2, 1, 16, 3)), [r"at the end: ring \[0, 0\]: RTL \S+, golden 0.0"]),
    ],
)
def test_a_difference_names_array_and_element(make, want, at_once, comparison):
    made = make(comparison)
    for k in range(0, len(made), at_once):
        comparison.take(made[k : k + at_once])
    got = comparison.end()
    assert len(got) == len(want), got
    for line, pattern in zip(got, want, strict=True):
        assert_matches(line, pattern)
    if not want:
        assert comparison.compared == 14 + 62 + 64  # stored bytes; in memory, two grains that something has written


def test_one_command_at_a_time_runs_in_a_folder(tmp_path):
    """Two would empty the folder for each other, and mix their records."""
    folder = tmp_path / "new" / "run"
    with alone(folder):
        with alone(tmp_path / "other"):
            pass
        with (
            pytest.raises(ParamError, match=f"^-o='{folder}': must be free, and another command runs in it"),
            alone(folder),
        ):
            pass
    with alone(folder):
        assert list(folder.iterdir()) == []
