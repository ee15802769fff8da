"""Where retrieval hardware pays: a frame on each machine and from each home, by cache, in milliseconds and joules.

V-Rex's machines run as published (ReSV), the presets that OpenVRex ships run coded pages. A GPU keeps the whole cache
in its memory and attends to all of it, or runs coded pages with kernels, from a home of 4 bits: the same function and
budget as on the presets, whose home has 4 bits where their name ends in x. GPUs but the H100 are scaled from it by data
sheets (`sim.system.platforms`). All have an encoder before the layers. Watts of GPUs are of the board, those of V-Rex's
machines of cores, memory, link and drive; none has its host.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np

from openvrex.golden.function_params import ParamError
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.hdl.params import preset
from openvrex.sim.system.measured_gpu import MeasuredGpu, of_pages
from openvrex.sim.system.pages_pass import PagesPass
from openvrex.sim.system.passes import lacks, selected, simulate
from openvrex.sim.system.platforms import (
    A100_SCALED,
    AGX_SCALED,
    EDGE,
    H100,
    PAPER_EDGE,
    PAPER_SERVER,
    SERVER,
    Platform,
    Vrex,
)
from openvrex.sim.system.selection import PUBLISHED
from openvrex.sim.system.ssd import Ssd
from openvrex.sim.system.timeline import Pass, Point
from openvrex.sim.system.workload import Decoder, Selection, traced

CACHES = (1024, 10240, 40960, 102400, 1 << 20)
STREAMS = (1, 16)
STREAM = "world"  # on which the shares of V-Rex as published were recorded
CLUSTERS = 1 << 15, 1 << 16, 131328  # of tables beyond a preset's; the last are pages of 1M tokens and a frame
EDGES, SERVERS = "edge", "server"


Frame = Callable[[], Pass]


@dataclass(frozen=True)
class Way:
    """A machine with its cache somewhere.

    kind  : `EDGES` or `SERVERS` · home : "memory" of the device, "host" or "drive"
    ready : a frame of so many tokens' cache and so many streams, to be simulated. `ParamError` if it does not fit
    """

    machine: str
    kind: str
    home: str
    ready: Callable[[int, int], Frame]

    @property
    def name(self) -> str:
        """For tables and plots."""
        return f"{self.machine}, {self.home}"


def _fitting(target: Platform, point: Point, shares: Selection) -> Frame:
    if missing := lacks(target, point, shares):
        raise ParamError(missing)
    return lambda: simulate(target, point, shares)


def _gpu(g: MeasuredGpu, policy: str) -> Callable[[int, int], Frame]:
    def ready(cache: int, streams: int) -> Frame:
        point = Point(cache, streams, policy=policy)
        return _fitting(g, point, selected(point, of_pages(PageParams(), point)))

    return ready


def _published(v: Vrex) -> Callable[[int, int], Frame]:
    return lambda cache, streams: _fitting(v, Point(cache, streams), traced(Decoder(), STREAM, PUBLISHED))


def _shipped(v: Vrex) -> Callable[[int, int], Frame]:
    def ready(cache: int, streams: int) -> Frame:
        params, have = PageParams(), v.core.dre.hcu.clusters
        need = -(-(cache + Point(cache).rows) // params.page)
        more = next((n for n in (have, *CLUSTERS) if n >= need), CLUSTERS[-1])
        own = v.changed(f"clusters={more}") if more > have else v
        pages = PagesPass(own, params, Point(cache, streams, model=own.held(Decoder())))
        if pages.lacks:
            raise ParamError(pages.lacks)
        return pages.frame

    return ready


def ways() -> Iterator[Way]:
    """All machines and homes."""
    yield Way("V-Rex8", EDGES, "drive", _published(PAPER_EDGE))
    yield Way("V-Rex48", SERVERS, "host", _published(PAPER_SERVER))
    for base, kind, home, names in (
        (EDGE, EDGES, "drive", ("edge8", "edge8x")),
        (SERVER, SERVERS, "host", ("server48", "server48x")),
    ):
        for name in names:
            v = replace(base, name=name, system=preset(name))
            yield Way(name, kind, "memory", _shipped(replace(v, home="device")))
            yield Way(name, kind, home, _shipped(replace(v, home="link")))
    for g, kind, homes in (
        (AGX_SCALED, EDGES, ("drive",)),
        (A100_SCALED, SERVERS, ("host", "drive")),
        (H100, SERVERS, ("host", "drive")),
    ):
        yield Way(g.name, kind, "memory", _gpu(g, "resident"))
        for home in homes:
            own = replace(g, home_bits=4, drive=Ssd() if home == "drive" else None)
            yield Way(g.name, kind, home, _gpu(own, "pages"))


@dataclass(frozen=True)
class Cell:
    """A frame of one stream of a batch, behind a cache of so many tokens: milliseconds and joules."""

    cache: int
    ms: float
    joules: float


NEAR = 1.02  # longest caches are found to this factor


def curve(way: Way, streams: int, caches: Sequence[int] = CACHES) -> list[Cell]:
    """A frame of `streams` streams, divided by them, at each cache that fits, and at the longest, if that is less."""
    out = list[Cell]()
    for cache in caches:
        frame = _ready(way, cache, streams)
        if frame is None:
            low, high = (out[-1].cache if out else 1, cache)
            while high > NEAR * low:
                middle = round((low * high) ** 0.5)
                low, high = (middle, high) if _ready(way, middle, streams) else (low, middle)
            frame = _ready(way, low, streams) if out and low > out[-1].cache else None
            return out + ([_cell(frame, low, streams)] if frame else [])
        out.append(_cell(frame, cache, streams))
    return out


def _ready(way: Way, cache: int, streams: int) -> Frame | None:
    try:
        return way.ready(cache, streams)
    except ParamError:
        return None


def _cell(frame: Frame, cache: int, streams: int) -> Cell:
    done = frame()
    return Cell(cache, 1e3 * done.seconds / streams, done.joules / streams)


def first(curves: Mapping[str, Sequence[tuple[float, float]]]) -> list[tuple[int, str]]:
    """Which curve is least from which cache on: (cache, name), in order of the cache.

    curves : points (cache, value), in order; between them both are interpolated in logarithms
    """
    known = {name: [(log(x), log(y)) for x, y in points] for name, points in curves.items()}
    ends = sorted({x for points in known.values() for x, _ in points})
    out: list[tuple[int, str]] = []
    for low, high in zip(ends, ends[1:], strict=False):
        lines = {
            name: (_at(points, low), _at(points, high))
            for name, points in known.items()
            if points and points[0][0] <= low and points[-1][0] >= high
        }
        for part in _crossings(list(lines.values())) if lines else ():
            behind = part + 1e-9
            best = min(lines, key=lambda n: lines[n][0] + behind * (lines[n][1] - lines[n][0]))
            if not out or out[-1][1] != best:
                out.append((round(exp(low + part * (high - low))), best))
    return out


def _at(points: list[tuple[float, float]], x: float) -> float:
    return float(np.interp(x, [p for p, _ in points], [q for _, q in points]))


def _crossings(lines: list[tuple[float, float]]) -> list[float]:
    """0, and where two lines over 0 to 1, each given by its ends, cross."""
    found = {0.0}
    for i, (a, b) in enumerate(lines):
        for c, d in lines[:i]:
            if (a - c) * (b - d) < 0:
                found.add((a - c) / ((a - c) - (b - d)))
    return sorted(found)
