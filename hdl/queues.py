"""Depths of the queues that no parameter sets. The hardware and its time view in `sim` both take them from here."""

from openvrex.golden.retrieval.kv4 import GROUPS, RATIO
from openvrex.hdl.params import CoreParams, SystemParams

RESULTS = 16  # DPE: results waiting or on their way; enough for the full rate with results of one chunk
ROUTES = 4  # LXE: VECTORs that wait for words
MULS = 4  # LXE: MULs not done: one in the DPE, one read, one waiting, one coming in
WRITES = 8  # arbiter: bursts whose addresses can go out before their data
READS, PUTS = 8, 8  # table port: asks on the bus but the one whose items come, writes on the bus
TOGETHER = 8  # arbiter with common reads: bursts that an LXE's buffer holds, so many as cover a memory's latency
OWNERS = 32  # arbiter with common reads: bursts of LXEs whose last beat has not come
LEAST = 4  # arbiter: entries of a FIFO that takes and gives one in every cycle


def copied_beats(p: CoreParams) -> int:
    """Copier: beats of the bursts being read, and of one burst being written.

    A packed burst takes the beats of `RATIO` bursts that were read, and one more must have room.
    """
    bursts = max(p.lxe.copies, RATIO) if p.dre.kvmu.kv4_group else p.lxe.copies
    return (bursts + 1) * (p.lxe.burst_bytes // p.lxe.bus_bytes)


def kv4_beats(p: CoreParams) -> int:
    """Codec of the copier: beats of a group of BF16 numbers, or 1 if a beat holds several groups."""
    return max(1, 2 * p.dre.kvmu.kv4_group // p.lxe.bus_bytes)


def kv4_codes(p: CoreParams) -> int:
    """Codec of the copier: numbers that it packs in a cycle."""
    return max(1, p.lxe.bus_bytes // 32)


def kv4_numbers(p: CoreParams) -> int:
    """Codec of the copier: numbers that it expands in a cycle, half a beat, or the least group."""
    return min(GROUPS[0], p.lxe.bus_bytes // 4)


def port_beats(p: SystemParams, together: bool = False, of: int = 1) -> tuple[int, int]:
    """Arbiter: beats of a manager's read and write buffers at one of `of` memory ports.

    For reads, the cores' share of the bursts that one core can have in flight; of an LXE whose beats come for others,
    too (`together`), at least `TOGETHER`. The ports share them, but each has two of the longest bursts at least. For
    writes two bursts: one that comes in and one that goes out; of several ports one each, which take turns.
    """
    lxe = p.core.lxe
    longest = lxe.burst_bytes // lxe.bus_bytes
    bursts = max(-(-lxe.bursts // p.cores), min(TOGETHER, lxe.bursts) if together else 0)
    return max(LEAST, longest * max(2, -(-bursts // of))), max(LEAST, longest * (2 if of == 1 else 1))


def dealt_bursts(p: SystemParams) -> int:
    """Interleaver: bursts of a manager, over all ports, whose last answer has not come."""
    return max(LEAST, p.core.lxe.bursts)


def table_beats(p: SystemParams) -> tuple[int, int, int]:
    """Arbiter: the same as `port_beats` for the tables of a core, and the responses of its puts."""
    t = p.core.dre.table
    return max(LEAST, 2 * t.burst_bytes // t.bus_bytes), LEAST, PUTS
