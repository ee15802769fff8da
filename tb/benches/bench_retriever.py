"""cocotb side of the retriever's bench: a memory that keeps writes, and the DRE's streams in their order."""

import cocotb
from cocotb.triggers import RisingEdge

from openvrex.hdl.bus.axi import address_layout, read_layout, response_layout, write_layout
from openvrex.hdl.instruction_layouts import retrieve_layout
from openvrex.hdl.retrieval.feeder import order_layout
from openvrex.hdl.retrieval.hcu_state import joined_layout
from openvrex.hdl.retrieval.kvmu_layouts import burst_layout, move_layout, placed_layout
from openvrex.hdl.retrieval.retriever import Retriever
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of
from openvrex.tb.library.transfer_traffic import content, params


class CopyMemory:
    """Answers bursts in order, each after `latency` (low, high) cycles. Bursts of `errors` fail.

    Where AXI4 leaves the order open it takes the worst case: a read sees the content at its request, and a write takes
    effect at its response.
    """

    def __init__(self, bench: Bench, p):
        self.bench, self.p = bench, p
        address = address_layout(p.dre.kvmu.shared)
        self.ar, self.aw = bench.sink("bus_ar", address), bench.sink("bus_aw", address)
        self.w = bench.sink("bus_w", write_layout(p))
        self.r, self.b = bench.source("bus_r", read_layout(p)), bench.source("bus_b", response_layout())
        self.forget([1, 1], [])

    def forget(self, latency: list[int], errors: list[int]) -> None:
        """Start again after a reset, without the writes so far."""
        for beats in (self.ar.got, self.aw.got, self.w.got, self.r.sent, self.b.sent):
            beats.clear()
        self.latency, self.errors = latency, set(errors)
        self.words: dict[int, int] = {}  # byte address of a beat -> value written there
        self.due: dict[str, list[tuple[int, list]]] = {"r": [], "b": []}
        self.lasts: list[int] = []
        self.asked = self.answered = self.beats = 0
        self.most = 0

    def value(self, addr: int) -> int:
        """A beat of memory."""
        bus = self.p.lxe.bus_bytes
        return self.words.get(addr, int.from_bytes(content(addr, bus), "little"))

    def _later(self, channel: str, at: int, what: list) -> None:
        earliest = self.due[channel][-1][0] if self.due[channel] else 0
        self.due[channel].append((max(earliest, at + self.bench.rng.randint(*self.latency)), what))

    @property
    def reading(self) -> int:
        """Number of bursts read whose last beat has not been taken."""
        return len(self.ar.got) - sum(self.lasts[: len(self.r.sent)])

    @property
    def writing(self) -> int:
        """Number of bursts written whose response has not been taken."""
        return len(self.aw.got) - len(self.b.sent)

    async def step(self) -> None:
        """Advance one cycle."""
        now, bus, rng = self.bench.cycle + 1, self.p.lxe.bus_bytes, self.bench.rng
        while self.due["r"] and self.due["r"][0][0] <= now:
            beats = self.due["r"].pop(0)[1]
            self.r.put(beats)
            self.lasts += [b["last"] for b in beats]
        while self.due["b"] and self.due["b"][0][0] <= now:
            (addr, beats) = self.due["b"].pop(0)[1]
            for k, beat in enumerate(beats):
                if beat["strb"]:
                    self.words[addr + k * bus] = beat["data"]
            self.b.put([{"resp": 2 * (addr in self.errors) + rng.randrange(2)}])
        await self.bench.step()
        for at, burst in self.ar.got[self.asked :]:
            addrs = [burst["addr"] + k * bus for k in range(burst["len"] + 1)]
            beats = [
                {"data": self.value(a), "resp": 2 * (a in self.errors) + rng.randrange(2), "last": int(a == addrs[-1])}
                for a in addrs
            ]
            self._later("r", at, beats)
        self.asked = len(self.ar.got)
        while self.answered < len(self.aw.got):
            _, burst = self.aw.got[self.answered]
            end = self.beats + burst["len"] + 1
            if end > len(self.w.got):
                break
            beats = [b for _, b in self.w.got[self.beats : end]]
            assert [b["last"] for b in beats] == [0] * burst["len"] + [1], "last"
            self._later("b", self.w.got[end - 1][0], (burst["addr"], beats))
            self.beats, self.answered = end, self.answered + 1
        self.most = max(self.most, self.reading, self.writing)


class Feed:
    """Offers beats of a stream in order, one with `at` not before that cycle from the first instruction on."""

    def __init__(self, bench: Bench, name: str, layout):
        self.bench, self.source = bench, bench.source(name, layout)
        self.left: list[dict] = []

    def offer(self) -> None:
        """Queue the beats that are due, before each cycle."""
        while self.left and self.left[0].get("at", 0) <= self.bench.cycle:
            self.source.put([without_at(self.left.pop(0))])


def without_at(beat: dict) -> dict:
    """The fields of a beat."""
    return {name: value for name, value in beat.items() if name != "at"}


class Places:
    """Offers replies and moves as a KVMU does: each after the one before was taken, and at `at` as `Feed` does."""

    def __init__(self, bench: Bench, p):
        self.bench = bench
        self.sources = {
            "w": bench.source("w", placed_layout(p.dre.kvmu)),
            "x": bench.source("x", move_layout(p.dre.kvmu)),
        }
        self.left: list = []

    def offer(self) -> None:
        """Offer the next one, before each cycle."""
        if not self.left or any(s.queue for s in self.sources.values()):
            return
        name, beat = self.left[0]
        if beat.get("at", 0) <= self.bench.cycle:
            self.sources[name].put([without_at(beat)])
            self.left.pop(0)

    @property
    def taken(self) -> list[int]:
        """Cycles in which they were taken."""
        return sorted(self.sources["w"].sent + self.sources["x"].sent)


@cocotb.test()
async def retrieves(dut):
    """Run each of config["episodes"], with a reset before it.

    An episode is {"c", "t", "places", "b", "stalls", "latency", "errors", "dones", "fault", "cut_at", "stop", "hold",
    "untaken"}. It ends after "dones" instructions, or at a fault. Then nothing may begin for `hold` cycles, and
    "untaken" beats of `t` and `places` stay. After a fault the bus drains under `stop`. With "cut_at" the
    next episode's reset, which covers the memory too, cuts it short; with "stop" the fault of another engine does, and
    the bus drains before.
    """
    c = config()
    p = params(c["params"])
    bench = Bench(dut, c["seed"])
    memory, places = CopyMemory(bench, p), Places(bench, p)
    commands = bench.source("c", retrieve_layout())
    feeds = [Feed(bench, "t", joined_layout(p.dre.hcu)), Feed(bench, "b", burst_layout(p.dre.kvmu))]
    news, bursts = (feed.source for feed in feeds)
    order = bench.sink("order", order_layout(p))
    ends = {"c": commands, "t": news, "b": bursts, "order": order, **places.sources}
    ends |= {f"bus_{n}": getattr(memory, n) for n in ("ar", "r", "aw", "w", "b")}

    def taken() -> list[int]:
        """Numbers of instructions and answers taken."""
        return [len(commands.sent), len(news.sent), len(bursts.sent), len(places.taken)]

    async def stop():
        """Raise `stop` behind an edge, as the register that drives it does."""
        await RisingEdge(dut.clk)
        dut.stop.value = 1

    async def drain(step):
        """Stop it until the bus is quiet, and for some cycles more."""
        cocotb.start_soon(stop())
        before, got = len(memory.w.got), taken()
        await step()
        await step()  # a counter shows what began a cycle later
        started, stopped = begun(dut), bench.cycle
        while bits_of(dut.busy):
            assert bench.cycle < stopped + 60_000, "never drained"
            await step()
        for _ in range(10):
            await step()
        assert begun(dut) == started, "a burst was begun under stop"
        assert taken() == got, f"taken under stop: {got}, {taken()}"
        assert memory.reading == memory.writing == 0, "busy fell too early"
        # The beat that is offered when `stop` rises transfers unchanged.
        assert not any(b["strb"] for _, b in memory.w.got[before + 1 :]), "written under stop"

    dut.stop.value = 0
    await bench.start()
    results = []
    for e in c["episodes"]:
        dut.stop.value = 0
        await bench.reset()
        memory.forget(e["latency"], e["errors"])
        for one in ends.values():
            (one.got if hasattr(one, "got") else one.sent).clear()
        for name, one in ends.items():
            setattr(one, "stall" if hasattr(one, "got") else "idle", e["stalls"].get(name, 0.0))
        commands.put(e["c"])
        for feed, name in zip(feeds, ("t", "b"), strict=True):
            feed.left = list(e[name])
        places.left = [tuple(x) for x in e["places"]]
        done, modes, sets, faults = [], [], [], []

        async def step(done=done, modes=modes, sets=sets, faults=faults):
            for feed in (*feeds, places):
                feed.offer()
            await memory.step()
            pulse, register, fault = (bits_of(x) for x in (dut.done, dut.retrieve_set, dut.fault))
            if pulse & 1:
                done.append((bench.cycle, pulse >> 1))
                if p.dre.wtu.budget:
                    on = bits_of(dut.budgeted)
                    modes.append((on, bits_of(dut.budget) if on else 0))
            if register & 1:
                sets.append((bench.cycle, register >> 1 & 15, register >> 5))
            if fault:
                faults.append((bench.cycle, {1: "bus", 2: "range", 4: "full"}[fault]))
            under_way = memory.reading + memory.writing
            assert under_way == 0 or bits_of(dut.busy), f"not busy in cycle {bench.cycle}"
            assert memory.most <= p.lxe.copies, f"{memory.most} bursts under way in cycle {bench.cycle}"

        if e["cut_at"]:
            while bench.cycle < e["cut_at"]:
                await step()
            if e["stop"]:
                pulses = len(done), len(sets)
                await drain(step)
                assert (len(done), len(sets)) == pulses, "done or set under stop"
            continue
        while not (faults if e["fault"] else len(done) == e["dones"]):
            assert bench.cycle < e["limit"], f"no end: {len(done)} of {e['dones']} done"
            await step()
        if e["fault"]:
            counts = taken()
            await step()
            await step()
            started = begun(dut)  # in the cycle of the fault, too
            for _ in range(e["hold"]):
                await step()
            assert counts == taken(), f"taken after a fault: {counts}, {taken()}"
            await drain(step)
            assert begun(dut) == started, "a burst was begun after the fault"
        else:
            assert not bits_of(dut.busy), "busy after the end"
            for _ in range(e["hold"]):  # nothing more may come
                await step()
            assert [len(e["t"]) - len(news.sent), len(e["places"]) - len(places.taken)] == e["untaken"]
        results.append(
            {
                "taken": commands.sent[:],
                "news": news.sent[:],
                "places": places.taken,
                "fetched": bursts.sent[:],
                "order": order.got[:],
                "reads": memory.ar.got[:],
                "read": memory.r.sent[:],
                "writes": memory.aw.got[:],
                "filler": sum(not b["strb"] for _, b in memory.w.got),
                "written": [cycle for cycle, _ in memory.w.got],
                "done": done,
                "modes": modes,
                "sets": sets,
                "faults": faults,
                "memory": sorted(memory.words.items()),
                "most": memory.most,
                "perf": bench.counters(Retriever.counters()),
            }
        )
    result({"episodes": results})


def begun(dut) -> tuple[int, int]:
    """Number of bursts begun in each direction."""
    perf = bits_of(dut.perf)
    names = Retriever.counters()
    return tuple(perf >> 32 * names.index(n) & 0xFFFFFFFF for n in ("reads", "writes"))
