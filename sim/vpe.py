"""Cycles of the VPE."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from golden.vector import FOREVER, Format, Instruction, Op, Post, Reduce, Source, Swap
from hdl.params import VpeParams

LATENCY = 5  # from a word's operands to its result
FUNCTION_LATENCY = 8  # with a function
SCALAR = {Reduce.MAX: 3, Reduce.SUM: 7, Reduce.LAST: 0}  # from a row's last result to its register's write
A, B, C = range(3)


@dataclass
class VpeCycles:
    """An unstalled run: the cycle of every transfer on each stream, the first instruction's being 0."""

    c: list[int] = field(default_factory=list)
    i: list[int] = field(default_factory=list)
    o: list[int] = field(default_factory=list)
    words: int = 0  # through the lanes
    # Cycles in which an instruction is in hand and neither issues nor is handed on, by reason: "order" (its word before
    # would come before others), "bank" or "scalar" (on its way), "store" (of what it overwrites or streams into, or
    # the STORE before).
    waits: Counter = field(default_factory=Counter)

    @property
    def end(self) -> int:
        """Cycle of the last transfer."""
        return max([*self.c[-1:], *self.i[-1:], *self.o[-1:]], default=0)


@dataclass
class _Word:
    """A word on its way: cycles until its result, what it writes."""

    left: int
    banks: int
    addr: int
    reduce: Reduce
    register: int


class VpeTime:
    """Time view of `hdl.vpe.Vpe`, cycle by cycle: instructions and words wait at the inputs, `o` is always taken."""

    def __init__(self, p: VpeParams):
        self.p = p

    def run(self, program: Iterable[Instruction]) -> VpeCycles:
        """Cycles of a program."""
        out, top = VpeCycles(), self.p.depth - 1
        queue = list(program)[::-1]
        now: Instruction | None = None
        word = 0
        held: tuple[_Word, Instruction] | None = None
        coming: list[_Word] = []
        store: list[int] | None = None  # bank, address, words left
        put = False
        busy: dict[int, int] = {}  # register -> first cycle in which it is no longer on its way
        cycle = 0

        def on_the_way(bank: int, addr: int) -> bool:
            words = [*coming, *([held[0]] if held else [])]
            return any(w.banks >> bank & 1 and w.addr == addr for w in words)

        while queue or now or held or coming or store or put:
            if put:
                out.o.append(cycle)
            # The word whose operands are there.
            slow = held is not None and held[1].post >= Post.EXP
            fire = held is not None and (slow or not any(w.left >= LATENCY for w in coming))
            issue = hand_on = False
            read: set[int] = set()
            reason = "order"
            if now and now.op != Op.STORE and (held is None or fire):
                at = self._addresses(now, word)
                to = (now.addr_d + word) & top
                registers = [getattr(now, f"scalar_{n}") for n in "abc" if self._source(now, n) == Source.SCALAR]
                registers += [now.scalar_d] if now.reduce else []
                stored = store is not None and (
                    (now.write >> store[0] & 1 and (to - store[1]) & top <= store[2])
                    or (now.streams and store[0] in at)
                )
                bank = any(on_the_way(bank, addr) for bank, addr in at.items())
                scalar = any(busy.get(r, 0) > cycle for r in registers)
                issue = not (stored or bank or scalar)
                reason = "bank" if bank else "scalar" if scalar else "store"
                read = set(at) if issue else set()
            fetch = store is not None and not on_the_way(store[0], store[1])
            if fetch:
                kept = self._addresses(held[1], 0) if held and not fire else {}
                fetch = store[0] not in read and store[0] not in kept
            if now and now.op == Op.STORE:
                hand_on, reason = store is None or (fetch and store[2] == 0), "store"
            if now and not issue and not hand_on:
                out.waits[reason] += 1

            # The clock edge.
            for w in coming:
                if w.left == 0 and w.reduce:
                    busy[w.register] = cycle + SCALAR[w.reduce] + 1
            coming = [w for w in coming if w.left]
            for w in coming:
                w.left -= 1
            if fire:
                held[0].left = (FUNCTION_LATENCY if slow else LATENCY) - 1
                coming.append(held[0])
                out.words += 1
                if held[1].streams:
                    out.i.append(cycle)
                held = None
            put = fetch
            if fetch:
                store = [store[0], (store[1] + 1) & top, store[2] - 1] if store[2] else None
            last = False
            if issue:
                last = word == now.words
                reduce = now.reduce if last else Reduce.NONE
                if reduce:
                    busy[now.scalar_d] = 1 << 62
                held = _Word(0, now.write, (now.addr_d + word) & top, reduce, now.scalar_d), now
                word += 1
            if hand_on:
                wide = now.format == Format.WIDE
                store = [C if wide else B, (now.addr_c if wide else now.addr_b) & top, now.words]
            if now is None or last or hand_on:
                now, word = queue.pop() if queue else None, 0
                if now:
                    out.c.append(cycle)
            cycle += 1
        return out

    @staticmethod
    def _source(i: Instruction, name: str) -> int | None:
        """Source of an operand, None if the instruction has none of this name."""
        return None if name == "b" and i.op != Op.FMA else getattr(i, name)

    def _addresses(self, i: Instruction, word: int) -> dict[int, int]:
        """Bank -> address that a word of an instruction reads."""
        out = {}
        for bank, name in enumerate("abc"):
            if self._source(i, name) == Source.BANK:
                span = getattr(i, f"span_{name}")
                addr = getattr(i, f"addr_{name}") + (word & (1 << span) - 1 if span < FOREVER else word)
                flip = 1 << i.swap - 3 if bank == B and i.swap > Swap.HALF else 0
                out[bank] = (addr ^ flip) & self.p.depth - 1
        return out
