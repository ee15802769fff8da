"""Reader of a folder that `vrex generate` wrote: its Verilog, and the parameters of its manifest as `-p` takes them."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from openvrex.golden.function_params import ParamError, check
from openvrex.golden.text_files import read_text
from openvrex.hdl.emit import ALL, Emitted
from openvrex.hdl.firtool_memories import MemoryPorts
from openvrex.hdl.params import FOLLOWS, SystemParams, listed, named, part_of
from openvrex.hdl.writer.circt import Language

MANIFEST = "manifest.json"


def read(folder: Path) -> Emitted:
    """Reads the unit in the folder, edited or not. Raises: `ParamError` for a folder without one."""
    try:
        manifest = json.loads(read_text(folder / MANIFEST))
        top, unit = manifest["top"], manifest["unit"]
        check(isinstance(manifest["params"], dict) and unit in ALL, "unit", unit, f"must be one of {', '.join(ALL)}")
        file = folder / f"{top}{Language(manifest['language']).suffix}"
        apart = folder / f"{top}_memories.v"  # of `--no-memory-bodies`: black boxes, or the macros in their place
        memories = read_text(apart) if apart.exists() else ""
        return Emitted(read_text(file) + memories, top, manifest, memories)
    except OSError as e:
        raise ParamError(f"{e.filename}: cannot be read ({e.strerror}); `vrex generate` writes it") from None
    except (ValueError, KeyError, TypeError) as e:
        raise ParamError(f"{folder / MANIFEST}: not of a unit ({e}); generate it again") from None


def edited(made: Emitted) -> bool:
    """Whether the Verilog differs from the one that the manifest describes."""
    return hashlib.sha256(made.verilog.removesuffix(made.memories).encode()).hexdigest() != made.manifest["sha256"]


def edits(folder: Path) -> list[Path]:
    """The unit's files that were edited since they were generated; none in a folder of an older version."""
    try:
        made = read(folder)
    except ParamError:
        return []
    memories = hashlib.sha256(made.memories.encode()).hexdigest()
    verilog = [folder / made.file] if edited(made) else []
    boxes = [folder / f"{made.top}_memories.v"] if made.memories else []
    return verilog + (boxes if made.manifest.get("memories_sha256") != memories else [])


def options(made: Emitted) -> dict[str, object]:
    """The arguments of `hdl.emit.emit` besides the parameters."""
    prefix = made.top.removesuffix(made.manifest["unit"]).removesuffix("_")
    return (
        ({"prefix": prefix} if prefix else {})
        | ({"memory_bodies": False} if made.memories else {})
        | ({"memory_ports": MemoryPorts(ports)} if (ports := made.manifest.get("memory_ports")) else {})
        | {"bist": made.manifest.get("bist", False)}
        | {"language": Language(made.manifest["language"]), "lines": made.manifest["source_lines"]}
    )


def assignments(made: Emitted, alone: bool = True) -> list[str]:
    """The unit's parameters as assignments; a size of several units comes once.

    alone : they are for the unit; otherwise for a system, in which another unit may own a size (`FOLLOWS`)

    Optional hardware that is off, which a manifest leaves out, comes as well: a preset may have it.
    """
    path = ALL[made.manifest["unit"]][2]
    unit = path.rpartition(".")[2]
    off = {
        name: f"{name}={word}"
        for name, (word, own) in listed(part_of(SystemParams(), path), unit).items()
        if own.optional
    }
    found = dict(_values(made.manifest["params"], unit))
    own = {leaf: word for leaf, word in found.items() if FOLLOWS.get(leaf) not in found}
    names = {leaf: named(*(leaf if alone else FOLLOWS.get(leaf, leaf))) for leaf in own}
    return list((off | {names[leaf]: f"{names[leaf]}={word}" for leaf, word in own.items()}).values())


def _values(params: dict, unit: str) -> Iterator[tuple[tuple[str, str], object]]:
    for name, value in params.items():
        if isinstance(value, dict) and "exp_bits" in value:
            yield (unit, name), f"e{value['exp_bits']}m{value['man_bits']}"
        elif isinstance(value, dict):
            yield from _values(value, name)
        else:
            yield (unit, name), str(value).lower() if isinstance(value, bool) else value
