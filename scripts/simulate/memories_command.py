"""`vrex simulate memories`: efficiency of DRAM, PCIe and SSD."""

from scripts import console
from scripts.simulate import curve_table
from sim.system.memory_curves import all_curves


def command(json: console.Json = False) -> None:
    """Print the efficiency of DRAM, PCIe and SSD."""
    curve_table.show(all_curves(), json)
