"""The C driver and the example SoC of a package, by unit."""

import re
from pathlib import Path

from hdl.emit import Emitted
from ip.shell import TOPS, top_module

HERE = Path(__file__).resolve().parent
# Files of `driver` and `example` by unit. A DRE has the core's driver but for programs, under names of its own.
DRIVERS = {
    "core_ip": ("openvrex.h", "openvrex.c", "openvrex_checkpoint.h", "openvrex_checkpoint.c"),
}
EXAMPLES = {
    "core_ip": ("main.cpp", "openvrex_soc.v", "soc_fifo.v", "soc_interconnect.v", "soc_memory.v", "soc_port.v"),
}


def sources(emitted: Emitted) -> dict[str, str]:
    """Texts of driver and example by their place in the package; the example has the package's top module."""
    unit = emitted.manifest["unit"]
    out = {f"driver/{name}": (HERE / "driver" / name).read_text() for name in DRIVERS.get(unit, ())}
    for name in EXAMPLES.get(unit, ()):
        text = (HERE / "example" / name).read_text()
        out[f"example/{name}"] = re.sub(rf"^  {TOPS[unit]} ", f"  {top_module(emitted)} ", text, flags=re.M)
    return out


def headers(emitted: Emitted) -> list[str]:
    """The C headers that driver and example include from the package's folder."""
    unit = emitted.manifest["unit"]
    return [f"{unit}.h"] + [f"{unit}_tables.h"] * (unit != "motion_mask_ip")
