# amaranth: UnusedElaboratable=no
# (a unit may be made only to look at its ports)
"""Core as an IP block: registers, an interrupt, three AXI4 managers."""

from amaranth import Array, Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from openvrex.golden.program.isa import WORD_BITS, Status
from openvrex.hdl.bus.axi import HOST_PREFIX, PREFIX, TABLE_PREFIX, pass_manager, pass_ports, port_members
from openvrex.hdl.execution.core import Core
from openvrex.hdl.instruction_layouts import PROGRAM, REGISTER, START
from openvrex.hdl.params import CoreParams, reset_cycles
from openvrex.hdl.reset import with_reset
from openvrex.hdl.retrieval.dre import setting_members
from openvrex.hdl.shells.register_block import (
    RegisterBlock,
    address_map,
    connect_regions,
    count_errors,
    joined,
    lite_members,
)
from openvrex.hdl.shells.watchdog import watchdog


class CoreIp(wiring.Component):
    """A core behind registers, which `registers.rdl` describes.

    Software writes a program and registers through windows, starts it, waits for the interrupt or polls, and reads
    counters. `control.reset` resets the core, but not these registers, once nothing runs and the bus owes no response.
    Use it after a fault. Tables of contexts are in memory and outlive it; write programs anew.

    Corner cases: a START while a program runs is lost.


    Parameters
    ----------
    p : CoreParams

    Members
    -------
    s_axi_* : AXI4-Lite subordinate, 32 bits: the registers
    m_axi_*, h_axi_*, t_axi_* : AXI4 managers: the LXE's loads and stores, the DRE's entries, the DRE's tables
    irq : Out(1) : level, high while an enabled interrupt is pending

    Latency: 1 cycle from START's response to the core's; an access as in `RegisterBlock`.
    Throughput: that of the core; an instruction of a program every 16 cycles, 8,192 cycles for 512 instructions.
    Raises: `ParamError` from `CoreParams.core_format`.
    Source: V-Rex section VI-A (the host of Fig. 10); registers are this project's own.
    """

    def __init__(self, p: CoreParams):
        self.p = p
        self.top = address_map("core_ip", p)
        self.registers = RegisterBlock(self.top)
        members = {
            **lite_members(self.registers.address_bits),
            **port_members(p),
            **port_members(p, HOST_PREFIX),
            **port_members(p, TABLE_PREFIX),
            "irq": Out(1),
        }
        super().__init__(members)

    def counters(self) -> list[str]:
        """Names of the performance counters, which are registers: perf.<name>."""
        return Core.counters_of(self.p)

    @staticmethod
    def timing(p: CoreParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {"write_interval": "2", "read_interval": "3", "program_interval": "16"} | Core.timing(p)

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.registers = registers = self.registers
        may_reset = Signal()
        core = Core(p)
        asked = registers.o["control.reset"]
        m.submodules.core, resets = with_reset(m, core, reset_cycles(p), asked, may_reset)
        count_errors(m, registers, core, resets)

        i, o, status = registers.i, registers.o, core.status
        running = Signal()
        was_running = Signal()
        was_fault = Signal()
        m.d.comb += [running.eq(status.code == Status.RUNNING), may_reset.eq(~running & ~status.bus)]
        m.d.sync += [was_running.eq(running), was_fault.eq(status.code >= Status.OPCODE)]
        m.d.comb += [
            registers.busy.eq(running),
            i["status.code"].eq(status.code),
            i["status.engines"].eq(status.engines),
            i["status.bus"].eq(status.bus),
            i["status.pc"].eq(status.pc),
            i["status.resets"].eq(resets),
            i["irq.done"].eq(o["irq_test.done"] | (was_running & (status.code == Status.DONE))),
            i["irq.fault"].eq(o["irq_test.fault"] | (~was_fault & (status.code >= Status.OPCODE))),
            core.timeout.eq(watchdog(m, o["watchdog.value"], running)),
            self.irq.eq(registers.irq),
            *(getattr(core, n).eq(joined(o, n)) for n in setting_members(p.dre)),
            *(i[f"perf.{name}.value"].eq(core.perf[name]) for name in self.counters()),
        ]

        # The last word of an entry in a window makes a beat for the core, together with the words before it.
        host, program, values = core.host, registers.program, registers.registers
        parts = Array(Signal(32, name=f"part{k}", reset_less=True) for k in range(WORD_BITS // 32 - 1))
        part, half = program.payload.addr[:3], values.payload.addr[0]
        whole = Signal()
        sets = Signal()
        m.d.comb += [
            whole.eq(program.valid & (part == len(parts))),
            sets.eq(values.valid & half),
            host.valid.eq(whole | sets | o["control.start"]),  # a START is not taken, and lost, while a program runs
            program.ready.eq(host.ready | ~whole),
            values.ready.eq(host.ready | ~sets),
        ]
        with m.If(program.valid & ~whole):
            m.d.sync += parts[part].eq(program.payload.data)
        with m.Elif(values.valid & ~half):
            m.d.sync += parts[0].eq(values.payload.data)
        with m.If(whole):
            m.d.comb += [
                host.payload.op.eq(PROGRAM),
                host.payload.addr.eq(program.payload.addr[3:]),
                host.payload.data.eq(Cat(*parts, program.payload.data)),
            ]
        with m.Elif(sets):
            m.d.comb += [
                host.payload.op.eq(REGISTER),
                host.payload.addr.eq(values.payload.addr[1:]),
                host.payload.data.eq(Cat(parts[0], values.payload.data)),
            ]
        with m.Else():
            m.d.comb += host.payload.op.eq(START)

        connect_regions(m, registers, core)
        pass_ports(m, self, registers, lite_members(registers.address_bits))
        for prefix in (PREFIX, HOST_PREFIX, TABLE_PREFIX):
            pass_manager(m, self, core, p, prefix, o["axi.prot"], o["axi.cache"])
        return m
