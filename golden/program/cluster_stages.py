"""Writes what Mosaic decides about clusters as programs: directions, nearest centroid, variance, means, K-means, codes.

Each method of `ClusterCompiler` writes one step of `golden.retrieval.centroids`, with its roundings. A step takes its
operands from memory and leaves its results there, so that a host may act between two steps. It never computes a number
itself: it reads which cluster, which member or whether, and puts addresses into registers.

====================  ===============================================================================================
step                  what it leaves
====================  ===============================================================================================
`copy`                entries at another place
`directions`          directions of keys, and their squared lengths
`visit`               sum, number and mean of the keys of a visual cluster, with more keys
`probe`               of a direction: nearest open centroid; threshold less grown variance; what `absorb` needs
`absorb`              a cluster's centroid, pair and statistics, with one more member
`average`             mean of some members
`seed`                a seed of K-means, and the member farthest from all seeds
`label`               nearest centre of each member, and the members of each centre
`put`                 a cluster's centroid, pair and statistics, from its members
`query`               mean of the queries of a pass
`codes`               score codes of mean keys
====================  ===============================================================================================

A number that a member or a cluster has once fills a word, in all lanes: so members are words of a bank, and the VPE
needs no lane of another. A cluster's statistics are one lane of three words (`stats`): less half the squared length of
its centroid, variance, size. A word of `identity` selects that lane.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import MINUS_ZERO, ONE, Bank, Post, Reduce
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.attention_stages import AttentionSizes
from openvrex.golden.program.compiler import FREE, FULL
from openvrex.golden.program.isa import LoadTo, Queue
from openvrex.golden.program.layer_memory import Array, Register, divisors
from openvrex.golden.program.recipes import (
    BANK,
    IMMEDIATE,
    STREAM,
    Row,
    Scalar,
    exponentials,
    first_of,
    imm,
    integer,
    inverse_root,
    put,
    scaled,
    split_reciprocal,
    squared_length,
    times,
)
from openvrex.golden.program.window_plan import WindowCompiler
from openvrex.golden.retrieval.centroids import EPSILON

# Registers of these programs: addresses, and a number of rows. KV holds the address of the layer's entries and tables.
ROWS = Register.FIRST  # rows of a loop
SRC, DST = Register.SLOT, Register.OUT  # what a step reads, and the row that it writes
PAIR = Register.ENTRIES  # of a cluster's representative
LANE = Register.CONTEXT  # of the word of `identity` that selects the lane of a cluster
STATS = Register.TAIL  # of the words of `stats` that hold a cluster
ENTRY = Register.LEFT  # of a token's entry
WEIGHED = Register.WEIGHTS  # of the words of `weights` that tell the members of a cluster
# Conditions, 1 or 0, in programs that steer themselves (`golden.program.steered_stages`).
GO, TAKE = WEIGHED, LANE  # go on with the next token, the cluster takes this one

# Words of `answer`.
NUMBER, MARGIN, VARIANCE, SIZE, SHARE = range(5)  # of `probe`; the number is `above` less the cluster
FARTHEST, TOP = range(2)  # of `seed`: `above` less the member, and its distance
ANSWERS = 5


class Found(NamedTuple):
    """What `search` finds; the numbers of `probe`."""

    number: Scalar
    variance: Scalar
    size: Scalar
    share: Scalar
    margin: Scalar


HUGE = float(2.0**127)  # makes a difference of two scores, at least 2^-126, larger than 1


def at_register(register: int, size: int, dtype: type = BF16) -> Array:
    """An array of one row whose address is in a register."""
    return Array("row", 0, (1, size), dtype, int(register))


class Limit(Protocol):
    """Equation 5's parameters (`golden.policies.mosaic_clusters.Threshold`)."""

    @property
    def small(self) -> float: ...
    @property
    def large(self) -> float: ...
    @property
    def rate(self) -> float: ...


class ClusterSizes(AttentionSizes, Protocol):
    """What the steps read of their plan (`golden.program.mosaic_plan.MosaicPlan`)."""

    limit: Limit
    width: int  # numbers of a token's keys
    tiles: int  # words of a number of each cluster
    members: int  # most tokens of a cluster that is split or made
    above: int  # N, above the numbers of clusters and members
    rank_scale: float  # factor of the scores of clusters

    @property
    def pairs(self) -> Array: ...


class ClusterCompiler(WindowCompiler):
    """Writes the steps of a `MosaicPlan`."""

    plan: ClusterSizes
    side = 0  # the half of W that `against` takes next
    many = 0  # members that the steps of K-means work on; behind the last one there may be others, whose `valid` is 0

    def __init__(self, plan: ClusterSizes):
        super().__init__(plan)
        self.seeded = self.free.pop(), self.free.pop()  # what `seed` finds: the distance, and `above` less the member

    @property
    def words(self) -> int:
        """Words of a token's keys of all KV heads."""
        return self.plan.width // self.fmt.lanes

    # Parts of steps

    def rows(self, body: Callable[[int], None]) -> None:
        """Call `body` for each row of a loop; the register ROWS counts them."""
        for k in self.rounds(ROWS):
            body(k)

    def spread(self, scalar: Scalar, to: int) -> None:
        """Put a scalar into all lanes of a word of bank C."""
        self.vector(**scalar.of("a"), write=Bank.C, addr_d=to)

    def fetch(self, array: Array, at: int, to: Scalar) -> None:
        """to = the number of a word, the same in all lanes, from memory."""
        self.take(array, at, 1, **to.to, keep=0)

    def number(self, word: int, to: Scalar) -> None:
        """to = the number of a word of bank C, the same in all lanes."""
        put(self, to, a=IMMEDIATE, imm_a=MINUS_ZERO, c=BANK, addr_c=word)

    def length(self, words: int, to: Scalar) -> None:
        """to = the squared length of the row in banks A and B."""
        squared_length(self, Row(0, words), to)

    def divide(self, words: int, count: Scalar, post: int, write: int) -> None:
        """The row of FP32 sums in bank A by a number, as `centroids.divided`. Uses bank C."""
        with self.scalars(4) as (first, rest, high, low):
            split_reciprocal(self, count, first, rest, high, low)
            times(self, Row(0, words), high, low, Row(0, words, Bank.C), Row(0, words, write), post=post)

    def against(self, rows: Array, centre: Array, put: Callable[[int, int], None]) -> None:
        """Multiply the members' directions `rows` by a centre; each product fills a word.

        put : takes the first member and the number of members whose products come next from the DPE
        """
        n, words, size = self.fmt.lanes, self.words, self.plan.width
        w_at, self.side = self.side * (self.fmt.w_depth // 2), 1 - self.side
        self.load(centre, 0, n, words, 0, LoadTo.W, (FREE,), to=w_at, step=words)
        most = max(d for d in divisors(self.many) if d * words <= self.fmt.x_depth // 2)
        for first in range(0, self.many, most):
            _, x_at = self.turn()
            wait = (FREE,) if first else ()
            self.load(rows, first * size, most, words, size, LoadTo.X, wait, (FULL,), to=x_at, step=words)
            self.mul(w_at, x_at, most, 1, words, words)
            put(first, most)

    def products_of(self, at: int, rows: Array, apart: int, tiles: int, **fields: int) -> None:
        """A = the row at number `at` behind SRC times tiles of rows, `apart` numbers from one to the next, plus C."""
        n, words, x = self.fmt.lanes, self.words, at_register(SRC, self.plan.width)
        for tile in range(tiles):
            w_at, x_at = self.turn()
            self.load(rows, tile * n * apart, n, words, apart, LoadTo.W, (FREE,), to=w_at, step=words)
            self.load(x, at, 1, words, 0, LoadTo.X, (), (FULL,), to=x_at, step=words)
            self.mul(w_at, x_at, 1, 1, words, words)
            self.vector(a=STREAM, wide=1, c=BANK, addr_c=tile, write=Bank.A, addr_d=tile, **fields)

    def distances(self, centre: Array, minus_half: Scalar) -> None:
        """A = squared distances of the members from a centre, whose -q / 2 is in a scalar. Bank C gets their norms."""
        p, many = self.plan, self.many
        self.take(p["norms"], 0, many, Bank.C)

        def product(first: int, some: int) -> None:
            self.vector(some, a=STREAM, wide=1, **minus_half.of("c"), write=Bank.A, addr_d=first)

        self.against(p["y"], centre, product)
        self.vector(many, a=BANK, imm_b=imm(-2.0), c=BANK, write=Bank.A)
        self.vector(many, op=VectorOp.MAX, a=BANK, imm_c=0, write=Bank.A)

    def farthest(self, words: int, numbers: int, top: Scalar, number: Scalar) -> None:
        """top, number = the maximum of the numbers in bank A, and N less the place of the first of them.

        numbers : the word of bank C from which N less each place stands
        """
        self.vector(words, a=BANK, reduce=Reduce.MAX, scalar_d=top.number)
        first_of(self, [Row(0, words, Bank.A)], [top], numbers, [number])

    def zeros(self, words: int) -> None:
        """A and B = 1 where an integer in bank A is 0, else 0."""
        self.vector(words, a=BANK, post=Post.ROUND, write=Bank.A | Bank.B)
        self.vector(words, a=BANK, b=BANK, write=Bank.A)
        self.vector(words, op=VectorOp.MIN, a=BANK, imm_c=ONE, write=Bank.A)
        self.vector(words, a=BANK, negate_a=1, imm_c=ONE, post=Post.ROUND, write=Bank.A | Bank.B)

    def change(self, values: tuple[Scalar, Scalar, Scalar]) -> None:
        """Replace a cluster's statistics by scalars: the lane that LANE selects, of the three words at STATS."""
        n = self.fmt.lanes
        stats = at_register(STATS, 3 * n, np.float32)
        self.take(stats, 0, 3, Bank.A)
        self.take(at_register(LANE, n), 0, 1, Bank.B)
        self.vector(3, a=BANK, b=BANK, span_b=0, write=Bank.C)
        self.vector(3, a=BANK, c=BANK, negate_c=1, write=Bank.C)
        for k, value in enumerate(values):
            lane = {"b": BANK, "c": BANK, "addr_c": k}
            self.vector(**value.of("a"), **lane, write=Bank.C, addr_d=k)
        self.give(stats, 0, 3)

    def halved(self, of: Scalar, to: Scalar) -> None:
        """to = less half of a number."""
        put(self, to, **of.of("a"), imm_b=imm(-0.5))

    def give_half(self, to: Array) -> None:
        """Store less half the squared length of the direction in banks A and B."""
        with self.scalars(1) as (half,):
            self.length(self.words, half)
            self.halved(half, half)
            self.spread(half, 0)
        self.give(to, 0, 1)

    # Steps

    def copy(self) -> None:
        """Copy ROWS adjacent entries from SRC to DST."""
        size = self.shape.entry
        words = size // self.fmt.lanes

        def row(k: int) -> None:
            self.take(at_register(SRC, size), k * size, words, Bank.B)
            self.give(at_register(DST, size), k * size, words)

        self.rows(row)

    def directions(self, array: Array, norms: Array | None) -> None:
        """Directions of the keys of ROWS adjacent entries from SRC on, to an array from DST on; and their norms."""
        s, width, words = self.shape, self.plan.width, self.words

        def row(k: int) -> None:
            self.take(at_register(SRC, s.entry), k * s.entry, words, Bank.A | Bank.B)
            with self.scalars(4) as (square, root, half, r):
                self.length(words, square)
                put(self, square, **square.of("a"), imm_c=imm(float(EPSILON)))
                inverse_root(self, square, root, half, r, r)
                scaled(self, Row(0, words), r, Row(0, words, Bank.A | Bank.B), Post.ROUND)
            self.give(array, k * width, words)
            if norms is not None:
                with self.scalars(1) as (q,):
                    self.length(words, q)
                    self.spread(q, 0)
                self.give(norms, k * self.fmt.lanes, 1)

        self.rows(row)

    def visit(self) -> None:
        """Add the keys of ROWS adjacent entries from SRC on to the visual cluster whose sum is at DST.

        Its number of keys is at STATS, the mean goes to PAIR.
        """
        s, width, words = self.shape, self.plan.width, self.words
        total, count = at_register(DST, width, np.float32), at_register(STATS, self.fmt.lanes, np.float32)
        at = self.places(count=1).count
        self.take(total, 0, words, Bank.A | Bank.C)
        self.take(count, 0, 1, Bank.C, at)

        def row(k: int) -> None:
            self.take(at_register(SRC, s.entry), k * s.entry, words, Bank.A | Bank.C, c=BANK)
            self.vector(a=IMMEDIATE, imm_a=ONE, c=BANK, addr_c=at, write=Bank.C, addr_d=at)

        self.rows(row)
        self.give(total, 0, words)
        self.give(count, 0, 1, at)
        with self.scalars(1) as (keys,):
            self.number(at, keys)
            self.divide(words, keys, Post.ROUND, Bank.B)
        self.give(at_register(PAIR, width), 0, words)

    def probe(self, ahead: int) -> None:
        """Answer of the direction `ahead` rows behind SRC. Open clusters have 0 in `closed`, others minus infinity.

        Word NUMBER is N less the nearest cluster; MARGIN is the threshold for one more member less VARIANCE, the
        variance with it; SIZE its members then; SHARE 1 / SIZE as BF16.
        """
        with self.scalars(5) as scalars:
            found = Found(*scalars)
            self.search(ahead, found)
            words = (NUMBER, found.number), (MARGIN, found.margin), (VARIANCE, found.variance), (SIZE, found.size)
            for word, scalar in (*words, (SHARE, found.share)):
                self.spread(scalar, word)
        self.give(self.plan["answer"], 0, ANSWERS)

    def search(self, ahead: int, found: Found) -> None:
        """The numbers of `probe`. Banks A and B have 1 in the cluster's lane, else 0."""
        with self.scalars(2) as (square, best):
            self._nearest(ahead, square, best, found)
            self._grown(square, best, found)

    def _nearest(self, ahead: int, square: Scalar, best: Scalar, found: Found) -> None:
        """Of `search`: the nearest cluster, the score `best`, the direction's squared length, the cluster's numbers."""
        p, n, words, tiles = self.plan, self.fmt.lanes, self.words, self.plan.tiles
        x, numbers = ahead * p.width, self.places(numbers=tiles).numbers
        self.take(at_register(SRC, p.width), x, words, Bank.A | Bank.B)
        self.length(words, square)
        self.stats_row(0, 0)
        self.take(p["closed"], 0, tiles, Bank.C, c=BANK)
        self.take(p["numbers"], 0, tiles, Bank.C, numbers)
        self.products_of(x, p["centroids"], p.width, tiles)
        self.farthest(tiles, numbers, best, found.number)
        # Which lane holds that number: the difference is zero there.
        self.vector(tiles, **found.number.of("a"), c=BANK, addr_c=numbers, negate_c=1, write=Bank.A)
        self.zeros(tiles)
        for k, to in ((1, found.variance), (2, found.size)):
            self.take(p["stats"], k * n, 1, rows=tiles, stride=3 * n, b=BANK, reduce=Reduce.SUM, scalar_d=to.number)

    def _grown(self, square: Scalar, best: Scalar, found: Found) -> None:
        """Of `search`: size, share and variance of the cluster with one more member, and the margin."""
        limit, (_, v, size, u, margin) = self.plan.limit, found
        with self.scalars(1) as (d,):
            put(self, d, **best.of("a"), imm_b=imm(-2.0), **square.of("c"))
            put(self, d, op=VectorOp.MAX, **d.of("a"), imm_c=0)
            put(self, size, **size.of("a"), imm_c=ONE)
            put(self, u, **size.of("a"), post=Post.RECIPROCAL)
            put(self, d, **d.of("a"), **u.of("b"), **v.of("c"))
            put(self, v, **d.of("a"), negate_a=1, **u.of("b"), **d.of("c"))
        put(self, margin, **size.of("a"), imm_b=imm(-1 / limit.rate), post=Post.EXP)
        top = {"imm_b": imm(limit.large - limit.small), "imm_c": imm(limit.large)}
        put(self, margin, **margin.of("a"), negate_a=1, **top)
        put(self, margin, **margin.of("a"), **v.of("c"), negate_c=1)

    def stats_row(self, which: int, to: int) -> None:
        """One of the three statistics of all clusters, to bank C."""
        n, tiles = self.fmt.lanes, self.plan.tiles
        self.take(self.plan["stats"], which * n, 1, Bank.C, to, rows=tiles, stride=3 * n)

    def absorb(self) -> None:
        """Move a cluster by the direction at SRC and the entry at ENTRY, with what `probe` has left in `answer`.

        The centroid is at DST, the pair at PAIR; STATS and LANE as in `change`.
        """
        p = self.plan
        with self.scalars(4) as (share, v, size, half):
            for word, to in ((SHARE, share), (VARIANCE, v), (SIZE, size)):
                self.fetch(p["answer"], word * self.fmt.lanes, to)
            self.move(PAIR, ENTRY, 0, self.shape.entry, share)
            self.move(DST, SRC, 0, p.width, share)
            self.length(self.words, half)
            self.halved(half, half)
            self.change((half, v, size))

    def move(self, mean: int, x: int, row: int, numbers: int, share: Scalar) -> None:
        """Move the mean at register `mean` towards row `row` at register `x` by its share, a scalar; as `moved`."""
        words = numbers // self.fmt.lanes
        self.take(at_register(mean, numbers), 0, words, Bank.C)
        self.take(at_register(x, numbers), row * numbers, words, Bank.A, c=BANK, negate_c=1)
        self.vector(words, a=BANK, **share.of("b"), c=BANK, post=Post.ROUND, write=Bank.A | Bank.B)
        self.give(at_register(mean, numbers), 0, words)

    def sums(self, rows: Array, numbers: int, weighed: Array | None, count: Scalar) -> None:
        """A and C = the sum of rows of `numbers`, in order; the word behind it in C, and `count` = how many there are.

        rows : the first row, others follow; ROWS counts them
        weighed : 1 or 0 for each, in all lanes of a word; all if not given
        """
        n, words = self.fmt.lanes, numbers // self.fmt.lanes
        self.vector(words + 1, a=IMMEDIATE, imm_a=0, write=Bank.A | Bank.C)

        def row(k: int) -> None:
            one: dict[str, int] = {}
            if weighed is not None:
                self.take(weighed, k * n, 1, Bank.B)
                one = {"b": BANK}
            self.load(rows, k * numbers, 1, words, 0, LoadTo.VECTOR)
            first = {**one, "span_b": 0} if one else {}
            self.vector(words, Queue.LOAD, a=STREAM, **first, c=BANK, write=Bank.A | Bank.C)
            self.vector(a=IMMEDIATE, imm_a=ONE, **one, c=BANK, addr_c=words, write=Bank.C, addr_d=words)

        self.rows(row)
        self.number(words, count)

    def average(self, to: Array, at: int, minus_half: Array | None, weighed: Array | None) -> None:
        """The mean of members' directions, as `centroids.mean`, and less half its squared length."""
        p = self.plan
        with self.scalars(1) as (count,):
            self.sums(p["y"], p.width, weighed, count)
            self.divide(self.words, count, Post.ROUND, Bank.A | Bank.B)
        self.give(to, at, self.words)
        if minus_half is not None:
            self.give_half(minus_half)

    def centre(self, of: Array, to: Array, minus_half: Array) -> None:
        """Make the member `of` the centre `to`; less half its squared length goes to `minus_half`."""
        self.take(of, 0, self.words, Bank.A | Bank.B)
        self.give(to, 0, self.words)
        self.give_half(minus_half)

    def seed(self, first: int, of: Array, to: Array, minus_half: Array) -> None:
        """Find the member farthest from a centre, or from all seeds so far.

        first : 0: from the centre alone; 1: from the centre, the first seed; 2: from it and the seeds before
        of : the centre; a seed becomes the centre `to`, and less half its squared length goes to `minus_half`
        """
        p, many = self.plan, self.many
        self.take(of, 0, self.words, Bank.A | Bank.B)
        with self.scalars(1) as (half,):
            self.length(self.words, half)
            self.halved(half, half)
            if first:
                self.give(to, 0, self.words)
                self.spread(half, 0)
                self.give(minus_half, 0, 1)
            self.distances(of, half)
        if first == 2:
            self.take(p["left"], 0, many, Bank.C)
            self.vector(many, op=VectorOp.MIN, a=BANK, c=BANK, write=Bank.A)
        self.take(p["valid"], 0, many, Bank.A | Bank.C, a=BANK, b=STREAM)
        if first:
            self.give(p["left"], 0, many)
        self.take(p["places"], 0, many, Bank.C)
        self.farthest(many, 0, *self.seeded)

    def centre_told(self) -> None:
        """Make the member at SRC the centre at DST, with its number at STATS."""
        self.centre(*self._told())

    def seed_told(self, first: int) -> None:
        """`seed` of the centre at SRC, to DST and STATS. Leaves N less the member and its distance in `answer`."""
        self.seed(first, *self._told())
        for word, scalar in zip((TOP, FARTHEST), self.seeded, strict=True):
            self.spread(scalar, word)
        self.give(self.plan["answer"], 0, 2)

    def _told(self) -> tuple[Array, Array, Array]:
        width = self.plan.width
        rows = at_register(SRC, width), at_register(DST, width)
        return *rows, at_register(STATS, self.fmt.lanes, np.float32)

    def label(self, centres: int) -> None:
        """The nearest of so many centres for each member, the lowest of equal ones, and `weights` that say whose."""
        self.find_labels(centres)
        self.keep_labels(centres)

    def find_labels(self, centres: int) -> None:
        """The labels of the members, to words `label` of bank C."""
        p, n, many = self.plan, self.fmt.lanes, self.many
        at = self.places(rest=many, label=many)
        for c in range(centres):
            to = Bank.A if c else Bank.A | Bank.C
            centre = replace(p["centres"], offset=p["centres"].offset + 2 * c * p.width, shape=(1, p.width))

            with self.scalars(1) as (half,):
                self.fetch(p["halves"], c * n, half)

                def score(first: int, some: int, to: int = to, half: Scalar = half) -> None:
                    self.vector(some, a=STREAM, wide=1, **half.of("c"), write=to, addr_d=first)

                self.against(p["y"], centre, score)
            rest = {"a": BANK, "addr_a": at.rest}
            if not c:
                self.vector(many, a=IMMEDIATE, imm_a=0, write=Bank.C, addr_d=at.label)
                continue
            self.vector(many, a=BANK, c=BANK, negate_c=1, write=Bank.A, addr_d=at.rest)
            self.vector(many, **rest, imm_b=imm(HUGE), write=Bank.A, addr_d=at.rest)
            self.vector(many, op=VectorOp.MAX, **rest, imm_c=0, write=Bank.A, addr_d=at.rest)
            self.vector(many, op=VectorOp.MIN, **rest, imm_c=ONE, write=Bank.B)
            label = {"c": BANK, "addr_c": at.label}
            self.vector(many, a=IMMEDIATE, imm_a=imm(c), **label, negate_c=1, write=Bank.A, addr_d=at.rest)
            self.vector(many, **rest, b=BANK, **label, write=Bank.C, addr_d=at.label)
            self.vector(many, op=VectorOp.MAX, a=BANK, c=BANK, write=Bank.C)

    def keep_labels(self, centres: int) -> None:
        """Store labels and weights of the members, whose labels are in words `label` of bank C."""
        p, n, many = self.plan, self.fmt.lanes, self.many
        label = self.places(label=many).label
        self.give(p["labels"], 0, many, label)
        for c in range(centres):
            self.vector(many, a=IMMEDIATE, imm_a=imm(-c), c=BANK, addr_c=label, write=Bank.A)
            self.zeros(many)
            self.take(p["valid"], 0, many, Bank.B, a=BANK, b=STREAM, post=Post.ROUND)
            self.give(p["weights"], c * p.members * n, many)

    def put_pair(self) -> None:
        """The mean of the members' entries, whose weights are at WEIGHED, to the pair at PAIR."""
        p, numbers = self.plan, self.shape.entry
        words = numbers // self.fmt.lanes
        with self.scalars(1) as (count,):
            self.sums(p["gathered"], numbers, at_register(WEIGHED, self.fmt.lanes), count)
            self.divide(words, count, Post.ROUND, Bank.B)
        self.give(at_register(PAIR, numbers), 0, words)

    def put_stats(self) -> None:
        """Statistics of the members, whose weights are at WEIGHED and whose mean is at DST, as in `change`."""
        with self.scalars(3) as (half, v, number):
            self._variance(half, v, number)
            self.change((half, v, number))

    def _variance(self, half: Scalar, v: Scalar, number: Scalar) -> None:
        """Of `put_stats`: less half the squared length of the mean, variance and number of the members."""
        p, many = self.plan, self.many
        self.take(at_register(DST, p.width), 0, self.words, Bank.A | Bank.B)
        self.length(self.words, half)
        self.halved(half, half)
        self.distances(at_register(DST, p.width), half)
        self.take(at_register(WEIGHED, self.fmt.lanes), 0, many, Bank.B)
        # The sum runs through words 0 to `many` of bank C.
        self.vector(2, a=IMMEDIATE, imm_a=0, write=Bank.C)
        self.vector(many, a=BANK, b=BANK, c=BANK, write=Bank.C, addr_d=1)
        self.number(many, v)
        self.vector(many, a=IMMEDIATE, imm_a=ONE, b=BANK, reduce=Reduce.SUM, scalar_d=number.number)
        put(self, number, **number.of("a"), imm_b=imm(1 / self.fmt.lanes))
        self.vector(**v.of("a"), write=Bank.A)
        self.divide(1, number, Post.NONE, Bank.A)
        put(self, v, a=BANK)

    def query(self) -> None:
        """The mean of the queries of a pass over rows and query heads, to `query`."""
        s, p, n = self.shape, self.plan, self.fmt.lanes
        head, words = s.head_size, s.head_size // n
        many = s.rows
        for g in range(s.kv_heads):
            self.vector(words, a=IMMEDIATE, imm_a=0, write=Bank.A | Bank.C)
            for r in range(many):
                self.take(p["q"], (g * many + r) * head, words, Bank.A | Bank.C, c=BANK)
            with self.scalars(1) as (count,):
                integer(self, many, count)
                self.divide(words, count, Post.ROUND, Bank.B)
            self.give(p["query"], g * head, words)

    def codes(self, rows: Array, apart: int, tiles: int, mask: Array, out: Array) -> None:
        """Score codes of rows, `apart` numbers from one to the next, for the query at SRC, under a mask."""
        p = self.plan
        self.take(mask, 0, tiles, Bank.C)
        self.products_of(0, rows, apart, tiles, imm_b=imm(p.rank_scale))
        with self.scalars(1) as (top,):
            self.vector(tiles, a=BANK, reduce=Reduce.MAX, scalar_d=top.number)
            exponentials(self, Row(0, tiles), top, code=1)
        self.give(out, 0, tiles)
