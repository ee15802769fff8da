"""Dot product engine: N_DPE-h MAC trees that share their activations, behind streams."""

from typing import NamedTuple

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from openvrex.hdl.execution.dot_tree import DotTree, exponents_layout, significands_layout
from openvrex.hdl.leaf import place
from openvrex.hdl.memory import Ram, collect_errors
from openvrex.hdl.named import comb, reg
from openvrex.hdl.params import DpeParams, bits_for
from openvrex.hdl.queues import RESULTS
from openvrex.hdl.unit import Unit


def weight_layout(p: DpeParams) -> data.StructLayout:
    """A word of n_w BF16 weights for address `addr` of a tree; with `upto`, of all trees from 0 to `tree`.

    With `column`, number i of it goes to tree i, into lane `lane` of its word at `addr`: a transposed tile.
    """
    word = data.ArrayLayout(16, p.n_w)
    at = {"tree": bits_for(p.n_h), "addr": p.w_addr_bits}
    return data.StructLayout({**at, "column": 1, "lane": bits_for(p.n_w), "upto": 1, "data": word})


def activation_layout(p: DpeParams) -> data.StructLayout:
    """A word of n_w BF16 activations."""
    return data.StructLayout({"addr": p.x_addr_bits, "data": data.ArrayLayout(16, p.n_w)})


def command_layout(p: DpeParams) -> data.StructLayout:
    """`rows` + 1 rows of activations from word `x`, `x_step` words apart, against `tiles` + 1 tiles of weights.

    A row is `chunks` + 1 words, the last one of `keep` + 1 numbers; a tile is as many words of every tree. Tiles follow
    each other from word `w`. Each row goes through all tiles before the next one. `start` begins a sum with every row
    and tile; without it the sum before goes on. `end` gives a result after every row and tile. Addresses wrap.
    With `halves`, if `p.halves`, a word's sum is the larger of those of its halves.
    """
    counts = {"chunks": p.x_addr_bits, "tiles": p.w_addr_bits, "rows": p.x_addr_bits, "keep": bits_for(p.n_w)}
    at = {"w": p.w_addr_bits, "x": p.x_addr_bits, "x_step": p.x_addr_bits}
    return data.StructLayout({**at, **counts, "start": 1, "end": 1, **({"halves": 1} if p.halves else {})})


def result_layout(p: DpeParams) -> data.StructLayout:
    """FP32 results of one row against every tree's weights of one tile. `last`: the final result of its command."""
    return data.StructLayout({"data": data.ArrayLayout(32, p.n_h), "last": 1})


class Dpe(Unit):
    """Multiplies rows of activations by rows of weights: o[h] = the dot product of the row with tree h's weights.

    Weights and activations come in on `w` and `x` into memories; commands on `c` multiply them, and results leave on
    `o` in order. A command sees all words taken on `w` and `x` before it was taken itself. Do not write a word that a
    running command still reads: two cycles after `read` it is free. Two halves of a memory can take turns.

    Corner cases: a sum may go on over several commands, for at most 1,024 chunks from a start to its end. An address
    that wraps pulses `overrun`. Lanes beyond the row's `keep` count as zero.

    Parameters
    ----------
    p : DpeParams

    Members
    -------
    w : In(stream of `weight_layout`) : weights, a word a cycle, always taken
    x : In(stream of `activation_layout`) : activations, the same
    c : In(stream of `command_layout`) : commands
    o : Out(stream of `result_layout`) : results
    read : Out(1) : pulse for each command, in order: from the second cycle after it its words may be written
    overrun : Out(1) : pulse: an address has wrapped
    perf : Out(struct of 32-bit counters) : commands (`read`), results, chunks (steps of all trees), waits (cycles in
        which a chunk waits for room on `o`), overruns

    Latency: a row's result is offered 15 cycles after its last chunk is issued (`LATENCY`), the first chunk of a
        command one cycle after the command is taken. Exact in `sim.units.dpe_time.DpeTime`.
    Throughput: a chunk, n_h x n_w products, every cycle, across rows and commands, while results are taken. A command
        takes rows * tiles * ceil(K / n_w) cycles: 64 at the `core` preset for a row of 4,096 numbers against one tile.
    Raises: `ParamError` from `DpeParams`.
    Source: V-Rex section V-A; function: `golden.arithmetic.dot`.
    """

    LATENCY = DotTree.LATENCY + 3

    COUNTERS = ("commands", "results", "chunks", "waits", "overruns")

    def __init__(self, p: DpeParams):
        super().__init__(
            p,
            {
                "w": In(stream.Signature(weight_layout(p))),
                "x": In(stream.Signature(activation_layout(p))),
                "c": In(stream.Signature(command_layout(p))),
                "o": Out(stream.Signature(result_layout(p))),
                "read": Out(1),
                "overrun": Out(1),
            },
            p.protect,
        )

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
        step, give = _Step(p), _Give()
        self._issue(m, step, give)
        self._next_step(m, step)
        self._next_command(m, step)
        memories, issue1, shared = self._activations(m, step)
        written = self._weights(m, step)
        started = self._started(m, step, give)
        trees = [place(m, platform, f"tree{h}", DotTree, p) for h in range(p.n_h)]
        collect_errors(m, self, [*memories, *trees])
        self._trees(m, trees, written, issue1, started, shared)
        taken = self._results(m, trees, started.done1)
        m.d.sync += give.free.eq(give.free + taken - (step.issue & give.gives))
        self._count_later(
            m,
            commands=self.read,
            results=taken,
            chunks=step.issue,
            waits=step.running & ~step.issue,
            overruns=self.overrun,
        )
        return m

    def _issue(self, m: Module, step: "_Step", give: "_Give") -> None:
        """Issues a chunk if its result, should it give one, will have room."""
        command = step.command
        m.d.comb += [
            step.tile_end.eq(step.chunk == command.chunks),
            step.row_end.eq(step.tile_end & (step.tile == command.tiles)),
            give.gives.eq(step.tile_end & command.end),
            step.issue.eq(step.running & ~(give.gives & (give.free == 0))),
            step.done.eq(step.issue & step.row_end & (step.row == command.rows)),
            self.c.ready.eq(~step.running | step.done),
            step.x_next.eq(step.x_row + command.x_step),
        ]

    def _next_step(self, m: Module, step: "_Step") -> None:
        """Steps through the chunks of a tile, the tiles of a row, and the rows."""
        p, x_word, w_word = self.p, step.x_word, step.w_word
        tile_end, row_end, x_next = step.tile_end, step.row_end, step.x_next
        with m.If(step.issue):
            m.d.sync += [
                step.chunk.eq(Mux(tile_end, 0, step.chunk + 1)),
                step.tile.eq(Mux(row_end, 0, step.tile + tile_end)),
                step.row.eq(step.row + row_end),
                w_word.eq(Mux(row_end, step.command.w, w_word + 1)),
                x_word.eq(Mux(row_end, x_next, Mux(tile_end, step.x_row, x_word + 1))),
            ]
        with m.If(step.issue & row_end):
            m.d.sync += step.x_row.eq(x_next)
        # A step that goes beyond a memory's last word, unless it goes back to a first word.
        x_over = Mux(row_end, x_next[-1], ~tile_end & x_word.all()) if p.x_depth > 1 else ~tile_end
        w_over = w_word.all() & ~row_end if p.w_depth > 1 else ~row_end
        m.d.sync += [self.read.eq(step.done), self.overrun.eq(step.issue & ~step.done & (x_over | w_over))]

    def _next_command(self, m: Module, step: "_Step") -> None:
        c = self.c.payload
        with m.If(self.c.ready):
            m.d.sync += step.running.eq(self.c.valid)
        with m.If(self.c.valid & self.c.ready):
            m.d.sync += [
                step.command.eq(c),
                step.chunk.eq(0),
                step.tile.eq(0),
                step.row.eq(0),
                step.w_word.eq(c.w),
                step.x_word.eq(c.x),
                step.x_row.eq(c.x),
            ]

    def _activations(self, m: Module, step: "_Step") -> tuple[list[object], Signal, tuple[Signal, Signal]]:
        """Reads exponents with the issue, and significands two cycles later.

        Both pass a register that drives all trees, so each is decoded once. Returns the memories, the issue a cycle
        later, and these registers.
        """
        p, lanes = self.p, range(self.p.n_w)
        m.submodules.exponent_ram = exponent_ram = Ram(8 * p.n_w, p.x_depth, protect=p.protect)
        m.submodules.significand_ram = significand_ram = Ram(8 * p.n_w, p.x_depth, protect=p.protect)
        numbers = _marked(m, self.x.payload.data, "x_data")
        issue1 = reg(m, "issue1", step.issue, reset_less=False)
        issue2 = reg(m, "issue2", issue1, reset_less=False)
        x_word2 = reg(m, "x_word2", reg(m, "x_word1", step.x_word, when=step.issue), when=issue1)
        beyond = Cat(step.tile_end & (step.command.keep < i) for i in lanes)
        off = reg(m, "off", beyond, when=step.issue)  # lanes beyond the row
        m.d.comb += self.x.ready.eq(1)
        for memory, words, read, addr in (
            (exponent_ram, [v[7:15] for v in numbers], step.issue, step.x_word),
            (significand_ram, [Cat(v[:7], v[15]) for v in numbers], issue2, x_word2),
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
        with m.If(issue1):
            m.d.sync += [
                shared_exponents.exponent.as_value().eq(exponent_ram.r_data),
                shared_exponents.zero.eq(Cat(~v.any() for v in e)),
                shared_exponents.special.eq(Cat(v.all() for v in e) & ~off),
                shared_exponents.off.eq(off),
            ]
        special2 = reg(m, "special2", shared_exponents.special, when=issue2)
        with m.If(reg(m, "issue3", issue2, reset_less=False)):
            m.d.sync += [
                shared_significands.fraction.as_value().eq(Cat(v[:7] for v in s)),
                shared_significands.sign.eq(Cat(v[7] for v in s)),
                shared_significands.special.eq(special2),
                shared_significands.nan.eq((special2 & Cat(v[6] for v in s)).any()),
            ]
        return [exponent_ram, significand_ram], issue1, (shared_exponents, shared_significands)

    def _weights(self, m: Module, step: "_Step") -> "_Written":
        """Prepares a word of weights for the trees: a row's word or, of a column, one number in every lane and 0
        elsewhere. It is written a cycle after it was taken, which still is before a command reads it.
        """
        w = data.View(weight_layout(self.p), reg(m, "w_taken", self.w.payload.as_value(), when=self.w.valid))
        valid = reg(m, "w_comes", self.w.valid, reset_less=False)
        numbers = _marked(m, w.data, "w_data")
        weights = comb(m, "weights", Mux(w.column, 0, Cat(numbers)), 16 * self.p.n_w)
        lane = comb(m, "lane", Mux(w.column, 1 << w.lane, -1), self.p.n_w)
        m.d.comb += [
            step.first.eq((step.chunk == 0) & step.command.start),
            self.w.ready.eq(1),
        ]
        return _Written(w, valid, numbers, weights, lane)

    def _started(self, m: Module, step: "_Step", give: "_Give") -> "_Started":
        """Registers the fields of the issued chunk that the trees need."""
        return _Started(
            w_word1=reg(m, "w_word1", step.w_word, when=step.issue),
            halves1=reg(m, "halves1", step.command.halves, when=step.issue) if self.p.halves else None,
            first1=reg(m, "first1", step.first, reset_less=False),
            gives1=reg(m, "gives1", give.gives, reset_less=False),
            done1=reg(m, "done1", step.done, reset_less=False),
        )

    def _trees(
        self,
        m: Module,
        trees: list[object],
        written: "_Written",
        issue1: Signal,
        started: "_Started",
        shared: tuple[Signal, Signal],
    ) -> None:
        n_w, w = self.p.n_w, written.w
        for h, tree in enumerate(trees):
            own = Signal(16, name=f"column{h}")
            if h < n_w:
                m.d.comb += own.eq(Mux(w.column, written.numbers[h], 0))
            takes = Mux(w.column, h < n_w, Mux(w.upto, w.tree >= h, w.tree == h))
            m.d.comb += [
                tree.w_en.eq(Mux(written.valid & takes, written.lane, 0)),
                tree.w_addr.eq(w.addr),
                tree.w_data.as_value().eq(written.weights | own.replicate(n_w)),
                tree.r_en.eq(issue1),
                tree.r_addr.eq(started.w_word1),
                tree.first.eq(started.first1),
                tree.last.eq(started.gives1),
                tree.exponents.eq(shared[0]),
                tree.significands.eq(shared[1]),
                *([tree.halves.eq(started.halves1)] if self.p.halves else []),
            ]

    def _results(self, m: Module, trees: list[object], last: Signal) -> Value:
        """Queues the results, each with the end of its command; returns whether one is taken."""
        fifo = m.submodules.fifo = SyncFIFOBuffered(width=result_layout(self.p).size, depth=RESULTS)
        for k in range(DotTree.LATENCY):
            last = reg(m, f"last{k + 1}", last, reset_less=False)
        m.d.comb += [
            fifo.w_en.eq(trees[0].o_en),
            fifo.w_data.eq(Cat(*[tree.o for tree in trees], last)),
            self.o.payload.as_value().eq(fifo.r_data),
            self.o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.o.ready),
        ]
        return self.o.valid & self.o.ready


class _Step:
    """The chunk that is issued, of the current command."""

    def __init__(self, p: DpeParams):
        self.command = Signal(command_layout(p))
        self.running = Signal()
        self.chunk = Signal(p.x_addr_bits)
        self.tile = Signal(p.w_addr_bits)
        self.row = Signal(p.x_addr_bits)
        self.w_word = Signal(p.w_addr_bits)
        self.x_word = Signal(p.x_addr_bits)
        self.x_row = Signal(p.x_addr_bits)  # first word of the row
        self.x_next = Signal(p.x_addr_bits + 1)  # first word of the next row
        self.first = Signal()  # the chunk begins a sum
        self.tile_end = Signal()
        self.row_end = Signal()
        self.issue = Signal()
        self.done = Signal()  # the chunk is the command's last


class _Give:
    """Room for results."""

    def __init__(self):
        # Free places for results, without those reserved for results on their way.
        self.free = Signal(range(RESULTS + 1), init=RESULTS)
        self.gives = Signal()  # the chunk is the last of a result


class _Written(NamedTuple):
    """A word of weights, as it was taken."""

    w: data.View
    valid: Signal
    numbers: list[Signal]
    weights: Signal  # word of a row; 0 for a column
    lane: Signal  # lanes to write


class _Started(NamedTuple):
    """The chunk of the cycle before."""

    w_word1: Signal
    halves1: Signal | None  # if there are halves
    first1: Signal
    gives1: Signal
    done1: Signal


def _marked(m: Module, word: data.View, name: str) -> list[Signal]:
    """The numbers of a word, with the highest fraction bit of NaNs set: `DotTree` recognises them by it."""
    out = []
    for i in range(len(word)):
        nan = word[i][7:15].all() & word[i][:7].any()
        out.append(comb(m, f"{name}{i}", Cat(word[i][:6], word[i][6] | nan, word[i][7:])))
    return out
