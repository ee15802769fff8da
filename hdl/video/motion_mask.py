"""Motion mask: chooses the visual tokens of a frame by the motion vectors of its blocks."""

from typing import NamedTuple

from amaranth import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from openvrex.golden.inputs.codec_mask import PARTS, RESIDUAL_BITS, WEIGHT_BITS, WEIGHT_SHIFT
from openvrex.hdl.arith.carry_save import add
from openvrex.hdl.named import comb, reg
from openvrex.hdl.params import MaskParams, bits_for
from openvrex.hdl.unit import Unit

_SHIFT = 2  # a cell has 4 pixels on a side: the smallest block of H.264


def frame_layout(p: MaskParams) -> data.StructLayout:
    """A coded frame, before its blocks.

    `width`, `height`: pixels. `blocks`: how many follow on `i`. `limit`: floor((4 tau)^2), the squared length in
    quarter pixels above which a block moves. `leads`: the frame begins a GOP. `take`: its mask is asked for.
    `accumulate`: a dynamic patch stays dynamic until the GOP ends.

    With residuals, in place of `limit`: `threshold`, 64 tau, and `weight` (`golden.inputs.codec_mask.weight_of`).
    """
    fine = {"threshold": p.tau_bits + PARTS.bit_length() - 1, "weight": WEIGHT_BITS}
    return data.StructLayout(
        {
            "width": p.size_bits,
            "height": p.size_bits,
            "blocks": p.block_bits,
            **(fine if p.residuals else {"limit": 2 * p.tau_bits}),
            "leads": 1,
            "take": 1,
            "accumulate": 1,
        }
    )


def block_layout(p: MaskParams) -> data.StructLayout:
    """A block with a motion vector: the first ten bytes of `golden.inputs.codec.BLOCK`.

    `x`, `y`: left and top edge in pixels. `w`, `h`: size in pixels. `dx`, `dy`: vector in quarter pixels. `residual`,
    if the unit takes them: sum of absolute differences, scaled to 256 pixels (`golden.inputs.codec_mask.residuals`).
    """
    sizes = {"x": signed(16), "y": signed(16), "w": 8, "h": 8, "dx": signed(16), "dy": signed(16)}
    return data.StructLayout(sizes | ({"residual": RESIDUAL_BITS} if p.residuals else {}))


def row_layout(p: MaskParams) -> data.StructLayout:
    """A row of visual tokens. `tokens`: bit i says whether token i is kept. `whole`: all are. `last`: the final row."""
    return data.StructLayout({"tokens": p.tokens, "whole": 1, "last": 1})


class MotionMask(Unit):
    """Tells which visual tokens of a frame to encode: those whose patches move or are intra-coded.

    A beat on `f` announces a coded frame, its blocks follow on `i` in any order. The picture is stretched to grid x
    grid patches. A patch is dynamic if a block at its centre has a vector longer than tau pixels, or if no block covers
    its centre. Dynamic patches add up until the GOP ends. After the blocks of a frame with `take`, the unit offers the
    rows of its mask on `o`: a token of group x group patches is kept if one of them is dynamic.

    The first frame taken of a GOP is kept whole and starts anew, and so is the first one of another size. The blocks of
    such a frame decide nothing. At a frame of another size the unit first finds the cell of 4 x 4 pixels at the centre
    of each patch: it walks along both axes at a time, a cell a cycle.

    With `mask.residuals` a block also moves by its residual: its vector's length and the weighted residual together
    exceed tau (Equation 3). The decoder or the host sums up residuals, and the unit takes them with the vectors.

    Corner cases: a frame without blocks is intra-coded, so all its patches are dynamic. Blocks may overlap, and reach
    over the edge of the picture; those outside decide nothing.

    Parameters
    ----------
    p : MaskParams

    Members
    -------
    f : In(stream of `frame_layout`) : coded frames, in display order
    i : In(stream of `block_layout`) : blocks of these frames
    o : Out(stream of `row_layout`) : rows of the masks of frames taken, from the top
    perf : Out(struct of 32-bit counters modulo 2^32) : frames, blocks, masks

    Latency: 3 cycles from a frame's last block to its first row; 2 from the frame to its first row if it has no block.
    A frame of another size takes a cycle more for each patch of an axis, and one for each cell from a centre to the
    next, of the axis with more of them.
    Throughput: a block a cycle, a row a cycle. A frame of n blocks takes n + 3 cycles, or 2 without blocks, and
    grid / group more if it is taken.
    Raises: `ParamError` from `MaskParams`.
    Source: CodecSight section 3.3, Equations 1, 3 and 4. Without `mask.residuals` alpha = 0 in Equation 3.
    """

    COUNTERS = ("frames", "blocks", "masks")

    def __init__(self, p: MaskParams):
        super().__init__(
            p,
            {
                "f": In(stream.Signature(frame_layout(p))),
                "i": In(stream.Signature(block_layout(p))),
                "o": Out(stream.Signature(row_layout(p))),
            },
        )

    @staticmethod
    def timing(p: MaskParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "latency": "2 if the frame has no block else 3",
            "interval": f"(blocks + 3 if blocks else 2) + ({p.tokens} if taken else 0)",
            "measuring": "grid + sum of cells between centres, the larger of both axes, at a frame of another size",
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        frame = Signal(frame_layout(p))  # the frame in work
        left = Signal(p.block_bits)  # blocks that it still lacks
        whole = Signal()  # the next frame taken is kept whole
        active = Signal(p.grid**2)  # dynamic patches of this GOP, or of the frames since the last one taken
        covered = Signal(p.grid**2)  # patches with a block at their centre, in this frame
        row = Signal(range(max(2, p.tokens)))  # row offered
        axes = [_Axis(m, p, name, size) for name, size in (("x", frame.width), ("y", frame.height))]
        part, judged = self._parts(m, frame, axes)
        hits = comb(m, "hits", self._patches(part.cols, part.rows))
        moves = comb(m, "moves", self._patches(judged.cols, judged.rows & judged.moved.replicate(p.grid)))
        closes = Signal()  # the frame's last block is judged
        gives = Signal()  # the last row of a mask is taken
        f = self.f.payload
        another = comb(m, "another", (f.width != frame.width) | (f.height != frame.height))
        with m.FSM():
            with m.State("FRAME"):
                m.d.comb += self.f.ready.eq(1)
                with m.If(self.f.valid):
                    m.d.sync += [frame.eq(f), left.eq(f.blocks)]
                    with m.If(another | f.leads):
                        m.d.sync += [whole.eq(1), active.eq(0)]
                    with m.If(another):
                        for axis, size in zip(axes, (f.width, f.height), strict=True):
                            axis.start(m, size)
                        m.next = "MEASURE"
                    with m.Else():
                        m.next = "BLOCKS"
            with m.State("MEASURE"):
                steps = comb(m, "steps", axes[0].past | axes[1].past)
                ends = comb(m, "ends", axes[0].index == p.grid - 1)
                for axis in axes:
                    axis.step(m, ~steps)
                with m.If(~steps & ends):
                    m.next = "BLOCKS"
            with m.State("BLOCKS"):
                m.d.comb += [self.i.ready.eq(left != 0), closes.eq((left == 0) & ~part.valid)]
                with m.If(self.i.valid & self.i.ready):
                    m.d.sync += left.eq(left - 1)
                with m.If(part.valid):
                    m.d.sync += covered.eq(covered | hits)
                with m.If((judged.moved | closes) & ~whole):
                    m.d.sync += active.eq(active | moves | (~covered & closes.replicate(p.grid**2)))
                with m.If(closes):
                    m.d.sync += [covered.eq(0), row.eq(0)]
                    with m.If(frame.take):
                        m.next = "ROWS"
                    with m.Else():
                        m.next = "FRAME"
            with m.State("ROWS"):
                m.d.comb += [self.o.valid.eq(1), gives.eq(self.o.ready & self.o.payload.last)]
                with m.If(self.o.ready):
                    m.d.sync += row.eq(row + 1)
                with m.If(gives):
                    m.d.sync += whole.eq(0)
                    with m.If(~frame.accumulate):
                        m.d.sync += active.eq(0)
                    m.next = "FRAME"
        rows = Cat(self._kept(active, r) for r in range(p.tokens))
        m.d.comb += [
            self.o.payload.tokens.eq(rows.word_select(row, p.tokens) | whole.replicate(p.tokens)),
            self.o.payload.whole.eq(whole),
            self.o.payload.last.eq(row == p.tokens - 1),
        ]
        self._count_when(m, frames=closes, blocks=self.i.valid & self.i.ready, masks=gives)
        return m

    def _parts(self, m: Module, frame: data.View, axes: list["_Axis"]) -> tuple[data.View, "_Judged"]:
        """The block taken in the cycle before, and the one taken two cycles before, which is judged now."""
        p, block = self.p, self.i.payload
        lengths = [comb(m, f"length_{n}", abs(block[f"d{n}"])) for n in ("x", "y")]
        far = comb(m, "far", Cat(length >> p.tau_bits for length in lengths).any())
        near = [length[: p.tau_bits] for length in lengths]
        squared = comb(m, "squared", near[0] * near[0] + near[1] * near[1])
        # `moves`: whatever its length is.
        part = Signal(
            data.StructLayout({"valid": 1, "moves": 1, "squared": len(squared), "cols": p.grid, "rows": p.grid})
        )
        m.d.sync += [
            part.valid.eq(self.i.valid & self.i.ready),
            part.moves.eq(far),
            part.squared.eq(squared),
            part.cols.eq(axes[0].covered(m, block.x, block.w)),
            part.rows.eq(axes[1].covered(m, block.y, block.h)),
        ]
        longer = self._longer(m, frame, part, far) if p.residuals else part.squared > frame.limit
        moved = reg(m, "judged_moved", part.valid & (part.moves | longer), reset_less=False)
        return part, _Judged(moved, reg(m, "judged_cols", part.cols), reg(m, "judged_rows", part.rows))

    def _longer(self, m: Module, frame: data.View, part: data.View, far: Value) -> Value:
        """Whether the block's vector is longer than what its residual leaves of tau."""
        block = self.i.payload
        # The complement of allowed = threshold - share, with WEIGHT_SHIFT more bits. It overflows where share is more.
        kept = WEIGHT_SHIFT + len(frame.threshold)
        shares = [block.residual & bit.replicate(RESIDUAL_BITS) for bit in frame.weight]
        rows = [~frame.threshold << WEIGHT_SHIFT, *(share << k for k, share in enumerate(shares))]
        taken = add(m, rows, max(kept, RESIDUAL_BITS + WEIGHT_BITS) + 1, "taken")
        allowed = reg(m, "allowed", ~taken[WEIGHT_SHIFT:kept])
        m.d.sync += part.moves.eq(far | taken[kept:].any())
        # The sign of allowed^2 - PARTS^2 squared.
        square = [(allowed & bit.replicate(len(allowed))) << k for k, bit in enumerate(allowed)]
        length = comb(m, "length", part.squared * PARTS**2)
        rest = add(m, [*square, ~length], len(length) + 1, "rest", one=True)
        return ~rest[-1]

    def _patches(self, cols: Value, rows: Value) -> Value:
        """The patches of some columns and rows."""
        return Cat(cols & row.replicate(self.p.grid) for row in rows)

    def _kept(self, active: Signal, row: int) -> Value:
        """The tokens of a row that have a dynamic patch."""
        p, g = self.p, self.p.group
        lines = [active[(row * g + k) * p.grid :][: p.grid] for k in range(g)]
        return Cat(Cat(line[t * g : (t + 1) * g] for line in lines).any() for t in range(p.tokens))


class _Judged(NamedTuple):
    """A block of which the unit knows whether it moves; one that does not, or none, has no `moved`."""

    moved: Value
    cols: Value
    rows: Value


class _Axis:
    """The cell at the centre of each patch along one axis: cell c_i = floor((2 i + 1) size / (8 grid)).

    `rest` is (2 i + 1) size - 8 grid c for the patch `index` and the cell c reached so far.
    """

    def __init__(self, m: Module, p: MaskParams, name: str, size: Value):
        self.name, self.size, self.grid = name, size, p.grid
        bits = p.size_bits - _SHIFT
        self.centres = Signal(data.ArrayLayout(bits, p.grid), name=f"centres_{name}")
        self.rest = Signal(bits_for(8 * p.grid + (2 << p.size_bits)), name=f"rest_{name}")
        self.cell = Signal(bits, name=f"cell_{name}")
        self.index = Signal(range(max(2, p.grid)), name=f"index_{name}")
        self.past = comb(m, f"past_{name}", self.rest >= 8 * p.grid)  # the centre lies behind the cell

    def start(self, m: Module, size: Value) -> None:
        """Begins with the first patch of a picture of `size` pixels."""
        m.d.sync += [self.rest.eq(size), self.cell.eq(0), self.index.eq(0)]

    def step(self, m: Module, both: Value) -> None:
        """Goes on to the next cell; or to the next patch, if the cells of `both` axes are found."""
        with m.If(self.past):
            m.d.sync += [self.rest.eq(self.rest - 8 * self.grid), self.cell.eq(self.cell + 1)]
        with m.If(both):
            m.d.sync += [self.rest.eq(self.rest + 2 * self.size), self.index.eq(self.index + 1)]
            flat = self.centres.as_value()
            m.d.sync += flat.eq(Cat(flat[len(self.cell) :], self.cell))

    def covered(self, m: Module, edge: Value, size: Value) -> Value:
        """Which patches' centres a block covers, from `edge`, `size` pixels long."""
        first = comb(m, f"first_{self.name}", edge >> _SHIFT, signed(len(edge) - _SHIFT))
        cells = size >> _SHIFT
        span = comb(m, f"span_{self.name}", Mux(cells == 0, 1, cells), len(size) - _SHIFT)
        bits = []
        for k in range(self.grid):
            cells = self.centres[k] - first
            behind = comb(m, f"behind_{self.name}{k}", cells, signed(len(cells)))
            bits.append((behind >= 0) & (behind < span))
        return Cat(bits)
