"""The real-data front end and the trace file. Tests of the real models are skipped where `make models` was not run."""

import json
import math
import re
import wave
from dataclasses import replace
from pathlib import Path

import av
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs import decoder, trace, trace_recorder, video, vision
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.inputs.trace_model import Model, frequencies
from openvrex.golden.policies.policy_run import shape_of
from tb.tests.commands import refuses, tried, vrex
from tb.tests.golden.inputs.trace_samples import (
    FIXTURES,
    FakeEncoder,
    models,
    rewrite,
    small_weights,
)

BF16 = ml_dtypes.bfloat16


# Video


def test_every_frame_is_decoded_in_order(small):
    got = list(video.frames(small))
    assert [f.shape for f in got] == [(64, 64, 3)] * 20
    index = [(f.mean() - 40) / 8 for f in got]
    np.testing.assert_allclose(index, np.arange(20), atol=0.4)


@pytest.mark.parametrize(
    ("fps", "expected"), [(10, range(20)), (5, range(0, 20, 2)), (4, [0, 3, 5, 8, 10, 13, 15, 18])]
)
def test_sampling_takes_the_first_frame_at_or_after_each_instant(small, fps, expected):
    index = [round((f.mean() - 40) / 8) for f in video.frames(small, fps=fps)]
    assert index == list(expected)


def test_limit_and_size(small):
    assert [f.shape for f in video.frames(small, limit=3, size=28)] == [(28, 28, 3)] * 3


def bad_inputs(folder: Path, good: Path) -> dict[str, tuple[Path, str]]:
    raw = good.read_bytes()
    damaged = bytearray(raw)
    for i in range(len(raw) // 2, len(raw) * 3 // 4, 97):
        damaged[i] ^= 0x5A
    contents = {
        "empty.mp4": b"",
        "text.mp4": b"not a video at all\n" * 100,
        "cut.mp4": raw[: len(raw) // 2],
        "damaged.mp4": bytes(damaged),
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    with wave.open(str(folder / "sound.wav"), "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        out.writeframes(bytes(1600))
    with av.open(str(folder / "none.mkv"), "w") as out:
        stream = out.add_stream("libx264", rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        out.start_encoding()
    return {
        "missing": (folder / "absent.mp4", "no such file"),
        "folder": (folder, "not a file"),
        "empty": (folder / "empty.mp4", "empty file"),
        "text": (folder / "text.mp4", "not a video"),
        "cut": (folder / "cut.mp4", "damaged"),
        "damaged": (folder / "damaged.mp4", "damaged at frame [1-9]"),
        "sound": (folder / "sound.wav", "no video stream"),
        "no frame": (folder / "none.mkv", "no frame"),
    }


CASES = ["missing", "folder", "empty", "text", "cut", "damaged", "sound", "no frame"]


@pytest.mark.parametrize("case", CASES)
def test_bad_video_is_one_line_that_names_it(tmp_path, small, case):
    path, why = bad_inputs(tmp_path, small)[case]
    with pytest.raises(video.VideoError, match=why) as e:
        list(video.frames(path))
    assert path.name in str(e.value)
    assert "\n" not in str(e.value)


def test_missing_package_and_unknown_clip_name_the_fix(monkeypatch):
    with pytest.raises(video.VideoError, match="run 'make models'"):
        video.package_file("openvrex-no-such-package", "x")
    with pytest.raises(video.VideoError, match="has no x/y"):
        video.package_file("numpy", "x/y")
    with pytest.raises(video.VideoError, match="world"):
        video.locate("wrold")


# Vision


def test_gelu_against_the_error_function():
    x = np.linspace(-12, 12, 4001, dtype=np.float32)
    exact = np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.astype(float)])
    np.testing.assert_allclose(vision.gelu(x), exact, atol=2e-6)


def test_bicubic_keeps_constants_ramps_and_identity():
    taps = vision.cubic_taps(37, 16)
    np.testing.assert_allclose(taps.sum(1), 1, atol=1e-12)
    centres = (np.arange(16) + 0.5) * 37 / 16 - 0.5
    np.testing.assert_allclose((taps @ np.arange(37))[1:-1], centres[1:-1], atol=0.2)  # a = -0.75 bends ramps a little
    np.testing.assert_allclose(vision.cubic_taps(9, 9), np.eye(9), atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 10, 36, 64, 256, 257])
def test_pooling_averages_cells(n):
    rng = np.random.default_rng(n)
    tokens = rng.standard_normal((257, 5)).astype(np.float32)
    got = vision.pool(tokens, n)
    g = math.isqrt(n)
    assert got.shape == (n, 5)
    if n == g * g + 1:
        np.testing.assert_array_equal(got[0], tokens[0])
    grid = got[n - g * g :].reshape(g, g, 5)
    for r in range(g):
        for c in range(g):
            rows = [i for i in range(16) if (i + 1) * g > r * 16 and i * g < (r + 1) * 16]
            cols = [i for i in range(16) if (i + 1) * g > c * 16 and i * g < (c + 1) * 16]
            mean = np.mean([tokens[1 + 16 * i + j] for i in rows for j in cols], axis=0)
            np.testing.assert_allclose(grid[r, c], mean, atol=1e-5)


@pytest.mark.parametrize("n", [-1, 0, 3, 11, 35, 258, 289])
def test_pooling_refuses_other_numbers(n):
    with pytest.raises(ParamError, match=f"tokens={n}: must be g"):
        vision.pool(np.zeros((257, 5), np.float32), n)


def test_projector_gives_tokens_the_moments_of_embeddings():
    rng = np.random.default_rng(5)
    tokens = rng.standard_normal((500, 12)) @ rng.standard_normal((12, 12)) + 3
    embeddings = rng.standard_normal((900, 20)) @ np.diag(np.linspace(3, 0.1, 20)) - 1
    y = vision.Projector.fit(tokens, embeddings, floor=0)(tokens).astype(np.float64)
    np.testing.assert_allclose(y.mean(0), embeddings.mean(0), atol=1e-4)
    have = np.linalg.eigvalsh(np.cov(y.T, bias=True))[::-1]
    want = np.linalg.eigvalsh(np.cov(embeddings.T, bias=True))[::-1]
    np.testing.assert_allclose(have[:12], want[:12], rtol=1e-3)
    np.testing.assert_allclose(have[12:], 0, atol=1e-5)


@models
def test_vision_encoder_equals_the_onnx_graph():
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(str(video.package_file(*vision.MODEL)))
    last = [i for i, n in enumerate(model.graph.node) if n.name.startswith("/backbone/layernorm/")][-1]
    name = model.graph.node[last].output[0]
    del model.graph.node[last + 1 :]
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    image = next(video.frames("bikes", size=vision.IMAGE))
    x = ((image.astype(np.float32) / 255 - vision.MEAN) / vision.STD).transpose(2, 0, 1)[None]
    expected = ReferenceEvaluator(model).run(None, {"input_image": x})[0][0]
    np.testing.assert_allclose(vision.VisionEncoder()(image), expected, atol=1e-4)


# Decoder


@pytest.fixture
def small_decoder(monkeypatch):
    monkeypatch.setattr(decoder.Decoder, "_read", staticmethod(small_weights))
    return decoder.Decoder(2, 64)


def llama(tensors: dict, ids: list[int]) -> np.ndarray:
    """Logits, one token and one head at a time, in float64, on the rows as GGUF stores them (pairs 2i, 2i + 1)."""
    w = {k.removesuffix(".weight"): t.data.astype(float) for k, t in tensors.items()}
    cache, out = [([], []) for _ in range(2)], []

    def norm(x, weight):
        return x / math.sqrt(np.mean(x * x) + 1e-5) * weight

    def rotate(x, position):
        y = x.astype(complex)
        for i in range(32):
            turn = complex(x[2 * i], x[2 * i + 1]) * np.exp(1j * position * 1e5 ** (-2 * i / 64))
            y[2 * i], y[2 * i + 1] = turn.real, turn.imag
        return y.real

    for position, token in enumerate(ids):
        x = w["token_embd"][token]
        for i, (keys, values) in enumerate(cache):
            h = norm(x, w[f"blk.{i}.attn_norm"])
            q, k, v = ((w[f"blk.{i}.attn_{n}"] @ h).reshape(-1, 64) for n in "qkv")
            keys.append([rotate(row, position) for row in k])
            values.append(v)
            heads = []
            for head in range(9):
                s = np.array([rotate(q[head], position) @ key[head // 3] for key in keys]) / 8
                p = np.exp(s - s.max())
                heads.append(sum(a * value[head // 3] for a, value in zip(p / p.sum(), values, strict=True)))
            x = x + w[f"blk.{i}.attn_output"] @ np.concatenate(heads)
            h = norm(x, w[f"blk.{i}.ffn_norm"])
            gate = w[f"blk.{i}.ffn_gate"] @ h
            x = x + w[f"blk.{i}.ffn_down"] @ (gate / (1 + np.exp(-gate)) * (w[f"blk.{i}.ffn_up"] @ h))
        out.append(w["token_embd"] @ norm(x, w["output_norm"]))
    return np.array(out)


@pytest.mark.parametrize("blocks", [[12], [1] * 12, [5, 4, 3]])
def test_decoder_equals_a_token_by_token_one(small_decoder, blocks):
    ids = [5, 9, 200, 7, 7, 31, 100, 2, 64, 90, 12, 3]
    got, at = [], 0
    for n in blocks:
        got.append(small_decoder.logits(small_decoder(small_decoder.embeddings[ids[at : at + n]])))
        at += n
    expected = llama(small_weights()[1], ids)
    np.testing.assert_allclose(np.concatenate(got), expected, atol=1e-4 * np.abs(expected).max())


def test_loss_is_the_mean_surprise(small_decoder):
    ids = [5, 9, 200, 7, 7, 31, 100, 2, 64]
    logits = llama(small_weights()[1], ids[:-1])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = [-math.log(p[i, token]) for i, token in enumerate(ids[1:])]
    np.testing.assert_allclose(decoder.loss(small_decoder, ids, block=3), expected, atol=1e-3)


def test_decoder_refuses_more_tokens_than_its_cache_holds(small_decoder):
    small_decoder(small_decoder.embeddings[:60])
    with pytest.raises(ValueError, match="n_tokens=64: the cache cannot hold 65 tokens"):
        small_decoder(small_decoder.embeddings[:5])


def test_tokenizer_merges_in_order_of_rank(small_decoder):
    t = small_decoder.tokenizer
    assert [t.tokens[i] for i in t.encode("<|im_start|>hello world 42")] == [
        *("<|im_start|>", "hell", "o", "\u0120w", "o", "r", "l", "d", "\u0120", "4", "2")
    ]


@given(st.text(max_size=40))
@settings(max_examples=200)
def test_tokenizer_loses_nothing(text):
    fields, _ = small_weights()
    t = decoder.ByteTokenizer(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"])
    assert t.decode(t.encode(text)) == text


@models
def test_decoder_predicts_real_text():
    from pydoc_data.topics import topics

    d = decoder.Decoder(n_tokens=512)
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = d.tokenizer.encode(text)[:400]
    assert d.tokenizer.decode(ids) == text[: len(d.tokenizer.decode(ids))]
    assert decoder.loss(d, ids).mean() < 3.1  # 10.8 would be chance


# Recording


@pytest.fixture
def small_models(monkeypatch):
    monkeypatch.setattr(decoder.Decoder, "_read", staticmethod(small_weights))
    monkeypatch.setattr(decoder, "N_LAYERS", 2)
    monkeypatch.setattr(vision, "VisionEncoder", FakeEncoder)
    monkeypatch.setattr(trace_recorder, "source", lambda model: {"package": model[0], "sha256": ""})


def test_recording_marks_its_segments(small, small_models):
    t = trace_recorder.record(small, frames=5, tokens=10, layers=[1], fps=5, queries=2, question="why", generate=3)
    prompt, question = len("<|im_start|>user\n") - 11, len("\nwhy\n<|im_start|>assistant\n") + 1 - 11
    assert t.spans("frame") == [(prompt + 10 * i, prompt + 10 * i + 10) for i in range(5)]
    assert [stop - start for start, stop in t.spans("question")] == [question]
    assert [stop - start for start, stop in t.spans("generation")] == [1, 1, 1]
    assert t.k.shape == t.v.shape == (1, t.tokens, 3, 64)
    assert t.first_query == prompt + 30
    assert t.spans(queries=True) == t.spans()[4:]
    assert (t.provenance["video"]["name"], t.provenance["frames"]) == ("small.mp4", 5)


def test_no_token_depends_on_a_later_frame(small, small_models):
    short = trace_recorder.record(small, frames=4, tokens=4, layers=[0, 1], fit=3)
    long = trace_recorder.record(small, frames=9, tokens=4, layers=[0, 1], fit=3, queries=0, values=False)
    np.testing.assert_allclose(long.k[:, : short.tokens].astype(float), short.k.astype(float), atol=1e-2, rtol=1e-2)
    assert long.v is None
    assert long.q.shape == (2, 0, 9, 64)


def test_recorded_queries_and_keys_are_those_of_the_decoder(small, small_models):
    t = trace_recorder.record(small, frames=3, tokens=4, layers=[0, 1], fit=3)
    encoder, d = FakeEncoder(), decoder.Decoder(2, 64)
    pooled = [vision.pool(encoder(f), 4) for f in video.frames(small, 3, size=224)]
    projector = vision.Projector.fit(np.concatenate(pooled), d.embeddings)
    x = np.concatenate([d.embed(trace.PROMPT), projector(np.concatenate(pooled))])
    d(x)  # all at once, where the recording went frame by frame
    n = t.tokens
    close = {"atol": 2e-2, "rtol": 2e-2}
    np.testing.assert_allclose(t.q.astype(float), np.stack(d.q), **close)
    np.testing.assert_allclose(t.k.astype(float), d.k[:, :, :n].swapaxes(1, 2), **close)
    np.testing.assert_allclose(t.v.astype(float), d.v[:, :, :n].swapaxes(1, 2), **close)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frames", 0),
        ("tokens", 35),
        ("layers", ()),
        ("layers", (1, 1)),
        ("layers", (2, 1)),
        ("layers", (-1,)),
        ("layers", (30,)),
        ("fps", 0.0),
        ("queries", -1),
        ("generate", -1),
        ("fit", 0),
        ("frames", 10000),
    ],
)
def test_recording_refuses_arguments_that_cannot_work(small, name, value):
    with pytest.raises(ParamError, match=re.escape(name)) as e:
        trace_recorder.record(small, **{name: value})
    assert "must" in str(e.value) or "knows only" in str(e.value)


@models
def test_fixture_comes_from_its_command():
    """Other processors round their matrix products differently: nearly all values equal, none far off."""
    have = Trace.load(FIXTURES / "bikes.safetensors")
    p = have.provenance
    args = {"frames": 12, "tokens": 10, "layers": have.layers, "fps": p["fps"], "queries": 1, "values": False}
    again = trace_recorder.record("bikes", **args)
    assert again.provenance | {"command": p["command"]} == p
    for name in ("k", "q"):
        a, b = getattr(have, name).astype(np.float32), getattr(again, name).astype(np.float32)
        assert (a == b).mean() > 0.95
        np.testing.assert_allclose(a, b, atol=0.02 * np.abs(a).max())


# The file


@pytest.mark.parametrize(("name", "frames", "values"), [("world", 28, True), ("bikes", 12, False)])
def test_fixtures_hold_what_the_manual_says(name, frames, values):
    path = FIXTURES / f"{name}.safetensors"
    t = Trace.load(path)
    assert (t.heads, t.kv_heads, t.head_size, t.layers) == (9, 3, 64, (1, 10, 20))
    assert [stop - start for start, stop in t.spans("frame")] == [10] * frames
    assert (t.v is not None) == values
    assert np.isfinite(t.k.astype(np.float32)).all()
    assert np.isfinite(t.q.astype(np.float32)).all()
    manual = (Path(__file__).parents[4] / "docs" / "data.md").read_text()
    assert t.provenance["command"].replace(f"-o {name}", f"-o tb/fixtures/{name}") in manual
    assert video.digest(path) in manual


def test_fixtures_stay_small():
    assert sum(f.stat().st_size for f in FIXTURES.iterdir()) < 2_500_000


def unrotated(k: np.ndarray) -> np.ndarray:
    """Keys [tokens, heads, 64] with their rotary position taken out again."""
    z = k[..., :32].astype(float) + 1j * k[..., 32:].astype(float)
    z *= np.exp(-1j * np.arange(len(k))[:, None, None] * 1e5 ** (-np.arange(32) / 32))
    return np.concatenate([z.real, z.imag], -1)


def test_a_still_camera_repeats_its_keys_and_a_moving_one_does_not():
    def likeness(name: str) -> float:
        """Mean cosine of a token's key with its key in the next frame, about the mean key."""
        t = Trace.load(FIXTURES / f"{name}.safetensors")
        k = unrotated(t.k[0])
        k = np.stack([k[a:b] for a, b in t.spans("frame")])
        k = k - k.mean((0, 1))
        a, b = k[:-1], k[1:]
        return ((a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)).mean()

    assert likeness("world") > 0.9  # 0.97
    assert likeness("bikes") < 0.6  # 0.38


def test_a_trace_survives_the_file_bit_by_bit(tmp_path):
    t = Trace.load(FIXTURES / "world.safetensors")
    t.save(tmp_path / "new" / "copy.safetensors")
    assert (tmp_path / "new" / "copy.safetensors").read_bytes() == (FIXTURES / "world.safetensors").read_bytes()
    assert [f.name for f in (tmp_path / "new").iterdir()] == ["copy.safetensors"]


def test_a_trace_says_how_its_model_turns_keys(tmp_path):
    """Of the fixtures, as the decoder has it; any other model comes back from the file as it was."""
    own = Trace.load(FIXTURES / "world.safetensors").model
    assert own == Model(float(np.float32(1e-5)), 1e5, own.frequencies, (True,) * 3)
    # NumPy's powers differ from processor to processor: an ulp of each, and half of one of each division.
    np.testing.assert_allclose(own.frequencies, frequencies(1e5, 64), rtol=2.0**-50)
    for model in (tiny().model, replace(tiny().model, frequencies=None), None):
        tiny(model=model).save(tmp_path / "t")
        assert Trace.load(tmp_path / "t").model == model
    shape = shape_of(tiny())
    assert (shape.epsilon, shape.frequencies) == (1e-6, (frequencies(1e6, 8), (0.0,) * 4))


def tiny(**changes) -> Trace:
    rng = np.random.default_rng(2)
    arrays = {
        "layers": (0, 4),
        "k": rng.standard_normal((2, 6, 2, 8)).astype(BF16),
        "v": rng.standard_normal((2, 6, 2, 8)).astype(BF16),
        "q": rng.standard_normal((2, 4, 6, 8)).astype(BF16),
        "offsets": np.array([0, 2, 4, 6], np.int32),
        "stages": np.array([0, 1, 1], np.uint8),
        "provenance": {"decoder": {"model": "random"}},
        "model": Model(1e-6, 1e6, frequencies(1e6, 8), (True, False), {"rope_type": "llama3", "factor": 8.0}),
    }
    return Trace(**(arrays | changes))


def test_queries_are_addressed_by_token():
    t = tiny()
    np.testing.assert_array_equal(t.queries(1, 4, 6), t.q[1, 2:4])
    assert t.spans(queries=True) == [(2, 4), (4, 6)]
    with pytest.raises(TraceError, match="recorded from 2 to 6"):
        t.queries(0, 0, 2)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"layers": (0,)}, "k has 2"),
        ({"layers": ("a", "b")}, "not integers"),
        ({"k": np.zeros((2, 6, 2), BF16)}, "k has shape"),
        ({"q": np.zeros((2, 7, 6, 8), BF16)}, "q has shape"),
        ({"q": np.zeros((2, 4, 6, 4), BF16)}, "q has shape"),
        ({"q": np.zeros((2, 4, 5, 8), BF16)}, "5 heads"),
        ({"v": np.zeros((2, 5, 2, 8), BF16)}, "v has shape"),
        ({"offsets": np.array([0, 2, 6], np.int32)}, "one more offset than stages"),
        ({"offsets": np.array([0, 2, 4, 5], np.int32)}, "do not rise"),
        ({"offsets": np.array([0, 4, 2, 6], np.int32)}, "do not rise"),
        ({"stages": np.array([0, 1, 9], np.uint8)}, "stage 9"),
        ({"stages": None}, "not the arrays"),
    ],
)
def test_shapes_that_disagree(changes, why):
    with pytest.raises(TraceError, match=why):
        tiny(**changes)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "at", "place"),
    [
        ("k", (1, 5, 0, 3), "layer 4, token 5"),
        ("q", (0, 1, 2, 0), "layer 0, token 3"),
        ("v", (0, 0, 1, 7), "layer 0, token 0"),
        ("hidden", (4, 2), "token 4"),
    ],
)
def test_numbers_that_are_not_finite_are_named(name, at, place, value):
    given = getattr(tiny(hidden=np.zeros((6, 16), BF16)), name).copy()
    given[at] = value
    with pytest.raises(TraceError, match=rf"^{name}={value} at {place}: must be finite; record"):
        tiny(**{name: given})


@pytest.mark.parametrize("command", ["verify dre --trace", "papers stream", "simulate dre", "papers measure"])
def test_commands_refuse_a_trace_that_is_not_finite(command, tmp_path, monkeypatch):
    """The file is sound, checksum included: another program wrote it."""
    good = Trace.load(FIXTURES / "world.safetensors")
    keys = good.k.copy()
    keys[1, 40, 0, 7] = np.nan
    bad = object.__new__(Trace)
    bad.__dict__.update(vars(good), k=keys)
    path = tmp_path / "nan.safetensors"
    bad.save(path)
    monkeypatch.chdir(tmp_path)
    run = refuses(*command.split(), str(path))
    assert f"{path}: k=nan at layer {good.layers[1]}, token 40: must be finite" in run.stderr
    assert [f.name for f in tmp_path.iterdir()] == ["nan.safetensors"]


@pytest.mark.parametrize("name", ["token_embd", "output_norm", "blk.1.attn_k"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_decoders_weights_are_finite(name, value, monkeypatch):
    fields, tensors = small_weights()
    tensors[f"{name}.weight"].data[3:4].flat[-1] = value
    monkeypatch.setattr(decoder.Decoder, "_read", staticmethod(lambda: (fields, tensors)))
    with pytest.raises(ValueError, match=rf"Q4_1.gguf: {name}.weight\[3.*\]={value}: must be finite"):
        decoder.Decoder(2, 64)


@pytest.mark.parametrize("name", ["attention.layer_norm_rms_epsilon", "rope.freq_base"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_a_decoders_constants_are_finite(name, value, monkeypatch):
    fields, tensors = small_weights()
    fields[f"llama.{name}"] = value
    monkeypatch.setattr(decoder.Decoder, "_read", staticmethod(lambda: (fields, tensors)))
    with pytest.raises(ValueError, match=f"Q4_1.gguf: {name}={value}: must be finite and above 0"):
        decoder.Decoder(2, 64)


def test_an_encoders_weights_are_finite(tmp_path, monkeypatch):
    onnx = vision.onnx
    weights = onnx.numpy_helper.from_array(np.array([[0, 1], [np.inf, 2]], np.float32), "backbone.layer")
    path = tmp_path / "eyes.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "eyes", [], [], [weights])), path)
    monkeypatch.setattr(vision, "package_file", lambda *file: path)
    with pytest.raises(ValueError, match=r"vit_s_focus.onnx: backbone.layer\[1, 0\]=inf: must be finite"):
        vision.VisionEncoder()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda header, head: head.update(version=3), "version 3, but this program reads 1 and 2"),
        (lambda header, head: head.update(layers=[0]), "k has 2"),
        (lambda header, head: head.update(first_query=3), "header says 3"),
        (lambda header, head: head.update(sha256="0"), "checksum"),
        (lambda header, head: head["model"]["rotary"].update(base=1e5), "checksum"),
        (lambda header, head: head.pop("model"), "checksum"),
        (lambda header, head: head["model"]["heads"].update(query=8), "model cannot be used .heads is .*'query': 8"),
        (lambda header, head: head["model"]["rotary"].update(pairs="neighbours"), "rotary is .*'pairs': 'neighbours'"),
        (lambda header, head: head["model"]["norm"].update(kind="layer"), "norm is .*'kind': 'layer'"),
        (lambda header, head: head["model"].pop("rotary"), "model cannot be used"),
        (lambda header, head: head["model"]["norm"].update(epsilon=math.inf), "epsilon is not finite"),
        (lambda header, head: head["model"]["rotary"].update(base=-math.inf), "base is not finite"),
        (lambda header, head: head["model"]["rotary"]["frequencies"].append(math.nan), "frequencies is not finite"),
        (lambda header, head: head["model"]["rotary"].update(turned=[True]), "model has 1 layers and 4 freq.*, not 2 "),
        (lambda header, head: head["model"]["rotary"].update(frequencies=[1.0]), "2 layers and 1 freq.*, not 2 and 4"),
        (lambda header, head: head.pop("provenance"), "incomplete trace header"),
        (lambda header, head: head.pop("sha256"), "incomplete trace header"),
        (lambda header, head: header.pop("__metadata__"), "no trace of openvrex"),
        (
            lambda header, head: header["__metadata__"].update(other=header["__metadata__"].pop(trace.KEY)),
            "no trace of",
        ),
        (lambda header, head: header.update(x=header.pop("k")), "tensor k is missing"),
        (lambda header, head: header.update(x=header.pop("v")), "tensor x is unknown"),
        (lambda header, head: header["k"].update(dtype="F16"), "k is F16, not BF16"),
        (lambda header, head: header["q"].update(shape=[2, 4, 3, 16]), "q has shape"),
    ],
)
def test_a_file_that_is_not_this_trace(tmp_path, change, why):
    path = tmp_path / "t.safetensors"
    tiny().save(path)
    rewrite(path, change)
    with pytest.raises(TraceError, match=why) as e:
        Trace.load(path)
    assert str(e.value).startswith(f"{path}: ")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("data", [b"", b"text", b"\0" * 64, b"\xff" * 64])
def test_a_file_that_is_no_safetensors(tmp_path, data):
    path = tmp_path / "t.safetensors"
    path.write_bytes(data)
    with pytest.raises(TraceError, match="t.safetensors: damaged, or not a safetensors file"):
        Trace.load(path)
    with pytest.raises(TraceError, match=f"{tmp_path}/absent: cannot be read"):
        Trace.load(tmp_path / "absent")


def test_any_damaged_byte_is_found(tmp_path):
    path = tmp_path / "t.safetensors"
    tiny().save(path)
    raw = path.read_bytes()
    for i in range(0, len(raw), 3):
        bad = bytearray(raw)
        bad[i] ^= 0x11
        path.write_bytes(bad)
        try:
            t = Trace.load(path)
        except TraceError:
            continue
        # What may still load differs in its provenance or in a name of the header only.
        np.testing.assert_array_equal(t.k, tiny().k)
        np.testing.assert_array_equal(t.q, tiny().q)


# The command


def test_command_writes_a_trace_and_its_summary(tmp_path, small, small_models):
    out = tmp_path / "t.safetensors"
    line = ["trace", str(small), "-o", str(out), "--frames", "3", "--tokens", "4", "--layers", "0,1"]
    line += ["--queries", "1", "--json"]
    result = vrex(*line)
    summary = json.loads(result.stdout)
    t = Trace.load(out)
    assert (summary["frames"], summary["tokens"], summary["sha256"]) == (3, t.tokens, video.digest(out))
    assert summary["model"]["rotary"]["base"] == t.model.rotary_base == 1e5
    expected = "vrex trace small.mp4 -o t.safetensors --frames 3 --tokens 4 --layers 0,1 --queries 1"
    assert t.provenance["command"] == expected
    assert str(tmp_path) not in json.dumps(t.provenance)
    assert "tokens per frame" in tried(*line[:-1]).stdout


@pytest.mark.parametrize("case", CASES)
def test_command_on_a_bad_video_is_one_line_and_leaves_nothing(tmp_path, small, small_models, case):
    path, why = bad_inputs(tmp_path, small)[case]
    out = tmp_path / "out"
    result = refuses("trace", str(path), "-o", str(out / "t.safetensors"), "--layers", "0")
    assert re.search(why, result.stderr)
    assert not out.exists()
