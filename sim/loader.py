"""Cycles of the loader."""

from dataclasses import dataclass, field

from hdl.params import CoreParams


def cut(p: CoreParams, c: dict) -> list[int]:
    """Beats of every burst of a LOAD or STORE, a beat of `hdl.isa.transfer_layout`: none crosses burst_bytes."""
    longest = p.lxe.burst_bytes // p.lxe.bus_bytes
    out = []
    for r in range(c["rows"] + 1):
        at, left = (c["addr"] + r * c["stride"]) // p.lxe.bus_bytes, (c["words"] + 1) * word_beats(p, c)
        while left:
            out.append(min(left, longest - at % longest))
            at, left = at + out[-1], left - out[-1]
    return out


def word_beats(p: CoreParams, c: dict) -> int:
    """Beats of a word."""
    return (2 * p.dpe.n_w << c["wide"]) // p.lxe.bus_bytes


@dataclass
class LoaderCycles:
    """An unstalled run of LOADs, all offered from cycle 0 on: the cycle in which each transfer happens.

    taken : instructions · bursts : on `ar` · beats : on `r` · words : on `w`, `x` and `v` together · done : pulses
    """

    taken: list[int] = field(default_factory=list)
    bursts: list[int] = field(default_factory=list)
    beats: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


class LoaderTime:
    """Time view of `hdl.loader.Loader` in front of a memory that takes a burst every cycle and answers in order.

    latency : cycles from a burst's transfer on `ar` to its first beat on `r`, at least 1
    """

    def __init__(self, p: CoreParams, latency: int):
        self.p, self.latency = p, latency

    def run(self, commands: list[dict]) -> LoaderCycles:
        """Commands as beats of `hdl.isa.transfer_layout`, none of them at fault."""
        p, out = self.p, LoaderCycles()
        popped: list[int] = []  # cycle in which each instruction left the queue
        ends: list[int] = []  # cycle of each burst's last beat
        asked = finished = -1  # cycle in which the last burst was begun, in which the last instruction had all beats
        beat = -1  # cycle of the last beat
        for k, c in enumerate(commands):
            taken = max(out.taken[-1] + 1 if k else 0, asked)
            if k >= p.lxe.bursts:
                taken = max(taken, popped[k - p.lxe.bursts] + 1)
            out.taken.append(taken)
            popped.append(max(taken + 1, finished))
            if c["skip"]:
                finished = popped[-1] + 1
                out.done.append(finished + 1)
                continue
            asked = max(asked, taken)
            first = len(out.beats)
            for beats in cut(p, c):
                asked += 1
                if len(ends) >= p.lxe.bursts:
                    asked = max(asked, ends[-p.lxe.bursts] + 1)
                out.bursts.append(asked + 1)
                start = max(asked + 1 + self.latency, beat + 1, popped[-1] + 1)
                beat = start + beats - 1
                ends.append(beat)
                out.beats += range(start, beat + 1)
            finished = beat
            step = word_beats(p, c)
            out.words += [t + 1 for t in out.beats[first + step - 1 :: step]]
            out.done.append(out.words[-1])
        return out
