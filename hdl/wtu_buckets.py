"""The paper's variant of the WTU: a pass over the row for every bucket, from the highest, until the threshold."""

from enum import IntEnum

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring

from hdl import wtu_lanes as lanes
from hdl.arith.popcount import popcount
from hdl.memory import SinglePortRam, collect_errors
from hdl.params import WtuParams, bits_for


class State(IntEnum):
    """What the lanes work on."""

    LOAD = 0  # the row that comes in
    TH = 1  # its sum settles, Th is multiplied
    PASS = 2  # a bucket after the other


class WtuBuckets(wiring.Component):
    """Whole buckets of equal width in the code, from the row's highest, until their weight exceeds Th.

    Preprocess: Sum, smallest and largest code while the row is written to score memory. Selection: the row is read once
    a bucket; its upper and lower bounds give the mask of the lanes, the weights under it are summed, and
    the sum of whole buckets is compared. A pass starts right behind the one before and is dropped if that one crossed.
    bucket(c) = ((max - c) * n_buckets) // span, span = max - min + 1: bucket b ends at
    max - (((b + 1) * span - 1) // n_buckets).

    Parameters
    ----------
    p : WtuParams · counters : names of the 32-bit counters in `perf`

    Members
    -------
    c, i, ratio, o, perf : as in `hdl.wtu.Wtu`

    Latency: L * (1 + buckets) + 4 cycles for L words, from the first word to the last beat.
    Throughput: a row every latency + 1 cycles: loading and passes need the same lanes, `double_buffer` has no effect.
    Raises: `ParamError` from `WtuParams`.
    Source: V-Rex section V-B, Figure 11.
    """

    def __init__(self, p: WtuParams, counters: list[str]):
        self.p = p
        super().__init__(lanes.signature(p, counters))

    def elaborate(self, platform):
        p, m = self.p, Module()
        f, n_w = p.score, p.n_w
        word_bits, lane_bits = bits_for(p.words), bits_for(n_w)
        log_n = p.n_buckets.bit_length() - 1
        row, beat = self.i.payload, self.o.payload

        def comb(width, name, value):
            s = Signal(width, name=name)
            m.d.comb += s.eq(value)
            return s

        score = m.submodules.score = SinglePortRam(f.bits * n_w, p.words, protect=p.protect)
        count = m.submodules.count = SinglePortRam(p.count_bits * n_w, p.n_ctx * p.words, n_w, p.protect)
        collect_errors(m, self, [score, count])
        state = Signal(2, init=State.LOAD)
        load, th_state, passing = (comb(1, f"state_{e.name.lower()}", state == e) for e in State)
        busy, go, finish = Signal(), Signal(), Signal()
        ctx, last, keep = Signal(bits_for(p.n_ctx)), Signal(word_bits), Signal(lane_bits)
        m.d.comb += self.c.ready.eq(~busy)

        # Words in, and words read again.
        word, bucket, th_count = Signal(word_bits), Signal(bits_for(p.n_buckets)), Signal(2)
        accept = comb(1, "accept", self.i.valid & self.i.ready)
        closed = Signal()  # the row's last word is being added
        again = comb(1, "again", (th_state & (th_count != 0)) | passing)
        again_last = comb(1, "again_last", word == last)
        m.d.comb += [
            self.i.ready.eq(load & ~closed & (busy | ~self.c.valid)),
            score.en.eq(accept | (again & go)),
            score.write.eq(accept),
            score.addr.eq(word),
            score.w_data.eq(row.scores),
        ]
        # No count is taken while a row is, nor in the cycle of its first word.
        lanes.count_port(m, p, self.c, count, accept | (again & go), Mux(accept, row.ctx, ctx) * p.words + word)
        with m.If(accept):
            m.d.sync += [busy.eq(1), ctx.eq(row.ctx), last.eq(word), keep.eq(row.keep)]
            m.d.sync += [word.eq(Mux(row.last, 0, word + 1)), closed.eq(row.last)]
        with m.Elif(finish):
            m.d.sync += [busy.eq(0), word.eq(0), bucket.eq(0)]
        with m.Elif(again & go):
            m.d.sync += [word.eq(Mux(again_last, 0, word + 1)), bucket.eq(bucket + again_last)]

        # First stage: which lanes, product.
        valid1, pass1, first1, last1, end1 = (Signal(name=f"{n}1") for n in ("valid", "pass", "first", "last", "end"))
        word1, code1 = Signal(word_bits, reset_less=True), Signal(f.bits * n_w, reset_less=True)
        with m.If(go):
            m.d.sync += [
                valid1.eq((accept | again) & ~finish),
                pass1.eq(again),
                first1.eq(word == 0),
                last1.eq(Mux(again, again_last, row.last)),
                end1.eq(bucket == p.n_buckets - 1),
                word1.eq(word),
            ]
        with m.If(accept):
            m.d.sync += code1.eq(row.scores)
        high, least = Signal(f.bits), Signal(f.bits)
        above, low = Signal(f.bits + 1), Signal(f.bits)  # bucket: low <= code < above
        reach = Signal(f.bits + log_n)  # (bucket + 1) * span - 1
        used = Signal(n_w)
        codes, highs, lows = [], [], []
        for j in range(n_w):
            code = comb(
                f.bits, f"code{j}", Mux(pass1, score.r_data.word_select(j, f.bits), code1.word_select(j, f.bits))
            )
            exists = comb(1, f"exists{j}", ~Mux(pass1, word1 == last, last1) | (keep >= j))
            m.d.comb += used[j].eq(exists & (~pass1 | ((code >= low) & (code < above))))
            codes.append(code)
            highs.append(comb(f.bits, f"high{j}", Mux(exists, code, 0)))
            lows.append(comb(f.bits, f"low{j}", Mux(exists, ~code, 0)))  # the least, as the largest complement
        word_high = lanes.max_tree(m, highs, "word_high")
        word_low = lanes.max_tree(m, lows, "word_low")
        loading = comb(1, "loading", valid1 & ~pass1)
        with m.If(loading):
            m.d.sync += [
                high.eq(Mux(first1 | (word_high > high), word_high, high)),
                least.eq(Mux(first1 | (~word_low < least), ~word_low, least)),
            ]
            with m.If(last1):
                m.d.sync += closed.eq(0)

        # Bucket range updater.
        width = comb(f.bits, "width", high - least)
        with m.If(th_state & (th_count == 0)):
            m.d.sync += reach.eq(width)
        with m.Elif(th_state & (th_count == 1)):
            m.d.sync += [above.eq(1 << f.bits), low.eq(high - (reach >> log_n)), reach.eq(reach + width + 1)]
        with m.Elif(valid1 & pass1 & last1 & go):
            m.d.sync += [above.eq(low), low.eq(high - (reach >> log_n)), reach.eq(reach + width + 1)]

        counts = []
        values = []
        for j in range(n_w):
            part = comb(p.count_bits, f"count{j}", Mux(used[j], count.r_data.word_select(j, p.count_bits), 0))
            counts.append(part)
            product = Signal(lanes.product_bits(p), name=f"product{j}", reset_less=True)
            exponent = Signal(max(1, f.exp_bits), name=f"exponent{j}", reset_less=True)
            with m.If(go):
                m.d.sync += [
                    product.eq(lanes.multiply(m, part, lanes.significand(p, codes[j]), f"mul{j}")),
                    exponent.eq(lanes.exponent_of(p, codes[j])),
                ]
            values.append(lanes.scaled(m, p, product, exponent, f"value{j}"))
        tokens1 = lanes.adder_tree(m, counts, "tokens1")

        # Second stage: sum of the word.
        def stage(n):
            names = {"valid": 1, "pass": 1, "first": 1, "last": 1, "end": 1, "word": word_bits, "used": n_w}
            names["tokens"] = len(tokens1)
            return [Signal(w, name=f"{name}{n}", reset_less=name != "valid") for name, w in names.items()]

        stage1 = [valid1, pass1, first1, last1, end1, word1, used, tokens1]
        stage2, stage3 = stage(2), stage(3)
        tree = lanes.adder_tree(m, values, "tree")
        weight = Signal(len(tree), reset_less=True)
        with m.If(go):
            m.d.sync += [new.eq(old) for old, new in zip(stage1, stage2, strict=True)]
            m.d.sync += [new.eq(old) for old, new in zip(stage2, stage3, strict=True)]
            m.d.sync += weight.eq(tree)
        with m.If(finish):
            m.d.sync += [valid1.eq(0), stage2[0].eq(0), stage3[0].eq(0)]

        # Third stage: Sum, or what is left of Th and the beat.
        valid3, pass3, first3, last3, end3, word3, used3, tokens3 = stage3
        total, left, crossed = Signal(p.sum_bits), Signal(p.sum_bits), Signal()
        with m.If(valid3 & ~pass3):
            m.d.sync += total.eq(Mux(first3, 0, total) + weight)
        th = lanes.threshold_step(m, p, total, self.ratio, comb(1, "th_step", th_count[0]), left)
        after = comb(p.sum_bits + 1, "after", left - weight)
        crosses = comb(1, "crosses", crossed | (after[-1] & ~self.ratio[16]))
        at_end = comb(1, "at_end", last3 & (crosses | end3))
        clusters3 = popcount(m, used3, "clusters3")
        clusters, tokens = Signal(len(beat.clusters)), Signal(len(beat.tokens))
        m.d.comb += [
            self.o.valid.eq(valid3 & pass3 & (used3.any() | at_end)),
            go.eq(~self.o.valid | self.o.ready),
            finish.eq(self.o.valid & self.o.ready & at_end),
            beat.addr.eq(word3),
            beat.mask.eq(used3),
            beat.last.eq(at_end),
            beat.clusters.eq(clusters + clusters3),
            beat.tokens.eq(tokens + tokens3),
        ]
        with m.If(th_state & th_count[1]):
            m.d.sync += left.eq(th)
        with m.Elif(valid3 & pass3 & go):
            m.d.sync += [left.eq(after), crossed.eq(crosses), clusters.eq(beat.clusters), tokens.eq(beat.tokens)]
        with m.If(load):
            m.d.sync += [clusters.eq(0), tokens.eq(0), crossed.eq(0)]

        with m.If(loading & last1):
            m.d.sync += [state.eq(State.TH), th_count.eq(0)]
        with m.If(th_state):
            m.d.sync += th_count.eq(th_count + 1)
            with m.If(th_count == 3):
                m.d.sync += state.eq(State.PASS)
        with m.If(finish):
            m.d.sync += state.eq(State.LOAD)

        events = {
            "rows": finish,
            "words": accept,
            "walked": valid3 & pass3 & last3 & go,
            "scanned": again & go,
        }
        for name, event in events.items():
            with m.If(event):
                m.d.sync += self.perf[name].eq(self.perf[name] + 1)
        return m
