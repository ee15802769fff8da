"""Counts the exact toggles of a mapped netlist, from a recorded simulation of its source.

The recording holds ports, registers and read data of memories, cycle by cycle. The netlist between them is evaluated
for 64 cycles at a time, one bit of a machine word per cycle. Delays are zero: a net switches at most once a cycle, and
glitches do not count. Every register's next state must equal the recorded one, else the evaluation fails.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from openvrex.synth.cells import Gate
from openvrex.synth.liberty import SynthError
from openvrex.tb.library.recording import Recording, pack

STATES = 256  # most states of registers that are followed together
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)


def after(words: np.ndarray) -> np.ndarray:
    """Values one cycle later: bit t becomes bit t + 1, and the last bit 0."""
    out = words >> np.uint64(1)
    out[..., :-1] |= words[..., 1:] << np.uint64(63)
    return out


def spread(first: int, last: int, cycles: int, pieces: int = 16) -> np.ndarray:
    """About `cycles` cycles from `first` to `last`, in `pieces` runs at equal distances, or all if there are fewer."""
    if last + 1 - first <= cycles:
        return np.arange(first, last + 1)
    length = max(2, cycles // pieces)
    starts = np.linspace(first, last + 1 - length, pieces).astype(int)
    return np.unique(starts[:, None] + np.arange(length))


@dataclass
class Circuit:
    """A mapped module, prepared for evaluation.

    netlist : as `synth.worker` reports it
    gates : logic of every library cell in it, by name
    rows : row of the values, by net; rows 0 and 1 are the constants
    steps : combinational gates in order of evaluation, as (gate, {pin: rows}); a step holds a kind of a level
    registers : the same for registers, with their names in the source
    clock_gates : the same for clock gates, without their outputs
    clocks : clock gate in front of each register, in the order of `registers`: its place in `passes`
    gated : place in `passes` of the clock gate that drives a net, by net
    codes : codes of the source in which a register that Yosys encoded anew is 1, by its name
    sources : signal that gives each row from outside, None if the source has no name for it
    leaves : (instance, pins) of each module in it, by module
    """

    name: str
    netlist: dict
    gates: dict[str, Gate]
    rows: dict = field(init=False)
    steps: list[tuple[Gate, dict[str, np.ndarray]]] = field(init=False)
    registers: list[tuple[Gate, list[str], dict[str, np.ndarray]]] = field(init=False)
    clock_gates: list[tuple[Gate, dict[str, np.ndarray]]] = field(init=False)
    clocks: list[np.ndarray] = field(init=False)
    gated: dict[int | str, int] = field(init=False)
    sources: dict[int, str | None] = field(init=False)
    codes: dict[str, tuple[str, list[str]]] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = {"0": 0, "x": 0, "z": 0, "1": 1}
        names = {int(n): s for n, s in self.netlist["names"].items()}
        self.sources = {}
        kinds: dict[str, list] = defaultdict(list)
        for name, kind, pins in self.netlist["cells"]:
            kinds[kind].append((name, pins))
        self.leaves = {k: v for k, v in kinds.items() if k not in self.gates}
        for name, (direction, bits) in self.netlist["ports"].items():
            for i, bit in enumerate(bits):
                row = self.row(bit)
                if direction == "input":
                    self.sources[row] = f"{name}[{i}]" if len(bits) > 1 else name
        for _, pins in self.netlist["memories"].values():
            self.sources |= {self.row(b): names.get(b) for b in pins["RD_DATA"]}
        self.codes = {}
        for signal, states in self.netlist["encoded"].items():
            width = len(next(iter(states.values())))
            for i in range(width):
                ones = [old for old, new in states.items() if new[-1 - i] == "1"]
                self.codes[f"{signal}[{i}]" if width > 1 else signal] = signal, ones
        driven = self._place(kinds)
        for bits in (b for many in self.leaves.values() for _, pins in many for b in pins.values()):
            for bit in bits:
                row = self.row(bit)
                if row > 1 and row not in self.sources and row not in driven:
                    self.sources[row] = names.get(bit)

    def row(self, net: int | str) -> int:
        """The row of a net; a new net gets a new row."""
        return self.rows.setdefault(net, max(2, len(self.rows) - 2))

    def _place(self, kinds: dict[str, list]) -> set[int]:
        """Fills registers, clock gates, and `steps` by level; returns the rows that gates and registers drive."""
        self.registers, self.clocks, self.clock_gates = [], [], []
        self.gated = {}
        for kind, many in kinds.items():
            if kind in self.gates and (gate := self.gates[kind]).gate:
                self.clock_gates.append(
                    (gate, {p: np.array([self.row(x[p][0]) for _, x in many]) for p in gate.inputs})
                )
                self.gated |= {x[gate.gate.out][0]: 1 + len(self.gated) + i for i, (_, x) in enumerate(many)}
        waiting: list[tuple[Gate, dict[str, list[int]], int]] = []  # gate, rows of its pins, which one of its kind
        level: dict[int, int] = {}  # by row
        for kind, many in kinds.items():
            if kind not in self.gates or (gate := self.gates[kind]).gate:
                continue
            pins = {p: [self.row(x[p][0]) if p in x else 0 for _, x in many] for p in (*gate.inputs, *gate.outputs)}
            if not gate.next_state:
                waiting += [(gate, pins, i) for i in range(len(many))]
                continue
            names = [self.netlist["registers"].get(n) for n, _ in many]
            self.registers.append((gate, names, {p: np.array(r) for p, r in pins.items()}))
            self.clocks.append(np.array([self.gated.get(x[gate.clock][0], 0) for _, x in many]))
            level |= dict.fromkeys((r for p in gate.outputs for r in pins[p]), 0)
        driver = {pins[p][i]: k for k, (gate, pins, i) in enumerate(waiting) for p in gate.outputs}
        placed: dict[tuple[int, str], dict[Gate, list[dict[str, int]]]] = defaultdict(lambda: defaultdict(list))
        for k in _sorted(waiting, driver, self.name):
            gate, pins, i = waiting[k]
            depth = 1 + max((level.get(pins[p][i], 0) for p in gate.inputs), default=0)
            level |= {pins[p][i]: depth for p in gate.outputs}
            placed[depth, gate.name][gate].append({p: r[i] for p, r in pins.items()})
        self.steps = []
        for _, groups in sorted(placed.items()):
            for gate, at in groups.items():
                self.steps.append((gate, {p: np.array([x[p] for x in at]) for p in at[0]}))
        return set(level)

    @property
    def needs(self) -> list[str]:
        """The signals of the source that a recording must hold."""
        named = [n for _, names, _ in self.registers for own in names if own for n in self._recorded(own)]
        return list(dict.fromkeys(n for n in (*self.sources.values(), *named) if n))

    def _recorded(self, name: str) -> list[str]:
        """The signals that give a register's value: itself, or the state that Yosys encoded anew."""
        if name not in self.codes:
            return [name]
        signal, codes = self.codes[name]
        return [signal] if len(codes[0]) == 1 else [f"{signal}[{i}]" for i in range(len(codes[0]))]

    def evaluate(self, recording: Recording, cycles: np.ndarray) -> "Activity":
        """Values of all nets in the given `cycles`.

        Registers without a name, such as the copies that Yosys makes of an address, are followed from the recording's
        first cycle on, which must be a reset.
        Raises: `SynthError` for a register whose next state is not the recorded one, for other signals that are not in
        the recording, and for more than `STATES` states of registers that depend on each other and have no name.
        """
        named = [n for _, names, _ in self.registers for own in names if own for n in self._recorded(own)]
        missing = [n or "a net without name" for n in (*self.sources.values(), *named) if n not in recording.columns]
        if missing:
            raise SynthError(
                f"{self.name}: {len(missing)} signals were not recorded, {missing[0]} among them; record all of `needs`"
            )
        values = self._start(recording, cycles, self._followed(recording))
        self._run(values, self.steps)
        follows = pack((np.diff(cycles, append=-1) == 1)[None])[0]
        activity = Activity(self, values, follows, len(cycles))
        self._check(activity)
        return activity

    def _start(self, recording: Recording, cycles: np.ndarray, followed: dict) -> np.ndarray:
        """Values [rows, words] of sources and registers. `followed` : bits of registers without a name, by place."""
        values = np.zeros((max(self.rows.values()) + 1, -(-len(cycles) // 64)), np.uint64)
        values[1] = _ONES
        signals = [n for n in self.sources.values() if n is not None]  # all, as `evaluate` refuses sources without name
        values[list(self.sources)] = recording.words(signals, cycles)
        for k, (gate, names, pins) in enumerate(self.registers):
            data = np.zeros((len(names), values.shape[1]), np.uint64)
            plain = [i for i, n in enumerate(names) if n and n not in self.codes]
            data[plain] = recording.words([names[i] for i in plain], cycles)
            for i, name in enumerate(names):
                if name in self.codes:
                    data[i] = self._state(recording, cycles, name)
                elif (k, i) in followed:
                    data[i] = pack(followed[k, i][None, cycles])
            for pin, out in gate.outputs.items():
                values[pins[pin]] = out(gate.states(data))
        return values

    def _state(self, recording: Recording, cycles: np.ndarray, name: str) -> np.ndarray:
        """The values [words] of a register of a state that Yosys encoded anew."""
        words = recording.words(self._recorded(name), cycles)
        out = np.zeros_like(words[0])
        for code in self.codes[name][1]:
            is_code = np.full_like(out, _ONES)
            for bit, word in zip(reversed(code), words, strict=True):
                is_code &= word if bit == "1" else ~word
            out |= is_code
        return out

    def passes(self, values: np.ndarray) -> np.ndarray:
        """Words [1 + clock gates, words] that mark the cycles which end in a clock edge, first of the ungated clock."""
        words = [np.full((1, values.shape[1]), _ONES)]
        words += [gate.open({p: values[rows] for p, rows in pins.items()}) for gate, pins in self.clock_gates]
        return np.concatenate(words)

    @staticmethod
    def _run(values: np.ndarray, steps: list) -> None:
        """Evaluates gates in place."""
        for gate, pins in steps:
            env = {p: values[pins[p]] for p in gate.inputs}
            for pin, out in gate.outputs.items():
                values[pins[pin]] = out(env)

    def _followed(self, recording: Recording) -> dict[tuple[int, int], np.ndarray]:
        """Bits of the registers without a name, by place."""
        groups: list[tuple[set, set[int]]] = []  # places of registers, rows on which their next states depend
        for k, (gate, names, pins) in enumerate(self.registers):
            for i, name in enumerate(names):
                if name is None:
                    places, needs = {(k, i)}, {int(pins[p][i]) for p in gate.inputs} | self._enables(k, i)
                    for _, own in self._cone(needs):
                        needs |= {int(r) for p in own for r in own[p]}
                    groups.append((places, needs))
        gives = {at: {int(self.registers[at[0]][2][p][at[1]]) for p in self.registers[at[0]][0].outputs}
                 for places, _ in groups for at in places}  # fmt: skip
        joined: list[tuple[set, set[int]]] = []
        for places, needs in groups:
            apart = []
            for others, theirs in joined:
                if any(gives[at] & needs for at in others) or any(gives[at] & theirs for at in places):
                    places, needs = places | others, needs | theirs
                else:
                    apart.append((others, theirs))
            joined = [*apart, (places, needs)]
        return {at: bits for places, _ in joined for at, bits in self._follow(recording, sorted(places)).items()}

    def _follow(self, recording: Recording, places: list[tuple[int, int]]) -> dict[tuple[int, int], np.ndarray]:
        """Bits of registers that depend on no further ones without a name, by place.

        For each state we compute the next state in every cycle, and then follow the chain from reset.
        """
        total = len(recording.samples)
        wanted = {int(self.registers[k][2][p][i]) for k, i in places for p in self.registers[k][0].inputs}
        steps = self._cone(wanted.union(*(self._enables(k, i) for k, i in places)))
        coming: dict[int, np.ndarray] = {}
        chain = [0]
        for t in range(total - 1):
            state = chain[-1]
            if state not in coming:
                if len(coming) == STATES:
                    what = f"{len(places)} registers without a name"
                    raise SynthError(f"{self.name}: more than {STATES} states of {what}; name their signals")
                bits = {at: np.full(total, state >> j & 1, np.uint8) for j, at in enumerate(places)}
                values = self._start(recording, np.arange(total), bits)
                self._run(values, steps)
                coming[state] = np.zeros(total, object)
                passes = self.passes(values)
                for j, (k, i) in enumerate(places):
                    gate, _, pins = self.registers[k]
                    now, edge = pack(bits[k, i][None]), passes[self.clocks[k][[i]]]
                    env = {p: values[pins[p][[i]]] for p in gate.inputs} | gate.states(now)
                    next_ = (gate.coming(env) & edge) | (now & ~edge)
                    word = np.unpackbits(next_[0].view(np.uint8), bitorder="little")[:total]
                    coming[state] += word.astype(object) << j
            chain.append(coming[state][t])
        return {at: np.array([s >> j & 1 for s in chain], np.uint8) for j, at in enumerate(places)}

    def _enables(self, k: int, i: int) -> set[int]:
        """Rows of the inputs of the clock gate in front of register `i` of kind `k`."""
        at = int(self.clocks[k][i]) - 1
        for gate, pins in self.clock_gates:
            many = len(pins[gate.inputs[0]])
            if 0 <= at < many:
                return {int(rows[at]) for rows in pins.values()}
            at -= many
        return set()

    def _cone(self, wanted: set[int]) -> list:
        """The steps on which some rows depend."""
        out = []
        for gate, pins in reversed(self.steps):
            here = [i for i in range(len(pins[gate.inputs[0]])) if any(int(pins[p][i]) in wanted for p in gate.outputs)]
            if here:
                own = {p: r[here] for p, r in pins.items()}
                wanted |= {int(r) for p in gate.inputs for r in own[p]}
                out.append((gate, own))
        return out[::-1]

    def _check(self, activity: "Activity") -> None:
        """Raises `SynthError` if a next state is not the recorded one."""
        values, wrong = activity.values, []
        passes = self.passes(values)
        for (gate, names, pins), clocks in zip(self.registers, self.clocks, strict=True):
            pin, out = next(iter(gate.outputs.items()))
            env = {p: values[pins[p]] for p in gate.inputs} | gate.stored(pin, values[pins[pin]])
            edge, now = passes[clocks], values[pins[pin]]
            coming = (out(gate.states(gate.coming(env))) & edge) | (now & ~edge)
            differ = ((coming ^ after(values[pins[pin]])) & activity.follows).any(1)
            wrong += [n or "a register without name" for n, d in zip(names, differ, strict=True) if d]
        if wrong:
            count = sum(len(n) for _, n, _ in self.registers)
            raise SynthError(
                f"{self.name}: the netlist computes other values than were recorded for {len(wrong)} of {count} "
                f"registers, {wrong[0]} among them; record the Verilog that was mapped"
            )


def _sorted(waiting: list, driver: dict[int, int], name: str) -> list[int]:
    """Order of gates in which each follows the gates that drive it. Raises `SynthError` for a loop."""
    order, state = [], bytearray(len(waiting))  # 0 new, 1 open, 2 done
    for first in range(len(waiting)):
        todo = [first]
        while todo:
            k = todo[-1]
            if state[k] == 2:
                todo.pop()
                continue
            gate, pins, i = waiting[k]
            before = [driver[r] for p in gate.inputs if (r := pins[p][i]) in driver and state[driver[r]] != 2]
            if state[k] and before:
                raise SynthError(f"{name}: combinational loop; put a register into it")
            state[k] = 1 if before else 2
            if before:
                todo += before
            else:
                order.append(k)
                todo.pop()
    return order


@dataclass(frozen=True)
class Activity:
    """Values [rows, words] of a circuit's nets in some cycles.

    follows : marks the cycles whose next bit is the next cycle
    """

    circuit: Circuit
    values: np.ndarray
    follows: np.ndarray
    cycles: int

    @property
    def edges(self) -> int:
        """Number of steps from a cycle to the next."""
        return count(self.follows[None]).sum()

    def rest(self) -> "Activity":
        """The state of the last cycle, held for a step in which nothing moves."""
        last = self.values[:, -1:] >> np.uint64((self.cycles - 1) % 64) & np.uint64(1)
        return Activity(self.circuit, last * np.uint64(3), np.array([1], np.uint64), 2)

    def moves(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Words that mark the rising edges and the falling edges of some rows, at the end of each cycle."""
        now = self.values[rows]
        coming = after(now)
        return ~now & coming & self.follows, now & ~coming & self.follows

    def counts(self) -> "Counts":
        """Toggles and times at 1 of all nets."""
        toggles = count((self.values ^ after(self.values)) & self.follows)
        ones, passes = (count(words & self.follows) for words in (self.values, self.circuit.passes(self.values)))
        return Counts(self.circuit, toggles, ones, passes, int(self.edges))


@dataclass(frozen=True)
class Counts:
    """Toggles and times of a circuit's nets in `steps` steps, each from a cycle to the next.

    toggles, ones : toggles of every row, and the steps in which it is 1
    passes : steps that end in a clock edge, by place as in `Circuit.passes`
    """

    circuit: Circuit
    toggles: np.ndarray
    ones: np.ndarray
    passes: np.ndarray
    steps: int

    def __add__(self, other: "Counts") -> "Counts":
        sums = (getattr(self, n) + getattr(other, n) for n in ("toggles", "ones", "passes", "steps"))
        return Counts(self.circuit, *sums)

    def nets(self) -> dict[int, tuple[int, int]]:
        """Toggles of each net, and the half steps in which it is 1; a clock is high for one after each edge."""
        circuit = self.circuit
        rows = {n: row for n, row in circuit.rows.items() if isinstance(n, int)}
        out = {n: (int(self.toggles[row]), 2 * int(self.ones[row])) for n, row in rows.items()}
        for _, kind, pins in circuit.netlist["cells"]:
            gate = circuit.gates.get(kind)
            if gate and gate.clock:
                net = pins[gate.clock][0]
                passed = int(self.passes[circuit.gated.get(net, 0)])
                out[net] = 2 * passed, passed
        return out


def count(words: np.ndarray) -> np.ndarray:
    """Number of bits set in each row."""
    return np.bitwise_count(words).sum(-1, dtype=int)
