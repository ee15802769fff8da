"""cocotb side of the storer's bench: a memory with latency, errors and stalls at its streams, or cocotbext-axi's."""

import cocotb

from openvrex.hdl.bus.axi import address_layout, response_layout, write_layout
from openvrex.hdl.execution.dpe import activation_layout
from openvrex.hdl.execution.storer import Storer
from openvrex.hdl.execution.vpe import output_layout
from openvrex.hdl.instruction_layouts import dre_layout, transfer_layout
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, Source, bits_of
from openvrex.tb.library.transfer_traffic import Control, params


class WriteMemory:
    """Answers each burst of `aw` and `w` on `b`, in order, `latency` (low, high) cycles after its last beat.

    errors : addresses of bursts that get an error response
    """

    def __init__(self, bench: Bench, p, words: Source):
        self.bench, self.p = bench, p
        self.aw = bench.sink("aw", address_layout())
        self.w = bench.sink("w", write_layout(p))
        self.b = bench.source("b", response_layout())
        self.words = words
        self.forget([1, 1], [])

    def forget(self, latency: list[int], errors: list[int]) -> None:
        """Start again after a reset."""
        self.latency, self.errors = latency, set(errors)
        self.waited = 0  # cycles in which a response was not taken
        for beats in (self.aw.got, self.w.got, self.b.sent):
            beats.clear()
        self.due: list[tuple[int, int]] = []  # (cycle, response)
        self.ends: list[int] = []  # cycle of each burst's last beat
        self.seen = self.answered = self.first = self.most = self.offered = 0

    @property
    def begun(self) -> int:
        """Bursts taken on `aw`, including one that is offered."""
        return len(self.aw.got) + (bits_of(self.aw.valid_) and not self.aw.ready)

    async def step(self) -> None:
        """Advance one cycle, and check `busy`, the bursts in flight and the beats of each."""
        while self.due and self.due[0][0] <= self.bench.cycle + 1:
            self.b.put([{"resp": self.due.pop(0)[1]}])
        before = len(self.aw.got), len(self.b.sent)
        await self.bench.step()
        self.offered += self.words.valid
        rng, cycle = self.bench.rng, self.bench.cycle
        self.waited += self.b.pending
        under_way = before[0] + bits_of(self.aw.valid_) - before[1]
        assert under_way <= self.p.lxe.bursts, f"{under_way} bursts under way in cycle {cycle}"
        assert bits_of(self.bench.dut.busy) or not under_way, f"not busy in cycle {cycle}: {under_way} bursts"
        self.most = max(self.most, under_way)
        self.ends += [at for at, beat in self.w.got[self.seen :] if beat["last"]]
        self.seen = len(self.w.got)
        while self.answered < min(len(self.ends), len(self.aw.got)):
            at, burst = self.aw.got[self.answered]
            beats = self.w.got[self.first : self.first + burst["len"] + 1]
            self.first += len(beats)
            assert [b["last"] for _, b in beats] == [0] * burst["len"] + [1], "last marks another beat than the last"
            earliest = self.due[-1][0] if self.due else 0
            answer = max(earliest, max(at, self.ends[self.answered]) + rng.randint(*self.latency))
            self.due.append((answer, 2 * (burst["addr"] in self.errors) + rng.randrange(2)))
            self.answered += 1


class Sets:
    """Records the registers that the storer sets: cycle, register, value."""

    def __init__(self, dut):
        self.pulse, self.got = dut.store_set, []

    def drive(self, rng) -> None:
        """Nothing to drive."""

    def sample(self, cycle: int) -> None:
        """Record a pulse."""
        pulse = bits_of(self.pulse)
        if pulse & 1:
            self.got.append((cycle, pulse >> 1 & 15, pulse >> 5))

    def reset(self) -> None:
        """The bench clears what was recorded."""


@cocotb.test()
async def transfers(dut):
    """Run each of config["episodes"]: {"c", "i", "stalls", "latency", "errors", "dones", "fault", "cut_at", "limit",
    "hold"}.

    A reset comes before each. An episode ends after "dones" instructions, or at a fault. After a fault no burst may
    begin for `hold` cycles, and the bus drains under `stop`. With "cut_at" the next episode's reset, which covers the
    memory too, cuts it short.
    """
    c = config()
    p = params(c["params"])
    bench = Bench(dut, c["seed"])
    commands = bench.source("c", transfer_layout())
    words = bench.source("i", output_layout(p.vpe))
    memory = WriteMemory(bench, p, words)
    x = bench.sink("x", activation_layout(p.dpe))
    d = bench.sink("d", dre_layout(p))
    control = Control(bench)
    sets = Sets(dut) if p.lxe.to_register else None
    bench.streams += [sets] if sets else []
    await bench.start()
    results = []
    for e in c["episodes"]:
        await bench.reset()
        memory.forget(e["latency"], e["errors"])
        for beats in (commands.sent, words.sent, x.got, d.got):
            beats.clear()
        if sets:
            sets.got.clear()
        for name, sink in (("aw", memory.aw), ("w", memory.w), ("x", x), ("d", d)):
            sink.stall = e["stalls"].get(name, 0.0)
        for name, source in (("c", commands), ("i", words), ("b", memory.b)):
            source.idle = e["stalls"].get(name, 0.0)
        commands.put(e["c"])
        words.put(v | {"data": [v["data"]], "format": bench.rng.randrange(4)} for v in e["i"])
        if e["cut_at"]:
            while bench.cycle < e["cut_at"]:
                await memory.step()
            continue
        while not (control.faults if e["fault"] else len(control.done) == e["dones"]):
            assert bench.cycle < e["limit"], f"no end: {len(control.done)} of {e['dones']} done"
            await memory.step()
        await memory.step()  # an instruction or a burst may still go with the pulse
        taken = [len(commands.sent), memory.begun]
        for _ in range(e["hold"]):
            await memory.step()
        late = [len(commands.sent), memory.begun]
        stopped = bench.cycle + 1
        if e["fault"]:
            assert taken == late, f"instructions and bursts after a fault: {taken}, {late}"
            control.stop = 1
            await memory.step()
            while bits_of(dut.busy):
                assert bench.cycle < 30_000, "never drained"
                await memory.step()
            assert memory.begun == taken[1], "a burst was begun under stop"
            assert memory.begun == memory.answered == len(memory.b.sent), "busy fell too early"
            await memory.step()
            assert not bits_of(memory.w.valid_), "a beat after the bus was drained"
        results.append(
            {
                "taken": commands.sent[:],
                "bursts": memory.aw.got[:],
                "beats": memory.w.got[:],
                "waited": memory.waited,
                "words": words.sent[:],
                "x": x.got[:],
                "d": d.got[:],
                "sets": sets.got[:] if sets else [],
                "done": control.done[:],
                "faults": control.faults[:],
                "most": memory.most,
                "offered": memory.offered,
                "stopped": stopped,
                "perf": bench.counters(Storer.counters()),
            }
        )
    result({"episodes": results})
