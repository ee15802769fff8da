"""Expands 4-bit and 8-bit weights to the BF16 numbers by which the DPE multiplies."""

from amaranth import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.packed_weights import GROUPS, SMALLEST, ZERO_BITS, Rule
from openvrex.hdl.arith.carry_save import carry_save
from openvrex.hdl.arith.fp32 import BIAS
from openvrex.hdl.arith.leading_one import halved, lifted, selected
from openvrex.hdl.named import comb, reg
from openvrex.hdl.params import DpeParams, bits_for

SIZE = 46  # bits of the magnitude of a weight of 4 bits, in units of 2^SMALLEST
BYTE_SIZE = 11 + 7  # of d |q| with a number of 8 bits
KEPT = 8 - 1 + 24 + 2  # of these behind stage 4: the leading one is one of 8, FP32 keeps 24, two say how it rounds


def slots(p: DpeParams) -> int:
    """Groups of a word of W, of 32 weights each; one if it is shorter."""
    return max(1, p.n_w // GROUPS[0])


def packed_layout(p: DpeParams) -> data.StructLayout:
    """A word of W before it is expanded.

    rule : the lowest bits of `golden.arithmetic.packed_weights.Rule`: 0 is BYTE · q : numbers of 8 bits; of 4 with
    anything above · scale, other : FP16 bits of d and of m, or z, of each group of 32 · tree, addr : where the word
    goes
    """
    pairs = {name: data.ArrayLayout(16, slots(p)) for name in ("scale", "other")}
    return data.StructLayout({"valid": 1, "rule": 2, "q": data.ArrayLayout(8, p.n_w), **pairs, **_place(p)})


def expanded_layout(p: DpeParams) -> data.StructLayout:
    """A word of W in BF16, and where it goes."""
    return data.StructLayout({"valid": 1, "data": data.ArrayLayout(16, p.n_w), **_place(p)})


def _place(p: DpeParams) -> dict[str, int]:
    return {"tree": bits_for(p.n_w), "addr": p.w_addr_bits}


class WeightExpander(wiring.Component):
    """Makes the BF16 numbers of words of 4-bit or 8-bit weights.

    A group of 4-bit weights has 16 different ones, one for each q. The unit computes these for each group of a word,
    and each lane takes one of them. With 8 bits each lane multiplies its own q by its group's d:

        4 bits              each group                                          8 bits              each lane
        scale, other        as they are                              stage 1    scale, q            as they are
             |                                                       stage 2
        d, 3 d, and m       m or -d z: a sign, a significand                    scale, q            as they are
             |              and an exponent each                     stage 3
        d q + m, exact      16 integers of 47 bits                              d's leading one up, |q|
             |                                                       stage 4
        magnitudes          shifted up in steps of 8                            d |q|, exact        18 bits
             |                                                       stage 5
        rounded             16 BF16 numbers: to FP32, then BF16                 rounded             to BF16
             |
        one for each lane   by its q                                            its own

    Parameters
    ----------
    p : DpeParams

    Members
    -------
    i : In(`packed_layout`) : a word, which is taken with `move`
    move : In(1) : every word moves on by a stage
    o : Out(`expanded_layout`) : the word that leaves with `move`
    more : Out(1) : there are words behind it

    Latency: 5 cycles with `move` (`LATENCY`). Throughput: a word of W a cycle.
    Raises: nothing.
    Source: function: `golden.arithmetic.packed_weights.weights`.
    """

    LATENCY = 5

    def __init__(self, p: DpeParams):
        self.p = p
        super().__init__({"i": In(packed_layout(p)), "move": In(1), "o": Out(expanded_layout(p)), "more": Out(1)})

    def elaborate(self, platform):
        p, m = self.p, Module()
        many = slots(p)
        taken = Signal(packed_layout(p), reset_less=True)
        valid = [Signal(name="valid1")]
        with m.If(self.move):  # stage 1
            m.d.sync += [taken.eq(self.i), valid[0].eq(self.i.valid)]
        byte = comb(m, "byte", taken.rule == 0)
        low = Cat(taken.q[lane][:4] for lane in range(p.n_w))
        word = {"byte": byte, "q": low, "valid": valid[0]} | {n: Value.cast(taken[n]) for n in _place(p)}
        moves = []  # of 8 bits: registers stand still for other words
        for stage in range(2, self.LATENCY + 1):
            moves.append(comb(m, f"move_byte{stage}", self.move & word["byte"]))
            with m.If(self.move):
                word = {name: reg(m, f"{name}{stage}", x, None, name != "valid") for name, x in word.items()}
            valid.append(word["valid"])
        m.d.comb += [
            self.more.eq(Cat(*valid[:-1]).any()),
            *(self.o[name].eq(word[name]) for name in ("valid", *_place(p))),
        ]
        groups = [self._group(m, taken, k, moves) for k in range(many)]
        for lane in range(p.n_w):
            weights, scale = groups[lane * many // p.n_w]
            four = weights.word_select(word["q"].word_select(lane, 4), 16)
            m.d.comb += self.o.data[lane].eq(Mux(word["byte"], self._byte(m, taken, lane, moves, scale), four))
        return m

    def _byte(
        self, m: Module, taken: data.View, lane: int, moves: list[Signal], scale: tuple[Signal, Signal, Signal]
    ) -> Signal:
        """The weight of a lane of 8 bits, BF16, behind stage 5.

        moves : a word of 8 bits goes to each stage behind the first · scale : as of `_normal`
        """
        d, minus, top = scale
        q = reg(m, f"byte_q{lane}", taken.q[lane], when=moves[0])
        size = reg(m, f"byte_size{lane}", (q ^ q[-1].replicate(8)) + q[-1], 8, when=moves[1])
        less = reg(m, f"byte_less{lane}", q[-1], when=moves[1])
        product = reg(m, f"byte_product{lane}", d * size, BYTE_SIZE, when=moves[2])
        less = reg(m, f"byte_minus{lane}", minus ^ less, when=moves[2])
        wide = Cat(Const(0, KEPT - BYTE_SIZE), product)
        return reg(m, f"byte_weight{lane}", self._round(m, f"_byte{lane}", wide, Const(0, 3), less, top), when=moves[3])

    def _normal(
        self, m: Module, k: int, moves: list[Signal], d: Signal, up: Signal, minus: Signal
    ) -> tuple[Signal, Signal, Signal]:
        """The scale of a group for 8 bits: d with its leading one on top and its sign behind stage 3, the exponent of a
        product's highest bit behind stage 4.
        """
        d, lower = halved(m, f"d{k}", d, [8, 4, 2, 1])
        top = reg(m, f"top{k}_3", BIAS + SMALLEST + BYTE_SIZE - 1 + up - lower, 8, when=moves[1])
        return (
            reg(m, f"normal{k}", d, when=moves[1]),
            reg(m, f"minus_normal{k}", minus, when=moves[1]),
            reg(m, f"top{k}_4", top, when=moves[2]),
        )

    def _group(
        self, m: Module, taken: data.View, k: int, moves: list[Signal]
    ) -> tuple[Signal, tuple[Signal, Signal, Signal]]:
        """The 16 weights of a group of the word, BF16, behind stage 5, and its scale for 8 bits (`_normal`)."""
        scale, other = (comb(m, f"{name}{k}", taken[name][k], 16) for name in ("scale", "other"))
        minimum = comb(m, f"minimum{k}", taken.rule == Rule.MINIMUM)
        zero = comb(m, f"zero{k}", Mux(taken.rule == Rule.SCALE, 8, other[:ZERO_BITS]), ZERO_BITS)
        d_size, m_size = (Cat(x[:10], x[10:15].any()) for x in (scale, other))
        d_up, m_up = (x[10:15] - x[10:15].any() for x in (scale, other))
        with m.If(self.move):  # stage 2
            d = reg(m, f"d{k}", d_size)
            thrice = reg(m, f"thrice{k}", d_size + (d_size << 1), 13)
            d_shift = reg(m, f"d_shift{k}", d_up, 5)
            minus = reg(m, f"minus{k}", scale[15])
            rest = reg(m, f"m{k}", Mux(minimum, m_size, d_size * zero), 11 + ZERO_BITS)
            m_shift = reg(m, f"m_shift{k}", Mux(minimum, m_up, d_up), 5)
            less = reg(m, f"less{k}", ~minimum | (scale[15] ^ other[15]))  # m has the other sign than d
        normal = self._normal(m, k, moves, d, d_shift, minus)
        one, three = (x << d_shift for x in (d, thrice))
        wide = [0, *(comb(m, f"wide{k}_{n}", x, SIZE - 1) for n, x in ((1, one), (2, one << 1), (3, three)))]
        shifted = comb(m, f"shifted{k}", rest << m_shift, SIZE)
        added = comb(m, f"added{k}", Cat(shifted, 0) ^ less.replicate(SIZE + 1))  # one too small if it is less
        products = []
        for q in range(16):  # d times q, which is a multiple of 4 and one below 4
            terms = [wide[n] << up for n, up in ((q >> 2, 2), (q & 3, 0)) if n]
            rows, ones = carry_save(m, [*terms, added], [less], SIZE + 1, f"products{k}_{q}")
            products.append(sum(rows, sum(ones)))
        with m.If(self.move):  # stage 3
            sums = [reg(m, f"sum{k}_{q}", x, signed(SIZE + 1)) for q, x in enumerate(products)]
            minus = reg(m, f"minus_sum{k}", minus)
        raised = [self._lift(m, f"{k}_{q}", x) for q, x in enumerate(sums)]
        with m.If(self.move):  # stage 4
            raised = [
                (reg(m, f"lifted{k}_{q}", x), reg(m, f"up{k}_{q}", up), reg(m, f"minus{k}_{q}", minus ^ sums[q][-1]))
                for q, (x, up) in enumerate(raised)
            ]
        top = Const(BIAS + SMALLEST + SIZE - 1, 8)
        rounded = [self._round(m, f"{k}_{q}", *x, top) for q, x in enumerate(raised)]
        with m.If(self.move):  # stage 5
            return reg(m, f"weights{k}", Cat(*rounded)), normal

    def _lift(self, m: Module, name: str, x: Signal) -> tuple[Value, Value]:
        """The magnitude of x with its leading one among the highest 8 bits, and how many times 8 it went up.

        The last of its bits stands for all those that FP32 does not keep: whether one of them is set. How far it goes
        up is found beside the magnitude's carry: of a negative number the ones' complement tells, or a carry from all
        bits below. A number and its negative have the same lowest one, so bits that are lost are those of x.
        """
        ones = comb(m, f"ones{name}", x[:SIZE] ^ x[-1].replicate(SIZE))
        size = comb(m, f"size{name}", ones + x[-1], SIZE)
        places = range(SIZE - 8, 0, -8)
        reaches = [comb(m, f"reaches{name}_{b}", ones[b:].any() | (x[-1] & ones[:b].all())) for b in places]
        first = [one & ~above for one, above in zip([*reaches, Const(1, 1)], [Const(0, 1), *reaches], strict=True)]
        size, up = selected(m, f"raised{name}", size, 8, first)
        below = [one & x[: SIZE - KEPT + 1 - 8 * k].any() for k, one in enumerate(first) if 8 * k <= SIZE - KEPT]
        return Cat(Cat(below).any(), size[-KEPT + 1 :]), up

    def _round(self, m: Module, name: str, x: Value, up: Value, minus: Value, highest: Value) -> Value:
        """The BF16 number of a magnitude whose leading one is one of its 8 highest bits, rounded to FP32, then to BF16.

        up : how many times 8 it went up · highest : exponent of its highest bit before that
        """
        x, more = lifted(m, f"top{name}", x, 1)
        top, low, tail = x[-8:], x[-24:-8], x[:-24]
        to_fp32 = tail[-1] & (tail[:-1].any() | low[0])  # FP32 rounds up
        carry = Mux(low[-1], low[:-1].any() | to_fp32 | top[0], low[:-1].all() & to_fp32 & top[0])
        exponent = comb(m, f"exponent{name}", highest - Cat(more, up), 8)
        bits = comb(m, f"bits{name}", Cat(top[:7], exponent) + carry, 15)
        return Mux(top[-1], Cat(bits, minus), 0)
