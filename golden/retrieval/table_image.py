"""The bytes of tables in memory (`golden.retrieval.table_layout`) that the state of a retrieval engine comes to."""

from collections.abc import Collection, Iterator

import numpy as np

from openvrex.golden.arithmetic.secded import encode
from openvrex.golden.retrieval.cluster_items import cluster_items
from openvrex.golden.retrieval.clustering import Clusterer
from openvrex.golden.retrieval.dre_model import DreModel
from openvrex.golden.retrieval.map_items import context_items, pool_items
from openvrex.golden.retrieval.table_layout import SHARED, Item, TableLayout


def items(
    layout: TableLayout, model: DreModel, contexts: Collection[int] | None = None
) -> Iterator[tuple[Item, int, int, int]]:
    """Every item that means something: kind, context, index, content. NEXT and POOL have context 0.

    contexts : those whose items to give, all if not given
    """
    for (item, index), value in pool_items(layout, model.kv).items():
        yield item, 0, index, value
    known = model.tables.keys() | model.kv.contexts.keys()
    for ctx in sorted(known if contexts is None else known & set(contexts)):
        table = model.tables.get(ctx) or Clusterer(model.params)
        own = cluster_items(table) | context_items(layout, model.kv, ctx, table.counts.tolist())
        for (item, index), value in own.items():
            yield item, 0 if item in SHARED else ctx, index, value


def image(layout: TableLayout, model: DreModel, contexts: Collection[int] | None = None) -> dict[int, bytes]:
    """The items' bytes, check bits included, by address behind the base of the tables; `contexts` as in `items`."""
    out = {}
    for item, ctx, index, value in items(layout, model, contexts):
        word = encode(value, layout.bits(item), layout.protect)
        out[layout.address(item, ctx, index)] = word.to_bytes(layout.bytes(item), "little")
    return out


class TableMemory:
    """A region of memory that holds the tables of an engine, as the hardware leaves it.

    data : uint8, the bytes from the base of the tables on, zero at first
    """

    def __init__(self, layout: TableLayout, model: DreModel, data: np.ndarray):
        self.layout, self.model, self.data = layout, model, data
        self._contexts: set[int] = set()  # that held something once

    def write(self, contexts: Collection[int] | None = None) -> None:
        """Write every item as it is now; items that mean nothing keep their bytes, as in the hardware.

        contexts : those that have changed since the last call, all if not given

        A map with more blocks than the layout can name writes nothing: no hardware has it.
        """
        if self.model.kv.fresh > self.layout.blocks:
            return
        self._contexts |= self.model.tables.keys() | self.model.kv.contexts.keys()
        for ctx in self._contexts if contexts is None else self._contexts & set(contexts):
            for item in (Item.LEVEL, Item.PLACE, Item.ROW):  # a CLEAR leaves zeros
                at = self.layout.address(item, ctx)
                self.data[at : at + self.layout.number(item) * self.layout.bytes(item)] = 0
        for at, word in image(self.layout, self.model, contexts).items():
            self.data[at : at + len(word)] = np.frombuffer(word, np.uint8)
