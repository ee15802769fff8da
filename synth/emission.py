"""Verilog of units, kept under the hash of all that decides it: asked again, nothing is elaborated."""

import gzip
import hashlib
import json
import sys
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path

from golden.atomic_files import write_atomically
from hdl import emit

ROOT = Path(emit.__file__).parents[1]
PACKAGES = ("hdl", "golden")  # whose sources decide what a unit is


def emitted(unit: str, params: object, build: Path, **options: object) -> emit.Emitted:
    """`hdl.emit.emit` of the same arguments, from `build` if it was asked for since the sources last changed."""
    tools = (sys.version_info[:3], version("amaranth"), version("pyosys"))
    decides = repr((unit, params, options, sources(ROOT), tools))
    kept = build / "verilog" / f"{unit}-{hashlib.sha256(decides.encode()).hexdigest()[:32]}.json.gz"
    try:
        return emit.Emitted(**json.loads(gzip.decompress(kept.read_bytes())))
    except (OSError, EOFError, ValueError, TypeError):  # none, or a damaged one
        pass
    made = emit.emit(unit, params, **options)
    write_atomically(kept, gzip.compress(json.dumps(asdict(made)).encode(), 1, mtime=0))
    return made


@cache
def sources(root: Path) -> str:
    """SHA-256 of the sources of `PACKAGES` below `root`."""
    h = hashlib.sha256()
    files = (p for package in PACKAGES for p in (root / package).rglob("*") if p.suffix in (".py", ".v", ".rdl"))
    for path in sorted(files):
        h.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return h.hexdigest()
