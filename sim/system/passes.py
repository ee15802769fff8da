"""Simulates one pass on any platform, and says whether its data fit the memories."""

from golden.retrieval.table_layout import Item
from sim.system.accelerator import run as run_vrex
from sim.system.gpu import run as run_gpu
from sim.system.layer_share import Layer, at_home
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
    flight and the representatives of the clusters; on V-Rex also the tables of all contexts.
    """
    if point.policy in RESIDENT:
        return point.device_bytes
    m, p = point.model, platform
    recent, clusters, tables, heads = 0, 0, 0, 1
    if isinstance(p, Vrex):
        layer = _layer(p, point)
        heads, cores = layer.shares.heads, layer.shares.teams  # each has tables and blocks of its own
        tables = cores * p.core.dre.layout().address(Item.LEVEL, layer.tables * m.layers)
        recent = min(point.cache, p.core.dre.kvmu.recent)
        clusters = min(p.core.dre.hcu.clusters, -(-point.cache // selection.cluster))
    share = float(selected(point, selection).layers(point.stage, heads).max())
    fetched = 2 * share * (point.cache - recent) * m.entry_bytes
    means = clusters * m.layers * m.kv_heads * m.head * 2
    return point.device_bytes + tables + int(point.batch * (fetched + recent * m.token_bytes + means))


def lacks(platform: Vrex | Gpu, point: Point, selection: Selection) -> str:
    """Names a memory that is too small, as in "41 of 32 GiB of device memory"; empty if everything fits."""
    needs = [("device memory", device_bytes(platform, point, selection), platform.capacity)]
    if isinstance(platform, Vrex) and point.policy not in RESIDENT:
        if platform.ssd:
            home = point.batch * point.cache * point.model.token_bytes
            needs.append(("the drive", home, platform.ssd.capacity))
        layer, k = _layer(platform, point), platform.core.dre.kvmu
        number = layer.blocks(*at_home(platform, point, selection))
        all_cores = k.block_bytes * layer.shares.teams
        needs.append(("blocks (kvmu.blocks)", number * all_cores, k.blocks * all_cores))
    short = (f"{n / 2**30:,.0f} of {there / 2**30:,.0f} GiB of {what}" for what, n, there in needs if n > there)
    return next(short, "")


def _layer(v: Vrex, point: Point) -> Layer:
    return Layer(v.system, point.model, point.batch, point.rows, v.latency, v.prefetch)
