"""Writes the stages of a core, which add the retrieval to those of an LXE (`golden.program.core_compiler`)."""

from dataclasses import replace
from typing import Protocol

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import ONE, Bank, Format, Post
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.compiler import semaphores
from openvrex.golden.program.isa import LoadTo, Opcode, Queue, Retrieve, StoreTo
from openvrex.golden.program.layer_memory import Array, Register, Tiling
from openvrex.golden.program.loop_rolling import op
from openvrex.golden.program.recipes import BANK, IMMEDIATE, STREAM, Row, imm, mean
from openvrex.golden.program.score_stages import LEVEL, ScoreCompiler, ScoreSizes

# Register that the program uses, free as there is no `append`: address of a cluster's row.
ROW = Register.SLOT
# Semaphores: the cluster or count is in its register, its row is in memory, the entries to be placed are in memory, all
# are placed, the chosen entries are fetched, the DRE has the counts of the layer's clusters.
CLUSTER, SUMMED, ROTATED, PLACED, FETCHED, SWITCHED = range(4, 10)


class CoreSizes(ScoreSizes, Protocol):
    """What the retrieval reads of its plan (`golden.program.core_compiler.CorePlan`)."""

    cuts: dict[str, Tiling]
    turns: int  # times that blocks of the queries' GEMM precede some tokens
    beside: int  # blocks each time
    key_words: int  # words of a token's keys
    pitch: int  # bytes from a row of the cluster table to the next
    mean_bytes: int  # bytes before the mean in a row

    @property
    def given(self) -> bool: ...

    @property
    def switches(self) -> bool: ...

    def ahead(self, name: str) -> Array: ...


class CoreCompiler(ScoreCompiler):
    """Writes the stages of a core, which add the retrieval to those of an LXE."""

    plan: CoreSizes

    def hash(self) -> None:
        """Multiply the keys of the pass by the hyperplanes; send the signs of each token to the HCU."""
        s, p, cut = self.shape, self.plan, self.plan.cuts["hash"]
        many, centre, keys = s.tokens * cut.tiles, p.retrieval.centre, p["fresh"]
        result: dict[str, int] = {"write": Bank.A} if centre else {"write": Bank.B, "post": Post.ROUND}
        self.block_of(replace(keys, shape=(1, *keys.shape)), p["hash_weight"], cut, 0, result)
        if centre:
            self.centre(cut.tiles, many)
        self.vector(many, op=VectorOp.STORE, format=Format.SIGN)
        self._emit(Opcode.STORE, target=StoreTo.HASH, rows=s.tokens - 1, words=cut.tiles - 1, **self.context())

    def centre(self, tiles: int, many: int) -> None:
        """B = the `many` words of products in bank A less the thresholds, `tiles` words.

        Thresholds come from memory to the end of the `many` words of bank C. The first pass of a context, which has no
        cluster yet, overwrites them there by its own, and stores these.
        """
        p, at = self.plan, many - tiles
        self.take(p["thresholds"], 0, tiles, Bank.C, at)
        self.level(self.context())
        with self.when(self.above_zero(LEVEL, yes=0)):
            part: dict[str, int] = {"a": BANK, "imm_b": imm(1 / self.shape.tokens), "write": Bank.C}
            self.vector(tiles, **part)
            if at:  # a token's words add to those of the token before
                self.vector(at, **part, addr_a=tiles, c=BANK, addr_d=tiles)
            self.give(p["thresholds"], 0, tiles, at)
        less = {"c": BANK, "addr_c": at, "span_c": tiles.bit_length() - 1, "negate_c": 1}
        self.vector(many, a=BANK, **less, post=Post.ROUND, write=Bank.B)

    def retrieve(self, action: Retrieve, array: Array, at: int, wait=(), signal=(), **fields: int) -> None:
        """RETRIEVE with the address of byte `at` of an array."""
        where = {"base": array.base, "addr": array.offset + at}
        self._emit(Opcode.RETRIEVE, action=action, **where, **semaphores(wait, signal), **fields)

    def sync(self, semaphore: int) -> None:
        """Make the sequencer wait for a semaphore."""
        self._emit(Opcode.SYNC, **semaphores((semaphore,), ()))

    def context(self, ahead: bool = False) -> dict[str, int]:
        """The fields that name the layer's context, or the next layer's."""
        r = self.plan.retrieval
        return {"base": int(Register.CONTEXT), "addr": r.ahead if ahead else r.ctx}

    def level(self, context: dict[str, int]) -> None:
        """Switch the DRE to a context; LEVEL = its clusters."""
        self._emit(Opcode.RETRIEVE, action=Retrieve.SWITCH, level=LEVEL, **context, **semaphores((), (CLUSTER,)))
        self.sync(CLUSTER)

    def cluster(self) -> None:
        """Cluster and place every token; before each few tokens, run some blocks of the queries' GEMM."""
        p = self.plan
        if p.retrieval.fetched and not p.given:
            self.entries_are(ROW)
        self.fence(Opcode.STORE, signal=(ROTATED, SUMMED))
        self.fence(Opcode.RETRIEVE, wait=(ROTATED,))
        at_once = self.shape.tokens // p.turns
        for turn in range(p.turns):
            self.product(p["norm1"], p["qkv_weight"], range(turn * p.beside, (turn + 1) * p.beside))
            for t in range(turn * at_once, (turn + 1) * at_once):
                self.join(t)
        self.fence(Opcode.LOAD, wait=(SUMMED,))
        if p.switches:
            switch = {"action": Retrieve.SWITCH, **self.context()}
            self._emit(Opcode.RETRIEVE, **switch, **semaphores((), (PLACED, SWITCHED)))
        else:
            self.fence(Opcode.RETRIEVE, signal=(PLACED,))

    def product(self, x: Array, weight: Array, blocks: range) -> None:
        """Some blocks of the GEMM of normalised hidden states with the weights of queries, keys and values."""
        p = self.plan
        self.gemm(x, weight, p.cuts["qkv"], p["qkv"], blocks=blocks)

    def entries_are(self, fetched: int) -> None:
        """ENTRIES = sinks + the register `fetched`."""
        self.items.append(op(Opcode.ADD, to=Register.ENTRIES, a=fetched, imm=self.plan.retrieval.sinks))

    def join(self, t: int) -> None:
        """Cluster and place token `t`; update the sums, count and mean of its cluster in memory."""
        s, p = self.shape, self.plan
        words, entry = p.key_words, s.entry * 2
        row = Array("table", 0, (p.pitch // 4,), np.float32, ROW)
        mean_at, count = self.places(mean=words).mean, words
        shift = p.pitch.bit_length() - 1
        self.retrieve(Retrieve.CLUSTER, p["table"], 0, (), (CLUSTER,), to=ROW, level=LEVEL, shift=shift)
        self.retrieve(Retrieve.PLACE, p["fresh"], t * entry)
        self.sync(CLUSTER)
        self.load(row, 0, 1, words + 1, 0, LoadTo.VECTOR, (SUMMED,))
        self.vector(words + 1, Queue.LOAD, a=STREAM, wide=1, write=Bank.A | Bank.C)
        self.take(p["fresh"], t * s.entry, words, Bank.A | Bank.C, c=BANK)
        one = {"a": BANK, "addr_a": count, "c": IMMEDIATE, "imm_c": ONE, "write": Bank.C, "addr_d": count}
        with self.scalars(4) as (whole, inverse, low, high):
            self.vector(1, **one, **whole.to, keep=0)
            self.give(row, 0, words + 1)
            mean(self, Row(0, words), whole, inverse, low, high, mean_at)
        self.out(words, at=mean_at)
        means = Array("means", p.mean_bytes, (p.pitch // 2,), BF16, ROW)
        self.store(means, 0, 1, words, 0, **semaphores((), (SUMMED,)))

    def rank(self, q: Array, means: Array) -> None:
        """Multiply queries `q` by the means of the core's clusters; FP32 scores go to `ranks`."""
        p = self.plan
        apart = p.pitch // 2

        def keys(g: int, i: int) -> tuple[Array, int, int]:
            return means, i * self.fmt.lanes * apart + g * self.shape.head_size, apart

        if p.team.members > 1:
            self.deal(LEVEL, 0, p.retrieval.clusters)
        own = 2 * p.team.member, LEVEL, 2 * p.team.members
        self.products(q, p["ranks"], keys, lambda step: self.pairs(step, *own))

    def rank_ahead(self) -> None:
        """Multiply the guessed queries by the next layer's Key_cluster; switch the DRE to its context.

        In a team the host gives LEVEL, and its leader switches beside the products.
        """
        p, context = self.plan, self.context(ahead=True)
        if p.team.members == 1:
            self.level(context)
        elif p.team.member == 0:
            self._emit(Opcode.RETRIEVE, action=Retrieve.SWITCH, **context)
        self.rank(p["guess"], p.ahead("means"))

    def select(self) -> None:
        """Choose clusters by their scores and fetch their entries behind the ring."""
        self.fence(Opcode.STORE, wait=(SWITCHED,))
        self.choose_clusters()
        self.fetch(self.plan["behind"], Register.ENTRIES, (FETCHED,))

    def select_ahead(self) -> None:
        """Choose and fetch for the next layer, if it has a cluster. The next program waits for these entries."""
        self._emit(Opcode.SET, to=ROW)
        with self.when(self.above_zero(LEVEL)):
            self.choose_clusters()
            self.fetch(self.plan.ahead("behind"), ROW)

    def choose_clusters(self) -> None:
        """Send the score codes of every row to the WTU."""
        self.choose(self.shape.kv_heads * self.shape.rows, self.plan.scale)

    def fetch(self, to: Array, register: int, signal=()) -> None:
        """FETCH the chosen entries behind the sinks of array `to`; their number goes to a register."""
        self.writes[to.name] = None
        sinks = self.plan.retrieval.sinks
        at, room = sinks * self.shape.entry * 2, self.shape.entries - sinks - 1
        self.retrieve(Retrieve.FETCH, to, at, (), signal, to=register, rows=room)

    def resident(self) -> None:
        """Multiply queries by the keys of the ring, once all tokens are placed."""
        p = self.plan
        self.fence(Opcode.LOAD, wait=(PLACED,))
        self.products(p["q"], p["scores"], self.keys, self.ring_tiles)

    def scores(self) -> None:
        """Multiply queries by the keys behind the ring, once they are there."""
        p = self.plan
        if not p.retrieval.fetched and not p.given:
            self.sync(FETCHED)
            self.entries_are(Register.ENTRIES)
        self.count()
        self.products(p["q"], p["scores"], self.keys, self.tiles_behind)
