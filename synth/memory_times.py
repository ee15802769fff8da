"""Access and setup times of memories for `synth.timing`: of a macro where its Liberty file is given, else the model's.

A macro is a Liberty cell with a `memory` group. It serves memories of its words and bits, whatever their ports. Its
access time is the table of its data outputs that is longest at the smallest slew and load, its setup time that of its
buses (address, data, masks), both at the rising edge. Single pins, such as resets and test modes, are left aside.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from openvrex.synth import liberty, liberty_text, nldm, technology
from openvrex.synth.liberty_text import Group, SynthError
from openvrex.synth.nldm import EDGES, Table
from openvrex.synth.sram import Sram
from openvrex.synth.timing import MemoryTimes, memory_times

EMBEDDED_NODE = 14  # nm: of memories beside the embedded library, whose unit is no time


@dataclass(frozen=True)
class Macro:
    """A memory cell of a Liberty file, of `words` words of `bits` bits."""

    name: str
    words: int
    bits: int
    times: MemoryTimes


def read(path: Path) -> list[Macro]:
    """The macros of a Liberty file (`.gz` allowed).

    Raises: `SynthError` for a file without one, and for a macro whose times cannot be read.
    """
    found = []
    for library in liberty_text.libraries(path, liberty.file_bytes(path)):
        found += [_macro(path, library, cell) for cell in library.of("cell") if cell.of("memory")]
    if not found:
        raise SynthError(f"{path}: no cell in it has a memory group with address_width and word_width")
    return found


def _macro(path: Path, library: Group, cell: Group) -> Macro:
    where = f"{path}: cell {cell.args[0]}"
    units = nldm.units_of(str(path), library)
    templates = {g.args: g for g in library.of("lu_table_template")}
    stated = cell.of("memory")[0].attributes
    sizes = [liberty_text.number(where, k, stated.get(k, "")) for k in ("address_width", "word_width")]
    buses = {d: [b for b in cell.of("bus") if b.attributes.get("direction") == d] for d in ("input", "output")}

    def longest(direction: str, kind: str, *names: str) -> list[Table]:
        """The tables `names` of a timing of `kind`: of the one whose first table has the largest first value."""
        timings = [t for t in _inside(buses[direction], "timing") if t.attributes.get("timing_type") == kind]
        tables = [[nldm.table_of(where, g, templates, *units) for n in names for g in t.of(n)] for t in timings]
        tables = [found for found in tables if len(found) == len(names)]
        if not tables:
            raise SynthError(f"{where}: its {direction} buses have no {names[0]} of {kind}")
        return max(tables, key=lambda found: found[0].values[0][0])

    (rise, rising), (fall, falling) = (longest("output", "rising_edge", f"cell_{e}", f"{e}_transition") for e in EDGES)
    setup = [longest("input", "setup_rising", f"{e}_constraint")[0] for e in EDGES]
    loads = [max(nldm.capacitances(where, g)) for g in (*buses["input"], *_inside(buses["input"], "pin"))]
    times = MemoryTimes((rise, fall), (rising, falling), (setup[0], setup[1]), max(loads) * units[1])
    return Macro(cell.args[0], 1 << int(sizes[0]), int(sizes[1]), times)


def _inside(groups: Iterable[Group], kind: str) -> list[Group]:
    """The groups of a kind in others, and in those inside of them."""
    return [x for g in groups for x in (*g.of(kind), *_inside(g.groups, kind))]


def node_of(library: liberty.Library) -> int:
    """The node (nm) whose FO4 is nearest to the library's, `EMBEDDED_NODE` for the embedded library."""
    if library.embedded:
        return EMBEDDED_NODE
    own = technology.fo4(library)
    return min(technology.NODES, key=lambda n: abs(technology.NODES[n].fo4.value / own - 1))


def times(memory: Sram, library: liberty.Library, macros: Sequence[Macro] = ()) -> tuple[MemoryTimes, str]:
    """The times of a memory in the unit of a library, and where they are from: a macro's name, or "model".

    The model's times are those of the memory's node, brought to the library by FO4. `macros` are in the library's unit.
    """
    for macro in macros:
        if (macro.bits, macro.words) == (memory.bits, 1 << (memory.words - 1).bit_length()):
            return macro.times, macro.name
    scale = technology.fo4(library) / technology.node(memory.node).fo4.value
    return memory_times(memory.access.value * scale, memory.setup.value * scale), "model"
