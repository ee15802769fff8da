"""The `vrex` command: one module a subcommand."""

import os
from importlib import import_module

import typer

# Threads cost more than they give on matrix products this small, up to 25 times on a shared machine. Set before NumPy.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
HARDWARE = ("presets", "generate", "ip", "synth", "power", "cycles", "sweep", "report", "demo", "asm")
CHECKS = ("verify", "prove", "mutate", "stress", "coverage", "bench")
STREAMS = ("trace", "figures", "policies", "speed", "stream", "codec")
SYSTEM = ("simulate", "evaluate", "fleet", "run", "stages", "prediction")
for name in (*HARDWARE, *CHECKS, *STREAMS, *SYSTEM):
    app.command(name)(import_module(f"scripts.{name}").command)
