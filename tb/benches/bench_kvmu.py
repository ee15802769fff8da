"""cocotb side of the KVMU's bench: drives both inputs and the tables, returns the beats of every stream with cycles."""

from collections import deque

import cocotb

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams
from openvrex.hdl.retrieval.kvmu import Kvmu
from openvrex.hdl.retrieval.kvmu_layouts import (
    SWITCH,
    append_layout,
    burst_layout,
    counts_layout,
    fetch_layout,
    map_port,
    move_layout,
    placed_layout,
)
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of, unpack
from openvrex.tb.library.table_memory import TableMemory

STREAMS = "afwxcb"  # and the requests to the tables: ask, put


class CountRing:
    """The WTU as the KVMU sees it: takes words of counts into a ring, and uses them one after the other.

    switches : a SWITCH is served, so no row is in flight
    freed : the ring was free since it is served
    stall : share of cycles in which the ring cannot be emptied
    uses : share of cycles in which a word is used, if the words come round and round
    got, used : cycle and content of each word; cycle of each use
    """

    def __init__(self, bench: Bench, p: KvmuParams) -> None:
        self.bench, self.p, self.dut = bench, p, bench.dut
        self.layout, self.c = counts_layout(p), bench.dut.c
        self.stall = self.uses = 0.0
        self.idle = 1.0  # every cycle counts
        self.got: list[tuple[int, dict]] = []
        self.used: list[int] = []
        bench.streams.append(self)
        self.reset()

    def reset(self) -> None:
        """Forget the words."""
        self.held, self.keep, self.switches, self.freed = 0, True, False, False
        self.dut.c_free.value = self.dut.c_used.value = 0

    def drive(self, rng) -> None:
        """Use a word, and say whether the ring may be emptied, just after the rising edge."""
        uses = self.held > 0 and not self.keep and not self.switches and rng.random() < self.uses
        self.held -= uses
        self.used += [self.bench.cycle] * uses
        self.dut.c_used.value = int(uses)
        free = rng.random() >= self.stall
        self.freed = self.switches and (free or self.freed)
        self.dut.c_free.value = int(free)

    def sample(self, cycle: int) -> None:
        """Take the word that comes, at the falling edge."""
        word = unpack(self.layout, bits_of(self.c))
        if word["valid"]:
            self.keep = bool(word["keep"]) if word["first"] else self.keep
            assert self.freed or not word["first"], "the ring was not free for another context"
            self.held = 1 if word["first"] else self.held + 1
            assert self.held <= self.p.ring, "the ring has no place for a word"
            self.got.append((cycle, {k: word[k] for k in ("counts", "first", "keep")}))


@cocotb.test()
async def traffic(dut):
    """Drive the beats "a" and "f" of each of config["episodes"], with a reset before each, and return its outputs.

    bases, blocks, quota : the device base and the home base; blocks of the pool, and most blocks of a context
    latency, late : of the tables (`tb.library.table_memory`)
    stalls : patterns (stream, ask or put -> probability) that alternate every 50 cycles; the first one must stall
        unless none does
    after : replies that must have come before each beat of "f" is offered
    block_b : take nothing on `b` until every reply came
    cut_at : the reset of the next episode cuts this one short after so many cycles, and it returns nothing
    keep : the tables of the episode before stay; otherwise they are zero
    uses : share of cycles in which the WTU uses a word of counts
    """
    c = config()
    p = KvmuParams(**c["params"])
    bench = Bench(dut, c["seed"])
    a = bench.source("a", append_layout(p))
    f = bench.source("f", fetch_layout(p))
    w = bench.sink("w", placed_layout(p))
    x = bench.sink("x", move_layout(p))
    ring = CountRing(bench, p)
    b = bench.sink("b", burst_layout(p))
    tables = TableMemory(bench, "m", map_port(p))
    await bench.start()
    results = []
    for e in c["episodes"]:
        dut.device_base.value, dut.home_base.value = e["bases"]
        dut.blocks.value = e["blocks"]
        if p.shared:
            dut.quota.value = e["quota"]
        tables.latency, tables.late = e["latency"], e["late"]
        await bench.begin()
        for log in (ring.got, ring.used, tables.puts):
            log.clear()
        tables.asked, tables.written = dict.fromkeys(Item, 0), dict.fromkeys(Item, 0)
        if not e["keep"]:
            tables.items.clear()
        a.put(e["a"])
        waiting = deque(zip(e["after"], e["f"], strict=True))
        replies = len(e["a"])
        sets = sum(beat["last"] for beat in e["f"])

        def stall(e=e, replies=replies, waiting=waiting) -> None:
            while waiting and waiting[0][0] <= len(w.got):
                f.put([waiting.popleft()[1]])
            now = e["stalls"][bench.cycle // 50 % len(e["stalls"])]
            a.idle, f.idle = now.get("a", 0.0), now.get("f", 0.0)
            ring.switches = len(a.sent) > len(w.got) and e["a"][len(w.got)]["op"] == SWITCH
            ring.stall, ring.uses = now.get("c", 0.0), e["uses"]
            sinks = {"w": w, "x": x, "b": b, "ask": tables.ask, "put": tables.put}
            for name, sink in sinks.items():
                sink.stall = now.get(name, 0.0)
            if e["block_b"]:
                b.stall = float(len(w.got) < replies)

        def done(replies=replies, sets=sets) -> bool:
            return len(w.got) == replies and sum(v["last"] for v in b.values) == sets

        clusters = sum(beat["clusters"] for beat in e["a"])
        slow = 4 + e["latency"] + e["late"]
        limit = slow * (20 * len(e["a"]) + 10 * len(e["f"]) + 4 * clusters) + 1000
        if not await bench.play(stall, done, e["cut_at"], limit, 0):
            continue
        ring.uses = 0.0
        await bench.rest(20 + slow + p.clusters)
        beats = {"a": a.sent[:], "f": f.sent[:], "w": w.got[:], "x": x.got[:], "c": ring.got[:], "b": b.got[:]}
        results.append(
            {
                **beats,
                "used": ring.used[:],
                "perf": bench.counters(Kvmu.counters()),
                "items": [[*key, value] for key, value in tables.items.items()],
                "puts": [[cycle, v["item"], v["ctx"], v["index"], v["data"]] for cycle, v in tables.put.got],
                "asks": [[cycle, v["item"], v["ctx"], v["index"], v["more"]] for cycle, v in tables.ask.got],
            }
        )
    result({"episodes": results})
