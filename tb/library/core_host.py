"""Runs the layers of a decoder on a golden core: loads weights, places tables, rings and home memory, runs programs."""

from collections.abc import Sequence

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Matrix
from openvrex.golden.function_params import ReSVParams, check
from openvrex.golden.program.core_compiler import LEVEL, CorePlan
from openvrex.golden.program.core_model import Core
from openvrex.golden.program.core_stages import ROW
from openvrex.golden.program.isa import Instruction
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.layers_in_memory import LayersInMemory, MemoryMap
from openvrex.golden.program.lxe_model import Memory, Result
from openvrex.golden.retrieval.dre_model import DreSizes
from openvrex.golden.retrieval.table_image import TableMemory
from openvrex.golden.retrieval.table_layout import PAGE, Item


class CoreHost(LayersInMemory):
    """Layers of one shape on one core, with their weights, tables, rings and offloaded entries in its memory.

    plans : one for each layer; they differ in their `RetrievalShape` only
    layers : weights of each layer as `golden.inputs.decoder` keeps them
    planes : hyperplanes [n_hp, KV heads * head size] of each layer
    params : parameters of the retrieval
    sizes : of the DRE; memory holds the tables of the contexts up to the highest that a plan names

    `begin` writes the inputs of a pass. `run` executes a layer, or some of its stages, on what is in memory. Raises
    `ParamError` where a layer prefetches for a layer that does not expect it, or the other way round, and where plans
    and engine differ.
    """

    def __init__(
        self,
        plans: Sequence[CorePlan],
        layers: Sequence[dict[str, Matrix]],
        planes: Sequence[np.ndarray],
        params: ReSVParams,
        sizes: DreSizes,
    ):
        self.plans, self.blocks = list(plans), sizes.map.blocks
        p = plans[0]
        s = p.shape
        size = s.entry * 2
        own = MemoryMap(PAGE)
        own.add("work", p.work.size)
        weights = [own.add(f"weights {i}", p.weights.size) for i in range(len(layers))]
        contexts = 1 + max(plan.retrieval.ctx for plan in self.plans)
        self.table_base = own.add("tables", sizes.layout.address(Item.LEVEL, contexts))
        kept = contexts * sizes.map.kept_bytes
        self.device_base = own.add("rings", kept + contexts * s.recent * size) + kept
        self.home_base = own.add("home", self.blocks * sizes.map.block_bytes)
        self.bases = [
            {0: 0, int(Register.WEIGHTS): at, int(Register.KV): self.device_base + plan.retrieval.ctx * s.recent * size}
            for plan, at in zip(self.plans, weights, strict=True)
        ]
        ahead = -1  # context for which the layer before has fetched
        for i, plan in enumerate(plans):
            r = plan.retrieval
            r.check_engine(sizes, params, plan.shape)
            n_ctx = sizes.map.n_ctx
            check(r.ctx < n_ctx, "n_ctx", n_ctx, f"must be above the context {r.ctx} of layer {i}")
            if r.fetched or ahead >= 0:
                ok = r.fetched and ahead == r.ctx
                reason = f"layer {i - 1} must name the context of layer {i}, which has ctx={r.ctx}"
                check(ok, "ahead", ahead, f"{reason}, fetched={r.fetched}: set both, or neither")
            ahead = r.ahead
        check(ahead < 0, "ahead", ahead, "must be -1 in the last layer, which has no layer to fetch for")
        dre = sizes.model(params, contexts, self.device_base, self.home_base)
        self.core = Core(p.fmt, Memory(own.regions), dre)
        self.memory = self.core.memory
        region_of_tables = self.memory.region(self.table_base, 1)
        region_of_tables.written = None
        self.tables = TableMemory(sizes.layout, self.core.dre, region_of_tables.data)
        for i, (plan, layer, hyperplanes) in enumerate(zip(plans, layers, planes, strict=True)):
            packed = plan.pack(layer) | {"hash_weight": plan.planes(hyperplanes)} | plan.constants()
            for name, x in packed.items():
                self.put(name, x, i)
        self.start = 0
        self._programs: dict[tuple[int, str | None, str | None], list[Instruction]] = {}

    def plan_of(self, layer: int) -> CorePlan:
        return self.plans[layer]

    def begin(self, hidden: np.ndarray, cos: np.ndarray, sin: np.ndarray, start: int) -> None:
        """Write the inputs of a pass from token `start`: hidden [tokens, width], cos and sin [tokens, head / 2]."""
        self.start = start
        for name, x in self.plans[0].inputs(hidden, cos, sin, start).items():
            self.put(name, x)

    def registers(self, layer: int) -> dict[int, int]:
        """Values of the registers that a layer's program starts with."""
        plan = self.plans[layer]
        out = {
            int(Register.WEIGHTS): self.bases[layer][Register.WEIGHTS],
            int(Register.KV): self.address(plan["ring"], layer),
            int(ROW): 0,
            int(LEVEL): 0,
            int(Register.REST): 0,
            int(Register.ENTRIES): 0,
            int(Register.CONTEXT): 0,
        }
        if plan.retrieval.fetched:
            del out[ROW]  # the program of the layer before leaves the number of fetched entries here
        return out

    def program(self, layer: int = 0, first: str | None = None, last: str | None = None) -> list[Instruction]:
        """The program of a layer's stages from `first` to `last`, all if not given."""
        key = layer, first, last
        if key not in self._programs:
            self._programs[key] = self.plans[layer].program(first, last)
        return self._programs[key]

    def run(self, layer: int = 0, first: str | None = None, last: str | None = None) -> Result:
        """Execute the stages of a layer from `first` to `last`, all if not given."""
        return self.execute(self.program(layer, first, last), self.registers(layer))

    def execute(self, program: Sequence[Instruction], registers: dict[int, int]) -> Result:
        """Execute any program, and write the tables that it leaves to memory."""
        out = self.core.run(program, registers)
        self.tables.write()
        return out
