"""KVMU: beats equal to golden in the order of acceptance, cycles equal to the time view; stalls, sizes, mutants."""

import itertools
from dataclasses import replace

import pytest

from golden.function_params import ParamError
from hdl.retrieval import kvmu
from scripts.pages.state_diagram import Known, assignments, elaborated
from tb.checks.kvmu_checks import (
    BINS,
    RAGGED,
    SIZES,
    STALLS,
    check,
    check_append_never_waits_for_bursts,
    check_cycles_equal_time_view,
    check_equals_golden,
    covered,
    emitted,
    episode,
    run,
    traffic,
)
from tb.formal.kvmu_allocator_proof import SMALL, prove
from tb.library.runner import survivors


@pytest.mark.parametrize("size", SIZES)
def test_equals_golden(size):
    check_equals_golden(size)


def test_functional_coverage(record_property):
    """The streams of this file reach every stated bin; without this a comparison could pass on dull data."""
    hit = frozenset().union(*map(covered, SIZES))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit == BINS, BINS - hit


@pytest.mark.parametrize("size", SIZES)
def test_cycles_equal_time_view(size):
    check_cycles_equal_time_view(size)


@pytest.mark.parametrize("size", SIZES)
def test_append_never_waits_for_bursts(size):
    check_append_never_waits_for_bursts(size)


def test_requesters_of_the_table_exclude_each_other(monkeypatch):
    """Each reaches the port in its states alone, and two of one state stand in different branches of one `If`."""
    requests = {}

    def recorded(make):
        def call(memories, requester, *rest):
            out = make(memories, requester, *rest)
            requests[requester] = out[0]
            return out

        return call

    for name in ("table_read", "table_write"):
        monkeypatch.setattr(kvmu._Memories, name, recorded(getattr(kvmu._Memories, name)))
    m = elaborated(kvmu.Kvmu(SMALL))
    fsm = m._generated["fsm"]
    known = {state: Known(m, fsm.state, value) for state, value in fsm.encoding.items()}
    paths = {id(s): path for path, s in assignments(m, "comb")}
    of = {requester: paths[id(s)] for requester, s in requests.items()}
    assert set(of) == set(kvmu.TABLE_PORT)
    for requester, path in of.items():
        states = [s for s, k in known.items() if False not in [k.fits(case) for case in path]]
        assert sorted(states) == sorted(kvmu.TABLE_PORT[requester]), requester
    for one, other in itertools.combinations(of, 2):
        if set(kvmu.TABLE_PORT[one]) & set(kvmu.TABLE_PORT[other]):
            pairs = zip(of[one], of[other], strict=False)
            assert any(a.test is b.test and a.patterns != b.patterns for a, b in pairs), (one, other)


MUTANTS = [
    ("ragged", "assign full = ", "assign full = 0 & "),
    ("ragged", "assign level = known ? word_level : 3'h0", "assign level = word_level"),  # a cleared context stays
    ("ragged", "assign w_valid = reply_valid & ", "assign w_valid = reply_valid | 0 & "),  # before its move
    ("ragged", "assign crosses = length > ", "assign crosses = length >= "),
    ("runs", "assign item_join = ", "assign item_join = here_none & "),  # adjacent blocks not merged
]


@pytest.mark.parametrize(
    "size",
    ["ragged", *(pytest.param(s, marks=pytest.mark.nightly) for s in sorted({m[0] for m in MUTANTS} - {"ragged"}))],
)
def test_mutants_are_killed(size):
    p = SIZES[size]
    e = episode(p, *traffic(p, 1, 400), STALLS)
    edits = [m[1:] for m in MUTANTS if m[0] == size]
    assert not survivors(emitted(p), edits, lambda unit: check(p, e, run(unit, p, [e], waves=False)[0]))


def test_allocator_is_proved():
    assert prove(SMALL)
    assert not prove(SMALL, reach=True)


@pytest.mark.parametrize(
    "edit",
    [
        (r"connect \\A \\free_head \[0\]", r"connect \\A 1'0"),  # freed blocks other than the first are not found
        (r"assign (\\en\S*) \[0\] \\freed \[0\]", r"assign \1 [0] 1'0"),  # freed clusters are not linked
    ],
)
def test_proof_sees_a_broken_allocator(edit):
    assert not prove(SMALL, edit)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recent": 0}, "recent=0: must be 1 to 65536"),
        ({"boundary": 96}, "boundary=96: must be a power of two"),
        ({"addr_bits": 10}, "addr_bits=10: cannot address blocks of 1368 bytes in all"),
        ({"blocks": 1, "addr_bits": 8}, "addr_bits=8: cannot address rings of 360 bytes in all"),
        ({"clusters": 2.0}, "clusters=2.0: must be an integer"),
    ],
)
def test_bad_parameters(change, message):
    with pytest.raises(ParamError, match=message):
        replace(RAGGED, **change)
