"""Dot product engine: N_DPE-h MAC trees that share their activations, behind streams."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.dot_tree import DotTree, exponents_layout, significands_layout
from hdl.leaf import place
from hdl.memory import collect_errors, error_members, ram
from hdl.params import DpeParams, bits_for


def weight_layout(p: DpeParams) -> data.StructLayout:
    """A word of n_w BF16 weights for address `addr` of a tree.

    With `column`, number i of it goes to tree i, into lane `lane` of its word at `addr`: a transposed tile.
    """
    word = data.ArrayLayout(16, p.n_w)
    at = {"tree": bits_for(p.n_h), "addr": p.w_addr_bits}
    return data.StructLayout({**at, "column": 1, "lane": bits_for(p.n_w), "data": word})


def activation_layout(p: DpeParams) -> data.StructLayout:
    """A word of n_w BF16 activations."""
    return data.StructLayout({"addr": p.x_addr_bits, "data": data.ArrayLayout(16, p.n_w)})


def command_layout(p: DpeParams) -> data.StructLayout:
    """`rows` + 1 rows of activations from word `x`, `x_step` words apart, against `tiles` + 1 tiles of weights.

    A row is `chunks` + 1 words, the last one of `keep` + 1 numbers, a tile as many words of every tree; tiles follow
    each other from word `w`. Each row goes through all tiles before the next one. `start` begins a sum with every row
    and tile, else the one before goes on; `end` gives a result after every row and tile. Addresses wrap.
    """
    counts = {"chunks": p.x_addr_bits, "tiles": p.w_addr_bits, "rows": p.x_addr_bits, "keep": bits_for(p.n_w)}
    at = {"w": p.w_addr_bits, "x": p.x_addr_bits, "x_step": p.x_addr_bits}
    return data.StructLayout({**at, **counts, "start": 1, "end": 1})


def result_layout(p: DpeParams) -> data.StructLayout:
    """FP32 of one row against every tree's weights of one tile; `last` with the last of a command."""
    return data.StructLayout({"data": data.ArrayLayout(32, p.n_h), "last": 1})


class Dpe(wiring.Component):
    """Rows of activations times rows of weights: o[h] = the dot product of the row with tree h's weights.

    Weights and activations are written into memories, then commands multiply them. A command uses what was taken on
    `w` and `x` before it was taken itself. A word that a running command still reads must not be written: `read` tells
    when it is free; two halves of a memory take turns.
    A sum may be carried over commands: at most 1,024 chunks from a start to its end.

    Parameters
    ----------
    p : DpeParams

    Members
    -------
    w : In(stream of `weight_layout`) : weights, a word a cycle, always taken
    x : In(stream of `activation_layout`) : activations, the same
    c : In(stream of `command_layout`) : commands
    o : Out(stream of `result_layout`) : results
    read : Out(1) : pulse for each command, in order: its words have been read for the last time
    overrun : Out(1) : pulse: an address has wrapped
    perf : Out(struct of 32-bit counters) : commands (`read`), results, chunks (steps of all trees), waits (cycles in
        which a chunk waits for room on `o`), overruns

    Latency: a row's result is offered 15 cycles after its last chunk is issued (`LATENCY`), the first chunk of a
        command one cycle after the command is taken. Exact in `sim.dpe.DpeTime`.
    Throughput: a chunk, n_h x n_w products, every cycle, across rows and commands, while results are taken.
    Raises: `ParamError` from `DpeParams`.
    Source: V-Rex section V-A; function: `golden.dot`.
    """

    LATENCY = DotTree.LATENCY + 3
    ROOM = 16  # results that wait; as many as can be on their way, so that results of one chunk keep the full rate

    def __init__(self, p: DpeParams):
        self.p = p
        super().__init__(
            {
                "w": In(stream.Signature(weight_layout(p))),
                "x": In(stream.Signature(activation_layout(p))),
                "c": In(stream.Signature(command_layout(p))),
                "o": Out(stream.Signature(result_layout(p))),
                "read": Out(1),
                "overrun": Out(1),
                "perf": Out(data.StructLayout(dict.fromkeys(self.counters(), 32))),
                **error_members(p.protect),
            }
        )

    @staticmethod
    def counters() -> list[str]:
        """Names of the performance counters in `perf`."""
        return ["commands", "results", "chunks", "waits", "overruns"]

    @staticmethod
    def timing(p: DpeParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "latency": f"{Dpe.LATENCY} from a row's last chunk to its result",
            "interval": f"rows * tiles * ceil(K / {p.n_w}) cycles a command",
            "products": f"{p.n_h * p.n_w} a cycle",
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        lanes = range(p.n_w)

        # The chunk that is issued: words of the command in hand.
        command = Signal(command_layout(p))
        running = Signal()
        chunk = Signal(p.x_addr_bits)
        tile = Signal(p.w_addr_bits)
        row = Signal(p.x_addr_bits)
        w_word = Signal(p.w_addr_bits)
        x_word = Signal(p.x_addr_bits)
        x_row = Signal(p.x_addr_bits)  # first word of the row
        x_next = Signal(p.x_addr_bits + 1)  # of the next row
        tile_end = Signal()
        row_end = Signal()
        issue = Signal()
        done = Signal()
        free = Signal(range(self.ROOM + 1), init=self.ROOM)  # of the results' room, less what is on its way
        gives = Signal()
        m.d.comb += [
            tile_end.eq(chunk == command.chunks),
            row_end.eq(tile_end & (tile == command.tiles)),
            gives.eq(tile_end & command.end),
            issue.eq(running & ~(gives & (free == 0))),
            done.eq(issue & row_end & (row == command.rows)),
            self.c.ready.eq(~running | done),
            x_next.eq(x_row + command.x_step),
        ]
        with m.If(issue):
            m.d.sync += [
                chunk.eq(Mux(tile_end, 0, chunk + 1)),
                tile.eq(Mux(row_end, 0, tile + tile_end)),
                row.eq(row + row_end),
                w_word.eq(Mux(row_end, command.w, w_word + 1)),
                x_word.eq(Mux(row_end, x_next, Mux(tile_end, x_row, x_word + 1))),
            ]
        with m.If(issue & row_end):
            m.d.sync += x_row.eq(x_next)
        # Where a step goes beyond a memory's last word, and not back to a first one.
        x_over = Mux(row_end, x_next[-1], ~tile_end & x_word.all()) if p.x_depth > 1 else ~tile_end
        w_over = w_word.all() & ~row_end if p.w_depth > 1 else ~row_end
        m.d.sync += [self.read.eq(done), self.overrun.eq(issue & ~done & (x_over | w_over))]
        with m.If(self.c.ready):
            m.d.sync += running.eq(self.c.valid)
        with m.If(self.c.valid & self.c.ready):
            m.d.sync += [
                command.eq(self.c.payload),
                chunk.eq(0),
                tile.eq(0),
                row.eq(0),
                w_word.eq(self.c.payload.w),
                x_word.eq(self.c.payload.x),
                x_row.eq(self.c.payload.x),
            ]

        # Activations: exponents are read with the issue, significands a cycle later. Both pass a register, from which
        # all trees are driven: what is decoded here is decoded once.
        exponent_ram = ram(m, platform, "exponent_ram", 8 * p.n_w, p.x_depth, protect=p.protect)
        significand_ram = ram(m, platform, "significand_ram", 8 * p.n_w, p.x_depth, protect=p.protect)
        numbers = _marked(m, self.x.payload.data, "x_data")
        issue1 = Signal()
        x_word1 = Signal(p.x_addr_bits)
        off = Signal(p.n_w)  # lanes beyond the row
        m.d.sync += [issue1.eq(issue), x_word1.eq(x_word)]
        m.d.sync += off.eq(Cat(tile_end & (command.keep < i) for i in lanes))
        m.d.comb += self.x.ready.eq(1)
        for memory, words, read, addr in (
            (exponent_ram, [v[7:15] for v in numbers], issue, x_word),
            (significand_ram, [Cat(v[:7], v[15]) for v in numbers], issue1, x_word1),
        ):
            m.d.comb += [
                memory.w_en.eq(self.x.valid),
                memory.w_addr.eq(self.x.payload.addr),
                memory.w_data.eq(Cat(words)),
            ]
            m.d.comb += [memory.r_en.eq(read), memory.r_addr.eq(addr)]
        shared_exponents = Signal(exponents_layout(p), reset_less=True)
        shared_significands = Signal(significands_layout(p), reset_less=True)
        e = [exponent_ram.r_data.word_select(i, 8) for i in lanes]
        s = [significand_ram.r_data.word_select(i, 8) for i in lanes]
        m.d.sync += [
            shared_exponents.exponent.as_value().eq(exponent_ram.r_data),
            shared_exponents.zero.eq(Cat(~v.any() for v in e)),
            shared_exponents.special.eq(Cat(v.all() for v in e) & ~off),
            shared_exponents.off.eq(off),
            shared_significands.fraction.as_value().eq(Cat(v[:7] for v in s)),
            shared_significands.sign.eq(Cat(v[7] for v in s)),
            shared_significands.special.eq(shared_exponents.special),
            shared_significands.nan.eq((shared_exponents.special & Cat(v[6] for v in s)).any()),
        ]

        # The trees.
        # A tree's data is a row's word or, in every lane, its number of a column, the other being 0.
        numbers = _marked(m, self.w.payload.data, "w_data")
        column = self.w.payload.column
        weights = Signal(16 * p.n_w)
        lane = Signal(p.n_w)
        first = Signal()
        m.d.comb += [
            weights.eq(Mux(column, 0, Cat(numbers))),
            lane.eq(Mux(column, 1 << self.w.payload.lane, -1)),
            first.eq((chunk == 0) & command.start),
            self.w.ready.eq(1),
        ]
        w_word1, first1, gives1, done1 = (
            Signal(len(v), name=f"{n}1")
            for n, v in (("w_word", w_word), ("first", first), ("gives", gives), ("done", done))
        )
        m.d.sync += [w_word1.eq(w_word), first1.eq(first), gives1.eq(gives), done1.eq(done)]
        trees = [place(m, platform, f"tree{h}", DotTree, p) for h in range(p.n_h)]
        collect_errors(m, self, [exponent_ram, significand_ram, *trees])
        for h, tree in enumerate(trees):
            own = Signal(16, name=f"column{h}")
            if h < p.n_w:
                m.d.comb += own.eq(Mux(column, numbers[h], 0))
            takes = Mux(column, h < p.n_w, self.w.payload.tree == h)
            m.d.comb += [
                tree.w_en.eq(Mux(self.w.valid & takes, lane, 0)),
                tree.w_addr.eq(self.w.payload.addr),
                tree.w_data.as_value().eq(weights | own.replicate(p.n_w)),
                tree.r_en.eq(issue1),
                tree.r_addr.eq(w_word1),
                tree.first.eq(first1),
                tree.last.eq(gives1),
                tree.exponents.eq(shared_exponents),
                tree.significands.eq(shared_significands),
            ]
        fifo = m.submodules.fifo = SyncFIFOBuffered(width=result_layout(p).size, depth=self.ROOM)
        last = done1
        for k in range(DotTree.LATENCY):
            stage = Signal(name=f"last{k + 1}")
            m.d.sync += stage.eq(last)
            last = stage
        m.d.comb += [
            fifo.w_en.eq(trees[0].o_en),
            fifo.w_data.eq(Cat(*[tree.o for tree in trees], last)),
            self.o.payload.as_value().eq(fifo.r_data),
            self.o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.o.ready),
        ]
        taken = self.o.valid & self.o.ready
        m.d.sync += free.eq(free + taken - (issue & gives))
        for name, event in (
            ("commands", self.read),
            ("results", taken),
            ("chunks", issue),
            ("waits", running & ~issue),
            ("overruns", self.overrun),
        ):
            m.d.sync += self.perf[name].eq(self.perf[name] + event)
        return m


def _marked(m: Module, word: data.View, name: str) -> list[Signal]:
    """The numbers of a word, of NaNs with their fraction's highest bit set: what `DotTree` tells them by."""
    out = []
    for i in range(len(word)):
        v = Signal(16, name=f"{name}{i}")
        nan = word[i][7:15].all() & word[i][:7].any()
        m.d.comb += v.eq(Cat(word[i][:6], word[i][6] | nan, word[i][7:]))
        out.append(v)
    return out
