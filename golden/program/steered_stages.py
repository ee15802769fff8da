"""Writes Mosaic's steps that steer themselves, on a core whose STORE sets registers (`lxe.to_register`).

A step of `golden.program.cluster_stages` leaves a number, and a host reads it before it starts the next step. These
steps put the number into a register instead: the address of a row, or 1 or 0 for a loop that runs once or not at all.

=========  =============================================================================================================
step       what it leaves
=========  =============================================================================================================
`assign`   clusters that have taken one token after the other, up to the first that asks for a split; a verdict of each
`HALVE`    members in two halves by K-means: labels, weights, rounds that ran
=========  =============================================================================================================
"""

from collections.abc import Callable
from dataclasses import replace

from openvrex.golden.arithmetic.vector import ONE, Bank, Post, Reduce
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.cluster_stages import (
    DST,
    ENTRY,
    GO,
    HUGE,
    PAIR,
    ROWS,
    SRC,
    TAKE,
    TOP,
    ClusterCompiler,
    ClusterSizes,
    Found,
    at_register,
)
from openvrex.golden.program.compiler import semaphores
from openvrex.golden.program.isa import Opcode, StoreTo
from openvrex.golden.program.layer_memory import Array
from openvrex.golden.program.recipes import BANK, IMMEDIATE, STREAM, Scalar, imm, put
from openvrex.golden.retrieval.centroids import ROUNDS

SET = 4  # semaphore: the registers are set
VERDICTS = 2  # words of a verdict: NUMBER and MARGIN of `probe`
RAN = 0  # word of `answer` with the rounds of `halve`; its word TOP is the distance of the seeds
OFFSET = imm(2.0**23)  # added to an integer, it makes the integer the mantissa


def factors(size: int) -> tuple[int, int]:
    """An odd number and a shift whose product odd * 2^shift is the size."""
    shift = (size & -size).bit_length() - 1
    return size >> shift, shift


class SteeredCompiler(ClusterCompiler):
    """Writes the steps of a `MosaicPlan` that need no host in between."""

    def __init__(self, plan: ClusterSizes):
        super().__init__(plan)
        self.ran = self.free.pop()  # rounds of `halve`

    def set(self, to: int, scalar: Scalar, word: int, row: Array | None = None, signal: tuple[int, ...] = ()) -> None:
        """Register `to` = an integer in a scalar, or the address of row scalar / odd of an array (`factors`).

        word : of bank C, on the way
        """
        where = {}
        if row is not None:
            where = {"base": row.base, "addr": row.offset, "step": factors(row.size // row.shape[0])[1]}
        self.vector(**scalar.of("a"), imm_c=OFFSET, write=Bank.C, addr_d=word)
        self.out(1, True, word)
        self._emit(Opcode.STORE, target=StoreTo.X, wide=1, to=to, **where, **semaphores((), signal))

    def number_of_row(self, number: Scalar, to: Scalar, rows: Array) -> None:
        """to = what `set` needs for row N - `number` of an array, N being the plan's `above`."""
        above, (odd, _) = self.plan.above, factors(rows.size // rows.shape[0])
        put(self, to, **number.of("a"), imm_b=imm(-odd), imm_c=imm(above * odd))

    def assign(self) -> None:
        """Let the nearest clusters take ROWS directions from SRC on, whose entries are adjacent from ENTRY on.

        GO must be 1. A token that exceeds its cluster's threshold changes nothing; if `whole` has 1 for the cluster,
        the tokens behind it are not looked at. `verdicts` has two words for each token: NUMBER and MARGIN of `probe`.
        """
        self.end()
        for k in self.rounds(ROWS):
            with self.when(GO):
                with self.scalars(5) as found:
                    self._token(k, Found(*found))

    def _token(self, k: int, found: Found) -> None:
        p, n, tiles = self.plan, self.fmt.lanes, self.plan.tiles
        lane = self.places(lane=tiles).lane
        # Each round begins with the same half: the STOREs of the one before show that both have been read.
        self.half = 0
        self.begin()
        self.search(k, found)
        self.vector(tiles, a=BANK, write=Bank.B, addr_d=lane)
        with self.scalars(3) as (above, held, row):
            self.take(p["whole"], 0, tiles, b=BANK, reduce=Reduce.SUM, scalar_d=held.number)
            put(self, above, **found.margin.of("a"), negate_a=1, imm_b=imm(HUGE))
            put(self, above, op=VectorOp.MAX, **above.of("a"), imm_c=0)
            put(self, above, op=VectorOp.MIN, **above.of("a"), imm_c=ONE)
            put(self, held, **above.of("a"), negate_a=1, **held.of("b"), imm_c=ONE)
            put(self, above, **above.of("a"), negate_a=1, imm_c=ONE)
            self.number_of_row(found.number, row, p["centroids"])
            self.set(TAKE, above, 0)
            self.set(GO, held, 1)
            self.set(PAIR, row, 2, p.pairs)
            self.set(DST, row, 3, p["centroids"], (SET,))
        for word, scalar in ((4, found.number), (5, found.margin)):
            self.spread(scalar, word)
        self.give(p["verdicts"], k * VERDICTS * n, VERDICTS, 4)
        self._emit(Opcode.SYNC, **semaphores((SET,), ()))
        with self.when(TAKE):
            self._take(k, lane, found)
        self.end()

    def _take(self, k: int, lane: int, found: Found) -> None:
        """Let the cluster take token k. Bank B has 1 in the cluster's lane from word `lane` on."""
        p, n, tiles = self.plan, self.fmt.lanes, self.plan.tiles
        self.move(PAIR, ENTRY, k, self.shape.entry, found.share)
        self.move(DST, SRC, k, p.width, found.share)
        chosen = {"b": BANK, "addr_b": lane, "c": BANK}
        with self.scalars(1) as (half,):
            self.length(self.words, half)
            self.halved(half, half)
            for which, value in enumerate((half, found.variance, found.size)):
                self.take(p["stats"], which * n, 1, Bank.A | Bank.C, rows=tiles, stride=3 * n)
                self.vector(tiles, a=BANK, negate_a=1, **chosen, write=Bank.C)
                self.vector(tiles, **value.of("a"), **chosen, write=Bank.C)
                self.give(p["stats"], which * n, 1, rows=tiles, stride=3 * n)

    def seeds(self, which: int) -> None:
        """Of `HALVE`: find the first seed; make it a centre and find the second one; make that a centre."""
        p, seed = self.plan, at_register(DST, self.plan.width)
        first, second = ((self._one("centres", c), self._one("halves", c)) for c in range(2))
        if which == 2:
            self.centre(seed, *second)
            return
        self.seed(which, seed if which else p["middle"], *first)
        # Register DST = the address of the member that is farthest.
        with self.scalars(1) as (row,):
            self.number_of_row(self.seeded[1], row, p["y"])
            self.set(DST, row, 0, p["y"], (SET,))
        self._emit(Opcode.SYNC, **semaphores((SET,), ()))

    def _one(self, name: str, row: int) -> Array:
        """A row of an array as an array."""
        a = self.plan[name]
        size = a.size // a.shape[0]
        return replace(a, offset=a.offset + row * size, shape=(1, *a.shape[1:]))

    def first_round(self) -> None:
        """Of `HALVE`: labels by the seeds."""
        self.label(2)
        put(self, self.ran, a=IMMEDIATE, imm_a=ONE)

    def more_rounds(self) -> None:
        """Of `HALVE`: the other rounds. Those behind one that changes no label do not run."""
        state = self.half, self.side
        self.end()
        with self.loop(count=ROUNDS - 1), self.when(GO):
            self._round()
        self.begin()
        assert state == (self.half, self.side)  # the next round's are the same

    def _round(self) -> None:
        p, many = self.plan, self.many
        self.begin()
        for c in range(2):
            self._centre(c)
        self.end()
        self.begin()
        label = self.places(label=many).label
        self.take(p["labels"], 0, many, Bank.B, label)
        self.find_labels(2)
        both = {"b": BANK, "addr_b": label, "c": BANK, "addr_c": label}
        self.vector(many, a=IMMEDIATE, imm_a=imm(-1), **both, write=Bank.A | Bank.B)
        self.take(p["valid"], 0, many, Bank.A, a=BANK, b=STREAM)
        with self.scalars(1) as (changed,):
            self.vector(many, a=BANK, b=BANK, reduce=Reduce.SUM, scalar_d=changed.number)
            put(self, changed, op=VectorOp.MIN, **changed.of("a"), imm_c=ONE)
            put(self, self.ran, **self.ran.of("a"), imm_c=ONE)
            self.keep_labels(2)
            self.set(GO, changed, 0, None, (SET,))
        self._emit(Opcode.SYNC, **semaphores((SET,), ()))
        self.end()

    def _centre(self, c: int) -> None:
        """Move centre c to the mean of its members. A centre without members stays."""
        p, words = self.plan, self.words
        with self.scalars(3) as (count, some, none):
            self.sums(p["y"], p.width, self._one("weights", c), count)
            put(self, some, op=VectorOp.MIN, **count.of("a"), imm_c=ONE)
            put(self, none, **some.of("a"), negate_a=1, imm_c=ONE)
            put(self, count, op=VectorOp.MAX, **count.of("a"), imm_c=ONE)
            self.divide(words, count, Post.ROUND, Bank.A)
            self.vector(words, a=BANK, **some.of("b"), write=Bank.C)
            self.take(self._one("centres", c), 0, words, Bank.A | Bank.B, **none.of("b"), c=BANK)
        self.give(self._one("centres", c), 0, words)
        self.give_half(self._one("halves", c))

    def ended(self) -> None:
        """Of `HALVE`: leave the rounds that ran and the distance of the seeds in `answer`."""
        for word, scalar in ((RAN, self.ran), (TOP, self.seeded[0])):
            self.spread(scalar, word)
        self.give(self.plan["answer"], 0, 2)


# K-means of the ROWS entries gathered at SRC, with two centres, as `centroids.k_means`. GO must be 1. It leaves
# `labels` and `weights`. If the distance of the seeds is at most `EQUAL`, there is but one centre, and labels mean
# nothing.
HALVE: tuple[Callable[[SteeredCompiler], None], ...] = (
    lambda c: c.directions(c.plan["y"], c.plan["norms"]),
    lambda c: c.average(c.plan["middle"], 0, None, None),
    lambda c: c.seeds(0),
    lambda c: c.seeds(1),
    lambda c: c.seeds(2),
    SteeredCompiler.first_round,
    SteeredCompiler.more_rounds,
    SteeredCompiler.ended,
)
