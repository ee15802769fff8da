"""cocotb side of the DRE bench: phases of keys and query blocks, each waiting for what the one before gives."""

import cocotb

from hdl.dre import score_layout
from hdl.hcu import joined_layout, token_layout
from hdl.kvmu import burst_layout, move_layout, placed_layout
from tb.dre import params_from
from tb.runner import config, result
from tb.streams import Bench


@cocotb.test()
async def phases(dut):
    """Play config["phases"]: {"keys": beats of k} waits for their beats on t; {"rows": beats of s} for the last burst.

    With "reset_at", play up to that cycle, reset, and play it all again.
    """
    c = config()
    p = params_from(c["params"])
    bench = Bench(dut, c["seed"])
    k = bench.source("k", token_layout(p.hcu), c["idle"])
    s = bench.source("s", score_layout(p.wtu), c["idle"])
    t = bench.sink("t", joined_layout(p.hcu), c["stall"])
    w = bench.sink("w", placed_layout(p.kvmu), c["stall"])
    x = bench.sink("x", move_layout(p.kvmu), c["stall"])
    b = bench.sink("b", burst_layout(p.kvmu), c["stall"])
    dut.th_hd.value = c["th_hd"]
    dut.ratio.value = c["ratio"]
    dut.device_base.value = c["device_base"]
    dut.home_base.value = c["home_base"]
    await bench.start()

    def played(phase: dict, stop: int = 0):
        seen_t, seen_b = len(t.got), len(b.got)
        if "keys" in phase:
            k.put(phase["keys"])
            done = lambda: len(t.got) - seen_t == len(phase["keys"])  # noqa: E731
        else:
            s.put(phase["rows"])
            done = lambda: len(b.got) > seen_b and b.got[-1][1]["last"]  # noqa: E731
        return bench.run(lambda: done() or (stop and bench.cycle >= stop), limit=c["limit"])

    if c["reset_at"]:
        for phase in c["phases"]:
            await played(phase, c["reset_at"])
        await bench.reset()
        for stream in (k, s):
            stream.sent.clear()
        for stream in (t, w, x, b):
            stream.got.clear()
    first, ends = [], []
    for phase in c["phases"]:
        source, sink = (k, t) if "keys" in phase else (s, b)
        sent = len(source.sent)
        await played(phase)
        first.append(source.sent[sent])
        ends.append(sink.got[-1][0])
        for _ in range(c["gap"]):  # whatever the KVMU still does for the keys
            await bench.step()
    for _ in range(50):  # nothing more may come
        await bench.step()
    perf = int(dut.perf.value)
    result(
        {
            "first": first,
            "ends": ends,
            "t": t.values,
            "t_cycles": [cycle for cycle, _ in t.got],
            "w": w.values,
            "x": x.values,
            "b": b.values,
            "perf": [perf >> 32 * i & 0xFFFFFFFF for i in range(len(dut.perf) // 32)],
            "cycles": bench.cycle,
        }
    )
