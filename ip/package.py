"""An IP block as a folder that drops into a SoC."""

import tempfile
from importlib.metadata import version
from pathlib import Path

from golden.params import check
from hdl.emit import emit
from hdl.params import CoreParams, bits_for
from hdl.register_block import RDL, address_map, description
from ip.fusesoc import core_file, synth_script
from ip.ipxact import ipxact
from ip.registers import header, html
from ip.shell import TOPS, constraints, shell, stub

HERE = Path(__file__).resolve().parent
WAIVERS = HERE.parent / "tb" / "waivers.vlt"
PERIOD = 1.25  # ns: the paper's 800 MHz


def write(unit: str, p: CoreParams, folder: Path, period: float = PERIOD) -> list[Path]:
    """Write the package of a unit into `folder`: all files are made before the first of them gets there.

    Verilog, manifest.json, shell, stub, SDC, registers as C header, HTML, IP-XACT and SystemRDL, a FuseSoC core; for a
    core also its driver and an example SoC. Other files of the folder stay.
    Raises: `ParamError` for a unit that is no IP block, parameters that do not fit.
    """
    check(unit in TOPS, "unit", unit, f"must be one of {', '.join(TOPS)}")
    check(period > 0, "period", period, "must be more than 0 ns")
    top, registers, release = TOPS[unit], address_map(unit, p), version("openvrex")
    emitted = emit(unit, p)
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part:
        new = Path(part)
        emitted.write(new)
        texts = {
            f"{top}.v": shell(emitted, p),
            f"{top}_stub.v": stub(emitted, p),
            f"{top}.sdc": constraints(emitted, period),
            f"{unit}.core": core_file(unit, p, bits_for(registers.size), release),
            "synth.ys": synth_script(unit),
            "waivers.vlt": WAIVERS.read_text(),
            RDL.name: description(unit, p),
        }
        if unit == "core_ip":
            sources = [*(HERE / "driver").glob("*.[ch]"), *(HERE / "example").iterdir()]
            texts |= {f.relative_to(HERE).as_posix(): f.read_text() for f in sources}
        for name, text in texts.items():
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_text(text)
        header(registers, new / f"{unit}.h")
        ipxact(registers, emitted, p, new / f"{unit}.xml", release)
        html(registers, new / "html")
        for file in sorted(f for f in new.rglob("*") if f.is_file()):
            target = folder / file.relative_to(new)
            target.parent.mkdir(parents=True, exist_ok=True)
            out.append(file.replace(target))
    return out
