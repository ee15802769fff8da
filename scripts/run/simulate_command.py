"""`vrex simulate`: one point of the system, and the memories by themselves."""

import json as jsonlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from golden.function_params import check
from scripts import console
from sim.evaluation.other_policies import CACHES as POLICY_CACHES
from sim.evaluation.other_policies import PROFILES, Profile, policies, profile
from sim.evaluation.paper_limits import BATCHES, engines, limits
from sim.evaluation.paper_limits import CACHES as LIMIT_CACHES
from sim.evaluation.paper_points import PLATFORMS
from sim.system.memory_curves import Curve, all_curves
from sim.system.passes import NOT_SELECTING, lacks, selected, simulate
from sim.system.platforms import EDGE, SERVER
from sim.system.selection import RATIOS, shares
from sim.system.timeline import Pass, Point
from sim.system.workload import TABLE_II, Decoder, Selection, Session, measured, table_ii, traced

T = TypeVar("T")
STAGES = ("frame", "question", "token")
POLICIES = (*TABLE_II, *NOT_SELECTING)
SYSTEMS = {"edge": EDGE, "server": SERVER}
# What each table depends on; the other options are refused.
_PASS = {"--platform", "--policy", "--cache", "--batch", "--stage", "--select"}
WHAT = {
    "point": _PASS | {"-o"},
    "memories": set(),
    "limits": _PASS,
    "engines": _PASS,
    "policies": {"--platform", "--cache", "--batch", "FILES"},
    "selection": {"FILES"},
}


def command(
    what: Annotated[
        str,
        typer.Argument(
            help="point, memories, limits (beyond 40K), engines (DREs), policies, or selection (of results.json)."
        ),
    ] = "point",
    files: Annotated[list[Path] | None, typer.Argument(help="results.json files of `vrex stream`.")] = None,
    on: Annotated[
        str | None,
        typer.Option("--platform", help=f"One of {', '.join(PLATFORMS)}; edge [limits, engines: edge and server]."),
    ] = None,
    policy: Annotated[str | None, typer.Option(help=f"One of {', '.join(POLICIES)}; resv.")] = None,
    cache: Annotated[
        int | None, typer.Option(help="Tokens of a stream in the cache; 40960 [limits, policies: several].")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Streams; 1 [engines: several].")] = None,
    stage: Annotated[str | None, typer.Option(help=f"One of {', '.join(STAGES)}; frame.")] = None,
    select: Annotated[
        str | None,
        typer.Option(help=f"Share of the cache: table2 (V-Rex; default), {', '.join(RATIOS)}, or a results.json file."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", parser=console.folder, help="Folder for the plot of timeline and bandwidth.")
    ] = None,
    json: console.Json = False,
) -> None:
    """Simulate a frame, a question or a token on a platform, stage by stage; or print the memories' efficiencies."""
    with console.one_line_errors():
        given = {"FILES": files, "--platform": on, "--policy": policy, "--cache": cache, "--batch": batch}
        _check_given(what, given | {"--stage": stage, "--select": select, "-o": output})
        if what == "memories":
            _curves(all_curves(), json)
            return
        if what == "selection":
            check(bool(files), "files", files, "name at least one results.json")
            _show({str(f): _described(f) for f in files}, True)
            return
        known = PLATFORMS if what == "point" else SYSTEMS
        for name, value, allowed in (
            ("platform", on, known),
            ("policy", policy, POLICIES),
            ("stage", stage, STAGES),
        ):
            check(value is None or value in allowed, name, value, f"must be one of {', '.join(allowed)}")
        caches, batches = ((n,) if n is not None else () for n in (cache, batch))
        if what == "policies":
            check(len(files or []) <= 1, "files", len(files or []), "must be one results.json at most")
            profiles = _read(files[0], _profiles) if files else PROFILES
            own = (SYSTEMS[on or "edge"], profiles, caches or POLICY_CACHES, batch or 1)
            _curves([policies(*own)], json)
            return
        stage, policy = stage or "frame", policy or "resv"
        rows = {"frame": Session.frame_tokens, "question": Session.question, "token": 1}[stage]
        point = Point(cache or 40960, batch or 1, rows, stage == "frame", policy)
        chosen = selection(select, policy, point.model)
        if what == "limits":
            _curves([limits(point, chosen, caches or LIMIT_CACHES, (on,) if on else ())], json)
            return
        if what == "engines":
            _curves([engines(point, chosen, batches or BATCHES, (SYSTEMS[on],) if on else (EDGE, SERVER))], json)
            return
        on = on or "edge"
        missing = lacks(PLATFORMS[on], point, chosen)
        check(not missing, "cache", point.cache, f"needs {missing} on {on}: lower --cache or --batch")
        done = simulate(PLATFORMS[on], point, chosen)
    if output:
        from sim.evaluation.paper_plots import timeline

        for path in timeline(PLATFORMS[on], done, output, f"{on}-{policy}-{point.cache}-{stage}"):
            console.err.print(f"wrote {path}", highlight=False)
    title = f"{stage} of {point.batch} x {point.cache} tokens, {policy} on {on}, {chosen.name}"
    _show(report(done) | {"selection": chosen.name} if json else [stages(done, title)], json)


def _check_given(what: str, given: dict[str, object]) -> None:
    """Raise `ParamError` for a table that is not there, and for an option that it does not depend on."""
    check(what in WHAT, "what", what, f"must be one of {', '.join(WHAT)}")
    for name, value in given.items():
        if value not in (None, []):
            used = ", ".join(sorted(WHAT[what])) or "no option"
            fix = f"has no effect on `vrex simulate {what}`, which depends on {used}: leave it out"
            check(name in WHAT[what], name, str(value), fix)
    for name in ("--cache", "--batch"):
        value = given[name]
        check(value is None or value >= 1, name[2:], value, "must be at least 1")


def selection(name: str | None, policy: str, model: Decoder) -> Selection:
    """What --select names; Table II's shares if it is left out.

    Raises `ParamError` where the shares are not those of the policy.
    """
    if policy in NOT_SELECTING:
        check(name is None, "select", name, f"has no effect on {policy}, which selects nothing: leave it out")
        return selected(Point(1, policy=policy, model=model), None)
    if name in (None, "table2"):
        return table_ii(policy, model)
    check(policy == "resv", "select", name, f"has the shares of resv, not of {policy}: leave it out for Table II's")
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
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as e:
        raise ValueError(f"{path}: not a results.json that `vrex stream` wrote with this policy ({e!r})") from None


def _profiles(results: dict) -> dict[str, Profile]:
    return {name: profile(results, name) for name in results["policies"]}


def _described(path: Path) -> dict:
    frame, text = _read(path, shares)
    return {"frame": [[round(float(x), 3) for x in row] for row in frame], "text": round(text, 4), "mean": frame.mean()}


def _curves(curves: list[Curve], as_json: bool) -> None:
    _show([vars(c) for c in curves] if as_json else [table(c) for c in curves], as_json)


def _show(what, as_json: bool) -> None:
    if as_json:
        console.print_json(what)
        return
    for t in what:
        console.out.print(t)
