"""cocotb side of the test of memories: plays march elements on a unit's test ports, as an MBIST controller does."""

import cocotb

from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench


@cocotb.test()
async def march(dut):
    """Play config["elements"] on each of config["groups"], and return the bits of bist_fail that were ever set.

    elements : [addresses rise or fall (+1, -1), [[read or write, pattern], ...]] · groups : [bist_select, words]
    A read is compared in the next cycle, in which the next access runs.
    """
    c = config()
    bench, failed = Bench(dut, c["seed"]), 0
    await bench.start()

    async def step(write: int = 0, read: int = 0, address: int = 0, data: int = 0) -> None:
        """One cycle; compares with what the last one expects."""
        nonlocal failed
        dut.bist_write.value, dut.bist_read.value = write, read
        dut.bist_address.value, dut.bist_data.value = address, data if write else 0
        dut.bist_compare.value, dut.bist_expect.value = int(expected is not None), expected or 0
        await bench.fall
        failed |= int(dut.bist_fail.value)
        await bench.rise

    await bench.rise
    dut.bist_enable.value = 1
    for select, words in c["groups"]:
        dut.bist_select.value, expected = select, None
        for way, accesses in c["elements"]:
            for address in range(words)[::way]:
                for kind, pattern in accesses:
                    await step(kind == "write", kind == "read", address, pattern)
                    expected = pattern if kind == "read" else None
        await step()
    result({"failed": failed})
