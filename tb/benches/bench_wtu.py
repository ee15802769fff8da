"""cocotb side of the WTU's bench: drives counts and rows, returns beats and the cycles of every handshake."""

import cocotb

from hdl.params import ScoreFormat, WtuParams
from hdl.retrieval.wtu import Wtu
from hdl.retrieval.wtu_lanes import beat_layout, count_layout, row_layout
from tb.library.runner import config, result
from tb.library.streams import Bench


@cocotb.test()
async def rows(dut):
    """Write config["counts"], then drive config["words"] and meanwhile config["late"] counts; one result an episode.

    Every episode starts with a reset. With "reset_at" it is first cut short after so many cycles, and then repeated.

    clear : rows wait until the bins are clear, so that cycles can be compared
    period : stalls are on in every other stretch of so many cycles (0: always)
    """
    c = config()
    p = WtuParams(**c["params"] | {"score": ScoreFormat(**c["params"]["score"])})
    bench = Bench(dut, c["seed"])
    counts = bench.source("c", count_layout(p))
    source = bench.source("i", row_layout(p))
    sink = bench.sink("o", beat_layout(p))
    await bench.start()
    results = []
    for e in c["episodes"]:
        for cut in [e["reset_at"], 0] if e["reset_at"] else [0]:
            await bench.reset()
            for log in (counts.sent, source.sent, sink.got):
                log.clear()
            dut.ratio.value = e["ratio"]
            stalls = (e["idle"], e["stall"])
            counts.idle, source.idle, sink.stall = 0.0, stalls[0], stalls[1]
            counts.put(e["counts"])
            await bench.run(lambda: not counts.queue, limit=4 * len(e["counts"]) + 1000)
            for _ in range(p.lane_bins if e["clear"] else 0):  # until the histogram is clear
                await bench.step()
            counts.idle = 0.5
            counts.put(e["late"])
            source.put(e["words"])
            expected = sum(w["last"] for w in e["words"])
            start = bench.cycle

            def done(expected=expected, start=start, cut=cut, e=e, stalls=stalls) -> bool:
                on = not e["period"] or (bench.cycle - start) // e["period"] % 2 == 0
                source.idle, sink.stall = stalls if on else (0.0, 0.0)
                if cut and bench.cycle - start >= cut:
                    return True
                return sum(v["last"] for v in sink.values) == expected and not counts.queue

            await bench.run(done, limit=e["limit"])
        for _ in range(20):  # nothing more may come
            await bench.step()
        perf = int(dut.perf.value)
        results.append(
            {
                "counted": counts.sent,
                "taken": source.sent,
                "cycles": [cycle for cycle, _ in sink.got],
                "beats": sink.values,
                "perf": {n: perf >> 32 * i & 0xFFFFFFFF for i, n in enumerate(Wtu.counters())},
            }
        )
        results[-1] = {k: list(v) if isinstance(v, list) else v for k, v in results[-1].items()}
    result({"episodes": results})
