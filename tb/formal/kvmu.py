"""Proof about the KVMU's allocator: no block is given out twice, none is lost, FULL is never wrong.

Yosys writes the unit and a monitor at its ports as an and-inverter graph, on which ABC's property-directed
reachability finds an inductive invariant: the proof is not bounded. All inputs are free in every cycle (operations,
clusters, fetches, stalls), and so is the initial content of the memories. Blocks hold one slot, so that every APPEND
needs a block and every reply names one.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyosys
from amaranth import Module, Mux, Signal
from amaranth.back import rtlil
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.kvmu import APPEND, CLEAR, Kvmu
from hdl.params import KvmuParams

SMALL = KvmuParams(
    n_ctx=1, clusters=2, blocks=2, block_slots=1, recent=1, entry_bytes=1, boundary=2, addr_bits=3, token_bits=1
)

_PASSES = (
    "read_rtlil {il}",
    "delete t:$meminit t:$meminit_v2",  # memories start with anything
    "hierarchy -top top",
    "proc",
    "flatten",
    "chformal -lower",
    "memory",
    "opt -full",
    "techmap",
    "opt -fast",
    "setundef -undriven -anyseq",
    "async2sync",
    "dffunmap",
    "aigmap",
    "write_aiger -zinit {aig}",  # a flip-flop without an initial value gets a free one
)


class AllocatorMonitor(wiring.Component):
    """The KVMU between free inputs and a set of the blocks in use, kept from what passes its ports.

    With `reach` it claims instead that no block of a cleared context is given out again and then all are in use,
    which must fail: otherwise the proof would say nothing.
    """

    def __init__(self, p: KvmuParams, reach: bool):
        self.p, self.reach = p, reach
        self.unit = Kvmu(p)
        names = ("a", "f", "w", "x", "b")
        free = {}
        for name in names:
            port = getattr(self.unit, name)
            if self.unit.signature.members[name].flow == In:
                free |= {f"{name}_valid": In(1), f"{name}_payload": In(port.payload.shape())}
            else:
                free[f"{name}_ready"] = In(1)
        super().__init__(free)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self.unit
        for name in self.signature.members:
            stream, _, field = name.partition("_")
            m.d.comb += getattr(getattr(unit, stream), field).eq(getattr(self, name))
        m.d.comb += [unit.a.payload.ctx.eq(0), unit.f.payload.ctx.eq(0)]  # the only one

        asked = Signal()
        cleared = Signal()
        answered = Signal()
        m.d.comb += [
            asked.eq(unit.a.valid & unit.a.ready & (unit.a.payload.op == APPEND)),
            cleared.eq(unit.a.valid & unit.a.ready & (unit.a.payload.op == CLEAR)),
            answered.eq(unit.w.valid & unit.w.ready),
        ]
        # Replies under way, the oldest lowest; `void`: a CLEAR was accepted after its APPEND.
        waiting = Signal(3)
        void = Signal(3)
        left = Signal(3)
        left_void = Signal(3)
        m.d.comb += [left.eq(waiting >> answered), left_void.eq((void >> answered) | Mux(cleared, left, 0))]
        m.d.sync += [waiting.eq(Mux(asked, (left << 1) | 1, left)), void.eq(left_void)]

        used = Signal(self.p.blocks)
        block = Signal(range(self.p.blocks))
        counts = Signal()
        given = Signal(self.p.blocks)
        m.d.comb += [
            block.eq(unit.w.payload.home),
            counts.eq(answered & ~void[0]),
            given.eq(Mux(counts & ~unit.w.payload.full, 1 << block, 0)),
        ]
        m.d.sync += used.eq(Mux(cleared, 0, used | given))
        if not self.reach:
            m.d.comb += [
                Assert(~asked | (left[2] == 0), "more replies under way than the monitor follows"),
                Assert(~answered | waiting[0], "a reply without an APPEND"),
                Assert(~counts | unit.w.payload.full | (unit.w.payload.home < self.p.blocks), "a block that is none"),
                Assert((used & given) == 0, "a block is given out twice"),
                Assert(~counts | (unit.w.payload.full == used.all()), "FULL though a block is free, or not FULL"),
            ]
            return m
        once = Signal()
        again = Signal()
        with m.If(cleared & used.all()):
            m.d.sync += once.eq(1)
        with m.If(once & (given != 0)):
            m.d.sync += again.eq(1)
        m.d.comb += Assert(~(again & counts & unit.w.payload.full))
        return m


def prove(p: KvmuParams, edit: tuple[str, str] | None = None, reach: bool = False) -> bool:
    """Whether the monitor's claims hold in every reachable state; False if ABC finds a way to break one.

    `edit` (pattern, replacement) changes the unit's RTLIL once, to see the proof fail. Raises
    `RuntimeError` if there is no answer.
    """
    il = rtlil.convert(AllocatorMonitor(p, reach), name="top", emit_src=False)
    if edit:
        il, n = re.subn(*edit, il, count=1)
        assert n, f"edit does not apply: {edit[0]!r}"
    with tempfile.TemporaryDirectory() as tmp:
        source, aig = Path(tmp, "a.il"), Path(tmp, "a.aig")
        source.write_text(il)
        commands = [c.format(il=source, aig=aig) for c in _PASSES]
        code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
        run = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"Yosys could not write the KVMU's graph: {(run.stdout + run.stderr)[-500:]}")
        abc = Path(pyosys.__file__).parent / "yosys-abc"
        script = f"read_aiger {aig}; fold; orpos; scorr; pdr -T 300"
        run = subprocess.run([str(abc), "-c", script], capture_output=True, text=True, check=False)
    if "Property proved" in run.stdout:
        return True
    if "was asserted in frame" in run.stdout:
        return False
    raise RuntimeError(f"ABC found no answer: {(run.stdout + run.stderr)[-500:]}")
