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

from scripts.commands import Command, Commands  # noqa: E402

HARDWARE = ("presets", "generate", "ip", "synth", "power", "cycles", "sweep", "report", "demo", "asm")
CHECKS = ("verify", "prove", "mutate", "stress", "coverage", "bench", "record")
STREAMS = ("trace", "figures", "readings", "policies", "speed", "stream", "codec")
SYSTEM = ("simulate", "evaluate", "fleet", "run", "stages", "prediction")

app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
for name in (*HARDWARE, *CHECKS, *STREAMS, *SYSTEM):
    app.command(name, cls=Command)(import_module(f"scripts.{name}").command)


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
