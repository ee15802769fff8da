"""The measured H100: its platform file from the recorded runs, how far it is predicted, and the manual's tables."""

import json
from dataclasses import replace
from pathlib import Path

from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.papers.evaluation.paper_points import ROWS as ROWS_OF
from openvrex.papers.evaluation.paper_points import SCALED, Points
from openvrex.scripts.markdown import table
from openvrex.scripts.simulate.machines_command import row
from openvrex.sim.system.frame_times import size
from openvrex.sim.system.gpu_figures import Attention, Frame, GpuFigures, Shape
from openvrex.sim.system.measured_gpu import RECENT, MeasuredGpu, attention_terms, between, of_pages, predicted
from openvrex.sim.system.passes import lacks, selected, simulate
from openvrex.sim.system.platforms import H100
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import Decoder

RAW = Path(__file__).parents[2] / "docs/results/h100.json"
ROWS = 10, 1  # of a frame and of a token
ENDS = 10240, 102400  # tokens of the resident frames that attention is fitted to
SHARE = 0.05  # of the cache, fetched in the measured frames
PIECE = 32  # tokens, of which whole pieces were fetched for clusters
JOINED, EXPANDED = 1024000, 102400  # tokens of the frames that joining and expansion are fitted to
STEPS = ("hash", "scores", "mass", "bisection compiled", "cluster")
RESV, PAGES = "frame_ms N={} tokens_a_cluster={}", "pages_frame_ms N={}"


def recorded() -> dict:
    """The recorded runs, as `docs/results/h100.json` has them."""
    return json.loads(RAW.read_text())


def platform_file(raw: dict) -> GpuFigures:
    """The figures of the H100 from the recorded runs. What is fitted is named, with the frames that it is fitted to."""
    rates, m = raw["rates"], Decoder()
    layers = {int(n): ms for n, ms in rates["32_layers_without_attention_ms_by_rows"].items()}
    attention = [
        Attention(streams=b, rows=r, tokens=n, ms=(_resident(rates, b, n, r) - _rest(layers, m, b, r)) / m.layers)
        for r in ROWS
        for b in (1, 4)
        for n in ENDS
    ]
    choice = {
        "resv": {
            n: {step.removesuffix(" compiled"): rates[f"resv_ms_a_layer clusters={n}"][step] for step in STEPS}
            for n in (1280, 20480)
        },
        "pages": {
            n: {"all": (of["nofetch"] - of["none"]) / m.layers}
            for n in (40960, 102400, 1024000)
            for of in [raw["pages"][PAGES.format(n)]]
        },
    }
    entries = {n: 1e-6 * m.token_bytes * _fetched(n) for n in (JOINED, EXPANDED)}
    joined = raw["frames"][RESV.format(JOINED, PIECE)]["none"] - layers[ROWS[0]]
    fixed, shared, each = attention_terms(attention, ROWS[0])
    joined -= m.layers * (fixed + (_fetched(JOINED) + RECENT) * (shared + each))
    device, torch = rates["device"]
    figures = GpuFigures(
        version=1,
        device=device,
        date="2026-11-26",
        versions={"torch": torch},
        note=raw["what"],
        shape=Shape.of(m),
        capacity_gib=80,
        copy_gbps=1e3 * rates["copy_TBps"],
        matmul_tflops=rates["matmul_TFLOPs"],
        launch_us={"graph": rates["us_a_kernel_in_a_graph"], "python": rates["us_a_launch_from_python"]},
        layers_ms=layers,
        attention=attention,
        encoder_ms=rates["encoder_ms_by_frames"],
        link_copy_gbps=rates["link_copy_GBps_by_size"],
        link_gather_gbps=rates["link_gather_GBps_by_piece"],
        steps_ms=choice,
        join_gbps=entries[JOINED] / joined,
        watts={
            "resident": rates["watts_of_resident_frames"][1],
            "resv": raw["frames"][f"watts of ahead, N=40960 tokens_a_cluster={PIECE}"][1],
            "pages": raw["pages"]["watts of ahead, N=40960"][1],
        },
        frames=_frames(raw),
        fitted={
            "attention": "resident passes at 10,240 and 102,400 tokens, of 1 and 4 streams, less all else",
            "steps_ms.pages": "passes with pages, with and without their choice: the difference",
            "join_gbps": "the pass with 5 % of 1,024,000 tokens at hand, less all else",
            "expand_gbps": "the pass with pages of a 4-bit home at 102,400 tokens, less all else",
        },
    )
    (own,) = (f for f in figures.frames if (f.tokens, f.home_bits, f.given) == (EXPANDED, 4, False))
    free = predicted(MeasuredGpu("H100", figures.model_copy(update={"expand_gbps": 1e12})), own)
    return figures.model_copy(update={"expand_gbps": entries[EXPANDED] / (own.ms - free)})


def _fetched(tokens: int) -> float:
    """Tokens that a measured frame fetched."""
    return int(SHARE * tokens) // PIECE * PIECE


def _resident(rates: dict, streams: int, tokens: int, rows: int) -> float:
    return rates[f"resident_ms batch={streams} cache={tokens} rows={rows}"]["own"]


def _rest(layers: dict[int, float], m: Decoder, streams: int, rows: int) -> float:
    """Milliseconds of a resident pass beside attention: products, and a token's vocabulary at the weights' rate."""
    head = m.width * m.vocab / (m.layers * m.layer_weights) * layers[1]
    return between(layers, streams * rows) + head * (rows == 1)


def _frames(raw: dict) -> list[Frame]:
    """The measured passes: resident ones, those with the whole cache over the link, with clusters and with pages."""
    rates = raw["rates"]
    out = [
        Frame(policy="resident", streams=b, rows=r, tokens=n, ms=_resident(rates, b, n, r))
        for b in (1, 4, 8)
        for n in (1024, 10240, 40960, 102400)
        for r in ROWS
        if (b, n) != (8, 102400)  # no room
    ]
    out.append(Frame(policy="flexgen", tokens=40960, ms=rates["whole_cache_over_the_link_ms cache=40960"]))
    for n, of in ((40960, 32), (40960, 2), (102400, 32), (1024000, 32)):
        row, share = raw["frames"][RESV.format(n, of)], _fetched(n) / n
        for given in (False, True):
            ms = row["ahead" + " given" * given]
            out.append(Frame(policy="resv", tokens=n, share=share, cluster=of, given=given, ms=ms))
    for n in (40960, 102400, 1024000):
        row = raw["pages"][PAGES.format(n)]
        for bits in (16, 4):
            for given in (False, True):
                ms = row["ahead" + " given" * given + " kv4" * (bits == 4)]
                share = int(SHARE * n) // 8 * 8 / n
                out.append(Frame(policy="pages", tokens=n, share=share, home_bits=bits, given=given, ms=ms))
    return out


CACHES = (1024, 40960, 102400, 1024000)  # of the measured passes
KINDS: dict[str, dict[str, object]] = {  # rows of the table of measured cells: what a frame of it has
    "whole cache in its memory": {"policy": "resident", "streams": 1},
    "the same, one of 8 streams": {"policy": "resident", "streams": 8},
    "whole cache over the link": {"policy": "flexgen"},
    **{
        f"{what}{known}": own | {"given": bool(known)}
        for what, own in (
            ("ReSV, 32 tokens a cluster", {"policy": "resv", "cluster": 32}),
            ("ReSV, 2 tokens a cluster", {"policy": "resv", "cluster": 2}),
            ("coded pages", {"policy": "pages", "home_bits": 16}),
            ("coded pages of 4 bits", {"policy": "pages", "home_bits": 4}),
        )
        for known in ("", ", choice known")
    },
}


def cells() -> dict[tuple[str, int], tuple[float, float]]:
    """(row of `KINDS`, tokens) -> predicted and measured milliseconds of a frame of each stream, without encoder."""
    out = {}
    for f in H100.figures.frames:
        kind = next((k for k, own in KINDS.items() if all(getattr(f, x) == v for x, v in own.items())), "")
        if kind and f.rows == 10 and f.tokens in CACHES:
            out[kind, f.tokens] = predicted(H100, f) / f.streams, f.ms / f.streams
    return out


def h100(known: dict) -> str:
    """Each measured cell beside what the platform file's figures predict."""
    found = cells()
    shown = {k: f"{a:.1f} / {b:.1f}" for k, (a, b) in found.items()}
    rows = [[kind, *(shown.get((kind, n), "-") for n in CACHES)] for kind in KINDS]
    return table(["ms a frame, predicted / measured", "1K", "40K", "100K", "1M"], rows)


def machines(known: dict, streams: int = 1) -> str:
    """A frame on each machine and from each home."""
    found = known["machines"]
    head = ["machine, home of the cache", *(f"{size(n)} tokens" for n in found["caches"])]
    return table(head, [[name, *row(cells)] for name, cells in found["frames"][f"{streams}"].items()])


def leads(known: dict) -> str:
    """Who is first from which cache on."""
    rows = [
        [of, kind, FIGURES[figure], "; ".join(f"{name} from {round(n / 1024)}K" for n, name in runs)]
        for of, kinds in known["machines"]["first"].items()
        for kind, figures in kinds.items()
        for figure, runs in figures.items()
    ]
    return table(["streams", "machine", "least", "from tokens a stream"], rows)


FIGURES = {"ms": "time", "joules": "energy"}
PAIRS = (("V-Rex8 over AGX", "agx", (1, 4)), ("V-Rex48 over A100", "a100", (1, 8)))


def scaled(known: dict) -> str:
    """What remains of the paper's speed-ups against GPUs scaled from the measured one."""
    found = {n["what"]: n for n in known["evaluation"] if n["where"] == "VI-B"}
    fitted, rows = Points(), []
    for name, gpu, (_, batch) in PAIRS:
        for stage, streams in (("frame", 1), ("frame", batch), ("token", 1)):
            for cache in (1024, 40960):
                what = f"{name}, {stage}, batch {streams}, {cache >> 10}K"
                n = found[what]
                vrex = fitted.at(gpu, cache, streams, stage, "flexgen")["seconds"] / n["ours"]
                best, how = _best(SCALED[gpu], cache, streams, stage)
                cells = f"{n['paper']:g}", f"{n['ours']:.1f}", f"{n['scaled']:.1f}", f"{best / vrex:.2f}"
                rows.append([what, *cells, how])
    head = ["speed-up", "paper", "ours, GPU fitted", "ours, GPU scaled", "GPU at its best", "which keeps its cache"]
    return table(head, rows)


def _best(g: MeasuredGpu, cache: int, streams: int, stage: str) -> tuple[float, str]:
    """Seconds of a pass that runs as a good programmer would have it, and where the cache then is."""
    ways = {}
    for policy, own, home in (("resident", g, "in its memory"), ("pages", replace(g, home_bits=4), "behind the link")):
        point = Point(cache, streams, ROWS_OF[stage], stage == "frame", policy)
        shares = selected(point, of_pages(PageParams(), point))
        if not lacks(own, point, shares):
            ways[home] = simulate(own, point, shares).seconds
    home = min(ways, key=lambda h: ways[h])
    return ways[home], home


BLOCKS = {
    "h100": h100,
    "machines": machines,
    "machines-16": lambda known: machines(known, 16),
    "leads": leads,
    "scaled": scaled,
}


GPUS = ("H100", "A100", "AGX")


def _ratios(known: dict, streams: int, figure: str, of: tuple[str, ...], over: tuple[str, ...]) -> list[float]:
    """The least figure of ways whose names begin as one of `of`, over that of `over`, at each cache that both hold."""
    ways = known["machines"]["frames"][f"{streams}"]

    def least(names: tuple[str, ...], cache: int) -> float | None:
        own = (c for name, cells in ways.items() if name.startswith(names) for c in cells)
        some = (c[figure] for c in own if c["cache"] == cache)
        return min(some, default=None)

    pairs = ((least(of, n), least(over, n)) for n in known["machines"]["caches"])
    return [a / b for a, b in pairs if a and b]


def _range(ratios: list[float]) -> str:
    return f"{min(ratios):.1f} to {max(ratios):.1f}"


def cited(known: dict) -> list[tuple[str, str]]:
    """Page and text, for each sentence about machines and measured GPUs."""
    found = cells()
    off = max(abs(a / b - 1) for a, b in found.values())
    raw, encoder = recorded(), H100.figures.encoder_ms[1]
    runs = [of for name in ("frames", "pages") for of in raw[name].values() if isinstance(of, dict)]
    less = [
        1 - (of[f"ahead given{kind}"] + encoder) / (of[f"ahead{kind}"] + encoder)
        for of in runs
        for kind in ("", " kv4")
        if f"ahead{kind}" in of
    ]
    room = (H100.capacity - Point(1, policy="").device_bytes) / Decoder().token_bytes
    at = {
        name: next(c for c in cells if c["cache"] == 40960) for name, cells in known["machines"]["frames"]["1"].items()
    }

    def says(name: str) -> str:
        return f"{at[name]['ms']:.0f} ms and {at[name]['joules']:.1f} J"

    def over(name: str) -> tuple[float, float]:
        """Time and energy of a GPU of the edge over a preset's."""
        gpu = at["AGX Orin, scaled, drive"]
        return gpu["ms"] / at[name]["ms"], gpu["joules"] / at[name]["joules"]

    own = raw["frames"][RESV.format(40960, PIECE)]
    steps = (own["nofetch"] - own["none"]) / (own["ahead"] + encoder)
    page, first = "papers/evaluation.md", known["machines"]["first"]["1"]["any"]["ms"]
    alone, many = (_ratios(known, n, "joules", GPUS, ("edge8", "server48")) for n in (1, 16))
    packed, plain = (_ratios(known, 1, "ms", ("AGX",), (name,)) for name in ("edge8x, ", "edge8, "))
    return [
        (page, f"up to {round(first[1][0] / 1024)}K tokens with the whole cache in its memory"),
        (page, f"by a factor of {_range(alone)} with one stream"),
        (page, f"the factor is {_range(many[:4])} up to 100K tokens"),
        (page, f"with one stream {_range(packed)} times in time"),
        (page, f"and is {_range(plain)} times as fast"),
        (page, f"predicts every cell within {100 * off:.0f} %"),
        (page, f"tokens a cluster takes {100 * steps:.0f} % of a frame at 40K"),
        (page, f"knew the choice would take {100 * min(less):.0f} to {100 * max(less):.0f} % off a frame"),
        (page, f"holds the cache of one stream up to some {room / 1e4:.0f}0,000 tokens"),
        *(
            (where, text)
            for where in ("limits.md", "README.md")
            for text in (
                f"{says('H100, host')} by the rates of a measured H100, {says('server48x, host')} on `server48x`, "
                f"{says('edge8x, drive')} on `edge8x`",
                "takes {:.1f} times the time and {:.1f} times the energy of `edge8x`,".format(*over("edge8x, drive")),
                "{:.1f} and {:.1f} times those of `edge8`".format(*over("edge8, drive")),
            )
        ),
    ]
