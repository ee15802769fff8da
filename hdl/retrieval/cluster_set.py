"""Cluster set: the union of the rows of a query block."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from openvrex.hdl.memory import Ram, collect_errors
from openvrex.hdl.params import KvmuParams, WtuParams, bits_for
from openvrex.hdl.unit import Unit


def mask_layout(p: WtuParams) -> data.StructLayout:
    """Part of a row's selection: clusters addr * n_w + i for the set bits i of `mask`.

    `row_last`, `set_last`: the final beat of the row, the final row of the set. `set_last` counts only in a beat with
    `row_last`, so it may be high throughout the last row.
    """
    return data.StructLayout({"addr": bits_for(p.words), "mask": p.n_w, "row_last": 1, "set_last": 1})


def cluster_layout(p: WtuParams | KvmuParams) -> data.StructLayout:
    """A cluster of a set. `last`: the final one of its set. `empty`: the set has no cluster, and `cluster` is 0."""
    return data.StructLayout({"cluster": p.cluster_bits, "last": 1, "empty": 1})


class ClusterSet(Unit):
    """ORs the selections of all rows of a query block, and lists the clusters of the union in ascending order.

    Masks of n_w clusters come in on `i`, the words of a row in any order. The unit ORs them into one memory, and keeps
    the lowest and the highest word touched. After the beat that ends the set it reads the words between these two,
    and offers each cluster once on `o`. It writes a zero behind each word that it has read, so the memory is empty
    again for the next set. While the clusters of a word wait, the unit reads on to the next word that is not zero.
    The unit forwards a word that it reads while it writes it.

    Corner cases: a set without clusters gives one beat with `empty`. Rows of the next set wait until the set is
    listed. After a reset the unit clears the memory before it takes a row; a protected memory clears itself in the
    reset.

    Parameters
    ----------
    p : WtuParams

    Members
    -------
    i : In(stream of `mask_layout`) : rows in any order of their words
    o : Out(stream of `cluster_layout`) : every cluster of a set once, ascending, one beat with `empty` if it has none
    idle : Out(1) : every complete set is listed
    perf : Out(struct of 32-bit counters modulo 2^32) : sets, clusters (listed)

    Latency: 4 cycles from the beat that ends a set to its first cluster, 2 to the beat of an empty set. `i` is ready
    `clusters / n_w` + 1 cycles after a reset, at once if the memory is protected.
    Throughput: a beat of `i` every cycle, and the next set's first beat 1 cycle after the set's last on `o`. A cluster
    a cycle, but the first clusters of two words are at least the distance of the words apart. So a list takes
    max(clusters, words) cycles at least, and clusters + words at most, with the words from the lowest to the highest
    touched. A set of 64 beats whose union has 200 clusters, some in each of 64 words, takes 64 + 3 + 200 cycles.
    Raises: `ParamError` from `WtuParams`.
    Source: V-Rex section IV-C ("aggregated across all rows").
    """

    COUNTERS = ("sets", "clusters")

    def __init__(self, p: WtuParams):
        super().__init__(
            p,
            {
                "i": In(stream.Signature(mask_layout(p))),
                "o": Out(stream.Signature(cluster_layout(p))),
                "idle": Out(1),
            },
            p.protect,
        )

    @staticmethod
    def timing(p: WtuParams) -> dict[str, str]:
        """Formulas for the manifest."""
        listing = "1 if the set is empty else between max(clusters, words) and clusters + words"
        return {
            "latency": "2 if the set is empty else 4",
            "interval": "beats + latency + listing - 1",
            "listing": listing,
            "clearing": str(p.words + 1 if p.protect == "none" else 0),
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.bank = bank = Ram(p.n_w, p.words, protect=p.protect)
        collect_errors(m, self, [bank])
        turn, row, scan, out = _Turn(p), _Row(p), _Scan(p), _Out(p)
        self._add(m, bank, turn, row)
        self._scan(m, bank, turn, row, scan, out)
        self._offer(m, bank, scan, out)
        self._take_turns(m, turn, row, scan, out)
        self._ports(m, bank, turn, row, scan)
        done = Signal()  # the set is listed
        m.d.comb += done.eq(out.step & self.o.payload.last)
        self._count_when(m, sets=done, clusters=out.step & ~out.empty)
        return m

    def _add(self, m: Module, bank: Ram, turn: "_Turn", row: "_Row") -> None:
        """Reads the word of a beat, ORs the beat's mask into it, and writes it a cycle later."""
        beat, part = self.i.payload, row.part
        m.d.comb += [
            self.i.ready.eq(turn.takes),
            row.moves.eq(self.i.valid & self.i.ready),
            row.word.eq(part.mask | Mux(part.again, row.wrote, bank.r_data)),
            row.touches.eq(part.valid & (part.mask != 0)),
        ]
        m.d.sync += [
            part.valid.eq(row.moves),
            part.addr.eq(beat.addr),
            part.mask.eq(beat.mask),
            # The word is being written while it is read.
            part.again.eq(part.valid & (part.addr == beat.addr)),
            row.wrote.eq(row.word),
        ]

    def _scan(self, m: Module, bank: Ram, turn: "_Turn", row: "_Row", scan: "_Scan", out: "_Out") -> None:
        """Keeps the words touched, and reads them in turn once the set is listed."""
        addr = row.part.addr
        zero = Signal()  # the word that waits has no cluster
        m.d.comb += [
            zero.eq(turn.clears | (bank.r_data == 0)),
            scan.used.eq(scan.ahead & (zero | (out.left == 0) | (out.step & (out.rest == 0)))),
            scan.load.eq(scan.used & ~zero),
            scan.look.eq(turn.lists & scan.more & (~scan.ahead | scan.used)),
        ]
        with m.If(row.touches):
            m.d.sync += scan.more.eq(1)
            with m.If(~scan.more | (addr < scan.low)):
                m.d.sync += scan.low.eq(addr)
            with m.If(~scan.more | (addr > scan.high)):
                m.d.sync += scan.high.eq(addr)
        with m.If(scan.used):
            m.d.sync += scan.ahead.eq(0)
        with m.If(scan.look):
            m.d.sync += [
                scan.ahead.eq(1),
                scan.ahead_at.eq(scan.low),
                scan.low.eq(scan.low + 1),
                scan.more.eq(scan.low != scan.high),
            ]

    def _offer(self, m: Module, bank: Ram, scan: "_Scan", out: "_Out") -> None:
        """Offers the lowest cluster left of the current word."""
        left = out.left
        lane = Signal(bits_for(self.p.n_w))
        m.d.comb += [
            lane.eq(self._lowest(m, left)),
            out.rest.eq(left & (left - 1)),
            self.o.valid.eq((left != 0) | out.empty),
            self.o.payload.cluster.eq(Mux(out.empty, 0, out.at * self.p.n_w + lane)),
            self.o.payload.last.eq(out.empty | ((out.rest == 0) & (out.at == scan.high))),
            self.o.payload.empty.eq(out.empty),
            out.step.eq(self.o.valid & self.o.ready),
        ]
        with m.If(out.step):
            m.d.sync += left.eq(out.rest)
        with m.If(scan.load):
            m.d.sync += [left.eq(bank.r_data), out.at.eq(scan.ahead_at)]

    def _take_turns(self, m: Module, turn: "_Turn", row: "_Row", scan: "_Scan", out: "_Out") -> None:
        """Takes the rows of a set, waits a cycle until the last word is written, lists the set, and starts again."""
        beat = self.i.payload
        m.d.comb += [
            self.idle.eq(turn.takes | turn.clears),
            turn.over.eq((out.step & self.o.payload.last) | (turn.clears & scan.ahead & ~scan.more)),
        ]
        with m.If(row.moves & beat.row_last & beat.set_last):
            m.d.sync += turn.takes.eq(0)
        with m.Elif(~turn.takes & ~turn.lists):
            m.d.sync += [turn.lists.eq(1), out.empty.eq(~scan.more & ~row.touches)]
        with m.Elif(turn.over):
            m.d.sync += [turn.takes.eq(1), turn.lists.eq(0), turn.clears.eq(0), out.empty.eq(0)]

    def _ports(self, m: Module, bank: Ram, turn: "_Turn", row: "_Row", scan: "_Scan") -> None:
        """Gives the memory to the rows, or to the list, which writes a zero behind itself."""
        m.d.comb += [
            bank.r_en.eq(row.moves | scan.look),
            bank.r_addr.eq(Mux(turn.lists, scan.low, self.i.payload.addr)),
            bank.w_en.eq(row.touches | scan.used),
            bank.w_addr.eq(Mux(turn.lists, scan.ahead_at, row.part.addr)),
            bank.w_data.eq(Mux(turn.lists, 0, row.word)),
        ]

    @staticmethod
    def _lowest(m: Module, bits: Signal) -> Value:
        """The index of the lowest set bit: a binary tree."""
        nodes: list[tuple[Value, Value | int]] = [(bits[i], i) for i in range(len(bits))]
        level = 0
        while len(nodes) > 1:
            pairs, rest = [], nodes[len(nodes) & ~1 :]
            for j in range(0, len(nodes) - 1, 2):
                (a, ia), (b, ib) = nodes[j], nodes[j + 1]
                some = Signal(name=f"lane{level}_{j}_some")
                index = Signal(bits_for(len(bits)), name=f"lane{level}_{j}_index")
                m.d.comb += [some.eq(a | b), index.eq(Mux(a, ia, ib))]
                pairs.append((some, index))
            nodes, level = pairs + rest, level + 1
        return nodes[0][1]


class _Turn:
    """What the unit does: it takes rows or lists a set; in the cycle between, it writes the last word of the rows.

    After a reset it lists all words as if they were zero, which clears them.
    """

    def __init__(self, p: WtuParams):
        clears = p.protect == "none"
        self.takes = Signal(init=not clears)  # the unit takes rows
        self.lists = Signal(init=clears)  # the unit reads the words touched, and offers their clusters
        self.clears = Signal(init=clears)  # the words count as zero, after a reset
        self.over = Signal()  # the list ends


class _Row:
    """The word of a row to which the unit adds a mask."""

    def __init__(self, p: WtuParams):
        self.moves = Signal()  # a beat of a row is taken
        self.part = Signal(  # that beat, a cycle later. again: the beat before had the same word
            data.StructLayout({"valid": 1, "addr": bits_for(p.words), "mask": p.n_w, "again": 1})
        )
        self.touches = Signal()  # the beat in `part` has a cluster
        self.word = Signal(p.n_w)  # word to write
        self.wrote = Signal(p.n_w)  # `word` in the cycle before


class _Scan:
    """The words touched, and the reading of them."""

    def __init__(self, p: WtuParams):
        clears = p.protect == "none"
        self.more = Signal(init=clears)  # words from `low` to `high` are to be read
        self.low = Signal(bits_for(p.words))  # lowest word touched; in a list, the next word to read
        self.high = Signal(bits_for(p.words), init=p.words - 1 if clears else 0)  # highest word touched
        self.look = Signal()  # the unit reads word `low`
        self.ahead = Signal()  # a word has been read, and waits until the clusters before it are taken
        self.ahead_at = Signal(bits_for(p.words))  # address of the word that waits
        self.used = Signal()  # the word that waits is loaded, or dropped as zero
        self.load = Signal()  # the clusters of the word that waits are offered from the next cycle on


class _Out:
    """The clusters that the unit offers, of one word at a time."""

    def __init__(self, p: WtuParams):
        self.empty = Signal()  # the set has no cluster
        self.left = Signal(p.n_w)  # clusters of the word that are not taken yet
        self.at = Signal(bits_for(p.words))  # address of the word
        self.rest = Signal(p.n_w)  # `left` without its lowest cluster
        self.step = Signal()  # a cluster is taken, or the beat of an empty set
