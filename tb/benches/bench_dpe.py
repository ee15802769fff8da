"""cocotb side of the DPE's bench: loads operands, issues commands, returns results and cycles."""

import cocotb

from openvrex.hdl.execution.dpe import Dpe, activation_layout, command_layout, result_layout, weight_layout
from openvrex.hdl.params import DpeParams
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of


@cocotb.test()
async def products(dut):
    """Run config["phases"]: {"w", "x", "c": beats, "results": number, "after": results that must come first}.

    While a phase runs, the bench loads the operands of the next one; it issues their commands when they are loaded.
    With "reset_at" a reset cuts a first run short, then everything runs again.
    """
    c = config()
    p = DpeParams(**c["params"])
    bench = Bench(dut, c["seed"])
    w = bench.source("w", weight_layout(p), c["idle"])
    x = bench.source("x", activation_layout(p), c["idle"])
    commands = bench.source("c", command_layout(p), c["idle"])
    o = bench.sink("o", result_layout(p), c["stall"])
    await bench.start()
    if c["reset_at"]:
        for source, name in ((w, "w"), (x, "x"), (commands, "c")):
            source.put(c["phases"][0][name])
        for _ in range(c["reset_at"]):
            await bench.step()
        await bench.reset()
        for beats in (o.got, commands.sent):
            beats.clear()
    total = 0
    for phase in c["phases"]:
        await bench.run(lambda phase=phase: len(o.got) >= phase["after"])
        w.put(phase["w"])
        x.put(phase["x"])
        await bench.run(lambda: not w.queue and not x.queue)
        commands.put(phase["c"])
        await bench.run(lambda: not commands.queue)
        total += phase["results"]
    await bench.run(lambda: len(o.got) == total)
    for _ in range(40):  # nothing more may come
        await bench.step()
    perf = bits_of(dut.perf)
    names = Dpe.counters()
    result(
        {
            "taken": commands.sent,
            "cycles": [cycle for cycle, _ in o.got],
            "beats": o.values,
            "perf": {n: perf >> 32 * i & 0xFFFFFFFF for i, n in enumerate(names)},
        }
    )


@cocotb.test()
async def overwritten(dut):
    """Load config["w"] and ["x"], issue ["c"], and write ["over_w"] and ["over_x"] from ["gap"] cycles after `read`."""
    c = config()
    p = DpeParams(**c["params"])
    bench = Bench(dut, c["seed"])
    w, x = bench.source("w", weight_layout(p)), bench.source("x", activation_layout(p))
    commands, o = bench.source("c", command_layout(p)), bench.sink("o", result_layout(p))
    await bench.start()
    w.put(c["w"])
    x.put(c["x"])
    await bench.run(lambda: not w.queue and not x.queue)
    commands.put(c["c"])
    while not bits_of(dut.read):
        await bench.step()
    for _ in range(c["gap"] - 1):
        await bench.step()
    w.put(c["over_w"])
    x.put(c["over_x"])
    await bench.run(lambda: len(o.got) == c["results"])
    result({"beats": o.values})
