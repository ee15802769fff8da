"""Retrieval by token signatures (`golden.retrieval.signatures`) as a policy: single tokens within a budget."""

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.policy import LayerBlock, Policy
from openvrex.golden.retrieval.signatures import SignatureParams, Signatures


class SignaturePolicy(Policy):
    """Every token has a signature in device memory; a KV head fetches the tokens that its queries rank highest.

    Sinks and the last `recent` tokens stay on the device, and a block attends to all of its own tokens.

    The ledger counts as index: sums, products with planes and squares of keys. As prediction: products of queries with
    planes and page means, and the additions that score a token for a row. It counts a sort of the candidates for each
    KV head.
    """

    source = "this project: docs/papers/recall.md"

    def __init__(self, params: SignatureParams, shape: Shape):
        super().__init__(params, shape)
        self.layers = [Signatures(params, shape.kv_heads, shape.head_size) for _ in range(shape.layers)]

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        p, s = self.params, self.shape
        own = self.layers[layer]
        before = own.signed
        own.append(k.astype(BF16))
        new = (own.signed - before) * s.kv_heads
        self.ledger.work("index", new * (own.n_hp + 2) * s.head_size)
        self.ledger.hold("device", new * p.bytes(s.head_size) + new // p.page * 2 * s.head_size)
        self.offload_but(layer, p.sinks, p.recent)

    def select(self, step: LayerBlock) -> Selected:
        own, s = self.layers[step.layer], self.shape
        chosen = own.choose(step.q.astype(BF16))
        candidates = int(np.count_nonzero(~own.resident()))
        products = (own.n_hp + own.means.shape[1]) * s.head_size
        self.ledger.work("prediction", len(step.rows) * s.heads * (products + candidates * own.n_hp))
        self.ledger.sort(candidates, s.kv_heads)
        self.store.fetch(step.layer, chosen)
        return Selected(chosen & self.store.on_device(step.layer) | self.store.readable(step.layer, step.block))
