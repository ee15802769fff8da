"""Writes an IP block as a folder that drops into a SoC."""

import hashlib
import tempfile
from importlib.metadata import version
from pathlib import Path

from golden.function_params import check
from hdl.emit import emit
from hdl.params import CLOCK, PRESETS, CoreParams, bits_for
from hdl.shells.register_block import RDL, address_map, description
from ip.address_map import header, html
from ip.fusesoc import core_file, synth_script
from ip.ipxact import ipxact
from ip.package_datasheet import sheet
from ip.shell import TOPS, constraints, shell, stub, top_module
from ip.table_header import table_header

HERE = Path(__file__).resolve().parent
PERIOD = 1e9 / CLOCK  # ns


def configuration(p: CoreParams) -> str:
    """A unique name for the parameters: the preset with this core, else a hash."""
    names = (name for name, system in PRESETS.items() if system.core == p)
    values = repr(p)
    # Optional hardware that is absent does not rename a package.
    for off in (", features=''", ", budget=False", ", to_register=False", ", reading='resv'"):
        values = values.replace(off, "")
    return next(names, f"c{hashlib.sha256(values.encode()).hexdigest()[:8]}")


def write(unit: str, p: CoreParams, folder: Path, period: float = PERIOD, prefix: str | None = None) -> list[Path]:
    """Writes the package of a unit into `folder` and returns the paths. No file gets there before all are made.

    The package holds Verilog, manifest.json, data sheet, shell, stub, SDC, a FuseSoC core, the registers as C header,
    HTML, IP-XACT and SystemRDL, and the tables in memory as C header. The package of a core also holds its driver and
    an example SoC. Other files in the folder stay.

    unit : key of `ip.shell.TOPS`
    period : clock period of the SDC (ns)
    prefix : begins the name of every module and of the package. The default is `configuration`, so that packages of
        several configurations fit into one design

    Raises: `ParamError` for a unit that is no IP block, parameters that do not fit, and a prefix that is no name.
    """
    check(unit in TOPS, "unit", unit, f"must be one of {', '.join(TOPS)}")
    check(period > 0, "period", period, "must be more than 0 ns")
    registers, release = address_map(unit, p), version("openvrex")
    emitted = emit(unit, p, configuration(p) if prefix is None else prefix)
    name, top = emitted.top, top_module(emitted)
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part:
        new = Path(part)
        emitted.write(new)
        texts = {
            f"{top}.v": shell(emitted, p),
            f"{top}_stub.v": stub(emitted, p),
            f"{top}.sdc": constraints(emitted, period),
            f"{name}.core": core_file(emitted, p, bits_for(registers.size), release),
            f"{name}.md": sheet(emitted, p, release),
            "synth.ys": synth_script(emitted),
            RDL.name: description(unit, p),
        }
        if unit == "core_ip":
            sources = [*(HERE / "driver").glob("*.[ch]"), *(HERE / "example").iterdir()]
            texts |= {f.relative_to(HERE).as_posix(): f.read_text() for f in sources}
            soc = "example/openvrex_soc.v"
            texts[soc] = texts[soc].replace(f"  {TOPS[unit]} ", f"  {top} ")
        for path, text in texts.items():
            (new / path).parent.mkdir(exist_ok=True)
            (new / path).write_text(text)
        header(registers, new / f"{unit}.h")
        table_header(p.dre.layout(), unit, new / f"{unit}_tables.h", p.dre.kvmu.kv4_group)
        ipxact(registers, emitted, p, new / f"{name}.xml", release)
        html(registers, new / "html")
        for file in sorted(f for f in new.rglob("*") if f.is_file()):
            target = folder / file.relative_to(new)
            target.parent.mkdir(parents=True, exist_ok=True)
            out.append(file.replace(target))
    return out
