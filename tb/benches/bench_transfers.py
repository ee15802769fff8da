"""cocotb side of loader and storer together on cocotbext-axi's memory: reads and writes at the same time."""

import cocotb
from cocotbext.axi import AxiBus, AxiRam

from openvrex.hdl.bus.axi import PREFIX
from openvrex.hdl.execution.dpe import activation_layout, weight_layout
from openvrex.hdl.execution.vpe import output_layout, word_layout
from openvrex.hdl.instruction_layouts import dre_layout, transfer_layout
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of
from openvrex.tb.library.transfer_traffic import content, params


@cocotb.test()
async def copies(dut):
    """Run LOADs and STOREs side by side.

    config["loads"] read the lower half of a memory of config["size"] bytes. config["stores"] write words config["i"] to
    its upper half. Each channel stalls with probability config["pause"].
    """
    c = config()
    p = params(c["params"])
    bench = Bench(dut, c["seed"])
    sources = {"l_c": transfer_layout(), "s_c": transfer_layout(), "s_i": output_layout(p.vpe)}
    sources = {name: bench.source(name, layout, c["pause"]) for name, layout in sources.items()}
    sinks = {
        "l_w": weight_layout(p.dpe),
        "l_x": activation_layout(p.dpe),
        "l_v": word_layout(p.vpe),
        "s_x": activation_layout(p.dpe),
        "s_d": dre_layout(p),
    }
    sinks = {name: bench.sink(name, layout, c["pause"]) for name, layout in sinks.items()}
    ram = AxiRam(AxiBus.from_prefix(dut, PREFIX.removesuffix("_")), dut.clk, dut.rst, size=c["size"])
    ram.write(0, content(0, c["size"] // 2))
    channels = [ram.read_if.ar_channel, ram.read_if.r_channel]
    channels += [ram.write_if.aw_channel, ram.write_if.w_channel, ram.write_if.b_channel]
    for channel in channels if c["pause"] else ():
        channel.set_pause_generator(iter(lambda: bench.rng.random() < c["pause"], None))
    await bench.start()
    sources["l_c"].put(c["loads"])
    sources["s_c"].put(c["stores"])
    sources["s_i"].put(v | {"data": [v["data"]], "format": 0} for v in c["i"])
    done = {"l_done": 0, "s_done": 0}
    while done != c["done"]:
        assert bench.cycle < 50_000, f"no end: {done}"
        await bench.step()
        for name in done:
            done[name] += bits_of(getattr(dut, name)) & 1
    for _ in range(20):  # nothing more may come
        await bench.step()
    half = c["size"] // 2
    result({"memory": ram.read(half, half).hex(), **{name: sink.got for name, sink in sinks.items()}})
