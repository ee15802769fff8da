"""What `vrex run` and `vrex answer` share: passes are played with a progress bar, or some of them once more."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape
from rich.progress import Progress

from openvrex.scripts import console
from openvrex.scripts.run.run_options import Again
from openvrex.tb.library.runner import BenchError

if TYPE_CHECKING:  # Dask takes half a second to import; no other command should wait for it.
    from distributed import Client

    from openvrex.scripts.run.pass_engine import PassEngine


def play(
    engine: "PassEngine", bar: Progress, total: int, repeat: Again | None, connect: Callable[[], "Client"]
) -> list[dict[str, Any]]:
    """Records of all passes of a run, or of those to repeat. `total` : passes, for the bar.

    Ends the command if a simulator fails or the user interrupts it.
    """
    golden, rtl = (bar.add_task(name, total=total) for name in ("golden", "RTL"))

    def progress(executed: int, played: int) -> None:
        bar.update(golden, completed=executed)
        bar.update(rtl, completed=played)

    try:
        return engine.repeat(*repeat) if repeat else engine.run(connect, progress)
    except BenchError as e:
        console.err.print(f"[red]the RTL failed[/] {escape(str(e))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        bar.stop()
        console.err.print("interrupted; results so far are kept: run the same command again")
        raise typer.Exit(130) from None


def differences(records: list[dict[str, Any]]) -> list[str]:
    """Every difference, with the name of its pass."""
    return [f"{one['name']}: {line}" for one in records for line in one["differences"]]


def tell_repeated(records: list[dict[str, Any]], json: bool) -> None:
    """Print what has been repeated."""
    if json:
        console.print_json(records)
    for one in () if json else records:
        console.out.print(f"{one['number']}: {one['name']}: {'DIFFERS' if one['differences'] else 'equal'}")


def end(lines: list[str]) -> None:
    """Print differences; there being some ends the command with an error."""
    for line in lines:
        console.err.print(f"[red]differs:[/] {line}", highlight=False, soft_wrap=True)
    if lines:
        raise typer.Exit(1)
