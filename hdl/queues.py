"""Depths of the queues that no parameter sets, each for the hardware and for its time view in `sim`."""

from hdl.params import CoreParams, SystemParams

RANGES = 4  # KVMU: ranges of blocks between the walk over a cluster and the bursts
RESULTS = 16  # DPE: results that wait or are on their way: so many that results of one chunk keep the full rate
ROUTES = 4  # LXE: VECTORs that wait for words
MULS = 4  # LXE: MULs that are not done: one in the DPE, one read, one that waits, one to be taken
WRITES = 8  # arbiter: bursts whose addresses can be out before their data
LEAST = 4  # arbiter: entries of a FIFO that takes and gives one in every cycle


def copied_beats(p: CoreParams) -> int:
    """Copier: beats of what is being read, and of a burst that is being written."""
    return (p.lxe.copies + 1) * (p.lxe.burst_bytes // p.lxe.bus_bytes)


def port_beats(p: SystemParams) -> tuple[int, int]:
    """Arbiter: beats of a manager that have room.

    Of reads, the cores' share of what one core can have under way, at least two of the longest bursts; of writes two
    bursts, one that comes and one that goes.
    """
    lxe = p.core.lxe
    longest = lxe.burst_bytes // lxe.bus_bytes
    return max(LEAST, longest * max(2, -(-lxe.bursts // p.cores))), max(LEAST, 2 * longest)
