"""Runs of policies on cases: every combination of parameters, dealt to Dask, kept in a database, and resumed."""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from openvrex.golden.function_params import check
from openvrex.golden.policies.registry import Entry, override
from openvrex.papers.policies.registry import entry
from openvrex.scripts import console
from openvrex.scripts.progress import Bar
from openvrex.synth.sweep.database import Database, Row
from openvrex.tb.library.runner import ROOT


@dataclass(frozen=True)
class Variant:
    """A policy with some parameters set, as the user wrote them."""

    policy: str
    params: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The policy, and what was set: "resv th_hd=3"."""
        return " ".join([self.policy, *(f"{path.rpartition('.')[2]}={value}" for path, value in self.params)])

    def entry(self) -> Entry:
        """Raises: `ParamError` for a policy, a parameter or a value that there is not."""
        found = entry(self.policy)
        return replace(found, params=override(found.params, dict(self.params)))


def variants_of(policies: str, assignments: list[str]) -> Iterator[Variant]:
    """Every policy with every combination of its values. Raises: `ParamError`."""
    names = [name.strip() for name in policies.split(",")]
    values: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for text in assignments:
        path, eq, word = text.partition("=")
        name, _, rest = path.partition(".")
        check(bool(eq and rest and word), "-p", text, "must look like policy.name=value, e.g. resv.resv.th_hd=3")
        check(name in names, "-p", text, f"must start with a policy of --policy: {', '.join(names)}")
        values[name][rest] = word.split(",")
    for name in names:
        own = values[name]
        for chosen in itertools.product(*own.values()):
            variant = Variant(name, tuple(zip(own, chosen, strict=True)))
            variant.entry()  # refused before anything runs
            yield variant


def numbers(name: str, text: str, kind: type) -> list:
    """The numbers of an option such as "1,2". Raises: `ValueError`."""
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"{name}={text!r}: must be numbers separated by commas") from None


def key(variant: Variant, case: object) -> str:
    """Of a run's result: what was asked, and the source of the golden models."""
    return hashlib.sha256(f"{_source()} {variant} {case}".encode()).hexdigest()


def _source() -> str:
    files = sorted((ROOT / "golden").rglob("*.py"))
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


def complete(
    file: Path,
    asked: Mapping[str, tuple[Variant, Any]],
    measure: Callable,
    quiet: bool,
    *cluster_of: Any,
    by_case: bool = False,
) -> dict[str, Row]:
    """The rows of all runs asked for, by key: those that the database has, and those that workers run now.

    asked : variant and case (a dataclass) of each key
    measure : runs one of them on a worker; its figures by name
    cluster_of : scheduler, jobs, workers, as for `synth.sweep.dask_run.cluster`
    by_case : a worker takes all runs on a case one after another, and so prepares it once

    A failed run has its error in its row and is run again by a later call. Raises `typer.Exit` after Ctrl-C.
    """
    with ExitStack() as stack:
        database = stack.enter_context(Database(file))
        rows = {k: row for k, row in database.get(asked).items() if not row.error}
        missing: dict[str, dict[str, tuple[Variant, Any]]] = defaultdict(dict)  # runs by what a worker takes at once
        for k, point in asked.items():
            if k not in rows:
                missing[str(point[1]) if by_case else k][k] = point
        bar = stack.enter_context(Bar(quiet=quiet))
        progress = bar.add_task("runs", total=len(asked), completed=len(rows))
        if missing:
            from openvrex.synth.sweep.dask_run import cluster, results

            try:
                client = stack.enter_context(cluster(*cluster_of))
                for taken, done in results(client, partial(_each, measure), missing):
                    own: Mapping[str, Any] = done.result or dict.fromkeys(missing[taken], done)
                    for k, row in own.items():
                        variant, case = asked[k]
                        database.put(k, {"variant": variant.name} | {n: str(v) for n, v in asdict(case).items()}, row)
                        rows[k] = row
                        bar.advance(progress)
            except KeyboardInterrupt:
                bar.stop()
                console.err.print("interrupted; results so far are kept: run the same command again")
                raise typer.Exit(130) from None
    return rows


def _each(measure: Callable, points: dict[str, tuple[Variant, Any]]) -> dict[str, Row]:
    """On a worker: the row of each run, by key."""
    out = {}
    for k, point in points.items():
        try:
            out[k] = Row(measure(point))
        except Exception as e:  # the runs behind it go on
            out[k] = Row.failed(e)
    return out


def fail_if_any(rows: Mapping[str, Row]) -> None:
    """End the command with exit code 1 if a run failed."""
    failed = [row.error for row in rows.values() if row.error]
    if failed:
        console.fail(f"{len(failed)} of {len(rows)} runs failed, the first: {failed[0]}", 1)
