"""cocotb side of the time view's bench: LXE or core with memories of a fixed latency.

The performance counters show in which cycle each event happens.
"""

import cocotb
from amaranth.lib import data

from openvrex.golden.program.isa import Status
from openvrex.hdl.bus.axi import address_layout, read_layout, response_layout, write_layout
from openvrex.hdl.instruction_layouts import PROGRAM, REGISTER, START, host_layout, status_layout
from openvrex.hdl.params import CoreParams, override, preset
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, Sink, Source, bits_of, unpack


class TimedMemory:
    """A memory that answers each direction in order.

    A read's first beat comes `latency` cycles after its address. A write's response comes as long after its last beat,
    or as soon as earlier ones have gone. Bursts behind the last byte fail.
    """

    def __init__(self, bench: Bench, prefix: str, p: CoreParams, bytes_: bytearray, latency: int):
        self.bench, self.bus, self.bytes, self.latency = bench, p.lxe.bus_bytes, bytes_, latency

        def channel(kind: type, name: str, layout: data.StructLayout) -> Source | Sink:
            return bench.channel(kind, prefix, name, layout)

        self.ar, self.aw = (channel(Sink, name, address_layout()) for name in ("ar", "aw"))
        self.w = channel(Sink, "w", write_layout(p))
        self.r, self.b = channel(Source, "r", read_layout(p)), channel(Source, "b", response_layout())
        self.forget()

    def forget(self) -> None:
        """Start again after a reset."""
        for s in (self.ar, self.aw, self.w):
            s.got.clear()
        for s in (self.r, self.b):
            s.sent.clear()
        self.due: list[tuple[int, Source, list[dict]]] = []
        self.asked = self.written = self.answered = self.place = 0

    @property
    def owes(self) -> bool:
        """Whether a burst has not ended."""
        beats = sum(burst["len"] + 1 for _, burst in self.ar.got)
        return len(self.r.sent) < beats or len(self.b.sent) < len(self.aw.got)

    def _resp(self, burst: dict) -> int:
        return 0 if burst["addr"] < len(self.bytes) else 2

    def before(self) -> None:
        """Offer what is due in the next cycle."""
        for cycle, source, beats in self.due:
            if cycle == self.bench.cycle + 1:
                source.put(beats)
        self.due = [d for d in self.due if d[0] > self.bench.cycle + 1]

    def after(self) -> None:
        """Take what has come, and plan its answer."""
        for at, burst in self.ar.got[self.asked :]:
            places = [burst["addr"] + k * self.bus for k in range(burst["len"] + 1)]
            beats = [
                {
                    "data": int.from_bytes(self.bytes[a : a + self.bus], "little"),
                    "resp": self._resp(burst),
                    "last": int(a == places[-1]),
                }
                for a in places
            ]
            self.due.append((at + self.latency, self.r, beats))
        self.asked = len(self.ar.got)
        for at, beat in self.w.got[self.written :]:
            _, burst = self.aw.got[self.answered]
            a = burst["addr"] + self.place * self.bus
            for j, byte in enumerate(beat["data"].to_bytes(self.bus, "little")):
                if beat["strb"] >> j & 1 and a + j < len(self.bytes):
                    self.bytes[a + j] = byte
            self.place += 1
            if beat["last"]:
                self.place, self.answered = 0, self.answered + 1
                self.due.append((at + self.latency, self.b, [{"resp": self._resp(burst)}]))
        self.written = len(self.w.got)


@cocotb.test()
async def timed(dut):
    """Run programs one after the other.

    params : overrides of the preset tiny
    runs : [{"program": words in hex, "registers", "writes": [[address, hex]] before it}]
    memory : bytes in hex
    ports : values of constant inputs
    latency : of the memories
    counters : names, in the order of `perf`
    """
    c = config()
    p = override(preset("tiny"), c["params"]).core
    bench = Bench(dut, c["seed"])
    host = bench.source("host", host_layout())
    for name, value in c["ports"].items():
        getattr(dut, name).value = value
    bytes_ = bytearray(bytes.fromhex(c["memory"]))
    prefixes = [x for x in ("m_axi_", "h_axi_", "t_axi_") if hasattr(dut, f"{x}araddr")]
    memories = [TimedMemory(bench, x, p, bytes_, c["latency"]) for x in prefixes]
    await bench.start()

    async def step() -> None:
        for m in memories:
            m.before()
        await bench.step()
        for m in memories:
            m.after()

    out = []
    for run in c["runs"]:
        for address, text in run["writes"]:
            new = bytes.fromhex(text)
            bytes_[address : address + len(new)] = new
        host.put({"op": PROGRAM, "addr": i, "data": int(word, 16)} for i, word in enumerate(run["program"]))
        host.put({"op": REGISTER, "addr": int(r), "data": v} for r, v in run["registers"].items())
        host.put([{"op": START}])
        while host.queue:
            await step()
        start, before = host.sent[-1], bits_of(dut.perf)
        events: dict[str, list[int]] = {name: [] for name in c["counters"]}
        # Counters still count after the end, and the VPE may still compute its last VECTOR: of 28 words at most in
        # random programs, and 20 cycles of latency.
        done, late = None, 64
        while late:
            await step()
            now = bench.cycle - start
            perf = bits_of(dut.perf)
            if perf != before:
                for i, name in enumerate(c["counters"]):
                    more = (perf >> 32 * i & 0xFFFFFFFF) - (before >> 32 * i & 0xFFFFFFFF)
                    events[name] += [now] * more
                before = perf
            status = unpack(status_layout(), bits_of(dut.status))
            if status["code"] != Status.RUNNING:
                done, late = done or now, late - 1
            assert now < 200_000, f"no end: {status}"
        out.append({"done": done, "status": status, "events": events})
    result({"runs": out, "memory": bytes_.hex()})


@cocotb.test()
async def stopped(dut):
    """Run programs that end in a fault or that a reset cuts short; a reset and the program "good", started twice,
    follow each.

    episodes : [{"program", "cut_at": cycle of the reset or 0}]; the rest as in `timed`

    After a fault the bus comes to rest by itself, and no burst begins.
    """
    c = config()
    p = override(preset("tiny"), c["params"]).core
    bench = Bench(dut, c["seed"])
    host = bench.source("host", host_layout())
    for name, value in c["ports"].items():
        getattr(dut, name).value = value
    first = bytes.fromhex(c["memory"])
    bytes_ = bytearray(first)
    prefixes = [x for x in ("m_axi_", "h_axi_", "t_axi_") if hasattr(dut, f"{x}araddr")]
    memories = [TimedMemory(bench, x, p, bytes_, c["latency"]) for x in prefixes]
    await bench.start()

    async def step() -> dict:
        for m in memories:
            m.before()
        await bench.step()
        for m in memories:
            m.after()
        return unpack(status_layout(), bits_of(dut.status))

    async def play(program: list[str], cut_at: int, starts: int = 1) -> dict:
        host.put({"op": PROGRAM, "addr": i, "data": int(word, 16)} for i, word in enumerate(program))
        host.put([{"op": START}] * starts)  # a further one waits until the program has ended
        while host.queue:
            await step()
        start = bench.cycle
        while (status := await step())["code"] in (Status.IDLE, Status.RUNNING):
            if cut_at and bench.cycle - start >= cut_at:
                break
            assert bench.cycle - start < 10_000, f"no end: {status}"
        return status

    out = []
    for e in c["episodes"]:
        status = await play(e["program"], e["cut_at"])
        if not e["cut_at"]:
            for _ in range(4):  # offered beats may go
                await step()
            begun = [len(s.got) for m in memories for s in (m.ar, m.aw)]
            for _ in range(200):
                await step()
            assert begun == [len(s.got) for m in memories for s in (m.ar, m.aw)], "a burst was begun after the fault"
            assert not any(m.owes for m in memories), "the bus is not at rest"
        await bench.reset()
        for m in memories:
            m.forget()
        bytes_[:] = first
        good = await play(c["good"], 0, starts=2)
        out.append({"status": status, "good": good, "memory": bytes_.hex()})
        await bench.reset()
        for m in memories:
            m.forget()
        bytes_[:] = first
    result({"episodes": out})
