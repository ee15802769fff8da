"""Ring of token counts in front of the lanes of a WTU."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.memory import SinglePortRam, collect_errors, error_members
from hdl.named import comb
from hdl.params import WtuParams, bits_for
from hdl.retrieval.wtu_lanes import count_layout


class CountRing(wiring.Component):
    """Gives each word of scores the token counts of its clusters.

    Words of counts come in on `c` and stay in order. A word with `first` empties the ring and becomes word 0. With
    `keep` the ring holds the counts of a whole context: a reading starts at word 0 again, and no word leaves. Without
    it a word leaves the ring when its word of scores is done, and `c` brings the same counts again for each reading.

    The memory has one port, and counts that come in have it first. Otherwise the ring reads the counts of the next word
    of scores ahead. A write loses what was read; then the ring reads again.

    Parameters
    ----------
    p : WtuParams

    Members
    -------
    c : In(stream of `hdl.retrieval.wtu_lanes.count_layout`) : words of counts. A word with `first` is taken when
        `idle`, another one unless the ring is full
    idle : In(1) : no row is in flight
    take : In(1), rewind : In(1) : the word of scores is done; it is the last of a reading
    here : Out(1), counts : Out(n_w x count_bits) : the counts are those of the next word of scores
    used : Out(1) : a place of the ring gets free
    error : Out(2), if protected : as in `hdl.memory.error_members`

    Latency: 2 cycles from a word of counts to its word of scores.
    Throughput: a word of scores a cycle from a kept ring, one every 2 cycles from a stream.
    Raises: nothing.
    Source: this project's own.
    """

    def __init__(self, p: WtuParams):
        self.p = p
        super().__init__(
            {
                "c": In(stream.Signature(count_layout(p))),
                "idle": In(1),
                "take": In(1),
                "rewind": In(1),
                "here": Out(1),
                "used": Out(1),
                "counts": Out(data.ArrayLayout(p.count_bits, p.n_w)),
                **error_members(p.protect),
            }
        )

    def elaborate(self, platform):
        p, m, c = self.p, Module(), self.c
        ram = m.submodules.count = SinglePortRam(p.count_bits * p.n_w, p.count_words, p.n_w, p.protect)
        collect_errors(m, self, [ram])
        # A place in the ring is a word, and above it a bit that changes with every round: full differs from empty.
        bits = bits_for(p.count_words)
        write = Signal(bits + 1)  # place of the next word of counts
        read = Signal(bits + 1)  # place of the counts of the next word of scores
        keep = Signal()  # the context fits
        held = Signal()  # the memory shows the counts of the next word of scores
        first = comb(m, "first", c.valid & c.payload.first)
        starts = comb(m, "starts", first & self.idle)
        full = comb(m, "full", (write ^ read) == 1 << bits)
        behind = comb(m, "behind", Mux(self.rewind & keep, 0, self._behind(m, read, "behind_read")))
        read_at = comb(m, "read_at", Mux(self.take, behind, read))
        some = comb(m, "some", read_at != write)
        m.d.comb += c.ready.eq(Mux(first, self.idle, ~full))
        writes = comb(m, "writes", c.valid & c.ready)
        reads = comb(m, "reads", some & ~writes & (self.take | ~held))
        write_at = comb(m, "write_at", Mux(first, 0, write))
        m.d.comb += [
            ram.en.eq(writes | reads),
            ram.write.eq(writes.replicate(p.n_w)),
            ram.addr.eq(Mux(writes, write_at, read_at)[:bits]),
            ram.w_data.eq(c.payload.counts),
            self.counts.eq(ram.r_data),
            self.here.eq(held & ~starts),
            self.used.eq(self.take & ~keep),
        ]
        m.d.sync += held.eq(reads | (held & ~self.take & ~writes))
        with m.If(writes):
            m.d.sync += write.eq(self._behind(m, write_at, "behind_write"))
        with m.If(starts):
            m.d.sync += [keep.eq(c.payload.keep), read.eq(0)]
        with m.Elif(self.take):
            m.d.sync += read.eq(behind)
        return m

    def _behind(self, m: Module, place: Signal, name: str) -> Signal:
        """The place behind `place`."""
        word, turn = place[:-1], place[-1]
        end = word == self.p.count_words - 1
        return comb(m, name, Mux(end, Cat(Const(0, len(word)), ~turn), Cat((word + 1)[: len(word)], turn)))
