"""Writes small random Llama-style checkpoints in GPTQ and AWQ, number by number as the formats define them."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
QUANTIZATION = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
}
QUANTIZATION["gptq_v2"] = QUANTIZATION["gptq"] | {"checkpoint_format": "gptq_v2"}
SPECIAL = ["<|im_start|>", "<|im_end|>"]
PIECES = [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]  # GPT-2's letters of bytes


def word(numbers: list[int]) -> int:
    """Eight numbers of 4 bits, the first one in the lowest bits, as a signed word of 32 bits."""
    assert len(numbers) == 8
    assert all(0 <= n < 16 for n in numbers)
    total = sum(n << 4 * i for i, n in enumerate(numbers))
    return total - (1 << 32) if total >= 1 << 31 else total


def gptq(q: np.ndarray, z: np.ndarray, d: np.ndarray, group: int, v2: bool = False) -> dict[str, np.ndarray]:
    """Tensors of q [inputs, outputs], z and d [groups, outputs]: a word has q of 8 inputs, or z of 8 outputs."""
    inputs, outputs = q.shape
    rows = [[word([int(q[8 * r + i, n]) for i in range(8)]) for n in range(outputs)] for r in range(inputs // 8)]
    stored = z if v2 else z - 1
    zeros = [[word([int(x) for x in row[8 * c : 8 * c + 8]]) for c in range(outputs // 8)] for row in stored]
    order = np.array([i // group for i in range(inputs)], np.int32)
    return {"qweight": np.array(rows, np.int32), "qzeros": np.array(zeros, np.int32), "scales": d, "g_idx": order}


def awq(q: np.ndarray, z: np.ndarray, d: np.ndarray) -> dict[str, np.ndarray]:
    """The same in AWQ: words go along the outputs, first those with even numbers."""

    def words(x: np.ndarray) -> np.ndarray:
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        made = [[word([int(row[8 * c + k]) for k in order]) for c in range(len(row) // 8)] for row in x]
        return np.array(made, np.int32)

    return {"qweight": words(q), "qzeros": words(z), "scales": d}


def exact(q: np.ndarray, z: np.ndarray, d: np.ndarray, group: int) -> np.ndarray:
    """d (q - z), rounded once to 8 bits, ties to even: FP64 [inputs, outputs]."""
    of = np.arange(len(q)) // group
    whole = d.astype(np.float64)[of] * (q.astype(np.float64) - z.astype(np.float64)[of])  # 16 bits: exact in FP64
    fraction, exponent = np.frexp(whole)
    return np.ldexp(np.rint(fraction * 256) / 256, exponent)


def numbers(
    rng: np.random.Generator, inputs: int, outputs: int, group: int, middle: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random q, z and d of a matrix; all z are 8 if `middle`."""
    groups = -(-inputs // group)
    z = np.full((groups, outputs), 8) if middle else rng.integers(1, 16, (groups, outputs))
    d = (rng.uniform(0.5, 1.5, (groups, outputs)) / 8 / inputs**0.5).astype(np.float16)
    return rng.integers(0, 16, (inputs, outputs)), z, d


def tokenizer() -> dict:
    """A tokenizer.json of byte-level BPE that splits text as SmolLM2's does."""
    tokens = [*SPECIAL, *map(chr, PIECES), "he", "ll", "hell", "\u0120w"]
    pieces = [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "normalizer": None,
        "added_tokens": [{"id": i, "content": token, "special": True} | plain for i, token in enumerate(SPECIAL)],
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pieces},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": ["h e", "l l", "he ll", "\u0120 w"],
        },
    }


def folder(path: Path, method: str, group: int = 128, middle: bool = False, **changes: object) -> dict[str, np.ndarray]:
    """Write a checkpoint; `changes` are of config.json. Returns the exact weights of each matrix, [inputs, outputs]."""
    rng, config = np.random.default_rng(7), CONFIG | changes
    width, ffn, size = (config[name] for name in ("hidden_size", "intermediate_size", "head_dim"))
    queries, entries = (config[name] * size for name in ("num_attention_heads", "num_key_value_heads"))
    own = tokenizer()
    rows = len(own["model"]["vocab"])
    tensors = {name: rng.normal(size=(rows, width)) / 8 for name in ("model.embed_tokens.weight", "lm_head.weight")}
    tensors["model.norm.weight"], want = rng.uniform(0.5, 1.5, width), {}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = rng.uniform(0.5, 1.5, width)
        for name, inputs, outputs in (
            ("self_attn.q_proj", width, queries),
            ("self_attn.k_proj", width, entries),
            ("self_attn.v_proj", width, entries),
            ("self_attn.o_proj", queries, width),
            ("mlp.gate_proj", width, ffn),
            ("mlp.up_proj", width, ffn),
            ("mlp.down_proj", ffn, width),
        ):
            q, z, d = numbers(rng, inputs, outputs, group, middle)
            made = awq(q, z, d) if method == "awq" else gptq(q, z, d, group, method == "gptq_v2")
            tensors |= {f"{layer}.{name}.{part}": x for part, x in made.items()}
            want[f"{layer}.{name}"] = exact(q, z, d, group)
    path.mkdir(parents=True, exist_ok=True)
    kinds = {"f": ml_dtypes.bfloat16}  # whatever is no part of 4-bit weights
    saved = {name: x.astype(kinds[x.dtype.kind]) if x.dtype == np.float64 else x for name, x in tensors.items()}
    save_file(saved, path / "model.safetensors")
    config |= {"quantization_config": QUANTIZATION[method] | {"group_size": group}}
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(json.dumps(own))
    return want
