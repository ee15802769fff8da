"""The C driver and the example SoC of a package, by unit."""

import re
from pathlib import Path

from openvrex.hdl.emit import Emitted
from openvrex.ip.shell import TOPS, memory_test_ports, top_module

HERE = Path(__file__).resolve().parent
# Files of `driver`. `OWN` belongs to one unit; `SHARED` serves a core and a DRE, under names of its own in a DRE's.
SHARED = ("openvrex_block.h", "openvrex_block.c", "openvrex_checkpoint.h", "openvrex_checkpoint.c")
OWN = {"core_ip": "openvrex", "dre_ip": "openvrex_dre", "motion_mask_ip": "openvrex_mask"}
# Files of `example`: of the unit, then of all SoCs with a memory, of all with streams, of all.
EXAMPLES = {"core_ip": "", "dre_ip": "dre/", "motion_mask_ip": "mask/"}
_MEMORY = ("cpu_memory.h", "soc_fifo.v", "soc_interconnect.v", "soc_memory.v", "soc_port.v")
# Names of the core's driver, and those in a DRE's. So one program can hold both.
_RENAMED = {"openvrex": "openvrex_dre", "OPENVREX": "OPENVREX_DRE", "core_ip": "dre_ip", "CORE_IP": "DRE_IP"}


def of_dre(text: str) -> str:
    """A name or a source of the core's driver as a DRE has it."""
    return re.sub(rf"(?<![a-zA-Z_])({'|'.join(_RENAMED)})(?![a-zA-Z])", lambda found: _RENAMED[found[1]], text)


def sources(emitted: Emitted) -> dict[str, str]:
    """Texts of driver and example by their place in the package; the example has the package's top module, and tests no
    memory.
    """
    unit = emitted.manifest["unit"]
    out = {f"driver/{OWN[unit]}.{kind}": (HERE / "driver" / f"{OWN[unit]}.{kind}").read_text() for kind in "hc"}
    for name in SHARED if has_memory(unit) else ():
        text = (HERE / "driver" / name).read_text()
        out["driver/" + (of_dre(name) if unit == "dre_ip" else name)] = of_dre(text) if unit == "dre_ip" else text
    files = {name: f"{EXAMPLES[unit]}{name}" for name in ("main.cpp", "openvrex_soc.v")}
    shared = ["cpu.h"] + ["stream.h"] * (unit != "core_ip") + list(_MEMORY) * has_memory(unit)
    ties = "".join(
        f"\n    .{name}({width}'d0)," if direction == "in" else f"\n    .{name}(),"
        for name, (direction, width) in memory_test_ports(emitted).items()
    )
    for name, place in (files | {name: name for name in shared}).items():
        text = (HERE / "example" / place).read_text()
        head = rf"^  {TOPS[unit]} (\w+) \($"
        out[f"example/{name}"] = re.sub(head, rf"  {top_module(emitted)} \1 ({ties}", text, flags=re.M)
    return out


def has_memory(unit: str) -> bool:
    """Whether the unit has AXI4 managers, and tables in memory."""
    return unit != "motion_mask_ip"


def headers(emitted: Emitted) -> list[str]:
    """The C headers that driver and example include from the package's folder."""
    unit = emitted.manifest["unit"]
    return [f"{unit}.h"] + [f"{unit}_tables.h"] * has_memory(unit)
