"""What golden leaves of a run's passes in a folder: the memory before and after each, its stores, and golden's state.

The memory at the start is one file, `image`. Each pass has a file with what changes in memory before it (the host's
inputs) and by it, so any process can rebuild the memory of any pass.
"""

import hashlib
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from openvrex.golden.atomic_files import replacing, write_atomically
from openvrex.golden.program.bus_memory import STRETCH
from openvrex.golden.program.core_model import Core
from openvrex.golden.program.isa import Instruction, encode
from openvrex.golden.program.lxe_model import Memory, Result
from openvrex.tb.library.pass_stream import Pass, Place
from openvrex.tb.library.pass_time import PassTime

GRAIN = 64  # bytes that a change is kept by


class Change(NamedTuple):
    """What changes in memory.

    at : numbers of the changed grains, int64 [n]
    data : their bytes, uint8 [n, GRAIN]
    unknown : which of these are undefined, bool of the same shape
    """

    at: np.ndarray
    data: np.ndarray
    unknown: np.ndarray


class Image:
    """Bytes of a whole memory and marks of the undefined ones, uint8 and bool [size].

    file : the bytes at the start. Those that this process does not change stay in the system's cache, shared by all.
    """

    def __init__(self, file: Path | BinaryIO, unknown: np.ndarray | None = None):
        self.data = np.memmap(file, np.uint8, "c")
        self.unknown = np.zeros(len(self.data), bool) if unknown is None else unknown  # pages of zeros take no memory

    def apply(self, change: Change) -> None:
        """Make a change."""
        self.data.reshape(-1, GRAIN)[change.at] = change.data
        self.unknown.reshape(-1, GRAIN)[change.at] = change.unknown

    def follow(self, memory: Memory) -> Change:
        """Become equal to golden's memory; returns what has changed."""
        grains = [np.zeros(0, np.int64)]
        for r in memory.regions:
            some = range(-(-r.size // STRETCH)) if r.written is None else np.flatnonzero(r.written).tolist()
            for start in (STRETCH * k for k in some):
                here, there = (slice(at + start, at + min(start + STRETCH, r.size)) for at in (r.base, 0))
                changed = r.data[there] != self.data[here]
                if r.unknown is not None:
                    changed |= r.unknown[there] != self.unknown[here]
                if changed.any():
                    grains.append(np.unique((np.flatnonzero(changed) + here.start) // GRAIN))
                    self.data[here][changed] = r.data[there][changed]
                    self.unknown[here][changed] = False if r.unknown is None else r.unknown[there][changed]
            if r.written is not None:
                r.written[:] = False
        at = np.unique(np.concatenate(grains))
        return Change(at, self.data.reshape(-1, GRAIN)[at], self.unknown.reshape(-1, GRAIN)[at])

    def give(self, change: Change, memory: Memory) -> None:
        """Make a change, to golden's memory too."""
        self.apply(change)
        for r in memory.regions:
            for grain in change.at[(change.at * GRAIN < r.end) & ((change.at + 1) * GRAIN > r.base)].tolist():
                here = slice(max(r.base, grain * GRAIN), min(r.end, (grain + 1) * GRAIN))
                there = slice(here.start - r.base, here.stop - r.base)
                r.data[there] = self.data[here]
                if r.unknown is None and self.unknown[here].any():
                    r.unknown = np.zeros(r.size, bool)
                if r.unknown is not None:
                    r.unknown[there] = self.unknown[here]


@dataclass(frozen=True)
class Played:
    """A pass as golden has executed it.

    name, facts : of `tb.library.pass_stream.Pass`
    program : the name of the file that has its program
    registers : values at the start, by number
    before, after : what the host changes before the pass, and what the pass changes
    at : addresses of the beats that the LXE stores, int64 [n], in program order
    stored, known : their bytes, and which of these are defined, uint8 and bool [n, bus bytes]
    places : the arrays that a message may name
    """

    name: str
    facts: dict[str, Any]
    program: str
    registers: dict[int, int]
    before: Change
    after: Change
    at: np.ndarray
    stored: np.ndarray
    known: np.ndarray
    places: list[Place]

    def save(self, path: Path) -> None:
        """Write the file of the pass."""
        places = [[x.name, x.address, x.shape, np.dtype(x.dtype).name] for x in self.places]
        facts = {"name": self.name, "facts": self.facts, "program": self.program, "places": places}
        facts["registers"] = list(self.registers.items())
        arrays = {"at": self.at, "stored": self.stored, "known": np.packbits(self.known, axis=1)}
        for name, change in (("before", self.before), ("after", self.after)):
            arrays |= {f"{name}_at": change.at, f"{name}_data": change.data}
            arrays[f"{name}_unknown"] = np.packbits(change.unknown, axis=1)
        with replacing(path) as out:
            np.savez_compressed(out, **arrays, json=np.frombuffer(json.dumps(facts).encode(), np.uint8))

    @classmethod
    def load(cls, path: Path) -> "Played":
        """Read the file of a pass."""

        def bits(name: str) -> np.ndarray:
            return np.unpackbits(file[name], axis=1).astype(bool)

        with np.load(path) as file:
            facts = json.loads(file["json"].tobytes())
            places = [Place(name, at, tuple(shape), np.dtype(kind).type) for name, at, shape, kind in facts["places"]]
            parts = [[file[f"{k}_at"], file[f"{k}_data"], bits(f"{k}_unknown")] for k in ("before", "after")]
            arrays = file["at"], file["stored"], bits("known")
        changes = [Change(*part) for part in parts]
        named = facts["name"], facts["facts"], facts["program"], {int(r): value for r, value in facts["registers"]}
        return cls(*named, *changes, *arrays, places)

    def place(self, address: int) -> Place | None:
        """The array that holds the byte at an address."""
        return next((x for x in self.places if x.address <= address < x.address + x.size), None)


class PassFiles:
    """The folder of a run's passes: golden's, and what a process needs to play them on the RTL.

    A file is complete or not there, so a killed run leaves nothing half-written.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.image, self.core, self.state = (folder / name for name in ("image", "core.json", "state"))

    def path(self, number: int) -> Path:
        """The file of a pass."""
        return self.folder / f"{number:05d}.npz"

    def begin(self, memory: Memory) -> Image:
        """The memory at the start of the run; writes its file if it is not there."""
        if not self.image.exists():
            with replacing(self.image) as out:
                for r in memory.regions:
                    out.seek(r.base)
                    out.write(r.data)
                out.truncate(-(-memory.regions[-1].end // 4096) * 4096)
        return Image(self.image)

    def execute(self, number: int, one: Pass, core: Core, image: Image, time: PassTime) -> Played:
        """Run a pass on golden and write its file.

        Its facts get `predicted`, the cycles of the time view, and `stages`, those of its stages.
        """
        before = image.follow(core.memory)
        registers = dict(one.registers)
        core.w_known[:] = core.x_known[:] = False  # no pass may use what the one before left in the scratchpads
        with time.recorded() as what:
            result = one.run()
        time.reset()
        cycles, stages = time.cycles(one.program, registers, what, one.stages)
        predicted = cycles - 1  # the program runs from the cycle after START
        facts = one.facts(result) | {"predicted": predicted, "stages": stages}
        after = image.follow(core.memory)
        named = one.name, facts, self._program(one.program), registers
        out = Played(*named, before, after, *stores(result, time.p.lxe.bus_bytes), list(one.places()))
        out.save(self.path(number))
        write_atomically(self.state, pickle.dumps((number, list(core.registers), core.dre, time.dre)))
        return out

    def restore(self, number: int, core: Core, image: Image, time: PassTime) -> Played:
        """Bring golden's memory to where it was after a pass that was executed; after the last one, golden and the time
        view too.
        """
        out = Played.load(self.path(number))
        image.give(out.before, core.memory)
        image.give(out.after, core.memory)
        last, registers, dre, time_dre = self._last()
        if number == last:
            core.registers[:], time.dre = registers, time_dre
            vars(core.dre).update(vars(dre))  # the host holds this object
        return out

    @property
    def executed(self) -> int:
        """The number of passes that golden has executed."""
        return self._last()[0] + 1

    def _last(self) -> tuple[int, list[int], Any, Any]:
        """The pass that golden has executed last, with registers, DRE and the DRE's time view after it; -1 for none."""
        return pickle.loads(self.state.read_bytes()) if self.state.exists() else (-1, [], None, None)

    def _program(self, program: Sequence[Instruction]) -> str:
        """The name of the file of a program, a line for each word in hexadecimal. Passes of one shape share it."""
        text = "".join(f"{encode(i):x}\n" for i in program).encode()
        name = f"program-{hashlib.sha256(text).hexdigest()[:16]}"
        if not (self.folder / name).exists():
            write_atomically(self.folder / name, text)
        return name


def stores(result: Result, bus: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The beats that the LXE stores: addresses [n], bytes and known bytes [n, bus]."""
    parts = [
        (w.addr + np.arange(0, w.data.size, bus), w.data, np.repeat(w.known, w.data.size // w.known.size))
        for w in result.writes
    ]
    if not parts:
        return np.zeros(0, np.int64), np.zeros((0, bus), np.uint8), np.zeros((0, bus), bool)
    at, data, known = (np.concatenate([part[k].reshape(-1) for part in parts]) for k in range(3))
    return at, data.reshape(-1, bus), known.reshape(-1, bus)
