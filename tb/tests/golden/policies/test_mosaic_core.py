"""Mosaic on a golden core: every decision and every number of its tables against the policy in NumPy, and its steps."""

from dataclasses import replace

import numpy as np
import pytest

from golden.function_params import ParamError
from golden.policies.mosaic import Mosaic, MosaicParams
from golden.policies.mosaic_clusters import Threshold
from golden.policies.mosaic_core import CoreLayer
from golden.policies.mosaic_host import MosaicHost
from golden.policies.registry import Entry
from golden.policies.store import HOST
from golden.program.deadlock_hazard_check import play
from tb.library.mosaic_stream import EVENTS, MosaicReference, MosaicStream
from tb.library.small_mosaic import PARAMS, ROOM, shown, stream
from tb.library.small_windows import SmallDecoder


def whole(host: MosaicHost) -> None:
    """Each token is in one cluster at most, and its entry in one slot or at home: none is lost, none is doubled."""
    core, policy = host.core, host.policy
    for layer, state in enumerate(policy.layers):
        sizes = np.bincount(state.cluster[(state.cluster >= 0) & ~state.buffered], minlength=len(state.clusters))
        assert np.array_equal(sizes, state.clusters.size)
        held = np.flatnonzero(core.slot[layer] >= 0)
        assert np.array_equal(core.owner[layer, core.slot[layer, held]], held)
        assert (core.owner[layer] >= 0).sum() == len(held)
        here, home = policy.store.on_device(layer)[0], policy.store.place(layer)[0] == HOST
        assert np.array_equal(np.flatnonzero(here), held[held < len(here)])
        assert (here | home).all()


def run(out: MosaicStream) -> MosaicStream:
    """Run a stream; look where all tokens are after each block."""
    finish = out.twin.finish

    def ended(block):
        finish(block)
        whole(out.host)

    out.twin.finish = ended
    for one in out:
        one.run()
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prefetch": "none", "recent": 16},
        {"defer": False, "adaptive": False},
        {"semantic_level": False},
        {"visual_level": False, "breadth": 1.0, "semantic": Threshold(0.45, 0.65, 4.0)},
    ],
)
def test_every_decision_is_the_policy_s(changes):
    """Choices, members, flags, places; and each bit of centroids, lengths, variances, pairs and sums after each block.

    The policy got NaN for keys, values and queries, so it had no other source for them than the core.
    """
    out = run(stream(shown(frames=7), **changes))
    assert not out.twin.differences
    assert out.twin.compared > 1000
    for name in ("splits", "deferred", "needed", "covered"):
        assert getattr(out.host.policy, name) == getattr(out.twin.policy, name)
    for state in out.host.policy.layers:
        assert np.isnan(state.keys.data).all()
    if not changes:
        for event in EVENTS:
            assert getattr(out.events, event) > 0, event


@pytest.mark.slow
def test_a_wrong_number_is_noticed():
    """A variance that is changed by its last bit makes the comparison fail: it is not blind."""
    out = stream(shown(frames=3), layers=1)
    for one in out:
        one.run()
        if one.job.kind == "put":
            stats = out.host.core.read(0, "stats")
            stats[0, 1, 0] = np.nextafter(stats[0, 1, 0], np.float32(9))
            out.host.core.write(0, "stats", stats)
    assert any("variances are not the policy's" in line for line in out.twin.differences)


@pytest.mark.slow
def test_programs_have_no_hazard():
    """The engines leave golden's numbers in whatever order they run side by side."""
    out = stream(shown(frames=4), layers=1)
    seen = set()
    for one in out:
        result = one.run()
        if one.job.kind not in seen:
            seen.add(one.job.kind)
            assert not play(result.issues, out.plan.fmt).problems(), one.name
    assert {"ask", "attend", "append", "codes", "visual_codes", "middle", "seed", "label", "move", "put"} <= seen


@pytest.mark.slow
def test_hidden_states_are_near_those_of_the_policy_in_fp32():
    given = shown(frames=7)
    want = MosaicReference(Entry(Mosaic, PARAMS), SmallDecoder())
    want.take_in(given)
    out = run(stream(given))
    errors = out.errors(want)
    assert 0 < min(errors) < 2 * 8 * 2**-8  # blocks that choose the same: see `test_window_host.ERROR`
    assert out.chosen_otherwise(want) < len(given)


@pytest.mark.slow
def test_prefetch_and_completion_give_the_exact_set():
    """With prefetch a layer attends to the very tokens that it attends to without, and hidden states are equal bits.

    Only places in the pool differ, and so the order of sums: tokens are compared, then states within roundings.
    """
    given = shown(frames=7)
    with_, without = run(stream(given)), run(stream(given, prefetch="none"))
    assert with_.events.covered > 0 == without.events.prefetched
    assert with_.events.fetched < with_.events.fetched + with_.events.covered
    assert np.linalg.norm(with_.outputs.hidden[-1] - without.outputs.hidden[-1]) < 0.07 * np.linalg.norm(
        without.outputs.hidden[-1]
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"arithmetic": "float"}, "arithmetic='float': must be hardware: the core decides"),
        ({"prefetch": "input"}, "prefetch='input': must be one of none, query"),
        ({"visual_level": False, "semantic_level": False}, "semantic_level=False: must be on, or visual_level"),
    ],
)
def test_parameters_that_the_core_does_not_run(changes, why):
    with pytest.raises(ParamError, match=why):
        stream(shown(frames=2), **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "why"),
    [
        (replace(ROOM, slots=8, clusters=8), "slots=8: must be at least 11, the tokens on the device of layer 0"),
        (replace(ROOM, clusters=4, slots=52), "clusters=4: must be more: all are in use"),
        (replace(ROOM, members=7), "members=7: must be at least 8, the tokens of a cluster"),
    ],
)
def test_too_little_room_is_told(room, why):
    out = stream(shown(frames=7, tokens=4), layers=1, room=room, visual_level=False, semantic=Threshold(0.1, 0.2))
    with pytest.raises(ParamError, match=why):
        run(out)


def test_frames_need_a_visual_embedding():
    given = [replace(s, visual=None) for s in shown(frames=2)]
    with pytest.raises(ParamError, match="frame=1: must have a visual embedding"):
        stream(given)


def test_a_layer_is_the_policy_s_own_but_for_its_numbers():
    """`CoreLayer` overrides what computes; what keeps members is the policy's, so it cannot differ by itself."""
    assert CoreLayer.members is not None
    assert "members" not in vars(CoreLayer)
    assert "order" not in vars(CoreLayer)
    assert MosaicParams().arithmetic == "float"
