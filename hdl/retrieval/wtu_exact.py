"""Exact variant of the WTU: it finds the crossing code digit by digit, in several readings of the row."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import enum

from openvrex.hdl.arith.popcount import popcount
from openvrex.hdl.memory import collect_errors
from openvrex.hdl.named import comb
from openvrex.hdl.params import WtuParams, bits_for
from openvrex.hdl.retrieval import wtu_lanes as lanes
from openvrex.hdl.retrieval.wtu_counts import CountRing
from openvrex.hdl.retrieval.wtu_histogram import WeightedHistogram

TH_STEPS = 16  # bits of ratio_q16 below 1.0, one a cycle
SETTLES = 3  # cycles from the last digit of a word until the walk can read a bin
TEST_BIN = 1  # bin of the tests; tokens go to bin 0


class State(enum.IntEnum, shape=3):
    """What the unit does with the row."""

    READ = 0  # takes words of a reading, or waits for a row
    SETTLE = 1  # the last word reaches the bins
    SUM = 2  # adds the bins of the first digit to Sum
    TH = 3  # multiplies for Th
    WALK = 4  # subtracts bins from Th, from the highest, until one exceeds what is left
    TEST = 5  # compares the weight of equal codes with what is left
    END = 6  # offers the last beat


class WtuExact(lanes.WtuPorts):
    """Selects the exact minimal set of Equation 3. Ports, latency and throughput are the WTU's.

    The unit keeps no row: the row is offered `readings` times. Each reading but the last finds one digit of the
    crossing code, the code at which the weighted sum exceeds Th.

    Reading: the lanes add the weights of the codes that begin with the known digits to bins, one for each value of the
    next digit (`hdl.retrieval.wtu_histogram`). The first reading adds all codes. Its bins, each in the unit of its
    exponent, add up to Sum. Then the unit multiplies for Th, a bit of the ratio a cycle.

    Walk: from the highest bin down, the unit subtracts bins from Th until one exceeds what is left. That bin is the
    next digit of the crossing code.

    With a budget the lanes add token counts, so all bins have one unit. The first reading then leads to the walk at
    once, with `budget` in place of Th. Where no bin crosses, the unit selects the whole row.

    Last reading: the unit selects codes above the crossing code. Equal codes go in order of their index until they
    cross. The unit tests the equal codes of a word together: it adds their weights to a bin, and compares the bin with
    what is left. Where they cross, it halves the lanes until one is left, with a test each. It tests no later word.

    Parameters
    ----------
    p : WtuParams

    Members
    -------
    c, idle, used, i, ratio, budgeted, budget, o, perf : as in `hdl.retrieval.wtu.Wtu`

    Latency: see `hdl.retrieval.wtu.Wtu`.
    Throughput: see `hdl.retrieval.wtu.Wtu`.
    Raises: `ParamError` from `WtuParams`.
    Source: V-Rex Equations 1 to 3; readings, histogram and walk are this project's own.
    """

    def elaborate(self, platform):
        p, m = self.p, Module()
        ring = m.submodules.ring = CountRing(p)
        hist = m.submodules.hist = WeightedHistogram(p)
        collect_errors(m, self, [ring])
        row, word, test, walk, out = _Row(m, p), _Word(p), _Test(p), _Walk(p, hist), _Out(p)

        self._compare_codes(m, row, word)
        self._choose_test(m, row, word, test)
        self._take_word(m, row, word, test, out, hist)
        self._read_counts(m, row, word, ring, hist)
        self._choose_lanes(m, row, word, test, hist)
        self._feed_lanes(m, row, word, test, hist)
        self._point_at_bin(m, row, walk, hist)
        self._find_crossing(m, row, walk)
        self._halve(m, row, word, test, walk)
        self._keep_digits(m, row, walk)
        self._offer_beats(m, row, word, out, hist)
        self._next_state(m, row, word, test, walk)
        self._count_later(
            m,
            rows=row.finish,
            words=word.accept,
            walked=row.states[State.WALK],
            tests=row.states[State.TEST],
            waits=self.i.valid & row.states[State.READ] & ~ring.here,
        )
        return m

    def _compare_codes(self, m: Module, row: "_Row", word: "_Word") -> None:
        """Compares the codes of the word with the known digits of the crossing code."""
        beat = self.i.payload
        for j, exists in enumerate(word.exists):
            masked = comb(m, f"masked{j}", beat.scores[j] & row.known)
            m.d.comb += [
                exists.eq(self.i.valid & (~beat.last | (beat.keep >= j))),
                word.above[j].eq(exists & (row.every | (masked > row.prefix))),
                word.equal[j].eq(exists & ~row.every & (masked == row.prefix)),
            ]

    def _choose_test(self, m: Module, row: "_Row", word: "_Word", test: "_Test") -> None:
        """Last reading: chooses the equal codes that are weighed next, until the unit knows which of them to select."""
        p, steps = self.p, self.p.test_steps
        open_ = Signal(name="open")  # the row may have candidates
        with m.Switch(test.step):
            for step in range(steps + 1):
                lower = [step == steps or not j >> step & 1 for j in range(p.n_w)]
                with m.Case(step):
                    m.d.comb += test.low.eq(Cat(*map(Const, lower)))
        m.d.comb += [
            open_.eq(row.selects & ~row.crossed),
            test.candidates.eq(word.equal & open_.replicate(p.n_w)),
            test.due.eq(word.equal.any() & open_ & ~test.settled),  # `equal` comes late, the others do not
            test.lanes.eq(test.candidates & test.window & test.low),
        ]

    def _take_word(
        self, m: Module, row: "_Row", word: "_Word", test: "_Test", out: "_Out", hist: WeightedHistogram
    ) -> None:
        """Feeds a word to the lanes, digit by digit of its counts: for its tests, and once more to take it."""
        room = comb(m, "room", ~row.selects | ~out.valid | self.o.ready)  # for the beat of the word
        m.d.comb += [
            word.may_feed.eq(row.states[State.READ] & word.counted & room),
            word.feed.eq(self.i.valid & word.may_feed),
            word.fed.eq(word.feed & ~hist.more),
            self.i.ready.eq(word.may_feed & ~hist.more & ~test.due),
            word.accept.eq(self.i.valid & self.i.ready),
            word.end.eq(word.accept & self.i.payload.last),
        ]
        with m.If(word.accept):
            m.d.sync += [row.first.eq(word.end), row.at.eq(Mux(word.end, 0, row.at + 1))]

    def _read_counts(self, m: Module, row: "_Row", word: "_Word", ring: CountRing, hist: WeightedHistogram) -> None:
        """Connects the ring of counts. A word of counts with `first` comes in between rows only."""
        m.d.comb += [
            ring.c.valid.eq(self.c.valid),
            ring.c.payload.eq(self.c.payload),
            self.c.ready.eq(ring.c.ready),
            self.idle.eq(row.states[State.READ] & (row.reading == 0) & row.first & ~hist.part),
            self.used.eq(ring.used),
            ring.idle.eq(self.idle),
            ring.take.eq(word.accept),
            ring.rewind.eq(self.i.payload.last),
            word.counted.eq(ring.here),
            hist.counts.eq(ring.counts),
        ]

    def _choose_lanes(self, m: Module, row: "_Row", word: "_Word", test: "_Test", hist: WeightedHistogram) -> None:
        """Chooses the lanes whose weights go to bins: codes with the known digits, or the lanes of a test.

        A word of the last reading adds its tokens to bin 0, after its tests.
        """
        tokens = comb(m, "tokens", row.selects & ~test.due)
        m.d.comb += [
            word.selected.eq(word.above | test.chosen),
            hist.take.eq(word.feed),
            hist.tokens.eq(tokens | self.budgeted if self.p.budget else tokens),
            hist.there.eq(word.exists),
            hist.used.eq(Mux(tokens, word.selected, Mux(row.selects, test.lanes, word.equal))),
        ]
        with m.If(~hist.part):
            m.d.comb += hist.restart.eq(Mux(test.due, 1 << TEST_BIN, row.first.replicate(hist.n_bins)))

    def _feed_lanes(self, m: Module, row: "_Row", word: "_Word", test: "_Test", hist: WeightedHistogram) -> None:
        """Feeds the codes of the word to the lanes."""
        p = self.p
        for j in range(p.n_w):
            code, digit = self.i.payload.scores[j], Signal(bits_for(hist.n_bins), name=f"digit{j}")
            with m.Switch(row.reading):
                for k, (width, low) in enumerate(p.digits):
                    with m.Case(k):
                        m.d.comb += digit.eq(code[low : low + width])
            m.d.comb += [
                hist.significands[j].eq(lanes.significand(p, code)),
                hist.shifts[j].eq(self._shift(code)),
                hist.bins[j].eq(Mux(row.selects, Mux(test.due, TEST_BIN, 0), digit)),
            ]

    def _shift(self, code: Value) -> Value:
        """Powers of two between a code and the unit of its bin: the exponent's bits that the first digit lacks."""
        p = self.p
        if not p.bin_shift:
            return Const(0, 1)
        exponent, own = lanes.exponent_of(p, code), p.digits[0][1] - p.score.man_bits
        low, high = exponent[:own], exponent[own:]
        return Mux(high.any(), low, low - low.any())  # exponents 0 and 1 count in the same unit

    def _point_at_bin(self, m: Module, row: "_Row", walk: "_Walk", hist: WeightedHistogram) -> None:
        """Reads a bin a cycle, from the highest of a digit down, or the bin of a test."""
        p, states, highest = self.p, row.states, Signal.like(walk.next, name="highest")
        with m.Switch(row.reading):
            for k, (width, _) in enumerate(p.digits):
                with m.Case(k):
                    m.d.comb += highest.eq((1 << width) - 1)
        steps = states[State.SUM] | states[State.WALK] | walk.th_last | row.settled
        with m.If(~states[State.READ]):
            m.d.sync += walk.next.eq(Mux(steps, walk.next - 1, Mux(row.selects, TEST_BIN, highest)))
            m.d.sync += walk.bin.eq(walk.next)
            with m.Switch(walk.next):
                for k in range(hist.n_bins):
                    with m.Case(k):
                        m.d.sync += walk.value.eq(hist.sums[k])

    def _find_crossing(self, m: Module, row: "_Row", walk: "_Walk") -> None:
        """Adds the bins of the first digit to Sum, makes Th of it, and subtracts bins or tests from what is left of Th.

        What is left is a number of bin units with a fraction. It starts as Th, as the unit of the highest bin is the
        largest; a step to a smaller unit shifts it up.
        """
        p, states, left = self.p, row.states, walk.left
        fraction, th = p.bin_units[-1], states[State.TH]
        part = comb(m, "th_part", walk.total & walk.th_bit.replicate(p.sum_bits))
        th_next = comb(m, "th_next", left + part, p.sum_bits + 1)
        after = comb(m, "after", left[fraction:] - walk.value, p.left_bits - fraction + 1)
        left_after = Cat(left[:fraction], after[:-1])
        m.d.comb += [
            walk.sum_last.eq(states[State.SUM] & (walk.bin == 0)),
            walk.crosses.eq(after[-1]),
            walk.crossed.eq(states[State.WALK] & walk.crosses),
            walk.th_last.eq(th & (walk.th_step == 0)),
        ]
        every = th & (walk.th_step == 1) & ((walk.total == 0) | self.ratio[TH_STEPS])
        sums: Value = row.reading == 0  # the walk adds bins of different units
        if p.budget:
            every |= states[State.WALK] & (walk.bin == 0) & ~walk.crosses
            sums &= ~self.budgeted
        m.d.comb += row.all_now.eq(every)
        with m.If(states[State.SUM]):
            m.d.sync += [walk.total.eq(self._stepped(m, walk, walk.total + walk.value, "total_next")), left.eq(0)]
        with m.Elif(th):
            m.d.sync += left.eq(th_next[1:])
        with m.Elif((states[State.WALK] | states[State.TEST]) & ~walk.crosses):
            m.d.sync += left.eq(Mux(sums, self._stepped(m, walk, left_after, "left_next"), left_after))
        if p.budget:
            with m.Elif(row.settled & (row.reading == 0)):
                m.d.sync += left.eq(self.budget << fraction)
        with m.If(row.finish):
            m.d.sync += walk.total.eq(0)
        # A step ahead of the addition.
        goes = comb(m, "th_goes", walk.sum_last | th)
        m.d.sync += [
            walk.th_step.eq(Mux(goes, walk.th_step + 1, 0)),
            walk.th_bit.eq(comb(m, "ratio_below_1", self.ratio[:TH_STEPS]).bit_select(walk.th_step, 1)),
        ]

    def _stepped(self, m: Module, walk: "_Walk", value: Value, name: str) -> Signal:
        """`value`, which counts in the unit of the bin, in the unit of the next one."""
        units, out = self.p.bin_units, Signal(self.p.sum_bits, name=name)
        with m.Switch(walk.bin):
            for k, unit in enumerate(units):
                with m.Case(k):
                    m.d.comb += out.eq(value << unit - units[max(0, k - 1)])
        return out

    def _halve(self, m: Module, row: "_Row", word: "_Word", test: "_Test", walk: "_Walk") -> None:
        """Selects the lanes of a test that do not cross. Where a word's lanes cross, the next test takes half of them;
        the last lane in question crosses.
        """
        p, step = self.p, test.step
        whole = comb(m, "whole", step == p.test_steps)  # the first test of a word
        several = comb(m, "several", (test.candidates & (test.candidates - 1)).any())
        ends = comb(m, "test_ends", (step == 0) | (whole & ~(walk.crosses & several)))
        half = comb(m, "half", test.window & Mux(walk.crosses, test.low, ~test.low))
        passed = test.lanes & (~walk.crosses).replicate(p.n_w)
        with m.If(word.accept):
            m.d.sync += [test.settled.eq(0), test.chosen.eq(0), test.window.eq(~0), step.eq(p.test_steps)]
        with m.Elif(row.states[State.TEST]):
            found = test.candidates & half & ends.replicate(p.n_w)
            m.d.sync += [test.settled.eq(ends), test.chosen.eq(test.chosen | passed | found)]
            m.d.sync += [test.window.eq(half), step.eq(step - 1)]
            with m.If(ends & (walk.crosses | ~whole)):
                m.d.sync += row.crossed.eq(1)
        with m.If(row.finish):
            m.d.sync += row.crossed.eq(0)

    def _keep_digits(self, m: Module, row: "_Row", walk: "_Walk") -> None:
        """Keeps the digit of the crossing code that a walk finds."""
        with m.If(row.finish):
            m.d.sync += [row.prefix.eq(0), row.known.eq(0), row.every.eq(0)]
        with m.Elif(row.all_now):
            m.d.sync += row.every.eq(1)
        with m.Elif(walk.crossed):
            with m.Switch(row.reading):
                for k, (width, low) in enumerate(self.p.digits):
                    with m.Case(k):
                        m.d.sync += row.prefix.eq(row.prefix | (walk.bin[:width] << low))
                        m.d.sync += row.known.eq(row.known | (((1 << width) - 1) << low))

    def _offer_beats(self, m: Module, row: "_Row", word: "_Word", out: "_Out", hist: WeightedHistogram) -> None:
        """Offers a beat a cycle after its word. The row's last one waits until its tokens are added."""
        beat = self.o.payload
        sends = comb(m, "sends", word.accept & row.selects & (word.selected.any() | word.end))
        m.d.comb += [
            self.o.valid.eq(out.valid & (~out.last | row.states[State.END])),
            beat.addr.eq(out.addr),
            beat.mask.eq(out.mask),
            beat.last.eq(out.last),
            # Both still change while a beat before the last one waits.
            beat.clusters.eq(Mux(out.last, out.clusters, 0)),
            beat.tokens.eq(Mux(out.last, hist.sums[0], 0)),
            row.finish.eq(row.states[State.END] & self.o.ready),
        ]
        with m.If(sends):
            m.d.sync += [out.addr.eq(row.at), out.mask.eq(word.selected), out.last.eq(word.end)]
        with m.If(sends | (self.o.valid & self.o.ready)):
            m.d.sync += out.valid.eq(sends)
        m.d.sync += out.fresh.eq(sends)
        with m.If(row.finish):
            m.d.sync += out.clusters.eq(0)
        with m.Elif(out.fresh):
            m.d.sync += out.clusters.eq(out.clusters + popcount(m, out.mask, "mask_clusters"))

    def _next_state(self, m: Module, row: "_Row", word: "_Word", test: "_Test", walk: "_Walk") -> None:
        """Next state of the row, and the number of the reading."""
        state, states = row.state, row.states
        settling = Signal(2)  # cycles in SETTLE
        m.d.sync += settling.eq(Mux(states[State.SETTLE], settling + 1, 0))
        m.d.comb += row.settled.eq(settling == SETTLES - 1)
        found = comb(m, "found", walk.crossed | row.all_now)  # the digit is known, or of no interest
        with m.Switch(state):
            with m.Case(State.READ):
                with m.If((word.end & (row.selects | ~row.every)) | (word.fed & test.due)):
                    m.d.sync += state.eq(State.SETTLE)
            with m.Case(State.SETTLE):
                next_ = Mux(test.due, State.TEST, Mux(row.selects, State.END, State.WALK))
                with m.If(row.settled):
                    sums: Value = row.reading == 0
                    if self.p.budget:
                        sums &= ~self.budgeted
                    m.d.sync += state.eq(Mux(sums, State.SUM, next_))
            with m.Case(State.SUM):
                with m.If(walk.sum_last):
                    m.d.sync += state.eq(State.TH)
            with m.Case(State.TH):
                with m.If(walk.th_last):
                    m.d.sync += state.eq(State.WALK)
            with m.Case(State.TEST):
                m.d.sync += state.eq(State.READ)
        with m.If(found | row.finish):
            m.d.sync += state.eq(State.READ)
        with m.If(row.finish):
            m.d.sync += row.reading.eq(0)
        with m.Elif(found | (word.end & row.every & ~row.selects)):
            m.d.sync += row.reading.eq(row.reading + 1)


class _Row:
    """The row in the unit, and the crossing code as far as it is known."""

    def __init__(self, m: Module, p: WtuParams):
        self.state = Signal(State, init=State.READ)
        self.states = [comb(m, f"state_{e.name.lower()}", self.state == e) for e in State]
        self.reading = Signal(bits_for(p.readings))
        self.selects = comb(m, "selects", self.reading == p.readings - 1)  # in the last reading
        self.first = Signal(init=1)  # the next word is the first of its reading
        self.at = Signal(bits_for(p.words))  # number of the next word
        self.prefix = Signal(p.score.bits)  # the known digits of the crossing code
        self.known = Signal(p.score.bits)  # their mask
        self.every = Signal()  # the unit selects the whole row
        self.crossed = Signal()  # the equal codes of this row have crossed
        self.settled = Signal()  # all words are in the bins, and the walk reads the first bin
        self.all_now = Signal()  # Sum is 0, or the ratio 1
        self.finish = Signal()  # the row's last beat is taken


class _Word:
    """The word of scores at the input."""

    def __init__(self, p: WtuParams):
        self.exists = Signal(p.n_w)  # lanes in use; none while no word is offered
        self.above = Signal(p.n_w)  # lanes with a code above the known digits
        self.equal = Signal(p.n_w)  # lanes with a code that begins with them
        self.selected = Signal(p.n_w)  # lanes that the last reading selects, after the word's tests
        self.counted = Signal()  # its counts are there
        self.may_feed = Signal()
        self.feed = Signal()  # a digit goes to the lanes
        self.fed = Signal()  # the last digit does
        self.accept = Signal()  # the word is done
        self.end = Signal()  # and is the last of its reading


class _Test:
    """The tests of a word, which weigh lanes with equal codes against what is left of Th."""

    def __init__(self, p: WtuParams):
        self.candidates = Signal(p.n_w)  # equal codes of a row that has not crossed
        self.due = Signal()  # they have to be tested
        self.low = Signal(p.n_w)  # the lower half of the lanes in question; all lanes in the first test
        self.lanes = Signal(p.n_w)  # lanes of the test
        self.step = Signal(bits_for(p.test_steps + 1), init=p.test_steps)  # bit of the lane number that halves lanes
        self.window = Signal(p.n_w, init=(1 << p.n_w) - 1)  # lanes among which the codes cross
        self.chosen = Signal(p.n_w)  # equal codes that are selected
        self.settled = Signal()  # no test is left


class _Walk:
    """The walk over the bins, and what is left of Th."""

    def __init__(self, p: WtuParams, hist: WeightedHistogram):
        self.next = Signal(bits_for(hist.n_bins))  # number of the bin that is read
        self.bin = Signal(bits_for(hist.n_bins))  # of the bin that was read
        self.value = Signal(hist.sum_bits, reset_less=True)  # its weight
        self.total = Signal(p.sum_bits)  # Sum, in units of the bin while it is made
        self.left = Signal(p.left_bits, reset_less=True)
        self.sum_last = Signal()
        self.th_step = Signal(range(TH_STEPS))  # number of the next bit of the ratio
        self.th_bit = Signal()  # the bit that is multiplied
        self.th_last = Signal()
        self.crosses = Signal()  # the bin exceeds what is left
        self.crossed = Signal()  # the walk has found its digit


class _Out:
    """The beat at the output, and what the row has selected."""

    def __init__(self, p: WtuParams):
        self.valid = Signal(name="out_valid")
        self.addr = Signal(bits_for(p.words), name="out_addr", reset_less=True)
        self.mask = Signal(p.n_w, name="out_mask", reset_less=True)
        self.last = Signal(name="out_last", reset_less=True)
        self.fresh = Signal()  # its clusters are not yet counted
        self.clusters = Signal(bits_for(p.clusters + 1), name="out_clusters")
