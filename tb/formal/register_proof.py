"""Proofs about registers that a STORE sets (`lxe.to_register`): none is lost or set twice, and whoever waits reads it.

Three claims make a chain. The storer sets the register of each STORE once, before it ends the STORE and so signals its
semaphore. The sequencer keeps that number whatever the program writes in the same cycle. An instruction behind a SYNC,
LOOP or END reads its registers when that has waited, and one behind a SET or ADD when that is done. That a SYNC waits
until its semaphores are signalled is proved in `tb.formal.sequencer_proof`. All inputs are free in every cycle.
"""

from amaranth import Array, Cat, Instance, Module, Mux, Signal, Value
from amaranth.hdl import Assert

from openvrex.golden.program.isa import NUMBER_BITS, REGISTERS, Opcode, StoreTo, layout
from openvrex.hdl.execution.sequencer import Sequencer
from openvrex.hdl.execution.storer import Storer
from openvrex.hdl.instruction_layouts import REGISTER
from openvrex.hdl.params import CoreParams
from openvrex.tb.formal.stream_proof import UnitMonitor

SHIFTS = 32  # of a number that goes to a register
_INSIDE = 4  # more instructions than a storer of one burst in flight holds


class SetMonitor(UnitMonitor):
    """A storer, of which one STORE to a register is followed from its instruction to its end.

    claim : "once": each STORE sets a register once; "what": the one that it names, to its number
    reach : claims instead that no followed STORE ends behind another one to a register; that claim must fail
    """

    def __init__(self, unit: Storer, claim: str, reach: bool):
        super().__init__(unit, more=("watch",))
        self.claim, self.reach = claim, reach

    def claims(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """A pulse belongs to a STORE; the followed one has its pulse, with its number, when it ends."""
        unit, c, pulse = self.unit, self.unit.c, self.unit.store_set
        i, word = unit.i, Signal(NUMBER_BITS)
        went = Signal()  # a word went in the cycle before
        m.d.sync += [went.eq(i.valid & i.ready), word.eq(i.payload.data.as_value()[:NUMBER_BITS])]
        comes, sets, fits = Signal(), Signal(), Signal()
        m.d.comb += [
            fits.eq(
                (c.payload.rows == 0)
                & (c.payload.words == 0)
                & (c.payload.to < REGISTERS)
                & (c.payload.step < SHIFTS)
                & ~c.payload.skip
            ),
            comes.eq(c.valid & c.ready),
            sets.eq(comes & (c.payload.target == StoreTo.X) & c.payload.wide & fits),
        ]
        owed, undone = Signal(range(_INSIDE)), Signal(range(_INSIDE))  # registers to set, STOREs that have not ended
        m.d.sync += [owed.eq(owed + sets - pulse.valid), undone.eq(undone + comes - unit.done.valid)]
        follows, has, second = Signal(), Signal(), Signal()  # it is followed; its register is set; behind another one
        ahead, first = Signal(range(_INSIDE)), Signal(range(_INSIDE))  # ends and pulses of earlier STOREs
        what = Signal.like(c.payload, name="what")
        mine, ends = Signal(), Signal()
        m.d.comb += [
            mine.eq(follows & ~has & pulse.valid & (first == 0)),
            ends.eq(follows & unit.done.valid & (ahead == 0)),
        ]
        with m.If(sets & self.watch & ~follows):
            m.d.sync += [follows.eq(1), has.eq(0), what.eq(c.payload)]
            m.d.sync += [first.eq(owed - pulse.valid), ahead.eq(undone - unit.done.valid), second.eq(owed.any())]
        with m.Elif(follows):
            m.d.sync += [
                first.eq(first - (pulse.valid & first.any())),
                ahead.eq(ahead - (unit.done.valid & ahead.any())),
                has.eq(has | mine),
                follows.eq(~ends),
            ]
        if self.reach:
            m.d.comb += Assert(~(ends & second), "no STORE ends behind another one to a register")
            return
        ended, over = Signal(), Signal()  # `stop` ends a program until a reset: nothing is claimed from then on
        m.d.sync += ended.eq(over)
        number = what.addr + (word << what.step[:5])
        m.d.comb += over.eq(unit.stop | ended)
        if self.claim == "once":
            m.d.comb += [
                Assert(over | ~pulse.valid | owed.any(), "a register is set without a STORE"),
                Assert(over | ~pulse.valid | went, "a register is set without a word"),
                Assert(over | ~ends | has | mine, "a STORE ends before its register is set"),
            ]
            return
        m.d.comb += [
            Assert(over | ~mine | (pulse.to == what.to), "another register is set"),
            Assert(over | ~mine | (pulse.data == number[: len(pulse.data)]), "a register gets another number"),
        ]


class WatchedSequencer(Sequencer):
    """A sequencer that tells what happens to any one of its registers, and when its instructions read registers.

    lost : by message, a claim is broken
    beside : the program writes a register in a cycle in which a STORE writes the followed one
    behind : an instruction reads its registers in the cycle in which a SYNC before it has waited
    """

    LOST = (
        "a STORE's number is lost",
        "an engine's number is lost",
        "a register changes that nobody writes",
        "registers are read before a SET or ADD has written",
        "registers are read before a SYNC has waited",
    )

    def __init__(self, p: CoreParams):
        super().__init__(p)
        self.lost = {message: Signal(name=f"lost{k}") for k, message in enumerate(self.LOST)}
        self.beside, self.behind = Signal(), Signal()

    def _advance(self, m, semaphores, program, decode, add, now, go) -> None:
        super()._advance(m, semaphores, program, decode, add, now, go)
        broken = (*self._kept(m, decode, add, go), *self._order(m, program, decode, now, go))
        m.d.comb += [signal.eq(b) for signal, b in zip(self.lost.values(), broken, strict=True)]

    def _kept(self, m: Module, decode, add, go) -> list[Value]:
        """Follow a register: who writes it, and whether it holds that in the next cycle."""
        which, any_, before = (Signal(range(REGISTERS), name=n) for n in ("which", "any_which", "which_before"))
        m.submodules.which = Instance("$anyseq", p_WIDTH=len(any_), o_Y=any_)
        begun, host, word = Signal(), self.host.payload, add.word2
        m.d.sync += [begun.eq(1), before.eq(which)]
        m.d.comb += which.eq(Mux(begun, before, any_))
        register = Signal.like(decode.registers[0], name="register")
        m.d.comb += register.eq(Array(decode.registers)[which])
        adds = go.go2 & ~add.past2 & Cat(word[:4] == op for op in (Opcode.SET, Opcode.ADD)).any()
        at, bits = layout(Opcode.SET)["to"]
        writes = {
            "host": self.host.valid & (host.op == REGISTER) & (host.addr == which),
            "engine": self.retrieve_set.valid & (self.retrieve_set.to == which),
            "store": self.store_set.valid & (self.store_set.to == which),
            "program": adds & (word[at : at + bits] == which),
        }
        by = {name: Signal(name=f"by_{name}") for name in writes}
        m.d.comb += [by[name].eq(w & (which != 0)) for name, w in writes.items()]
        stored, given, written = Signal(), Signal(), Signal()  # in the cycle before
        expects, was = (Signal.like(register, name=n) for n in ("expects", "was"))
        m.d.sync += [
            written.eq(Cat(by.values()).any()),
            stored.eq(by["store"] & ~by["engine"] & ~by["host"]),
            given.eq(by["engine"] & ~by["host"]),
            expects.eq(Mux(by["engine"], self.retrieve_set.data, self.store_set.data)),
            was.eq(register),
        ]
        m.d.comb += self.beside.eq(adds & by["store"] & ~by["program"])
        other = register != expects
        return [stored & other, given & other, begun & ~written & (register != was)]

    def _order(self, m: Module, program, decode, now, go) -> list[Value]:
        """Follow what later instructions wait for: a SET or ADD that has not written, a SYNC, LOOP or END."""
        writer, flow, waited = Signal(), Signal(), Signal()
        kinds = (Opcode.SET, Opcode.ADD), (Opcode.SYNC, Opcode.LOOP, Opcode.END)
        writes, steers = (Cat(decode.op == op for op in ops).any() for ops in kinds)
        ends = go.go3 & Cat(now.is_[op] for op in kinds[1]).any()
        inside = decode.pc1 < self.format.i_depth  # of the program memory; one behind it ends the program
        m.d.sync += [
            writer.eq(~program.halts & Mux(decode.go1, writes, writer & ~go.go2)),
            flow.eq(~program.halts & Mux(decode.go1, steers & inside, flow & ~ends)),
            waited.eq(now.valid3 & now.is_[Opcode.SYNC] & ~go.go3),
        ]
        m.d.comb += self.behind.eq(waited & ends & decode.go1)
        return [decode.go1 & writer, decode.go1 & flow & (~ends | program.redirect)]


class RegisterMonitor(UnitMonitor):
    """A `WatchedSequencer` with its claims about registers ("kept") or about the order of reads ("order").

    With `reach` it claims instead that it is never `beside` or `behind`. That claim must fail.
    """

    def __init__(self, p: CoreParams, claim: str, reach: bool):
        super().__init__(WatchedSequencer(p))
        self.claim, self.reach = claim, reach

    def claims(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """Some of the claims about what the unit tells."""
        unit, kept = self.unit, self.claim == "kept"
        if self.reach:
            m.d.comb += Assert(~(unit.beside if kept else unit.behind), "it never happens")
            return
        for message, lost in [*unit.lost.items()][:3] if kept else [*unit.lost.items()][3:]:
            m.d.comb += Assert(~lost, message)
