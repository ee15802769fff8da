"""Traces for figures."""

import numpy as np

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.inputs.trace import Trace


def trace(values=True, queries=60):
    """Ten frames of six tokens; keys of two kinds, queries that look for one of them."""
    rng = np.random.default_rng(1)
    kind = np.arange(60) % 2
    base = 4 * rng.standard_normal((2, 1, 2, 16))
    k = to_bf16(base[kind, 0] + 0.05 * rng.standard_normal((60, 2, 16)))[None]
    q = to_bf16(np.repeat(base[0], 2, axis=1) + 0.05 * rng.standard_normal((60, 4, 16)))[None]
    return Trace(
        layers=(3,),
        k=k,
        q=q[:, 60 - queries :],
        v=to_bf16(rng.standard_normal(k.shape)) if values else None,
        offsets=np.arange(0, 61, 6).astype(np.int32),
        stages=np.ones(10, np.uint8),
        provenance={},
    )
