"""Predicts time, energy and commands of a DRAM with a first-ready, first-come-first-served controller.

The model cuts each request into accesses of `atom` bytes and maps them to channels, bank groups, banks and rows. Each
channel then issues one command after another. Every bank with a pending access proposes one: a column access to the
open row, else a precharge or an activation for its oldest access. The channel issues the earliest that tRCD, tRP, tRAS,
tRRD_S/L, tFAW, tCCD_S/L, tRTP, tWR, tWTR_S/L, read-to-write turnaround, refresh and the command bus allow. Time
advances from command to command, not from clock to clock.

Closed forms to compare with: `DramTiming.bandwidth` (peak), `DramTiming.refresh_share`, `DramTiming.read_latency` (an
idle channel), and `Dram.stream_efficiency` (whole rows in order, where only refresh interrupts the data bus).
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from openvrex.sim.system.dram_timings import DramTiming
from openvrex.sim.system.served import Served, pieces, requests

QUEUE = 64  # pending accesses among which a channel's controller chooses
CHUNK = 256  # consecutive bytes in one channel before the next channel follows
SAMPLE = 2  # channels on which `Dram.efficiency` is measured
FOREVER = 1 << 62
ACCESS, ACTIVATE, PRECHARGE = range(3)  # kinds of commands; in the same clock the lowest goes first
STARVE = 16  # column accesses that may pass an older request of the same bank before its row is closed for it


@dataclass(frozen=True)
class Dram:
    """A memory of all channels of the device `t`.

    queue : pending accesses among which each channel's controller chooses
    refresh : "all" (REFab, the whole channel every tREFI), "bank" (REFpb, a bank in turn every tREFI / banks), "none"

    Fields of an address, from the lowest: byte of an access, access of a chunk, channel, bank group, chunk of a row,
    bank, row. The bank is XORed with the row's lowest bits, so that strides of whole rows do not hit one bank.
    Addresses beyond the memory wrap. Raises `ValueError` for bad parameters.
    """

    t: DramTiming
    queue: int = QUEUE
    refresh: str = "all"

    def __post_init__(self) -> None:
        if self.refresh not in ("all", "bank", "none"):
            raise ValueError(f"refresh={self.refresh!r}: must be one of all, bank, none")
        if self.refresh == "bank" and not self.t.rfc_bank:
            raise ValueError(f"refresh='bank': {self.t.name} can only refresh all banks at once: use 'all'")
        if self.queue < 1:
            raise ValueError(f"queue={self.queue}: must be at least 1")

    def place(self, addr: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Channel, bank and row of addresses. Banks count over all groups: group + groups * bank in the group."""
        t = self.t
        rest, channel = np.divmod(addr // CHUNK, t.channels)
        rest, group = np.divmod(rest, t.groups)
        rest = rest // (t.row // CHUNK)
        rest, bank = np.divmod(rest, t.banks)
        row = rest % t.rows
        return channel, group + t.groups * (bank ^ row % t.banks), row

    def run(self, addr: ArrayLike, size: ArrayLike, write: ArrayLike = False, arrival: ArrayLike = 0.0) -> Served:
        """Serves requests in the order given.

        addr, size : first byte and number of bytes of each request, [requests]
        write : whether it writes, one value or [requests]
        arrival : seconds from which on it is offered, one value or [requests]

        Raises `ValueError` for lists of unequal length, negative addresses and empty requests.
        """
        addr, size = requests(addr, size)
        t = self.t
        owner, begin, _ = pieces(addr, size, t.atom)
        channel, bank, row = self.place(begin)
        writes = np.broadcast_to(np.asarray(write, bool), addr.shape)[owner]
        clock = np.ceil(np.broadcast_to(np.asarray(arrival, float), addr.shape)[owner] * 1e9 / t.tck).astype(np.int64)
        begins, ends = np.zeros(len(owner), np.int64), np.zeros(len(owner), np.int64)
        counts = {"reads": int((~writes).sum()), "writes": int(writes.sum()), "activations": 0, "refreshes": 0}
        for c in np.unique(channel):
            of = np.flatnonzero(channel == c)
            ch = Channel(t, self.queue, self.refresh)
            begins[of], ends[of] = ch.run(clock[of].tolist(), bank[of].tolist(), row[of].tolist(), writes[of].tolist())
            counts["activations"] += ch.count("ACT")
            counts["refreshes"] += ch.count("REF")
        first = np.full(len(addr), np.iinfo(np.int64).max)
        last = np.zeros(len(addr), np.int64)
        np.minimum.at(first, owner, begins)
        np.maximum.at(last, owner, ends)
        scale = t.tck * 1e-9
        seconds = float(last.max() - first.min()) * scale if len(addr) else 0.0
        energy = counts["activations"] * t.act_pj + len(owner) * t.atom * 8 * t.bit_pj + counts["refreshes"] * t.ref_pj
        joules = energy * 1e-12 + seconds * t.channels * t.idle_mw * 1e-3
        return Served(first * scale, last * scale, size, len(owner) * t.beat * 1e-9 / t.channels, joules, counts)

    @property
    def stream_efficiency(self) -> float:
        """Closed form for reads of many whole rows: the share of the peak bandwidth that refresh leaves.

        All-bank refresh takes tRFC, and tRP + tRCD to close and reopen the rows. Activations hide behind the accesses
        of other bank groups.
        """
        t = self.t
        if self.refresh == "none":
            return 1.0
        if self.refresh == "all":
            return 1.0 - (t.rfc + t.rp + t.rcd) / t.refi
        # A bank under refresh stalls the stream only when its turn comes: once in as many turns as there are banks.
        return 1.0 - t.rfc_bank / t.refi

    def efficiency(self, piece: int, random: bool = True, seed: int = 1) -> float:
        """Share of the peak bandwidth for reads of `piece` bytes each, at random or consecutive addresses."""
        return _efficiency(self, piece, random, seed)

    def seconds(self, total: int, piece: int | None = None) -> float:
        """Seconds for reading `total` bytes, as one stream or in pieces of `piece` bytes at random addresses."""
        share = self.stream_efficiency if piece is None else self.efficiency(piece)
        return total / (self.t.bandwidth * share)

    def joules(self, total: float, piece: int | None = None) -> float:
        """Energy of moving `total` bytes without the background power; `piece` as in `seconds`."""
        t = self.t
        chunks = total / (t.row if piece is None else min(t.row, max(t.atom, min(piece, CHUNK))))
        return (chunks * t.act_pj + total * 8 * t.bit_pj) * 1e-12

    @property
    def idle_watts(self) -> float:
        """Background power of all channels, refresh included."""
        t = self.t
        return t.channels * (t.idle_mw * 1e-3 + t.ref_pj * 1e-12 / (t.refi * 1e-9))


@lru_cache(maxsize=256)
def _efficiency(dram: Dram, piece: int, random: bool, seed: int) -> float:
    """`Dram.efficiency` in steady state: a sample of channels with full queues, from the second refresh to the
    fourth."""
    t = dram.t
    interval = t.clocks(t.refi)
    n = max(1, int(3.2 * t.refi / t.beat * t.channels * t.atom / piece))
    if random:
        space = t.channels * t.groups * t.banks * t.row * 1024
        addr = np.random.default_rng(seed).integers(0, space // piece, n) * piece
    else:
        addr = np.arange(n) * piece
    owner, begin, _ = pieces(addr, np.full(n, piece), t.atom)
    channel, bank, row = dram.place(begin)
    served, sample = 0.0, range(0, t.channels, max(1, t.channels // SAMPLE))
    for c in sample:
        of = np.flatnonzero(channel == c)
        idle = [0] * len(of)
        channel_of = Channel(t, dram.queue, dram.refresh)
        _, ended = channel_of.run(idle, bank[of].tolist(), row[of].tolist(), idle, until=3 * interval)
        ends = np.array(ended)
        served += np.count_nonzero((ends > interval) & (ends <= 3 * interval)) / (2 * interval)
    return float(served * t.beat / t.tck / len(sample))


class Channel:
    """One channel, in clocks.

    commands : (clock, command, bank, row) of all commands issued; bank -1 stands for all banks
    """

    def __init__(self, t: DramTiming, queue: int, refresh: str):
        self.t, self.queue, self.refresh = t, queue, refresh
        self.commands: list[tuple[int, str, int, int]] = []

    def count(self, command: str) -> int:
        """Number of times that the channel has issued a command."""
        return sum(c[1] == command for c in self.commands)

    def run(self, arrival: list, bank: list, row: list, write: list, until: int = FOREVER) -> tuple[list, list]:
        """Clocks in which each access enters the queue and in which its last byte arrives.

        A second clock of 0 means that the access did not end before clock `until`.
        """
        n = len(arrival)
        queue = _Queue(arrival, bank, row, write, self.queue, self.t.groups * self.t.banks)
        banks = _Banks(self.t, self.refresh, self.commands)
        now = 0
        while queue.done < n and now <= until:
            if not queue.held:
                now = max(now, arrival[queue.following])
            queue.fill(now)
            when, kind, i, b = banks.best(queue, now)
            if queue.arrives <= when:
                now = queue.arrives
            elif when >= banks.due:  # refresh has priority
                banks.refresh()
            else:
                now = when
                if kind == ACCESS:
                    queue.ended[i] = banks.access(when, b, row[i], write[i])
                    banks.passed[b] = 0 if queue.take(i, b) else banks.passed[b] + 1
                elif kind == ACTIVATE:
                    banks.activate(when, b, row[i])
                else:
                    banks.precharge(when, b)
        return queue.entered, queue.ended


class _Queue:
    """The accesses pending in a channel's controller, by bank."""

    def __init__(self, arrival: list, bank: list, row: list, write: list, size: int, banks: int):
        self.arrival, self.bank, self.row, self.write, self.size = arrival, bank, row, write, size
        self.entered, self.ended = [0] * len(arrival), [0] * len(arrival)
        self.waiting: list[deque[int]] = [deque() for _ in range(banks)]
        self.active: set[int] = set()  # banks with a pending access
        self.following = 0  # the next access to enter
        self.held = 0  # pending accesses
        self.done = 0  # completed accesses

    @property
    def arrives(self) -> int:
        """Clock in which the next access can enter; `FOREVER` if none is left or the queue is full."""
        return self.arrival[self.following] if self.held < self.size and self.following < len(self.arrival) else FOREVER

    def fill(self, now: int) -> None:
        """Takes the accesses that have arrived up to clock `now`."""
        while self.arrives <= now:
            i = self.following
            self.waiting[self.bank[i]].append(i)
            self.active.add(self.bank[i])
            self.entered[i] = now
            self.following += 1
            self.held += 1

    def take(self, i: int, b: int) -> bool:
        """Removes access `i` of bank `b`; returns whether it was the bank's oldest."""
        queue = self.waiting[b]
        oldest = queue[0] == i
        queue.remove(i)
        if not queue:
            self.active.discard(b)
        self.held -= 1
        self.done += 1
        return oldest


class _Banks:
    """State of all banks: their open rows, and from which clock on each bank, group and bus accepts which command."""

    def __init__(self, t: DramTiming, refresh: str, commands: list[tuple[int, str, int, int]]):
        self.t, self.commands = t, commands
        banks = t.groups * t.banks
        self.all_banks = refresh == "all"
        self.refi = t.clocks(t.refi) if self.all_banks else t.clocks(t.refi / banks)
        self.due = self.refi if refresh != "none" else FOREVER
        self.turn = 0  # bank that is refreshed next
        self.faw, self.beat, self.rcd, self.ras, self.rp, self.rrd_s, self.rrd_l = map(
            t.clocks, (t.faw, t.beat, t.rcd, t.ras, t.rp, t.rrd_s, t.rrd_l)
        )
        # Clocks between column accesses, [direction][direction before]: to other groups (s) and to the same group (l).
        beat = self.beat
        to_read_s, to_read_l = t.cwl + beat + t.clocks(t.wtr_s), t.cwl + beat + t.clocks(t.wtr_l)
        ccd_l = t.clocks(t.ccd_l)
        self.cas_s, self.cas_l = ((beat, to_read_s), (t.turn_rw, beat)), ((ccd_l, to_read_l), (0, ccd_l))
        self.to_pre = t.clocks(t.rtp), t.cwl + beat + t.clocks(t.wr)  # after a read, after a write
        self.open_row = [-1] * banks
        self.passed = [0] * banks  # column accesses past the bank's oldest request
        self.act_ok, self.cas_ok, self.pre_ok = [0] * banks, [0] * banks, [0] * banks
        self.act_any, self.act_group = 0, [0] * t.groups
        self.cas_any, self.cas_group = [0, 0], [[0] * t.groups, [0] * t.groups]  # by direction
        self.window: deque[int] = deque([-(1 << 40)] * 4, 4)  # the last four activations
        self.row_bus = self.column_bus = 0

    def best(self, queue: _Queue, now: int) -> tuple[int, int, int, int]:
        """The command to issue next, as clock, kind, access, bank: the earliest of those that the banks propose."""
        row, write, groups = queue.row, queue.write, self.t.groups
        found: tuple[int, int, int, int] | None = None
        for b in queue.active:
            waiting, opened = queue.waiting[b], self.open_row[b]
            i, g = waiting[0], b % groups
            hit = i if row[i] == opened else -1
            if hit < 0 <= opened and self.passed[b] < STARVE:
                hit = next((other for other in waiting if row[other] == opened), -1)
            if opened < 0:
                kind = ACTIVATE
                when = max(self.act_ok[b], self.act_any, self.act_group[g], self.window[0] + self.faw, self.row_bus)
            elif hit < 0:
                kind, when = PRECHARGE, max(self.pre_ok[b], self.row_bus)
            else:
                i, w = hit, write[hit]
                kind, when = ACCESS, max(self.cas_ok[b], self.cas_any[w], self.cas_group[w][g], self.column_bus)
            candidate = (when if when > now else now, kind, i, b)
            if found is None or candidate < found:
                found = candidate
        assert found is not None  # the queue holds an access
        return found

    def refresh(self) -> None:
        """Refreshes all banks, or the bank whose turn it is, after closing open rows."""
        t, rp, opened = self.t, self.rp, self.open_row
        if self.all_banks:
            closing = [ok for ok, r in zip(self.pre_ok, opened, strict=True) if r >= 0]
            start = max([self.due, self.row_bus, *closing])
            closed = start + rp if closing else max([start, *self.act_ok])
            self.act_ok = [closed + t.clocks(t.rfc)] * len(opened)
            self.open_row = [-1] * len(opened)
            self.commands.append((closed, "REF", -1, -1))
        else:
            k = self.turn
            start = max(self.due, self.row_bus, self.pre_ok[k] if opened[k] >= 0 else self.act_ok[k])
            closed = start + rp if opened[k] >= 0 else start
            self.act_ok[k] = closed + t.clocks(t.rfc_bank)
            self.commands.append((closed, "REF", k, -1))
            opened[k] = -1
            self.turn = (k + 1) % len(opened)
        self.due += self.refi

    def activate(self, when: int, b: int, row: int) -> None:
        """Opens a row of bank `b` in clock `when`."""
        t = self.t
        self.open_row[b] = row
        self.cas_ok[b], self.pre_ok[b] = when + self.rcd, when + self.ras
        self.act_any, self.act_group[b % t.groups] = when + self.rrd_s, when + self.rrd_l
        self.window.append(when)
        self.passed[b] = 0
        self.commands.append((when, "ACT", b, row))
        self.row_bus = when + t.act_slots
        if not t.split_bus:
            self.column_bus = self.row_bus

    def precharge(self, when: int, b: int) -> None:
        """Closes the open row of bank `b` in clock `when`."""
        self.open_row[b] = -1
        self.act_ok[b] = when + self.rp
        self.commands.append((when, "PRE", b, -1))
        self.row_bus = when + 1
        if not self.t.split_bus:
            self.column_bus = when + 1

    def access(self, when: int, b: int, row: int, write: int) -> int:
        """Reads or writes in the open row of bank `b`; returns the clock in which the last byte arrives."""
        t, g = self.t, b % self.t.groups
        self.commands.append((when, "WR" if write else "RD", b, row))
        self.column_bus = when + 1
        if not t.split_bus:
            self.row_bus = when + 1
        for w in (0, 1):
            self.cas_any[w] = max(self.cas_any[w], when + self.cas_s[w][write])
            self.cas_group[w][g] = max(self.cas_group[w][g], when + self.cas_l[w][write])
        self.pre_ok[b] = max(self.pre_ok[b], when + self.to_pre[write])
        return when + (t.cwl if write else t.cl) + self.beat
