"""cocotb side of the KVMU bench: drives both inputs, returns the beats of every stream and their cycles."""

import cocotb

from hdl.cluster_set import cluster_layout
from hdl.kvmu import Kvmu, append_layout, burst_layout, move_layout, placed_layout
from hdl.params import KvmuParams
from tb.runner import config, result
from tb.streams import Bench


@cocotb.test()
async def traffic(dut):
    """Drive config["a"] and config["f"] under the configured stalls; with "reset_at", reset there and drive again."""
    c = config()
    p = KvmuParams(**c["params"])
    bench = Bench(dut, c["seed"])
    stalls = c["stalls"]
    a = bench.source("a", append_layout(p), stalls.get("a", 0.0))
    f = bench.source("f", cluster_layout(p), stalls.get("f", 0.0))
    w = bench.sink("w", placed_layout(p), stalls.get("w", 0.0))
    x = bench.sink("x", move_layout(p), stalls.get("x", 0.0))
    b = bench.sink("b", burst_layout(p), stalls.get("b", 0.0))
    dut.device_base.value = c["device_base"]
    dut.home_base.value = c["home_base"]
    await bench.start()
    a.put(c["a"])
    f.put(c["f"])
    if c["reset_at"]:
        for _ in range(c["reset_at"]):
            await bench.step()
        await bench.reset()
        for s in (w, x, b):
            s.got.clear()
        a.sent.clear()
        f.sent.clear()
        a.put(c["a"])
        f.put(c["f"])
    replies = sum(beat["op"] == 0 for beat in c["a"])
    sets = sum(beat["last"] for beat in c["f"])

    def done() -> bool:
        if c["block_b"] and len(w.got) == replies:
            b.stall = 0.0
        return not a.queue and not f.queue and len(w.got) == replies and sum(v["last"] for v in b.values) == sets

    await bench.run(done, limit=c["limit"])
    for _ in range(20 + p.clusters):  # nothing more may come
        await bench.step()
    perf = int(dut.perf.value)
    result(
        {
            "a": a.sent,
            "f": f.sent,
            "w": w.got,
            "x": x.got,
            "b": b.got,
            "perf": {n: perf >> 32 * i & 0xFFFFFFFF for i, n in enumerate(Kvmu.counters())},
        }
    )
