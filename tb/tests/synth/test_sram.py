"""The SRAM model against published macros and the paper's, the node step, and Table III's sums."""

from dataclasses import replace
from pathlib import Path

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.synth import technology
from openvrex.synth.agreement import agreement
from openvrex.synth.flow import MACRO_BITS, Area, MemoryMacro
from openvrex.synth.liberty import EMBEDDED, load
from openvrex.synth.sram import (
    ACCESS_FACTOR,
    AREA_SPREAD,
    ENERGY_FACTOR,
    FITTED,
    FITTED_NODE,
    MODELS,
    POINTS,
    SETUP_FACTOR,
    Fit,
    Point,
    Sram,
    crossover,
    fitted,
    left_out,
)
from openvrex.synth.table3 import CONTROL, CORE, LXE_BITS, OWN, PAPER, powers_of, table3
from openvrex.synth.technology import NODES, Estimate, to_node

SKY130 = [p for p in POINTS if p.cell == 1.896]  # their areas follow no model of ours: docs/size.md says by how much


@pytest.mark.parametrize("point", POINTS, ids=lambda p: p.name)
def test_published_macros_lie_in_the_stated_spread(point):
    errors = point.errors()
    assert errors
    assert point in SKY130 or abs(errors.get("area", 0)) < AREA_SPREAD
    assert 1 / ENERGY_FACTOR < 1 + errors.get("energy", 0) < ENERGY_FACTOR
    if point.node == FITTED_NODE and point.access:
        unseen = left_out(point, generator=True)
        for name, factor in (("access", ACCESS_FACTOR), ("setup", SETUP_FACTOR)):
            assert 1 / factor < 1 + errors.get(name, 0) < factor
            assert 1 / factor < 1 + unseen.get(name, 0) < factor


def test_calibration_residuals():
    """What docs/size.md states."""
    own = [p.errors() | {"sky130": p in SKY130} for p in POINTS]
    areas = [abs(e["area"]) for e in own if "area" in e and not e["sky130"]]
    assert (max(areas), sum(areas) / len(areas)) == pytest.approx((0.119, 0.052), abs=2e-3)
    assert max(abs(e["energy"]) for e in own if "energy" in e) == pytest.approx(0.394, abs=2e-3)
    assert sorted(1 / (1 + p.errors()["area"]) for p in SKY130 if p.area) == pytest.approx([1.39, 3.60, 4.81], abs=0.01)
    timed = [p for p in POINTS if p.access and p.node == FITTED_NODE]
    macros, generators = ([left_out(p, g)["access"] for p in timed] for g in (False, True))
    assert (min(macros), max(macros)) == pytest.approx((-0.237, 0.755), abs=2e-3)
    assert (min(generators), max(generators)) == pytest.approx((-0.301, 0.755), abs=2e-3)
    assert all(p.errors()["access"] == pytest.approx(0, abs=1e-9) for p in POINTS if p.access and p not in timed)
    (asap7,) = (p for p in POINTS if p.access and p.node == 7)
    assert left_out(asap7)["access"] == pytest.approx(5.08, abs=0.01), "delays that follow FO4 are six times too long"


def test_fit_finds_the_parameters_of_made_macros():
    """Two generators of which one is twice as slow, and one at another node."""

    def point(rows, columns, access, setup=0.0, node=130, generator="slow"):
        return Point("", 1, rows, columns, 1.0, 0.0, 0.0, access, setup, node=node, generator=generator)

    shapes = ((16, 32), (64, 256), (256, 64), (512, 128))
    slow = [point(r, c, 2 * (1000 + 3 * r + 0.5 * c), 400) for r, c in shapes]
    fast = [point(r, c, 1000 + 3 * r + 0.5 * c, 100, generator="fast") for r, c in shapes[:3]]
    small = point(64, 256, 2**0.5 * (1000 + 3 * 64 + 0.5 * 256) / 10, 20, 13, "small")
    fit = fitted((*slow, *fast, small))
    assert fit == Fit(*(pytest.approx(x, rel=1e-9) for x in (1000 * 2**0.5, 3 * 2**0.5, 0.5 * 2**0.5, 200, 1, 1)))
    assert fitted((*slow, *fast)).exponent == pytest.approx(0.4845, rel=1e-3), "no other node: as FO4"


def test_times_of_a_macro_by_hand():
    """1,024 words of 32 bits of one port: an array of 256 rows and 128 columns."""
    for nanometres, factor in ((130, 1.0), (14, (14 / 130) ** FITTED.exponent)):
        s = Sram(1024, 32, node=nanometres, shared=True)
        assert s.organisation[:4] == (1, 1, 256, 128)
        array = factor * (FITTED.start + 256 * FITTED.row + 128 * FITTED.column)
        assert s.access.value == pytest.approx(array + 100 * s.area.value**0.5 / 1000)
        assert s.access.high == pytest.approx(ACCESS_FACTOR * s.access.value)
    assert Sram(64, 8, node=7).setup.value == pytest.approx(48), "ASAP7's"


def test_models_are_not_fitted():
    assert not {p.name for p in MODELS} & {p.name for p in POINTS}
    assert all(p.errors()["access"] > 1 for p in MODELS if p.node != 7), "theirs are far shorter than any circuit's"


def test_memory_of_the_paper():
    """384 KB in 0.34 mm² at 14 nm: ours is 0.329, 3 % less, whatever the shape of large macros."""
    for words, bits in ((6144, 512), (49152, 64)):
        s = Sram(words, bits, node=14, shared=True)
        assert s.capacity == LXE_BITS
        assert s.area.value * 1e-6 == pytest.approx(0.34, rel=0.04)
        assert s.area.low * 1e-6 < 0.34 < s.area.high * 1e-6
        assert s.efficiency == pytest.approx(0.766, abs=0.001)


def test_organisation_is_the_smallest():
    s = Sram(1024, 64, shared=True)
    assert s.organisation == (1, 1, 256, 256, 4)
    assert s.area.value == pytest.approx(NODES[14].bitcell.value * (256 + 33) * (256 + 26))
    assert Sram(2048, 64, shared=True).organisation == (2, 1, 256, 256, 4)
    assert Sram(32, 1024).organisation == (1, 4, 32, 256, 1)
    assert Sram(1, 1).organisation == (1, 1, 1, 1, 1)
    # Efficiency rises with size and falls with ports.
    sizes = [Sram(n, 32).efficiency for n in (16, 64, 256, 1024)]
    assert sizes == sorted(sizes)
    assert Sram(256, 32, shared=True).efficiency > Sram(256, 32).efficiency


def test_energy_leakage_and_access_follow_size_ports_and_node():
    one, two = Sram(1024, 64), Sram(1024, 64, read_ports=2)
    assert (two.capacity, two.leakage) == (2 * one.capacity, 2 * one.leakage)
    assert two.area.value == pytest.approx(2 * one.area.value)
    assert two.read_energy == one.read_energy
    assert two.write_energy.value == pytest.approx(2 * one.write_energy.value)
    assert Sram(64, 256).read_energy.value > 1.8 * Sram(64, 128).read_energy.value
    nodes = [Sram(1024, 64, node=n) for n in NODES]
    for name in ("area", "read_energy", "access", "setup"):
        values = [getattr(s, name).value for s in nodes if s.node != 16]  # TSMC's cell is smaller than Samsung's at 14
        assert values == sorted(values)
        for s in nodes:
            e = getattr(s, name)
            assert e.low < e.value < e.high


def test_macros_pay_from_about_the_size_that_leaves_the_logic():
    """At `MACRO_BITS` a macro is smaller than flip-flops for words of 16 bits or more; one or two words never pay."""
    for node in (7, 14, 28):
        for bits in (16, 32, 64):
            words = crossover(bits, node)
            assert words > 2
            assert words * bits <= MACRO_BITS
            flip_flops = 10.7 * NODES[node].nand2.value * words * bits
            assert Sram(words, bits, node=node).area.value <= flip_flops


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": 0}, "words=0: must be at least 1"),
        ({"bits": 0}, "bits=0: must be at least 1"),
        ({"read_ports": 0}, "read_ports=0: must be at least 1"),
        ({"write_ports": 2}, "write_ports=2: must be 1"),
        ({"node": 10}, "node=10: must be one of 7, 14, 16, 28, 45, 130"),
    ],
)
def test_bad_macro(options, message):
    with pytest.raises(ParamError, match=message):
        Sram(**{"words": 64, "bits": 64} | options)


def test_gates_to_a_node():
    e = to_node(1000, 14)
    assert e.value == pytest.approx(1000 * 3 * 0.078 * 0.576, rel=1e-3), "three gate pitches, nine tracks of 64 nm"
    spread = technology.LIBRARY_SPREAD
    assert e.low == pytest.approx(1000 * 3 * 0.078 * 0.480 * (1 - spread), rel=1e-3)
    assert e.high == pytest.approx(1000 * 4 * 0.078 * 0.576 * (1 + spread), rel=1e-3)
    assert to_node(1, 130).value == 3.7536, "SKY130's own"
    values = [to_node(1, n).value for n in NODES]
    assert values == sorted(values)
    for n in NODES.values():
        assert n.source
        for x in (n.nand2, n.fo4, n.bitcell):
            assert x.low <= x.value <= x.high


def test_fo4(tmp_path):
    assert technology.fo4(load([EMBEDDED], tmp_path)) == pytest.approx(5), "tau is a fifth of it"
    assert (NODES[7].fo4.value, NODES[130].fo4.value) == (19.5, 80.3)
    assert pytest.approx(80.3, rel=1e-3) == 19.5 * (130 / 7) ** 0.4845, "the line through both"
    assert NODES[14].fo4.value == pytest.approx(27.3, abs=0.05)
    sky130 = Path(__file__).parents[4] / "shared" / "pdk" / "sky130hd_tt.lib.gz"
    if sky130.exists():
        assert technology.fo4(load([sky130], tmp_path)) == pytest.approx(80.3, abs=0.05)


def test_estimates_move_together():
    a, b = Estimate(1, 2, 4), Estimate(10, 20, 30)
    assert a + b == Estimate(11, 22, 34)
    assert a * b == Estimate(10, 40, 120)
    assert 2 * a == a * 2 == a + a


def area(top: str, comb: float, reg: float, *memories: MemoryMacro) -> Area:
    return Area(
        top,
        "area",
        ("openvrex",),
        False,
        "NAND2",
        1.0,
        comb,
        reg,
        0,
        0,
        {},
        memories,
        (),
        None,
        "",
        cpu_seconds=0,
        peak_mb=0,
    )


def test_table_sums():
    units = {
        "dpe": area("dpe", 4e6, 1e6, MemoryMacro("w", 1024, 32, 1, 1, count=64)),
        "vpe": area("vpe", 4e5, 1e5, MemoryMacro("a", 2048, 64, 1, 1)),
        "hcu": area("hcu", 1000, 500, MemoryMacro("h", 32, 1024, 1, 1)),
        "wtu": area("wtu", 3e4, 1e4, MemoryMacro("s", 176, 128, 1, 1)),
        "cluster_set": area("cluster_set", 2000, 1000),
        "kvmu": area("kvmu", 4000, 3000, MemoryMacro("t", 44, 1024, 1, 1, shared=True)),
        "table_port": area("table_port", 900, 700),
        "dre": area("dre", 38000, 15300, MemoryMacro("h", 32, 1024, 1, 1), MemoryMacro("s", 176, 128, 1, 1)),
        "sequencer": area("sequencer", 9000, 8000, MemoryMacro("program", 256, 512, 1, 1)),
        "loader": area("loader", 700, 600),
        "storer": area("storer", 50, 40),
        "feeder": area("feeder", 3, 2),
        "retriever": area("retriever", 20, 10, MemoryMacro("buffer", 512, 144, 1, 1)),
        "lxe_join": area("lxe", 1, 1, MemoryMacro("queue", 2048, 15, 1, 1)),
    }
    memories = (*units["dre"].memories, *units["kvmu"].memories, MemoryMacro("glue", 64, 64, 1, 1))
    units["dre"] = replace(units["dre"], memories=memories)
    rows = table3(units)
    assert list(rows) == [*PAPER, *OWN, *CONTROL, "dre", "core"]
    assert rows["core"].paper_area == pytest.approx(CORE, rel=1e-3)
    assert rows["dre"].paper_area / CORE == pytest.approx(0.0204)
    assert rows["wtu"].cells.value == pytest.approx(to_node(32000).value * 1e-6)
    assert rows["wtu"].registers.value == pytest.approx(to_node(11000).value * 1e-6)
    assert rows["wtu"].memories.value == pytest.approx(Sram(128, 176).area.value * 1e-6)
    assert rows["memory"].bits == LXE_BITS, "what its units leave is filled up"
    shapes = [*[(32, 1024)] * 64, (64, 2048), (512, 256), (15, 2048)]
    own = sum(Sram(*shape).area.value for shape in shapes)
    left = (LXE_BITS - sum(words * bits for words, bits in shapes)) // 512
    assert rows["memory"].area.value == pytest.approx((own + Sram(left, 512, shared=True).area.value) * 1e-6)
    assert rows["lxe"].area.value == pytest.approx(to_node(9751 + 8641).value * 1e-6), "memories are in their own row"
    assert rows["copies"].area.value == pytest.approx((to_node(35).value + Sram(144, 512).area.value) * 1e-6)
    assert rows["table_port"].area.value == pytest.approx(to_node(1600).value * 1e-6)
    assert rows["glue"].cells.value == pytest.approx(to_node(100).value * 1e-6)
    assert rows["glue"].memories.value == pytest.approx(Sram(64, 64).area.value * 1e-6)
    whole = to_node(38000 + 15300).value + sum(Sram(m.depth, m.width, shared=m.shared).area.value for m in memories)
    assert rows["dre"].area.value == pytest.approx(whole * 1e-6)
    assert rows["core"].area.value == pytest.approx(sum(rows[u].area.value for u in (*PAPER, *OWN, *CONTROL)))
    assert rows["core"].power is None
    powers = dict.fromkeys((*PAPER, *OWN), Estimate(1.0, 2.0, 3.0))
    assert table3(units, powers)["core"].power == Estimate(8.0, 16.0, 24.0)
    assert table3(units, powers)["dre"].power.value == 10.0


def test_powers_of_units():
    def unit(logic: float, memory: float) -> dict:
        parts = {"dynamic_mw": logic - 1, "leakage_mw": 1.0, "memory_mw": memory, "total_mw": logic + memory}
        return {n: {"low": v, "value": v, "high": 2 * v} for n, v in parts.items()}

    inside = ("hcu", "wtu0", "wtu1", "cluster_set", "kvmu", "table_port")
    parts = {f"dre__{n}": unit(10.0 * (i + 1), 1.0) for i, n in enumerate(inside)}
    units = {"vpe": unit(50.0, 1.0), "dpe": unit(60.0, 1.0), "hcu": unit(500.0, 1.0)}
    found = powers_of(units | {"dre": {"parts": parts | {"dre": unit(3.0, 0.0)}}})
    assert set(found) == {*PAPER, *OWN}
    values = {n: p.value for n, p in found.items()}
    own = {"hcu": 11, "wtu": 21 + 31 + 41, "kvmu": 51, "table_port": 61, "glue": 3}
    assert values == {"dpe": 60, "vpe": 50, "memory": 2} | own
    assert found["hcu"].high == 22
    assert set(powers_of({"dpe": units["dpe"], "hcu": units["hcu"]})) == {"dpe"}, "units alone are not the DRE's"
    with pytest.raises(ParamError, match="leakage_mw=None: not of unit dpe"):
        powers_of({"dpe": {"dynamic_mw": {"low": 1, "value": 1, "high": 1}}})
    with pytest.raises(ParamError, match="parts=None: not of unit dre"):
        powers_of({"dre": units["dpe"]})


def test_agreement_of_libraries():
    one, other = {"a": 1.0, "b": 2.0, "c": 4.0}, {"a": 10.0, "b": 22.0, "c": 40.0, "d": 1.0}
    found = agreement(one, other)
    assert (found.names, found.rank) == (("a", "b", "c"), pytest.approx(1))
    assert found.factor == pytest.approx((10 * 11) ** 0.5)
    assert found.worst == pytest.approx(1 - (10 / 11) ** 0.5, rel=0.1)
    assert agreement(one, {"a": 3, "b": 2, "c": 1}).rank == pytest.approx(-1)
    with pytest.raises(ValueError, match="only a is measured with both"):
        agreement(one, {"a": 1.0})
