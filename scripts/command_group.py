"""The group of `vrex` commands: every error that a user can mend ends a command in one line."""

import math
import re
import shutil
import signal
import sys
from collections import UserDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup

from openvrex.golden.function_params import ParamError, check
from openvrex.scripts import console, environment, extras


class Narrow:
    """Help in plain text on a terminal too narrow for tables, which would cut the names of options."""

    columns = 100  # that the tables need
    rich_markup_mode: Any

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if shutil.get_terminal_size().columns < self.columns:
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)  # type: ignore[misc]  # of Typer's class beside this one


class Command(Narrow, TyperCommand):
    """A command that accepts one design and finite numbers only."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        designs = {name for option in self.params if "--design" in option.opts for name in option.opts}
        given = [word for word in args if word.partition("=")[0] in designs]
        if len(given) > 1:
            raise ParamError(f"{' '.join(given)}: give one of them: a design file names its preset itself")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        for option in self.params:
            given = ctx.params.get(option.name)
            for value in given if isinstance(given, list | tuple) else [given]:
                finite = not isinstance(value, float) or math.isfinite(value)
                check(finite, option.opts[0], value, "must be a finite number")
        return super().invoke(ctx)


class Named(UserDict[str, Any]):
    """Commands by name, each made when it is asked for: all modules take two seconds to import."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(self.data[name], partial):
            self.data[name] = self.data[name]()
        return self.data[name]


class Group(Narrow, TyperGroup):
    """A group of commands, which prints its help if no command is named."""

    columns = 60  # names of commands are short
    later: Mapping[str, partial[Any]] = {}

    @classmethod
    def of(cls, later: Mapping[str, partial[Any]]) -> type["Group"]:
        """A class of groups with these commands."""
        return type(cls.__name__, (cls,), {"later": later})

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        self.commands = Named({**self.later, **self.commands})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])


class Commands(Group):
    """All commands: every mistake on the command line ends in one line and exit code 2."""

    def main(self, args: Any = None, *rest: Any, **extra: Any) -> Any:
        if args is None:  # the command line of this process
            try:
                with _clear_errors():
                    environment.prepare()
            except typer.Exit as e:
                sys.exit(e.exit_code)
        return super().main(args, *rest, **extra)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _clear_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _clear_errors(), interrupts():
            return super().invoke(ctx)


@contextmanager
def _clear_errors() -> Iterator[None]:
    """End a command in one line for each kind of error that a user can mend.

    Exit code 2 for a command line that Typer refuses, `ValueError` and its kin, `OSError`, and a library of an extra
    that is not installed; 130 for Ctrl-C.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of our output has gone: `vrex presets | head`
    except typer.TyperException as e:
        console.fail(_typed(e), 2)
    except ModuleNotFoundError as e:
        if not (found := extras.missing(e)):
            raise
        console.fail(extras.needs("the command", *found), 2)
    except OSError as e:
        console.fail(f"{e.filename}: {e.strerror}" if e.filename else e.strerror or str(e), 2)
    except ValueError as e:
        console.fail(str(e), 2)
    except KeyboardInterrupt:
        console.fail("interrupted", 130)


def _typed(e: Any) -> str:
    """The message for a command line that Typer refuses."""
    if not isinstance(e.__cause__, ValidationError):
        place = e.ctx.command_path if e.ctx else "vrex"
        return f"{e.format_message().rstrip('.')}: see `{place} --help`"
    found, option = e.__cause__.errors()[0], e.param
    own = found.get("ctx", {}).get("error")  # of our `folder` and `file`
    low, high = getattr(option, "min", None), getattr(option, "max", None)
    if own:
        must = re.sub(r"^\S+ is not one of", "must be one of", str(own))
    elif found["type"] not in ("greater_than_equal", "less_than_equal"):
        must = found["msg"].replace("Input should", "must")
    elif None not in (low, high):
        must = f"must be {low} to {high}"
    else:
        must = f"must be at least {low}" if high is None else f"must be at most {high}"
    return f"{option.opts[-1]}={found['input'] or repr('')}: {must}"


@contextmanager
def interrupts() -> Iterator[None]:
    """Treat SIGTERM, which batch systems send, as Ctrl-C, and raise either again where Python drops it.

    It drops what arrives in a destructor, and every Amaranth component has one.
    """
    hook = sys.unraisablehook
    before = {s: signal.signal(s, signal.default_int_handler) for s in (signal.SIGALRM, signal.SIGTERM)}

    def dropped(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            hook(what)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for s, handler in before.items():
            signal.signal(s, handler)
        sys.unraisablehook = hook
