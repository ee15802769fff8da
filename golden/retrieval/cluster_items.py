"""The items of tables (`golden.retrieval.table_layout`) that the clusters of a context come to."""

from openvrex.golden.retrieval.clustering import Clusterer
from openvrex.golden.retrieval.hashing import to_int
from openvrex.golden.retrieval.table_layout import Item


def cluster_items(table: Clusterer) -> dict[tuple[Item, int], int]:
    """LEVEL and HASH by kind and index. HASH of an index at or above LEVEL means nothing and is left out."""
    return {(Item.LEVEL, 0): len(table), **{(Item.HASH, c): to_int(words) for c, words in enumerate(table.hashes)}}
