"""The figures of `vrex answer`, from the records of its steps, and the sections of its page."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from openvrex.golden.program.model_host import VISION
from openvrex.hdl.params import CLOCK
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.tb.library.core_simulator import LATENCY

PASS_NOTE = (
    "A pass takes some tokens through all layers; that of a picture is the vision encoder's. Clusters: those of all "
    "tables after the pass, of every layer and KV head. Fetched: entries of K and V fetched for the clusters chosen. "
    "Loaded: bytes from memory into the core. Copied: bytes of entries from and to home memory and the ring. Compared: "
    "bytes of all stores in their order, and of memory after each program, with golden's. Error: distance of the "
    "hidden states behind the last layer from full attention in FP32, relative to their length; of a picture, of its "
    "embeddings from those in FP32. Of several streams the one that errs most counts, and parts are the first's."
)
MS = CLOCK / 1e3  # cycles of a millisecond at the clock of the presets
# Counters of the RTL by event; "-" takes the second from the first.
EVENTS = {
    "contexts switched": "feeder.orders",
    "clusters opened": "dre.hcu.opened",
    "keys that join a cluster": "dre.hcu.tokens - dre.hcu.opened",
    "clusters chosen": "dre.cluster_set.clusters",
    "entries moved out of the ring": "retriever.moves",
    "entries fetched": "dre.kvmu.fetched",
    "bursts fetched": "dre.kvmu.bursts",
}
MORE = "raise --frames, or lower -p recent"
PREDICTION = ("hash", "cluster", "code", "sums", "turn", "rank", "select")  # stages that only retrieval needs


def passes(
    records: list[dict[str, Any]], busy: dict[int, list[int]], units: list[str], errors: dict[int, float], bus: int
) -> list[dict[str, Any]]:
    """Figures of each pass, of the records of its steps.

    errors : of given passes, from full attention in FP32, or from the encoder in FP32 · bus : bytes of a beat
    """
    out = []
    for number in dict.fromkeys(one["of"] for one in records):
        own = [one for one in records if one["of"] == number]
        cycles = sum(one["cycles"] for one in own)
        work = np.sum([busy[one["number"]] for one in own], axis=0)
        out.append(
            {
                "pass": number,
                "part": own[0]["part"],
                "picture": own[0]["phase"] == VISION,
                "tokens": own[0]["tokens"],
                "cycles": cycles,
                "predicted": sum(one["predicted"] for one in own),
                "clusters": sum(one.get("clusters", 0) for one in own),
                "fetched": sum(one.get("entries", 0) for one in own),
                "loaded": sum(one["counters"]["lxe.loader.beats"] for one in own) * bus,
                "copied": sum(one["counters"]["retriever.beats"] for one in own) * bus,
                "compared": sum(one["compared"] for one in own),
                "error": errors.get(number),
                "differs": any(one["differences"] for one in own),
                "utilisation": {name: float(n) / cycles for name, n in zip(units, work, strict=True)},
            }
        )
    return out


def rates(records: list[dict[str, Any]], given: int, frames: int) -> dict[str, float]:
    """Frames and generated tokens per second at the clock of the presets, without an encoder that NumPy computes.

    given : parts of the longest stream before the answer: the prompt, frames, the question · frames : of all streams
    """
    cycles, counts = dict.fromkeys(("frames", "tokens"), 0), {"frames": frames, "tokens": 0}
    for one in records:
        if 0 < one["part"] < given - 1:
            cycles["frames"] += one["cycles"]
        elif one["part"] >= given:
            cycles["tokens"] += one["cycles"]
            counts["tokens"] += len(one.get("said", ()))
    return {name: counts[name] * CLOCK / n for name, n in cycles.items() if n}


def phases(records: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Cycles of each phase in each pass."""
    numbers = list(dict.fromkeys(one["of"] for one in records))
    names = list(dict.fromkeys(one["phase"] for one in records))
    return {
        name: [sum(one["cycles"] for one in records if (one["of"], one["phase"]) == (n, name)) for n in numbers]
        for name in names
    }


def stages(records: list[dict[str, Any]]) -> dict[str, int]:
    """Cycles of each stage in all steps by the time view, in the order in which stages first appear."""
    out: dict[str, int] = {}
    for one in records:
        for name, cycles in one["stages"].items():
            out[name] = out.get(name, 0) + cycles
    return out


def events(records: list[dict[str, Any]]) -> dict[str, int]:
    """How often each of `EVENTS` happened on the RTL."""

    def count(counters: str) -> int:
        first, *others = (sum(one["counters"][name] for one in records) for name in counters.split(" - "))
        return int(first - sum(others))

    return {name: count(counters) for name, counters in EVENTS.items()}


def sections(result: dict[str, Any]) -> list[Section]:
    """The sections of a report about an answer."""
    answers = result["answers"]
    units = list(result["passes"][0]["utilisation"])
    clock, per_second = f"{CLOCK / 1e6:.0f} MHz", result["per_second"]
    rate = " and ".join(f"{n:,.1f} {name} a second" for name, n in per_second.items())
    left = "" if result["encoder"] == "core" else ", without the vision encoder"
    at_once = f" At {clock} the core takes {rate}{left}." if rate else ""
    every = sum(result["stages"].values())
    speed = sum(one["cycles"] for one in result["passes"]) / result["simulator_seconds"]
    own_stages = [name for name in PREDICTION if name in result["stages"]]
    prediction = sum(result["stages"][name] for name in own_stages) / every
    shown = ("pass", "part", "tokens", "cycles", "predicted", "clusters", "fetched", "loaded", "copied", "compared")
    return [
        *(told(one, result["question"], len(answers) > 1) for one in answers),
        Section(
            "Passes",
            f"{PASS_NOTE} Predicted: cycles by the time view. Memory: {LATENCY} cycles to the first beat, then one a "
            f"cycle. Units: share of the cycles in which the unit works.{at_once} The simulator played "
            f"{speed:,.0f} cycles in a second of one CPU.",
            [*shown, "error", f"time at {clock}", *units, "result"],
            [
                [
                    *(f"{one[key]:,}" for key in shown),
                    "" if one["error"] is None else f"{one['error']:.2%}",
                    f"{one['cycles'] / MS:.2f} ms",
                    *(f"{one['utilisation'][u]:.1%}" for u in units),
                    "DIFFERS" if one["differs"] else "equal",
                ]
                for one in result["passes"]
            ],
            html_page.inline(timeline(result)),
        ),
        Section(
            "Where time goes",
            "Cycles of each stage in all steps by the time view: from the end of all stages before to its own end. "
            f"Retrieval is visible in {', '.join(own_stages)}: {prediction:.2%} of all cycles.",
            ["stage", "cycles", f"time at {clock}", "share"],
            [[name, f"{n:,}", f"{n / MS:.2f} ms", f"{n / every:.2%}"] for name, n in result["stages"].items()],
        ),
        Section(
            "What the run exercised",
            "Events on the RTL, by its counters.",
            ["event", "times"],
            [[name, f"{n:,}" if n else "never"] for name, n in result["events"].items()],
        ),
    ]


def told(answer: dict[str, Any], question: str, several: bool) -> Section:
    """The section about the text of one video."""
    full, rows = list(zip(answer["full"], answer["full_probabilities"], strict=True)), []
    for k, (text, x) in enumerate(zip(answer["text"], answer["probabilities"], strict=True)):
        other = full[k] if k < len(full) else ("", None)
        rows.append([str(k), repr(text), f"{x:.1%}", repr(other[0]), "" if other[1] is None else f"{other[1]:.1%}"])
    return Section(
        "Generated text" + f" behind {answer['clip']}" * several,
        f"Question: {question} Answer of the core, token by token, which is golden's: {''.join(answer['text'])!r}; of "
        f"full attention in FP32 to the same stream: {''.join(answer['full'])!r}. The projector between vision encoder "
        "and decoder is not trained, so the answer shows that the machine computes what the model says, not that the "
        "model sees.",
        ["token", "core", "probability", "full attention in FP32", "probability"],
        rows,
    )


def timeline(result: dict[str, Any]) -> Figure:
    """Milliseconds of each pass by phase, with those of the time view; clusters and fetched entries below."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    at, base = np.arange(len(result["passes"])), np.zeros(len(result["passes"]))
    for name, cycles in result["phases"].items():
        above.bar(at, np.array(cycles) / MS, bottom=base, label=name)
        base += np.array(cycles) / MS
    above.plot(at, [one["predicted"] / MS for one in result["passes"]], "k_", markersize=14, label="time view")
    above.set(ylabel=f"ms at {CLOCK / 1e6:.0f} MHz")
    beside = below.twinx()
    for axes, key, colour in ((below, "clusters", "tab:blue"), (beside, "fetched", "tab:orange")):
        axes.plot(at, [one[key] for one in result["passes"]], marker="o", color=colour)
        axes.set_ylim(bottom=0)
        axes.tick_params(axis="y", colors=colour)
    below.set_ylabel("clusters in all tables", color="tab:blue")
    beside.set_ylabel("entries fetched", color="tab:orange")
    names = ["picture" if one["picture"] else _part(result, one["part"]) for one in result["passes"]]
    below.set_xticks(at, names, rotation=45, ha="right")
    figure.legend(loc="outside upper center", ncols=8, frameon=False, fontsize="small")
    return figure


def _part(result: dict[str, Any], part: int) -> str:
    """The name of a part of the stream."""
    behind = part - result["frames"] - 1
    return "prompt" if not part else f"frame {part}" if behind < 0 else f"token {behind}" if behind else "question"


def thumbnails(pictures: list[np.ndarray]) -> Figure:
    """The frames side by side."""
    figure = Figure(figsize=(min(12, 1.5 * len(pictures)), 1.6), layout="constrained")
    for axes, picture in zip(np.atleast_1d(figure.subplots(1, len(pictures))), pictures, strict=True):
        axes.imshow(picture)
        axes.axis("off")
    return figure
