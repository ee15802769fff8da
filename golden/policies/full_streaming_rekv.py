"""Full attention (also as FlexGen), StreamingLLM and ReKV as policies: the simplest systems of the comparisons."""

from dataclasses import dataclass

import numpy as np
from openvrex.golden.function_params import check_parameters, parameter
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.history import Growing
from openvrex.golden.policies.light_attention import Selected, bf16
from openvrex.golden.policies.policy import Policy, Step


@dataclass(frozen=True)
class FullParams:
    """Parameters of full attention."""

    offload: bool = parameter(False, "keep the cache on the host; every layer of every block fetches all of it")


class Full(Policy):
    """Full attention with the cache on the device. With `offload` it is FlexGen, whose cache is in host memory."""

    source = "V-Rex VI-B; with offload FlexGen, V-Rex [30]"

    def select(self, step: Step) -> Selected:
        self.store.fetch(step.layer, np.ones(step.n, bool))
        return Selected(self.store.on_device(step.layer))

    def end(self, block: Block) -> None:
        if self.params.offload:
            for layer in range(self.shape.layers):
                self.offload_but(layer, 0, 0)


@dataclass(frozen=True)
class StreamingParams:
    """Parameters of StreamingLLM."""

    sinks: int = parameter(4, "first tokens of the stream, kept for good", low=0)
    recent: int = parameter(256, "last tokens before a block, kept", low=0)

    def __post_init__(self):
        check_parameters(self)


class Streaming(Policy):
    """Attention to sinks and to a window of recent tokens; tokens in between are dropped for good.

    The original counts positions inside the cache. Rotary attention depends on differences of positions only. So here
    the window keeps the positions of the stream, and the sinks' keys move up to it by one position for each dropped
    token.
    """

    source = "StreamingLLM, hybrid [3] and II-B, Eq. 1"
    turns = True

    def __init__(self, params: StreamingParams, shape: Shape):
        super().__init__(params, shape)
        self.window = [params.sinks] * shape.layers  # first token behind the sinks that a layer holds

    def select(self, step: Step) -> Selected:
        p, layer = self.params, step.layer
        first, self.window[layer] = self.window[layer], max(p.sinks, step.block.start - p.recent)
        self.store.drop(layer, slice(first, self.window[layer]))
        gone = self.window[layer] - p.sinks
        if not gone:
            return Selected(self.store.on_device(layer))
        moved = p.sinks * self.shape.kv_heads * self.shape.head_size
        self.ledger.work("elementwise", 3 * moved)  # a rotation: 2 multiplications and an addition a number
        return Selected(self.store.on_device(layer), turn=np.full(p.sinks, gone))


@dataclass(frozen=True)
class ReKVParams:
    """Parameters of ReKV. The ratios are those that V-Rex's Table II reports for it."""

    frame_ratio: float = parameter(
        0.584, "share of the offloaded blocks retrieved for prompts, frames and questions", low=0, high=1
    )
    generation_ratio: float = parameter(
        0.312, "share of the offloaded blocks retrieved for generated tokens", low=0, high=1
    )
    recent: int = parameter(256, "last tokens, always attended and kept on the device", low=0)

    def __post_init__(self):
        check_parameters(self)


class ReKV(Policy):
    """Retrieves whole frames: those whose mean key is most similar (cosine) to the block's mean query.

    A vector holds the keys of all KV heads end to end; the query heads of a KV head are averaged. The first block (the
    prompt) and the last `recent` tokens stay on the device. Every block retrieves anew, generated tokens included, as
    V-Rex's comparison needs. Retrieved frames keep their positions.
    """

    source = "ReKV, V-Rex [6] and VI-B, Table II"

    def __init__(self, params: ReKVParams, shape: Shape):
        super().__init__(params, shape)
        self.starts: list[int] = []  # first token of each block
        self.means = [Growing(1, shape.kv_heads * shape.head_size) for _ in range(shape.layers)]  # mean keys of blocks

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        mean = bf16(k.mean(axis=0, dtype=np.float32).reshape(1, 1, -1))
        self.means[layer].append(mean)
        self.ledger.work("index", k.size)
        self.ledger.hold("device", 2 * mean.size)
        if layer == 0:
            self.starts.append(int(tokens[0]))
        prompt = self.starts[1] if len(self.starts) > 1 else self.store.length
        self.offload_but(layer, prompt, max(self.params.recent, len(tokens)))

    def select(self, step: Step) -> Selected:
        layer, p = step.layer, self.params
        old = self.store.on_host(layer)[0]
        frames = np.add.reduceat(old, self.starts) > 0
        at = np.flatnonzero(frames)
        ratio = p.generation_ratio if step.block.stage == "generation" else p.frame_ratio
        budget = int(np.ceil(ratio * len(at)))
        query = step.q.reshape(len(step.q), self.shape.kv_heads, self.shape.group, -1).mean(axis=(0, 2)).ravel()
        means = self.means[layer].data[0, at]
        similarity = means @ query / np.maximum(np.linalg.norm(means, axis=1), np.float32(1e-30))
        self.ledger.work("prediction", 2 * means.size + step.q.size)
        self.ledger.sort(len(at))
        frames[:] = False
        frames[at[np.argsort(-similarity, kind="stable")[:budget]]] = True
        sizes = np.diff([*self.starts, step.n])
        self.store.fetch(layer, np.repeat(frames, sizes))
        return Selected(self.store.on_device(layer))
