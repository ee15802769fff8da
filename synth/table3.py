"""Compares area and power of our core with V-Rex Table III, unit by unit."""

from dataclasses import dataclass
from pathlib import Path

from openvrex.golden.function_params import check
from openvrex.hdl.emit import Emitted, params_of, to_verilog
from openvrex.hdl.emit_cache import emitted
from openvrex.hdl.execution.core import Core
from openvrex.hdl.execution.lxe import Lxe
from openvrex.hdl.leaf import Leaves
from openvrex.hdl.params import SystemParams
from openvrex.synth import technology
from openvrex.synth.flow import Area, MemoryMacro
from openvrex.synth.sram import Sram, total
from openvrex.synth.technology import ZERO, Estimate

LXE_BITS = 384 * 1024 * 8  # bits of the LXE's on-chip memory, V-Rex section VI-F
CORE, POWER = 1.89, 2609.43  # mm², mW
SYSTEMS = {1: 1.89, 8: 15.12, 48: 90.57}  # mm² by number of cores, section VI-F
# Name in the table, share of the core's area and share of its power in percent, by unit.
PAPER = {
    "dpe": ("DPE", 72.79, 88.58),
    "vpe": ("VPE", 7.18, 4.68),
    "memory": ("On-chip memory", 17.98, 4.56),
    "hcu": ("HCU", 0.28, 0.11),
    "wtu": ("WTU", 1.23, 1.49),
    "kvmu": ("KVMU", 0.53, 0.58),
}
DRE = ("hcu", "wtu", "kvmu", "table_port", "glue")
# Rows for the parts of our core that the paper does not list, inside the DRE and beside it.
OWN = {"table_port": "Table port", "glue": "DRE, its own"}
CONTROL = {"lxe": "LXE's control and DMA", "copies": "Retriever and feeder"}
BLOCKS = ("sequencer", "loader", "storer", "feeder", "retriever", "table_port")
REGISTERS = "registers"  # the register block of a `core_ip`
AROUND = ("arbiter", "dre_ip", "motion_mask_ip", REGISTERS)  # what joins units, none of the table's rows
JOIN = "lxe_join"  # an LXE without its units: the logic that hands commands and words between them
JOINED = "core_joined"  # a core of units that are mapped each on its own: its paths go through several of them
# Units whose areas the table needs.
UNITS = ("hcu", "wtu", "cluster_set", "kvmu", "dre", "vpe", "dpe", *BLOCKS, JOIN)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    paper_area, paper_power : mm², mW, from the shares of the total (printed areas have two digits); 0 if not listed
    cells, registers, memories : mm² of combinational cells, of flip-flops and latches, of SRAM
    bits : bits of that SRAM
    power : mW, None if not given
    """

    name: str
    paper_area: float
    paper_power: float
    cells: Estimate
    registers: Estimate
    memories: Estimate
    bits: int
    power: Estimate | None = None

    @property
    def area(self) -> Estimate:
        """Total area (mm²)."""
        return self.cells + self.registers + self.memories


def design(unit: str, system: SystemParams, build: Path) -> tuple[Emitted, dict]:
    """Verilog of a unit of `UNITS`, `AROUND`, `JOINED` or `hdl.emit`, and the arguments `leaves` or `outside` of
    `flow.synthesise` for it.
    """
    if unit == REGISTERS:
        from openvrex.hdl.shells.register_block import RegisterBlock, address_map  # imports a compiler

        block = RegisterBlock(address_map("core_ip", system.core))
        return Emitted(to_verilog(block, REGISTERS, Leaves(REGISTERS)), REGISTERS, {}), {}
    name = {JOIN: "lxe", JOINED: "core"}.get(unit, unit)
    made = emitted(name, params_of(name, system), build)
    if unit == JOIN:
        return made, {"outside": tuple(f"lxe__{inner}" for inner, *_ in Lxe.units(system.core))}
    leaves = tuple(made.manifest.get("leaves", ()))
    if unit == JOINED:
        inner = [f"lxe__{inner}" for inner, *_ in Lxe.units(system.core)]
        leaves += tuple(f"core__{name}" for name in (*inner, *(name for name, *_ in Core.units(system.core)[1:])))
    return made, {"leaves": leaves}


def table3(
    areas: dict[str, Area], powers: dict[str, Estimate] | None = None, node: int = 14, lxe_bits: int = LXE_BITS
) -> dict[str, Row]:
    """The rows by unit: `PAPER`, `OWN` ("glue" is the DRE without its units), `CONTROL`, "dre" and "core".

    areas : areas of at least `UNITS`, by one library
    powers : power (mW) of units of `PAPER` and `OWN`, with memories where the row counts them; units may be missing.
        Rows of `CONTROL` have no power, so the core's power excludes them
    node : nm
    lxe_bits : on-chip memory of the LXE. It includes the memories of its units and queues; the rest becomes a macro
        with one port

    The row of the WTU is `wtu` plus `cluster_set`, which unites its rows. Memories of the DRE's units are in their own
    rows, as the paper has no row for them. The retriever's buffer is in the retriever's row.
    """
    powers = powers or {}
    lxe = ("sequencer", "loader", "storer", JOIN)
    own = [m for n in ("dpe", "vpe", *lxe) for m in areas[n].memories]
    rest = lxe_bits - sum(m.bits for m in own)
    scratchpad = [Sram(-(-rest // 512), 512, node=node, shared=True)] if rest > 0 else []
    inside = [areas[n] for n in ("hcu", "wtu", "cluster_set", "kvmu", "table_port")]
    known = sum(m.bits for a in inside for m in a.memories)
    copies = [areas[n] for n in ("feeder", "retriever")]
    parts = {
        "dpe": ([areas["dpe"]], []),
        "vpe": ([areas["vpe"]], []),
        "memory": ([], [*macros(own, node), *scratchpad]),
        "hcu": ([areas["hcu"]], macros(areas["hcu"].memories, node)),
        "wtu": (inside[1:3], macros([*inside[1].memories, *inside[2].memories], node)),
        "kvmu": ([areas["kvmu"]], macros(areas["kvmu"].memories, node)),
        "table_port": ([areas["table_port"]], macros(areas["table_port"].memories, node)),
        "lxe": ([areas[n] for n in lxe], []),
        "copies": (copies, macros([m for a in copies for m in a.memories], node)),
    }
    rows: dict[str, Row] = {}
    for unit, (logic, memories) in parts.items():
        name, area, power = PAPER[unit] if unit in PAPER else ((OWN | CONTROL)[unit], 0.0, 0.0)
        comb, reg = (_square(sum(getattr(a, k) for a in logic), node) for k in ("comb_ge", "reg_ge"))
        ram = total(memories) * 1e-6
        bits = sum(m.capacity for m in memories)
        rows[unit] = Row(name, area * CORE / 100, power * POWER / 100, comb, reg, ram, bits, powers.get(unit))
    # The logic that joins the units, less what mapping them together saves.
    glue = {k: getattr(areas["dre"], k) - sum(getattr(a, k) for a in inside) for k in ("comb_ge", "reg_ge")}
    comb, reg = (_square(glue[k], node) for k in ("comb_ge", "reg_ge"))
    ram = total(macros(areas["dre"].memories, node)) * 1e-6
    ram += -1 * sum((rows[u].memories for u in DRE if u != "glue"), ZERO)
    bits = areas["dre"].memory_bits - known
    rows["glue"] = Row(OWN["glue"], 0.0, 0.0, comb, reg, ram, bits, powers.get("glue"))
    rows = {u: rows[u] for u in (*PAPER, *OWN, *CONTROL)}
    for unit, name, units in (("dre", "DRE", DRE), ("core", "Core", tuple(rows))):
        rows[unit] = _sum(name, [rows[u] for u in units], [rows[u].power for u in units if u not in CONTROL])
    return rows


def powers_of(units: dict[str, dict]) -> dict[str, Estimate]:
    """Powers for `table3`, from the reports of `vrex size power --json` (`synth.power.Power.report`) by unit.

    The rows of the DRE's units come from the DRE's own run, in which the units wait for each other. Reports of these
    units alone do not count, because there each is as busy as it can be.
    Raises: `ParamError` for reports that lack a figure.
    """
    out: dict[str, Estimate] = {}
    for name in ("dpe", "vpe"):
        if name in units:
            out[name] = _given(name, units[name], "dynamic_mw") + _given(name, units[name], "leakage_mw")
    if {"dpe", "vpe"} <= set(units):
        out["memory"] = _given("dpe", units["dpe"], "memory_mw") + _given("vpe", units["vpe"], "memory_mw")
    if "dre" in units:
        parts = units["dre"].get("parts")
        check(
            isinstance(parts, dict) and "dre" in parts, "parts", parts, "not of unit dre; run vrex size power dre again"
        )
        assert isinstance(parts, dict)  # checked
        for module, report in parts.items():
            inside = module.removeprefix("dre__").rstrip("0123456789")
            row = {"cluster_set": "wtu", "dre": "glue"}.get(inside, inside)
            out[row] = out.get(row, ZERO) + _given(module, report, "total_mw")
    return out


def _given(unit: str, report: dict, part: str) -> Estimate:
    """An estimate in a report. Raises `ParamError` if it is missing."""
    given = report.get(part)
    check(isinstance(given, dict) and set(given) == {"low", "value", "high"}, part, given, f"not of unit {unit}")
    assert isinstance(given, dict)  # checked
    return Estimate(**given)


def macros(memories: list[MemoryMacro] | tuple[MemoryMacro, ...], node: int) -> list[Sram]:
    """The SRAM macros of a unit's memories."""
    return [m.macro(node) for m in memories for _ in range(m.count)]


def _square(gates: float, node: int) -> Estimate:
    """Area (mm²) of gate equivalents at a node."""
    return technology.to_node(gates, node) * 1e-6


def _sum(name: str, rows: list[Row], powers: list[Estimate | None]) -> Row:
    """The sum of `rows`; it has a power if all `powers` are known."""
    known = [p for p in powers if p is not None]
    return Row(
        name,
        paper_area=sum(r.paper_area for r in rows),
        paper_power=sum(r.paper_power for r in rows),
        cells=sum((r.cells for r in rows), ZERO),
        registers=sum((r.registers for r in rows), ZERO),
        memories=sum((r.memories for r in rows), ZERO),
        bits=sum(r.bits for r in rows),
        power=sum(known, ZERO) if len(known) == len(powers) else None,
    )
