"""The H100's rates against its measured frames: what is predicted within 10 %, and what is not."""

import json
from pathlib import Path

import pytest

from openvrex.sim.system import platforms
from openvrex.sim.system.gpu import run
from openvrex.sim.system.passes import selected
from openvrex.sim.system.platforms import H100
from openvrex.sim.system.timeline import Pass, Point
from openvrex.sim.system.workload import Decoder, constant

FOUND = json.loads(Path(platforms.__file__).with_name("h100.json").read_text())


def without_encoder(p: Pass) -> float:
    """Milliseconds; the measured frames have none."""
    return 1e3 * (p.seconds - sum(s.end - s.start for s in p.stages if s.name == "vision"))


def resident(batch: int, cache: int, rows: int) -> float:
    """Predicted over measured time, less 1."""
    point = Point(cache, batch, rows, rows == 10, "resident")
    want = FOUND["rates"][f"resident_ms batch={batch} cache={cache} rows={rows}"]["own"]
    return without_encoder(run(H100, point, selected(point, None))) / want - 1


@pytest.mark.parametrize("cache", [1024, 10240, 40960, 102400])
def test_resident_passes_of_one_stream(cache):
    """Attention's rate is fitted to frames at 10K and 100K; the others, and tokens up to 40K, are predicted."""
    assert abs(resident(1, cache, 10)) < 0.1
    assert abs(resident(1, cache, 1)) < (0.1 if cache <= 40960 else 0.11)


def test_several_streams_are_too_slow():
    """The rate of one stream's attention is that of small kernels: docs/papers/evaluation.md says how far off."""
    off = {(b, n): resident(b, n, 10) for b, n in ((4, 40960), (4, 102400), (8, 40960))}
    assert all(0.1 < x < 0.26 for x in off.values())
    assert all(abs(resident(b, 10240, 10)) < 0.1 for b in (4, 8))


@pytest.mark.parametrize(("cache", "cluster"), [(40960, 32), (40960, 2), (102400, 32), (1024000, 32)])
def test_resv_with_a_gather_kernel(cache, cluster):
    """Steps at 1,280 and 20,480 clusters are measured; whole frames are not in any constant."""
    point = Point(cache, 1, 10, True, "resv")
    got = without_encoder(run(H100, point, constant("5 %", 0.05, 0.05, Decoder(), cluster=cluster)))
    want = FOUND["frames"][f"frame_ms N={cache} tokens_a_cluster={cluster}"]["ahead"]
    assert abs(got / want - 1) < 0.1


def test_stages_of_a_layer_follow_each_other():
    """A gather kernel occupies the GPU: nothing overlaps a fetch."""
    point = Point(40960, 1, 10, True, "resv")
    done = run(H100, point, constant("5 %", 0.05, 0.05, Decoder()))
    ends = [(s.start, s.end) for s in done.stages]
    assert all(b[0] >= a[1] - 1e-12 for a, b in zip(ends, ends[1:], strict=False))
    assert {s.name for s in done.stages} >= {"layer", "predict", "fetch", "attention", "vision", "vocabulary"}
