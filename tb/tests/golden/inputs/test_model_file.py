"""A user's GGUF file: types of layers, embeddings and head; what becomes BF16 is told; what is refused. Tokenizers."""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.arithmetic.packed_weights import PackedMatrix, Packing, Rule
from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs import video
from openvrex.golden.inputs.decoder import MODEL, ByteTokenizer, Decoder
from openvrex.golden.inputs.model_file import MATRICES, FileDecoder, HubTokenizer, folder_tokenizer, open_model
from openvrex.golden.program.head_compiler import HeadPlan
from openvrex.golden.program.layer_memory import Tiling
from openvrex.golden.program.stage_plan import Plan
from openvrex.tb.library.decoder_model import decoder_host
from openvrex.tb.library.small_models import params
from tb.tests.golden.inputs.checkpoints import PIECES, SPECIAL, folder, tokenizer
from tb.tests.golden.inputs.trace_samples import models

WIDTH, FFN, HEADS, KV_HEADS, SIZE = 256, 256, 8, 2, 32
TOKENS = [*SPECIAL, *map(chr, PIECES), "he", "ll", "hell"]
FIELDS = {
    "block_count": 2,
    "embedding_length": WIDTH,
    "feed_forward_length": FFN,
    "context_length": 64,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
}


def stored(w: np.ndarray, kind: Type) -> np.ndarray:
    """Weights [outputs, inputs] as a file holds them; random bits for types that the package only reads."""
    if kind == Type.F32:
        return w.astype(np.float32)
    if kind not in (Type.Q6_K, Type.Q4_K):
        return gguf.quants.quantize(w.astype(np.float32), kind)
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(3).integers(0, 256, (len(w), w.shape[1] // numbers, size), dtype=np.uint8)
    for at in (slice(-2, None),) if kind == Type.Q6_K else (slice(0, 2), slice(2, 4)):  # its FP16 numbers
        blocks[..., at] = np.frombuffer(np.float16(2**-12).tobytes(), np.uint8)
    return blocks.reshape(len(w), -1)


def written(path: Path, kinds: dict[str, Type], pre: str = "smollm", arch: str = "llama", **fields: object) -> Path:
    """A GGUF file, by the package's writer; `kinds` of tensors by the end of their names, Q4_0 for other matrices."""
    rng, own = np.random.default_rng(5), gguf.GGUFWriter(path, arch)
    for name, value in (FIELDS | fields).items():
        own.add_uint32(f"{arch}.{name}", value)
    own.add_layer_norm_rms_eps(1e-5)
    own.add_rope_freq_base(1e4)
    own.add_tokenizer_model("gpt2")
    own.add_tokenizer_pre(pre)
    own.add_token_list(TOKENS)
    own.add_token_merges(["h e", "l l", "he ll"])
    own.add_eos_token_id(1)
    sizes = {"attn_q": (HEADS * SIZE, WIDTH), "attn_k": (KV_HEADS * SIZE, WIDTH), "attn_v": (KV_HEADS * SIZE, WIDTH)}
    sizes |= {"attn_output": (WIDTH, HEADS * SIZE), "ffn_gate": (FFN, WIDTH), "ffn_up": (FFN, WIDTH)}
    sizes |= {"ffn_down": (WIDTH, FFN), "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
    every = {f"blk.{i}.{name}": shape for i in range(2) for name, shape in sizes.items()}
    every |= {"token_embd": (len(TOKENS), WIDTH), "output": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    for name, shape in every.items():
        one = len(shape) == 1
        kind = next((k for end, k in kinds.items() if f".{name}".endswith(f".{end}")), Type.F32 if one else Type.Q4_0)
        w = rng.uniform(0.5, 1.5, shape) if one else rng.normal(size=shape) * shape[1] ** -0.5
        own.add_tensor(f"{name}.weight", stored(w, kind), raw_dtype=None if kind == Type.F32 else kind)
    own.write_header_to_file()
    own.write_kv_data_to_file()
    own.write_tensors_to_file()
    own.close()
    return path


def dequantised(path: Path, name: str) -> np.ndarray:
    """A tensor's numbers by the package, rounded once to BF16."""
    [tensor] = [t for t in gguf.GGUFReader(path).tensors if t.name == f"{name}.weight"]
    return to_bf16(gguf.dequantize(tensor.data, tensor.tensor_type))


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q6_K])
def test_embeddings_and_head_become_bf16(kind, tmp_path):
    """As in Q4_0 files of llama.cpp: layers stay in 4 bits, on cores that expand them a head of Q8_0, too. A line says
    what each table costs.
    """
    path = written(tmp_path / "m.gguf", {"token_embd": kind, "output": kind})
    decoder = FileDecoder(open_model(path), None, 16)
    for own, name in ((decoder.embeddings, "token_embd"), (decoder.head, "output")):
        assert (to_bf16(own) == dequantised(path, name)).all()
    held, packing = decoder.held(True)
    assert packing == Packing(Rule.SCALE)
    assert all(isinstance(held[i][name], PackedMatrix) for i in range(2) for name in ("qkv", "gate_up", "ffn_down"))
    count, each = len(TOKENS) * WIDTH, {Type.Q8_0: (32, 34), Type.Q6_K: (256, 210)}[kind]
    there = count // each[0] * each[1]
    embeddings, head = (
        f"m.gguf: {name}.weight: {kind.name} is expanded to BF16: {there:,} bytes in the file are {2 * count:,} bytes"
        for name in ("token_embd", "output")
    )
    assert decoder.notes(None) == [embeddings, head]
    own = decoder.packed_head()
    if kind == Type.Q6_K:
        assert own is None
        assert decoder.notes(packing) == [embeddings, f"{head}, as LOAD expands Q4_0, Q4_1 and Q8_0 only"]
    else:
        assert (dequantised(path, "output") == own.bf16.T).all()
        assert decoder.notes(packing) == [embeddings, f"m.gguf: output.weight: Q8_0 stays in the head: {there:,} bytes"]


class WholeHead(FileDecoder):
    """The same decoder, of whose head memory holds a copy in BF16."""

    def packed_head(self) -> None:
        return None


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0])
def test_a_head_runs_from_memory_as_it_is_in_the_file(kind, tmp_path, monkeypatch):
    """Each step leaves what it leaves with the head's copy in BF16, of a prompt and two generated tokens. Sums are cut
    alike, where they might not be.
    """

    def cut(plan: HeadPlan, *args: int) -> Tiling:
        return Plan._cut(plan, *args[:5], Packing(Rule.BYTE), *args[6:])

    monkeypatch.setattr(HeadPlan, "_cut", cut)
    file = open_model(written(tmp_path / "m.gguf", {"output": kind}))
    p = params("lxe.weights=true", f"entry_bytes={4 * SIZE}", "w_depth=256", "x_depth=256")
    decoders = [kind(file, 1, 16) for kind in (FileDecoder, WholeHead)]
    own, plain = hosts = [decoder_host(decoder, p, 8, 2) for decoder in decoders]
    assert own.head["head_weight"].size < plain.head["head_weight"].size * 0.6
    given = decoders[0].inputs([5, 9])
    heads = 0
    for steps in zip(*(one.stream([given], 2) for one in hosts), strict=True):
        for one, step in zip(hosts, steps, strict=True):
            one.run(step)
        memory, copy = (
            {r.name: r.data.tobytes() for r in one.memory.regions if r.name != "head weights"} for one in hosts
        )
        assert memory == copy, steps[0].phase
        heads += steps[0].phase == "head"
    assert heads == 2
    assert own.tokens == plain.tokens


def test_layers_are_those_of_the_package(tmp_path):
    """In the order of the original model, whose rotary pairs are halves of a head."""
    path = written(
        tmp_path / "m.gguf",
        {"1.attn_q": Type.Q4_1, "1.ffn_down": Type.Q4_1, "token_embd": Type.F32, "output": Type.F32},
    )
    decoder = FileDecoder(open_model(path), None, 16)
    held, packing = decoder.held(True)
    assert packing == Packing(Rule.MINIMUM)
    assert decoder.notes(packing) == [
        "m.gguf: MINIMUM in groups of 32 and SCALE in groups of 32 become MINIMUM in groups of 32: "
        "40 bytes for 64 weights"
    ]
    for i in range(2):
        p = f"blk.{i}."
        q, k = dequantised(path, f"{p}attn_q"), dequantised(path, f"{p}attn_k")
        q, k = (
            np.concatenate([x.reshape(n, SIZE // 2, 2, WIDTH)[:, :, j] for j in (0, 1)], axis=1).reshape(x.shape)
            for x, n in ((q, HEADS), (k, KV_HEADS))
        )
        want = {
            "qkv": [q, k, dequantised(path, f"{p}attn_v")],
            "attn_output": [dequantised(path, f"{p}attn_output")],
            "gate_up": [dequantised(path, f"{p}ffn_gate"), dequantised(path, f"{p}ffn_up")],
            "ffn_down": [dequantised(path, f"{p}ffn_down")],
        }
        for name, parts in want.items():
            assert (held[i][name].bf16 == np.vstack(parts).T).all()
            assert (to_bf16(decoder.layers[i][name]) == np.vstack(parts).T).all()
    x = decoder.embed("hello")
    assert decoder.logits(decoder(x)).shape == (len(x), len(TOKENS))


class WholeLayers(FileDecoder):
    """The same decoder, of whose layers memory holds a copy in BF16."""

    def held(self, packed: bool) -> tuple:
        return super().held(False)


def test_layers_of_8_bits_run_from_memory_as_they_are_in_the_file(tmp_path, monkeypatch):
    """As in Q8_0 files of llama.cpp. Each step leaves what it leaves with a copy in BF16, whose sums are cut alike."""
    own_cut = Plan._cut

    def cut(plan, outputs, length, segment, gates=1, given=0, packing=None, tokens=0) -> Tiling:
        return own_cut(plan, outputs, length, segment, gates, given, Packing(Rule.BYTE), tokens)

    monkeypatch.setattr(Plan, "_cut", cut)
    path = written(tmp_path / "m.gguf", dict.fromkeys(MATRICES, Type.Q8_0))
    file = open_model(path)
    p = params("lxe.weights=true", f"entry_bytes={4 * SIZE}", "w_depth=256", "x_depth=256")
    decoders = [kind(file, 1, 16) for kind in (FileDecoder, WholeLayers)]
    layers, packing = decoders[0].held(True)
    assert packing == Packing(Rule.BYTE)
    assert (layers[0]["ffn_down"].bf16 == dequantised(path, "blk.0.ffn_down").T).all()
    hosts = [decoder_host(decoder, p, 8, 2) for decoder in decoders]
    sizes = [one.system.plans[0][0]["down_weight"].size for one in hosts]
    assert sizes[0] == sizes[1] * 17 // 32
    phases = set()
    for steps in zip(*(one.stream([decoders[0].inputs([5, 9])], 2) for one in hosts), strict=True):
        for one, step in zip(hosts, steps, strict=True):
            one.run(step)
        memory, copy = (
            {r.name: r.data.tobytes() for r in one.memory.regions if "weights 0" not in r.name} for one in hosts
        )
        assert memory == copy, steps[0].phase
        phases.add(steps[0].phase)
    assert {"attention", "ffn", "down", "head"} <= phases
    assert hosts[0].tokens == hosts[1].tokens
    path = written(tmp_path / "n.gguf", dict.fromkeys(("attn_q",), Type.Q8_0))
    with pytest.raises(ParamError, match=r"attn_k.weight: type='Q4_0': must be Q8_0, as others, which LOAD expands"):
        FileDecoder(open_model(path), 1, 4).held(True)


@pytest.mark.parametrize("kind", [Type.Q6_K, Type.Q4_K, Type.Q8_0])
def test_a_layer_of_another_type_needs_a_core_with_bf16_weights(kind, tmp_path):
    """As Q6_K of `ffn_down` in Q4_K_M files: a core that expands 4 bits refuses it, any other takes BF16."""
    path = written(tmp_path / "m.gguf", {"1.ffn_down": kind})
    decoder = FileDecoder(open_model(path), None, 4)
    layers, packing = decoder.held(False)
    assert packing is None
    assert (to_bf16(layers[1]["ffn_down"]) == dequantised(path, "blk.1.ffn_down").T).all()
    line = f"m.gguf: blk.1.ffn_down.weight: type={kind.name!r}: must be Q4_0 or Q4_1, which LOAD expands: "
    with pytest.raises(ParamError) as e:
        decoder.held(True)
    assert str(e.value) == f"{line}take -p lxe.weights=false, for BF16 weights"
    assert FileDecoder(open_model(path), 1, 4).held(True)[1] == Packing(Rule.SCALE), "the first layer has only Q4_0"


@models
def test_smollm2_s_own_file():
    """Read as a user's file it is the built-in decoder: constants, tokens, weights, as held in 4 bits."""
    own, built_in = FileDecoder(open_model(video.package_file(*MODEL)), 2, 8), Decoder(2, 8)
    for name in ("heads", "kv_heads", "head_size", "width", "n_layers", "positions", "epsilon", "frequencies", "end"):
        assert getattr(own, name) == getattr(built_in, name), name
    assert own.tokenizer.tokens == built_in.tokenizer.tokens
    assert (own.embeddings == built_in.embeddings).all()
    (held, packing), (want, same) = own.held(True), built_in.held(True)
    assert packing == same == Packing(Rule.MINIMUM)
    for i in range(2):
        for name in ("qkv", "attn_output", "gate_up", "ffn_down"):
            assert (held[i][name].q == want[i][name].q).all()
            assert (held[i][name].scales == want[i][name].scales).all()
        for name in ("attn_norm", "ffn_norm"):
            assert (held[i][name] == want[i][name]).all()
    [note], [plain] = own.notes(packing), own.notes(None)
    assert "token_embd.weight: Q8_0 stays in the head: 30,081,024 bytes" in note
    assert "token_embd.weight: Q8_0 is expanded to BF16: 30,081,024 bytes in the file are 56,623,104 bytes" in plain
    assert (to_bf16(own.embeddings) == own.packed_head().bf16.T).all()
    assert (own.packed_head().q == built_in.packed_head().q).all()


BAD = {
    "a tokenizer": ({"pre": "llama-bpe"}, "m.gguf: tokenizer.ggml.pre='llama-bpe': must be smollm"),
    "another architecture": ({"arch": "gemma3"}, "m.gguf: general.architecture='gemma3': must be llama"),
    "heads in part": ({"rope.dimension_count": 16}, "m.gguf: llama.rope.dimension_count=16: must be 32"),
    "no layers": ({"block_count": 0}, "m.gguf: llama.block_count=0.0: must be finite and above 0"),
    "other sizes": (
        {"feed_forward_length": 512},
        "m.gguf: blk.0.ffn_gate.weight: shape=[256, 256]: must be [256, 512]",
    ),
    "more layers": ({"block_count": 3}, "m.gguf: blk.2.attn_norm.weight=None: must be in the file"),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_refused(name, tmp_path):
    change, line = BAD[name]
    path = written(tmp_path / "m.gguf", {}, **change)
    with pytest.raises(ParamError) as e:
        FileDecoder(open_model(path), None, 4)
    assert str(e.value).startswith(line)
    assert len(str(e.value).splitlines()) == 1


def test_what_is_no_model(tmp_path):
    (tmp_path / "text.gguf").write_text("text" * 100)
    (tmp_path / "empty").mkdir()
    for name, line in {
        "nowhere": "--model='.*nowhere': no such file or folder: name a GGUF file or a Hugging Face folder",
        "text.gguf": "model='.*text.gguf': must be a GGUF file",
        "empty": "empty: config.json=None: must be in the folder",
    }.items():
        with pytest.raises(ParamError, match=line):
            open_model(tmp_path / name)
    folder(tmp_path / "m", "awq")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ParamError, match=r"m: model.safetensors=.*: must be safetensors: download it again"):
        open_model(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text("{")
    with pytest.raises(ParamError, match=r"m: config.json=.*: must be JSON: download it again"):
        open_model(tmp_path / "m")


def test_a_folder_s_tokenizer(tmp_path):
    """One that splits text as SmolLM2's is read here. Others, and those that are damaged, are told in a line."""
    file, own = tmp_path / "tokenizer.json", tokenizer()
    file.write_text(json.dumps(own))
    read = folder_tokenizer(tmp_path, (7,))
    assert isinstance(read, ByteTokenizer)
    assert [read.tokens[i] for i in read.encode("<|im_start|>hello w12")] == [
        "<|im_start|>",
        "hell",
        "o",
        "\u0120w",
        "1",
        "2",
    ]
    assert (read.decode(read.encode("hello wörld")), read.start) == ("hello wörld", (7,))
    own["model"]["merges"] = [one.split() for one in own["model"]["merges"]]  # as newer files have them
    file.write_text(json.dumps(own))
    assert folder_tokenizer(tmp_path, ()).encode("hello w12") == read.encode("hello w12")
    own["model"] = "none"
    file.write_text(json.dumps(own))
    with pytest.raises(ParamError, match="tokenizer.json=.*: must be a tokenizer: download the folder again"):
        folder_tokenizer(tmp_path, ())
    file.unlink()
    with pytest.raises(ParamError, match="tokenizer.json=None: must be in the folder"):
        folder_tokenizer(tmp_path, ())


SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def test_another_tokenizer_needs_a_package(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer() | {"pre_tokenizer": SPLIT}))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    line = "tokenizer.json='BPE': must split text as SmolLM2's, or have the package tokenizers: run 'make hf'"
    with pytest.raises(ParamError, match=line):
        folder_tokenizer(tmp_path, ())


def test_tokens_are_those_of_the_package(tmp_path):
    """What is read here is read alike; digits are pieces of their own only where the file says so."""
    package = pytest.importorskip("tokenizers", reason="needs the extra hf: run 'make hf'")
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(tokenizer()))
    own, other = folder_tokenizer(tmp_path, ()), HubTokenizer(package.Tokenizer.from_file(str(file)), ())
    for text in ("<|im_start|>user\nhello world 12", "  he  ll'll hello\n\n x", "wörld é 漢字"):
        assert own.encode(text) == other.encode(text)
        assert own.decode(own.encode(text)) == other.decode(other.encode(text)) == text
    assert own.tokens == other.tokens
    file.write_text(json.dumps(tokenizer() | {"pre_tokenizer": SPLIT}))
    read = folder_tokenizer(tmp_path, (3,))
    assert isinstance(read, HubTokenizer)
    assert (read.decode(read.encode("hello <|im_end|>")), read.start) == ("hello <|im_end|>", (3,))


def test_texts_around_frames(tmp_path):
    """A turn of ChatML where the vocabulary has it, else the start token, the prompt, and the question on a line."""
    folder(tmp_path, "awq")
    decoder = FileDecoder(open_model(tmp_path), 1, 4)
    before, behind = decoder.around("A", "B")
    assert (before == decoder.embed("<|im_start|>user\nA")).all()
    assert (behind == decoder.embed("\nB<|im_end|>\n<|im_start|>assistant\n")).all()
    decoder.tokenizer.ids.pop("<|im_start|>")
    before, behind = decoder.around("A", "B")
    assert (before == decoder.inputs([0, *decoder.tokenizer.encode("A")])).all()
    assert (behind == decoder.embed("\nB\n")).all()
