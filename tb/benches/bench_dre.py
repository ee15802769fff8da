"""cocotb side of the DRE's bench: phases of keys and query blocks, each of which waits for the phase before."""

import cocotb

from hdl.retrieval.dre import Dre, score_layout
from hdl.retrieval.hcu import joined_layout, token_layout
from hdl.retrieval.kvmu import burst_layout, move_layout, placed_layout
from tb.library.dre_scenario import params_from
from tb.library.runner import config, result
from tb.library.streams import Bench


@cocotb.test()
async def phases(dut):
    """Play config["phases"], each with {"keys": beats of k}, {"rows": beats of s} or both side by side.

    A phase waits for its keys' beats on t, and for the last bursts of its "blocks" of rows. With "reset_at", it plays
    up to that cycle, resets, and plays everything again.
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

    async def played(phase: dict, stop: int = 0):
        keys, rows = phase.get("keys", []), phase.get("rows", [])
        seen_t, seen_b, sent = len(t.got), len(b.got), len(s.sent)

        def done() -> bool:
            fetched = sum(burst["last"] for _, burst in b.got[seen_b:]) == phase.get("blocks", 0)
            return (len(t.got) - seen_t == len(keys) and fetched) or (stop and bench.cycle >= stop)

        k.put(keys)
        s.put(rows)
        try:
            await bench.run(done, limit=c["limit"])
        except AssertionError as e:
            whole = sum(beat["row"]["last"] for beat in rows[: len(s.sent) - sent])
            at = f"key {len(t.got) - seen_t} of {len(keys)}, row {whole} of {sum(beat['row']['last'] for beat in rows)}"
            raise AssertionError(f"{phase['label']} stands at {at}: {e}") from None

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
        source, sink = (s, b) if "rows" in phase else (k, t)
        sent = len(source.sent)
        await played(phase)
        first.append(source.sent[sent])
        ends.append(sink.got[-1][0])
        for _ in range(c["gap"]):  # for the KVMU's pending work on the keys
            await bench.step()
    for _ in range(50):  # nothing more may come
        await bench.step()
    perf = int(dut.perf.value)
    names = [f"{name}.{counter}" for name, unit, _ in Dre.units(p) for counter in unit.counters()]
    result(
        {
            "first": first,
            "ends": ends,
            "t": t.values,
            "t_cycles": [cycle for cycle, _ in t.got],
            "w": w.values,
            "x": x.values,
            "b": b.values,
            "perf": {name: perf >> 32 * i & 0xFFFFFFFF for i, name in enumerate(names)},
            "cycles": bench.cycle,
        }
    )
