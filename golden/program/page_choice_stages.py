"""Writes a core's retrieval of coded pages (`golden.retrieval.coded_pages`), for one KV head.

The KVMU keeps each page as a cluster. The host's `marks` are the page number of each token as hash bits; a threshold of
1 puts tokens of equal bits together. So cluster k is page k, and its entries lie together at home. These stages replace
those of `golden.program.core_compiler`:

==========  ==========================================================================================================
hash        sends `marks` to the HCU
cluster     takes the clusters and copies the entries to the places that the KVMU gives, then runs the blocks of `qkv`
            that hold queries only
code        mean and codes of adjacent keys in the ring (`golden.program.code_stages`), a program of its own that the
            host starts when so many tokens have come
resident    comes before the stages that follow
sums, turn  `golden.program.page_stages`
rank        scores of the pages with a token that has left the ring; the register FIRST holds their number
select      sends one row of score codes to the WTU, which has a budget of tokens; starts the FETCH of the chosen pages.
            `candidates` takes the pages out that lie in the ring. `pins` raises those of sinks to the row's maximum
==========  ==========================================================================================================
"""

from typing import Protocol

from openvrex.golden.arithmetic.vector import Bank, Format
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.compiler import semaphores
from openvrex.golden.program.core_stages import CLUSTER, FETCHED, PLACED, ROTATED, ROW, CoreCompiler, CoreSizes
from openvrex.golden.program.isa import Opcode, Retrieve, StoreTo
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.page_stages import PageCompiler, PageSizes
from openvrex.golden.program.recipes import BANK, Scalar, Words
from openvrex.golden.program.score_stages import LEVEL
from openvrex.golden.retrieval.coded_pages import SHARPNESS


class PageChoiceSizes(PageSizes, CoreSizes, Protocol):
    """What `PageChoiceCompiler` reads of its plan (`golden.program.core_compiler.CorePlan`)."""


class PageChoiceCompiler(PageCompiler, CoreCompiler):
    """Writes the stages of a core that retrieves pages."""

    plan: PageChoiceSizes

    def hash(self) -> None:
        """Send the page number of each token to the HCU."""
        marks = self.plan["marks"]
        tokens, numbers = marks.shape
        tiles = numbers // self.fmt.lanes
        self.take(marks, 0, tokens * tiles, Bank.B)
        self.vector(tokens * tiles, op=VectorOp.STORE, format=Format.SIGN)
        self._emit(Opcode.STORE, target=StoreTo.HASH, rows=tokens - 1, words=tiles - 1, **self.context())

    def cluster(self) -> None:
        """Take the clusters, and place the entries; run the blocks of the queries' GEMM meanwhile."""
        s, p = self.shape, self.plan
        self.fence(Opcode.STORE, signal=(ROTATED,))
        self.fence(Opcode.RETRIEVE, wait=(ROTATED,))
        for t in range(s.tokens):
            self.retrieve(Retrieve.CLUSTER, p["fresh"], 0, to=ROW)
            self.retrieve(Retrieve.PLACE, p["fresh"], t * s.entry * 2)
        self.fence(Opcode.RETRIEVE, signal=(PLACED,))
        self.product(p["norm1"], p["qkv_weight"], range(p.turns * p.beside))

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
