"""What all compiled programs share: a plan of stages over arrays in memory, and the work of each stage."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.arithmetic.packed_weights import GROUPS, Matrix, PackedMatrix, Packing, pack
from openvrex.golden.function_params import ParamError, check
from openvrex.golden.program.compiler import FREE, Compiler, semaphores
from openvrex.golden.program.isa import ENGINE, Instruction, LxeFormat, Opcode, words_read
from openvrex.golden.program.layer_memory import Array, LayerShape, Tiling, divisors
from openvrex.golden.program.loop_rolling import POINTERS, Item, assemble, op
from openvrex.golden.program.sequencer_model import sequence


@dataclass
class Work:
    """The work of a stage in a pass, from which lower bounds of its cycles follow.

    issued : instructions handed to the engines
    loaded, stored : bytes over the bus
    words : words that go through the VPE's lanes or out of the VPE
    chunks : steps of the DPE, all trees at once
    """

    issued: int = 0
    loaded: int = 0
    stored: int = 0
    words: int = 0
    chunks: int = 0

    def cycles(self, bus_bytes: int) -> dict[str, int]:
        """Lower bounds of the cycles, by resource.

        The DPE takes a chunk a cycle, the VPE a word, and the bus `bus_bytes` bytes in either direction.
        """
        load, store = (-(-n // bus_bytes) for n in (self.loaded, self.stored))
        return {"dpe": self.chunks, "vpe": self.words, "load": load, "store": store}

    def utilisation(self, bus_bytes: int) -> tuple[float, str]:
        """Upper bound of the share of cycles in which the DPE works, and the resource that sets the bound."""
        cycles = self.cycles(bus_bytes)
        most = max(cycles, key=lambda name: cycles[name])
        return self.chunks / max(1, cycles[most]), most


@dataclass(frozen=True)
class Stage:
    """A part of the program.

    reads, writes : names of the arrays that its LOADs take, and that it leaves in memory, in the order of their use
    waits : whether the stage before must be in memory first; if not, the one before that must be
    """

    name: str
    items: tuple[Item, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    waits: bool = True


class Planned(NamedTuple):
    """A stage in the table of a plan: its name, what writes it, and whether the plan has it."""

    name: str
    write: Callable[[], None]
    when: bool = True


class Plan:
    """Stages of a program, one after the other, and the arrays that they use in memory.

    A subclass sets `shape`, `fmt`, `cuts` and `arrays`, gives its `_table`, and keeps `list(self._stages())` in
    `stages`. `plan["q"]` is an array by its name. `pointers` are the registers that loops may move.
    """

    _compiler: type[Any] = Compiler  # `Compiler`, or a class derived from it
    _beside: dict[str, tuple[str, ...]] = {}  # stages that do not wait if the stage before is one of these
    _hands: dict[int, tuple[str, str]] = {}  # semaphores by which one stage releases a later one, not the next
    _bound: tuple[str, ...] = ()  # stages that read registers of the stage before, so both are in one program
    pointers: Sequence[int] = POINTERS
    finer: tuple[str, ...] = ()  # products of a batch whose slices of K are shorter than those of a stream alone
    shape: LayerShape
    fmt: LxeFormat
    cuts: dict[str, Tiling]  # how each GEMM is cut
    arrays: dict[str, Array]
    stages: list[Stage]

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        """The stages in their order.

        c : the compiler, a `_compiler`
        gemm : writes a GEMM of `cuts` from its name, the names of x and y, and whether it is gated
        """
        raise NotImplementedError

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    @property
    def joint(self) -> int:
        """Tokens whose rows a product takes together."""
        return self.shape.tokens

    def _cut(
        self,
        outputs: int,
        length: int,
        segment: int,
        gates: int = 1,
        given: int = 0,
        packing: Packing | None = None,
        tokens: int = 0,
    ) -> Tiling:
        """The cut of a GEMM that loads the fewest words of activations, where a step costs as much as 32 of them.

        given : words of a slice; those of the best cut if not given
        packing : of 4-bit weights, whose groups no slice may cut
        tokens : whose rows the product takes together; `joint` if not given

        Raises `ParamError` where every slice cuts a group.
        """
        f, tokens = self.fmt, tokens or self.joint
        self._check_tokens()
        n_tiles, k = outputs // f.lanes, length // f.lanes
        cuts: list[tuple[float, Tiling]] = []
        for tiles in (d for d in divisors(n_tiles) if tokens * d <= f.depth):
            for words in [given] if given else divisors(segment // f.lanes):
                if tiles * words > f.w_depth // 2 or tokens * words > f.x_depth // 2:
                    continue
                if packing and words * f.lanes % packing.group:
                    continue
                cut = Tiling(gates * n_tiles // tiles, tiles, k // words, words)
                odd = 1.2 if cut.slices % 2 and cut.slices > 1 else 1  # the halves' turns make its loop twice as long
                cuts.append((cut.blocks * (tokens * k + 32 * cut.slices) * odd, cut))
        if packing:
            reason = f"must divide a slice of {length} weights: take groups of {GROUPS[0]}"
            check(bool(cuts), "group", packing.group, reason)
        return min(cuts, key=lambda x: x[0])[1]

    def _as_alone(self, name: str, tokens: int, cut: Callable[[int, int], Tiling]) -> Tiling:
        """The cut of the product `name` of `joint` tokens, in the slices that a pass of `tokens` alone has.

        Slices decide how sums are rounded. Where X does not hold these, they are others, and `finer` has the name.

        cut : the cut, from tokens and words of a slice, 0 for those of the best cut
        """
        words = cut(tokens, 0).words
        if self.joint * words > self.fmt.x_depth // 2:
            self.finer, words = (*self.finer, name), 0
        return cut(self.joint, words)

    def _check_tokens(self) -> None:
        """Raise `ParamError` for a pass of more tokens than a core takes at once."""
        most = min(self.fmt.depth, self.fmt.x_depth // 2)
        less = "cut the pass" if self.joint == self.shape.tokens else "take fewer streams"
        fix = f"{less}, or raise vpe.depth and dpe.x_depth"
        reason = f"must be at most {most}, the words of a bank and of half of X: {fix}"
        check(self.joint <= most, "tokens", self.joint, reason)

    def _stages(self) -> Iterator[Stage]:
        c, a = self._compiler(self), self.arrays

        def gemm(name: str, x: str, y: str, gated: bool = False) -> None:
            c.gemm(a[x], a[f"{name}_weight"], self.cuts[name], a[y], gated)

        before = ""
        for name, write, when in self._table(c, gemm):
            if when:
                c.reads, c.writes = {}, {}
                with c.block() as items:
                    write()
                waits = before not in self._beside.get(name, ())
                yield Stage(name, tuple(c.stage(name, items)), tuple(c.reads), tuple(c.writes), waits)
                before = name

    def program(self, first: str | None = None, last: str | None = None) -> list[Instruction]:
        """The instructions of the stages from `first` to `last`; the first and the last stage if not given.

        Raises `ParamError` if they do not fit in the program memory, or if their loops need too many registers.
        """
        names = [stage.name for stage in self.stages]
        for name in (first, last):
            check(name is None or name in names, "stage", name, f"must be one of {', '.join(names)}")
        chosen = self.stages[names.index(first or names[0]) : names.index(last or names[-1]) + 1]
        chosen_names = [stage.name for stage in chosen]
        given = [s for s, (a, b) in self._hands.items() if b in chosen_names and a not in chosen_names]
        name = f"{first or names[0]} to {last or names[-1]}"
        return self._assembled(name, [(stage.items, stage.waits) for stage in chosen], given)

    def _assembled(
        self, name: str, groups: Sequence[tuple[Sequence[Item], bool]], given: Sequence[int] = ()
    ) -> list[Instruction]:
        """The program of some groups of items. A group may wait until the one before is in memory.

        given : semaphores that are signalled at the start, besides those of the halves of W and X
        """
        c = self._compiler(self)
        c.items += [op(Opcode.SYNC, **semaphores((), (s,))) for s in (FREE, FREE, *given)]
        for k, (items, waits) in enumerate(groups):
            if k and waits:
                c.end()
                c.begin()
            c.items += items
        out = [*assemble(c.items, self.pointers), Instruction(Opcode.HALT, {})]
        most = self.fmt.i_depth
        few = f"must be at most i_depth = {most}: run fewer stages, or raise lxe.i_depth"
        check(len(out) <= most, f"instructions of {name}", len(out), few)
        return out

    def programs(self, first: str, last: str) -> list[list[Instruction]]:
        """The stages from `first` to `last`, cut into as few programs as the program memory allows.

        Each program holds as many stages as fit. Raises `ParamError` if one stage does not fit.
        """
        return [program for _, program in self.fitting(first, last)]

    def fitting(self, first: str, last: str) -> list[tuple[list[str], list[Instruction]]]:
        """As `programs`, each with the names of its stages."""
        names = [stage.name for stage in self.stages]
        names = names[names.index(first) : names.index(last) + 1]
        out = []
        while names:
            ends = [k for k in range(len(names), 0, -1) if k == len(names) or names[k] not in self._bound]
            for end in ends:
                try:
                    out.append((names[:end], self.program(names[0], names[end - 1])))
                except ParamError:
                    if end == ends[-1]:
                        raise
                else:
                    names = names[end:]
                    break
        return out

    def _cost(self, name: str, registers: list[int]) -> Work:
        out = Work()
        for i in sequence(self.program(name, name), registers, self.fmt):
            out.issued += i.op in ENGINE
            if i.skip:
                continue
            if i.op in (Opcode.LOAD, Opcode.STORE):
                moved = words_read(i, self.fmt) if i.op == Opcode.LOAD else i["rows"] * i["words"] << i["wide"]
                out.loaded += moved * self.fmt.word_bytes * (i.op == Opcode.LOAD)
                out.stored += moved * self.fmt.word_bytes * (i.op == Opcode.STORE)
            elif i.op == Opcode.MUL:
                out.chunks += i["rows"] * i["tiles"] * i["chunks"]
            elif i.op == Opcode.VECTOR:
                out.words += i["words"]
        return out

    def matrix(self, name: str, *parts: Matrix) -> np.ndarray:
        """The weights of the GEMM `name` in the order in which they are loaded, from matrices [inputs, outputs].

        Raises `ParamError` where the plan has 4-bit weights and a matrix has not, or has others.
        """
        array, cut = self[f"{name}_weight"], self.cuts[name]
        steps, rows, words = (cut.blocks, cut.slices), cut.tiles * self.fmt.lanes, cut.words

        def ordered(some: list[np.ndarray], numbers: int) -> np.ndarray:
            """Matrices [outputs, inputs, ...] as [steps, outputs of a step, numbers, ...]."""
            each = [x.reshape(-1, rows, cut.slices, numbers, *x.shape[2:]).swapaxes(1, 2) for x in some]
            return np.stack(each, axis=1).reshape(-1, rows, numbers, *some[0].shape[2:])

        if array.packing is None:
            bits = [to_bf16(w.bf16 if isinstance(w, PackedMatrix) else w).T for w in parts]
            return ordered(bits, words * self.fmt.lanes).reshape(array.shape)
        own = [w for w in parts if isinstance(w, PackedMatrix) and w.packing == array.packing]
        check(len(own) == len(parts), f"{name} weights", "others", f"must be 4-bit weights of {array.packing}")
        q = ordered([w.q.T for w in own], words * self.fmt.lanes).reshape(*steps, -1, self.fmt.lanes)
        numbers = words * self.fmt.lanes // array.packing.group
        scales = ordered([w.scales.swapaxes(0, 1) for w in own], numbers).reshape(*steps, -1, array.packing.numbers)
        out = [pack(q[at], scales[at], array.packing) for at in np.ndindex(*steps)]
        return np.stack(out).reshape(array.shape)
