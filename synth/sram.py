"""Estimates area, energy, leakage and access time of SRAM macros at a process node.

Model. A macro is `banks` x `slices` equal arrays of at most 256 rows and 256 columns (TSMC's 16 nm macro: 258 bits a
bit line, 272 a word line, ISSCC 2014). `mux` neighbouring columns share a sense amplifier. The model takes the mux and
the banks of least area, and of equal ones the lower mux. An array's area is

    bitcell x (rows + ROW_OVERHEAD) x (columns + COLUMN_OVERHEAD)

The overheads count in heights and widths of the cell: precharge, sense amplifiers, write drivers and control along
one side, decoder and word-line drivers along the other. In a macro of several arrays, wires and repeaters between them
add the factor ASSEMBLY. A shallow or narrow macro is therefore mostly periphery: efficiency falls from 76 % for large
macros to 26 % for 64 words of 64 bits.

Energy of an access = sqrt(bitcell) x volts^2 x (columns x (SENSE + BIT_LINE x rows) + CONTROL). All columns of a slice
discharge, also the columns that the mux does not select. A write costs the same. Leakage is a constant per bit.

Access time = (start + row x rows + column x columns) x (node / 130 nm)^exponent; WIRE for each millimetre to the far
corner comes on top. Setup time = setup x (node / 130 nm)^exponent, with an exponent of its own. All are fitted to
`POINTS` (`fitted`), where generators of macros count alike, however many macros each has. Timed public macros stand at
130 nm and 7 nm alone: none checks the nodes between, and the exponents rest on one macro of ASAP7.

A memory with a read and a write port (`hdl.memory.Ram`) has an eight-transistor cell and one more decoder. A macro
with `shared` (`hdl.memory.SinglePortRam`) takes either a read or a write a cycle and has a six-transistor cell.

`POINTS` calibrates the model, `Point.errors` gives the residuals, `left_out` those of macros that the fit has not
seen. The overheads are not a fit to the areas. They are means of the overheads of IHP and ASAP7, read off the sizes of
their macros:

- IHP, rows 1.134 um, columns 2.846 um: 40.8 and 19.6
- IHP dual port, rows 1.294 um, columns 4.42 um: 41.9 and 31.0
- ASAP7, rows 0.108 um, columns 0.270 um: 25 and 32
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from openvrex.golden.function_params import check, check_ints
from openvrex.synth.technology import ZERO, Estimate, node

ROW_OVERHEAD, COLUMN_OVERHEAD = 33, 26
ROWS, COLUMNS = 256, 256  # most in an array
ASSEMBLY = 1.05
# Cell of one read and one write port over the six-transistor one: 1.30 (Chang et al., An 8T-SRAM for Variability
# Tolerance and Low-Voltage Operation in High-Performance Caches, JSSC 43.4, 2008) to 1.77 (IHP's dual port, by its
# macros' sizes). Its second decoder and drivers: IHP's 31.0 columns of overhead against 19.6.
TWO_PORT_CELL = Estimate(1.30, 1.52, 1.77)
TWO_PORT_COLUMNS = 1.58
# AREA_SPREAD and ENERGY_FACTOR are the largest errors on `POINTS`, rounded up (SKY130's areas excepted); ACCESS_FACTOR
# and SETUP_FACTOR are the largest on a generator of macros at FITTED_NODE that the fit has not seen.
AREA_SPREAD = 0.15
SENSE, BIT_LINE, CONTROL = 0.054, 0.00019, 1.4  # pJ / (um V^2): half-way between IHP and ASAP7, Horowitz
ENERGY_FACTOR = 1.7
ACCESS_FACTOR = 1.8
SETUP_FACTOR = 3.4
FITTED_NODE = 130  # nm, where most public macros are
WIRE = 100.0  # ps a mm of repeated wire: Ho, Mai, Horowitz, The Future of Wires, Proc. IEEE 89.4, 2001
# Gate equivalents a bit of a 1R1W memory of flip-flops with its decoder and read multiplexer: 16 x 16 to 64 x 32
# measured 10.2 to 10.9 (embedded library, area).
FLIP_FLOP = 10.7
LEAKAGE = Estimate(5e-6, 15e-6, 100e-6)  # uW a bit, 25 C: IHP 12e-6, SRAM22 (SKY130) 21e-6, typical; the rest a guess


@dataclass(frozen=True)
class Sram:
    """A memory of `words` words of `bits` bits at a node (nm).

    shared : one port both reads and writes

    Several read ports are copies of the macro that are all written together.
    Raises: `ParamError` for a size or a number of read ports below 1, for more than one write port, and for an unknown
    node.
    """

    words: int
    bits: int
    read_ports: int = 1
    write_ports: int = 1
    node: int = 14
    shared: bool = False

    def __post_init__(self) -> None:
        check_ints(self)
        for name in ("words", "bits", "read_ports"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        check(self.write_ports == 1, "write_ports", self.write_ports, "must be 1: the model knows no other macros")
        node(self.node)

    @cached_property
    def organisation(self) -> tuple[int, int, int, int, int]:
        """Banks, slices, rows and columns of each array, and mux."""
        best = []
        for mux in (1, 2, 4, 8, 16):
            if mux > self.words:
                break
            rows = math.ceil(self.words / mux)
            banks, slices = math.ceil(rows / ROWS), math.ceil(self.bits * mux / COLUMNS)
            shape = banks, slices, math.ceil(rows / banks), math.ceil(self.bits * mux / slices)
            best.append((self._cells(*shape), mux, shape))
        _, mux, shape = min(best)
        return *shape, mux

    def _cells(self, banks: int, slices: int, rows: int, columns: int) -> float:
        """Area of the arrays, in bit cells."""
        return cells(banks * slices, rows, columns, self.shared)

    @property
    def capacity(self) -> int:
        """Number of bits stored, in all copies."""
        return self.words * self.bits * self.read_ports

    @property
    def cell(self) -> Estimate:
        """Area of the bit cell (µm²)."""
        return node(self.node).bitcell * (1.0 if self.shared else TWO_PORT_CELL)

    @property
    def efficiency(self) -> float:
        """Share of the area that bit cells take."""
        return self.words * self.bits / self._cells(*self.organisation[:4])

    @property
    def area(self) -> Estimate:
        """Area of all copies (µm²)."""
        spread = Estimate(1 - AREA_SPREAD, 1.0, 1 + AREA_SPREAD)
        return self.cell * self._cells(*self.organisation[:4]) * self.read_ports * spread

    @property
    def read_energy(self) -> Estimate:
        """Energy of a read (pJ)."""
        _, slices, rows, columns, _ = self.organisation
        value = math.sqrt(self.cell.value) * node(self.node).volts ** 2 * work(slices, rows, columns)
        return Estimate(value / ENERGY_FACTOR, value, value * ENERGY_FACTOR)

    @property
    def write_energy(self) -> Estimate:
        """Energy of a write (pJ) to all copies. One copy costs a read, as published macros give one figure for both."""
        return self.read_energy * self.read_ports

    @property
    def leakage(self) -> Estimate:
        """Leakage of all copies (µW) at 25 °C."""
        return LEAKAGE * self.capacity

    @property
    def access(self) -> Estimate:
        """Delay from clock to data (ps)."""
        _, _, rows, columns, _ = self.organisation
        value = FITTED.access(self.node, rows, columns) + WIRE * math.sqrt(self.area.value) / 1000
        return Estimate(value / ACCESS_FACTOR, value, value * ACCESS_FACTOR)

    @property
    def setup(self) -> Estimate:
        """Time (ps) that addresses, data and write enables must be there before the clock."""
        value = FITTED.setup(self.node)
        return Estimate(value / SETUP_FACTOR, value, value * SETUP_FACTOR)


def cells(arrays: int, rows: int, columns: int, shared: bool) -> float:
    """Area of the equal arrays of a macro, in bit cells."""
    side = COLUMN_OVERHEAD * (1.0 if shared else TWO_PORT_COLUMNS)
    return arrays * (rows + ROW_OVERHEAD) * (columns + side) * (ASSEMBLY if arrays > 1 else 1.0)


def work(slices: int, rows: int, columns: int) -> float:
    """Energy of an access over sqrt(cell) x volts^2, in pJ / (um V^2)."""
    return slices * (columns * (SENSE + BIT_LINE * rows) + CONTROL)


@dataclass(frozen=True)
class Fit:
    """Parameters of access and setup times.

    start, row, column, held : ps at `FITTED_NODE`: access of an array, of each of its rows and of each of its columns,
        and setup
    exponent, held_exponent : of the node, for access and for setup
    """

    start: float
    row: float
    column: float
    held: float
    exponent: float
    held_exponent: float

    def access(self, nanometres: int, rows: int, columns: int) -> float:
        """Delay from clock to data of one array (ps)."""
        shape = self.start + self.row * rows + self.column * columns
        return shape * (nanometres / FITTED_NODE) ** self.exponent

    def setup(self, nanometres: int) -> float:
        """Setup time of its inputs (ps)."""
        return self.held * (nanometres / FITTED_NODE) ** self.held_exponent


def crossover(bits: int, nanometres: int = 14) -> int:
    """Smallest number of words of `bits` bits from which a 1R1W macro takes less cell area than flip-flops."""
    gate = node(nanometres).nand2.value
    words = 1
    while Sram(words, bits, node=nanometres).area.value > FLIP_FLOP * gate * words * bits:
        words += 1
    return words


def total(memories: list[Sram]) -> Estimate:
    """Area of several macros (µm²)."""
    return sum((m.area for m in memories), ZERO)


@dataclass(frozen=True)
class Point:
    """A published macro, for calibration.

    node : nm · generator : who made it · source : repository and path, or publication
    arrays, rows, columns : its arrays, assumed if only a density is published
    cell, area : µm²
    energy, access, setup : pJ and ps, 0 if not published. Access is the mean of both edges at the smallest slew and
        load that drive a gate; setup is the worst of address, data and write enable at the smallest slew
    """

    name: str
    arrays: int
    rows: int
    columns: int
    cell: float
    area: float
    energy: float = 0.0
    access: float = 0.0
    setup: float = 0.0
    volts: float = 1.2
    node: int = FITTED_NODE
    shared: bool = True
    generator: str = "IHP"
    source: str = "IHP-GmbH/IHP-Open-PDK, ihp-sg13g2/libs.ref/sg13g2_sram"

    def errors(self, fit: "Fit | None" = None) -> dict[str, float]:
        """Relative error of the model, for each figure that is published. `fit` : in place of `FITTED`."""
        fit = fit or FITTED
        model = {
            "area": self.cell * cells(self.arrays, self.rows, self.columns, self.shared),
            "energy": math.sqrt(self.cell) * self.volts**2 * work(1, self.rows, self.columns),
            "access": fit.access(self.node, self.rows, self.columns),
            "setup": fit.setup(self.node),
        }
        return {n: v / getattr(self, n) - 1 for n, v in model.items() if getattr(self, n)}


def fitted(points: tuple[Point, ...]) -> Fit:
    """The fit to some macros, by relative errors.

    Each generator of macros has a level of its own, at which it is faster or slower than the others; rows and columns
    are fitted beside it. A node's level is the geometric mean of its generators', and the exponents are those of the
    lines from `FITTED_NODE` to the other nodes. Without a macro elsewhere, times follow FO4.
    """
    timed = [p for p in points if p.access and p.node == FITTED_NODE]
    shape = np.array([(1.0, p.rows, p.columns) for p in timed])
    access = np.array([p.access for p in timed])
    level = np.ones(len(timed))
    for _ in range(50):  # far more than it needs to settle
        start, row, column = np.linalg.lstsq(shape / (access / level)[:, None], np.ones(len(timed)), rcond=None)[0]
        ratio = np.log(access / (shape @ (start, row, column)))
        level = np.exp([_mean(ratio[i] for i, q in enumerate(timed) if q.generator == p.generator) for p in timed])
    mean = math.exp(_by_generator(timed, np.log(level)))
    held = [p for p in points if p.setup and p.node == FITTED_NODE]
    setup = math.exp(_by_generator(held, [math.log(p.setup) for p in held]))
    fit = Fit(float(start) * mean, float(row) * mean, float(column) * mean, setup, 0.0, 0.0)
    return replace(fit, exponent=_exponent(points, fit, "access"), held_exponent=_exponent(points, fit, "setup"))


def _exponent(points: tuple[Point, ...], fit: Fit, name: str) -> float:
    """The exponent of the node that macros at other nodes than `FITTED_NODE` need, that of FO4 without any."""
    away = [p for p in points if getattr(p, name) and p.node != FITTED_NODE]
    if not away:
        return math.log(node(FITTED_NODE).fo4.value / node(7).fo4.value) / math.log(FITTED_NODE / 7)
    steps = [math.log(1 + p.errors(fit)[name]) / math.log(FITTED_NODE / p.node) for p in away]
    return _by_generator(away, steps)


def left_out(point: Point, generator: bool = False) -> dict[str, float]:
    """The errors with a fit to all macros but `point`; `generator`: and but the others of its generator."""
    kept = (p for p in POINTS if p is not point and not (generator and p.generator == point.generator))
    return point.errors(fitted(tuple(kept)))


def _by_generator(points: list[Point], values: Sequence[float] | np.ndarray) -> float:
    """The mean of the generators' means."""
    names = dict.fromkeys(p.generator for p in points)
    return _mean(_mean(v for p, v in zip(points, values, strict=True) if p.generator == n) for n in names)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _density(name: str, nanometres: int, cell: float, megabits: float, generator: str) -> Point:
    """A macro of 128 Kib in two arrays of 256 x 256, from a density in megabits (2^20 bits) per mm²."""
    area = (1 << 17) / (megabits * 1.048576)
    return Point(name, 2, 256, 256, cell, area, node=nanometres, generator=generator, source="publication")


def _sram22(size: str, rows: int, columns: int, access: float, area: float = 0.0, setup: float = 0.0) -> Point:
    """A macro of SRAM22 in SKY130: `size` as in its name. Circuit simulation at 1.8 V, not seen in silicon."""
    name = f"sram22_{size}"
    source = f"rahulk29/sram22_sky130_macros, {name}/{name}_tt_025C_1v80.lib"
    return Point(
        f"SRAM22 {size}", 1, rows, columns, _SKY130, area, 0.0, access, setup, 1.8, 130, True, "SRAM22", source
    )


def _asap7(size: str, rows: int, columns: int, area: float, *figures: float) -> Point:
    """A macro of ASAP7 (0.7 V). `figures` : energy, access, setup."""
    energy, access, setup = figures or (0.0, 0.0, 0.0)
    source = "The-OpenROAD-Project/asap7_sram_0p0, generated/LIB"
    return Point(f"ASAP7 {size}", 1, rows, columns, _ASAP7, area, energy, access, setup, 0.7, 7, True, "ASAP7", source)


def _formula(
    name: str, rows: int, columns: int, cell: float, times: tuple[float, float], nanometres: int, source: str
) -> Point:
    """A macro with access and setup times by a formula; its rows and columns are assumed."""
    generator = name.partition(" ")[0]
    return Point(name, 1, rows, columns, cell, 0.0, 0.0, *times, node=nanometres, generator=generator, source=source)


# IHP: sizes, typical power and clock-to-output of the data sheets (doc/*.txt; LEF for the dual ports' sizes), setup of
# the Liberty file; cells by the sizes' slopes. The commercial macro: its data sheet; rows and columns are assumed.
# ASAP7: areas of the Liberty files, energy of a read's two clock edges, clock-to-output and setup of the 8 KB one,
# from which the others' are copied. Horowitz: Computing's Energy Problem, ISSCC 2014, an 8 KB cache, 64 bits.
_IHP, _IHP2, _ASAP7, _SKY130 = 3.2275, 5.718, 0.02916, 1.896
POINTS = (
    Point("IHP SG13G2 1P 64x64", 1, 16, 256, _IHP, 50489, 56.8, 3080),
    Point("IHP SG13G2 1P 256x64", 1, 64, 256, _IHP, 93181, 72.6, 3080),
    Point("IHP SG13G2 1P 512x64", 1, 128, 256, _IHP, 150102, 91.4, 3835),
    Point("IHP SG13G2 1P 1024x8", 1, 256, 32, _IHP, 49419, 19.7, 4225),
    Point("IHP SG13G2 1P 1024x64", 1, 256, 256, _IHP, 263946, 118.1, 4350, 294),
    Point("IHP SG13G2 1P 2048x64", 1, 512, 256, _IHP, 491634, 156.4, 5400),
    Point("IHP SG13G2 1P 4096x8", 1, 512, 64, _IHP, 146413, 41.1, 5285),
    Point("IHP SG13G2 2P 64x32", 1, 16, 128, _IHP2, 52621, 0.0, 3105, shared=False),
    Point("IHP SG13G2 2P 1024x16", 1, 256, 64, _IHP2, 155154, shared=False),
    _sram22("64x32m4w8", 16, 128, 3041, 68821, 218),
    _sram22("256x32m4w8", 64, 128, 3339),
    _sram22("512x32m4w8", 128, 128, 3653),
    _sram22("1024x8m8w1", 128, 64, 3908),
    _sram22("1024x64m4w8", 256, 256, 4347, 555929, 213),
    _sram22("2048x32m8w8", 256, 256, 4603),
    _sram22("256x128m4w8", 64, 512, 3584),
    Point(
        *("SKY130 1024x32, commercial", 1, 256, 128, _SKY130, 117647, 77.6, 2448, 832, 1.8),
        generator="ChipFoundry",
        source="chipfoundry/CF_SRAM_1024x32, README.md",
    ),
    _asap7("256x16", 64, 64, 249.14),
    _asap7("512x32", 128, 128, 691.2),
    _asap7("1024x64", 256, 256, 2359.9, 1.816, 144, 48),
    Point("Horowitz 8 KB", 1, 256, 256, 0.346, 0, 10.0, volts=0.9, node=45, generator="Horowitz", source="ISSCC 2014"),
    _density("Intel 32 nm (Wang, ISSCC 2009)", 32, 0.171, 4.2, "Intel"),
    _density("Intel 14 nm (Karl, ISSCC 2015)", 14, 0.050, 14.5, "Intel"),
    _density("Intel 10 nm (Guo, ISSCC 2018)", 10, 0.0312, 23.6, "Intel"),
    _density("TSMC N3E (IEDM 2022, WikiChip)", 3, 0.021, 31.8, "TSMC"),
    _density("TSMC N2 (IEDM 2024)", 2, 0.0175, 38.0, "TSMC"),
)
FITTED = fitted(POINTS)
# Macros whose times are formulas of their own generators, not of a circuit: to compare, never to fit. OpenRAM's reads
# begin at the falling edge, so half the shortest period is added.
MODELS = (
    _formula("OpenRAM 1024x8", 64, 128, _SKY130, (1111, 103), 130, "VLSIDA/sky130_sram_macros"),
    _formula("fakeram45 64x32", 16, 128, 0.346, (207, 50), 45, "OpenROAD-flow-scripts, flow/platforms/nangate45/lib"),
    _formula("fakeram45 512x64", 128, 256, 0.346, (305, 50), 45, "OpenROAD-flow-scripts, flow/platforms/nangate45/lib"),
    _formula("fakeram7 64x25", 16, 100, _ASAP7, (218, 50), 7, "OpenROAD-flow-scripts, flow/platforms/asap7/lib/NLDM"),
)
