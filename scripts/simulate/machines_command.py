"""`vrex simulate machines`: a frame on each machine and from each home, by cache: where retrieval hardware pays."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openvrex.golden.function_params import check
from openvrex.scripts import console
from openvrex.scripts.progress import track
from openvrex.sim.system.frame_times import size
from openvrex.sim.system.machines import CACHES, EDGES, SERVERS, STREAMS, Cell, Way, curve, first, ways

MACHINES = list(dict.fromkeys(w.machine for w in ways()))
FIGURES = {"ms": "milliseconds", "joules": "joules"}
KINDS = {"any": (EDGES, SERVERS), EDGES: (EDGES,), SERVERS: (SERVERS,)}


def command(
    streams: Annotated[
        list[int] | None,
        typer.Option(min=1, help=f"Streams at once, may be repeated; {' and '.join(map(str, STREAMS))} by default."),
    ] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option(help=f"Of {', '.join(MACHINES)}; may be repeated; all by default."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", parser=console.folder, help="Folder for the picture machines.svg and .png.")
    ] = None,
    json: console.Json = False,
) -> None:
    """Set a frame's time and energy on each machine beside the others.

    V-Rex as published, the presets, a measured H100, and A100 and AGX Orin scaled from it. All but V-Rex as published
    run coded pages, or attend to the whole cache in their memory. Some ten CPU minutes for all; after Ctrl-C
    the tables show what is done.
    """
    for name in machine or ():
        check(name in MACHINES, "machine", name, f"must be one of {', '.join(MACHINES)}")
    some = [w for w in ways() if not machine or w.machine in machine]
    found: dict[int, dict[str, list[Cell]]] = {n: {} for n in streams or STREAMS}
    try:
        for n, cells in found.items():
            for w in track(some, f"{n} stream{'s' * (n > 1)}", json):
                cells[w.name] = curve(w, n)
    except KeyboardInterrupt:
        for n, cells in found.items() if not json else ():
            if cells:
                console.out.print(_table(n, cells))
        raise
    leads = {n: leaders(some, cells) for n, cells in found.items()}
    if output:
        from openvrex.scripts.simulate.machines_picture import draw

        for path in draw(some, found, output):
            console.err.print(f"wrote {path}", highlight=False)
    if json:
        frames = {n: {name: [asdict(c) for c in cells] for name, cells in of.items()} for n, of in found.items()}
        about = {w.name: {"machine": w.machine, "kind": w.kind, "home": w.home} for w in some}
        console.print_json({"caches": CACHES, "ways": about, "frames": frames, "first": leads})
        return
    for n, cells in found.items():
        console.out.print(_table(n, cells))
        for line in sentences(n, leads[n]):
            console.out.print(line, highlight=False, soft_wrap=True)


def leaders(some: list[Way], cells: dict[str, list[Cell]]) -> dict[str, dict[str, list[tuple[int, str]]]]:
    """Who is first from which cache on, by kind of machine and figure."""
    out: dict[str, dict[str, list[tuple[int, str]]]] = {}
    for kind, kinds in KINDS.items():
        names = [w.name for w in some if w.kind in kinds]
        curves = {f: {n: [(c.cache, getattr(c, f)) for c in cells[n]] for n in names} for f in FIGURES}
        out[kind] = {figure: first(own) for figure, own in curves.items()}
    return out


def sentences(streams: int, leads: dict[str, dict[str, list[tuple[int, str]]]]) -> list[str]:
    """What `leaders` found, a line each."""
    return [
        f"Least {FIGURES[figure]}, {streams} {'streams' if streams > 1 else 'stream'}, {kind} machine: "
        + "; ".join(f"{name} from {round(n / 1024)}K tokens" for n, name in runs)
        for kind, of in leads.items()
        for figure, runs in of.items()
        if runs
    ]


def _table(streams: int, found: dict[str, list[Cell]]) -> Table:
    title = f"Milliseconds and joules of a frame of each of {streams} stream{'s' * (streams > 1)}, encoder included"
    out = Table("machine, home", *(f"{size(n)} tokens" for n in CACHES), title=title)
    for name, cells in found.items():
        out.add_row(name, *row([asdict(c) for c in cells]))
    return out


def row(cells: list[dict]) -> list[str]:
    """Milliseconds and joules at each of `CACHES`; behind the longest cache that fits, that cache."""
    known = {c["cache"]: f"{c['ms']:,.1f} / {c['joules']:.2f}" for c in cells}
    end = f"to {size(max(known) >> 10 << 10)}" if known else "no memory"
    return [known.get(n, end) for n in CACHES]
