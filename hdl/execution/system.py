"""System: several cores on one memory port, or on several."""

from amaranth import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from openvrex.hdl.bus.arbiter import MANAGERS, Arbiter, common_members, memory_members
from openvrex.hdl.bus.axi import CHANNELS, HOST_PREFIX, PREFIX, TABLE_PREFIX, connect_streams, pass_ports
from openvrex.hdl.bus.guard import region_members
from openvrex.hdl.execution.core import Core
from openvrex.hdl.instruction_layouts import host_layout, status_layout
from openvrex.hdl.leaf import place
from openvrex.hdl.params import SystemParams, bits_for
from openvrex.hdl.retrieval.dre import setting_members
from openvrex.hdl.slices import Slice
from openvrex.hdl.unit import Composite


def system_host_layout(p: SystemParams) -> data.StructLayout:
    """`hdl.instruction_layouts.host_layout` and the core it is for."""
    return data.StructLayout({**{name: f.shape for name, f in host_layout()}, "core": bits_for(p.cores)})


class System(Composite):
    """Joins `cores` equal cores, which share the memory ports and nothing else.

    The host shares out work through the program and registers of each core (`golden.program.shares`). Of n cores, core
    i has the KV heads h with h mod n = i, with the query heads of their groups and with tables, rings and offloaded
    entries of its own (table_base, device_base, home_base), and its part of the columns of hidden states and FFN. With
    more cores than KV heads, teams of cores share a head, whose tables only the first of them uses.
    Cores pass data to each other through memory: the host starts the reader when the writer's status is DONE. By then
    its last write has been answered.

    Corner cases: a fault ends the program of its own core only; that core drains its bursts while the others run on. A
    reset is of the whole system.

    Parameters
    ----------
    p : SystemParams

    Members
    -------
    host : In(stream of `system_host_layout`) : as in `hdl.execution.lxe.Lxe`, to one core; in order over all cores, so
        a START for a core that runs holds up all requests behind it: read `status` first. A request for a core that
        does not exist is dropped
    status : Out(array of cores of `hdl.instruction_layouts.status_layout`) : status of each core
    th_hd, ratio, device_base, home_base, table_base, blocks, contexts : In(arrays of cores) : as in
        `hdl.execution.core.Core`
    confine, regions : In, refused : Out (arrays of cores), with `core.regions` : as in `hdl.execution.core.Core`
    common_log2, common_base, common_limit : In : with `common`, what groups of cores read together, as in
        `hdl.bus.arbiter.Arbiter`
    m_axi_* : AXI4 manager, IDs of `hdl.bus.arbiter.id_bits`: 3 i for the LXE of core i, 3 i + 1 for its retriever,
        3 i + 2 for its tables; of several ports m0_axi_*, m1_axi_* and so on, to which bursts go by address
        (`hdl.bus.interleaver`)
    perf_core, perf_index : In : chooses a counter of a core, by its place in `core_counters`
    perf_value : Out(32) : that counter, 2 cycles later
    perf : Out(struct of 32-bit counters) : of the arbiter

    Latency: that of the programs; 1 cycle from `host` to the core.
    Throughput: that of the cores, as far as a beat in each direction a cycle of each port suffices for all.
    Raises: `ParamError` from `CoreParams.core_format`.
    Source: V-Rex section VI-A (V-Rex8, V-Rex48), Fig. 10; function: `golden.program.system_host`.
    """

    def __init__(self, p: SystemParams):
        def each(shape):
            return data.ArrayLayout(shape, p.cores)

        super().__init__(
            p,
            {
                "host": In(stream.Signature(system_host_layout(p))),
                "status": Out(each(status_layout())),
                **memory_members(p),
                **{n: x.flow(each(x.shape)) for n, x in self._each(p).items()},
                **(common_members() if p.common else {}),
                "perf_core": In(bits_for(p.cores)),
                "perf_index": In(bits_for(len(Core.counters_of(p.core)))),
                "perf_value": Out(32),
            },
        )

    @staticmethod
    def _each(p: SystemParams) -> dict[str, wiring.Member]:
        """What each core has for itself."""
        return setting_members(p.core.dre) | region_members(p.core)

    @staticmethod
    def units(p: SystemParams) -> list[tuple[str, type, object]]:
        """The unit whose counters are in `perf`; those of the cores are read through `perf_index`."""
        return [("arbiter", Arbiter, p)]

    def core_counters(self) -> list[str]:
        """Names of the counters that `perf_index` chooses from."""
        return Core.counters_of(self.p.core)

    @classmethod
    def timing(cls, p: SystemParams) -> dict[str, str]:
        """Formulas for the manifest: of the cores, and of the arbiter."""
        return {f"core.{key}": text for key, text in Core.timing(p.core).items()} | super().timing(p)

    def elaborate(self, platform):
        p, m = self.p, Module()
        cores = [place(m, platform, f"core{i}", Core, p.core) for i in range(p.cores)]
        m.submodules.arbiter = arbiter = Arbiter(p)
        m.submodules.host = host = Slice(system_host_layout(p))
        wiring.connect(m, wiring.flipped(self.host), host.i)
        to = host.o.payload
        m.d.comb += host.o.ready.eq(to.core >= p.cores)

        values = Signal(data.ArrayLayout(32, p.cores))
        for i, core in enumerate(cores):
            mine = Signal(name=f"mine{i}")
            m.d.comb += [
                mine.eq(to.core == i),
                core.host.valid.eq(host.o.valid & mine),
                *(core.host.payload[name].eq(to[name]) for name in host_layout().members),
                self.status[i].eq(core.status),
            ]
            for name, member in self._each(p).items():
                own, ours = getattr(core, name), getattr(self, name)[i]
                m.d.comb += own.eq(ours) if member.flow == In else ours.eq(own)
            with m.If(mine):
                m.d.comb += host.o.ready.eq(core.host.ready)
            for k, prefix in enumerate((PREFIX, HOST_PREFIX, TABLE_PREFIX)):
                channels = {name: getattr(arbiter, name)[MANAGERS * i + k] for name in CHANNELS}
                connect_streams(m, core, prefix, channels)
            m.d.sync += values[i].eq(core.perf.as_value().word_select(self.perf_index, 32))
        chosen = Signal.like(self.perf_core)
        m.d.sync += [chosen.eq(self.perf_core), self.perf_value.eq(values[chosen])]
        if p.common:
            m.d.comb += [getattr(arbiter, name).eq(getattr(self, name)) for name in common_members()]
        pass_ports(m, self, arbiter, memory_members(p))
        self._pass_counters(m, {"arbiter": arbiter})
        return m
