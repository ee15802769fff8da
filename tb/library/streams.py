"""Stream drivers, monitors and the clocked loop of every cocotb bench.

One coroutine steps all streams of a bench. Inputs change just after the rising edge; handshakes are sampled at the
falling edge, when all combinational paths have settled.
"""

import gc
import random
from collections import deque
from functools import cache
from types import SimpleNamespace

from amaranth.lib import data
from cocotb.clock import Clock
from cocotb.handle import Immediate
from cocotb.triggers import FallingEdge, First, RisingEdge, Timer
from cocotb.utils import get_sim_time

from openvrex.tb.library.runner import FOUR_STATES, config


def pack(layout, value) -> int:
    """`value` (dict for a struct, list for an array, int otherwise) as the integer of its bits in `layout`."""
    if isinstance(layout, type) and issubclass(layout, (data.Struct, data.Union)):
        layout = layout.as_shape() if hasattr(layout, "as_shape") else layout
    if not isinstance(layout, data.Layout):
        return int(value)
    fields, out = _fields(layout), 0
    for key, v in value.items() if isinstance(value, dict) else enumerate(value):
        inner, at, mask = fields[key]
        bits = pack(inner, v)
        assert 0 <= bits <= mask, f"{key}={v} does not fit {mask.bit_length()} bits"
        out |= bits << at
    return out


def unpack(layout, bits: int):
    """The inverse of `pack`."""
    if not isinstance(layout, data.Layout):
        return bits
    parts = {
        key: unpack(inner, bits >> at & mask) if inner else bits >> at & mask
        for key, (inner, at, mask) in _fields(layout).items()
    }
    return list(parts.values()) if isinstance(layout, data.ArrayLayout) else parts


def _fields(layout: data.Layout) -> dict:
    """Layout if it has one, offset and mask of each field. Amaranth would compute them anew for each beat."""
    if id(layout) not in _KNOWN:
        inner = {key: f.shape if isinstance(f.shape, data.Layout) else None for key, f in layout}
        _KNOWN[id(layout)] = layout, {key: (inner[key], f.offset, (1 << f.width) - 1) for key, f in layout}
    return _KNOWN[id(layout)][1]


_KNOWN: dict[int, tuple[data.Layout, dict]] = {}  # a layout's number -> the layout, which so keeps it; its fields


def bits_of(pin) -> int:
    """What a pin of the unit holds, as a number. `int(pin.value)` takes five times as long.

    Verilator has no X. In Icarus an unknown bit has a value that depends on its place and the run's seed: as with
    Verilator's random power-up a bit that matters makes some run fail, and a payload that waits does not change.
    """
    if isinstance(pin, Pins):
        return pin.value
    text = pin._handle.get_signal_val_binstr()
    try:
        return int(text, 2)
    except ValueError:
        return int("".join(c if c in "01" else bit for c, bit in zip(text, _noise(len(text)), strict=True)), 2)


@cache
def _noise(width: int) -> str:
    return f"{random.Random(config()['seed']).getrandbits(width):0{width}b}"


def level_of(pin) -> bool:
    """Whether a valid, ready or another signal of control is high. Fails if it is unknown."""
    level = pin._handle.get_signal_val_binstr()
    assert level in ("0", "1"), f"{pin._name} is {level}"
    return level == "1"


class Pins:
    """The ports <prefix><field> of a layout as one value."""

    def __init__(self, dut, prefix: str, layout: data.StructLayout):
        self.layout, self.pins = layout, {name: getattr(dut, prefix + name) for name, _ in layout}

    def __len__(self) -> int:
        return sum(len(pin) for pin in self.pins.values())

    @property
    def value(self) -> int:
        """The value of all fields."""
        return pack(self.layout, {name: bits_of(pin) for name, pin in self.pins.items()})

    @value.setter
    def value(self, bits: int) -> None:
        for name, v in unpack(self.layout, bits).items():
            self.pins[name].value = v


class Source:
    """Drives stream `name` of `dut` from `queue`; idles with probability `idle`. `sent` has each beat's cycle.

    A payload that is not valid is random, or one of the beats before: a unit that looked at it would give other results
    or cycles.
    """

    def __init__(self, dut, name: str, layout, idle: float = 0.0):
        self.name, self.layout, self.idle = name, layout, idle
        self.payload, self.valid_, self.ready_ = (getattr(dut, f"{name}_{s}") for s in ("payload", "valid", "ready"))
        self.queue: deque = deque()
        self.sent: list[int] = []
        self.valid = self.pending = False
        self.noise = random.Random(name)
        self.before: deque = deque(maxlen=16)
        self.hide()

    def hide(self) -> None:
        """Offer nothing."""
        self.valid_.value = 0
        old = self.before and self.noise.getrandbits(1)
        bits = self.noise.choice(self.before) if old else self.noise.getrandbits(len(self.payload))
        self.payload.value = bits

    def put(self, values) -> None:
        """Queue beats (dicts of the layout)."""
        self.queue.extend(pack(self.layout, v) for v in values)

    def drive(self, rng) -> None:
        """Set valid and payload, just after the rising edge."""
        want = self.pending or bool(self.queue) and (not self.idle or rng.random() >= self.idle)
        if want and not self.pending:
            self.payload.value = self.queue[0]
        if want and not self.valid:
            self.valid_.value = 1
        elif self.valid and not want:
            self.hide()
        self.valid = self.pending = want

    def sample(self, cycle: int) -> None:
        """Record the handshake, at the falling edge: a beat that is ready now transfers at the coming edge."""
        if self.valid and level_of(self.ready_):
            self.before.append(self.queue.popleft())
            self.sent.append(cycle)
            self.pending = False


LATE = 2.0  # a stall: ready only for a beat offered in the cycle before, because no source may wait for ready


class Sink:
    """Collects stream `name` of `dut` into `got` (cycle, payload); stalls with probability `stall`, or as LATE does.

    Checks the stream rules: once valid, valid and payload hold until ready.
    """

    def __init__(self, dut, name: str, layout, stall: float = 0.0):
        self.name, self.layout, self.stall = name, layout, stall
        self.payload, self.valid_, self.ready_ = (getattr(dut, f"{name}_{s}") for s in ("payload", "valid", "ready"))
        self.got: list[tuple[int, dict]] = []
        self.held: int | None = None
        self.ready = True
        self.ready_.value = 1

    def drive(self, rng) -> None:
        """Set ready, just after the rising edge."""
        ready = self.held is not None if self.stall == LATE else not self.stall or rng.random() >= self.stall
        if ready != self.ready:
            self.ready_.value = int(ready)
            self.ready = ready

    def sample(self, cycle: int) -> None:
        """Record a transfer and check the stream rules, at the falling edge."""
        if not level_of(self.valid_):
            assert self.held is None, f"{self.name}: valid fell before ready in cycle {cycle}"
            return
        bits = bits_of(self.payload)
        assert self.held in (None, bits), f"{self.name}: payload changed before ready in cycle {cycle}"
        self.held = None if self.ready else bits
        if self.ready:
            self.got.append((cycle, unpack(self.layout, bits)))

    @property
    def values(self) -> list:
        """The payloads so far."""
        return [v for _, v in self.got]


class Bench:
    """Clock, reset and the clocked loop. `cycle` counts rising edges since reset; the runner seeds `rng`.

    Inputs are 0 until someone drives them. They would be random otherwise, as all is at power-up.
    """

    def __init__(self, dut, seed: int):
        gc.freeze()  # what is imported stays; looking for circles there and among cocotb's tasks takes a tenth of a run
        gc.set_threshold(100_000)
        self.dut, self.rng, self.cycle = dut, random.Random(seed), 0
        self.rise, self.fall = RisingEdge(dut.clk), FallingEdge(dut.clk)
        self.hold = config()["reset_cycles"]
        self.streams: list[Source | Sink] = []
        for name in (name for name in config()["inputs"] if name not in ("clk", "rst")):
            getattr(dut, name).value = 0

    def source(self, name: str, layout, idle: float = 0.0) -> Source:
        """Add a driver of an In stream."""
        self.streams.append(Source(self.dut, name, layout, idle))
        return self.streams[-1]

    def sink(self, name: str, layout, stall: float = 0.0) -> Sink:
        """Add a monitor of an Out stream."""
        self.streams.append(Sink(self.dut, name, layout, stall))
        return self.streams[-1]

    def channel(self, kind: type, prefix: str, name: str, layout: data.StructLayout) -> Source | Sink:
        """Add a driver or a monitor of a channel of AXI, whose fields are ports <prefix><name><field>."""
        ports = {f"{name}_{end}": getattr(self.dut, prefix + name + end) for end in ("valid", "ready")}
        payload = {f"{name}_payload": Pins(self.dut, prefix + name, layout)}
        self.streams.append(kind(SimpleNamespace(**ports | payload), name, layout))
        return self.streams[-1]

    async def start(self) -> None:
        """Start the clock, and reset for one cycle more than necessary.

        Clock and reset are known before the simulator's first evaluation. With what they have at power-up it could see
        an edge without a reset. Icarus loses what is written before it starts, and knows no edge from X to 0.
        """
        if FOUR_STATES:
            await Timer(2, unit="ns")
        self.dut.clk.set(Immediate(0))
        self.dut.rst.set(Immediate(1))
        Clock(self.dut.clk, 2, unit="ns").start(start_high=False)
        for _ in range(2):
            await self.fall
        await self._release()

    async def reset(self) -> None:
        """Reset for one cycle in flight. Streams forget their pending beats, and cycle counting starts again.

        In that cycle sources still offer what they did: a neighbour learns of the reset at the edge as well.
        """
        await self.rise
        self.dut.rst.value = 1
        for s in self.streams:
            if isinstance(s, Source):
                s.queue.clear()
                s.pending = False
            elif isinstance(s, Sink):
                s.held = None
            else:
                s.reset()
        await self._release()

    async def begin(self) -> None:
        """Forget what streams have moved, and reset."""
        for s in self.streams:
            if isinstance(s, Source | Sink):
                (s.sent if isinstance(s, Source) else s.got).clear()
        await self.reset()

    async def _release(self) -> None:
        """End the reset and start to count cycles. A unit with protected memories stays in reset for `hold` more
        cycles.
        """
        await self.rise
        self.dut.rst.value = 0
        for s in self.streams:
            if isinstance(s, Source) and s.valid:
                s.valid = False
                s.hide()
        for _ in range(self.hold):
            await self.rise
        self.cycle = 0
        await self._settle()

    async def step(self) -> None:
        """Advance one cycle."""
        await self.rise
        self.cycle += 1
        await self._settle()

    async def _settle(self) -> None:
        for s in self.streams:
            s.drive(self.rng)
        await self.fall
        for s in self.streams:
            s.sample(self.cycle)

    async def run(self, done, limit: int = 100_000) -> None:
        """Step until `done()`; fail after `limit` cycles, because that is a deadlock."""
        start, steady = self.cycle, True
        while not done():
            steady &= not any(getattr(s, "idle", 0) or getattr(s, "stall", 0) for s in self.streams)
            assert self.cycle - start < limit, f"no end after {limit} cycles: deadlock? {self.state()}"
            if steady and not self._changes() and not level_of(self.dut.moves):
                await self._skip(limit)
            else:
                await self.step()

    async def rest(self, cycles: int) -> None:
        """Go on for some cycles, in which nothing more may come."""
        for _ in range(cycles):
            await self.step()

    async def play(self, stall, done, cut_at: int, limit: int, rest: int = 20) -> bool:
        """Step until `done()`, then rest; or until the cycle `cut_at`. `stall()` sets the stalls of the next cycle.

        Returns whether it has ended. Fails after `limit` cycles, or if counters still change in the rest.
        """

        def ended() -> bool:
            stall()
            return done()

        stall()
        while self.cycle < cut_at:
            stall()
            await self.step()
        if not cut_at:
            await self.run(ended, limit)
            await self.rest(rest)
            if rest and hasattr(self.dut, "perf"):
                counted = bits_of(self.dut.perf)
                await self.rest(1)
                assert bits_of(self.dut.perf) == counted, "an event is counted at rest"
        return not cut_at

    def counters(self, names) -> dict[str, int]:
        """The unit's performance counters by name."""
        perf = bits_of(self.dut.perf)
        return {name: perf >> 32 * i & 0xFFFFFFFF for i, name in enumerate(names)}

    def state(self) -> str:
        """How many beats each stream has moved, and which beat waits."""
        out = []
        for s in self.streams:
            if isinstance(s, Source):
                waits = f", {len(s.queue)} to go, the next {unpack(s.layout, s.queue[0])}" if s.queue else ""
                out.append(f"{s.name}: {len(s.sent)} beats went{waits}")
            elif isinstance(s, Sink):
                waits = "" if s.held is None else f", then {unpack(s.layout, s.held)} waits"
                out.append(f"{s.name}: {len(s.got)} beats came{waits}")
        return "; ".join(out)

    def _changes(self) -> bool:
        """Whether a source will offer a beat that it does not offer yet, or withdraw one."""
        for s in self.streams:
            if s.valid != s.pending or (s.queue and not s.valid) if isinstance(s, Source) else getattr(s, "due", 0):
                return True
        return False

    async def _skip(self, limit: int) -> None:
        """Go to the next cycle in which a stream transfers. Nothing is driven or sampled before it."""
        before = get_sim_time("ns")
        await First(RisingEdge(self.dut.moves), Timer(2 * limit, unit="ns"))
        # This is a falling edge: the rising edges since then are the cycles that passed.
        self.cycle += int(get_sim_time("ns") - before + 1) // 2
        await self._settle()
