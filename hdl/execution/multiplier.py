"""Multiplier: turns MULs into commands of the DPE, and their ends into semaphore signals."""

from amaranth import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import SEMAPHORES
from openvrex.hdl.execution.dpe import command_layout
from openvrex.hdl.instruction_layouts import done_layout, mul_layout
from openvrex.hdl.params import CoreParams
from openvrex.hdl.queues import MULS


class Multiplier(wiring.Component):
    """Executes MULs: checks them, hands them to the DPE as commands, and tells when their operands are free.

    A MUL that addresses a word outside a scratchpad, or wants halves of a DPE that has none, is not handed on: `fault`
    pulses, and the multiplier takes nothing more until a reset. Words within the scratchpads that wrap in the DPE are
    told by its own `overrun`.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    i : In(stream of `hdl.instruction_layouts.mul_layout`) : instructions; `skip`: done without a command
    c : Out(stream of `hdl.execution.dpe.command_layout`) : the DPE's commands
    read : In(1) : the DPE's pulse for each command
    done : Out(`hdl.instruction_layouts.done_layout`) : instructions, in order
    fault : Out(1) : pulse: a field does not fit the DPE
    busy : Out(1) : a command is not done

    Latency: a command the cycle after its instruction; done in the cycle of `read`, for a skipped instruction two
        cycles after it is taken if none is before it.
    Throughput: an instruction a cycle.
    Raises: nothing.
    Source: `golden.program.isa`; V-Rex section V-A (LXE).
    """

    def __init__(self, p: CoreParams):
        self.p = p
        super().__init__(
            {
                "i": In(stream.Signature(mul_layout())),
                "c": Out(stream.Signature(command_layout(p.dpe))),
                "read": In(1),
                "done": Out(done_layout()),
                "fault": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m, d = Module(), self.p.dpe
        i = self.i.payload
        command = command_layout(d)
        entry_layout = data.StructLayout({"skip": 1, "signal": SEMAPHORES})
        pending = m.submodules.pending = SyncFIFO(width=entry_layout.size, depth=MULS)
        entry, head = Signal(entry_layout, name="entry"), data.View(entry_layout, pending.r_data)
        waits, failed, bad, take = (Signal(name=name) for name in ("waits", "failed", "bad", "take"))
        owed = Signal(range(MULS + 1))  # pulses of `read` that came while a skipped instruction was in front
        names = ("w", "x", "x_step", "chunks", "tiles", "rows", "keep")
        # The DPE's fields have fewer bits; a single row has no step.
        beyond = [i[n][command[n].width :].any() & (i.rows.any() if n == "x_step" else 1) for n in names]
        # Bits of the sum; a DPE without halves has only whole words'.
        bits = [n for n in ("start", "end", "halves") if n in command.members]
        beyond += [i.halves] if not d.halves else []
        m.d.comb += [
            bad.eq(self.i.valid & ~i.skip & Cat(beyond).any()),
            self.fault.eq(bad & ~failed),
            self.c.valid.eq(waits),
            take.eq((~waits | self.c.ready) & pending.w_rdy & ~failed),
            self.i.ready.eq(take & ~bad),
            entry.skip.eq(i.skip),
            entry.signal.eq(i.signal),
            pending.w_data.eq(entry),
            pending.w_en.eq(self.i.valid & self.i.ready),
            pending.r_en.eq(head.skip | self.read | owed.any()),
            self.done.valid.eq(pending.r_rdy & pending.r_en),
            self.done.signal.eq(head.signal),
            self.busy.eq(pending.r_rdy),
        ]
        m.d.sync += [
            failed.eq(failed | bad),
            owed.eq(owed + self.read - (pending.r_rdy & pending.r_en & ~head.skip)),
        ]
        with m.If(~waits | self.c.ready):
            m.d.sync += waits.eq(self.i.valid & self.i.ready & ~i.skip)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [self.c.payload[n].eq(i[n]) for n in (*names, *bits)]
        return m
