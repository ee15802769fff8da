"""Runs layers of a decoder over a window that a policy moves: what the host of the hardware does, block by block.

The policy's choice rests on positions and codec data alone (`golden.program.window_slots.Decision`). So the host knows
it before the block is computed, and writes it into masks, addresses and rotary tables. The hardware needs no retrieval.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Matrix
from openvrex.golden.arithmetic.state_space import HistoryBranch
from openvrex.golden.function_params import check
from openvrex.golden.program.isa import Instruction, LxeFormat
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.layers_in_memory import LayersInMemory, MemoryMap
from openvrex.golden.program.lxe_model import Lxe, Memory, Result
from openvrex.golden.program.window_plan import LAYER, WindowPlan
from openvrex.golden.program.window_slots import Decision, Piece, Slots, Turned


@dataclass(frozen=True)
class WindowStep:
    """One run of a program.

    number : of the step's pass, or of its turn · block, stage : the block of the stream that it belongs to
    of : the tokens of the pass, or the keys that are turned · layer : of the decoder
    part, ends : the number of the program in the layer, and whether it is the last: a long layer is cut
    program, registers : shared by all layers; values of the registers at the start
    """

    number: int
    block: int
    stage: str
    of: Piece | Turned
    layer: int
    part: int
    ends: bool
    program: list[Instruction]
    registers: dict[int, int]


class WindowHost(LayersInMemory):
    """Layers of one shape on one LXE or core, with a pool of slots.

    plan : of the largest pass
    layers : weights of each layer as `golden.inputs.decoder` keeps them
    turns : radians that a position adds to the angle of each rotary pair, [head size / 2]
    unit : makes the LXE or the core from format and memory
    branches : of hybrid memory, one for each layer, if the plan has them
    more : names and bytes of further regions behind them, whose addresses `more` then has

    `block` yields the steps of a block; `run` executes a step on golden. Memory has a region for the arrays of a pass,
    then for each layer one of its weights and one of its entries. `hidden` are the hidden states after a pass.
    """

    def __init__(
        self,
        plan: WindowPlan,
        layers: Sequence[dict[str, Matrix]],
        turns: np.ndarray,
        unit: Callable[[LxeFormat, Memory], Lxe] = Lxe,
        branches: Sequence[HistoryBranch] = (),
        more: dict[str, int] | None = None,
    ):
        self.plan, self.turns = plan, np.asarray(turns)
        self._plans = {plan.shape.tokens: plan}
        self._programs: dict[tuple[int, str, str], list[list[Instruction]]] = {}
        own = MemoryMap()
        self.bases = own.layers(plan, len(layers))
        self.more = {name: own.add(name, size) for name, size in (more or {}).items()}
        self.memory = Memory(own.regions)
        self.unit = unit(plan.fmt, self.memory)
        for i, layer in enumerate(layers):
            for name, x in plan.pack(layer).items():
                self.put(name, x, i)
        for i, branch in enumerate(branches):
            for array, x in plan.begin(branch):
                self.memory.put(self.address(array, i), x.astype(array.dtype).reshape(array.shape))
        self.slots = Slots(plan.shape.recent, plan.shape.tokens, plan.places)
        self.embeddings = np.zeros((0, plan.shape.width), np.float32)  # of all tokens, from which some are refreshed
        self.steps = 0

    def plan_of(self, layer: int) -> WindowPlan:
        return self.plan

    def of(self, tokens: int) -> WindowPlan:
        """The plan of a pass of so many tokens."""
        if tokens not in self._plans:
            self._plans[tokens] = self.plan.of(tokens)
        return self._plans[tokens]

    def programs(self, plan: WindowPlan, first: str, last: str) -> list[list[Instruction]]:
        """The programs of some stages of a plan, one if it fits; all layers share them."""
        key = plan.shape.tokens, first, last
        if key not in self._programs:
            self._programs[key] = plan.programs(first, last)
        return self._programs[key]

    def block(self, d: Decision, x: np.ndarray) -> Iterator[WindowStep]:
        """The steps of a block with the embeddings x [stop - start, width]. Run each one before asking for the next.

        Raises `ParamError` for blocks out of order, for embeddings of another shape, and as `Slots` does.
        """
        shape = d.stop - d.start, self.plan.shape.width
        check(d.start == len(self.embeddings), "start", d.start, f"must be {len(self.embeddings)}, the tokens so far")
        check(x.shape == shape, "x", x.shape, f"must be {shape}, the embeddings of the block")
        self.embeddings = np.concatenate([self.embeddings, x.astype(np.float32)])
        for turned in self.slots.turns(d):
            plan = self.of(len(turned.tokens))
            self._write(plan, {"tables": plan.key_tables(*self._angles(turned.distances))})
            yield from self._steps(d, turned, self.programs(plan, "keep" if turned.fresh else "turn", "turn"))
        for piece in self.slots.pieces(d):
            plan = self.of(len(piece.tokens))
            hidden = self.embeddings[piece.tokens]
            self._write(plan, plan.constants() | plan.inputs_of(hidden, *self._angles(piece.positions), piece.seen))
            yield from self._steps(d, piece, self.programs(plan, *LAYER))

    def _steps(self, d: Decision, of: Piece | Turned, programs: list[list[Instruction]]) -> Iterator[WindowStep]:
        plan, number = self.of(len(of.tokens)), self.steps
        self.steps += 1
        for layer, bases in enumerate(self.bases):
            weights, kv = bases[Register.WEIGHTS], bases[Register.KV]
            if isinstance(of, Piece):
                registers = plan.addresses(of.slots, weights, kv)
            else:
                registers = plan.turning(of.slot, of.place, kv)
            own = {int(k): v for k, v in registers.items()}
            for part, program in enumerate(programs):
                yield WindowStep(number, d.index, d.stage, of, layer, part, part == len(programs) - 1, program, own)

    def _angles(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        angle = positions[:, None] * self.turns
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def _write(self, plan: WindowPlan, arrays: dict[str, np.ndarray]) -> None:
        for name, x in arrays.items():
            self.memory.put(self.address(plan[name]), x)

    def run(self, step: WindowStep) -> Result:
        """Execute a step on golden: memory is then as the hardware leaves it."""
        return self.unit.run(step.program, step.registers)

    def hidden(self, tokens: int) -> np.ndarray:
        """Hidden states of the pass that was run last, which has so many tokens, FP32 [tokens, width]."""
        array = self.of(tokens)["hidden"]
        return self.memory.get(self.address(array), array.shape, np.float32)
