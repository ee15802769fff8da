"""A whole decoder on a golden core: against the FP32 decoder under the policy ReSV, with corners of streams."""

import numpy as np
import pytest

from golden.program.layer_memory import Register
from golden.program.model_host import HEAD, ModelHost, Step
from tb.library.small_models import LAYERS, SHAPE, PolicyRun, function, host, model, params, parts


def relative(have: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(have - want) / np.linalg.norm(want))


def play(h: ModelHost, given: list[np.ndarray], generate: int = 0) -> list[Step]:
    """The steps of a stream, each of which golden has executed."""
    out = []
    for step in h.stream(given, generate):
        h.run(step)
        out.append(step)
    return out


def passes(steps: list[Step]) -> list[tuple[int, int]]:
    """Part and tokens of each pass."""
    return list({s.number: (s.part, s.tokens) for s in steps}.values())


@pytest.mark.parametrize(("seed", "tied"), [(3, True), (1, False)])
def test_a_stream_equals_the_policy_in_fp32(seed, tied):
    """Prompt in two passes, frames, one of them empty, a question longer than a pass, three tokens.

    Both retrieve the same number of entries for each layer and head. The core rounds activations to BF16.
    """
    own = model(seed, tied)
    h, wanted = host(own), PolicyRun(own, function(params()))
    given = parts(own, [5, 3, 3, 0, 3, 4])
    x, want = np.concatenate(given), (np.zeros(0),) * 3
    fetched, counts, steps = np.zeros((LAYERS, SHAPE.kv_heads)), [], []
    for step in h.stream(given, 3):
        h.run(step)
        steps.append(step)
        if step.phase == HEAD:
            token = int(np.argmax(want[1]))
            assert relative(h.logits(), want[1]) < 0.02
            x = np.concatenate([x, own.embeddings[[token]]])
            assert token == int(np.argmax(h.logits()))
        elif step.phase == "attention":
            fetched[step.layer, step.group] = h.system.cores[0].registers[Register.ENTRIES]
        elif step.phase == "down" and step.layer == LAYERS - 1:
            want = wanted.step(x[step.start : step.start + step.tokens])
            assert relative(h.hidden(step.tokens)[-1], want[0]) < 0.01
            assert np.array_equal(fetched, want[2])
            counts.append(fetched.copy())
    assert passes(steps) == [(0, 3), (0, 2), (1, 3), (2, 3), (4, 3), (5, 3), (5, 1), (6, 1), (7, 1)]
    assert sum(step.phase == HEAD for step in steps) == len(h.tokens) == 3
    chosen = np.stack(counts)
    assert (chosen[-4:] > 0).all()
    offloaded = h.length - SHAPE.recent
    assert (chosen[-1] < offloaded).any()  # the retrieval leaves some out
