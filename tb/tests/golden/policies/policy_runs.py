"""Small decoders and what drives policies."""

import numpy as np
import pytest

from openvrex.golden.inputs import decoder as decoder_module
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.policies.blocks import Block
from openvrex.golden.policies.policy_run import DecoderRun
from tb.tests.golden.inputs.trace_samples import small_weights


@pytest.fixture(scope="module")
def small_decoder() -> Decoder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_module.Decoder, "_read", staticmethod(lambda: small_weights(3)))
        return Decoder(3, 128)


def rotated(x: np.ndarray, position: float, base: float) -> np.ndarray:
    """Rotary embedding of one vector by complex numbers, float64."""
    half = len(x) // 2
    z = (x[:half] + 1j * x[half:]) * np.exp(1j * position * base ** (-np.arange(half) / half))
    return np.concatenate([z.real, z.imag])


def drive(out: DecoderRun, decoder: Decoder, x: np.ndarray, sizes: list[int], stage: str = "frame") -> DecoderRun:
    for size in sizes:
        block = Block(len(out.records), stage, out.length, out.length + size)
        out.step(decoder, block, x[block.start : block.stop])
    return out


@pytest.fixture(scope="module")
def embedded(small_decoder) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((60, 24)).astype(np.float32)
