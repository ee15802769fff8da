"""The measured H100 beside the simulated systems: a table and sentences of the manual, and how far it is predicted."""

import json

from openvrex.scripts.markdown import table
from openvrex.sim.system.gpu import run
from openvrex.sim.system.passes import selected
from openvrex.sim.system.platforms import H100, H100_FILE
from openvrex.sim.system.timeline import Pass, Point
from openvrex.sim.system.workload import Decoder, constant

FOUND = json.loads(H100_FILE.read_text())
RESIDENT_CELLS = [  # streams and tokens of resident frames
    *((1, n) for n in (1024, 10240, 40960, 102400)),
    *((4, n) for n in (1024, 10240, 40960, 102400)),
    *((8, n) for n in (1024, 10240, 40960)),
]
RESV_CELLS = (40960, 32), (40960, 2), (102400, 32), (1024000, 32)  # tokens, and those of a cluster


def beside_a_gpu(known: dict) -> dict[str, tuple[list[str], float]]:
    """Milliseconds of a frame, encoder included, behind 1K, 40K, 100K and 1M tokens, and watts at 40K, by machine."""
    h, found = FOUND, known["simulation"]
    rates, encoder = h["rates"], h["rates"]["encoder_ms_by_frames"]["1"]
    resident = [rates[f"resident_ms batch=1 cache={n} rows=10"]["own"] for n in (1024, 40960, 102400)]
    lengths, of = (40960, 102400, 1024000), "tokens_a_cluster=32"
    resv = [h["frames"][f"frame_ms N={n} {of}"]["ahead"] for n in lengths]
    paged = [h["pages"][f"pages_frame_ms N={n}"]["ahead kv4"] for n in lengths]

    def added(times: list[float]) -> list[str]:
        return [f"{t + encoder:.1f}" for t in times]

    out = {
        "H100, whole cache in its memory": ([*added(resident), "no memory"], rates["watts_of_resident_frames"][1]),
        "H100, ReSV, 5 % fetched from the host": (["", *added(resv)], h["frames"][f"watts of ahead, N=40960 {of}"][1]),
        "H100, coded pages, 5 % in 4 bits": (["", *added(paged)], h["pages"]["watts of ahead, N=40960"][1]),
    }
    for at, name in enumerate(("edge8x", "server48x")):
        row, million = (found[f"frames pages x{more}"]["rows"][at] for more in ("", " 1M"))
        out[f"`{name}`, coded pages"] = (
            [row[1], row[3], row[4], million[1]],
            sum(found[f"pass {name}"]["watts"].values()),
        )
    return out


def cited(known: dict) -> list[tuple[str, str]]:
    """Page and text, for each sentence about the measured GPU."""
    h = FOUND
    encoder = h["rates"]["encoder_ms_by_frames"]["1"]
    kinds = [(row, kind) for name in ("frames", "pages") for row in h[name].values() for kind in ("", " kv4")]
    less = [
        1 - (row[f"ahead given{kind}"] + encoder) / (row[f"ahead{kind}"] + encoder)
        for row, kind in kinds
        if isinstance(row, dict) and f"ahead{kind}" in row
    ]
    of = {name: (times[1], f"{float(times[1]) * w / 1e3:.1f}") for name, (times, w) in beside_a_gpu(known).items()}
    first, *_, edge, server = of.values()
    one, more = ([resident_off(b, n) for b, n in cells] for cells in (RESIDENT_CELLS[:4], RESIDENT_CELLS[4:]))
    resv = [resv_off(n, c) for n, c in RESV_CELLS]
    room = (H100.capacity - Point(1, policy="").device_bytes) / Decoder().token_bytes
    return [
        (
            "papers/evaluation.md",
            f"knew the choice would take {100 * min(less):.0f} to {100 * max(less):.0f} % off a frame.",
        ),
        ("papers/evaluation.md", f"holds the cache of one stream up to some {room / 1e4:.0f}0,000 tokens"),
        (
            "papers/evaluation.md",
            f"is within {100 * max(map(abs, one)):.0f} % of the measured frames of one stream, and "
            f"{-100 * min(more):.0f} % below to {100 * max(more):.0f} % above those of 4 and 8. With `--policy resv` "
            f"it is within {100 * max(map(abs, resv)):.0f} %.",
        ),
        (
            "limits.md",
            f"A frame behind 40K tokens takes {first[0]} ms and {first[1]} J on the H100, {server[0]} ms and "
            f"{server[1]} J on `server48x`, {edge[0]} ms and {edge[1]} J on `edge8x`.",
        ),
    ]


def resident_off(batch: int, cache: int, rows: int = 10) -> float:
    """Predicted over measured time of resident passes on the H100, less 1."""
    point = Point(cache, batch, rows, rows > 1, "resident")
    want = FOUND["rates"][f"resident_ms batch={batch} cache={cache} rows={rows}"]["own"]
    return _without_encoder(run(H100, point, selected(point, None))) / want - 1


def resv_off(cache: int, cluster: int) -> float:
    """The same of frames under ReSV, 5 % fetched, with so many tokens a cluster."""
    shares = constant("5 %", 0.05, 0.05, Decoder(), cluster=cluster)
    want = FOUND["frames"][f"frame_ms N={cache} tokens_a_cluster={cluster}"]["ahead"]
    return _without_encoder(run(H100, Point(cache, 1, 10, True, "resv"), shares)) / want - 1


def _without_encoder(p: Pass) -> float:
    """Milliseconds; the measured frames have none."""
    return 1e3 * (p.seconds - sum(s.end - s.start for s in p.stages if s.name == "vision"))


def h100(known: dict) -> str:
    """A measured H100 beside the simulated systems."""
    rows = [
        [name, *(t or "-" for t in times), f"{watts:,.0f}", f"{float(times[1]) * watts / 1e3:.2f}"]
        for name, (times, watts) in beside_a_gpu(known).items()
    ]
    head = ["machine", *(f"ms a frame at {n}" for n in ("1K", "40K", "100K", "1M"))]
    return table([*head, "W at 40K", "J a frame at 40K"], rows)
