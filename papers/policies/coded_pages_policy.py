"""Retrieval of coded pages (`golden.retrieval.coded_pages`) as a policy."""

from math import sqrt
from pathlib import Path

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import fma
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.full_streaming import Full, FullParams
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.policy import LayerBlock, Policy
from openvrex.golden.retrieval.coded_pages import MIDDLE, STEP, CodedKeys, PageParams, resident_sum
from openvrex.golden.retrieval.key_matrices import FAR, Moments, load, plain
from openvrex.golden.retrieval.scores import scores

# Value of the number 1 of a code at gain 2^0: half a quantiser's step, in the middle of the gain's range.
ONE = STEP / 2 * MIDDLE


class CodedPages(Policy):
    """Every key has a code in device memory; a KV head fetches the pages that its queries score highest, in a budget.

    Recent tokens stay on the device, and a block attends to all of its own tokens.

    The ledger counts as index: sums, products of keys with the code matrix, squares of numbers. As prediction: products
    of queries with the query matrix, with means and with codes. It counts a sort of the candidates for each KV head.
    """

    source = "this project: docs/papers/recall.md"

    def __init__(self, params: PageParams, shape: Shape):
        super().__init__(params, shape)
        heads, size = shape.kv_heads, shape.head_size
        if params.matrices:
            matrices = load(Path(params.matrices), shape.layers, heads, params.numbers, size, shape.model)
        else:
            matrices = [plain(heads, params.numbers, size, ONE)] * shape.layers
        self.layers = [CodedKeys(params, own) for own in matrices]

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        p, s, own = self.params, self.shape, self.layers[layer]
        before = own.coded
        own.append(k.astype(BF16))
        new = (own.coded - before) * s.kv_heads
        self.ledger.work("index", new * (s.head_size + p.numbers * (s.head_size + 1)))
        self.ledger.hold("device", new * p.code_bytes + new // p.mean * 2 * s.head_size)
        self.store.offload(layer, ~own.resident())

    def select(self, step: LayerBlock) -> Selected:
        own, p, s = self.layers[step.layer], self.params, self.shape
        resident = own.resident()
        resident[step.block.start :] = True
        at = np.flatnonzero(resident)
        q = step.q.astype(BF16)
        logits = self._logits(q, to_bf16(step.k[:, at]))
        seen = np.broadcast_to(at <= step.rows[:, None, None], logits.shape)
        sums = resident_sum(logits.reshape(-1, len(at)), seen.reshape(-1, len(at))).reshape(q.shape[:2])
        chosen = own.choose(q, sums)
        rows = len(step.rows) * s.heads
        products = (p.numbers + own.means.shape[1]) * s.head_size + own.coded * p.numbers
        self.ledger.work("prediction", rows * products)
        self.ledger.sort(own.coded // p.page, s.kv_heads)
        self.store.fetch(step.layer, chosen)
        return Selected(chosen & self.store.on_device(step.layer) | self.store.readable(step.layer, step.block))

    def _logits(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Products of queries [T, heads, size] with keys [kv_heads, n, size], by attention's scale: [T, heads, n]."""
        keys = k.swapaxes(0, 1).reshape(k.shape[1], -1)
        products = scores(q, keys, self.shape.kv_heads)
        scale = to_bf16(np.full(products.shape, 1 / sqrt(self.shape.head_size)))
        return fma(products, scale, np.full(products.shape, -0.0, np.float32))


class Calibrating(Full):
    """Full attention that adds what it sees to `moments`, from which the matrices of coded pages are derived.

    mean : adjacent tokens that share a mean key · moments : of each layer; a further text adds to them
    """

    source = "this project: docs/papers/recall.md"

    def __init__(self, mean: int, moments: list[Moments], shape: Shape):
        super().__init__(FullParams(), shape)
        self.mean, self.moments = mean, moments
        self._added = [0] * shape.layers  # tokens whose keys have been added

    def select(self, step: LayerBlock) -> Selected:
        own, first = self.moments[step.layer], self._added[step.layer]
        own.add_queries(step.q[step.rows >= FAR])
        for start in range(first, step.n - self.mean + 1, self.mean):
            keys = step.k[:, start : start + self.mean].swapaxes(0, 1)
            own.add_keys(keys - to_bf16(keys.mean(axis=0)).astype(np.float32))
            self._added[step.layer] = start + self.mean
        return super().select(step)
