"""A small random decoder, whole, on a golden core: weights, a stream, and the same decoder in FP32 under a policy."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from golden.arithmetic.numerics import to_bf16
from golden.function_params import ReSVParams
from golden.inputs.decoder import Decoder, rotary_table
from golden.policies.blocks import Block
from golden.policies.policy_run import DecoderRun, decoder_shape
from golden.policies.resv_policy import ReSVPolicy, ReSVPolicyParams
from golden.program.core_compiler import RetrievalShape
from golden.program.layer_memory import LayerShape
from golden.program.model_host import ModelHost, Weights
from golden.retrieval.hashing import hyperplanes
from hdl.params import CoreParams, override, preset
from tb.library.random_layers import weights

SHAPE = LayerShape(width=16, heads=4, kv_heads=2, head_size=8, ffn=32, tokens=3, recent=8, entries=24)
LAYERS, VOCABULARY = 2, 94  # the last of 24 tiles is not full
SIZES = ("lxe.i_depth=512", "lxe.queue=4", "entry_bytes=32", "recent=8", "blocks=128", "clusters=12", "n_ctx=4")


@cache
def params() -> CoreParams:
    """The core on which the decoder runs."""
    return override(preset("tiny"), [*SIZES]).core


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


def host(own: Weights, p: CoreParams | None = None, end: int | None = None, blocks: int = 0, **more) -> ModelHost:
    """A golden core with the decoder. `more` are parameters of the retrieval."""
    p = p or params()
    h, k, f = p.dre.hcu, p.dre.kvmu, function(p, **more)
    retrieval = RetrievalShape(
        n_hp=h.n_hp, clusters=h.clusters, frame=h.frame, readings=p.dre.wtu.readings, centre=f.centre
    )
    return ModelHost(
        SHAPE,
        p.lxe_format(),
        retrieval,
        own,
        f,
        layout=p.dre.layout(),
        blocks=blocks or k.blocks,
        n_ctx=k.n_ctx,
        end=end,
        counts=k.counts,
    )


def parts(own: Weights, sizes: list[int], seed: int = 0) -> list[np.ndarray]:
    """Random parts of a stream, of so many tokens."""
    rng = np.random.default_rng(seed)
    return [own.embeddings[rng.integers(len(own.embeddings), size=n)] for n in sizes]


class PlainDecoder(Decoder):
    """The same decoder in FP32, as `golden.inputs.decoder` computes it."""

    heads, kv_heads, head_size, width = SHAPE.heads, SHAPE.kv_heads, SHAPE.head_size, SHAPE.width

    def __init__(self, own: Weights, n_tokens: int):
        self.layers, self.norm, self.embeddings = list(own.layers), own.norm, own.embeddings
        self.head = own.embeddings if own.head is None else own.head
        self.epsilon, self.end = np.float32(SHAPE.epsilon), 0  # `DecoderRun` wants an end; its choices are not used
        self.frequencies = tuple(own.turns)
        self.cos, self.sin = rotary_table(self.frequencies, n_tokens)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        self.last = self._rms(hidden, self.norm) @ self.head.T
        self.hidden = hidden
        return self.last


@dataclass
class PolicyRun:
    """The decoder under the policy ReSV, pass by pass, with the dot products and score codes of the core."""

    own: Weights
    resv: ReSVParams

    def __post_init__(self):
        self.decoder = PlainDecoder(self.own, 1024)
        resv = replace(self.resv, dot=params().lxe_format().dot, score_map="vpe")
        policy = ReSVPolicy(ReSVPolicyParams(resv, "none"), decoder_shape(self.decoder))
        self.run = DecoderRun(policy, SHAPE.width)

    def step(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Run a pass: hidden state and logits of its last token, and entries fetched by [layer, KV head]."""
        run = self.run
        block = Block(len(run.records), "frame", run.length, run.length + len(x))
        record = run.step(self.decoder, block, x)
        return self.decoder.hidden[-1], self.decoder.last[-1], record.fetched


def ports(h: ModelHost) -> dict[str, int]:
    """Constant inputs of the core for a host's memory and retrieval."""
    s, f = h.system, h.system.cores[0].dre.params
    bases = {"device_base": s.device_bases[0], "home_base": s.home_bases[0], "table_base": s.table_bases[0]}
    return {"th_hd": f.th_hd, "ratio": f.ratio_q16, **bases, "blocks": s.blocks}
