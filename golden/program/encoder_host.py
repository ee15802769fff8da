"""Runs a vision encoder on golden cores that share one memory: from normalised patches to the decoder's embeddings.

A picture takes some steps. In a step each core runs one program: as many stages as its program memory holds where one
core computes alone, else one stage, as all cores wait for each other between stages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import check
from openvrex.golden.program.encoder_compiler import LAYER, EncoderPlan, EncoderShape, Grid
from openvrex.golden.program.isa import Instruction, LxeFormat
from openvrex.golden.program.layer_memory import Array
from openvrex.golden.program.lxe_model import Memory


@dataclass(frozen=True)
class EncoderWeights:
    """A vision encoder as products with biases. Matrices are [inputs, columns].

    layers : of each layer, matrices and biases of `qkv`, `output`, `up` and `down`, by the names "qkv", "qkv_bias" and
        so on. What is linear beside a product is folded into it: weights and biases of norms, the factor of scores
    embed : kernel of the patches [numbers, width]
    positions : what the embedding adds to each token [tokens, width]: its position and bias, the token without a patch
    norm : weight and bias of the last norm
    projector : matrix and bias of each product behind the pooling
    """

    layers: Sequence[dict[str, np.ndarray]]
    embed: np.ndarray
    positions: np.ndarray
    norm: tuple[np.ndarray, np.ndarray]
    projector: Sequence[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class EncoderStep:
    """One run of a program on each core that has a part in it.

    layer : None in front of the layers and behind them · stages : of the programs, in order
    group : cores that read the first bytes of `work` together (`EncoderPlan.together`)
    programs, registers : of each core; None for a core without a part
    """

    layer: int | None
    stages: tuple[str, ...]
    programs: list[list[Instruction] | None]
    registers: list[dict[int, int]]
    group: int = 1


class EncoderHost:
    """A vision encoder on golden cores.

    like : the host of whole pictures, for one of pictures that are encoded in part: both have the same memory

    `regions` names the memory that it needs; `place` says where that is and writes the weights. `begin` writes a
    picture, `steps` yields its steps, and `embeddings` has the result. `of` gives the host for pictures in part.
    Raises `ParamError` for sizes that do not fit, and for weights of other shapes.
    """

    memory: Memory
    bases: dict[str, int]
    plans: list[EncoderPlan]

    def __init__(
        self,
        shape: EncoderShape,
        fmt: LxeFormat,
        weights: EncoderWeights,
        cores: int = 1,
        common: bool = False,
        like: "EncoderHost | None" = None,
    ):
        check(len(weights.layers) == shape.layers, "layers", len(weights.layers), f"must be {shape.layers}")
        self.shape, self.fmt, self.weights = shape, fmt, weights
        grids: dict[str, Grid] | None = like.plans[0].grids if like else None
        self.plans = [EncoderPlan(shape, fmt, core, cores, common, grids) for core in range(cores)]
        self._parts: dict[int, EncoderHost] = {}
        if like:
            self.memory, self.bases = like.memory, like.bases
        self._programs: dict[tuple[int, str, str], list[Instruction]] = {}
        behind = [name for name in self.plans[0].names if name not in ("embed", *LAYER)]
        self._cuts = [self._cut(names) for names in (["embed"], list(LAYER), behind)]

    @property
    def regions(self) -> dict[str, int]:
        """Names and bytes of the regions of memory."""
        out = {"vision work": self.plans[0].work.size}
        for core, plan in enumerate(self.plans):
            layer = max(1, plan.weights.size)  # a core may have no part in a layer's products
            out |= {f"vision layer {k} of {core}": layer for k in range(self.shape.layers)}
            out[f"vision ends of {core}"] = plan.ends.size
        return out

    def place(self, memory: Memory, bases: dict[str, int]) -> None:
        """Live in a memory, with `regions` at some addresses, and write the weights."""
        self.memory, self.bases, w = memory, bases, self.weights
        ends = {"embed": w.embed, "embed_bias": np.zeros(self.shape.width)}
        for k, (matrix, bias) in enumerate(w.projector):
            ends |= {f"project_{k}": matrix, f"project_{k}_bias": bias}
        constants = {
            "norm_weight": to_bf16(w.norm[0]),
            "norm_bias": w.norm[1].astype(np.float32),
        }
        for core, plan in enumerate(self.plans):
            for name, x in (plan.pack(ends) | constants).items():
                self._put(plan, name, x, bases[f"vision ends of {core}"])
            for k, layer in enumerate(w.layers):
                for name, x in plan.pack(layer).items():
                    self._put(plan, name, x, bases[f"vision layer {k} of {core}"])

    def _put(self, plan: EncoderPlan, name: str, x: np.ndarray, base: int) -> None:
        plan[name].check(x)
        self.memory.put(base + plan[name].offset, x)

    def _cut(self, names: list[str]) -> list[tuple[str, ...]]:
        """The stages of each program that runs some stages one after the other."""
        if len(self.plans) > 1:
            return [(name,) for name in names]
        some = self.plans[0].fitting(names[0], names[-1])
        self._programs |= {(0, own[0], own[-1]): program for own, program in some}
        return [tuple(own) for own, _ in some]

    def of(self, kept: int) -> "EncoderHost":
        """The host for pictures of which so many groups of patches are encoded."""
        if kept not in self._parts:
            shape, cores = replace(self.shape, kept=kept), len(self.plans)
            self._parts[kept] = EncoderHost(shape, self.fmt, self.weights, cores, self.plans[0].common, self)
        return self._parts[kept]

    def begin(self, patches: np.ndarray, keep: np.ndarray | None = None) -> None:
        """Write a picture: patches [patches, numbers], normalised, which are rounded to BF16.

        keep : of a host for pictures in part, which groups are encoded, bool [side / group, side / group]
        """
        s, plan = self.shape, self.plans[0]
        check(patches.shape == (s.side**2, s.patch), "patches", patches.shape, f"must be {(s.side**2, s.patch)}")
        order = np.arange(s.side**2)
        if s.kept is not None:
            g = s.side // s.group
            some = np.zeros((g, g), bool) if keep is None else keep
            check(some.shape == (g, g) and some.sum() == s.kept, "keep", int(some.sum()), f"must be {s.kept} groups")
            groups = order.reshape(g, s.group, g, s.group).swapaxes(1, 2).reshape(g, g, -1)
            order = groups[some].reshape(-1)
        x = np.zeros(plan["patches"].shape, BF16)
        x[s.extra :, : s.patch] = to_bf16(patches[order])
        positions = self.weights.positions[np.concatenate([np.arange(s.extra), s.extra + order])]
        for name, own in (("patches", x), ("positions", positions.astype(np.float32))):
            self._put(plan, name, own, self.bases["vision work"])

    def steps(self) -> Iterator[EncoderStep]:
        """The steps of a picture, in order."""
        first, layer, behind = self._cuts
        yield from (self._step(stages, None) for stages in first)
        for k in range(self.shape.layers):
            yield from (self._step(stages, k) for stages in layer)
        yield from (self._step(stages, None) for stages in behind)

    def _step(self, stages: tuple[str, ...], layer: int | None) -> EncoderStep:
        cores = range(len(self.plans))
        programs = [self._program(core, stages) for core in cores]
        registers = [self.registers(core, layer or 0) for core in cores]
        return EncoderStep(layer, stages, programs, registers, self.plans[0].group(stages[0]))

    def registers(self, core: int, layer: int) -> dict[int, int]:
        """Values of the registers that a core's programs start with."""
        at = ("vision work", f"vision layer {layer} of {core}", f"vision ends of {core}")
        return self.plans[core].registers(*(self.bases[name] for name in at))

    def _program(self, core: int, stages: tuple[str, ...]) -> list[Instruction] | None:
        plan, key = self.plans[core], (core, stages[0], stages[-1])
        if stages[0] not in [stage.name for stage in plan.stages]:
            return None
        if key not in self._programs:
            self._programs[key] = plan.program(stages[0], stages[-1])
        return self._programs[key]

    def get(self, name: str) -> np.ndarray:
        """An array of `work`, of the picture that was encoded last."""
        array = self.plans[0].work.arrays[name]
        return self.memory.get(self.bases["vision work"] + array.offset, array.shape, array.dtype)

    def arrays(self, layer: int | None) -> Iterator[tuple[Array, int]]:
        """The arrays of core 0 in a step of a layer, or of the ends, each with its address."""
        plan, registers = self.plans[0], self.registers(0, layer or 0)
        own = plan.ends if layer is None else plan.weights
        for space in (own, plan.work):
            yield from ((a, a.offset + registers[a.base]) for a in space.arrays.values())

    @property
    def embeddings(self) -> np.ndarray:
        """The decoder's embeddings of the picture that was encoded last, FP32 [tokens, numbers]."""
        return self.get("embeddings")
