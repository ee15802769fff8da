"""Predicts when the storer takes STOREs and words, and when it sends bursts and beats."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from openvrex.golden.program.isa import SIGNS, StoreTo, packs_signs
from openvrex.hdl.params import CoreParams
from openvrex.sim.units.loader_time import cut, word_beats
from openvrex.sim.units.queue_cycles import Always, Queue, Wait, Waits, alone

Give = Callable[[int], Generator[Wait, None, int]]  # offers a word from a cycle on, returns when it is taken


@dataclass
class StorerCycles:
    """Cycle of each transfer in a run of STOREs.

    taken : instructions taken
    bursts : on `aw`
    beats : on `w`
    words : on `i`
    done : pulses of `done`
    """

    taken: list[int] = field(default_factory=list)
    bursts: list[int] = field(default_factory=list)
    beats: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


class StorerTime:
    """Time view of `hdl.execution.storer.Storer` with a memory that takes a burst and a beat every cycle.

    latency : cycles from a burst's last beat on `w` to its response on `b`, at least 1
    detail : keep the cycles of beats and words, too
    """

    def __init__(self, p: CoreParams, latency: int, detail: bool = True):
        self.p, self.latency, self.detail = p, latency, detail
        self.out = StorerCycles()
        self.beats = 0  # number of beats sent on `w`
        self._ended: list[int] = []  # cycle in which each pending burst or instruction ended
        self._finished = -1  # cycle in which the last instruction's last word left

    def run(self, commands: list[dict]) -> StorerCycles:
        """Cycles of `commands`, valid beats of `transfer_layout`; a row of SCORE has `words` + 1 words.

        All commands and all words are offered from cycle 0 on.
        """

        def stores() -> Waits:
            words = Always()
            for c in commands:
                self.take(0)
                yield from self.store(c, words)

        alone(stores=stores())
        return self.out

    def take(self, offered: int) -> int:
        """Takes the next instruction, which is offered from cycle `offered` on, and returns the cycle."""
        out = self.out
        out.taken.append(max(offered, out.taken[-1] + 1 if out.taken else 0, self._finished))
        return out.taken[-1]

    def store(self, c: dict, words: Queue | Always, give: Give | None = None) -> Generator[Wait, None, int]:
        """Takes the words of the instruction taken last, hands them on, and returns the cycle in which it is done.

        words : queue of the words
        give : for X and the DRE, when the receiver takes a word; without it, the receiver is always ready
        """
        if not c["skip"] and c["target"] == StoreTo.MEMORY:
            yield from self._write(c, words)
        else:
            cycle = self._room(self.out.taken[-1] + 1)
            count = 0 if c["skip"] else (c["rows"] + 1) * (c["words"] + 1)
            for _ in range(count):
                cycle = yield from self._next(words, cycle)
                if give:
                    cycle = yield from give(cycle)
                self._gone(words, cycle)
                cycle += 1
            self._finished = cycle - (count > 0)
            self._end(self._finished + 1)
        self.out.done.append(self._ended[-1])
        return self._ended[-1]

    def _write(self, c: dict, words: Queue | Always) -> Waits:
        """Sends the words of a STORE to memory."""
        cycle, step = self.out.taken[-1] + 1, word_beats(self.p, c)
        left = step  # beats of the word
        signs = 0  # words behind each of which no beat goes
        if self.p.lxe.codes and packs_signs(c):
            step, left, signs = 1, 1, SIGNS // step - 1
        for beats, _ in cut(self.p, c):
            more = beats
            while more:
                for _ in range(signs):
                    cycle = yield from self._next(words, cycle)
                    self._gone(words, cycle)
                    cycle += 1
                if left == step:
                    cycle = yield from self._next(words, cycle)
                if more == beats:
                    cycle = self._room(cycle)
                    self.out.bursts.append(cycle + 1)
                part = min(more, left)
                if self.detail:
                    self.out.beats += range(cycle + 1, cycle + part + 1)
                cycle, more, left = cycle + part, more - part, left - part
                if not left:
                    left = step
                    self._gone(words, cycle - 1)
            self.beats += beats
            self._end(cycle + self.latency)
        self._finished = cycle - 1

    @staticmethod
    def _next(words: Queue | Always, cycle: int) -> Generator[Wait, None, int]:
        """The first cycle from `cycle` on in which the next word is offered."""
        n = len(words.taken)
        if len(words.moved) <= n:
            yield words.moved, n
        return max(cycle, words.offered(n))

    def _gone(self, words: Queue | Always, cycle: int) -> None:
        """Takes a word from its queue."""
        words.pop(cycle)
        if self.detail:
            self.out.words.append(cycle)

    def _room(self, cycle: int) -> int:
        """The first cycle from `cycle` on in which fewer than `bursts` ends are pending."""
        n = self.p.lxe.bursts
        return max(cycle, self._ended[-n] + 1) if len(self._ended) >= n else cycle

    def _end(self, cycle: int) -> None:
        """Records an end; ends come in order, at most one a cycle."""
        self._ended.append(max(cycle, self._ended[-1] + 1 if self._ended else 0))
