"""Plays a stream of passes on golden and on the RTL, with workers, and keeps what has ended.

The folder of a run has golden's passes (`tb.library.pass_files`), `passes.jsonl` with a line for each pass that has
ended on the RTL, and the samples of its counters. A run that was stopped goes on from there: nothing runs twice.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, as_completed

from openvrex.golden.atomic_files import replacing, write_atomically
from openvrex.golden.function_params import ParamError, check
from openvrex.golden.program.regions import around, confined
from openvrex.synth.sweep import point_costs
from openvrex.synth.sweep.dask_run import ClusterError
from openvrex.tb.library.core_simulator import LATENCY, CoreSimulator
from openvrex.tb.library.pass_files import PassFiles, Played
from openvrex.tb.library.pass_player import Player, SimulatedCore
from openvrex.tb.library.pass_stream import PassStream
from openvrex.tb.library.pass_time import PassTime
from openvrex.tb.library.runner import BenchError
from openvrex.tb.library.waveforms import Traced, keep, suffix

RECORDS, KEY = "passes.jsonl", "key"

player = cache(Player)  # of this process, for each folder


def play(folder: Path, number: int) -> dict[str, Any]:
    """Play a pass on a worker, and write the samples of its counters; its record, in JSON's types.

    The record has name and facts of the pass, `predicted` (its cycles by the time view), and the fields of
    `tb.library.pass_player.Measured` but the samples and the seconds, which are in the file of the samples.
    """
    one = player(folder)
    measured = one.play(number)
    with replacing(samples_of(folder, number)) as out:
        np.savez_compressed(out, samples=measured.samples.astype(np.uint32), seconds=measured.seconds)
    golden = Played.load(one.files.path(number))
    values = {k: v for k, v in vars(measured).items() if k not in ("samples", "seconds")} | {
        "status": measured.status.name
    }
    return {"number": number, "name": golden.name, **golden.facts, **values}


def samples_of(folder: Path, number: int) -> Path:
    """The file of a pass's samples."""
    return folder / f"samples-{number:05d}.npz"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other commands from running in a folder. Raises `ParamError` if one runs there."""
    folder.mkdir(parents=True, exist_ok=True)
    own = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system drops it with the process, however that ends
    except BlockingIOError:
        os.close(own)
        why = "must be free, and another command runs in it: wait for its end, or choose another folder"
        raise ParamError(f"-o={str(folder)!r}: {why}") from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(own)


class PassEngine:
    """A run of a stream in a folder.

    simulator : the core, with counters to sample
    asked : what decides the stream, in JSON's types. A folder of another stream, core or version is emptied first

    `records` are those of the passes that have ended, by number.
    """

    def __init__(self, folder: Path, stream: PassStream, simulator: CoreSimulator, asked: dict[str, Any]):
        self.folder, self.stream, self.simulator = folder, stream, simulator
        self.files = PassFiles(folder)
        text = json.dumps([point_costs.code(), simulator.key, asked], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        if not (folder / KEY).exists() or (folder / KEY).read_text() != key:
            shutil.rmtree(folder, ignore_errors=True)
            write_atomically(folder / KEY, key)
        self.records: dict[int, dict[str, Any]] = {one["number"]: one for one in self._read()}

    def _read(self) -> Iterator[dict[str, Any]]:
        """The records in the file. A line that a killed run has not ended does not count, and is cut off."""
        file = self.folder / RECORDS
        if file.exists():
            text = file.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
            if whole != text:
                os.truncate(file, len(whole))
            yield from map(json.loads, whole.splitlines())

    def golden(self) -> Iterator[int]:
        """Run the stream on golden, or restore what it has run before; the number of each pass when it has ended."""
        core = self.stream.core
        image, executed = self.files.begin(core.memory), self.files.executed
        time = PassTime(self.simulator.p, core, self.stream.ports, LATENCY)
        for number, one in enumerate(self.stream):
            if number < executed:
                self.files.restore(number, core, image, time)
            else:
                self.files.execute(number, one, core, image, time)
            yield number

    def run(
        self, connect: Callable[[], Client], progress: Callable[[int, int], None] = lambda golden, rtl: None
    ) -> list[dict[str, Any]]:
        """Run all passes on golden, and those without a record on the RTL; all records in the stream's order.

        connect : gives a client of Dask; called when the first pass has to be played
        progress : called with the numbers of passes that golden and the RTL have ended

        Raises `BenchError` if a simulator fails, `ClusterError` if the scheduler is lost.
        """
        self._tell()
        ended: Any = None  # passes as they end on the workers
        passes = 0
        try:
            for number in self.golden():
                passes += 1
                if number not in self.records:
                    if ended is None:
                        client = connect()
                        ended = as_completed(loop=client.loop, raise_errors=False)
                    # Earlier passes first, so that the memory of a worker only goes on.
                    ended.add(client.submit(play, self.folder.absolute(), number, pure=False, priority=-number))
                while ended is not None and ended.has_ready():
                    self._record(next(ended))
                progress(passes, len(self.records))
            for future in ended or ():
                self._record(future)
                progress(passes, len(self.records))
        except OSError as e:
            fix = "results so far are kept: run the same command again"
            raise ClusterError(f"the scheduler is lost; {fix} ({e})") from None
        return [self.records[number] for number in range(passes)]

    def repeat(self, first: int, last: int, waves: bool) -> list[dict[str, Any]]:
        """Play the passes from `first` to `last` once more; their records, which the file does not get.

        waves : leave the waveform of each in the folder `waves`
        Raises `ParamError` for a range that the stream does not have.
        """
        count = 0
        for number in self.golden():
            count = number + 1
            if number == last:
                break
        check(first <= last, "--from", first, f"must be at most --to = {last}")
        check(last < count, "--to", last, f"must be below {count}, the number of passes")
        self._tell(waves)
        out = []
        with closing(Player(self.folder.absolute())) as own:
            for number in range(first, last + 1):
                waveforms = self.folder / "waves"
                measured = own.play(number, waveforms if waves else None)
                if waves:
                    dump = waveforms / f"pass_{number}.{suffix()}"
                    keep(dump, Traced(**vars(self.simulator.core), folder=waveforms), dump.stem)
                golden = Played.load(self.files.path(number))
                out.append({"number": number, "name": golden.name, "differences": measured.differences})
        return out

    def samples(self, number: int) -> np.ndarray:
        """Samples of the counters of a pass that has ended, int64 [n, 1 + counts]."""
        with np.load(samples_of(self.folder, number)) as file:
            return file["samples"].astype(np.int64)

    def seconds(self, number: int) -> float:
        """CPU seconds that the simulator took for a pass that has ended."""
        with np.load(samples_of(self.folder, number)) as file:
            return float(file["seconds"])

    def _tell(self, waves: bool = False) -> None:
        """Build the simulator, and write what a process needs to know of it."""
        names = self.simulator.core.manifest["counters"]
        path = str(self.simulator.build(waves))
        p = self.simulator.p
        ports = self.stream.ports | (confined(around(self.stream.core.memory, p.regions)) if p.regions else {})
        SimulatedCore(path, p.lxe.bus_bytes, names, ports).save(self.folder)

    def _record(self, future: Any) -> None:
        if future.status not in ("finished", "error"):
            raise OSError(f"a pass is {future.status}")
        if future.status == "error":
            error = future.exception()
            raise error if isinstance(error, BenchError) else BenchError(f"a worker failed: {error!r}")
        record = future.result()
        with (self.folder / RECORDS).open("ab") as out:
            out.write(json.dumps(record).encode() + b"\n")
            os.fsync(out.fileno())
        self.records[record["number"]] = record
