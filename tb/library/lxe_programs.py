"""Runs programs on golden and on the RTL of the LXE or a core, and compares their memories."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from openvrex.golden.program.isa import Instruction, Status, encode
from openvrex.golden.program.lxe_model import Memory
from openvrex.golden.program.regions import around, confined
from openvrex.hdl.emit import Emitted
from openvrex.tb.library.runner import Run


@dataclass
class Ran:
    """One run of a program on the RTL."""

    status: Status
    pc: int
    cycles: int
    perf: dict[str, int]  # counters since reset, by name
    seen: dict[str, bytes]  # watched regions by name


@dataclass
class Script:
    """The host's script: programs one after the other on one memory, and the memory that golden expects after each.

    For each program call `add`, which keeps the state before the run; run golden; then call `expect`.
    """

    memory: Memory
    watch: Sequence[str] = ()  # names of regions
    before: np.ndarray = field(init=False)
    programs: list[list[str]] = field(default_factory=list)
    runs: list[dict] = field(default_factory=list)
    wants: list[dict[str, tuple[bytes, np.ndarray | None]]] = field(default_factory=list)

    def __post_init__(self):
        self.before = image(self.memory)
        self._last = {r.name: r.data.copy() for r in self.memory.regions}

    def add(self, program: Sequence[Instruction], registers: dict[int, int]) -> None:
        """Add a run of `program`. The host's writes to memory since the last run happen before it."""
        words = [f"{encode(i):x}" for i in program]
        if words not in self.programs:
            self.programs.append(words)
        writes = []
        for r in self.memory.regions:
            new = np.flatnonzero(self._last[r.name] != r.data)
            for part in np.split(new, np.flatnonzero(np.diff(new) > 64) + 1) if len(new) else []:
                at = slice(part[0], part[-1] + 1)
                writes.append([r.base + int(part[0]), r.data[at].tobytes().hex()])
        if not self.runs:
            self.before, writes = image(self.memory), []
        self.runs.append({"program": self.programs.index(words), "registers": dict(registers), "writes": writes})

    def expect(self) -> None:
        """The RTL must leave the memory as golden has just left it."""
        chosen = [r for r in self.memory.regions if r.name in self.watch]
        self.wants.append({r.name: (r.data.tobytes(), None if r.unknown is None else ~r.unknown) for r in chosen})
        self._last = {r.name: r.data.copy() for r in self.memory.regions}

    def play(
        self,
        emitted: Emitted,
        ports: dict[str, int] | None = None,
        pause: float = 0.0,
        limit: int = 100_000,
        seed: int = 1,
        waves: bool = True,
        bench: str = "bench_lxe",
        **how,
    ) -> tuple[list[Ran], np.ndarray]:
        """Run everything on the RTL; the runs, and the memory after them. `how` goes to the bench as it is.

        A core is confined to the regions of golden's memory.
        """
        most = emitted.manifest["params"].get("regions", 0)
        inputs = (confined(around(self.memory, most)) if most else {}) | (ports or {})
        regions = [r for r in self.memory.regions if r.name in self.watch]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "memory.bin")
            self.before.tofile(path)
            config = {
                "programs": self.programs,
                "runs": self.runs,
                "watch": [[r.base, r.size] for r in regions],
                "memory": str(path),
                "ports": inputs,
                "pause": pause,
                "limit": limit,
                **how,
            }
            got = Run(emitted, bench, "program", config, seed, waves)()
            after = np.fromfile(path, np.uint8)
        names = emitted.manifest["counters"]
        out = []
        for run in got["runs"]:
            perf = int(run["perf"], 16)
            counters = {n: perf >> 32 * i & 0xFFFFFFFF for i, n in enumerate(names)}
            seen = {r.name: bytes.fromhex(text) for r, text in zip(regions, run["seen"], strict=True)}
            out.append(Ran(Status(run["status"]["code"]), run["status"]["pc"], run["cycles"], counters, seen))
        return out, after

    def differences(self, ran: Sequence[Ran], after: np.ndarray) -> list[str]:
        """Where the RTL's memory differs from golden's, after each run and at the end. Undefined bytes are not
        compared.
        """
        out = [f"run {k}: {r.status.name} at {r.pc}" for k, r in enumerate(ran) if r.status != Status.DONE]
        out += [] if len(ran) == len(self.runs) else [f"{len(ran)} runs of {len(self.runs)}"]
        for k, (run, want) in enumerate(zip(ran, self.wants, strict=False)):
            for name, (data, known) in want.items():
                wrong = np.flatnonzero(_differ(run.seen[name], data, known))
                out += [f"run {k}: {len(wrong)} bytes of {name} differ, first at {wrong[0]:#x}"] if len(wrong) else []
        return out + self.end_differences(after)

    def end_differences(self, after: np.ndarray) -> list[str]:
        """Where the RTL's memory differs at the end."""
        out = []
        for r in self.memory.regions:
            own = after[r.base : r.end].tobytes()
            wrong = np.flatnonzero(_differ(own, r.data.tobytes(), None if r.unknown is None else ~r.unknown))
            out += [f"end: {len(wrong)} bytes of {r.name} differ, first at {wrong[0]:#x}"] if len(wrong) else []
        return out


def _differ(a: bytes, b: bytes, known: np.ndarray | None) -> np.ndarray:
    wrong = np.frombuffer(a, np.uint8) != np.frombuffer(b, np.uint8)
    return wrong if known is None else wrong & known


def image(memory: Memory) -> np.ndarray:
    """Bytes from address 0 to the end of the last region; gaps between regions are zero."""
    out = np.zeros(-(-memory.regions[-1].end // 4096) * 4096, np.uint8)
    for r in memory.regions:
        out[r.base : r.end] = r.data
    return out
