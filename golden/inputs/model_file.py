"""The user's own decoder, for `vrex answer --model`: a Hugging Face folder or a GGUF file of a Llama-style model.

`open_model` reads the constants at once; a `FileDecoder` then reads the weights of its first layers. What the core has
no program for is refused when it is read, by the name of the tensor or constant: other norms, activations and scalings
of the rotary embedding, biases, sliding windows.

==================  =================================================  ==============================================
weights             Hugging Face folder (safetensors)                  GGUF file
==================  =================================================  ==============================================
layers, packed      GPTQ, AWQ (`golden.inputs.group_weights`)          Q4_0, Q4_1; Q8_0
layers, BF16        BF16, FP16, FP32                                   all that the package `gguf` dequantises
embeddings, head    BF16, FP16, FP32                                   all that the package `gguf` dequantises
==================  =================================================  ==============================================

A core with `lxe.weights` needs all matrices of all layers in 4 bits, or all in Q8_0. It holds a head of Q8_0, Q4_0 or
Q4_1 as it is. Any other core takes all, expanded to BF16.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors

from openvrex.golden.arithmetic.packed_weights import Matrix, PackedMatrix, Packing, alike, part
from openvrex.golden.function_params import check
from openvrex.golden.inputs import video
from openvrex.golden.inputs.decoder import TYPES, ByteTokenizer, Decoder, Reader, Tokenizer, packed
from openvrex.golden.inputs.finite import check_weights
from openvrex.golden.inputs.group_weights import GroupFormat
from openvrex.golden.inputs.trace_model import frequencies
from openvrex.golden.text_files import read_text

# A layer's tensors: GGUF's name -> name in a folder.
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EMBEDDINGS, NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"
SPLITTER = [  # of a tokenizer.json whose pieces are those of `ByteTokenizer`
    {"type": "Digits", "individual_digits": True},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
]
PLAIN = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16
CHAT = "<|im_start|>"  # a vocabulary with it knows the turns of ChatML


@dataclass(frozen=True)
class Constants:
    """Constants of a decoder: sizes, epsilon of its norms, base of its rotary embedding, number of its end token."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    positions: int
    epsilon: float
    rotary_base: float
    end: int | None


class ModelFile(ABC):
    """A decoder's file or folder.

    name : of the file or folder · constants, tokenizer : of the model · start : tokens that a text begins with
    expanded : a line for each table that is not BF16 in the file: its type, and bytes there and as BF16
    """

    constants: Constants
    tokenizer: Tokenizer

    def __init__(self, path: Path):
        self.path, self.name = path, path.resolve().name
        self.expanded: dict[str, str] = {}

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """The files that make the numbers."""

    @abstractmethod
    def norm(self, layer: int | None, name: str = "") -> np.ndarray:
        """Weights of a layer's norm, or of the last one, FP32."""

    @abstractmethod
    def matrix(self, layer: int, name: str) -> Matrix:
        """A matrix of a layer, [inputs, outputs] in the original model's order: packed if LOAD expands its type."""

    @abstractmethod
    def kind(self, layer: int, name: str) -> tuple[str, str, str]:
        """A matrix's name in the file, its type, and the types of 4-bit weights that there are in such files."""

    @abstractmethod
    def tables(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Embeddings and language head, FP32 [vocabulary, width]; no head: the embeddings."""

    def packed_head(self) -> PackedMatrix | None:
        """The language head [width, vocabulary] in the 8 or 4 bits of the file; None where it is of another type."""
        return None

    def told(self, expands: bool) -> list[str]:
        """Lines on tables that memory does not hold as BF16 numbers of the file. expands : the core expands weights"""
        return list(self.expanded.values())

    def digests(self) -> dict[str, str]:
        """SHA-256 of each file, by name."""
        return {file.name: video.digest(file) for file in self.files}

    def shape(self, name: str) -> tuple[int, int]:
        """Inputs and outputs of a layer's matrix."""
        c = self.constants
        queries, entries = c.heads * c.head_size, c.kv_heads * c.head_size
        outputs = {"attn_q": queries, "attn_k": entries, "attn_v": entries, "ffn_gate": c.ffn, "ffn_up": c.ffn}
        inputs = {"attn_output": queries, "ffn_down": c.ffn}
        return inputs.get(name, c.width), outputs.get(name, c.width)

    def sized(self, w: np.ndarray, name: str, *want: int) -> np.ndarray:
        """Weights as FP32. Raises `ParamError` for another shape, `ValueError` for one that is not finite."""
        check(w.shape == want, f"{self.name}: {name}: shape", list(w.shape), f"must be {list(want)}: get the file anew")
        return check_weights(self.name, name, w.astype(np.float32))

    def note(self, name: str, kind: str, size: int, numbers: int) -> None:
        """Remember a table that becomes BF16."""
        bytes_there = f"{size:,} bytes in the file are {2 * numbers:,} bytes"
        self.expanded[name] = f"{self.name}: {name}: {kind} is expanded to BF16: {bytes_there}"


class GgufFile(ModelFile):
    """A GGUF file of the architecture `llama`, with the tokenizer `smollm`."""

    def __init__(self, path: Path):
        super().__init__(path)
        try:
            reader = Reader(str(path))
            self.fields = {name: field.contents() for name, field in reader.fields.items()}
            self.tensors = {t.name: t for t in reader.tensors}
        except (OSError, ValueError, IndexError, KeyError, TypeError) as e:
            check(False, "model", str(path), f"must be a GGUF file ({_line(e)}): get the file anew")
        kind = self.field("general.architecture")
        check(
            kind == "llama", f"{self.name}: general.architecture", kind, "must be llama, for which there are programs"
        )
        scaling = self.fields.get("llama.rope.scaling.type", "none")
        what = "must be none: no program scales the rotary embedding"
        check(scaling == "none", f"{self.name}: llama.rope.scaling.type", scaling, what)
        more = [name for name in self.tensors if name.endswith(".bias") or name.startswith("rope_freqs")]
        check(not more, f"{self.name}: tensor", more[0] if more else "", "must be absent: no program has it")
        heads = int(self.number("attention.head_count"))
        width = int(self.number("embedding_length"))
        head_size = int(self.fields.get("llama.attention.key_length", width // heads))
        turned = int(self.fields.get("llama.rope.dimension_count", head_size))
        reason = f"must be {head_size}, all numbers of a head"
        check(turned == head_size, f"{self.name}: llama.rope.dimension_count", turned, reason)
        self.constants = Constants(
            layers=int(self.number("block_count")),
            width=width,
            heads=heads,
            kv_heads=int(self.fields.get("llama.attention.head_count_kv", heads)),
            head_size=head_size,
            ffn=int(self.number("feed_forward_length")),
            positions=int(self.number("context_length")),
            epsilon=self.number("attention.layer_norm_rms_epsilon"),
            rotary_base=float(self.fields.get("llama.rope.freq_base", 1e4)),
            end=self.fields.get("tokenizer.ggml.eos_token_id"),
        )
        pre = self.fields.get("tokenizer.ggml.pre", self.fields.get("tokenizer.ggml.model"))
        reason = "must be smollm, the only tokenizer of GGUF files here: take the model's Hugging Face folder"
        check(pre == "smollm", f"{self.name}: tokenizer.ggml.pre", pre, reason)
        self.tokenizer = ByteTokenizer(self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.merges"))

    @property
    def files(self) -> list[Path]:
        return [self.path]

    def field(self, name: str) -> Any:
        """A field of the metadata. Raises `ParamError` if it is not there."""
        check(name in self.fields, f"{self.name}: {name}", None, "must be in the file: get the file anew")
        return self.fields[name]

    def number(self, name: str) -> float:
        """A number of the metadata. Raises `ParamError` unless it is finite and above 0."""
        value = float(self.field(f"llama.{name}"))
        check(0 < value < float("inf"), f"{self.name}: llama.{name}", value, "must be finite and above 0")
        return value

    def tensor(self, name: str) -> Any:
        """A tensor. Raises `ParamError` if it is not there."""
        check(name in self.tensors, f"{self.name}: {name}", None, "must be in the file: get the file anew")
        return self.tensors[name]

    def numbers(self, name: str, *want: int) -> np.ndarray:
        """A tensor in FP32."""
        tensor = self.tensor(name)
        try:
            w = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            what = "must be a type that the package gguf dequantises: quantise again"
            check(False, f"{self.name}: {name}: type", tensor.tensor_type.name, what)
        return self.sized(w, name, *want)

    def norm(self, layer: int | None, name: str = "") -> np.ndarray:
        return self.numbers(
            "output_norm.weight" if layer is None else f"blk.{layer}.{name}.weight", self.constants.width
        )

    def matrix(self, layer: int, name: str) -> Matrix:
        full, (inputs, outputs), c = f"blk.{layer}.{name}.weight", self.shape(name), self.constants
        tensor = self.tensor(full)
        own: Matrix | None
        if tensor.tensor_type in TYPES:
            own = packed(tensor)
            assert own is not None
            reason = f"must be {[inputs, outputs]}: get the file anew"
            check(own.shape == (inputs, outputs), f"{self.name}: {full}: shape", list(own.shape), reason)
        else:
            own = self.numbers(full, outputs, inputs).T
        heads = {"attn_q": c.heads, "attn_k": c.kv_heads}.get(name)
        return part(own, outputs=Decoder.turned(outputs, heads)) if heads else own

    def kind(self, layer: int, name: str) -> tuple[str, str, str]:
        full = f"blk.{layer}.{name}.weight"
        return full, self.tensor(full).tensor_type.name, "Q4_0 or Q4_1"

    def tables(self) -> tuple[np.ndarray, np.ndarray | None]:
        embeddings, head = "token_embd.weight", "output.weight"
        rows = len(self.tokenizer.tokens)
        for name in (embeddings, head):
            tensor = self.tensors.get(name)
            if tensor is not None and tensor.tensor_type not in PLAIN:
                self.note(name, tensor.tensor_type.name, tensor.data.nbytes, rows * self.constants.width)
        size = rows, self.constants.width
        return self.numbers(embeddings, *size), self.numbers(head, *size) if head in self.tensors else None

    def packed_head(self) -> PackedMatrix | None:
        return packed(self.tensor(self.head_name))

    @property
    def head_name(self) -> str:
        """The tensor that is the language head."""
        return "output.weight" if "output.weight" in self.tensors else "token_embd.weight"

    def told(self, expands: bool) -> list[str]:
        name, own = self.head_name, dict(self.expanded)
        if expands and name in own:
            tensor = self.tensor(name)
            stays = f"{self.name}: {name}: {tensor.tensor_type.name} stays in the head: {tensor.data.nbytes:,} bytes"
            own[name] = stays if self.packed_head() else f"{own[name]}, as LOAD expands Q4_0, Q4_1 and Q8_0 only"
        return list(own.values())


class ModelFolder(ModelFile):
    """A Hugging Face folder: config.json, tokenizer.json and safetensors of the model types `KINDS`."""

    KINDS = "llama", "mistral"

    def __init__(self, path: Path):
        super().__init__(path)
        self.config = config = self._json("config.json")
        for name, allowed, default in (
            ("model_type", self.KINDS, None),
            ("hidden_act", ("silu",), "silu"),
            ("rope_scaling", (None,), None),
            ("sliding_window", (None,), None),
        ):
            value = config.get(name, default)
            reason = f"must be {' or '.join(map(str, allowed))}, for which there are programs: take another model"
            check(value in allowed, f"{self.name}: config.json: {name}", value, reason)
        heads = int(self.number("num_attention_heads"))
        width = int(self.number("hidden_size"))
        ends = config.get("eos_token_id")
        rotary = config.get("rope_parameters") or {}
        kind = rotary.get("rope_type", "default")
        what = "must be default: no program scales the rotary embedding"
        check(kind == "default", f"{self.name}: config.json: rope_type", kind, what)
        self.constants = Constants(
            layers=int(self.number("num_hidden_layers")),
            width=width,
            heads=heads,
            kv_heads=int(self.number("num_key_value_heads", heads)),
            head_size=int(self.number("head_dim", width // heads)),
            ffn=int(self.number("intermediate_size")),
            positions=int(self.number("max_position_embeddings", 2048)),
            epsilon=self.number("rms_norm_eps", 1e-6),
            rotary_base=float(rotary.get("rope_theta", config.get("rope_theta", 1e4))),
            end=ends[0] if isinstance(ends, list) else ends,
        )
        own = config.get("quantization_config")
        self.format = None if own is None else GroupFormat.of(own, f"{self.name}: quantization_config")
        self.files_of = self._files()
        start = config.get("bos_token_id")
        self.tokenizer = folder_tokenizer(path, () if start is None else (start,))

    @property
    def files(self) -> list[Path]:
        named = [self.path / name for name in ("config.json", "tokenizer.json")]
        return [*named, *sorted(set(self.files_of.values()))]

    def _json(self, name: str) -> Any:
        """A JSON file of the folder. Raises `ParamError` if it is not there, or no object."""
        file, value = self.path / name, None
        check(file.is_file(), f"{self.name}: {name}", None, "must be in the folder: download it again")
        try:
            value = json.loads(read_text(file))
        except ValueError as e:
            check(False, f"{self.name}: {name}", _line(e), "must be JSON: download it again")
        check(isinstance(value, dict), f"{self.name}: {name}", type(value).__name__, "must be a JSON object")
        return value

    def _files(self) -> dict[str, Path]:
        """The file of each tensor."""
        out: dict[str, Path] = {}
        files = sorted(self.path.glob("*.safetensors"))
        check(bool(files), f"{self.name}: weights", "none", "must be *.safetensors: download the whole folder")
        for file in files:
            try:
                with safetensors.safe_open(str(file), "numpy") as opened:
                    out |= dict.fromkeys(opened.keys(), file)
            except (OSError, safetensors.SafetensorError) as e:
                check(False, f"{self.name}: {file.name}", _line(e), "must be safetensors: download it again")
        return out

    def number(self, name: str, default: float | None = None) -> float:
        """A number of config.json. Raises `ParamError` unless it is finite and above 0."""
        value = self.config.get(name)
        value = default if value is None else value
        ok = isinstance(value, int | float) and 0 < value < float("inf")
        check(ok, f"{self.name}: config.json: {name}", value, "must be a number above 0: download the folder again")
        return float(value)  # type: ignore[arg-type]

    def read(self, name: str) -> np.ndarray:
        """A tensor as it is. Raises `ParamError` if it is not there."""
        check(name in self.files_of, f"{self.name}: {name}", None, "must be in the folder: download it again")
        with safetensors.safe_open(str(self.files_of[name]), "numpy") as opened:
            return opened.get_tensor(name)

    def norm(self, layer: int | None, name: str = "") -> np.ndarray:
        full = NORM if layer is None else f"model.layers.{layer}.{NORMS[name]}"
        return self.sized(self.read(f"{full}.weight"), f"{full}.weight", self.constants.width)

    def matrix(self, layer: int, name: str) -> Matrix:
        full, (inputs, outputs) = f"model.layers.{layer}.{MATRICES[name]}", self.shape(name)
        if f"{full}.bias" in self.files_of:
            count = int((self.read(f"{full}.bias") != 0).sum())
            check(count == 0, f"{self.name}: {full}.bias", f"{count} numbers", "must be 0: no program adds a bias")
        if self.format and f"{full}.weight" not in self.files_of:
            own = {name: self.read(name) for name in self.files_of if name.startswith(f"{full}.")}
            return self.format.matrix(own, full, self.name, inputs, outputs)
        return self.sized(self.read(f"{full}.weight"), f"{full}.weight", outputs, inputs).T

    def kind(self, layer: int, name: str) -> tuple[str, str, str]:
        full = f"model.layers.{layer}.{MATRICES[name]}.weight"
        return full, str(self.read(full).dtype), "4-bit weights of GPTQ or AWQ"

    def tables(self) -> tuple[np.ndarray, np.ndarray | None]:
        out = []
        tied = self.config.get("tie_word_embeddings", False)
        for name in (EMBEDDINGS, HEAD)[: 1 if tied else 2]:
            w = self.read(f"{name}.weight")
            reason = (
                f"must have {self.constants.width} columns and a row for each of {len(self.tokenizer.tokens)} tokens"
            )
            ok = w.ndim == 2 and w.shape[1] == self.constants.width and len(w) >= len(self.tokenizer.tokens)
            check(ok, f"{self.name}: {name}.weight: shape", list(w.shape), reason)
            out.append(self.sized(w, f"{name}.weight", *w.shape))
        return out[0], out[1] if len(out) > 1 else None


class HubTokenizer(Tokenizer):
    """A tokenizer.json of any kind, through the package `tokenizers`."""

    def __init__(self, own: Any, start: tuple[int, ...]):
        super().__init__([own.id_to_token(i) for i in range(own.get_vocab_size())], start)
        self.own = own

    def encode(self, text: str) -> list[int]:
        return list(self.own.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self.own.decode(ids, skip_special_tokens=False))


def folder_tokenizer(folder: Path, start: tuple[int, ...]) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, whose texts begin with the tokens `start`.

    A byte-level BPE that splits text as SmolLM2's does needs nothing else; other kinds need the package `tokenizers`.
    Raises `ParamError` for a folder without tokenizer.json, and for one that cannot be read.
    """
    file = folder / "tokenizer.json"
    name = f"{folder.resolve().name}: tokenizer.json"
    check(file.is_file(), name, None, "must be in the folder: download it again")
    try:
        own = json.loads(read_text(file))
        model, splitter = own["model"], own["pre_tokenizer"] or {}
        if model["type"] == "BPE" and splitter.get("pretokenizers") == SPLITTER and not own.get("normalizer"):
            tokens = {**model["vocab"], **{one["content"]: one["id"] for one in own["added_tokens"]}}
            merges = [x if isinstance(x, str) else " ".join(x) for x in model["merges"]]
            return ByteTokenizer(sorted(tokens, key=tokens.__getitem__), merges, start)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        check(False, name, _line(e), "must be a tokenizer: download the folder again")
    try:
        import tokenizers
    except ImportError:
        check(False, name, model["type"], "must split text as SmolLM2's, or have the package tokenizers: run 'make hf'")
    try:
        return HubTokenizer(tokenizers.Tokenizer.from_file(str(file)), start)
    except Exception as e:  # the package raises no narrower type
        check(False, name, _line(e), "must be a tokenizer: download the folder again")
    raise AssertionError


class FileDecoder(Decoder):
    """The decoder of a user's file or folder: its first `depth` layers, in FP32, with a cache of `n_tokens`.

    Packed weights are the BF16 numbers that the core multiplies by. `held` gives them as the file has them.
    """

    def __init__(self, file: ModelFile, depth: int | None = None, n_tokens: int = 4096):
        c = file.constants
        depth = c.layers if depth is None else depth
        self.file_of, self.tokenizer, self.end, self.title = file, file.tokenizer, c.end, file.name
        self.name = ""  # no matrices of coded pages are kept for it
        self.heads, self.kv_heads, self.head_size, self.width = c.heads, c.kv_heads, c.head_size, c.width
        self.n_layers, self.positions, self.epsilon = c.layers, c.positions, np.float32(c.epsilon)
        self.norm = file.norm(None)
        self.embeddings, self.head = file.tables()
        self.norms = [{name: file.norm(i, name) for name in NORMS} for i in range(depth)]
        self.matrices = [{name: file.matrix(i, name) for name in MATRICES} for i in range(depth)]
        self.layers = [norms | _joined(own) for norms, own in zip(self.norms, map(_whole, self.matrices), strict=True)]
        self.rotary_base, self.frequencies = c.rotary_base, frequencies(c.rotary_base, c.head_size)
        self._begin(depth, n_tokens)

    def held(self, packed: bool) -> tuple[Sequence[dict[str, Matrix]], Packing | None]:
        """As `Decoder.held`. Raises `ParamError` for a matrix that the core does not expand beside the others."""
        if not packed:
            return super().held(packed)
        own: list[PackedMatrix] = []
        for i, layer in enumerate(self.matrices):
            for name, w in layer.items():
                if isinstance(w, PackedMatrix) and w.packing.bits == (own or [w])[0].packing.bits:
                    own.append(w)
                else:
                    full, kind, types = self.file_of.kind(i, name)
                    types = "Q8_0, as others" if own and own[0].packing.bits == 8 else types
                    what = f"must be {types}, which LOAD expands: take -p lxe.weights=false, for BF16 weights"
                    check(False, f"{self.title}: {full}: type", kind, what)
        c = self.file_of.constants
        all_alike = iter(alike(own, [c.width, c.ffn, c.heads // c.kv_heads * c.head_size]))
        layers = [norms | _joined({name: next(all_alike) for name in MATRICES}) for norms in self.norms]
        return layers, layers[0]["ffn_down"].packing

    def packed_head(self) -> PackedMatrix | None:
        return self.file_of.packed_head()

    def notes(self, packing: Packing | None) -> list[str]:
        """What a core holds otherwise than in BF16 or as the file: tables, other groups or rules of 4-bit weights."""
        out = self.file_of.told(packing is not None)
        kinds = {w.packing for layer in self.matrices for w in layer.values() if isinstance(w, PackedMatrix)}
        if packing and kinds != {packing}:
            had = " and ".join(sorted(f"{p.rule.name} in groups of {p.group}" for p in kinds))
            size = f"{32 + 128 * packing.numbers / packing.group:g} bytes for 64 weights"
            out.append(f"{self.title}: {had} become {packing.rule.name} in groups of {packing.group}: {size}")
        return out

    def chat(self, prompt: str, question: str) -> tuple[list[int], list[int]]:
        if CHAT in self.tokenizer.ids:
            return super().chat(prompt, question)
        encode = self.tokenizer.encode
        return [*self.tokenizer.start, *encode(prompt or "\n")], encode(f"\n{question}\n")


def open_model(path: Path) -> ModelFile:
    """The decoder of a Hugging Face folder or a GGUF file. Raises `ParamError` for one that no core runs."""
    check(path.exists(), "--model", str(path), "no such file or folder: name a GGUF file or a Hugging Face folder")
    return ModelFolder(path) if path.is_dir() else GgufFile(path)


def _whole(own: dict[str, Matrix]) -> dict[str, np.ndarray]:
    """A layer's matrices in FP32."""
    return {name: w.bf16.astype(np.float32) if isinstance(w, PackedMatrix) else w for name, w in own.items()}


def _joined(own: dict[str, Any]) -> dict[str, Any]:
    """A layer's matrices as `Decoder.layers` has them: those of the same inputs side by side."""
    beside = PackedMatrix.beside if isinstance(own["attn_q"], PackedMatrix) else lambda *some: np.hstack(some)
    return {
        "qkv": beside(own["attn_q"], own["attn_k"], own["attn_v"]),
        "attn_output": own["attn_output"],
        "gate_up": beside(own["ffn_gate"], own["ffn_up"]),
        "ffn_down": own["ffn_down"],
    }


def _line(e: Exception) -> str:
    """The first line of an exception."""
    return (str(e).splitlines() or [type(e).__name__])[0]
