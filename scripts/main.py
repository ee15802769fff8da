"""The `vrex` command: each subcommand is a module of its own."""

import os
import signal
import sys
from collections.abc import Iterable
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Annotated, Any

# On matrix products this small threads cost up to 25 times what they give. NumPy reads this when it is imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


def _stop(*_: object) -> None:
    sys.stderr.write("error: interrupted\n")
    os._exit(130)


# During the imports nothing would catch the exception of Ctrl-C.
usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
usual = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
for number in usual:
    signal.signal(number, _stop)

import typer  # noqa: E402

from openvrex.scripts import extras  # noqa: E402
from openvrex.scripts.command_group import Command, Commands, Group  # noqa: E402

# A panel of `vrex --help` -> its commands, as folder and module.
PANELS = {
    "Build hardware": ("generation.presets", "generation.generate", "generation.ip", "generation.asm"),
    "Check hardware": ("check.verify",),
    "Estimate area, timing and power": ("size.sweep", "size.report"),
    "Run and simulate models": ("run.trace", "run.answer"),
}
# A group of commands -> its panel, what it is for, its folder, its commands.
GROUPS = {
    "size": (
        "Estimate area, timing and power",
        "Estimate area, clock and power of units, also on an FPGA.",
        "scripts.size",
        ("area", "timing", "power", "fpga", "layout", "scan", "table3", "libraries", "macros"),
    ),
    "run": (
        "Run and simulate models",
        "Run decoder layers on the RTL of a core.",
        "scripts.run",
        ("resv", "windows", "mosaic"),
    ),
    "simulate": (
        "Run and simulate models",
        "Simulate a system, a decoder layer or the DRE.",
        "scripts.simulate",
        (
            "pass",
            "frames",
            "layer",
            "prediction",
            "dre",
            "memories",
            "limits",
            "engines",
            "policies",
            "selection",
            "machines",
            "gpu",
        ),
    ),
    "papers": (
        "For readers of the papers, and engineers of OpenVRex",
        "Compare policies, recall facts, repeat figures of the papers.",
        "papers.commands",
        (
            "demo",
            "list",
            "stream",
            "prune",
            "policies",
            "calibrate",
            "recall",
            "index",
            "scenes",
            "measure",
            "readings",
            "figure",
            "evaluate",
            "fleet",
        ),
    ),
    "dev": (
        "For readers of the papers, and engineers of OpenVRex",
        "Prove, stress, mutate and measure OpenVRex itself.",
        "scripts.engineers",
        ("prove", "stress", "mutate", "coverage", "nightly", "bench", "speed", "record"),
    ),
}
# The extra that a folder's commands need.
EXTRAS = {
    "check": "verify",
    "size": "size",
    "run": "models",
    "simulate": "models",
    "commands": "papers",
    "engineers": "papers",
}


def _command(module: str, within: str, panel: str | None) -> Any:
    """The command of a module, or one that says what the module needs."""
    name, settings = module.rpartition(".")[2], dict[str, Any]()
    try:
        command = import_module(f"openvrex.{module}_command").command
    except ModuleNotFoundError as e:
        if not (found := extras.missing(e)):
            raise
        command = extras.stand_in(f"vrex {within}{name}", found[0], EXTRAS.get(module.split(".")[1], found[1]))
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=Command, rich_help_panel=panel, context_settings=settings)(command)
    return typer.main.get_command(alone)


def _later(modules: Iterable[str], within: str = "", panel: str | None = None) -> dict[str, partial[Any]]:
    """Commands by name, to be imported."""
    return {module.rpartition(".")[2]: partial(_command, module, within, panel) for module in modules}


plain = dict[str, partial[Any]]()
for title, own in PANELS.items():
    plain |= _later((f"scripts.{name}" for name in own), panel=title)
app = typer.Typer(cls=Commands.of(plain), add_completion=False, pretty_exceptions_enable=False)
for group, (title, purpose, folder, names) in GROUPS.items():
    # The papers' room may be left out of an installation, and what measures it with it.
    if find_spec("openvrex.papers") is None and group in ("papers", "dev"):
        continue
    inner = typer.Typer(cls=Group.of(_later((f"{folder}.{name}" for name in names), f"{group} ")))
    app.add_typer(inner, name=group, rich_help_panel=title, help=purpose)


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
