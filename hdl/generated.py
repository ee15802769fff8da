"""A folder that `vrex generate` wrote: its Verilog, and the parameters that its manifest has, as `-p` takes them."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from golden.function_params import ParamError, check
from hdl.emit import ALL, Emitted

MANIFEST = "manifest.json"
SHARED = ("n_ctx", "clusters", "count_bits", "token_bits")  # the same in all units of a DRE


def read(folder: Path) -> Emitted:
    """The unit as it lies in the folder, edited or not. Raises: `ParamError` for a folder without one."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        top, unit = manifest["top"], manifest["unit"]
        check(isinstance(manifest["params"], dict) and unit in ALL, "unit", unit, f"must be one of {', '.join(ALL)}")
        apart = folder / f"{top}_memories.v"  # of `--no-memory-bodies`: black boxes, or what stands in their place
        memories = apart.read_text() if apart.exists() else ""
        return Emitted((folder / f"{top}.v").read_text() + memories, top, manifest, memories)
    except OSError as e:
        raise ParamError(f"{e.filename}: cannot be read ({e.strerror}); `vrex generate` writes it") from None
    except (ValueError, KeyError, TypeError) as e:
        raise ParamError(f"{folder / MANIFEST}: not of a unit ({e}); generate it again") from None


def edited(made: Emitted) -> bool:
    """Whether the Verilog is another than the manifest's."""
    return hashlib.sha256(made.verilog.removesuffix(made.memories).encode()).hexdigest() != made.manifest["sha256"]


def options(made: Emitted) -> dict[str, object]:
    """What `hdl.emit.emit` took besides the parameters."""
    prefix = made.top.removesuffix(made.manifest["unit"]).removesuffix("_")
    return ({"prefix": prefix} if prefix else {}) | ({"memory_bodies": False} if made.memories else {})


def assignments(made: Emitted) -> list[str]:
    """The unit's parameters. What the units of a DRE share is set in all of them, so that they fit together."""
    return list(_assignments(made.manifest["params"], ALL[made.manifest["unit"]][2].rpartition(".")[2]))


def _assignments(params: dict, scope: str) -> Iterator[str]:
    for name, value in params.items():
        if isinstance(value, dict) and "exp_bits" in value:
            yield f"{scope}.{name}=e{value['exp_bits']}m{value['man_bits']}"
        elif isinstance(value, dict):
            yield from _assignments(value, name)
        else:
            word = str(value).lower() if isinstance(value, bool) else value
            yield f"{name}={word}" if name in SHARED or not scope else f"{scope}.{name}={word}"
