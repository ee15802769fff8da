"""The `vrex` command: each subcommand is a module of its own."""

import os
import signal
import sys
from importlib import import_module, metadata
from typing import Annotated, Any

# On matrix products this small threads cost up to 25 times what they give. NumPy reads this when it is imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


def _stop(*_: object) -> None:
    sys.stderr.write("error: interrupted\n")
    os._exit(130)


# During the imports, about a second, nothing would catch the exception of Ctrl-C.
usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
usual = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
for number in usual:
    signal.signal(number, _stop)

import typer  # noqa: E402
from openvrex.scripts.command_group import Command, Commands, Group  # noqa: E402

PANELS = {  # a panel of `vrex --help`, the folder of its commands' modules, its commands
    "Build hardware": ("generation", ("presets", "generate", "ip", "asm")),
    "Check hardware": ("check", ("verify",)),
    "Estimate area, timing and power": (
        "size",
        ("area", "timing", "power", "fpga", "sweep", "table3", "libraries", "report"),
    ),
    "Run and simulate models": ("run", ("demo", "trace", "stream", "run", "answer")),
    "Compare policies and papers": (
        "research",
        ("recall", "scenes", "paper", "figures", "readings", "evaluate", "fleet"),
    ),
    "For engineers of OpenVRex itself": (
        "engineers",
        ("prove", "stress", "mutate", "coverage", "bench", "speed", "record"),
    ),
}
SIMULATIONS = ("pass", "frames", "layer", "prediction", "dre", "memories", "limits", "engines", "policies", "selection")


def _add(group: typer.Typer, folder: str, names: tuple[str, ...], panel: str | None = None) -> None:
    for name in names:
        module = import_module(f"openvrex.scripts.{folder}.{name}_command")
        group.command(name, cls=Command, rich_help_panel=panel)(module.command)


app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False)
for title, (folder, names) in PANELS.items():
    _add(app, folder, names, title)
simulate = typer.Typer(cls=Group)
_add(simulate, "simulate", SIMULATIONS)
app.add_typer(
    simulate,
    name="simulate",
    rich_help_panel="Run and simulate models",
    help="Simulate a system, a decoder layer or the DRE.",
)


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
    """Generate, verify and measure hardware for KV-cache retrieval.

    `vrex COMMAND --help` shows the options of a command.
    """


for number, handler in usual.items():
    signal.signal(number, handler)
