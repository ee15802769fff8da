"""What is computed: models by shape, sessions, and how much of the cache retrieval selects."""

from dataclasses import dataclass

import numpy as np

from sim.system.selection import RATIOS, TEXT


@dataclass(frozen=True)
class Decoder:
    """A Llama decoder by shape, BF16. Default: Llama-3 8B (Grattafiori et al., The Llama 3 Herd of Models, table 3)."""

    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head: int = 128
    hidden: int = 14336
    vocab: int = 128256

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a layer's products."""
        kv = self.kv_heads * self.head
        return {
            "qkv": (self.width, self.heads * self.head + 2 * kv),
            "out": (self.heads * self.head, self.width),
            "gate_up": (self.width, 2 * self.hidden),
            "down": (self.hidden, self.width),
        }

    @property
    def layer_weights(self) -> int:
        """Weights of a layer."""
        return sum(k * n for k, n in self.matrices.values())

    @property
    def pass_weights(self) -> int:
        """Weights read in one pass: all layers and the output projection (7.5e9: 15.0 GB)."""
        return self.layers * self.layer_weights + self.width * self.vocab

    @property
    def entry_bytes(self) -> int:
        """K and V of one token in one layer (4,096)."""
        return 2 * self.kv_heads * self.head * 2

    @property
    def token_bytes(self) -> int:
        """K and V of one token in all layers (131,072)."""
        return self.layers * self.entry_bytes

    def attention_macs(self, rows: int, tokens: float) -> float:
        """Of one layer: scores and weighted values of `rows` query tokens over `tokens`."""
        return 2 * rows * self.heads * self.head * tokens


@dataclass(frozen=True)
class Vision:
    """An image encoder by shape. Default: SigLIP-ViT-L at 384 pixels (Zhai et al.): 24 x 24 patches of 16 pixels."""

    layers: int = 24
    width: int = 1024
    heads: int = 16
    hidden: int = 4096
    tokens: int = 576

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a layer's products."""
        w, h = self.width, self.hidden
        return {"qkv": (w, 3 * w), "out": (w, w), "up": (w, h), "down": (h, w)}

    @property
    def weights(self) -> int:
        """Weights of all layers."""
        return self.layers * sum(k * n for k, n in self.matrices.values())

    @property
    def macs(self) -> int:
        """Of one frame."""
        return self.tokens * self.weights + self.layers * 2 * self.tokens**2 * self.width


@dataclass(frozen=True)
class Session:
    """COIN's average session (V-Rex III-A) in VideoLLM-online's setting: 10 tokens a frame (CLS and 3 x 3 pooled)."""

    frames: int = 26
    question: int = 25
    answer: int = 39
    frame_tokens: int = 10


@dataclass(frozen=True)
class Selection:
    """Share of a layer's offloaded tokens that a query block selects, by layer and KV head.

    frame, text : [layers, kv_heads] of a frame's (or question's) tokens and of a generated token
    cluster     : tokens of a cluster, on average
    """

    name: str
    frame: np.ndarray
    text: np.ndarray
    cluster: int = 32

    def layers(self, stage: str) -> np.ndarray:
        """[layers] : mean over the heads."""
        return (self.frame if stage == "frame" else self.text).mean(1)


def constant(name: str, frame: float, text: float, model: Decoder) -> Selection:
    """The same share in all layers and heads."""
    shape = (model.layers, model.kv_heads)
    return Selection(name, np.full(shape, frame), np.full(shape, text))


# V-Rex Table II, averages: retrieval ratio in frames and in generation.
TABLE_II = {"infinigen": (1.0, 0.068), "infinigenp": (0.508, 0.068), "rekv": (0.584, 0.312), "resv": (0.327, 0.025)}


def table_ii(policy: str, model: Decoder) -> Selection:
    """The ratios of V-Rex's Table II; everything for a policy that is not in it."""
    return constant("shares of Table II", *TABLE_II.get(policy, (1.0, 1.0)), model)


def measured(model: Decoder, name: str, ratios: np.ndarray, text: float) -> Selection:
    """Shares of a decoder of another shape, [layers, kv_heads], stretched to the model's; `text`: mean in generation.

    A layer takes the share at the same depth, head h that of head h mod the other's heads.
    """
    known = np.asarray(ratios, float)
    depth = np.linspace(0, len(known) - 1, model.layers)
    columns = [np.interp(depth, np.arange(len(known)), known[:, h % known.shape[1]]) for h in range(model.kv_heads)]
    frame = np.stack(columns, 1)
    return Selection(f"shares of {name}", frame, np.minimum(1.0, frame * (text / max(frame.mean(), 1e-9))))


def traced(model: Decoder, stream: str = "world") -> Selection:
    """Shares of `sim.system.selection`, from a real stream."""
    return measured(model, f"trace {stream}", np.array(RATIOS[stream]), TEXT[stream])
