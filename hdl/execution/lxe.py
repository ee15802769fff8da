"""LLM execution engine: DPE, VPE, scratchpads, an AXI4 port and the sequencer that runs a program on them."""

from functools import reduce
from operator import or_

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.vector import Op
from openvrex.golden.program.isa import Engine, Queue
from openvrex.hdl.bus.axi import connect_ports, port_members
from openvrex.hdl.execution.dpe import Dpe, result_layout
from openvrex.hdl.execution.loader import Loader
from openvrex.hdl.execution.multiplier import Multiplier
from openvrex.hdl.execution.sequencer import Sequencer
from openvrex.hdl.execution.storer import Storer
from openvrex.hdl.execution.vpe import Vpe, output_layout, word_layout
from openvrex.hdl.instruction_layouts import (
    done_layout,
    dre_layout,
    host_layout,
    picks,
    retrieve_layout,
    set_layout,
    status_layout,
    takes_words,
)
from openvrex.hdl.memory import collect_errors, error_members
from openvrex.hdl.params import CoreParams
from openvrex.hdl.queues import ROUTES
from openvrex.hdl.retrieval.retriever import fault_layout
from openvrex.hdl.unit import Composite

_BIT = {engine: bit for bit, engine in enumerate(Engine)}  # bit of each engine in the sequencer's `busy`


class Lxe(Composite):
    """Runs programs between its scratchpads and the memory behind its AXI4 port.

    The host writes a program and registers on `host`, starts it, and reads `status`. LOAD, MUL, VECTOR and STORE run
    side by side as far as semaphores and the queues between them allow. After a fault the LXE drains its port: it takes
    all data that it asked for, and completes announced writes with no byte enabled. `status` names the fault; a reset
    makes the LXE ready again.

    Corner cases: the activations have two writers; where both write in one cycle, the loader goes first. A START while
    a program runs waits. At DONE the VPE has taken all words, and may still compute its last VECTOR: the next program's
    first one waits for it.

    Scratchpad: the DPE's weights and activations, the VPE's banks, the program: `core` has 256 + 64 + 40 + 16 KB, and
    8 KB of queues, of the paper's 384 KB.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    host : In(stream of `hdl.instruction_layouts.host_layout`) : program, registers, start; START is taken
        while nothing runs
    status : Out(`hdl.instruction_layouts.status_layout`) : state of the program, or how it ended
    m_axi_* : AXI4 manager of `lxe.bus_bytes` a beat (`hdl.bus.axi`)
    retrieve, done, busy, retrieve_set, fault : Out(stream of `hdl.instruction_layouts.retrieve_layout`),
        In(`done_layout`), In(1), In(`hdl.instruction_layouts.set_layout`), In(`hdl.retrieval.retriever.fault_layout`)
        : a fifth engine beside the LXE, as `hdl.retrieval.retriever.Retriever`; `busy`: its bus owes a response
    d : Out(stream of `hdl.instruction_layouts.dre_layout`) : hash bits and score codes for it
    stop : Out(1) : high after a fault, for every part with a bus of its own
    memory : In(1) : pulse: a memory beside the LXE has a word that its check bits cannot correct
    perf : Out(struct of 32-bit counters) : those of the units, named unit.counter

    Latency: that of the program (`golden.program.isa`); an instruction that waits for nothing reaches its engine 2
        cycles after it leaves program memory.
    Throughput: a chunk of the DPE, a word of the VPE, and a beat in each direction, all in every cycle. At the `core`
        preset that is 64 x 64 products, 64 numbers and 64 bytes each way.
    Raises: `ParamError` from `CoreParams.lxe_format`.
    Source: V-Rex section V-A, Fig. 10; function: `golden.program.lxe_model`.
    """

    def __init__(self, p: CoreParams):
        p.core_format()  # checks that all fits together
        super().__init__(
            p,
            {
                "host": In(stream.Signature(host_layout())),
                "status": Out(status_layout()),
                **port_members(p),
                "retrieve": Out(stream.Signature(retrieve_layout())),
                "done": In(done_layout()),
                "busy": In(1),
                "retrieve_set": In(set_layout()),
                "fault": In(fault_layout()),
                "d": Out(stream.Signature(dre_layout(p))),
                "stop": Out(1),
                "memory": In(1),
                "length": In(1),
                "timeout": In(1),
                **error_members(p.lxe.protect, p.dpe.protect, p.vpe.protect),
            },
        )

    @staticmethod
    def units(p: CoreParams) -> list[tuple[str, type, object]]:
        """Instance name, class and parameters of every unit inside that counts its events."""
        own = [("sequencer", Sequencer), ("loader", Loader), ("storer", Storer)]
        return [*((name, unit, p) for name, unit in own), ("dpe", Dpe, p.dpe), ("vpe", Vpe, p.vpe)]

    def elaborate(self, platform):
        p, m = self.p, Module()
        parts = {name: unit(own) for name, unit, own in self.units(p)}
        for name, unit in parts.items():
            m.submodules[name] = unit
        sequencer, loader, storer, dpe, vpe = parts.values()
        m.submodules.multiplier = multiplier = Multiplier(p)

        self._engines(m, *parts.values(), multiplier)
        collect_errors(m, self, [sequencer, dpe, vpe])
        self._write_activations(m, loader, storer, dpe)
        routes = self._route(m, sequencer, vpe)
        loaded, put = self._queues(m, routes, loader, dpe, vpe, storer)
        self._watch(m, parts, multiplier, (routes, loaded, put))
        connect_ports(m, p, self, loader, storer)
        self._pass_counters(m, parts)
        return m

    def _engines(
        self,
        m: Module,
        sequencer: Sequencer,
        loader: Loader,
        storer: Storer,
        dpe: Dpe,
        vpe: Vpe,
        multiplier: Multiplier,
    ) -> None:
        """Connects the sequencer and its engines: instructions, their ends, faults."""
        wiring.connect(m, wiring.flipped(self.host), sequencer.host)
        wiring.connect(m, sequencer.load, loader.c)
        wiring.connect(m, sequencer.store, storer.c)
        wiring.connect(m, sequencer.mul, multiplier.i)
        wiring.connect(m, multiplier.c, dpe.c)
        wiring.connect(m, sequencer.retrieve, wiring.flipped(self.retrieve))
        wiring.connect(m, storer.d, wiring.flipped(self.d))
        m.d.comb += [
            sequencer.done.retrieve.eq(self.done),
            sequencer.retrieve_set.eq(self.retrieve_set),
            self.stop.eq(sequencer.stop),
            self.status.eq(sequencer.status),
            multiplier.read.eq(dpe.read),
            sequencer.done.load.eq(loader.done),
            sequencer.done.mul.eq(multiplier.done),
            sequencer.done.store.eq(storer.done),
            loader.stop.eq(sequencer.stop),
            storer.stop.eq(sequencer.stop),
            *([sequencer.store_set.eq(storer.store_set)] if self.p.lxe.to_register else []),
            sequencer.outstanding.eq(loader.busy | storer.busy | self.busy),
            sequencer.fault.bus.eq(loader.fault.bus | storer.fault.bus | self.fault.bus),
            sequencer.fault.range.eq(
                loader.fault.range | storer.fault.range | multiplier.fault | dpe.overrun | self.fault.range
            ),
            sequencer.fault.full.eq(self.fault.full),
            sequencer.fault.length.eq(self.length),
            sequencer.fault.timeout.eq(self.timeout),
            sequencer.fault.memory.eq(self.memory | (self.error[1] if hasattr(self, "error") else 0)),
        ]

    def _write_activations(self, m: Module, loader: Loader, storer: Storer, dpe: Dpe) -> None:
        """Connects the scratchpads. X has two writers; the loader wins over the storer."""
        wiring.connect(m, loader.w, dpe.w)
        m.d.comb += [
            dpe.x.valid.eq(loader.x.valid | storer.x.valid),
            dpe.x.payload.eq(Mux(loader.x.valid, loader.x.payload, storer.x.payload)),
            loader.x.ready.eq(dpe.x.ready),
            storer.x.ready.eq(dpe.x.ready & ~loader.x.valid),
        ]

    def _route(self, m: Module, sequencer: Sequencer, vpe: Vpe) -> SyncFIFOBuffered:
        """Sends a VECTOR to the VPE and, if it takes words, their source and number to `routes`."""
        vector = sequencer.vector.payload
        i = vector.instruction
        streams = Signal()
        routes = m.submodules.routes = SyncFIFOBuffered(width=_route_layout(self.p).size, depth=ROUTES)
        route_in = Signal(_route_layout(self.p))
        goes = Signal()
        m.d.comb += [
            streams.eq((i.op != Op.STORE) & takes_words(i, picks(i))),
            goes.eq(sequencer.vector.valid & ~vector.skip & (routes.w_rdy | ~streams)),
            vpe.c.valid.eq(goes),
            vpe.c.payload.eq(i),
            sequencer.vector.ready.eq(Mux(vector.skip, 1, vpe.c.ready & (routes.w_rdy | ~streams))),
            route_in.source.eq(vector.source),
            route_in.words.eq(i.words),
            routes.w_data.eq(route_in),
            routes.w_en.eq(goes & vpe.c.ready & streams),
        ]
        return routes

    def _queues(
        self, m: Module, routes: SyncFIFOBuffered, loader: Loader, dpe: Dpe, vpe: Vpe, storer: Storer
    ) -> tuple[SyncFIFOBuffered, SyncFIFOBuffered]:
        """Connects DPE, loader, VPE and storer; returns the queues of loaded words and of words to store."""
        p, route = self.p, data.View(_route_layout(self.p), routes.r_data)
        loaded = m.submodules.loaded = SyncFIFOBuffered(width=word_layout(p.vpe).size, depth=p.lxe.words)
        put = m.submodules.put = SyncFIFOBuffered(width=output_layout(p.vpe).size, depth=p.lxe.words)
        taken = Signal.like(route.words)  # words taken of the current route
        moved = Signal()
        from_dpe = Signal(result_layout(p.dpe))
        m.d.comb += [
            loaded.w_data.eq(loader.v.payload),
            loaded.w_en.eq(loader.v.valid),
            loader.v.ready.eq(loaded.w_rdy),
            from_dpe.eq(dpe.o.payload),
            vpe.i.payload.as_value().eq(Mux(route.source == Queue.LOAD, loaded.r_data, from_dpe.data.as_value())),
            vpe.i.valid.eq(routes.r_rdy & Mux(route.source == Queue.LOAD, loaded.r_rdy, dpe.o.valid)),
            moved.eq(vpe.i.valid & vpe.i.ready),
            loaded.r_en.eq(moved & (route.source == Queue.LOAD)),
            dpe.o.ready.eq(moved & (route.source == Queue.MUL)),
            routes.r_en.eq(moved & (taken == route.words)),
            put.w_data.eq(vpe.o.payload),
            put.w_en.eq(vpe.o.valid),
            vpe.o.ready.eq(put.w_rdy),
            storer.i.payload.as_value().eq(put.r_data),
            storer.i.valid.eq(put.r_rdy),
            put.r_en.eq(storer.i.ready),
        ]
        with m.If(moved):
            m.d.sync += taken.eq(Mux(routes.r_en, 0, taken + 1))
        return loaded, put

    def _watch(
        self, m: Module, parts: dict[str, object], multiplier: Multiplier, queues: tuple[SyncFIFOBuffered, ...]
    ) -> None:
        """Tells the sequencer which engines are busy, and whether anything moves."""
        sequencer, loader, storer, dpe, vpe = parts.values()
        flows = (loader.c, loader.r, loader.v, storer.c, storer.i, storer.b, multiplier.i, dpe.c, dpe.o, vpe.c)
        flows += (sequencer.retrieve, storer.d)
        multiplies = multiplier.busy & ~(dpe.o.valid & ~dpe.o.ready)
        waiting = reduce(or_, (queue.level.any() for queue in queues))  # `r_rdy` rises two cycles after a word comes
        m.d.sync += sequencer.moved.eq(Cat(multiplies, *(f.valid & f.ready for f in flows)).any())
        m.d.comb += [
            sequencer.busy[_BIT[Engine.VECTOR]].eq(waiting | dpe.o.valid),
        ]
        for engine, given, done in (
            (Engine.LOAD, sequencer.load, loader.done.valid),
            (Engine.MUL, sequencer.mul, multiplier.done.valid),
            (Engine.STORE, sequencer.store, storer.done.valid),
            (Engine.RETRIEVE, sequencer.retrieve, self.done.valid),
        ):
            under_way = Signal(8, name=f"under_way{_BIT[engine]}")
            goes = given.valid & given.ready  # known late: the numbers for both cases are ready before
            m.d.sync += under_way.eq(Mux(goes, Mux(done, under_way, under_way + 1), under_way - done))
            m.d.comb += sequencer.busy[_BIT[engine]].eq(under_way.any())


def _route_layout(p: CoreParams) -> data.StructLayout:
    """The source of a VECTOR's words, and their number."""
    return data.StructLayout({"source": 1, "words": p.vpe.addr_bits})
