"""Tables of the manual that the simulator makes, as far as they take no time: what is fetched, sizes, short frames."""

from dataclasses import replace

import pytest

from openvrex.scripts.records import recorded_page
from openvrex.scripts.simulate.selection_command import figures
from openvrex.sim.system import platforms
from openvrex.sim.system.frame_times import frames, memory
from openvrex.sim.system.selection import records
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import Decoder, traced
from openvrex.tb.library.runner import ROOT

SIMULATOR, TABLES = ((ROOT / "docs" / name).read_text() for name in ("simulator.md", "tables.md"))
SHARES = traced(Decoder())
EDGE, SERVER = (replace(v, home="link") for v in (platforms.EDGE, platforms.SERVER))


@pytest.mark.parametrize("policy", ["resv", "resv-buckets"])
def test_what_is_fetched(policy):
    r = records()["world"][policy]
    assert f"| {r.name} | {' | '.join(figures(r)).replace('%', ' %')} |" in SIMULATOR


@pytest.mark.parametrize("v", [EDGE, SERVER], ids=["edge", "server"])
def test_device_memory(v):
    assert f"| {' | '.join(memory(v, Point(40960), SHARES))} |" in TABLES


def test_short_frames():
    recorded = recorded_page.page()
    for heads in (1, 2, 8):
        own = [v.changed(f"kvmu.entry_bytes={512 * heads}") for v in (EDGE, SERVER)]
        for name, cell in frames(own, Point(1024), SHARES, (1024,))[0].rows:
            assert f"| `{name.split()[0]}` | {heads}{' (default)' * (heads == 1)} | {cell} |" in recorded
