"""Runs the layers of a decoder on a golden LXE: loads weights, writes the inputs of a pass, executes programs."""

from collections.abc import Sequence

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import check
from openvrex.golden.program.isa import Instruction
from openvrex.golden.program.layer_compiler import LayerPlan, Register
from openvrex.golden.program.layers_in_memory import LayersInMemory, MemoryMap
from openvrex.golden.program.lxe_model import Lxe, Memory, Result


class LayerHost(LayersInMemory):
    """Layers of one shape on one LXE, with their weights and entries in its memory.

    plan : plan of the largest pass
    layers : weights of each layer as `golden.inputs.decoder` keeps them

    `begin` writes the inputs of a pass and sets `plan` to its plan. `run` executes stages of a layer. Hidden states
    stay in memory from layer to layer. `fetch` puts entries behind the ring; call it before the stage `scores`.
    """

    def __init__(self, plan: LayerPlan, layers: Sequence[dict[str, np.ndarray]]):
        self.plan = plan
        self._plans = {plan.shape.tokens: plan}
        own = MemoryMap()
        self.bases = own.layers(plan, len(layers))
        self.memory = Memory(own.regions)
        self.lxe = Lxe(plan.fmt, self.memory)
        for i, layer in enumerate(layers):
            for name, x in plan.pack(layer).items():
                self.put(name, x, i)
        self.entries = [0] * len(layers)
        self.start = 0
        self._programs: dict[tuple[int, str | None, str | None], list[Instruction]] = {}

    def plan_of(self, layer: int) -> LayerPlan:
        return self.plan

    def begin(self, hidden: np.ndarray, cos: np.ndarray, sin: np.ndarray, start: int) -> None:
        """Write the inputs of a pass from token `start`: hidden [tokens, width], cos and sin [tokens, head / 2]."""
        tokens = len(hidden)
        if tokens not in self._plans:
            self._plans[tokens] = self._plans[max(self._plans)].of(tokens)
        self.plan, self.start = self._plans[tokens], start
        for name, x in (self.plan.constants() | self.plan.inputs(hidden, cos, sin, start)).items():
            self.put(name, x)

    def fetch(self, entries: np.ndarray, layer: int = 0) -> None:
        """Put entries behind the ring, [n, 2 (keys, values), KV heads, head size]; every later pass attends to them."""
        s, n = self.plan.shape, len(entries)
        check(n <= s.entries, "entries", n, f"must be at most {s.entries}")
        self.entries[layer] = n
        if n:
            at = self.address(self.plan["ring"], layer) + s.recent * s.entry * 2
            self.memory.put(at, np.ascontiguousarray(entries.astype(BF16)))

    def run(self, layer: int = 0, first: str | None = None, last: str | None = None) -> Result:
        """Execute the stages of a layer from `first` to `last`, all if not given."""
        key = self.plan.shape.tokens, first, last
        if key not in self._programs:
            self._programs[key] = self.plan.program(first, last)
        weights, kv = (self.bases[layer][register] for register in (Register.WEIGHTS, Register.KV))
        registers = self.plan.registers(self.start, self.entries[layer], weights, kv)
        return self.lxe.run(self._programs[key], {int(k): v for k, v in registers.items()})

    def ring(self, layer: int = 0) -> np.ndarray:
        """The ring's entries, BF16 [recent, 2, KV heads, head size]."""
        s = self.plan.shape
        return self.get("ring", layer)[: s.recent].reshape(s.recent, 2, s.kv_heads, s.head_size)
