"""cocotb side of the KVMU's bench: drives both inputs, returns the beats of every stream and their cycles."""

import cocotb

from hdl.params import KvmuParams
from hdl.retrieval.cluster_set import cluster_layout
from hdl.retrieval.kvmu import Kvmu, append_layout, burst_layout, move_layout, placed_layout
from tb.library.runner import config, result
from tb.library.streams import Bench


@cocotb.test()
async def traffic(dut):
    """Drive the beats "a" and "f" of each of config["episodes"], with a reset before each, and return its outputs.

    bases : the device base and the home base
    stalls : patterns (stream -> probability) that alternate every 50 cycles; the first one must stall unless none does
    fetch_last : offer nothing on `f` until every beat of `a` was taken
    block_b : take nothing on `b` until every reply came
    cut_at : the reset of the next episode cuts this one short after so many cycles, and it returns nothing
    """
    c = config()
    p = KvmuParams(**c["params"])
    bench = Bench(dut, c["seed"])
    a = bench.source("a", append_layout(p))
    f = bench.source("f", cluster_layout(p))
    w = bench.sink("w", placed_layout(p))
    x = bench.sink("x", move_layout(p))
    b = bench.sink("b", burst_layout(p))
    await bench.start()
    results = []
    for e in c["episodes"]:
        dut.device_base.value, dut.home_base.value = e["bases"]
        await bench.reset()
        for beats in (w.got, x.got, b.got, a.sent, f.sent):
            beats.clear()
        a.put(e["a"])
        late = [e["f"]] if e.get("fetch_last") else []
        f.put([] if late else e["f"])
        replies = sum(beat["op"] == 0 for beat in e["a"])
        sets = sum(beat["last"] for beat in e["f"])

        def stall(e=e, replies=replies, late=late) -> None:
            if late and not a.queue:
                f.put(late.pop())
            now = e["stalls"][bench.cycle // 50 % len(e["stalls"])]
            a.idle, f.idle = now.get("a", 0.0), now.get("f", 0.0)
            w.stall, x.stall, b.stall = now.get("w", 0.0), now.get("x", 0.0), now.get("b", 0.0)
            if e["block_b"]:
                b.stall = float(len(w.got) < replies)

        def done(stall=stall, replies=replies, sets=sets) -> bool:
            stall()
            return not a.queue and not f.queue and len(w.got) == replies and sum(v["last"] for v in b.values) == sets

        stall()
        if e["cut_at"]:
            while bench.cycle < e["cut_at"]:
                stall()
                await bench.step()
            continue
        await bench.run(done, limit=16 * len(e["a"]) + 500)
        for _ in range(20 + p.clusters):  # nothing more may come
            await bench.step()
        perf = int(dut.perf.value)
        counts = {n: perf >> 32 * i & 0xFFFFFFFF for i, n in enumerate(Kvmu.counters())}
        beats = {"a": a.sent[:], "f": f.sent[:], "w": w.got[:], "x": x.got[:], "b": b.got[:]}
        results.append({**beats, "perf": counts})
    result({"episodes": results})
