"""The LXE's sequencer: program, registers, loops, queues in front of the engines."""

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from golden.isa import ADDR_BITS, HEADER, LOOPS, REGISTERS, VECTOR, WORD_BITS, Engine, Opcode, Status, layout
from hdl.isa import (
    PROGRAM,
    REGISTER,
    START,
    fault_layout,
    host_layout,
    mul_layout,
    status_layout,
    transfer_layout,
    vector_layout,
)
from hdl.memory import ram
from hdl.params import CoreParams, bits_for
from hdl.semaphores import WAITERS, Semaphores, done_layout

_SYNC = WAITERS.index("sync")
_PAYLOAD = sum(HEADER.values())  # first bit behind the header
_WRITERS = (Opcode.SET, Opcode.ADD)
_FLOW = (Opcode.LOOP, Opcode.END, Opcode.HALT)


class Sequencer(wiring.Component):
    """Executes control instructions, hands the others with their registers resolved to four engines (`golden.isa`).

    An instruction is fetched, decoded and its registers are read, addresses and counts are added, then it is executed
    or put into its engine's queue; a queue's head is offered when its semaphores are above zero. Control instructions
    wait for and signal semaphores as all others do; HALT signals none. R[len] is signed, 40 bits; n is exact.

    A VECTOR with `skip` set is handed over, too: its taker drops it. What is offered stays so after a fault.

    Status. OPCODE, RANGE: `pc` is the instruction's, which does nothing. RANGE also is a field of a VECTOR that the
    VPE's does not hold, a `keep` of a MUL beyond a word, a LOOP's count above 65,535; nothing is out of range where
    `skip` is set. A LOOP inside of `LOOPS` others is bad whatever its count. An END closes the innermost loop,
    wherever it stands. DEADLOCK: no stream moved and no instruction was executed for `WATCHDOG` cycles while nothing
    was outstanding. Of faults in one cycle BUS is told, else RANGE, SEMAPHORE, OPCODE, DEADLOCK. `pc` is else that of
    the instruction that is being executed or handed over, or was last; one behind the program has the index modulo
    2^16.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    host : In(stream of `hdl.isa.host_layout`) : PROGRAM and REGISTER are taken at once (out of range: dropped), START
        unless RUNNING; after a fault it does nothing. Registers, zero after reset, are kept from run to run; one
        that is written while a program runs changes in the cycle after. Semaphores are zero and loops closed at START.
    load, mul, vector, store : Out(stream of `transfer_layout`, `mul_layout`, `vector_layout`, `transfer_layout`)
    done : In(struct of a `hdl.semaphores.done_layout` each for load, mul, store) : pulses; a VECTOR's is its hand-over
    busy : In(4) : `Engine`s that have not finished: high from the cycle after a hand-over until that of its `done`
    fault : In(`hdl.isa.fault_layout`) : pulses
    moved : In(1) : something moved in the engines or on the bus · outstanding : In(1) : the bus owes an answer
    stop : Out(1) : high from a fault on until reset
    status : Out(`hdl.isa.status_layout`) : `engines` are those with work in hand or in their queue
    perf : Out(struct of 32-bit counters) : instructions (executed or put into queues), loops (bodies begun), and the
        cycles in which the head of each queue, or a control instruction (sync), waits for a semaphore

    Latency: an instruction is executed or enters its queue 4 cycles after START (3 after its fetch), and is offered 2
        cycles later (1 with queues of 1). What is done in cycle t lets an instruction that waits go in t + 2. HALT is
        executed in the cycle after the first in which all is empty and idle, status is DONE in the next. Exact in
        `sim.sequencer.SequencerTime`.
    Throughput: an instruction a cycle; 2 for SET, ADD, a LOOP that is entered, an END that goes on; 4 for a LOOP
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
                "busy": In(len(Engine)),
                "fault": In(fault_layout()),
                "moved": In(1),
                "outstanding": In(1),
                "stop": Out(1),
                "status": Out(status_layout()),
                "perf": Out(data.StructLayout(dict.fromkeys(self.counters(), 32))),
            }
        )

    @staticmethod
    def _engines(p: CoreParams) -> dict[str, data.StructLayout]:
        """Name and layout of each engine's stream, in the order of `Engine` and `WAITERS`."""
        return {"load": transfer_layout(), "mul": mul_layout(), "vector": vector_layout(p), "store": transfer_layout()}

    @staticmethod
    def counters() -> list[str]:
        """Names of the performance counters in `perf`."""
        return ["instructions", "loops", *(f"{name}_waits" for name in WAITERS)]

    @staticmethod
    def timing(p: CoreParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "latency": f"{6 if p.lxe.queue > 1 else 5} cycles from START to the first instruction at its engine",
            "interval": "1; 2 for SET, ADD, LOOP entered, END that goes on; 4 for LOOP skipped, END that goes back",
            "semaphore": "2 cycles from done to the hand-over of what waits for it",
        }

    def elaborate(self, platform):
        p, f, m = self.p, self.format, Module()
        engines = self._engines(p)
        lane_bits = f.lanes.bit_length() - 1
        index = bits_for(f.i_depth)
        where = {op: layout(op) for op in Opcode}

        def take(word, op, name, start=0):
            at, bits = where[op][name]
            return word[at - start : at - start + bits]

        def comb(name, value):
            s = Signal(len(value), name=name)
            m.d.comb += s.eq(value)
            return s

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
        program = ram(m, platform, "program", WORD_BITS, f.i_depth)
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
        len1 = comb("len1", take(word, Opcode.LOAD, "len"))
        addend = Signal(ADDR_BITS)
        with m.Switch(op):
            with m.Case(Opcode.SET):
                m.d.comb += addend.eq(take(word, Opcode.SET, "imm"))
            with m.Case(Opcode.ADD):
                m.d.comb += [base.eq(take(word, Opcode.ADD, "a")), addend.eq(take(word, Opcode.ADD, "imm"))]
            with m.Default():
                m.d.comb += [base.eq(take(word, Opcode.LOAD, "base")), addend.eq(take(word, Opcode.LOAD, "addr"))]

        # Add.
        valid2, go2 = Signal(), Signal()
        pc2 = Signal.like(pc, reset_less=True)
        word2 = Signal(max(at + bits for x in where.values() for at, bits in x.values()), reset_less=True)
        past2 = Signal(reset_less=True)
        holds2 = Signal(reset_less=True)  # what follows must see what it does
        base2, addend2, len2 = (Signal(ADDR_BITS, name=n, reset_less=True) for n in ("base2", "addend2", "len2"))
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
                len2.eq(Array(registers)[len1]),
                less2.eq(take(word, Opcode.LOAD, "add").as_signed() - 1),
                counts2.eq(len1 != 0),
            ]
        total = comb("total", (base2 + addend2)[:ADDR_BITS])
        writes = Signal()
        m.d.comb += writes.eq(go2 & Cat(word2[:4] == x for x in _WRITERS).any() & ~past2)
        for i, register in enumerate(registers[1:], 1):
            with m.If(self.host.valid & (host.op == REGISTER) & (host.addr == i)):
                m.d.sync += register.eq(host.data)
            with m.Elif(writes & (take(word2, Opcode.SET, "to") == i)):
                m.d.sync += register.eq(total)

        # Hand over.
        valid3, go3 = Signal(), Signal()
        pc3 = Signal.like(pc)
        word3 = Signal.like(word2, reset_less=True)
        past3 = Signal(reset_less=True)
        total3 = Signal(ADDR_BITS, reset_less=True)
        less3 = Signal(ADDR_BITS + 1, reset_less=True)  # n - 1
        counts3 = Signal(reset_less=True)
        with m.If(go2):
            m.d.sync += [
                pc3.eq(pc2),
                word3.eq(word2),
                past3.eq(past2),
                total3.eq(total),
                less3.eq(len2.as_signed() + less2.as_signed()),
                counts3.eq(counts2),
            ]
        is_ = {x: comb(f"is_{x.name.lower()}", (word3[:4] == x) & ~past3) for x in Opcode}
        control = comb("control", ~Cat(is_[x] for x in Opcode if x >= Opcode.LOAD).any())
        flow = comb("flow", Cat(is_[x] for x in _FLOW).any())

        # Counts: `count` is the one that n replaces, less one.
        less_words = less3[lane_bits:]
        words_only = is_[Opcode.MUL] | is_[Opcode.VECTOR] | take(word3, Opcode.LOAD, "unit")
        count = comb("count", Mux(words_only, less_words, less3[:ADDR_BITS]))
        rest = less3[:lane_bits] if lane_bits else 0
        none = comb("none", counts3 & less3[-1])
        fits16 = comb("fits16", ~count[16:].any())
        fits12 = comb("fits12", ~count[12:].any())

        head = {k: take(word3, Opcode.LOAD, k) for k in ("wait", "signal")} | {"skip": none}
        transfer = {k: take(word3, Opcode.LOAD, k) for k in where[Opcode.LOAD] if k in transfer_layout().members}
        transfer |= head | {"addr": total3, "rows": Mux(counts3, count, take(word3, Opcode.LOAD, "rows"))}
        mul = {k: take(word3, Opcode.MUL, k) for k in where[Opcode.MUL] if k in mul_layout().members} | head
        by_length = comb("by_length", counts3 & take(word3, Opcode.MUL, "unit"))
        mul["tiles"] = Mux(counts3 & ~by_length, count, mul["tiles"])
        mul["chunks"] = Mux(by_length, count, mul["chunks"])
        mul["keep"] = Mux(by_length, rest, mul["keep"])
        vector = {k: take(word3, Opcode.VECTOR, k) for k in VECTOR}
        vector["words"] = Mux(counts3, count, vector["words"])
        vector["keep"] = Mux(counts3, rest, vector["keep"])
        narrow = vector_layout(p)["instruction"].shape
        beyond = [v[narrow[k.removeprefix("v_")].width :] for k, v in vector.items()]
        vector = {("instruction", k.removeprefix("v_")): v for k, v in vector.items()}
        vector |= {"source": take(word3, Opcode.VECTOR, "source")} | head

        # Loops: what is left of the innermost one, less one, and its first instruction.
        depth = Signal(range(LOOPS + 1))
        left = [Signal(16, name=f"left{i}", reset_less=True) for i in range(LOOPS)]
        first = [Signal.like(pc, name=f"first{i}", reset_less=True) for i in range(LOOPS)]
        fixed = take(word3, Opcode.LOOP, "count")
        empty = comb("empty", Mux(counts3, none, fixed == 0))
        enters = comb("enters", go3 & is_[Opcode.LOOP] & ~empty)
        goes_back = comb("goes_back", is_[Opcode.END] & (left[0] != 0))
        ends = comb("ends", go3 & is_[Opcode.END] & ~goes_back)
        m.d.comb += [
            redirect.eq(go3 & (goes_back | (is_[Opcode.LOOP] & empty))),
            target.eq(Mux(is_[Opcode.END], first[0], take(word3, Opcode.LOOP, "end") + 1)),
        ]
        with m.If(enters):
            m.d.sync += depth.eq(depth + 1)
            m.d.sync += [left[0].eq(Mux(counts3, count, fixed - 1)), first[0].eq(pc3 + 1)]
            m.d.sync += [x[i + 1].eq(x[i]) for x in (left, first) for i in range(LOOPS - 1)]
        with m.Elif(ends):
            m.d.sync += depth.eq(depth - 1)
            m.d.sync += [x[i].eq(x[i + 1]) for x in (left, first) for i in range(LOOPS - 1)]
        with m.Elif(redirect & is_[Opcode.END]):
            m.d.sync += left[0].eq(left[0] - 1)
        with m.If(starts):
            m.d.sync += depth.eq(0)

        bad = Signal()
        outside = Signal()
        m.d.comb += [
            bad.eq(~Cat(is_.values()).any() | (is_[Opcode.END] & (depth == 0)) | (is_[Opcode.LOOP] & (depth == LOOPS))),
            outside.eq(
                ~none
                & (
                    ((is_[Opcode.LOAD] | is_[Opcode.STORE]) & counts3 & ~fits16)
                    | (is_[Opcode.MUL] & ((counts3 & ~fits12) | mul["keep"][lane_bits:].any()))
                    | (is_[Opcode.VECTOR] & Cat(beyond).any())
                    | (is_[Opcode.LOOP] & counts3 & (~fits16 | count[:16].all()))
                )
            ),
        ]

        # Queues and semaphores.
        m.submodules.semaphores = semaphores = Semaphores()
        m.d.comb += semaphores.clear.eq(starts)
        room = Signal(len(engines))
        waiting = Signal(len(engines))  # something in a queue
        goes = Signal(len(engines))  # to its engine
        waits = Signal(len(WAITERS))
        signals = {"load": self.done.load, "mul": self.done.mul, "store": self.done.store}
        for e, ((name, shape), fields) in enumerate(
            zip(engines.items(), (transfer, mul, vector, transfer), strict=True)
        ):
            m.submodules[f"{name}_queue"] = queue = SyncFIFOBuffered(width=shape.size, depth=p.lxe.queue)
            out = getattr(self, name)
            entry = Signal(shape, name=f"{name}_entry")
            for key, value in fields.items():
                path = key if isinstance(key, tuple) else (key,)
                field = entry
                for part in path:
                    field = field[part]
                m.d.comb += field.eq(value)
            m.d.comb += [
                room[e].eq(queue.w_rdy),
                queue.w_data.eq(entry),
                queue.w_en.eq(go3 & is_[Opcode[name.upper()]]),
                waiting[e].eq(queue.level != 0),
                out.payload.as_value().eq(queue.r_data),
                out.valid.eq(queue.r_rdy & semaphores.ready[e]),
                queue.r_en.eq(out.ready & semaphores.ready[e]),
                goes[e].eq(out.valid & out.ready),
                semaphores.wait[e].eq(out.payload.wait),
                semaphores.take[e].eq(goes[e]),
                waits[e].eq(queue.r_rdy & ~semaphores.ready[e]),
            ]
            if name in signals:
                m.d.comb += semaphores.done[e].eq(signals[name])
            else:
                m.d.comb += [semaphores.done[e].valid.eq(goes[e]), semaphores.done[e].signal.eq(out.payload.signal)]
        drained = Signal()  # a HALT in hand has seen all empty and idle; what was done last has been counted
        m.d.sync += drained.eq(valid3 & is_[Opcode.HALT] & ~(waiting | self.busy).any())
        m.d.comb += [
            semaphores.wait[_SYNC].eq(head["wait"]),
            semaphores.take[_SYNC].eq(go3 & control),
            semaphores.done[_SYNC].valid.eq(go3 & control & ~is_[Opcode.HALT]),
            semaphores.done[_SYNC].signal.eq(head["signal"]),
            waits[_SYNC].eq(valid3 & control & ~semaphores.ready[_SYNC]),
            self.status.engines.eq(waiting | self.busy),
            self.status.code.eq(code),
            self.status.pc.eq(pc3),
        ]

        # Who may go on.
        may = Signal()
        with m.If(control):
            m.d.comb += may.eq(semaphores.ready[_SYNC] & (~is_[Opcode.HALT] | drained))
        with m.Else():
            to = Cat(is_[Opcode[name.upper()]] for name in engines)
            m.d.comb += may.eq((room & to).any())
        free2, free3 = Signal(), Signal()
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
        m.d.sync += event.eq(
            ~running | self.moved | self.outstanding | go3 | goes.any() | (self.host.valid & self.host.ready)
        )
        m.d.sync += quiet.eq(Mux(event, 0, quiet + 1))
        with m.If(starts):
            m.d.sync += code.eq(Status.RUNNING)
        with m.If(halts):
            m.d.sync += code.eq(Status.DONE)
        with m.If(~self.stop):
            with m.If(self.fault.bus):
                m.d.sync += code.eq(Status.BUS)
            with m.Elif(self.fault.range | (running & valid3 & outside & ~bad)):
                m.d.sync += code.eq(Status.RANGE)
            with m.Elif(self.fault.semaphore | semaphores.overflow):
                m.d.sync += code.eq(Status.SEMAPHORE)
            with m.Elif(running & valid3 & bad):
                m.d.sync += code.eq(Status.OPCODE)
            with m.Elif(running & (quiet == self.WATCHDOG)):
                m.d.sync += code.eq(Status.DEADLOCK)

        for name, happens in (
            ("instructions", go3),
            ("loops", enters | (go3 & goes_back)),
            *((f"{name}_waits", waits[i] & running) for i, name in enumerate(WAITERS)),
        ):
            counted = Signal(name=f"counted_{name}")  # a cycle later: 32 bits hang on it
            m.d.sync += counted.eq(happens)
            with m.If(counted):
                m.d.sync += self.perf[name].eq(self.perf[name] + 1)
        return m
