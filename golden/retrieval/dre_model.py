"""The retrieval engine's function: keys to places, rows of scores to bursts (V-Rex Fig. 10, steps 2, 4 and 5)."""

from dataclasses import dataclass

import numpy as np

from golden.function_params import ReSVParams
from golden.retrieval.clustering import Clusterer, Joined
from golden.retrieval.kvmap import Burst, KvMap, Placed, Traffic
from golden.retrieval.wicsum import Selection, select_rows


@dataclass(frozen=True)
class Query:
    """Result of a query block: each row's selection, their union (ascending clusters) and its bursts."""

    counts: np.ndarray  # [C] token counts at that time
    rows: Selection
    clusters: list[int]
    bursts: list[Burst]
    traffic: Traffic


class DreModel:
    """Defines every output bit of `hdl.retrieval.dre.Dre`: one HC table per context over one KV memory map."""

    def __init__(self, params: ReSVParams, kv: KvMap):
        self.params, self.kv = params, kv
        self.tables = [Clusterer(params) for _ in range(kv.n_ctx)]

    def clear(self, ctx: int) -> None:
        """Forget context `ctx`; its blocks become free."""
        self.tables[ctx] = Clusterer(self.params)
        self.kv.clear(ctx)

    def key(self, ctx: int, key_hash: int) -> tuple[Joined, Placed]:
        """Cluster one key and place its entry."""
        joined = self.tables[ctx].add(key_hash)
        return joined, self.kv.append(ctx, joined.cluster)

    def query(self, ctx: int, codes: np.ndarray) -> Query:
        """Select for a query block: `codes` [R, C], R at least 1, C the clusters of `ctx`, at least 1."""
        counts = self.tables[ctx].counts.copy()
        rows = select_rows(codes, counts, self.params)
        clusters = np.flatnonzero(rows.mask.any(0)).tolist()
        return Query(counts, rows, clusters, self.kv.fetch(ctx, clusters), self.kv.traffic(ctx, clusters))
