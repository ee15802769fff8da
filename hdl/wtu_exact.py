"""Exact variant of the WTU: weighted histogram while loading, one selecting pass, a short sorted list."""

from enum import IntEnum

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring

from hdl import wtu_lanes as lanes
from hdl.arith.popcount import popcount
from hdl.memory import Ram
from hdl.params import WtuParams, bits_for
from hdl.sorted_list import SortedList
from hdl.wtu_histogram import WeightedHistogram

GROUP = 4  # words whose highest bins the selecting pass compares at once


class Front(IntEnum):
    """What the histogram is used for."""

    CLEAR = 0  # after reset
    LOAD = 1  # the row that comes in
    TH = 2  # its sum settles, Th is multiplied
    WALK = 3  # bins from the top until one exceeds what is left of Th
    PARK = 4  # walked; the row before is still being selected
    REPLAY = 5  # the row that was coming in when a zoom took the histogram, from score memory
    Z_START = 6  # zoom: the histogram is taken for the next digit of the row being selected
    Z_LOAD = 7
    Z_TAIL = 8
    Z_WALK = 9
    Z_HOLD = 10  # until that row is done


class Back(IntEnum):
    """What the selecting pass does."""

    IDLE = 0
    SCAN = 1  # reads words with a code at or above the crossing bin
    POP = 2  # all read; takes candidates from the list
    SERIAL = 3  # lane by lane through the word in which equal codes cross
    OVER = 4  # more candidates than the list holds: waits for the histogram
    Z_SCAN = 5  # feeds the words to it
    Z_WALK = 6


class Kind(IntEnum):
    """What the lanes of one step in the selecting pipeline are."""

    ABOVE = 0  # selected
    ONE = 1  # one candidate, selected; the row is done if it crosses
    EQUAL = 2  # equal candidates, selected if they do not cross; else their word is done lane by lane


class WtuExact(wiring.Component):
    """Exact minimal set of Equation 3. Ports, latency and throughput: `hdl.wtu.Wtu`.

    Load: a histogram of weights by the top `bin_bits` of the code, and Sum (`hdl.wtu_histogram`); of each word the
    highest bin is kept.
    Walk: bins from the row's highest down are taken from Th until one exceeds what is left: the crossing bin. The
    histogram is then free for the next row.
    Select: words whose highest bin reaches the crossing one are read again, the others skipped four at a time. Codes
    above the bin are selected; candidates, those in it, go one a cycle into a list by code, then index, which is popped
    until one crosses.
    Zoom, when the list has no room for a candidate: the pass is left, the histogram taken for the next digit of the
    codes in the bin, walked, and the pass made again. With all digits known candidates are equal and are taken a word
    at a time. The next row waits; what had come of it is replayed into the histogram.

    Parameters
    ----------
    p : WtuParams · counters : names of the 32-bit counters in `perf`

    Members
    -------
    c, i, ratio, o, perf : as in `hdl.wtu.Wtu`

    Latency: see `hdl.wtu.Wtu`; the first row is taken 2^bin_bits cycles after reset.
    Throughput: see `hdl.wtu.Wtu`.
    Raises: `ParamError` from `WtuParams`.
    Source: V-Rex Equations 1 to 3; histogram, list and zoom are this project's own.
    """

    def __init__(self, p: WtuParams, counters: list[str]):
        self.p = p
        rest, self.digits = p.score.bits, []  # (width, lowest bit), highest digit first
        while rest:
            width = min(p.bin_bits, rest)
            rest -= width
            self.digits.append((width, rest))
        super().__init__(lanes.signature(p, counters))

    def elaborate(self, platform):
        p, m = self.p, Module()
        f, n_w, digits = p.score, p.n_w, self.digits
        bin_bits = digits[0][0]
        word_bits, lane_bits = bits_for(p.words), bits_for(n_w)
        buffers = 2 if p.double_buffer else 1
        groups = -(-p.words // GROUP)
        n_bits = bits_for(p.clusters + 1)
        row, beat = self.i.payload, self.o.payload

        def flags(*names):
            return [Signal(name=n) for n in names]

        def comb(width, name, value):
            s = Signal(width, name=name)
            m.d.comb += s.eq(value)
            return s

        score = m.submodules.score = Ram(f.bits * n_w, buffers * p.words)
        tops = m.submodules.tops = Ram(bin_bits * GROUP, buffers * groups, lanes=GROUP)
        count = m.submodules.count = Ram(p.count_bits * n_w, p.n_ctx * p.words, lanes=n_w)
        # Loading and selecting read counts in the same cycle: a second read port, as a copy.
        count2 = count
        if buffers == 2:
            count2 = m.submodules.count2 = Ram(p.count_bits * n_w, p.n_ctx * p.words, lanes=n_w)
        hist = m.submodules.hist = WeightedHistogram(p, bin_bits)

        front, back = Signal(4, init=Front.CLEAR), Signal(3, init=Back.IDLE)
        fronts = [comb(1, f"front_{e.name.lower()}", front == e) for e in Front]
        backs = [comb(1, f"back_{e.name.lower()}", back == e) for e in Back]

        # Rows: one being loaded, one being selected.
        busy = Signal(buffers)
        load_buf, taken = Signal(), Signal(word_bits)  # words accepted of the row being loaded
        sel_buf, sel_all = flags("sel_buf", "sel_all")
        ctx_of = [Signal(bits_for(p.n_ctx), name=f"ctx{b}") for b in range(buffers)]
        last_of = [Signal(word_bits, name=f"last{b}") for b in range(buffers)]
        keep_of = [Signal(lane_bits, name=f"keep{b}") for b in range(buffers)]

        def of(values, which, name):
            return comb(len(values[0]), name, Mux(which, values[-1], values[0]))

        sel_ctx, sel_last, sel_keep = (
            of(v, sel_buf, f"sel_{n}") for n, v in (("ctx", ctx_of), ("last", last_of), ("keep", keep_of))
        )
        level = Signal(bits_for(len(digits)))
        prefix, known = Signal(f.bits), Signal(f.bits)  # digits of the crossing code so far, mask of them
        left = Signal(p.sum_bits, reset_less=True)  # of Th
        equal_mode = comb(1, "equal_mode", level == len(digits) - 1)  # all digits known

        # Selecting pipeline, whose steps are named below.
        go, hold, finish, split, overflow = flags("go", "hold", "finish", "split", "overflow")
        equal_done, equal_cross = flags("equal_done", "equal_cross")  # with equal candidates: the threshold is crossed
        scan_read, scan_word = Signal(), Signal(word_bits)
        zoom_go = Signal()

        # Count writes.
        m.d.comb += self.c.ready.eq(busy == 0)
        for ram in [count, count2][:buffers]:
            lanes.write_counts(m, p, self.c, ram)

        # A word is taken with its counts, which have been read before: those of the next word with every word, those
        # of the first while it waits (and again after a zoom).
        start = comb(1, "start", taken == 0)
        primed = Signal()
        accept = comb(1, "accept", self.i.valid & self.i.ready)
        open_ = comb(1, "open", (front != Front.CLEAR) & (front < Front.REPLAY) & ~zoom_go)
        may_start = comb(1, "may_start", ~busy.bit_select(load_buf, 1) & ~self.c.valid)
        prime = comb(1, "prime", self.i.valid & ~primed & open_ & (~start | may_start))
        m.d.comb += [
            self.i.ready.eq(primed & fronts[Front.LOAD] & ~zoom_go & ~(start & self.c.valid)),
            score.w_en.eq(accept),
            score.w_addr.eq(load_buf * p.words + taken),
            score.w_data.eq(row.scores),
        ]
        with m.If(prime):
            m.d.sync += primed.eq(1)
        with m.Elif(zoom_go | (accept & row.last) | (self.c.valid & self.c.ready)):
            m.d.sync += primed.eq(0)
        with m.If(accept):
            m.d.sync += taken.eq(Mux(row.last, 0, taken + 1))
            if buffers == 2:
                m.d.sync += load_buf.eq(load_buf ^ row.last)
            with m.Switch(load_buf):
                for b in range(buffers):
                    with m.Case(b):
                        m.d.sync += [ctx_of[b].eq(row.ctx), last_of[b].eq(taken), keep_of[b].eq(row.keep)]

        # Words for the histogram also come from score memory: zoom and replay.
        replay_word = Signal(word_bits)
        m_valid, m_first, m_zoom, z_fed = flags("m_valid", "m_first", "m_zoom", "z_fed")
        zoom_read = comb(1, "zoom_read", backs[Back.Z_SCAN] & scan_read)
        m.d.sync += [
            m_valid.eq(zoom_read | fronts[Front.REPLAY]),
            m_zoom.eq(zoom_read),
            m_first.eq(Mux(fronts[Front.REPLAY], replay_word == 0, ~z_fed)),
            replay_word.eq(Mux(fronts[Front.REPLAY], replay_word + 1, 0)),
            z_fed.eq(backs[Back.Z_SCAN] & (z_fed | scan_read)),
        ]
        load_ctx = of(ctx_of, load_buf, "load_ctx")
        front_read = comb(1, "front_read", accept | prime | zoom_read | fronts[Front.REPLAY])
        front_ctx = comb(
            len(load_ctx), "front_ctx", Mux(zoom_read, sel_ctx, Mux(fronts[Front.REPLAY], load_ctx, row.ctx))
        )
        front_word = comb(
            word_bits, "front_word", Mux(zoom_read, scan_word, Mux(fronts[Front.REPLAY], replay_word, taken + accept))
        )

        # The codes of a word read from score memory, against what is known of the crossing code.
        s_valid, s_fresh, s_pop = flags("s_valid", "s_fresh", "s_pop")
        s_word, s_lane = Signal(word_bits), Signal(lane_bits)
        s_code = [comb(f.bits, f"s_code{j}", score.r_data.word_select(j, f.bits)) for j in range(n_w)]
        s_end = comb(1, "s_end", s_word == sel_last)
        above, equal = Signal(n_w), Signal(n_w)
        for j, code in enumerate(s_code):
            masked = comb(f.bits, f"s_masked{j}", code & known)
            exists = comb(1, f"s_exists{j}", ~s_end | (sel_keep >= j))
            m.d.comb += [
                above[j].eq(exists & (sel_all | (masked > prefix))),
                equal[j].eq(exists & ~sel_all & ~equal_done & (masked == prefix)),
            ]

        # Into the histogram.
        in_row = Signal(n_w)
        m.d.comb += [
            hist.fire.eq(accept | m_valid),
            hist.first.eq(Mux(m_valid, m_first, start)),
            hist.used.eq(Mux(m_valid, Mux(m_zoom, equal, ~0), in_row)),
            hist.counts.eq(count.r_data),
        ]
        for j in range(n_w):
            code = comb(f.bits, f"code{j}", Mux(m_valid, s_code[j], row.scores[j]))
            digit = Signal(bin_bits, name=f"digit{j}")
            m.d.comb += [
                hist.codes[j].eq(code),
                hist.bins[j].eq(digit),
                digit.eq(code[digits[0][1] :]),
                in_row[j].eq(~row.last | (row.keep >= j)),
            ]
            with m.If(m_zoom):
                with m.Switch(level):
                    for k, (width, low) in enumerate(digits[1:]):
                        with m.Case(k):
                            m.d.comb += digit.eq(code[low : low + width])
        top_word = Cat(*[hist.word_top] * GROUP)
        top_slot = taken[:2] if word_bits > 1 else taken
        m.d.comb += [
            tops.w_en.eq(Mux(accept, 1 << top_slot, 0)),
            tops.w_addr.eq(load_buf * groups + (taken >> 2)),
            tops.w_data.eq(top_word),
        ]

        # Threshold and walk.
        th_count, f_left, f_all, f_park = Signal(2), Signal(p.sum_bits), Signal(), Signal()
        walk_bin, bin1, bin2, f_bin = (Signal(bin_bits, name=n) for n in ("walk_bin", "bin1", "bin2", "f_bin"))
        walk1, walk2 = flags("walk1", "walk2")
        th_step = comb(1, "th_step", th_count[0])
        th = lanes.threshold_step(m, p, hist.total, self.ratio, th_step, f_left)
        th_first = comb(1, "th_first", fronts[Front.TH] & (th_count == 2))
        every = comb(1, "every", th_first & ((hist.total == 0) | self.ratio[16]))
        walk = comb(1, "walk", (fronts[Front.TH] & th_count[1]) | fronts[Front.WALK] | fronts[Front.Z_WALK])
        m.d.comb += [hist.walk.eq(walk), hist.walk_bin.eq(walk_bin)]
        m.d.sync += [walk1.eq(walk), walk2.eq(walk1), bin1.eq(walk_bin), bin2.eq(bin1)]
        m.d.sync += walk_bin.eq(Mux(walk, walk_bin - 1, hist.top))
        exponent = comb(max(1, f.exp_bits), "walk_exponent", lanes.exponent_of(p, bin2))
        walk_shift = comb(lanes.shift_bits(p), "walk_shift", lanes.shift_of(p, exponent))
        walk_value = comb(p.sum_bits, "walk_value", hist.bin_sum << walk_shift)
        walk_rest = comb(p.sum_bits + 1, "walk_rest", f_left - walk_value)
        crossed = comb(1, "crossed", fronts[Front.WALK] & walk_rest[-1])
        offer = comb(1, "offer", crossed | every | fronts[Front.PARK])
        hand = comb(1, "hand", offer & backs[Back.IDLE])
        with m.If(fronts[Front.TH]):
            m.d.sync += [th_count.eq(th_count + 1), f_all.eq(every)]
        with m.If(fronts[Front.TH] & th_count[1]):
            m.d.sync += f_left.eq(th)
        with m.If(fronts[Front.WALK]):
            m.d.sync += [f_bin.eq(bin2), f_all.eq(0)]
            with m.If(~crossed):
                m.d.sync += f_left.eq(walk_rest)

        # Which words the selecting pass reads.
        group, seen = Signal(bits_for(groups)), Signal(GROUP)
        last_group = comb(1, "last_group", group == sel_last >> 2)
        hits = Signal(GROUP)
        prefix_top = prefix[digits[0][1] :]
        for j in range(GROUP):
            there = ~last_group | ((sel_last[:2] if word_bits > 1 else sel_last) >= j)
            reaches = sel_all | (tops.r_data.word_select(j, bin_bits) >= prefix_top)
            m.d.comb += hits[j].eq(there & reaches & ~seen[j])
        hit = lanes.lowest(m, hits, "hit")
        hit_slot = comb(2, "hit_slot", Cat(hit[1] | hit[3], hit[2] | hit[3]))
        step = comb(1, "step", (backs[Back.SCAN] & go & ~hold) | backs[Back.Z_SCAN])
        next_group = comb(1, "next_group", step & ~(hits & ~hit).any())
        scan_end = comb(1, "scan_end", next_group & last_group)
        restart = comb(1, "restart", backs[Back.IDLE] | backs[Back.OVER] | backs[Back.Z_WALK])
        # After the crossing among equal candidates the pass goes on behind its word, for the codes above alone.
        word3 = Signal(word_bits)
        group_next = comb(len(group), "group_next", Mux(restart, 0, Mux(equal_cross, word3 >> 2, group + 1)))
        word3_slot = word3[:2] if word_bits > 1 else word3
        m.d.comb += [
            scan_read.eq(step & hits.any()),
            scan_word.eq(Cat(hit_slot, group)),
            tops.r_en.eq(restart | next_group | equal_cross),
            tops.r_addr.eq(sel_buf * groups + group_next),
        ]
        with m.If(restart | next_group | equal_cross):
            m.d.sync += [group.eq(group_next), seen.eq(Mux(equal_cross, (2 << word3_slot) - 1, 0))]
        with m.Elif(scan_read):
            m.d.sync += seen.eq(seen | hit)

        # The list of candidates.
        todo = Signal(n_w, reset_less=True)
        todo_now = comb(n_w, "todo_now", Mux(s_fresh, equal, todo))
        candidate = lanes.lowest(m, todo_now, "candidate")
        rest = comb(n_w, "rest", todo_now & ~candidate)
        insert = comb(1, "insert", s_valid & ~s_pop & ~equal_mode & todo_now.any() & go)
        pop, low, tag = Signal(), 0, Signal(word_bits + lane_bits)
        candidate_lane = Signal(lane_bits)
        for k in range(lane_bits):
            m.d.comb += candidate_lane[k].eq(Cat(candidate[j] for j in range(n_w) if j >> k & 1).any())
        low_bits = digits[0][1]
        if low_bits:
            listed = m.submodules.list = SortedList(p.list_depth, low_bits, len(tag))
            s_low = Signal(low_bits)
            m.d.comb += [
                listed.insert.eq(insert),
                listed.key.eq(lanes.pick(m, candidate, [c[:low_bits] for c in s_code], "candidate_low")),
                listed.tag.eq(Cat(candidate_lane, s_word)),
                listed.pop.eq(pop),
                listed.clear.eq(restart),
                overflow.eq(insert & listed.full),
                tag.eq(listed.first_tag),
                pop.eq(backs[Back.POP] & go & ~listed.empty & ~(s_valid & ~s_pop)),
            ]
            with m.If(pop):
                m.d.sync += s_low.eq(listed.first_key)
            low = Mux(s_pop, s_low, 0)

        # Stage 1: lanes that go on together, and their counts.
        serial_word, serial_read, serial_due = Signal(word_bits), Signal(), Signal()
        end_read, s_last = Signal(), Signal()  # ends a row of equal candidates
        m.d.comb += [
            serial_read.eq(backs[Back.SERIAL] & serial_due),
            end_read.eq(backs[Back.POP] & equal_done & ~s_valid),
        ]
        read = comb(1, "read", (scan_read & backs[Back.SCAN]) | pop | serial_read | end_read)
        read_word = comb(
            word_bits,
            "read_word",
            Mux(backs[Back.SCAN] | zoom_read, scan_word, Mux(serial_read, serial_word, tag[lane_bits:])),
        )
        lanes1, send, kind = Signal(n_w), Signal(), Signal(2)
        with m.If(s_last):
            m.d.comb += send.eq(1)
        with m.Elif(s_pop):
            m.d.comb += [lanes1.eq(1 << s_lane), send.eq(1), kind.eq(Kind.ONE)]
        with m.Elif(backs[Back.SERIAL]):
            m.d.comb += [lanes1.eq(candidate), send.eq(1), kind.eq(Kind.ONE), hold.eq(s_valid & rest.any())]
        with m.Elif(s_fresh & above.any()):
            m.d.comb += [lanes1.eq(above), send.eq(1), kind.eq(Kind.ABOVE)]
            m.d.comb += hold.eq(s_valid & Mux(equal_mode, equal.any(), rest.any()))
        with m.Else():
            m.d.comb += [lanes1.eq(todo_now), send.eq(equal_mode & todo_now.any()), kind.eq(Kind.EQUAL)]
            m.d.comb += hold.eq(s_valid & ~equal_mode & rest.any())
        sel_counts = [count2.r_data.word_select(j, p.count_bits) for j in range(n_w)]
        tokens1 = lanes.adder_tree(
            m, [comb(p.count_bits, f"s_count{j}", Mux(lanes1[j], c, 0)) for j, c in enumerate(sel_counts)], "tokens1"
        )
        code1 = comb(f.bits, "code1", prefix | low)
        kill = comb(1, "kill", split | equal_cross | finish)
        with m.If(go):
            m.d.sync += [s_fresh.eq(~hold), s_valid.eq((hold | read) & ~kill & ~overflow)]
            m.d.sync += todo.eq(Mux(equal_mode & ~backs[Back.SERIAL], todo_now, rest))
            with m.If(~hold):
                m.d.sync += [s_word.eq(read_word), s_pop.eq(pop), s_last.eq(end_read), s_lane.eq(tag[:lane_bits])]

        # Stage 2: weight.
        def stage(n, widths):
            return [Signal(w, name=f"{name}{n}", reset_less=name != "valid") for name, w in widths.items()]

        widths = {"valid": 1, "kind": 2, "last": 1, "word": word_bits, "lanes": n_w, "tokens": len(tokens1)}
        valid2, kind2, last2, word2, lanes2, tokens2 = stage(2, widths)
        del widths["word"]
        valid3, kind3, last3, lanes3, tokens3 = stage(3, widths)
        significand2 = Signal(f.significand_bits, reset_less=True)
        weight3 = Signal(f.significand_bits + len(tokens1), reset_less=True)
        clusters2 = popcount(m, lanes2, "clusters2")
        clusters3 = Signal.like(clusters2)
        with m.If(go):
            m.d.sync += [
                valid2.eq(s_valid & send & ~kill & ~overflow),
                kind2.eq(kind),
                last2.eq((sel_all & s_end) | s_last),
                word2.eq(s_word),
                lanes2.eq(lanes1),
                tokens2.eq(tokens1),
                significand2.eq(lanes.significand(p, code1)),
                valid3.eq(valid2 & ~kill),
                kind3.eq(kind2),
                last3.eq(last2),
                word3.eq(word2),
                lanes3.eq(lanes2),
                tokens3.eq(tokens2),
                clusters3.eq(clusters2),
                weight3.eq(lanes.multiply(m, tokens2, significand2, "weight")),
            ]

        # Stage 3: decide. A zoom's walk uses the same subtractor.
        sel_exponent = comb(max(1, f.exp_bits), "sel_exponent", lanes.exponent_of(p, prefix))
        sel_shift = comb(lanes.shift_bits(p), "sel_shift", lanes.shift_of(p, sel_exponent))
        operand = comb(max(len(weight3), len(hist.bin_sum)), "operand", Mux(backs[Back.Z_WALK], hist.bin_sum, weight3))
        value = comb(p.sum_bits, "value", operand << sel_shift)
        after = comb(p.sum_bits + 1, "after", left - value)
        crosses = comb(1, "crosses", after[-1])
        several = comb(1, "several", (lanes3 & (lanes3 - 1)).any())
        take = comb(1, "take", self.o.valid & self.o.ready)
        z_crossed = comb(1, "z_crossed", backs[Back.Z_WALK] & fronts[Front.Z_WALK] & walk2 & crosses)
        clusters, tokens = Signal(n_bits), Signal(n_bits + p.count_bits)
        m.d.comb += [
            split.eq(valid3 & (kind3 == Kind.EQUAL) & crosses & several),
            self.o.valid.eq(valid3 & ~split),
            go.eq(~self.o.valid | self.o.ready),
            beat.addr.eq(word3),
            beat.mask.eq(lanes3),
            beat.last.eq(Mux(kind3 == Kind.ABOVE, last3, crosses & ~equal_mode)),
            beat.clusters.eq(clusters + clusters3),
            beat.tokens.eq(tokens + tokens3),
            finish.eq(take & beat.last),
            equal_cross.eq(take & (kind3 != Kind.ABOVE) & crosses & equal_mode),
        ]
        with m.If(take):
            m.d.sync += [clusters.eq(beat.clusters), tokens.eq(beat.tokens)]
            with m.If(kind3 != Kind.ABOVE):
                m.d.sync += left.eq(after)
        with m.Elif(fronts[Front.Z_WALK] & walk2 & ~z_crossed):
            m.d.sync += left.eq(after)
        with m.If(hand | z_crossed):
            m.d.sync += [clusters.eq(0), tokens.eq(0), equal_done.eq(0)]
        with m.Elif(equal_cross):
            m.d.sync += equal_done.eq(1)

        # Control of the selecting pass.
        with m.If(finish):
            m.d.sync += back.eq(Back.IDLE)
            if buffers == 2:
                m.d.sync += sel_buf.eq(~sel_buf)
        with m.Elif(split):
            m.d.sync += [back.eq(Back.SERIAL), serial_word.eq(word3), serial_due.eq(1)]
        with m.Elif(equal_cross):
            m.d.sync += back.eq(Back.SCAN)
        with m.Elif(overflow):
            m.d.sync += back.eq(Back.OVER)
        with m.Elif(scan_end):
            m.d.sync += back.eq(Mux(backs[Back.Z_SCAN], Back.Z_WALK, Back.POP))
        with m.Elif(hand):
            m.d.sync += [
                back.eq(Back.SCAN),
                sel_all.eq(Mux(fronts[Front.TH], 1, f_all)),
                level.eq(0),
                prefix.eq(Mux(fronts[Front.PARK], f_bin, bin2) << low_bits),
                known.eq(((1 << bin_bits) - 1) << low_bits),
                left.eq(f_left),
            ]
        with m.Elif(fronts[Front.Z_START]):
            m.d.sync += back.eq(Back.Z_SCAN)
        with m.Elif(z_crossed):
            m.d.sync += [back.eq(Back.SCAN), level.eq(level + 1)]
            with m.Switch(level):
                for k, (width, at) in enumerate(digits[1:]):
                    with m.Case(k):
                        m.d.sync += [
                            prefix.eq(prefix | (bin2[:width] << at)),
                            known.eq(known | (((1 << width) - 1) << at)),
                        ]
        with m.If(serial_read):
            m.d.sync += serial_due.eq(0)

        # Control of the histogram.
        quiet = ~valid2 & ~valid3
        grant = fronts[Front.LOAD] | fronts[Front.PARK] | fronts[Front.Z_HOLD]
        m.d.comb += [
            zoom_go.eq(backs[Back.OVER] & quiet & grant),
            hist.next.eq(fronts[Front.CLEAR] | crossed | every | fronts[Front.Z_START] | z_crossed),
        ]
        cleared = Signal(bin_bits)
        with m.Switch(front):
            with m.Case(Front.CLEAR):
                m.d.sync += cleared.eq(cleared + 1)
                with m.If(cleared.all()):
                    m.d.sync += front.eq(Front.LOAD)
            with m.Case(Front.LOAD):
                with m.If(zoom_go):
                    m.d.sync += [front.eq(Front.Z_START), f_park.eq(0)]
                with m.Elif(accept & row.last):
                    m.d.sync += [front.eq(Front.TH), th_count.eq(0)]
            with m.Case(Front.TH, Front.WALK, Front.PARK):
                with m.If(zoom_go):
                    m.d.sync += [front.eq(Front.Z_START), f_park.eq(1)]
                with m.Elif(hand):
                    m.d.sync += front.eq(Front.LOAD)
                with m.Elif(offer):
                    m.d.sync += front.eq(Front.PARK)
                with m.Elif(fronts[Front.TH] & (th_count == 3)):
                    m.d.sync += front.eq(Front.WALK)
            with m.Case(Front.Z_START):
                m.d.sync += [front.eq(Front.Z_LOAD), th_count.eq(0)]
            with m.Case(Front.Z_LOAD):
                with m.If(scan_end):
                    m.d.sync += front.eq(Front.Z_TAIL)
            with m.Case(Front.Z_TAIL):
                m.d.sync += th_count.eq(1)
                with m.If(th_count[0]):
                    m.d.sync += front.eq(Front.Z_WALK)
            with m.Case(Front.Z_WALK):
                with m.If(z_crossed):
                    m.d.sync += front.eq(Front.Z_HOLD)
            with m.Case(Front.Z_HOLD):
                with m.If(zoom_go):
                    m.d.sync += front.eq(Front.Z_START)
                with m.Elif(finish):
                    m.d.sync += front.eq(Mux(f_park, Front.PARK, Mux(start, Front.LOAD, Front.REPLAY)))
            with m.Case(Front.REPLAY):
                with m.If(replay_word + 1 == taken):
                    m.d.sync += front.eq(Front.LOAD)

        for b in range(buffers):
            with m.If(accept & (load_buf == b)):
                m.d.sync += busy[b].eq(1)
            with m.Elif(finish & (sel_buf == b)):
                m.d.sync += busy[b].eq(0)

        # Read ports.
        select_read = comb(1, "select_read", read)
        m.d.comb += [
            score.r_en.eq(zoom_read | fronts[Front.REPLAY] | (read & ~pop)),
            score.r_addr.eq(
                Mux(
                    fronts[Front.REPLAY],
                    load_buf * p.words + replay_word,
                    sel_buf * p.words + Mux(zoom_read, scan_word, read_word),
                )
            ),
        ]
        front_addr = comb(len(count.r_addr), "front_addr", front_ctx * p.words + front_word)
        select_addr = comb(len(count.r_addr), "select_addr", sel_ctx * p.words + read_word)
        if buffers == 2:
            m.d.comb += [
                count.r_en.eq(front_read),
                count.r_addr.eq(front_addr),
                count2.r_en.eq(select_read),
                count2.r_addr.eq(select_addr),
            ]
        else:
            m.d.comb += [
                count.r_en.eq(front_read | select_read),
                count.r_addr.eq(Mux(select_read, select_addr, front_addr)),
            ]

        events = {
            "rows": finish,
            "words": accept,
            "walked": fronts[Front.WALK] | (fronts[Front.Z_WALK] & walk2),
            "scanned": scan_read,
            "zooms": zoom_go,
        }
        for name, event in events.items():
            with m.If(event):
                m.d.sync += self.perf[name].eq(self.perf[name] + 1)
        return m
