"""Short list that keeps its entries sorted."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from golden.function_params import check


class SortedList(wiring.Component):
    """Keeps the best `depth` entries by key, largest first; equal keys stay in order of arrival.

    Every entry compares its key with the new one at once: entries with a smaller key move one place back, and the new
    entry takes the gap. In a full list the last entry drops out, which may be the new one.

    Parameters
    ----------
    depth, key_bits, tag_bits : entries, bits of the key, bits carried along

    Members
    -------
    insert : In(1), key : In(key_bits), tag : In(tag_bits) : inserts an entry; of a full list the last drops out
    pop : In(1) : drops the first entry; not together with `insert`
    clear : In(1) : drops all entries
    empty : Out(1) : the list has no entry
    first_key, first_tag : Out : the first entry, valid unless `empty`

    Latency: 1 cycle.
    Throughput: one insertion or removal a cycle.
    Raises: `ParamError` for a depth, key_bits or tag_bits below 1.
    Source: this project's own; one comparator an entry.
    """

    def __init__(self, depth: int, key_bits: int, tag_bits: int):
        for name, value in (("depth", depth), ("key_bits", key_bits), ("tag_bits", tag_bits)):
            check(value >= 1, name, value, "must be at least 1")
        self.depth, self.key_bits, self.tag_bits = depth, key_bits, tag_bits
        super().__init__(
            {
                "insert": In(1),
                "key": In(key_bits),
                "tag": In(tag_bits),
                "pop": In(1),
                "clear": In(1),
                "empty": Out(1),
                "first_key": Out(key_bits),
                "first_tag": Out(tag_bits),
            }
        )

    def elaborate(self, platform):
        m, n = Module(), self.depth
        used = Signal(n)
        stays = Signal(n)  # entries that stay in front of the new one; as the list is sorted, they are a prefix
        keys = [Signal(self.key_bits, name=f"key{i}", reset_less=True) for i in range(n)]
        tags = [Signal(self.tag_bits, name=f"tag{i}", reset_less=True) for i in range(n)]
        # On a tie (>=) the entry that came first stays in front: of equal scores the WTU takes the lowest index.
        m.d.comb += [stays[i].eq(used[i] & (keys[i] >= self.key)) for i in range(n)]
        for i in range(n):
            new = stays[i - 1] if i else 1
            before, after = max(0, i - 1), min(n - 1, i + 1)
            with m.If(self.pop):
                m.d.sync += [keys[i].eq(keys[after]), tags[i].eq(tags[after])]
            with m.Elif(self.insert & ~stays[i]):
                m.d.sync += [
                    keys[i].eq(Mux(new, self.key, keys[before])),
                    tags[i].eq(Mux(new, self.tag, tags[before])),
                ]
        with m.If(self.clear):
            m.d.sync += used.eq(0)
        with m.Elif(self.pop):
            m.d.sync += used.eq(used >> 1)
        with m.Elif(self.insert):
            m.d.sync += used.eq((used << 1) | 1)
        m.d.comb += [
            self.empty.eq(~used[0]),
            self.first_key.eq(keys[0]),
            self.first_tag.eq(tags[0]),
        ]
        return m
