"""The LXE's sequencer: program, registers, loops, queues in front of the engines."""

from amaranth import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from golden.isa import ADDR_BITS, REGISTERS, VECTOR, WORD_BITS, Engine, Opcode, Status, layout
from hdl.isa import (
    PROGRAM,
    REGISTER,
    START,
    done_layout,
    fault_layout,
    host_layout,
    mul_layout,
    retrieve_layout,
    status_layout,
    transfer_layout,
    vector_layout,
)
from hdl.loop_stack import LoopStack
from hdl.memory import collect_errors, error_members, ram
from hdl.params import CoreParams, bits_for
from hdl.semaphores import WAITERS, Semaphores

_SYNC = WAITERS.index("sync")
_WRITERS = (Opcode.SET, Opcode.ADD)
_FLOW = (Opcode.LOOP, Opcode.END, Opcode.SYNC, Opcode.HALT)  # what follows sees what they have waited for
_FIELDS = {op: layout(op) for op in Opcode}
_BITS = max(at + bits for fields in _FIELDS.values() for at, bits in fields.values())  # of a word, in use


def set_layout() -> data.StructLayout:
    """A pulse: R[to] = data."""
    return data.StructLayout({"valid": 1, "to": 4, "data": ADDR_BITS})


class Sequencer(wiring.Component):
    """Executes control instructions, hands the others with their registers resolved to their engines (`golden.isa`).

    An instruction is fetched, decoded and its registers are read, addresses and counts are added, then it is executed
    or put into its engine's queue; a queue's head is offered when its semaphores are above zero. Control instructions
    wait for and signal semaphores as all others do; HALT signals none. What follows a SYNC, LOOP or END reads its
    registers after that has waited. n is a signed number of 40 bits, modulo 2^40.

    A VECTOR with `skip` set is handed over, too: its taker drops it. What is offered stays so after a fault.

    Status. OPCODE: also a LOOP inside of `LOOPS` others, whatever its count, an END that is not that of the innermost
    LOOP, and what is behind the program memory. RANGE: a count that does not fit its field (a LOOP's: 16 bits as it
    is), a word of no bank, a `keep` of no lane, a `swap` that the VPE's field does not hold; what needs to know the
    scratchpads is the engines'. Nothing is out of range where `skip` is set. DEADLOCK: no stream moved and no
    instruction was executed for `WATCHDOG` cycles while nothing was outstanding. Of faults in one cycle MEMORY is
    told, else BUS, RANGE, SEMAPHORE, FULL, OPCODE, DEADLOCK. `pc` is that of the bad instruction, which does nothing,
    else of the one that is being executed or put into its queue, or was last.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    host : In(stream of `hdl.isa.host_layout`) : PROGRAM and REGISTER are taken at once (out of range: dropped), START
        unless RUNNING; after a fault it does nothing. Registers are zero after reset and kept from run to run;
        semaphores are zero and loops closed at START.
    load, mul, vector, store, retrieve : Out(streams of `transfer_layout`, `mul_layout`, `vector_layout`,
        `transfer_layout`, `retrieve_layout` of `hdl.isa`)
    done : In(struct of a `hdl.isa.done_layout` of each engine but vector) : pulses; a VECTOR is done as it goes
    set : In(`set_layout`) : an engine sets a register, read from the cycle after on. Where host, engine and program
        write one register in one cycle, the first of these does
    busy : In(a bit an `Engine`) : those that have not finished: high from the cycle after an instruction goes there
        until that of its `done`
    fault : In(`hdl.isa.fault_layout`) : pulses
    moved : In(1) : something moved in the engines or on the bus · outstanding : In(1) : the bus owes an answer
    stop : Out(1) : high from a fault on until reset
    status : Out(`hdl.isa.status_layout`) : `engines` are those with work in hand or in their queue, `bus`
        is `outstanding`
    perf : Out(struct of 32-bit counters) : instructions (executed or put into queues), loops (rounds begun), and the
        cycles in which the head of each queue, or a control instruction (sync), waits for a semaphore

    Latency: an instruction is executed or enters its queue 4 cycles after START (3 after its fetch), and is offered 2
        cycles later (1 with queues of 1). What is done in cycle t lets an instruction that waits go in t + 2. HALT is
        executed in the cycle after the first in which all is empty and idle, status is DONE in the next. Exact in
        `sim.sequencer.SequencerTime`.
    Throughput: an instruction a cycle; 2 for SET, ADD, SYNC, a LOOP that is entered, an END that goes on; 4 for a LOOP
        that is skipped, an END that goes back. A queue of 1 takes an instruction every other cycle.
    Raises: `ParamError` from `CoreParams.lxe_format`.
    Source: V-Rex section V-A names an instruction sequencer; the rest is this project's own.
    """

    WATCHDOG = 4096

    def __init__(self, p: CoreParams):
        self.p, self.format = p, p.lxe_format()
        engines = self._engines(p)
        done = data.StructLayout({name: done_layout() for name in engines if name != "vector"})
        super().__init__(
            {
                "host": In(stream.Signature(host_layout())),
                **{name: Out(stream.Signature(shape)) for name, shape in engines.items()},
                "done": In(done),
                "set": In(set_layout()),
                "busy": In(len(Engine)),
                "fault": In(fault_layout()),
                "moved": In(1),
                "outstanding": In(1),
                "stop": Out(1),
                "status": Out(status_layout()),
                **error_members(p.lxe.protect),
                "perf": Out(data.StructLayout(dict.fromkeys(self.counters(), 32))),
            }
        )

    @staticmethod
    def _engines(p: CoreParams) -> dict[str, data.StructLayout]:
        """Name and layout of each engine's stream, in the order of `Engine` and `WAITERS`."""
        shapes = (transfer_layout(), mul_layout(), vector_layout(p), transfer_layout(), retrieve_layout())
        return {e.name.lower(): shape for e, shape in zip(Engine, shapes, strict=True)}

    @staticmethod
    def counters() -> list[str]:
        """Names of the performance counters in `perf`."""
        return ["instructions", "loops", *(f"{name}_waits" for name in WAITERS)]

    @staticmethod
    def timing(p: CoreParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "latency": f"{6 if p.lxe.queue > 1 else 5} cycles from START to the first instruction at its engine",
            "interval": "1; 2: SET, ADD, SYNC, LOOP entered, END that goes on; 4: LOOP skipped, END that goes back",
            "semaphore": "2 cycles from done to what waits for it",
        }

    def elaborate(self, platform):
        f, m = self.format, Module()
        engines = self._engines(self.p)
        index = bits_for(f.i_depth)
        comb = _namer(m)

        # State of the program.
        code = Signal(Status)
        running = comb("running", code == Status.RUNNING)
        starts = Signal()
        host = self.host.payload
        m.d.comb += [
            self.host.ready.eq(~(running & (host.op == START))),
            starts.eq(self.host.valid & (host.op == START) & ((code == Status.IDLE) | (code == Status.DONE))),
            self.stop.eq(code >= Status.OPCODE),
        ]

        # Fetch.
        program = ram(m, platform, "program", WORD_BITS, f.i_depth, protect=self.p.lxe.protect)
        collect_errors(m, self, [program])
        pc = Signal(17)  # of the instruction to be fetched
        fetch = Signal()
        redirect = Signal()
        target = Signal.like(pc)
        m.d.comb += [
            program.w_en.eq(self.host.valid & (host.op == PROGRAM) & (host.addr < f.i_depth)),
            program.w_addr.eq(host.addr),
            program.w_data.eq(host.data),
            program.r_en.eq(fetch),
            program.r_addr.eq(pc[:index]),
        ]
        with m.If(starts):
            m.d.sync += pc.eq(0)
        with m.Elif(redirect):
            m.d.sync += pc.eq(target)
        with m.Elif(fetch):
            m.d.sync += pc.eq(pc + 1)

        # Decode, read registers.
        word = program.r_data
        valid1, go1 = Signal(), Signal()
        pc1 = Signal.like(pc, reset_less=True)
        op = comb("op", word[:4])
        registers = [Signal(ADDR_BITS, name=f"r{i}") for i in range(REGISTERS)]
        base = Signal(4)
        addend = Signal(ADDR_BITS)
        length = comb("length", _field(word, Opcode.LOAD, "len"))
        with m.Switch(op):
            with m.Case(Opcode.SET):
                m.d.comb += addend.eq(_field(word, Opcode.SET, "imm"))
            with m.Case(Opcode.ADD):
                m.d.comb += [base.eq(_field(word, Opcode.ADD, "a")), addend.eq(_field(word, Opcode.ADD, "imm"))]
            with m.Default():  # RETRIEVE has them where LOAD and STORE do
                m.d.comb += [base.eq(_field(word, Opcode.LOAD, "base")), addend.eq(_field(word, Opcode.LOAD, "addr"))]

        # Add.
        valid2, go2 = Signal(), Signal()
        pc2 = Signal.like(pc, reset_less=True)
        word2 = Signal(_BITS, reset_less=True)
        past2 = Signal(reset_less=True)
        holds2 = Signal(reset_less=True)  # what follows must see what it does
        base2, addend2, length2 = (Signal(ADDR_BITS, name=n, reset_less=True) for n in ("base2", "addend2", "length2"))
        less2 = Signal(17, reset_less=True)  # add - 1
        counts2 = Signal(reset_less=True)  # a register replaces a count
        with m.If(go1):
            m.d.sync += [
                pc2.eq(pc1),
                word2.eq(word),
                past2.eq(pc1[index:].any()),
                holds2.eq(Cat(op == x for x in (*_WRITERS, *_FLOW)).any()),
                base2.eq(Array(registers)[base]),
                addend2.eq(addend),
                length2.eq(Array(registers)[length]),
                less2.eq(_field(word, Opcode.LOAD, "add").as_signed() - 1),
                counts2.eq(length != 0),
            ]
        total = comb("total", (base2 + addend2)[:ADDR_BITS])
        writes = comb("writes", go2 & ~past2 & Cat(word2[:4] == x for x in _WRITERS).any())
        for i, register in enumerate(registers[1:], 1):
            with m.If(self.host.valid & (host.op == REGISTER) & (host.addr == i)):
                m.d.sync += register.eq(host.data)
            with m.Elif(self.set.valid & (self.set.to == i)):
                m.d.sync += register.eq(self.set.data)
            with m.Elif(writes & (_field(word2, Opcode.SET, "to") == i)):
                m.d.sync += register.eq(total)

        # Execute, hand over.
        valid3, go3 = Signal(), Signal()
        pc3 = Signal(16)
        word3 = Signal(_BITS, reset_less=True)
        total3 = Signal(ADDR_BITS, reset_less=True)
        less3 = Signal(ADDR_BITS, reset_less=True)  # n - 1
        counts3 = Signal(reset_less=True)
        is_ = {x: Signal(name=f"is_{x.name.lower()}", reset_less=True) for x in Opcode}
        with m.If(go2 & ~past2):
            m.d.sync += pc3.eq(pc2)
        with m.If(go2):
            m.d.sync += [
                word3.eq(word2),
                total3.eq(total),
                less3.eq(length2 + less2.as_signed()),
                counts3.eq(counts2),
                *(is_[x].eq((word2[:4] == x) & ~past2) for x in Opcode),
            ]
        to = comb("to", Cat(is_[Opcode[name.upper()]] for name in engines))
        control = comb("control", ~to.any())
        flow = comb("flow", Cat(is_[x] for x in _FLOW).any())
        wait, signal = (_field(word3, Opcode.LOAD, name) for name in ("wait", "signal"))

        # n, less one; 0 or less: so is -2^39, whose predecessor is the largest number.
        none = comb("none", counts3 & (less3[-1] | less3[:-1].all()))
        pair = _field(word3, Opcode.LOAD, "pair")
        rounded = comb("rounded", less3 | Mux(pair, 2 * f.lanes - 1, 0))
        by_words = is_[Opcode.MUL] | is_[Opcode.VECTOR] | pair | _field(word3, Opcode.LOAD, "unit")
        words = comb("words", rounded[f.lanes.bit_length() - 1 :])
        count = comb("count", Mux(pair & is_[Opcode.LOOP], words[1:], Mux(by_words, words, rounded)))
        beats, outside = self._resolve(m, is_, word3, counts3, count, rounded, total3, none)

        # Loops.
        m.submodules.loops = loops = LoopStack()
        rounds = _field(word3, Opcode.LOOP, "count")
        empty = comb("empty", Mux(counts3, none, rounds == 0))
        m.d.comb += [
            loops.enter.eq(go3 & is_[Opcode.LOOP] & ~empty),
            loops.rounds.eq(Mux(counts3, count, rounds - 1)),
            loops.first.eq(pc3 + 1),
            loops.end.eq(_field(word3, Opcode.LOOP, "end")),
            loops.turn.eq(go3 & is_[Opcode.END]),
            loops.clear.eq(starts),
            redirect.eq(go3 & ((is_[Opcode.END] & loops.again) | (is_[Opcode.LOOP] & empty))),
            target.eq(Mux(is_[Opcode.END], loops.back, loops.end + 1)),
        ]
        bad = Signal()
        m.d.comb += bad.eq(
            ~Cat(is_.values()).any()
            | (is_[Opcode.LOOP] & loops.full)
            | (is_[Opcode.END] & (loops.none | (loops.last != pc3)))
        )

        # Queues and semaphores.
        m.submodules.semaphores = semaphores = Semaphores()
        room, waiting, goes = (Signal(len(engines), name=n) for n in ("room", "waiting", "goes"))
        waits = Signal(len(WAITERS))
        for e, (name, shape) in enumerate(engines.items()):
            m.submodules[f"{name}_queue"] = queue = SyncFIFOBuffered(width=shape.size, depth=self.p.lxe.queue)
            out = getattr(self, name)
            m.d.comb += [
                room[e].eq(queue.w_rdy),
                queue.w_data.eq(beats[name]),
                queue.w_en.eq(go3 & to[e]),
                waiting[e].eq(queue.level != 0),
                out.payload.as_value().eq(queue.r_data),
                out.valid.eq(queue.r_rdy & semaphores.ready[e]),
                queue.r_en.eq(out.ready & semaphores.ready[e]),
                goes[e].eq(out.valid & out.ready),
                semaphores.wait[e].eq(out.payload.wait),
                semaphores.take[e].eq(goes[e]),
                waits[e].eq(queue.r_rdy & ~semaphores.ready[e]),
            ]
            if name == "vector":
                m.d.comb += [semaphores.done[e].valid.eq(goes[e]), semaphores.done[e].signal.eq(out.payload.signal)]
            else:
                m.d.comb += semaphores.done[e].eq(self.done[name])
        drained = Signal()  # a HALT in hand has seen all empty and idle; what was done last has been counted
        m.d.sync += drained.eq(valid3 & is_[Opcode.HALT] & ~(waiting | self.busy).any())
        m.d.comb += [
            semaphores.clear.eq(starts),
            semaphores.wait[_SYNC].eq(wait),
            semaphores.take[_SYNC].eq(go3 & control),
            semaphores.done[_SYNC].valid.eq(go3 & control & ~is_[Opcode.HALT]),
            semaphores.done[_SYNC].signal.eq(signal),
            waits[_SYNC].eq(valid3 & control & ~semaphores.ready[_SYNC]),
        ]

        # Who may go on.
        free2, free3 = Signal(), Signal()
        may = Mux(control, semaphores.ready[_SYNC] & (drained | ~is_[Opcode.HALT]), (room & to).any())
        m.d.comb += [
            go3.eq(valid3 & running & may & ~bad & ~outside),
            free3.eq(~valid3 | go3),
            go2.eq(valid2 & running & free3),
            free2.eq(~valid2 | go2),
            go1.eq(valid1 & free2 & ~(valid2 & holds2) & ~(valid3 & flow & (~go3 | redirect))),
            fetch.eq(running & (~valid1 | go1) & ~redirect),
        ]
        halts = comb("halts", go3 & is_[Opcode.HALT])
        with m.If(go1 | redirect):
            m.d.sync += valid1.eq(0)
        with m.If(fetch):
            m.d.sync += [valid1.eq(1), pc1.eq(pc)]
        with m.If(free2):
            m.d.sync += valid2.eq(go1)
        with m.If(free3):
            m.d.sync += valid3.eq(go2)
        with m.If(halts):
            m.d.sync += [valid1.eq(0), valid2.eq(0), valid3.eq(0)]

        # Faults, the watchdog, the state.
        event = Signal()
        quiet = Signal(range(self.WATCHDOG + 1))
        taken = self.host.valid & self.host.ready
        m.d.sync += event.eq(~running | self.moved | self.outstanding | go3 | goes.any() | taken)
        m.d.sync += quiet.eq(Mux(event, 0, quiet + 1))
        with m.If(starts):
            m.d.sync += code.eq(Status.RUNNING)
        with m.If(halts):
            m.d.sync += code.eq(Status.DONE)
        with m.If(~self.stop):
            with m.If(self.fault.memory):
                m.d.sync += code.eq(Status.MEMORY)
            with m.Elif(self.fault.bus):
                m.d.sync += code.eq(Status.BUS)
            with m.Elif(self.fault.range | (running & valid3 & outside)):
                m.d.sync += code.eq(Status.RANGE)
            with m.Elif(self.fault.semaphore | semaphores.overflow):
                m.d.sync += code.eq(Status.SEMAPHORE)
            with m.Elif(self.fault.full):
                m.d.sync += code.eq(Status.FULL)
            with m.Elif(running & valid3 & bad):
                m.d.sync += code.eq(Status.OPCODE)
            with m.Elif(running & (quiet == self.WATCHDOG)):
                m.d.sync += code.eq(Status.DEADLOCK)
        m.d.comb += [
            self.status.code.eq(code),
            self.status.pc.eq(pc3),
            self.status.engines.eq(waiting | self.busy),
            self.status.bus.eq(self.outstanding),
        ]

        for name, happens in (
            ("instructions", go3),
            ("loops", loops.enter | (loops.turn & loops.again)),
            *((f"{name}_waits", waits[i] & running) for i, name in enumerate(WAITERS)),
        ):
            counted = Signal(name=f"counted_{name}")  # a cycle later: 32 bits hang on it
            m.d.sync += counted.eq(happens)
            with m.If(counted):
                m.d.sync += self.perf[name].eq(self.perf[name] + 1)
        return m

    def _resolve(
        self,
        m: Module,
        is_: dict[Opcode, Value],
        word: Value,
        counts: Value,
        count: Value,
        less: Value,
        address: Value,
        none: Value,
    ) -> tuple[dict[str, Signal], Signal]:
        """What each engine gets of an instruction, `none` of it being `skip`, and whether that is out of range.

        counts : a register replaces the count, by `count` (less one), and `keep` by that of `less`
        """
        lane_bits = self.format.lanes.bit_length() - 1
        rest = less[:lane_bits] if lane_bits else 0
        values = {op: {name: _field(word, op, name) for name in _FIELDS[op]} | {"skip": none} for op in Opcode}
        by_length = counts & values[Opcode.MUL]["unit"]
        for op in (Opcode.LOAD, Opcode.STORE, Opcode.RETRIEVE):
            values[op] |= {"addr": address, "rows": Mux(counts, count, values[op]["rows"])}
        mul, vector = values[Opcode.MUL], values[Opcode.VECTOR]
        mul |= {
            "tiles": Mux(counts & ~by_length, count, mul["tiles"]),
            "chunks": Mux(by_length, count, mul["chunks"]),
            "keep": Mux(by_length, rest, mul["keep"]),
        }
        vector |= {"words": Mux(counts, count, vector["words"]), "keep": Mux(counts, rest, vector["keep"])}

        depth_bits = self.format.depth.bit_length() - 1
        limits = {"keep": lane_bits, **dict.fromkeys(("words", "addr_a", "addr_b", "addr_c", "addr_d"), depth_bits)}
        beats, beyond = {}, []
        for name, shape in self._engines(self.p).items():
            beats[name] = beat = Signal(shape, name=f"{name}_beat")
            given = values[Opcode[name.upper()]]
            m.d.comb += [beat[k].eq(given[k]) for k in shape.members if k != "instruction"]
            if name == "vector":
                for k in VECTOR:
                    field = beat.instruction[k.removeprefix("v_")]
                    m.d.comb += field.eq(given[k])
                    beyond.append(given[k][limits.get(k, len(field)) :])
        outside = Signal()
        fits16, fits12 = ~count[16:].any(), ~count[12:].any()
        counted = Cat(is_[x] for x in (Opcode.LOAD, Opcode.STORE, Opcode.RETRIEVE, Opcode.LOOP)).any()
        m.d.comb += outside.eq(
            ~none
            & (
                (counts & counted & ~fits16)
                | (counts & is_[Opcode.LOOP] & count[:16].all())
                | (is_[Opcode.MUL] & ((counts & ~fits12) | mul["keep"][lane_bits:].any()))
                | (is_[Opcode.VECTOR] & Cat(beyond).any())
            )
        )
        return beats, outside


def _field(word: Value, op: Opcode, name: str) -> Value:
    """A field of an instruction's word."""
    at, bits = _FIELDS[op][name]
    return word[at : at + bits]


def _namer(m: Module):
    """A function that gives a value a name: (name, value) -> signal."""

    def comb(name: str, value: Value) -> Signal:
        s = Signal(len(value), name=name)
        m.d.comb += s.eq(value)
        return s

    return comb
