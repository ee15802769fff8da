"""MAC tree of the DPE: n_w products a cycle, aligned and summed; a row's chunks accumulated; one rounding."""

from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.dot import BLOCK_BITS
from openvrex.hdl.arith.carry_save import carry_save
from openvrex.hdl.arith.fp32 import Normaliser
from openvrex.hdl.arith.largest import largest
from openvrex.hdl.memory import Ram, collect_errors, error_members
from openvrex.hdl.named import comb, reg
from openvrex.hdl.params import DpeParams, bits_for

GROUP = 8  # products compressed to two rows in the cycle that aligns them
FINE = 5  # low bits of an exponent, from which a shift is made: below 2^FINE, the largest window, or all is lost


def exponents_layout(p: DpeParams) -> data.StructLayout:
    """A chunk's activations as the first stage takes them: a bit or a field for each of n_w lanes.

    exponent : 0 for a zero or subnormal · zero : the exponent is 0 · special : NaN or infinity · off : beyond the row
    """
    flags = dict.fromkeys(("zero", "special", "off"), p.n_w)
    return data.StructLayout({"exponent": data.ArrayLayout(8, p.n_w), **flags})


def significands_layout(p: DpeParams) -> data.StructLayout:
    """The same activations two cycles later. A NaN has its highest fraction bit set; `nan` says that a lane has one."""
    return data.StructLayout({"fraction": data.ArrayLayout(7, p.n_w), "sign": p.n_w, "special": p.n_w, "nan": 1})


class DotTree(wiring.Component):
    """Multiplies one row of weights by the activations that all trees share.

    Each cycle takes a chunk of n_w weights and n_w activations; the tree sums the chunks from `first` to `last` and
    rounds once. It reads exponents two cycles before significands. So it knows the largest exponent when the products
    are there, and no register holds waiting operands. It negates products by inversion, and adds the missing ones in
    free carry bits. Registers of payloads take a value only when their stage has a chunk: so mapping gives each stage a
    clock gate.

    Parameters
    ----------
    p : DpeParams

    Members
    -------
    w_en, w_addr, w_data : In : write the lanes of w_en of a word of n_w BF16 weights; NaNs must have the highest bit of
        their fraction set, infinities a fraction of 0
    r_en, r_addr : In : chunk to multiply
    exponents : In(`exponents_layout`) : activations of the chunk, one cycle after `r_en`
    significands : In(`significands_layout`) : the same, three cycles after `r_en`
    first, last : In(1) : with `r_en`: first and last chunk of a row
    halves : In(1), if `p.halves` : with `r_en`: the chunk's sum is the larger of those of its first and last n_w / 2
        products, which are aligned as one chunk
    o : Out(32), o_en : Out(1) : FP32 of a row, `LATENCY` cycles after the `r_en` of its last chunk

    Latency: 12 cycles (`LATENCY`).
    Throughput: a chunk of n_w products every cycle; no back-pressure.
    Raises: `ParamError` from `DpeParams`.
    Source: V-Rex section V-A (MAC trees of the DPE); function: `golden.arithmetic.dot`.
    """

    LATENCY = 12

    def __init__(self, p: DpeParams):
        self.p = p
        super().__init__(
            {
                "w_en": In(p.n_w),
                "w_addr": In(p.w_addr_bits),
                "w_data": In(data.ArrayLayout(16, p.n_w)),
                "r_en": In(1),
                "r_addr": In(p.w_addr_bits),
                "first": In(1),
                "last": In(1),
                **({"halves": In(1)} if p.halves else {}),
                "exponents": In(exponents_layout(p)),
                "significands": In(significands_layout(p)),
                "o": Out(32),
                "o_en": Out(1),
                **error_members(p.protect),
            }
        )

    def elaborate(self, platform):
        p, m = self.p, Module()
        valid, first, last = self._cycles(m)
        exponents, significands = self._memories(m, valid)
        sums = self._add_exponents(m, exponents, valid[1])
        race = self._race(m, sums, valid[2])
        products = self._multiply(m, significands, race, valid[3])
        rows, ones4 = self._align(m, products, valid[4])
        total6 = self._larger(m, rows, ones4, valid) if p.halves else self._add(m, rows, ones4, valid)
        block, chunk7, down_row6 = self._meet(m, total6, products.top3, valid, first[6])
        row, flags8 = self._accumulate(m, chunk7, down_row6, products, valid, first[8])

        # Cycles 9 to 11: rounded. The row's unit is 2^(8 block - 252 - window).
        m.submodules.round = rounder = Normaliser(p.dot.row_bits, 9 - BLOCK_BITS, 1 << BLOCK_BITS, -252 - p.window)
        plus8, minus8, nan8 = flags8
        m.d.comb += [
            rounder.x.eq(row),
            rounder.scale.eq(_later(m, "block_", block, valid[7:9])),
            rounder.nan.eq(nan8 | (plus8 & minus8)),
            rounder.infinite.eq(plus8 | minus8),
            rounder.minus.eq(minus8),
            rounder.load.eq(Cat(valid[k] & last[k] for k in range(9, 12))),
            self.o.eq(rounder.y),
            self.o_en.eq(valid[12] & last[12]),
        ]
        return m

    def _cycles(self, m: Module) -> tuple[list[Value], list[Value], list[Value]]:
        """Pipelines of `r_en`, `first` and `last`, by the number of the cycle."""
        valid, first, last = [self.r_en], [self.first], [self.last]
        for k in range(1, self.LATENCY + 1):
            for name, stages in (("valid", valid), ("first", first), ("last", last)):
                stages.append(reg(m, f"{name}{k}", stages[k - 1], reset_less=False))
        return valid, first, last

    def _memories(self, m: Module, valid: list[Value]) -> tuple[list[Value], list[Value]]:
        """Cycle 0 reads exponents, cycle 2 significands. Returns both of each lane."""
        p, n = self.p, self.p.n_w
        m.submodules.exponent_ram = exponent_ram = Ram(8 * n, p.w_depth, n, p.protect)
        m.submodules.significand_ram = significand_ram = Ram(8 * n, p.w_depth, n, p.protect)
        collect_errors(m, self, [exponent_ram, significand_ram])
        r_addr2 = _later(m, "r_addr", self.r_addr, valid[:2])
        for memory, words, read, addr in (
            (exponent_ram, [word[7:15] for word in self.w_data], self.r_en, self.r_addr),
            (significand_ram, [Cat(word[:7], word[15]) for word in self.w_data], valid[2], r_addr2),
        ):
            m.d.comb += [memory.w_en.eq(self.w_en), memory.w_addr.eq(self.w_addr), memory.w_data.eq(Cat(words))]
            m.d.comb += [memory.r_en.eq(read), memory.r_addr.eq(addr)]
        return tuple([memory.r_data.word_select(i, 8) for i in range(n)] for memory in (exponent_ram, significand_ram))

    def _add_exponents(self, m: Module, words: list[Value], valid1: Value) -> "_Sums":
        """Cycle 1: the products' exponents.

        It does no more, because both operands come late: weights from their memory, activations from a register that
        drives all trees.
        """
        x = self.exponents
        we = [comb(m, f"we{i}", word) for i, word in enumerate(words)]
        w_zero = comb(m, "w_zero", Cat(~e.any() for e in we))
        w_special = comb(m, "w_special", Cat(e.all() for e in we) & ~x.off)
        return _Sums(
            e1=[reg(m, f"e1_{i}", e + x.exponent[i], when=valid1) for i, e in enumerate(we)],
            live1=reg(m, "live1", ~(w_zero | x.zero | x.off), when=valid1),
            bad1=reg(m, "bad1", ((w_special & x.zero) | (x.special & w_zero)).any(), when=valid1),
            w_special1=reg(m, "w_special1", w_special, when=valid1),
        )

    def _race(self, m: Module, x: "_Sums", valid2: Value) -> "_Race":
        """Cycle 2: the largest exponent without its fine bits."""
        high, leading, below = largest(m, [v[FINE:] for v in x.e1], x.live1, Const(0, self.p.n_w), "high")
        return _Race(
            fine2=[reg(m, f"fine2_{i}", v[:FINE], when=valid2) for i, v in enumerate(x.e1)],
            high2=reg(m, "high2", high, when=valid2),
            leading2=reg(m, "leading2", leading, when=valid2),
            below2=reg(m, "below2", below, when=valid2),
            bad2=reg(m, "bad2", x.bad1, when=valid2),
            w_special2=reg(m, "w_special2", x.w_special1, when=valid2),
        )

    def _multiply(self, m: Module, words: list[Value], race: "_Race", valid3: Value) -> "_Products":
        """Cycle 3: the largest exponent's fine bits, and the products.

        If the exponent of a product without its fine bits is more than one below the largest's, the product is at least
        32 binades below and lost. For the others the fine bits and "one below" suffice.
        """
        fine, _, _ = largest(m, race.fine2, race.leading2, race.below2, "fine", FINE)
        top = comb(m, "top", Cat(fine, race.high2))
        fine3 = [reg(m, f"fine3_{i}", v, when=valid3) for i, v in enumerate(race.fine2)]
        below3 = reg(m, "below3", race.below2, when=valid3)
        near3 = reg(m, "near3", race.leading2 | race.below2, when=valid3)
        y, one = self.significands, Const(1, 1)
        ws = [comb(m, f"ws{i}", word) for i, word in enumerate(words)]
        sign = comb(m, "sign", Cat(s[7] for s in ws) ^ y.sign)
        products = [
            reg(m, f"product{i}", Cat(s[:7], one) * Cat(y.fraction[i], one), when=valid3) for i, s in enumerate(ws)
        ]
        special = comb(m, "special", race.w_special2 | y.special)
        nan = comb(m, "nan", race.bad2 | y.nan | (race.w_special2 & Cat(s[6] for s in ws)).any())
        return _Products(
            products=products,
            fine3=fine3,
            below3=below3,
            near3=near3,
            top3=reg(m, "top3", top, when=valid3),
            sign3=reg(m, "sign3", sign, when=valid3),
            nan3=reg(m, "nan3", nan, when=valid3),
            plus3=reg(m, "plus3", (special & ~sign).any(), when=valid3),
            minus3=reg(m, "minus3", (special & sign).any(), when=valid3),
        )

    def _align(self, m: Module, x: "_Products", valid4: Value) -> tuple[list[Value], Signal]:
        """Cycle 4: aligns products, inverts negative ones, and compresses eight at a time to two rows.

        Also returns the ones left over. A negative term -t is ~t + 1. Its sign bit of weight -2^w is stored as 2^w of a
        positive one; `_add` subtracts n 2^w.
        """
        n, w, sum_bits = self.p.n_w, self.p.window, self.p.dot.sum_bits
        shift_bits = bits_for(w + 1)  # all ones: nothing is left of a product
        top_fine = comb(m, "top_fine", x.top3[:FINE])
        ones, rows = [], []
        part = n // 2 if self.p.halves else n
        for i in [first + k for first in range(0, n, part) for k in range(0, part, GROUP)]:
            terms = []
            for j in range(i, min(i // part * part + part, i + GROUP)):
                down = comb(m, f"down{j}", top_fine - x.fine3[j])  # signed: one below may have larger fine bits
                lost = comb(m, f"lost{j}", ~x.near3[j] | (x.below3[j] & ~down[-1]))
                shift = comb(m, f"shift{j}", Cat(down[:FINE] | lost.replicate(FINE), lost), shift_bits)
                wide = comb(m, f"wide{j}", Cat(Const(0, w - 16), x.products[j]))
                aligned = comb(m, f"aligned{j}", wide >> shift)
                terms.append(comb(m, f"term{j}", Cat(aligned ^ x.sign3[j].replicate(w), ~x.sign3[j])))
            pair, left = carry_save(m, terms, [x.sign3[j] for j in range(i, i + len(terms))], sum_bits, f"g{i}")
            rows += [reg(m, f"row{i}_{k}", v, sum_bits, when=valid4) for k, v in enumerate(pair)]
            ones += left
        return rows, reg(m, "ones4", Cat(ones), when=valid4)

    def _add(self, m: Module, rows: list[Value], ones4: Signal, valid: list[Value]) -> Signal:
        """Cycle 5 compresses to two rows, cycle 6 adds them."""
        sum_bits = self.p.dot.sum_bits
        weights = Const(-(self.p.n_w << self.p.window) & ((1 << sum_bits) - 1), sum_bits)  # weight of the n sign bits
        pair, left = carry_save(m, [*rows, weights], list(ones4), sum_bits, "tree")
        a5, b5, one5 = (
            reg(m, name, value, width, when=valid[5])
            for name, value, width in (("a5", pair[0], sum_bits), ("b5", pair[1], sum_bits), ("one5", left[0], 1))
        )
        return reg(m, "total6", (a5 + b5 + one5)[:sum_bits], when=valid[6])

    def _larger(self, m: Module, rows: list[Value], ones4: Signal, valid: list[Value]) -> Signal:
        """The cycles of `_add` for each half. Cycle 6 adds the halves, or compares them and takes the larger."""
        sum_bits, n = self.p.dot.sum_bits, self.p.n_w // 2
        weights = Const(-(n << self.p.window) & ((1 << sum_bits) - 1), sum_bits)  # weight of a half's sign bits
        sums = []
        for k, side in enumerate(("low", "high")):
            own, ones = (v[k * len(v) // 2 : (k + 1) * len(v) // 2] for v in (rows, list(ones4)))
            pair, left = carry_save(m, [*own, weights], ones, sum_bits, side)
            terms = [*pair, *left]
            kept = [reg(m, f"{side}{j}_5", v, min(len(v), sum_bits), when=valid[5]) for j, v in enumerate(terms)]
            sums.append(comb(m, side, sum(kept[1:], kept[0])[:sum_bits]))
        low, high = sums
        halves6 = _later(m, "halves_", self.halves, valid[:6])
        both = comb(m, "both", (low + (high ^ halves6.replicate(sum_bits)) + halves6)[:sum_bits])
        larger = Mux(both[-1], high, low)
        return reg(m, "total6", Mux(halves6, larger, both), when=valid[6])

    def _meet(
        self, m: Module, total6: Signal, top3: Signal, valid: list[Value], first6: Value
    ) -> tuple[Signal, Signal, Signal]:
        """Cycle 6 finds the larger block of exponents of chunk and row; cycle 7 shifts the chunk to its own, then to
        that block. Returns the block, the chunk, and by how many blocks the row goes down.
        """
        sum_bits, top5 = self.p.dot.sum_bits, _later(m, "top_", top3, valid[4:6])
        block = Signal(9 - BLOCK_BITS, reset_less=True)
        own = top5[BLOCK_BITS:]
        larger = comb(m, "larger", Mux(first6 | (own > block), own, block))
        within6 = reg(m, "within6", top5[:BLOCK_BITS], when=valid[6])
        down_chunk6 = reg(m, "down_chunk6", larger - own, len(block), when=valid[6])
        down_row6 = reg(m, "down_row6", larger - block, len(block), when=valid[6])
        with m.If(valid[6]):
            m.d.sync += block.eq(larger)
        chunk = comb(m, "chunk", total6.as_signed() << within6, sum_bits + (1 << BLOCK_BITS) - 1)
        chunk7 = reg(m, "chunk7", _down(m, chunk, down_chunk6, self.p.dot.row_bits, "chunk"), when=valid[7])
        return block, chunk7, down_row6

    def _accumulate(
        self, m: Module, chunk7: Signal, down_row6: Signal, x: "_Products", valid: list[Value], first8: Value
    ) -> tuple[Signal, Signal]:
        """Cycle 8: shifts the row to the larger block and adds the chunk; also keeps flags for infinities and NaN."""
        row_bits = self.p.dot.row_bits
        row = Signal(row_bits, reset_less=True)
        down_row7 = reg(m, "down_row7", down_row6, when=valid[7])
        kept = comb(m, "kept", _down(m, row, down_row7, row_bits, "row") & ~first8.replicate(row_bits))
        flags = _later(m, "flags_", Cat(x.plus3, x.minus3, x.nan3), valid[4:8])
        flags8 = Signal(3, reset_less=True)
        with m.If(valid[8]):
            m.d.sync += [row.eq(kept + chunk7), flags8.eq(flags | (flags8 & ~first8.replicate(3)))]
        return row, flags8


class _Sums(NamedTuple):
    """Registers at the end of cycle 1."""

    e1: list[Signal]  # exponents
    live1: Signal  # lanes that count
    bad1: Signal  # infinity times zero
    w_special1: Signal  # the weight is infinity or NaN


class _Race(NamedTuple):
    """Registers at the end of cycle 2: the race for the largest exponent."""

    fine2: list[Signal]  # low bits of each exponent
    high2: Signal  # the largest exponent's other bits
    leading2: Signal  # lanes whose other bits equal those
    below2: Signal  # lanes whose other bits are one less
    bad2: Signal
    w_special2: Signal


class _Products(NamedTuple):
    """Registers at the end of cycle 3."""

    products: list[Signal]
    fine3: list[Signal]
    below3: Signal
    near3: Signal  # lanes whose other exponent bits are one less or equal
    top3: Signal  # largest exponent
    sign3: Signal
    nan3: Signal
    plus3: Signal  # plus infinity in the chunk
    minus3: Signal


def _later(m: Module, name: str, value: Value, valid: list[Value]) -> Value:
    """Returns `value` after a cycle for each of `valid`: whether there is a chunk in it."""
    for k, when in enumerate(valid):
        value = reg(m, f"{name}_{k}", value, when=when)
    return value


def _down(m: Module, x: Signal, blocks: Signal, width: int, name: str) -> Signal:
    """`x`, signed, shifted right by `blocks` of eight and extended to `width`; from `width` on nothing is left of
    it.
    """
    x = x.as_signed()
    for k in range(len(blocks)):
        amount = min(width, 1 << (k + BLOCK_BITS))
        s = comb(m, f"{name}_down{k}", Mux(blocks[k], x >> amount, x), width)
        x = s.as_signed()
    return s
