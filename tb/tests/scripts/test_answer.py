"""`vrex answer`: a whole decoder on the RTL behind a video and a question; text, figures, page, resumption."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from openvrex.golden.inputs.decoder import N_LAYERS, Decoder
from openvrex.golden.inputs.vision import Projector
from openvrex.golden.policies.stream_runs import DecoderStream, Options
from openvrex.golden.program.encoder_compiler import EncoderShape
from openvrex.golden.program.encoder_host import EncoderWeights
from openvrex.golden.program.model_host import Weights
from openvrex.hdl.params import CLOCK
from openvrex.scripts.run import answer_command, run_options
from openvrex.tb.library import small_encoder, small_models, stage_log
from openvrex.tb.library.page_rules import faults
from openvrex.tb.library.video_question import VideoQuestion, Watched, answer, likeliest
from tb.tests.commands import tried, vrex
from tb.tests.golden.inputs.checkpoints import folder
from tb.tests.golden.inputs.trace_samples import models

SIZES = [4, 2, 2]  # tokens of prompt, frame and question


class SmallEncoder:
    """A small encoder whose picture has random patches."""

    host = small_models.vision()

    def shape(self, tokens: int, width: int) -> EncoderShape:
        return self.host.shape

    def folded(self, projector: Projector) -> EncoderWeights:
        return self.host.weights

    def pixels(self, picture: np.ndarray) -> np.ndarray:
        return small_encoder.patches(self.host.shape, 1)

    @property
    def embeddings(self) -> np.ndarray:
        """Of the picture, in FP64."""
        return small_encoder.exact(self.host.shape, self.host.weights, self.pixels(np.zeros(0)))[1]


class Small(small_models.PlainDecoder):
    """The small decoder with a cache, and numbers as text."""

    tokenizer = SimpleNamespace(decode=lambda ids: f"<{ids[0]}>")
    end = -1

    def __init__(self, layers: int, n_tokens: int):
        super().__init__(small_models.model(1), n_tokens)
        self.k = np.zeros((len(self.layers), self.kv_heads, n_tokens, self.head_size), np.float32)
        self.v, self.q, self.length = np.zeros_like(self.k), [None] * len(self.layers), 0


@pytest.fixture
def small(monkeypatch):
    """The command with the small decoder in place of SmolLM2, and random pictures and texts."""
    own = small_models.model(1)
    monkeypatch.setattr(answer_command, "Decoder", Small)
    monkeypatch.setattr(answer_command, "core", lambda more: small_models.params())
    host = lambda _, p, *rest, vision, streams, **how: small_models.host(own, p, vision=vision, streams=streams)  # noqa: E731
    monkeypatch.setattr(answer_command, "decoder_host", host)
    # The DPE alone: the other tests of small cores follow its chunks too, so that they share a simulator.
    dpe, *_ = stage_log.units(small_models.params())
    monkeypatch.setattr(stage_log, "units", lambda p: [dpe])
    monkeypatch.setattr(run_options, "WORKERS", 1)
    monkeypatch.setattr(VideoQuestion, "pictures", lambda self: [np.zeros((4, 4, 3), np.uint8)] * self.frames)
    watched = Watched(SmallEncoder(), Projector(*np.zeros((3, 1, 1))), given_parts(own))
    monkeypatch.setattr(VideoQuestion, "watch", lambda self, *_: watched)
    return own


def given_parts(own: Weights) -> list[np.ndarray]:
    """Prompt, frame and question."""
    parts = small_models.parts(own, SIZES)
    parts[1] = SmallEncoder().embeddings.astype(np.float32)
    return parts


def test_a_question_is_answered_on_the_rtl(small, tmp_path):
    words = ("--policy", "resv", "--encoder", "numpy", "--frames", 1, "--generate", 2, "-o", tmp_path)
    got = vrex("answer", *words, "--json")
    result = json.loads(got.stdout)
    assert not result["differences"]
    tokens = [token for token, _ in answer(Small(2, 16), given_parts(small), 2)]
    [told] = result["answers"]
    assert told["full"] == [f"<{token}>" for token in tokens]
    assert len(told["text"]) == len(told["probabilities"]) == 2
    assert all(0 < x <= 1 for x in told["probabilities"])
    made = [-(-n // small_models.SHAPE.tokens) for n in SIZES]
    assert [one["part"] for one in result["passes"]] == [part for part, n in enumerate([*made, 1]) for _ in range(n)]
    assert sum(one["tokens"] for one in result["passes"]) == sum(SIZES) + 1
    each = small_models.LAYERS * (4 + small_models.SHAPE.kv_heads)
    assert result["steps"] == len(result["passes"]) * each + 2
    for k, one in enumerate(result["passes"]):
        assert one["cycles"] == sum(cycles[k] for cycles in result["phases"].values())
        assert 0 < one["utilisation"]["DPE"] < 1
    assert all(one["cycles"] == one["predicted"] for one in result["passes"])
    given = [one for one in result["passes"] if one["part"] < len(SIZES)]
    assert all(0 < one["error"] < 0.2 for one in given)
    assert result["passes"][-1]["error"] is None
    entry = 4 * small_models.SHAPE.head_size  # read and written once for each entry that is fetched
    assert all(one["copied"] >= 2 * entry * one["fetched"] for one in result["passes"])
    assert all(one["loaded"] > one["copied"] for one in result["passes"])
    for name, part in (("frames", 1), ("tokens", 3)):
        own = sum(one["cycles"] for one in result["passes"] if one["part"] == part)
        assert result["per_second"][name] == CLOCK / own
    assert result["passes"][-1]["clusters"] > 0
    assert result["passes"][-1]["fetched"] > 0
    assert result["compared"] > 10_000
    assert sum(result["stages"].values()) == sum(one["predicted"] for one in result["passes"])
    assert {"hash", "cluster", "rank", "select", "scores", "head", "argmax"} <= set(result["stages"])
    events = result["events"]
    assert events["entries fetched"] == sum(one["fetched"] for one in result["passes"])
    assert events["clusters opened"] == result["passes"][-1]["clusters"]
    assert all(n for name, n in events.items() if name != "keys that join a cluster")
    page = (tmp_path / "report.html").read_text()
    assert not faults(page)
    assert "Every store and all memory equal golden." in page

    # The same once more: nothing runs again. Then two steps are repeated.
    before = (tmp_path / "passes" / "passes.jsonl").read_bytes()
    assert "Generated text" in tried("answer", *words).stdout
    assert (tmp_path / "passes" / "passes.jsonl").read_bytes() == before
    some = tried("answer", *words, "--from", 3, "--to", 4)
    assert some.stdout.splitlines() == [
        "3: pass 0, layer 0, output: equal",
        "4: pass 0, layer 0, ffn: equal",
    ], some.output


def test_two_videos_at_once_are_told_what_each_is_told_alone(small, monkeypatch, tmp_path):
    """Every step equals golden, text and probabilities those of each video alone; weights are loaded for both."""
    given = {"world": SIZES, "globe": [3, 2, 4]}
    parts = {clip: small_models.parts(small, sizes, seed) for seed, (clip, sizes) in enumerate(given.items())}
    monkeypatch.setattr(answer_command, "core", lambda more: small_models.params("n_ctx=8", "blocks=256"))
    watched = lambda self, *_: Watched(SmallEncoder(), None, parts[self.clip])  # noqa: E731
    monkeypatch.setattr(VideoQuestion, "watch", watched)
    words = ("--policy", "resv", "--encoder", "numpy", "--frames", 1, "--generate", 2, "--json")
    runs = {}
    for clips in (["world"], ["globe"], ["world", "globe"]):
        got = vrex("answer", *clips, *words, "-o", tmp_path / "-".join(clips))
        runs["-".join(clips)] = result = json.loads(got.stdout)
        assert not result["differences"]
        assert all(one["cycles"] == one["predicted"] for one in result["passes"])
        assert [one["clip"] for one in result["answers"]] == clips
    both = runs["world-globe"]
    assert both["answers"] == [*runs["world"]["answers"], *runs["globe"]["answers"]]
    alone = [sum(one["loaded"] for one in runs[clip]["passes"]) for clip in given]
    assert max(alone) < sum(one["loaded"] for one in both["passes"]) < sum(alone)
    page = (tmp_path / "world-globe" / "report.html").read_text()
    assert not faults(page)
    assert "Generated text behind globe" in page


@pytest.mark.parametrize("more", [(), ("block_slots=2", "kept=2")])
def test_an_answer_with_coded_pages(small, monkeypatch, tmp_path, more):
    """Also on a core that keeps blocks in device memory: some are found there, and some given up."""
    own = small_models.page_model(1)
    monkeypatch.setattr(answer_command, "core", lambda _: small_models.params(*small_models.CODES, *more))
    host = lambda *_, pages, **how: small_models.page_host(own, pages, more)  # noqa: E731
    monkeypatch.setattr(answer_command, "decoder_host", host)
    words = ("--policy", "pages", *(x for name in ("page", "budget", "sinks") for x in ("-p", f"pages.{name}=2")))
    words += ("-p", "pages.mean=4", "--encoder", "numpy")
    got = vrex("answer", "--frames", 1, "--generate", 8, "-o", tmp_path, "--json", *words)
    result = json.loads(got.stdout)
    assert result["params"]["budget"] == 2
    assert not result["differences"]
    assert all(one["cycles"] == one["predicted"] for one in result["passes"])
    assert {"code", "resident", "sums", "turn", "rank", "select"} <= set(result["stages"])
    assert all(result["events"].values()), result["events"]
    assert "coded pages: page 2, mean 4, numbers 2, budget 2" in (tmp_path / "report.html").read_text()


def test_frames_are_encoded_on_the_core(small, tmp_path):
    """A picture's programs precede its pass; their embeddings are near those in FP64."""
    got = vrex("answer", "--policy", "resv", "--frames", 1, "--generate", 2, "-o", tmp_path, "--json")
    result = json.loads(got.stdout)
    assert not result["differences"]
    [picture] = [one for one in result["passes"] if one["picture"]]
    assert (picture["part"], picture["tokens"]) == (1, 2)
    assert 0 < picture["error"] < 0.01
    assert picture["cycles"] == picture["predicted"] == result["phases"]["vision"][picture["pass"]]
    assert all(0 < one["error"] < 0.2 for one in result["passes"] if one["part"] < len(SIZES))
    seen = ("embed", "norm1", "attend", "output", "up", "last_norm", "pool", "project_0")
    assert {*(f"vision {name}" for name in seen), "norm1", "output", "hash", "head"} <= set(result["stages"])
    own = sum(one["cycles"] for one in result["passes"] if one["part"] == 1)
    assert result["per_second"]["frames"] == CLOCK / own


def test_the_likeliest_token_has_its_probability():
    logits = np.log(np.array([0.2, 0.5, 0.3], np.float32))
    token, probability = likeliest(logits)
    assert (token, round(probability, 6)) == (1, 0.5)


def test_an_answer_ends_with_the_text():
    """The end-of-text token is the last one."""
    decoder = Small(2, 32)
    given = small_models.parts(small_models.model(1), SIZES)
    first = next(iter(answer(decoder, given, 3)))[0]
    ended = Small(2, 32)
    ended.end = first
    assert [token for token, _ in answer(ended, given, 3)] == [first]


@models
def test_parts_are_prompt_frames_and_question():
    asked = VideoQuestion("world", 2, 10, None, "A film.", "What?")
    decoder = Decoder(1, 1)
    pictures = asked.pictures()
    parts = asked.watch(pictures, decoder).parts
    assert [x.shape[1] for x in parts] == [Decoder.width] * 4
    assert [len(x) for x in parts[1:3]] == [10, 10]
    assert (parts[0] == decoder.embed("<|im_start|>user\nA film.")).all()
    assert (parts[3] == decoder.embed("\nWhat?<|im_end|>\n<|im_start|>assistant\n")).all()
    assert not VideoQuestion("world", 0, 10, None, "", "What?").pictures()


@models
def test_the_stream_of_the_other_policies(tmp_path):
    """With --gop and no prompt the parts are the segments of `vrex run windows`, bit for bit."""
    shown = DecoderStream("world", Options(2, 10, None, "What?", 0, 2, 1), tmp_path, lambda done, total: None)
    asked = VideoQuestion("world", 2, 10, None, "", "What?", gop=2)
    parts = asked.watch(asked.pictures(), shown.decoder).parts
    for part, segment in zip(parts, shown.segments, strict=True):
        assert np.array_equal(part, segment.x)
    plain = VideoQuestion("world", 2, 10, None, "", "What?").pictures()
    assert not all(np.array_equal(a, b) for a, b in zip(asked.pictures(), plain, strict=True))


@models
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("layers", "frames", "generate", "more"),
    [(2, 1, 2, ()), (2, 1, 2, ("-p", "lxe.weights=true")), (N_LAYERS, 4, 8, ())],
)
def test_the_real_decoder(layers, frames, generate, more, tmp_path):
    """The second run takes the 4-bit weights of the model's file, the third the whole model: some three thousand steps,
    half an hour of two cores.
    """
    words = ("--policy", "resv", "--layers", layers, "--frames", frames, "--generate", generate, *more)
    got = vrex("answer", *words, "-o", tmp_path, "--json")
    result = json.loads(got.stdout)
    assert not result["differences"]
    assert len(result["text"]) == generate
    assert all(one["cycles"] == one["predicted"] for one in result["passes"])
    if layers == N_LAYERS:
        assert all(result["events"].values()), result["events"]


@models
@pytest.mark.nightly
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_checkpoint_of_the_user(method, tmp_path):
    """A folder with 4-bit weights, whose ragged groups are told, on the 16 lanes of the command."""
    folder(tmp_path / "mine", method, 128 if method == "gptq" else 32, intermediate_size=160, num_key_value_heads=2)
    words = ("--model", tmp_path / "mine", "--frames", 0, "--policy", "resv", "--generate", 2)
    got = vrex("answer", *words, "-p", "lxe.weights=true", "-o", tmp_path / "run", "--json")
    result = json.loads(got.stdout)
    assert (result["decoder"], result["layers"], result["all_layers"]) == ("mine", 1, 1)
    assert not result["differences"]
    told = "mine: ZERO in groups of 128 become ZERO in groups of 32: 40 bytes for 64 weights"
    assert (told in got.stderr) == (method == "gptq")
    again = vrex("answer", *words, "-p", "lxe.weights=false", "-o", tmp_path / "whole", "--json")
    whole = json.loads(again.stdout)
    assert sum(one["loaded"] for one in result["passes"]) < sum(one["loaded"] for one in whole["passes"])


def test_shorter_slices_of_a_batch_are_told():
    """Its numbers may then be rounded otherwise than those of a video alone."""
    own, plan = object.__new__(answer_command.AnswerRun), SimpleNamespace(finer=("qkv",))
    own.host = SimpleNamespace(system=SimpleNamespace(plans=[[plan]]), head=SimpleNamespace(finer=("head",)))
    [note] = own.warnings({"events": {}})
    assert note.startswith("qkv, head: slices of K are shorter than in a short pass of one video")
    assert "raise -p dpe.x_depth, or take fewer videos or --at-once" in note
