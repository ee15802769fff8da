"""cocotb side of the loader's bench: a memory with latency, errors and stalls at its streams, or cocotbext-axi's."""

import cocotb

from openvrex.hdl.bus.axi import address_layout, read_layout
from openvrex.hdl.execution.dpe import activation_layout, weight_layout
from openvrex.hdl.execution.loader import Loader
from openvrex.hdl.execution.vpe import word_layout
from openvrex.hdl.instruction_layouts import transfer_layout
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of
from openvrex.tb.library.transfer_traffic import Control, content, params


class ReadMemory:
    """Answers the bursts of `ar` on `r`, in order, each after `latency` (low, high) cycles or as soon as it can.

    errors : addresses of beats that get an error response
    """

    def __init__(self, bench: Bench, p, latency: list[int], errors: list[int]):
        self.bench, self.p, self.latency, self.errors = bench, p, latency, set(errors)
        self.ar = bench.sink("ar", address_layout())
        self.r = bench.source("r", read_layout(p))
        self.forget()

    def forget(self) -> None:
        """Start again after a reset."""
        self.ar.got.clear()
        self.r.sent.clear()
        self.due: list[tuple[int, list[dict]]] = []
        self.ends: list[int] = []  # number of beats up to the end of each burst
        self.answered = self.ended = self.most = self.offered = 0

    @property
    def begun(self) -> int:
        """Bursts taken on `ar`, including one that is offered."""
        return len(self.ar.got) + (bits_of(self.ar.valid_) and not self.ar.ready)

    async def step(self) -> None:
        """Advance one cycle, and check `busy` and the number of bursts in flight."""
        while self.due and self.due[0][0] <= self.bench.cycle + 1:
            beats = self.due.pop(0)[1]
            self.r.put(beats)
            self.ends.append(len(beats) + (self.ends[-1] if self.ends else 0))
        await self.bench.step()
        self.offered += self.r.valid
        dut, bus, rng = self.bench.dut, self.p.lxe.bus_bytes, self.bench.rng
        under_way = self.answered + bits_of(self.ar.valid_) - self.ended  # before this cycle
        assert under_way <= self.p.lxe.bursts, f"{under_way} bursts under way in cycle {self.bench.cycle}"
        assert bits_of(dut.busy) == (under_way > 0), f"busy in cycle {self.bench.cycle}: {under_way} bursts"
        self.most = max(self.most, under_way)
        for at, burst in self.ar.got[self.answered :]:
            addrs = [burst["addr"] + k * bus for k in range(burst["len"] + 1)]
            beats = [
                {
                    "data": int.from_bytes(content(a, bus), "little"),
                    "resp": 2 * (a in self.errors) + rng.randrange(2),
                    "last": int(a == addrs[-1]),
                }
                for a in addrs
            ]
            earliest = self.due[-1][0] if self.due else 0
            self.due.append((max(earliest, at + rng.randint(*self.latency)), beats))
        self.answered = len(self.ar.got)
        while self.ended < len(self.ends) and self.ends[self.ended] <= len(self.r.sent):
            self.ended += 1


@cocotb.test()
async def transfers(dut):
    """Run each of config["episodes"], {"c", "stalls", "latency", "errors", "dones", "fault", "cut_at", "limit",
    "hold"}.

    A reset comes before each. An episode ends after "dones" instructions, or at a fault. After a fault nothing may be
    taken for `hold` cycles, and the bus drains under `stop`. With "cut_at" the next episode's reset, which covers the
    memory too, cuts it short.
    """
    c = config()
    p = params(c["params"])
    bench = Bench(dut, c["seed"])
    commands = bench.source("c", transfer_layout())
    memory = ReadMemory(bench, p, [1, 1], [])
    outs = {
        "w": bench.sink("w", weight_layout(p.dpe)),
        "x": bench.sink("x", activation_layout(p.dpe)),
        "v": bench.sink("v", word_layout(p.vpe)),
    }
    sinks = {"ar": memory.ar, **outs}
    control = Control(bench)
    await bench.start()
    results = []
    for e in c["episodes"]:
        await bench.reset()
        memory.forget()
        memory.latency, memory.errors = e["latency"], set(e["errors"])
        for beats in (commands.sent, *(o.got for o in outs.values())):
            beats.clear()
        for name, sink in sinks.items():
            sink.stall = e["stalls"].get(name, 0.0)
        commands.idle, memory.r.idle = e["stalls"].get("c", 0.0), e["stalls"].get("r", 0.0)
        commands.put(e["c"])
        if e["cut_at"]:
            while bench.cycle < e["cut_at"]:
                await memory.step()
            continue
        while not (control.faults if e["fault"] else len(control.done) == e["dones"]):
            assert bench.cycle < e["limit"], f"no end: {len(control.done)} of {e['dones']} done"
            await memory.step()
        await memory.step()  # an instruction or a burst may still go with the pulse
        taken = [len(commands.sent), len(memory.r.sent), memory.begun]
        for o in outs.values():  # offered words may go
            o.stall = 0.0
        for _ in range(e["hold"]):
            await memory.step()
        late = [len(commands.sent), len(memory.r.sent), memory.begun]
        if e["fault"]:
            assert taken == late, f"instructions, beats, bursts after a fault: {taken}, {late}"
            control.stop = 1
            memory.ar.stall = 0.0
            await memory.step()
            while bits_of(dut.busy):
                assert bench.cycle < 30_000, "never drained"
                await memory.step()
            assert memory.begun == taken[2], "a burst was begun under stop"
            assert memory.begun == memory.ended, "busy fell too early"
        perf = bits_of(dut.perf)
        results.append(
            {
                "taken": commands.sent[:],
                "bursts": memory.ar.got[:],
                "beats": memory.r.sent[:],
                **{name: o.got[:] for name, o in outs.items()},
                "done": control.done[:],
                "faults": control.faults[:],
                "most": memory.most,
                "offered": memory.offered,
                "perf": {n: perf >> 32 * i & 0xFFFFFFFF for i, n in enumerate(Loader.counters())},
            }
        )
    result({"episodes": results})
