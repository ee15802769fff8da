"""The paper's variant of the WTU: one pass over the row for every bucket, from the highest, until the threshold."""

from typing import NamedTuple

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import enum

from openvrex.hdl.arith.popcount import popcount
from openvrex.hdl.memory import SinglePortRam, collect_errors
from openvrex.hdl.named import comb
from openvrex.hdl.params import WtuParams, bits_for
from openvrex.hdl.retrieval import wtu_lanes as lanes


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

        self._read_words(m, score, count, row, now)
        self._next_word(m, row, now)
        stage1 = self._enter(m, row, now)
        codes = self._codes(m, score, row, bucket, stage1)
        loading = self._bounds(m, row, bucket, stage1, codes)
        width = comb(m, "width", bucket.high - bucket.least, p.score.bits)
        self._next_bucket(m, row, now, bucket, stage1, width)
        stage1.tokens, values = self._weights(m, count, now, codes, stage1)
        stage3, weight = self._add_word(m, now, stage1, values)
        self._select(m, row, now, end, stage3, weight)
        self._next_state(m, row, loading & stage1.last, now.finish)
        self._count_events(m, row, now, stage3)
        return m

    def _read_words(self, m: Module, score: SinglePortRam, count: SinglePortRam, row: "_Row", now: "_Pass") -> None:
        """Writes the words that come in, and reads them again for each bucket."""
        p = self.p
        counted = row.counted
        first = comb(m, "first", self.c.valid & self.c.payload.first)
        comes = comb(m, "comes", self.c.valid & self.c.ready)
        at = comb(m, "count_at", Mux(first, 0, counted), len(counted))
        with m.If(comes):
            m.d.sync += counted.eq(at + 1)
        now.accept = comb(m, "accept", self.i.valid & self.i.ready)
        now.again = comb(m, "again", (row.th_state & (row.th_count != 0)) | row.passing)
        now.again_last = comb(m, "again_last", now.word == row.last)
        reads_again = comb(m, "reads_again", now.again & now.go)
        # Counts come in while nothing is read; those of a new context between rows only.
        room = row.load & ~now.accept & (counted != p.count_words)
        m.d.comb += [
            row.may_load.eq(row.load & ~row.closed & (row.busy | ~first)),
            self.c.ready.eq(Mux(first, ~row.busy, room)),
            self.idle.eq(~row.busy),
            self.i.ready.eq(row.may_load & (now.word < counted)),
            score.en.eq(now.accept | reads_again),
            score.write.eq(now.accept),
            score.addr.eq(now.word),
            score.w_data.eq(self.i.payload.scores),
            count.en.eq(comes | now.accept | reads_again),
            count.write.eq(comes.replicate(p.n_w)),
            count.addr.eq(Mux(comes, at, now.word)),
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

    def _enter(self, m: Module, row: "_Row", now: "_Pass") -> "_Stage":
        """Passes a word to the first stage."""
        p = self.p
        stage1 = _Stage(p, 1)
        stage1.code = Signal(p.score.bits * p.n_w, name="code1", reset_less=True)  # of a word that comes in
        with m.If(now.go):
            m.d.sync += [
                stage1.valid.eq((now.accept | now.again) & ~now.finish),
                stage1.is_pass.eq(now.again),
                stage1.first.eq(now.word == 0),
                stage1.last.eq(Mux(now.again, now.again_last, self.i.payload.last)),
                stage1.end.eq(now.bucket == p.n_buckets - 1),
                stage1.word.eq(now.word),
            ]
        with m.If(now.accept):
            m.d.sync += stage1.code.eq(self.i.payload.scores)
        return stage1

    def _codes(self, m: Module, score: SinglePortRam, row: "_Row", bucket: "_Bucket", stage1: "_Stage") -> "_Codes":
        """First stage: the codes of the word, and the lanes in use: all that exist while a row is loaded, then the
        bucket's.
        """
        f, codes = self.p.score, _Codes([], [], [])
        for j in range(self.p.n_w):
            read, came = score.r_data.word_select(j, f.bits), stage1.code.word_select(j, f.bits)
            code = comb(m, f"code{j}", Mux(stage1.is_pass, read, came), f.bits)
            row_last = Mux(stage1.is_pass, stage1.word == row.last, stage1.last)
            exists = comb(m, f"exists{j}", ~row_last | (row.keep >= j), 1)
            inside = (code >= bucket.low) & (code < bucket.above)
            m.d.comb += stage1.used[j].eq(exists & (~stage1.is_pass | inside))
            codes.codes.append(code)
            codes.highs.append(comb(m, f"high{j}", Mux(exists, code, 0), f.bits))
            codes.lows.append(comb(m, f"low{j}", Mux(exists, ~code, 0), f.bits))
        return codes

    def _bounds(self, m: Module, row: "_Row", bucket: "_Bucket", stage1: "_Stage", codes: "_Codes") -> Signal:
        """Keeps the highest and the least code of the row that comes in; returns whether the first stage holds a
        word of it.
        """
        high, least = bucket.high, bucket.least
        word_high = lanes.max_tree(m, codes.highs, "word_high")
        word_low = lanes.max_tree(m, codes.lows, "word_low")
        loading = comb(m, "loading", stage1.valid & ~stage1.is_pass)
        with m.If(loading):
            m.d.sync += [
                high.eq(Mux(stage1.first | (word_high > high), word_high, high)),
                least.eq(Mux(stage1.first | (~word_low < least), ~word_low, least)),
            ]
            with m.If(stage1.last):
                m.d.sync += row.closed.eq(0)
        return loading

    def _next_bucket(
        self, m: Module, row: "_Row", now: "_Pass", bucket: "_Bucket", stage1: "_Stage", width: Signal
    ) -> None:
        """Updates the bounds of the bucket."""
        f, high, reach = self.p.score, bucket.high, bucket.reach
        log_n = self.p.n_buckets.bit_length() - 1
        with m.If(row.th_state & (row.th_count == 0)):
            m.d.sync += reach.eq(width)
        with m.Elif(row.th_state & (row.th_count == 1)):
            m.d.sync += [
                bucket.above.eq(1 << f.bits),
                bucket.low.eq(high - (reach >> log_n)),
                reach.eq(reach + width + 1),
            ]
        with m.Elif(stage1.valid & stage1.is_pass & stage1.last & now.go):
            m.d.sync += [
                bucket.above.eq(bucket.low),
                bucket.low.eq(high - (reach >> log_n)),
                reach.eq(reach + width + 1),
            ]

    def _weights(
        self, m: Module, count: SinglePortRam, now: "_Pass", codes: "_Codes", stage1: "_Stage"
    ) -> tuple[Signal, list[Signal]]:
        """Returns the tokens of the word, and the weight of each lane a cycle later."""
        p, counts, values = self.p, [], []
        for j, code in enumerate(codes.codes):
            own = count.r_data.word_select(j, p.count_bits)
            part = comb(m, f"count{j}", Mux(stage1.used[j], own, 0), p.count_bits)
            counts.append(part)
            product = Signal(lanes.product_bits(p), name=f"product{j}", reset_less=True)
            exponent = Signal(max(1, p.score.exp_bits), name=f"exponent{j}", reset_less=True)
            with m.If(now.go):
                m.d.sync += [
                    product.eq(lanes.multiply(m, part, lanes.significand(p, code), f"mul{j}")),
                    exponent.eq(lanes.exponent_of(p, code)),
                ]
            values.append(lanes.scaled(m, p, product, exponent, f"value{j}"))
        return lanes.adder_tree(m, counts, "tokens1"), values

    def _add_word(self, m: Module, now: "_Pass", stage1: "_Stage", values: list[Signal]) -> tuple["_Stage", Signal]:
        """Second stage: adds the weights of the word; returns the third stage."""
        stage2, stage3 = (_Stage(self.p, n, len(stage1.tokens)) for n in (2, 3))
        tree = lanes.adder_tree(m, values, "tree")
        weight = Signal(len(tree), reset_less=True)
        with m.If(now.go):
            m.d.sync += [new.eq(old) for old, new in zip(stage1.signals(), stage2.signals(), strict=True)]
            m.d.sync += [new.eq(old) for old, new in zip(stage2.signals(), stage3.signals(), strict=True)]
            m.d.sync += weight.eq(tree)
        with m.If(now.finish):
            m.d.sync += [stage1.valid.eq(0), stage2.valid.eq(0), stage3.valid.eq(0)]
        return stage3, weight

    def _select(self, m: Module, row: "_Row", now: "_Pass", end: "_End", word: "_Stage", weight: Signal) -> None:
        """Third stage: adds to Sum while a row is loaded, then subtracts from what is left of Th and offers the
        beat.
        """
        p, beat, total, left = self.p, self.o.payload, end.total, end.left
        with m.If(word.valid & ~word.is_pass):
            m.d.sync += total.eq(Mux(word.first, 0, total) + weight)
        th = lanes.threshold_step(m, p, total, self.ratio, comb(m, "th_step", row.th_count[0]), left)
        after = comb(m, "after", left - weight, p.sum_bits + 1)
        crosses = comb(m, "crosses", end.crossed | (after[-1] & ~self.ratio[16]))
        at_end = comb(m, "at_end", word.last & (crosses | word.end))
        clusters3 = popcount(m, word.used, "clusters3")
        m.d.comb += [
            self.o.valid.eq(word.valid & word.is_pass & (word.used.any() | at_end)),
            now.go.eq(~self.o.valid | self.o.ready),
            now.finish.eq(self.o.valid & self.o.ready & at_end),
            beat.addr.eq(word.word),
            beat.mask.eq(word.used),
            beat.last.eq(at_end),
            beat.clusters.eq(end.clusters + clusters3),
            beat.tokens.eq(end.tokens + word.tokens),
        ]
        with m.If(row.th_state & row.th_count[1]):
            m.d.sync += left.eq(th)
        with m.Elif(word.valid & word.is_pass & now.go):
            m.d.sync += [
                left.eq(after),
                end.crossed.eq(crosses),
                end.clusters.eq(beat.clusters),
                end.tokens.eq(beat.tokens),
            ]
        with m.If(row.load):
            m.d.sync += [end.clusters.eq(0), end.tokens.eq(0), end.crossed.eq(0)]

    def _next_state(self, m: Module, row: "_Row", loaded: Value, finish: Signal) -> None:
        with m.If(loaded):
            m.d.sync += [row.state.eq(State.TH), row.th_count.eq(0)]
        with m.If(row.th_state):
            m.d.sync += row.th_count.eq(row.th_count + 1)
            with m.If(row.th_count == 3):
                m.d.sync += row.state.eq(State.PASS)
        with m.If(finish):
            m.d.sync += row.state.eq(State.LOAD)

    def _count_events(self, m: Module, row: "_Row", now: "_Pass", word: "_Stage") -> None:
        self._count_when(
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


class _Stage:
    """A word on its way through the stages."""

    def __init__(self, p: WtuParams, n: int, token_bits: int = 0):
        plain = n > 1  # only the first stage is reset
        self.valid = Signal(name=f"valid{n}")
        self.is_pass = Signal(name=f"pass{n}", reset_less=plain)  # the word was read again for a bucket
        self.first = Signal(name=f"first{n}", reset_less=plain)
        self.last = Signal(name=f"last{n}", reset_less=plain)
        self.end = Signal(name=f"end{n}", reset_less=plain)  # the word belongs to the last bucket
        self.word = Signal(bits_for(p.words), name=f"word{n}", reset_less=True)
        self.used = Signal(p.n_w, name=f"used{n}" if plain else "used", reset_less=plain)  # lanes in use
        self.tokens = Signal(token_bits, name=f"tokens{n}", reset_less=plain)

    def signals(self) -> list[Signal]:
        """All of them, in order."""
        return [self.valid, self.is_pass, self.first, self.last, self.end, self.word, self.used, self.tokens]


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
        self.left = Signal(p.sum_bits)
        self.crossed = Signal()
        self.clusters = Signal(beat["clusters"].width)
        self.tokens = Signal(beat["tokens"].width)


class _Codes(NamedTuple):
    """The codes of a word's lanes."""

    codes: list[Signal]
    highs: list[Signal]  # 0 for lanes that do not exist
    lows: list[Signal]  # complements of the codes: the least code is the largest of these
