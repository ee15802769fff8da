"""`vrex papers fleet`: simulate hours of video on many devices, on Dask; every result is kept as it arrives."""

import csv
import hashlib
import io
import itertools
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openvrex.golden.atomic_files import write_atomically
from openvrex.papers.commands.kept_runs import numbers
from openvrex.papers.evaluation.fleet import PLATFORMS, Device, day
from openvrex.papers.evaluation.other_policies import PROFILES
from openvrex.scripts import console
from openvrex.scripts.progress import Bar
from openvrex.synth.sweep.database import Database, Row
from openvrex.synth.sweep.point_costs import code


def command(
    platform: Annotated[str, typer.Option(help=f"Platforms with commas between: {', '.join(PLATFORMS)}.")] = "edge",
    policy: Annotated[
        str, typer.Option(help=f"Policies with commas between: {', '.join(PROFILES)}.")
    ] = "resv,full,hybrid",
    streams: Annotated[
        str, typer.Option(help="Number of videos on each device; several numbers with commas between.")
    ] = "1",
    fps: Annotated[
        str, typer.Option(help="Frames per second of each video; several numbers with commas between.")
    ] = "2",
    hours: Annotated[str, typer.Option(help="Hours of each video; several numbers with commas between.")] = "24",
    preset: console.System = None,
    param: console.Param = None,
    workers: console.Workers = None,
    scheduler: console.Scheduler = None,
    jobs: console.Jobs = None,
    folder: console.Folder = Path("build/fleet"),
    json: console.Json = False,
) -> None:
    """Simulate hours of video on many devices.

    Every combination of the options is a device of its own. Run the same command again to resume.
    """
    with ExitStack() as stack:
        lists: list[list] = [platform.split(","), policy.split(","), numbers("streams", streams, int)]
        lists += [numbers("fps", fps, float), numbers("hours", hours, float)]
        devices = [Device(a, b, c, d, e, preset, tuple(param or ())) for a, b, c, d, e in itertools.product(*lists)]
        database = stack.enter_context(Database(folder / "fleet.db"))
        keys = [hashlib.sha256(f"{code()} {device}".encode()).hexdigest() for device in devices]
        rows = {key: row for key, row in database.get(keys).items() if not row.error}
        missing = {k: device for k, device in zip(keys, devices, strict=True) if k not in rows}
        bar = stack.enter_context(Bar(quiet=json))
        task = bar.add_task("devices", total=len(devices), completed=len(rows))
        if missing:
            from openvrex.synth.sweep.dask_run import cluster, results

            try:
                client = stack.enter_context(cluster(scheduler, jobs, workers))
                for key, row in results(client, day, missing):
                    database.put(key, {k: str(v) for k, v in asdict(missing[key]).items()}, row)
                    rows[key] = row
                    bar.advance(task)
            except KeyboardInterrupt:
                bar.stop()
                console.err.print("interrupted; results so far are kept: run the same command again")
                raise typer.Exit(130) from None
        found = [rows[key] for key in keys]
        write_atomically(folder / "fleet.csv", as_csv(devices, found).encode())
    if json:
        console.print_json(entries(devices, found))
    else:
        console.out.print(table(devices, found))
        console.out.print(f"{folder}/fleet.db and fleet.csv", highlight=False)
    failed = [row.error for row in found if row.error]
    if failed:
        console.err.print(f"{len(failed)} of {len(found)} devices failed, the first: {failed[0]}", highlight=False)
        raise typer.Exit(1)


def entries(devices: list[Device], rows: list[Row]) -> list[dict]:
    """The result of each device: it keeps up for `hours` of the `asked` hours of video."""
    own = ({"asked" if n == "hours" else n: v for n, v in asdict(d).items()} for d in devices)
    own = (d | {"preset": d["preset"] or "", "params": " ".join(d["params"])} for d in own)
    return [d | {"error": r.error} | r.result for d, r in zip(own, rows, strict=True)]


def as_csv(devices: list[Device], rows: list[Row]) -> str:
    """The results as CSV: one line for each device, with the names of `entries`."""
    table = entries(devices, rows)
    text = io.StringIO()
    names = sorted(dict.fromkeys(n for entry in table for n in entry), key="error".__eq__)  # the error at the end
    out = csv.DictWriter(text, names, lineterminator="\n")
    out.writeheader()
    out.writerows(table)
    return text.getvalue()


def table(devices: list[Device], rows: list[Row]) -> Table:
    """A table with one row for each device."""
    columns = ("platform", "policy", "streams", "fps", "hours", "keeps up", "limit", "tables have room", "busy", "kJ")
    out = Table(*columns, "TB fetched", "last pass", title="A fleet")
    for d, row in zip(devices, rows, strict=True):
        r = row.result
        cells = (f"{d.streams}", f"{d.fps:g}", f"{d.hours:g}")
        if row.error:
            out.add_row(d.platform, d.policy, *cells, row.error)
            continue
        share = (
            f"{r['hours']:.2f} h",
            str(r["limit"]),
            f"{r['room']:.2f} h",
            f"{r['busy']:.1%}",
            f"{r['joules'] / 1e3:,.1f}",
        )
        out.add_row(
            d.hardware.name,
            d.policy,
            *cells,
            *share,
            f"{r['fetched'] / 1e12:.3f}",
            f"{r['seconds'] * 1e3:.0f} ms",
        )
    return out
