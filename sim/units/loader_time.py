"""Predicts when the loader takes LOADs, asks for bursts, takes beats and hands words on."""

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import lru_cache

from openvrex.golden.arithmetic.packed_weights import Packing
from openvrex.golden.program.isa import LoadTo, expands, unpacks
from openvrex.hdl.execution.loader import code_slice
from openvrex.hdl.execution.weight_expander import WeightExpander
from openvrex.hdl.params import CoreParams
from openvrex.sim.units.queue_cycles import Always, Queue, Wait, Waits, alone

EXPANDER = WeightExpander.LATENCY
Cut = tuple[tuple[int, int], ...]  # (beats, cycles of joining before it) of each burst


def cut(p: CoreParams, c: dict, joined: bool = False) -> Cut:
    """Cuts a transfer into bursts; no burst crosses a multiple of burst_bytes.

    c : a LOAD or STORE as a beat of `transfer_layout`
    joined : join adjacent rows, as the loader does; a STORE's rows stay apart

    Returns the beats of every burst, and the cycles that `hdl.bus.axi.Bursts` spends joining rows before it.
    """
    bus, longest = p.lxe.bus_bytes, p.lxe.burst_bytes // p.lxe.bus_bytes
    beats = load_beats(p, c) if joined else word_beats(p, c)
    words = 1 if joined and expands(c) else c["words"] + 1
    at, row_beats = c["addr"] // bus % longest, words * beats
    stride = row_beats if joined and packs(p, c) else c["stride"] // bus
    rows = 1 if joined and once(p, c) else c["rows"] + 1
    if joined and stride == row_beats:
        return _join(at, rows, row_beats, longest)
    return _cut(at, stride % longest, rows, row_beats, longest)


_CUTS: dict[Cut, Cut] = {}  # makes equal cuts one object, so that `id` compares them


@lru_cache(None)
def _cut(first: int, stride: int, rows: int, row_beats: int, longest: int) -> Cut:
    out = []
    for r in range(rows):
        at, left = first + r * stride, row_beats
        while left:
            out.append((min(left, longest - at % longest), 0))
            at, left = at + out[-1][0], left - out[-1][0]
    bursts = tuple(out)
    return _CUTS.setdefault(bursts, bursts)


@lru_cache(None)
def _join(first: int, rows: int, row_beats: int, longest: int) -> Cut:
    out, room, left, rows = [], longest - first, row_beats, rows - 1
    while left:
        joins = min(rows, max(0, -((left - room) // row_beats)))
        left, rows = left + joins * row_beats, rows - joins
        out.append((min(left, room), joins))
        left -= out[-1][0]
        room = longest
        if rows and not left:
            left, rows = row_beats, rows - 1
    bursts = tuple(out)
    return _CUTS.setdefault(bursts, bursts)


def word_beats(p: CoreParams, c: dict) -> int:
    """Memory beats that a word of the transfer `c` takes."""
    return (2 * p.dpe.n_w << c["wide"]) // p.lxe.bus_bytes


def load_beats(p: CoreParams, c: dict) -> int:
    """Memory beats that a word of the LOAD `c` takes: of BF16 numbers, of FP32 ones, or of codes."""
    return word_beats(p, {"wide": 0} if expands(c) else c)


def once(p: CoreParams, c: dict) -> bool:
    """Whether a LOAD reads its rows, which are all the same word, once, and hands it to all their trees at once."""
    word = p.lxe.codes and c["target"] == LoadTo.W and not c["wide"] and not c["stride"] and not c["words"]
    return bool(word) and c["rows"] < p.dpe.n_h


def packs(p: CoreParams, c: dict) -> bool:
    """Whether a LOAD takes packed weights, of 4 or 8 bits."""
    return p.lxe.weights and unpacks(c)


def unpacked(p: CoreParams, c: dict) -> int:
    """Words of W of a LOAD of packed weights; 0 for others."""
    return Packing.of(c["stride"]).makes(c["rows"] + 1) if packs(p, c) else 0


def beats_read(p: CoreParams, c: dict) -> int:
    """Memory beats of a LOAD, whose words may be expanded from fewer or read once."""
    words = 1 if expands(c) else c["words"] + 1
    return (1 if once(p, c) else c["rows"] + 1) * words * load_beats(p, c)


@dataclass
class LoaderCycles:
    """Cycle of each transfer in a run of LOADs.

    taken : instructions taken
    bursts : on `ar`
    beats : on `r`
    words : on `w`, `x` and `v` together
    done : pulses of `done`
    """

    taken: list[int] = field(default_factory=list)
    bursts: list[int] = field(default_factory=list)
    beats: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


class LoaderTime:
    """Time view of `hdl.execution.loader.Loader` with a memory that takes a burst every cycle and answers in order.

    latency : cycles from a burst's transfer on `ar` to its first beat on `r`, at least 1
    detail : keep the cycles of beats and words, too
    shared : keep the cycles of the words to X in `to_x`

    The loader is two units: `ask` takes instructions and asks for their bursts, `receive` takes the beats.
    """

    def __init__(self, p: CoreParams, latency: int, detail: bool = True, shared: bool = False):
        self.p, self.latency, self.detail, self.shared = p, latency, detail, shared
        self.out = LoaderCycles()
        self.to_x: set[int] = set()
        self.beats = 0  # number of beats taken on `r`
        self._popped: list[int] = []  # cycle in which each instruction left the queue
        self._ends: list[int] = []  # cycle of each burst's last beat
        self._asked = self._finished = -1  # cycles: the last burst was begun; the last instruction had all its beats
        self._beat = self._free = -1  # cycle of the last beat; first cycle that can take a new word's first beat

    def run(self, commands: list[dict]) -> LoaderCycles:
        """Cycles of `commands`, valid beats of `transfer_layout` that are all offered from cycle 0 on."""

        def asks() -> Waits:
            for c in commands:
                yield from self.ask(c, 0)

        def receives() -> Waits:
            words = Always()
            for n, c in enumerate(commands):
                yield self.out.taken, n
                yield from self.receive(c, words)

        alone(asks=asks(), receives=receives())
        return self.out

    def ask(self, c: dict, offered: int) -> Waits:
        """Takes the next instruction, which is offered from cycle `offered` on, and begins its bursts."""
        out, ends, n, k = self.out, self._ends, self.p.lxe.bursts, len(self.out.taken)
        taken, waits = max(offered, out.taken[-1] + 1 if k else 0, self._asked), k - self.p.lxe.queue
        if waits >= 0:
            if len(self._popped) <= waits:
                yield self._popped, waits
            taken = max(taken, self._popped[waits] + 1)
        out.taken.append(taken)
        if c["skip"]:
            return
        asked, k = max(self._asked, taken), len(out.bursts)
        for _, joins in cut(self.p, c, joined=True):
            asked += 1 + joins
            if k >= n:
                if len(ends) <= k - n:
                    yield ends, k - n
                asked = max(asked, ends[k - n] + 1)
            out.bursts.append(asked + 1)
            k += 1
        self._asked = asked

    def receive(self, c: dict, words: Queue | Always) -> Generator[Wait, None, int]:
        """Takes the beats of the next instruction, hands its words on, and returns the cycle in which it is done.

        words : queue to the VPE, for LoadTo.VECTOR
        """
        out = self.out
        popped = max(out.taken[len(self._popped)] + 1, self._finished)
        self._popped.append(popped)
        if c["skip"]:
            self._finished = max(popped + 1, self._free)
            out.done.append(self._finished + 1)
        else:
            self._beat = max(self._beat, popped)
            receive = self._stream(c, words) if c["target"] == LoadTo.VECTOR else self._fill(c)
            yield from receive
            self._finished = self._beat
            out.done.append(self._free)
        return out.done[-1]

    def _fill(self, c: dict) -> Waits:
        """Takes the beats of words for a scratchpad, which is always ready."""
        if packs(self.p, c):
            yield from self._weights(c)
            return
        if expands(c):
            yield from self._codes(c)
            return
        bursts, ends, k = self.out.bursts, self._ends, len(self._ends)
        beat = max(self._beat, self._free - 1)
        taken: list[int] = []  # cycles of beats, if they are kept
        asks = self.detail or (self.shared and c["target"] == LoadTo.X)
        for beats, _ in cut(self.p, c, joined=True):
            if len(bursts) <= k:
                yield bursts, k
            start = max(bursts[k] + self.latency, beat + 1)
            beat = start + beats - 1
            ends.append(beat)
            k += 1
            self.beats += beats
            if asks:
                taken += range(start, beat + 1)
        self._beat, self._free = beat, beat + 1
        step = word_beats(self.p, c)
        words = [t + 1 for t in taken[step - 1 :: step]]
        if self.detail:
            self.out.beats += taken
            self.out.words += words
        if c["target"] == LoadTo.X:
            self.to_x.update(words)

    def _codes(self, c: dict) -> Waits:
        """Takes the beats of codes in slices, which go in parts; a slice's follow the last part of the one before."""
        step, many = code_slice(self.p)
        bursts, ends, k = self.out.bursts, self._ends, len(self._ends)
        beat, free, left = self._beat, self._free, step
        for beats, _ in cut(self.p, c, joined=True):
            if len(bursts) <= k:
                yield bursts, k
            beat = max(beat, bursts[k] + self.latency - 1)
            for _ in range(beats):
                beat = max(beat + 1, free) if left == step else beat + 1
                left -= 1
                if self.detail:
                    self.out.beats.append(beat)
                if not left:
                    left, free = step, beat + many
                    if self.detail:
                        self.out.words += range(beat + 1, free + 1)
            ends.append(beat)
            k += 1
            self.beats += beats
        self._beat, self._free = beat, free

    def _weights(self, c: dict) -> Waits:
        """Takes the beats of packed weights. Each beat of them becomes `many` words, which leave the expander later.

        Beats of scales do not wait for the words of the beat before, but for the first ones of the LOAD and the last
        one of a word: words of the beat before still need these.
        """
        p, own, step = self.p, Packing.of(c["stride"]), load_beats(self.p, c)
        many = own.each * p.lxe.bus_bytes // (2 * p.dpe.n_w)
        bursts, ends, k = self.out.bursts, self._ends, len(self._ends)
        beat, free, n = self._beat, self._free, 0
        for beats, _ in cut(p, c, joined=True):
            if len(bursts) <= k:
                yield bursts, k
            beat = max(beat, bursts[k] + self.latency - 1)
            for _ in range(beats):
                word, part = divmod(n, step)
                scales = word % own.words == 0
                beat = beat + 1 if scales and word and part < step - 1 else max(beat + 1, free)
                n += 1
                if self.detail:
                    self.out.beats.append(beat)
                if not scales:
                    free = beat + many
                    if self.detail:
                        self.out.words += range(beat + 1 + EXPANDER, free + 1 + EXPANDER)
            ends.append(beat)
            k += 1
            self.beats += beats
        self._beat, self._free = beat, free + EXPANDER

    def _stream(self, c: dict, words: Queue | Always) -> Waits:
        """Takes the beats of words for the VPE; a word's beats follow when the word before has gone."""
        bursts, ends, k = self.out.bursts, self._ends, len(self._ends)
        beat, free, step = self._beat, self._free, word_beats(self.p, c)
        left = step  # beats of the word
        for beats, _ in cut(self.p, c, joined=True):
            if len(bursts) <= k:
                yield bursts, k
            beat = max(beat, bursts[k] + self.latency - 1)
            more = beats
            while more:
                part = min(more, left)
                start = max(beat + 1, free) if left == step else beat + 1
                beat = start + part - 1
                more, left = more - part, left - part
                if self.detail:
                    self.out.beats += range(start, beat + 1)
                if not left:
                    left = step
                    happened, n = words.room()
                    if len(happened) <= n:
                        yield happened, n
                    free = words.push(beat + 1)
                    if self.detail:
                        self.out.words.append(free)
            ends.append(beat)
            k += 1
            self.beats += beats
        self._beat, self._free = beat, free
