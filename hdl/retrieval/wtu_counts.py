"""Ring of token counts in front of the lanes of a WTU."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from openvrex.hdl.memory import SinglePortRam, collect_errors, error_members
from openvrex.hdl.named import comb
from openvrex.hdl.params import COUNT_BANKS, WtuParams, bits_for
from openvrex.hdl.retrieval.wtu_lanes import count_layout


class CountRing(wiring.Component):
    """Gives each word of scores the token counts of its clusters.

    Words of counts come in on `c` and stay in order. A word with `first` empties the ring and becomes word 0. With
    `keep` the ring holds the counts of a whole context: a reading starts at word 0 again, and no word leaves. Without
    it a word leaves the ring when its word of scores is done, and `c` brings the same counts again for each reading.

    Words lie in two banks in turn, each with one port. The ring reads the counts of the next word of scores ahead.
    Counts that come in have their bank first: they delay a read of that bank, and a word that was read from it is read
    again.

    Parameters
    ----------
    p : WtuParams

    Members
    -------
    c : In(stream of `hdl.retrieval.wtu_lanes.count_layout`) : words of counts. A word with `first` is taken when
        `idle`, another one unless the ring is full
    idle : In(1) : no row is in flight
    take : In(1), rewind : In(1) : the word of scores is done; if so, it is the last of a reading
    here : Out(1), counts : Out(n_w x count_bits) : the counts are those of the next word of scores
    used : Out(1) : a place of the ring gets free
    error : Out(2), if protected : as in `hdl.memory.error_members`

    Latency: 2 cycles from a word of counts to its word of scores.
    Throughput: a word of scores a cycle from a kept ring, two in 3 cycles from a stream that fills each place at once.
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
        rams = [SinglePortRam(p.count_bits * p.n_w, p.bank_words, p.n_w, p.protect) for _ in range(COUNT_BANKS)]
        collect_errors(m, self, rams)
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
        m.d.comb += c.ready.eq(Mux(first, self.idle, ~full))
        writes = comb(m, "writes", c.valid & c.ready)
        write_at = comb(m, "write_at", Mux(first, 0, write))
        # `take` comes last in a cycle: both places that it chooses from are compared.
        # A clash: the word that comes goes to the bank that is read, or drops all words.
        clashes, readable = [], []
        for name, place in (("stays", read), ("moves", behind)):
            clashes.append(comb(m, f"clash_{name}", writes & (first | (write_at[0] == place[0]))))
            readable.append(comb(m, f"some_{name}", (place != write) & ~clashes[-1]))
        clash = comb(m, "clash", Mux(self.take, clashes[1], clashes[0]))
        reads = comb(m, "reads", Mux(self.take, readable[1], readable[0] & ~held))
        for k, ram in enumerate(rams):
            m.submodules[f"count{k}"] = ram
            own = writes & (write_at[0] == k)
            m.d.comb += [
                ram.en.eq(own | (reads & (read_at[0] == k))),
                ram.write.eq(own.replicate(p.n_w)),
                ram.addr.eq(Mux(own, write_at, read_at)[1:bits]),
                ram.w_data.eq(c.payload.counts),
            ]
        m.d.comb += [
            self.counts.eq(Mux(read[0], rams[1].r_data, rams[0].r_data)),
            self.here.eq(held & ~starts),
            self.used.eq(self.take & ~keep),
        ]
        m.d.sync += held.eq(reads | (held & ~self.take & ~clash))
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
