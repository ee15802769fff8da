"""Tables of `vrex papers stream`: policies side by side, and beside the figures of the papers."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.table import Table

from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.hybrid import HybridParams, memory
from openvrex.golden.policies.stream_runs import TEXT

QUALITY = (("kept", ".1%"), ("fetched", ".1%"), ("error", ".3f"), ("agreement", ".1%"), ("loss", ".3f"))
COST = (
    "in MB",
    "out MB",
    "pieces in",
    "tokens held",
    "device peak MB",
    "growth kB/frame",
    "attention GMAC",
    "prediction GMAC",
    "other Mop",
)
LEGEND = (
    "kept: share of the earlier tokens in the cache that are attended; fetched: share that comes from the host. Error: "
    "of the attention output over the same q, k, v. Agreement and loss: next token, after the same input as full "
    "attention. Pairs are frames / answer. Growth: device memory over the second half of the frames."
)
PROJECTOR = (
    "The projector from vision to decoder is not trained: agreement and loss on a video say how far a policy moves the "
    "decoder, not how well it understands. Accuracy: `vrex papers stream text`."
)
RANDOM = (
    "hybrid: the parameters of its history branch are random, in the paper and here. Its error, agreement and loss are "
    "no measure of quality; read its memory, bytes and operations alone (-p hybrid.ssm=disabled leaves the branch out)."
)


@dataclass(frozen=True)
class Rows:
    """The content of a table, for the terminal or for Markdown."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def rich(self) -> Table:
        """The table for the terminal."""
        out = Table(*self.columns, title=self.title)
        for row in self.rows:
            out.add_row(*row)
        return out

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        return "\n".join([f"## {self.title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def percent(x: float | None, digits: int = 1) -> str:
    """A share in per cent; "-" for None."""
    return "-" if x is None else f"{x:.{digits}%}"


def pair(r: dict, name: str, form: str, stages: tuple[str, str] = ("frame", "answer")) -> str:
    """A figure in two stages, such as "1.0 / 2.0"."""
    return " / ".join("-" if r[s][name] is None else format(r[s][name], form) for s in stages)


def quality(r: dict) -> tuple[str, ...]:
    """The cells of `QUALITY`: what a policy keeps and loses."""
    return tuple(pair(r, name, form) for name, form in QUALITY)


def cost(r: dict) -> tuple[str, ...]:
    """The cells of `COST`: what a policy moves, holds and computes."""
    t, growth = r["totals"], r["growth"]["device"]
    ops = {key.removeprefix("ops."): n for key, n in t.items() if key.startswith("ops.")}
    rest = sum(n for kind, n in ops.items() if kind not in ("linear", "attention", "prediction"))
    return (
        f"{sum(n for key, n in t.items() if key.startswith('in.')) / 1e6:.1f}",
        f"{sum(n for key, n in t.items() if key.startswith('out.')) / 1e6:.1f}",
        f"{sum(n for key, n in t.items() if key.startswith('pieces.in.'))}",
        f"{r['tokens']['device'] + r['tokens']['host']:.0f}",
        f"{t['device.peak'] / 1e6:.2f}",
        "-" if growth is None else f"{growth / 1e3:.1f}",
        f"{ops.get('attention', 0) / 1e9:.2f}",
        f"{ops.get('prediction', 0) / 1e9:.3f}",
        f"{rest / 1e6:.1f}",
    )


def describe(results: dict) -> str:
    """A description of the stream: name, tokens, layers, motion."""
    motion = results["motion"]
    moves = "" if motion["class"] is None else f", {motion['class']} motion ({motion['pixels']:.2f} px a frame)"
    return f"{results['source']['stream']}, {results['tokens']} tokens, {len(results['layers'])} layers{moves}"


def side_by_side(results: dict) -> tuple[Rows, Rows]:
    """Two tables with one row for each policy: quality and cost."""
    names = tuple(n for n, _ in QUALITY)
    found = results["policies"].items()
    return (
        Rows(describe(results), ("policy", *names), [(name, *quality(r)) for name, r in found]),
        Rows("cost over the stream", ("policy", *COST), [(name, *cost(r)) for name, r in found]),
    )


def one_table(streams: list[dict]) -> Rows:
    """One table of all policies on all streams."""
    columns = ("stream", "motion", "policy", *(n for n, _ in QUALITY), *COST)
    rows = [
        (s["source"]["stream"], s["motion"]["class"] or "-", name, *quality(r), *cost(r))
        for s in streams
        for name, r in s["policies"].items()
    ]
    return Rows("All policies, all streams", columns, rows)


def by_length(results: dict) -> Rows:
    """Peak device memory and bytes moved after each quarter of the stream's blocks."""
    n = len(next(iter(results["policies"].values()))["series"]["tokens"])
    at = sorted({max(0, -(-n * q // 4) - 1) for q in (1, 2, 3, 4)})
    tokens = next(iter(results["policies"].values()))["series"]["tokens"]

    def cells(s: dict) -> list[str]:
        moved = [a + b for a, b in zip(s["in_bytes"], s["out_bytes"], strict=True)]
        return [f"{s['device_peak'][i] / 1e6:.2f} / {moved[i] / 1e6:.1f}" for i in at]

    title = f"{results['source']['stream']}: peak device MB / MB moved, against stream length"
    columns = ("policy", *(f"{tokens[i]} tokens" for i in at))
    return Rows(title, columns, [(name, *cells(r["series"])) for name, r in results["policies"].items()])


# The papers' figures


@dataclass(frozen=True)
class Figure:
    """A figure of a paper, and the function that reads ours from the results of the policies."""

    what: str
    source: str
    paper: str
    needs: tuple[str, ...]  # policies
    ours: Callable[[dict[str, dict]], str]


def retrieval(name: str, paper: str) -> Figure:
    """The figure of a policy in V-Rex's Table II."""
    return Figure(
        f"{name}: cache attended, frames / generation",
        "V-Rex Table II",
        paper,
        (name,),
        lambda p: pair(p[name], "kept", ".1%", ("frame", "generation")),
    )


def spread(r: dict) -> str:
    """The range of the layers' retrieval ratios, then the range of the heads'."""
    layers = [[x for x in heads if x is not None] for heads in r["ratio"]]
    means = [sum(heads) / len(heads) for heads in layers if heads]
    if not means:
        return "-"
    of_layers, of_heads = (_range(found) for found in (means, [x for part in layers for x in part]))
    return of_layers + (", heads alike" if of_heads == of_layers else f"; heads {of_heads}")


def _range(found: list[float]) -> str:
    low, high = f"{min(found):.1%}", f"{max(found):.1%}"
    return f"all {low}" if low == high else f"{low} to {high}"


def saved(p: dict[str, dict]) -> str:
    """The share of cluster splits that deferring saves in Mosaic."""
    now, later = (p[name]["policy"]["splits"] for name in ("mosaic-eager", "mosaic"))
    return f"{1 - later / now:.1%} ({later:,} instead of {now:,})" if now else "no split"


def slope(r: dict) -> str:
    """Growth of device memory in MiB a frame."""
    growth = r["growth"]["device"]
    return "-" if growth is None else f"{growth / 2**20:.3f}"


FIGURES = (
    retrieval("infinigen", "100 % / 6.8 %"),
    retrieval("infinigenp", "50.8 % / 6.8 %"),
    retrieval("rekv", "58.4 % / 31.2 %"),
    retrieval("resv-paper", "32.7 % / 2.5 %"),
    retrieval("resv-buckets", "32.7 % / 2.5 %"),
    Figure(
        "rekv over resv-paper: tokens attended, frames",
        "V-Rex VI-E",
        "3.0 x (Table II: 1.8 x)",
        ("rekv", "resv-paper"),
        lambda p: f"{p['rekv']['frame']['kept'] / own:.1f} x" if (own := p["resv-paper"]["frame"]["kept"]) else "-",
    ),
    Figure(
        "resv-paper: layers, frames",
        "V-Rex Fig. 20",
        "4.2 % to 44.0 %",
        ("resv-paper",),
        lambda p: spread(p["resv-paper"]),
    ),
    Figure(
        "resv-buckets: layers, frames",
        "V-Rex Fig. 20",
        "4.2 % to 44.0 %",
        ("resv-buckets",),
        lambda p: spread(p["resv-buckets"]),
    ),
    Figure(
        "infinigenp: layers, frames", "V-Rex Fig. 20", "all alike", ("infinigenp",), lambda p: spread(p["infinigenp"])
    ),
    Figure(
        "codecsight: visual tokens pruned",
        "CodecSight 6.1.4",
        "low 50 %, medium 27 %, high 13 %",
        ("codecsight",),
        lambda p: percent(p["codecsight"]["pruned"]),
    ),
    Figure(
        "codecsight: tokens not computed, of full recomputation's",
        "CodecSight 6.1.3",
        "85 %",
        ("codecsight",),
        lambda p: percent(p["codecsight"]["policy"]["reduction"]),
    ),
    Figure("mosaic: splits saved by deferring", "Mosaic VIII-C", "42.7 %", ("mosaic", "mosaic-eager"), saved),
    Figure(
        "mosaic: retrieved tokens that prefetch had brought",
        "Mosaic VIII-C",
        "not given (latency -14.5 %)",
        ("mosaic",),
        lambda p: percent(p["mosaic"]["policy"]["coverage"]),
    ),
    Figure("full: device growth, MiB a frame", "hybrid Table III", "120", ("full",), lambda p: slope(p["full"])),
    Figure(
        "hybrid: device growth, MiB a frame", "hybrid Table III", "about 0", ("hybrid",), lambda p: slope(p["hybrid"])
    ),
)


def beside_papers(streams: list[dict]) -> Rows:
    """The papers' figures for the policies that ran, with one column for each stream."""
    names = [s["policies"] for s in streams]
    shown = [f for f in FIGURES if all(need in names[0] for need in f.needs)]
    rows = [(f.what, f.source, f.paper, *(f.ours(p) for p in names)) for f in shown]
    columns = ("figure", "source", "paper", *(describe(s).partition(",")[0] for s in streams))
    return Rows("Beside the papers", columns, rows)


def hybrid_tables() -> Rows:
    """Tables II and III of the hybrid paper, K, V and state alone, by the block allocator (`hybrid.memory`).

    Table II read as Qwen2.5-VL-3B (36 layers, 2 KV heads of 128), 6,052 tokens, 40 blocks; III is Llama-3.2-1B (16
    layers, 8 KV heads of 64), 64 frames of 196 tokens, the default window.
    """
    qwen, llama = Shape(36, 16, 2, 128), Shape(16, 32, 8, 64)
    evicting, whole = HybridParams(sink_blocks=1, recent_blocks=39, ssm="disabled"), HybridParams()
    small, large = (memory(replace(evicting, eviction=e), qwen, 2048, [6052])[0][-1] for e in ("rewrite", "mask"))
    full = replace(whole, eviction="mask", ssm="disabled")
    (held, peak), (grown, top) = (memory(p, llama, 2048, [196] * 64) for p in (whole, full))
    mib = 2**20
    rows: list[tuple[str, ...]] = [
        (
            "II: cache of a stream, MB",
            "223.1 to 23.6 (-89.4 %)",
            f"{large / 1e6:.1f} to {small / 1e6:.1f} ({small / large - 1:.1%})",
        ),
        ("II: streams in the same pool", "9.5 x", f"{large / small:.1f} x"),
        (
            "III: peak, GB with weights / MiB of K, V and state",
            "18.4 to 8.2 (-55 %)",
            f"{top / mib:.0f} to {peak / mib:.0f} ({peak / top - 1:.0%})",
        ),
        (
            "III: growth of the last 32 frames, MiB a frame",
            "120 to about 0",
            f"{(grown[-1] - grown[-33]) / 32 / mib:.2f} to {(held[-1] - held[-33]) / 32 / mib:.2f}",
        ),
    ]
    return Rows("Hybrid memory, Tables II and III: standard to hybrid", ("figure", "paper", "ours"), rows)


def notes(streams: list[dict]) -> list[str]:
    """Notes that a reader of the tables needs."""
    out = [f"{s['source']['stream']} {text}." for s in streams for text in s["fallbacks"]]
    out.append(LEGEND)
    if any("frames" in s["source"] and s["source"]["stream"] != TEXT for s in streams):
        out.append(PROJECTOR)
    depth = streams[0]["source"].get("depth")
    if depth is not None:
        out.append(f"Only the decoder's first {depth} layers ran: its next tokens are read off an unfinished state.")
    if any(r["policy"].get("random") for s in streams for r in s["policies"].values()):
        out.append(RANDOM)
    return out


def answers(streams: list[dict]) -> list[str]:
    """What full attention and hybrid memory say to the question, each in its own words; a line a policy and stream."""
    return [
        f"{results['source']['stream']}, {name}: {text!r}"
        for results in streams
        for name, text in results.get("texts", {}).items()
    ]


def report(streams: list[dict], line: str) -> str:
    """The whole report in Markdown, with the command that made it."""
    tables = [one_table(streams), beside_papers(streams), *(by_length(s) for s in streams)]
    if "hybrid" in streams[0]["policies"]:
        tables.append(hybrid_tables())
    said = [f"- {text}" for text in answers(streams)]
    said = ["## Answers, each in its own words", "", *said, ""] if said else []
    head = ["# Policies on streams", "", "```", line, "```", "", *(f"- {describe(s)}" for s in streams), ""]
    return "\n".join([*head, *(t.markdown() for t in tables), *said, *(f"{note}\n" for note in notes(streams))])
