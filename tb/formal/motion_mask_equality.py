"""Proof that the motion mask equals its specification: for every frame, block and stall, without a bound."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.inputs.codec_mask import PARTS, WEIGHT_SHIFT
from openvrex.hdl.params import MaskParams
from openvrex.hdl.video.motion_mask import MotionMask, block_layout, frame_layout, row_layout

CELL = 4  # pixels on a side
JUDGES = 3  # cycles from a frame's last block to its first row


class MotionMaskSpec(wiring.Component):
    """Masks of frames, as the equations say: a frame, a block or a row in a cycle.

    The centre of patch i of an axis is in cell floor((2 i + 1) size / (8 grid)). Before the first frame the picture has
    no size, so a frame of 0 x 0 pixels is none of another size.

    Members
    -------
    frame, frames : In : a frame is announced
    block, blocks : In : a block of it comes
    rows : In(1) : the row that is offered is taken
    left : Out : blocks that the frame still lacks
    complete : Out(1) : the frame's blocks have come, and not all rows of its mask have gone
    row : Out(`row_layout`) : the next row of the mask, while `complete`
    """

    def __init__(self, p: MaskParams):
        self.p = p
        members = {"frame": In(frame_layout(p)), "frames": In(1), "block": In(block_layout(p)), "blocks": In(1)}
        members |= {"rows": In(1), "left": Out(p.block_bits), "complete": Out(1), "row": Out(row_layout(p))}
        super().__init__(members)

    def elaborate(self, platform):
        p, m = self.p, Module()
        known = Signal(frame_layout(p))
        whole, active, covered = Signal(), Signal(p.grid**2), Signal(p.grid**2)
        number = Signal(range(max(2, p.tokens)))
        hits, moved = Signal(p.grid**2), Signal()
        m.d.comb += [hits.eq(self._hits(known)), moved.eq(self._moved(known))]
        f = self.frame
        another = (f.width != known.width) | (f.height != known.height)
        fresh = f.leads | another
        with m.If(self.frames):
            m.d.sync += [known.eq(f), self.left.eq(f.blocks), whole.eq(whole | fresh)]
            with m.If(fresh):
                m.d.sync += active.eq(0)
            with m.If(f.blocks == 0):  # no patch is covered
                m.d.sync += self.complete.eq(f.take)
                with m.If(~(whole | fresh)):
                    m.d.sync += active.eq(~Const(0, p.grid**2))
        with m.Elif(self.blocks):
            seen = active | Mux(moved & ~whole, hits, 0)
            m.d.sync += [self.left.eq(self.left - 1), covered.eq(covered | hits), active.eq(seen)]
            with m.If(self.left == 1):
                m.d.sync += [self.complete.eq(known.take), covered.eq(0)]
                m.d.sync += active.eq(seen | Mux(whole, 0, ~(covered | hits)))
        with m.Elif(self.rows):
            m.d.sync += number.eq(number + 1)
            with m.If(self.row.last):
                m.d.sync += [number.eq(0), self.complete.eq(0), whole.eq(0)]
                with m.If(~known.accumulate):
                    m.d.sync += active.eq(0)
        m.d.comb += [
            self.row.tokens.eq(Cat(whole | self._kept(active, number, t) for t in range(p.tokens))),
            self.row.whole.eq(whole),
            self.row.last.eq(number == p.tokens - 1),
        ]
        return m

    def _hits(self, frame: Value) -> Value:
        """Patches whose centres the block covers."""
        p, b = self.p, self.block
        inside = {}
        for axis, size, edge, length in (("x", frame.width, b.x, b.w), ("y", frame.height, b.y, b.h)):
            for k in range(p.grid):
                centre = (2 * k + 1) * size // (8 * p.grid)
                first = edge // CELL
                cells = Mux(length // CELL == 0, 1, length // CELL)
                inside[axis, k] = (first <= centre) & (centre < first + cells)
        return Cat(inside["x", i] & inside["y", j] for j in range(p.grid) for i in range(p.grid))

    def _moved(self, frame: Value) -> Value:
        """Whether the block moves: Equation 1, or with residuals 3."""
        p, b = self.p, self.block
        if not p.residuals:
            return b.dx * b.dx + b.dy * b.dy > frame.limit
        share = frame.weight * b.residual >> WEIGHT_SHIFT
        left = frame.threshold - share
        return (left < 0) | ((b.dx * b.dx + b.dy * b.dy) * PARTS**2 > left * left)

    def _kept(self, active: Signal, number: Signal, token: int) -> Value:
        """Whether one of the token's patches is dynamic."""
        p, g = self.p, self.p.group
        lines = [active.word_select(number * g + k, p.grid) for k in range(g)]
        return Cat(line[token * g : (token + 1) * g] for line in lines).any()


class MotionMaskMonitor(wiring.Component):
    """A motion mask and its specification, with free frames and blocks, a free taker, and resets at any time.

    `reach`: the claim is that no mask leaves out a token, which must fail.
    """

    def __init__(self, p: MaskParams, reach: bool = False):
        self.p, self.reach = p, reach
        free = {"frame": frame_layout(p), "frame_valid": 1, "block": block_layout(p), "block_valid": 1, "ready": 1}
        super().__init__({name: In(shape) for name, shape in free.items()})

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.unit = unit = MotionMask(p)
        m.submodules.spec = spec = MotionMaskSpec(p)
        frames, blocks = unit.f.valid & unit.f.ready, unit.i.valid & unit.i.ready
        rows = unit.o.valid & unit.o.ready
        m.d.comb += [
            unit.f.payload.eq(self.frame),
            unit.f.valid.eq(self.frame_valid),
            unit.i.payload.eq(self.block),
            unit.i.valid.eq(self.block_valid),
            unit.o.ready.eq(self.ready),
            spec.frame.eq(self.frame),
            spec.frames.eq(frames),
            spec.block.eq(self.block),
            spec.blocks.eq(blocks),
            spec.rows.eq(rows),
        ]
        beat = unit.o.payload
        if self.reach:
            m.d.comb += Assert(~(unit.o.valid & ~beat.whole & ~beat.tokens.all()), "a token is left out")
            return m
        idle = ~spec.complete & (spec.left == 0)
        most = (1 << p.size_bits) // CELL + p.grid + JUDGES + 1  # to measure a picture, and to judge its last block
        waits = Signal(range(most + 2))
        still = ~(unit.f.ready | unit.i.ready | unit.o.valid)
        m.d.sync += waits.eq(Mux(still, waits + 1, 0))
        counts = {"frames": Signal(2), "blocks": Signal(2), "masks": Signal(2)}
        m.d.sync += [
            counts["blocks"].eq(counts["blocks"] + blocks),
            counts["masks"].eq(counts["masks"] + (rows & spec.row.last)),
        ]
        for holds, what in (
            (~frames | idle, "a frame is taken before the one in work is over"),
            (~blocks | (spec.left != 0), "a block of no frame is taken"),
            (~unit.o.valid | spec.complete, "a row of no mask"),
            (~unit.o.valid | (beat == spec.row), "another row than the specification's"),
            (waits <= most, "the unit goes on in time"),
            (unit.perf.blocks == counts["blocks"], "the count of blocks"),
            (unit.perf.masks == counts["masks"], "the count of masks"),
        ):
            m.d.comb += Assert(holds, what)
        return m
