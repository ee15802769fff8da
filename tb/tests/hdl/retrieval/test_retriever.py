"""Retriever: registers, copies and bursts equal to a reference, cycles to the time view; stalls, faults, mutants."""

import random

import pytest

from openvrex.golden.program.isa import Retrieve
from openvrex.hdl.emit import emit
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import retriever_checks
from openvrex.tb.checks.retriever_checks import (
    STALLS,
    bad,
    emitted,
    errors,
    late_blocks,
    orders,
    packed_entries,
    run,
    stopped_orders,
    stops,
    strangers,
    traffic,
)
from openvrex.tb.library.retriever_traffic import FETCHED, HOMES, PLAIN, SIZES, WIDE, Episode, random_episode
from openvrex.tb.library.runner import Run
from openvrex.tb.library.transfer_traffic import params
from tb.tests.by_day import at_sizes, by_day

EACH = by_day(SIZES, "tiny", "budget", "one", "packed", "kept", "shared")


test_equals_the_reference = at_sizes(retriever_checks.check_equals_the_reference, EACH)
test_takes_the_cycles_of_the_time_view = at_sizes(retriever_checks.check_takes_the_cycles_of_the_time_view, EACH)
test_orders = retriever_checks.check_orders
test_answers_of_another_kind = retriever_checks.check_answers_of_another_kind
test_sets_of_many_entries = retriever_checks.check_sets_of_many_entries
test_many_instructions = retriever_checks.check_many_instructions
test_full_rate = retriever_checks.check_full_rate


def test_a_wide_bus_is_full_at_a_latency_of_500(record_property):
    """Entries of 4 KB on 64 bytes a beat: 33 bursts of 1 KB under way are enough, 32 are not."""
    for copies, full in ((33, True), (32, False)):
        changes = [*WIDE, f"copies={copies}"]
        p, runs = params(changes), []
        for latency in (1, 50, 500):
            e = Episode(p)
            e.fetch(FETCHED, [(HOMES + 8192 * i, 4096) for i in range(24)])
            runs.append((e, {"latency": (latency, latency)}))
        config = {"params": changes, "episodes": [e.config(**how) for e, how in runs]}
        got = Run(emit("retriever", p), "bench_retriever", "retrieves", config)()["episodes"]
        beats = 24 * 4096 // p.lxe.bus_bytes
        shares = [beats / (g["written"][-1] - g["written"][0] + 1) for g in got]
        record_property(f"efficiency, {copies} bursts", ", ".join(f"{share:.3f}" for share in shares))
        assert shares[:2] == [1.0, 1.0]
        assert (shares[2] == 1.0) == full


test_faults = retriever_checks.check_faults
test_stops_at_any_cycle = retriever_checks.check_stops_at_any_cycle
test_reset_in_flight = retriever_checks.check_reset_in_flight
test_stops_while_blocks_are_wiped = retriever_checks.check_stops_while_blocks_are_wiped
test_full_rate_packed = retriever_checks.check_full_rate_packed
test_faults_packed = retriever_checks.check_faults_packed
test_stops_packed = retriever_checks.check_stops_packed
test_reset_in_flight_packed = retriever_checks.check_reset_in_flight_packed
test_blocks_are_kept_when_they_have_come = retriever_checks.check_blocks_are_kept_when_they_have_come
test_faults_kept = retriever_checks.check_faults_kept
test_stops_kept = retriever_checks.check_stops_kept
test_reset_in_flight_kept = retriever_checks.check_reset_in_flight_kept


def test_coverage_of_kept_blocks():
    """The random traffic keeps no block of a set, some, and as many as there are places."""
    hit = set().union(*(e.bins for e, _ in traffic("kept")))
    assert {"keeps_none", "keeps", "keeps_all"} <= hit


BINS = {
    *("opens", "joins", "moves", "no_moves", "moves_its_own", "one_row", "rows", "empty", "one_burst", "bursts"),
    *("fetches_moved", "skip", "aligned", "askew", "clear_empty", "clear_some", "switch_empty", "switch_some"),
    *("fault bus", "fault range", "fault full"),
}


def test_coverage(record_property):
    """The traffic of `test_equals_the_reference` reaches every bin, that of `test_faults` every fault."""
    faulty = [*bad(), *errors(random.Random(4))]
    hit = set().union(*(e.bins for e, _ in traffic("tiny")), (f"fault {e.fault}" for e, _ in faulty))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= BINS, BINS - hit


@pytest.mark.parametrize("size", [size for size in SIZES if size not in (*PLAIN, "kept_packed")])
def test_coverage_packed(size):
    """The traffic of `test_equals_the_reference` packs entries, and expands them in bursts that begin anywhere."""
    hit = set().union(*(e.bins for e, _ in traffic(size)))
    assert hit >= {"packs", "expands", "expands_within_a_beat", "fetches_moved", "moves_its_own"}


MUTANTS = {  # by size
    "one": {"$sub 1.e43ebf30: Y[0] const0": "a move does not wait for its slot"},
    "tiny": {
        "$gt 0.d559c3ae: Y[0] const1": "a burst begins with a beat too few",
        "$mux 1.d186cb70: Y[0] const0": "a read finds no room",
        "$mux 1.359e3a25: S[0] const0": "beats are written under stop",
    },
}
KEPT_MUTANTS = {  # around blocks that are kept
    "$mux 1.4374e8d4: S[0] const0": "a kept block is read at home",
    "$mux 1.af3fe6ac: S[0] const1": "blocks are copied before they have come",
}
ORDER_MUTANTS = {  # of "tiny", around orders and the answers to them
    "$and 3.32b5f80e: A[0] const1": "an answer is taken under stop",
    "$ge 0.b0ed93e4: A[16] const0": "a context beyond the bits that the DRE gets",
    "$mux 1.0572d1a4: S[0] inv": "a CLEAR is a SWITCH",
    "$mux 1.e3126b79: S[0] const1": "an order that nobody took",
    "$reduce_or 3.0d705475: Y[0] const1": "a key's result ends an order",
    "$logic_not 2.a4533364: Y[0] const1": "an order's result for a key",
    "$reduce_or 3.8f7f86a3: Y[0] const1": "a key's reply ends an order",
    "$and 3.606ae29d: A[0] const1": "a reply is taken under stop",
    "$logic_not 2.2a5dac4c: Y[0] const1": "a reply to an order places an entry",
}
PACKED_MUTANTS = {  # of the copier and of its codec
    "$gt 0.9e65644b: Y[0] const1": "a packed burst lacks its beats",
    "$gt 0.a3461c67: A[0] const1": "an expanded burst lacks a beat",
    "$mux 1.11d596dc: S[0] const0": "the next burst's kind",
    "$mux 1.67de955b: S[0] const0": "beats that are not read again",
    "$reduce_or 1.6d0b15e7: A[1] const0": "packed beats go through",
    "$logic_not 1.2efd93f9: Y[0] const0": "a beat of the next burst is read before it is there",
}


@pytest.mark.nightly
def test_mutants_packed():
    p, rng = params(SIZES["packed"]), random.Random(3)
    episodes = [(random_episode(p, rng, 12), {"stalls": stalls}) for stalls in STALLS[1:3]]
    episodes.append((packed_entries(), {}))
    assert not survivors(
        emitted("packed"), PACKED_MUTANTS, lambda unit: run("packed", episodes, unit=unit, waves=False)
    )


@pytest.mark.nightly
def test_mutants_kept():
    assert not survivors(emitted("kept"), KEPT_MUTANTS, lambda unit: run("kept", late_blocks(), unit=unit, waves=False))


@pytest.mark.parametrize("every", [len(ORDER_MUTANTS), pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_of_orders(every):
    refused = [(e, how) for e, how in bad() if any(c["action"] == Retrieve.CLEAR for c in e.c)]
    episodes = [(orders(), {"stalls": STALLS[1]}), *strangers(), *refused, *stopped_orders()]
    assert not survivors(
        emitted("tiny"), ORDER_MUTANTS, lambda unit: run("tiny", episodes, unit=unit, waves=False), every=every
    )


@pytest.mark.parametrize("size", by_day(MUTANTS, "tiny"))
def test_mutants(size):
    p, rng = params(SIZES[size]), random.Random(3)
    episodes = [(random_episode(p, rng, 12), {"stalls": stalls}) for stalls in STALLS[1:3]]
    episodes += [*errors(rng)[:6], *stops()] if size == "tiny" else []
    assert not survivors(emitted(size), MUTANTS[size], lambda unit: run(size, episodes, unit=unit, waves=False))
