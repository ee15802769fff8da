"""The manual's tables of recorded runs of `vrex verify` and of simulations, and its sentences that cite them."""

import re
from collections.abc import Callable
from dataclasses import replace

from openvrex.hdl.params import CLOCK, preset
from openvrex.papers.evaluation.anchor_table import markdown, summary
from openvrex.papers.evaluation.paper_points import AGREE, DIFFER, Number
from openvrex.scripts.markdown import table
from openvrex.scripts.records import gpu_results, stream_results
from openvrex.sim.system.passes import MARK
from openvrex.sim.system.platforms import EDGE, SERVER
from openvrex.sim.system.workload import WEIGHTS, Decoder

SHOWN = 2  # tables of the run on the page
OF_WEIGHTS = (
    "bf16",
    "q8_0",
    "q4_0+bf16",
    "q4_0",
    "q4_0+q4_0",
    "q4_1",
    "gptq",
    "gptq-zeros",
)  # rows, values of --weights


def verify(known: dict) -> str:
    """The first tables of a run of `vrex verify`, as a terminal shows them, without the column of cycles."""
    run = known["verify"]
    head = ["table", "context", "keys", "clusters", "rows", "bursts", "refused", "beats compared", "result"]
    names = ("context", "keys", "clusters", "rows", "bursts", "refused", "beats")
    rows = [[t["table"], *(f"{t[n]:,}" for n in names), "equal"] for t in run["tables"][:SHOWN]]
    joins = [t["events"].get(JOINS, 0) for t in run["tables"]]
    events = [["exercised", "times", "in tables"], [JOINS, f"{sum(joins):,}", f"all {len(joins)}"]]
    return "\n".join(["```", *_box([head, *rows]), "", *_box(events), "```"])


JOINS = "joins of a full table"


def _box(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["│ " + " │ ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) + " │" for row in rows]


def limits(known: dict) -> str:
    """What limits V-Rex, by platform and cache."""
    return _curve(known["simulation"]["limits"])


def policies(known: dict) -> str:
    """Times of other policies on V-Rex8."""
    return _curve(known["simulation"]["policies"])


def engines(known: dict) -> str:
    """Times by size of the DRE: a row for each size, the columns of both platforms side by side."""
    rows: dict[str, list[str]] = {}
    for _, hcu, wtu, *cells in known["simulation"]["engines"]["rows"]:
        rows.setdefault(f"{hcu}, {wtu}", []).extend(cells)
    batches = known["simulation"]["engines"]["columns"][3:]
    head = ["N_HCU, N_WTU", *(f"{name}, {batch}" for name in ("V-Rex8", "V-Rex48") for batch in batches)]
    named = {size: f"{size} (VI-A)" if size == "1 x 16, 1 x 16" else size for size in rows}
    return table(head, [[named[size], *map(_grouped, cells)] for size, cells in rows.items()])


def homes(known: dict) -> str:
    """Times of a frame by KV heads of a table."""
    caches, rows = known["simulation"]["frames"]["columns"][1:-1], []
    for heads, name in (("1 (default)", "frames"), ("2", "frames of 2"), ("8", "frames of 8")):
        rows += [[f"`{_preset(row)}`", heads, *row[1:-1]] for row in known["simulation"][name]["rows"]]
    return table(["preset", "KV heads of a table", *caches], sorted(rows, key=lambda row: row[0]))


def _preset(row: list[str]) -> str:
    """The preset that a row of `vrex simulate frames` begins with."""
    return row[0].split()[0].rstrip(",")


def stages(known: dict) -> str:
    """A frame on V-Rex8 stage by stage, those of less than 2 ms left out."""
    own = known["simulation"]["pass"]
    rows = [
        [s["resource"], s["name"], f"{1e3 * s['seconds']:.3f}", f"{s['seconds'] / own['seconds']:.1%}"]
        for s in own["stages"]
        if s["seconds"] >= 2e-3
    ]
    watts = ", ".join(f"{name} {w:.1f}" for name, w in own["watts"].items())
    head = f"A frame of 10 tokens behind 40K on `edge8`, `pages`, {own['selection']}: {1e3 * own['seconds']:.1f} ms, "
    head += f"{own['fetched'] / 1e6:.0f} MB fetched, {own['joules']:.2f} J (W: {watts})."
    sizes = ", ".join(f"{name} {n / 1e6:,.0f}" for name, n in own["device"].items())
    ends = [f"MB of device memory: {sizes}.", *own["remarks"]]
    shown = table(["resource", "stage", "ms in all", "of the time"], rows)
    return "\n\n".join([head, shown, *ends])


def home(known: dict) -> str:
    """Times of a frame by format and blocks of the home memory."""
    rows = []
    for at, platform in enumerate(("edge", "server")):
        for changes in ("", " -p block_slots=32", " -p kv4_group=32", " -p kv4_group=32 -p block_slots=32"):
            cells = [known["simulation"][f"home {kind}{changes}"]["rows"][at][1] for kind in ("resv", "published")]
            name = _preset(known["simulation"]["home resv"]["rows"][at])
            rows.append([f"the same, `{changes.strip()}`" if changes else f"{platform}, `{name}`", *cells])
    head = ["`vrex simulate frames --cache 40000` on", "`--policy resv`, ms a frame (`*`: tables are full)"]
    return table([*head, "`resv-buckets` (`--select world:resv-buckets`)"], rows)


LONG = {  # rows of frames of coded pages beside ReSV: policy, record
    "`resv`": "frames",
    "`pages`": "frames pages",
    "`pages`, weights of 4 bits: `{}x`": "frames pages x",
}


def pages(known: dict) -> str:
    """Times of a frame with coded pages and with ReSV, by length of the cache."""
    found, rows = known["simulation"], []
    caches = found["frames"]["columns"][1:]
    shown = [i for i, name in enumerate(caches) if name != "10K"]
    for at, name in enumerate(("edge8", "server48")):
        for policy, record in LONG.items():
            cells = found[record]["rows"][at][1:]
            if million := found.get(f"{record} 1M"):
                cells = [*cells[:-1], million["rows"][at][1]]
            cells = [cell if cell[0].isdigit() and "GiB" not in cell and "=" not in cell else "-" for cell in cells]
            rows.append([f"`{name}`", policy.format(name), *(cells[i] for i in shown)])
    return table(["preset", "policy", *(caches[i] for i in shown)], rows)


def weights(known: dict) -> str:
    """Times of a frame and a token of `edge8x` by how a file holds the decoder's weights."""
    found, rows = known["simulation"], []
    edge = replace(EDGE, system=preset("edge8x"))
    for name in OF_WEIGHTS:
        (frame,), (token,) = (found[f"frames {kind} {name}"]["rows"] for kind in ("weights", "token"))
        size = edge.held(Decoder(), name).pass_bytes / 1e9
        rows.append([f"`{name}`", f"{size:.1f}", *frame[1:4:2], frame[4], *token[1:4:2], token[4]])
    lengths = [f"{what} at {n}" for what in ("frame", "token") for n in ("1K", "40K", "100K")]
    return table(["`--weights`", "GB read a pass", *lengths], rows)


def batches(known: dict) -> str:
    """Times of a frame and a token of each stream of a batch."""
    found, rows = known["simulation"], []
    for name in ("edge8x", "server48x"):
        for stage in ("frame", "token"):
            some = {k.split()[-1]: v for k, v in found.items() if k.startswith(f"batch {name} {stage} ")}
            cells = {int(n): x["rows"][0][1] for n, x in some.items()}
            rows.append([f"`{name}`", stage, *(f"{float(x) / n:.1f}" for n, x in sorted(cells.items()))])
    return table(["preset", "of a stream", *(f"{n} stream{'s' * (n > 1)}" for n in sorted(cells))], rows)


def _of_weights(known: dict) -> list[tuple[str, str]]:
    """What docs/simulator.md says of passes with weights of 4 bits, and of entries of 4 bits."""
    took = {s["name"]: 1e3 * s["seconds"] for s in known["simulation"]["pass edge8x"]["stages"]}
    packed = known["simulation"]["frames pages 4 bits far"]["rows"][0][3]
    left = f"the encoder takes {took['vision']:.1f} ms of a frame, the fitted gap {took['gap']:.1f}, the vocabulary"
    small = Decoder(packing=WEIGHTS["q4_0"])
    lanes = SERVER.core.dpe.n_w
    words = SERVER.bandwidth / SERVER.cores / CLOCK / (lanes * small.layer_bytes / small.layer_weights)
    return [
        ("simulator.md", f"{left} {took['vocabulary']:.1f}."),
        ("simulator.md", f"entries of 4 bits take {packed} ms at 40K, too."),
        ("simulator.md", f"It limits `server48x`, whose memory could bring {words:.1f}."),
    ]


WINDOWS = {
    "full": (1, 10, 40),
    "resv": (1, 10, 40),
    "pages": (1, 10, 40),
    "hybrid": (10,),
    "streamingllm": (10,),
    "codecsight": (10,),
}


def windows(known: dict) -> str:
    """Policies that run on a core, at full size. Windows of one length take as long behind 40K tokens as behind 10K."""
    found, rows = _windows(known["simulation"]["windows"]), []
    for policy, caches in WINDOWS.items():
        for k in caches:
            own = cells_of(found[policy, k])
            some = f"{k}K" if len(caches) > 1 or cells_of(found[policy, 40]) != own else f"{k}K, 40K"
            rows.append([f"`{policy}`", some, *own])
        if policy == "hybrid":
            rows.append(["`hybrid` with its branch", "10K", *cells_of(known["simulation"]["branch"][0])])
    head = ["policy", "cache", "attended", "ms a frame", "slowest frame", "ms a token", "device MB", "home MB"]
    return table([*head, "MB fetched", "limit"], rows)


def cells_of(row: dict) -> list[str]:
    """Cells of a policy's row."""
    times, sizes = [f"{row[k]:.1f}" for k in ("frame", "slowest", "token")], ("device", "home", "fetched")
    return [f"{row['attended']:,}", *times, *(f"{row[k]:,.0f}" for k in sizes), row["limit"]]


def _windows(rows: list[dict]) -> dict[tuple[str, int], dict]:
    return {(row["policy"], row["cache"] >> 10): row for row in rows}


def _window_sentences(known: dict) -> list[str]:
    """What docs/papers/policies.md says of policies at full size."""
    runs = {k: _windows(v) for k, v in known["simulation"].items() if isinstance(v, list)}
    own, (roomy,) = runs["windows"], runs["roomy"].values()

    def both(key: str, cache: int, kind: str = "windows") -> tuple[str, str]:
        resv, full = runs[kind]["resv", cache], runs[kind]["full", cache]
        return f"{resv[key]:.1f}", f"{full[key]:.1f}"

    (a, b), (c, d), (e, f) = both("frame", 10), both("frame", 40), both("token", 40)
    more = [value for kind in ("server", "core") for key in ("frame", "token") for value in both(key, 40, kind)]
    stream, hybrid = own["streamingllm", 40], own["hybrid", 40]
    return [
        f"a frame takes {roomy['frame']:.1f} ms, a token {roomy['token']:.1f}, and the arrays beside the weights "
        f"{roomy['device'] / 1e3:.1f} GB.",
        f"Any length of stream takes {stream['frame']:.1f} ms a frame and {stream['device']:.0f} MB, or "
        f"{hybrid['frame']:.1f} ms and {hybrid['device']:.0f} MB without the branch.",
        f"At 10K tokens it takes {b} ms a frame where ReSV takes {a}, and at 40K {d} where ReSV takes {c}. Up to 40K "
        f"it even holds less: {own['full', 40]['device'] / 1e3:.1f} GB beside the weights, where ReSV lays out "
        f"{own['resv', 40]['device'] / 1e3:.1f}.",
        f"At 40K a token takes {e} ms where `full` takes {f}. On `server48` a frame takes {more[0]} and {more[1]} ms, "
        f"a token {more[2]} and {more[3]}. On one `core` of the edge it is {more[4]} and {more[5]} ms a frame, "
        f"{more[6]} and {more[7]} a token.",
    ]


COLOURS = "#999999, #2c6fbb, #c0392b, #27ae60, #8e44ad"


def drawn(known: dict) -> dict[str, list[int]]:
    """Milliseconds of a frame on `edge8` behind 10K, 40K and 100K tokens, by what is fetched and how."""
    of = {"all": "frames flexgen", "published": "frames published", "resv": "frames", "pages": "frames pages"}
    of["4 bits"] = "frames pages x"
    rows = {name: known["simulation"][record]["rows"][0][2:5] for name, record in of.items()}
    return {name: [round(float(x.removesuffix(MARK))) for x in cells] for name, cells in rows.items()}


def frames(known: dict) -> str:
    """The README's plot of a frame's time against cached tokens (`drawn`)."""
    lines = list(drawn(known).values())
    top = -(-max(map(max, lines)) // 100) * 100
    return "\n".join(
        [
            "```mermaid",
            f"""%%{{init: {{"themeVariables": {{"xyChart": {{"plotColorPalette": "{COLOURS}"}}}}}}}}%%""",
            "xychart-beta",
            '    title "ms per frame against cached tokens"',
            '    x-axis ["10K", "40K", "100K"]',
            f'    y-axis "ms" 0 --> {top}',
            *(f"    line {line}" for line in lines),
            "```",
        ]
    )


def fleet(known: dict) -> str:
    """Hours that a device keeps up, with one stream and with four."""
    rows: dict[str, list[str]] = {}
    found = {(r["policy"], r["platform"], r["streams"]): r for r in known["fleet"]}
    for policy in dict.fromkeys(policy for policy, *_ in found):
        for platform in ("edge", "server"):
            one, four = (found[policy, platform, n] for n in (1, 4))
            ends = dict.fromkeys((one["limit"], four["limit"]))
            rows.setdefault(policy, []).extend([f"{_hours(one)} ({_hours(four)})", ", ".join(ends)])
    head = ["policy", "V-Rex8", "limit", "V-Rex48", "limit"]
    return table(head, [[policy, *cells] for policy, cells in rows.items()])


def _hours(day: dict) -> str:
    hours = f"{day['hours']:.2f}" if day["hours"] < 1 else f"{day['hours']:.3g}"
    return hours + MARK * (day["room"] < day["hours"])


MEANING = {
    "predicted": "within 10 %, and nothing that the paper reports entered: shares of recorded streams",
    "on fits": "within 10 %, but a constant that other numbers of the paper set is in its path ([What was "
    "fitted](#what-was-fitted))",
    "fitted": "within 10 %, and this number set one of our constants or a condition that the paper leaves open",
    "restated": "within 10 %, by arithmetic on the paper's tables, on shapes of its model, or on sizes that we took "
    "from it. This shows that its numbers agree with each other, nothing of our hardware",
    "accident": "within 10 %, though its parts differ by more",
    "off": "more than 10 % away",
    "unexplained": "the paper's other numbers contradict it unless a premise fails that the paper leaves open. The "
    "table names the premise. This is no proof",
    "inconsistent": "the paper's own numbers exclude it. The table has the proof, which is arithmetic on them alone",
}


def evaluated(known: dict) -> tuple[list[Number], list[Number]]:
    """The numbers of V-Rex's evaluation, and those of the other papers."""
    numbers = [Number(**{k: v for k, v in n.items() if k != "ratio"}) for n in known["evaluation"]]
    others = [n for n in numbers if n.where.startswith(("CodecSight", "Mosaic", "hybrid"))]
    return [n for n in numbers if n not in others], others


def anchors(known: dict) -> str:
    """Every number of V-Rex's evaluation beside ours."""
    return markdown(evaluated(known)[0])


def latencies(known: dict) -> str:
    """The other papers' latencies beside ours."""
    return markdown(evaluated(known)[1])


def memory(k: int) -> Callable[[dict], str]:
    """The table of a curve of `vrex simulate memories`."""
    return lambda known: table(known["memories"][k]["columns"], known["memories"][k]["rows"])


def texts(known: dict) -> str:
    """What full attention and hybrid memory answer to the same question."""
    rows = [
        [name, " ".join(x["says"].split()), f"{100 * x['agreement']:.0f} %", f"{x['loss']:.2f}"]
        for name, x in known["text"].items()
    ]
    return table(["policy", "answer", "next tokens as full attention's", "loss of these tokens, nats"], rows)


def verdicts(known: dict) -> str:
    """How many numbers have which verdict, and what it means."""
    found = [n.verdict for n in evaluated(known)[0]]
    rows = [[v, str(found.count(v)), MEANING[v]] for v in (*AGREE, *DIFFER)]
    return table(["verdict", "anchors", "meaning"], rows)


def _curve(curve: dict) -> str:
    return table(curve["columns"], [[_grouped(cell) for cell in row] for row in curve["rows"]])


def _grouped(cell: str) -> str:
    """A cell with commas in its first number of four digits or more."""
    return re.sub(r"^\d{4,}", lambda m: f"{int(m[0]):,}", cell)


BLOCKS: dict[str, Callable[[dict], str]] = {
    "verify": verify,
    "limits": limits,
    "engines": engines,
    "policies": policies,
    "stages": stages,
    "home": home,
    "windows": windows,
    "pages": pages,
    "weights": weights,
    "batches": batches,
    **gpu_results.BLOCKS,
    **stream_results.BLOCKS,
    "frames": frames,
    "fleet": fleet,
    "anchors": anchors,
    "latencies": latencies,
    "verdicts": verdicts,
    "texts": texts,
}


def cited(known: dict) -> list[tuple[str, str]]:
    """Page and text, for each sentence or part of one that has figures of recorded runs."""
    run = known["verify"]["tables"]
    cycles, refused = run[0]["cycles"], sum(t["refused"] for t in run)
    slow, published, resv, paged, small = (1e3 / times[1] for times in drawn(known).values())
    found, others = evaluated(known)
    count = {v: sum(n.verdict == v for n in found) for v in (*AGREE, *DIFFER)}
    near = sum(count[v] for v in AGREE)
    links, drive = ({tuple(row[:2]): row for row in known["memories"][k]["rows"]} for k in (2, 3))
    return [
        ("simulator.md", f"PCIe 3.0 x4 carries at most {links['pcie3x4', 'read'][-1]} GB/s of payload"),
        ("simulator.md", "of 512 bytes come at {} GB/s, blocks of eight at {},".format(*drive["pcie3x4", "256"][2:4])),
        *(("papers/policies.md", line) for line in _window_sentences(known)),
        *gpu_results.cited(known),
        *stream_results.cited(known),
        *_of_weights(known),
        (
            "limits.md",
            f"Of {len(found)} numbers of the paper's evaluation, our simulation predicts {count['predicted']}.** "
            f"{near} are within 10 %, but {count['restated']} of them restate the paper's own tables, "
            f"{count['fitted']} were fitted, {count['on fits']} have fitted constants in their path",
        ),
        (
            "limits.md",
            f"{count['off']} are off, {count['unexplained']} are unexplained, since the paper's other numbers do not "
            f"yield them either, and {count['inconsistent']} are inconsistent by proof",
        ),
        (
            "papers/evaluation.md",
            f"So {near} of {len(found)} anchors are within 10 %, and {count['predicted']} are predicted.",
        ),
        ("papers/anchors.md", f"hybrid memory paper: {summary(others)}."),
        ("verification.md", f"tables share four contexts in one run of {cycles:,} cycles."),
        ("verification.md", f"RTL and model refuse the same {refused:,} keys."),
        (
            "README.md",
            f"At 40K that is {slow:.1f}, {published:.1f}, {resv:.1f}, {paged:.1f} and {small:.1f} frames a second.",
        ),
    ]
