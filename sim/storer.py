"""Cycles of the storer."""

from dataclasses import dataclass, field

from golden.isa import StoreTo
from hdl.params import CoreParams
from sim.loader import cut, word_beats


@dataclass
class StorerCycles:
    """An unstalled run of STOREs, all offered from cycle 0 on as their words are: the cycle of each transfer.

    taken : instructions · bursts : on `aw` · beats : on `w` · words : on `i` · done : pulses
    """

    taken: list[int] = field(default_factory=list)
    bursts: list[int] = field(default_factory=list)
    beats: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


class StorerTime:
    """Time view of `hdl.storer.Storer` in front of a memory that takes a burst and a beat every cycle.

    latency : cycles from a burst's last beat on `w` to its response on `b`, at least 1
    """

    def __init__(self, p: CoreParams, latency: int):
        self.p, self.latency = p, latency

    def run(self, commands: list[dict]) -> StorerCycles:
        """Commands as beats of `hdl.isa.transfer_layout`, none of them at fault; rows of SCORE of `words` + 1 words."""
        p, out = self.p, StorerCycles()
        ended: list[int] = []  # cycle in which each entry left the queue of what waits for its end

        def room(cycle: int) -> int:
            """The first cycle from `cycle` on in which an entry can be made."""
            return max(cycle, ended[-p.lxe.bursts] + 1) if len(ended) >= p.lxe.bursts else cycle

        finished = -1
        for c in commands:
            taken = max(out.taken[-1] + 1 if out.taken else 0, finished)
            out.taken.append(taken)
            cycle = taken + 1  # the next in which something can go
            if not c["skip"] and c["target"] == StoreTo.MEMORY:
                first = len(out.beats)
                for beats in cut(p, c):
                    begun = room(cycle)
                    out.bursts.append(begun + 1)
                    out.beats += range(begun + 1, begun + beats + 1)
                    cycle = begun + beats
                    ended.append(max(cycle + self.latency, ended[-1] + 1 if ended else 0))
                step = word_beats(p, c)
                out.words += [t - 1 for t in out.beats[first + step - 1 :: step]]
                finished = cycle - 1
            else:
                cycle = room(cycle)
                words = 1 if c["skip"] else (c["rows"] + 1) * (c["words"] + 1)
                out.words += [] if c["skip"] else range(cycle, cycle + words)
                finished = cycle + words - 1
                ended.append(max(finished + 1, ended[-1] + 1 if ended else 0))
            out.done.append(ended[-1])
        return out
