"""The golden model of the whole retrieval engine (DRE).

Keys go in, and the model says where their KV entries are written. Rows of score codes go in, and the model says which
bursts fetch the selected entries. Source: V-Rex Fig. 10, steps 2, 4 and 5.
"""

from dataclasses import dataclass, replace

import numpy as np

from openvrex.golden.function_params import BUDGET_BITS, ReSVParams, check
from openvrex.golden.retrieval.clustering import Clusterer, Joined
from openvrex.golden.retrieval.kvmap import Burst, KvMap, MapSizes, Move, Placed, Traffic
from openvrex.golden.retrieval.table_layout import TableLayout
from openvrex.golden.retrieval.wicsum import Selection, select_rows


@dataclass(frozen=True)
class Query:
    """Result of a query block of R rows over C clusters."""

    counts: np.ndarray  # [C] int64: tokens per cluster at the time of the query
    budget: int  # tokens to select instead of a share; 0: a share
    rows: Selection  # selection of each row
    clusters: list[int]  # union of the rows' selections, ascending
    bursts: list[Burst]  # bursts that fetch this union
    traffic: Traffic  # figures of these bursts


@dataclass(frozen=True)
class DreSizes:
    """The sizes of a retrieval engine, for its golden model and for hosts: `hdl.params.DreParams.sizes` gives them.

    map : of the KV memory map. A host may place fewer contexts than `map.n_ctx`, those that a DRE can name
    layout : of the tables in memory
    frame : keys that the HCU holds
    readings : times that the WTU must be offered a row (`hdl.params.WtuParams.readings`)
    counts : token counts that the WTU holds; None: any number
    budgets : the WTU has budgets of tokens (`hdl.params.WtuParams.budget`)
    tile : clusters of a tile, of whose last one keys may look at alone (`hdl.params.HcuParams.newest`); 0: they may not
    """

    map: MapSizes
    layout: TableLayout
    frame: int = 32
    readings: int = 1
    counts: int | None = None
    budgets: bool = False
    tile: int = 0

    def __post_init__(self):
        for name in ("clusters", "recent", "block_slots"):
            own, known = getattr(self.map, name), getattr(self.layout, name)
            check(own == known, name, own, f"must be {known}, as in the layout of the tables")

    def model(self, params: ReSVParams, n_ctx: int = 0, device_base: int = 0, home_base: int = 0) -> "DreModel":
        """An engine of `n_ctx` contexts, `map.n_ctx` if not given, with its rings and blocks at these addresses."""
        kv = KvMap(replace(self.map, n_ctx=n_ctx or self.map.n_ctx), device_base, home_base)
        return DreModel(params, kv, self.readings, self.counts, self.budgets, self.tile, self.frame)


class DreModel:
    """Defines every output bit of `hdl.retrieval.dre.Dre`.

    readings : times that the WTU must be offered a row (`hdl.params.WtuParams.readings`). `query` takes each row once
    counts_held : token counts that the WTU holds; None: any number
    budgets : the WTU has budgets of tokens (`hdl.params.WtuParams.budget`)
    tile, frame : as of `DreSizes`

    The model has an HC table for each context that holds something (`tables`), and one KV memory map for all contexts
    (`kv`). `ctx`, `counts` [C] and `budget` are the context of the last `switch`, its token counts then, and the tokens
    that its rows select instead of a share (0: a share).
    """

    def __init__(
        self,
        params: ReSVParams,
        kv: KvMap,
        readings: int = 1,
        counts_held: int | None = None,
        budgets: bool = False,
        tile: int = 0,
        frame: int = 32,
    ):
        self.tile, self.frame = tile, frame
        self.params, self.kv, self.readings, self.counts_held = params, kv, readings, counts_held
        self.budgets, self.budget = budgets, 0
        self.tables: dict[int, Clusterer] = {}
        self.first = 0  # contexts below are another user's
        self.ctx, self.counts = 0, np.zeros(0, np.int64)
        self.grown = False  # the context of the last `switch` got a key behind it

    def level(self, ctx: int) -> int:
        """Number of clusters of context `ctx`."""
        return len(self.tables.get(ctx, ()))

    def clear(self, ctx: int) -> list[Move]:
        """Forget context `ctx` and free its blocks; returns those to be wiped, as `KvMap.clear`."""
        self.tables.pop(ctx, None)
        return self.kv.clear(ctx)

    def newest(self, ctx: int) -> int:
        """The first cluster that keys of op NEWEST look at, whose batch begins now: the first of the last tile."""
        return max(0, self.level(ctx) - 1) // self.tile * self.tile

    def key(self, ctx: int, key_hash: int, first: int = 0) -> tuple[Joined, Placed]:
        """Cluster a key by its hash and place its KV entry; returns both results.

        first : the first cluster that the key looks at (`newest`)
        """
        self.grown |= ctx == self.ctx
        joined = self.tables.setdefault(ctx, Clusterer(self.params)).add(key_hash, first=first)
        return joined, self.kv.append(ctx, joined.cluster)

    def switch(self, ctx: int, budget: int = 0) -> int:
        """Let the queries that follow be of context `ctx`, with its counts of now; returns its number of clusters.

        budget : tokens that each row selects instead of a share, at most 2^24; 0: a share. Raises `ParamError` where
        the WTU has no budgets
        """
        check(0 <= budget <= 1 << BUDGET_BITS, "budget", budget, f"must be 0 to {1 << BUDGET_BITS} tokens")
        check(self.budgets or not budget, "budget", budget, "must be 0: this WTU has no budgets: set wtu.budget=true")
        self.budget = budget
        self.ctx, self.counts = ctx, self.tables[ctx].counts.copy() if ctx in self.tables else np.zeros(0, np.int64)
        self.grown = False
        return len(self.counts)

    def query(self, codes: np.ndarray) -> Query:
        """Select clusters for a query block of the context of the last `switch`, and list the bursts that fetch them.

        `codes` [R, C] are score codes of R >= 1 rows; C is the number of clusters at that `switch`, at least 1. Bursts
        cover entries as they lie now. Raises `ParamError` if the WTU cannot hold the counts and the context got a key
        behind the `switch`: the WTU then reads counts of which some are newer than others.
        """
        clusters = len(self.counts)
        held = clusters if self.counts_held is None else self.counts_held
        reason = f"of context {self.ctx} are more than counts = {held}, and keys came behind the SWITCH: switch again"
        check(clusters <= held or not self.grown, "clusters", clusters, reason)
        rows = select_rows(codes, self.counts, self.params, self.budget or None)
        union = np.flatnonzero(rows.mask.any(0)).tolist()
        kv, ctx = self.kv, self.ctx
        return Query(self.counts, self.budget, rows, union, kv.take(ctx, union), kv.traffic(ctx, union))
