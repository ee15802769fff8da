"""cocotb side of the cluster set's bench: drives rows, returns beats and cycles."""

import cocotb

from openvrex.golden.function_params import ScoreFormat
from openvrex.hdl.params import WtuParams
from openvrex.hdl.retrieval.cluster_set import ClusterSet, cluster_layout, mask_layout
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of


class Idle:
    """Records the output `idle` in every cycle; it steps like a stream of the bench."""

    def __init__(self, bench: Bench):
        self.dut = bench.dut
        bench.streams.append(self)
        self.reset()

    def reset(self) -> None:
        """Start again with a reset."""
        self.got: list[tuple[int, int]] = []  # (cycle, value)

    def drive(self, rng) -> None:
        """Drives nothing."""

    def sample(self, cycle: int) -> None:
        """Record the output, at the falling edge."""
        self.got.append((cycle, bits_of(self.dut.idle)))


@cocotb.test()
async def rows(dut):
    """Drive the "beats" of each of config["episodes"], with a reset before each, and return its outputs.

    The (idle, stall) patterns of "stalls" alternate every 50 cycles; the first one must stall unless none does. With
    "cut_at" the reset of the next episode cuts this one short after so many cycles, and it returns nothing.
    """
    c = config()
    p = WtuParams(**c["params"] | {"score": ScoreFormat(**c["params"]["score"])})
    bench = Bench(dut, c["seed"])
    source = bench.source("i", mask_layout(p))
    sink = bench.sink("o", cluster_layout(p))
    idle = Idle(bench)
    await bench.start()
    results = []
    for e in c["episodes"]:
        await bench.begin()
        source.put(e["beats"])
        sets = sum(b["row_last"] and b["set_last"] for b in e["beats"])

        def stall(e=e) -> None:
            source.idle, sink.stall = e["stalls"][bench.cycle // 50 % len(e["stalls"])]

        def done(sets=sets) -> bool:
            return not source.queue and sum(v["last"] for v in sink.values) == sets

        if await bench.play(stall, done, e["cut_at"], 10 * p.clusters * sets + 8 * len(e["beats"]) + 500):
            counts = bench.counters(ClusterSet.counters())
            results.append({"i": source.sent[:], "o": sink.got[:], "idle": idle.got[:], "perf": counts})
    result({"episodes": results})
