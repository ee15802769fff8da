"""Long runs of a core on the RTL: whole decoder layers, with every store and every byte of memory compared with golden.

The memory is written in Verilog (`tb/library/axi_memory.v`), so no Python slows Verilator down.
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from golden.program.isa import Instruction, Status, encode
from golden.program.lxe_model import Memory, Write
from hdl.bus.axi import HOST_PREFIX, PREFIX, TABLE_PREFIX, port_members
from hdl.emit import Emitted
from hdl.instruction_layouts import status_layout
from hdl.params import CoreParams
from tb.library.runner import ROOT, Run

LATENCY = 32  # cycles from a read's address to its first beat
LEAST = 25  # address bits of the smallest memory: runs of similar layers share a simulator
EVERY = 64  # cycles between samples of the counters


@dataclass(frozen=True)
class Place:
    """An array in memory that is compared: address of its first byte, shape, type."""

    name: str
    address: int
    shape: tuple[int, ...]
    dtype: type

    @property
    def size(self) -> int:
        """Its bytes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclass
class Ran:
    """One run on the RTL.

    samples : [n, 1 + counters], cycle and counts since the run's start
    perf : counters since reset, by name
    differences : where the run differs from golden
    """

    status: Status
    cycles: int
    samples: np.ndarray
    perf: dict[str, int]
    differences: list[str]


@dataclass
class _Expected:
    label: str
    program: int
    registers: dict[int, int]
    patch: tuple[np.ndarray, np.ndarray]  # the host's writes before the run: words, their bytes
    writes: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # golden's stores: addresses, bytes, known bytes
    arrays: list[tuple[Place, bytes, np.ndarray | None]] = field(default_factory=list)


@dataclass(frozen=True)
class _Written:
    """Written beats: port (0: LXE, 1: retriever, 2: tables), word of the memory, mask of the written bytes, bytes."""

    port: np.ndarray
    word: np.ndarray
    strobes: np.ndarray
    data: np.ndarray


def with_memory(emitted: Emitted, p: CoreParams, size: int) -> Emitted:
    """The core of `emitted` with a memory of at least `size` bytes at all ports, as module `layers`."""
    bus, words = p.lxe.bus_bytes, (1 << max(LEAST, (size - 1).bit_length())) // p.lxe.bus_bytes
    prefixes = (PREFIX, HOST_PREFIX, TABLE_PREFIX)
    inner = [name for prefix in prefixes for name in port_members(p, prefix)]
    ports = [x for x in emitted.manifest["ports"] if x["name"] not in inner]
    ports += [{"name": "run", "dir": "in", "width": 16}, {"name": "running", "dir": "out", "width": 1}]
    code = status_layout()["code"]
    widths = {x["name"]: x["width"] for x in emitted.manifest["ports"]}
    head = ", ".join(f"{x['dir']}put [{x['width'] - 1}:0] {x['name']}" for x in ports)
    wires = "".join(f"  wire [{widths[n] - 1}:0] {n};\n" for n in inner)
    core = ", ".join(f".{n}({n})" for n in widths)
    names = ["arvalid", "arready", "araddr", "arlen", "awvalid", "awready", "awaddr"]
    names += [
        *("rvalid", "rready", "rdata", "rlast", "wvalid", "wready", "wdata", "wstrb", "wlast"),
        "bvalid",
        "bready",
    ]
    memory = ", ".join(f".{n}({{{', '.join(x + n for x in reversed(prefixes))}}})" for n in names)
    zeros = "".join(f"  assign {a}{n} = 0;\n" for a in prefixes for n in ("rid", "rresp", "bid", "bresp"))
    text = (
        f"module layers({head});\n{wires}{zeros}  {emitted.top} core({core});\n"
        f"  assign running = status[{code.offset} +: {code.width}] == {Status.RUNNING};\n"
        f"  axi_memory #(.BYTES({bus}), .WORDS({words}), .LATENCY({LATENCY}), .PORTS({len(prefixes)})) memory(\n"
        f"    .clk(clk), .rst(rst), .run(run), {memory});\nendmodule\n"
    )
    verilog = "\n".join([emitted.verilog, (ROOT / "tb" / "library" / "axi_memory.v").read_text(), text])
    return replace(
        emitted, verilog=verilog, top="layers", manifest=emitted.manifest | {"top": "layers", "ports": ports}
    )


class Session:
    """Programs one after the other on one memory: first all on golden, then all on the RTL.

    For each program call `add`, which keeps the state before the run; run golden; then call `expect`. `play` runs all
    programs on the RTL.
    """

    def __init__(self, memory: Memory, p: CoreParams, counters: Sequence[Sequence[str]]):
        self.memory, self.bus, self.counters = memory, p.lxe.bus_bytes, [list(names) for names in counters]
        self.size = -(-memory.regions[-1].end // 4096) * 4096
        self.programs: list[list[str]] = []
        self.runs: list[_Expected] = []
        self._last = np.zeros(0, np.uint8)

    def _image(self) -> np.ndarray:
        out = np.zeros(self.size, np.uint8)
        for r in self.memory.regions:
            out[r.base : r.end] = r.data
        return out

    def add(self, label: str, program: Sequence[Instruction], registers: dict[int, int]) -> None:
        """Add a run of `program`. The host's writes since the last run happen before it."""
        words = [f"{encode(i):x}" for i in program]
        if words not in self.programs:
            self.programs.append(words)
        now = self._image().reshape(-1, self.bus)
        changed = (now != self._last).any(axis=1) if self.runs else np.ones(len(now), bool)
        at = np.flatnonzero(changed)
        self.runs.append(_Expected(label, self.programs.index(words), registers, (at, now[at])))

    def expect(self, writes: Iterable[Write], places: Iterable[Place]) -> None:
        """The RTL must store `writes` in this order, and leave the memory at `places` as it is now."""
        run, bus = self.runs[-1], self.bus
        parts = [(w.addr + np.arange(0, w.data.size, bus), w.data, np.repeat(w.known, w.data.size // w.known.size))
                 for w in writes]  # fmt: skip
        run.writes = tuple(np.concatenate([part[k].reshape(-1) for part in parts]) for k in range(3))
        for place in places:
            r = self.memory.region(place.address, place.size)
            at = slice(place.address - r.base, place.address - r.base + place.size)
            known = None if r.unknown is None else ~r.unknown[at]
            run.arrays.append((place, r.data[at].tobytes(), known))
        self._last = self._image().reshape(-1, bus)

    def play(
        self,
        emitted: Emitted,
        ports: dict[str, int],
        limit: int = 4_000_000,
        seed: int = 1,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Ran]:
        """Run everything on `emitted` (of `with_memory`), up to the first run that does not end well."""
        names = emitted.manifest["counters"]
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
            for k, run in enumerate(self.runs):
                Path(folder, f"memory{k + 1}.hex").write_text(_hex(*run.patch))
            config = {
                "folder": folder,
                "programs": self.programs,
                "ports": ports,
                "runs": [{"program": r.program, "registers": r.registers} for r in self.runs],
                "counters": [[names.index(n) for n in summed] for summed in self.counters],
                "every": EVERY,
                "limit": limit,
            }
            # a waveform of so many cycles would be useless
            job = pool.submit(Run(emitted, "tb.benches.bench_layers", "layers", config, seed, waves=False))
            while not wait([job], timeout=0.5).done:
                done = Path(folder, "progress")
                progress(int(done.read_text() or 0) if done.exists() else 0)
            got = job.result()["runs"]
            written = _log(Path(folder, "writes.log"))
        out, memory = [], np.zeros((self.size // self.bus, self.bus), np.uint8)
        for run, had, beats in zip(self.runs, got, written, strict=False):
            memory[run.patch[0]] = run.patch[1]
            differences = self._differences(run, memory, beats)
            status = Status(had["status"]["code"])
            if status != Status.DONE:
                differences.append(f"{run.label}: ends with {status.name} at instruction {had['status']['pc']}")
            perf = int(had["perf"], 16)
            counters = {n: perf >> 32 * i & 0xFFFFFFFF for i, n in enumerate(names)}
            samples = np.array(had["samples"])
            samples[:, 1:] -= samples[0, 1:]
            out.append(Ran(status, had["cycles"], samples, counters, differences))
        return out

    def _differences(self, run: _Expected, memory: np.ndarray, written: _Written) -> list[str]:
        """Apply a run's writes to `memory`; list where they or the memory differ from golden's."""
        for word, marks, data in zip(written.word.tolist(), written.strobes, written.data, strict=True):
            memory[word, marks] = data[marks]
        return [*self._stores(run, written), *self._arrays(run, memory.reshape(-1))]

    def _stores(self, run: _Expected, written: _Written) -> list[str]:
        own = written.port == 0
        at, got = written.word[own] * self.bus, written.data[own]
        want_at, want, known = run.writes
        want, known = want.reshape(-1, self.bus), known.reshape(-1, self.bus)
        n = min(len(at), len(want_at))
        wrong = (at[:n] != want_at[:n]) | ((got[:n] != want[:n]) & known[:n]).any(axis=1)
        if wrong.any():
            k = int(np.argmax(wrong))
            names = [x.name for x, _, _ in run.arrays if x.address <= want_at[k] < x.address + x.size]
            where = f"to {at[k]:#x}, golden's to {want_at[k]:#x} ({', '.join(names)})"
            return [f"{run.label}: beat {k} of {len(want_at)} that are stored differs: {where}"]
        same = len(at) == len(want_at)
        return [] if same else [f"{run.label}: {len(at)} beats are stored, golden stores {len(want_at)}"]

    def _arrays(self, run: _Expected, memory: np.ndarray) -> list[str]:
        out = []
        for place, data, known in run.arrays:
            have = memory[place.address : place.address + place.size]
            wrong = have != np.frombuffer(data, np.uint8)
            wrong = np.flatnonzero(wrong if known is None else wrong & known) // np.dtype(place.dtype).itemsize
            if len(wrong):
                index = [int(i) for i in np.unravel_index(wrong[0], place.shape)]
                rtl, golden = (np.frombuffer(bytes(x), place.dtype)[wrong[0]] for x in (have, data))
                numbers = f"{len(set(wrong.tolist()))} numbers differ, the first at {index}"
                out.append(f"{run.label}: {place.name}: {numbers}: RTL {rtl}, golden {golden}")
        return out


def _hex(at: np.ndarray, words: np.ndarray) -> str:
    """Words for `$readmemh`, with an address where they are not consecutive."""
    size = 2 * words.shape[1] if len(words) else 0
    text = words[:, ::-1].tobytes().hex() if len(words) else ""
    starts = np.diff(at, prepend=-2) != 1
    return "".join(
        (f"@{a:x}\n" if s else "") + text[i * size : (i + 1) * size] + "\n"
        for i, (a, s) in enumerate(zip(at.tolist(), starts.tolist(), strict=True))
    )


def _log(path: Path) -> list[_Written]:
    """The written beats of each run, in order."""
    runs: list[list[list[str]]] = []
    for line in path.read_text().splitlines():
        if line.startswith("run"):
            runs.append([])
        else:
            runs[-1].append(line.split())
    return [_written(beats) for beats in runs]


def _written(beats: list[list[str]]) -> _Written:
    def column(k: int) -> np.ndarray:
        """Bytes of column `k`'s hexadecimal numbers, the lowest first."""
        digits = len(beats[0][k]) + len(beats[0][k]) % 2 if beats else 0
        raw = bytes.fromhex("".join(beat[k].zfill(digits) for beat in beats))
        return np.frombuffer(raw, np.uint8).reshape(len(beats), -1)[:, ::-1]

    port, word = (np.array([int(beat[k], 16) for beat in beats], np.int64) for k in (0, 1))
    return _Written(port, word, np.unpackbits(column(2), axis=1, bitorder="little").astype(bool), column(3))
