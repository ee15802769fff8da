"""Tables of frame times of presets as generated, of what tables of contexts take of a frame, and of device memory."""

from dataclasses import replace

from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.registry import Entry
from openvrex.sim.system.accelerator import run
from openvrex.sim.system.core_pass import Given
from openvrex.sim.system.core_policies import KINDS
from openvrex.sim.system.device_memory import arrays
from openvrex.sim.system.layer_share import Layer, at_home
from openvrex.sim.system.memory_curves import Curve
from openvrex.sim.system.passes import lacks, legend, mark, selected
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.timeline import DRE, Pass, Point
from openvrex.sim.system.workload import Selection

CACHES = (1024, 10240, 40960, 102400, 1 << 20)
ARRAYS = ("weights", "tables", "rings", "mean keys", "fetched", "work")
PAGE_ARRAYS = ("weights", "tables", "rings", "codes", "fetched", "kept", "work")
NEAR = ("blocks",)  # besides, where home is in the device memory


def policy_frames(
    platforms: list[Vrex],
    at: Point,
    name: str,
    own: Entry,
    given: Given,
    caches: tuple[int, ...] = CACHES,
    weights: str = "",
) -> list[Curve]:
    """Milliseconds of `at` under a policy of `core_policies.KINDS`, by platform and cache, and megabytes of memory.

    weights : of the decoder's layers, as of `Vrex.held`
    """
    times, sizes = [], []
    for v in platforms:
        cells = []
        for cache in caches:
            try:
                one = KINDS[name].of(v, own, replace(at, cache=cache, model=v.held(at.model, weights)), given)
                missing = one.lacks
                cells.append(missing or f"{(one.frame() if at.frame else one.token()).seconds * 1e3:.1f}")
                figures = (one.arrays.get(name, 0) for name in _names(v, PAGE_ARRAYS))
                each = (f"{n / 1e6:,.0f}" for n in (*figures, one.device_bytes, one.home))
                sizes += [] if missing else [(v.name, size(cache), one.note, *each)]
            except ParamError as e:
                cells.append(str(e))
        times.append((v.name, *cells))
    what = f"{'a frame' if at.frame else 'a token'} of {at.batch} x {at.rows} tokens, {name}"
    head = ("platform", "cache", "policy", *_names(platforms[0], PAGE_ARRAYS), "all", "behind the link")
    return [
        Curve(f"Milliseconds of {what}", ("platform", *(size(c) for c in caches)), times),
        Curve(f"MB of memory, {what}", head, sizes),
    ]


def frames(
    platforms: list[Vrex], at: Point, shares: Selection, caches: tuple[int, ...] = CACHES, weights: str = ""
) -> list[Curve]:
    """Milliseconds of `at` by platform and cache, the part of the tables in memory, and megabytes of device memory.

    weights : of the decoder's layers, as of `Vrex.held`

    A platform whose hardware cannot run the model, or hold the cache, has the reason instead.
    """
    times, parts, sizes = [], [], []
    for v in platforms:
        cells = []
        for cache in caches:
            point = replace(at, cache=cache, model=v.held(at.model, weights))
            try:
                missing = lacks(v, point, shares)
                done = None if missing else run(v, point, selected(point, shares))
            except ParamError as e:
                missing, done = str(e), None
            cells.append(f"{done.seconds * 1e3:.1f}{mark(v, point, shares)}" if done else missing)
            if done or missing.endswith("device memory"):
                sizes.append(memory(v, point, shares))
            if done:
                parts.append((v.name, size(cache), *_tables(v, point, shares, done)))
        times.append((v.name, *cells))
    what = f"a frame of {at.batch} x {at.rows} tokens, {shares.name}"
    head = ("platform", *(size(c) for c in caches))
    columns = (
        "platform",
        "cache",
        "clusters of",
        "SWITCHes",
        "MB of tables",
        "of the memory's bytes",
        "DRE busy",
        "visible: SWITCH",
    )
    return [
        Curve(legend(f"Milliseconds of {what}", times), head, times),
        Curve(f"Tables in memory in {what}", (*columns, "visible: DRE"), parts),
        Curve(f"MB of device memory, {what}", ("platform", "cache", *_names(platforms[0]), "all"), sizes),
    ]


def memory(v: Vrex, point: Point, shares: Selection) -> tuple[str, ...]:
    """Platform, cache, megabytes of device memory of each of the arrays, and of all."""
    held = arrays(v, point, selected(point, shares))
    each = (f"{held.get(name, 0) / 1e6:,.0f}" for name in _names(v))
    return v.name, size(point.cache), *each, f"{sum(held.values()) / 1e6:,.0f}"


def _names(v: Vrex, names: tuple[str, ...] = ARRAYS) -> tuple[str, ...]:
    return names + NEAR * (v.home == "device")


def _tables(v: Vrex, point: Point, shares: Selection, done: Pass) -> tuple[str, ...]:
    """Clusters of a table, of those that its tokens would open; SWITCHes of all cores; bytes of tables, their share.

    Then of the time: DRE busy, visible SWITCHes, visible DRE.
    """
    layer = Layer(v.system, point.model, point.batch, point.rows, v.latency, v.prefetch)
    moved = sum(s.bytes for s in done.stages)
    tables = sum(s.bytes for s in done.stages if s.resource == "DRE")
    switches = sum(s.name == "switch" for s in done.stages) * layer.tables * layer.shares.teams
    own = selected(point, shares)
    have, (_, wanted) = v.core.dre.hcu.clusters, at_home(v, point, shares)
    visible = (1 - run(v, point, own, free).seconds / done.seconds for free in (("switch",), DRE))
    busy = done.busy("DRE") / done.seconds
    return (
        f"{min(have, wanted):,} of {wanted:,}",
        f"{switches:,}",
        f"{tables / 1e6:.2f}",
        f"{tables / moved:.3%}",
        f"{busy:.2%}",
        *(f"{x:.3%}" for x in visible),
    )


def size(tokens: int) -> str:
    """A number of tokens in a few letters."""
    return "1M" if tokens == 1 << 20 else f"{tokens >> 10}K" if tokens % 1024 == 0 else f"{tokens:,}"
