"""Traces of Hugging Face folders: small random models made on the spot, against what their own one pass gives."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs import decoder, hugging_face, trace_recorder, video, vision
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.inputs.trace_model import frequencies
from openvrex.golden.policies.light_attention import turn_keys
from openvrex.golden.policies.policy_run import TraceRun, shape_of
from openvrex.golden.policies.policy_run import blocks as trace_blocks
from openvrex.papers.policies.registry import POLICIES
from openvrex.scripts.main import app
from tb.tests.golden.inputs.trace_samples import FIXTURES, FakeEncoder, models, small_weights

torch = pytest.importorskip("torch", reason="needs the extra hf: run 'make hf'")
transformers = pytest.importorskip("transformers", reason="needs the extra hf: run 'make hf'")

BF16 = ml_dtypes.bfloat16
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}{% if part['type'] == 'image' %}<|vision_start|><|image|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image|>", "<|video|>"]
ID = {token: i for i, token in enumerate(SPECIAL)}
VOCABULARY = len(SPECIAL) + 256
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
VISION = {"patch_size": 14, "num_heads": 2, "depth": 2, "hidden_act": "gelu"}
QWEN_EYES = {  # vision_config
    "qwen2_vl": VISION | {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2},
    "qwen2_5_vl": VISION
    | {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32, "fullatt_block_indexes": [1]},
    "qwen3_vl": VISION
    | {
        "hidden_size": 16,
        "intermediate_size": 24,
        "out_hidden_size": 32,
        "patch_size": 16,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1],
    },
}
CLIP = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
EYES = CLIP | {"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14, "projection_dim": 16}


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
MORE = {
    "qwen2_moe": MOE,
    "qwen3": {"head_dim": 16},
    "qwen3_moe": MOE | {"head_dim": 16},
    "granite": {"attention_multiplier": 0.5, "embedding_multiplier": 3.0},
}


# Folders


def write_tokenizer(folder: Path, tokens: list[str], merges: list[str], special: list[str], chat: str | None) -> None:
    """Byte-level BPE, digits apart, as `golden.inputs.decoder.Tokenizer`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pairs = [tuple(merge.split(" ")) for merge in merges]
    core = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=pairs))
    digits, letters = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    core.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|im_end|>", additional_special_tokens=special
    )
    tokenizer.chat_template = chat
    tokenizer.save_pretrained(folder)


def byte_tokens() -> list[str]:
    from tokenizers import pre_tokenizers

    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]


def write_model(folder: Path, config, chat: str | None = CHAT, tokenizer: bool = True) -> Path:
    """A model of random weights that are large enough for attention to be uneven, norms and biases too."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(7)
    image = hasattr(config, "vision_config")
    auto = transformers.AutoModelForImageTextToText if image else transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0, 0.25)
            if p.ndim == 1 and "norm" in name and name.endswith("weight"):
                p.add_(1)
    model.save_pretrained(folder)
    if tokenizer:
        write_tokenizer(folder, byte_tokens(), [], SPECIAL, chat)
    return folder


def write_decoder(folder: Path, kind: str, chat: str | None = CHAT, tokenizer: bool = True, **changes) -> Path:
    config = transformers.AutoConfig.for_model(kind, **(TEXT | MORE.get(kind, {}) | changes))
    return write_model(folder, config, chat, tokenizer)


def write_image_model(folder: Path, kind: str) -> Path:
    ids = {"image_token_id": ID["<|image|>"]}
    if kind in QWEN_EYES:
        ids |= {"video_token_id": 5, "vision_start_token_id": 2, "vision_end_token_id": 3}
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
        text = TEXT | {"rope_parameters": rope, "head_dim": 8}
        config = transformers.AutoConfig.for_model(kind, text_config=text, vision_config=QWEN_EYES[kind], **ids)
        patch = QWEN_EYES[kind]["patch_size"]
        processor = transformers.Qwen2VLImageProcessor(
            patch_size=patch, size={"shortest_edge": 16 * patch * patch, "longest_edge": 24 * patch * patch}
        )
    else:
        text = TEXT | {"model_type": "llama" if kind != "llava_onevision" else "qwen2"}
        more = {} if kind == "llava" else {"image_grid_pinpoints": [[56, 112], [112, 56]]}
        sees = EYES | ({"model_type": "siglip_vision_model"} if kind == "llava_onevision" else {})
        config = transformers.AutoConfig.for_model(kind, text_config=text, vision_config=sees, **more, **ids)
        square = {"size": {"height": 56, "width": 56}}
        processor = {
            "llava": transformers.CLIPImageProcessor,
            "llava_next": transformers.LlavaNextImageProcessor,
            "llava_onevision": transformers.LlavaOnevisionImageProcessor,
        }[kind](**square, **({"crop_size": square["size"]} if kind != "llava_onevision" else {}), **more)
    processor.save_pretrained(folder)
    return write_model(folder, config)


@pytest.fixture
def eyes(monkeypatch):
    """A vision encoder without weights, for the decoders."""
    monkeypatch.setattr(vision, "VisionEncoder", FakeEncoder)
    monkeypatch.setattr(trace_recorder, "source", lambda model: {"package": model[0], "sha256": ""})


@pytest.fixture
def spied(monkeypatch):
    """Blocks a recording gave its model, and queries, keys and values before rounding, in order."""
    blocks, taps = [], []
    step = hugging_face.FolderModel.step

    def spy(self, **block):
        logits = step(self, **block)
        blocks.append(block)
        taps.append([[x.copy() for x in self.tap[i]] for i in sorted(self.tap)])
        return logits

    monkeypatch.setattr(hugging_face.FolderModel, "step", spy)
    return blocks, taps


# What is recorded


def one_pass(folder: Path, **inputs):
    """All of a stream at once through the folder's model with plain attention."""
    config = transformers.AutoConfig.from_pretrained(folder)
    image = hasattr(config, "vision_config")
    auto = transformers.AutoModelForImageTextToText if image else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(**inputs, use_cache=True, output_attentions=True)


def compare(t: Trace, blocks: list, taps: list, one, never: list[str], windows: dict[int, int] | None = None) -> None:
    """A recording against one pass: keys and values of its cache, its attention, its next tokens.

    fp32 sums in another order differ by a few 2^-24 of their largest term, which two layers make some ten times that
    (1e-6 seen); 1e-5 leaves room for other processors, and a position or a head off by one is off by more than 1e-2.
    """
    n = t.tokens
    for i in range(2):
        q, k, v = (np.concatenate([tap[i][j] for tap in taps]) for j in range(3))
        for have, exact in ((t.q[i], q), (t.k[i], k), (t.v[i], v)):
            np.testing.assert_array_equal(have, exact.astype(BF16))
        layer = one.past_key_values.layers[i]
        for have, want in ((k, layer.keys), (v, layer.values)):
            want = want[0].transpose(0, 1).numpy()  # a sliding layer's cache holds its window only
            assert have.shape[1:] == want.shape[1:]
            np.testing.assert_allclose(have[n - len(want) :], want, atol=1e-5 * np.abs(want).max())
        back = np.arange(n)[:, None] - np.arange(n)
        visible = (back >= 0) & (back < (windows or {}).get(i, n))
        scores = np.einsum("qhd,khd->hqk", q, k.repeat(t.heads // t.kv_heads, axis=1)) / q.shape[-1] ** 0.5
        p = vision.softmax(np.where(visible, scores, -np.inf))
        assert (p.max(-1) * visible.sum(-1) > 2)[:, 5:].mean() > 0.5  # uneven enough to tell keys apart
        np.testing.assert_allclose(p, one.attentions[i][0].numpy(), atol=1e-5)
    answer = [block["ids"][0] for block in blocks[-3:]]
    logits = one.logits[0, n - 4 : n - 1].numpy()
    logits[:, [ID[token] for token in never]] = -np.inf
    assert logits.argmax(-1).tolist() == answer


CASES = [
    *((kind, {}, {0: 4096, 1: 4096} if kind == "mistral" else {}) for kind in hugging_face.DECODERS),
    ("mistral", {"sliding_window": 6}, {0: 6, 1: 6}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}, {1: 6}),
]


@pytest.mark.parametrize(("kind", "changes", "windows"), CASES)
def test_a_decoder_block_by_block_is_its_own_one_pass(tmp_path, small, eyes, spied, kind, changes, windows):  # noqa: F811
    folder = write_decoder(tmp_path / "model", kind, **changes)
    blocks, taps = spied
    t = hugging_face.record(folder, small, frames=3, tokens=5, layers=[0, 1], fit=3, question="why?", generate=3)
    assert (t.heads, t.kv_heads) == (4, 2)
    assert t.provenance["decoder"]["windows"] == {str(i): w for i, w in windows.items()}
    table = transformers.AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings()
    x = [torch.from_numpy(b["x"])[None] if "x" in b else table(torch.tensor([b["ids"]])) for b in blocks]
    one = one_pass(folder, inputs_embeds=torch.cat(x, dim=1).detach())
    compare(t, blocks, taps, one, ["<|im_end|>"], windows)


@pytest.mark.parametrize("kind", hugging_face.IMAGE_MODELS)
def test_an_image_model_frame_by_frame_is_its_own_one_pass(tmp_path, small, spied, kind):  # noqa: F811
    folder = write_image_model(tmp_path / "model", kind)
    blocks, taps = spied
    t = hugging_face.record(folder, small, frames=3, layers=[0, 1], question="why?", generate=3)
    pictures = list(video.frames(small, 3))
    pixels = transformers.AutoImageProcessor.from_pretrained(folder)(images=pictures, return_tensors="pt")
    pixels = {name: pixels[name] for name in ("pixel_values", "image_grid_thw", "image_sizes") if name in pixels}
    ids = torch.tensor([[i for block in blocks for i in block["ids"]]])
    if kind in QWEN_EYES:
        pixels["mm_token_type_ids"] = (ids == ID["<|image|>"]).int()
    never = ["<|im_end|>", "<|image|>", *(["<|video|>"] if kind in QWEN_EYES else [])]
    compare(t, blocks, taps, one_pass(folder, input_ids=ids, **pixels), never)
    n = (ids == ID["<|image|>"]).sum().item() // 3
    frame = "<|vision_start|>" + n * "<|image|>" + "<|vision_end|>"
    text = f"<|im_start|>user\n{3 * frame}\nwhy?<|im_end|>\n<|im_start|>assistant\n"
    assert transformers.AutoTokenizer.from_pretrained(folder).decode(ids[0, :-3]) == text
    assert [stop - start for start, stop in t.spans("frame")] == [n, n + 2, n + 2]
    assert t.provenance["content"] == hugging_face.OWN


def llama_of_gguf(folder: Path, depth: int) -> Path:
    """The first layers of what `golden.inputs.decoder` reads, as a Llama folder."""
    fields, tensors = decoder.Decoder._read()
    tokens = fields["tokenizer.ggml.tokens"]
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    names |= {f"attn_{a}": f"self_attn.{b}_proj" for a, b in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o"))}
    names |= {f"ffn_{a}": f"mlp.{a}_proj" for a in ("gate", "up", "down")}
    weights = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    weights |= {f"model.layers.{i}.{b}.weight": f"blk.{i}.{a}.weight" for i in range(depth) for a, b in names.items()}
    state = {name: decoder.Decoder._weights(tensors, key) for name, key in weights.items()}
    for name, heads in (("q_proj", 9), ("k_proj", 3)):
        for i in range(depth):
            key = f"model.layers.{i}.self_attn.{name}.weight"
            state[key] = decoder.Decoder._unpermute(state[key], heads)
    config = transformers.LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=state["model.norm.weight"].size,
        intermediate_size=len(state["model.layers.0.mlp.up_proj.weight"]),
        num_hidden_layers=depth,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokens.index("<|im_end|>"),
    )
    folder.mkdir()
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    save_file(
        {name: np.ascontiguousarray(w) for name, w in state.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    write_tokenizer(folder, tokens, fields["tokenizer.ggml.merges"], ["<|im_start|>", "<|im_end|>"], CHAT)
    return folder


def assert_same(have: np.ndarray, want: np.ndarray) -> None:
    """Nearly all numbers equal, none further than its neighbour among BF16 numbers."""
    a, b = (x.astype(np.float32) for x in (have, want))
    assert (a == b).mean() > 0.99
    np.testing.assert_allclose(a, b, rtol=2**-7, atol=1e-4 * np.abs(b).max())


def test_the_same_weights_give_the_trace_of_the_numpy_decoder(tmp_path, small, eyes, monkeypatch):  # noqa: F811
    monkeypatch.setattr(decoder.Decoder, "_read", staticmethod(lambda: small_weights(width=36)))
    monkeypatch.setattr(decoder, "N_LAYERS", 2)
    stream = {"frames": 4, "tokens": 10, "layers": [0, 1], "fps": 5, "queries": 2, "fit": 3}
    stream |= {"question": "hello world 42", "generate": 5}
    want = trace_recorder.record(small, **stream)
    have = hugging_face.record(llama_of_gguf(tmp_path / "model", 2), small, **stream)
    np.testing.assert_array_equal(have.offsets, want.offsets)
    np.testing.assert_array_equal(have.stages, want.stages)
    for name in ("k", "q", "v"):
        assert_same(getattr(have, name), getattr(want, name))
    same = ("video", "frames", "tokens_per_frame", "fps", "question", "answer", "vision", "projector")
    assert {name: have.provenance[name] for name in same} == {name: want.provenance[name] for name in same}
    assert have.provenance["content"] == hugging_face.UNTRAINED


@models
def test_smollm2_as_a_folder_gives_the_fixture_recorded_in_numpy(tmp_path, monkeypatch):
    """Trained weights, real video: layer 1 of tb/fixtures/bikes.safetensors."""
    monkeypatch.setattr(hugging_face, "SAMPLE", 1 << 16)  # the whole vocabulary, as the fixture
    want = Trace.load(FIXTURES / "bikes.safetensors")
    folder = llama_of_gguf(tmp_path / "model", 2)
    have = hugging_face.record(folder, "bikes", frames=12, tokens=10, layers=[1], fps=2.0, queries=1, values=False)
    np.testing.assert_array_equal(have.offsets, want.offsets)
    assert_same(have.k[0], want.k[0])
    assert_same(have.q[0], want.q[0])


@pytest.mark.parametrize("kind", ["qwen3", "qwen2_5_vl"])
def test_no_token_depends_on_a_later_frame_or_layer(tmp_path, small, eyes, kind):  # noqa: F811
    folder = (write_image_model if kind == "qwen2_5_vl" else write_decoder)(tmp_path / "model", kind)
    long = hugging_face.record(folder, small, frames=6, layers=[0, 1], fit=2, question="why?", generate=1)
    short = hugging_face.record(folder, small, frames=2, layers=[0], fit=2, values=False, queries=1)
    np.testing.assert_array_equal(short.k[0], long.k[0, : short.tokens])
    np.testing.assert_array_equal(short.q[0], long.q[0, short.first_query : short.tokens])
    assert short.v is None
    assert short.spans(queries=True) == short.spans("frame")[1:]
    none = hugging_face.record(folder, small, frames=2, layers=[0], fit=2, queries=0)
    assert none.q.shape == (1, 0, *long.q.shape[2:])


def test_layers_above_the_last_recorded_are_not_loaded(tmp_path):
    folder = write_decoder(tmp_path / "model", "qwen2")
    assert len(hugging_face.FolderModel(folder, (0,), whole=False).model.model.layers) == 1
    assert len(hugging_face.FolderModel(folder, (0,), whole=True).model.model.layers) == 2


@pytest.mark.parametrize(
    ("chat", "tokenizer", "before", "after"),
    [
        (CHAT, True, "<|im_start|>user\n", "\nwhy<|im_end|>\n<|im_start|>assistant\n"),
        (None, True, "", "\nwhy"),
        (CHAT, False, "<|im_start|>", ""),
    ],
)
def test_the_prompt_is_the_folders_template_or_the_bare_text(tmp_path, chat, tokenizer, before, after):
    folder = write_decoder(tmp_path / "model", "llama", chat, tokenizer)
    ids = hugging_face.FolderModel(folder, (0,), whole=False).prompt("why")
    assert ["".join(byte_tokens()[i] for i in part) for part in ids] == [
        text.replace("\n", "\u010a") for text in (before, "", after)
    ]


def test_a_folder_without_a_tokenizer_still_gives_frames_and_an_answer(tmp_path, small, eyes):  # noqa: F811
    folder = write_decoder(tmp_path / "model", "llama", tokenizer=False)
    t = hugging_face.record(folder, small, frames=2, tokens=4, layers=[1], fit=2, generate=2)
    assert t.spans() == [(0, 1), (1, 5), (5, 9), (9, 10), (10, 11)]
    assert len(t.provenance["answer"].split()) == 2


def test_an_answer_never_ends_before_its_length(tmp_path, small, eyes):  # noqa: F811
    folder = write_decoder(tmp_path / "model", "llama", tokenizer=False)
    path = folder / "generation_config.json"
    answers = []
    for _ in range(2):  # what is generated first is an end token the second time
        t = hugging_face.record(folder, small, frames=1, tokens=4, layers=[1], generate=1)
        answers.append(int(t.provenance["answer"]))
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [1, answers[0]]}))
    assert answers[0] not in (1, answers[1])


ROTARY = {  # decoder, and what its configuration says of rotary positions
    "base": ("llama", {"rope_type": "default", "rope_theta": 1e6}, {}),
    "linear": ("qwen2", {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, {}),
    "llama3": (
        "llama",
        {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": 64},
        {},
    ),
    "yarn": ("qwen3", {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}, {"max_position_embeddings": 512}),
    "none in layer 0": ("smollm3", {"rope_type": "default", "rope_theta": 1e6}, {"no_rope_layers": [0, 1]}),
}


@pytest.mark.parametrize("case", ROTARY)
def test_recorded_keys_move_on_by_what_the_trace_says(tmp_path, small, eyes, case):  # noqa: F811
    """Equal tokens of the first layer: turned to the last one's position, each key is the last one's."""
    kind, rope, more = ROTARY[case]
    folder = write_decoder(tmp_path / "model", kind, rope_parameters=rope, rms_norm_eps=3e-6, **more)
    t = hugging_face.record(folder, small, frames=2, tokens=4, layers=[0, 1], fit=2, question="a" * 100)
    m = t.model
    assert (m.epsilon, m.rotary_base, m.scaling["rope_type"]) == (3e-6, rope["rope_theta"], rope["rope_type"])
    assert m.scaling.items() >= {k: v for k, v in rope.items() if k != "rope_theta"}.items()
    assert m.turned == (case != "none in layer 0", True)
    t.save(tmp_path / "t")
    assert Trace.load(tmp_path / "t").model == m
    (first, _), n = t.spans("question")[0], 100
    same = t.k[0, first + 1 : first + 1 + n].astype(np.float32).swapaxes(0, 1)  # behind the line's end
    assert m.turned[0] == bool((same[:, 0] != same[:, -1]).any())
    turned = turn_keys(same, np.arange(n)[::-1], m.turns[0])
    np.testing.assert_allclose(turned, np.broadcast_to(same[:, -1:], turned.shape), atol=2**-7 * np.abs(same).max())


def test_a_policy_turns_keys_by_the_models_own_base(tmp_path, small, eyes):  # noqa: F811
    """StreamingLLM on a model of base 1e6: the error by definition, and not what a base of 1e5 gives."""
    rope = {"rope_type": "default", "rope_theta": 1e6}
    folder = write_decoder(tmp_path / "model", "llama", rope_parameters=rope, head_dim=16)
    path = tmp_path / "t.safetensors"
    hugging_face.record(folder, small, frames=12, tokens=10, layers=[0, 1], fit=3).save(path)
    t, found = Trace.load(path), POLICIES["streamingllm"]
    found = replace(found, params=replace(found.params, recent=40, sinks=30))

    def errors(trace: Trace) -> np.ndarray:
        run = TraceRun(found.build(shape_of(trace)), trace)
        return np.array([run.step(trace, block).error for block in trace_blocks(trace)])

    def attended(i: int, k: np.ndarray, at: np.ndarray, rows: np.ndarray) -> np.ndarray:
        q, v = t.q[i, rows].astype(float), t.v[i, at].astype(float).repeat(2, axis=1)
        s = np.einsum("qhd,khd->hqk", q, k.repeat(2, axis=1)) / 4
        return np.einsum("hqk,khd->qhd", vision.softmax(np.where(rows[:, None] >= at, s, -np.inf)), v)

    got, other = errors(t), errors(replace(t, model=replace(t.model, frequencies=frequencies(1e5, 16))))
    start, stop = t.spans()[-1]
    rows, gone = np.arange(start, stop), start - 40 - 30
    at = np.array([*range(30), *range(start - 40, stop)])
    for i in range(2):
        k = t.k[i].astype(float)
        sinks = (k[:30, :, :8] + 1j * k[:30, :, 8:]) * np.exp(1j * gone * 1e6 ** (-np.arange(8) / 8))
        moved = np.concatenate([np.concatenate([sinks.real, sinks.imag], -1), k[at[30:]]])
        full = attended(i, k, np.arange(stop), rows)
        want = np.linalg.norm(attended(i, moved, at, rows) - full) / np.linalg.norm(full)
        assert got[-1, i] == pytest.approx(want, rel=0.002)
        assert other[-1, i] != pytest.approx(want, rel=0.02)


def test_positions_that_are_no_token_numbers_are_not_turned(tmp_path, small):  # noqa: F811
    """Of three axes (Qwen's image models): a policy that turns keys is refused in one line, others run."""
    from openvrex.scripts.main import app

    path, folder = tmp_path / "t.safetensors", tmp_path / "stream"
    model = write_image_model(tmp_path / "model", "qwen2_5_vl")
    hugging_face.record(model, small, frames=3, layers=[0]).save(path)
    assert Trace.load(path).model.frequencies is None
    ran = CliRunner().invoke(app, ["papers", "stream", str(path), "--policy", "streamingllm", "-o", str(folder)])
    assert (ran.exit_code, ran.stderr.count("\n"), folder.exists()) == (2, 1, False)
    assert f"{path}: its keys do not turn evenly from token to token, so streamingllm cannot move them" in ran.stderr


# What is refused


def test_golden_imports_without_the_extra():
    code = (
        "import openvrex.scripts.run.trace_command, sys; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def failing(folder: Path, change: str) -> Path:
    """A folder with a fault."""
    if change == "nothing":
        folder.mkdir()
        return folder
    if change == "eyes without a tokenizer":
        write_image_model(folder, "llava")
        (folder / "tokenizer.json").unlink()
        return folder
    write_decoder(folder, "llama", tokenizer=change != "no tokenizer")
    config, weights = folder / "config.json", folder / "model.safetensors"
    fields = json.loads(config.read_text())
    if change == "no json":
        config.write_text("{")
    elif change == "other architecture":
        config.write_text(json.dumps(fields | {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    elif change == "no kind":
        config.write_text("[]")
    elif change == "bad value":
        config.write_text(json.dumps(fields | {"num_attention_heads": "many"}))
    elif change == "no weights":
        weights.unlink()
    elif change == "cut weights":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif change == "fewer weights":
        state = load_file(weights)
        del state["model.layers.1.self_attn.k_proj.weight"]
        save_file(state, weights, {"format": "pt"})
    elif change == "a weight of NaN":
        state = load_file(weights)
        state["model.layers.1.self_attn.k_proj.weight"][3, 5] = float("nan")
        save_file(state, weights, {"format": "pt"})
    elif change == "other shape":
        config.write_text(json.dumps(fields | {"intermediate_size": 40}))
    elif change == "bad tokenizer":
        (folder / "tokenizer.json").write_text("{}")
    elif change == "bad template":
        (folder / "chat_template.jinja").write_text("{{ raise_exception('no users\nhere') }}")
    elif change == "silent template":
        (folder / "chat_template.jinja").write_text("hello")
    return folder


@pytest.mark.parametrize(
    ("change", "options", "why"),
    [
        ("nothing", (), "model: no config.json in it; give the folder of a Hugging Face model"),
        ("no json", (), "config.json names no model_type"),
        ("no kind", (), "config.json names no model_type"),
        ("bad value", (), "model: config.json cannot be used"),
        ("other architecture", (), r"GPT2LMHeadModel \(gpt2\) is not supported; use one of llama, mistral, .*qwen3_vl"),
        ("no weights", (), "model: no weights in it"),
        ("cut weights", (), "model: its weights cannot be used"),
        ("fewer weights", (), r"1 of its weights are missing .*layers.1.self_attn.k_proj.weight"),
        ("a weight of NaN", (), r"model: model.layers.1.self_attn.k_proj.weight\[3, 5\]=nan: must be finite"),
        ("other shape", (), "6 of its weights are missing or of another shape|cannot be used"),
        ("bad tokenizer", (), "model: its tokenizer cannot be used"),
        ("bad template", (), "chat template fails .no users.; mend"),
        ("silent template", (), "chat template does not show each frame once"),
        ("eyes without a tokenizer", (), "no tokenizer .* which the prompt around images needs"),
        ("no tokenizer", ("--question", "why"), "no tokenizer .* for the question; leave --question out"),
        ("none", ("--layers", "0,2"), "layers=.0, 2.: must be ascending numbers from 0 to 1, the layers of model"),
        ("none", ("--tokens", "7"), "tokens=7: must be g"),
        ("none", ("--frames", "100"), "frames=100: must be at most 14: model has 512 positions .* of 36 tokens"),
        ("none", ("--fps", "0"), "fps=0"),
        ("none", ("--queries", "-1"), "queries=-1: must not be negative"),
    ],
)
def test_a_folder_or_option_that_cannot_work_is_one_line(tmp_path, small, eyes, change, options, why):  # noqa: F811
    folder = failing(tmp_path / "model", change)
    options = options if "--tokens" in options or "eyes" in change else ("--tokens", "36", *options)
    line = [str(small), "-o", str(tmp_path / "out" / "t.safetensors"), "--hf", str(folder), "--layers", "0,1"]
    result = CliRunner().invoke(app, ["trace", *line, *options])
    assert result.exit_code == 2
    assert re.search(why, result.stderr), result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_image_model_sets_its_tokens_itself(tmp_path, small):  # noqa: F811
    folder = write_image_model(tmp_path / "model", "qwen2_vl")
    with pytest.raises(ParamError, match="tokens=4: must be left out: model sets"):
        hugging_face.record(folder, small, layers=[0], tokens=4)
    with pytest.raises(ParamError, match="frames=200: must be at most 1..: model has 512 positions .* of 4 tokens"):
        hugging_face.record(folder, small, layers=[0], frames=200)


def test_without_the_extra_the_line_names_it(tmp_path, small, monkeypatch):  # noqa: F811
    folder = write_decoder(tmp_path / "model", "llama")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TraceError, match=r"run 'make hf' or pip install 'openvrex\[hf\]'"):
        hugging_face.record(folder, small, layers=[0])


def test_a_bad_video_fails_before_the_folder_is_read(tmp_path):
    with pytest.raises(video.VideoError, match="no such file"):
        hugging_face.record(tmp_path, tmp_path / "absent.mp4")


# The command, and what reads its trace


def test_the_trace_goes_where_every_trace_goes(tmp_path, small, eyes):  # noqa: F811
    from openvrex.scripts.main import app

    def vrex(*line) -> str:
        result = CliRunner().invoke(app, [str(word) for word in line])
        assert result.exit_code == 0, result.output
        return result.stdout

    folder, out = write_decoder(tmp_path / "my-qwen", "qwen2"), tmp_path / "t.safetensors"
    line = ("trace", small, "-o", out, "--hf", folder, "--frames", 12, "--tokens", 10, "--layers", "0,1")
    line += ("--queries", 3, "--question", "why?", "--generate", 2)
    shown = vrex(*line)
    first = out.read_bytes()
    assert "untrained projector" in shown
    summary = json.loads(vrex(*line, "--json"))
    assert out.read_bytes() == first
    assert str(tmp_path) not in json.dumps(summary["provenance"])
    assert summary["provenance"]["command"].startswith(
        "vrex trace small.mp4 -o t.safetensors --hf my-qwen --frames 12 "
    )
    assert summary["provenance"]["decoder"]["sha256"].keys() >= {"config.json", "model.safetensors", "tokenizer.json"}
    rows = json.loads(vrex("papers", "measure", out, "--recent", 40, "--json"))
    assert {(row["layer"], row["stage"]) for row in rows} == {(i, s) for i in (0, 1) for s in ("frame", "generation")}
    assert all(0 < row["fetched_of_cached"] < 1 and row["error"] < 1 for row in rows)
    results = json.loads(vrex("papers", "stream", out, "--policy", "resv", "-o", tmp_path / "stream", "--json"))
    assert results["layers"] == [0, 1]
    assert results["policies"]["resv"]["frame"]["error"] is not None
    options = ("--preset", "tiny", "--queries", 1, "--json")
    tables = json.loads(vrex("verify", "hcu", "--trace", out, *options))["tables"]
    assert {table["table"] for table in tables} >= {f"layer {i} head {h}" for i in (0, 1) for h in (0, 1)}
    assert all(table["beats"] and not table["differences"] for table in tables)
