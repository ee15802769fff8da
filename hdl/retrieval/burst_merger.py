"""Makes bursts of ranges of blocks."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from openvrex.hdl.params import KvmuParams, bits_for
from openvrex.hdl.retrieval.kvmu_layouts import burst_layout, range_layout


class BurstMerger(wiring.Component):
    """Joins adjacent ranges of a set to a run, and cuts the run at every boundary.

    The end of a run waits until the unit knows whether the next range of its set continues it.

    Parameters
    ----------
    p : KvmuParams

    Members
    -------
    i : In(stream of `range_layout`) : ranges of each set in order; one with `last` ends it
    o : Out(stream of `burst_layout`) : the bursts of each set, exactly one with `last`
    home_base : In(addr_bits) : byte address of the blocks
    device_base : In(addr_bits), if blocks are kept : byte address of the rings, in front of which they lie

    Latency: 2 cycles from a set's last range to its last burst.
    Throughput: a range and a burst every cycle.
    Raises: nothing of its own.
    Source: V-Rex section V-C.
    """

    def __init__(self, p: KvmuParams):
        self.p = p
        super().__init__(
            {
                "i": In(stream.Signature(range_layout(p))),
                "o": Out(stream.Signature(burst_layout(p))),
                "home_base": In(p.addr_bits),
                **({"device_base": In(p.addr_bits)} if p.kept else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        span, run = _Span(self.p), _Run(self.p)
        self._address(m, span)
        self._offer(m, span, run)
        self._extend(m, span, run)
        return m

    def _address(self, m: Module, span: "_Span") -> None:
        """Finds the bytes of a range."""
        p, head = self.p, self.i.payload
        m.d.comb += [self.i.ready.eq(~span.valid | span.taken), span.end.eq(span.at.addr + span.at.others)]
        with m.If(self.i.ready):
            m.d.sync += [
                span.valid.eq(self.i.valid),
                span.at.addr.eq(self.home_base + head.block * p.block_bytes),
                span.at.others.eq(head.slots * p.home_bytes - 1),
                span.at.none.eq(head.slots == 0),
                span.at.join.eq(head.join),
                span.at.last.eq(head.last),
                span.at.ctx.eq(head.ctx),
            ]
            if p.kept:
                m.d.sync += [span.at[name].eq(head[name]) for name in ("near", "keep", "place")]

    def _offer(self, m: Module, span: "_Span", run: "_Run") -> None:
        """Offers the run up to the boundary, or the rest of it."""
        p, out, at = self.p, self.o.payload, run.at
        within = min(p.boundary.bit_length() - 1, p.addr_bits)  # bits of an address below the boundary
        below = at.addr[:within]
        m.d.comb += [
            run.crosses.eq(at.addr[within:] != at.end[within:]),  # known late: both numbers of bytes are ready before
            run.bytes.eq(Mux(run.crosses, p.boundary - below, at.end[:within] - below + 1)),
            self.o.valid.eq(run.valid & (run.crosses | at.last | (span.valid & ~span.at.join))),
            out.addr.eq(at.addr),
            out.bytes.eq(Mux(at.none, 0, run.bytes)),
            out.ctx.eq(at.ctx),
            out.last.eq(at.last & ~run.crosses),
            out.empty.eq(at.none),
        ]
        if p.kept:
            m.d.comb += [out.near.eq(at.near), out.keep.eq(at.keep), out.to.eq(self._place(at))]
        with m.If(self.o.valid & self.o.ready):
            with m.If(run.crosses):
                m.d.sync += at.addr.eq((at.addr[within:] + 1) << within)
            with m.Else():
                m.d.sync += run.valid.eq(0)

    def _place(self, at: data.View) -> Value:
        """The address in the place of a block, whose bytes lie there as at home; bases are multiples of blocks."""
        p = self.p
        whole, packed = (size.bit_length() - 1 for size in (p.map_sizes().place_bytes, p.block_bytes))
        before = self.device_base[whole:] - (Cat(at.place, at.ctx) + 1)
        return Cat(Const(0, whole - packed), at.addr[:packed], before)

    def _extend(self, m: Module, span: "_Span", run: "_Run") -> None:
        """Takes the span into the run, or makes it the next run."""
        at = run.at
        m.d.comb += span.taken.eq(span.valid & (~run.valid | span.at.join | (~run.crosses & self.o.ready)))
        with m.If(span.taken):
            m.d.sync += [run.valid.eq(1), at.last.eq(span.at.last)]
            with m.If(~(span.at.join & span.at.none)):
                m.d.sync += at.end.eq(Mux(span.at.none, span.at.addr, span.end))
        with m.If(span.taken & ~span.at.join):  # one condition, which synthesis can take for an enable
            m.d.sync += [at.addr.eq(span.at.addr), at.none.eq(span.at.none), at.ctx.eq(span.at.ctx)]
            if self.p.kept:
                m.d.sync += [at[name].eq(span.at[name]) for name in ("near", "keep", "place")]


class _Span:
    """The range that came last, in bytes."""

    def __init__(self, p: KvmuParams):
        self.valid = Signal(name="span_valid")
        self.at = Signal(  # the fields of the range. others: its bytes but the first. none: it has no byte
            data.StructLayout(
                {
                    "addr": p.addr_bits,
                    "others": bits_for(p.block_bytes),
                    "none": 1,
                    "join": 1,
                    "last": 1,
                    "ctx": bits_for(p.n_ctx),
                    **_kept(p),
                }
            ),
            name="span",
        )
        self.end = Signal(p.addr_bits, name="span_end")  # its last byte
        self.taken = Signal()  # the run takes it in


class _Run:
    """Bytes that adjacent ranges cover, without those that bursts took. end: the last. none: there are none."""

    def __init__(self, p: KvmuParams):
        self.valid = Signal(name="run_valid")
        self.at = Signal(
            data.StructLayout(
                {"addr": p.addr_bits, "end": p.addr_bits, "none": 1, "last": 1, "ctx": bits_for(p.n_ctx), **_kept(p)}
            ),
            name="run",
        )
        self.crosses = Signal()  # it goes beyond the next boundary
        self.bytes = Signal(burst_layout(p)["bytes"].shape)  # those before that boundary


def _kept(p: KvmuParams) -> dict[str, int]:
    """Fields of a block that is kept, or is to be."""
    return {"near": 1, "keep": 1, "place": bits_for(p.kept)} if p.kept else {}
