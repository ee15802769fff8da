"""Asks OpenSTA for the power of mapped modules in a run, to check `synth.power`. Needs its `sta` on PATH.

OpenSTA gets the netlist, the library, and the run as SAIF. It finds the slew of each pin, looks up the energies, and
adds them. Nets that ports and memories drive, the ungated clock among them, are in neither figure.

Release 2.0, which Debian has, reads no SAIF, and derives the toggles of a gate from those of its inputs. There, each
net becomes a clock of its own, whose edges are the net's toggles. That release also adds the energies of all arcs and
states of a pin, of both edges at each edge, and the leakage of all states. Its library holds the means instead.
Then a second run takes our slew, and our load of a pin: the mean of its loads at rise and fall, where OpenSTA takes
that at rise. They leave one difference: we take an input's energy from the state of its cell, OpenSTA the mean.
"""

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from openvrex.synth import cells, nldm, opensta, saif
from openvrex.synth.cells import Gate
from openvrex.synth.liberty import Library, SynthError, file_bytes
from openvrex.synth.liberty_text import WRITTEN, Edited, Group, numbers, write
from openvrex.synth.power import Beside, Module, Part, Power, kind_of, slew_of
from openvrex.synth.switching_activity import Circuit

TOLERANCE = 3.0  # %: how far the power of a unit may be from OpenSTA's with our slew and loads
NEVER = 1e15  # ps: period of a net that does not toggle
_POWERED = WRITTEN | {
    "library": (*WRITTEN["library"], "power_lut_template", "operating_conditions"),
    "pin": (*WRITTEN["pin"], "internal_power"),
    "internal_power": ("rise_power", "fall_power", "power"),
}
_SCRIPT = """{liberty}
read_verilog top.v
link_design {top}
set_cmd_units -time ps
create_clock -name clk -period {period:.9g} {ports}
{activity}
report_power -instances [get_cells *] -digits 6
"""
# The slews that OpenSTA finds stay, when no arc passes them on.
_SLEWS = """sta::find_timing_cmd 1
foreach pin [get_pins *] {
  set vertex [lindex [$pin vertices] 0]
  foreach edge {rise fall} { lappend slews [list $edge $pin [lindex [$vertex slews $edge] end]] }
}
foreach cell [get_cells *] { set_disable_timing $cell }
foreach slew $slews {
  lassign $slew edge pin value
  set_assigned_transition -$edge %s $pin
}"""
_ROW = re.compile(r"^\s*(\S+) +(\S+) +(\S+) +\S+ u(\d+)\s*$", re.M)


def beside(
    power: Power,
    modules: dict[str, Circuit],
    library: Library,
    files: Sequence[Path],
    folder: Path | None,
) -> Beside:
    """The power of a unit's logic beside OpenSTA's, in the run that `power` was measured in.

    modules, library, files : as they were measured, and the library's files; the embedded one has no power tables
    folder : where to keep what OpenSTA was given, a folder for each module
    Raises: `SynthError` as `opensta.command` does, and with OpenSTA's reason if it gives no power.
    """
    ours, theirs, same = (defaultdict[str, Counter](Counter) for _ in range(3))
    with tempfile.TemporaryDirectory(prefix="vrex-sta-") as tmp:
        reads = "read_saif" in opensta.run(Path(tmp), "puts [info commands read_saif]\n")
        for module in power.modules:
            for kind, part in module.kinds.items():
                # A fJ in each cycle of a MHz is a nW, as leakage is.
                watts = {k: v * (1 if k == "leakage" else power.mhz) for k, v in vars(part).items()}
                ours[kind].update({k: v * module.instances / 1e3 for k, v in watts.items()})
            run = _Run(module, modules[module.name], library, power.mhz)
            place = (folder or Path(tmp)) / module.name
            if reads:
                found = run.by_saif(place, files)
            else:
                found = run.by_clocks(place)
                for kind, watts in run.by_clocks(place / "same", slew_of(library)).items():
                    same[kind].update(watts)
            for kind, watts in found.items():
                theirs[kind].update(watts)
    return Beside(*({k: Part(**v) for k, v in x.items()} for x in (ours, theirs, same)))


@dataclass(frozen=True)
class Row:
    """Power (µW) of a kind of cells by us and by OpenSTA.

    differences : of all, of nets, inside cells, of leakage, and of all if OpenSTA takes our slew and loads (%); None if
    OpenSTA gives no power
    """

    ours: float
    opensta: float
    differences: tuple[float | None, ...]


def compared(found: Beside) -> dict[str, Row]:
    """Our power beside OpenSTA's, of all cells and of each kind."""

    def differences(parts: tuple[list[Part], ...]) -> Row:
        sums = [{k: sum(getattr(p, k) for p in own) for k in ("switching", "internal", "leakage")} for own in parts]
        ours, theirs, same = sums
        pairs = [(sum(ours.values()), sum(theirs.values())), *((ours[k], theirs[k]) for k in ours)]
        pairs.append((pairs[0][0], sum(same.values())))
        return Row(*pairs[0], tuple(100 * (a / b - 1) if b else None for a, b in pairs))

    readings = (found.ours, found.opensta, found.same)
    whole = {"all": differences(tuple([*x.values()] for x in readings))}
    return whole | {k: differences(tuple([x[k]] if k in x else [] for x in readings)) for k in found.ours}


class _Run:
    """A module in its recorded runs, for OpenSTA."""

    def __init__(self, module: Module, circuit: Circuit, library: Library, mhz: float) -> None:
        self.module, self.library, self.mhz = module, library, mhz
        self.gates, self.volts = cells.load(library, set(circuit.gates))
        self.netlist = _flat(circuit)
        self.verilog, _, self.nets = opensta.verilog(module.name, self.netlist, named=True)

    def by_saif(self, folder: Path, files: Sequence[Path]) -> dict[str, Counter]:
        """Power (µW) by kind of cells, of the SAIF and the library as it is."""
        texts = [file_bytes(f).decode() for f in files]
        return self._power(folder, texts, f"read_saif -scope {self.module.name} top.saif")

    def by_clocks(self, folder: Path, slew: float | None = None) -> dict[str, Counter]:
        """Power (µW) by kind of cells, in release 2.0. `slew` : our slew (ps); it brings our loads of pins along."""
        heads = {id(c.library): c.library for c in (self.library.cells[n] for n in self.gates)}
        texts = [_library(head, self.gates, self.volts, slew is not None) for head in heads.values()]
        slews = _SLEWS % ("$value" if slew is None else f"{slew:.6g}")
        return self._power(folder, texts, "\n".join((slews, *self._clocks())))

    def _power(self, folder: Path, libraries: list[str], activity: str) -> dict[str, Counter]:
        """OpenSTA's power (µW) of all instances of the module, by kind of cells."""
        top, cells_ = self.module.name, self.netlist["cells"]
        folder.mkdir(parents=True, exist_ok=True)
        for i, text in enumerate(libraries):
            (folder / f"{i}.lib").write_text(text)
        (folder / "top.v").write_text(self.verilog)
        (folder / "top.saif").write_text(saif.write(top, self.netlist, self.nets, self.module.counts, self.mhz))
        script = _SCRIPT.format(
            liberty="\n".join(f"read_liberty {i}.lib" for i in range(len(libraries))),
            top=top,
            period=2e-3 * saif.half_period(self.mhz),
            ports=f"[get_ports {opensta.CLOCK}]" if opensta.CLOCK in self.netlist["ports"] else "",
            activity=activity,
        )
        report = opensta.run(folder, script)
        rows = _ROW.findall(report)
        if len(rows) != len(cells_):
            raise SynthError(
                f"{top}: OpenSTA gave the power of {len(rows)} of {len(cells_)} cells: {opensta.refusal(report)}"
            )
        out: dict[str, Counter] = defaultdict(Counter)
        for internal, switching, leakage, cell in rows:
            watts = {"switching": float(switching), "internal": float(internal), "leakage": float(leakage)}
            kind = kind_of(self.gates[cells_[int(cell)][1]])
            out[kind].update({k: v * 1e6 * self.module.instances for k, v in watts.items()})
        return out

    def _clocks(self) -> Iterator[str]:
        """Commands that make each net a clock with the net's toggles as edges, and hold the pins at constants still."""
        counts, known = self.module.counts, self.module.counts.nets()
        pins: dict[int, list[str]] = defaultdict(list)
        ports: dict[int, list[str]] = defaultdict(list)
        for i, (_, kind, own) in enumerate(self.netlist["cells"]):
            gate = self.gates[kind]
            outputs = (gate.gate.out,) if gate.gate else gate.outputs
            for pin, (net, *_) in own.items():
                if isinstance(net, str):
                    yield f"sta::set_power_pin_activity [get_pins u{i}/{pin}] 0 {int(net == '1')}"
                elif pin in outputs:
                    pins[known[net][0]].append(f"u{i}/{pin}")
        for net, name in self.nets.items():
            if name.endswith("]") and net in known and not name.startswith(f"{opensta.CLOCK}["):
                ports[known[net][0]].append(name)
        for what, found in (("pins", pins), ("ports", ports)):
            for toggles, names in found.items():
                period = 4e-3 * saif.half_period(self.mhz) * counts.steps / toggles if toggles else NEVER
                yield f"create_clock -name {what}{toggles} -period {period:.9g} [get_{what} {{{' '.join(names)}}}]"


def _flat(circuit: Circuit) -> dict:
    """A module's netlist without the leaves in it; a port gives what they give."""
    netlist = circuit.netlist
    own = [cell for cell in netlist["cells"] if cell[1] in circuit.gates]
    given = {b for direction, bits in netlist["ports"].values() if direction == "input" for b in bits}
    given |= {b for _, pins in netlist["memories"].values() for b in pins["RD_DATA"]}
    taken: set[int | str] = set()
    for _, kind, pins in own:
        gate = circuit.gates[kind]
        for pin, bits in pins.items():
            drives = pin in gate.outputs or (gate.gate is not None and pin == gate.gate.out)
            (given if drives else taken).update(bits)
    outside = sorted(b for b in taken - given if isinstance(b, int))
    ports = netlist["ports"] | ({"leaves": ["input", outside]} if outside else {})
    return netlist | {"cells": own, "ports": ports}


def _library(head: Group, gates: dict[str, Gate], volts: float, mean_loads: bool) -> str:
    """The Liberty of cells `gates` for release 2.0. `mean_loads` : a pin has the same load at both edges."""

    def table(group: Group, share: float) -> Edited:
        where = head.args[0]
        rows = (numbers(where, group.kind, (row,), below_zero=True) for row in group.lists["values"])
        values = tuple(", ".join(repr(x * share) for x in row) for row in rows)
        return Edited(group.kind, group.args, group.attributes, group.lists | {"values": values}, [])

    def pin(group: Group, grounds: set[str]) -> Edited:
        stated = dict(group.attributes)
        if mean_loads and stated.get("direction") == "input":
            mean = sum(nldm.capacitances(head.args[0], group)) / 2
            stated = {k: v for k, v in stated.items() if not k.endswith("_capacitance")} | {"capacitance": repr(mean)}
        kept = [g for g in group.of("internal_power") if g.attributes.get("related_pg_pin") not in grounds]
        powers = []
        for g in kept:
            related = {k: v for k, v in g.attributes.items() if k == "related_pin"}
            tables = [table(t, 0.5 / len(kept)) for t in g.of(*_POWERED["internal_power"])]
            powers.append(Edited(g.kind, (), related | {"when": "(1)"}, {}, tables))
        return Edited("pin", group.args, stated, group.lists, [*group.of("timing"), *powers])

    def cell(group: Group) -> Edited:
        leakage = {"cell_leakage_power": repr(gates[group.args[0]].leakage)}
        grounds = cells.grounds(group)
        inner = [pin(g, grounds) if g.kind == "pin" else g for g in group.of(*_POWERED["cell"])]
        return Edited("cell", group.args, dict(group.attributes) | leakage, group.lists, inner)

    stated = {k: v for k, v in head.attributes.items() if k != "default_operating_conditions"}
    templates = head.of("type", "lu_table_template", "power_lut_template")
    used = [cell(g) for g in head.of("cell") if g.args[0] in gates]
    nominal = {"process": "1", "temperature": "25", "voltage": repr(volts)}
    edited = Edited(
        "library",
        head.args,
        stated | {"leakage_power_unit": "1nW"},
        head.lists,
        [*templates, *used, Edited("operating_conditions", ("nominal",), nominal, {}, [])],
    )
    text = "".join(write(edited, _POWERED))
    return text.removesuffix("}\n") + 'default_operating_conditions : "nominal";\n}\n'
