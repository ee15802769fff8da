"""Delays of circuits small enough to work out by hand, what a path is called, and designs that cannot be timed."""

import dataclasses
import itertools
import shutil
import sys

import pytest

from openvrex.synth import flow, memory_times, nldm, opensta, source_names, timing
from openvrex.synth.flow import netlists as netlists_of
from openvrex.synth.flow import synthesise
from openvrex.synth.liberty import EMBEDDED, SynthError, load
from openvrex.synth.sram import Sram
from openvrex.synth.technology import NODES
from openvrex.synth.wires import Wire
from tb.tests.synth.cell_libraries import ASAP7, RAM, SKY130, needs_pdk

# Every table is a plane, so that values between and beyond its entries are those of the plane. Rise and fall differ.
PLANES = {  # ps: constant, per ps of slew, per fF
    "cell_rise": (10, 0.1, 2),
    "cell_fall": (8, 0.2, 1),
    "rise_transition": (5, 0.05, 3),
    "fall_transition": (4, 0.1, 2),
    "rise_constraint": (7, 0.5, -0.1),
    "fall_constraint": (9, 0.25, -0.1),
}


GATES = {
    "INV": ("!A", "negative"),
    "BUF": ("A", "positive"),
    "NAND2": ("!(A & B)", "negative"),
    "XOR2": ("A ^ B", "non"),
}
TEMPLATES = {
    "d": ("input_net_transition", "total_output_net_capacitance"),
    "s": ("constrained_pin_transition", "related_pin_transition"),
}


def library(names=(*GATES, "DFF"), ps=1, ff=1, turned=False, planes=PLANES) -> str:
    """A Liberty text whose units are `ps` and `ff`; `turned`: loads in rows, slews in columns."""
    points = {"d": ((5, 20, 100), (1, 4)), "s": ((5, 20, 100), (1, 4))}

    def numbers(values) -> str:
        return ", ".join(f"{v:.12g}" for v in values)

    def template(name: str) -> str:
        units = ps, (ff if name == "d" else ps)
        axes = [(v, [p / u for p in at]) for v, at, u in zip(TEMPLATES[name], points[name], units, strict=True)]
        axes = [*enumerate(reversed(axes) if turned else axes, 1)]
        text = " ".join(f'variable_{i} : {v}; index_{i} ("{numbers(at)}");' for i, (v, at) in axes)
        return f"lu_table_template ({name}) {{ {text} }}"

    def table(kind: str, name: str) -> str:
        a, b, c = planes[kind]
        rows = [[(a + b * x + c * y) / ps for y in points[name][1]] for x in points[name][0]]
        rows = zip(*rows, strict=True) if turned else rows
        values = ", \\\n".join(f'"{numbers(row)}"' for row in rows)
        return f"{kind} ({name}) {{ values ({values}); }}"

    def timed(related: str, attributes: str, name: str = "d") -> str:
        kinds = list(planes)[:4] if name == "d" else list(planes)[4:]
        return f'timing () {{ related_pin : "{related}"; {attributes} {" ".join(table(k, name) for k in kinds)} }}'

    def gate(name: str) -> str:
        function, sense = GATES[name]
        pins = [p for p in "AB" if p in function]
        inputs = "".join(f"pin ({p}) {{ direction : input; capacitance : {1.5 / ff}; }}" for p in pins)
        arcs = "".join(timed(p, f"timing_sense : {sense}_unate;") for p in pins)
        return (
            f'cell ({name}) {{ area : 1; {inputs} pin (Y) {{ direction : output; function : "{function}"; {arcs} }} }}'
        )

    flop = f"""
    cell (DFF) {{ area : 5; ff (IQ, IQN) {{ clocked_on : "CK"; next_state : "D"; }}
      pin (CK) {{ direction : input; clock : true; capacitance : {1 / ff}; }}
      pin (D) {{ direction : input; capacitance : {2 / ff}; fall_capacitance : {3 / ff};
        {timed("CK", "timing_type : setup_rising;", "s")} {timed("CK", "timing_type : hold_rising;", "s")} }}
      pin (Q) {{ direction : output; function : "IQ"; {timed("CK", "timing_type : rising_edge;")} }}
    }}"""
    cells = "".join(flop if n == "DFF" else gate(n) for n in names)
    head = f'time_unit : "{ps / 1000:g}ns"; capacitive_load_unit ({ff / 1000:g}, pf); {template("d")} {template("s")}'
    return f"library (planes) {{ /* cell (INV) {{ area : 99; }} */ {head} {cells} }}"


def plane(name: str, slew: float, load: float) -> float:
    a, b, c = PLANES[name]
    return a + b * slew + c * load


@pytest.fixture(scope="session")
def cells(tmp_path_factory):
    path = tmp_path_factory.mktemp("lib") / "planes.lib"
    path.write_text(library())
    return nldm.load(load([path], path.parent), {*GATES, "DFF"})


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """A folder for results, in which each library is read once."""
    return tmp_path_factory.mktemp("build")


def netlist(inputs="", outputs="", gates=(), registers=None, names=None, memories=None):
    """A netlist of one-bit nets called by single letters; a gate is ("NAND2", "aby"), pins in the library's order."""
    number = {c: i + 2 for i, c in enumerate("abcdefghijklmnopqrstuvwxyz")} | {"0": "0", "1": "1"}
    pins = {"INV": "AY", "BUF": "AY", "NAND2": "ABY", "XOR2": "ABY", "DFF": ("CK", "D", "Q")}
    return {
        "ports": {n: ["input", [number[n]]] for n in inputs} | {n: ["output", [number[n]]] for n in outputs},
        "cells": [
            [f"$auto$x.cc:1:y${i}", kind, {p: [number[n]] for p, n in zip(pins[kind], nets, strict=True)}]
            for i, (kind, nets) in enumerate(gates)
        ],
        "names": {str(number[n]): s for n, s in (names or {}).items()},
        "registers": {f"$auto$x.cc:1:y${i}": s for i, s in (registers or {}).items()},
        "memories": memories or {},
    }


def analyse(cells, **parts):
    return timing.analyse(parts, cells, "ps")[list(parts)[-1]]


def chain(edge: int, stages: int, load: float) -> tuple[float, float]:
    """Arrival and slew after inverters that each drive another one, the last one `load`; by the planes alone."""
    delay = slew = 0.0
    for i in range(stages):
        edge = 1 - edge
        c = 1.5 if i < stages - 1 else load
        d = plane(("cell_rise", "cell_fall")[edge], slew, c)
        delay, slew = delay + d, plane(("rise_transition", "fall_transition")[edge], slew, c)
    return delay, slew


def test_inverter_chain(cells):
    part = netlist("a", "e", [("INV", "ab"), ("INV", "bc"), ("INV", "cd"), ("INV", "de")])
    (path,) = analyse(cells, t=part).paths
    expected = max(chain(edge, 4, 0)[0] for edge in (0, 1))
    assert path.delay == pytest.approx(expected, rel=1e-12)
    assert (path.kind, path.module, path.start, path.end, path.levels) == ("input to output", "t", "a", "e", 4)
    assert [s.instance for s in path.steps] == ["_0_", "_1_", "_2_", "_3_"]
    assert [s.edge for s in path.steps] in (["fall", "rise"] * 2, ["rise", "fall"] * 2)
    assert list(itertools.accumulate(s.delay for s in path.steps)) == pytest.approx([s.arrival for s in path.steps])


def test_register_to_register(cells):
    gates = [("DFF", "ckq"), ("INV", "qx"), ("INV", "xy"), ("DFF", "cyz")]
    t = analyse(cells, t=netlist("ck", "z", gates, {0: "left[0]", 3: "right"}, {"x": "between"}))
    path = t.paths[0]
    expected = []
    for edge in (0, 1):
        rise_fall = ("rise", "fall")[edge]
        launch = plane(f"cell_{rise_fall}", 0, 1.5), plane(f"{rise_fall}_transition", 0, 1.5)
        arrival, slew, at = *launch, edge
        for cap in (1.5, (2, 3)[edge]):  # the D pin loads a rise by 2, a fall by 3; two inversions end where they began
            at = 1 - at
            kind = ("rise", "fall")[at]
            arrival, slew = arrival + plane(f"cell_{kind}", slew, cap), plane(f"{kind}_transition", slew, cap)
        expected.append(arrival + plane(f"{rise_fall}_constraint", slew, 0))
    assert path.delay == pytest.approx(max(expected), rel=1e-12)
    assert (path.kind, path.start, path.end, path.levels) == ("register to register", "left[0]", "right", 2)
    assert [s.net for s in path.steps] == ["", "between", ""]
    assert t.fmax_mhz == pytest.approx(1e6 / path.delay)
    kinds = {p.kind: p for p in t.paths}
    assert set(kinds) == {"register to register", "register to output", "input to register"}
    assert kinds["register to output"].delay == pytest.approx(plane("cell_rise", 0, 0))
    assert kinds["input to register"].delay == pytest.approx(plane("fall_constraint", 0, 0))


def test_nand_tree_takes_the_later_input_and_the_larger_slew(cells):
    # d arrives after an inverter, a at once; the output's slew is the worse of both arcs.
    (path,) = analyse(cells, t=netlist("abx", "y", [("INV", "xd"), ("NAND2", "ade"), ("NAND2", "bey")])).paths

    def tree(edge):  # edge at x
        arrival, slew = chain(edge, 1, 1.5)
        kind = ("rise", "fall")[edge]
        late = arrival + plane(f"cell_{kind}", slew, 1.5)
        slew = max(plane(f"{kind}_transition", s, 1.5) for s in (slew, 0))
        kind = ("fall", "rise")[edge]
        return late + plane(f"cell_{kind}", slew, 0)

    assert path.delay == pytest.approx(max(tree(0), tree(1)), rel=1e-12)
    assert (path.start, path.levels) == ("x", 3)


def test_unateness(cells):
    """Of a NAND, a rising input makes the output fall; of an XOR, either edge does both."""
    nand = analyse(cells, t=netlist("ab", "y", [("NAND2", "aby")])).paths[0]
    assert nand.delay == pytest.approx(10)  # a falls, the output rises
    two = analyse(cells, t=netlist("ab", "y", [("XOR2", "abx"), ("XOR2", "bxy")])).paths[0]
    first = {e: (plane(f"cell_{e}", 0, 1.5), plane(f"{e}_transition", 0, 1.5)) for e in ("rise", "fall")}
    assert two.delay == pytest.approx(max(d + plane(f"cell_{e}", s, 0) for d, s in first.values() for e in first))


def test_fanout_loads_a_net(cells):
    one = analyse(cells, t=netlist("a", "y", [("INV", "ab"), ("INV", "by")])).delay
    gates = [("INV", "ab"), ("INV", "by"), ("INV", "bz"), ("BUF", "bx")]
    many = analyse(cells, t=netlist("a", "y", gates)).delay
    more = 2 * 2 * 1.5 + 3 * 2 * 1.5 * 0.2  # two pins more: 2 ps a fF of delay, 3 of slew, of which 0.2 come through
    assert many - one == pytest.approx(more)


def test_constants_and_unconnected_pins_start_nothing(cells):
    t = analyse(cells, t=netlist("a", "yz", [("NAND2", "1ab"), ("INV", "by"), ("INV", "0c"), ("NAND2", "cwz")]))
    assert [(p.start, p.end, p.levels) for p in t.paths] == [("a", "y", 2)]
    assert analyse(cells, t=netlist("", "yz", [("INV", "1y")])) == timing.Timing("ps", ())


def test_tables_between_and_beyond_entries():
    tables = nldm.Tables()
    twisted = nldm.Table((10.0, 20.0, 40.0), (1.0, 3.0), ((0.0, 2.0), (10.0, 30.0), (100.0, 300.0)))
    flat = nldm.Table((0.0,), (0.0,), ((7.0,),))
    row = nldm.Table((0.0,), (1.0, 2.0, 4.0), ((1.0, 5.0, 6.0),))
    ids = [tables.add(t) for t in (twisted, flat, row)]
    assert tables.add(twisted) == ids[0]
    tables.freeze()
    cases = [
        (twisted, 10, 1, 0),
        (twisted, 20, 3, 30),
        (twisted, 15, 2, (0 + 2 + 10 + 30) / 4),
        (twisted, 30, 1.5, (10 + 100) / 2 * 0.75 + (30 + 300) / 2 * 0.25),
        (twisted, 0, 1, -10),  # by the slope between 10 and 20
        (twisted, 60, 1, 190),  # by the slope between 20 and 40
        (twisted, 20, 5, 50),
        (twisted, 10, 0, -1),
        (flat, 123, -4, 7),
        (row, 50, 3, 5.5),
        (row, 50, 8, 8),
    ]
    for t, x, y, expected in cases:
        (value,) = tables(*(nldm.np.array([v]) for v in (tables.add(t), float(x), float(y))))
        assert value == pytest.approx(expected), (x, y)


def test_slew_is_never_negative(tmp_path):
    steep = PLANES | {"rise_transition": (-14, 1, 9)}  # -0.5 into another inverter, less than any of the table
    (tmp_path / "x.lib").write_text(library(planes=steep))
    found = nldm.load(load([tmp_path / "x.lib"], tmp_path), {"INV"})
    path = analyse(found, t=netlist("a", "c", [("INV", "ab"), ("INV", "bc")])).paths[0]
    assert [s.delay for s in path.steps] == pytest.approx([10 + 2 * 1.5, 8])


def test_units_and_order_of_axes(tmp_path, cells):
    """Half a library in ns and pF with its tables turned gives the delays of one in ps and fF."""
    (tmp_path / "ns.lib").write_text(library(("INV", "DFF"), 1000, 1000, turned=True))
    (tmp_path / "ps.lib").write_text(library(("BUF", "NAND2", "XOR2")))
    mixed = nldm.load(load([tmp_path / "ps.lib", tmp_path / "ns.lib"], tmp_path), {"INV", "BUF", "DFF"})
    part = netlist("ak", "d", [("DFF", "kab"), ("INV", "bc"), ("BUF", "ce"), ("INV", "ed"), ("DFF", "kdz")])
    one, two = (analyse(c, t=part) for c in (cells, mixed))
    assert [p.delay for p in one.paths] == pytest.approx([p.delay for p in two.paths])
    assert len(one.paths) == 3


def memory(read_clocked: bool, clock="c", write_clocked=True, rising=True) -> dict:
    """A memory of one-bit words: read at address a, data q; written at address w, data d, enable e."""
    n = {c: [i + 2] for i, c in enumerate("abcdefghijklmnopqrstuvwxyz")}
    bits = {
        "WIDTH": "1", "ABITS": "1", "RD_PORTS": "1", "WR_PORTS": "1", "RD_CLK_ENABLE": str(int(read_clocked)),
        "RD_CLK_POLARITY": "1", "WR_CLK_ENABLE": str(int(write_clocked)), "WR_CLK_POLARITY": str(int(rising)),
    }  # fmt: skip
    pins = {"RD_ADDR": n["a"], "RD_EN": ["1"], "RD_SRST": ["0"], "RD_DATA": n["q"], "RD_CLK": n[clock]}
    pins |= {"WR_ADDR": n["w"], "WR_DATA": n["d"], "WR_EN": n["e"], "WR_CLK": n[clock]}
    return {"table.mem": [bits, pins]}


def test_memory_starts_and_ends_paths(cells):
    gates = [("INV", "ya"), ("INV", "qz"), ("DFF", "czw")]
    paths = {p.kind: p for p in analyse(cells, t=netlist("cyde", "", gates, {2: "out"}, {}, memory(True))).paths}
    assert {k: (p.start, p.end, p.levels) for k, p in paths.items()} == {
        "input to memory": ("y", "table.mem read address", 1),
        "memory to register": ("table.mem read data", "out", 1),
        "register to memory": ("out", "table.mem write address", 0),
    }
    assert paths["input to memory"].delay == pytest.approx(10)
    later = plane("cell_rise", 0, 2) + plane("rise_constraint", plane("rise_transition", 0, 2), 0)
    assert paths["memory to register"].delay == pytest.approx(later)


def times_by_planes(load: float) -> timing.MemoryTimes:
    """Access 50 + 3 a fF of load (rise), 60 + 4 (fall), slew 2 a fF; setup 20 + slew / 2 (rise), 30 + slew / 4."""

    def table(a, b, c):
        return nldm.Table((0.0, 8.0), (0.0, 4.0), tuple(tuple(a + b * x + c * y for y in (0, 4)) for x in (0, 8)))

    access, slews = (table(50, 1, 3), table(60, 1, 4)), (table(0, 0, 2), table(0, 0, 2))
    return timing.MemoryTimes(access, slews, (table(20, 0.5, 0), table(30, 0.25, 0)), load)


def test_memory_takes_its_access_and_setup_times(cells):
    """By hand: read data through an inverter to the memory's own write data, and to a register."""
    gates = [("INV", "qd"), ("DFF", "cqz"), ("DFF", "czw")]
    part = netlist("cae", "", gates, {1: "out", 2: "held"}, {}, memory(True))
    times = {"t": {"table.mem": times_by_planes(0.5)}}
    found = timing.analyse({"t": part}, cells, "ps", memories=times)["t"]
    paths = {p.kind: p for p in found.paths}
    # q drives an inverter (1.5 fF) and a register (2 fF rising, 3 falling); d drives a write port of the memory.
    ends = {}
    for edge, (base, slope), pin in (("rise", (50, 3), 2), ("fall", (60, 4), 3)):
        load = 1.5 + pin
        arrival, slew = base + slope * load, 2 * load
        ends["memory to register", edge] = arrival + plane(f"{edge}_constraint", slew, 0)
        after = "fall" if edge == "rise" else "rise"
        through = arrival + plane(f"cell_{after}", slew, 0.5)
        slew = plane(f"{after}_transition", slew, 0.5)
        ends["memory to memory", edge] = through + (20 + slew / 2 if after == "rise" else 30 + slew / 4)
    for kind in ("memory to register", "memory to memory"):
        assert paths[kind].delay == pytest.approx(max(v for (k, _), v in ends.items() if k == kind), rel=1e-12), kind
    path = paths["memory to memory"]
    assert (path.start, path.end) == ("table.mem read data", "table.mem write data")
    assert (path.levels, path.steps[0].cell, path.steps[0].instance) == (1, "memory", "table.mem")
    assert [s.arrival for s in path.steps] == pytest.approx(
        [s.delay + x for s, x in zip(path.steps, (0, 78), strict=True)]
    )
    assert paths["input to memory"].delay == pytest.approx(30)
    before = {p.kind: p for p in timing.analyse({"t": part}, cells, "ps")["t"].paths}
    assert before["memory to memory"].delay < path.delay - 80
    assert before["register to register"] == paths["register to register"], "a path that touches no memory"


def test_memory_in_a_leaf_takes_its_times(cells):
    """The same as flat, for a leaf that is read and written through an inverter each."""
    leaf = netlist("cawde", "z", [("INV", "qz")], {}, {}, memory(True))
    top = netlist("ca", "", [("DFF", "cyx"), ("INV", "xd")], {0: "out"})
    top["cells"].append(["u", "leaf", {"c": [4], "a": [2], "w": [2], "e": [2], "d": [5], "z": [26]}])
    flat = netlist("ca", "", [("DFF", "cyx"), ("INV", "xd"), ("INV", "qy")], {0: "out"}, {}, memory(True))
    flat["memories"]["table.mem"][1] |= {"WR_ADDR": [2], "WR_EN": [2]}
    times = timing.memory_times(70, 25)
    one = timing.analyse({"t": flat}, cells, "ps", memories={"t": {"table.mem": times}})["t"]
    two = timing.analyse({"leaf": leaf, "t": top}, cells, "ps", memories={"leaf": {"table.mem": times}})["t"]
    assert {p.kind: p.delay for p in one.paths} == pytest.approx({p.kind: p.delay for p in two.paths})
    assert {p.kind: p.delay for p in one.paths}["input to memory"] == pytest.approx(25)


def test_data_read_without_a_clock_take_the_access_time(cells):
    gates = [("INV", "ya"), ("INV", "qz"), ("DFF", "czw")]
    part = netlist("cyde", "", gates, {2: "out"}, {}, memory(False))
    times = {"t": {"table.mem": timing.memory_times(70, 0)}}
    with_it = timing.analyse({"t": part}, cells, "ps", memories=times)["t"]
    path = next(p for p in with_it.paths if p.kind == "input to register")
    assert [s.cell for s in path.steps] == ["INV", "memory", "INV"]
    assert path.steps[1].delay == 70


def test_data_read_without_a_clock_follow_the_address(cells):
    gates = [("INV", "ya"), ("INV", "qz"), ("DFF", "czw")]
    paths = {p.kind: p for p in analyse(cells, t=netlist("cyde", "", gates, {2: "out"}, {}, memory(False))).paths}
    path = paths["input to register"]
    assert (path.start, path.end, path.levels) == ("y", "out", 2)
    assert [s.cell for s in path.steps] == ["INV", "memory", "INV"]
    assert "memory to register" not in paths


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            netlist("a", "z", [("NAND2", "axb"), ("INV", "bx"), ("INV", "bz")], names={"x": "back", "b": "forth"}),
            "t: combinational loop through (back, forth|forth, back); put a register into it",
        ),
        (
            netlist("abd", "", [("DFF", "adx"), ("DFF", "bdy")], {0: "one", 1: "two"}),
            "t: several clocks, one by the rise of a and two by the rise of b; only one clock is timed",
        ),
        (
            netlist("abd", "", [("NAND2", "abc"), ("DFF", "cdx")], {1: "one"}),
            "t: the clock of one is no input port, nor a clock gate's; only such a clock is timed",
        ),
        (
            netlist("cade", "q", memories=memory(True, rising=False)),
            "several clocks, table.mem read by the rise of c and table.mem write by the fall of c",
        ),
        (
            netlist("cade", "q", memories=memory(True, write_clocked=False)),
            "t: table.mem is written without a clock; only clocked writes are timed",
        ),
    ],
)
def test_what_cannot_be_timed(cells, part, message):
    with pytest.raises(SynthError, match=message):
        analyse(cells, t=part)


def test_edge_without_a_check_may_change_freely(cells):
    """As an asynchronous reset, whose recovery is checked for the edge that ends it."""
    rise, _ = cells["DFF"].checks[0].tables
    loose = cells | {"DFF": dataclasses.replace(cells["DFF"], checks=[nldm.Check("D", (rise, None))])}
    part = netlist("ck", "", [("DFF", "ckq")])
    assert analyse(loose, t=part).delay == pytest.approx(plane("rise_constraint", 0, 0))
    assert analyse(cells, t=part).delay == pytest.approx(plane("fall_constraint", 0, 0))


def test_latch_is_refused(cells):
    part = netlist("ab", "", [("DFF", "abq")], {0: "held"})
    with pytest.raises(SynthError, match=r"t: held is a latch \(DFF\); only edge-triggered registers are timed"):
        analyse(cells | {"DFF": dataclasses.replace(cells["DFF"], latch=True)}, t=part)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("cell_fall (d)", "slow_fall (d)"), "cell INV: no delay tables"),
        (("rise_transition (d)", "x (d)"), "cell INV, pin Y: cell_rise without rise_transition"),
        (("input_net_transition", "output_voltage"), "cell INV, pin Y: cell_rise depends on output_voltage"),
        (('index_2 ("1, 4")', 'index_2 ("1")'), "cell_rise has 6 values for 3 slews and 1 loads"),
        (('index_1 ("5, 20, 100")', 'index_1 ("5, 5, 100")'), "cell_rise has 6 values for 3 slews and 2 loads"),
        (('"0.001ns"', '"1 tick"'), "x.lib: time_unit '1 tick' is not a time such as 1ps"),
        (("(0.001, pf)", "(1, kg)"), "x.lib: capacitive_load_unit '1, kg' is not a capacitance"),
        (("timing_sense", "timing_type : three_state_enable; timing_sense"), "cell INV: no delay tables for pin Y"),
    ],
)
def test_bad_timing_of_a_library(tmp_path, change, message):
    text = library()
    assert change[0] in text
    text = text.replace(*change) if change[0] != "cell_fall (d)" else text.replace("cell_", "slow_")
    (tmp_path / "x.lib").write_text(text)
    found = load([tmp_path / "x.lib"], tmp_path)
    with pytest.raises(SynthError, match=message) as e:
        nldm.load(found, {"INV"})
    assert "\n" not in str(e.value)


# A leaf with a register, a way straight through, and one behind each port; two of them in a chain.
LEAF = netlist(
    "cab", "xyz", [("INV", "af"), ("DFF", "cfg"), ("INV", "gx"), ("NAND2", "aby"), ("INV", "yz")], {1: "held"}
)


def test_leaf_is_seen_from_outside_as_it_is(tmp_path):
    """Hierarchical and flattened by hand give the same paths where cells have no slew and instances the same loads."""
    found = nldm.load(load([EMBEDDED], tmp_path), {"INV", "NAND2", "DFF"})
    number = {chr(97 + i): i + 2 for i in range(26)}
    glue = [("DFF", "cia"), ("INV", "ip"), ("INV", "eo"), ("DFF", "cob"), ("INV", "hj"), ("INV", "gk")]
    split = netlist("c", "pjk", glue, {0: "back0", 3: "back1"})
    flat = netlist("c", "pjk", glue, {0: "back0", 3: "back1"})
    for u, outside in (("u0", "cabdef"), ("u1", "cfdghi")):
        ports = dict(zip("cabxyz", outside, strict=True))
        split["cells"].append([u, "leaf", {p: [number[n]] for p, n in ports.items()}])
        wires = {number[p]: number[n] for p, n in ports.items()}
        for name, kind, pins in LEAF["cells"]:
            inside = {p: [wires.get(b, 100 * int(u[1]) + 100 + b)] for p, (b,) in pins.items()}
            flat["cells"].append([u + name, kind, inside])
        flat["registers"][f"{u}$auto$x.cc:1:y$1"] = f"{u}.held"
    one, two = analyse(found, t=flat), analyse(found, leaf=LEAF, t=split)
    assert {p.kind: p.delay for p in two.paths} == pytest.approx({p.kind: p.delay for p in one.paths})
    assert [(p.kind, p.start, p.end) for p in two.paths] == [(p.kind, p.start, p.end) for p in one.paths]
    assert [(p.start, p.end) for p in two.paths] == [("back0", "back0"), ("back0", "p")]
    through = [s for s in two.paths[0].steps if s.cell == "leaf"]
    assert [s.instance for s in through] == ["u0", "u1"]


def test_longest_path_may_lie_in_a_leaf(cells):
    slow = netlist("c", "", [("DFF", "cba"), ("INV", "ad"), ("INV", "de"), ("INV", "eb")], {0: "loop"})
    top = netlist("cd", "", [("DFF", "cdq")])
    top["cells"] += [[f"u{i}", "slow", {"c": [number]}] for i, number in enumerate((4, 4))]
    t = timing.analyse({"slow": slow, "t": top}, cells, "ps")
    assert (t["t"].paths[0].module, t["t"].paths[0].start, t["t"].levels) == ("slow", "loop", 3)
    assert t["slow"].paths == (t["t"].paths[0],)


def test_registers_keep_their_names(build):
    """Through flattening, resets, enables and, in ASAP7, flip-flops with inverted outputs."""
    text = """
    module stage(input clk, rst, en, input [3:0] d, output reg [3:0] q);
      always @(posedge clk) if (rst) q <= 3; else if (en) q <= d;
    endmodule
    module t(input clk, rst, en, input [3:0] a, output y);
      wire [3:0] early, late;
      stage one(clk, rst, en, a, early);
      stage two(clk, rst, en, early[3] ? early * early + 5 : early, late);
      assign y = ^late;
    endmodule"""
    libraries = [None] + [files for files in (ASAP7, SKY130) if files and files[0].exists()]
    for files in libraries:
        paths = {p.kind: p for p in synthesise(text, "t", files, build=build, gated=0).timing.paths}
        path = paths["register to register"]
        assert path.start.startswith("early["), files
        assert path.end.startswith("late["), files
        assert paths["input to register"].end.partition("[")[0] in ("early", "late"), files
        assert paths["register to output"].start.startswith("late["), files
        assert paths["register to output"].end == "y"


def test_flow_times_what_it_maps(tmp_path):
    text = (
        "module t(input clk, input d, output reg q); reg p; always @(posedge clk) begin p <= d; q <= ~p; end endmodule"
    )
    a = synthesise(text, "t", build=tmp_path)
    path = a.timing.paths[0]
    assert (path.start, path.end, path.levels) == ("p", "q", 1)
    assert path.delay == pytest.approx((13 + 1) + (1 + 1) + 9)  # each drives one pin
    assert (a.timing.unit, a.timing.fmax_mhz) == ("tau", None)
    assert synthesise(text, "t", build=tmp_path) == a, "and recalls it"
    memory = {p.kind: p for p in synthesise(RAM, "t", build=tmp_path).timing.paths}
    assert (memory["memory to output"].start, memory["memory to output"].levels) == ("left.mem read data[0]", 1)
    assert memory["input to memory"].delay == 0


@needs_pdk
def test_untimed_design_keeps_its_area(build):
    text = "module t(input a, b, d, output reg p, q); always @(posedge a) p <= d; always @(posedge b) q <= d; endmodule"
    a = synthesise(text, "t", SKY130, build=build)
    assert (a.registers, a.timing) == (2, None)
    assert "several clocks" in a.untimed
    latch = "module t(input e, d, output reg q); always @* if (e) q = d; endmodule"
    a = synthesise(latch, "t", SKY130, build=build)
    assert "t: q is a latch" in a.untimed


def corner(x, y, xs, ys, values):
    """Value at (x, y) of the bilinear surface through four points."""
    u, v = (x - xs[0]) / (xs[1] - xs[0]), (y - ys[0]) / (ys[1] - ys[0])
    (a, b), (c, d) = values
    return a + (c - a) * u + (b - a) * v + (a - b - c + d) * u * v


@needs_pdk
def test_sky130_register_by_its_tables(build):
    """Numbers of dfxtp_1 copied from the file, in ns and pF; its setup tables have the clock's slew in rows."""
    text = "module t(input clk, d, output reg q); reg p; always @(posedge clk) begin p <= d; q <= p; end endmodule"
    path = synthesise(text, "t", SKY130, build=build).timing.paths[0]
    assert (path.start, path.end, path.steps[0].cell) == ("p", "q", "sky130_fd_sc_hd__dfxtp_1")
    at = (0.01, 0.0230506), (0.00131045, 0.00343455)
    setup = (0.01, 0.5), (0.01, 0.5)
    load = 0.001674
    rise = corner(0, load, *at, ((0.2759120, 0.2912889), (0.2806270, 0.2959557)))
    slew = corner(0, load, *at, ((0.0298911, 0.0475084), (0.0299373, 0.0474781)))
    rise += corner(0, slew, *setup, ((0.0508281, 0.1649557), (-0.0181335, 0.0837871)))
    load = 0.001681
    fall = corner(0, load, *at, ((0.2704631, 0.2814136), (0.2750948, 0.2860738)))
    slew = corner(0, load, *at, ((0.0209158, 0.0305161), (0.0208936, 0.0304365)))
    fall += corner(0, slew, *setup, ((0.1033184, 0.3187643), (-0.0108092, 0.1997539)))
    assert path.delay == pytest.approx(1000 * max(rise, fall), rel=1e-6)


def test_signals_between_the_ends_of_a_path(tmp_path):
    text = """module t(input clk, input [7:0] a, output reg [7:0] q, output y);
      reg [7:0] p; wire [7:0] mixed = p ^ {p[3:0], p[7:4]}; wire [7:0] _1_ = mixed + q; wire [7:0] sum = _1_ + mixed;
      reg [7:0] mem [0:63]; wire [5:0] place = q[5:0] ^ p[5:0]; wire [7:0] word = mem[place];
      always @(posedge clk) begin p <= a; q <= sum ^ (sum >> 3); mem[p[5:0]] <= q; end
      assign y = word == 3;
    endmodule"""
    paths = {p.kind: p for p in synthesise(text, "t", build=tmp_path).timing.paths}
    path = paths["register to register"]
    assert (path.start.partition("[")[0], path.end.partition("[")[0], path.through) == ("p", "q", ("mixed", "sum"))
    assert paths["register to output"].through == ("place", "word")
    assert paths["input to register"].through == ()


def test_longest_way_through_the_source():
    gates = {"5": ["2", "3"], "6": ["5", "4"], "7": ["2", "6"], "8": ["4", "3"]}
    names = {"5": "first[3]", "6": "first[4]", "7": "second", "2": "a", "8": "other"}
    graph = {"gates": gates, "names": names, "starts": {"a": ["2"], "m read data": ["4"]}, "ends": {"b": ["2", "7"]}}
    graph["ends"]["m write enable"] = ["8", "x"]
    assert source_names.through(graph, "a", "b") == ("first", "second")
    assert source_names.through(graph, "m read 1 data[3]", "b") == ("first", "second")
    assert source_names.through(graph, "m read data", "m write 0 enable") == ("other",)
    assert source_names.through(graph, "a", "m write enable") == ()
    assert source_names.through(graph, "none", "b") == ()


# OpenSTA.

STAND_IN = """#!{python}
import pathlib, re, sys
assert sys.argv[1:] == ["-no_init", "-no_splash", "-exit", "top.tcl"], sys.argv
script = pathlib.Path("top.tcl").read_text().splitlines()
assert "default_wire_load" not in pathlib.Path("0.lib").read_text()
net = pathlib.Path("top.v").read_text()
for line in {lines}:
    assert line in script, script
assert re.search(r"DFF u[0-9]+ \\(.*\\.CK\\(clk\\[0\\]\\)", net), net
register = re.search(r"DFF (u[0-9]+)", net)[1]
print("Startpoint: p1[1] (input port clocked by clk)\\nEndpoint: " + register + " (rising edge-triggered)")
print("  99958.000   data required time\\n  -42.500   data arrival time\\n  {slack}   slack (MET)")
"""
TO_REGISTER = "module t(input clk, input [1:0] a, output reg state); always @(posedge clk) state <= ~&a; endmodule"
needs_sta = pytest.mark.skipif(shutil.which("sta") is None, reason="OpenSTA is not installed")


def synthesised(text: str, files: list, build):
    netlists, used = netlists_of(text, "t", files, macro_bits=64, build=build)
    return netlists["t"]["netlist"], used


def test_opensta_is_given_the_netlist_and_the_same_model(tmp_path, monkeypatch):
    (tmp_path / "planes.lib").write_text(library().replace("cell (INV)", 'default_wire_load : "Small"; cell (INV)', 1))
    lines = [
        "read_liberty 0.lib",
        "link_design t",
        "set_cmd_units -time ps",
        "set_output_delay 0 -clock clk [all_outputs]",
    ]
    lines.append(f"create_clock -name clk -period {opensta.PERIOD:g} [get_ports clk]")
    (tmp_path / "sta").write_text(STAND_IN.format(python=sys.executable, lines=lines, slack=opensta.PERIOD - 42.5))
    (tmp_path / "sta").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    given, used = synthesised(TO_REGISTER, [tmp_path / "planes.lib"], tmp_path / "build")
    assert opensta.longest("t", given, used) == opensta.StaPath("a[1]", "state", 42.5)
    (tmp_path / "sta").write_text("#!/bin/sh\necho Error: top.tcl line 3, t not found.\n")
    with pytest.raises(SynthError, match="t: OpenSTA found no path: Error: top.tcl line 3, t not found."):
        opensta.longest("t", given, used)


def test_opensta_that_cannot_be_used(tmp_path, monkeypatch):
    given, used = synthesised(TO_REGISTER, None, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SynthError, match="OpenSTA: no 'sta' on PATH; install it"):
        opensta.longest("t", given, used)
    (tmp_path / "sta").touch(0o755)
    with pytest.raises(SynthError, match="t: OpenSTA is given flat designs only; this one holds leaf"):
        opensta.longest("t", given | {"cells": [*given["cells"], ["u", "leaf", {}]]}, used)


@needs_sta
@pytest.mark.parametrize("text", [TO_REGISTER, RAM])
def test_delays_are_those_of_opensta(tmp_path, text):
    given, used = synthesised(text, None, tmp_path)
    ours = synthesise(text, "t", macro_bits=64, build=tmp_path).timing.delay
    assert opensta.longest("t", given, used).delay == pytest.approx(ours, abs=0.02)


@needs_sta
def test_delays_with_a_memory_are_those_of_opensta(tmp_path):
    """The model's times, and tables by slew and load, which OpenSTA reads from the file that we write for it."""
    found = flow.with_memories(RAM, "t", macro_bits=64, build=tmp_path)
    netlist, library = found.netlists["t"]["netlist"], found.library
    theirs = opensta.longest("t", netlist, library, memories=found.times["t"])
    assert theirs.delay == pytest.approx(found.timing.delay, abs=0.02)
    assert (theirs.start, theirs.end) == ("left.mem", "y[0]")
    times = {"left.mem": times_by_planes(3.0)}
    own = timing.analyse(
        {"t": netlist}, nldm.load(library, {c for _, c, _ in netlist["cells"]}), "tau", None, {"t": times}
    )
    theirs = opensta.longest("t", netlist, library, memories=times)
    assert theirs.delay == pytest.approx(own["t"].delay, abs=0.02)
    assert own["t"].delay != pytest.approx(found.timing.delay, abs=1)


MACRO = """library (m) { time_unit : "1ns"; capacitive_load_unit (1, pf);
  lu_table_template (d) { variable_1 : input_net_transition; variable_2 : total_output_net_capacitance;
    index_1 ("0.01, 0.1"); index_2 ("0.001, 0.01"); }
  cell (small) { area : 9; memory () { type : ram; address_width : 6; word_width : 16; }
    pin (CE) { direction : input; timing () { timing_type : setup_rising; related_pin : "CK";
      rise_constraint (scalar) { values ("7"); } fall_constraint (scalar) { values ("7"); } } }
    bus (A) { direction : input; capacitance : 0.002; timing () { timing_type : setup_rising; related_pin : "CK";
      rise_constraint (scalar) { values ("0.05"); } fall_constraint (scalar) { values ("-0.02"); } } }
    bus (D) { direction : input; pin (D[15:0]) { capacitance : 0.003;
      timing () { timing_type : setup_rising; related_pin : "CK";
        rise_constraint (scalar) { values ("0.04"); } fall_constraint (scalar) { values ("0.06"); } } } }
    bus (Q) { direction : output;
      timing () { timing_type : rising_edge; related_pin : "CK"; when : "!TM";
        cell_rise (d) { values ("0.3, 0.4", "0.5, 0.6"); } cell_fall (d) { values ("0.2, 0.3", "0.4, 0.5"); }
        rise_transition (d) { values ("0.01, 0.02", "0.01, 0.02"); }
        fall_transition (d) { values ("0.01, 0.02", "0.01, 0.02"); } }
      timing () { timing_type : rising_edge; related_pin : "CK"; when : "TM";
        cell_rise (scalar) { values ("0.1"); } cell_fall (scalar) { values ("0.1"); }
        rise_transition (scalar) { values ("0"); } fall_transition (scalar) { values ("0"); } } }
  }
}"""


def test_times_of_a_macro_s_liberty(tmp_path):
    path = tmp_path / "m.lib"
    path.write_text(MACRO)
    (macro,) = memory_times.read(path)
    assert (macro.name, macro.words, macro.bits, macro.times.load) == ("small", 64, 16, 3.0)
    assert [t.values[0][0] for t in macro.times.access] == [300, 200]
    assert [t.values[0][1] for t in macro.times.slews] == [20, 20]
    assert [t.values for t in macro.times.setup] == [((50,),), ((60,),)], "of buses: a pin may be a reset"
    library = load([EMBEDDED], tmp_path)
    for words, bits, source in ((64, 16, "small"), (33, 16, "small"), (32, 16, "model"), (64, 8, "model")):
        found, said = memory_times.times(Sram(words, bits), library, [macro])
        assert said == source
        assert (found is macro.times) == (source == "small")
    found, _ = memory_times.times(Sram(64, 16, node=14), library)
    ratio = 5 / NODES[14].fo4.value
    assert found.access[0].values[0][0] == pytest.approx(Sram(64, 16, node=14).access.value * ratio)
    with pytest.raises(SynthError, match="macro small: has times in ps, the embedded library has none; give --liberty"):
        flow.with_memories(RAM, "t", macros=[macro], macro_bits=64, build=tmp_path)
    for change, message in (
        (("memory ()", "memo ()"), "m.lib: no cell in it has a memory group"),
        (("cell_rise", "x"), "cell small: its output buses have no cell_rise of rising_edge"),
        (("word_width", "width"), "cell small: word_width '' is not a number"),
    ):
        path.write_text(MACRO.replace(*change))
        with pytest.raises(SynthError, match=message):
            memory_times.read(path)


@needs_pdk
def test_a_library_s_memories_are_of_its_node(build):
    nodes = [memory_times.node_of(load(files, build)) for files in (ASAP7, SKY130, [EMBEDDED])]
    assert nodes == [7, 130, memory_times.EMBEDDED_NODE]


def test_wires_load_their_driver_and_delay_what_is_behind(cells):
    part = netlist("a", "d", [("INV", "ab"), ("INV", "bc"), ("INV", "cd")])
    (plain,) = timing.analyse({"t": part}, cells, "ps")["t"].paths
    (same,) = timing.analyse({"t": part}, cells, "ps", {3: (0.0, 0.0)})["t"].paths
    assert same == plain
    # A wire of 4 fF at the last net is a load of 4 fF; the delays of three nets come on top.
    wired = timing.analyse({"t": part}, cells, "ps", {2: (7.0, 1.0), 4: (0.0, 2.0), 5: (4.0, 3.0)})["t"].paths[0]
    assert wired.delay == pytest.approx(max(chain(edge, 3, 4.0)[0] for edge in (0, 1)) + 6, rel=1e-12)
    assert [s.arrival for s in wired.steps][-1] == pytest.approx(wired.delay)
    assert (wired.start, wired.end) == ("a", "d")


@needs_sta
def test_opensta_sees_the_same_capacitance(tmp_path):
    given, used = synthesised(TO_REGISTER, None, tmp_path)
    ((_, kind, pins),) = [c for c in given["cells"] if "Q" not in c[2]]
    (out,) = pins["Y"]
    ends = {}
    for i, (_, _, own) in enumerate(given["cells"]):
        ends |= {(f"u{i}", p): i + 1 for p, bits in own.items() if bits == [out]}
    wire = Wire({}, 0, 3, ((1, 2, 1e-6, 0.0), (0, 1, 1e-6, 12.0)), ends, ())
    cells = nldm.load(used, {k for _, k, _ in given["cells"]})
    ours = timing.analyse({"t": given}, cells, "tau", {out: (12.0, 0.0)})["t"].delay
    assert ours > timing.analyse({"t": given}, cells, "tau")["t"].delay + 1
    assert opensta.longest("t", given, used, {f"n{out}": wire}).delay == pytest.approx(ours, rel=2e-3)
