"""Writes a core's retrieval of coded pages (`golden.retrieval.coded_pages`), for one KV head.

The KVMU keeps each page as a cluster. The host's `marks` are the page number of each token as hash bits; a threshold of
1 puts tokens of equal bits together. So cluster k is page k, and its entries lie together at home. These stages replace
those of `golden.program.core_compiler`:

==========  ==========================================================================================================
early_*     `hash` and `cluster` of the tokens up to the end of a mean, as `early_hash` and `early_cluster`
code        mean and codes of adjacent keys in the ring (`golden.program.code_stages`)
hash        sends `marks` of the other tokens to the HCU
queries     the blocks of `qkv` that hold queries, while the HCU compares
cluster     takes the clusters of these tokens and copies their entries to the places that the KVMU gives
rotary      rotates queries
resident    comes before the stages that follow
ring        in a team: multiplies queries by all keys of the ring, as each member sums whole rows
sums, turn  `golden.program.page_stages`
rank        scores of the pages with a token that has left the ring; the register FIRST holds their number, in a team
            that of the member's own pairs of steps
select      sends one row of score codes to the WTU, which has a budget of tokens; starts the FETCH of the chosen pages.
            `candidates` takes the pages out that lie in the ring. `pins` raises those of sinks to the row's maximum
==========  ==========================================================================================================

The ring may be as short as the keys that share a mean. So a pass that completes a mean places the tokens up to there,
codes, and then places the others, if any. The stages take as many tokens as the register FIRST says, their marks from
the address in SLOT, their entries from that in ENTRIES.

In a team the leader hashes, codes, places and chooses. Each member scores its own pairs of steps of pages.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from openvrex.golden.arithmetic.vector import Bank, Format
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.compiler import semaphores
from openvrex.golden.program.core_stages import CLUSTER, FETCHED, CoreCompiler, CoreSizes
from openvrex.golden.program.isa import LoadTo, Opcode, Queue, Retrieve, StoreTo
from openvrex.golden.program.layer_memory import Array, Register
from openvrex.golden.program.page_stages import PageCompiler, PageSizes
from openvrex.golden.program.recipes import BANK, STREAM, Scalar, Words
from openvrex.golden.program.score_stages import LEVEL
from openvrex.golden.retrieval.coded_pages import SHARPNESS

# Registers of `hash` and `cluster`: tokens, the words of their marks times `lanes`, addresses of marks and entries.
TOKENS, WORDS, MARKS, FRESH = Register.FIRST, Register.LEFT, Register.SLOT, Register.ENTRIES
UNUSED = Register.TAIL  # takes addresses that a cluster has in a table, which pages do not need


class PageChoiceSizes(PageSizes, CoreSizes, Protocol):
    """What `PageChoiceCompiler` reads of its plan (`golden.program.core_compiler.CorePlan`)."""


class PageChoiceCompiler(PageCompiler, CoreCompiler):
    """Writes the stages of a core that retrieves pages."""

    plan: PageChoiceSizes

    def hash(self) -> None:
        """Send the page numbers of TOKENS tokens to the HCU."""
        tiles = self.plan["marks"].shape[1] // self.fmt.lanes
        marks, words = replace(self.plan["marks"], offset=0, base=MARKS), {"len": int(WORDS)}
        tokens = {"len": int(TOKENS)}
        self.load(marks, 0, 1, tiles, tiles * self.fmt.lanes, LoadTo.VECTOR, **tokens)
        self.vector(words, Queue.LOAD, a=STREAM, write=Bank.B)
        self.vector(words, op=VectorOp.STORE, format=Format.SIGN)
        newest = {"wide": int(self.fmt.newest)}  # a page is the newest cluster, or opens one
        self._emit(Opcode.STORE, target=StoreTo.HASH, words=tiles - 1, **newest, **tokens, **self.context())

    def cluster(self) -> None:
        """Take the clusters of TOKENS tokens, and place their entries."""
        fresh = replace(self.plan["fresh"], offset=0, base=FRESH)
        for t in self.rounds(TOKENS):
            self.retrieve(Retrieve.CLUSTER, fresh, 0, to=UNUSED)
            self.retrieve(Retrieve.PLACE, fresh, t * self.shape.entry * 2)

    def resident(self) -> None:
        p = self.plan
        self.products(p["q"], p["scores"], self.keys, self.ring_tiles)

    def ring(self) -> None:
        """Multiply queries by all keys of the ring, of which `resident` takes a member's own."""
        p, s, n = self.plan, self.shape, self.fmt.lanes

        def keys(g: int, i: int) -> tuple[Array, int, int]:
            return p["ring"], i * n * s.entry + g * s.head_size, s.entry

        def tiles(step: Callable[[int], None]) -> None:
            for i in range(s.recent // n):
                step(i)

        self.products(p["q"], p.resident_scores, keys, tiles)

    def number(self, i: int) -> int:
        team, (pair, odd) = self.plan.team, divmod(i, 2)
        return 2 * (team.ahead(0) + pair * team.members) + odd

    def select(self) -> None:
        """Choose pages by their scores and fetch their entries behind the ring."""
        pages = self.plan.retrieval.pages
        assert pages is not None
        tokens = pages.budget + pages.pinned * pages.page
        switch = {"action": Retrieve.BUDGET, "level": LEVEL, "rows": tokens - 1, **self.context()}
        self._emit(Opcode.RETRIEVE, **switch, **semaphores((), (CLUSTER,)))
        self.sync(CLUSTER)
        self.choose(1, SHARPNESS)
        self.fetch(self.plan["behind"], Register.ENTRIES, (FETCHED,))

    def ranked(self, at: int, size: Words, scale: float, to: int = 0, **fields: int) -> None:
        self.take(self.plan["candidates"], at, size, Bank.C, to)
        super().ranked(at, size, scale, to, c=BANK, addr_c=to, **fields)

    def raised(self, at: int, size: Words, top: Scalar, to: int = 0) -> None:
        pages = self.plan.retrieval.pages
        if pages is not None and pages.pinned:
            self.take(self.plan["pins"], at, size, Bank.C, to, **top.of("c"))
            raised = {"a": BANK, "addr_a": to, "c": BANK, "addr_c": to, "write": Bank.A, "addr_d": to}
            self.vector(size, op=VectorOp.MAX, **raised)
