"""Retriever: registers, copies and bursts equal to a reference, cycles to the time view; stalls, faults, mutants."""

import random

import pytest
from openvrex.golden.program.isa import Retrieve
from openvrex.hdl.emit import emit
from openvrex.tb.checks.retriever_checks import (
    STALLS,
    bad,
    check_answers_of_another_kind,
    check_equals_the_reference,
    check_faults,
    check_faults_packed,
    check_full_rate,
    check_full_rate_packed,
    check_orders,
    check_reset_in_flight,
    check_reset_in_flight_packed,
    check_sets_of_many_entries,
    check_stops_at_any_cycle,
    check_stops_packed,
    check_takes_the_cycles_of_the_time_view,
    emitted,
    errors,
    orders,
    packed_entries,
    run,
    stopped_orders,
    stops,
    strangers,
    traffic,
)
from openvrex.tb.library.retriever_traffic import FETCHED, HOMES, PLAIN, SIZES, WIDE, Episode, random_episode
from openvrex.tb.library.runner import Run, mutants
from openvrex.tb.library.transfer_traffic import params

EACH = [
    pytest.param(size, marks=pytest.mark.nightly) if size in ("packed_wide", "packed_beats") else size for size in SIZES
]


@pytest.mark.parametrize("size", EACH)
def test_equals_the_reference(size):
    check_equals_the_reference(size)


@pytest.mark.parametrize("size", EACH)
def test_takes_the_cycles_of_the_time_view(size):
    check_takes_the_cycles_of_the_time_view(size)


def test_orders():
    check_orders()


def test_answers_of_another_kind():
    check_answers_of_another_kind()


def test_sets_of_many_entries():
    check_sets_of_many_entries()


def test_full_rate():
    check_full_rate()


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


def test_faults():
    check_faults()


def test_stops_at_any_cycle():
    check_stops_at_any_cycle()


def test_reset_in_flight():
    check_reset_in_flight()


def test_full_rate_packed():
    check_full_rate_packed()


def test_faults_packed():
    check_faults_packed()


def test_stops_packed():
    check_stops_packed()


def test_reset_in_flight_packed():
    check_reset_in_flight_packed()


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


@pytest.mark.parametrize("size", [size for size in SIZES if size not in PLAIN])
def test_coverage_packed(size):
    """The traffic of `test_equals_the_reference` packs entries, and expands them in bursts that begin anywhere."""
    hit = set().union(*(e.bins for e, _ in traffic(size)))
    assert hit >= {"packs", "expands", "expands_within_a_beat", "fetches_moved", "moves_its_own"}


# Edits of the Verilog: the size, what is there, what takes its place.
MUTANTS = [
    ("one", "since <= since", "since <= 0 & since"),  # a move that does not wait for its slot
    ("tiny", "level} > writes_o_len", "level} >= writes_o_len"),  # a burst that begins with a beat too few
    ("tiny", "room} > reads_o_len", "room} >= reads_o_len"),  # one that finds no room
    ("tiny", "stop ? 8'h0 ", "1'h0 ? 8'h0 "),
]


# The same, of "tiny": edits around orders and the answers to them.
ORDER_MUTANTS = [
    ("t_ready_c = works & t_valid & (|t_op)", "t_ready_c = t_valid & (|t_op)"),  # an answer taken under stop
    ("c_addr >= 40'h30", "c_addr[15:0] >= 16'h30"),  # a context beyond the bits that the DRE gets
    ("3'h3 ? 2'h1 : 2'h2", "3'h3 ? 2'h2 : 2'h1"),
    ("if (order_ready)", "if (1'h1)"),  # an order that nobody took
    ("t_ready_c = works & t_valid & (|t_op)", "t_ready_c = works & t_valid"),  # a key's result ends an order
    ("t_ready_c = works & t_valid & (t_op == 2'h0)", "t_ready_c = works & t_valid"),  # an order's result for a key
    ("w_ready_c = works & w_valid & (|w_op)", "w_ready_c = works & w_valid"),
    ("w_ready_c = works & w_valid & (|w_op)", "w_ready_c = w_valid & (|w_op)"),
    ("w_valid & (w_op == 2'h0)", "w_valid"),  # a reply to an order places an entry
]


# The same, of "packed": edits of the copier and of its codec.
PACKED_MUTANTS = [
    ("level} > {writes_o_len, 2'h3}", "level} >= {writes_o_len, 2'h3}"),  # a burst that lacks a beat
    ("codec_part} > {1'h0, writes_o_len}", "codec_part} >= {1'h0, writes_o_len}"),
    ("open ? kind_begun[0]", "open & 1'h0 ? kind_begun[0]"),  # the next burst's kind
    ("if (codec_again)", "if (1'h0)"),  # beats that are not read again
    ("|kind_begun) ? codec_o", "kind_begun[0]) ? codec_o"),  # packed beats that go through
    ("codec_ends = left == 8'h0", "codec_ends = 1'h0"),  # a beat of the next burst is read before it is there
]


@pytest.mark.nightly
def test_mutants_packed():
    survivors = []
    for edit in PACKED_MUTANTS:
        [unit] = mutants(emitted("packed"), [edit])
        p, rng = params(SIZES["packed"]), random.Random(3)
        episodes = [(random_episode(p, rng, 12), {"stalls": stalls}) for stalls in STALLS[1:3]]
        try:
            run("packed", [*episodes, (packed_entries(), {})], unit=unit, waves=False)
            survivors.append(edit)
        except (AssertionError, KeyError):
            pass
    assert not survivors


@pytest.mark.parametrize(
    "edit", [ORDER_MUTANTS[0], *(pytest.param(edit, marks=pytest.mark.nightly) for edit in ORDER_MUTANTS[1:])]
)
def test_mutants_of_orders(edit):
    """The good unit passes with the same episodes in the tests above."""
    [unit] = mutants(emitted("tiny"), [edit])
    refused = [(e, how) for e, how in bad() if any(c["action"] == Retrieve.CLEAR for c in e.c)]
    episodes = [(orders(), {"stalls": STALLS[1]}), *strangers(), *refused, *stopped_orders()]
    with pytest.raises((AssertionError, KeyError)):
        run("tiny", episodes, unit=unit, waves=False)


def test_mutants():
    survivors = []
    for size, *edit in MUTANTS:
        p, rng = params(SIZES[size]), random.Random(3)
        episodes = [(random_episode(p, rng, 12), {"stalls": stalls}) for stalls in STALLS[1:3]]
        episodes += [*errors(rng)[:6], *stops()] if size == "tiny" else []
        try:
            run(size, episodes, unit=mutants(emitted(size), [tuple(edit)])[0], waves=False)
            survivors.append(edit)
        except (AssertionError, KeyError):
            pass
    assert not survivors
