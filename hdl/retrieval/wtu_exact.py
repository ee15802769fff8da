"""Exact variant of the WTU: weighted histogram while loading, one selecting pass, a short sorted list."""

from enum import IntEnum

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from hdl.arith.popcount import popcount
from hdl.memory import Ram, SinglePortRam, collect_errors
from hdl.named import comb, reg
from hdl.params import WtuParams, bits_for
from hdl.retrieval import wtu_lanes as lanes
from hdl.retrieval.sorted_list import SortedList
from hdl.retrieval.wtu_histogram import WeightedHistogram


class Front(IntEnum):
    """State of the row that is loaded and not yet selected."""

    CLEAR = 0  # clears the bins after reset
    IDLE = 1  # no row waits
    START = 2  # the row's sum settles
    TH = 3  # the lanes multiply for Th
    SUM = 4  # their products are added to Th
    WALK = 5  # walks bins from the top until one exceeds what is left of Th
    PARK = 6  # has walked, and waits while the row before is selected


class Back(IntEnum):
    """State of the selecting pass."""

    IDLE = 0
    SCAN = 1  # reads words with a code at or above the crossing bin
    POP = 2  # has read all words, and takes candidates from the list
    SERIAL = 3  # takes lane by lane the word in which equal codes cross
    OVER = 4  # the list does not suffice: waits for the lanes and a free histogram
    Z_SCAN = 5  # zoom: feeds the words to the lanes
    Z_TAIL = 6  # zoom: waits until the last word is added
    Z_WALK = 7


class Kind(IntEnum):
    """Kind of the lanes in one step of the selecting pipeline."""

    ABOVE = 0  # all selected
    ONE = 1  # one candidate, selected; the row is done if it crosses
    EQUAL = 2  # equal candidates, selected if they do not cross; otherwise taken lane by lane


class WtuExact(lanes.WtuPorts):
    """Selects the exact minimal set of Equation 3. Ports, latency and throughput: `hdl.retrieval.wtu.Wtu`.

    Load: the lanes add the row's weights to a histogram by the top `bin_bits` of the code, and to Sum
    (`hdl.retrieval.wtu_histogram`). The unit keeps the highest bin of each word. A word takes a cycle, and one for each
    further `count_digit` bits of its largest count.

    Walk: from the row's highest bin down, the unit subtracts bins from Th until one exceeds what is left of Th. That
    bin is the crossing bin.

    Select: the unit reads again the words whose highest bin reaches the crossing bin, and skips the others `group` at a
    time. It selects codes above the bin. Codes in the bin are candidates: they go one a cycle into a list, which keeps
    the best `list_depth` by code; on a tie the lowest index wins, because candidates come with rising index and
    `SortedList` keeps the first in front. The unit pops the list until a candidate crosses the threshold.

    Zoom: when the list runs empty first, or after `list_limit` candidates, the unit repeats the pass for the next digit
    of the code. The lanes add the candidates to a histogram of this digit, the unit walks it, and selects once more.
    When all digits are known, candidates are equal and the unit takes them a word at a time. No word comes in from the
    zoom's begin to its walk.

    With double_buffer a row is loaded while the unit selects the one before; with walk_ahead also while it walks one.
    Each of these rows has its own bank of score memory, so no bank is read and written at once: single-port memories.

    Parameters
    ----------
    p : WtuParams

    Members
    -------
    c, i, ratio, o, perf : as in `hdl.retrieval.wtu.Wtu`

    Latency: see `hdl.retrieval.wtu.Wtu`; after reset, the first row is taken after as many cycles as a lane has bins.
    Throughput: see `hdl.retrieval.wtu.Wtu`.
    Raises: `ParamError` from `WtuParams`.
    Source: V-Rex Equations 1 to 3; histogram, list and zoom are this project's own.
    """

    def __init__(self, p: WtuParams):
        rest, self.digits = p.score.bits, []  # (width, lowest bit), highest digit first
        while rest:
            width = min(p.bin_bits, rest)
            rest -= width
            self.digits.append((width, rest))
        super().__init__(p)

    def elaborate(self, platform):
        p, m = self.p, Module()
        memories = _Memories(m, p, self.digits[0][0])
        collect_errors(m, self, memories.all)
        u = _Stages(m, p, memories, self.digits)
        m.d.comb += self.c.ready.eq((u.rows.rows == 0) & ~memories.hist.part)

        self._may_take(m, u)
        self._take_words(m, u)
        self._read_codes(m, u)
        self._feed_lanes(m, u)
        self._keep_highest_bins(m, u)
        self._start_threshold(m, u)
        self._walk_bins(m, u)
        self._check_bin(m, u)
        self._offer_row(m, u)
        self._find_words(m, u)
        self._step_scan(m, u)
        self._find_candidates(m, u)
        if self.digits[0][1]:
            self._list_candidates(m, u)
        self._read_word(m, u)
        self._choose_lanes(m, u)
        self._next_lanes(m, u)
        self._weigh(m, u)
        self._decide(m, u)
        self._update_left(m, u)
        self._next_back(m, u)
        self._next_front(m, u)
        self._score_ports(m, u)
        self._count_ports(m, u)
        self._count_events(m, u)
        return m

    def _may_take(self, m: Module, u: "_Stages") -> None:
        """Decides whether a word can come in: a new row needs a place, and no zoom or Th may use the lanes."""
        p, rows, take, hist = self.p, u.rows, u.take, u.memories.hist
        fronts, backs = u.state.fronts, u.state.backs
        start = take.start = comb(m, "start", take.taken == 0)
        take.accept = comb(m, "accept", self.i.valid & self.i.ready)
        take.move = comb(m, "move", rows.full & fronts[Front.IDLE] & ~u.state.zooming)
        take.th_last = comb(m, "th_last", take.th_step == p.th_steps - 1)
        if p.walk_ahead:
            take.free = ~rows.full & ~fronts[Front.CLEAR]
        elif p.double_buffer:
            take.free = ~rows.full & fronts[Front.IDLE] & ~backs[Back.OVER] & ~u.state.zooming
        else:
            take.free = (rows.rows == 0) & ~fronts[Front.CLEAR]
        may_start = comb(m, "may_start", (take.free & ~self.c.valid) | hist.part)
        # A zoom needs the lanes, and the bins of a row that has been walked.
        walked = comb(m, "walked", fronts[Front.PARK] | (fronts[Front.IDLE] & ~rows.full))
        take.z_free = comb(m, "z_free", walked if p.walk_ahead else walked & start)
        waits = fronts[Front.IDLE] | fronts[Front.PARK]
        zoom_soon = comb(m, "zoom_soon", backs[Back.OVER] & waits & p.walk_ahead, 1)
        # Th needs the lanes. In several steps, it needs the sum for as long.
        th_now = comb(m, "th_now", fronts[Front.TH] | (fronts[Front.START] & (p.th_steps > 1)), 1)
        lanes_free = take.counted & ~th_now & ~u.state.feeding & (~zoom_soon | hist.part)
        may_go_on = comb(m, "may_go_on", lanes_free)
        take.may_take = comb(m, "may_take", may_go_on & (~start | may_start))
        m.d.comb += self.i.ready.eq(take.may_take & ~hist.more)

    def _take_words(self, m: Module, u: "_Stages") -> None:
        """Counts the words of the row that comes in, and moves a complete row on."""
        p, rows, take, row = self.p, u.rows, u.take, self.i.payload
        load, bank = rows.load, take.load_bank
        with m.If(take.accept):
            m.d.sync += [
                take.taken.eq(Mux(row.last, 0, take.taken + 1)),
                load.ctx.eq(row.ctx),
                load.last.eq(take.taken),
            ]
            m.d.sync += [load.keep.eq(row.keep), load.bank.eq(bank)]
        bank_after = comb(m, "bank_after", Mux(bank == p.banks - 1, 0, bank + 1), len(bank))
        with m.If(take.accept & row.last):
            m.d.sync += [rows.full.eq(1), bank.eq(bank_after)]
        with m.Elif(take.move):
            m.d.sync += rows.full.eq(0)
        m.d.sync += rows.rows.eq(rows.rows + (take.accept & take.start) - u.steps.finish)
        with m.If(take.move):
            m.d.sync += [rows.wait.eq(load), rows.wait_bank.eq(load.bank)]
            if p.walk_ahead:
                m.d.sync += rows.load_set.eq(~rows.load_set)

    def _read_codes(self, m: Module, u: "_Stages") -> None:
        """Compares the codes of the word read from score memory with the known part of the crossing code."""
        p, rows, word, code = self.p, u.rows, u.word, u.code
        bits, sel = p.score.bits, rows.sel
        s_scores = Signal(bits * p.n_w)
        with m.Switch(sel.bank):
            for k, score in enumerate(u.memories.scores):
                with m.Case(k):
                    m.d.comb += s_scores.eq(score.r_data)
        word.code = [comb(m, f"s_code{j}", s_scores.word_select(j, bits)) for j in range(p.n_w)]
        word.end = comb(m, "s_end", word.word == sel.last)
        for j, own in enumerate(word.code):
            masked = comb(m, f"s_masked{j}", own & code.known)
            here, sel_all = word.exists[j], rows.sel_all
            m.d.comb += [
                here.eq(~word.end | (sel.keep >= j)),
                word.above[j].eq(here & (sel_all | (masked > code.prefix))),
                word.equal[j].eq(here & ~sel_all & ~u.steps.equal_done & (masked == code.prefix)),
            ]

    def _feed_lanes(self, m: Module, u: "_Stages") -> None:
        """Feeds words to the lanes: from the input or, in a zoom, from score memory."""
        p, row, word, hist, feeding = self.p, self.i.payload, u.word, u.memories.hist, u.state.feeding
        in_row = Signal(p.n_w)
        m.d.comb += [
            hist.take.eq((self.i.valid & u.take.may_take) | word.z_valid),
            hist.zoom.eq(feeding),
            hist.first.eq(u.take.start),
            hist.there.eq(Mux(feeding, word.exists, in_row)),
            hist.used.eq(Mux(feeding, word.equal, in_row)),
            hist.counts.eq(u.memories.count.r_data),
            hist.hidden.eq(lanes.exponent_of(p, u.code.prefix).any()),
            hist.th.eq(u.state.fronts[Front.TH]),
            hist.load_set.eq(u.rows.load_set),
            hist.ratio.eq(self.ratio),
        ]
        for j in range(p.n_w):
            digit = Signal(self.digits[0][0], name=f"digit{j}")
            m.d.comb += [
                in_row[j].eq(~row.last | (row.keep >= j)),
                hist.mantissas[j].eq(Mux(feeding, word.code[j], row.scores[j])),
                hist.bins[j].eq(Mux(feeding, digit, row.scores[j][self.digits[0][1] :])),
            ]
            with m.Switch(u.code.level):
                for k, (width, low) in enumerate(self.digits[1:]):
                    with m.Case(k):
                        m.d.comb += digit.eq(word.code[j][low : low + width])

    def _keep_highest_bins(self, m: Module, u: "_Stages") -> None:
        """Writes the highest bin of each word a cycle later, and keeps that of the row and of a zoom another cycle
        later.
        """
        p, take, walk, hist, tops = self.p, u.take, u.walk, u.memories.hist, u.memories.tops
        at_bits, feeding = u.scan.at_bits, u.state.feeding
        top_group = reg(m, "top_group", take.load_bank * p.row_groups + (take.taken >> at_bits), len(tops.w_addr))
        top_at = reg(m, "top_at", take.taken[:at_bits], max(1, at_bits))
        m.d.comb += [
            tops.w_en.eq(Mux(hist.fresh & ~feeding, 1 << top_at, 0)),
            tops.w_addr.eq(top_group),
            tops.w_data.eq(Cat(*[hist.word_top] * p.group)),
        ]
        m.d.sync += [
            walk.first2.eq(take.start),
            walk.top3.eq(hist.word_top),
            walk.fresh3.eq(hist.fresh),
            walk.first3.eq(walk.first2),
        ]
        with m.If(walk.fresh3 & ~feeding & (walk.first3 | (walk.top3 > walk.top))):
            m.d.sync += walk.top.eq(walk.top3)

    def _start_threshold(self, m: Module, u: "_Stages") -> None:
        """Counts the steps in which the lanes multiply for Th, and finds rows that are selected as a whole."""
        hist, steps, th_step, th = u.memories.hist, u.steps, u.take.th_step, u.state.fronts[Front.TH]
        m.d.comb += [
            hist.th_step.eq(th_step),
            steps.every.eq(th & (th_step == 0) & ((hist.total == 0) | self.ratio[16])),
        ]
        if self.p.th_steps > 1:
            m.d.sync += th_step.eq(Mux(th & ~u.take.th_last, th_step + 1, 0))

    def _walk_bins(self, m: Module, u: "_Stages") -> None:
        """Walks a bin a cycle, of the waiting row or of a zoom."""
        fronts, backs, walk, hist, steps = u.state.fronts, u.state.backs, u.walk, u.memories.hist, u.steps
        walk_bin = walk.walk_bin
        begin = comb(m, "begin", fronts[Front.TH] & u.take.th_last)
        added = reg(m, "added", hist.active, reset_less=False)  # a cycle later the highest bin is in walk_bin
        walk.z_start = comb(m, "z_start", backs[Back.Z_TAIL] & ~u.word.z_valid & ~hist.active & ~added)
        walks = begin | fronts[Front.SUM] | fronts[Front.WALK] | walk.z_start | backs[Back.Z_WALK]
        walk.walk = comb(m, "walk", walks)
        at_top = comb(m, "at_top", fronts[Front.TH] & (u.take.th_step == 0))
        bin_now = comb(m, "bin_now", Mux(at_top, walk.top, walk_bin), len(walk.top))
        walk.stop = comb(m, "stop", steps.crossed | steps.every | steps.z_crossed)
        m.d.comb += [hist.walk.eq(walk.walk), hist.walk_bin.eq(bin_now)]
        m.d.sync += [
            walk.walk1.eq(walk.walk & ~walk.stop),
            walk.walk2.eq(walk.walk1 & ~walk.stop),
            walk.bin1.eq(bin_now),
            walk.bin2.eq(walk.bin1),
        ]
        with m.If(walk.walk):
            m.d.sync += walk_bin.eq(bin_now - 1)
        with m.Elif(at_top):
            m.d.sync += walk_bin.eq(walk.top)
        with m.Elif(steps.grant):
            m.d.sync += walk_bin.eq(0)
        with m.Elif(walk.fresh3 & u.state.feeding & (walk.top3 > walk_bin)):
            m.d.sync += walk_bin.eq(walk.top3)

    def _check_bin(self, m: Module, u: "_Stages") -> None:
        """Subtracts a bin from what is left of Th, and decides whether it crosses.

        The codes of a bin share their exponent, so what is left of Th is counted in units of it. With every exponent
        less the walk doubles this number and takes its lower bits from `f_left`.
        """
        p, f, walk, hist, steps = self.p, self.p.score, u.walk, u.memories.hist, u.steps
        bin1, bin2, f_left, left = walk.bin1, walk.bin2, walk.f_left, walk.left
        walk.check = comb(m, "check", walk.walk2 & u.state.fronts[Front.WALK])
        walk.z_check = comb(m, "z_check", walk.walk2 & u.state.backs[Back.Z_WALK])
        walk.bin_cross = comb(m, "bin_cross", Mux(u.state.fronts[Front.PARK], walk.f_bin, bin2), len(bin2))
        walk.f_units = comb(m, "f_units", f_left[f.max_shift :], len(left))
        walk.f_first = lanes.unscaled(
            m, p, Cat(Const(0, f.max_shift), hist.th_value), lanes.exponent_of(p, bin1), len(f_left), "f_first"
        )
        lowest = bin2[: len(bin2) - f.exp_bits] == 0  # of its exponent
        walk.down = comb(m, "down", lowest & lanes.exponent_of(p, bin2)[1:].any(), 1)
        now = Mux(u.state.zooming, left, walk.f_units)
        walk.walk_rest = comb(m, "walk_rest", now - hist.bin_sum, len(left) + 1)
        m.d.comb += [
            steps.crossed.eq(walk.check & walk.walk_rest[-1]),
            steps.z_crossed.eq(walk.z_check & walk.walk_rest[-1]),
        ]

    def _offer_row(self, m: Module, u: "_Stages") -> None:
        """Hands a row whose crossing bin is known to the selecting pass, or parks it."""
        f, fronts, walk, steps, f_left = self.p.score, u.state.fronts, u.walk, u.steps, u.walk.f_left
        walk.offer = comb(m, "offer", steps.crossed | steps.every | fronts[Front.PARK])
        walk.hand = comb(m, "hand", walk.offer & u.state.backs[Back.IDLE])
        walk.all_now = comb(m, "all_now", Mux(fronts[Front.PARK], walk.f_all, steps.every))
        with m.If(fronts[Front.SUM]):
            m.d.sync += f_left.eq(walk.f_first)
        with m.Elif(walk.check & ~steps.crossed):
            f_next = Cat(f_left[: f.max_shift], walk.walk_rest[: len(walk.left)])
            m.d.sync += f_left.eq(Mux(walk.down, f_next << 1, f_next))
        with m.If(steps.crossed | steps.every):
            m.d.sync += [walk.f_bin.eq(walk.bin2), walk.f_all.eq(steps.every)]

    def _find_words(self, m: Module, u: "_Stages") -> None:
        """Finds the next word of a group that the selecting pass must read."""
        p, scan, sel, tops = self.p, u.scan, u.rows.sel, u.memories.tops
        bin_bits, low_bits = self.digits[0]
        scan.last_group = comb(m, "last_group", scan.group == sel.last >> scan.at_bits)
        for j in range(p.group):
            there = ~scan.last_group | (sel.last[: scan.at_bits] >= j)
            reaches = u.rows.sel_all | (tops.r_data.word_select(j, bin_bits) >= u.code.prefix[low_bits:])
            m.d.comb += scan.hits[j].eq(there & reaches & ~scan.seen[j])
        scan.hit = hit = lanes.lowest(m, scan.hits, "hit")
        index = Cat(Cat(hit[j] for j in range(p.group) if j >> k & 1).any() for k in range(scan.at_bits))
        scan.hit_at = comb(m, "hit_at", index, scan.at_bits)

    def _step_scan(self, m: Module, u: "_Stages") -> None:
        """Moves to the next word of a group, or to the next group.

        After equal candidates crossed, the pass goes on behind their word and selects only the codes above.
        """
        p, backs, steps, scan, word, tops = self.p, u.state.backs, u.steps, u.scan, u.word, u.memories.tops
        group, word4, equal_cross = scan.group, u.decided.word, steps.equal_cross
        scan.z_next = comb(m, "z_next", ~word.z_valid | ~u.memories.hist.more)
        goes = (backs[Back.SCAN] & steps.go & ~steps.hold) | (backs[Back.Z_SCAN] & scan.z_next)
        scan.step = comb(m, "step", goes)
        next_group = comb(m, "next_group", scan.step & ~(scan.hits & ~scan.hit).any())
        scan.end = comb(m, "scan_end", next_group & scan.last_group)
        restart = scan.restart = comb(m, "restart", backs[Back.IDLE] | backs[Back.OVER] | backs[Back.Z_WALK])
        behind = Mux(equal_cross, word4 >> scan.at_bits, group + 1)
        group_next = comb(m, "group_next", Mux(restart, 0, behind), len(group))
        bank = Mux(backs[Back.IDLE], u.rows.wait_bank, u.rows.sel.bank)
        m.d.comb += [
            steps.scan_read.eq(scan.step & scan.hits.any()),
            steps.scan_word.eq(Cat(scan.hit_at, group)),
            tops.r_en.eq(restart | (next_group & ~scan.last_group) | equal_cross),
            tops.r_addr.eq(bank * p.row_groups + group_next),
        ]
        with m.If(restart | next_group | equal_cross):
            past = (2 << word4[: scan.at_bits]) - 1
            m.d.sync += [group.eq(group_next), scan.seen.eq(Mux(equal_cross, past, 0))]
        with m.Elif(steps.scan_read):
            m.d.sync += scan.seen.eq(scan.seen | scan.hit)

    def _find_candidates(self, m: Module, u: "_Stages") -> None:
        """Finds the lowest lane of the word whose candidate was not taken before."""
        p, word, found, steps = self.p, u.word, u.found, u.steps
        found.todo_now = comb(m, "todo_now", Mux(word.fresh, word.equal, found.todo), p.n_w)
        found.candidate = lanes.lowest(m, found.todo_now, "candidate")
        found.rest = comb(m, "rest", found.todo_now & ~found.candidate)
        inserts = word.valid & ~word.pop & ~u.code.equal_mode & found.todo_now.any() & steps.go
        found.insert = comb(m, "insert", inserts)
        for k in range(bits_for(p.n_w)):
            lane = Cat(found.candidate[j] for j in range(p.n_w) if j >> k & 1).any()
            m.d.comb += found.candidate_lane[k].eq(lane)

    def _list_candidates(self, m: Module, u: "_Stages") -> None:
        """Puts candidates into the list, and pops the best ones once all words are read."""
        p, word, found, steps, backs = self.p, u.word, u.found, u.steps, u.state.backs
        low_bits = self.digits[0][1]
        listed = m.submodules.list = SortedList(p.list_depth, low_bits, len(found.tag))
        unlisted = Signal()  # the list may lack a candidate of the cycle before
        s_low = Signal(low_bits, reset_less=True)
        inserted = Signal(bits_for(p.list_limit + 1))  # candidates so far
        m.d.comb += [
            listed.pop.eq(found.pop),
            listed.clear.eq(u.scan.restart),
            steps.overflow.eq(found.insert & (inserted == p.list_limit)),
            found.tag.eq(listed.first_tag),
            found.pop.eq(backs[Back.POP] & steps.go & ~listed.empty & ~(word.valid & ~word.pop) & ~unlisted),
            steps.exhaust.eq(
                backs[Back.POP] & ~u.code.equal_mode & listed.empty & ~word.valid & ~unlisted & steps.quiet
            ),
        ]
        # A candidate is found in one cycle and put into the list in the next.
        key_in = Signal(low_bits, reset_less=True)
        tag_in = Signal(len(found.tag), reset_less=True)
        insert_in = Signal()
        m.d.sync += [
            insert_in.eq(found.insert),
            key_in.eq(lanes.pick(m, found.candidate, [c[:low_bits] for c in word.code], "candidate_low")),
            tag_in.eq(Cat(found.candidate_lane, word.word)),
            unlisted.eq(word.valid & ~word.pop),
        ]
        m.d.comb += [listed.insert.eq(insert_in), listed.key.eq(key_in), listed.tag.eq(tag_in)]
        m.d.sync += inserted.eq(Mux(u.scan.restart, 0, inserted + found.insert))
        with m.If(found.pop):
            m.d.sync += s_low.eq(listed.first_key)
        found.low = Mux(word.pop, s_low, 0)

    def _read_word(self, m: Module, u: "_Stages") -> None:
        """Chooses the word to read for the selecting pass: the scan's, a candidate's, or one to be done lane by
        lane.
        """
        p, backs, steps, word, found = self.p, u.state.backs, u.steps, u.word, u.found
        scans = backs[Back.SCAN] | backs[Back.Z_SCAN]
        found.serial_read = comb(m, "serial_read", backs[Back.SERIAL] & found.serial_due)
        m.d.comb += found.end_read.eq(backs[Back.POP] & steps.equal_done & ~word.valid)
        reads = (steps.scan_read & backs[Back.SCAN]) | found.pop | found.serial_read | found.end_read
        word.read = comb(m, "read", reads)
        other = Mux(found.serial_read, found.serial_word, found.tag[bits_for(p.n_w) :])
        word.read_word = comb(m, "read_word", Mux(scans, steps.scan_word, other), len(word.word))

    def _choose_lanes(self, m: Module, u: "_Stages") -> None:
        """Stage 1: chooses the lanes that go on together."""
        steps, word, found, one = u.steps, u.word, u.found, u.chosen
        hold, equal_mode = steps.hold, u.code.equal_mode
        with m.If(word.last):
            m.d.comb += one.send.eq(1)
        with m.Elif(word.pop):
            m.d.comb += [one.lanes.eq(1 << word.lane), one.send.eq(1), one.kind.eq(Kind.ONE)]
        with m.Elif(u.state.backs[Back.SERIAL]):
            m.d.comb += [one.lanes.eq(found.candidate), one.send.eq(1), one.kind.eq(Kind.ONE)]
            m.d.comb += hold.eq(word.valid & found.rest.any())
        with m.Elif(word.fresh & word.above.any()):
            m.d.comb += [one.lanes.eq(word.above), one.send.eq(1), one.kind.eq(Kind.ABOVE)]
            m.d.comb += hold.eq(word.valid & Mux(equal_mode, word.equal.any(), found.rest.any()))
        with m.Else():
            m.d.comb += [one.lanes.eq(found.todo_now), one.send.eq(equal_mode & found.todo_now.any())]
            m.d.comb += one.kind.eq(Kind.EQUAL)
            m.d.comb += hold.eq(word.valid & ~equal_mode & found.rest.any())
        one.code = comb(m, "code1", u.code.prefix | found.low, self.p.score.bits)
        one.kill = comb(m, "kill", steps.split | steps.equal_cross | steps.finish)

    def _next_lanes(self, m: Module, u: "_Stages") -> None:
        """Stage 1: keeps the lanes still to be done, or takes the next word."""
        steps, word, found, hold = u.steps, u.word, u.found, u.steps.hold
        with m.If(steps.go):
            m.d.sync += [word.fresh.eq(~hold), word.valid.eq((hold | word.read) & ~u.chosen.kill & ~steps.overflow)]
            together = u.code.equal_mode & ~u.state.backs[Back.SERIAL]
            m.d.sync += found.todo.eq(Mux(together, found.todo_now, found.rest))
            with m.If(~hold):
                lane = found.tag[: len(word.lane)]
                m.d.sync += [word.pop.eq(found.pop), word.last.eq(found.end_read), word.lane.eq(lane)]
            with m.If(Mux(u.state.feeding, u.scan.step, ~hold)):
                m.d.sync += word.word.eq(word.read_word)
        word.zoom_read = comb(m, "zoom_read", steps.scan_read & u.state.backs[Back.Z_SCAN])
        m.d.sync += word.z_valid.eq(word.zoom_read | ~u.scan.z_next)

    def _weigh(self, m: Module, u: "_Stages") -> None:
        """Stage 2: adds the lanes' tokens. Stage 3: multiplies them to a weight."""
        p, steps, one, two, three, four = self.p, u.steps, u.chosen, u.added, u.weighed, u.decided
        count2, kill = u.memories.count2, one.kill
        counts2 = [
            count2.r_data.word_select(j, p.count_bits) & two.lanes[j].replicate(p.count_bits) for j in range(p.n_w)
        ]
        counts2 = [comb(m, f"count2_{j}", c, p.count_bits) for j, c in enumerate(counts2)]
        with m.If(steps.go):
            m.d.sync += [
                two.valid.eq(u.word.valid & one.send & ~kill & ~steps.overflow),
                two.kind.eq(one.kind),
                two.last.eq((u.rows.sel_all & u.word.end) | u.word.last),
                two.word.eq(u.word.word),
                two.lanes.eq(one.lanes),
                two.significand.eq(lanes.significand(p, one.code)),
                three.valid.eq(two.valid & ~kill),
                three.kind.eq(two.kind),
                three.last.eq(two.last),
                three.word.eq(two.word),
                three.lanes.eq(two.lanes),
                three.tokens.eq(lanes.adder_tree(m, counts2, "tokens")),
                three.clusters.eq(popcount(m, two.lanes, "clusters2")),
                three.significand.eq(two.significand),
                four.valid.eq(three.valid & ~kill),
                four.kind.eq(three.kind),
                four.last.eq(three.last),
                four.word.eq(three.word),
                four.lanes.eq(three.lanes),
                four.tokens.eq(three.tokens),
                four.clusters.eq(three.clusters),
                four.weight.eq(lanes.multiply(m, three.tokens, three.significand, "weight")),
            ]
        m.d.comb += steps.quiet.eq(~two.valid & ~three.valid & ~four.valid)

    def _decide(self, m: Module, u: "_Stages") -> None:
        """Stage 4: offers a beat. If equal candidates cross, it sends their word back to be done lane by lane."""
        beat, steps, four, end = self.o.payload, u.steps, u.decided, u.selected
        equal_mode = u.code.equal_mode
        end.after = comb(m, "after", u.walk.left - four.weight, len(u.walk.left) + 1)
        crosses = comb(m, "crosses", end.after[-1])
        several = comb(m, "several", (four.lanes & (four.lanes - 1)).any())
        end.take = comb(m, "take", self.o.valid & self.o.ready)
        m.d.comb += [
            steps.split.eq(four.valid & (four.kind == Kind.EQUAL) & crosses & several),
            self.o.valid.eq(four.valid & ~steps.split),
            steps.go.eq(~self.o.valid | self.o.ready),
            beat.addr.eq(four.word),
            beat.mask.eq(four.lanes),
            beat.last.eq(Mux(four.kind == Kind.ABOVE, four.last, crosses & ~equal_mode)),
            beat.clusters.eq(end.clusters + four.clusters),
            beat.tokens.eq(end.tokens + four.tokens),
            steps.finish.eq(end.take & beat.last),
            steps.equal_cross.eq(end.take & (four.kind != Kind.ABOVE) & crosses & equal_mode),
        ]

    def _update_left(self, m: Module, u: "_Stages") -> None:
        """Updates what is left of Th and the numbers selected: at a row's begin, a candidate, and a zoom."""
        beat, steps, walk, end = self.o.payload, u.steps, u.walk, u.selected
        left, left_first, hand = walk.left, walk.left_first, walk.hand
        with m.If(hand):
            m.d.sync += left.eq(walk.f_units)
        with m.Elif(steps.exhaust):
            m.d.sync += left.eq(left_first)
        with m.Elif(end.take & (u.decided.kind != Kind.ABOVE)):
            m.d.sync += left.eq(end.after)
        with m.Elif(walk.z_check & ~steps.z_crossed):
            m.d.sync += left.eq(walk.walk_rest)
        with m.If(hand | steps.z_crossed):
            m.d.sync += left_first.eq(Mux(hand, walk.f_units, left))
            m.d.sync += [end.clusters.eq(0), end.tokens.eq(0), steps.equal_done.eq(0)]
        with m.Elif(end.take):
            m.d.sync += [end.clusters.eq(beat.clusters), end.tokens.eq(beat.tokens)]
            with m.If(steps.equal_cross):
                m.d.sync += steps.equal_done.eq(1)

    def _next_back(self, m: Module, u: "_Stages") -> None:
        """Next state of the selecting pass."""
        hist, back, backs, steps, walk = u.memories.hist, u.state.back, u.state.backs, u.steps, u.walk
        code, found, rows, bin_cross = u.code, u.found, u.rows, u.walk.bin_cross
        bin_bits, low_bits = self.digits[0]
        m.d.comb += steps.grant.eq(backs[Back.OVER] & steps.quiet & ~hist.active & ~hist.part & u.take.z_free)
        with m.If(steps.finish):
            m.d.sync += back.eq(Back.IDLE)
        with m.Elif(steps.split):
            m.d.sync += [back.eq(Back.SERIAL), found.serial_word.eq(u.decided.word), found.serial_due.eq(1)]
        with m.Elif(steps.equal_cross):
            m.d.sync += back.eq(Back.SCAN)
        with m.Elif(steps.overflow | steps.exhaust):
            m.d.sync += back.eq(Back.OVER)
        with m.Elif(u.scan.end):
            m.d.sync += back.eq(Mux(backs[Back.Z_SCAN], Back.Z_TAIL, Back.POP))
        with m.Elif(walk.hand):
            m.d.sync += [back.eq(Back.SCAN), rows.sel.eq(rows.wait), rows.sel_all.eq(walk.all_now), code.level.eq(0)]
            m.d.sync += [code.prefix.eq(bin_cross << low_bits), code.known.eq(((1 << bin_bits) - 1) << low_bits)]
        with m.Elif(steps.grant):
            m.d.sync += back.eq(Back.Z_SCAN)
        with m.Elif(walk.z_start):
            m.d.sync += back.eq(Back.Z_WALK)
        with m.Elif(steps.z_crossed):
            m.d.sync += [back.eq(Back.SCAN), code.level.eq(code.level + 1)]
            with m.Switch(code.level):
                for k, (width, at) in enumerate(self.digits[1:]):
                    with m.Case(k):
                        m.d.sync += code.prefix.eq(code.prefix | (walk.bin2[:width] << at))
                        m.d.sync += code.known.eq(code.known | (((1 << width) - 1) << at))
        with m.If(found.serial_read):
            m.d.sync += found.serial_due.eq(0)

    def _next_front(self, m: Module, u: "_Stages") -> None:
        """Next state of the waiting row, and the start of new histograms."""
        front, fronts, walk, hist = u.state.front, u.state.fronts, u.walk, u.memories.hist
        cleared = Signal(self.digits[0][0])  # bins, after reset
        with m.Switch(front):
            with m.Case(Front.CLEAR):
                m.d.sync += cleared.eq(cleared + 1)
                with m.If(cleared.all()):
                    m.d.sync += front.eq(Front.IDLE)
            with m.Case(Front.IDLE):
                with m.If(u.take.move):
                    m.d.sync += front.eq(Front.START)
            with m.Case(Front.START):
                m.d.sync += front.eq(Front.TH)
            with m.Case(Front.TH, Front.SUM, Front.WALK, Front.PARK):
                with m.If(walk.hand):
                    m.d.sync += front.eq(Front.IDLE)
                with m.Elif(walk.offer):
                    m.d.sync += front.eq(Front.PARK)
                with m.Elif(fronts[Front.SUM]):
                    m.d.sync += front.eq(Front.WALK)
                with m.Elif(fronts[Front.TH] & u.take.th_last):
                    m.d.sync += front.eq(Front.SUM)
        # A histogram starts anew a cycle after its walk, before any word can reach it.
        stopped = reg(m, "stopped", walk.stop, reset_less=False)
        for s in range(hist.sets):
            other = u.rows.load_set != s if hist.sets == 2 else 1
            m.d.comb += hist.next[s].eq(fronts[Front.CLEAR] | (stopped & other))

    def _score_ports(self, m: Module, u: "_Stages") -> None:
        """Drives the ports of score memory: the row being loaded is never the one being selected."""
        take, word = u.take, u.word
        score_read = comb(m, "score_read", word.zoom_read | (word.read & ~u.found.pop))
        for k, score in enumerate(u.memories.scores):
            loads = comb(m, f"loads{k}", take.accept & (take.load_bank == k))
            m.d.comb += [
                score.en.eq(loads | (score_read & (u.rows.sel.bank == k))),
                score.write.eq(loads),
                score.addr.eq(Mux(loads, take.taken, word.read_word)),
                score.w_data.eq(self.i.payload.scores),
            ]

    def _count_ports(self, m: Module, u: "_Stages") -> None:
        """Drives the ports of count memory: reads ahead for words being loaded, and reads for words being selected."""
        p, take, word, steps, feeding = self.p, u.take, u.word, u.steps, u.state.feeding
        count, count2 = u.memories.count, u.memories.count2
        at = len(count.addr)
        select_read = comb(m, "select_read", steps.go & word.valid & u.chosen.send)
        selected = Mux(feeding, word.read_word, word.word)
        select_addr = comb(m, "select_addr", u.rows.sel.ctx * p.words + selected, at)
        load_addr = comb(m, "load_addr", self.i.payload.ctx * p.words + (take.taken + take.accept), at)
        front_addr = comb(m, "front_addr", Mux(feeding, select_addr, load_addr), at)
        ahead = ~take.counted & self.i.valid & ~feeding
        if not p.double_buffer:
            ahead = ahead & (~take.start | take.free)
        load_read = comb(m, "load_read", (take.accept & ~self.i.payload.last) | ahead)
        front_read = comb(m, "front_read", load_read | word.zoom_read)
        # A count that comes in uses the port: the read of a first word is repeated.
        lost = self.c.valid & self.c.ready
        m.d.sync += take.counted.eq((load_read | (take.counted & ~take.accept)) & ~steps.grant & ~lost)
        if p.double_buffer:
            lanes.count_port(m, p, self.c, count, front_read, front_addr)
            lanes.count_port(m, p, self.c, count2, select_read, select_addr)
        else:
            address = Mux(select_read, select_addr, front_addr)
            lanes.count_port(m, p, self.c, count, front_read | select_read, address)

    def _count_events(self, m: Module, u: "_Stages") -> None:
        self._count_when(
            m,
            rows=u.steps.finish,
            words=u.take.accept,
            walked=u.walk.check | u.walk.z_check,
            scanned=u.steps.scan_read,
            zooms=u.steps.grant,
        )


class _Memories:
    """The memories: codes, counts, the highest bin of each word, and the histogram."""

    def __init__(self, m: Module, p: WtuParams, bin_bits: int):
        self.scores = [SinglePortRam(p.score.bits * p.n_w, p.words, protect=p.protect) for _ in range(p.banks)]
        for k, score in enumerate(self.scores):
            m.submodules[f"score{k}"] = score
        self.tops = m.submodules.tops = Ram(bin_bits * p.group, p.banks * p.row_groups, p.group, p.protect)
        self.count = SinglePortRam(p.count_bits * p.n_w, p.n_ctx * p.words, p.n_w, p.protect)
        m.submodules.count = self.count
        # Loading and selecting read counts in the same cycle: a copy serves as second read port.
        self.count2 = self.count
        if p.double_buffer:
            self.count2 = SinglePortRam(p.count_bits * p.n_w, p.n_ctx * p.words, p.n_w, p.protect)
            m.submodules.count2 = self.count2
        self.hist = m.submodules.hist = WeightedHistogram(p, bin_bits)
        counts = [self.count, self.count2] if p.double_buffer else [self.count]
        self.all = [*self.scores, self.tops, *counts, self.hist]


class _Stages:
    """All parts of the unit, from the row that comes in to the beat that goes out."""

    def __init__(self, m: Module, p: WtuParams, memories: _Memories, digits: list[tuple[int, int]]):
        self.memories = memories
        self.state = _State(m)
        self.rows = _Rows(p)
        self.code = _Code(m, p, len(digits))
        self.steps = _Steps(p)
        self.take = _Take(p)
        self.word = _Word(p)
        self.walk = _Walk(p, memories.hist, digits[0][0])
        self.scan = _Scan(p)
        self.found = _Found(p)
        # The selecting pipeline.
        self.chosen = _Chosen(p)
        self.added = _Lanes(p, 2)
        self.weighed = _Lanes(p, 3)
        self.decided = _Lanes(p, 4)
        self.selected = _Selected(p)


class _State:
    """The states of the waiting row and of the selecting pass, decoded."""

    def __init__(self, m: Module):
        self.front = Signal(3, init=Front.CLEAR)
        self.back = Signal(3, init=Back.IDLE)
        self.fronts = [comb(m, f"front_{e.name.lower()}", self.front == e) for e in Front]
        self.backs = [comb(m, f"back_{e.name.lower()}", self.back == e) for e in Back]
        self.feeding = comb(m, "feeding", self.backs[Back.Z_SCAN] | self.backs[Back.Z_TAIL])  # a zoom uses the lanes
        self.zooming = comb(m, "zooming", self.feeding | self.backs[Back.Z_WALK])


class _Rows:
    """The rows inside: one being loaded, one waiting for its crossing bin, one being selected. Each has a bank."""

    def __init__(self, p: WtuParams):
        info = data.StructLayout(
            {"ctx": bits_for(p.n_ctx), "bank": bits_for(p.banks), "last": bits_for(p.words), "keep": bits_for(p.n_w)}
        )
        self.load, self.wait, self.sel = (Signal(info, name=n, reset_less=True) for n in ("load", "wait", "sel"))
        # Bank of the waiting row; selects words of `tops` also while no row waits.
        self.wait_bank = Signal(bits_for(p.banks))
        self.rows = Signal(2)  # number of rows inside
        self.full = Signal()  # the row in `load` is complete
        self.load_set = Signal()  # histogram set of that row
        self.sel_all = Signal()  # the row in `sel` is selected as a whole


class _Code:
    """The known part of the crossing code: its digits so far, and their mask."""

    def __init__(self, m: Module, p: WtuParams, digits: int):
        self.level = Signal(bits_for(digits))  # known digits, less one
        self.prefix = Signal(p.score.bits, reset_less=True)
        self.known = Signal(p.score.bits, reset_less=True)
        self.equal_mode = comb(m, "equal_mode", self.level == digits - 1)  # all digits are known: candidates are equal


class _Steps:
    """The events of a cycle."""

    def __init__(self, p: WtuParams):
        self.go = Signal()  # the selecting pipeline moves on
        self.hold = Signal()  # the first stage stays with its word
        self.quiet = Signal()  # the later stages are empty
        self.finish = Signal()  # the row's last beat is taken
        self.split = Signal()  # equal candidates cross
        self.overflow = Signal()  # more candidates than `list_limit`
        self.exhaust = Signal()  # the list is empty, and no candidate crossed
        self.equal_cross = Signal()  # equal candidates have crossed the threshold
        self.equal_done = Signal()  # equal candidates have crossed in this row
        self.scan_read = Signal()  # the scan reads
        self.scan_word = Signal(bits_for(p.words))  # the word that it reads
        self.crossed = Signal()  # the checked bin is the crossing one
        self.every = Signal()  # all codes are selected
        self.grant = Signal()  # a zoom begins
        self.z_crossed = Signal()  # the zoom has found its crossing digit


class _Take:
    """The word that comes in."""

    def __init__(self, p: WtuParams):
        self.taken = Signal(bits_for(p.words))  # number of the word in its row
        self.load_bank = Signal(bits_for(p.banks))  # bank of the row
        self.th_step = Signal(bits_for(p.th_steps), name="th_step") if p.th_steps > 1 else Const(0, 1)
        self.th_last: Signal
        self.start: Signal  # the word is the row's first
        self.accept: Signal
        self.move: Signal  # the complete row becomes the one that waits
        self.free: Value  # another row has a place
        self.z_free: Signal  # a zoom may have the lanes
        self.may_take: Signal
        # The counts of the word have been read: during the word before, or ahead for a row's first word.
        self.counted = Signal()


class _Word:
    """The word read from score memory."""

    def __init__(self, p: WtuParams):
        self.valid = Signal(name="s_valid")
        self.fresh = Signal(name="s_fresh")  # no lane of the word has gone on yet
        self.pop = Signal(name="s_pop")  # it holds the candidate in `lane`
        self.lane = Signal(bits_for(p.n_w), name="s_lane", reset_less=True)
        self.last = Signal(name="s_last")  # ends a row of equal candidates
        self.z_valid = Signal()  # the word is for a zoom
        self.word = Signal(bits_for(p.words), name="s_word", reset_less=True)
        self.code: list[Signal]
        self.end: Signal  # the word is the row's last
        self.above = Signal(p.n_w)  # lanes above the crossing code
        self.equal = Signal(p.n_w)  # candidates
        self.exists = Signal(p.n_w)
        self.read: Signal  # the next one is read
        self.read_word: Signal
        self.zoom_read: Signal  # the next word is read for a zoom


class _Walk:
    """The walk over the bins, and what is left of Th."""

    def __init__(self, p: WtuParams, hist: WeightedHistogram, bin_bits: int):
        self.top = Signal(bin_bits, reset_less=True)  # highest bin of the row
        self.walk_bin = Signal(bin_bits, reset_less=True)
        self.fresh3 = Signal()  # a word's highest bin is there
        self.first2 = Signal()
        self.first3 = Signal()  # `top3` belongs to a row's first word
        self.top3 = Signal(bin_bits, reset_less=True)
        self.f_all = Signal()  # the waiting row is selected as a whole
        self.f_bin = Signal(bin_bits, reset_less=True)  # crossing bin of the waiting row
        self.walk: Signal  # a bin is read
        self.stop: Signal
        self.z_start: Signal
        self.walk1 = Signal()
        self.walk2 = Signal()  # the sum of `bin2` is there
        self.bin1 = Signal(bin_bits, reset_less=True)
        self.bin2 = Signal(bin_bits, reset_less=True)
        self.check: Signal
        self.z_check: Signal  # the same in a zoom
        self.bin_cross: Signal
        self.left = Signal(hist.bin_sum_bits, reset_less=True)  # left of Th, of the row being selected
        self.left_first = Signal(hist.bin_sum_bits, reset_less=True)  # the same before its first candidate
        self.f_left = Signal(p.score.max_shift + hist.bin_sum_bits, reset_less=True)  # left of Th, of the waiting row
        self.f_units: Signal  # the same in units of the bin's exponent
        self.f_first: Signal  # Th
        self.down: Signal  # the next bin has a smaller exponent
        self.walk_rest: Signal  # left of Th behind the bin
        self.offer: Signal  # the row's crossing bin is known
        self.hand: Signal  # the row goes to the selecting pass
        self.all_now: Signal


class _Scan:
    """The scan for words that the selecting pass must read."""

    def __init__(self, p: WtuParams):
        self.at_bits = (p.group - 1).bit_length()  # bits of a word's place in its group
        self.group = Signal(bits_for(p.row_groups))
        self.seen = Signal(p.group)  # words of the group that were read
        self.hits = Signal(p.group)  # words still to be read
        self.hit: Signal  # the next of them
        self.hit_at: Signal
        self.last_group: Signal
        self.z_next: Signal  # a zoom's word has all its digits
        self.step: Signal
        self.end: Signal  # the row is read
        self.restart: Signal


class _Found:
    """The candidates of the word, and those in the list."""

    def __init__(self, p: WtuParams):
        self.todo = Signal(p.n_w, reset_less=True)  # candidates of the word not taken before
        self.todo_now: Signal
        self.candidate: Signal  # the lowest of them
        self.candidate_lane = Signal(bits_for(p.n_w))
        self.rest: Signal  # the other candidates
        self.insert: Signal  # the candidate goes into the list
        self.pop = Signal()  # the best one leaves the list
        self.tag = Signal(bits_for(p.words) + bits_for(p.n_w))  # word and lane of the best one
        self.low = Const(0, 1)  # low bits of the candidate's code
        self.serial_word = Signal(bits_for(p.words), reset_less=True)  # word to be taken lane by lane
        self.serial_due = Signal()  # this word must be read
        self.serial_read: Signal
        self.end_read = Signal()  # reads the last beat of a row of equal candidates


class _Chosen:
    """Stage 1: lanes that go on together."""

    def __init__(self, p: WtuParams):
        self.lanes = Signal(p.n_w)
        self.send = Signal()
        self.kind = Signal(2)
        self.code: Signal
        self.kill: Signal  # drop what is in the pipeline


class _Lanes:
    """Stages 2 to 4: the lanes, their tokens, their weight."""

    def __init__(self, p: WtuParams, n: int):
        def held(width, name):
            return Signal(width, name=f"{name}{n}", reset_less=True)

        self.valid = Signal(name=f"valid{n}")
        self.kind = held(2, "kind")
        self.last = held(1, "last")
        self.word = held(bits_for(p.words), "word")
        self.lanes = held(p.n_w, "lanes")
        self.clusters = held(bits_for(p.n_w + 1), "clusters")
        self.tokens = held(p.count_bits + (p.n_w - 1).bit_length(), "tokens")
        self.significand = held(p.score.significand_bits, "significand")
        self.weight = held(len(self.significand) + len(self.tokens), "weight")


class _Selected:
    """What the unit has selected of the row so far."""

    def __init__(self, p: WtuParams):
        n_bits = bits_for(p.clusters + 1)
        self.clusters = Signal(n_bits, reset_less=True)
        self.tokens = Signal(n_bits + p.count_bits, reset_less=True)
        self.after: Signal  # left of Th behind the beat
        self.take: Signal  # the beat is taken
