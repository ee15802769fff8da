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

from sim.memory.served import Served, pieces, requests
from sim.memory.timings import DramTiming

QUEUE = 64  # accesses that a channel's controller looks at
CHUNK = 256  # bytes in a row of a channel before the next channel follows
SAMPLE = 2  # channels that an efficiency is measured on
FOREVER = 1 << 62
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
        t, clocks = self.t, self.t.clocks
        beat, ccd_l, rcd, rp, ras = clocks(t.beat), clocks(t.ccd_l), clocks(t.rcd), clocks(t.rp), clocks(t.ras)
        rrd_s, rrd_l, faw, rtp, wr = (clocks(x) for x in (t.rrd_s, t.rrd_l, t.faw, t.rtp, t.wr))
        read_to_write = t.turn_rw
        write_to_read_s, write_to_read_l = t.cwl + beat + clocks(t.wtr_s), t.cwl + beat + clocks(t.wtr_l)
        write_to_pre = t.cwl + beat + wr
        groups, banks = t.groups, t.groups * t.banks
        refi = clocks(t.refi) if self.refresh == "all" else clocks(t.refi / banks)
        due = refi if self.refresh != "none" else FOREVER
        turn = 0  # bank that is refreshed next

        n = len(arrival)
        entered, ended = [0] * n, [0] * n
        waiting: list[deque[int]] = [deque() for _ in range(banks)]
        active: set[int] = set()  # banks with something queued
        open_row = [-1] * banks
        passed = [0] * banks  # column accesses past the bank's oldest request
        act_ok, cas_ok, pre_ok = [0] * banks, [0] * banks, [0] * banks
        act_any, act_group = 0, [0] * groups
        cas_any, cas_group = [0, 0], [[0] * groups, [0] * groups]  # by direction
        window: deque[int] = deque([-(1 << 40)] * 4, 4)
        row_bus = column_bus = now = done = following = held = 0
        while done < n and now <= until:
            if not held:
                now = max(now, arrival[following])
            while following < n and held < self.queue and arrival[following] <= now:
                b = bank[following]
                waiting[b].append(following)
                active.add(b)
                entered[following] = max(now, arrival[following])
                following += 1
                held += 1
            best = None
            for b in active:
                queue = waiting[b]
                oldest = queue[0]
                at = open_row[b]
                if at < 0:
                    when, kind, i = max(act_ok[b], act_any, act_group[b % groups], window[0] + faw, row_bus), 1, oldest
                else:
                    i = oldest
                    if row[i] != at:
                        i = -1
                        if passed[b] < STARVE:
                            for other in queue:
                                if row[other] == at:
                                    i = other
                                    break
                    if i < 0:
                        when, kind, i = max(pre_ok[b], row_bus), 2, oldest
                    else:
                        w, g = write[i], b % groups
                        when, kind = max(cas_ok[b], cas_any[w], cas_group[w][g], column_bus), 0
                candidate = (when if when > now else now, kind, i, b)
                if best is None or candidate < best:
                    best = candidate
            when, kind, i, b = best
            if following < n and held < self.queue and arrival[following] <= when and arrival[following] > now:
                now = arrival[following]
                continue
            if when >= due:  # the refresh goes before
                if self.refresh == "all":
                    start = max([due, row_bus, *(pre_ok[k] for k in range(banks) if open_row[k] >= 0)])
                    closed = start + rp if any(r >= 0 for r in open_row) else max([start, *act_ok])
                    act_ok = [closed + clocks(t.rfc)] * banks
                    open_row = [-1] * banks
                    self.commands.append((closed, "REF", -1, -1))
                else:
                    k = turn
                    start = max(due, row_bus, pre_ok[k] if open_row[k] >= 0 else act_ok[k])
                    closed = start + rp if open_row[k] >= 0 else start
                    act_ok[k] = closed + clocks(t.rfc_bank)
                    self.commands.append((closed, "REF", k, -1))
                    open_row[k] = -1
                    turn = (turn + 1) % banks
                due += refi
                continue
            now = when
            g = b % groups
            if kind == 1:
                open_row[b] = row[i]
                cas_ok[b], pre_ok[b] = when + rcd, when + ras
                act_any, act_group[g] = when + rrd_s, when + rrd_l
                window.append(when)
                passed[b] = 0
                self.commands.append((when, "ACT", b, row[i]))
                row_bus = when + t.act_slots
                if not t.split_bus:
                    column_bus = row_bus
                continue
            if kind == 2:
                open_row[b] = -1
                act_ok[b] = when + rp
                self.commands.append((when, "PRE", b, -1))
                row_bus = when + 1
                if not t.split_bus:
                    column_bus = when + 1
                continue
            self.commands.append((when, "WR" if write[i] else "RD", b, row[i]))
            column_bus = when + 1
            if not t.split_bus:
                row_bus = when + 1
            if write[i]:
                cas_any[1], cas_group[1][g] = when + beat, when + ccd_l
                cas_any[0] = max(cas_any[0], when + write_to_read_s)
                cas_group[0][g] = max(cas_group[0][g], when + write_to_read_l)
                pre_ok[b] = max(pre_ok[b], when + write_to_pre)
                ended[i] = when + t.cwl + beat
            else:
                cas_any[0], cas_group[0][g] = when + beat, when + ccd_l
                cas_any[1] = max(cas_any[1], when + read_to_write)
                pre_ok[b] = max(pre_ok[b], when + rtp)
                ended[i] = when + t.cl + beat
            queue = waiting[b]
            if queue[0] == i:
                queue.popleft()
                passed[b] = 0
            else:
                queue.remove(i)
                passed[b] += 1
            if not queue:
                active.discard(b)
            held -= 1
            done += 1
        return entered, ended
