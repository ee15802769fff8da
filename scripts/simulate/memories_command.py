"""`vrex simulate memories`: efficiency of DRAM, PCIe and SSD."""

from openvrex.scripts import console
from openvrex.scripts.simulate import curve_table
from openvrex.sim.system.memory_curves import all_curves


def command(json: console.Json = False) -> None:
    """Print the efficiency of DRAM, PCIe and SSD."""
    curve_table.show(all_curves(), json)
