"""Runs Yosys in a process of its own, because it prints commands to the terminal and aborts on errors."""

import subprocess
import sys
from pathlib import Path

_CODE = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"


def run_yosys(commands: list[str], folder: Path | None = None) -> str:
    """The output of Yosys, run in `folder`. Raises `RuntimeError` with the end of it if a command fails."""
    command = [sys.executable, "-c", _CODE, *commands]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    log = run.stdout + run.stderr
    if run.returncode:
        raise RuntimeError(f"Yosys failed: {log[-500:]}")
    return log
