"""Full attention that gathers what the matrices of coded pages are derived from."""

import numpy as np

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.full_streaming import Full, FullParams
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.policy import LayerBlock
from openvrex.golden.retrieval.key_matrices import FAR, Moments


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
