"""cocotb side of the VPE's bench: drives instructions and words, returns the stored words and all cycles."""

import cocotb

from openvrex.golden.function_params import ScoreFormat
from openvrex.hdl.execution.vpe import Vpe, output_layout, word_layout
from openvrex.hdl.instruction_layouts import instruction_layout
from openvrex.hdl.params import VpeParams
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench


@cocotb.test()
async def programs(dut):
    """Drive "c" and "i" of each of config["episodes"], with a reset before each, and return its outputs and cycles.

    stalls : probabilities of idling on c and i and of stalling o; they alternate every 40 cycles
    cut_at : the reset of the next episode cuts this one short after so many cycles, and it returns nothing
    """
    settings = config()
    p = VpeParams(**settings["params"] | {"score": ScoreFormat(**settings["params"]["score"])})
    bench = Bench(dut, settings["seed"])
    c = bench.source("c", instruction_layout(p))
    i = bench.source("i", word_layout(p))
    o = bench.sink("o", output_layout(p))
    await bench.start()
    results = []
    for e in settings["episodes"]:
        await bench.begin()
        c.put(e["c"])
        i.put(e["i"])

        def stall(e=e) -> None:
            c.idle, i.idle, o.stall = e["stalls"][bench.cycle // 40 % len(e["stalls"])]

        def done(e=e) -> bool:
            return not c.queue and not i.queue and len(o.got) == e["outputs"]

        limit = 30 * (len(e["c"]) + len(e["i"]) + e["outputs"]) + 2000
        if await bench.play(stall, done, e["cut_at"], limit, 30 + e["c"][-1]["words"]):  # the last one may still run
            counts = bench.counters(Vpe.counters())
            results.append({"c": c.sent[:], "i": i.sent[:], "o": o.got[:], "perf": counts})
    result({"episodes": results})
