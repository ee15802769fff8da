"""InfiniGen as a policy: predicts important tokens from few columns of skewed Q and K, and prefetches them."""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.function_params import Parameters, check, parameter
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.history import Growing
from openvrex.golden.policies.light_attention import Selected, bf16, by_kv_head
from openvrex.golden.policies.policy import LayerBlock, Policy


@dataclass(frozen=True)
class InfiniGenParams(Parameters):
    """Parameters of InfiniGen. The ratios are those of V-Rex's Table II; at 1 it fetches all without prediction."""

    frame_ratio: float = parameter(1.0, "share of the cache retrieved for prompts, frames and questions", low=0, high=1)
    generation_ratio: float = parameter(0.068, "share of the cache retrieved for generated tokens", low=0, high=1)
    partial_ratio: float = parameter(0.3, "share of the columns of skewed queries and keys that predict")
    calibrate: int = parameter(
        256, "query rows of a KV head from which skew and columns are made; before, all is fetched", low=1
    )

    def __post_init__(self):
        super().__post_init__()
        check(0 < self.partial_ratio <= 1, "partial_ratio", self.partial_ratio, "must be above 0, to 1")


class InfiniGen(Policy):
    """Keeps the cache on the host and fetches a fixed share of it, the same for all heads, by predicted attention.

    Skewing: q k = (q A)(k A) for an orthogonal A. A holds the right singular vectors of a KV head's queries, which
    gather the weight in few columns. The columns with the largest sums of |q A| predict. The original makes A offline;
    here the first `calibrate` rows of the stream do. Predicted attention is the softmax over the cache, summed over the
    rows of a block and the query heads of a KV head. The policy retrieves the tokens with the largest sums.

    In a decoder, a layer guesses the queries of the next layer from its own input and prefetches the tokens; the next
    layer attends to those. The first layer, and every layer of a trace, predicts with its own queries. The original's
    threshold on scores and its eviction from host memory are left out, as V-Rex compares with a fixed top-k.
    """

    source = "InfiniGen, V-Rex [16] and VI-B, Table II"
    uses_ahead = True

    def __init__(self, params: InfiniGenParams, shape: Shape):
        super().__init__(params, shape)
        self.columns = max(1, round(params.partial_ratio * shape.head_size))
        self.rows: list[list[np.ndarray]] = [[] for _ in range(shape.layers)]  # queries collected for calibration
        self.bases: list[np.ndarray | None] = [
            None
        ] * shape.layers  # [kv_heads, head_size, columns]; None before calibration
        self.keys = [Growing(shape.kv_heads, self.columns) for _ in range(shape.layers)]  # partial keys
        self.predicted: set[int] = set()  # layers whose tokens are prefetched

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        if self.bases[layer] is not None:
            self._index(layer, k.swapaxes(0, 1))

    def select(self, step: LayerBlock) -> Selected:
        layer = step.layer
        generation = step.block.stage == "generation"
        ratio = self.params.generation_ratio if generation else self.params.frame_ratio
        if self.bases[layer] is None:
            self.store.fetch(layer, np.ones(step.n, bool))
            self._calibrate(step)
        elif layer not in self.predicted:
            self.store.fetch(layer, self._predict(layer, step.q, ratio))
        self.predicted.discard(layer)
        if step.ahead is not None and self.bases[layer + 1] is not None:
            assert step.x is not None  # from which `ahead` was guessed
            self.ledger.work("prediction", step.x.size * self.shape.heads * self.columns)
            self.store.fetch(layer + 1, self._predict(layer + 1, step.ahead, ratio), "prefetch")
            self.predicted.add(layer + 1)
        return Selected(self.store.on_device(layer))

    def end(self, block: Block) -> None:
        for layer in range(self.shape.layers):
            self.offload_but(layer, 0, 0)

    def _calibrate(self, step: LayerBlock) -> None:
        layer, rows = step.layer, by_kv_head(step.q, self.shape.kv_heads)
        self.rows[layer].append(rows)
        rows = np.concatenate(self.rows[layer], axis=1)
        if rows.shape[1] >= self.params.calibrate:
            self.bases[layer] = skew(rows, self.columns)
            self.rows[layer] = []
            self._index(layer, step.k)

    def _index(self, layer: int, k: np.ndarray) -> None:
        partial = bf16(k @ self.bases[layer])
        self.keys[layer].append(partial)
        self.ledger.work("index", k.size * self.columns)
        self.ledger.hold("device", 2 * partial.size)

    def _predict(self, layer: int, q: np.ndarray, ratio: float) -> np.ndarray:
        """Choose the tokens on the host to retrieve, bool [kv_heads, n]."""
        old = self.store.on_host(layer)
        at = np.flatnonzero(old[0])  # all heads offload the same tokens
        budget = int(np.ceil(ratio * len(at)))
        if budget == len(at):
            return old
        heads, columns = self.shape.kv_heads, self.columns
        q = by_kv_head(q, heads)
        n = len(at)
        keys = self.keys[layer].data[:, :n] if at[-1] == n - 1 else self.keys[layer].data[:, at]
        rows = (q @ self.bases[layer]) * np.float32(self.shape.head_size**-0.5)
        mass = np.stack([predicted(r, k) for r, k in zip(rows, keys, strict=True)])
        self.ledger.work("prediction", q.size * columns + q.shape[1] * keys.size)
        self.ledger.sort(len(at), heads)
        mask = np.zeros_like(old)
        best = np.argpartition(-mass, budget, axis=1)[:, :budget]
        np.put_along_axis(mask, at[best], True, axis=1)
        return mask


def predicted(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Predicted attention, FP32 [n]: softmax over keys k [n, d] for each query row q [R, d], summed over the rows."""
    s = q @ k.T
    mass = np.zeros(len(k), np.float32)
    step = max(1, (1 << 18) // len(k))  # rows whose scores stay in a core's cache
    for i in range(0, len(s), step):
        part = s[i : i + step]
        part -= part.max(axis=1, keepdims=True)
        np.exp(part, out=part)
        mass += (1 / part.sum(axis=1)) @ part
    return mass


def skew(rows: np.ndarray, columns: int) -> np.ndarray:
    """The columns of A with the largest sums of |q A|, [heads, d, columns], for queries `rows` [heads, rows, d]."""
    size = rows.shape[2]
    _, _, right = np.linalg.svd(rows.astype(np.float64), full_matrices=rows.shape[1] < size)
    basis = right.swapaxes(1, 2)
    weight = np.abs(rows @ basis).sum(axis=1)
    best = np.sort(np.argsort(-weight, axis=1, kind="stable")[:, :columns], axis=1)
    return np.take_along_axis(basis, best[:, None], axis=2).astype(np.float32)
