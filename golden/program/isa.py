"""Instructions of the LXE: fields, their bits, words of 256 bits.

The sequencer executes control instructions itself, one after the other, and hands LOAD, MUL, VECTOR, STORE and
RETRIEVE to five engines, each of which works through its own in order. Engines run side by side; only semaphores and
the streams between them (below) hold them back.

Streams. LOAD with target VECTOR and MUL put words into two queues from which VECTOR instructions take theirs
(`source`); VECTOR instructions of op STORE put words into a third, from which STORE takes its own. A word is `lanes`
numbers. So a result needs no semaphore on its way from MUL through VECTOR to STORE; what goes through a memory does:
the scratchpads W and X of the DPE, and the memory behind the bus. In a program what fills a queue stands before what
empties it.

Semaphores. An instruction starts when every semaphore in its `wait` is above zero, and takes one from each; when it is
done, it adds one to each in its `signal`. All start at zero. Only one engine (or SYNC, the sequencer) waits for a
semaphore. Done means: LOAD: its last word is in W or X, or taken from the queue; MUL: its operands have been read for
the last time; STORE: its last word is in X or taken by the DRE, or the bus has answered the last write; VECTOR: handed
to the VPE; RETRIEVE: its copies are written, its registers set. An engine signals in order.

Counts. Where `len` names a register other than R0, n = R[len] + add replaces a count:

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

n is signed. With n of 0 or less the instruction does nothing but wait and signal; a LOOP skips its body. With `pair`
n is first rounded up to a multiple of 2 * lanes and counts are as with unit 1 (those of MUL as its unit says); a LOOP's
is n / (2 * lanes), of steps that take turns with the halves of a scratchpad.

Addresses: `R[base] + addr` bytes modulo 2^40, a multiple of a word's 2 * lanes bytes, as `stride` is. Registers have 40
bits, R0 is always 0. Encoded counts (rows, words, tiles, chunks, keep) are one less than what they count.

Source: V-Rex section V-A names the LXE's parts; its instruction set is this project's.
"""

from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag

from golden.arithmetic.vector import Instruction as VectorInstruction
from golden.arithmetic.vector import VectorFormat
from golden.function_params import DotFormat, ScoreFormat, check

WORD_BITS = 256
SEMAPHORES = 16
SEMAPHORE_BITS = 8  # of a counter; above 255 is a fault
REGISTERS = 16
ADDR_BITS = 40
LOOPS = 4  # nested
OP_BITS = 4


@dataclass(frozen=True)
class LxeFormat:
    """Function parameters of the LXE: numbers of a word, trees of the DPE alike; words of each memory."""

    lanes: int = 64
    window: int = 24  # of the DPE, `golden.function_params.DotFormat`
    w_depth: int = 32  # words of weights a tree
    x_depth: int = 512  # words of activations
    depth: int = 64  # words of a VPE bank
    i_depth: int = 512  # instructions
    score: ScoreFormat = ScoreFormat()

    @property
    def dot(self) -> DotFormat:
        """The DPE's function."""
        return DotFormat(self.lanes, self.window)

    @property
    def vector(self) -> VectorFormat:
        """The VPE's function."""
        return VectorFormat(self.lanes, self.depth, self.score)

    @property
    def word_bytes(self) -> int:
        """Bytes of a word of BF16 numbers in memory."""
        return 2 * self.lanes


class Opcode(IntEnum):
    """What an instruction does."""

    HALT = 0  # the end: every engine has finished
    SET = 1  # R[to] = imm
    ADD = 2  # R[to] = R[a] + imm
    LOOP = 3  # repeat up to its END, `count` times
    END = 4
    SYNC = 5  # wait for semaphores
    LOAD = 6  # memory to a scratchpad or the VPE
    MUL = 7  # the DPE
    VECTOR = 8  # the VPE
    STORE = 9  # the VPE's output to memory, a scratchpad or the DRE
    RETRIEVE = 10  # what the DRE gives: clusters, places and fetches


class LoadTo(IntEnum):
    """Where LOAD puts word j of row r."""

    W = 0  # weights: tree r mod lanes, word to + (r / lanes) * step + j
    COLUMN = 1  # weights, transposed: number i of the row's only word to tree i, word to + r / lanes, lane r mod lanes
    X = 2  # activations: word to + r * step + j
    VECTOR = 3  # the queue of the VPE; `wide`: words of FP32 numbers, twice the bytes


class StoreTo(IntEnum):
    """Where STORE puts word j of row r."""

    MEMORY = 0  # bytes; `wide`: FP32 words
    X = 1  # activations: word to + r * step + j
    HASH = 2  # the HCU: row r is the hash bits of token R[base] + addr + r of context `to`, `words` words of SIGN
    SCORE = (
        3  # the WTU: row r is what one STORE of the VPE gives, score codes; `wide`: the last row ends the query block
    )


class Retrieve(IntEnum):
    """What RETRIEVE does, in a core (an LXE alone has no such engine)."""

    CLUSTER = 0  # R[to] = R[base] + addr + (cluster of the next token << shift); R[level] = clusters of its context
    PLACE = 1  # copy entry i (0 to rows) from R[base] + addr + i * entry_bytes to where the KVMU puts the next token's
    # Copy the bursts of the next cluster set, `rows` entries at most, to R[base] + addr on; R[to] = entries, R[level] =
    # that << shift.
    FETCH = 2
    CLEAR = 3  # forget the context `ctx`: its clusters and its entries
    COUNT = 4  # R[level] = clusters of the context `ctx`


class Queue(IntEnum):
    """Where a VECTOR instruction takes its stream words from."""

    MUL = 0
    LOAD = 1


class Status(IntEnum):
    """How a program stands or ended."""

    IDLE = 0
    RUNNING = 1
    DONE = 2
    OPCODE = 3  # unknown opcode, an END without a LOOP or too many LOOPs, the end of the program without a HALT
    RANGE = 4  # an address outside a scratchpad or off the grid, a count that does not fit
    DEADLOCK = 5  # every engine waits
    BUS = 6  # an error response
    SEMAPHORE = 7  # a count above 255
    FULL = 8  # the KVMU has no block for an entry, or a FETCH no room for its entries
    MEMORY = 9  # a memory gave a word that its check bits cannot correct


class Engine(IntFlag):
    """Queues of instructions."""

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

# Fields in order, from bit 0: name and bits. `add` is signed.
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
# In the VPE's order; its own op is called v_op here.
VECTOR = {"v_op" if f.name == "op" else f.name: _VECTOR_BITS[f.name] for f in fields(VectorInstruction)}
PAYLOAD: dict[Opcode, dict[str, int]] = {
    Opcode.HALT: {},
    Opcode.SET: {"to": 4, "imm": ADDR_BITS},
    Opcode.ADD: {"to": 4, "a": 4, "imm": ADDR_BITS},
    Opcode.LOOP: {"count": 16, "end": 16},  # count as it is, not less one; index of the END
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
        "x_step": 12,  # words from a row's first to the next row's
        "start": 1,
        "end": 1,
    },
    Opcode.VECTOR: {"source": 1, **VECTOR},
    Opcode.STORE: _TRANSFER,
    Opcode.RETRIEVE: {
        "action": 3,  # so that base, addr and rows stand where a LOAD has them
        "base": 4,
        "addr": ADDR_BITS,
        "rows": 16,
        "ctx": 8,
        "to": 4,
        "level": 4,
        "shift": 5,
    },
}


@dataclass(frozen=True)
class Instruction:
    """One instruction: opcode and the values of the fields that are not zero.

    MUL: row r (0 to rows) of activations, words from x + r * x_step, against tile t (0 to tiles) of weights, words from
    w + t * (chunks + 1): one result word, the dot products with every tree, per row and tile, tiles innermost; the last
    word of a row has keep + 1 numbers. `start` begins sums, `end` gives results (`golden.arithmetic.dot`).
    """

    op: Opcode
    values: dict[str, int]

    def __post_init__(self):
        known = HEADER | PAYLOAD[self.op]
        for name, value in self.values.items():
            check(name in known and name != "op", "field", name, f"{self.op.name} has {', '.join(known)}")
            low = -(1 << 15) if name == "add" else 0
            high = 1 << (15 if name == "add" else known[name])
            check(low <= value < high, f"{self.op.name} {name}", value, f"must be {low} to {high - 1}")

    def __getitem__(self, name: str) -> int:
        return int(self.values.get(name, 0))

    @property
    def vector(self) -> VectorInstruction:
        """The VPE's instruction of a VECTOR."""
        return VectorInstruction(**{name.removeprefix("v_"): self[name] for name in VECTOR})


def vector(i: VectorInstruction, **header: int) -> Instruction:
    """The VECTOR instruction that hands `i` to the VPE; `header` also takes `source`."""
    values = {name: int(getattr(i, name.removeprefix("v_"))) for name in VECTOR}
    return Instruction(Opcode.VECTOR, values | header)


def layout(op: Opcode) -> dict[str, tuple[int, int]]:
    """Name -> (first bit, bits) of every field of an instruction."""
    out, at = {}, 0
    for name, bits in [*HEADER.items(), *PAYLOAD[op].items()]:
        out[name] = (at, bits)
        at += bits
    return out


def encode(i: Instruction) -> int:
    """The instruction's word."""
    out = int(i.op)
    for name, (at, bits) in layout(i.op).items():
        if name != "op":
            out |= (i[name] & (1 << bits) - 1) << at
    return out


def decode(word: int) -> Instruction:
    """The instruction of a word; `ParamError` for an unknown opcode."""
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
