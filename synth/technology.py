"""Converts gate equivalents and FO4 delays to square micrometres and picoseconds at a process node, with intervals.

Area = gate equivalents x NAND2 of the node (`to_node`). Delay = delay over the library's FO4 (`fo4`) x FO4 of the
node. The gate equivalents may come from any library (`flow.Area.total_ge`). Area is cell area: no utilisation, no
wires and no clock tree, as in a pre-layout synthesis report (V-Rex section VI-A).

NAND2 of a FinFET node = contacted gate pitch x 3 columns (2 gates and a single diffusion break) x cell height. Double
diffusion breaks take 4 columns, as in ASAP7's NAND2xp33. Intervals are ranges of published processes and libraries,
not standard deviations. They are the same for all units of a node, so ratios of logic areas do not depend on them.

Only commonly quoted, so to be checked before a decision hangs on one: the sizes of 28, 40, 45 and Intel's 130 nm, TSMC
N7's pitches, Intel's densities of 14.5, 4.2 and 23.6 Mb/mm2, SKY130's bit cell; in `synth.sram`, Horowitz's energy of
an access, and the factor 1.30 that a two-port cell is larger at least.
"""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.function_params import check
from openvrex.synth import nldm
from openvrex.synth.liberty import Library

# Gate equivalents of one unit by two of the libraries (embedded, ASAP7, SKY130) differ by at most 1.23, docs/size.md.
LIBRARY_SPREAD = 0.25


@dataclass(frozen=True)
class Estimate:
    """A value and the interval that its sources span.

    Sums and products combine low with low and high with high, because all parts share the uncertainty of the node.
    """

    low: float
    value: float
    high: float

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.low + other.low, self.value + other.value, self.high + other.high)

    def __mul__(self, other: "float | Estimate") -> "Estimate":
        if not isinstance(other, Estimate):
            other = Estimate(other, other, other)
        return Estimate(self.low * other.low, self.value * other.value, self.high * other.high)

    __rmul__ = __mul__


ZERO = Estimate(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Node:
    """A process node.

    nand2 : area of the smallest two-input NAND (µm²)
    fo4 : delay of an inverter that drives four copies of itself (ps)
    bitcell : area of the six-transistor SRAM cell (µm²)
    volts : nominal supply
    source : publications of `nand2` and `bitcell`, in the order low, value, high
    """

    nand2: Estimate
    fo4: Estimate
    bitcell: Estimate
    volts: float
    source: str


def _fo4(node: int, value: float | None = None) -> Estimate:
    """FO4 (ps) on the line through ASAP7 (19.5 ps, INVx1 at 0.7 V) and SKY130 (80.3 ps, inv_1 at 1.8 V) in log scales.

    Both were measured on the libraries' tables with `synth.nldm`, at the slew of a chain of such inverters. The
    interval is a quarter each way: INVx2 and x4, inv_2 and inv_4 lie within 13 %, and the supplies and thresholds of a
    node span the rest.
    """
    value = value or 19.5 * (node / 7) ** 0.4845
    return Estimate(0.75 * value, value, 1.25 * value)


NODES = {
    7: Node(
        Estimate(0.0410, 0.05832, 0.08748),
        _fo4(7),
        Estimate(0.026, 0.02916, 0.0367),
        0.7,
        "NAND2: TSMC N7 3 x 57 x 240 nm; ASAP7 NAND2xp33; ASAP7 NAND2x1. Cell: Samsung (Song, ISSCC 2018, 11.2); "
        "ASAP7 (Vashishtha et al., Robust 7-nm SRAM Design on a Predictive PDK, ISCAS 2017); Intel 10 nm low voltage "
        "(Guo et al., A 23.6Mb/mm2 SRAM in 10nm FinFET, ISSCC 2018)",
    ),
    14: Node(
        Estimate(0.1123, 0.1348, 0.1797),
        _fo4(14),
        Estimate(0.0588, 0.080, 0.090),
        0.8,
        "NAND2: Samsung and GlobalFoundries 14LPP, gate pitch 78 nm, metal 64 nm: 7.5 tracks; 9 tracks; 9 tracks, "
        "double diffusion break. Cell: Intel (Karl et al., A 0.6V 1.5GHz 84Mb SRAM in 14nm FinFET, ISSCC 2015, high "
        "current); Samsung high performance (Song et al., A 14nm FinFET 128Mb 6T SRAM, ISSCC 2014; 0.064 is its high "
        "density); IBM 14 nm. All in WikiChip, 14 nm lithography process",
    ),
    16: Node(
        Estimate(0.1296, 0.1555, 0.2074),
        _fo4(16),
        Estimate(0.064, 0.070, 0.090),
        0.8,
        "NAND2: TSMC 16FF, gate pitch 90 nm, metal 64 nm: 7.5; 9; 9 tracks, double diffusion break. Cell: Samsung "
        "14 nm high density; TSMC (Chen et al., A 16 nm 128 Mb SRAM in High-k Metal-Gate FinFET, JSSC 50.1, 2015); "
        "IBM 14 nm. WikiChip, 16 nm lithography process",
    ),
    28: Node(
        Estimate(0.284, 0.378, 0.4896),
        _fo4(28),
        Estimate(0.120, 0.155, 0.197),
        0.9,
        "NAND2: 3 x 117 x 810 nm (9 tracks); 3 x 140 x 900 nm (9 tracks); ST 28 FD-SOI, 12 tracks. Cell: ST 28 FD-SOI "
        "0.120 and 0.197 (Planes et al., 28nm FDSOI Technology Platform, VLSI 2012); TSMC 28 nm high current",
    ),
    45: Node(
        Estimate(0.7056, 0.798, 1.037),
        _fo4(45),
        Estimate(0.242, 0.346, 0.382),
        1.0,
        "NAND2: TSMC 40 nm 9 tracks; Nangate45 NAND2_X1; 1.3 x Nangate45. Cell: TSMC 40 nm; Intel 0.346 and 0.382 "
        "(Bhattacharya et al., 45nm SRAM Technology Development, Intel Technology Journal 12.2, 2008)",
    ),
    130: Node(
        Estimate(3.7536, 3.7536, 7.2576),
        _fo4(130, 80.3),
        Estimate(1.896, 2.45, 3.2275),
        1.2,
        "NAND2: SKY130 HD nand2_1, twice; IHP SG13G2 nand2_1. Cell: SKY130 (1.2 x 1.58 um, OpenRAM and SRAM22); Intel "
        "130 nm (Tyagi et al., IEDM 2000); IHP SG13G2 with its straps, from the sizes of its published macros",
    ),
}


def node(nanometres: int) -> Node:
    """The node of `nanometres`. Raises `ParamError`, which lists the known ones."""
    check(nanometres in NODES, "node", nanometres, f"must be one of {', '.join(map(str, NODES))}")
    return NODES[nanometres]


def to_node(gates: float, nanometres: int = 14) -> Estimate:
    """Cell area (µm²) of `gates` gate equivalents at a node. The interval includes the libraries' disagreement."""
    span = Estimate(1 - LIBRARY_SPREAD, 1.0, 1 + LIBRARY_SPREAD)
    return node(nanometres).nand2 * gates * span


def fo4(library: Library) -> float:
    """FO4 of a library in ps, or in tau for the embedded one.

    This is the delay of its inverter that drives four, in a chain of such inverters, as the mean of both edges.
    Raises: `SynthError` if the inverter has no tables.
    """
    cell = nldm.load(library, {library.inverter.name})[library.inverter.name]
    load = 4 * sum(next(iter(cell.inputs.values()))) / 2
    tables = nldm.Tables()
    arcs = {a.target_edge: (tables.add(a.delay), tables.add(a.slew)) for a in cell.arcs}
    tables.freeze()
    slews, delays = [0.0, 0.0], [0.0, 0.0]
    for _ in range(20):  # the slew settles after a few inverters of the chain
        entering = slews[::-1]  # an inverter's rise follows a fall
        for edge, (delay, slew) in arcs.items():
            at = np.array([entering[edge]]), np.array([load])
            delays[edge], slews[edge] = (float(tables(np.array([t]), *at)[0]) for t in (delay, slew))
    return sum(delays) / 2
