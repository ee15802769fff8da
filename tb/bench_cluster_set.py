"""cocotb side of the cluster-set bench: drives rows, returns beats and cycles."""

import cocotb

from golden.params import ScoreFormat
from hdl.cluster_set import ClusterSet, cluster_layout, mask_layout
from hdl.params import WtuParams
from tb.runner import config, result
from tb.streams import Bench


@cocotb.test()
async def rows(dut):
    """Drive config["beats"] under the configured stalls; with "reset_at", reset there and drive them all again."""
    c = config()
    p = WtuParams(**c["params"] | {"score": ScoreFormat(**c["params"]["score"])})
    bench = Bench(dut, c["seed"])
    source = bench.source("i", mask_layout(p), c["idle"])
    sink = bench.sink("o", cluster_layout(p), c["stall"])
    await bench.start()
    source.put(c["beats"])
    if c["reset_at"]:
        for _ in range(c["reset_at"]):
            await bench.step()
        await bench.reset()
        sink.got.clear()
        source.sent.clear()
        source.put(c["beats"])
    sets = sum(b["row_last"] and b["set_last"] for b in c["beats"])
    await bench.run(lambda: sum(v["last"] for v in sink.values) == sets, limit=c["limit"])
    for _ in range(20):  # nothing more may come
        await bench.step()
    perf = int(dut.perf.value)
    names = ClusterSet.counters()
    result(
        {
            "i": source.sent,
            "o": sink.got,
            "perf": {n: perf >> 32 * i & 0xFFFFFFFF for i, n in enumerate(names)},
        }
    )
