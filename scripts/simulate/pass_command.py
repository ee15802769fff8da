"""`vrex simulate pass`: one pass of a model on a platform, stage by stage."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openvrex.golden.function_params import check
from openvrex.golden.policies.window_decisions import WINDOWED
from openvrex.scripts import console
from openvrex.scripts.simulate import system_options, window_options
from openvrex.sim.system.core_pass import Given
from openvrex.sim.system.core_policies import KINDS
from openvrex.sim.system.device_memory import arrays
from openvrex.sim.system.measured_gpu import MeasuredGpu, of_pages
from openvrex.sim.system.pages_pass import PagesPass
from openvrex.sim.system.passes import lacks, remarks, selected, simulate
from openvrex.sim.system.platforms import PLATFORMS, Vrex, platform
from openvrex.sim.system.timeline import Pass
from openvrex.sim.system.workload import MODELS, constant

MODEL = next(iter(MODELS))
OWN = (*WINDOWED, "mosaic", "pages")  # timed by their programs alone
POLICIES = (*system_options.POLICIES, *OWN)


def command(
    ctx: typer.Context,
    on: system_options.Platform = "edge",
    preset: console.System = None,
    param: console.Param = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help=f"One of {', '.join(POLICIES)}; {system_options.OWN_POLICY}")
    ] = None,
    cache: system_options.Cache = 40960,
    home: system_options.Home = None,
    batch: system_options.Batch = 1,
    stage: system_options.Stage = "frame",
    tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a question.", show_default="25")] = None,
    select: system_options.Select = None,
    model: window_options.Model = MODEL,
    weights: system_options.Weights = None,
    video: window_options.Video = "world",
    fps: window_options.Fps = 2.0,
    gop: window_options.Gop = 16,
    at_once: window_options.AtOnce = 16,
    output: Annotated[
        Path | None, typer.Option("-o", parser=console.folder, help="Folder for the plot of timeline and bandwidth.")
    ] = None,
    json: console.Json = False,
) -> None:
    """Time a frame, a question or a token on a platform.

    The table shows the time, the bytes and the energy of each stage.
    """
    system_options.check_names(None, PLATFORMS, None, stage)
    policy = system_options.own_policy(policy, on, preset, param, select is not None)
    check(policy in POLICIES, "policy", policy, f"must be one of {', '.join(POLICIES)}")
    window_options.check_used(ctx, [policy])
    notes, held = list[str](), dict[str, int]()
    entries, rest = window_options.policies([policy] if policy in OWN else [], param or [])
    point = system_options.point(policy, stage, cache, batch, window_options.model(model))
    check(tokens is None or stage == "question", "tokens", tokens, "is for a question: --stage question")
    point = replace(point, rows=tokens or point.rows)
    target = platform(on, preset, rest, home)
    point = replace(point, model=system_options.held(target, point.model, weights))
    on_gpu = isinstance(target, MeasuredGpu) and policy == "pages"
    if entries:
        check(
            on_gpu or isinstance(target, Vrex),
            "platform",
            on,
            f"must be a V-Rex for {policy}, which runs as its programs",
        )
        why = KINDS[policy].own_share
        check(select is None, "select", select, f"has no effect on {policy}, {why}: leave it out")
        known = stage != "question" or (policy == "pages" and isinstance(target, Vrex))
        check(known, "stage", stage, f"must be frame or token for {policy}")
    if entries and isinstance(target, Vrex):
        given = Given(constant(policy, 0.0, 0.0, point.model), window_options.coded([policy], video, fps, gop), at_once)
        w = KINDS[policy].of(target, entries[policy], point, given)
        what, held = w.note, dict(w.arrays)
        check(not w.lacks, "cache", cache, f"needs {w.lacks} on {on}: lower --cache or the window")
        done = w.frame() if point.frame else w.question() if isinstance(w, PagesPass) else w.token()
    else:
        core = target.core if isinstance(target, Vrex) else None
        chosen = (
            of_pages(entries[policy].params, point)
            if on_gpu
            else system_options.selection(select, policy, point.model, core)
        )
        missing = lacks(target, point, chosen)
        check(not missing, "cache", point.cache, f"needs {missing} on {on}: lower --cache or --batch")
        done, what = simulate(target, point, chosen), chosen.name
        notes = remarks(target, point, chosen)
        held = arrays(target, point, selected(point, chosen))
    if output:
        from openvrex.sim.system.pass_picture import timeline

        for path in timeline(target, done, output, f"{on}-{policy}-{point.cache}-{stage}"):
            console.err.print(f"wrote {path}", highlight=False)
    if json:
        console.print_json(report(done) | {"selection": what, "remarks": notes, "device": held})
        return
    of = f"{policy}, {what}" if entries else what
    console.out.print(stages(done, f"{stage} of {point.batch} x {cache} tokens on {target.name}, {of}"))
    sizes = ", ".join(f"{name} {n / 1e6:,.0f}" for name, n in held.items())
    for note in [f"MB of device memory: {sizes}"] * bool(held) + notes:
        console.out.print(note, highlight=False)


def report(p: Pass) -> dict:
    """A pass as JSON."""
    names = list(dict.fromkeys((s.resource, s.name) for s in p.stages))
    return {
        "seconds": p.seconds,
        "joules": p.joules if p.watts else None,
        "watts": p.watts,
        "fetched": p.fetched,
        "operations": p.ops,
        "stages": [{"resource": r, "name": n, "seconds": _of(p, r, n)} for r, n in names],
    }


def stages(p: Pass, title: str) -> Table:
    """A table with one row for each stage."""
    watts = ", ".join(f"{name} {w:.1f}" for name, w in p.watts.items())
    title += f": {p.seconds * 1e3:.1f} ms, {p.fetched / 1e6:.0f} MB fetched"
    title += f", {p.joules:.2f} J (W: {watts})" * bool(p.watts)
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


def _of(p: Pass, resource: str, name: str) -> float:
    return sum(s.end - s.start for s in p.stages if (s.resource, s.name) == (resource, name))
