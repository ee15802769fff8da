"""A MAC tree of the DPE: n_w products a cycle, aligned and summed, a row's chunks accumulated, one rounding."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.dot import BLOCK_BITS
from hdl.arith.carry_save import carry_save
from hdl.arith.fp32 import Normaliser
from hdl.arith.largest import largest
from hdl.memory import collect_errors, error_members, ram
from hdl.params import DpeParams, bits_for

GROUP = 8  # products compressed to two rows in the cycle that aligns them
HIGH = 3  # bits of the largest exponent found in the first cycle, the other 6 in the second
FINE = 5  # low bits of an exponent of which a shift is made: it is less than 2^FINE, the largest window, or all is lost


def exponents_layout(p: DpeParams) -> data.StructLayout:
    """A chunk's activations as the first stage takes them, a bit or a field for each of n_w lanes.

    exponent : 0 for a zero or subnormal · zero : it is 0 · special : NaN or infinity · off : the lane is beyond the row
    """
    flags = dict.fromkeys(("zero", "special", "off"), p.n_w)
    return data.StructLayout({"exponent": data.ArrayLayout(8, p.n_w), **flags})


def significands_layout(p: DpeParams) -> data.StructLayout:
    """The same activations a cycle later; a NaN has its fraction's highest bit set, and `nan` if a lane has one."""
    return data.StructLayout({"fraction": data.ArrayLayout(7, p.n_w), "sign": p.n_w, "special": p.n_w, "nan": 1})


class DotTree(wiring.Component):
    """One row of weights against the activations that all trees share: `golden.dot.dot`.

    Exponents are read a cycle before significands, so that the largest one is known when the products are there and
    no register waits with operands. Products become two's complement by inversion; the ones that are missing ride in
    free carry bits.

    Parameters
    ----------
    p : DpeParams

    Members
    -------
    w_en, w_addr, w_data : In : the lanes of w_en of a word of n_w BF16 weights are written; NaNs must have their
        fraction's highest bit set, infinities no other than 0
    r_en, r_addr : In : chunk to multiply; its activations come as
    exponents : In(`exponents_layout`) : one cycle after `r_en`, and
    significands : In(`significands_layout`) : two cycles after it
    first, last : In(1) : with `r_en`: first and last chunk of a row
    o : Out(32), o_en : Out(1) : FP32 of a row, `LATENCY` cycles after the `r_en` of its last chunk

    Latency: 12 cycles (`LATENCY`).
    Throughput: a chunk of n_w products every cycle; no back-pressure.
    Raises: `ParamError` from `DpeParams`.
    Source: V-Rex section V-A (MAC trees of the DPE); function: `golden.dot`.
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
                "exponents": In(exponents_layout(p)),
                "significands": In(significands_layout(p)),
                "o": Out(32),
                "o_en": Out(1),
                **error_members(p.protect),
            }
        )

    def elaborate(self, platform):
        p, m = self.p, Module()
        n, w, lanes = p.n_w, p.window, range(p.n_w)
        sum_bits, row_bits = p.dot.sum_bits, p.dot.row_bits
        shift_bits = bits_for(w + 1)  # all ones: nothing of a product is left

        def comb(name, value, width=None):
            s = Signal(len(value) if width is None else width, name=name)
            m.d.comb += s.eq(value)
            return s

        def reg(name, value, width=None):
            s = Signal(len(value) if width is None else width, name=name, reset_less=True)
            m.d.sync += s.eq(value)
            return s

        def later(name, value, cycles):
            for k in range(cycles):
                value = reg(f"{name}_{k}", value)
            return value

        # What is in a cycle, by the cycle's number.
        valid, first, last = [self.r_en], [self.first], [self.last]
        for k in range(1, self.LATENCY + 1):
            for name, stages in (("valid", valid), ("first", first), ("last", last)):
                stages.append(Signal(name=f"{name}{k}"))
                m.d.sync += stages[k].eq(stages[k - 1])

        # Cycle 0: exponents are read; cycle 1: significands.
        exponent_ram = ram(m, platform, "exponent_ram", 8 * n, p.w_depth, n, p.protect)
        significand_ram = ram(m, platform, "significand_ram", 8 * n, p.w_depth, n, p.protect)
        collect_errors(m, self, [exponent_ram, significand_ram])
        for memory, words, read, addr in (
            (exponent_ram, [word[7:15] for word in self.w_data], self.r_en, self.r_addr),
            (significand_ram, [Cat(word[:7], word[15]) for word in self.w_data], valid[1], reg("r_addr1", self.r_addr)),
        ):
            m.d.comb += [memory.w_en.eq(self.w_en), memory.w_addr.eq(self.w_addr), memory.w_data.eq(Cat(words))]
            m.d.comb += [memory.r_en.eq(read), memory.r_addr.eq(addr)]

        # Cycle 1: exponents of the products, the highest bits of the largest. It has the fewest of them, as activations
        # come late: their register drives all trees.
        x = self.exponents
        we = [comb(f"we{i}", exponent_ram.r_data.word_select(i, 8)) for i in lanes]
        w_zero = comb("w_zero", Cat(~e.any() for e in we))
        w_special = comb("w_special", Cat(e.all() for e in we) & ~x.off)
        e = [comb(f"e{i}", we[i] + x.exponent[i]) for i in lanes]
        live = comb("live", ~(w_zero | x.zero | x.off))
        high, leading, below = largest(m, [v[9 - HIGH :] for v in e], live, Const(0, n), "high")
        bad = comb("bad", ((w_special & x.zero) | (x.special & w_zero)).any())
        e1 = [reg(f"e1_{i}", v[: 9 - HIGH]) for i, v in enumerate(e)]
        high1, leading1, below1, bad1, w_special1 = (
            reg(f"{name}1", v)
            for name, v in (
                ("high", high),
                ("leading", leading),
                ("below", below),
                ("bad", bad),
                ("w_special", w_special),
            )
        )

        # Cycle 2: the largest exponent, the products. One whose exponent without the fine bits is more than one below
        # the largest's is at least 32 binades below and lost; the fine bits and "one below" are enough for the others.
        low, equal, below = largest(m, e1, leading1, below1, "low", FINE)
        top = comb("top", Cat(low, high1))
        fine2 = [reg(f"fine2_{i}", v[:FINE]) for i, v in enumerate(e1)]
        below2, near2 = reg("below2", below), reg("near2", equal | below)
        y = self.significands
        ws = [comb(f"ws{i}", significand_ram.r_data.word_select(i, 8)) for i in lanes]
        sign = comb("sign", Cat(s[7] for s in ws) ^ y.sign)
        one = Const(1, 1)
        products = [reg(f"product{i}", Cat(ws[i][:7], one) * Cat(y.fraction[i], one)) for i in lanes]
        special = comb("special", w_special1 | y.special)
        nan = comb("nan", bad1 | y.nan | (w_special1 & Cat(s[6] for s in ws)).any())
        top2, sign2, nan2 = reg("top2", top), reg("sign2", sign), reg("nan2", nan)
        plus2, minus2 = reg("plus2", (special & ~sign).any()), reg("minus2", (special & sign).any())

        # Cycle 3: aligned, inverted where negative, eight at a time compressed to two rows.
        # A negative term -t is ~t + 1; its sign bit of weight -2^w is 2^w of a positive one less n 2^w in all.
        top_fine = comb("top_fine", top2[:FINE])
        ones, rows = [], []
        for i in range(0, n, GROUP):
            terms = []
            for j in range(i, min(n, i + GROUP)):
                down = comb(f"down{j}", top_fine - fine2[j])  # signed: one below may have higher fine bits
                lost = comb(f"lost{j}", ~near2[j] | (below2[j] & ~down[-1]))
                shift = comb(f"shift{j}", Cat(down[:FINE] | lost.replicate(FINE), lost), shift_bits)
                wide = comb(f"wide{j}", Cat(Const(0, w - 16), products[j]))
                aligned = comb(f"aligned{j}", wide >> shift)
                terms.append(comb(f"term{j}", Cat(aligned ^ sign2[j].replicate(w), ~sign2[j])))
            pair, left = carry_save(m, terms, [sign2[j] for j in range(i, i + len(terms))], sum_bits, f"g{i}")
            rows += [reg(f"row{i}_{k}", v, sum_bits) for k, v in enumerate(pair)]
            ones += left
        ones3 = reg("ones3", Cat(ones))

        # Cycle 4: to two rows; cycle 5: their sum.
        weights = Const(-(n << w) & ((1 << sum_bits) - 1), sum_bits)  # of the n sign bits
        pair, left = carry_save(m, [*rows, weights], list(ones3), sum_bits, "tree")
        a4, b4, one4 = reg("a4", pair[0], sum_bits), reg("b4", pair[1], sum_bits), reg("one4", left[0], 1)
        total5 = reg("total5", (a4 + b4 + one4)[:sum_bits])

        # Cycle 6: the chunk to its block of exponents; the larger block of chunk and row.
        top5 = later("top_", top2, 3)
        fine6 = reg("fine6", total5.as_signed() << top5[:BLOCK_BITS], sum_bits + (1 << BLOCK_BITS) - 1)
        block = Signal(9 - BLOCK_BITS, reset_less=True)
        own = top5[BLOCK_BITS:]
        larger = comb("larger", Mux(first[6] | (own > block), own, block))
        down_chunk6 = reg("down_chunk6", larger - own, len(block))
        down_row6 = reg("down_row6", larger - block, len(block))
        with m.If(valid[6]):
            m.d.sync += block.eq(larger)

        # Cycle 7: the chunk to the larger block; cycle 8: the row to it, and their sum.
        chunk7 = reg("chunk7", _down(m, fine6, down_chunk6, row_bits, "chunk"))
        row = Signal(row_bits, reset_less=True)
        kept = comb("kept", _down(m, row, reg("down_row7", down_row6), row_bits, "row") & ~first[8].replicate(row_bits))
        flags = reg("flags7", later("flags_", Cat(plus2, minus2, nan2), 4))
        flags8 = Signal(3, reset_less=True)
        with m.If(valid[8]):
            m.d.sync += [row.eq(kept + chunk7), flags8.eq(flags | (flags8 & ~first[8].replicate(3)))]

        # Cycles 9 to 11: rounded. The row's unit is 2^(8 block - 252 - window).
        m.submodules.round = rounder = Normaliser(row_bits, 9 - BLOCK_BITS, 1 << BLOCK_BITS, -252 - w)
        plus8, minus8, nan8 = flags8
        m.d.comb += [
            rounder.x.eq(row),
            rounder.scale.eq(later("block_", block, 2)),
            rounder.nan.eq(nan8 | (plus8 & minus8)),
            rounder.infinite.eq(plus8 | minus8),
            rounder.minus.eq(minus8),
            self.o.eq(rounder.y),
            self.o_en.eq(valid[12] & last[12]),
        ]
        return m


def _down(m: Module, x: Signal, blocks: Signal, width: int, name: str) -> Signal:
    """`x`, signed, shifted right by `blocks` of eight and extended to `width`: all of it is lost from `width` on."""
    x = x.as_signed()
    for k in range(len(blocks)):
        amount = min(width, 1 << (k + BLOCK_BITS))
        s = Signal(width, name=f"{name}_down{k}")
        m.d.comb += s.eq(Mux(blocks[k], x >> amount, x))
        x = s.as_signed()
    return s
