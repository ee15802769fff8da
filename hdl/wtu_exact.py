"""Exact variant of the WTU: weighted histogram while loading, one selecting pass, a short sorted list."""

from enum import IntEnum

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring

from hdl import wtu_lanes as lanes
from hdl.arith.popcount import popcount
from hdl.memory import Ram, SinglePortRam, collect_errors
from hdl.params import WtuParams, bits_for
from hdl.sorted_list import SortedList
from hdl.wtu_histogram import WeightedHistogram


class Front(IntEnum):
    """What the row that is loaded and not yet selected waits for."""

    CLEAR = 0  # after reset
    IDLE = 1  # there is none
    START = 2  # its sum settles
    TH = 3  # the lanes multiply for Th
    SUM = 4  # which is added up
    WALK = 5  # bins from the top until one exceeds what is left of Th
    PARK = 6  # walked; the row before is still being selected


class Back(IntEnum):
    """What the selecting pass does."""

    IDLE = 0
    SCAN = 1  # reads words with a code at or above the crossing bin
    POP = 2  # all read; takes candidates from the list
    SERIAL = 3  # lane by lane through the word in which equal codes cross
    OVER = 4  # the list is not enough: waits for the lanes and a free histogram
    Z_SCAN = 5  # zoom: feeds the words to them
    Z_TAIL = 6  # until the last is added
    Z_WALK = 7


class Kind(IntEnum):
    """What the lanes of one step in the selecting pipeline are."""

    ABOVE = 0  # selected
    ONE = 1  # one candidate, selected; the row is done if it crosses
    EQUAL = 2  # equal candidates, selected if they do not cross; else their word is done lane by lane


class WtuExact(wiring.Component):
    """Exact minimal set of Equation 3. Ports, latency and throughput: `hdl.wtu.Wtu`.

    Load: a histogram of weights by the top `bin_bits` of the code, and Sum (`hdl.wtu_histogram`); of each word the
    highest bin is kept. A word takes a cycle, and one for each further `count_digit` bits of its largest count.
    Walk: bins from the row's highest down are taken from Th until one exceeds what is left: the crossing bin.
    Select: words whose highest bin reaches the crossing one are read again, the others skipped `group` at a time. Codes
    above the bin are selected; candidates, those in it, go one a cycle into a list that keeps the best `list_depth` by
    code, then index, and is popped until one crosses.
    Zoom, when the list runs empty first, or after `list_limit` candidates: the pass is made again with the lanes, into
    a histogram of the next digit of the codes in the bin, which is walked, and once more to select. With all digits
    known candidates are equal and are taken a word at a time. Meanwhile no word is taken until the walk.
    With double_buffer a row is loaded while the one before is selected; with walk_ahead also while one is walked. Score
    memory has a bank for each, so that none is read and written at once: single-port memories.

    Parameters
    ----------
    p : WtuParams · counters : names of the 32-bit counters in `perf`

    Members
    -------
    c, i, ratio, o, perf : as in `hdl.wtu.Wtu`

    Latency: see `hdl.wtu.Wtu`; the first row is taken after as many cycles as a lane has bins, after reset.
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
        bin_bits, low_bits = digits[0]
        word_bits, lane_bits, bank_bits = bits_for(p.words), bits_for(n_w), bits_for(p.banks)
        at_bits = (p.group - 1).bit_length()  # of a word in its group
        n_bits = bits_for(p.clusters + 1)
        row, beat = self.i.payload, self.o.payload

        def flags(*names):
            return [Signal(name=n) for n in names]

        def held(width, name):
            return Signal(width, name=name, reset_less=True)

        def comb(width, name, value):
            s = Signal(width, name=name)
            m.d.comb += s.eq(value)
            return s

        scores = [SinglePortRam(f.bits * n_w, p.words, protect=p.protect) for _ in range(p.banks)]
        for k, score in enumerate(scores):
            m.submodules[f"score{k}"] = score
        tops = m.submodules.tops = Ram(bin_bits * p.group, p.banks * p.row_groups, p.group, p.protect)
        count = m.submodules.count = SinglePortRam(p.count_bits * n_w, p.n_ctx * p.words, n_w, p.protect)
        # Loading and selecting read counts in the same cycle: a second read port, as a copy.
        count2 = count
        if p.double_buffer:
            count2 = m.submodules.count2 = SinglePortRam(p.count_bits * n_w, p.n_ctx * p.words, n_w, p.protect)
        hist = m.submodules.hist = WeightedHistogram(p, bin_bits)
        counts = [count, count2] if count2 is not count else [count]
        collect_errors(m, self, [*scores, tops, *counts, hist])

        front, back = Signal(3, init=Front.CLEAR), Signal(3, init=Back.IDLE)
        fronts = [comb(1, f"front_{e.name.lower()}", front == e) for e in Front]
        backs = [comb(1, f"back_{e.name.lower()}", back == e) for e in Back]
        feeding = comb(1, "feeding", backs[Back.Z_SCAN] | backs[Back.Z_TAIL])
        zooming = comb(1, "zooming", feeding | backs[Back.Z_WALK])

        # Rows: one being loaded, one that waits for its crossing bin, one being selected. Each has a bank.
        info = data.StructLayout({"ctx": bits_for(p.n_ctx), "bank": bank_bits, "last": word_bits, "keep": lane_bits})
        load, wait, sel = (held(info, n) for n in ("load", "wait", "sel"))
        wait_bank = Signal(bank_bits)  # of the row that waits, where `tops` is read also while there is none
        rows = Signal(2)
        full, load_set, sel_all = flags("full", "load_set", "sel_all")  # full: the row in `load` is complete
        level = Signal(bits_for(len(digits)))
        prefix, known = held(f.bits, "prefix"), held(f.bits, "known")  # digits of the crossing code so far, their mask
        equal_mode = comb(1, "equal_mode", level == len(digits) - 1)  # all digits known

        # Selecting pipeline, whose steps are named below.
        go, hold, finish, split, overflow, exhaust = flags("go", "hold", "finish", "split", "overflow", "exhaust")
        equal_done, equal_cross = flags("equal_done", "equal_cross")  # with equal candidates: the threshold is crossed
        scan_read, scan_word = Signal(), Signal(word_bits)
        crossed, every, grant, z_crossed = flags("crossed", "every", "grant", "z_crossed")
        quiet = Signal()  # nothing in its later steps

        m.d.comb += self.c.ready.eq((rows == 0) & ~hist.part)

        # Words in.
        taken, load_bank = Signal(word_bits), Signal(bank_bits)  # of the row, and its bank
        start = comb(1, "start", taken == 0)
        accept = comb(1, "accept", self.i.valid & self.i.ready)
        move = comb(1, "move", full & fronts[Front.IDLE] & ~zooming)
        th_step = Signal(bits_for(p.th_steps)) if p.th_steps > 1 else Const(0, 1)
        th_last = comb(1, "th_last", th_step == p.th_steps - 1)
        if p.walk_ahead:
            free = ~full & ~fronts[Front.CLEAR]
        elif p.double_buffer:
            free = ~full & fronts[Front.IDLE] & ~backs[Back.OVER] & ~zooming
        else:
            free = (rows == 0) & ~fronts[Front.CLEAR]
        may_start = comb(1, "may_start", (free & ~self.c.valid) | hist.part)
        # A zoom needs the lanes, and bins: those of a row that is walked.
        walked = comb(1, "walked", fronts[Front.PARK] | (fronts[Front.IDLE] & ~full))
        z_free = comb(1, "z_free", walked if p.walk_ahead else walked & start)
        zoom_soon = comb(1, "zoom_soon", backs[Back.OVER] & (fronts[Front.IDLE] | fronts[Front.PARK]) & p.walk_ahead)
        # The counts of a word are read while the word before is taken, those of a row's first before it is taken.
        counted = Signal()
        # Th takes the lanes; made in several steps, it needs the sum as long.
        th_now = comb(1, "th_now", fronts[Front.TH] | (fronts[Front.START] & (p.th_steps > 1)))
        may_go_on = comb(1, "may_go_on", counted & ~th_now & ~feeding & (~zoom_soon | hist.part))
        may_take = comb(1, "may_take", may_go_on & (~start | may_start))
        m.d.comb += self.i.ready.eq(may_take & ~hist.more)
        with m.If(accept):
            m.d.sync += [taken.eq(Mux(row.last, 0, taken + 1)), load.ctx.eq(row.ctx), load.last.eq(taken)]
            m.d.sync += [load.keep.eq(row.keep), load.bank.eq(load_bank)]
        bank_after = comb(bank_bits, "bank_after", Mux(load_bank == p.banks - 1, 0, load_bank + 1))
        with m.If(accept & row.last):
            m.d.sync += [full.eq(1), load_bank.eq(bank_after)]
        with m.Elif(move):
            m.d.sync += full.eq(0)
        m.d.sync += rows.eq(rows + (accept & start) - finish)
        with m.If(move):
            m.d.sync += [wait.eq(load), wait_bank.eq(load.bank)]
            if p.walk_ahead:
                m.d.sync += load_set.eq(~load_set)

        # The codes of a word read from score memory, against what is known of the crossing code.
        s_valid, s_fresh, s_pop, z_valid = flags("s_valid", "s_fresh", "s_pop", "z_valid")
        s_word, s_lane = held(word_bits, "s_word"), held(lane_bits, "s_lane")
        s_scores = Signal(f.bits * n_w)
        with m.Switch(sel.bank):
            for k, score in enumerate(scores):
                with m.Case(k):
                    m.d.comb += s_scores.eq(score.r_data)
        s_code = [comb(f.bits, f"s_code{j}", s_scores.word_select(j, f.bits)) for j in range(n_w)]
        s_end = comb(1, "s_end", s_word == sel.last)
        above, equal, exists = Signal(n_w), Signal(n_w), Signal(n_w)
        for j, code in enumerate(s_code):
            masked = comb(f.bits, f"s_masked{j}", code & known)
            m.d.comb += [
                exists[j].eq(~s_end | (sel.keep >= j)),
                above[j].eq(exists[j] & (sel_all | (masked > prefix))),
                equal[j].eq(exists[j] & ~sel_all & ~equal_done & (masked == prefix)),
            ]

        # Words for the lanes, from the input or, in a zoom, from score memory.
        in_row = Signal(n_w)
        m.d.comb += [
            hist.take.eq((self.i.valid & may_take) | z_valid),
            hist.zoom.eq(feeding),
            hist.first.eq(start),
            hist.there.eq(Mux(feeding, exists, in_row)),
            hist.used.eq(Mux(feeding, equal, in_row)),
            hist.counts.eq(count.r_data),
            hist.hidden.eq(lanes.exponent_of(p, prefix).any()),
            hist.th.eq(fronts[Front.TH]),
            hist.load_set.eq(load_set),
            hist.ratio.eq(self.ratio),
        ]
        for j in range(n_w):
            digit = Signal(bin_bits, name=f"digit{j}")
            m.d.comb += [
                in_row[j].eq(~row.last | (row.keep >= j)),
                hist.mantissas[j].eq(Mux(feeding, s_code[j], row.scores[j])),
                hist.bins[j].eq(Mux(feeding, digit, row.scores[j][low_bits:])),
            ]
            with m.Switch(level):
                for k, (width, low) in enumerate(digits[1:]):
                    with m.Case(k):
                        m.d.comb += digit.eq(s_code[j][low : low + width])
        # Of each word the highest bin is kept, a cycle later.
        top_group, top_at = held(len(tops.w_addr), "top_group"), held(max(1, at_bits), "top_at")
        m.d.sync += [top_group.eq(load_bank * p.row_groups + (taken >> at_bits)), top_at.eq(taken[:at_bits])]
        m.d.comb += [
            tops.w_en.eq(Mux(hist.fresh & ~feeding, 1 << top_at, 0)),
            tops.w_addr.eq(top_group),
            tops.w_data.eq(Cat(*[hist.word_top] * p.group)),
        ]
        # And those of the row and of a zoom, another cycle later.
        top, walk_bin = held(bin_bits, "top"), held(bin_bits, "walk_bin")
        fresh3, first2, first3 = flags("fresh3", "first2", "first3")
        top3 = held(bin_bits, "top3")
        m.d.sync += [first2.eq(start), top3.eq(hist.word_top), fresh3.eq(hist.fresh), first3.eq(first2)]
        with m.If(fresh3 & ~feeding & (first3 | (top3 > top))):
            m.d.sync += top.eq(top3)

        # Threshold.
        f_all, f_bin = Signal(), held(bin_bits, "f_bin")
        m.d.comb += [
            hist.th_step.eq(th_step),
            every.eq(fronts[Front.TH] & (th_step == 0) & ((hist.total == 0) | self.ratio[16])),
        ]
        if p.th_steps > 1:
            m.d.sync += th_step.eq(Mux(fronts[Front.TH] & ~th_last, th_step + 1, 0))

        # Walk: a bin a cycle, of the row that waits, or of a zoom.
        begin = comb(1, "begin", fronts[Front.TH] & th_last)
        added = Signal()  # a cycle later the highest bin is in walk_bin
        m.d.sync += added.eq(hist.active)
        z_start = comb(1, "z_start", backs[Back.Z_TAIL] & ~z_valid & ~hist.active & ~added)
        walk = comb(1, "walk", begin | fronts[Front.SUM] | fronts[Front.WALK] | z_start | backs[Back.Z_WALK])
        at_top = comb(1, "at_top", fronts[Front.TH] & (th_step == 0))
        bin_now = comb(bin_bits, "bin_now", Mux(at_top, top, walk_bin))
        stop = comb(1, "stop", crossed | every | z_crossed)
        walk1, walk2 = flags("walk1", "walk2")
        bin1, bin2 = held(bin_bits, "bin1"), held(bin_bits, "bin2")
        m.d.comb += [hist.walk.eq(walk), hist.walk_bin.eq(bin_now)]
        m.d.sync += [walk1.eq(walk & ~stop), walk2.eq(walk1 & ~stop), bin1.eq(bin_now), bin2.eq(bin1)]
        with m.If(walk):
            m.d.sync += walk_bin.eq(bin_now - 1)
        with m.Elif(at_top):
            m.d.sync += walk_bin.eq(top)
        with m.Elif(grant):
            m.d.sync += walk_bin.eq(0)
        with m.Elif(fresh3 & feeding & (top3 > walk_bin)):
            m.d.sync += walk_bin.eq(top3)
        check = comb(1, "check", walk2 & fronts[Front.WALK])
        z_check = comb(1, "z_check", walk2 & backs[Back.Z_WALK])
        bin_cross = comb(bin_bits, "bin_cross", Mux(fronts[Front.PARK], f_bin, bin2))
        # Candidates, as the codes of a bin, share their exponent: what is left of Th is counted in its units. While
        # bins are walked it is doubled with every exponent less, its lower bits coming up from `f_left`.
        left, left_first = held(hist.bin_sum_bits, "left"), held(hist.bin_sum_bits, "left_first")
        f_left = held(f.max_shift + len(left), "f_left")
        f_units = comb(len(left), "f_units", f_left[f.max_shift :])
        f_first = lanes.unscaled(
            m, p, Cat(Const(0, f.max_shift), hist.th_value), lanes.exponent_of(p, bin1), len(f_left), "f_first"
        )
        lowest = bin2[: bin_bits - f.exp_bits] == 0  # of its exponent
        down = comb(1, "down", lowest & lanes.exponent_of(p, bin2)[1:].any())
        walk_rest = comb(len(left) + 1, "walk_rest", Mux(zooming, left, f_units) - hist.bin_sum)
        m.d.comb += [crossed.eq(check & walk_rest[-1]), z_crossed.eq(z_check & walk_rest[-1])]
        offer = comb(1, "offer", crossed | every | fronts[Front.PARK])
        hand = comb(1, "hand", offer & backs[Back.IDLE])
        all_now = comb(1, "all_now", Mux(fronts[Front.PARK], f_all, every))
        with m.If(fronts[Front.SUM]):
            m.d.sync += f_left.eq(f_first)
        with m.Elif(check & ~crossed):
            f_next = Cat(f_left[: f.max_shift], walk_rest[: len(left)])
            m.d.sync += f_left.eq(Mux(down, f_next << 1, f_next))
        with m.If(crossed | every):
            m.d.sync += [f_bin.eq(bin2), f_all.eq(every)]

        # Which words the selecting pass reads.
        group, seen = Signal(bits_for(p.row_groups)), Signal(p.group)
        last_group = comb(1, "last_group", group == sel.last >> at_bits)
        hits = Signal(p.group)
        for j in range(p.group):
            there = ~last_group | (sel.last[:at_bits] >= j)
            reaches = sel_all | (tops.r_data.word_select(j, bin_bits) >= prefix[low_bits:])
            m.d.comb += hits[j].eq(there & reaches & ~seen[j])
        hit = lanes.lowest(m, hits, "hit")
        hit_at = comb(
            at_bits, "hit_at", Cat(Cat(hit[j] for j in range(p.group) if j >> k & 1).any() for k in range(at_bits))
        )
        z_next = comb(1, "z_next", ~z_valid | ~hist.more)
        step = comb(1, "step", (backs[Back.SCAN] & go & ~hold) | (backs[Back.Z_SCAN] & z_next))
        next_group = comb(1, "next_group", step & ~(hits & ~hit).any())
        scan_end = comb(1, "scan_end", next_group & last_group)
        restart = comb(1, "restart", backs[Back.IDLE] | backs[Back.OVER] | backs[Back.Z_WALK])
        # After the crossing among equal candidates the pass goes on behind its word, for the codes above alone.
        word4 = held(word_bits, "word4")
        group_next = comb(len(group), "group_next", Mux(restart, 0, Mux(equal_cross, word4 >> at_bits, group + 1)))
        m.d.comb += [
            scan_read.eq(step & hits.any()),
            scan_word.eq(Cat(hit_at, group)),
            tops.r_en.eq(restart | (next_group & ~last_group) | equal_cross),
            tops.r_addr.eq(Mux(backs[Back.IDLE], wait_bank, sel.bank) * p.row_groups + group_next),
        ]
        with m.If(restart | next_group | equal_cross):
            m.d.sync += [group.eq(group_next), seen.eq(Mux(equal_cross, (2 << word4[:at_bits]) - 1, 0))]
        with m.Elif(scan_read):
            m.d.sync += seen.eq(seen | hit)

        # The list of candidates.
        todo = held(n_w, "todo")
        todo_now = comb(n_w, "todo_now", Mux(s_fresh, equal, todo))
        candidate = lanes.lowest(m, todo_now, "candidate")
        rest = comb(n_w, "rest", todo_now & ~candidate)
        insert = comb(1, "insert", s_valid & ~s_pop & ~equal_mode & todo_now.any() & go)
        pop, low, tag = Signal(), Const(0, 1), Signal(word_bits + lane_bits)
        candidate_lane = Signal(lane_bits)
        for k in range(lane_bits):
            m.d.comb += candidate_lane[k].eq(Cat(candidate[j] for j in range(n_w) if j >> k & 1).any())
        if low_bits:
            listed = m.submodules.list = SortedList(p.list_depth, low_bits, len(tag))
            unlisted = Signal()  # the list may lack a candidate of the cycle before
            s_low, inserted = held(low_bits, "s_low"), Signal(bits_for(p.list_limit + 1))
            m.d.comb += [
                listed.pop.eq(pop),
                listed.clear.eq(restart),
                overflow.eq(insert & (inserted == p.list_limit)),
                tag.eq(listed.first_tag),
                pop.eq(backs[Back.POP] & go & ~listed.empty & ~(s_valid & ~s_pop) & ~unlisted),
                exhaust.eq(backs[Back.POP] & ~equal_mode & listed.empty & ~s_valid & ~unlisted & quiet),
            ]
            # Found in one cycle, put into the list in the next.
            key_in, tag_in, insert_in = held(low_bits, "key_in"), held(len(tag), "tag_in"), Signal()
            m.d.sync += [
                insert_in.eq(insert),
                key_in.eq(lanes.pick(m, candidate, [c[:low_bits] for c in s_code], "candidate_low")),
                tag_in.eq(Cat(candidate_lane, s_word)),
                unlisted.eq(s_valid & ~s_pop),
            ]
            m.d.comb += [listed.insert.eq(insert_in), listed.key.eq(key_in), listed.tag.eq(tag_in)]
            m.d.sync += inserted.eq(Mux(restart, 0, inserted + insert))
            with m.If(pop):
                m.d.sync += s_low.eq(listed.first_key)
            low = Mux(s_pop, s_low, 0)

        # Stage 1: lanes that go on together.
        serial_word, serial_due = held(word_bits, "serial_word"), Signal()
        end_read, s_last = Signal(), Signal()  # ends a row of equal candidates
        serial_read = comb(1, "serial_read", backs[Back.SERIAL] & serial_due)
        m.d.comb += end_read.eq(backs[Back.POP] & equal_done & ~s_valid)
        read = comb(1, "read", (scan_read & backs[Back.SCAN]) | pop | serial_read | end_read)
        read_word = comb(
            word_bits,
            "read_word",
            Mux(backs[Back.SCAN] | backs[Back.Z_SCAN], scan_word, Mux(serial_read, serial_word, tag[lane_bits:])),
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
        code1 = comb(f.bits, "code1", prefix | low)
        kill = comb(1, "kill", split | equal_cross | finish)
        with m.If(go):
            m.d.sync += [s_fresh.eq(~hold), s_valid.eq((hold | read) & ~kill & ~overflow)]
            m.d.sync += todo.eq(Mux(equal_mode & ~backs[Back.SERIAL], todo_now, rest))
            with m.If(~hold):
                m.d.sync += [s_pop.eq(pop), s_last.eq(end_read), s_lane.eq(tag[:lane_bits])]
            with m.If(Mux(feeding, step, ~hold)):
                m.d.sync += s_word.eq(read_word)
        zoom_read = comb(1, "zoom_read", scan_read & backs[Back.Z_SCAN])
        m.d.sync += z_valid.eq(zoom_read | ~z_next)

        # Stage 2: their tokens. Stage 3: their weight.
        def stage(n, *names):
            widths = {"valid": 1, "kind": 2, "last": 1, "word": word_bits, "lanes": n_w, "clusters": bits_for(n_w + 1)}
            widths |= {"tokens": p.count_bits + (n_w - 1).bit_length(), "significand": f.significand_bits}
            return [Signal(widths[name], name=f"{name}{n}", reset_less=name != "valid") for name in names]

        valid2, kind2, last2, word2, lanes2, significand2 = stage(
            2, "valid", "kind", "last", "word", "lanes", "significand"
        )
        names = ("valid", "kind", "last", "word", "lanes", "tokens", "clusters")
        valid3, kind3, last3, word3, lanes3, tokens3, clusters3, significand3 = stage(3, *names, "significand")
        valid4, kind4, last4, lanes4, tokens4, clusters4 = stage(4, *(n for n in names if n != "word"))
        weight4 = held(len(significand3) + len(tokens3), "weight4")
        counts2 = [count2.r_data.word_select(j, p.count_bits) & lanes2[j].replicate(p.count_bits) for j in range(n_w)]
        counts2 = [comb(p.count_bits, f"count2_{j}", c) for j, c in enumerate(counts2)]
        with m.If(go):
            m.d.sync += [
                valid2.eq(s_valid & send & ~kill & ~overflow),
                kind2.eq(kind),
                last2.eq((sel_all & s_end) | s_last),
                word2.eq(s_word),
                lanes2.eq(lanes1),
                significand2.eq(lanes.significand(p, code1)),
                valid3.eq(valid2 & ~kill),
                kind3.eq(kind2),
                last3.eq(last2),
                word3.eq(word2),
                lanes3.eq(lanes2),
                tokens3.eq(lanes.adder_tree(m, counts2, "tokens")),
                clusters3.eq(popcount(m, lanes2, "clusters2")),
                significand3.eq(significand2),
                valid4.eq(valid3 & ~kill),
                kind4.eq(kind3),
                last4.eq(last3),
                word4.eq(word3),
                lanes4.eq(lanes3),
                tokens4.eq(tokens3),
                clusters4.eq(clusters3),
                weight4.eq(lanes.multiply(m, tokens3, significand3, "weight")),
            ]
        m.d.comb += quiet.eq(~valid2 & ~valid3 & ~valid4)

        # Stage 4: decide.
        after = comb(len(left) + 1, "after", left - weight4)
        crosses = comb(1, "crosses", after[-1])
        several = comb(1, "several", (lanes4 & (lanes4 - 1)).any())
        take = comb(1, "take", self.o.valid & self.o.ready)
        clusters, tokens = held(n_bits, "clusters"), held(n_bits + p.count_bits, "tokens")
        m.d.comb += [
            split.eq(valid4 & (kind4 == Kind.EQUAL) & crosses & several),
            self.o.valid.eq(valid4 & ~split),
            go.eq(~self.o.valid | self.o.ready),
            beat.addr.eq(word4),
            beat.mask.eq(lanes4),
            beat.last.eq(Mux(kind4 == Kind.ABOVE, last4, crosses & ~equal_mode)),
            beat.clusters.eq(clusters + clusters4),
            beat.tokens.eq(tokens + tokens4),
            finish.eq(take & beat.last),
            equal_cross.eq(take & (kind4 != Kind.ABOVE) & crosses & equal_mode),
        ]
        with m.If(hand):
            m.d.sync += left.eq(f_units)
        with m.Elif(exhaust):
            m.d.sync += left.eq(left_first)
        with m.Elif(take & (kind4 != Kind.ABOVE)):
            m.d.sync += left.eq(after)
        with m.Elif(z_check & ~z_crossed):
            m.d.sync += left.eq(walk_rest)
        with m.If(hand | z_crossed):
            m.d.sync += left_first.eq(Mux(hand, f_units, left))
            m.d.sync += [clusters.eq(0), tokens.eq(0), equal_done.eq(0)]
        with m.Elif(take):
            m.d.sync += [clusters.eq(beat.clusters), tokens.eq(beat.tokens)]
            with m.If(equal_cross):
                m.d.sync += equal_done.eq(1)

        # Control of the selecting pass.
        m.d.comb += grant.eq(backs[Back.OVER] & quiet & ~hist.active & ~hist.part & z_free)
        with m.If(finish):
            m.d.sync += back.eq(Back.IDLE)
        with m.Elif(split):
            m.d.sync += [back.eq(Back.SERIAL), serial_word.eq(word4), serial_due.eq(1)]
        with m.Elif(equal_cross):
            m.d.sync += back.eq(Back.SCAN)
        with m.Elif(overflow | exhaust):
            m.d.sync += back.eq(Back.OVER)
        with m.Elif(scan_end):
            m.d.sync += back.eq(Mux(backs[Back.Z_SCAN], Back.Z_TAIL, Back.POP))
        with m.Elif(hand):
            m.d.sync += [back.eq(Back.SCAN), sel.eq(wait), sel_all.eq(all_now), level.eq(0)]
            m.d.sync += [prefix.eq(bin_cross << low_bits), known.eq(((1 << bin_bits) - 1) << low_bits)]
        with m.Elif(grant):
            m.d.sync += back.eq(Back.Z_SCAN)
        with m.Elif(z_start):
            m.d.sync += back.eq(Back.Z_WALK)
        with m.Elif(z_crossed):
            m.d.sync += [back.eq(Back.SCAN), level.eq(level + 1)]
            with m.Switch(level):
                for k, (width, at) in enumerate(digits[1:]):
                    with m.Case(k):
                        m.d.sync += prefix.eq(prefix | (bin2[:width] << at))
                        m.d.sync += known.eq(known | (((1 << width) - 1) << at))
        with m.If(serial_read):
            m.d.sync += serial_due.eq(0)

        # Control of the row that waits, and of the histograms.
        cleared = Signal(bin_bits)
        with m.Switch(front):
            with m.Case(Front.CLEAR):
                m.d.sync += cleared.eq(cleared + 1)
                with m.If(cleared.all()):
                    m.d.sync += front.eq(Front.IDLE)
            with m.Case(Front.IDLE):
                with m.If(move):
                    m.d.sync += front.eq(Front.START)
            with m.Case(Front.START):
                m.d.sync += front.eq(Front.TH)
            with m.Case(Front.TH, Front.SUM, Front.WALK, Front.PARK):
                with m.If(hand):
                    m.d.sync += front.eq(Front.IDLE)
                with m.Elif(offer):
                    m.d.sync += front.eq(Front.PARK)
                with m.Elif(fronts[Front.SUM]):
                    m.d.sync += front.eq(Front.WALK)
                with m.Elif(fronts[Front.TH] & th_last):
                    m.d.sync += front.eq(Front.SUM)
        stopped = Signal()  # the bins are left a cycle later, which no word can reach before
        m.d.sync += stopped.eq(stop)
        for s in range(hist.sets):
            m.d.comb += hist.next[s].eq(fronts[Front.CLEAR] | (stopped & (load_set != s if hist.sets == 2 else 1)))

        # Score memory: the row that is loaded is never the one that is selected.
        score_read = comb(1, "score_read", zoom_read | (read & ~pop))
        for k, score in enumerate(scores):
            loads = comb(1, f"loads{k}", accept & (load_bank == k))
            m.d.comb += [
                score.en.eq(loads | (score_read & (sel.bank == k))),
                score.write.eq(loads),
                score.addr.eq(Mux(loads, taken, read_word)),
                score.w_data.eq(row.scores),
            ]
        select_read = comb(1, "select_read", go & s_valid & send)
        select_addr = comb(len(count.addr), "select_addr", sel.ctx * p.words + Mux(feeding, read_word, s_word))
        load_addr = comb(len(count.addr), "load_addr", row.ctx * p.words + (taken + accept))
        front_addr = comb(len(count.addr), "front_addr", Mux(feeding, select_addr, load_addr))
        ahead = ~counted & self.i.valid & ~feeding
        if not p.double_buffer:
            ahead = ahead & (~start | free)
        load_read = comb(1, "load_read", (accept & ~row.last) | ahead)
        front_read = comb(1, "front_read", load_read | zoom_read)
        m.d.sync += counted.eq((load_read | (counted & ~accept)) & ~grant & ~(self.c.valid & self.c.ready))
        # A count that is taken costs the read of a first word, which is made again.
        if p.double_buffer:
            lanes.count_port(m, p, self.c, count, front_read, front_addr)
            lanes.count_port(m, p, self.c, count2, select_read, select_addr)
        else:
            address = Mux(select_read, select_addr, front_addr)
            lanes.count_port(m, p, self.c, count, front_read | select_read, address)

        events = {
            "rows": finish,
            "words": accept,
            "walked": check | z_check,
            "scanned": scan_read,
            "zooms": grant,
        }
        for name, event in events.items():
            with m.If(event):
                m.d.sync += self.perf[name].eq(self.perf[name] + 1)
        return m
