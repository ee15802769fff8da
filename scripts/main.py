"""The `vrex` command: one module a subcommand."""

import os
import signal
import sys
from importlib import import_module, metadata
from typing import Annotated

# Threads cost more than they give on matrix products this small, up to 25 times on a shared machine. Set before NumPy.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


def _stop(*_: object) -> None:
    sys.stderr.write("error: interrupted\n")
    os._exit(130)


# Imports take a second, in which there is nothing to tidy up and nobody to catch an exception.
interrupt = signal.getsignal(signal.SIGINT)
if interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)

import typer  # noqa: E402

from scripts.command_group import Command, Commands  # noqa: E402

PANELS = {  # a panel of `vrex --help`, the folder of its commands' modules, its commands
    "Build hardware": ("generation", ("presets", "generate", "ip", "asm")),
    "Check it": ("check", ("verify",)),
    "Size it": ("size", ("synth", "power", "sweep", "report")),
    "Run streams and models on it": (
        "run",
        ("demo", "trace", "stream", "policies", "codec", "run", "cycles", "simulate", "stages", "prediction"),
    ),
    "Research": ("research", ("figures", "readings", "evaluate", "fleet")),
    "For engineers of OpenVRex": ("engineers", ("prove", "stress", "mutate", "coverage", "bench", "speed", "record")),
}

app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
for panel, (folder, commands) in PANELS.items():
    for name in commands:
        module = import_module(f"scripts.{folder}.{name}_command")
        app.command(name, cls=Command, rich_help_panel=panel)(module.command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"vrex {metadata.version('openvrex')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Generate, verify and measure hardware for KV-cache retrieval; `vrex COMMAND --help` has a command's options."""


if interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, interrupt)
