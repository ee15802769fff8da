"""The workloads: models by shape, sessions, and the share of the cache that retrieval selects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Packing, Rule
from openvrex.golden.function_params import check
from openvrex.golden.program.encoder_compiler import EncoderShape
from openvrex.sim.system.selection import POLICY, Record, records

CLUSTER_TOKENS = 32  # of a cluster, V-Rex VI-D


@dataclass(frozen=True)
class Decoder:
    """Shape of a Llama decoder.

    packing : of the weights of its layers, if these have 4 bits
    head_packing : of the vocabulary's, if these have 8 or 4 bits; embeddings are BF16

    The defaults are Llama-3 8B (Grattafiori et al., The Llama 3 Herd of Models, table 3), in BF16.
    """

    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head: int = 128
    hidden: int = 14336
    vocab: int = 128256
    packing: Packing | None = None
    head_packing: Packing | None = None

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes of a layer by the names of `golden.program.layer_memory.LayerShape`, and its weights' packing."""
        return {
            "packing": self.packing,
            "width": self.width,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_size": self.head,
            "ffn": self.hidden,
        }

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of each product of a layer, by name."""
        kv = self.kv_heads * self.head
        return {
            "qkv": (self.width, self.heads * self.head + 2 * kv),
            "out": (self.heads * self.head, self.width),
            "gate_up": (self.width, 2 * self.hidden),
            "down": (self.hidden, self.width),
        }

    @property
    def layer_weights(self) -> int:
        """Number of weights of a layer."""
        return sum(k * n for k, n in self.matrices.values())

    @property
    def layer_bytes(self) -> int:
        """Bytes of a layer's weights."""
        return _bytes(self.layer_weights, self.packing)

    @property
    def head_bytes(self) -> int:
        """Bytes of the vocabulary's weights."""
        return _bytes(self.width * self.vocab, self.head_packing)

    @property
    def pass_bytes(self) -> int:
        """Bytes of the weights read in one pass."""
        return self.layers * self.layer_bytes + self.head_bytes

    @property
    def pass_weights(self) -> int:
        """Number of weights read in one pass: all layers and the output projection (default 7.5e9, that is 15.0 GB)."""
        return self.layers * self.layer_weights + self.width * self.vocab

    @property
    def entry_bytes(self) -> int:
        """Bytes of K and V of one token in one layer (default 4,096)."""
        return 2 * self.kv_heads * self.head * 2

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token in all layers (default 131,072)."""
        return self.layers * self.entry_bytes

    def attention_macs(self, rows: int, tokens: float) -> float:
        """Multiplications of one layer for scores and weighted values of `rows` query tokens over `tokens` tokens."""
        return 2 * rows * self.heads * self.head * tokens


def _bytes(weights: int, packing: Packing | None) -> int:
    """Bytes of so many weights."""
    return int(weights * (Fraction(2 * packing.words, packing.made) if packing else 2))


WEIGHTS = {  # how files hold the weights of a layer: of GGUF, and GPTQ without and with zero points
    "bf16": None,
    "q4_0": Packing(Rule.SCALE),
    "q4_1": Packing(Rule.MINIMUM),
    "gptq": Packing(Rule.SCALE, 128),
    "gptq-zeros": Packing(Rule.ZERO, 128),
    "q8_0": Packing(Rule.BYTE),
}
HEADS = {"bf16": None, "q8_0": Packing(Rule.BYTE), "q4_0": Packing(Rule.SCALE)}  # and those of its vocabulary
# Decoders by the names of `--model`; SmolLM2-135M is the one that runs on the RTL (`golden.inputs.decoder`).
MODELS = {"llama3-8b": Decoder(), "smollm2-135m": Decoder(30, 576, 9, 3, 64, 1536, 49152)}


@dataclass(frozen=True)
class Vision:
    """Shape of an image encoder, and of the projector behind it: two products with a GELU between them.

    The defaults are SigLIP-ViT-L at 384 pixels (Zhai et al.), with 24 x 24 patches of 16 pixels in three colours. The
    projector is that of VideoLLM-online (Chen et al., CVPR 2024, section 3.2), as wide as the decoder.
    """

    layers: int = 24
    width: int = 1024
    heads: int = 16
    hidden: int = 4096
    tokens: int = 576
    patch: int = 768  # numbers of a patch

    def shape(self, seen: int, width: int) -> EncoderShape:
        """Sizes for the compiler, with a projector to a decoder of some width, which sees so many tokens of a frame.

        The tokens are patches of a square. The decoder sees a grid of cells, `isqrt(seen)` on a side or as many as
        there are patches; a class token besides is left out.
        """
        side = isqrt(self.tokens)
        cells = min(isqrt(seen), side)
        check(side * side == self.tokens, "tokens", self.tokens, "must be a square, of patches")
        sizes = {"layers": self.layers, "width": self.width, "heads": self.heads, "ffn": self.hidden}
        return EncoderShape(
            **sizes, side=side, patch=self.patch, extra=0, shown=0, cells=cells, projector=(width, width)
        )

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of each product of a layer, by name."""
        w, h = self.width, self.hidden
        return {"qkv": (w, 3 * w), "out": (w, w), "up": (w, h), "down": (h, w)}

    @property
    def weights(self) -> int:
        """Number of weights of all layers."""
        return self.layers * sum(k * n for k, n in self.matrices.values())

    def ends(self, width: int) -> int:
        """Number of weights before the layers and behind them, with a projector to a decoder of some width."""
        return self.patch * self.width + self.width * width + width * width

    @property
    def macs(self) -> int:
        """Multiplications for one frame."""
        return self.tokens * self.weights + self.layers * 2 * self.tokens**2 * self.width


@dataclass(frozen=True)
class Session:
    """Length of a session. The defaults are COIN's average (V-Rex III-A) in VideoLLM-online's setting.

    A frame then has 10 tokens: CLS and 3 x 3 pooled patches. Question and answer count in tokens.
    """

    frames: int = 26
    question: int = 25
    answer: int = 39
    frame_tokens: int = 10


@dataclass(frozen=True)
class Selection:
    """Share of the offloaded tokens that a query block selects, by layer and KV head.

    A table of several heads fetches every cluster that one of its heads selects, so its share is that of the union.

    name    : the function and the stream, for titles
    frame   : shares for the tokens of a frame or a question, [layers, kv_heads]
    text    : shares for a generated token, [layers, kv_heads]
    unions  : for both, shares of the union of 1, 2, ... heads, [2, layers, heads]; None if all heads select the same
    cluster : mean number of tokens in a cluster
    sizes   : for both, typical tokens at home of a fetched cluster; all of the mean size if not given
    """

    name: str
    frame: np.ndarray
    text: np.ndarray
    unions: np.ndarray | None = None
    cluster: float = CLUSTER_TOKENS
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def fetched(self, stage: str, crowded: float = 1.0) -> tuple[int, ...]:
        """Typical tokens of a fetched cluster, each as likely as the others.

        stage : "frame" or "text" · crowded : tokens of a cluster over `cluster`, above 1 in a full table
        """
        return tuple(max(1, round(n * crowded)) for n in self.sizes.get(stage, (self.cluster,)))

    def tables(self, stage: str, heads: int) -> np.ndarray:
        """Shares that the tables of a layer fetch, [layers, kv_heads / heads].

        stage : "frame" or "text"
        heads : KV heads of a table; of more heads than the union was measured for, it is a lower bound
        """
        own = self.frame if stage == "frame" else self.text
        if heads == 1 or self.unions is None:
            return own[:, ::heads]
        known = self.unions[int(stage != "frame")]
        return np.repeat(known[:, min(heads, known.shape[1]) - 1, None], own.shape[1] // heads, axis=1)

    def layers(self, stage: str, heads: int = 1) -> np.ndarray:
        """Mean shares over the tables, [layers], with the arguments of `tables`."""
        return self.tables(stage, heads).mean(1)


def constant(name: str, frame: float, text: float, model: Decoder, **of_clusters: Any) -> Selection:
    """A selection with the same share in all layers and tables, whatever heads the tables have.

    of_clusters : `cluster` and `sizes` of the `Selection`
    """
    shape = (model.layers, model.kv_heads)
    return Selection(name, np.full(shape, frame), np.full(shape, text), **of_clusters)


# V-Rex Table II, averages: retrieval ratios in frames and in generation.
TABLE_II = {"infinigen": (1.0, 0.068), "infinigenp": (0.508, 0.068), "rekv": (0.584, 0.312), "resv": (0.327, 0.025)}


def table_ii(policy: str, model: Decoder) -> Selection:
    """The selection of V-Rex Table II; a policy that it does not list selects everything."""
    name = f"{policy} with the shares of Table II, {CLUSTER_TOKENS} tokens a cluster"
    return constant(name, *TABLE_II.get(policy, (1.0, 1.0)), model)


def measured(model: Decoder, record: Record) -> Selection:
    """Stretches a record of a decoder of another shape to `model`.

    A layer takes the share at the same relative depth. Head h takes that of head h mod the other decoder's heads. In
    generation, layers and heads differ as they do in frames.
    """
    ratios, text = np.array(record.frame, float), np.array(record.text, float)
    depth = np.linspace(0, len(ratios) - 1, model.layers)

    def stretched(known: np.ndarray) -> np.ndarray:
        columns = [np.interp(depth, np.arange(len(known)), column) for column in known.T]
        return np.stack(columns, 1)

    frame = stretched(ratios)[:, np.arange(model.kv_heads) % ratios.shape[1]]
    wide = stretched(np.array(record.unions, float))
    means = np.maximum(wide.mean(0), 1e-9)
    own = np.minimum(1.0, frame * (text[0] / max(frame.mean(), 1e-9)))
    unions = np.stack([wide, np.minimum(1.0, wide * (text / means))])
    return Selection(record.name, frame, own, unions, record.cluster, record.sizes)


def traced(model: Decoder, stream: str = "world", policy: str = POLICY) -> Selection:
    """What a policy fetches of the recorded stream `stream`, stretched to `model`."""
    return measured(model, records()[stream][policy])
