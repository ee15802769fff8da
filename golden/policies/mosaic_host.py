"""Runs layers of a decoder on a core under Mosaic: what the host of the hardware does, block by block.

A block is one pass. In each layer the core first makes queries, keys and values (`MosaicPlan.ask`). Then the policy
itself chooses, on the core's numbers (`golden.policies.mosaic_core`). Its choice becomes a mask over the slots, and the
core goes on with the attention (`MosaicPlan.attend`). Behind the last layer the policy puts the block into clusters.

Entries of a layer lie in slots of its own, as each layer chooses other tokens.
"""

from collections.abc import Callable, Sequence

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.packed_weights import Matrix
from openvrex.golden.function_params import check
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.mosaic import Mosaic, MosaicParams
from openvrex.golden.policies.mosaic_core import CoreFrames, CoreLayer, CoreStore, Job, MosaicDriver
from openvrex.golden.policies.policy import LayerBlock
from openvrex.golden.policies.policy_run import Run
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.layers_in_memory import MemoryMap
from openvrex.golden.program.lxe_model import Lxe, Memory, Result
from openvrex.golden.program.mosaic_plan import FramePlan, MosaicPlan

ALLOWED = ("none", "query")  # of `MosaicParams.prefetch`


class MosaicHost:
    """Layers of one shape on one LXE or core, under Mosaic.

    plan : of the largest pass · params, shape : of the policy
    layers : weights of each layer as `golden.inputs.decoder` keeps them
    turns : radians that a position adds to the angle of each rotary pair, [head size / 2]
    unit : makes the LXE or the core from format and memory
    launch : runs a job; `run` on golden if not given
    frames : of the steps for visual clusters; if not given, the host computes them by golden's functions

    `block` takes a block through the layers and returns the hidden states. Memory has a region for the arrays of a
    pass, then for each layer one of its weights and one of its entries and tables. `watch`, if set, is called when a
    layer has chosen: layer, block, rows, what is selected.
    """

    def __init__(
        self,
        plan: MosaicPlan,
        params: MosaicParams,
        shape: Shape,
        layers: Sequence[dict[str, Matrix]],
        turns: np.ndarray,
        unit: Callable[..., Lxe] = Lxe,
        launch: Callable[[Job], object] | None = None,
        frames: FramePlan | None = None,
    ):
        check(params.arithmetic == "hardware", "arithmetic", params.arithmetic, "must be hardware: the core decides")
        check(params.prefetch in ALLOWED, "prefetch", params.prefetch, f"must be one of {', '.join(ALLOWED)}")
        check(not params.alone, "semantic_level", False, "must be on, or visual_level: there are only clusters here")
        self.plan, self.turns = plan, np.asarray(turns)
        self._plans = {plan.shape.tokens: plan}
        own = MemoryMap()
        self.bases = own.layers(plan, len(layers))
        frames_at = own.add("frames", frames.kv.size) if frames is not None else 0
        self.unit = unit(plan.fmt, Memory(own.regions))
        launch, memory = launch or self.run, self.unit.memory
        self.core = MosaicDriver(plan, dict(enumerate(self.bases)), memory, launch)
        for i, layer in enumerate(layers):
            for name, x in plan.pack(layer).items():
                self.core.write(i, name, x)
        self.policy = Mosaic(params, shape)
        width = shape.kv_heads * shape.head_size
        self.policy.layers = [CoreLayer(width, shape.kv_heads, self.core, i) for i in range(shape.layers)]
        for state in self.policy.layers:
            assert isinstance(state, CoreLayer)
            state.defer = params.defer
        self.frames: CoreFrames | None = None
        if frames is not None:
            number = len(self.bases)
            self.bases.append({0: 0, int(Register.KV): frames_at})
            self.frames = CoreFrames(
                MosaicDriver(frames, {number: self.bases[number]}, memory, launch, "visual "), number
            )
            first = self.policy.layers[0]
            assert isinstance(first, CoreLayer)
            first.frames = self.frames
        self.policy.store = CoreStore(shape, self.policy.ledger, self.core)
        self.decider = Run(self.policy)
        self.watch: Callable[[Block, MosaicPlan, int, np.ndarray, Selected], None] | None = None

    @property
    def readings(self) -> int:
        """Answers that the host has read so far."""
        return self.core.counts.readings + (self.frames.core.counts.readings if self.frames else 0)

    def run(self, job: Job) -> Result:
        """Execute a job on golden: memory is then as the hardware leaves it."""
        return self.unit.run(job.program, job.registers)

    def of(self, tokens: int) -> MosaicPlan:
        """The plan of a pass of so many tokens."""
        if tokens not in self._plans:
            self._plans[tokens] = self.plan.of(tokens)
        return self._plans[tokens]

    def _write(self, plan: MosaicPlan, arrays: dict[str, np.ndarray]) -> None:
        for name, x in arrays.items():
            self.unit.memory.put(plan[name].offset, x)

    def block(self, block: Block, x: np.ndarray) -> np.ndarray:
        """Take a block with the embeddings x [T, width] through the layers; its hidden states, FP32 [T, width].

        Raises `ParamError` for a block that is longer than a pass, and for one out of order.
        """
        policy, core = self.policy, self.core
        _, rows, positions = self.decider.begin(block)
        most = self.plan.shape.tokens
        check(len(rows) <= most, "tokens", len(rows), f"of block {block.index} must be at most {most}, those of a pass")
        plan, shape = self.of(len(rows)), policy.shape
        angle = positions[:, None] * self.turns
        tables = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        blind = np.zeros((len(rows), self.plan.shape.recent), bool)
        inputs = plan.inputs_of(x, *tables, blind)
        self._write(plan, plan.constants() | inputs)
        nothing = np.broadcast_to(np.float32(np.nan), (len(rows), shape.heads, shape.head_size))
        old = np.broadcast_to(np.float32(np.nan), (shape.kv_heads, block.stop, shape.head_size))
        store = policy.store
        assert isinstance(store, CoreStore)
        for number, state in enumerate(policy.layers):
            assert isinstance(state, CoreLayer)
            core.start("ask", number, len(rows), plan.ask())
            store.fresh = plan["fresh"].offset
            store.append(number, rows)
            policy.append(number, rows, nothing[:, : shape.kv_heads], nothing[:, : shape.kv_heads])
            core.query_at = core.address(number, "query")
            state.represented = np.zeros(0, np.int64)
            chosen = policy.select(LayerBlock(number, block, rows, nothing, old, old))
            if self.watch is not None:
                self.watch(block, plan, number, rows, chosen)
            self._write(plan, {"mask": self._mask(plan, number, rows, chosen.keep[0], state.represented)})
            registers = {"WEIGHED": self.bases[number][Register.WEIGHTS]}
            core.start("attend", number, len(rows), plan.attend(), **registers)
            store.release(number)
        hidden = plan["hidden"]
        out = self.unit.memory.get(hidden.offset, hidden.shape, np.float32)
        clustered = policy.visual is not None
        self.decider.finish(block)
        if block.stage == "frame" and policy.visual is not None:
            core.counts.clustered += 1 if clustered else policy.params.build
        core.counts.deferred, core.counts.covered = policy.deferred, policy.covered
        return out

    def _mask(
        self, plan: MosaicPlan, layer: int, rows: np.ndarray, keep: np.ndarray, represented: np.ndarray
    ) -> np.ndarray:
        """The mask of a layer's slots: kept tokens up to each row, and representatives."""
        seen = np.zeros((len(rows), self.plan.shape.recent), bool)
        tokens = np.flatnonzero(keep)
        slots = self.core.slot[layer, tokens]
        check(bool((slots >= 0).all()), "keep", tokens[slots < 0].tolist(), "must be on the device")
        seen[:, slots] = tokens <= rows[:, None]
        seen[:, self.plan.tokens_slots + represented] = True
        return np.where(np.repeat(seen, plan.shape.group, axis=0), 0.0, -np.inf).astype(BF16)
