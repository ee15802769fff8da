"""cocotb side of the HCU's bench: drives keys in front of a memory of tables, returns beats, cycles and items."""

import cocotb

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import HcuParams
from openvrex.hdl.retrieval.hcu import Hcu
from openvrex.hdl.retrieval.hcu_state import CLEAR, client_sizes, joined_layout, token_layout
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import LATE, Bench
from openvrex.tb.library.table_memory import TableMemory


@cocotb.test()
async def keys(dut):
    """Drive config["beats"] under the configured stalls. With "reset_at", reset then and drive them all again, behind a
    CLEAR of each of their contexts.
    """
    c = config()
    p = HcuParams(**c["params"])
    bench = Bench(dut, c["seed"])
    source = bench.source("i", token_layout(p), c["idle"])
    sink = bench.sink("o", joined_layout(p), c["stall"])
    memory = TableMemory(bench, "m", client_sizes(p), latency=c["latency"], late=c["late"])
    memory.items.update({(Item(item), ctx, index): bits for item, ctx, index, bits in c["items"]})
    memory.ask.stall = memory.put.stall = c["port_stall"]
    memory.data.idle = 0.0 if c["port_stall"] == LATE else c["port_stall"]  # a source has no such stall
    dut.th_hd.value = c["th_hd"]
    await bench.start()
    source.put(c["beats"])
    contexts = {b["ctx"] for b in c["beats"]} if c["reset_at"] else set()
    if c["reset_at"]:
        for _ in range(c["reset_at"]):
            await bench.step()
        await bench.reset()
        for log in (sink.got, source.sent, memory.puts):
            log.clear()
        source.put([{"op": CLEAR, "ctx": ctx, "token": 0, "hash": 0, "last": 0} for ctx in sorted(contexts)])
        source.put(c["beats"])
    expected = len(c["beats"]) + len(contexts)
    await bench.run(lambda: len(sink.got) == expected, limit=c["limit"])
    await bench.rest(20)
    result(
        {
            "first": source.sent[0],
            "cycles": [cycle for cycle, _ in sink.got],
            "beats": sink.values[len(contexts) :],
            "asks": [cycle for cycle, _ in memory.ask.got],
            "puts": [[cycle, *put] for (cycle, _), put in zip(memory.put.got, memory.puts, strict=True)][
                len(contexts) :
            ],
            "items": [[*key, bits] for key, bits in memory.items.items()],
            "read": memory.asked[Item.HASH],
            "perf": bench.counters(Hcu.COUNTERS),
        }
    )
