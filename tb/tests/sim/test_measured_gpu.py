"""A measured GPU: its platform file, the H100's frames against what its figures predict, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openvrex.golden.function_params import ParamError
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.scripts.records.gpu_results import CACHES, ENDS, KINDS, cells, platform_file, recorded
from openvrex.sim.system.device_memory import arrays
from openvrex.sim.system.gpu_figures import read, written
from openvrex.sim.system.measured_gpu import (
    MeasuredGpu,
    attention_terms,
    between,
    drive_rate,
    of_pages,
    predicted,
    run,
    scaled,
)
from openvrex.sim.system.passes import selected
from openvrex.sim.system.platforms import A100_SCALED, AGX_SCALED, H100, H100_FILE, platform
from openvrex.sim.system.ssd import Ssd
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import Decoder, constant
from tb.tests.commands import refuses, vrex

GOAL = 0.1  # of the issue that asked for the platform
FIVE = constant("5 %", 0.05, 0.05, Decoder())


def test_the_platform_file_is_made_of_the_recorded_runs():
    """`vrex dev record` writes it; reading and writing change nothing."""
    assert H100_FILE.read_text() == written(platform_file(recorded()))
    assert written(read(H100_FILE)) == H100_FILE.read_text()


@pytest.mark.parametrize("frame", H100.figures.frames, ids=lambda f: f"{f.policy}{f.streams}-{f.rows}-{f.tokens}")
def test_every_measured_pass_is_predicted(frame):
    assert abs(predicted(H100, frame) / frame.ms - 1) < GOAL


def test_what_is_fitted_is_named_and_fits():
    """Attention's fit passes through its frames; a few constants stand beside many more measured passes."""
    f = H100.figures
    assert set(f.fitted) == {"attention", "steps_ms.pages", "join_gbps", "expand_gbps"}
    for frame in f.frames:
        if (frame.policy, frame.streams) == ("resident", 1) and frame.tokens in ENDS:
            assert predicted(H100, frame) == pytest.approx(frame.ms, rel=1e-4)  # the file has five digits
    assert len(f.frames) > 40
    assert f"fitted, not measured: {', '.join(f.fitted)}" in H100.remarks
    found = cells()
    assert {kind for kind, _ in found} == set(KINDS)
    assert {n for _, n in found} == set(CACHES)


def test_stages_of_a_layer_follow_each_other():
    """A gather kernel occupies the GPU: nothing overlaps a fetch. FlexGen's copies run ahead."""
    done = run(H100, Point(40960, 1, 10, True, "resv"), FIVE)
    ends = [(s.start, s.end) for s in done.stages]
    assert all(b[0] >= a[1] - 1e-12 for a, b in zip(ends, ends[1:], strict=False))
    assert {s.name for s in done.stages} == {"layer", "predict", "fetch", "join", "attention", "vision", "vocabulary"}
    resident, whole = (
        run(H100, p, selected(p, None)) for p in (Point(40960, policy="resident"), Point(40960, policy="flexgen"))
    )
    assert done.watts["GPU"] < resident.watts["GPU"]
    assert not resident.fetched
    assert whole.fetched == 40960 * Decoder().token_bytes
    assert whole.seconds < whole.named("fetch") + whole.named("layer")


def test_homes_of_a_gpu():
    """4 bits move 4.5 of 16; a drive reads pages of 1,152 bytes one by one; a choice that is given takes nothing."""
    point = Point(40960, policy="pages")
    shares = of_pages(PageParams(), point)
    plain, packed, slow, known = (
        run(MeasuredGpu("H100", H100.figures, *own), point, shares)
        for own in ((16,), (4,), (4, False, Ssd()), (16, True))
    )
    assert packed.fetched == pytest.approx(plain.fetched * 4.5 / 16)
    assert packed.named("expand") > 0 == plain.named("expand")
    assert packed.named("fetch") < plain.named("fetch") / 3
    assert slow.named("fetch") == pytest.approx(packed.fetched / drive_rate(Ssd(), 1152), rel=1e-6)
    assert known.seconds == pytest.approx(plain.seconds - plain.named("predict"))
    assert arrays(H100, point, shares)["index"] == 8 * 8 * 32 * 40960
    assert arrays(H100, Point(40960, policy="resv"), FIVE)["index"] == 256 * 8 * 32 * 40960 // 32


@pytest.mark.parametrize("piece", [512, 1152, 4096])
def test_a_drive_reads_no_more_than_its_requests(piece):
    """Its controller takes a request at a time, and larger pieces are no slower in bytes."""
    assert drive_rate(Ssd(), piece) < piece / Ssd().command
    assert drive_rate(Ssd(), piece) < drive_rate(Ssd(), 2 * piece)


def test_scaled_gpus_scale():
    """By memory what memory limits, by operations what rows add and the encoder; launches stay."""
    assert scaled(H100.figures, "same", 1, 1, 1, 1, 80).layers_ms == pytest.approx(H100.figures.layers_ms)
    half = MeasuredGpu("half", scaled(H100.figures, "half", 0.5, 0.25, 0.5, 0.5, 40))
    assert half.products(1) == pytest.approx(2 * H100.products(1))
    more = [g.products(640) - g.products(1) for g in (half, H100)]
    assert more[0] == pytest.approx(4 * more[1])
    assert half.encoder(1) == pytest.approx(4 * H100.encoder(1))
    assert half.choice("pages", 40960) == pytest.approx(2 * H100.choice("pages", 40960))
    few, many = ([g.attention(1, 10, n) for g in (half, H100)] for n in (0, 1 << 20))
    assert few[0] == pytest.approx(few[1])
    assert many[0] - few[0] == pytest.approx(2 * (many[1] - few[1]))
    for g in (A100_SCALED, AGX_SCALED):
        assert "scaled from NVIDIA H100" in g.remarks[0]
        assert g.watts("resident")["GPU"] < H100.watts("resident")["GPU"]


@given(st.dictionaries(st.integers(1, 1000), st.floats(0.1, 10), min_size=1, max_size=5), st.integers(1, 2000))
def test_between_measured_points(known, at):
    found = between(known, at)
    assert found >= min(known.values()) or found == pytest.approx(min(known.values()))
    assert between(known, next(iter(known))) == pytest.approx(known[next(iter(known))])


def test_attention_of_one_measured_size_of_rows():
    some = [a for a in H100.figures.attention if a.rows == 10]
    assert attention_terms(some, 1) == attention_terms(some, 10)


@pytest.mark.parametrize("policy", ["infinigenp", "oaken"])
def test_a_policy_that_was_not_measured_is_refused(policy):
    why = f"policy='{policy}': was not measured on H100: take one of resident, flexgen, resv, pages"
    with pytest.raises(ParamError, match=why):
        run(H100, Point(1024, policy=policy), FIVE)


def test_a_decoder_that_was_not_measured_is_refused():
    with pytest.raises(ParamError, match="was not measured on H100: take that of its file"):
        run(H100, Point(1024, policy="resident", model=Decoder(layers=30)), FIVE)


def changed(at, value):
    """The H100's file with one field changed; None takes it out."""
    found = json.loads(H100_FILE.read_text())
    *path, last = at.split(".")
    place = found
    for name in path:
        place = place[int(name)] if isinstance(place, list) else place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (changed("version", 2), "version=2: must be 1"),
        (changed("copy_gbps", -1), "copy_gbps=-1: must be greater than 0"),
        (changed("layers_ms.10", float("nan")), "layers_ms.10=nan: must be a finite number"),
        (changed("steps_ms.resv.1280.hash", float("inf")), "steps_ms.resv.1280.hash=inf: must be a finite number"),
        (changed("watts.pages", "much"), "watts.pages='much': must be a valid number"),
        (changed("encoder_ms", None), "encoder_ms is missing"),
        (changed("frames.0.share", 2), "frames.0.share=2: must be less than or equal to 1"),
        (changed("bandwidth", 1), "bandwidth=1: is no field of it"),
        (changed("attention", json.loads(H100_FILE.read_text())["attention"][1:]), "needs two lengths or more"),
        ("[]", "the file=[]: must be"),
        ("{", "is no JSON"),
    ],
)
def test_a_bad_platform_file_is_one_line(tmp_path, text, said):
    path = tmp_path / "gpu.json"
    path.write_text(text)
    done = refuses("simulate", "pass", "--platform", str(path))
    assert str(path) in done.stderr
    assert said in done.stderr


def test_a_pass_on_a_file_of_another_decoder(tmp_path):
    """Sizes are those of the file, and the command says so."""
    path = tmp_path / "small.json"
    path.write_text(changed("shape.layers", 2))
    done = vrex("simulate", "pass", "--platform", str(path), "--policy", "resident", "--json")
    out = json.loads(done.stdout)
    assert "sizes are those of the file's decoder: 2 layers, 4096 wide" in out["remarks"]
    assert platform(str(path)).decoder.layers == 2
