"""Predicts the cycle of every transfer of the VPE, and counts why instructions wait."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from openvrex.golden.arithmetic.vector import FOREVER, FUNCTION_LATENCY, LATENCY, REDUCTION, Instruction, Op, Source
from openvrex.hdl.params import VpeParams

A, B, C = range(3)  # banks
NEVER = 1 << 62  # a cycle after all others


@dataclass
class VpeCycles:
    """Cycle of every transfer on each stream. The first instruction is taken in cycle 0 if nothing stalls it.

    c : instructions
    i, o : words that instructions take, words of STOREs
    words : number of words that went through the lanes
    waits : number of cycles in which an instruction waits, by reason:
        "order" : its word would overtake a slower one
        "bank", "scalar" : an operand from a bank or a register is in flight
        "store" : a STORE still needs a word or a bank that the instruction uses, or is not finished
    """

    c: list[int] = field(default_factory=list)
    i: list[int] = field(default_factory=list)
    o: list[int] = field(default_factory=list)
    words: int = 0
    waits: Counter = field(default_factory=Counter)

    @property
    def end(self) -> int:
        """Cycle of the last transfer."""
        return max([*self.c[-1:], *self.i[-1:], *self.o[-1:]], default=0)


class Work:
    """An instruction taken apart, once for all its words: the banks and registers that they read and write.

    store, streams, slow : it is a STORE, takes words of the stream, has a function
    bank, addr : where a STORE reads
    reads : what each word reads
    read_banks, write : masks of the banks that it reads and writes
    to, write_banks : first address that it writes, and the banks
    registers : all scalar registers that it reads or writes
    reduce, register : its reduction, and the register of the result
    """

    def __init__(self, p: VpeParams, i: Instruction) -> None:
        self.top = p.depth - 1
        self.instruction, self.words, self.store = i, i.words, i.op == Op.STORE
        self.streams = i.streams
        self.slow = p.format.is_function(i.post)
        self.bank, addr = i.stored  # that a STORE reads
        self.addr = addr & self.top
        self.reads = []  # bank, first address, mask of the word number, bits to flip
        for bank, name in enumerate("abc"):
            if i.source(name) == Source.BANK:
                span = getattr(i, f"span_{name}")
                flip = i.flips if bank == B else 0
                mask = (1 << span) - 1 if span < FOREVER else self.top
                self.reads.append((bank, getattr(i, f"addr_{name}"), mask, flip))
        self.read_banks = sum(1 << bank for bank, *_ in self.reads)
        self.write, self.to = i.write, i.addr_d
        self.write_banks = tuple(i.into)
        self.registers = tuple({*i.scalars, *([i.scalar_d] if i.reduce else [])})
        self.reduce, self.register = i.reduce, i.scalar_d


class VpeTime:
    """Time view of `hdl.execution.vpe.Vpe`. The caller steps it through time and may skip cycles up to `wake`.

    detail : keep the cycle of every transfer in `out`

    After `step`:
    took_c, took_i, gave_o : whether the stream had a transfer in that cycle
    wake : first later cycle in which something can happen, if no pending stream becomes ready before
    """

    def __init__(self, p: VpeParams, detail: bool = True):
        self.p, self.detail = p, detail
        self.out = VpeCycles()
        self.took_c = self.took_i = self.gave_o = False
        self.wake = 0
        self.starved = 0  # number of cycles in which a word waits for `i`
        self._top = p.depth - 1
        self._now: Work | None = None  # instruction that issues words
        self._word = 0  # its next word
        self._held: tuple[Work, int, bool] | None = None  # issued word: instruction, result address, is it the last
        self._way = [[-1] * p.depth for _ in range(3)]  # cycle of the pending write of each word, by bank
        self._scalars = [-1] * 16  # cycle of the pending write of each register
        self._early = -1  # up to this cycle a word without a function would overtake one with a function
        self._store: list[int] | None = None  # STORE: bank, address, words left after this one
        self._put = -1  # bank of the word on `o`, -1 for none
        self._since, self._reason, self._starves = 0, "", False  # last cycle stepped, and why it waited

    def run(self, program: Iterable[Instruction]) -> VpeCycles:
        """Cycles of a program whose instructions and words are always offered, and whose output is always taken."""
        queue = [Work(self.p, i) for i in program][::-1]
        cycle = 0
        while self.busy or queue:
            self.step(cycle, queue[-1] if queue else None, True, True)
            if self.took_c:
                queue.pop()
            cycle = self.wake
        return self.out

    @property
    def busy(self) -> bool:
        """Whether an instruction or a word is in flight."""
        return bool(self._now or self._held or self._store) or self._put >= 0

    def step(self, cycle: int, c: Work | None, i: bool, o: bool) -> None:
        """Steps one cycle. `c` : the offered instruction · `i` : a word is offered · `o` : the taker is ready."""
        out, now, held, store, top = self.out, self._now, self._held, self._store, self._top
        gap = cycle - self._since - 1
        if gap > 0:  # the cycles in between repeat the last one
            if self._reason:
                out.waits[self._reason] += gap
            self.starved += gap * self._starves
        self._since = cycle
        put, wakes = self._put, []
        self.gave_o = put >= 0 and o
        out_free = put < 0 or o

        fire = self._starves = False
        if held:
            if held[0].slow or cycle > self._early:
                fire = i or not held[0].streams
                self._starves = not fire
            else:
                wakes.append(self._early + 1)

        issue = hand_on = False
        reason, taken = "order", 0
        if now and not now.store and (fire or not held):
            word, bank_free, scalar_free = self._word, -1, -1
            to = now.to + word & top
            for bank, first, mask, flip in now.reads:
                bank_free = max(bank_free, self._way[bank][(first + (word & mask) ^ flip) & top])
            for register in now.registers:
                scalar_free = max(scalar_free, self._scalars[register])
            stored = store is not None and (
                (now.write >> store[0] & 1 and (to - store[1]) & top <= store[2])
                or (now.streams and now.read_banks >> store[0] & 1)
            )
            stored = stored or (not out_free and now.read_banks >> put & 1)
            issue = not stored and bank_free < cycle and scalar_free < cycle
            if issue:
                taken = now.read_banks
            else:
                reason = "bank" if bank_free >= cycle else "scalar" if scalar_free >= cycle else "store"
                wakes += [bank_free + 1, scalar_free + 1]
        if held and not fire:
            taken |= held[0].read_banks
        fetch = False
        if store:
            way = self._way[store[0]][store[1]]
            fetch = way < cycle and out_free and not taken >> store[0] & 1
            wakes.append(way + 1)
        if now and now.store:
            hand_on, reason = store is None or (fetch and store[2] == 0), "store"
        self._reason = reason if now and not issue and not hand_on else ""
        if self._reason:
            out.waits[reason] += 1
        self.starved += self._starves

        # The clock edge.
        self.took_i = False
        if held and fire:
            work, to, last = held
            slow = work.slow
            written = cycle + (FUNCTION_LATENCY if slow else LATENCY)
            if slow:
                self._early = cycle + FUNCTION_LATENCY - LATENCY
            for bank in work.write_banks:
                self._way[bank][to] = written
            if last and work.reduce:
                self._scalars[work.register] = written + REDUCTION[work.reduce]
            out.words += 1
            self.took_i = work.streams
            self._held = None
        if store and fetch:
            self._store = [store[0], store[1] + 1 & top, store[2] - 1] if store[2] else None
            self._put = store[0]
        elif out_free:
            self._put = -1
        done = False
        if now and issue:
            done = self._word == now.words
            to = now.to + self._word & top
            self._held = now, to, done
            for bank in now.write_banks:
                self._way[bank][to] = NEVER
            if done and now.reduce:
                self._scalars[now.register] = NEVER
            self._word += 1
        if now and hand_on:
            self._store = [now.bank, now.addr, now.words]
        self.took_c = False
        if now is None or done or hand_on:
            self.took_c = c is not None
            self._now, self._word = c, 0
        moved = fire or issue or fetch or hand_on or self.took_c or self.gave_o
        self.wake = cycle + 1 if moved else min([w for w in wakes if w > cycle], default=NEVER)
        if self.detail:
            out.c += [cycle] * self.took_c
            out.i += [cycle] * self.took_i
            out.o += [cycle] * self.gave_o
