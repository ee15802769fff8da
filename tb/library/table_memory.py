"""Memory behind the table port of one unit, for its bench: serves asks and puts item by item."""

from collections import deque

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.retrieval.table_client import Sizes, ask_layout, put_layout
from openvrex.tb.library.streams import Bench


class TableMemory:
    """Items of tables by (kind, context, index), behind the ports `<name>_ask`, `<name>_data`, `<name>_put` of a unit.

    An item that was never written is 0. It is offered `latency` cycles
    after its ask was taken, or up to `late` cycles later at random, but never before those asked for earlier.

    ask, put : the sinks of the requests; their `stall` may be set at any time
    items : the content
    asked, written : number of items by kind
    puts : each write in order: kind, context, index, data
    """

    def __init__(self, bench: Bench, name: str, sizes: Sizes, latency: int = 8, late: int = 0) -> None:
        n_ctx, n_index, bits, most, self.lanes, self.count_bits = sizes
        self.bench, self.latency, self.late = bench, latency, late
        self.items: dict[tuple[Item, int, int], int] = {}
        self.puts: list[tuple[Item, int, int, int]] = []
        self.asked, self.written = dict.fromkeys(Item, 0), dict.fromkeys(Item, 0)
        self.ask = bench.sink(f"{name}_ask", ask_layout(n_ctx, n_index, most))
        self.put = bench.sink(f"{name}_put", put_layout(n_ctx, n_index, bits))
        bench.streams.append(self)  # behind the requests that it samples, before the items that it drives
        self.data = bench.source(f"{name}_data", sizes.beat_bits)
        self.reset()

    def reset(self) -> None:
        """Forget requests under way, but not the items."""
        self.due: deque[tuple[int, int]] = deque()  # cycle from which an item is offered, the item
        self._free = 0  # first cycle in which no item is due
        self.ask.got.clear()
        self.put.got.clear()
        self._asks = self._puts = 0

    def drive(self, rng) -> None:
        """Queue the items that are due in this cycle, just after the rising edge."""
        while self.due and self.due[0][0] <= self.bench.cycle:
            self.data.put([self.due.popleft()[1]])

    def sample(self, cycle: int) -> None:
        """Serve the requests that are taken in this cycle, at the falling edge."""
        for _, a in self.ask.got[self._asks :]:
            self._free = max(self._free, cycle + self.latency + self.bench.rng.randint(0, self.late))
            lanes = self.lanes if a["item"] == Item.COUNT else 1
            for k in range(0, a["more"] + 1, lanes):
                some = [(Item(a["item"]), a["ctx"], a["index"] + n) for n in range(k, min(k + lanes, a["more"] + 1))]
                word = sum(self.items.get(where, 0) << n * self.count_bits for n, where in enumerate(some))
                self.due.append((self._free, word))
                self._free += 1
            self.asked[Item(a["item"])] += a["more"] + 1
        self._asks = len(self.ask.got)
        for _, b in self.put.got[self._puts :]:
            item = Item(b["item"])
            self.items[item, b["ctx"], b["index"]] = b["data"]
            self.puts.append((item, b["ctx"], b["index"], b["data"]))
            self.written[item] += 1
        self._puts = len(self.put.got)
