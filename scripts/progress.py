"""Shows how far a long command is: a bar in a terminal, a line every ten seconds in a log."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn

from openvrex.scripts import console

EVERY = 10.0  # seconds between the lines of a log
Item = TypeVar("Item")


class Bar(Progress):
    """Rich's progress bars, on stderr. Without a terminal, a line names the task and its count every ten seconds.

    columns : of a line of the bar, behind the task's description; counts and time are the default
    quiet : shows nothing, for `--json`
    transient : the bar disappears at the end
    """

    def __init__(self, *columns: ProgressColumn, quiet: bool = False, transient: bool = True) -> None:
        self._log = not quiet and not console.err.is_terminal
        self._said = time.monotonic()
        columns = columns or (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        super().__init__(
            TextColumn("{task.description}"),
            *columns,
            console=console.err,
            disable=quiet or self._log,
            transient=transient,
        )

    def update(self, task_id: TaskID, **changes: Any) -> None:  # type: ignore[override]
        super().update(task_id, **changes)
        self._say(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._say(task_id)

    def add_task(self, description: str, **options: Any) -> TaskID:  # type: ignore[override]
        task_id = super().add_task(description, **options)
        self._say(task_id)
        return task_id

    def _say(self, task_id: TaskID) -> None:
        """The line of a log, if the last one is long ago."""
        if self._log and time.monotonic() - self._said >= EVERY:
            self._said, task = time.monotonic(), self._tasks[task_id]
            count = f" {task.completed:,.0f} of {task.total:,.0f}" if task.total else ""
            console.err.print(f"{task.description}{count}", highlight=False, markup=False, soft_wrap=True)


def track(items: Iterable[Item], description: str, quiet: bool = False) -> Iterator[Item]:
    """The items, with a bar for them."""
    with Bar(quiet=quiet) as bar:
        yield from bar.track(items, description=description)


class Spinner:
    """A spinner with the name of the current step. Without a terminal, a line at the start and every ten seconds.

    quiet : shows nothing, for `--json`
    """

    def __init__(self, text: str = "", quiet: bool = False) -> None:
        self._text, self._status = text, console.err.status(text)
        self._log, self._shown = not quiet and not console.err.is_terminal, not quiet and console.err.is_terminal
        self._said = time.monotonic()

    def __enter__(self) -> "Spinner":
        if self._shown:
            self._status.start()
        elif self._log and self._text:
            console.err.print(self._text, highlight=False, markup=False, soft_wrap=True)
        return self

    def __exit__(self, *raised: object) -> None:
        self._status.stop()

    def update(self, text: str) -> None:
        """Names the next step."""
        self._status.update(text)
        if self._log and time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            console.err.print(text, highlight=False, markup=False, soft_wrap=True)
