"""The `vrex` command: one module a subcommand."""

from importlib import import_module

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
for name in ("presets", "generate", "trace", "verify", "synth", "figures", "cycles", "demo"):
    app.command(name)(import_module(f"scripts.{name}").command)
