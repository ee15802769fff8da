"""Simulates one pass on any platform, and says whether its data fit the memories."""

from sim.system.accelerator import run as run_vrex
from sim.system.gpu import run as run_gpu
from sim.system.platforms import Gpu, Vrex
from sim.system.timeline import RESIDENT, Pass, Point
from sim.system.workload import Selection, constant, table_ii

NOT_SELECTING = ("flexgen", *RESIDENT)


def simulate(platform: Vrex | Gpu, point: Point, selection: Selection | None = None) -> Pass:
    """Latency, timeline and energy of `point`. Without `selection`, the shares are those of V-Rex Table II."""
    shares = selected(point, selection)
    return run_vrex(platform, point, shares) if isinstance(platform, Vrex) else run_gpu(platform, point, shares)


def selected(point: Point, selection: Selection | None) -> Selection:
    """Shares of the cache that the policy of `point` fetches.

    A policy that does not select fetches all or nothing. For the others, `selection` decides, else V-Rex Table II.
    """
    if point.policy in NOT_SELECTING:
        share = float(point.policy == "flexgen")
        return constant(point.policy, share, share, point.model)
    return selection or table_ii(point.policy, point.model)


def device_bytes(platform: Vrex | Gpu, point: Point, selection: Selection) -> int:
    """Bytes of device memory that a pass needs.

    These are the weights and resident caches. For a cache that is fetched, they are the recent entries, the layers in
    flight and the representatives of the clusters.
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
    """Names a memory that is too small, as in "41 of 32 GiB of device memory"; empty if everything fits."""
    needs = [("device memory", device_bytes(platform, point, selection), platform.capacity)]
    if isinstance(platform, Vrex) and platform.ssd and point.policy not in RESIDENT:
        home = point.batch * point.cache * point.model.token_bytes
        needs.append(("the drive", home, platform.ssd.capacity))
    short = (f"{n / 2**30:,.0f} of {there / 2**30:,.0f} GiB of {what}" for what, n, there in needs if n > there)
    return next(short, "")
