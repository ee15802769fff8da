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
discharge, also the columns that the mux does not select. A write costs the same. Access time in FO4 = START + ROW x
rows + COLUMN x columns; WIRE for each millimetre to the far corner comes on top. Leakage is a constant per bit.

A memory with a read and a write port (`hdl.memory.Ram`) has an eight-transistor cell and one more decoder. A macro
with `shared` (`hdl.memory.SinglePortRam`) takes either a read or a write a cycle and has a six-transistor cell.

`POINTS` calibrates the model, and `Point.errors` gives the residuals. The overheads are not a fit to the areas. They
are means of the overheads of IHP and ASAP7, read off the sizes of their macros:

- IHP, rows 1.134 um, columns 2.846 um: 40.8 and 19.6
- IHP dual port, rows 1.294 um, columns 4.42 um: 41.9 and 31.0
- ASAP7, rows 0.108 um, columns 0.270 um: 25 and 32
"""

import math
from dataclasses import dataclass
from functools import cached_property

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
# AREA_SPREAD, ENERGY_FACTOR and ACCESS_FACTOR are the largest errors on `POINTS`, rounded up.
AREA_SPREAD = 0.15
SENSE, BIT_LINE, CONTROL = 0.054, 0.00019, 1.4  # pJ / (um V^2): half-way between IHP and ASAP7, Horowitz
ENERGY_FACTOR = 1.7
START, ROW, COLUMN = 13.9, 0.0214, 0.0025  # FO4: IHP's slopes, half-way (in logarithms) between IHP and ASAP7
ACCESS_FACTOR = 2.8
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
        value = node(self.node).fo4.value * delay(rows, columns) + WIRE * math.sqrt(self.area.value) / 1000
        return Estimate(value / ACCESS_FACTOR, value, value * ACCESS_FACTOR)


def cells(arrays: int, rows: int, columns: int, shared: bool) -> float:
    """Area of the equal arrays of a macro, in bit cells."""
    side = COLUMN_OVERHEAD * (1.0 if shared else TWO_PORT_COLUMNS)
    return arrays * (rows + ROW_OVERHEAD) * (columns + side) * (ASSEMBLY if arrays > 1 else 1.0)


def work(slices: int, rows: int, columns: int) -> float:
    """Energy of an access over sqrt(cell) x volts^2, in pJ / (um V^2)."""
    return slices * (columns * (SENSE + BIT_LINE * rows) + CONTROL)


def delay(rows: int, columns: int) -> float:
    """Delay from clock to data of one array, in FO4."""
    return START + ROW * rows + COLUMN * columns


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

    arrays, rows, columns : its arrays, assumed if only a density is published
    cell, area : µm²
    energy, access : pJ and ps, 0 if not published
    """

    name: str
    arrays: int
    rows: int
    columns: int
    cell: float
    area: float
    energy: float = 0.0
    access: float = 0.0
    volts: float = 1.2
    fo4: float = 80.3
    shared: bool = True

    def errors(self) -> dict[str, float]:
        """Relative error of the model, for each figure that is published."""
        model = {
            "area": self.cell * cells(self.arrays, self.rows, self.columns, self.shared),
            "energy": math.sqrt(self.cell) * self.volts**2 * work(1, self.rows, self.columns),
            "access": self.fo4 * delay(self.rows, self.columns),
        }
        return {n: v / getattr(self, n) - 1 for n, v in model.items() if getattr(self, n)}


def _density(name: str, cell: float, megabits: float) -> Point:
    """A macro of 128 Kib in two arrays of 256 x 256, from a density in megabits (2^20 bits) per mm²."""
    return Point(name, 2, 256, 256, cell, (1 << 17) / (megabits * 1.048576))


# IHP: sizes, typical power and clock-to-output of the data sheets of IHP-Open-PDK, ihp-sg13g2/libs.ref/sg13g2_sram/doc
# (LEF for the dual ports' sizes); cells by the sizes' slopes. ASAP7: areas of asap7_sram_0p0 (The-OpenROAD-Project),
# generated/LIB, energy of a read's two clock edges and clock-to-output of the 8 KB one, from which the others' are
# copied. Horowitz: Computing's Energy Problem, ISSCC 2014, an 8 KB cache at 45 nm, 0.9 V, 64 bits.
_IHP, _IHP2, _ASAP7 = 3.2275, 5.718, 0.02916
POINTS = (
    Point("IHP SG13G2 1P 64x64", 1, 16, 256, _IHP, 50489, 56.8, 3080),
    Point("IHP SG13G2 1P 1024x8", 1, 256, 32, _IHP, 49419, 19.7, 4225),
    Point("IHP SG13G2 1P 1024x64", 1, 256, 256, _IHP, 263946, 118.1, 4350),
    Point("IHP SG13G2 1P 2048x64", 1, 512, 256, _IHP, 491634, 156.4, 5400),
    Point("IHP SG13G2 2P 64x32", 1, 16, 128, _IHP2, 52621, shared=False),
    Point("IHP SG13G2 2P 1024x16", 1, 256, 64, _IHP2, 155154, shared=False),
    Point("ASAP7 256x16", 1, 64, 64, _ASAP7, 249.14),
    Point("ASAP7 512x32", 1, 128, 128, _ASAP7, 691.2),
    Point("ASAP7 1024x64", 1, 256, 256, _ASAP7, 2359.9, 1.816, 144, volts=0.7, fo4=19.5),
    Point("Horowitz 45 nm 8 KB", 1, 256, 256, 0.346, 0, 10.0, volts=0.9),
    _density("Intel 32 nm (Wang, ISSCC 2009)", 0.171, 4.2),
    _density("Intel 14 nm (Karl, ISSCC 2015)", 0.050, 14.5),
    _density("Intel 10 nm (Guo, ISSCC 2018)", 0.0312, 23.6),
    _density("TSMC N3E (IEDM 2022, WikiChip)", 0.021, 31.8),
    _density("TSMC N2 (IEDM 2024)", 0.0175, 38.0),
)
