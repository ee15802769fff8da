"""The golden model of the whole retrieval engine (DRE).

Keys go in, and the model says where their KV entries are written. Rows of score codes go in, and the model says which
bursts fetch the selected entries. Source: V-Rex Fig. 10, steps 2, 4 and 5.
"""

from dataclasses import dataclass

import numpy as np

from golden.function_params import ReSVParams
from golden.retrieval.clustering import Clusterer, Joined
from golden.retrieval.kvmap import Burst, KvMap, Placed, Traffic
from golden.retrieval.wicsum import Selection, select_rows


@dataclass(frozen=True)
class Query:
    """Result of a query block of R rows over C clusters."""

    counts: np.ndarray  # [C] int64: tokens per cluster at the time of the query
    rows: Selection  # selection of each row
    clusters: list[int]  # union of the rows' selections, ascending
    bursts: list[Burst]  # bursts that fetch this union
    traffic: Traffic  # figures of these bursts


class DreModel:
    """Defines every output bit of `hdl.retrieval.dre.Dre`.

    The model has one HC table per context (`tables`) and one KV memory map for all contexts (`kv`).
    """

    def __init__(self, params: ReSVParams, kv: KvMap):
        self.params, self.kv = params, kv
        self.tables = [Clusterer(params) for _ in range(kv.n_ctx)]

    def clear(self, ctx: int) -> None:
        """Forget context `ctx` and free its blocks."""
        self.tables[ctx] = Clusterer(self.params)
        self.kv.clear(ctx)

    def key(self, ctx: int, key_hash: int) -> tuple[Joined, Placed]:
        """Cluster a key by its hash and place its KV entry; returns both results."""
        joined = self.tables[ctx].add(key_hash)
        return joined, self.kv.append(ctx, joined.cluster)

    def query(self, ctx: int, codes: np.ndarray) -> Query:
        """Select clusters for a query block and list the bursts that fetch them.

        `codes` [R, C] are score codes of R >= 1 rows; C is the number of clusters in `ctx`, at least 1.
        """
        counts = self.tables[ctx].counts.copy()
        rows = select_rows(codes, counts, self.params)
        clusters = np.flatnonzero(rows.mask.any(0)).tolist()
        return Query(counts, rows, clusters, self.kv.fetch(ctx, clusters), self.kv.traffic(ctx, clusters))
