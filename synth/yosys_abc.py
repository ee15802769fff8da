"""Runs the ABC that comes with Yosys. The package is found, not imported: in its process Matplotlib cannot load."""

import resource
import subprocess
from functools import partial
from importlib.util import find_spec
from pathlib import Path


def run_abc(script: str, folder: Path, limit: int | None = None) -> str:
    """What ABC prints to a script that it runs in `folder`, or until it has taken `limit` seconds of processor time."""
    (folder / "script").write_text(script)
    found = find_spec("pyosys")
    assert found
    assert found.submodule_search_locations
    command = [str(Path(found.submodule_search_locations[0], "yosys-abc")), "-f", "script"]
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = limit if limit and hard == resource.RLIM_INFINITY else min(limit or hard, hard)
    limited = partial(resource.setrlimit, resource.RLIMIT_CPU, (soft, hard))
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, preexec_fn=limited)
    return run.stdout + run.stderr
