"""Sequencer: program, registers and loops of the LXE, and the queues in front of its engines."""

from amaranth import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import ADDR_BITS, REGISTERS, VECTOR, WORD_BITS, Engine, Opcode, Status, layout
from openvrex.hdl.execution.loop_stack import LoopStack
from openvrex.hdl.execution.semaphores import WAITERS, Semaphores
from openvrex.hdl.instruction_layouts import (
    PROGRAM,
    REGISTER,
    START,
    done_layout,
    fault_layout,
    host_layout,
    mul_layout,
    retrieve_layout,
    set_layout,
    status_layout,
    transfer_layout,
    vector_layout,
)
from openvrex.hdl.memory import Ram, collect_errors, error_members
from openvrex.hdl.named import comb
from openvrex.hdl.params import CoreParams, bits_for
from openvrex.hdl.slices import ReadySlice
from openvrex.hdl.unit import Unit

_SYNC = WAITERS.index("sync")
_WRITERS = (Opcode.SET, Opcode.ADD)
_FLOW = (
    Opcode.LOOP,
    Opcode.END,
    Opcode.SYNC,
    Opcode.HALT,
)  # instructions behind them read registers after these have waited
_FIELDS = {op: layout(op) for op in Opcode}
_BITS = max(at + bits for fields in _FIELDS.values() for at, bits in fields.values())  # bits of a word in use


class Sequencer(Unit):
    """Executes control instructions, and hands the others with their registers resolved to their engines.

    The host writes a program and registers on `host` and starts it. Instructions go through four stages in order:
    fetch; decode and register read; addition of addresses and counts; execution, or entry into the engine's queue. The
    head of a queue is offered when all its semaphores are above zero, and takes one from each even while its engine is
    busy. Control instructions wait for and signal semaphores like all others; HALT signals none. Instructions behind a
    SYNC, LOOP or END read their registers after it has waited. n is a signed number of 40 bits, modulo 2^40.

    Status. OPCODE: an unknown instruction; a LOOP inside of `LOOPS` others, whatever its count; an END that is not that
    of the innermost LOOP; an address behind the program memory. RANGE: a count that does not fit its field (a LOOP's:
    16 bits as it is), a word of no bank, a `keep` of no lane, a `swap` that the VPE's field does not hold; the engines
    check what depends on the scratchpads. DEADLOCK: no stream moved and no instruction was executed for `WATCHDOG`
    cycles while nothing was outstanding. Of faults in one cycle the status tells MEMORY, else BUS, RANGE, LENGTH,
    SEMAPHORE, FULL, OPCODE, DEADLOCK, TIMEOUT. `pc` is that of the bad instruction, which does nothing. Without a bad
    one it is that of the instruction being executed or put into its queue, or of the last one.

    Corner cases: nothing is out of range where `skip` is set. A VECTOR with `skip` is handed over, too: its taker drops
    it. A stream on offer stays on offer after a fault. A LOOP with a count of 0 skips to behind its END.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    host : In(stream of `hdl.instruction_layouts.host_layout`) : PROGRAM and REGISTER are taken at once (out
        of range: dropped), START unless RUNNING; after a fault it does nothing. Registers are zero after reset and
        kept from run to run; semaphores are zero and loops closed at START.
    load, mul, vector, store, retrieve : Out(streams of `transfer_layout`, `mul_layout`, `vector_layout`,
        `transfer_layout`, `retrieve_layout` of `hdl.instruction_layouts`) : instructions for each engine
    done : In(struct of a `hdl.instruction_layouts.done_layout` of each engine but vector) : pulses; a VECTOR
        is done as it goes
    retrieve_set : In(`set_layout`) : an engine sets a register, readable from the next cycle on. If several
        write one register in one cycle, the host wins over the engine, and the engine over the program
    store_set : In(`set_layout`), if `lxe.to_register` : the same from the storer; `retrieve_set` wins over it
    busy : In(a bit an `Engine`) : engines that have not finished: high from the cycle after an instruction goes there
        until that of its `done`
    fault : In(`hdl.instruction_layouts.fault_layout`) : pulses
    moved : In(1) : something moved in the engines or on the bus · outstanding : In(1) : the bus owes a response
    stop : Out(1) : high from a fault on until reset
    status : Out(`hdl.instruction_layouts.status_layout`) : `engines` are those with a current or queued instruction,
        `bus` is `outstanding`
    perf : Out(struct of 32-bit counters) : instructions (executed or put into queues), loops (rounds begun), and the
        cycles in which the head of each queue, or a control instruction (sync), waits for a semaphore

    Latency: an instruction is executed or enters its queue 4 cycles after START (3 after its fetch), and is offered 2
        cycles later (1 with queues of 1): 6 cycles from START at the `core` preset. An instruction done in cycle t lets
        one that waits for it go in t + 2. HALT is executed in the cycle after the first in which all is empty and idle;
        status is DONE in the next. Exact in `sim.units.sequencer_time.SequencerTime`.
    Throughput: an instruction a cycle; 2 for SET, ADD, SYNC, a LOOP that is entered, an END that goes on; 4 for a LOOP
        that is skipped, an END that goes back. A queue of 1 takes an instruction every other cycle.
    Raises: `ParamError` from `CoreParams.lxe_format`.
    Source: V-Rex section V-A names an instruction sequencer; the rest is this project's own.
    """

    WATCHDOG = 4096
    COUNTERS = ("instructions", "loops", *(f"{name}_waits" for name in WAITERS))

    def __init__(self, p: CoreParams):
        self.format = p.lxe_format()
        engines = self._engines(p)
        done = data.StructLayout({name: done_layout() for name in engines if name != "vector"})
        super().__init__(
            p,
            {
                "host": In(stream.Signature(host_layout())),
                **{name: Out(stream.Signature(shape)) for name, shape in engines.items()},
                "done": In(done),
                "retrieve_set": In(set_layout()),
                **({"store_set": In(set_layout())} if p.lxe.to_register else {}),
                "busy": In(len(Engine)),
                "fault": In(fault_layout()),
                "moved": In(1),
                "outstanding": In(1),
                "stop": Out(1),
                "status": Out(status_layout()),
                **error_members(p.lxe.protect),
            },
        )

    @staticmethod
    def _engines(p: CoreParams) -> dict[str, data.StructLayout]:
        """Name and layout of each engine's stream, in the order of `Engine` and `WAITERS`."""
        shapes = (transfer_layout(), mul_layout(), vector_layout(p), transfer_layout(), retrieve_layout())
        return {e.name.lower(): shape for e, shape in zip(Engine, shapes, strict=True)}

    @staticmethod
    def timing(p: CoreParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "latency": f"{6 if p.lxe.queue > 1 else 5} cycles from START to the first instruction at its engine",
            "interval": "1; 2: SET, ADD, SYNC, LOOP entered, END that goes on; 4: LOOP skipped, END that goes back",
            "semaphore": "2 cycles from done to what waits for it",
        }

    def elaborate(self, platform):
        m, engines = Module(), self._engines(self.p)
        program, decode, add = _Program(m), _Decode(), _Add()
        now, go = _Execute(), _Go(len(engines))

        self._host(m, program)
        m.submodules.program = memory = Ram(WORD_BITS, self.format.i_depth, protect=self.p.lxe.protect)
        collect_errors(m, self, [memory])
        self._fetch(m, memory, program)
        self._decode(m, memory.r_data, decode)
        self._add(m, memory.r_data, decode, add)
        self._write_registers(m, decode, add, go)
        self._latch(m, add, now, go)
        self._count_words(m, now)
        beats = self._resolve(m, now)
        loops = self._loops(m, program, now, go)
        self._check(m, loops, now)
        m.submodules.semaphores = semaphores = Semaphores()
        self._queues(m, beats, semaphores, now, go)
        self._control(m, semaphores, program, now, go)
        self._advance(m, semaphores, program, decode, add, now, go)
        self._status(m, semaphores, program, now, go)
        self._count_events(m, loops, program, go)
        return m

    def _host(self, m: Module, program: "_Program") -> None:
        """Takes START, and stops all engines after a fault."""
        host, code = self.host.payload, program.code
        m.d.comb += [
            self.host.ready.eq(~(program.running & self.host.valid & (host.op == START))),
            program.starts.eq(self.host.valid & (host.op == START) & ((code == Status.IDLE) | (code == Status.DONE))),
            self.stop.eq(code >= Status.OPCODE),
        ]

    def _fetch(self, m: Module, memory: wiring.PureInterface, program: "_Program") -> None:
        """The program memory: the host writes it, `pc` reads it."""
        host, pc, depth = self.host.payload, program.pc, self.format.i_depth
        m.d.comb += [
            memory.w_en.eq(self.host.valid & (host.op == PROGRAM) & (host.addr < depth)),
            memory.w_addr.eq(host.addr),
            memory.w_data.eq(host.data),
            memory.r_en.eq(program.fetch),
            memory.r_addr.eq(pc[: bits_for(depth)]),
        ]
        with m.If(program.starts):
            m.d.sync += pc.eq(0)
        with m.Elif(program.redirect):
            m.d.sync += pc.eq(program.target)
        with m.Elif(program.fetch):
            m.d.sync += pc.eq(pc + 1)

    def _decode(self, m: Module, word: Value, decode: "_Decode") -> None:
        """Finds the registers that an instruction reads, and the number added to the first."""
        base, addend = decode.base, decode.addend
        decode.op = comb(m, "op", word[:4])
        decode.length = comb(m, "length", _field(word, Opcode.LOAD, "len"))
        with m.Switch(decode.op):
            with m.Case(Opcode.SET):
                m.d.comb += addend.eq(_field(word, Opcode.SET, "imm"))
            with m.Case(Opcode.ADD):
                m.d.comb += [base.eq(_field(word, Opcode.ADD, "a")), addend.eq(_field(word, Opcode.ADD, "imm"))]
            with m.Default():  # RETRIEVE has these fields where LOAD and STORE have them
                m.d.comb += [base.eq(_field(word, Opcode.LOAD, "base")), addend.eq(_field(word, Opcode.LOAD, "addr"))]

    def _add(self, m: Module, word: Value, decode: "_Decode", add: "_Add") -> None:
        """Reads registers, and adds them in the next cycle."""
        op, length = decode.op, decode.length
        with m.If(decode.go1):
            m.d.sync += [
                add.pc2.eq(decode.pc1),
                add.word2.eq(word),
                add.past2.eq(decode.pc1[bits_for(self.format.i_depth) :].any()),
                add.holds2.eq(Cat(op == x for x in (*_WRITERS, *_FLOW)).any()),
                add.base2.eq(Array(decode.registers)[decode.base]),
                add.addend2.eq(decode.addend),
                add.length2.eq(Array(decode.registers)[length]),
                add.less2.eq(_field(word, Opcode.LOAD, "add").as_signed() - 1),
                add.counts2.eq(length != 0),
            ]
        add.total = comb(m, "total", (add.base2 + add.addend2)[:ADDR_BITS])

    def _write_registers(self, m: Module, decode: "_Decode", add: "_Add", go: "_Go") -> None:
        """Writes registers: the host wins over an engine, and an engine over the program."""
        host = self.host.payload
        writes = comb(m, "writes", go.go2 & ~add.past2 & Cat(add.word2[:4] == x for x in _WRITERS).any())
        for i, register in enumerate(decode.registers[1:], 1):
            with m.If(self.host.valid & (host.op == REGISTER) & (host.addr == i)):
                m.d.sync += register.eq(host.data)
            with m.Elif(self.retrieve_set.valid & (self.retrieve_set.to == i)):
                m.d.sync += register.eq(self.retrieve_set.data)
            if self.p.lxe.to_register:
                with m.Elif(self.store_set.valid & (self.store_set.to == i)):
                    m.d.sync += register.eq(self.store_set.data)
            with m.Elif(writes & (_field(add.word2, Opcode.SET, "to") == i)):
                m.d.sync += register.eq(add.total)

    def _latch(self, m: Module, add: "_Add", now: "_Execute", go: "_Go") -> None:
        """Latches the instruction to execute or hand over next."""
        with m.If(go.go2 & ~add.past2):
            m.d.sync += now.pc3.eq(add.pc2)
        with m.If(go.go2):
            m.d.sync += [
                now.word3.eq(add.word2),
                now.total3.eq(add.total),
                now.less3.eq(add.length2 + add.less2.as_signed()),
                now.counts3.eq(add.counts2),
                *(now.is_[x].eq((add.word2[:4] == x) & ~add.past2) for x in Opcode),
            ]
        now.to = comb(m, "to", Cat(now.is_[Opcode[name.upper()]] for name in self._engines(self.p)))
        now.control = comb(m, "control", ~now.to.any())
        now.flow = comb(m, "flow", Cat(now.is_[x] for x in _FLOW).any())

    def _count_words(self, m: Module, now: "_Execute") -> None:
        """Computes n, less one, in the unit that the instruction counts: numbers, words, or pairs of words."""
        lanes, is_, less3, word3 = self.format.lanes, now.is_, now.less3, now.word3
        # n is 0 or less. That includes -2^39, whose predecessor is the largest number.
        now.none = comb(m, "none", now.counts3 & (less3[-1] | less3[:-1].all()))
        pair = _field(word3, Opcode.LOAD, "pair")
        now.rounded = comb(m, "rounded", less3 | Mux(pair, 2 * lanes - 1, 0))
        by_words = is_[Opcode.MUL] | is_[Opcode.VECTOR] | pair | _field(word3, Opcode.LOAD, "unit")
        words = comb(m, "words", now.rounded[lanes.bit_length() - 1 :])
        now.count = comb(m, "count", Mux(pair & is_[Opcode.LOOP], words[1:], Mux(by_words, words, now.rounded)))

    def _loops(self, m: Module, program: "_Program", now: "_Execute", go: "_Go") -> LoopStack:
        """Connects LOOP and END to the loop stack, and computes where they lead."""
        m.submodules.loops = loops = LoopStack()
        is_, rounds = now.is_, _field(now.word3, Opcode.LOOP, "count")
        empty = comb(m, "empty", Mux(now.counts3, now.none, rounds == 0))
        m.d.comb += [
            loops.enter.eq(go.go3 & is_[Opcode.LOOP] & ~empty),
            loops.rounds.eq(Mux(now.counts3, now.count, rounds - 1)),
            loops.first.eq(now.pc3 + 1),
            loops.end.eq(_field(now.word3, Opcode.LOOP, "end")),
            loops.turn.eq(go.go3 & is_[Opcode.END]),
            loops.clear.eq(program.starts),
            program.redirect.eq(go.go3 & ((is_[Opcode.END] & loops.again) | (is_[Opcode.LOOP] & empty))),
            program.target.eq(Mux(is_[Opcode.END], loops.back, loops.end + 1)),
        ]
        return loops

    def _check(self, m: Module, loops: LoopStack, now: "_Execute") -> None:
        """Marks an unknown instruction, or one that does not fit the loops, as bad."""
        m.d.comb += now.bad.eq(
            ~Cat(now.is_.values()).any()
            | (now.is_[Opcode.LOOP] & loops.full)
            | (now.is_[Opcode.END] & (loops.none | (loops.last != now.pc3)))
        )

    def _queues(self, m: Module, beats: dict[str, Signal], semaphores: Semaphores, now: "_Execute", go: "_Go") -> None:
        """A queue in front of each engine; its head goes when its semaphores are above zero.

        It goes into a slice, because engines know late in a cycle whether they take an instruction.
        """
        for e, (name, shape) in enumerate(self._engines(self.p).items()):
            m.submodules[f"{name}_queue"] = queue = SyncFIFOBuffered(width=shape.size, depth=self.p.lxe.queue)
            m.submodules[f"{name}_slice"] = slice_ = ReadySlice(shape)
            out = getattr(self, name)
            wiring.connect(m, slice_.o, wiring.flipped(out))
            m.d.comb += [
                go.room[e].eq(queue.w_rdy),
                queue.w_data.eq(beats[name]),
                queue.w_en.eq(go.go3 & now.to[e]),
                go.waiting[e].eq((queue.level != 0) | ~slice_.i.ready),
                slice_.i.payload.as_value().eq(queue.r_data),
                slice_.i.valid.eq(queue.r_rdy & semaphores.ready[e]),
                queue.r_en.eq(slice_.i.ready & semaphores.ready[e]),
                go.goes[e].eq(out.valid & out.ready),
                semaphores.wait[e].eq(slice_.i.payload.wait),
                semaphores.take[e].eq(slice_.i.valid & slice_.i.ready),
                go.waits[e].eq(queue.r_rdy & ~semaphores.ready[e]),
            ]
            if name == "vector":
                m.d.comb += [
                    semaphores.done[e].valid.eq(go.goes[e]),
                    semaphores.done[e].signal.eq(out.payload.signal),
                ]
            else:
                m.d.comb += semaphores.done[e].eq(self.done[name])

    def _control(self, m: Module, semaphores: Semaphores, program: "_Program", now: "_Execute", go: "_Go") -> None:
        """Waits for and signals the semaphores of the instructions that the sequencer executes itself."""
        wait, signal = (_field(now.word3, Opcode.LOAD, name) for name in ("wait", "signal"))
        halt = now.is_[Opcode.HALT]
        retrieves = self.busy[-1] & ~_field(now.word3, Opcode.HALT, "leave")
        m.d.sync += go.drained.eq(now.valid3 & halt & ~Cat(go.waiting, self.busy[:-1], retrieves).any())
        m.d.comb += [
            semaphores.clear.eq(program.starts),
            semaphores.wait[_SYNC].eq(wait),
            semaphores.take[_SYNC].eq(go.go3 & now.control),
            semaphores.done[_SYNC].valid.eq(go.go3 & now.control & ~halt),
            semaphores.done[_SYNC].signal.eq(signal),
            go.waits[_SYNC].eq(now.valid3 & now.control & ~semaphores.ready[_SYNC]),
        ]

    def _advance(
        self,
        m: Module,
        semaphores: Semaphores,
        program: "_Program",
        decode: "_Decode",
        add: "_Add",
        now: "_Execute",
        go: "_Go",
    ) -> None:
        """Decides which stages go on, and moves the instructions."""
        running, halt = program.running, now.is_[Opcode.HALT]
        may = Mux(now.control, semaphores.ready[_SYNC] & (go.drained | ~halt), (go.room & now.to).any())
        m.d.comb += [
            go.go3.eq(now.valid3 & running & may & ~now.bad & ~now.outside),
            go.free3.eq(~now.valid3 | go.go3),
            go.go2.eq(add.valid2 & running & go.free3),
            go.free2.eq(~add.valid2 | go.go2),
            decode.go1.eq(
                decode.valid1
                & go.free2
                & ~(add.valid2 & add.holds2)
                & ~(now.valid3 & now.flow & (~go.go3 | program.redirect))
            ),
            program.fetch.eq(running & (~decode.valid1 | decode.go1) & ~program.redirect),
        ]
        program.halts = comb(m, "halts", go.go3 & halt)
        with m.If(decode.go1 | program.redirect):
            m.d.sync += decode.valid1.eq(0)
        with m.If(program.fetch):
            m.d.sync += [decode.valid1.eq(1), decode.pc1.eq(program.pc)]
        with m.If(go.free2):
            m.d.sync += add.valid2.eq(decode.go1)
        with m.If(go.free3):
            m.d.sync += now.valid3.eq(go.go2)
        with m.If(program.halts):
            m.d.sync += [decode.valid1.eq(0), add.valid2.eq(0), now.valid3.eq(0)]

    def _status(
        self,
        m: Module,
        semaphores: Semaphores,
        program: "_Program",
        now: "_Execute",
        go: "_Go",
    ) -> None:
        """Keeps the status: faults, the watchdog, the end of the program."""
        code, running = program.code, program.running
        event = Signal()  # something moved in the system
        quiet = Signal(range(self.WATCHDOG + 1))  # cycles since then
        taken = self.host.valid & self.host.ready
        m.d.sync += event.eq(~running | self.moved | self.outstanding | go.go3 | go.goes.any() | taken)
        m.d.sync += quiet.eq(Mux(event, 0, quiet + 1))
        with m.If(program.starts):
            m.d.sync += code.eq(Status.RUNNING)
        with m.If(program.halts):
            m.d.sync += code.eq(Status.DONE)
        with m.If(~self.stop):
            with m.If(self.fault.memory):
                m.d.sync += code.eq(Status.MEMORY)
            with m.Elif(self.fault.bus):
                m.d.sync += code.eq(Status.BUS)
            with m.Elif(self.fault.range | (running & now.valid3 & now.outside)):
                m.d.sync += code.eq(Status.RANGE)
            with m.Elif(self.fault.length):
                m.d.sync += code.eq(Status.LENGTH)
            with m.Elif(self.fault.semaphore | semaphores.overflow):
                m.d.sync += code.eq(Status.SEMAPHORE)
            with m.Elif(self.fault.full):
                m.d.sync += code.eq(Status.FULL)
            with m.Elif(running & now.valid3 & now.bad):
                m.d.sync += code.eq(Status.OPCODE)
            with m.Elif(running & (quiet == self.WATCHDOG)):
                m.d.sync += code.eq(Status.DEADLOCK)
            with m.Elif(self.fault.timeout):
                m.d.sync += code.eq(Status.TIMEOUT)
        m.d.comb += [
            self.status.code.eq(code),
            self.status.pc.eq(now.pc3),
            self.status.engines.eq(go.waiting | self.busy),
            self.status.bus.eq(self.outstanding),
        ]

    def _count_events(self, m: Module, loops: LoopStack, program: "_Program", go: "_Go") -> None:
        self._count_later(
            m,
            instructions=go.go3,
            loops=loops.enter | (loops.turn & loops.again),
            **{f"{name}_waits": go.waits[i] & program.running for i, name in enumerate(WAITERS)},
        )

    def _values(self, now: "_Execute") -> dict[Opcode, dict[str, Value]]:
        """The fields of the instruction as if it were each of the opcodes.

        A register replaces a count by `count` (less one), and `keep` by the rest of `rounded`.
        """
        word, counts, count = now.word3, now.counts3, now.count
        lane_bits = self.format.lanes.bit_length() - 1
        rest = now.rounded[:lane_bits] if lane_bits else 0
        values = {op: {name: _field(word, op, name) for name in _FIELDS[op]} | {"skip": now.none} for op in Opcode}
        by_length = counts & values[Opcode.MUL]["unit"]
        for op in (Opcode.LOAD, Opcode.STORE, Opcode.RETRIEVE):
            values[op] |= {"addr": now.total3, "rows": Mux(counts, count, values[op]["rows"])}
        mul, vector = values[Opcode.MUL], values[Opcode.VECTOR]
        mul |= {
            "tiles": Mux(counts & ~by_length, count, mul["tiles"]),
            "chunks": Mux(by_length, count, mul["chunks"]),
            "keep": Mux(by_length, rest, mul["keep"]),
        }
        vector |= {"words": Mux(counts, count, vector["words"]), "keep": Mux(counts, rest, vector["keep"])}
        return values

    def _resolve(self, m: Module, now: "_Execute") -> dict[str, Signal]:
        """Makes the beat of each engine (`none` becomes `skip`), and checks its fields for range."""
        is_, counts, count, none = now.is_, now.counts3, now.count, now.none
        values = self._values(now)
        lane_bits = self.format.lanes.bit_length() - 1
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
        fits24, fits16, fits12 = (~count[bits:].any() for bits in (24, 16, 12))
        counted = Cat(is_[x] for x in (Opcode.LOAD, Opcode.STORE, Opcode.LOOP)).any()
        m.d.comb += now.outside.eq(
            ~none
            & (
                (counts & counted & ~fits16)
                | (counts & is_[Opcode.RETRIEVE] & ~fits24)
                | (counts & is_[Opcode.LOOP] & count[:16].all())
                | (is_[Opcode.MUL] & ((counts & ~fits12) | values[Opcode.MUL]["keep"][lane_bits:].any()))
                | (is_[Opcode.VECTOR] & Cat(beyond).any())
            )
        )
        return beats


class _Program:
    """State of the program, and the address of its next instruction."""

    def __init__(self, m: Module):
        self.code = Signal(Status)
        self.running = comb(m, "running", self.code == Status.RUNNING)
        self.starts = Signal()
        self.halts: Signal  # a HALT is executed
        self.pc = Signal(17)  # address of the instruction to fetch
        self.fetch = Signal()
        self.redirect = Signal()  # go on at `target`
        self.target = Signal(17)


class _Decode:
    """An instruction in its first stage."""

    def __init__(self):
        self.valid1 = Signal()
        self.go1 = Signal()
        self.pc1 = Signal(17, reset_less=True)
        self.registers = [Signal(ADDR_BITS, name=f"r{i}") for i in range(REGISTERS)]
        self.base = Signal(4)  # register to which `addend` is added
        self.addend = Signal(ADDR_BITS)  # number added to it
        self.op: Signal
        self.length: Signal  # register of a count


class _Add:
    """An instruction in its second stage."""

    def __init__(self):
        self.valid2 = Signal()
        self.pc2 = Signal(17, reset_less=True)
        self.word2 = Signal(_BITS, reset_less=True)
        self.past2 = Signal(reset_less=True)  # the address is behind the program memory
        self.holds2 = Signal(reset_less=True)  # the next instruction must see its effects
        self.base2 = Signal(ADDR_BITS, reset_less=True)
        self.addend2 = Signal(ADDR_BITS, reset_less=True)
        self.length2 = Signal(ADDR_BITS, reset_less=True)
        self.less2 = Signal(17, reset_less=True)  # add - 1
        self.counts2 = Signal(reset_less=True)  # a register replaces a count
        self.total: Signal  # base + addend


class _Execute:
    """An instruction in its third stage, which executes it or hands it over."""

    def __init__(self):
        self.valid3 = Signal()
        self.pc3 = Signal(16)
        self.word3 = Signal(_BITS, reset_less=True)
        self.total3 = Signal(ADDR_BITS, reset_less=True)
        self.less3 = Signal(ADDR_BITS, reset_less=True)  # n - 1
        self.counts3 = Signal(reset_less=True)  # a register replaces a count
        self.is_ = {x: Signal(name=f"is_{x.name.lower()}", reset_less=True) for x in Opcode}
        self.bad = Signal()
        self.outside = Signal()  # out of range
        self.to: Signal  # engine that takes it, one-hot
        self.control: Signal  # no engine: the sequencer executes it
        self.flow: Signal
        self.none: Signal  # n is 0 or less
        self.rounded: Signal  # n less one, rounded up to pairs of words
        self.count: Signal  # n less one, in what the instruction counts


class _Go:
    """Handshakes between the stages and queues."""

    def __init__(self, engines: int):
        self.go2 = Signal()
        self.go3 = Signal()
        self.free2 = Signal()
        self.free3 = Signal()
        # HALT has seen all queues empty and all engines that it waits for idle for a cycle, so their last signals are
        # counted.
        self.drained = Signal()
        self.room, self.waiting, self.goes = (Signal(engines, name=n) for n in ("room", "waiting", "goes"))  # of queues
        self.waits = Signal(len(WAITERS))


def _field(word: Value, op: Opcode, name: str) -> Value:
    """A field of an instruction's word."""
    at, bits = _FIELDS[op][name]
    return word[at : at + bits]
