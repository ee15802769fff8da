"""What the LXE's sequencer takes and what it hands to the engines (`golden.program.isa`)."""

from amaranth.lib import data

from golden.program.isa import PAYLOAD, SEMAPHORES, WORD_BITS, Engine, Opcode
from hdl.execution.vpe import instruction_layout
from hdl.params import CoreParams

PROGRAM, REGISTER, START = range(3)  # what the host asks for

_HEAD = {"skip": 1, "wait": SEMAPHORES, "signal": SEMAPHORES}
_TRANSFER = {k: v for k, v in PAYLOAD[Opcode.LOAD].items() if k != "base"}  # `addr` has its base added


def host_layout() -> data.StructLayout:
    """op PROGRAM (word `addr` of the program is `data`), REGISTER (R[addr] = data) or START (at the first word)."""
    return data.StructLayout({"op": 2, "addr": 16, "data": WORD_BITS})


def status_layout() -> data.StructLayout:
    """code : `isa.Status` · pc : of the instruction issued last · engines : `Engine`s that have not finished ·
    bus : it owes an answer; a reset while it does would leave the bus with a burst that nobody ends"""
    return data.StructLayout({"code": 4, "pc": 16, "engines": len(Engine), "bus": 1})


def fault_layout() -> data.StructLayout:
    """Pulses: an error response, an address outside a scratchpad or off the grid, a semaphore above 255, no block, a
    word of a memory that its check bits cannot correct."""
    return data.StructLayout({"bus": 1, "range": 1, "semaphore": 1, "full": 1, "memory": 1})


def done_layout() -> data.StructLayout:
    """A pulse: an instruction is done, its `signal` adds one to each of these semaphores."""
    return data.StructLayout({"valid": 1, "signal": SEMAPHORES})


def transfer_layout() -> data.StructLayout:
    """A LOAD or STORE with its registers resolved. skip : do nothing but wait and signal."""
    return data.StructLayout({**_HEAD, **_TRANSFER})


def mul_layout() -> data.StructLayout:
    """A MUL with its registers resolved."""
    return data.StructLayout({**_HEAD, **PAYLOAD[Opcode.MUL]})


def vector_layout(p: CoreParams) -> data.StructLayout:
    """A VECTOR with its registers resolved: where its stream words come from, and the VPE's instruction."""
    return data.StructLayout({**_HEAD, "source": 1, "instruction": instruction_layout(p.vpe)})


def retrieve_layout() -> data.StructLayout:
    """A RETRIEVE with its registers resolved."""
    return data.StructLayout({**_HEAD, **{k: v for k, v in PAYLOAD[Opcode.RETRIEVE].items() if k != "base"}})
