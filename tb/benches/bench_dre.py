"""cocotb side of the DRE's bench: phases of keys and query blocks, each of which waits for the phase before."""

import cocotb

from openvrex.hdl.retrieval.dre import Dre
from openvrex.hdl.retrieval.hcu_state import SWITCH, joined_layout, token_layout
from openvrex.hdl.retrieval.kvmu_layouts import burst_layout, move_layout, placed_layout
from openvrex.hdl.retrieval.row_check import score_layout
from openvrex.tb.library.dre_scenario import params_from
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of
from openvrex.tb.library.table_bus import TableBus


@cocotb.test()
async def phases(dut):
    """Play config["phases"], each with {"keys": beats of k}, {"rows": beats of s} or both side by side.

    "then" are beats of k that are offered once the last row has gone; rows come "late" cycles behind keys. A phase
    waits for its keys' replies on w, and for the last bursts of its "blocks" of rows. With "reset_at", it plays up to
    that cycle, resets, clears memory, and plays everything again.

    latency, flips : of the memory behind the table port, as in `TableBus`; flips may be absent
    memory : the bytes at first, by address; may be absent
    interrupts : by the number of a phase, a SWITCH that ends in a reset before the phase; may be absent. Each has the
        context "ctx", and "errors" (addresses of beats that fail) or "after" (cycles until `stop`)
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
    for name, value in c["ports"].items():
        getattr(dut, name).value = value
    dut.stop.value = 0
    memory = TableBus(bench, p)
    memory.begin(c.get("memory", {}), c["latency"], [])
    memory.flips = c.get("flips", 0.0)
    for channel in (memory.ar, memory.aw, memory.w):
        channel.stall = c["stall"]
    await bench.start()

    async def step() -> None:
        memory.before()
        await bench.step()
        memory.after()

    async def played(phase: dict, stop: int = 0):
        keys, rows, then = (phase.get(name, []) for name in ("keys", "rows", "then"))
        seen_w, seen_b, sent, start = len(w.got), len(b.got), len(s.sent), bench.cycle

        def done() -> bool:
            fetched = sum(burst["last"] for _, burst in b.got[seen_b:]) == phase.get("blocks", 0)
            replied = len(w.got) - seen_w == len(keys) + len(phase.get("then", []))
            return (replied and fetched) or (stop and bench.cycle >= stop)

        if rows and p.wtu.budget:
            dut.budgeted.value, dut.budget.value = int(phase["budget"] > 0), max(0, phase["budget"] - 1)
        k.put(keys)
        for _ in range(phase.get("late", 0)):
            await step()
        s.put(rows)
        while not done():
            if bench.cycle - start >= c["limit"]:
                lasts = [beat["row"]["last"] for beat in rows]
                whole, all_ = (sum(some) // p.wtu.readings for some in (lasts[: len(s.sent) - sent], lasts))
                at = f"key {len(w.got) - seen_w} of {len(keys)}, row {whole} of {all_}"
                stands = f"no end after {c['limit']} cycles: deadlock? {bench.state()}"
                raise AssertionError(f"{phase['label']} stands at {at}: {stands}")
            if then and len(s.sent) - sent == len(rows):
                k.put(then)
                then = []
            await step()

    async def interrupted(how: dict) -> dict:
        before, answers = dict(memory.bytes), (len(t.got), len(w.got))
        memory.errors = set(how.get("errors", ()))
        k.put([{"op": SWITCH, "ctx": how["ctx"], "token": 0, "hash": 0, "last": 1}])
        asked, start = memory.beats, bench.cycle
        while not (bits_of(dut.bus_error) if memory.errors else bench.cycle - start >= how["after"]):
            assert bench.cycle - start < c["limit"], f"no bus error: {bench.state()}"
            await step()
        out = {"asked": memory.beats - asked, "waiting": memory.reading, "replied": len(w.got) > answers[1]}
        dut.stop.value = 1
        while bits_of(dut.busy):
            assert bench.cycle - start < c["limit"], f"busy: {bench.state()}"
            await step()
        assert memory.bytes == before, "a SWITCH changed the tables"
        await bench.reset()
        del t.got[answers[0] :], w.got[answers[1] :]
        memory.begin(before, c["latency"], [])
        dut.stop.value = 0
        return out

    if c["reset_at"]:
        for phase in c["phases"]:
            await played(phase, c["reset_at"])
        await bench.reset()
        for stream in (k, s):
            stream.sent.clear()
        for stream in (t, w, x, b):
            stream.got.clear()
        memory.begin({}, c["latency"], [])
    first, ends, interrupts = [], [], []
    for number, phase in enumerate(c["phases"]):
        if str(number) in c.get("interrupts", {}):
            interrupts.append(await interrupted(c["interrupts"][str(number)]))
        source, sink = (s, b) if "rows" in phase else (k, w)
        sent = len(source.sent)
        await played(phase)
        first.append(source.sent[sent])
        ends.append(sink.got[-1][0])
        for _ in range(c["gap"]):
            await step()
    for _ in range(50):  # nothing more may come
        await step()
    assert not bits_of(dut.busy), "busy at the end"
    names = [f"{name}.{counter}" for name, unit, _ in Dre.units(p) for counter in unit.counters()]
    result(
        {
            "first": first,
            "ends": ends,
            "interrupts": interrupts,
            "t": t.values,
            "t_cycles": [cycle for cycle, _ in t.got],
            "w_cycles": [cycle for cycle, _ in w.got],
            "w": w.values,
            "x": x.values,
            "b": b.values,
            "perf": bench.counters(names),
            "cycles": bench.cycle,
            "latency": c["latency"][0],
            "memory": {str(a): byte for a, byte in sorted(memory.bytes.items())},
        }
    )
