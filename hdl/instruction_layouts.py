"""Layouts of the streams that the LXE's sequencer takes and gives (`golden.program.isa`)."""

from dataclasses import fields
from functools import cache

from amaranth import Value
from amaranth.lib import data

from openvrex.golden.arithmetic.vector import SCALARS, Instruction, Op, Source, Swap
from openvrex.golden.program.isa import ADDR_BITS, CONTEXT_BITS, PAYLOAD, SEMAPHORES, WORD_BITS, Engine, Opcode
from openvrex.hdl.params import CoreParams, VpeParams, bits_for

PROGRAM, REGISTER, START = range(3)  # requests of the host

_HEAD = {"skip": 1, "wait": SEMAPHORES, "signal": SEMAPHORES}
_TRANSFER = {k: v for k, v in PAYLOAD[Opcode.LOAD].items() if k != "base"}  # `base` is added to `addr`


@cache
def host_layout() -> data.StructLayout:
    """A request of the host: PROGRAM (word `addr` of the program is `data`), REGISTER (R[addr] = data) or START."""
    return data.StructLayout({"op": 2, "addr": 16, "data": WORD_BITS})


@cache
def status_layout() -> data.StructLayout:
    """Status of the program.

    code : `isa.Status` · pc : address of the instruction issued last · engines : `Engine`s that have not finished ·
    bus : the bus owes a response; a reset at that time would leave it with a burst that nobody ends
    """
    return data.StructLayout({"code": 4, "pc": 16, "engines": len(Engine), "bus": 1})


@cache
def fault_layout() -> data.StructLayout:
    """Pulses of the engines' faults.

    bus : an error response · range : an address outside a scratchpad or off the grid · semaphore : one above 255 ·
    full : no free block · memory : a word of a memory that its check bits cannot correct · length : a row of scores
    that its context lacks · timeout : the host's watchdog
    """
    names = ("bus", "range", "semaphore", "full", "memory", "length", "timeout")
    return data.StructLayout(dict.fromkeys(names, 1))


@cache
def done_layout() -> data.StructLayout:
    """A pulse: an instruction is done, and adds one to each semaphore of `signal`."""
    return data.StructLayout({"valid": 1, "signal": SEMAPHORES})


def transfer_layout() -> data.StructLayout:
    """A LOAD or STORE with its registers resolved. skip : only wait and signal."""
    return data.StructLayout({**_HEAD, **_TRANSFER})


def mul_layout() -> data.StructLayout:
    """A MUL with its registers resolved."""
    return data.StructLayout({**_HEAD, **PAYLOAD[Opcode.MUL]})


def vector_layout(p: CoreParams) -> data.StructLayout:
    """A VECTOR with its registers resolved: the source of its stream words, and the VPE's instruction."""
    return data.StructLayout({**_HEAD, "source": 1, "instruction": instruction_layout(p.vpe)})


def retrieve_layout() -> data.StructLayout:
    """A RETRIEVE with its registers resolved."""
    return data.StructLayout({**_HEAD, **{k: v for k, v in PAYLOAD[Opcode.RETRIEVE].items() if k != "base"}})


def dre_layout(p: CoreParams) -> data.StructLayout:
    """A word for the DRE: hash bits (one a lane, lane 0 lowest) or score codes (16 bits a lane).

    target : StoreTo.HASH or SCORE · ctx : context of a HASH · row_last : last word of its row
    last : word of the last row of an instruction, for SCORE of a query block · keep : highest lane in use
    newest : of a HASH, if `hcu.newest`: its key looks at the newest clusters alone
    """
    lanes = p.dpe.n_w
    return data.StructLayout(
        {
            "target": 2,
            "ctx": CONTEXT_BITS,
            **({"newest": 1} if p.dre.hcu.newest else {}),
            "row_last": 1,
            "last": 1,
            "keep": bits_for(lanes),
            "data": 16 * lanes,
        }
    )


@cache
def set_layout() -> data.StructLayout:
    """A pulse: R[to] = data."""
    return data.StructLayout({"valid": 1, "to": 4, "data": ADDR_BITS})


def picks(i: data.View) -> Value:
    """Whether an instruction of the VPE picks one of its operands and so has no operand b: MAX or MIN."""
    return (i.op == Op.MAX) | (i.op == Op.MIN)


def takes_words(i: data.View, picks: Value) -> Value:
    """Whether an instruction of the VPE, if it is no STORE, takes words of the stream. picks : as of the function."""
    return (i.a == Source.STREAM) | ((i.b == Source.STREAM) & ~picks)


def instruction_layout(p: VpeParams) -> data.StructLayout:
    """An instruction of the VPE; `golden.arithmetic.vector.Instruction` describes the fields."""
    widths = {
        "op": 2,
        "words": p.addr_bits,
        "keep": bits_for(p.n_w),
        **dict.fromkeys(("a", "b", "c"), 2),
        **dict.fromkeys(("scalar_a", "scalar_b", "scalar_c", "scalar_d"), bits_for(SCALARS)),
        **dict.fromkeys(("imm_a", "imm_b", "imm_c"), 16),
        **dict.fromkeys(("addr_a", "addr_b", "addr_c", "addr_d"), p.addr_bits),
        **dict.fromkeys(("span_a", "span_b", "span_c"), 4),
        **dict.fromkeys(("negate_a", "negate_c", "wide", "code"), 1),
        "swap": bits_for(Swap.HALF + p.addr_bits + 1),
        "post": 3,
        "write": 3,
        "reduce": 2,
        "format": 2,
    }
    return data.StructLayout({f.name: widths[f.name] for f in fields(Instruction)})
