"""Memory behind the AXI4 port of the tables, for benches: answers in order and keeps single bytes."""

from collections import deque

from openvrex.hdl.bus.axi import address_layout, read_beat, response_layout, write_beat
from openvrex.hdl.params import DreParams
from openvrex.tb.library.streams import Bench, bits_of


class TableBus:
    """Answers bursts in order, each after `latency` (low, high) cycles. Beats of `errors` fail.

    A share `flips` of the beats read has a wrong bit.

    A read sees the content at its request, and a write takes effect at its response. Reads and writes must not be in
    flight together. A byte that was never written is 0.
    """

    def __init__(self, bench: Bench, p: DreParams):
        self.bench, self.bus = bench, p.table.bus_bytes
        self.longest = p.table.burst_bytes
        self.ar, self.aw = bench.sink("bus_ar", address_layout()), bench.sink("bus_aw", address_layout())
        self.w = bench.sink("bus_w", write_beat(self.bus))
        self.r, self.b = bench.source("bus_r", read_beat(self.bus)), bench.source("bus_b", response_layout())
        self.flips = 0.0
        self.begin({}, [1, 1], [])

    def begin(self, content: dict[str, int], latency: list[int], errors: list[int]) -> None:
        """Start after a reset with these bytes."""
        for channel in (self.ar, self.aw, self.w):
            channel.got.clear()
        for channel in (self.r, self.b):
            channel.sent.clear()
        self.bytes = {int(a): byte for a, byte in content.items()}
        self.latency, self.errors = latency, set(errors)
        self.due: dict[str, deque] = {"r": deque(), "b": deque()}  # (cycle, beat, write)
        self.asked = self.answered = self.beats = self.waits = 0

    @property
    def reading(self) -> int:
        """Number of beats that were asked for and not taken."""
        return self.beats - len(self.r.sent)

    @property
    def writing(self) -> int:
        """Number of writes whose response has not been taken."""
        return max(len(self.aw.got), len(self.w.got)) - len(self.b.sent)

    def _later(self, channel: str, at: int, *what) -> None:
        earliest = self.due[channel][-1][0] if self.due[channel] else 0
        self.due[channel].append((max(earliest, at + self.bench.rng.randint(*self.latency)), *what))

    def _answer(self, addr: int) -> int:
        """Response to a beat; the low bit means nothing."""
        return 2 * (addr in self.errors) + self.bench.rng.randrange(2)

    def before(self) -> None:
        """Queue the answers that may go in the next cycle."""
        now = self.bench.cycle + 1
        while self.due["r"] and self.due["r"][0][0] <= now:
            self.r.put([self.due["r"].popleft()[1]])
        while self.due["b"] and self.due["b"][0][0] <= now:
            _, addr, beat = self.due["b"].popleft()
            for k in range(self.bus):
                if beat["strb"] >> k & 1:
                    self.bytes[addr + k] = beat["data"] >> 8 * k & 255
            self.b.put([{"resp": self._answer(addr)}])

    def after(self) -> None:
        """Take the requests of a cycle."""
        ar, aw, w = (bits_of(channel.valid_) for channel in (self.ar, self.aw, self.w))
        reads, writes = ar or self.reading, aw or w or self.writing
        assert not (reads and writes), f"reads and writes are in flight together in cycle {self.bench.cycle}"
        for at, burst in self.ar.got[self.asked :]:
            length = (burst["len"] + 1) * self.bus
            assert burst["addr"] % self.bus == 0, "a read begins within a beat"
            assert burst["addr"] // self.longest == (burst["addr"] + length - 1) // self.longest, "a burst is cut"
            for k in range(burst["len"] + 1):
                a = burst["addr"] + k * self.bus
                value = sum(self.bytes.get(a + j, 0) << 8 * j for j in range(self.bus))
                if self.flips and self.bench.rng.random() < self.flips:
                    value ^= 1 << self.bench.rng.randrange(8 * self.bus)
                beat = {"data": value, "resp": self._answer(a), "last": int(k == burst["len"])}
                self._later("r", at, beat)
                self.beats += 1
        self.asked = len(self.ar.got)
        while self.answered < min(len(self.aw.got), len(self.w.got)):
            (at, burst), (with_, beat) = self.aw.got[self.answered], self.w.got[self.answered]
            assert (burst["len"], beat["last"], burst["addr"] % self.bus) == (0, 1, 0), "a write is one whole beat"
            self._later("b", max(at, with_), burst["addr"], beat)
            self.answered += 1
