"""Windows that a policy moves, on a golden core: decisions, slots, turned keys, and hidden states against FP32."""

from dataclasses import fields, replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.light_attention import turn_keys
from openvrex.golden.policies.policy_run import decoder_shape
from openvrex.golden.policies.stream_runs import DecoderStream, Options, Segment
from openvrex.golden.policies.window_decisions import WINDOWED, Decider, decide, windowed
from openvrex.golden.program.deadlock_hazard_check import play
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.window_host import WindowHost
from openvrex.golden.program.window_plan import WindowPlan
from openvrex.golden.program.window_slots import Decision, Events, Piece, Slots, sizes
from openvrex.hdl.params import preset
from openvrex.tb.library import small_models
from openvrex.tb.library.small_windows import HISTORY, SMALL, SmallDecoder, frame, policy, seen, segments
from openvrex.tb.library.window_stream import BRANCH, ROUNDING, ROUNDINGS, Reference, WindowStream, blocks
from tb.tests.golden.inputs.trace_samples import models

DECODER = SmallDecoder()
# Bound of the distance of hidden states from FP32: on its way through a layer a number is rounded to BF16 eight times
# (norm, q k v, rotary, probabilities, attention, norm, gate, product), each time by at most 2^-8 of its size. To first
# order that adds up, if nothing amplifies it. Another choice of tokens moves these streams four times as far.
ERROR = small_models.LAYERS * 8 * 2**-8


SEEN = 0.02  # bound of what an encoder's embeddings are off by (test_encoder.py), which the layers do not amplify here
HYBRID = small_models.params("features=hybrid")
# With the history branch a number is rounded once more, when the branch is added to attention. The branch's output is
# off by at most 2^-5 of itself (test_branch.py), and it moves hidden states by less than an eighth: 2^-8 in all.
WITH_BRANCH = small_models.LAYERS * 10 * 2**-8
ALONE = 2.0**-5  # bound of the state's error where the branch's input is exact


def stream(name: str, given: list[Segment], tokens: int = 5, most: int = 0, slots: int = 0, **params) -> WindowStream:
    """Run a policy on a stream. `most` : of a pass, with the weights' layout of passes of `tokens`."""
    core = HYBRID if params.get("ssm") == "random" else small_models.params()
    out = WindowStream(policy(name, **params), given, DECODER, core, tokens, slots)
    out.host.slots.most = most or out.host.slots.most
    for one in out:
        one.run()
    return out


def reference(name: str, given: list[Segment], **params) -> Reference:
    out = Reference(policy(name, **params), DECODER)
    out.take_in(given)
    return out


def equal(out: WindowStream, want: Reference, error: float = ERROR) -> None:
    """Decisions are the policy's, block by block; hidden states are near those of FP32."""
    assert not out.disagreements(want)
    assert len(want.chosen) == sum(len(d.rows) > 0 for d in out.decisions)
    errors = [x for x in out.errors(want) if x is not None]
    assert 0 < max(errors) < error


def states(out: WindowStream, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """State [inner, state] and last inputs [taps - 1, inner] of a layer's branch."""
    p, h = out.plan.branch, out.host
    assert p is not None
    state, kept = (h.memory.get(h.address(p[n], layer), p[n].shape, p[n].dtype) for n in ("state", "kept"))
    return state.swapaxes(1, 2).reshape(p.inner, -1), kept.astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWED)
def test_a_stream_equals_the_policy(name):
    given = segments()
    out = stream(name, given)
    equal(out, reference(name, given))
    if name != "full":  # so the agreement is not that of any choice
        want = reference("full", given).outputs[-1]
        assert np.linalg.norm(out.outputs[-1] - want) > 4 * ERROR * np.linalg.norm(want)
    for event in WINDOWED[name]:
        assert getattr(out.events, event) > 0, event


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "params"),
    [
        (segments(), {}),
        # A prompt of one token; a question longer than two passes; no sinks.
        (segments(frames=3, prompt=1, question=11), {"sink_blocks": 0, "block_tokens": 3}),
        # A pass with fewer tokens than the convolution has taps, and a stream of single tokens.
        (segments(frames=1, prompt=2, question=1, after=4), {"recent_blocks": 1, "eviction": "mask"}),
        (segments(frames=2, tokens=5), {"recent_blocks": 2, "state.conv": 2, "state.expand": 1}),
    ],
)
def test_the_history_branch_joins_attention(given, params):
    """Hidden states and each layer's state against the FP32 policy, whose branch has the same weights."""
    params = HISTORY | params
    out, want = stream("hybrid", given, **params), reference("hybrid", given, **params)
    equal(out, want, WITH_BRANCH)
    for layer in range(small_models.LAYERS):
        exact = want.policy.states[layer]
        bound = ALONE + (WITH_BRANCH if layer else 0)
        for got, whole in zip(states(out, layer), (exact.h[0], exact.conv[0]), strict=True):
            assert 0 < np.linalg.norm(got - whole) < bound * np.linalg.norm(whole)
    # Without its branch the policy is far from what the core computes.
    plain = reference("hybrid", given, **params | {"ssm": "disabled"})
    moved = [np.linalg.norm(a - b) / np.linalg.norm(a) for a, b in zip(want.outputs, plain.outputs, strict=True)]
    errors = [x for x in out.errors(want) if x is not None]
    assert 4 * max(errors) < max(moved) < 1 / 8
    e, rows = out.events, sum(len(s.x) for s in given)
    assert e.scanned == rows * small_models.LAYERS
    assert e.carried == (e.passes - 1) * small_models.LAYERS
    assert (e.evicted > 0) == (e.dropped > 0)
    assert e.dropped > 0


@pytest.mark.slow
def test_how_a_stream_is_cut_changes_no_bit_of_the_state():
    given = segments(frames=2, question=1)
    whole, cut = (stream("hybrid", given, 16, most=n, **HISTORY) for n in (0, 1))
    assert cut.events.carried > whole.events.carried
    assert np.array_equal(np.concatenate(whole.outputs), np.concatenate(cut.outputs))
    for layer in range(small_models.LAYERS):
        for a, b in zip(states(whole, layer), states(cut, layer), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.slow
def test_a_block_without_rows_leaves_the_state():
    given = segments(frames=1, question=1)
    out = stream("hybrid", given, **HISTORY)
    before = [x.tobytes() for x in states(out, 1)]
    last, none = out.decisions[-1], np.zeros(0, np.int64)
    stop = last.stop + 2
    keep, turn = np.zeros(stop, bool), np.zeros(stop, np.int64)
    keep[: last.stop] = last.keep
    empty = Decision(last.index + 1, "frame", last.stop, stop, none, none, keep, turn)
    assert not list(out.host.block(empty, np.zeros((2, 16))))
    assert [x.tobytes() for x in states(out, 1)] == before


@pytest.mark.slow
def test_a_layer_is_cut_into_programs_where_it_must_be():
    """Programs of a smaller memory leave the same bits; scores and softmax, which share registers, stay together."""
    given, params = segments(frames=2, prompt=1, question=1), HISTORY
    outs = []
    for depth in (1024, 256):
        core = small_models.params("features=hybrid", f"lxe.i_depth={depth}")
        out = WindowStream(policy("hybrid", **params), given, DECODER, core, 5)
        parts = []
        for one in out:
            one.run()
            parts.append(one.step.part)
        outs.append((max(parts), np.concatenate(out.outputs).tobytes()))
    assert [n > 0 for n, _ in outs] == [False, True]
    assert len({x for _, x in outs}) == 1
    plan = out.plan
    fits = {i.op.name for program in plan.programs("norm1", "down") for i in program}
    assert fits == {i.op.name for s in plan.stages for i in plan.program(s.name, s.name)}
    with pytest.raises(ParamError, match=r"instructions of scores to values=\d+: must be at most i_depth = 32"):
        WindowPlan(plan.shape, replace(plan.fmt, i_depth=32), 0).programs("scores", "values")


# Corners


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given", "params"),
    [
        # The sinks reach into the first frame.
        ("streamingllm", segments(frames=4, prompt=1, question=2), {}),
        ("streamingllm", segments(frames=2, question=1), {"sinks": 0, "recent": 0}),
        ("codecsight", segments(frames=5, prompt=1, question=1), {}),
        # The window moves by all its frames.
        ("codecsight", segments(frames=4, question=1), {"window": 2, "stride": 2}),
        ("codecsight", segments(frames=5, question=1), {"refresh": False}),
        # A class token always enters. An I-frame that is refreshed is longer than a pass, and so is a question.
        ("codecsight", segments(frames=4, tokens=5), {"window": 3, "stride": 2}),
        ("hybrid", segments(frames=3, prompt=1, question=1), {"block_tokens": 3, "recent_blocks": 1}),
        ("hybrid", segments(frames=3, question=1), {"sink_blocks": 0}),
    ],
)
def test_corners(name, given, params):
    out = stream(name, given, 4, **params)
    equal(out, reference(name, given, **params))
    assert out.events.dropped > 0


@pytest.mark.slow
def test_a_wholly_pruned_frame_has_no_pass():
    """The window moves on at a frame whose own tokens are all pruned, too."""
    given = segments(frames=6, question=1)
    given[6] = replace(given[6], frame=frame(5, []))
    params = {"window": 3, "stride": 2}
    out = stream("codecsight", given, **params)
    equal(out, reference("codecsight", given, **params))
    rows = [(len(d.admitted), len(d.refreshed)) for d in out.decisions[1:7]]
    assert rows == [(4, 0), (2, 0), (4, 0), (0, 4), (4, 0), (0, 4)]
    assert [len(x) for x in out.outputs[1:7]] == [admitted for admitted, _ in rows]


@pytest.mark.slow
def test_text_between_frames_stays_and_turns():
    """A question in the middle of the frames is text before the window later."""
    params = {"window": 2, "stride": 2}
    given = segments(frames=2, prompt=2, question=1, after=0) + segments(frames=6, prompt=1, question=1, seed=5)[1:]
    shown = [i for i, s in enumerate(given) if s.stage == "frame"]
    for k, i in enumerate(shown):
        given[i] = replace(given[i], frame=frame(k, []))
    out = stream("codecsight", given, **params)
    equal(out, reference("codecsight", given, **params))
    text = [0, 1, 10]  # the prompt, and the question behind two frames
    assert out.decisions[-1].keep[text].all()
    assert out.decisions[-1].turn[text].tolist() == [12, 12, 8]


@pytest.mark.slow
def test_how_rows_are_cut_into_passes_changes_no_bit():
    """So a refreshed frame may be a pass of its own, or go together with the new one as in the policy."""
    given = segments(frames=5, question=1)
    whole, cut = stream("codecsight", given, 16), stream("codecsight", given, 16, most=2)
    assert cut.events.passes > whole.events.passes
    assert whole.events.refreshed > 0
    assert np.array_equal(np.concatenate(whole.outputs), np.concatenate(cut.outputs))


@pytest.mark.slow
def test_an_i_frame_is_refreshed_across_the_end_of_the_pool():
    given = segments(frames=9, question=1, after=0)
    out = WindowStream(policy("codecsight"), given, DECODER, small_models.params(), 5)
    wrapped = 0
    for one in out:
        one.run()
        of = one.step.of
        wrapped += isinstance(of, Piece) and of.refreshed > 0 and bool((np.diff(of.slots[: of.refreshed]) < 0).any())
    assert wrapped
    equal(out, reference("codecsight", given))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["codecsight", "streamingllm"])
def test_frames_are_encoded_on_the_core(name):
    """CodecSight's in part, the patches of the tokens that it keeps; others whole. Hidden states are near FP32's."""
    core, pruned = small_models.params(), name == "codecsight"
    vision, given = seen(segments(), core, pruned)
    out = WindowStream(policy(name), segments(), DECODER, core, 5, vision=vision)
    passes = []
    for one in out:
        one.run()
        passes.append(one)
    equal(out, reference(name, given), ERROR + SEEN)
    kept = {int(frame.keep.sum()) for frame in vision.frames.values()} if pruned else {4}
    assert len(kept) > 1 or not pruned
    facts = [one.facts(None) for one in passes]
    seen_tokens = {of["tokens"] for of in facts if of["kind"] == "vision"}
    assert seen_tokens == {1 + 4 * n for n in kept if n}
    assert len(passes) == out.total


@pytest.mark.slow
def test_keys_turn_from_their_first_form():
    """After many shifts a sink's key is the first one turned once, so it is rounded once more and not once a shift."""
    given = segments(frames=4, question=1, after=4)
    out, first = WindowStream(policy("streamingllm"), given, DECODER, small_models.params(), 5), {}
    h = out.host

    def keys(layer: int) -> np.ndarray:
        s = h.plan.shape
        ring = h.memory.get(h.address(h.plan["ring"], layer), (s.recent, 2, s.kv_heads, s.head_size), BF16)
        return ring[h.slots.slot[:2], 0].astype(np.float32)

    for one in out:
        one.run()
        if one.step.block == 0:
            first[one.step.layer] = keys(one.step.layer)
    gone = out.decisions[-1].turn[:2]
    assert out.events.turned > 20
    for layer in range(small_models.LAYERS):
        want = turn_keys(first[layer].swapaxes(0, 1), gone, DECODER.frequencies).swapaxes(0, 1)
        # FP32 sums in another order: a BF16 rounding may fall on the other side.
        np.testing.assert_allclose(keys(layer), want, rtol=2**-7, atol=1e-6)
        assert (keys(layer) == want).mean() > 0.9


def test_another_decision_is_told():
    given = segments(frames=4)
    out, want = (WindowStream(policy("codecsight"), given, DECODER, small_models.params(), 4), reference("full", given))
    other = [f"frame {k}: {what} tokens are not the policy's" for k in (2, 4) for what in ("rows", "kept")]
    told = out.disagreements(want)
    assert told[:2] == other[:2]
    assert len(told) > 4
    turned = WindowStream(policy("streamingllm"), given, DECODER, small_models.params(), 4)
    assert not turned.disagreements(reference("streamingllm", given))
    turned.decisions[-1].turn[0] += 1
    assert turned.disagreements(reference("streamingllm", given)) == [
        "generation 6: turned tokens are not the policy's"
    ]


def test_a_dropped_token_is_never_seen_and_its_slot_is_used_again():
    given = segments(frames=8)
    found = decide(policy("streamingllm"), decoder_shape(DECODER), blocks(given))
    need, places = sizes(found)
    pool, used = Slots(need, 3, places), set()
    for d in found:
        pool.turns(d)
        for piece in pool.pieces(d):
            for t, row in zip(piece.tokens, piece.seen, strict=True):
                assert sorted(pool.token[row]) == [x for x in np.flatnonzero(d.keep) if x <= t]
            used |= {(int(s), int(t)) for s, t in zip(piece.slots, piece.tokens, strict=True)}
    assert len(used) > 2 * need
    assert places == 2


@pytest.mark.slow
def test_programs_have_no_hazard():
    """Engines run side by side; passes in one run of slots and in two, keys that are kept and turned."""
    given, seen = segments(frames=4, question=1, after=0), set[object]()
    for one in (branch := WindowStream(policy("hybrid", **HISTORY), given[:2], DECODER, HYBRID, 5)):
        assert not play(one.run().issues, branch.plan.fmt).problems()
    out = WindowStream(policy("streamingllm", recent=4), given, DECODER, small_models.params(), 4)
    for one in out:
        of, result = one.step.of, one.run()
        kind = int((np.diff(of.slots) != 1).sum()) if isinstance(of, Piece) else f"turn {of.fresh}"
        if kind not in seen:
            assert not play(result.issues, out.plan.fmt).problems()
        seen.add(kind)
    assert seen == {0, 1, "turn True", "turn False"}


# Messages


def test_a_policy_that_adds_to_attention_is_refused():
    with pytest.raises(ParamError, match="policy='Hybrid': must keep whole tokens, and attend to nothing else"):
        Decider(policy("hybrid", ssm="random").build(decoder_shape(DECODER))).step(blocks(segments(1))[0])


def test_a_branch_needs_the_functions_of_a_scan():
    with pytest.raises(ParamError, match="features='': must have hybrid.*: add -p features=hybrid"):
        WindowStream(policy("hybrid", ssm="random"), segments(1), DECODER, small_models.params())


def test_other_policies_have_no_hardware():
    with pytest.raises(ParamError, match="policy='rekv': must be resv, mosaic or one of full, streamingllm, "):
        windowed("rekv")


def test_a_pool_that_is_too_small():
    with pytest.raises(ParamError, match="slots=8: must be at least 16, or 0: as many"):
        stream("streamingllm", segments(), slots=8)
    with pytest.raises(ParamError, match="tokens=0: of a pass must be at least 1"):
        stream("streamingllm", segments(), 0)
    found = decide(policy("full"), decoder_shape(DECODER), blocks(segments(1)))
    pool = Slots(5, 3, 0)
    pool.turns(found[0])
    list(pool.pieces(found[0]))
    pool.turns(found[1])
    with pytest.raises(ParamError, match="slots=5: must be at least 7, the tokens in the window at block 1"):
        list(pool.pieces(found[1]))


def test_a_place_for_every_turned_key():
    found = decide(policy("streamingllm"), decoder_shape(DECODER), blocks(segments()))
    pool = Slots(sizes(found)[0], 3, 1)
    last = next(i for i, d in enumerate(found) if d.turn.any())
    for d in found[:last]:
        pool.turns(d)
        list(pool.pieces(d))
    with pytest.raises(ParamError, match="places=1: must be at least 2, the keys that are turned so far"):
        pool.turns(found[last])


def test_a_computed_token_is_not_turned():
    none = np.zeros(3, np.int64)
    d = Decision(0, "prompt", 0, 3, np.arange(3), np.arange(3), np.ones(3, bool), none + [0, 1, 0])
    with pytest.raises(ParamError, match=r"turn=\[1\]: must not name computed tokens"):
        Slots(4, 3, 3).turns(d)


def test_bad_shapes_and_blocks():
    shape, fmt = replace(small_models.SHAPE, entries=0), small_models.params().lxe_format()
    with pytest.raises(ParamError, match="entries=8: must be 0"):
        WindowPlan(replace(shape, entries=8), fmt, 0)
    with pytest.raises(ParamError, match="places=-1"):
        WindowPlan(shape, fmt, -1)
    plan = WindowPlan(shape, fmt, 0)
    assert "kept" not in plan.arrays
    with pytest.raises(ParamError, match="tokens=4: must be at most the plan's 3"):
        plan.of(4)
    with pytest.raises(ParamError, match=r"slots=\[0, 2, 4\]: must be two runs at most: cut the pass"):
        plan.addresses(np.array([0, 2, 4]), 0, 0)
    with pytest.raises(ParamError, match="slots=2: must be 3, one for each token"):
        plan.addresses(np.arange(2), 0, 0)
    with pytest.raises(ParamError, match=r"seen=\(3, 4\): must be \(3, 8\)"):
        plan.inputs_of(np.zeros((3, 16)), *np.zeros((2, 3, 4)), np.ones((3, 4), bool))
    host = WindowHost(plan, small_models.model(1).layers, np.array(DECODER.frequencies))
    d = Decision(0, "prompt", 1, 3, np.arange(1, 3), np.arange(2), np.ones(3, bool), np.zeros(3, np.int64))
    with pytest.raises(ParamError, match="start=1: must be 0, the tokens so far"):
        next(host.block(d, np.zeros((2, 16))))
    with pytest.raises(ParamError, match=r"x=\(2, 15\): must be \(3, 16\), the embeddings of the block"):
        next(host.block(replace(d, start=0), np.zeros((2, 15))))


def test_a_layer_of_one_token_and_one_head():
    shape = LayerShape(width=4, heads=1, kv_heads=1, head_size=4, ffn=4, tokens=1, recent=8, entries=0)
    plan = WindowPlan(shape, small_models.params().lxe_format(), 1)
    assert [s.name for s in plan.stages][:3] == ["keep", "turn", "norm1"]


def test_every_window_has_a_size_and_known_events():
    assert SMALL.keys() == WINDOWED.keys()
    assert {event for own in WINDOWED.values() for event in own} <= {f.name for f in fields(Events)}


@models
@pytest.mark.nightly
def test_every_layer_of_the_real_decoder_has_its_branch(tmp_path):
    """All of SmolLM2 on golden at full size: events, and the words that the core's hidden states choose."""
    shown = DecoderStream("world", Options(3, 10, None, "What is it?", 3), tmp_path, lambda done, total: None)
    params = {"ssm": "random", "block_tokens": 8, "recent_blocks": 1, "sink_blocks": 1}
    want, plain = (Reference(policy("hybrid", **params | own), shown.decoder) for own in ({}, {"ssm": "disabled"}))
    given = want.take_in(shown.segments, 3)
    plain.take_in(given)
    out = WindowStream(policy("hybrid", **params), given, shown.decoder, preset("omni").core)
    for one in out:
        one.run()
    assert not out.disagreements(want)
    e, layers = out.events, len(shown.decoder.layers)
    assert layers == 30
    # In so many layers the sum of all roundings says nothing. Those of different steps are independent, so their
    # squares add; the branch's part stays as it is. Without its branch the policy is much farther away.
    roundings = layers * (ROUNDINGS + 1)
    errors, bounds = out.errors(want), want.bounds(plain)
    assert all(0 < x < most - (roundings - roundings**0.5) * ROUNDING for x, most in zip(errors, bounds, strict=True))
    assert max(bounds) - roundings * ROUNDING > BRANCH / 2
    apart = [np.linalg.norm(a - b) / np.linalg.norm(a) for a, b in zip(want.outputs, plain.outputs, strict=True)]
    assert min(apart) > 4 * max(x for x in errors if x is not None)
    assert e.scanned == sum(len(s.x) for s in given) * layers
    assert e.carried == (e.passes - 1) * layers
    assert e.evicted > 0
    said = [out.words(shown.decoder, outputs) for outputs in (out.outputs, want.outputs)]
    assert len(said[0]) == 4
    assert said[0] == said[1]
