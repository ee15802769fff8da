"""Mosaic on a golden core: every decision and every number of its tables against the policy in NumPy, and its steps."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import ParamError
from openvrex.golden.policies.blocks import Block
from openvrex.golden.policies.ledger import Ledger
from openvrex.golden.policies.mosaic import Mosaic
from openvrex.golden.policies.mosaic_clusters import Threshold
from openvrex.golden.policies.mosaic_core import CoreStore
from openvrex.golden.policies.mosaic_host import MosaicHost
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.store import HOST
from openvrex.golden.program.deadlock_hazard_check import play
from openvrex.golden.program.isa import Opcode, sets_register
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.mosaic_plan import FramePlan
from openvrex.tb.library.cluster_runs import differences, layers
from openvrex.tb.library.mosaic_stream import EVENTS, MosaicReference, MosaicStream, Twin
from openvrex.tb.library.small_mosaic import PARAMS, ROOM, shown, stream
from openvrex.tb.library.small_windows import SmallDecoder


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


STEERED = ("to_register=true",)  # a core whose programs take control from their own numbers


@cache
def played() -> MosaicStream:
    """A stream with every parameter as it is."""
    return run(stream(shown(frames=7)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("core", "changes"),
    [
        ((), {}),
        (STEERED, {}),
        *(
            pytest.param(core, changes, marks=pytest.mark.nightly)
            for core, changes in (
                ((), {"prefetch": "none", "recent": 16}),
                ((), {"defer": False, "adaptive": False}),
                ((), {"semantic_level": False}),
                ((), {"visual_level": False, "breadth": 1.0, "semantic": Threshold(0.45, 0.65, 4.0)}),
                (STEERED, {"defer": False, "adaptive": False}),
            )
        ),
    ],
)
def test_every_decision_is_the_policy_s(core, changes):
    """Choices, members, flags, places; and each bit of centroids, lengths, variances, pairs and sums after each block.

    The policy got NaN for keys, values and queries, so it had no other source for them than the core.
    """
    out = run(stream(shown(frames=7), core=core, **changes)) if core or changes else played()
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
        if one.step.kind == "put":
            stats = out.host.core.read(0, "stats")
            stats[0, 1, 0] = np.nextafter(stats[0, 1, 0], np.float32(9))
            out.host.core.write(0, "stats", stats)
    assert any("variances are not the policy's" in line for line in out.twin.differences)


@pytest.mark.slow
@pytest.mark.parametrize("core", [(), STEERED])
def test_programs_have_no_hazard(core):
    """The engines leave golden's numbers in whatever order they run side by side."""
    out = stream(shown(frames=7), layers=1, core=core)
    seen = set()
    for one in out:
        result = one.run()
        if one.step.kind not in seen:
            seen.add(one.step.kind)
            assert not play(result.issues, out.plan.fmt).problems(), one.name
    assert {"ask", "attend", "append", "codes", "visual_codes", "middle", "seed", "label", "move", "put"} <= seen
    assert {"assign", "halve"} <= seen if core else {"probe", "absorb, probe", "absorb"} <= seen


@pytest.mark.nightly
def test_a_core_that_steers_itself_is_read_once_a_run_of_tokens():
    """One reading for each run of tokens up to a split, and one for each split; the same memory, the same choices."""
    seen, plain, out = Counter(), *(stream(shown(frames=7), layers=1, core=core) for core in ((), STEERED))
    run(plain)
    for one in out:
        before = out.events.readings
        result = one.run()
        assert out.events.readings == before  # the host reads when the program has ended
        seen[one.step.kind] += 1
        if one.step.kind == "assign":
            sets = [i for i in result.issues if i.op == Opcode.STORE and sets_register(i.instruction)]
            seen["looked"] += len(sets) // 4
            seen["stopped"] += len(sets) // 4 < one.step.size
    assert seen["looked"] == sum(out.events.__dict__[x] for x in ("assigned", "deferred", "split"))
    assert seen["stopped"] > 0
    assert out.events.split > 0
    assert out.events.deferred > 0
    assert sum(out.outputs.readings) < 0.7 * sum(plain.outputs.readings)
    for name in ("centroids", "stats", "ring", "home"):
        np.testing.assert_array_equal(*(x.host.core.read(0, name).astype(np.float32) for x in (plain, out)))


@pytest.mark.slow
def test_hidden_states_are_near_those_of_the_policy_in_fp32():
    segments = shown(frames=7)
    want = MosaicReference(Entry(Mosaic, PARAMS), SmallDecoder())
    want.take_in(segments)
    out = played()
    errors = out.errors(want)
    assert 0 < min(errors) < 2 * 8 * 2**-8  # blocks that choose the same: see `test_window_host.ERROR`
    assert out.chosen_otherwise(want) < len(segments)


@pytest.mark.slow
def test_prefetch_and_completion_give_the_exact_set():
    """The policy without prefetch attends to the same tokens on the same keys and queries, but fetches them all."""
    out = stream(shown(frames=6))
    with_, own = out.twin.choose, out.host.policy.params
    out.host.policy.params = replace(own, prefetch="none")
    plain = Twin(out.host)  # of a policy with these parameters
    out.host.policy.params = own
    without = plain.choose

    def both(*given):
        with_(*given)
        without(*given)

    out.host.watch, finish = both, out.twin.finish

    def ended(block):
        finish(block)
        plain.finish(block)

    out.twin.finish = ended
    for one in out:
        one.run()
    assert not out.twin.differences
    assert out.events.covered > 0
    assert out.events.prefetched > out.events.covered  # what was brought in vain is not attended
    assert not [line for line in plain.differences if "on the device" not in line]
    assert any("on the device" in line for line in plain.differences)


@pytest.mark.slow
@pytest.mark.parametrize("core", [pytest.param((), marks=pytest.mark.nightly), STEERED])
def test_visual_clusters_are_the_policy_s(core):
    """A frame's vision tokens are the only source: sums, directions, K-means, nearest cluster, threshold, new clusters.

    Frames join clusters and open new ones, and the twin compares every number after each frame. A last bit that is
    changed makes the comparison fail.
    """
    given, rng = shown(frames=9, tokens=3), np.random.default_rng(8)
    looks = rng.normal(size=(3, 3, 16))  # of three scenes
    order = iter((0, 1, 0, 1, 2, 0, 2, 1, 2))
    given = [
        replace(s, visual=(looks[next(order)] + 0.1 * rng.normal(size=(3, 16))).astype(np.float32))
        if s.stage == "frame"
        else s
        for s in given
    ]
    out = stream(given, layers=1, core=core, partition_frames=1, visual=Threshold(0.1, 0.2))
    kinds = Counter(one.step.kind for one in out if one.run())
    assert not out.twin.differences
    frames = out.host.frames
    assert frames is not None
    assert frames.size.tolist() == [3, 3, 3] == out.twin.policy.visual.size.tolist()
    assert kinds["visual frame"] == 9
    assert kinds["visual single"] == 1  # the third scene opens a cluster; later frames join
    assert kinds["visual assign"] == (7 if core else 0)
    assert (frames.core.owner[frames.layer.number] < 0).all()  # no frame keeps its slot
    stats = frames.core.read(1, "stats")
    stats[0, 1, 2] = np.nextafter(stats[0, 1, 2], np.float32(9))
    frames.core.write(1, "stats", stats)
    out.twin._see(Block(99, "frame", 0, 1))
    assert out.twin.differences == ["block 99, at the end: visual lengths, variances, sizes are not the policy's"]


@pytest.mark.slow
def test_visual_clusters_that_the_core_has_no_room_for_are_the_host_s():
    odd = [replace(s, visual=None if s.visual is None else s.visual[:, :15]) for s in shown(frames=4)]
    out = run(stream(odd, layers=1))
    assert out.host.frames is None
    assert not out.twin.differences
    assert not FramePlan.fits(15, 2, out.plan.fmt)
    assert FramePlan.fits(16, 2, out.plan.fmt)
    assert not FramePlan.fits(16, 64, out.plan.fmt)  # members
    assert not FramePlan.fits(256, 2, out.plan.fmt)  # half of a scratchpad


RNG = np.random.default_rng(7)
SETS = {
    "random": RNG.normal(size=(9, 32)),
    "one": RNG.normal(size=(1, 32)),
    "equal": np.repeat(RNG.normal(size=(1, 32)), 5, 0),
    "zeros": np.zeros((3, 32)),
    "two groups": np.repeat(RNG.normal(size=(2, 32)), 4, 0),
    "ties": RNG.integers(-1, 2, (13, 32)),
    "as many as there is room for": RNG.normal(size=(16, 32)),
}


@pytest.mark.parametrize("core", [(), STEERED])
@pytest.mark.parametrize("name", SETS)
def test_clusters_of_corner_cases_equal_numpy_s(name, core):
    """K-means, means, variances and splits: one member, equal ones, zeros, ties, all room in use."""
    own, want, _ = layers(SETS[name].astype(BF16), core)
    tokens = np.arange(len(SETS[name]))
    for state in (own, want):
        state.create(tokens, 0, 3, 0)
    assert not differences(own, want)
    for c in range(len(want.clusters)):
        members = want.members(c)
        assert own.split(members, c, 0) == want.split(members, c, 0)
        assert not differences(own, want)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(("arrive", "offload", "fetch", "release")), st.integers(0, 255))))
def test_moves_neither_lose_nor_double_an_entry(moves):
    """Any order of arrivals, offloads, fetches and releases: each entry is in one slot, or at home, or in both."""
    host = _host()
    core, shape = host.core, host.policy.shape
    store, size = CoreStore(shape, Ledger(), core), host.plan.shape.entry
    core.slot[:], core.owner[:] = -1, -1

    def copy(job):
        src, dst, rows = (job.registers[int(x)] for x in (Register.SLOT, Register.OUT, Register.FIRST))
        host.unit.memory.put(dst, host.unit.memory.get(src, (rows, size), np.uint16))

    core.launch, store.fresh = copy, host.plan["fresh"].offset
    for what, bits in moves:
        n = store.length
        mask = np.array([bits >> i % 8 & 1 for i in range(n)], bool)
        if what == "arrive" and n < host.plan.stream:
            store.arrive(n + 1)
            host.unit.memory.put(store.fresh, np.full((1, size), n + 1, np.uint16))
            store.append(0, np.array([n]))
        elif what == "offload":
            store.release(0)
            store.offload(0, mask)
        elif what == "fetch":
            store.fetch(0, mask)
        elif what == "release":
            store.release(0)
        device, home = store.on_device(0)[0], store.on_host(0)[0]
        assert (device | home).all()
        slots = core.slot[0, : store.length]
        assert np.array_equal(slots >= 0, device)
        assert len(set(slots[device].tolist())) == device.sum() == (core.owner[0] >= 0).sum()
        ring, far = (core.read(0, name, np.uint16) for name in ("ring", "home"))
        assert (ring[slots[device]] == np.flatnonzero(device)[:, None] + 1).all()
        assert (far[: store.length][home] == np.flatnonzero(home)[:, None] + 1).all()


@cache
def _host() -> MosaicHost:
    return stream(shown(frames=3), 1).host


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
    blind = [replace(s, visual=None) for s in shown(frames=2)]
    with pytest.raises(ParamError, match="frame=1: must have a visual embedding"):
        stream(blind)
