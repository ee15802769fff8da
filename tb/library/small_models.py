"""A small random decoder, whole, on a golden core: weights, a stream, the same decoder in FP32."""

from dataclasses import replace
from functools import cache

import numpy as np

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.function_params import ReSVParams
from openvrex.golden.inputs.decoder import Decoder, rotary_table
from openvrex.golden.program.encoder_host import EncoderHost
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.model_host import ModelHost, Weights
from openvrex.golden.program.score_stages import RetrievalShape
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.golden.retrieval.hashing import hyperplanes
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.hdl.params import CoreParams, override, preset
from openvrex.hdl.retrieval.dre import setting_members
from openvrex.tb.library import small_encoder
from openvrex.tb.library.random_layers import weights

SHAPE = LayerShape(width=16, heads=4, kv_heads=2, head_size=8, ffn=32, tokens=3, recent=8, entries=24)
LAYERS, VOCABULARY = 2, 94  # the last of 24 tiles is not full
SIZES = ("lxe.i_depth=512", "lxe.queue=4", "entry_bytes=32", "recent=8", "blocks=128", "clusters=12", "n_ctx=4")
PORTS = dict.fromkeys(setting_members(preset("tiny").core.dre), 0)  # settings of a DRE without memory

# Coded pages: what the core has besides, and their sizes.
CODES = (
    *("lxe.codes=2", "dpe.halves=true", "vpe.depth=64", "w_depth=128"),
    *("wtu.budget=true", "hcu.newest=true", "clusters=32"),
)
PAGE = PageParams(page=2, mean=4, numbers=2, budget=4, recent=8, sinks=2)


@cache
def params(*more: str) -> CoreParams:
    """The core on which the decoder runs, with more assignments."""
    return override(preset("tiny"), [*SIZES, *more]).core


def function(p: CoreParams, **more) -> ReSVParams:
    """The retrieval: clusters of several tokens, of which most rows choose some."""
    return replace(p.dre.function(), **{"sinks": 0, "th_hd": 4, "ratio_q16": 32768} | more)


def model(seed: int, tied: bool = True) -> Weights:
    """Random weights, rounded to BF16 so that FP32 and the core compute with the same ones."""
    rng, s = np.random.default_rng(seed), SHAPE
    layers = [{k: _rounded(x) for k, x in weights(s, rng).items()} for _ in range(LAYERS)]
    embeddings, head = (_rounded(rng.normal(size=(VOCABULARY, s.width))) for _ in range(2))
    f = params().dre.function()
    planes = np.tile(hyperplanes(f.n_hp, s.head_size, f.hash_seed), (1, s.kv_heads))
    norm = _rounded(1 + rng.normal(size=s.width) / 8)
    turns = 1e4 ** -(np.arange(0, s.head_size, 2) / s.head_size)
    return Weights(layers, [planes] * LAYERS, norm, embeddings, turns, None if tied else head)


def _rounded(x: np.ndarray) -> np.ndarray:
    return to_bf16(x).astype(np.float32)


def host(
    own: Weights,
    p: CoreParams | None = None,
    end: int | None = None,
    blocks: int = 0,
    vision: EncoderHost | None = None,
    streams: int = 1,
    at_once: int = 0,
    **more,
) -> ModelHost:
    """A golden core with the decoder, and with an encoder if one is given. `more` are parameters of the retrieval."""
    p = p or params()
    f, sizes = function(p, **more), p.dre.sizes(blocks)
    retrieval, how = RetrievalShape.of(sizes, f.centre), {"end": end, "vision": vision, "streams": streams}
    return ModelHost(SHAPE, p.lxe_format(), retrieval, own, f, sizes, at_once=at_once, **how)


def vision() -> EncoderHost:
    """A random encoder for pictures of 3 x 3 patches, which gives the decoder a class token and a mean."""
    shape = replace(small_encoder.SHAPE, cells=1, projector=(SHAPE.width,))
    return EncoderHost(shape, params().lxe_format(), small_encoder.model(shape, 1))


def page_model(seed: int) -> Weights:
    """`model`, with matrices of coded pages."""
    rng = np.random.default_rng(seed)
    shape = (LAYERS, 2, SHAPE.kv_heads, PAGE.numbers, SHAPE.head_size)
    matrices = [KeyMatrices(*of) for of in to_bf16(rng.standard_normal(shape) / 2)]
    return replace(model(seed), matrices=matrices)


def page_host(
    own: Weights,
    pages: PageParams = PAGE,
    more: tuple[str, ...] = (),
    streams: int = 1,
    end: int | None = None,
    at_once: int = 0,
) -> ModelHost:
    """A golden core with the decoder, which retrieves coded pages. `more` assignments to the core's parameters"""
    p = params(*CODES, *more)
    f, sizes = function(p, th_hd=1, centre=False), p.dre.sizes()
    retrieval = RetrievalShape.of(sizes, False, pages=pages)
    return ModelHost(SHAPE, p.lxe_format(), retrieval, own, f, sizes, end=end, streams=streams, at_once=at_once)


def parts(own: Weights, sizes: list[int], seed: int = 0) -> list[np.ndarray]:
    """Random parts of a stream, of so many tokens."""
    rng = np.random.default_rng(seed)
    return [own.embeddings[rng.integers(len(own.embeddings), size=n)] for n in sizes]


class PlainDecoder(Decoder):
    """The same decoder in FP32, as `golden.inputs.decoder` computes it."""

    name = ""
    heads, kv_heads, head_size, width = SHAPE.heads, SHAPE.kv_heads, SHAPE.head_size, SHAPE.width

    def __init__(self, own: Weights, n_tokens: int):
        self.layers, self.norm, self.embeddings = list(own.layers), own.norm, own.embeddings
        self.head = own.embeddings if own.head is None else own.head
        self.epsilon = np.float32(SHAPE.epsilon)
        self.frequencies = tuple(own.turns)
        self.cos, self.sin = rotary_table(self.frequencies, n_tokens)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        return self._rms(hidden, self.norm) @ self.head.T
