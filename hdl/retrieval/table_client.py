"""Table client: the port through which a unit reads and writes items of tables (`golden.retrieval.table_layout`)."""

from typing import NamedTuple

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import bits_for


class Sizes(NamedTuple):
    """Sizes of a unit's port to its tables."""

    n_ctx: int  # contexts
    n_index: int  # items of the longest array
    bits: int  # of the widest item
    most: int  # items of the longest read
    lanes: int = 1  # COUNTs of a beat
    count_bits: int = 0  # bits of each; only of a port that reads COUNTs

    @property
    def beat_bits(self) -> int:
        """Bits of a beat of items."""
        return max(self.bits, self.lanes * self.count_bits)


def item_layout(n_ctx: int, n_index: int) -> data.StructLayout:
    """An item: its kind, its context, its index below `n_index`. NEXT and POOL have no context, and `ctx` is 0."""
    return data.StructLayout({"item": bits_for(len(Item)), "ctx": bits_for(n_ctx), "index": bits_for(n_index)})


def ask_layout(n_ctx: int, n_index: int, most: int) -> data.StructLayout:
    """A read of 1 + `more` items of one array, from an item on, at most `most` of them.

    If `more` is not 0, the items must lie within one burst: `index` is a multiple of `most`. COUNTs come in words of
    `lanes` counts, other items one a beat.
    """
    return data.StructLayout({**{n: f.shape for n, f in item_layout(n_ctx, n_index)}, "more": bits_for(most)})


def put_layout(n_ctx: int, n_index: int, bits: int) -> data.StructLayout:
    """A write of one item: its fields in the lowest of `bits` bits."""
    return data.StructLayout({**{n: f.shape for n, f in item_layout(n_ctx, n_index)}, "data": bits})


def table_client(sizes: Sizes) -> wiring.Signature:
    """The port of a unit that reads and writes items of these sizes.

    Members
    -------
    ask : Out(stream of `ask_layout`) : reads
    data : In(stream of `beat_bits` bits) : the items read, one a beat, in order; of COUNTs the next `lanes` counts of
        the ask, from the lowest bit on. Bits above the last item of an ask are 0
    put : Out(stream of `put_layout`) : writes

    Asks and puts take effect in the order in which they are taken; of an ask and a put that are taken in the same cycle
    the ask goes first. `data` is always ready: a unit asks only for what it can take.
    """
    n_ctx, n_index, bits, most, *_ = sizes
    return wiring.Signature(
        {
            "ask": Out(stream.Signature(ask_layout(n_ctx, n_index, most))),
            "data": In(stream.Signature(sizes.beat_bits)),
            "put": Out(stream.Signature(put_layout(n_ctx, n_index, bits))),
        }
    )
