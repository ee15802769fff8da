"""The paper's variant of the WTU: one pass over the row for every bucket, from the highest, until the threshold."""

from itertools import pairwise

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import enum

from openvrex.hdl.arith.carry_save import add, carry_save
from openvrex.hdl.arith.popcount import popcount
from openvrex.hdl.memory import SinglePortRam, collect_errors
from openvrex.hdl.named import comb, reg
from openvrex.hdl.params import WtuParams, bits_for
from openvrex.hdl.retrieval import wtu_lanes as lanes

TH_DIGIT = 8  # bits of the ratio multiplied a cycle


class State(enum.IntEnum, shape=2):
    """State of the row in the unit."""

    LOAD = 0  # a row comes in
    TH = 1  # the sum settles, and the unit multiplies for Th
    PASS = 2  # reads the row again, once a bucket


class WtuBuckets(lanes.WtuPorts):
    """Selects whole buckets of equal width in the code, from the row's highest, until their weight exceeds Th.

    The unit keeps the row, so the row is offered once, and is no longer than `counts`.

    Preprocess: while a row comes in, the unit writes it to score memory and finds Sum, the smallest and the largest
    code. Selection: it reads the row once a bucket. The bucket's bounds give the mask of the lanes; the unit sums the
    weights under the mask and compares the sum of whole buckets with Th. The next pass starts right behind the one
    before, and is dropped if that one crossed.

    bucket(c) = ((max - c) * n_buckets) // span, span = max - min + 1: bucket b ends at
    max - (((b + 1) * span - 1) // n_buckets).

    Parameters
    ----------
    p : WtuParams

    Members
    -------
    c, idle, used, i, ratio, o, perf : as in `hdl.retrieval.wtu.Wtu`

    Latency: L * (1 + buckets) + 4 cycles for L words, from the first word to the last beat: 196 for 64 words and 2
    buckets.
    Throughput: a row every latency + 1 cycles: loading and passes need the same lanes.
    Raises: `ParamError` from `WtuParams`.
    Source: V-Rex section V-B, Figure 11.
    """

    def elaborate(self, platform):
        p, m = self.p, Module()
        score = m.submodules.score = SinglePortRam(p.score.bits * p.n_w, p.words, protect=p.protect)
        count = m.submodules.count = SinglePortRam(p.count_bits * p.n_w, p.count_words, p.n_w, p.protect)
        collect_errors(m, self, [score, count])
        row, now, bucket, end = _Row(m, p), _Pass(p), _Bucket(p), _End(p)
        stages = stage1, stage2, stage3 = [_Stage(p, n) for n in (1, 2, 3)]
        read, word = _Read(p), _Lanes(p)

        self._read_words(m, score, count, row, now, read)
        self._next_word(m, row, now)
        self._enter(m, score, row, now, read, stage1, word)
        self._move(m, now, read, stages)
        self._bounds(m, bucket, stage1, stage2, word)
        self._next_bucket(m, row, now, bucket, stage1)
        self._weigh(m, count, now, bucket, stage1, word)
        self._add_lanes(m, now, word)
        self._select(m, row, now, end, stage3, word)
        self._next_state(m, row, stage1, now.finish)
        self._count_events(m, row, now, stage3)
        return m

    def _read_words(
        self, m: Module, score: SinglePortRam, count: SinglePortRam, row: "_Row", now: "_Pass", read: "_Read"
    ) -> None:
        """Writes the words that come in, and reads them again for each bucket."""
        p = self.p
        counted = row.counted
        first = comb(m, "first", self.c.valid & self.c.payload.first)
        comes = comb(m, "comes", self.c.valid & self.c.ready)
        at = comb(m, "count_at", Mux(first, 0, counted), len(counted))
        with m.If(comes):
            m.d.sync += counted.eq(at + 1)
        now.accept = comb(m, "accept", self.i.valid & self.i.ready)
        now.again = comb(m, "again", ~row.load)
        now.again_last = comb(m, "again_last", now.word == row.last)
        # Counts come in while nothing is read; those of a new context between rows only.
        room = row.load & ~now.accept & (counted != p.count_words)
        m.d.comb += [
            row.may_load.eq(row.load & ~row.closed & (row.busy | ~first)),
            self.c.ready.eq(Mux(first, ~row.busy, room)),
            self.idle.eq(~row.busy),
            self.i.ready.eq(row.may_load & (now.word < counted)),
            score.en.eq(now.accept | (now.again & now.go)),
            score.write.eq(now.accept),
            score.addr.eq(now.word),
            score.w_data.eq(self.i.payload.scores),
            # A word that is read again: its counts come a cycle after its scores, which go to registers meanwhile.
            count.en.eq(comes | now.accept | (read.valid & now.go)),
            count.write.eq(comes.replicate(p.n_w)),
            count.addr.eq(Mux(comes, at, Mux(row.load, now.word, read.word))),
            count.w_data.eq(self.c.payload.counts),
        ]

    def _next_word(self, m: Module, row: "_Row", now: "_Pass") -> None:
        beat = self.i.payload
        with m.If(now.accept):
            m.d.sync += [row.busy.eq(1), row.last.eq(now.word), row.keep.eq(beat.keep)]
            m.d.sync += [now.word.eq(Mux(beat.last, 0, now.word + 1)), row.closed.eq(beat.last)]
        with m.Elif(now.finish):
            m.d.sync += [row.busy.eq(0), now.word.eq(0), now.bucket.eq(0)]
        with m.Elif(now.again & now.go):
            m.d.sync += [now.word.eq(Mux(now.again_last, 0, now.word + 1)), now.bucket.eq(now.bucket + now.again_last)]

    def _enter(
        self,
        m: Module,
        score: SinglePortRam,
        row: "_Row",
        now: "_Pass",
        read: "_Read",
        stage1: "_Stage",
        word: "_Lanes",
    ) -> None:
        """Passes a word to the first stage: one that comes in, or one that was read again."""
        p, beat = self.p, self.i.payload
        last = comb(m, "enters_last", Mux(row.load, beat.last, read.last), 1)
        keep = comb(m, "enters_keep", Mux(row.load, beat.keep, row.keep), len(row.keep))
        with m.If(now.go):
            m.d.sync += [
                read.valid.eq(now.again),
                read.last.eq(now.again_last),
                read.end.eq(now.bucket == p.n_buckets - 1),
                read.word.eq(now.word),
                stage1.valid.eq(now.accept | read.valid),
                stage1.is_pass.eq(read.valid),
                stage1.first.eq(now.word == 0),
                stage1.last.eq(last),
                stage1.end.eq(read.end),
                stage1.word.eq(read.word),
                word.exists.eq(Cat(~last | (keep >= j) for j in range(p.n_w))),
            ]
        with m.If(now.accept | (read.valid & now.go)):
            m.d.sync += word.codes.eq(Mux(row.load, beat.scores, score.r_data))

    def _move(self, m: Module, now: "_Pass", read: "_Read", stages: list["_Stage"]) -> None:
        """Moves words from stage to stage. The row's last beat drops those behind it."""
        for old, new in pairwise(stages):
            with m.If(now.go):
                m.d.sync += [b.eq(a) for a, b in zip(old.signals(), new.signals(), strict=True)]
        with m.If(now.finish):
            m.d.sync += [read.valid.eq(0), *(stage.valid.eq(0) for stage in stages)]

    def _bounds(self, m: Module, bucket: "_Bucket", stage1: "_Stage", stage2: "_Stage", word: "_Lanes") -> None:
        """Keeps the highest and the least code of the row that comes in. The first stage finds those of both halves of
        a word, the second compares them with each other and with those of the words before.
        """
        p, high, least = self.p, bucket.high, bucket.least
        loads = [comb(m, f"loads{n}", stage.valid & ~stage.is_pass) for n, stage in ((1, stage1), (2, stage2))]
        highs, lows = [], []  # the least code is the largest of the complements
        half = -(-p.n_w // 2)
        codes = [word.codes.word_select(j, p.score.bits) for j in range(p.n_w)]
        for out, name, values in ((highs, "high", codes), (lows, "low", [~code for code in codes])):
            there = [
                comb(m, f"{name}{j}", value & word.exists[j].replicate(p.score.bits)) for j, value in enumerate(values)
            ]
            for h in range(0, p.n_w, half):
                best = lanes.max_tree(m, there[h : h + half], f"{name}_of_{h}")
                out.append(reg(m, f"{name}_from_{h}", best, when=loads[0]))
        word_high = lanes.max_tree(m, highs, "word_high")
        word_low = lanes.max_tree(m, lows, "word_low")
        with m.If(loads[1]):
            m.d.sync += [
                high.eq(Mux(stage2.first | (word_high > high), word_high, high)),
                least.eq(Mux(stage2.first | (~word_low < least), ~word_low, least)),
            ]

    def _next_bucket(self, m: Module, row: "_Row", now: "_Pass", bucket: "_Bucket", stage1: "_Stage") -> None:
        """Updates the bounds of the bucket."""
        p, high, reach = self.p, bucket.high, bucket.reach
        log_n = p.n_buckets.bit_length() - 1
        width = comb(m, "width", high - bucket.least, p.score.bits)
        with m.If(row.th_state & (row.th_count == 1)):
            m.d.sync += [
                bucket.above.eq(1 << p.score.bits),
                bucket.low.eq(high - (width >> log_n)),
                reach.eq((width << 1) + 1),
            ]
        with m.Elif(stage1.valid & stage1.is_pass & stage1.last & now.go):
            m.d.sync += [
                bucket.above.eq(bucket.low),
                bucket.low.eq(high - (reach >> log_n)),
                reach.eq(reach + width + 1),
            ]

    def _weigh(
        self, m: Module, count: SinglePortRam, now: "_Pass", bucket: "_Bucket", stage1: "_Stage", word: "_Lanes"
    ) -> None:
        """First stage: finds the lanes in use: all that exist while a row is loaded, then the bucket's. Meanwhile it
        multiplies in all lanes.
        """
        p, f, counts = self.p, self.p.score, []
        for j in range(p.n_w):
            code, own = word.codes.word_select(j, f.bits), count.r_data.word_select(j, p.count_bits)
            inside = comb(m, f"inside{j}", (code >= bucket.low) & (code < bucket.above), 1)
            used = comb(m, f"used1_{j}", word.exists[j] & (~stage1.is_pass | inside), 1)
            counts.append(comb(m, f"count{j}", own & used.replicate(p.count_bits)))
            product = self._product(m, lanes.significand(p, code), own, f"mul{j}")
            with m.If(now.go):
                m.d.sync += [
                    word.used2[j].eq(used),
                    word.products[j].eq(product),
                    word.scales[j].eq(lanes.scale_of(p, lanes.exponent_of(p, code))),
                ]
        word.tokens2 = [
            reg(m, f"tokens2_{k}", pair, when=now.go) for k, pair in enumerate(lanes.adder_level(m, counts, "tokens1"))
        ]

    def _product(self, m: Module, significand: Value, count: Value, name: str) -> Signal:
        """Exact product with one carry chain. Multiples are of the significand, as the count comes late from memory."""
        parts = lanes.partial_products(m, significand, count, name)
        apart = -(-len(parts[0]) // 2)  # partial products that are so far apart do not overlap
        rows = []
        for k in range(min(apart, len(parts))):
            own = [comb(m, f"{name}_own{k}_{i}", part, 2 * apart) for i, part in enumerate(parts[k::apart])]
            rows.append(Cat(own) << 2 * k)
        return add(m, rows, lanes.product_bits(self.p), f"{name}_product")

    def _add_lanes(self, m: Module, now: "_Pass", word: "_Lanes") -> None:
        """Second stage: adds the weights and the tokens of the lanes in use."""
        p, weights = self.p, []
        for j, (product, scale) in enumerate(zip(word.products, word.scales, strict=True)):
            part = comb(m, f"part{j}", product & word.used2[j].replicate(len(product)))
            weights.append(lanes.scaled(m, p, part, scale, f"value{j}"))
        rows, _ = carry_save(m, weights, [], len(weights[0]) + (p.n_w - 1).bit_length(), "weights")
        word.weight = [reg(m, f"weight_{n}", row, when=now.go) for n, row in zip(("sum", "carry"), rows, strict=False)]
        with m.If(now.go):
            m.d.sync += [
                word.used3.eq(word.used2),
                word.some.eq(word.used2.any()),
                word.clusters.eq(popcount(m, word.used2, "clusters2")),
                word.tokens.eq(lanes.adder_tree(m, word.tokens2, "tokens2")),
            ]

    def _select(self, m: Module, row: "_Row", now: "_Pass", end: "_End", stage3: "_Stage", word: "_Lanes") -> None:
        """Third stage: adds to Sum while a row is loaded, then subtracts from what is left of Th and offers the
        beat.
        """
        p, beat, total, over = self.p, self.o.payload, end.total, end.over
        # `over` is the complement of what is left of Th, so that one adder serves both; it overflows at the crossing.
        base = comb(m, "base", Mux(stage3.is_pass, over, total & (~stage3.first).replicate(p.sum_bits)))
        added = add(m, [base, *word.weight], p.sum_bits + 1, "added")
        crosses = comb(m, "crosses", end.crossed | (added[-1] & ~self.ratio[16]))
        at_end = comb(m, "at_end", stage3.last & (crosses | stage3.end))
        th = self._threshold(m, row, end)
        m.d.comb += [
            # A word without lanes in use weighs nothing: it crosses only behind one that did.
            self.o.valid.eq(stage3.valid & stage3.is_pass & (word.some | (stage3.last & (end.crossed | stage3.end)))),
            now.go.eq(~self.o.valid | self.o.ready),
            now.finish.eq(self.o.valid & self.o.ready & at_end),
            beat.addr.eq(stage3.word),
            beat.mask.eq(word.used3),
            beat.last.eq(at_end),
            beat.clusters.eq(end.clusters + word.clusters),
            beat.tokens.eq(end.tokens + word.tokens),
        ]
        with m.If(stage3.valid & ~stage3.is_pass):
            m.d.sync += total.eq(added)
        with m.If(row.th_state & row.th_count[1]):
            m.d.sync += over.eq(~th)
        with m.Elif(stage3.valid & stage3.is_pass & now.go):
            m.d.sync += [
                over.eq(added),
                end.crossed.eq(crosses),
                end.clusters.eq(beat.clusters),
                end.tokens.eq(beat.tokens),
            ]
        with m.If(row.load):
            m.d.sync += [over.eq(~0), end.clusters.eq(0), end.tokens.eq(0), end.crossed.eq(0)]

    def _threshold(self, m: Module, row: "_Row", end: "_End") -> Value:
        """Th = floor(Sum x ratio / 2^16), for a ratio below 2^16, in two steps. The first one multiplies the low digit
        of the ratio, and `over` keeps the result. Two nested floors equal one.
        """
        p = self.p
        # The digit of the next cycle:
        next_digit = Mux(row.th_count == 1, self.ratio[:TH_DIGIT], self.ratio[TH_DIGIT:16])
        digit = reg(m, "th_digit", next_digit, when=row.th_state)
        rows = [comb(m, f"th_row{k}", end.total & digit[k].replicate(p.sum_bits)) << k for k in range(TH_DIGIT)]
        return add(m, [*rows, ~end.over], p.sum_bits + TH_DIGIT, "th")[TH_DIGIT:]

    def _next_state(self, m: Module, row: "_Row", stage1: "_Stage", finish: Signal) -> None:
        with m.If(stage1.valid & ~stage1.is_pass & stage1.last):
            m.d.sync += [row.state.eq(State.TH), row.closed.eq(0), row.th_count.eq(0)]
        with m.If(row.th_state):
            m.d.sync += row.th_count.eq(row.th_count + 1)
            with m.If(row.th_count == 3):
                m.d.sync += row.state.eq(State.PASS)
        with m.If(finish):
            m.d.sync += row.state.eq(State.LOAD)

    def _count_events(self, m: Module, row: "_Row", now: "_Pass", word: "_Stage") -> None:
        self._count_later(
            m,
            rows=now.finish,
            words=now.accept,
            walked=word.valid & word.is_pass & word.last & now.go,
            waits=self.i.valid & row.may_load & ~self.i.ready,
        )


class _Row:
    """The row in the unit."""

    def __init__(self, m: Module, p: WtuParams):
        self.state = Signal(State, init=State.LOAD)
        self.load, self.th_state, self.passing = (comb(m, f"state_{e.name.lower()}", self.state == e) for e in State)
        self.busy = Signal()
        self.counted = Signal(range(p.count_words + 1))  # words of counts of the context that are there
        self.may_load = Signal()  # a word may come in, if it is counted
        self.last = Signal(bits_for(p.words))  # last word of the row
        self.keep = Signal(bits_for(p.n_w))  # highest lane in use of that word
        self.closed = Signal()  # the row's last word is being added
        self.th_count = Signal(2)  # cycles in TH


class _Pass:
    """The word that the unit takes, or reads again for a bucket."""

    def __init__(self, p: WtuParams):
        self.word = Signal(bits_for(p.words))
        self.bucket = Signal(bits_for(p.n_buckets))
        self.go = Signal()  # the stages move on
        self.finish = Signal()  # the row's last beat is taken
        self.accept: Signal  # a word comes in
        self.again: Signal  # a word is read again
        self.again_last: Signal  # the last word is read again


class _Read:
    """The word that score memory gives, on its way to the first stage."""

    def __init__(self, p: WtuParams):
        self.valid = Signal(name="read_valid")
        self.last = Signal(name="read_last", reset_less=True)
        self.end = Signal(name="read_end", reset_less=True)  # as in the stages
        self.word = Signal(bits_for(p.words), name="read_word", reset_less=True)


class _Stage:
    """A word on its way through the stages."""

    def __init__(self, p: WtuParams, n: int):
        plain = n > 1  # only the first stage is reset
        self.valid = Signal(name=f"valid{n}")
        self.is_pass = Signal(name=f"pass{n}", reset_less=plain)  # the word was read again for a bucket
        self.first = Signal(name=f"first{n}", reset_less=plain)
        self.last = Signal(name=f"last{n}", reset_less=plain)
        self.end = Signal(name=f"end{n}", reset_less=plain)  # the word belongs to the last bucket
        self.word = Signal(bits_for(p.words), name=f"word{n}", reset_less=True)

    def signals(self) -> list[Signal]:
        """All of them, in order."""
        return [self.valid, self.is_pass, self.first, self.last, self.end, self.word]


class _Lanes:
    """The lanes of the words in the stages. The number says in which stage, where two have the same."""

    def __init__(self, p: WtuParams):
        # First stage:
        self.codes = Signal(p.score.bits * p.n_w, name="codes", reset_less=True)
        self.exists = Signal(p.n_w, name="exists", reset_less=True)  # lanes that hold a code of the row
        # Second stage:
        self.used2 = Signal(p.n_w, name="used2", reset_less=True)  # lanes in use
        self.products = [
            Signal(lanes.product_bits(p), name=f"product{j}", reset_less=True) for j in range(p.n_w)
        ]  # significand x count, of all lanes
        self.scales = [Signal(max(1, p.score.exp_bits), name=f"scale{j}", reset_less=True) for j in range(p.n_w)]
        self.tokens2: list[Signal]  # of pairs of lanes
        # Third stage:
        self.used3 = Signal(p.n_w, name="used3", reset_less=True)
        self.some = Signal(reset_less=True)  # a lane is in use
        self.weight: list[Signal]  # two numbers that add up to the weight of the word
        self.clusters = Signal(bits_for(p.n_w + 1), name="word_clusters", reset_less=True)
        self.tokens = Signal(p.count_bits + (p.n_w - 1).bit_length(), name="word_tokens", reset_less=True)


class _Bucket:
    """The bounds of the bucket and of the row."""

    def __init__(self, p: WtuParams):
        self.high = Signal(p.score.bits)
        self.least = Signal(p.score.bits)
        self.above = Signal(p.score.bits + 1)  # bucket: low <= code < above
        self.low = Signal(p.score.bits)
        self.reach = Signal(p.score.bits + p.n_buckets.bit_length() - 1)  # (bucket + 1) * span - 1


class _End:
    """What the unit has selected of the row, and what is left of Th."""

    def __init__(self, p: WtuParams):
        beat = lanes.beat_layout(p)
        self.total = Signal(p.sum_bits)
        self.over = Signal(p.sum_bits)  # complement of what is left of Th
        self.crossed = Signal()
        self.clusters = Signal(beat["clusters"].width)
        self.tokens = Signal(beat["tokens"].width)
