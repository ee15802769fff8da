"""FIFO whose words lie in a memory."""

from amaranth import Module, Mux, Shape, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from openvrex.hdl.memory import Ram, error_members
from openvrex.hdl.params import bits_for


class RamFifo(wiring.Component):
    """Keeps words in order in a memory. It never stalls its writer, who must know that there is room.

    Parameters
    ----------
    shape : of a word
    depth : words for which there is room
    protect : check bits of the memory

    Members
    -------
    w_en : In(1), w_data : In(bits of `shape`) : puts a word in; at most `depth` words may be inside
    o : Out(stream of `shape`) : the words in order
    error : Out(2), if protected : as in `hdl.memory.error_members`

    Latency: 2 cycles from `w_en` to `o`.
    Throughput: a word in and a word out every cycle.
    Raises: `ParamError` for a depth below 1.
    Source: this project's own.
    """

    def __init__(self, shape: ShapeLike, depth: int, protect: str = "none"):
        self.width, self.depth, self.protect = Shape.cast(shape).width, depth, protect
        output = Out(stream.Signature(shape))
        super().__init__({"w_en": In(1), "w_data": In(self.width), "o": output, **error_members(protect)})

    def elaborate(self, platform):
        m, top = Module(), self.depth - 1
        m.submodules.ram = ram = Ram(self.width, self.depth, protect=self.protect)
        if hasattr(self, "error"):
            m.d.comb += self.error.eq(ram.error)
        first = Signal(bits_for(self.depth))  # the word to read next
        last = Signal(bits_for(self.depth))  # the word to write next
        waits = Signal(bits_for(self.depth + 1))  # words in the memory that have not been read
        moves = Signal()  # a word goes to the memory's output
        m.d.comb += [
            moves.eq((waits != 0) & (~self.o.valid | self.o.ready)),
            ram.w_en.eq(self.w_en),
            ram.w_addr.eq(last),
            ram.w_data.eq(self.w_data),
            ram.r_en.eq(moves),
            ram.r_addr.eq(first),
            self.o.payload.eq(ram.r_data),
        ]
        m.d.sync += [waits.eq(waits + self.w_en - moves), self.o.valid.eq(moves | (self.o.valid & ~self.o.ready))]
        with m.If(self.w_en):
            m.d.sync += last.eq(Mux(last == top, 0, last + 1))
        with m.If(moves):
            m.d.sync += first.eq(Mux(first == top, 0, first + 1))
        return m
