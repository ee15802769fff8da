"""Golden model of the LXE: executes a program and defines every number that it leaves behind.

The model executes instructions in program order (`golden.program.isa`). The hardware's engines run side by side. Both
leave the same numbers if semaphores and streams order all accesses; `simulate` tells whether they do.

The model follows undefined numbers lane by lane. A tree without weights gives an undefined lane of a result. Such a
lane may lie behind `keep` and be stored in the rest of a word. The model raises `LxeError` if a program keeps, reduces
or multiplies it.

A sum may run over several MULs of one row and one tile each, with `start` in the first and `end` in the last. Together
they have at most 1,024 chunks. The result is `golden.arithmetic.dot` of all their operands, chunk by chunk.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from openvrex.golden.arithmetic.dot import CHUNKS, dot
from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.packed_weights import Packing, expanded
from openvrex.golden.arithmetic.vector import Machine, Step
from openvrex.golden.program.bus_memory import BusError, Memory, Region
from openvrex.golden.program.deadlock_hazard_check import Hazard, Order, play, simulate
from openvrex.golden.program.isa import (
    ADDR_BITS,
    ENGINE,
    NUMBER_BITS,
    SEMAPHORES,
    SIGNS,
    Engine,
    Instruction,
    LoadTo,
    LxeFormat,
    Opcode,
    Queue,
    Status,
    StoreTo,
    expanded_places,
    expands,
    packs_signs,
    sets_register,
    unpacks,
    words_taken,
)
from openvrex.golden.program.regions import Allow, Reach, reaches
from openvrex.golden.program.sequencer_model import Issue, LxeError, bits, register_values, sequence
from openvrex.golden.program.vpe_known_lanes import Known

__all__ = ["BusError", "Hazard", "Lxe", "LxeError", "Memory", "Order", "Region", "Result", "Write", "play", "simulate"]


class Write(NamedTuple):
    """A word that STORE has written to memory: its bytes, and which of its lanes are defined (bool [lanes])."""

    addr: int
    data: np.ndarray
    known: np.ndarray


class Taken(NamedTuple):
    """An instruction that has waited or signalled: its semaphores, and the counts of all 16 after it."""

    pc: int
    wait: list[int]
    signal: list[int]
    counts: tuple[int, ...]


@dataclass
class Result:
    """The record of a program's execution.

    words : words of each engine: LOAD and STORE count words moved, MUL results, VECTOR words through the lanes or
        stored, RETRIEVE copied entries
    instructions : instructions of each engine, skipped ones included
    chunks : steps of the DPE
    writes : every word stored to memory, in order
    semaphores : every instruction that waited or signalled, in order
    issues : every instruction with its registers resolved, in order, for `golden.program.deadlock_hazard_check.play`
    """

    words: dict[Engine, int] = field(default_factory=lambda: dict.fromkeys(Engine, 0))
    instructions: dict[Engine, int] = field(default_factory=lambda: dict.fromkeys(Engine, 0))
    chunks: int = 0
    writes: list[Write] = field(default_factory=list)
    semaphores: list[Taken] = field(default_factory=list)
    issues: list[Issue] = field(default_factory=list)


class Part(NamedTuple):
    """Words that one instruction has put in a queue: bits of the lanes, and which lanes are defined."""

    words: np.ndarray  # uint32 [words, lanes]
    known: np.ndarray  # bool [words, lanes]
    kind: str  # FP32, BF16 (score codes, too) or signs
    keep: int  # lanes in use of the last word


class Words:
    """A queue of words between two engines; `name` and `lanes` are for messages and sizes."""

    def __init__(self, name: str, lanes: int):
        self.name, self.lanes = name, lanes
        self.parts: deque[Part] = deque()

    def __len__(self) -> int:
        return sum(len(part.words) for part in self.parts)

    def put(self, words: np.ndarray, known: np.ndarray, kind: str, keep: int | None = None) -> None:
        """Append words; `keep` lanes of the last one are in use, all if not given."""
        self.parts.append(Part(words, known, kind, keep or self.lanes))

    def take(self, i: Issue, count: int, *kinds: str) -> tuple[np.ndarray, np.ndarray, str]:
        """Take the next `count` words: bits, marks and kind. Raises `LxeError` for too few words or another kind."""
        out, left = [], count
        while left:
            part = self.row(i, *kinds, count=count, found=count - left)
            if len(part.words) > left:
                self.parts.appendleft(part._replace(words=part.words[left:], known=part.known[left:]))
            out.append(part)
            left -= min(left, len(part.words))
        words, known = (np.concatenate([part[k] for part in out])[:count] for k in (0, 1))
        return words, known, out[-1].kind

    def row(self, i: Issue, *kinds: str, count: int = 1, found: int = 0) -> Part:
        """Take the words that one `put` has appended. Raises `LxeError` for an empty queue or another kind.

        count, found : words wanted, words found so far, for the message
        """
        if not self.parts:
            reason = f"takes {count} words of {self.name}, which has {found}: let what fills it stand before"
            raise i.error(reason, Status.DEADLOCK)
        if self.parts[0].kind not in kinds:
            raise i.error(f"takes {' or '.join(kinds)} words of {self.name}, whose next one is {self.parts[0].kind}")
        return self.parts.popleft()


class Lxe:
    """One LXE with its memory. Scratchpads, banks, scalars and registers keep their contents between programs.

    w, w_known : weights, uint16 BF16 bits and bool [trees, words, lanes]; True where a number is defined
    x, x_known : activations, the same [words, lanes]
    registers : the 16 registers
    reach : regions outside which it reads and writes nothing; None: it is not confined
    vpe : the golden VPE, `golden.arithmetic.vector.Machine`
    """

    def __init__(self, fmt: LxeFormat, memory: Memory):
        self.fmt, self.memory = fmt, memory
        self.w = np.zeros((fmt.lanes, fmt.w_depth, fmt.lanes), np.uint16)
        self.x = np.zeros((fmt.x_depth, fmt.lanes), np.uint16)
        self.w_known, self.x_known = np.zeros(self.w.shape, bool), np.zeros(self.x.shape, bool)
        self.registers = register_values({})
        self.reach: Sequence[Reach] | None = None
        self.vpe = Machine(fmt.vector)
        self.known = Known(fmt.vector)

    def run(self, program: Sequence[Instruction], registers: dict[int, int] | None = None) -> Result:
        """Execute a program from its first instruction to HALT; `registers` are set before.

        Raises `LxeError`, which names the instruction and the word, for a fault that the hardware reports (`status`),
        a wait for a semaphore that no instruction before has signalled, the use of an undefined number, and a queue
        that is empty too early or not empty at the end.
        """
        self._result = result = Result()
        self.registers = register_values(dict(enumerate(self.registers)) | (registers or {}))
        self._queues = [Words(f"the queue of {q.name} words", self.fmt.lanes) for q in Queue]
        self._out = Words("the VPE's output", self.fmt.lanes)
        self._sum: list[tuple[int, np.ndarray, np.ndarray, np.ndarray, int]] = []
        counts = [0] * SEMAPHORES
        execute = {
            Opcode.LOAD: self._load,
            Opcode.MUL: self._mul,
            Opcode.VECTOR: self._vector,
            Opcode.STORE: self._store,
            Opcode.RETRIEVE: self.retrieve,
        }
        for i in sequence(program, self.registers, self.fmt):
            result.issues.append(i)
            wait, signal = bits(i["wait"]), bits(i["signal"])
            for s in wait:
                if not counts[s]:
                    raise i.error(f"waits for semaphore {s}, which nothing before it has signalled", Status.DEADLOCK)
                counts[s] -= 1
            if i.op in execute:
                result.instructions[ENGINE[i.op]] += 1
                if not i.skip:
                    try:
                        result.words[ENGINE[i.op]] += execute[i.op](i)
                    except BusError as e:
                        raise i.error(str(e), Status.BUS) from None
            for s in signal:
                counts[s] += 1
                i.check_counter(s, counts[s])
            if wait or signal:
                result.semaphores.append(Taken(i.pc, wait, signal, tuple(counts)))
        for queue in (*self._queues, self._out):
            if len(queue):
                raise i.error(
                    f"{len(queue)} words are left in {queue.name}: add an instruction that takes them", Status.DEADLOCK
                )
        if self._sum:
            raise i.error(f"the sum that instruction {self._sum[0][0]} began has no end: set end=1 in its last MUL")
        return result

    def read(
        self, addr: int, rows: int, row_bytes: int, stride: int, by: Allow = Allow.LOAD
    ) -> tuple[np.ndarray, np.ndarray]:
        """`Memory.words`, if the core may read there."""
        for k in range(rows if self.reach is not None else 0):
            self._confined((addr + k * stride) % (1 << ADDR_BITS), row_bytes, by)
        return self.memory.words(addr, rows, row_bytes, stride)

    def write(self, addr: int, data: np.ndarray, known: np.ndarray, by: Allow = Allow.STORE) -> None:
        """`Memory.write`, if the core may write there."""
        self._confined(addr, data.size, by)
        self.memory.write(addr, data, known)

    def _confined(self, addr: int, size: int, by: Allow) -> None:
        if self.reach is not None and not reaches(self.reach, addr, size, by):
            raise BusError(f"address {addr:#x}: {size} bytes from there are outside the regions for {by.name}")

    def _load(self, i: Issue) -> int:
        lanes, rows, words = self.fmt.lanes, i["rows"], i["words"]
        if expands(i):
            return self._expand(i)
        width = 4 if i["wide"] else 2
        data, known = self.read(i.addr, rows, words * lanes * width, i["stride"])
        numbers = data.view(np.uint32 if i["wide"] else np.uint16).reshape(rows, words, lanes)
        known = known[:, ::width].reshape(rows, words, lanes)
        r, j, to = np.arange(rows)[:, None], np.arange(words), i["to"]
        match i["target"]:
            case LoadTo.W:
                tree, word = r % lanes, to + r // lanes * i["step"] + j
                self.w[tree, word], self.w_known[tree, word] = numbers, known
            case LoadTo.COLUMN:
                word, lane = to + r[:, 0] // lanes, r[:, 0] % lanes
                self.w[:, word, lane], self.w_known[:, word, lane] = numbers[:, 0].T, known[:, 0].T
            case LoadTo.X:
                at = to + r * i["step"] + j
                self.x[at], self.x_known[at] = numbers, known
            case _:
                shape = rows * words, lanes
                kind = "FP32" if i["wide"] else "BF16"
                self._queues[Queue.LOAD].put(numbers.reshape(shape).astype(np.uint32), known.reshape(shape), kind)
        return rows * words

    def _expand(self, i: Issue) -> int:
        """LOAD codes or weights. A word of W is defined if the word of memory that holds it is, and its scales."""
        rows, size = i["rows"], self.fmt.word_bytes
        source, tree, word = expanded_places(i, self.fmt)
        data, known = self.read(i.addr, rows, size, size if unpacks(i) else i["stride"])
        whole = np.asarray(known.all(axis=1))
        if unpacks(i):
            own = Packing.of(i["stride"])
            made, whole = expanded(data, own), whole & whole[np.arange(rows) // own.words * own.words]
        else:
            made = self.fmt.code_words.expanded(data).reshape(-1, self.fmt.lanes)
        self.w[tree, word], self.w_known[tree, word] = made, whole[source, None]
        return len(word)

    def _mul(self, i: Issue) -> int:
        lanes, rows, tiles, chunks = self.fmt.lanes, i["rows"], i["tiles"], i["chunks"]
        length = (chunks - 1) * lanes + i["keep"]
        at = i["x"] + np.arange(rows)[:, None] * i["x_step"] + np.arange(chunks)
        x, x_known = (v[at].reshape(rows, -1)[:, :length] for v in (self.x, self.x_known))
        if not x_known.all():
            r, k = np.argwhere(~x_known)[0]
            raise i.error(f"reads number {k % lanes} of X word {at[r, k // lanes]}, which was never written")
        at = i["w"] + np.arange(tiles * chunks).reshape(tiles, chunks)
        # [tiles * trees, length], as the trees of a tile give the lanes of a result.
        w, w_known = (v[:, at].swapaxes(0, 1).reshape(tiles * lanes, -1)[:, :length] for v in (self.w, self.w_known))
        known = np.logical_and.reduce(w_known, axis=1)
        for t in np.flatnonzero(~known.reshape(tiles, lanes).any(axis=1)):
            tree = ~w_known[t * lanes : (t + 1) * lanes]
            word = at[t, np.argwhere(tree)[:, 1].min() // lanes]
            raise i.error(
                f"reads W words {at[t, 0]} to {at[t, -1]}, of which no tree has all: {word} was never written"
            )
        self._result.chunks += rows * tiles * chunks
        if not (i["start"] and i["end"]):
            return self._carry(i, x, w, known)
        self._open(i)
        self._give(dot(x.view(BF16), w.view(BF16), self.fmt.dot, bool(i["halves"])), known)
        return rows * tiles

    def _carry(self, i: Issue, x: np.ndarray, w: np.ndarray, known: np.ndarray) -> int:
        """Add to a sum over several MULs. Chunks are padded with zeros, which add nothing."""
        if i["start"]:
            self._open(i)
        elif not self._sum:
            raise i.error("goes on with a sum (start=0), but none has begun: set start=1 in its first MUL")
        pad = (0, 0), (0, -x.shape[1] % self.fmt.lanes)
        self._sum.append((i.pc, np.pad(x, pad), np.pad(w, pad), known, i["halves"]))
        first = self._sum[0][4]
        if i["halves"] != first:
            raise i.error(f"goes on with the sum of instruction {self._sum[0][0]}: set halves={first} as there")
        parts = [np.concatenate([part[k] for part in self._sum], axis=1) for k in (1, 2)]
        if parts[0].shape[1] > CHUNKS * self.fmt.lanes:
            chunks = parts[0].shape[1] // self.fmt.lanes
            raise i.error(f"the sum that instruction {self._sum[0][0]} began has {chunks} chunks: at most {CHUNKS}")
        if not i["end"]:
            return 0
        known = np.logical_and.reduce([part[3] for part in self._sum])
        self._sum = []
        self._give(dot(parts[0].view(BF16), parts[1].view(BF16), self.fmt.dot, bool(i["halves"])), known)
        return 1

    def _open(self, i: Issue) -> None:
        if self._sum:
            raise i.error(
                f"begins a sum, but that of instruction {self._sum[0][0]} has no end: set end=1 in its last MUL"
            )

    def _give(self, results: np.ndarray, known: np.ndarray) -> None:
        """Put results [rows, tiles * trees] in the queue of MUL words."""
        words = results.view(np.uint32).reshape(-1, self.fmt.lanes)
        tiles = known.reshape(-1, self.fmt.lanes)
        self._queues[Queue.MUL].put(words, np.tile(tiles, (len(results), 1)), "FP32")

    def _vector(self, i: Issue) -> int:
        v, words, known = i.vector, None, None
        if v.streams:
            words, known, _ = self._queues[i["source"]].take(i, i["words"], "FP32" if v.wide else "BF16")
        stored = self.known.run(i, v, known)
        outputs = list(self.vpe.run([Step(v, words)]))
        if outputs:
            assert stored is not None  # only a STORE has outputs, and `Known.run` marks the lanes of a STORE
            kind = ("FP32", "BF16", "signs", "signs")[v.format]
            self._out.put(np.stack([out.data for out in outputs]), stored, kind, i["keep"])
        return i["words"]

    def _store(self, i: Issue) -> int:
        rows, words = i["rows"], i["words"]
        if i["target"] == StoreTo.SCORE:
            parts = [self._out.row(i, "BF16") for _ in range(rows)]
            for r, part in enumerate(parts):
                length = (len(part.words) - 1) * self.fmt.lanes + part.keep
                codes, more = part.words.reshape(-1)[:length], bool(i["step"])
                if more and length % self.fmt.lanes:
                    raise i.error(f"sends {length} codes of a row that goes on: must be whole words")
                self.score(i, codes, bool(i["wide"]) and r == rows - 1, more)
            return sum(len(part.words) for part in parts)
        if i["target"] == StoreTo.HASH:
            signs = self._out.take(i, rows * words, "signs")[0].astype(bool).reshape(rows, -1)
            for r in range(rows):
                self.hash(i, signs[r], r)
            return rows * words
        packs = self.fmt.codes > 0 and packs_signs(i)
        kinds = ["signs"] if packs else ["FP32"] if i["wide"] else ["BF16", "signs"]
        data, known, kind = self._out.take(i, words_taken(i, self.fmt), *kinds)
        if kind == "signs":
            width = (SIGNS if packs else 1) * self.fmt.lanes
            data, known = self._packed(data.reshape(-1, width), known.reshape(-1, width))
        if sets_register(i):
            self.number(i, data[0], known[0])
            return 1
        if i["target"] == StoreTo.X:
            at = (i["to"] + np.arange(rows)[:, None] * i["step"] + np.arange(words)).reshape(-1)
            self.x[at], self.x_known[at] = data, known
            return rows * words
        width = 4 if i["wide"] else 2
        raw = data.astype(np.uint32 if i["wide"] else np.uint16).view(np.uint8)
        for r in range(rows):
            addr, own = (i.addr + r * i["stride"]) % (1 << ADDR_BITS), slice(r * words, (r + 1) * words)
            self.write(addr, raw[own].reshape(-1), np.repeat(known[own].reshape(-1), width))
            step = raw.shape[1]  # bytes of a word
            for k, (word, marks) in enumerate(zip(raw[own], known[own], strict=True)):
                self._result.writes.append(Write(addr + k * step, word, marks))
        return rows * words

    def number(self, i: Issue, word: np.ndarray, known: np.ndarray) -> None:
        """Set a register by the number in lane 0 of a word of FP32 numbers."""
        if not known[0]:
            raise i.error("puts lane 0 of a word into a register, which is undefined")
        number = int(word[0]) & (1 << NUMBER_BITS) - 1
        if i["to"]:
            self.registers[i["to"]] = (i.addr + (number << i["step"])) % (1 << ADDR_BITS)

    def _packed(self, signs: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pack signs: bit i of a word is number i of a row. A number of 16 bits is defined if all its signs are."""

        def numbers(x: np.ndarray) -> np.ndarray:
            packed = np.packbits(x.astype(bool), axis=1, bitorder="little")
            return np.pad(packed, ((0, 0), (0, self.fmt.word_bytes - packed.shape[1]))).view(np.uint16)

        return numbers(signs).astype(np.uint32), numbers(~known) == 0

    def hash(self, i: Issue, signs: np.ndarray, row: int) -> None:
        """Take a token's hash bits, bool [words * lanes], from a STORE for context `i.addr`; only a core can.

        row : number of the token in the STORE
        """
        raise i.error("goes to the retrieval engine, which an LXE alone does not have: run it on a core")

    def score(self, i: Issue, codes: np.ndarray, last: bool, more: bool) -> None:
        """Take a row of score codes, or with `more` a part of one; `last` ends the query block. Only a core can."""
        raise i.error("goes to the retrieval engine, which an LXE alone does not have: run it on a core")

    def retrieve(self, i: Issue) -> int:
        """Execute a RETRIEVE: set registers, copy entries in memory; returns the number of entries. Only a core can."""
        raise i.error("asks the retrieval engine, which an LXE alone does not have: run it on a core")
