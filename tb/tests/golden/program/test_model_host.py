"""A whole decoder on a golden core: against the FP32 decoder under the policy ReSV, with corners of streams."""

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.program.isa import Status
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.lxe_model import LxeError
from openvrex.golden.program.lxe_model import play as simulated
from openvrex.golden.program.model_host import HEAD, ModelHost, ModelStep, blocks_needed
from openvrex.golden.retrieval.table_image import image
from openvrex.tb.library.policy_passes import PolicyPasses, resv
from openvrex.tb.library.small_models import LAYERS, SHAPE, PlainDecoder, function, host, model, params, parts


def relative(have: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(have - want) / np.linalg.norm(want))


def play(h: ModelHost, given: list[np.ndarray], generate: int = 0) -> list[ModelStep]:
    """The steps of a stream, each of which golden has executed."""
    out = []
    for step in h.stream(given, generate):
        h.run(step)
        out.append(step)
    return out


def passes(steps: list[ModelStep]) -> list[tuple[int, int]]:
    """Part and tokens of each pass."""
    return list({s.number: (s.part, s.tokens) for s in steps}.values())


@pytest.mark.parametrize(("seed", "tied"), [(3, True), (1, False)])
def test_a_stream_equals_the_policy_in_fp32(seed, tied):
    """Prompt in two passes, frames, one of them empty, a question longer than a pass, three tokens.

    Both retrieve the same number of entries for each layer and head. The core rounds activations to BF16.
    """
    own = model(seed, tied)
    h, decoder = host(own), PlainDecoder(own, 64)
    wanted = PolicyPasses(decoder, resv(decoder, function(params()), params().lxe_format().dot))
    given = parts(own, [5, 3, 3, 0, 3, 4])
    x = np.concatenate(given)
    fetched, counts, steps = np.zeros((LAYERS, SHAPE.kv_heads)), [], []
    for step in h.stream(given, 3):
        h.run(step)
        steps.append(step)
        if step.phase == HEAD:
            token = int(np.argmax(wanted.logits))
            assert relative(h.logits(), wanted.logits) < 0.02
            x = np.concatenate([x, own.embeddings[[token]]])
            assert token == int(np.argmax(h.logits()))
        elif step.phase == "attention":
            fetched[step.layer, step.group] = h.system.cores[0].registers[Register.ENTRIES]
        elif step.phase == "down" and step.layer == LAYERS - 1:
            assert np.array_equal(fetched, wanted.take_pass(x[step.start : step.start + step.tokens]))
            assert relative(h.hidden(step.tokens)[-1], wanted.hidden) < 0.01
            counts.append(fetched.copy())
    assert passes(steps) == [(0, 3), (0, 2), (1, 3), (2, 3), (4, 3), (5, 3), (5, 1), (6, 1), (7, 1)]
    assert sum(step.phase == HEAD for step in steps) == len(h.tokens) == 3
    chosen = np.stack(counts)
    assert (chosen[-4:] > 0).all()
    offloaded = h.length - SHAPE.recent
    assert (chosen[-1] < offloaded).any()  # the retrieval leaves some out


def test_corners_of_streams():
    """A prompt of one token, no frame, no question; then a stream that goes on where the first ended."""
    own = model(1)
    h = host(own)
    first = play(h, parts(own, [1]), 2)
    assert passes(first) == [(0, 1), (1, 1)]
    assert [s.start for s in first if s.phase == HEAD] == [0, 1]
    second = play(h, parts(own, [0, 2]))
    assert passes(second) == [(1, 2)]
    assert second[0].start == 2
    assert not any(s.phase == HEAD for s in second)
    assert (h.length, h.passes, len(h.tokens)) == (4, 3, 2)
    assert play(h, parts(own, [0])) == []
    with pytest.raises(ParamError, match="parts=1: must hold a token, after which others are generated"):
        next(h.stream(parts(own, [0]), 1))
    with pytest.raises(ParamError, match=r"part=\(2, 8\): must have width = 16 numbers a token"):
        next(h.stream([np.zeros((2, 8), np.float32)]))


def test_tables_in_memory_are_those_of_the_engine():
    """After a stream, memory holds what all contexts come to, though each step writes those of one."""
    own = model(1)
    h = host(own)
    play(h, parts(own, [3, 3, 3, 3]))
    region = next(r for r in h.memory.regions if r.name == "tables 0")
    whole = image(h.sizes.layout, h.system.cores[0].dre)
    assert len(whole) > 4 * 10
    for at, word in whole.items():
        assert region.data[at : at + len(word)].tobytes() == word


def test_the_end_of_text_ends_the_answer():
    own = model(1, tied=False)
    given = parts(own, [3])
    whole = host(own)
    play(whole, given, 4)
    assert len(whole.tokens) == 4
    stop = whole.tokens.index(whole.tokens[1])
    ended = host(own, end=whole.tokens[stop])
    steps = play(ended, given, 4)
    assert ended.tokens == whole.tokens[: stop + 1]
    assert len(passes(steps)) == stop + 1


def test_steps_are_ordered_by_semaphores_alone():
    """Of every phase and size of pass, with entries behind the ring; nothing waits for ever or is read too early."""
    own = model(1)
    h = host(own)
    checked = set()
    for step in h.stream(parts(own, [3, 3, 3, 3, 2]), 2):
        result = h.run(step)
        if step.start >= SHAPE.recent:
            order = simulated(result.issues, params().lxe_format())
            assert (order.waiting, order.left, order.hazards) == ({}, {}, [])
            checked.add((step.phase, step.tokens))
    assert len(checked) == 3 * 5 + 2


def test_programs_and_weights_serve_all_layers_and_heads():
    """One program for each phase and size of pass; a stream changes no weight."""
    own = model(1)
    h = host(own)
    before = {r.name: r.data.copy() for r in h.memory.regions}
    steps = play(h, parts(own, [3, 3, 2]), 1)
    kinds = {(s.phase, s.tokens) for s in steps if s.phase != HEAD}
    programs = {id(s.program) for s in steps}
    assert len(kinds) == 5 * 2
    registers = {(s.phase, s.tokens, s.layer, s.group): s.registers for s in steps}
    assert all(registers[s.phase, s.tokens, s.layer, s.group] == s.registers for s in steps)
    assert len(programs) == len(kinds) + 1
    for layer, plan in enumerate(h.system.plans[0]):
        for name, array in plan.weights.arrays.items():
            if name.endswith("_weight"):
                for group in range(h.system.shares.groups if name in ("qkv_weight", "hash_weight") else 1):
                    at = h.system.address(0, array, layer, group)
                    r = h.memory.region(at, array.size)
                    own_bytes = slice(at - r.base, at - r.base + array.size)
                    assert before[r.name][own_bytes].any()
                    assert np.array_equal(r.data[own_bytes], before[r.name][own_bytes])
    region = next(r for r in h.memory.regions if r.name == "head weights")
    assert np.array_equal(region.data, before["head weights"])


def test_a_stream_longer_than_memory_says_how_much_it_needs():
    own = model(1)
    given = parts(own, [3] * 3)
    h = host(own, blocks=35, th_hd=0)  # every token opens a cluster
    with pytest.raises(LxeError, match="the map has no free block among 35: raise blocks") as e:
        play(h, given)
    assert e.value.status == Status.FULL
    assert "A stream of 9 tokens needs at most blocks = 36 (4,608 bytes of home memory)" in str(e.value)
    enough = host(own, blocks=36, th_hd=0)
    assert len(passes(play(enough, given))) == 3
    assert enough.system.cores[0].dre.kv.fresh == 36
    reason = r"make more room behind the ring\. A stream of 36 tokens .* entries = 28 behind the ring"
    with pytest.raises(LxeError, match=reason):
        play(host(own, ratio_q16=65536), parts(own, [3] * 12))


def test_room_for_any_stream():
    """Chains of blocks by hand: each cluster may leave a block with one entry."""
    assert blocks_needed(1, 4, 2, 3) == 3
    assert blocks_needed(100, 4, 2, 1) == 52
    for entries in range(12):
        worst = max(
            sum(-(-n // 4) for n in (a, b, entries - a - b)) for a in range(entries + 1) for b in range(entries + 1 - a)
        )
        assert blocks_needed(entries, 3, 4, 1) == worst
