"""ReKV as a policy: whole frames whose mean key is like the query's."""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.function_params import Parameters, parameter
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.history import Growing
from openvrex.golden.policies.light_attention import Selected, bf16
from openvrex.golden.policies.policy import LayerBlock, Policy


@dataclass(frozen=True)
class ReKVParams(Parameters):
    """Parameters of ReKV. The ratios are those that V-Rex's Table II reports for it."""

    frame_ratio: float = parameter(
        0.584, "share of the offloaded blocks retrieved for prompts, frames and questions", low=0, high=1
    )
    generation_ratio: float = parameter(
        0.312, "share of the offloaded blocks retrieved for generated tokens", low=0, high=1
    )
    recent: int = parameter(256, "last tokens, always attended and kept on the device", low=0)


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

    def select(self, step: LayerBlock) -> Selected:
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
