"""Plays a pass on the RTL, from golden's memory before it, and compares every store as the RTL makes it.

A process needs the run's folder and the path of a simulator, nothing else, so passes are dealt to workers anywhere.
"""

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.program.isa import Status
from openvrex.tb.library.core_simulator import ended, requests
from openvrex.tb.library.pass_files import GRAIN, Image, PassFiles, Played
from openvrex.tb.library.runner import BenchError

CHUNK = 1024  # beats that are compared at once


@dataclass(frozen=True)
class Measured:
    """A pass on the RTL.

    status, pc : how the program ended, and the instruction issued last
    cycles : from the first cycle that the program runs to its end
    beats, compared : beats that the LXE stored, and bytes that were compared with golden's: stored and in memory
    differences : where the pass differs from golden; none if it is equal
    counters : by name, since the reset before the pass
    samples : int64 [n, 1 + sampled counts]: cycle, counts
    seconds : of CPU that the simulator took
    """

    status: Status
    pc: int
    cycles: int
    beats: int
    compared: int
    differences: list[str]
    counters: dict[str, int]
    samples: np.ndarray = field(repr=False)
    seconds: float = 0.0


class Comparison:
    """Compares written beats with golden's, as they come, up to the first that differs.

    golden : the pass
    before : the memory before it
    memory : the same bytes; becomes what the RTL makes of them

    `end` tells the differences: the first beat that the LXE stores differently, and the arrays that golden and the RTL
    leave differently, also those that retriever and DRE write.
    """

    def __init__(self, golden: Played, before: Image, memory: np.ndarray, bus: int):
        self.golden, self.before, self.memory, self.bus = golden, before, memory, bus
        self.beats = self.compared = 0
        self.first = ""  # the first difference
        self._touched = [golden.after.at]
        # A beat as `core_run.cpp` writes it.
        self.record = np.dtype([("port", "u1"), ("word", "<i8"), ("strobes", "u1", -(-bus // 8)), ("data", "u1", bus)])

    def take(self, beats: np.ndarray) -> None:
        """Compare beats (`record`) and write them to memory."""
        at = beats["word"] * self.bus
        marks = np.unpackbits(beats["strobes"], axis=1, bitorder="little")[:, : self.bus].astype(bool)
        for start, mark, data in zip(at.tolist(), marks, beats["data"], strict=True):
            self.memory[start : start + self.bus][mark] = data[mark]
        self._touched.append(np.unique((at[:, None] + np.arange(0, self.bus, GRAIN)) // GRAIN))
        own = beats["port"] == 0
        if not self.first:
            self.first = self._difference(at[own], beats["data"][own])
        self.beats += int(own.sum())

    def _difference(self, at: np.ndarray, data: np.ndarray) -> str:
        """The first difference of beats of the LXE, empty if there is none."""
        g, place = self.golden, slice(self.beats, self.beats + len(at))
        want_at, want, known = g.at[place], g.stored[place], g.known[place]
        n = len(want_at)
        wrong = (at[:n] != want_at) | ((data[:n] != want) & known).any(axis=1)
        self.compared += int(known.sum())
        if not wrong.any():
            return f"more than the {len(g.at)} beats that golden stores" if len(at) > n else ""
        k = int(np.argmax(wrong))
        beat = f"beat {self.beats + k} of {len(g.at)}"
        if at[k] != want_at[k]:
            return f"{beat} is stored to {self._where(at[k])}, golden's to {self._where(want_at[k])}"
        return f"{beat}: {self._element(int(want_at[k]), data[k], want[k], known[k])}"

    def end(self) -> list[str]:
        """A line for the first store that differs or is missing, and one for each array that differs."""
        g, out, named = self.golden, [self.first] if self.first else [], set()
        if self.beats < len(g.at):
            out.append(f"{self.beats} beats are stored, golden stores {len(g.at)}")
        at = np.unique(np.concatenate(self._touched))
        have, want, unknown = (
            x.reshape(-1, GRAIN)[at] for x in (self.memory, self.before.data, self.before.unknown)
        )  # copies
        changed = np.searchsorted(at, g.after.at)
        want[changed], unknown[changed] = g.after.data, g.after.unknown
        self.compared += int((~unknown).sum())
        wrong = (have != want) & ~unknown
        for k in np.flatnonzero(wrong.any(axis=1)).tolist():
            first = int(at[k]) * GRAIN
            place = g.place(first + int(np.argmax(wrong[k])))
            if place not in named:
                named.add(place)
                out.append(f"at the end: {self._element(first, have[k], want[k], ~unknown[k])}")
        return out

    def _where(self, address: int) -> str:
        place = self.golden.place(int(address))
        return f"{int(address):#x} ({place.name})" if place else f"{int(address):#x}"

    def _element(self, address: int, have: np.ndarray, want: np.ndarray, known: np.ndarray) -> str:
        """The first of some bytes that differs, as an element of its array."""
        first = address + int(np.argmax((have != want) & known))
        place = self.golden.place(first)
        if place is None:
            return f"byte at {first:#x}: RTL {have[first - address]}, golden {want[first - address]}"
        start = first - (first - place.address) % place.item
        index = [int(i) for i in np.unravel_index((start - place.address) // place.item, place.shape)]
        at = slice(start - address, start - address + place.item)
        rtl, golden = (np.frombuffer(x[at].tobytes(), place.dtype)[0] for x in (have, want))
        return f"{place.name} {index}: RTL {rtl}, golden {golden}"


@dataclass(frozen=True)
class SimulatedCore:
    """The simulated core of a run, as a file of its folder tells it to the processes.

    simulator : path of the simulator · bus : bytes of a beat · counters : names of the core's counters
    ports : values of the inputs that stay constant
    """

    simulator: str
    bus: int
    counters: list[str]
    ports: dict[str, int]

    def save(self, folder: Path) -> None:
        """Write the file."""
        write_atomically(PassFiles(folder).core, json.dumps(asdict(self)))


class Player:
    """Plays passes of a run's folder (`PassFiles`), in any order.

    The process keeps a file with the memory before the pass played last, so that a later pass needs only what has
    changed since. Simulators map it and do not change it.
    """

    def __init__(self, folder: Path):
        self.files = PassFiles(folder)
        self.core = SimulatedCore(**json.loads(self.files.core.read_text()))
        # A file without a name, so that a killed process leaves nothing.
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._made = -1  # changes in the file: two a pass; none while there is no file
        self._unknown = np.zeros(0, bool)

    def close(self) -> None:
        """Free the file."""
        self._file.close()

    def play(self, number: int, waves: Path | None = None) -> Measured:
        """Play a pass. `waves` is the folder for its waveform, which the simulator must have been built for.

        Raises `BenchError` if the simulator fails.
        """
        golden = Played.load(self.files.path(number))
        before = self._before(number)
        compare = Comparison(golden, before, np.memmap(self._file, np.uint8, "c"), self.core.bus)
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            words = [int(line, 16) for line in (self.files.folder / golden.program).read_text().split()]
            (work / "requests").write_text(requests(words, golden.registers))
            # Registers and memories start with random bits, in each pass others.
            start = ["+verilator+rand+reset+2", f"+verilator+seed+{1 + number}"]
            seconds = self._simulate(compare, work, start + ["--trace"] * bool(waves))
            if waves:
                waves.mkdir(parents=True, exist_ok=True)
                dump = next(work.glob("dump.*"))
                shutil.move(dump, waves / f"pass_{number}{dump.suffix}")
            cycles, bits, perf = (int(x, 16) for x in (work / "end").read_text().split())
            rows = (work / "samples").read_text().split()
        status, pc = ended(bits)
        differences = compare.end()
        if status != Status.DONE:
            differences.append(f"ends with {status.name} at instruction {pc}")
        raw = np.frombuffer(bytes.fromhex("".join(rows)), ">u4").reshape(len(rows), -1).astype(np.int64)
        samples = np.concatenate([raw[:, 1:2], raw[:, :1:-1]], 1)  # a cycle has two words; the last count comes first
        samples[:, 1:] -= samples[0, 1:]
        counters = {name: perf >> 32 * k & 0xFFFFFFFF for k, name in enumerate(self.core.counters)}
        told = differences, counters, samples, seconds
        return Measured(status, pc, cycles, compare.beats, compare.compared, *told)

    def _simulate(self, compare: Comparison, work: Path, more: list[str]) -> float:
        """Run the simulator in a folder and compare its stores as they come; returns the CPU seconds that it took."""
        stores, end = os.pipe()
        image = self._file.fileno()
        arguments = [f"+image=/dev/fd/{image}", f"+stores={end}", *(f"+{k}={v:x}" for k, v in self.core.ports.items())]
        arguments += more
        with (work / "log").open("wb") as log, os.fdopen(stores, "rb") as pipe:
            command = [self.core.simulator, *arguments]
            process = subprocess.Popen(command, cwd=work, pass_fds=[image, end], stdout=log, stderr=log)
            os.close(end)
            while chunk := pipe.read(CHUNK * compare.record.itemsize):
                compare.take(np.frombuffer(chunk, compare.record))
            _, status, used = os.wait4(process.pid, 0)
            code = process.returncode = os.waitstatus_to_exitcode(status)
        if code or not (work / "end").exists():
            log = (work / "log").read_text()[-2000:]
            raise BenchError(f"{compare.golden.name}: the simulator ends with {code}: {compare.first}\n{log}")
        return used.ru_utime + used.ru_stime

    def _before(self, number: int) -> Image:
        """The memory before a pass, which is also in the process's file."""
        if not 0 <= self._made <= 2 * number + 1:
            self._file.seek(0)
            with self.files.image.open("rb") as start:
                shutil.copyfileobj(start, self._file, 1 << 24)
            self._file.flush()
            self._made, self._unknown = 0, np.zeros(self._file.tell(), bool)
        data = np.memmap(self._file, np.uint8, "r+").reshape(-1, GRAIN)
        while self._made < 2 * number + 1:
            one = Played.load(self.files.path(self._made // 2))
            change = one.after if self._made % 2 else one.before
            data[change.at], self._unknown.reshape(-1, GRAIN)[change.at] = change.data, change.unknown
            self._made += 1
        return Image(self._file, self._unknown)
