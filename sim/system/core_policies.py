"""Times and memory of the policies that a core can run, on one platform and model: who suits it, and when.

Windows are timed by their programs (`sim.system.window_pass`), Mosaic by its own (`sim.system.mosaic_pass`), ReSV by
its own (`sim.system.accelerator`), with the same encoder, vocabulary, gap, barriers and memories.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs.codec import Coded
from openvrex.golden.policies.registry import Entry
from openvrex.sim.system.device_memory import arrays
from openvrex.sim.system.memory_curves import Curve
from openvrex.sim.system.mosaic_demand import WORLD, MosaicDemand
from openvrex.sim.system.mosaic_pass import MosaicPass
from openvrex.sim.system.passes import lacks, legend, mark, simulate
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.timeline import Pass, Point
from openvrex.sim.system.window_demand import demand
from openvrex.sim.system.window_pass import WindowPass
from openvrex.sim.system.workload import Decoder, Selection

RESV, MOSAIC = "resv", "mosaic"
CACHES = (1024, 4096, 10240, 40960)
FULL_MEMORY = 0.9  # of a stage's seconds, from which on the device memory limits it


@dataclass(frozen=True)
class Row:
    """A policy at a length of the stream.

    cache : tokens of the stream so far · rows : tokens that a frame computes, mean
    attended : tokens that a row of a frame attends to, at most
    frame, slowest, token : milliseconds of a mean frame, of the slowest one, and of a generated token
    device : megabytes in device memory beside the weights
    home : megabytes of keys and values behind the link · fetched : megabytes that a frame fetches from there
    limit : what limits the frame: the link, the DRE, the device memory or the cores, marked as `passes.mark` does
    lacks : why the hardware cannot run it; the figures are then 0
    """

    policy: str
    cache: int
    rows: float = 0.0
    attended: int = 0
    frame: float = 0.0
    slowest: float = 0.0
    token: float = 0.0
    device: float = 0.0
    home: float = 0.0
    fetched: float = 0.0
    limit: str = ""
    lacks: str = ""


def limit(v: Vrex, p: Pass) -> str:
    """The resource that is busy longest; of the LXE, whether it waits for the device memory most of the time."""
    most = max(("LXE", "DRE", "link"), key=p.busy)
    if most != "LXE":
        return most
    own = [s for s in p.stages if s.resource == "LXE"]
    bound = sum(s.end - s.start for s in own if s.bytes / v.bandwidth >= FULL_MEMORY * (s.end - s.start))
    return "device memory" if bound > p.busy("LXE") / 2 else "cores"


def window_row(
    v: Vrex, name: str, entry: Entry, model: Decoder, cache: int, coded: Sequence[Coded | None], at_once: int
) -> Row:
    """A policy that chooses by positions."""
    try:
        w = WindowPass(v, demand(entry, model, cache, coded, at_once), Point(cache, model=model))
        if w.device_bytes > v.capacity:
            return Row(name, cache, lacks=_short(v, w.device_bytes))
        frame, token = w.frame(), w.token()
    except ParamError as e:
        return Row(name, cache, lacks=str(e))
    ms = 1e3 * frame.seconds, 1e3 * max(w.frames()), 1e3 * token.seconds
    return Row(name, cache, w.d.rows, w.d.held, *ms, w.held_bytes / 1e6, limit=limit(v, frame))


def resv_row(v: Vrex, model: Decoder, cache: int, shares: Selection) -> Row:
    """ReSV, which recalls all of the stream."""
    at = Point(cache, model=model)
    try:
        if missing := lacks(v, at, shares):
            return Row(RESV, cache, lacks=missing)
        frame, token = (simulate(v, p, shares) for p in (at, replace(at, rows=1, frame=False)))
    except ParamError as e:
        return Row(RESV, cache, lacks=str(e))
    recent = min(cache, v.core.dre.kvmu.recent)
    attended = recent + round(
        frame.fetched / model.token_bytes * v.core.dre.kvmu.entry_bytes / v.core.dre.kvmu.home_bytes
    )
    held = arrays(v, at, shares)
    beside = sum(held.values()) - held["weights"]
    home = cache * model.token_bytes * v.core.dre.kvmu.home_bytes / v.core.dre.kvmu.entry_bytes
    ms = 1e3 * frame.seconds, 1e3 * frame.seconds, 1e3 * token.seconds
    sizes = beside / 1e6, home / 1e6, frame.fetched / 1e6
    return Row(RESV, cache, at.rows, attended, *ms, *sizes, limit(v, frame) + mark(v, at, shares))


def mosaic_row(v: Vrex, entry: Entry, model: Decoder, cache: int) -> Row:
    """Mosaic, which recalls all of the stream by clusters of keys, as far as its programs run on one core."""
    try:
        w = MosaicPass(v, MosaicDemand(entry.params, WORLD, cache), Point(cache, model=model))
        if w.device_bytes > v.capacity:
            return Row(MOSAIC, cache, lacks=_short(v, w.device_bytes))
        frame, token = w.frame(), w.token()
    except ParamError as e:
        return Row(MOSAIC, cache, lacks=str(e))
    ms = 1e3 * frame.seconds, 1e3 * frame.seconds, 1e3 * token.seconds
    sizes = w.held_bytes / 1e6, w.d.home * model.token_bytes / 1e6, frame.fetched / 1e6
    return Row(MOSAIC, cache, w.d.frame_tokens, w.d.attended, *ms, *sizes, limit(v, frame))


def _short(v: Vrex, need: int) -> str:
    return f"{need / 2**30:,.0f} of {v.capacity / 2**30:,.0f} GiB of device memory"


def compare(
    v: Vrex,
    policies: Mapping[str, Entry],
    model: Decoder,
    caches: Sequence[int],
    shares: Selection,
    coded: Sequence[Coded | None] = (None,),
    at_once: int = 16,
) -> list[Row]:
    """A row for each policy and length of the stream; the entry of ReSV has no effect."""

    def row(name: str, entry: Entry, cache: int) -> Row:
        if name == RESV:
            return resv_row(v, model, cache, shares)
        if name == MOSAIC:
            return mosaic_row(v, entry, model, cache)
        return window_row(v, name, entry, model, cache, coded, at_once)

    return [row(name, entry, n) for name, entry in policies.items() for n in caches]


def curve(v: Vrex, rows: Sequence[Row], shares: Selection) -> Curve:
    """The rows as a table."""
    head = (
        *("policy", "cache", "rows a frame", "attended", "ms a frame", "slowest", "ms a token"),
        *("device MB", "home MB", "MB fetched", "limit"),
    )
    shown = []
    for r in rows:
        size = f"{r.cache >> 10}K" if r.cache % 1024 == 0 else f"{r.cache:,}"
        figures = (f"{r.rows:.1f}", f"{r.attended:,}", f"{r.frame:.1f}", f"{r.slowest:.1f}", f"{r.token:.1f}")
        sizes = f"{r.device:,.0f}", f"{r.home:,.0f}", f"{r.fetched:,.0f}"
        blank = ("-",) * (len(figures) + len(sizes))
        shown.append((r.policy, size, *(blank if r.lacks else figures + sizes), r.lacks or r.limit))
    title = f"Policies of a core on {v.name}; resv: {shares.name}; device MB: all arrays but the weights"
    return Curve(legend(title, shown), head, shown)
