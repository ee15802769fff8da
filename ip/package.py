"""Writes an IP block as a folder that drops into a SoC."""

import hashlib
import shlex
import tempfile
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path

from openvrex.golden.function_params import check
from openvrex.hdl.emit import ALL, Emitted, emit
from openvrex.hdl.firtool_memories import MemoryPorts
from openvrex.hdl.header import VERSION, command_line, origin
from openvrex.hdl.params import CLOCK, PRESETS, CoreParams, MaskParams, bits_for
from openvrex.hdl.shells.register_block import RDL, address_map, description
from openvrex.hdl.writer.circt import Language
from openvrex.ip.address_map import header
from openvrex.ip.flows import design_compiler, librelane, orfs, vivado
from openvrex.ip.fusesoc import core_file, synth_script
from openvrex.ip.ipxact import ipxact
from openvrex.ip.origin import stamped
from openvrex.ip.package_datasheet import sheet
from openvrex.ip.power_intent import upf
from openvrex.ip.register_page import page
from openvrex.ip.shell import TOPS, constraints, shell, stub, top_module
from openvrex.ip.software import sources
from openvrex.ip.table_header import table_header

CHIP = Path(__file__).with_name("chip.md")  # for the chip team
PERIOD = 1e9 / CLOCK  # ns


def configuration(p: CoreParams | MaskParams) -> str:
    """A unique name for the parameters: the first preset that has them, else a hash."""
    names = (name for name, system in PRESETS.items() if p in (system.core, system.mask))
    values = repr(p)
    # Optional hardware that is absent does not rename a package.
    absent = "features=''", "budget=False", "to_register=False", "codes=0", "weights=False", "newest=False", "kept=0"
    for off in (*absent, "reading='resv'"):
        values = values.replace(f", {off}", "")
    return next(names, f"c{hashlib.sha256(values.encode()).hexdigest()[:8]}")


@dataclass(frozen=True)
class Options:
    """How a package is written, besides its parameters.

    period : clock period of the SDC (ns)
    prefix : begins the name of every module and of the package. The default is `configuration`, so that packages of
        several configurations fit into one design
    memory_bodies, language, checked, memory_ports, bist : as for `hdl.emit.emit`
    """

    period: float = PERIOD
    prefix: str | None = None
    memory_bodies: bool = True
    language: Language = Language.VERILOG2005
    checked: bool = False
    memory_ports: MemoryPorts = MemoryPorts.OWN
    bist: bool = False

    def __post_init__(self):
        check(self.period > 0, "period", self.period, "must be more than 0 ns")

    def emit(self, unit: str, p: CoreParams | MaskParams) -> Emitted:
        """The unit of the package."""
        prefix = configuration(p) if self.prefix is None else self.prefix
        ports = {"memory_ports": self.memory_ports} if self.memory_ports != MemoryPorts.OWN else {}
        ports |= {"bist": True} if self.bist else {}
        return emit(unit, p, prefix, self.memory_bodies, self.language, self.checked, **ports)

    def command(self, unit: str, p: CoreParams | MaskParams) -> str:
        """The command that writes the package."""
        options = [] if self.prefix is None else [f"--prefix {shlex.quote(self.prefix)}"]
        options += [f"--period {self.period:g}"] * (self.period != PERIOD)
        options += ["--no-memory-bodies"] * (not self.memory_bodies)
        options += [f"--memory-ports {self.memory_ports}"] * (self.memory_ports != MemoryPorts.OWN)
        options += [f"--language {self.language}"] * (self.language != Language.VERILOG2005)
        options += ["--bist"] * self.bist + ["--assertions"] * self.checked
        return command_line(f"vrex ip {unit}", p, ALL[unit][2], options)


def write(unit: str, p: CoreParams | MaskParams, folder: Path, how: Options = Options()) -> list[Path]:  # noqa: B008
    """Writes the package of a unit into `folder` and returns the paths. No file gets there before all are made.

    The package holds Verilog, manifest.json, data sheet, shell, stub, SDC, UPF, a FuseSoC core, files for other flows
    (`ip.flows`), the registers as C header, page, IP-XACT and SystemRDL, the tables in memory as C header, driver,
    example SoC, a page for the chip team and the licence. Every file names licence, release and command. Other files in
    the folder stay.

    unit : key of `ip.shell.TOPS`

    Raises: `ParamError` for a unit that is no IP block, parameters that do not fit, a prefix that is no name, and
    `bist` of a motion mask, which has no memory.
    """
    check(unit in TOPS, "unit", unit, f"must be one of {', '.join(TOPS)}")
    registers, command = address_map(unit, p), how.command(unit, p)
    emitted = how.emit(unit, p)
    name, top = emitted.top, top_module(emitted)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part:
        new = Path(part)
        own = emitted.write(new)
        texts = {
            f"{top}.v": shell(emitted, p),
            f"{top}_stub.v": stub(emitted, p),
            f"{top}.sdc": constraints(emitted, how.period),
            f"{top}.upf": upf(emitted),
            f"{name}.core": core_file(emitted, p, bits_for(registers.size), VERSION),
            "synth.ys": synth_script(emitted),
            "librelane.yaml": librelane(emitted, how.period, "librelane.yaml"),
            "config.mk": orfs(emitted, how.period),
            "vivado.tcl": vivado(emitted),
            "design_compiler.tcl": design_compiler(emitted),
            RDL.name: description(unit, p),
            **sources(emitted),
        }
        for path, text in texts.items():
            (new / path).parent.mkdir(exist_ok=True)
            (new / path).write_text(text)
        header(registers, new / f"{unit}.h")
        if isinstance(p, CoreParams):
            table_header(p.dre.layout(), unit, new / f"{unit}_tables.h", p.dre.kvmu.kv4_group)
        ipxact(registers, emitted, p, new / f"{name}.xml", VERSION)
        for file in {f for f in new.rglob("*") if f.is_file()} - set(own):
            file.write_text(stamped(file.name, file.read_text(), command))
        # These tell it in words.
        (new / f"{name}.md").write_text(sheet(emitted, p, command))
        (new / CHIP.name).write_text(
            CHIP.read_text() + "\n" + "".join(f"{line.strip()}  \n" for line in origin(command))
        )
        (new / "registers.html").write_text(page(registers, top, origin(command)))
        (new / "LICENSE").write_text(next(f for f in files("openvrex") or [] if f.name == "LICENSE").read_text())
        return [_moved(file, folder / file.relative_to(new)) for file in sorted(new.rglob("*")) if file.is_file()]


def _moved(file: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return file.replace(target)
