"""`vrex simulate`: one point of the system, and the memories by themselves."""

import json as jsonlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from golden.params import check
from scripts import console
from sim.evaluate import PLATFORMS
from sim.evaluate_limits import engines, limits
from sim.evaluate_policies import PROFILES, Profile, policies, profile
from sim.memory.curves import Curve, all_curves
from sim.selection import RATIOS, shares
from sim.system import NOT_SELECTING, simulate
from sim.timeline import Pass, Point
from sim.workload import TABLE_II, Decoder, Selection, Session, measured, table_ii, traced

WHAT = ("point", "memories", "limits", "engines", "policies", "selection")
CURVES = {"memories": all_curves, "limits": lambda: [limits()], "engines": lambda: [engines()]}
T = TypeVar("T")
STAGES = ("frame", "question", "token")
POLICIES = (*TABLE_II, *NOT_SELECTING)


def command(
    what: Annotated[
        str,
        typer.Argument(
            help="point, memories, limits (beyond 40K), engines (DREs), policies, or selection (of results.json)."
        ),
    ] = "point",
    files: Annotated[list[Path] | None, typer.Argument(help="results.json files of `vrex stream`.")] = None,
    on: Annotated[str, typer.Option("--platform", help=f"One of {', '.join(PLATFORMS)}.")] = "edge",
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(POLICIES)}.")] = "resv",
    cache: Annotated[int, typer.Option(help="Tokens of a stream in the cache.")] = 40960,
    batch: Annotated[int, typer.Option(help="Streams.")] = 1,
    stage: Annotated[str, typer.Option(help=f"One of {', '.join(STAGES)}.")] = "frame",
    select: Annotated[
        str, typer.Option(help=f"Share of the cache: table2 (V-Rex), {', '.join(RATIOS)}, or a results.json file.")
    ] = "table2",
    output: Annotated[
        Path | None, typer.Option("-o", parser=console.folder, help="Folder for the plot of timeline and bandwidth.")
    ] = None,
    json: console.Json = False,
) -> None:
    """Simulate a frame, a question or a token on a platform, stage by stage; or print the memories' efficiencies."""
    with console.one_line_errors():
        check(what in WHAT, "what", what, f"must be one of {', '.join(WHAT)}")
        if what in CURVES:
            curves = CURVES[what]()
            _show([vars(c) for c in curves] if json else [table(c) for c in curves], json)
            return
        if what == "policies":
            check(on in ("edge", "server"), "platform", on, "must be one of edge, server")
            curve = policies(PLATFORMS[on], _read(files[0], _profiles) if files else PROFILES)
            _show([vars(curve)] if json else [table(curve)], json)
            return
        if what == "selection":
            check(bool(files), "files", files, "name at least one results.json")
            _show({str(f): _described(f) for f in files}, True)
            return
        for name, value, allowed in (
            ("platform", on, PLATFORMS),
            ("policy", policy, POLICIES),
            ("stage", stage, STAGES),
        ):
            check(value in allowed, name, value, f"must be one of {', '.join(allowed)}")
        rows = {"frame": Session.frame_tokens, "question": Session.question, "token": 1}[stage]
        point = Point(cache, batch, rows, stage == "frame", policy)
        done = simulate(PLATFORMS[on], point, selection(select, policy, point.model))
    if output:
        from sim.evaluate_plots import timeline

        for path in timeline(PLATFORMS[on], done, output, f"{on}-{policy}-{cache}-{stage}"):
            console.err.print(f"wrote {path}", highlight=False)
    _show(report(done) if json else [stages(done, f"{stage} of {batch} x {cache} tokens, {policy} on {on}")], json)


def selection(name: str, policy: str, model: Decoder) -> Selection:
    """What --select names."""
    if name == "table2":
        return table_ii(policy, model)
    if name in RATIOS:
        return traced(model, name)
    path = Path(name)
    check(path.suffix == ".json", "select", name, f"must be table2, one of {', '.join(RATIOS)}, or a results.json file")
    return measured(model, name, *_read(path, shares))


def report(p: Pass) -> dict:
    """A pass as JSON."""
    names = list(dict.fromkeys((s.resource, s.name) for s in p.stages))
    return {
        "seconds": p.seconds,
        "joules": p.joules,
        "watts": p.watts,
        "fetched": p.fetched,
        "operations": p.ops,
        "stages": [{"resource": r, "name": n, "seconds": _of(p, r, n)} for r, n in names],
    }


def stages(p: Pass, title: str) -> Table:
    """A row a stage."""
    watts = ", ".join(f"{name} {w:.1f}" for name, w in p.watts.items())
    title += f": {p.seconds * 1e3:.1f} ms, {p.fetched / 1e6:.0f} MB fetched, {p.joules:.2f} J (W: {watts})"
    out = Table("resource", "stage", "times", "ms in all", "of the time", "GB/s of device memory", title=title)
    for resource, name in dict.fromkeys((s.resource, s.name) for s in p.stages):
        these = [s for s in p.stages if (s.resource, s.name) == (resource, name)]
        seconds = _of(p, resource, name)
        rate = sum(s.bytes for s in these) / seconds / 1e9 if seconds else 0.0
        out.add_row(
            resource,
            name,
            str(len(these)),
            f"{seconds * 1e3:.3f}",
            f"{seconds / p.seconds:.1%}",
            f"{rate:.1f}" if rate else "-",
        )
    return out


def table(c: Curve) -> Table:
    """A curve."""
    out = Table(*c.columns, title=c.title)
    for row in c.rows:
        out.add_row(*row)
    return out


def _of(p: Pass, resource: str, name: str) -> float:
    return sum(s.end - s.start for s in p.stages if (s.resource, s.name) == (resource, name))


def _read(path: Path, what: Callable[[dict], T]) -> T:
    """`what` of a results.json. Raises: `ValueError` for any other file."""
    try:
        return what(jsonlib.loads(path.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"{path}: not a results.json that `vrex stream` wrote with this policy ({e!r})") from None


def _profiles(results: dict) -> dict[str, Profile]:
    return {name: profile(results, name) for name in results["policies"]}


def _described(path: Path) -> dict:
    frame, text = _read(path, shares)
    return {"frame": [[round(float(x), 3) for x in row] for row in frame], "text": round(text, 4), "mean": frame.mean()}


def _show(what, as_json: bool) -> None:
    if as_json:
        console.print_json(what)
        return
    for t in what:
        console.out.print(t)
