"""What limits V-Rex at 40K tokens and beyond, and what lifts it."""

from dataclasses import replace

from sim.memory.curves import Curve
from sim.memory.pcie import LINKS
from sim.memory.ssd import Ssd
from sim.platform import EDGE, SERVER, Vrex
from sim.system import simulate
from sim.timeline import Pass, Point
from sim.workload import Decoder, traced

CACHES = (10240, 40960, 131072, 1 << 20)


def platforms() -> dict[str, Vrex]:
    """Configurations to compare."""
    wide = replace(Ssd(), channels=16, command=0.25e-6)
    dre = EDGE.core.dre
    slots, recent = (
        replace(EDGE, core=replace(EDGE.core, dre=replace(dre, kvmu=replace(dre.kvmu, **change))))
        for change in ({"block_slots": 1}, {"recent": 16384})
    )
    return {
        "edge": EDGE,
        "edge, fetch 4 layers ahead": replace(EDGE, ahead=4),
        "edge, blocks of 1 entry": slots,
        "edge, 16,384 recent tokens on the device": recent,
        "edge, PCIe 4.0 x4": replace(EDGE, link=LINKS["pcie4x4"]),
        "edge, four such drives, PCIe 4.0 x16": replace(EDGE, link=LINKS["pcie4x16"], ssd=wide),
        "server": SERVER,
        "server, fetch 4 layers ahead": replace(SERVER, ahead=4),
        "server, PCIe 5.0 x16": replace(SERVER, link=LINKS["pcie5x16"]),
        "server, PCIe 6.0 x16": replace(SERVER, link=LINKS["pcie6x16"]),
    }


def binds(p: Pass) -> str:
    """The resource that works longest."""
    return max(("LXE", "DRE", "link"), key=p.busy)


def limits(trace: str = "world", caches: tuple[int, ...] = CACHES, only: tuple[str, ...] = ()) -> Curve:
    """Milliseconds of a frame with the shares of a trace, and what works longest; `only`: these platforms, all if
    none."""
    shares, rows = traced(Decoder(), trace), []
    for name, v in platforms().items():
        if only and name not in only:
            continue
        passes = [simulate(v, Point(cache), shares) for cache in caches]
        rows.append((name, *(f"{p.seconds * 1e3:.0f} {binds(p)}" for p in passes)))
    return Curve("A frame, ms, and what works longest", ("platform", *(f"{c >> 10}K" for c in caches)), rows)
