"""Writes the attention of a layer's program: scores, softmax and values of one core, or of a member of a team.

A team (`golden.program.layer_memory.Team`) shares the attention of the same heads. Each member computes softmax and
values over its own pairs of tiles, with its own maximum m_i and sum of exponentials l_i of each row. It leaves them in
`stats`, and its values o_i in FP32 in `parts`. A member without an entry that a row may see leaves l_i = 0, o_i = 0 and
the lowest BF16 number as m_i, so its weight is 0. `golden.program.join_stage` makes the attention of them.
"""

from collections.abc import Callable
from typing import Protocol

from openvrex.golden.arithmetic.vector import MINUS_ZERO, ONE, Bank, Post, Reduce
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.compiler import FREE, FULL, QUERIES
from openvrex.golden.program.isa import ADDR_BITS, LoadTo, Opcode, Queue
from openvrex.golden.program.layer_memory import Array, Register, Team
from openvrex.golden.program.layer_stages import LayerCompiler, LayerSizes
from openvrex.golden.program.loop_rolling import POINTERS, Op, op
from openvrex.golden.program.recipes import (
    BANK,
    IMMEDIATE,
    STREAM,
    Row,
    Scalar,
    Words,
    exponentials,
    imm,
    put,
    reciprocal,
    scaled,
)

# Scalar registers of a row of scores: its maximum, its sum of exponentials, 1 / sum, results of a part, unused results,
# the sum that is inverted for a member of a team.
TOP, TOTAL, INVERSE, PART, OTHER, INVERTED = (Scalar(k) for k in range(6))
LOWEST, MINUS_INFINITY = 0xFF7F, 0xFF80  # BF16


class AttentionSizes(LayerSizes, Protocol):
    """What attention reads of its plan (`golden.program.layer_compiler.LayerPlan`)."""

    team: Team
    scale: float  # factor of the scores
    batch: int  # rows that a step computes
    value_tiles: int  # tiles of values of a step
    near: int  # entries of the ring that the core attends to
    masks: int  # word of bank C where a row's mask begins
    part: int  # words of a part of a row behind the ring; 0: a bank holds the row
    row: int  # numbers of the longest row of scores
    rows_at_once: int  # rows of a token whose softmax is worked on at once


class AttentionCompiler(LayerCompiler):
    """Writes the stages of the attention, which follow those of `Compiler`.

    The entries of a team's member are counted as if there were no others: tile 0 is its first one.
    """

    plan: AttentionSizes

    def __init__(self, plan: AttentionSizes):
        super().__init__(plan)
        # Fields that count the words of a row of scores: those of the ring, and pairs of words behind it.
        self.row = {"len": int(Register.ENTRIES), "add": plan.near, "pair": 1}

    def scores(self) -> None:
        """Multiply queries by the keys of the ring and of the entries behind it."""
        self.count()
        self.products(self.plan["q"], self.plan["scores"], self.keys, self.tiles)

    def products(
        self,
        q: Array,
        out: Array,
        keys: Callable[[int, int], tuple[Array, int, int]],
        tiles: Callable[[Callable[[int], None]], None],
    ) -> None:
        """Multiply queries of a KV head, `batch` rows at a time, by one tile of keys a step; store FP32 in `out`.

        keys : takes a KV head and a tile; gives the array, the number of the first key in it, and the distance between
            keys in numbers
        tiles : calls the function it is given for every tile
        """
        s, n, batch = self.shape, self.fmt.lanes, self.plan.batch
        period, row = s.head_size // n, out.shape[-1]
        for g in range(s.kv_heads):
            for first in range(g * s.rows, (g + 1) * s.rows, batch):
                self.signal_queries()
                at = first * s.head_size
                self.load(q, at, batch, period, s.head_size, LoadTo.X, (QUERIES,), to=0, step=period)

                def tile(i: int, g=g, first=first) -> None:
                    w_at, _ = self.turn()
                    array, at, apart = keys(g, i)
                    self.load(array, at, n, period, apart, LoadTo.W, (FREE,), (FULL,), to=w_at, step=period)
                    self.mul(w_at, 0, batch, 1, period, period)
                    self.vector(batch, a=STREAM, wide=1, write=Bank.C)
                    self.give(out, first * row + i * n, 1, rows=batch, stride=row)

                tiles(tile)

    def keys(self, g: int, i: int) -> tuple[Array, int, int]:
        """The keys of KV head `g` in tile `i`: array, first number, distance between keys in numbers."""
        array, first = self.entry_tile(i)
        return array, first + g * self.shape.head_size, self.shape.entry

    def entry_tile(self, i: int) -> tuple[Array, int]:
        """Where own tile `i` of the entries lies: the array, and the first number of its first entry."""
        p, n = self.plan, self.fmt.lanes
        near, ring = p.near // n, self.shape.recent // (2 * n)
        array, start, i = (p["ring"], 0, i) if i < near else (p["behind"], ring, i - near)
        pair, odd = divmod(i, 2)
        tile = 2 * (p.team.ahead(start) + pair * p.team.members) + odd
        return array, tile * n * self.shape.entry

    def deal(self, register: int, start: int, most: int) -> None:
        """Replace the number of entries in a register by the number of those in this member's pairs of tiles.

        start : number of the first pair, which tells whose turn it is
        most : the largest number that the register may hold
        """
        team, pair = self.plan.team, 2 * self.fmt.lanes
        rest, some = POINTERS[:2]  # entries from the next own pair on; whether there is something to do
        every = team.members * pair
        self.items += [add(rest, register, -team.ahead(start) * pair), op(Opcode.SET, to=register)]
        with self.loop(count=max(1, team.share(start, -(-most // pair)))):
            with self.when(self.above_zero(rest, "pair", to=some)):
                self.items += [add(register, register, pair), add(rest, rest, -every)]
        # Of the last own pair take away what it lacks: rest is above zero if it lacks nothing.
        self.items.append(add(rest, rest, every - pair))
        self.above_zero(rest, "pair", yes=0, to=some)
        self.items.append(add(rest, rest, pair))
        with self.when(some):
            self.items.append(add(register, register, -pair))
            with self.loop(rest):
                self.items.append(add(register, register, 1))

    def count(self) -> None:
        """Compute TAIL, PARTS and LEFT from ENTRIES. The sequencer only adds; a LOOP divides by the size of a word.

        In a team ENTRIES becomes the number of the member's entries first.
        """
        n, tail, last = self.fmt.lanes, Register.TAIL, POINTERS[0]
        if self.plan.team.members > 1:
            self.deal(Register.ENTRIES, self.shape.recent // (2 * n), self.shape.entries)
        # Entries of the last tile: ENTRIES minus the size of all its tiles, plus one tile.
        self.items.append(add(last, Register.ENTRIES, n))
        with self.loop(Register.ENTRIES, unit="unit"):
            self.items.append(add(last, last, -n))
        self.items.append(add(tail, 0, 0))
        with self.loop(last):
            self.items.append(add(tail, tail, 2 * self.fmt.word_bytes))
        if self.plan.part:
            self.count_parts(Register.ENTRIES, self.shape.entries, self.plan.part * n, 0)

    def count_parts(self, numbers: int, most: int, size: int, least: int) -> None:
        """PARTS = parts of `size` among the numbers in a register, at most `most`; LEFT = the rest, `least` or more.

        size : whole pairs of words. They are counted first, so that a round takes few cycles
        """
        pair, parts, left = 2 * self.fmt.lanes, Register.PARTS, Register.LEFT
        assert size % pair == 0
        pairs, last, more = POINTERS[:3]
        self.items += [add(left, numbers, 0), add(parts, 0, 0), add(last, numbers, 1 - least), add(pairs, 0, -1)]
        with self.loop(last, unit="pair"):
            self.items.append(add(pairs, pairs, 1))
        # One round for each part that there may be: if a whole part is left, take it away and count it.
        with self.loop(count=(most - least) // size):
            self.items += [add(last, pairs, 1 - size // pair), add(more, 0, 0)]
            with self.loop(last, unit="pair"):
                self.items.append(add(more, 0, 1))
            with self.when(more):
                self.items += [add(pairs, pairs, -size // pair), add(left, left, -size), add(parts, parts, 1)]

    def signal_queries(self) -> None:
        """Signal that the DPE has read all queries in X, so that the next ones may overwrite them."""
        self.fence(Opcode.MUL, signal=(QUERIES,))

    def tiles(self, step: Callable[[int], None]) -> None:
        """Call `step` for every tile of entries: those of the ring, then those behind it."""
        self.ring_tiles(step)
        self.tiles_behind(step)

    def ring_tiles(self, step: Callable[[int], None]) -> None:
        """Call `step` for every tile of the ring."""
        for i in range(self.plan.near // self.fmt.lanes):
            step(i)

    def tiles_behind(self, step: Callable[[int], None]) -> None:
        """Loop over the tiles behind the ring, as many as ENTRIES says."""
        self.pairs(step, self.plan.near // self.fmt.lanes, Register.ENTRIES)

    def pairs(self, step: Callable[[int], None], first: int, register: int, apart: int = 2) -> None:
        """Loop over pairs of tiles from number `first`, `apart` tiles from one to the next.

        The register holds the number of their entries.
        """
        for k in self.rounds(register, "pair"):
            for i in range(2):
                step(first + apart * k + i)

    def softmax(self) -> None:
        """Softmax of every row of scores, with an additive mask in bank C."""
        s, p = self.shape, self.plan
        self.mask_behind()
        for g in range(s.kv_heads):
            for r in range(0, s.rows, p.rows_at_once):
                row = g * s.rows + r
                if p.rows_at_once > 1:
                    with self.overlapped(p.row // self.fmt.lanes):
                        self.mask_ring(r)
                        for k in range(p.rows_at_once):
                            self.row_of_several(row, k)
                    continue
                self.mask_ring(r)
                at = row * p["scores"].shape[-1]
                if p.part:
                    self.long_row(row, at)
                else:
                    if p.team.members > 1:
                        self.constant(TOTAL, 0)  # the results of a row without words
                        self.constant(TOP, LOWEST)
                    self.highest(at, self.row, p.masks, TOP)
                    self.bound(TOP)
                    self.exponentials(self.row, TOTAL)
                    self.reciprocal()
                    self.shares(row, at, self.row)
                if p.team.members > 1:
                    self.keep_stats(row, TOP, TOTAL)

    def mask_ring(self, r: int) -> None:
        """Load the mask of the ring for row `r` of a KV head, which is that of all rows of its token."""
        s, team, n = self.shape, self.plan.team, self.fmt.lanes
        if near := self.plan.near // n:
            pairs = (near // 2, 2, 2 * n * team.members) if team.members > 1 else (1, near, 0)  # rows, words, stride
            self.load(self.plan["mask"], r * s.recent + 2 * n * team.ahead(0), *pairs, LoadTo.VECTOR)
            self.vector(near, Queue.LOAD, a=STREAM, write=Bank.C)

    def row_of_several(self, first: int, k: int) -> None:
        """Softmax of row `k` of those of a team's member from row `first` on, in words and registers of its own."""
        p, row = self.plan, first + k
        top, total, inverse = (Scalar(3 * k + j) for j in range(3))
        at, words = row * p["scores"].shape[-1], k * (p.row // self.fmt.lanes)
        self.constant(total, 0)
        self.constant(top, LOWEST)
        self.highest(at, self.row, p.masks, top, words)
        self.bound(top)
        exponentials(self, Row(words, self.row), top, reduce=Reduce.SUM, scalar_d=total.number)
        self.keep_stats(row, top, total, self.fmt.depth - 2 * (k + 1))
        put(self, total, op=VectorOp.MAX, **total.of("a"), imm_c=ONE)  # where no entry is seen it is 0
        reciprocal(self, total, inverse, top, inverse)
        self.shares(row, at, self.row, words, inverse)

    def constant(self, to: Scalar, bits: int) -> None:
        """Put a BF16 number, given by its bits, into a scalar register."""
        put(self, to, a=IMMEDIATE, imm_a=bits)

    def bound(self, top: Scalar) -> None:
        """In a team, keep the maximum of a row finite, whose entries may all be masked."""
        if self.plan.team.members > 1:
            put(self, top, op=VectorOp.MAX, **top.of("a"), imm_c=LOWEST)

    def keep_stats(self, row: int, top: Scalar, total: Scalar, words: int = 0) -> None:
        """Store maximum and sum of a row, each in all lanes of a word of bank C: 0 and 1 held masks of the row."""
        for at, scalar in enumerate((top, total)):
            self.vector(**scalar.of("a"), write=Bank.C, addr_d=words + at)
        out = self.plan["stats"]
        self.give(out, (self.plan.team.member * out.shape[1] + row) * 2 * self.fmt.lanes, 2, words)

    def long_row(self, row: int, at: int) -> None:
        """Softmax of a row that a bank does not hold, read in parts three times: for maximum, sum, probabilities."""
        for result, none, op_code in ((TOP, MINUS_INFINITY, VectorOp.MAX), (TOTAL, 0, VectorOp.FMA), (None, 0, None)):

            def part(at: int, size: Words, mask: int | None, result=result, none=none, op_code=op_code) -> None:
                if result is not None:
                    self.constant(PART, none)  # the result of a part without words
                self.highest(at, size, mask, PART if result == TOP else OTHER)
                if result != TOP:
                    self.exponentials(size, PART if result == TOTAL else OTHER)
                if result is None:
                    self.shares(row, at, size)
                else:
                    put(self, result, op=op_code, **PART.of("a"), **result.of("c"))

            if result is not None:
                self.constant(result, none)
            self.parts(at, part)
            if result == TOP:
                self.bound(TOP)
            if result == TOTAL:
                self.reciprocal()

    def parts(self, at: int, part: Callable[[int, Words, int | None], None]) -> None:
        """Call `part` for the parts of a row that starts at number `at`: the ring, whole parts behind it, and the rest.

        `part` takes the first number, the words or the fields that count them, and the word of bank C where the mask
        of the part begins (None: it needs no mask).
        """
        n, near, words = self.fmt.lanes, self.plan.near // self.fmt.lanes, self.plan.part
        if near:
            part(at, near, 0)

        def rest(k: int) -> None:
            part(at + (near + k * words) * n, {"len": int(Register.LEFT), "pair": 1}, self.plan.masks + near)

        for k in self.rounds(Register.PARTS, behind=rest):
            part(at + (near + k * words) * n, words, None)

    def highest(self, at: int, size: Words, mask: int | None, to: Scalar, words: int = 0) -> None:
        """A = scores from number `at`, scaled, plus the mask from word `mask` of bank C; the maximum goes to `to`.

        words : of bank A, where they begin
        """
        fields: dict[str, int] = {} if mask is None else {"c": BANK, "addr_c": mask}
        most = {"imm_b": imm(self.plan.scale), "reduce": int(Reduce.MAX), "scalar_d": to.number}
        self.take(self.plan["scores"], at, size, Bank.A, words, **most, **fields)

    def exponentials(self, size: Words, to: Scalar) -> None:
        """B = exp(A - maximum of the row); the sum goes to scalar `to`."""
        exponentials(self, Row(0, size), TOP, reduce=Reduce.SUM, scalar_d=to.number)

    def reciprocal(self) -> None:
        """INVERSE = 1 / TOTAL.

        In a team TOTAL may be 0, which becomes 1 here. A row with an entry has a sum of 1 at least.
        """
        of = TOTAL
        if self.plan.team.members > 1:
            of = INVERTED
            put(self, INVERTED, op=VectorOp.MAX, **TOTAL.of("a"), imm_c=ONE)
        reciprocal(self, of, INVERSE, PART, INVERSE)

    def shares(self, row: int, at: int, size: Words, words: int = 0, inverse: Scalar = INVERSE) -> None:
        """Store B from word `words` times `inverse` as probabilities of a row, as number `at` of `scores` is placed."""
        out = self.plan["probabilities"]
        at += row * (out.shape[-1] - self.plan["scores"].shape[-1])
        scaled(self, Row(words, size), inverse, Row(words, size, Bank.B), Post.ROUND)
        self.give(out, at, size, words)

    def mask_behind(self) -> None:
        """Load the mask of the entries behind the ring, or of the rest behind whole parts, into bank C.

        It is zeros for the full tiles, then the word of the last tile, then the word of an empty tile, which completes
        a pair.
        """
        p, n = self.plan, self.fmt.lanes
        entries = int(Register.LEFT if p.part else Register.ENTRIES)
        with self.when(self.above_zero(entries)):
            self.load(p["zeros"], 0, 1, 1, 0, LoadTo.VECTOR, len=entries, unit=1, add=-n)
            self.load(p["tails"], 0, 1, 2, 0, LoadTo.VECTOR, base=Register.TAIL)
            at = (p.masks + p.near // n) % self.fmt.depth
            self.vector({"len": entries, "add": n}, Queue.LOAD, a=STREAM, write=Bank.C, addr_d=at)

    def values(self) -> None:
        """Multiply probabilities, `batch` rows at a time, by one tile of values a step; LOAD transposes the values."""
        s, p, n, batch = self.shape, self.plan, self.fmt.lanes, self.plan.batch
        rows, tiles, head = p["probabilities"], p.value_tiles, s.head_size
        many, shared = batch * tiles, p.team.members > 1
        for g in range(s.kv_heads):
            for first in range(g * s.rows, (g + 1) * s.rows, batch):
                for part in range(0, head // n, tiles):
                    if shared:  # a member may have no tile
                        self.vector(many, a=IMMEDIATE, imm_a=MINUS_ZERO, write=Bank.C)

                    def tile(i: int, g=g, first=first, part=part) -> None:
                        w_at, x_at = self.turn()
                        array, at = self.entry_tile(i)
                        at += (s.kv_heads + g) * head
                        for k in range(tiles):
                            wait = () if k else (FREE,)
                            self.load(array, at + (part + k) * n, n, 1, s.entry, LoadTo.COLUMN, wait, to=w_at + k)
                        at = first * rows.shape[-1] + i * n
                        self.load(rows, at, batch, 1, rows.shape[-1], LoadTo.X, (), (FULL,), to=x_at, step=1)
                        self.mul(w_at, x_at, batch, tiles, 1, 1)
                        self.vector(many, a=STREAM, wide=1, **({"c": BANK} if i or shared else {}), write=Bank.C)

                    self.tiles(tile)
                    if shared:
                        row = p.team.member * s.kv_heads * s.rows + first
                        self.give(p["parts"], row * head + part * n, tiles, rows=batch, stride=head)
                    else:
                        self.vector(many, a=IMMEDIATE, imm_a=MINUS_ZERO, c=BANK, post=Post.ROUND, write=Bank.B)
                        self.give(p["attention"], first * head + part * n, tiles, rows=batch, stride=head)


def add(to: int, a: int, imm: int) -> Op:
    """ADD as an item: register `to` = register `a` + `imm`, which may be negative."""
    return op(Opcode.ADD, to=to, a=a, imm=imm % (1 << ADDR_BITS))
