"""cocotb side of the arbiter's bench: managers at its streams, and a memory that answers out of order.

The memory is the one below or cocotbext-axi's.
"""

from collections import defaultdict, deque

import cocotb
from amaranth.lib import data

from openvrex.hdl.bus.arbiter import MANAGERS, Arbiter, id_bits, memory_prefixes
from openvrex.hdl.bus.axi import address_layout, read_layout, response_layout, write_layout
from openvrex.hdl.params import SystemParams
from openvrex.tb.benches.bench_lxe import memory
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, Sink, Source, bits_of
from openvrex.tb.library.transfer_traffic import content, params

SIZE = 1 << 16  # bytes of memory


class ReorderingMemory:
    """A memory that answers each ID in order, different IDs in any order, and beats of reads interleaved.

    Where AXI4 leaves the order open it takes the worst case: a read sees the content at its request, and a write takes
    effect at its response. The bytes repeat over the whole address space. Each of its `ports` has a share of them.
    """

    def __init__(self, bench: Bench, p: SystemParams):
        self.bench = bench
        self.ports = [MemoryPort(bench, p, prefix) for prefix in memory_prefixes(p)]
        self.begin(bytearray(), {})

    def begin(self, data_: bytearray, waits: dict[str, float], latency=(0, 0), errors=(), oldest: bool = False) -> None:
        """Start after a reset with these bytes. `waits`: share of cycles in which each channel stalls, by name, "" for
        the others.

        latency (low, high) : cycles until an answer may go
        errors : [low, high) of addresses whose bursts fail
        oldest : answer in the order in which answers may go
        """
        self.data = data_
        for port in self.ports:
            port.begin(data_, waits, latency, oldest)
        self.errors = list(errors)

    @property
    def errors(self) -> list[tuple[int, int]]:
        """[low, high) of addresses whose bursts fail."""
        return self.ports[0].errors

    @errors.setter
    def errors(self, spans: list[tuple[int, int]]) -> None:
        for port in self.ports:
            port.errors = spans

    async def step(self) -> None:
        """Advance one cycle."""
        for port in self.ports:
            port.give()
        await self.bench.step()
        for port in self.ports:
            port.take()

    def write(self, addr: int, content_: bytes) -> None:
        """Write bytes as the host does."""
        self.data[addr : addr + len(content_)] = content_


class MemoryPort:
    """One AXI4 port of a `ReorderingMemory`."""

    def __init__(self, bench: Bench, p: SystemParams, prefix: str):
        self.bench, self.bus = bench, p.core.lxe.bus_bytes

        def numbered(layout):
            return data.StructLayout({"id": id_bits(p), **{name: f.shape for name, f in layout}})

        address = numbered(address_layout())
        layouts = {"ar": address, "aw": address, "w": write_layout(p.core)}
        self.ar, self.aw, self.w = (bench.channel(Sink, prefix, n, layout) for n, layout in layouts.items())
        self.r = bench.channel(Source, prefix, "r", numbered(read_layout(p.core)))
        self.b = bench.channel(Source, prefix, "b", numbered(response_layout()))
        self.errors: list[tuple[int, int]] = []

    def begin(self, data_: bytearray, waits: dict[str, float], latency: tuple[int, int], oldest: bool) -> None:
        """As `ReorderingMemory.begin`."""
        self.data, self.latency, self.oldest = data_, latency, oldest
        for name in ("ar", "aw", "w", "r", "b"):
            own = getattr(self, name)
            (own.sent if isinstance(own, Source) else own.got).clear()
            setattr(own, "idle" if isinstance(own, Source) else "stall", waits.get(name, waits.get("", 0.0)))
        self.reads: dict[int, deque] = defaultdict(deque)  # ID -> (due, beat, None)
        self.responses: dict[int, deque] = defaultdict(deque)  # ID -> (due, beat, (address, beats))
        self.asked = self.answered = self.beats = 0
        self.order: dict[str, list[int]] = {"r": [], "b": []}  # IDs in the order of their answers

    def _give(self, name: str, source: Source, queues: dict[int, deque]) -> None:
        """Offer the next answer, of any ID whose answer is due."""
        ids = [i for i, q in queues.items() if q and q[0][0] <= self.bench.cycle + 1]
        if ids and not source.queue:
            i = min(ids, key=lambda i: queues[i][0][0]) if self.oldest else self.bench.rng.choice(ids)
            _, beat, write = queues[i].popleft()
            source.put([beat | {"id": i}])
            self.order[name].append(i)
            if write:
                self._write(*write)

    def _at(self, burst: dict) -> int:
        """Index of the burst's first beat in the bytes."""
        return burst["addr"] // self.bus * self.bus % len(self.data)

    def _answer(self, burst: dict) -> tuple[int, int]:
        """Cycles until the answer may go, and whether it is an error."""
        return self.bench.rng.randint(*self.latency), 2 * any(a <= self._at(burst) < b for a, b in self.errors)

    def give(self) -> None:
        """Offer answers for the next cycle."""
        self._give("r", self.r, self.reads)
        self._give("b", self.b, self.responses)

    def take(self) -> None:
        """Take what came in this cycle."""
        for at, burst in self.ar.got[self.asked :]:
            wait, resp = self._answer(burst)
            for k in range(burst["len"] + 1):
                a = self._at(burst) + k * self.bus
                value = int.from_bytes(self.data[a : a + self.bus], "little")
                beat = {"data": value, "resp": resp, "last": int(k == burst["len"])}
                self.reads[burst["id"]].append((at + 1 + wait, beat, None))
        self.asked = len(self.ar.got)
        while self.answered < len(self.aw.got):
            at, burst = self.aw.got[self.answered]
            end = self.beats + burst["len"] + 1
            if end > len(self.w.got):
                break
            beats = [beat for _, beat in self.w.got[self.beats : end]]
            assert [beat["last"] for beat in beats] == [0] * burst["len"] + [1], "last"
            wait, resp = self._answer(burst)
            due = max(at, self.w.got[end - 1][0]) + 1 + wait
            self.responses[burst["id"]].append((due, {"resp": resp}, (self._at(burst), beats)))
            self.beats, self.answered = end, self.answered + 1

    def _write(self, addr: int, beats: list[dict]) -> None:
        for k, beat in enumerate(beats):
            for j, byte in enumerate(beat["data"].to_bytes(self.bus, "little")):
                if beat["strb"] >> j & 1:
                    self.data[addr + k * self.bus + j] = byte

    def seen(self) -> dict:
        """What came, and the cycles and the order of IDs in which answers went."""
        out = {n: getattr(self, n).got[:] for n in ("ar", "aw", "w")} | {"order": self.order}
        return out | {f"{n}_sent": getattr(self, n).sent[:] for n in ("r", "b")}


class Failing:
    """cocotbext-axi's memory, with bursts from `errors` that fail."""

    def __init__(self, bench: Bench, size: int, pause: float):
        self.bench, self.errors = bench, []
        self.ram = memory(bench, "m_axi", pause, size=size)
        self.write = self.ram.write
        for side, name in ((self.ram.read_if, "_read"), (self.ram.write_if, "_write")):
            plain = getattr(side, name)

            async def checked(address, *what, plain=plain):
                if any(a <= address < b for a, b in self.errors):
                    raise ValueError("an error that the bench asks for")
                return await plain(address, *what)

            setattr(side, name, checked)

    def begin(self, data_: bytearray, errors=()) -> None:
        """Start after a reset with these bytes, and with [low, high) of addresses whose bursts fail."""
        self.ram.write(0, bytes(data_))
        self.errors = list(errors)

    async def step(self) -> None:
        """Advance one cycle."""
        await self.bench.step()

    @property
    def data(self) -> bytes:
        """The bytes."""
        return self.ram.read(0, self.ram.size)


CHANNELS = {"ar": Source, "aw": Source, "w": Source, "r": Sink, "b": Sink}


class Manager:
    """The environment of manager `i`: it offers each burst with its beats, from a given cycle on."""

    def __init__(self, bench: Bench, p: SystemParams, i: int):
        layouts = {"ar": address_layout(), "aw": address_layout(), "w": write_layout(p.core)}
        layouts |= {"r": read_layout(p.core), "b": response_layout()}
        self.bench = bench
        self.streams = {
            n: (bench.source if kind is Source else bench.sink)(f"{n}_{i}", layouts[n]) for n, kind in CHANNELS.items()
        }
        self.i = i

    def begin(self, todo: dict[str, list[dict]], stalls: dict[str, float]) -> None:
        """Start after a reset; `todo` is what the manager asks for."""
        self.todo = {name: deque(todo[name]) for name in ("ar", "aw", "w")}
        for name, s in self.streams.items():
            (s.sent if isinstance(s, Source) else s.got).clear()
            setattr(
                s, "idle" if isinstance(s, Source) else "stall", stalls.get(f"{name}_{self.i}", stalls.get("", 0.0))
            )

    def offer(self) -> None:
        """Offer what may go in the next cycle."""
        for name, todo in self.todo.items():
            while todo and todo[0]["at"] <= self.bench.cycle + 1:
                beat = todo.popleft()
                self.streams[name].put([{k: v for k, v in beat.items() if k != "at"}])

    def seen(self) -> dict[str, list]:
        """Cycles of what went, and what came with its cycle."""
        return {n: list(s.sent if isinstance(s, Source) else s.got) for n, s in self.streams.items()}


async def episode(
    bench: Bench, p: SystemParams, managers: list[Manager], memory_: ReorderingMemory | Failing, e: dict
) -> dict:
    """Run one episode, in which managers read and write at once; what each side saw.

    managers : [{"ar": bursts, "aw": bursts, "w": beats}, each with the cycle "at" of its offer]
    stalls : {stream: share}, "" for all others
    latency, errors, oldest : as in `Memory`
    end : managers that must get all they asked for
    cut_at : cycle after which everything is left as it is
    inputs : constant inputs of the arbiter
    release_at : cycle in which `common_log2` becomes 0
    """
    dut = bench.dut
    await bench.reset()
    for name, value in e["inputs"].items():
        getattr(dut, name).value = value
    own = isinstance(memory_, ReorderingMemory)
    initial = bytearray(content(0, SIZE))
    errors = [(a, a + p.core.lxe.burst_bytes) for a in e["errors"]]
    if own:
        memory_.begin(initial, e["stalls"], e["latency"], errors, e["oldest"])
    else:
        memory_.begin(initial, errors)
    for manager, todo in zip(managers, e["managers"], strict=True):
        manager.begin(todo, e["stalls"])
    wants = [sum(b["len"] + 1 for b in m["ar"]) + len(m["aw"]) for m in e["managers"]]

    def left(i: int) -> int:
        """Number of answers that manager i still lacks."""
        return wants[i] - sum(len(managers[i].streams[n].got) for n in "rb")

    async def step() -> None:
        for manager in managers:
            manager.offer()
        if bench.cycle == e.get("release_at"):
            dut.common_log2.value = 0
        await memory_.step()
        for prefix in memory_prefixes(p):
            assert bits_of(getattr(dut, f"{prefix}rready")), "R is not taken"
            assert bits_of(getattr(dut, f"{prefix}bready")), "B is not taken"

    while e["cut_at"] > bench.cycle or (not e["cut_at"] and any(left(i) for i in e["end"])):
        assert bench.cycle < 20_000, f"no end: {[left(i) for i in range(len(managers))]} answers missing"
        await step()
    for _ in range(0 if e["cut_at"] else 20):  # nothing more may come
        await step()
    out = {
        "managers": [manager.seen() for manager in managers],
        "data": memory_.data.hex(),
        "perf": bench.counters(Arbiter.counters()),
    }
    if own:
        out["ports"] = [port.seen() for port in memory_.ports]
    return out


@cocotb.test()
async def traffic(dut):
    """Run each of config["episodes"], with a reset before it.

    memory : "own", or "axi" with "pause", the share of cycles in which its channels stall.
    """
    c = config()
    p = SystemParams(params(c["params"]), c["cores"], c["common"], c["ports"])
    bench = Bench(dut, c["seed"])
    managers = [Manager(bench, p, i) for i in range(MANAGERS * p.cores)]
    memory_ = ReorderingMemory(bench, p) if c["memory"] == "own" else Failing(bench, SIZE, c["pause"])
    await bench.start()
    result({"episodes": [await episode(bench, p, managers, memory_, e) for e in c["episodes"]]})
