"""`vrex papers calibrate`: matrices of a real decoder serve the policy `pages`; bad input is named."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.policies.registry import override
from openvrex.golden.retrieval.key_matrices import load
from openvrex.papers.policies.registry import entry
from openvrex.papers.recall.recall_run import MODELS, Case, recall
from tb.tests.commands import vrex
from tb.tests.golden.inputs.trace_samples import models

pytestmark = models


@pytest.fixture
def two_layers(monkeypatch):
    """The real decoder's first two layers."""
    own = MODELS["smollm2"]

    class Short(own):  # type: ignore[misc,valid-type]
        def __init__(self, depth=None, n_tokens=4096):
            super().__init__(2, n_tokens)

    monkeypatch.setitem(MODELS, "smollm2", Short)


def test_matrices_of_a_model_are_made_and_used(two_layers, tmp_path):
    """Of two texts. Pages are chosen otherwise than by rows that know no model; both are better than one page."""
    text, file = tmp_path / "text", tmp_path / "m.npz"
    text.write_text("A line of a text that says little, but not the same. " * 40 + "Another one: 1, 2, 3. " * 60)
    run = vrex("papers", "calibrate", str(text), str(text), "--tokens", "700", "-o", str(file))
    assert f"{file}: 2 layers, 3 KV heads, 18 numbers a code" in run.stdout.replace("\n", "")
    assert len(load(file, 2, 3, 18, 64)) == 2
    errors = []
    for matrices, budget in (("plain", 8), ("plain", 64), (str(file), 64)):
        found = entry("pages")
        changes = {"matrices": matrices, "budget": str(budget), "recent": "64", "mean": "64", "sinks": "0"}
        found = replace(found, params=override(found.params, changes))
        done = recall(Case("lookup", tokens=600, reader="full"), found, 2)
        assert budget - 8 < done.tokens <= budget  # the first rows find less than a page
        errors.append(done.error)
    window, plain, calibrated = errors
    assert plain != calibrated
    assert max(plain, calibrated) < window


def test_full_attention_reads_for_all(two_layers):
    """A policy that attends to everything gives the same figures whoever read the text."""
    own, full = (recall(Case("keys", tokens=400, reader=r), entry("full"), 2) for r in ("policy", "full"))
    assert np.isfinite(own.text_loss)
    assert replace(own, seconds=0) == replace(full, seconds=0)
