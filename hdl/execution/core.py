"""Core: the LXE with the retrieval engine beside it."""

from amaranth import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from openvrex.hdl.bus.axi import (
    CHANNELS,
    HOST_PREFIX,
    PREFIX,
    TABLE_PREFIX,
    connect_streams,
    manager_signature,
    port_members,
)
from openvrex.hdl.bus.guard import Manager, connect_guarded, region_members
from openvrex.hdl.execution.lxe import Lxe
from openvrex.hdl.instruction_layouts import host_layout, status_layout
from openvrex.hdl.memory import collect_errors, error_members
from openvrex.hdl.params import CoreParams
from openvrex.hdl.retrieval.dre import Dre, setting_members
from openvrex.hdl.retrieval.feeder import Feeder
from openvrex.hdl.retrieval.retriever import Retriever
from openvrex.hdl.unit import Composite


def protects(p: CoreParams) -> list[str]:
    """The protection of every unit's memories."""
    return [unit.protect for unit in (p.dre.hcu, p.dre.wtu, p.dre.kvmu, p.dre.table, p.dpe, p.vpe, p.lxe)]


class Core(Composite):
    """Runs a decoder layer with retrieval: the six steps of Fig. 10, under the program of the LXE.

    Hash bits that the LXE stores go to the HCU, score codes to the WTU. RETRIEVE hands a token's cluster back to the
    program, copies its entry to where the KVMU puts it, and fetches the entries of a chosen cluster set. The retriever
    has an AXI4 port of its own, so that its copies run beside the loads of the LXE; so has the DRE for its tables, so
    that they wait for neither.

    While `confine` is high, a burst outside the regions never leaves the core, whatever its program, its tables or its
    registers hold (`hdl.bus.guard`). The program ends with status BUS.

    Corner cases: a fault of the retriever or of the table port, a key or row of scores that the DRE refuses, or a word
    that the check bits of a memory cannot correct, ends the program as a fault of the LXE does. It also changes the
    status of a program that has just ended.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    host, status : as in `hdl.execution.lxe.Lxe`
    m_axi_* : AXI4 manager of the LXE · h_axi_* : of the retriever, which reads and writes device and offload memory
    t_axi_* : of the DRE's tables
    th_hd, ratio, device_base, home_base, table_base, blocks, contexts, quota : In : as in `hdl.retrieval.dre.Dre`; keep
        them stable while a program runs
    timeout : In(1) : pulse: end the program with status TIMEOUT
    confine, regions : In(1), In(`hdl.bus.guard.regions_layout`), with `core.regions` : whether the core reads and
        writes only in the regions
    refused : Out(`hdl.bus.guard.refused_layout`), with `core.regions` : the first burst outside since the reset
    perf : Out(struct of 32-bit counters) : those of the units, named unit.counter

    Latency: that of the program and of the engines that it waits for.
    Throughput: that of the LXE, and beside it that of the DRE and of the retriever.
    Raises: `ParamError` from `CoreParams.joined`.
    Source: V-Rex section V, Fig. 10; function: `golden.program.core_model`.
    """

    def __init__(self, p: CoreParams):
        super().__init__(
            p.joined(),
            {
                "host": In(stream.Signature(host_layout())),
                "status": Out(status_layout()),
                **port_members(p),
                **port_members(p, HOST_PREFIX),
                **port_members(p, TABLE_PREFIX),
                **setting_members(p.dre),
                "timeout": In(1),
                **region_members(p),
                **error_members(*protects(p)),
            },
        )

    @staticmethod
    def units(p: CoreParams) -> list[tuple[str, type, object]]:
        """Instance name, class and parameters of every unit inside."""
        return [("lxe", Lxe, p), ("dre", Dre, p.dre), ("feeder", Feeder, p), ("retriever", Retriever, p)]

    def elaborate(self, platform):
        p, m = self.p, Module()
        parts = {name: unit(own) for name, unit, own in self.units(p)}
        for name, unit in parts.items():
            m.submodules[name] = unit
        lxe, dre, feeder, retriever = parts.values()
        wiring.connect(m, wiring.flipped(self.host), lxe.host)
        wiring.connect(m, lxe.retrieve, retriever.c)
        wiring.connect(m, lxe.d, feeder.d)
        wiring.connect(m, retriever.order, feeder.order)
        wiring.connect(m, feeder.k, dre.k)
        wiring.connect(m, feeder.s, dre.s)
        for name in ("t", "w", "x", "b"):
            wiring.connect(m, getattr(dre, name), getattr(retriever, name))
        m.d.comb += [
            self.status.eq(lxe.status),
            lxe.done.eq(retriever.done),
            lxe.busy.eq(retriever.busy | dre.busy),
            lxe.retrieve_set.eq(retriever.retrieve_set),
            lxe.fault.bus.eq(retriever.fault.bus | dre.bus_error),
            lxe.fault.range.eq(retriever.fault.range | dre.refused.range),
            lxe.length.eq(dre.refused.length),
            lxe.timeout.eq(self.timeout),
            lxe.fault.full.eq(retriever.fault.full),
            retriever.stop.eq(lxe.stop),
            dre.stop.eq(lxe.stop),
            lxe.memory.eq(Cat(unit.error[1] for unit in (dre, retriever) if hasattr(unit, "error")).any()),
            *(getattr(dre, name).eq(getattr(self, name)) for name in setting_members(p.dre)),
        ]
        if p.dre.wtu.budget:
            m.d.comb += [dre.budgeted.eq(retriever.budgeted), dre.budget.eq(retriever.budget)]
        collect_errors(m, self, [lxe, dre, retriever])
        bus = manager_signature(p.lxe.bus_bytes).create(path=("lxe_bus",))
        connect_streams(m, lxe, PREFIX, {name: getattr(bus, name) for name in CHANNELS})
        managers = {
            Manager.LXE: (PREFIX, bus),
            Manager.RETRIEVER: (HOST_PREFIX, retriever.bus),
            Manager.DRE: (TABLE_PREFIX, dre.bus),
        }
        connect_guarded(m, p, self, managers)
        self._pass_counters(m, parts)
        return m
