"""The whole system, layer by layer: what runs when, what limits it, what it costs."""

from sim.system.accelerator import run as run_vrex
from sim.system.gpu import run as run_gpu
from sim.system.platforms import Gpu, Vrex
from sim.system.timeline import RESIDENT, Pass, Point
from sim.system.workload import Selection, constant, table_ii

NOT_SELECTING = ("flexgen", *RESIDENT)


def simulate(platform: Vrex | Gpu, point: Point, selection: Selection | None = None) -> Pass:
    """Latency, timeline and energy of `point`; what is selected is V-Rex's Table II unless given."""
    return (run_vrex if isinstance(platform, Vrex) else run_gpu)(platform, point, selected(point, selection))


def selected(point: Point, selection: Selection | None) -> Selection:
    """What the policy of `point` fetches: all or nothing if it does not select, else `selection`, else Table II's."""
    if point.policy in NOT_SELECTING:
        return constant(point.policy, *([float(point.policy == "flexgen")] * 2), point.model)
    return selection or table_ii(point.policy, point.model)


def device_bytes(platform: Vrex | Gpu, point: Point, selection: Selection) -> int:
    """Bytes that a pass keeps in device memory.

    Weights, and caches that stay there. Of a cache that is fetched: the recent entries, the layers that are under way,
    and the representatives of the clusters.
    """
    if point.policy in RESIDENT:
        return point.device_bytes
    m, p = point.model, platform
    share = float(selected(point, selection).layers(point.stage).max())
    layers, recent, clusters = 2, 0, 0
    if isinstance(p, Vrex):
        layers, recent = p.ahead + 1, min(point.cache, p.core.dre.kvmu.recent)
        clusters = min(p.core.dre.hcu.clusters, -(-point.cache // selection.cluster))
    fetched = layers * share * (point.cache - recent) * m.entry_bytes
    means = clusters * m.layers * m.kv_heads * m.head * 2
    return point.device_bytes + int(point.batch * (fetched + recent * m.token_bytes + means))


def lacks(platform: Vrex | Gpu, point: Point, selection: Selection) -> str:
    """The memory that is too small for `point`, as "41 of 32 GiB of device memory"; empty if all of it fits."""
    needs = [("device memory", device_bytes(platform, point, selection), platform.capacity)]
    if isinstance(platform, Vrex) and platform.ssd and point.policy not in RESIDENT:
        home = point.batch * point.cache * point.model.token_bytes
        needs.append(("the drive", home, platform.ssd.capacity))
    short = (f"{n / 2**30:,.0f} of {there / 2**30:,.0f} GiB of {what}" for what, n, there in needs if n > there)
    return next(short, "")
