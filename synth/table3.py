"""Table III of V-Rex: its core's area and power by unit, ours beside it."""

from dataclasses import dataclass
from pathlib import Path

from golden.function_params import check
from hdl.emit import Emitted, params_of
from hdl.execution.lxe import Lxe
from hdl.params import SystemParams
from synth import technology
from synth.emission import emitted
from synth.flow import Area, Memory
from synth.sram import Sram, total
from synth.technology import ZERO, Estimate

LXE_BITS = 384 * 1024 * 8  # on-chip memory of the LXE, section VI-F
CORE, POWER = 1.89, 2609.43  # mm², mW
SYSTEMS = {1: 1.89, 8: 15.12, 48: 90.57}  # cores: mm², section VI-F
# unit -> its name in the table, share of the core's area and of its power in per cent
PAPER = {
    "dpe": ("DPE", 72.79, 88.58),
    "vpe": ("VPE", 7.18, 4.68),
    "memory": ("On-chip memory", 17.98, 4.56),
    "hcu": ("HCU", 0.28, 0.11),
    "wtu": ("WTU", 1.23, 1.49),
    "kvmu": ("KVMU", 0.53, 0.58),
}
DRE = ("hcu", "wtu", "kvmu", "glue")
# What a core has beside the units that the paper lists.
CONTROL = {"lxe": "LXE's control and DMA", "copies": "Retriever and feeder"}
BLOCKS = ("sequencer", "loader", "storer", "feeder", "retriever")
JOIN = "lxe_join"  # an LXE without its units: what hands commands and words from one to the other
# Whose areas the table needs.
UNITS = ("hcu", "wtu", "cluster_set", "kvmu", "dre", "vpe", "dpe", *BLOCKS, JOIN)


@dataclass(frozen=True)
class Row:
    """A line of the table.

    paper_area, paper_power : mm², mW, by the shares of the total (printed areas have two digits); 0 : not in the paper
    cells, registers, memories : mm² of combinational cells, of flip-flops and latches, of SRAM · bits : of that
    power : mW, None where none was given
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
        """All of it (mm²)."""
        return self.cells + self.registers + self.memories


def design(unit: str, system: SystemParams, build: Path) -> tuple[Emitted, dict]:
    """One of `UNITS` as Verilog, and what `flow.synthesise` is to map apart or leave out of it."""
    name = unit if unit != JOIN else "lxe"
    made = emitted(name, params_of(name, system), build)
    if unit == JOIN:
        return made, {"outside": tuple(f"lxe__{inner}" for inner, *_ in Lxe.units(system.core))}
    return made, {"leaves": tuple(made.manifest.get("leaves", ()))}


def table3(
    areas: dict[str, Area], powers: dict[str, Estimate] | None = None, node: int = 14, lxe_bits: int = LXE_BITS
) -> dict[str, Row]:
    """The rows, by unit: those of `PAPER`, "glue" (the DRE without its units), those of `CONTROL`, "dre" and "core".

    areas : of `UNITS` at least, with one library
    powers : of a unit of `PAPER` or "glue" (mW), memories counted where the row counts them; units may be missing.
        Rows of `CONTROL` have none, and the core's is without them
    lxe_bits : on-chip memory of the LXE: those of its units and queues are part of it, what they leave is a macro of
        one port

    The WTU is `wtu` and `cluster_set`, which unites its rows. Memories of the DRE's units are in the units' rows, as
    there is no row for them in the paper; the retriever's buffer is in its own.
    """
    powers = powers or {}
    lxe = ("sequencer", "loader", "storer", JOIN)
    own = [m for n in ("dpe", "vpe", *lxe) for m in areas[n].memories]
    rest = lxe_bits - sum(m.bits for m in own)
    scratchpad = [Sram(-(-rest // 512), 512, node=node, shared=True)] if rest > 0 else []
    inside = [areas[n] for n in ("hcu", "wtu", "cluster_set", "kvmu")]
    known = sum(m.bits for a in inside for m in a.memories)
    copies = [areas[n] for n in ("feeder", "retriever")]
    parts = {
        "dpe": ([areas["dpe"]], []),
        "vpe": ([areas["vpe"]], []),
        "memory": ([], [*macros(own, node), *scratchpad]),
        "hcu": ([areas["hcu"]], macros(areas["hcu"].memories, node)),
        "wtu": (inside[1:3], macros([*inside[1].memories, *inside[2].memories], node)),
        "kvmu": ([areas["kvmu"]], macros(areas["kvmu"].memories, node)),
        "lxe": ([areas[n] for n in lxe], []),
        "copies": (copies, macros([m for a in copies for m in a.memories], node)),
    }
    rows = {}
    for unit, (logic, memories) in parts.items():
        name, area, power = PAPER[unit] if unit in PAPER else (CONTROL[unit], 0.0, 0.0)
        comb, reg = (_square(sum(getattr(a, k) for a in logic), node) for k in ("comb_ge", "reg_ge"))
        ram = total(memories) * 1e-6
        bits = sum(m.capacity for m in memories)
        rows[unit] = Row(name, area * CORE / 100, power * POWER / 100, comb, reg, ram, bits, powers.get(unit))
    # What joining the units adds, less what mapping them together saves.
    glue = {k: getattr(areas["dre"], k) - sum(getattr(a, k) for a in inside) for k in ("comb_ge", "reg_ge")}
    logic = (_square(glue[k], node) for k in ("comb_ge", "reg_ge"))
    ram = total(macros(areas["dre"].memories, node)) * 1e-6
    ram += -1 * sum((rows[u].memories for u in ("hcu", "wtu", "kvmu")), ZERO)
    bits = areas["dre"].memory_bits - known
    rows["glue"] = Row("DRE, its own", 0.0, 0.0, *logic, ram, bits, powers.get("glue"))
    rows = {u: rows[u] for u in (*PAPER, "glue", *CONTROL)}
    for unit, name, units in (("dre", "DRE", DRE), ("core", "Core", tuple(rows))):
        rows[unit] = _sum(name, [rows[u] for u in units], [rows[u].power for u in units if u not in CONTROL])
    return rows


def powers_of(units: dict[str, dict]) -> dict[str, Estimate]:
    """What `table3` takes as powers, of the units that `vrex power --json` reports (`synth.power.Power.report`).

    Rows of the DRE's units are parts of the DRE's own run, in which they wait for each other; units measured alone,
    each as busy as it can be, are not taken. Raises: `ParamError` for reports that lack a figure.
    """
    out = {}
    for name in ("dpe", "vpe"):
        if name in units:
            out[name] = _given(name, units[name], "dynamic_mw") + _given(name, units[name], "leakage_mw")
    if {"dpe", "vpe"} <= set(units):
        out["memory"] = _given("dpe", units["dpe"], "memory_mw") + _given("vpe", units["vpe"], "memory_mw")
    if "dre" in units:
        parts = units["dre"].get("parts")
        check(isinstance(parts, dict) and "dre" in parts, "parts", parts, "not of unit dre; run vrex power dre again")
        for module, report in parts.items():
            inside = module.removeprefix("dre__").rstrip("0123456789")
            row = {"cluster_set": "wtu", "dre": "glue"}.get(inside, inside)
            out[row] = out.get(row, ZERO) + _given(module, report, "total_mw")
    return out


def _given(unit: str, report: dict, part: str) -> Estimate:
    given = report.get(part)
    check(isinstance(given, dict) and set(given) == {"low", "value", "high"}, part, given, f"not of unit {unit}")
    return Estimate(**given)


def macros(memories: list[Memory] | tuple[Memory, ...], node: int) -> list[Sram]:
    """The SRAM macros of a unit's memories."""
    return [m.macro(node) for m in memories for _ in range(m.count)]


def _square(gates: float, node: int) -> Estimate:
    return technology.to_node(gates, node) * 1e-6


def _sum(name: str, rows: list[Row], powers: list[Estimate | None]) -> Row:
    columns = (sum((getattr(r, k) for r in rows), ZERO) for k in ("cells", "registers", "memories"))
    power = None if None in powers else sum(powers, ZERO)
    paper = (sum(getattr(r, k) for r in rows) for k in ("paper_area", "paper_power"))
    return Row(name, *paper, *columns, sum(r.bits for r in rows), power)
