# amaranth: UnusedElaboratable=no
# (a unit may be made only to look at its ports)
"""Motion mask as an IP block between a video decoder and a vision encoder: registers, interrupt, two AXI4 streams."""

from amaranth import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import Status
from openvrex.hdl.arith.popcount import popcount
from openvrex.hdl.bus.axi import pass_ports
from openvrex.hdl.params import MaskParams, bits_for
from openvrex.hdl.reset import with_reset
from openvrex.hdl.shells.register_block import RegisterBlock, address_map, lite_members
from openvrex.hdl.unit import Composite
from openvrex.hdl.video.motion_mask import MotionMask, block_layout, frame_layout


def blocks_members(p: MaskParams) -> dict[str, wiring.Member]:
    """The AXI4-Stream receiver of blocks, for a component's signature."""
    fields = {"tdata": In(block_layout(p)), "tlast": In(1), "tvalid": In(1), "tready": Out(1)}
    return {f"s_axis_b_{name}": member for name, member in fields.items()}


def mask_members(p: MaskParams) -> dict[str, wiring.Member]:
    """The AXI4-Stream transmitter of masks; data of whole bytes."""
    row = data.FlexibleLayout(-(-p.tokens // 8) * 8, {"tokens": data.Field(p.tokens, 0)})
    fields = {"tdata": Out(row), "tuser": Out(1), "tlast": Out(1), "tvalid": Out(1), "tready": In(1)}
    return {f"m_axis_m_{name}": member for name, member in fields.items()}


class MaskEngine(Composite):
    """A motion mask that takes one frame at a time, and refuses one whose blocks are not as many as announced.

    Parameters
    ----------
    p : MaskParams

    Members
    -------
    start : In(1), frame : In(`hdl.video.motion_mask.frame_layout`) : a frame begins, unless one is in work or after a
        fault; keep it stable in the cycle of `start`
    code : Out(4) : `golden.program.isa.Status`: IDLE, RUNNING, DONE, or RANGE until a reset
    kept : Out(bits) : tokens kept in the last mask · whole : Out(1) : it keeps all
    busy : Out(1) : a mask is on offer
    s_axis_b_*, m_axis_m_* : as in `MotionMaskIp`
    perf : Out(struct of 32-bit counters) : those of the unit, named mask.counter

    Latency: none of its own; `code` and `kept` a cycle after the last block or row.
    Throughput: that of `hdl.video.motion_mask.MotionMask`.
    Raises: nothing of its own.
    Source: this project's own.
    """

    def __init__(self, p: MaskParams):
        super().__init__(
            p,
            {
                "start": In(1),
                "frame": In(frame_layout(p)),
                "code": Out(4),
                "kept": Out(bits_for(p.tokens**2 + 1)),
                "whole": Out(1),
                "busy": Out(1),
                **blocks_members(p),
                **mask_members(p),
            },
        )

    @staticmethod
    def units(p: MaskParams) -> list[tuple[str, type, object]]:
        """Instance name, class and parameters of every unit inside."""
        return [("mask", MotionMask, p)]

    def elaborate(self, platform):
        m = Module()
        m.submodules.mask = mask = MotionMask(self.p)
        code = Signal(Status)
        begins = Signal()
        left = Signal.like(self.frame.blocks)  # blocks that the frame still lacks
        takes = Signal()  # a block
        gives = Signal()  # a row
        faulty = Signal()  # nothing that the stream brings counts any more
        m.d.comb += [
            faulty.eq(code >= Status.OPCODE),
            begins.eq(self.start & ((code == Status.IDLE) | (code == Status.DONE))),
            mask.f.valid.eq(begins),
            mask.f.payload.eq(self.frame),
            mask.i.valid.eq(self.s_axis_b_tvalid & ~faulty),
            mask.i.payload.eq(self.s_axis_b_tdata),
            self.s_axis_b_tready.eq(mask.i.ready | faulty),
            takes.eq(mask.i.valid & mask.i.ready),
            self.m_axis_m_tvalid.eq(mask.o.valid & ~faulty),
            self.m_axis_m_tdata.tokens.eq(mask.o.payload.tokens),
            self.m_axis_m_tuser.eq(mask.o.payload.whole),
            self.m_axis_m_tlast.eq(mask.o.payload.last),
            mask.o.ready.eq(self.m_axis_m_tready),
            gives.eq(self.m_axis_m_tvalid & self.m_axis_m_tready),
            self.busy.eq(self.m_axis_m_tvalid),
            self.code.eq(code),
        ]
        with m.If((code == Status.RUNNING) & mask.f.ready):
            m.d.sync += code.eq(Status.DONE)
        with m.If(takes):
            m.d.sync += left.eq(left - 1)
        with m.If(takes & (self.s_axis_b_tlast != (left == 1))):
            m.d.sync += code.eq(Status.RANGE)
        with m.If(gives):
            m.d.sync += [self.kept.eq(self.kept + popcount(m, mask.o.payload.tokens, "kept_of_row"))]
            m.d.sync += self.whole.eq(mask.o.payload.whole)
        with m.If(begins):
            m.d.sync += [code.eq(Status.RUNNING), left.eq(self.frame.blocks), self.kept.eq(0), self.whole.eq(0)]
        self._pass_counters(m, {"mask": mask})
        return m


class MotionMaskIp(wiring.Component):
    """A motion mask behind registers, which `registers.rdl` describes.

    Software describes a coded frame in registers and gives START. The decoder's blocks come on a stream, in any order.
    The rows of the mask leave on another one, if the frame is taken: a bit for each visual token says whether to encode
    it. `kept` counts these tokens. `control.reset` resets everything but the registers, once no row is on offer.

    Corner cases: blocks wait for the START of their frame. The last block of a frame must say so; one that says so too
    early, or not at all, ends in RANGE. After a fault the block drops blocks, and gives no mask, until a reset. A START
    while a frame is in work, or after a fault, is ignored.

    Parameters
    ----------
    p : MaskParams

    Members
    -------
    s_axi_* : AXI4-Lite subordinate, 32 bits: the registers
    s_axis_b_* : AXI4-Stream, a block a beat: tdata place, size and vector, tlast the last of its frame
    m_axis_m_* : AXI4-Stream, a row of visual tokens a beat: tdata a bit a token, tuser all are kept, tlast the last row
    irq : Out(1) : level, high while an enabled interrupt is pending

    Latency: the unit takes the frame in the first cycle of START's response. 3 cycles from the frame's last block to
    its first row; 2 from the frame to its first row if it has no block; more at a frame of another size.
    Throughput: a block a cycle, a row a cycle, and some accesses of registers a frame.
    Raises: `ParamError` from `MaskParams`.
    Source: CodecSight section 3.3; registers are this project's own.
    """

    def __init__(self, p: MaskParams):
        self.p = p
        self.registers = RegisterBlock(address_map("motion_mask_ip", p))
        lite = lite_members(self.registers.address_bits)
        super().__init__({**lite, **blocks_members(p), **mask_members(p), "irq": Out(1)})

    def counters(self) -> list[str]:
        """Names of the performance counters, which are registers: perf.<name>."""
        return MaskEngine.counters_of(self.p)

    @staticmethod
    def timing(p: MaskParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return MaskEngine.timing(p)

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.registers = registers = self.registers
        i, o = registers.i, registers.o
        engine = MaskEngine(p)
        m.submodules.engine, resets = with_reset(m, engine, 0, o["control.reset"], ~engine.busy)
        running = Signal()
        was_running = Signal()
        was_faulty = Signal()
        motion = {"threshold": o["threshold.value"], "weight": o["weight.value"]}
        m.d.sync += [was_running.eq(running), was_faulty.eq(engine.code >= Status.OPCODE)]
        m.d.comb += [
            running.eq(engine.code == Status.RUNNING),
            engine.start.eq(o["control.start"] & ~resets),
            engine.frame.width.eq(o["size.width"]),
            engine.frame.height.eq(o["size.height"]),
            engine.frame.blocks.eq(o["blocks.value"]),
            *(engine.frame[name].eq(o[f"frame.{name}"]) for name in ("leads", "take", "accumulate")),
            *([engine.frame[n].eq(value) for n, value in motion.items()] if p.residuals else []),
            *([] if p.residuals else [engine.frame.limit.eq(o["threshold.value"])]),
            i["status.code"].eq(engine.code),
            i["status.resets"].eq(resets),
            i["irq.done"].eq(o["irq_test.done"] | (was_running & (engine.code == Status.DONE))),
            i["irq.fault"].eq(o["irq_test.fault"] | (~was_faulty & (engine.code >= Status.OPCODE))),
            i["kept.tokens"].eq(engine.kept),
            i["kept.whole"].eq(engine.whole),
            self.irq.eq(registers.irq),
            *(i[f"perf.{name}.value"].eq(engine.perf[name]) for name in self.counters()),
        ]
        pass_ports(m, self, registers, lite_members(registers.address_bits))
        pass_ports(m, self, engine, blocks_members(p) | mask_members(p))
        return m
