"""The manual's tables of a layer's cycles, by `vrex simulate layer` and `prediction`."""

from collections.abc import Callable

from openvrex.scripts.markdown import table

NAMES = {"dpe": "DPE", "vpe": "VPE", "load": "loader", "store": "storer"}
NAMES |= {"reads": "bursts in flight", "writes": "writes in flight"}
PRESETS = ("core", "edge8", "server48")
LARGE = ("keys", "cluster", "output", "gate_up", "down", "resident", "scores", "values", "rank")


def stages(known: dict) -> str:
    """A layer stage by stage: a column a cache, and what is busiest at the longest."""
    rows = known["layers"]["layer core"]
    caches = sorted({row["cached"] for row in rows})
    out = []
    for stage in dict.fromkeys(row["stage"] for row in rows):
        own = [row for row in rows if row["stage"] == stage]
        cells = [f"{row['cycles']:,}" for row in own]
        out.append([_bold(stage), *cells, _busiest(own[-1])])
    return table(["stage", *map(_short, caches), "busiest at 40K"], out)


def presets(known: dict) -> str:
    """A layer on core 0 of each preset."""
    what = ("8 tables, all columns", "1 table, an eighth of the columns", "the leader's part of a table, a 48th of all")
    rows = []
    for name, text in zip(PRESETS, what, strict=True):
        cycles = [f"{x['layer']:,}" for x in known["layers"][f"prediction {name}"]]
        rows.append([f"`{name}`", text, *cycles])
    return table(["preset", "core 0 computes", "1K", "10K", "40K"], rows)


def large(known: dict) -> str:
    """A layer of 128 tokens, with 32 and with 64 bursts in flight."""
    few, many = ({row["stage"]: row for row in known["layers"][name]} for name in ("layer 128", "layer 128, 64 bursts"))
    rows = []
    for stage in (*LARGE, "layer"):
        cells = [[f"{x['cycles']:,}", _share(x, "dpe"), _busiest(x)] for x in (few[stage], many[stage])]
        rows.append([_bold(stage), *cells[0], *cells[1]])
    head = ["stage", "cycles", "DPE busy", "busiest"]
    return table([*head, "with 64 bursts (`-p bursts=64`)", *head[2:]], rows)


def prediction(kind: str) -> Callable[[dict], str]:
    """Returns the table of visible prediction of each preset. kind : "prediction" of the published, or "default"."""

    def text(known: dict) -> str:
        rows = []
        for name in PRESETS:
            for x in known["layers"][f"{kind} {name}"]:
                parts = [
                    f"{x[k]:,}, {x[k] / x['layer']:.2%}".replace("%", " %")
                    for k in ("clustering", "rank", "codes", "visible", "fetch")
                ]
                rows.append([f"`{name}`, {_short(x['cached'])}", f"{x['clusters']:,}", f"{x['layer']:,}", *parts])
        head = ["preset, cached", "clusters", "layer", "hash bits, clusters, places", "rank", "codes and choice"]
        return table([*head, "visible prediction", "wait for the fetch"], rows)

    return text


def _bold(stage: str) -> str:
    return f"**{stage}**" if stage == "layer" else stage


def _short(cached: int) -> str:
    return f"{cached >> 10}K"


def _share(row: dict, unit: str) -> str:
    return f"{row[unit] / row['cycles']:.1%}".replace("%", " %")


def _busiest(row: dict) -> str:
    """The unit, or the direction of bursts, that is busy for the largest share of a stage."""
    unit = max(NAMES, key=lambda name: row[name])
    return f"{NAMES[unit]}, {_share(row, unit)}"


def cited(known: dict) -> list[tuple[str, str]]:
    """Page and text, for each sentence with figures of a layer."""
    own = known["layers"]["default core"]
    one, eight, many = ([x["layer"] for x in known["layers"][f"prediction {name}"]] for name in PRESETS)
    more = [f"{a / b:.0f}" for a, b in zip(one, many, strict=True)]
    shares = [f"{row['visible'] / row['layer']:.1%}".replace("%", " %") for row in own]
    text = f"is {shares[0]} of the layer at 1K, {shares[1]} at 10K and {shares[2]} at 40K"
    return [
        ("simulator.md", text),
        (
            "simulator.md",
            f"Eight are {one[-1] / eight[-1]:.1f} times as fast as one. 48 are {more[-1]} to {more[0]} times",
        ),
    ]


BLOCKS: dict[str, Callable[[dict], str]] = {
    "layer-presets": presets,
}
