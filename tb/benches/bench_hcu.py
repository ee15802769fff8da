"""cocotb side of the HCU's bench: drives keys, returns beats and cycles."""

import cocotb

from hdl.params import HcuParams
from hdl.retrieval.hcu import joined_layout, token_layout
from tb.library.runner import config, result
from tb.library.streams import Bench


@cocotb.test()
async def keys(dut):
    """Drive config["beats"] under the configured stalls. With "reset_at", reset then and drive them all again."""
    c = config()
    p = HcuParams(**c["params"])
    bench = Bench(dut, c["seed"])
    source = bench.source("i", token_layout(p), c["idle"])
    sink = bench.sink("o", joined_layout(p), c["stall"])
    dut.th_hd.value = c["th_hd"]
    await bench.start()
    source.put(c["beats"])
    if c["reset_at"]:
        for _ in range(c["reset_at"]):
            await bench.step()
        await bench.reset()
        sink.got.clear()
        source.sent.clear()
        source.put([{"op": 1, "ctx": i, "token": 0, "hash": 0, "last": 0} for i in range(p.n_ctx)])
        source.put(c["beats"])
    expected = len(c["beats"]) + (p.n_ctx if c["reset_at"] else 0)
    await bench.run(lambda: len(sink.got) == expected, limit=c["limit"])
    for _ in range(20):  # nothing more may come
        await bench.step()
    perf = int(dut.perf.value)
    names = ["tokens", "opened", "full_joins", "compares"]
    result(
        {
            "first": source.sent[0],
            "cycles": [cycle for cycle, _ in sink.got],
            "beats": sink.values[-len(c["beats"]) :],
            "perf": {n: perf >> 32 * i & 0xFFFFFFFF for i, n in enumerate(names)},
        }
    )
