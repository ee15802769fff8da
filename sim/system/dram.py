"""DRAM: channels of banks behind a first-ready, first-come-first-served controller.

A request list is cut into accesses of `atom` bytes and mapped to channels, bank groups, banks and rows. Each channel
then issues one command after another: of every bank with something queued the command that brings its best request on
(a column access to the open row, else a precharge or an activation for the oldest one), and of those the earliest that
tRCD, tRP, tRAS, tRRD_S/L, tFAW, tCCD_S/L, tRTP, tWR, tWTR_S/L, read-to-write turnaround, refresh and the command bus
allow. Time goes from command to command, not from clock to clock.

Closed forms beside it: `DramTiming.bandwidth` (peak), `.refresh_share`, `.read_latency` (an idle channel), and
`Dram.stream_efficiency` (whole rows in order: the data bus is busy but for refresh).
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sim.system.dram_timings import DramTiming
from sim.system.served import Served, pieces, requests

QUEUE = 64  # accesses that a channel's controller looks at
CHUNK = 256  # bytes in a row of a channel before the next channel follows
SAMPLE = 2  # channels that an efficiency is measured on
FOREVER = 1 << 62
ACCESS, ACTIVATE, PRECHARGE = range(3)  # kinds of commands, the first of those that could go in a clock first
STARVE = 16  # column accesses that may pass an older request of the same bank before its row is closed for it


@dataclass(frozen=True)
class Dram:
    """All channels of `t`.

    Addresses, from the lowest: byte of an access, access of a chunk, channel, bank group, chunk of a row, bank, row.
    The bank is XORed with the row's lowest bits, so that strides of whole rows do not meet in one bank. Addresses
    beyond the memory wrap.

    refresh : "all" (REFab, the whole channel every tREFI), "bank" (REFpb, a bank in turn every tREFI / banks), "none"
    """

    t: DramTiming
    queue: int = QUEUE
    refresh: str = "all"

    def __post_init__(self):
        if self.refresh not in ("all", "bank", "none"):
            raise ValueError(f"refresh={self.refresh!r}: must be one of all, bank, none")
        if self.refresh == "bank" and not self.t.rfc_bank:
            raise ValueError(f"refresh='bank': {self.t.name} refreshes all banks at once; use 'all'")
        if self.queue < 1:
            raise ValueError(f"queue={self.queue}: must be at least 1")

    def place(self, addr: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Channel, bank (of all groups: group + groups * bank in it) and row of addresses."""
        t = self.t
        rest, channel = np.divmod(addr // CHUNK, t.channels)
        rest, group = np.divmod(rest, t.groups)
        rest = rest // (t.row // CHUNK)
        rest, bank = np.divmod(rest, t.banks)
        row = rest % t.rows
        return channel, group + t.groups * (bank ^ row % t.banks), row

    def run(self, addr, size, write: bool | np.ndarray = False, arrival=0.0) -> Served:
        """Serve requests of `size` bytes from `addr`, offered in this order from `arrival` (seconds) on."""
        addr, size = requests(addr, size)
        t = self.t
        owner, begin, _ = pieces(addr, size, t.atom)
        channel, bank, row = self.place(begin)
        write = np.broadcast_to(np.asarray(write, bool), addr.shape)[owner]
        clock = np.ceil(np.broadcast_to(np.asarray(arrival, float), addr.shape)[owner] * 1e9 / t.tck).astype(np.int64)
        begins, ends = np.zeros(len(owner), np.int64), np.zeros(len(owner), np.int64)
        counts = {"reads": int((~write).sum()), "writes": int(write.sum()), "activations": 0, "refreshes": 0}
        for c in np.unique(channel):
            of = np.flatnonzero(channel == c)
            ch = Channel(t, self.queue, self.refresh)
            begins[of], ends[of] = ch.run(clock[of].tolist(), bank[of].tolist(), row[of].tolist(), write[of].tolist())
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
        """Closed form of a read of many whole rows: all of the data bus that refresh leaves.

        All-bank refresh takes tRFC and what it needs to close and open the rows around it, tRP + tRCD; activations hide
        behind other bank groups' accesses.
        """
        t = self.t
        if self.refresh == "none":
            return 1.0
        if self.refresh == "all":
            return 1.0 - (t.rfc + t.rp + t.rcd) / t.refi
        # A bank under refresh holds up the stream only where it is next: in one of as many turns as there are banks.
        return 1.0 - t.rfc_bank / t.refi

    def efficiency(self, piece: int, random: bool = True, seed: int = 1) -> float:
        """Share of the peak bandwidth for reads of `piece` bytes each, at random places or one after the other."""
        return _efficiency(self, piece, random, seed)

    def seconds(self, total: int, piece: int | None = None) -> float:
        """Time of `total` bytes, streamed, or in pieces of `piece` bytes at random places."""
        share = self.stream_efficiency if piece is None else self.efficiency(piece)
        return total / (self.t.bandwidth * share)

    def joules(self, total: int, piece: int | None = None) -> float:
        """Energy of `total` bytes beyond the background power, with as many activations as pieces of this size need."""
        t = self.t
        chunks = total / (t.row if piece is None else min(t.row, max(t.atom, min(piece, CHUNK))))
        return (chunks * t.act_pj + total * 8 * t.bit_pj) * 1e-12

    @property
    def idle_watts(self) -> float:
        """Background power, refresh included."""
        t = self.t
        return t.channels * (t.idle_mw * 1e-3 + t.ref_pj * 1e-12 / (t.refi * 1e-9))


@lru_cache(maxsize=256)
def _efficiency(dram: Dram, piece: int, random: bool, seed: int) -> float:
    """Steady state: what some of the channels, always with a full queue, serve from the second refresh to the
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
    """One channel, in clocks; `commands` : (clock, command, bank, row) of all it issued, bank -1 for all."""

    def __init__(self, t: DramTiming, queue: int, refresh: str):
        self.t, self.queue, self.refresh = t, queue, refresh
        self.commands: list[tuple[int, str, int, int]] = []

    def count(self, command: str) -> int:
        """How often a command was issued."""
        return sum(c[1] == command for c in self.commands)

    def run(self, arrival: list, bank: list, row: list, write: list, until: int = FOREVER) -> tuple[list, list]:
        """Clock in which each access enters the queue, and in which its last byte is there (0: not before `until`)."""
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
            elif when >= banks.due:  # the refresh goes before
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
    """The accesses that a controller looks at, by bank."""

    def __init__(self, arrival: list, bank: list, row: list, write: list, size: int, banks: int):
        self.arrival, self.bank, self.row, self.write, self.size = arrival, bank, row, write, size
        self.entered, self.ended = [0] * len(arrival), [0] * len(arrival)
        self.waiting: list[deque[int]] = [deque() for _ in range(banks)]
        self.active: set[int] = set()  # banks with something queued
        self.following = 0  # the next access to enter
        self.held = 0
        self.done = 0

    @property
    def arrives(self) -> int:
        """When the next access can enter: never, if there is none or no room."""
        return self.arrival[self.following] if self.held < self.size and self.following < len(self.arrival) else FOREVER

    def fill(self, now: int) -> None:
        """Take what has arrived."""
        while self.arrives <= now:
            i = self.following
            self.waiting[self.bank[i]].append(i)
            self.active.add(self.bank[i])
            self.entered[i] = now
            self.following += 1
            self.held += 1

    def take(self, i: int, b: int) -> bool:
        """Access `i` of bank `b` is done; whether it was the bank's oldest."""
        queue = self.waiting[b]
        oldest = queue[0] == i
        queue.remove(i)
        if not queue:
            self.active.discard(b)
        self.held -= 1
        self.done += 1
        return oldest


class _Banks:
    """What each bank has open, and from when on it, its group and the buses may get the next command of a kind."""

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
        # Columns of a direction may follow a column of either: [of which][after which], other groups and the same one.
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
        """The earliest command that brings a bank's best request on: clock, kind, access, bank."""
        row, write, groups, found = queue.row, queue.write, self.t.groups, None
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
        return found

    def refresh(self) -> None:
        """All banks, or the bank whose turn it is, closed first."""
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
        """Open a row."""
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
        """Close the open row."""
        self.open_row[b] = -1
        self.act_ok[b] = when + self.rp
        self.commands.append((when, "PRE", b, -1))
        self.row_bus = when + 1
        if not self.t.split_bus:
            self.column_bus = when + 1

    def access(self, when: int, b: int, row: int, write: int) -> int:
        """Read or write in the open row; returns the clock in which the last byte is there."""
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
