"""The LXE's instruction set: opcodes, fields, their bits, and the words of 256 bits that hold them.

The sequencer executes control instructions itself, one after the other. It hands LOAD, MUL, VECTOR, STORE and RETRIEVE
to five engines. Each engine executes its own instructions in order. The engines run side by side; only semaphores and
streams hold them back.

Streams. A stream is a queue of words between two engines; a word is `lanes` numbers. There are three:

* LOAD with target VECTOR fills one queue, MUL fills another. A VECTOR takes its words from the one that `source` names.
* A VECTOR of op STORE fills the third queue, and STORE takes its words from it.

So a result needs no semaphore on its way from MUL through VECTOR to STORE. Data that goes through a memory does need
semaphores: the DPE's scratchpads W and X, and the memory behind the bus. In a program, the instruction that fills a
queue stands before the instruction that empties it.

Semaphores. All 16 start at zero. An instruction starts when every semaphore in its `wait` is above zero, and takes one
from each. When it is done, it adds one to each semaphore in its `signal`. Only one engine (or the sequencer, by SYNC)
may wait for a given semaphore. An engine signals in program order. When an instruction is done:

========  ==============================================================================================
LOAD      its last word is in W or X, or the VPE has taken it from the queue
MUL       it has read its operands for the last time
VECTOR    the VPE has accepted it
STORE     its last word is in X, the DRE has taken it, or the bus has answered the last write
RETRIEVE  its copies are written and its registers are set
========  ==============================================================================================

Counts. Where `len` names a register other than R0, the signed number n = R[len] + add replaces a count:

=========  ==========  ==============================================
           unit 0      unit 1
=========  ==========  ==============================================
LOAD       rows = n    rows = ceil(n / lanes)
STORE      rows = n    rows = ceil(n / lanes)
RETRIEVE   rows = n    rows = ceil(n / lanes)
MUL        tiles = ceil(n / lanes)   chunks = ceil(n / lanes), keep = (n - 1) mod lanes
VECTOR     words = ceil(n / lanes), keep = (n - 1) mod lanes (unit 0 or 1)
LOOP       count = n   count = ceil(n / lanes)
=========  ==========  ==============================================

If n is 0 or less, the instruction only waits and signals, and a LOOP skips its body. With `pair`, n is first rounded up
to a multiple of 2 * lanes, and counts follow unit 1 (those of MUL follow its own unit). A LOOP with `pair` runs
n / (2 * lanes) times: its body holds two steps, one for each half of a scratchpad.

Addresses are `R[base] + addr` bytes modulo 2^40. An address and a `stride` must be multiples of a word's 2 * lanes
bytes. The same sum names a context where an instruction has one. Registers have 40 bits; R0 is always 0. Encoded counts
(rows, words, tiles, chunks, keep) are one less than the number they stand for.

Source: V-Rex section V-A names the parts of the LXE. The instruction set is this project's.
"""

from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Packing
from openvrex.golden.arithmetic.vector import Instruction as VectorInstruction
from openvrex.golden.arithmetic.vector import VectorFormat
from openvrex.golden.function_params import BUDGET_BITS, DotFormat, ScoreFormat, check
from openvrex.golden.retrieval.coded_pages import CodeWords

WORD_BITS = 256
SIGNS = 16  # words of SIGN that a STORE packs into a word of memory, as a lane of one has 16 bits
SEMAPHORES = 16
SEMAPHORE_BITS = 8  # width of a counter; counting above 255 is a fault
REGISTERS = 16
NUMBER_BITS = 23  # of the number that a STORE puts into a register: the mantissa of an FP32 number
ADDR_BITS = 40
CONTEXT_BITS = 16  # a context is a number below 2^16
LOOPS = 4  # most loops inside each other
OP_BITS = 4


@dataclass(frozen=True)
class LxeFormat:
    """Function parameters of an LXE: they decide what a program computes and which programs fit."""

    lanes: int = 64  # numbers of a word, which is also the number of trees of the DPE
    window: int = 24  # alignment width of the DPE's sums, in bits (`golden.function_params.DotFormat`)
    w_depth: int = 32  # words of W, the weight scratchpad, for each tree
    x_depth: int = 512  # words of X, the activation scratchpad
    depth: int = 64  # words of a VPE bank
    i_depth: int = 512  # instructions of the program memory
    score: ScoreFormat = ScoreFormat()
    features: str = ""  # optional hardware (`golden.function_params.FEATURES`)
    to_register: bool = False  # STORE can set a register
    codes: int = 0  # numbers of a key's code that LOAD expands into W; 0: none
    newest: bool = False  # keys that STORE sends to the HCU may look at its newest clusters alone
    weights: bool = False  # LOAD can expand 4-bit weights into W
    halves: bool = False  # MUL can take the larger sum of a word's halves

    @property
    def dot(self) -> DotFormat:
        """The format of the DPE's dot products."""
        return DotFormat(self.lanes, self.window, self.halves)

    @property
    def vector(self) -> VectorFormat:
        """The format of the VPE's instructions and scores."""
        return VectorFormat(self.lanes, self.depth, self.score, self.features)

    @cached_property
    def code_words(self) -> CodeWords:
        """How codes become words of W, where there are any."""
        return CodeWords(self.lanes, self.codes)

    @property
    def word_bytes(self) -> int:
        """Bytes of a word of BF16 numbers in memory."""
        return 2 * self.lanes


class Opcode(IntEnum):
    """The kinds of instructions. R is the register file."""

    # Waits until every engine has finished, and ends the program. With `leave`, it does not wait for the FETCH that the
    # retrieval engine executes, which goes on beside programs that follow.
    HALT = 0
    SET = 1  # R[to] = imm
    ADD = 2  # R[to] = R[a] + imm
    LOOP = 3  # repeats the instructions up to its END, `count` times
    END = 4  # ends the body of a LOOP
    SYNC = 5  # the sequencer waits for semaphores and signals
    LOAD = 6  # moves words from memory to a scratchpad or to the VPE
    MUL = 7  # the DPE multiplies activations by weights
    VECTOR = 8  # the VPE executes one of its instructions
    STORE = 9  # moves the VPE's output to memory, to X or to the DRE
    RETRIEVE = 10  # takes results of the DRE: clusters, places of entries, fetched entries


class LoadTo(IntEnum):
    """The places where LOAD can put word j of row r; r / lanes rounds down."""

    # Weights: word to + (r / lanes) * step + j of tree r mod lanes. With `wide`, on an LXE with `lxe.codes`, a row is
    # one word of memory that holds codes of keys, and becomes `CodeWords.many` words of W. Those of all rows, one
    # behind the other, go to W as rows of `words` words do (`expanded_places`). With a `stride` of 1 to 7, on an LXE
    # with `lxe.weights`, the rows are adjacent words of packed weights (`golden.arithmetic.packed_weights`), and become
    # `Packing.makes` words of W. The last row holds weights, not scales.
    W = 0
    COLUMN = 1  # weights, transposed: number i of the row's only word to tree i, word to + r / lanes, lane r mod lanes
    X = 2  # activations: word to + r * step + j
    VECTOR = 3  # the queue to the VPE; with `wide` the words hold FP32 numbers, twice the bytes


class StoreTo(IntEnum):
    """The places where STORE can put word j of row r."""

    # The memory behind the bus; with `wide` the words hold FP32 numbers. Without it, on an LXE with `lxe.codes`, `step`
    # 1 packs signs: a word of memory holds the lanes of `SIGNS` words of SIGN, one behind the other.
    MEMORY = 0
    # Activations: word to + r * step + j. With `wide`, on an LXE with `lxe.to_register`, a register instead (function
    # `to_register`): R[to] = R[base] + addr + (n << step). n is bits 0 to 22 of lane 0 of the STORE's only word.
    X = 1
    # The HCU: each row is the hash bits of a token of context R[base] + addr, `words` words of SIGN. With `wide`, on a
    # core with `hcu.newest`, the tokens look at the newest clusters alone (`hdl.retrieval.hcu`).
    HASH = 2
    # The WTU: row r is the score codes that one VECTOR of op STORE put out, of the context of the last SWITCH. With
    # `step` 1 these are whole words, and the row goes on in the next STORE. The WTU takes each row several times
    # (`DreModel.readings`). With `wide` the last row, each time, ends the query block.
    SCORE = 3


class Retrieve(IntEnum):
    """The actions of RETRIEVE. Only a core has this engine; an LXE alone refuses the instruction."""

    CLUSTER = 0  # R[to] = R[base] + addr + (cluster of the next token << shift); R[level] = clusters of its context
    # Copies entries 0 to `rows`: entry i from R[base] + addr + i * entry_bytes to the place that the KVMU gives to the
    # next token.
    PLACE = 1
    # Copies the bursts of the next cluster set, at most `rows` entries, to R[base] + addr and behind. R[to] = entries
    # copied, R[level] = entries << shift.
    FETCH = 2
    CLEAR = 3  # forgets context R[base] + addr, its clusters and its entries; R[level] = clusters that it had
    # R[level] = clusters of context R[base] + addr. Rows of scores that follow are of this context, with the token
    # counts that it has now.
    SWITCH = 4
    # As SWITCH, but the rows of scores that follow choose the fewest clusters of the highest codes that hold `rows`
    # tokens (`golden.retrieval.wicsum`). Only a core with `wtu.budget` has this action.
    BUDGET = 5


class Queue(IntEnum):
    """The queues from which a VECTOR can take its stream words, named after the engine that fills each."""

    MUL = 0
    LOAD = 1


class Status(IntEnum):
    """The state of a program, as the hardware's status register reports it."""

    IDLE = 0  # not started
    RUNNING = 1
    DONE = 2  # ended without a fault
    OPCODE = 3  # unknown opcode, END without LOOP, too many LOOPs, or no HALT at the end of the program
    RANGE = 4  # an address outside a scratchpad or not aligned, or a count that does not fit
    DEADLOCK = 5  # every engine waits
    BUS = 6  # the bus answered with an error
    SEMAPHORE = 7  # a semaphore counted above 255
    FULL = 8  # the KVMU has no free block for an entry, or a FETCH has no room for its entries
    MEMORY = 9  # a memory returned a word that its check bits cannot correct
    LENGTH = 10  # a row of scores that does not have one code for each cluster of its context
    TIMEOUT = 11  # it ran for more cycles than the host allows


class Engine(IntFlag):
    """The engines, each with its own queue of instructions."""

    LOAD = 1
    MUL = 2
    VECTOR = 4
    STORE = 8
    RETRIEVE = 16


ENGINE = {
    Opcode.LOAD: Engine.LOAD,
    Opcode.MUL: Engine.MUL,
    Opcode.VECTOR: Engine.VECTOR,
    Opcode.STORE: Engine.STORE,
    Opcode.RETRIEVE: Engine.RETRIEVE,
}

# Name and bits of the fields, from bit 0 up. `add` is signed.
HEADER = {"op": OP_BITS, "wait": SEMAPHORES, "signal": SEMAPHORES, "len": 4, "add": 16, "unit": 1, "pair": 1}
_TRANSFER = {
    "target": 2,
    "wide": 1,
    "base": 4,
    "addr": ADDR_BITS,
    "rows": 16,
    "words": 12,
    "stride": 32,
    "to": 16,
    "step": 12,
}
_VECTOR_BITS = {
    "op": 2,
    "words": 12,
    "keep": 12,
    **dict.fromkeys(("a", "b", "c"), 2),
    **dict.fromkeys(("scalar_a", "scalar_b", "scalar_c", "scalar_d"), 4),
    **dict.fromkeys(("imm_a", "imm_b", "imm_c"), 16),
    **dict.fromkeys(("addr_a", "addr_b", "addr_c", "addr_d"), 12),
    **dict.fromkeys(("span_a", "span_b", "span_c"), 4),
    **dict.fromkeys(("negate_a", "negate_c", "wide", "code"), 1),
    "swap": 4,
    "post": 3,
    "write": 3,
    "reduce": 2,
    "format": 2,
}
# Fields of the VPE's instruction in its own order; its `op` is called v_op here, as every instruction has an `op`.
VECTOR = {"v_op" if f.name == "op" else f.name: _VECTOR_BITS[f.name] for f in fields(VectorInstruction)}
PAYLOAD: dict[Opcode, dict[str, int]] = {
    Opcode.HALT: {"leave": 1},
    Opcode.SET: {"to": 4, "imm": ADDR_BITS},
    Opcode.ADD: {"to": 4, "a": 4, "imm": ADDR_BITS},
    Opcode.LOOP: {"count": 16, "end": 16},  # count is not encoded less one; end is the index of the END
    Opcode.END: {},
    Opcode.SYNC: {},
    Opcode.LOAD: _TRANSFER,
    Opcode.MUL: {
        "w": 16,
        "x": 16,
        "rows": 16,
        "tiles": 12,
        "chunks": 12,
        "keep": 12,
        "x_step": 12,  # words from the start of a row to the start of the next
        "start": 1,
        "end": 1,
        "halves": 1,
    },
    Opcode.VECTOR: {"source": 1, **VECTOR},
    Opcode.STORE: _TRANSFER,
    Opcode.RETRIEVE: {
        "action": 3,  # as many bits as a LOAD's target and wide, so base, addr and rows stand at the same bits
        "base": 4,
        "addr": ADDR_BITS,
        "rows": BUDGET_BITS,
        "to": 4,
        "level": 4,
        "shift": 5,
    },
}

# Of every opcode's fields but `op`: the smallest value, and the first above the largest.
_RANGES = {
    op: {
        name: (-(1 << bits - 1), 1 << bits - 1) if name == "add" else (0, 1 << bits)
        for name, bits in (HEADER | fields).items()
        if name != "op"
    }
    for op, fields in PAYLOAD.items()
}


@dataclass(frozen=True)
class Instruction:
    """One instruction: its opcode and the encoded values of the fields that are not zero.

    `instruction["rows"]` reads a field, 0 if it is not given. Raises `ParamError` for an unknown field or a value that
    does not fit its bits.

    A MUL takes rows 0 to `rows` of activations; row r is the words of X from x + r * x_step. It multiplies each row by
    tiles 0 to `tiles` of weights; tile t is the words of W from w + t * (chunks + 1). Each row and tile give one result
    word: the dot products of the row with the tile's words in every tree. Tiles are innermost. The last word of a row
    has keep + 1 numbers. `start` begins the sums and `end` hands out the results (`golden.arithmetic.dot`).
    With `halves`, on an LXE with `dpe.halves`, a word's sum is the larger of those of its halves, the same in all MULs
    of a sum.
    """

    op: Opcode
    values: dict[str, int]

    def __post_init__(self):
        ranges = _RANGES[self.op]
        for name, value in self.values.items():
            if name not in ranges:
                check(False, "field", name, f"unknown: {self.op.name} has {', '.join(HEADER | PAYLOAD[self.op])}")
            low, high = ranges[name]
            if not low <= value < high:  # a pass has a million fields: no message is written for those that fit
                check(False, f"{self.op.name} {name}", value, f"must be {low} to {high - 1}")

    def __getitem__(self, name: str) -> int:
        return int(self.values.get(name, 0))

    @property
    def vector(self) -> VectorInstruction:
        """The VPE's instruction that a VECTOR carries."""
        return VectorInstruction(**{name.removeprefix("v_"): self[name] for name in VECTOR})


def vector(i: VectorInstruction, **header: int) -> Instruction:
    """The VECTOR that hands `i` to the VPE; `header` gives its other fields, `source` and those of `HEADER`."""
    values = {name: int(getattr(i, name.removeprefix("v_"))) for name in VECTOR}
    return Instruction(Opcode.VECTOR, values | header)


def to_register(register: int, base: int = 0, addr: int = 0, shift: int = 0, **header: int) -> Instruction:
    """The STORE that sets R[register] = R[base] + addr + (n << shift); n is below 2^23.

    It takes one FP32 word of the VPE. n is the mantissa of lane 0: let the program add 2^23 to an exact integer n. Let
    the STORE signal a semaphore, and a SYNC wait for it before anything reads the register.
    """
    where = {"target": StoreTo.X, "wide": 1, "to": register, "base": base, "addr": addr, "step": shift}
    return Instruction(Opcode.STORE, where | header)


def sets_register(i: Any) -> bool:
    """Whether a STORE sets a register, where there is `to_register`. `i`: a STORE, or what has its fields by name."""
    return i["target"] == StoreTo.X and bool(i["wide"])


def packs_signs(i: Any) -> bool:
    """Whether a STORE packs signs, where there is `lxe.codes`. `i`: a STORE, or what has its fields by name."""
    return i["target"] == StoreTo.MEMORY and not i["wide"] and bool(i["step"] & 1)


def words_taken(i: Any, fmt: LxeFormat) -> int:
    """Words of the VPE that a STORE takes, but for a row of scores. `i`: a STORE with its counts as they are."""
    return i["rows"] * i["words"] * (SIGNS if fmt.codes and packs_signs(i) else 1)


def expands(i: Any) -> bool:
    """Whether a LOAD expands codes or weights, where there are any. `i`: a LOAD, or what has its fields by name."""
    return i["target"] == LoadTo.W and bool(i["wide"])


def unpacks(i: Any) -> bool:
    """Whether a LOAD that expands takes weights, not codes, where there are any. `i`: as of `expands`."""
    return expands(i) and 0 < i["stride"] < 8


def expanded_places(i: Any, fmt: LxeFormat) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the words that a LOAD makes come from and go: the row, the tree and the word of W of each.

    i : a LOAD that expands, with its counts as they are
    """
    packing = Packing.of(i["stride"]) if unpacks(i) else None
    source = packing.sources(i["rows"]) if packing else np.arange(i["rows"])
    source = source.repeat(packing.each if packing else fmt.code_words.many)
    row, j = np.divmod(np.arange(len(source)), i["words"])
    return source, row % fmt.lanes, i["to"] + row // fmt.lanes * i["step"] + j


def words_read(i: Any, fmt: LxeFormat) -> int:
    """Words of memory that a LOAD reads, FP32 ones as two. `i`: a LOAD with its counts as they are."""
    once = fmt.codes and i["target"] == LoadTo.W and i["words"] == 1 and not i["stride"] and i["rows"] <= fmt.lanes
    if expands(i):
        return i["rows"]
    return (1 if once else i["rows"] * i["words"]) << i["wide"]


def layout(op: Opcode) -> dict[str, tuple[int, int]]:
    """First bit and number of bits of every field of an opcode, by name."""
    out, at = {}, 0
    for name, bits in [*HEADER.items(), *PAYLOAD[op].items()]:
        out[name] = (at, bits)
        at += bits
    return out


def encode(i: Instruction) -> int:
    """The instruction as the program memory holds it: an integer of at most 256 bits."""
    out = int(i.op)
    for name, (at, bits) in layout(i.op).items():
        if name != "op":
            out |= (i[name] & (1 << bits) - 1) << at
    return out


def decode(word: int) -> Instruction:
    """The instruction that a word of the program memory holds. Raises `ParamError` for an unknown opcode."""
    number = word & (1 << OP_BITS) - 1
    check(number in list(Opcode), "opcode", number, f"must be 0 to {max(Opcode)}")
    values = {}
    for name, (at, bits) in layout(op := Opcode(number)).items():
        value = word >> at & (1 << bits) - 1
        if name == "add" and value >> 15:
            value -= 1 << 16
        if value and name != "op":
            values[name] = value
    return Instruction(op, values)
