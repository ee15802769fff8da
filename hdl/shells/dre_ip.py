# amaranth: UnusedElaboratable=no
# (a unit may be made only to look at its ports)
"""DRE as an IP block beside any GPU or NPU: registers, an interrupt, two AXI4 streams, two AXI4 managers."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import ADDR_BITS, Status
from openvrex.hdl.bus.axi import PREFIX, TABLE_PREFIX, pass_manager, pass_ports, port_members
from openvrex.hdl.bus.guard import Manager, connect_guarded, region_members
from openvrex.hdl.instruction_layouts import retrieve_layout
from openvrex.hdl.memory import collect_errors
from openvrex.hdl.named import comb
from openvrex.hdl.params import CoreParams, HcuParams, WtuParams, bits_for, reset_cycles
from openvrex.hdl.reset import with_reset
from openvrex.hdl.retrieval.dre import Dre, setting_members
from openvrex.hdl.retrieval.hcu_state import JOIN, token_layout
from openvrex.hdl.retrieval.retriever import Retriever
from openvrex.hdl.shells.register_block import (
    RegisterBlock,
    address_map,
    connect_regions,
    count_errors,
    joined,
    lite_members,
)
from openvrex.hdl.shells.watchdog import watchdog
from openvrex.hdl.slices import Slice
from openvrex.hdl.unit import Composite

RESULT, COUNT = 1, 2  # numbers of the registers that the retriever sets
CODE_BITS = 16  # bits of a score on the stream


def key_layout(p: HcuParams) -> data.StructLayout:
    """tuser of a key: the number of its token, and its context."""
    return data.StructLayout({"token": p.token_bits, "ctx": bits_for(p.n_ctx)})


def scores_layout(p: WtuParams) -> data.StructLayout:
    """tuser of scores. `keep`: highest lane in use, of a row's last word. `set_last`: last row of its query block.

    `begins`: first word of a row, in the first of its readings only.
    """
    return data.StructLayout({"keep": bits_for(p.n_w), "set_last": 1, "begins": 1})


def stream_members(p: CoreParams) -> dict[str, wiring.Member]:
    """The AXI4-Stream receivers' ports, for a component's signature; data of whole bytes."""
    d, out = p.dre, {}
    hash_ = data.FlexibleLayout(-(-d.hcu.n_hp // 8) * 8, {"hash": data.Field(d.hcu.n_hp, 0)})
    lane = data.FlexibleLayout(CODE_BITS, {"score": data.Field(d.wtu.score.bits, 0)})
    for prefix, layout, user in (
        ("s_axis_k_", hash_, key_layout(d.hcu)),
        ("s_axis_s_", data.ArrayLayout(lane, d.wtu.n_w), scores_layout(d.wtu)),
    ):
        fields = {"tdata": In(layout), "tuser": In(user), "tlast": In(1), "tvalid": In(1), "tready": Out(1)}
        out |= {prefix + name: member for name, member in fields.items()}
    return out


class CommandEngine(Composite):
    """A DRE, and the retriever that executes commands on it, one at a time.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    start : In(1), command : In(`hdl.instruction_layouts.retrieve_layout`) : a command begins, unless one
        runs or after a fault; keep it stable while it runs
    code : Out(4) : `golden.program.isa.Status`: IDLE, RUNNING, DONE, and RANGE, BUS, FULL, MEMORY, LENGTH or TIMEOUT
        until a reset
    result, count : Out(40) : results of the last command
    stop : In(1) : begin nothing, finish what has begun · busy : Out(1) : a burst is in flight
    th_hd, ratio, device_base, home_base, table_base, blocks, contexts, quota : In : as in `hdl.retrieval.dre.Dre`
    timeout : In(1) : pulse: end the command with TIMEOUT
    confine, regions, refused : as in `hdl.execution.core.Core`
    s_axis_k_*, s_axis_s_*, m_axi_*, t_axi_* : as in `DreIp`
    perf : Out(struct of 32-bit counters) : those of the units, named unit.counter

    Latency: 1 cycle from `start` to the retriever, 1 from its end to `code`; 1 from the streams to the DRE.
    Throughput: that of DRE and retriever.
    Raises: `ParamError` from `CoreParams.joined`.
    Source: V-Rex sections V-B and V-C; Fig. 10, steps 2, 4 and 5.
    """

    def __init__(self, p: CoreParams):
        super().__init__(
            p.joined(),
            {
                "start": In(1),
                "command": In(retrieve_layout()),
                "code": Out(4),
                "result": Out(ADDR_BITS),
                "count": Out(ADDR_BITS),
                "stop": In(1),
                "busy": Out(1),
                **setting_members(p.dre),
                "timeout": In(1),
                **region_members(p),
                **stream_members(p),
                **port_members(p),
                **port_members(p, TABLE_PREFIX),
            },
            *(part.protect for part in (p.dre.hcu, p.dre.wtu, p.dre.kvmu, p.dre.table, p.lxe)),
        )

    @staticmethod
    def units(p: CoreParams) -> list[tuple[str, type, object]]:
        """Instance name, class and parameters of every unit inside."""
        return [("dre", Dre, p.dre), ("retriever", Retriever, p)]

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.dre = dre = Dre(p.dre)
        m.submodules.retriever = retriever = Retriever(p)
        for name in ("t", "w", "x", "b"):
            wiring.connect(m, getattr(dre, name), getattr(retriever, name))
        m.d.comb += [getattr(dre, n).eq(getattr(self, n)) for n in setting_members(p.dre)]
        if p.dre.wtu.budget:
            m.d.comb += [dre.budgeted.eq(retriever.budgeted), dre.budget.eq(retriever.budget)]
        managers = {Manager.RETRIEVER: (PREFIX, retriever.bus), Manager.DRE: (TABLE_PREFIX, dre.bus)}
        connect_guarded(m, p, self, managers)

        code = Signal(Status)
        drops = comb(m, "drops", code >= Status.OPCODE)  # nothing that a stream brings counts any more
        # Keys; an order goes before the next key.
        m.submodules.keys = keys = Slice(token_layout(p.dre.hcu))
        wiring.connect(m, keys.o, dre.k)
        order, key, user = retriever.order, keys.i.payload, self.s_axis_k_tuser
        m.d.comb += [
            keys.i.valid.eq(order.valid | (self.s_axis_k_tvalid & ~drops)),
            order.ready.eq(keys.i.ready),
            self.s_axis_k_tready.eq(drops | (keys.i.ready & ~order.valid)),
            key.op.eq(Mux(order.valid, order.payload.op, JOIN)),
            key.ctx.eq(Mux(order.valid, order.payload.ctx, user.ctx)),
            key.token.eq(user.token),
            key.hash.eq(self.s_axis_k_tdata.hash),
            key.last.eq(order.valid | self.s_axis_k_tlast),
        ]
        m.submodules.rows = rows = Slice(dre.s.payload.shape())
        wiring.connect(m, rows.o, dre.s)
        row, user = rows.i.payload.row, self.s_axis_s_tuser
        refused = self._count_readings(m)
        m.d.comb += [
            rows.i.valid.eq(self.s_axis_s_tvalid & ~refused & ~drops),
            self.s_axis_s_tready.eq(drops | (rows.i.ready & ~refused)),
            rows.i.payload.set_last.eq(user.set_last),
            row.keep.eq(user.keep),
            row.last.eq(self.s_axis_s_tlast),
            *(row.scores[i].eq(self.s_axis_s_tdata[i].score) for i in range(p.dre.wtu.n_w)),
        ]

        collect_errors(m, self, [dre, retriever])
        # The command.
        offered = Signal()
        begins = Signal()
        m.d.comb += [
            begins.eq(self.start & ((code == Status.IDLE) | (code == Status.DONE))),
            retriever.c.valid.eq(offered),
            retriever.c.payload.eq(self.command),
            retriever.stop.eq(self.stop | (code >= Status.OPCODE)),
            dre.stop.eq(retriever.stop),
            self.busy.eq(retriever.busy | dre.busy),
            self.code.eq(code),
        ]
        with m.If(retriever.c.ready):
            m.d.sync += offered.eq(0)
        with m.If(begins):
            m.d.sync += [offered.eq(1), code.eq(Status.RUNNING)]
        with m.If(retriever.done.valid):
            m.d.sync += code.eq(Status.DONE)
        wrong = Cat(unit.error[1] for unit in (dre, retriever) if hasattr(unit, "error")).any()
        faults = {  # of several in a cycle the last one is told; the first of all stays until a reset
            Status.TIMEOUT: self.timeout,
            Status.MEMORY: wrong,
            Status.FULL: retriever.fault.full,
            Status.LENGTH: dre.refused.length | refused,
            Status.RANGE: retriever.fault.range | dre.refused.range,
            Status.BUS: retriever.fault.bus | dre.bus_error,
        }
        with m.If(~drops):
            for status, fault in faults.items():
                with m.If(fault):
                    m.d.sync += code.eq(status)
        with m.If(retriever.retrieve_set.valid & (retriever.retrieve_set.to == RESULT)):
            m.d.sync += self.result.eq(retriever.retrieve_set.data)
        with m.If(retriever.retrieve_set.valid & (retriever.retrieve_set.to == COUNT)):
            m.d.sync += self.count.eq(retriever.retrieve_set.data)
        self._pass_counters(m, {"dre": dre, "retriever": retriever})
        return m

    def _count_readings(self, m: Module) -> Signal:
        """Whether the word of scores on offer is refused: it begins a row before the last reading of the one before, or
        goes on with one that has had all its readings.
        """
        readings = self.p.dre.wtu.readings
        reading = Signal(range(max(2, readings)))  # number of the reading
        inside = Signal()  # it has had a word
        refused = Signal()
        user, moves = self.s_axis_s_tuser, self.s_axis_s_tvalid & self.s_axis_s_tready
        m.d.comb += refused.eq(self.s_axis_s_tvalid & (user.begins != ((reading == 0) & ~inside)))
        with m.If(moves):
            m.d.sync += inside.eq(~self.s_axis_s_tlast)
            with m.If(self.s_axis_s_tlast):
                m.d.sync += reading.eq(Mux(reading == readings - 1, 0, reading + 1))
        return refused


class DreIp(wiring.Component):
    """A DRE with the retriever that copies entries, behind registers, which `registers.rdl` describes.

    Keys' hash bits and rows of scores come in as streams. Software gives commands one at a time: CLUSTER takes the
    result of the next key, PLACE copies its entry to its place (and offloads an older one), SWITCH chooses the context
    of the rows that follow, FETCH copies a cluster set's entries to a buffer. Keys wait until those before them are
    placed, so let PLACE follow each CLUSTER. The last key of a frame must say so: keys before it wait for it. After a
    fault nothing more begins. `control.reset` resets all but the registers once the bus owes no response, also while a
    command runs.

    Corner cases: a command that starts while another one runs, or after a fault, is ignored.


    Parameters
    ----------
    p : CoreParams; of the LXE's it takes bus_bytes, burst_bytes and copies, and words of 2 * dpe.n_w bytes

    Members
    -------
    s_axi_* : AXI4-Lite subordinate, 32 bits: the registers
    s_axis_k_* : AXI4-Stream, a key a beat: tdata hash bits, tuser `key_layout`, tlast the last of its frame
    s_axis_s_* : AXI4-Stream, n_w scores a beat, 16 bits each: tuser `scores_layout`, tlast the last of its row
    m_axi_* : AXI4 manager of the retriever, which copies entries · t_axi_* : AXI4 manager of the tables
    irq : Out(1) : level, high while an enabled interrupt is pending

    Latency: 1 cycle from START's response to the retriever; streams 1 cycle to the DRE.
    Throughput: that of DRE and retriever.
    Raises: `ParamError` from `CoreParams.joined`.
    Source: V-Rex sections V-B and V-C; Fig. 10, steps 2, 4 and 5.
    """

    def __init__(self, p: CoreParams):
        self.p = p
        self.registers = RegisterBlock(address_map("dre_ip", p))
        super().__init__(
            {
                **lite_members(self.registers.address_bits),
                **stream_members(p),
                **port_members(p),
                **port_members(p, TABLE_PREFIX),
                "irq": Out(1),
            }
        )

    def counters(self) -> list[str]:
        """Names of the performance counters, which are registers: perf.<name>."""
        return CommandEngine.counters_of(self.p)

    @staticmethod
    def timing(p: CoreParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return CommandEngine.timing(p)

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.registers = registers = self.registers
        i, o = registers.i, registers.o
        engine = CommandEngine(p)
        may_reset = Signal()
        m.submodules.engine, resets = with_reset(m, engine, reset_cycles(p), o["control.reset"], may_reset)
        count_errors(m, registers, engine, resets)
        was_running = Signal()
        running = Signal()
        was_fault = Signal()
        m.d.sync += [was_running.eq(running), was_fault.eq(engine.code >= Status.OPCODE)]
        m.d.comb += [
            running.eq(engine.code == Status.RUNNING),
            engine.stop.eq(resets),
            may_reset.eq(~engine.busy),
            engine.start.eq(o["control.start"]),
            engine.command.action.eq(o["command.action"]),
            engine.command.shift.eq(o["command.shift"]),
            engine.command.rows.eq(o["rows.value"]),
            engine.command.addr.eq(joined(o, "base")),
            engine.command.to.eq(RESULT),
            engine.command.level.eq(COUNT),
            *(getattr(engine, n).eq(joined(o, n)) for n in setting_members(p.dre)),
            registers.busy.eq(running),
            i["status.code"].eq(engine.code),
            i["status.bus"].eq(engine.busy),
            i["status.resets"].eq(resets),
            i["irq.done"].eq(o["irq_test.done"] | (was_running & (engine.code == Status.DONE))),
            i["irq.fault"].eq(o["irq_test.fault"] | (~was_fault & (engine.code >= Status.OPCODE))),
            engine.timeout.eq(watchdog(m, o["watchdog.value"], running)),
            joined(i, "result").eq(engine.result),
            joined(i, "count").eq(engine.count),
            self.irq.eq(registers.irq),
            *(i[f"perf.{name}.value"].eq(engine.perf[name]) for name in self.counters()),
        ]
        connect_regions(m, registers, engine)
        pass_ports(m, self, registers, lite_members(registers.address_bits))
        pass_ports(m, self, engine, stream_members(p))
        for prefix in (PREFIX, TABLE_PREFIX):
            pass_manager(m, self, engine, p, prefix, o["axi.prot"], o["axi.cache"])
        return m
