"""Times and memory of the policies that a core can run, on one platform and model: who suits it, and when.

Each is timed by its programs (`KINDS`), with the same encoder, vocabulary, gap, barriers and memories.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.window_decisions import WINDOWED
from openvrex.sim.system.core_pass import CorePass, Given
from openvrex.sim.system.limits import binds, length
from openvrex.sim.system.memory_curves import Curve
from openvrex.sim.system.mosaic_pass import MosaicPass
from openvrex.sim.system.pages_pass import PagesPass
from openvrex.sim.system.passes import legend
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.resv_pass import ResvPass
from openvrex.sim.system.timeline import Pass, Point
from openvrex.sim.system.window_pass import WindowPass
from openvrex.sim.system.workload import Decoder, Selection

KINDS: dict[str, type[CorePass]] = {
    "resv": ResvPass,
    "pages": PagesPass,
    "mosaic": MosaicPass,
    **dict.fromkeys(WINDOWED, WindowPass),
}
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
    most = binds(p)
    if most != "LXE":
        return most
    own = [s for s in p.stages if s.resource == "LXE"]
    bound = sum(s.end - s.start for s in own if s.bytes / v.bandwidth >= FULL_MEMORY * (s.end - s.start))
    return "device memory" if bound > p.busy("LXE") / 2 else "cores"


def row(v: Vrex, name: str, entry: Entry, point: Point, given: Given) -> Row:
    """A policy behind the tokens of `point`."""
    try:
        own = KINDS[name].of(v, entry, point, given)
        if missing := own.lacks:
            return Row(name, point.cache, lacks=missing)
        frame, token = own.frame(), own.token()
    except ParamError as e:
        return Row(name, point.cache, lacks=str(e))
    mean, slowest, one = (1e3 * x for x in (frame.seconds, own.slowest(frame), token.seconds))
    device, home, fetched = (x / 1e6 for x in (own.held_bytes, own.home, frame.fetched))
    limits, attended = limit(v, frame) + own.mark, own.attended(frame)
    return Row(name, point.cache, own.rows, attended, mean, slowest, one, device, home, fetched, limits)


def compare(v: Vrex, policies: Mapping[str, Entry], model: Decoder, caches: Sequence[int], given: Given) -> list[Row]:
    """A row for each policy and length of the stream; the entry of ReSV has no effect."""
    return [row(v, name, entry, Point(n, model=model), given) for name, entry in policies.items() for n in caches]


def curve(v: Vrex, rows: Sequence[Row], shares: Selection) -> Curve:
    """The rows as a table."""
    head = (
        *("policy", "cache", "rows a frame", "attended", "ms a frame", "slowest", "ms a token"),
        *("device MB", "home MB", "MB fetched", "limit"),
    )
    shown = []
    for (policy, lacks), same in groupby(rows, lambda r: (r.policy, r.lacks)):
        if lacks:  # one line for all lengths
            shown.append((policy, ", ".join(length(r.cache) for r in same), *("-",) * (len(head) - 3), lacks))
            continue
        for r in same:
            figures = (f"{r.rows:.1f}", f"{r.attended:,}", f"{r.frame:.1f}", f"{r.slowest:.1f}", f"{r.token:.1f}")
            sizes = f"{r.device:,.0f}", f"{r.home:,.0f}", f"{r.fetched:,.0f}"
            shown.append((policy, length(r.cache), *figures, *sizes, r.limit))
    title = f"Policies of a core on {v.name}; resv: {shares.name}; device MB: all arrays but the weights"
    return Curve(legend(title, shown), head, shown)
