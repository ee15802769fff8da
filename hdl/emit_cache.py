"""Emits Verilog of units and caches it on disk. The key is a hash of the parameters, all sources and the tools."""

import gzip
import hashlib
import json
import sys
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from openvrex.golden.atomic_files import write_atomically
from openvrex.hdl import emit

ROOT = Path(emit.__file__).parents[1]
PACKAGES = ("hdl", "golden")  # packages whose sources decide the Verilog


def emitted(unit: str, params: Any, build: Path, **options: Any) -> emit.Emitted:
    """`hdl.emit.emit` with a cache in `build`. `options` go to it, too."""
    tools = (sys.version_info[:3], version("amaranth"), version("pycde"))
    decides = repr((unit, params, options, sources(ROOT), tools))
    kept = build / "verilog" / f"{unit}-{hashlib.sha256(decides.encode()).hexdigest()[:32]}.json.gz"
    try:
        return emit.Emitted(**json.loads(gzip.decompress(kept.read_bytes())))
    except (OSError, EOFError, ValueError, TypeError):  # no file, or a damaged one
        pass
    made = emit.emit(unit, params, **options)
    write_atomically(kept, gzip.compress(json.dumps(asdict(made)).encode(), 1, mtime=0))
    return made


@cache
def sources(root: Path) -> str:
    """SHA-256 of the sources of `PACKAGES` below `root`."""
    h = hashlib.sha256()
    files = (p for package in PACKAGES for p in (root / package).rglob("*") if p.suffix in (".py", ".v", ".sv", ".rdl"))
    for path in sorted(files):
        h.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return h.hexdigest()
