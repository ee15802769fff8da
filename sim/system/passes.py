"""Simulates one pass on any platform, and says whether its data fit the memories."""

from collections.abc import Iterable, Sequence
from math import ceil

from openvrex.sim.system.accelerator import run as run_vrex
from openvrex.sim.system.device_memory import arrays
from openvrex.sim.system.gpu import run as run_gpu
from openvrex.sim.system.layer_share import Layer, at_home
from openvrex.sim.system.measured_gpu import MeasuredGpu
from openvrex.sim.system.measured_gpu import run as run_measured
from openvrex.sim.system.platforms import Platform, Vrex
from openvrex.sim.system.timeline import EVERYTHING, RESIDENT, Pass, Point
from openvrex.sim.system.workload import Selection, constant, table_ii

NOT_SELECTING = (EVERYTHING, *RESIDENT)
MEANING = "tables are full, so keys join others, and shares are no longer those recorded"


def simulate(platform: Platform, point: Point, selection: Selection | None = None) -> Pass:
    """Latency, timeline and energy of `point`. Without `selection`, the shares are those of V-Rex Table II."""
    shares = selected(point, selection)
    if isinstance(platform, Vrex):
        return run_vrex(platform, point, shares)
    if isinstance(platform, MeasuredGpu):
        return run_measured(platform, point, shares)
    return run_gpu(platform, point, shares)


def selected(point: Point, selection: Selection | None) -> Selection:
    """Shares of the cache that the policy of `point` fetches.

    A policy that does not select fetches all or nothing. For the others, `selection` decides, else V-Rex Table II.
    """
    if point.policy in NOT_SELECTING:
        share = float(point.policy == EVERYTHING)
        return constant(point.policy, share, share, point.model)
    return selection or table_ii(point.policy, point.model)


def device_bytes(platform: Platform, point: Point, selection: Selection) -> int:
    """Bytes of device memory that a pass needs: the sum of `sim.system.device_memory.arrays`."""
    return sum(arrays(platform, point, selected(point, selection)).values())


def remarks(platform: Platform, point: Point, selection: Selection) -> list[str]:
    """What a reader of the time must know.

    Of a measured GPU what was fitted, and at which sizes it was measured; of V-Rex where the hardware does not do what
    the shares were recorded of, so that the time is that of another function.
    """
    if isinstance(platform, MeasuredGpu):
        return platform.remarks
    if not isinstance(platform, Vrex) or point.policy in NOT_SELECTING:
        return []
    have, (_, wanted) = platform.core.dre.hcu.clusters, at_home(platform, point, selection)
    full = f"tables full: {have:,} of {wanted:,} clusters, so keys join others, and the shares are no longer those"
    return [f"{full} recorded: give them room with -p clusters"] if wanted > have else []


MARK = " *"


def mark(platform: Platform, point: Point, selection: Selection) -> str:
    """A mark behind the time of a pass for which there are remarks."""
    return MARK if remarks(platform, point, selection) else ""


def legend(title: str, rows: Iterable[Sequence[str]]) -> str:
    """The title of a table, which says what marks in its cells mean."""
    marked = any(MARK in cell for row in rows for cell in row)
    return f"{title}. *: {MEANING}" if marked else title


def lacks(platform: Platform, point: Point, selection: Selection) -> str:
    """Names a memory that is too small, as in "41 of 32 GiB of device memory"; empty if everything fits."""
    needs = [("device memory", device_bytes(platform, point, selection), platform.capacity)]
    if isinstance(platform, Vrex) and point.policy not in RESIDENT:
        k = platform.core.dre.kvmu
        if platform.ssd:
            home = point.batch * point.cache * point.model.token_bytes * k.home_bytes // k.entry_bytes
            needs.append(("the drive", home, platform.ssd.capacity))
        layer = Layer(platform.system, point.model, point.batch, point.rows, platform.latency, platform.prefetch)
        home, wanted = at_home(platform, point, selection)
        number = layer.blocks(home, min(platform.core.dre.hcu.clusters, wanted))
        all_cores = k.block_bytes * layer.shares.teams
        needs.append(("blocks (kvmu.blocks)", number * all_cores, k.blocks * all_cores))
    short = (f"{ceil(n / 2**30):,} of {there / 2**30:,.0f} GiB of {what}" for what, n, there in needs if n > there)
    return next(short, "")
