"""Runs Yosys in a process of its own, because it prints commands to the terminal and aborts on errors."""

import subprocess
import sys

_CODE = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"


def run_yosys(commands: list[str]) -> str:
    """The output of Yosys. Raises `RuntimeError` with the end of it if a command fails."""
    run = subprocess.run([sys.executable, "-c", _CODE, *commands], capture_output=True, text=True, check=False)
    log = run.stdout + run.stderr
    if run.returncode:
        raise RuntimeError(f"Yosys failed: {log[-500:]}")
    return log
