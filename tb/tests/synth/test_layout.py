"""Wires of a hand-made DEF, delays with them, what a layout's job says, a crash in one line, and a real layout."""

from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from openvrex.scripts.main import app
from openvrex.synth import flow, layout, wires
from openvrex.synth.liberty import EMBEDDED, SynthError, load
from tb.tests.synth.cell_libraries import SKY130

METALS = wires.Metals({"li": (10, 0), "m1": (2, 0.5), "m2": (1, 0.25)}, {"mcon": 9, "via": 4}, "this test")
# A trunk on m1 from the driver at x = 0 to x = 30 µm, with a branch up on m2 at x = 20. The piece from 10 to 20 is
# drawn twice. No wire reaches `u2`.
DEF = """
PINS 1 ;
   - n9 + NET n9 + DIRECTION INOUT ;
END PINS
NETS 2 ;
   - n9 ( t_I_u0 q ) ( t_I_u1 i )
      + ROUTED m1 ( 0 0 ) ( 20000 * )
         NEW m1 ( 10000 0 ) ( 30000 * )
         NEW li ( 0 0 ) li_mcon_m1
         NEW li ( 30000 0 ) li_mcon_m1
         NEW m1 ( 20000 0 ) m1_via_m2
         NEW m2 ( 20000 0 ) ( * * )
         NEW m2 ( 20000 0 ) ( * 40000 ) ;
   - n8 ( t_I_u0 i ) ;
END NETS
"""
PADS = {
    "n9": {
        ("u0", "Y"): ("li", -100, -100, 100, 100),
        ("u1", "A"): ("li", 29900, -100, 30100, 900),
        ("", ""): ("m2", 19900, 39900, 20100, 40100),
        ("u2", "A"): ("li", 29900, 5000, 30100, 6000),
    },
    "n8": {("u0", "A"): ("li", 0, 0, 10, 10)},
}


def test_wire_has_the_lengths_of_its_metal_and_no_more():
    found = wires.wires(DEF, PADS, METALS)
    wire = found["n9"]
    assert wire.lengths == {"m1": 30, "m2": 40}
    assert wire.vias == 3
    assert wire.capacitance == pytest.approx(30 * 0.5 + 40 * 0.25)
    assert wire.open == (("u2", "A"),)
    assert found["n8"].open == (("u0", "A"),)
    assert not found["n8"].edges


def test_delay_of_a_wire_is_elmore_s():
    wire = wires.wires(DEF, PADS, METALS)["n9"]
    delays = wire.elmore(("u0", "Y"), {("u1", "A"): 3.0})
    last, branch = 10 * 0.5, 40 * 0.25  # fF behind the fork; the load of `u1` adds to `last`
    far = last + branch + 3
    fork = 9 * (10 + far)  # the via at the driver
    fork += 20 * (2.5 + 5 + far) + 20 * (2.5 + far)  # 0 to 10 µm, 10 to 20 µm: each with half of its own behind it
    assert delays["u1", "A"] == pytest.approx((fork + 20 * (2.5 + 3) + 9 * 3) / 1000)
    assert delays["", ""] == pytest.approx((fork + 4 * branch + 40 * branch / 2) / 1000)
    assert not wire.elmore(("u2", "A"), {})


def test_pins_metal_joins_what_ends_on_it():
    text = DEF.replace(
        "NEW m1 ( 10000 0 )", "NEW li ( 30000 800 ) li_mcon_m1 NEW m1 ( 30000 800 ) ( 50000 * ) NEW m1 ( 10000 0 )"
    )
    assert wires.wires(text, PADS, METALS)["n9"].lengths == {"m1": 50, "m2": 40}
    apart = {
        "n9": PADS["n9"] | {("u1", "A"): ("li", 29900, -100, 30100, 100), ("u3", "A"): ("m1", 50000, 800, 50000, 800)}
    }
    assert wires.wires(text, apart, METALS)["n9"].open == (("u2", "A"), ("u3", "A"))


def test_job_names_cells_by_their_layout_and_ties_constants():
    given = {
        "ports": {"a": ["input", [2, 7]], "clk": ["input", [3]], "y": ["output", [5, "0"]]},
        "cells": [
            ["x", "sky130_fd_sc_hd__nand2_1", {"A": [2], "B": ["1"], "Y": [4]}],
            ["y", "sky130_fd_sc_hd__dfxtp_1", {"CLK": [3], "D": [4], "Q": [5]}],
        ],
        "memories": {"m": [{}, {"RD_DATA": [8], "WR_DATA": [5]}]},
    }
    made = layout.job("t", given, 0.5)
    assert made["cells"] == [
        ("tie_u0_i1", "one_x1", {"one": "tie_u0_i1"}),
        ("u0", "nand2_x0", {"i0": "n2", "i1": "tie_u0_i1", "nq": "n4"}),
        ("u1", "dff_x1", {"clk": "n3", "i": "n4", "q": "n5"}),
    ]
    assert made["ports"] == [("n5", "output"), ("n3", "input"), ("n2", "input")]  # 7 and 8 lead nowhere
    assert made["nets"] == ["n2", "n3", "n4", "n5", "tie_u0_i1"]


def test_other_libraries_have_no_layout(tmp_path):
    with pytest.raises(SynthError, match="has none of the cells with a layout"):
        layout.barred(load([EMBEDDED], tmp_path))


CRASH = """
import json, os, pathlib
pathlib.Path("t.gds").write_text("half")
pathlib.Path("done.json").write_text(json.dumps({"seconds": {"library": 5.0, "place": 2.0}}))
print("hurricane.HurricaneError: [ERROR] no track near the axis", flush=True)
os.abort()
"""


def test_crash_of_the_router_is_one_line_and_keeps_what_was_reached(tmp_path, monkeypatch):
    (tmp_path / "worker.py").write_text(CRASH)
    monkeypatch.setattr(layout, "WORKER", tmp_path / "worker.py")
    monkeypatch.setattr(layout, "check_installed", list)
    given = {"ports": {}, "cells": [], "memories": {}}
    line = r"t: layout stopped \(\[ERROR\] no track near the axis\); done: library, place; see .*layout.log"
    with pytest.raises(SynthError, match=line):
        layout.place("t", given, None, tmp_path / "out", build=tmp_path)
    assert (tmp_path / "out" / "t.gds").read_text() == "half"
    assert not list(tmp_path.rglob("t-*"))  # nothing is kept for the next call


def test_without_the_extra_the_command_names_it(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(layout, "version", missing)
    run = CliRunner().invoke(app, ["size", "layout", "hcu"])
    assert run.exit_code == 2
    assert run.stderr == "error: layout: coriolis-eda is not installed; pip install 'openvrex[layout]'\n"


COUNTER = """module counter(input clk, input rst, output reg [7:0] n);
always @(posedge clk) n <= rst ? 8'd0 : n + 8'd1;
endmodule"""


@pytest.mark.skipif(find_spec("coriolis") is None, reason="needs Coriolis: pip install 'openvrex[layout]'")
@pytest.mark.skipif(not SKY130[0].exists(), reason="no ../shared/pdk beside the project: put SKY130 there")
def test_counter_is_laid_out(tmp_path):
    bars = layout.barred(flow.loaded(SKY130, build=tmp_path))
    netlists, library = flow.netlists(COUNTER, "counter", SKY130, dont_use=bars, gated=0, build=tmp_path)
    given = netlists["counter"]["netlist"]
    found = layout.place("counter", given, library, tmp_path / "out", build=tmp_path)
    assert found.cells == len(given["cells"])
    assert found.routed
    assert (found.unrouted, found.open, found.split, found.touching) == ((), (), (), ())
    assert found.density == pytest.approx(layout.DENSITY, rel=0.1)
    assert found.wire > 0.5
    assert found.with_wires > 1.05 * found.delay
    assert found.with_memories == found.with_wires, "it has no memory"
    if found.opensta_wires:
        assert found.opensta == pytest.approx(found.delay, abs=0.02)
        assert found.opensta_wires == pytest.approx(found.with_wires, rel=0.1)
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {"counter.gds", "counter.def", "counter.lef", "layout.png"}
    again = layout.place("counter", given, library, tmp_path / "out", build=tmp_path)
    assert again == found
