"""Tables that show which resource limits V-Rex at 40K tokens and beyond, and which change removes the limit.

Entries lie behind the link, as V-Rex has them.
"""

from collections.abc import Callable
from dataclasses import replace

from openvrex.sim.system import platforms as known
from openvrex.sim.system.memory_curves import Curve
from openvrex.sim.system.passes import lacks, legend, mark, simulate
from openvrex.sim.system.pcie import LINKS
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.ssd import Ssd
from openvrex.sim.system.timeline import Pass, Point
from openvrex.sim.system.workload import Selection

CACHES = (10240, 40960, 131072, 1 << 20)
EDGE, SERVER = (replace(v, home="link") for v in (known.EDGE, known.SERVER))


def platforms() -> dict[str, Vrex]:
    """The configurations to compare, by name."""
    wide = replace(Ssd(), channels=16, command=0.25e-6)
    return {
        "edge": EDGE,
        "edge, blocks of 1 entry": EDGE.changed("kvmu.block_slots=1"),
        "edge, 2,048 recent tokens on the device": EDGE.changed("kvmu.recent=2048"),
        "edge, PCIe 4.0 x4": replace(EDGE, link=LINKS["pcie4x4"]),
        "edge, four such drives, PCIe 4.0 x16": replace(EDGE, link=LINKS["pcie4x16"], ssd=wide),
        "server": SERVER,
        "server, PCIe 5.0 x16": replace(SERVER, link=LINKS["pcie5x16"]),
        "server, PCIe 6.0 x16": replace(SERVER, link=LINKS["pcie6x16"]),
    }


def binds(p: Pass) -> str:
    """The resource that is busy longest: LXE, DRE or link."""
    return max(("LXE", "DRE", "link"), key=p.busy)


def limits(at: Point, shares: Selection, caches: tuple[int, ...] = CACHES, only: tuple[str, ...] = ()) -> Curve:
    """Table of milliseconds of `at` and of the resource that is busy longest, by platform and cache.

    only : beginnings of the names of platforms to show, all if empty
    """
    rows = []
    for name, v in platforms().items():
        if only and not name.startswith(only):
            continue
        rows.append((name, *(_cell(v, replace(at, cache=c), shares, _limit) for c in caches)))
    title = f"{_pass(at)}, batch {at.batch}: ms, and what works longest, or what memory it lacks; {shares.name}"
    return Curve(legend(title, rows), ("platform", *(length(c) for c in caches)), rows)


# N_HCU-h, N_HCU-w, N_WTU-h, N_WTU-w: one larger than V-Rex VI-A, then V-Rex VI-A, then ever smaller.
ENGINES = ((2, 32, 2, 32), (1, 16, 1, 16), (1, 16, 1, 8), (1, 8, 1, 8), (1, 8, 1, 4), (1, 4, 1, 2))
BATCHES = (1, 4, 16)


def engines(
    at: Point, shares: Selection, batches: tuple[int, ...] = BATCHES, on: tuple[Vrex, ...] = (EDGE, SERVER)
) -> Curve:
    """Table of milliseconds of `at`, and in brackets those in which the DRE is busy, by size of the DRE and batch."""
    rows = []
    for v in on:
        for hcu_h, hcu_w, wtu_h, wtu_w in ENGINES:
            sizes = {"hcu.n_h": hcu_h, "hcu.n_w": hcu_w, "wtu.n_h": wtu_h, "wtu.n_w": wtu_w}
            changed = replace(v, home="link").changed(*(f"{name}={n}" for name, n in sizes.items()))
            cells = (_cell(changed, replace(at, batch=n), shares, _engine) for n in batches)
            rows.append((v.name, f"{hcu_h} x {hcu_w}", f"{wtu_h} x {wtu_w}", *cells))
    title = f"{_pass(at)} at {length(at.cache)}: ms, and in brackets those of the DRE; {shares.name}"
    return Curve(legend(title, rows), ("platform", "N_HCU", "N_WTU", *(f"batch {n}" for n in batches)), rows)


def _pass(at: Point) -> str:
    return f"A {'frame' if at.frame else 'question' if at.rows > 1 else 'token'}"


def _cell(v: Vrex, at: Point, shares: Selection, say: Callable[[Pass], str]) -> str:
    at = replace(at, model=v.held(at.model))
    return lacks(v, at, shares) or say(simulate(v, at, shares)) + mark(v, at, shares)


def _limit(p: Pass) -> str:
    return f"{p.seconds * 1e3:.0f} {binds(p)}"


def _engine(p: Pass) -> str:
    return f"{p.seconds * 1e3:.1f} ({p.busy('DRE') * 1e3:.1f})"


def length(tokens: int) -> str:
    """A number of tokens as text."""
    return f"{tokens >> 10}K" if tokens % 1024 == 0 else f"{tokens:,}"
