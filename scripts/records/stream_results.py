"""Tables of docs/papers/comparison.md: policies on three clips and on a long stream, from a record of their runs."""

from collections.abc import Callable
from typing import Any

from openvrex.papers.commands.policy_comparison import COST, QUALITY, Rows, beside_papers, by_length, cost, quality
from openvrex.scripts.markdown import table

NAMES = (
    "full,flexgen,infinigen,infinigenp,rekv,streamingllm,oaken,codecsight,mosaic,mosaic-eager,hybrid,resv,resv-paper,"
    "resv-buckets,pages"
)
CLIPS = ("world", "bigbuckbunny", "bikes")
COMMANDS = (
    f"papers stream {' '.join(CLIPS)} --policy {NAMES} --gop 16 --frames 56 -p hybrid.recent_blocks=16 "
    "-p codecsight.window=40 -p codecsight.stride=8 -p pages.budget=512 -o build/comparison",
    f"papers stream world --policy {NAMES} --fps 15 --gop 16 --frames 450 --tokens 16 --depth 3 "
    "-p hybrid.recent_blocks=128 -p pages.budget=512 -o build/long",
)
WHOLE = ("full", "flexgen")  # attend everything


def recorded(reports: list[tuple[str, Any]]) -> dict:
    """What the tables show, of the reports of `COMMANDS`: cells of each policy, and rows beside the papers' figures."""
    (_, clips), (_, long) = reports
    return {
        "quality": {s["source"]["stream"]: {name: quality(r) for name, r in s["policies"].items()} for s in clips},
        "cost": {s["source"]["stream"]: {name: cost(r) for name, r in s["policies"].items()} for s in clips},
        "length": _rows(by_length(long)),
        "papers": _rows(beside_papers([*clips, long])),
    }


def _rows(found: Rows) -> dict:
    return {"columns": found.columns, "rows": found.rows}


def moved(clip: str) -> Callable[[dict], str]:
    """How far each policy moves the decoder on a clip: values in frames and in the answer."""

    def make(known: dict) -> str:
        rows = []
        for name, (*pairs, loss) in known["streams"]["quality"][clip].items():
            if name not in WHOLE:
                shares = [cell.replace("%", "").replace(" / ", ", ") for cell in pairs]
                rows.append([name, *shares, loss.rpartition(" ")[2]])
        names = [name + " %" * form.endswith("%") for name, form in QUALITY]
        return table(["policy", *names], rows)

    return make


def costs(known: dict) -> str:
    """What each policy moves, holds and computes: of the three clips, or once where all have the same."""
    found = known["streams"]["cost"]
    rows = []
    for name in found[CLIPS[0]]:
        cells = zip(*(found[clip][name] for clip in CLIPS), strict=True)
        rows.append([name, *("; ".join(dict.fromkeys(_grouped(c) for c in of)) for of in cells)])
    return table(["policy", *COST], rows)


def _grouped(cell: str) -> str:
    """A number with commas."""
    whole, dot, rest = cell.partition(".")
    return f"{int(whole):,}{dot}{rest}" if whole.isdigit() else cell


def long(known: dict) -> str:
    """Memory and bytes of the long stream by its length."""
    found = known["streams"]["length"]
    head = [" ".join(_grouped(word) for word in name.split()) for name in found["columns"]]
    rows = [[name, *(" / ".join(map(_grouped, c.split(" / "))) for c in cells)] for name, *cells in found["rows"]]
    return table(head, rows)


def beside(known: dict) -> str:
    """The papers' figures beside ours."""
    found = known["streams"]["papers"]
    return table([*found["columns"][:-1], "world, long"], found["rows"])


def cited(known: dict) -> list[tuple[str, str]]:
    """What docs/papers/comparison.md says with figures of these runs."""
    found = known["streams"]["quality"]
    losses = [found[clip]["full"][-1].rpartition(" ")[2] for clip in CLIPS]
    shares = [[found[clip]["resv-paper"][1].split("%")[k].strip(" /") for clip in CLIPS] for k in (0, 1)]
    frames, answer = (f"{a}, {b} and {c} %" for a, b, c in shares)
    errors = [found[clip]["pages"][2].partition(" ")[0] for clip in CLIPS]
    page = "papers/comparison.md"
    return [
        (page, "loss {}, {} and {} on the three streams.".format(*losses)),
        (page, f"ReSV fetches {frames} in frames, {answer} in the answer."),
        (page, "They err by {}, {} and {} in frames".format(*errors)),
    ]


BLOCKS: dict[str, Callable[[dict], str]] = {
    **{f"stream-{clip}": moved(clip) for clip in CLIPS},
    "stream-costs": costs,
    "stream-long": long,
    "stream-beside": beside,
}
