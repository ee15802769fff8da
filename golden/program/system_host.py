"""Splits decoder layers over cores that share one memory: the plan of each core's share, and a host for golden cores.

Of n cores, core i has the KV heads h with h mod n = i and the query heads of their groups, with its own contexts, rings
and offloaded entries. It also has the i-th part of the columns of the FFN and of the hidden states. A layer has four
phases. Between them every core waits for all others, because it reads what they have written:

=========  ===========================================================================================================
attention  stages norm1 to values: each core computes the norm of all hidden states, and its own heads
output     each core computes its columns of the output projection, from the heads of all cores
ffn        stages norm2 and gate_up: each core computes the norm of all hidden states, and its columns of gate and up
down       each core computes its columns, from the FFN's columns of all cores
=========  ===========================================================================================================

Each sum is computed by one core, so the order of the cores changes no bit. Hidden states, attention outputs and the
FFN's inner states are in memory that all cores share; heads lie there in the order of the cores.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from golden.arithmetic.numerics import BF16
from golden.function_params import ReSVParams, check
from golden.program.core_compiler import LEVEL, ROW, CorePlan, RetrievalShape
from golden.program.core_host import check_centre
from golden.program.core_model import Core
from golden.program.isa import Instruction, LxeFormat
from golden.program.layer_memory import Array, LayerShape, Register, Space
from golden.program.layer_stages import Compiler
from golden.program.lxe_model import Memory, Region, Result
from golden.retrieval.dre_model import DreModel
from golden.retrieval.kvmap import KvMap

PHASES = {  # first and last stage of each phase
    "attention": ("norm1", "values"),
    "output": ("output",) * 2,
    "ffn": ("norm2", "gate_up"),
    "down": ("down",) * 2,
}


def shared_space(shape: LayerShape, fmt: LxeFormat, cores: int) -> Space:
    """The arrays that all cores share, from address 0: `hidden`, `attention` and `gated` of a layer of `shape`."""
    space = Space(max(4096, 4 * fmt.lanes))
    space.add("hidden", (shape.tokens, shape.width), np.float32)
    space.add("attention", (shape.kv_heads, shape.tokens, shape.group * shape.head_size), BF16)
    space.add("gated", (cores, shape.tokens, shape.ffn // cores), BF16)
    return space


class SharePlan(CorePlan):
    """The program of one core's share of a layer, in the phases `PHASES`.

    whole : shape of the whole layer
    core, cores : the core's number and the number of cores
    base : address of the core's own work arrays

    Raises `ParamError` as `CorePlan` does, and where the cores cannot have equal shares.
    """

    def __init__(self, whole: LayerShape, fmt: LxeFormat, retrieval: RetrievalShape, core: int, cores: int, base: int):
        check(0 <= core < cores, "core", core, f"must be 0 to {cores - 1}")
        unit = cores * fmt.lanes
        for name, of in (("kv_heads", cores), ("width", unit), ("ffn", unit)):
            value = getattr(whole, name)
            check(value % of == 0, name, value, f"must be a multiple of {of}, so that {cores} cores have equal shares")
        self.whole, self.core, self.cores, self.base = whole, core, cores, base
        share = {"heads": whole.heads // cores, "kv_heads": whole.kv_heads // cores, "ffn": whole.ffn // cores}
        self.shape, self.fmt = replace(whole, **share), fmt  # `_cut` reads them
        s, w = self.shape, whole
        cuts = {
            "qkv": self._cut((s.heads + 2 * s.kv_heads) * s.head_size, s.width, s.width),
            "output": self._cut(w.width // cores, w.heads * w.head_size, w.group * w.head_size),
            "gate_up": self._cut(s.ffn, s.width, s.width, 2),
            "down": self._cut(w.width // cores, w.ffn, s.ffn),
        }
        super().__init__(self.shape, fmt, retrieval, cuts)

    def of(self, tokens: int) -> "SharePlan":
        """The plan of a pass of fewer tokens that uses the same weights and entries in memory."""
        whole = replace(self.whole, tokens=tokens)
        return SharePlan(whole, self.fmt, self.retrieval, self.core, self.cores, self.base)

    @property
    def heads(self) -> range:
        """The numbers of the core's KV heads."""
        return range(self.core, self.whole.kv_heads, self.cores)

    def _more_arrays(self) -> None:
        super()._more_arrays()
        arrays, shared = self.work.arrays, shared_space(self.whole, self.fmt, self.cores).arrays
        for name, a in arrays.items():
            arrays[name] = replace(a, offset=a.offset + self.base)
        for name in ("attention", "gated"):
            arrays[f"all_{name}"] = shared[name]
            arrays[name] = replace(arrays[name], offset=shared[name].offset + self.core * arrays[name].size)
        hidden = arrays["hidden"] = shared["hidden"]
        own = self.core * self.whole.width // self.cores
        arrays["own_hidden"] = Array("own_hidden", hidden.offset + 4 * own, hidden.shape, hidden.dtype)

    def _steps(self, c: Compiler, gemm: Callable[..., None]) -> list[tuple[str, tuple[str, ...], Callable[[], None]]]:
        own = {
            "output": lambda: gemm("output", "all_attention", "own_hidden"),
            "down": lambda: gemm("down", "all_gated", "own_hidden"),
        }
        return [(name, outputs, own.get(name, build)) for name, outputs, build in super()._steps(c, gemm)]

    def phase(self, name: str) -> list[Instruction]:
        """The core's program of a phase of `PHASES`."""
        return self.program(*PHASES[name])

    def pack(self, layer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The core's arrays of weights by name, from the whole layer as `golden.inputs.decoder` keeps it."""
        w, n = self.whole, self.cores
        columns = np.arange(self.core * w.width // n, (self.core + 1) * w.width // n)
        ffn = np.arange(self.core * w.ffn // n, (self.core + 1) * w.ffn // n)
        order = [h for core in range(n) for h in range(core, w.kv_heads, n)]  # heads as they lie in memory
        keys = w.heads * w.head_size + _columns(self.heads, w.head_size)
        values = w.kv_heads * w.head_size + keys
        qkv = np.concatenate([_columns(self.heads, w.group * w.head_size), keys, values])
        return super().pack(
            {
                "attn_norm": layer["attn_norm"],
                "ffn_norm": layer["ffn_norm"],
                "qkv": layer["qkv"][:, qkv],
                "attn_output": layer["attn_output"][_columns(order, w.group * w.head_size)][:, columns],
                "gate_up": layer["gate_up"][:, np.concatenate([ffn, w.ffn + ffn])],
                "ffn_down": layer["ffn_down"][:, columns],
            }
        )

    def planes(self, hyperplanes: np.ndarray) -> np.ndarray:
        """The core's array `hash_weight`, from hyperplanes [n_hp, KV heads * head size] of the whole layer."""
        return super().planes(hyperplanes[:, _columns(self.heads, self.whole.head_size)])


def _columns(heads: Sequence[int], size: int) -> np.ndarray:
    """Numbers of the columns of some heads of `size` columns each."""
    return (np.asarray(heads)[:, None] * size + np.arange(size)).reshape(-1)


class SystemHost:
    """Layers of one shape on golden cores that share a memory.

    shape : shape of a whole layer
    retrievals : sizes of each layer's retrieval; they differ in their contexts only
    layers : weights of each layer as `golden.inputs.decoder` keeps them
    planes : hyperplanes [n_hp, KV heads * head size] of each layer
    params : parameters of the retrieval
    cores : number of cores
    blocks, block_slots : blocks of each core's home memory, entries of a block
    boundary : bytes; a burst does not cross a multiple of it
    n_ctx : contexts of each DRE

    `begin` writes the inputs of a pass. `run` executes a phase of a layer on all cores. Raises `ParamError` where
    `retrievals` and `params` differ in `centre`.
    """

    def __init__(
        self,
        shape: LayerShape,
        fmt: LxeFormat,
        retrievals: Sequence[RetrievalShape],
        layers: Sequence[dict[str, np.ndarray]],
        planes: Sequence[np.ndarray],
        params: ReSVParams,
        *,
        cores: int,
        blocks: int,
        block_slots: int,
        boundary: int = 4096,
        n_ctx: int,
    ):
        for r in retrievals:
            check_centre(r, params)
        shared, align = shared_space(shape, fmt, cores), 4096
        at, regions = 0, []

        def region(name: str, size: int) -> int:
            nonlocal at
            base, at = at, at + -(-size // align) * align
            regions.append(Region(name, base, size))
            return base

        region("shared", shared.size)
        self.plans: list[list[SharePlan]] = []  # [core][layer]
        self.weights: list[list[int]] = []  # addresses, [core][layer]
        self.device_bases, self.home_bases, maps = [], [], []
        for i in range(cores):
            plans = [SharePlan(shape, fmt, r, i, cores, at) for r in retrievals]
            p, size = plans[0], plans[0].shape.entry * 2
            region(f"work {i}", p.work.size)
            self.plans.append(plans)
            self.weights.append([region(f"weights {i} of layer {k}", p.weights.size) for k in range(len(layers))])
            # There is room for the rest of a row of entries behind the last ring.
            self.device_bases.append(region(f"rings {i}", ((n_ctx - 1) * shape.recent + p.row) * size))
            self.home_bases.append(region(f"home {i}", blocks * block_slots * size))
            sizes = {"blocks": blocks, "block_slots": block_slots, "recent": shape.recent, "entry_bytes": size}
            bases = {"device_base": self.device_bases[i], "home_base": self.home_bases[i]}
            more = {"clusters": params.max_clusters, "boundary": boundary, "n_ctx": n_ctx}
            maps.append(KvMap(**sizes, **bases, **more))
        self.memory = Memory(regions)
        self.cores = [Core(fmt, self.memory, DreModel(params, kv)) for kv in maps]
        for i, plans in enumerate(self.plans):
            for k, (plan, layer, hyperplanes) in enumerate(zip(plans, layers, planes, strict=True)):
                packed = plan.pack(layer) | {"hash_weight": plan.planes(hyperplanes)} | plan.constants()
                for name, x in packed.items():
                    self.put(i, name, x, k)
        self._programs: dict[tuple[int, int, str], list[Instruction]] = {}

    def address(self, core: int, array: Array, layer: int = 0) -> int:
        """Address of the first byte of an array of a core's plan."""
        s, ctx = self.plans[core][layer].shape, self.plans[core][layer].retrieval.ctx
        ring = self.device_bases[core] + ctx * s.recent * s.entry * 2
        return array.offset + {0: 0, Register.WEIGHTS: self.weights[core][layer], Register.KV: ring}[array.base]

    def put(self, core: int, name: str, x: np.ndarray, layer: int = 0) -> None:
        """Write an array of a core's plan. Raises `ParamError` for another shape or type."""
        array = self.plans[core][layer][name]
        check(
            x.shape == array.shape and x.dtype == array.dtype,
            name,
            (x.shape, x.dtype),
            f"must be {array.shape}, {np.dtype(array.dtype)}",
        )
        self.memory.put(self.address(core, array, layer), x)

    def get(self, core: int, name: str, layer: int = 0) -> np.ndarray:
        """Read an array of a core's plan."""
        array = self.plans[core][layer][name]
        return self.memory.get(self.address(core, array, layer), array.shape, array.dtype)

    def begin(self, hidden: np.ndarray, cos: np.ndarray, sin: np.ndarray, start: int) -> None:
        """Write the inputs of a pass from token `start`: hidden [tokens, width], cos and sin [tokens, head / 2]."""
        for i, plans in enumerate(self.plans):
            for name, x in plans[0].inputs(hidden, cos, sin, start).items():
                self.put(i, name, x)

    def registers(self, core: int, layer: int = 0) -> dict[int, int]:
        """Values of the registers that a core's program of a layer starts with."""
        plan = self.plans[core][layer]
        return {
            int(Register.WEIGHTS): self.weights[core][layer],
            int(Register.KV): self.address(core, plan["ring"], layer),
            int(ROW): 0,
            int(LEVEL): self.cores[core].clusters[plan.retrieval.ctx],
            int(Register.REST): 0,
            int(Register.ENTRIES): 0,
        }

    def program(self, core: int, phase: str, layer: int = 0) -> list[Instruction]:
        """A core's program of a phase of a layer."""
        key = core, layer, phase
        if key not in self._programs:
            self._programs[key] = self.plans[core][layer].phase(phase)
        return self._programs[key]

    def run(self, phase: str, layer: int = 0, order: Sequence[int] | None = None) -> dict[int, Result]:
        """Execute a phase of a layer on the cores, in the given order; returns their results by core."""
        out = {}
        for core in order if order is not None else range(len(self.cores)):
            out[core] = self.cores[core].run(self.program(core, phase, layer), self.registers(core, layer))
        return out
