"""Table port: items and memory equal to a replay of the requests, cycles to the time view; stalls, faults, mutants."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.program.isa import ADDR_BITS
from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.emit import emit
from openvrex.hdl.params import override, preset
from openvrex.hdl.queues import PUTS, READS
from openvrex.hdl.retrieval.table_port import client_sizes
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import table_port_checks
from openvrex.tb.checks.table_port_checks import (
    BULK,
    ITEMS,
    SIZES,
    STALLS,
    Episode,
    compare,
    compare_cycles,
    dre,
    emitted,
    faulty,
    run,
    timed,
    traffic,
    words,
)
from tb.tests.by_day import at_sizes, by_day

EACH = by_day(SIZES, "tiny", "one", "ragged", "parity", "secded")


test_equals_the_reference = at_sizes(table_port_checks.check_equals_the_reference, EACH)
test_takes_the_cycles_of_the_time_view = at_sizes(table_port_checks.check_takes_the_cycles_of_the_time_view, EACH)
test_faults = pytest.mark.parametrize("protect", ["none", "parity", "secded"])(table_port_checks.check_faults)
test_full_rate = table_port_checks.check_full_rate
test_stops_at_any_cycle = table_port_checks.check_stops_at_any_cycle
test_reset_in_flight = table_port_checks.check_reset_in_flight


def test_bad_parameters():
    """An item must fit in a beat; the longest tables fit in the address space."""
    p = dre("core")
    with pytest.raises(ParamError, match=r"^ROW=.*: takes 16 bytes, more than a beat of 8"):
        emit("table_port", replace(p, table=replace(p.table, bus_bytes=8)))
    hcu, kvmu = p.hcu, replace(p.kvmu, clusters=65536, recent=65536, blocks=1 << 28, block_slots=1024, count_bits=64)
    table = replace(p.table, bus_bytes=128, burst_bytes=4096, protect="secded")
    most = replace(p, hcu=replace(hcu, n_hp=1012, n_w=1, clusters=65536), kvmu=kvmu, table=table)
    assert most.layout().bytes(Item.HASH) == 128
    assert most.layout().address(Item.LEVEL, 65536) < 1 << ADDR_BITS
    many = override(preset("core"), ["clusters=1048576", "n_ctx=32768"]).core.dre
    assert many.joined() == many
    with pytest.raises(ParamError, match=r"^clusters=1048576: makes tables of \d+ bytes, more than 40 bits"):
        override(preset("core"), ["clusters=1048576"]).core.dre.joined()


def bins(e: Episode, got: dict) -> set[str]:
    """What an episode exercised."""
    hit, order, size = set(), e.order(got), e.layout.bytes
    taken = sorted(cycle for sent in got["sent"].values() for cycle in sent)
    for cycles, ((a, _), (b, _)) in zip(pairwise(taken), pairwise(order), strict=True):
        both = a.partition("_")[0] != b.partition("_")[0]
        hit |= {"clients in turn" if both else "a client again"} if cycles[1] == cycles[0] + 1 else set()
        hit.add(f"{b[-3:]} behind {a[-3:]}")
    for k, (name, beat) in enumerate(order):
        client, kind = name.split("_")
        item = Item(beat["item"])
        hit.add(f"{kind} {item.name}")
        more, most = beat.get("more", 0), client_sizes(e.p)[client].most
        if more:
            hit.add("part of a group" if more + 1 < most else "a whole group")
        if more and size(item) < e.p.table.bus_bytes:
            hit.add("several items of a beat")
        if more and item == Item.COUNT:
            lengths = [len(word) for word in words(e.p, beat)]
            hit.add("several words of counts" if len(lengths) > 1 else "a word of counts")
            hit |= {"part of a word"} if lengths[-1] < e.p.kvmu.count_lanes else set()
        where = (item, beat["ctx"], beat["index"])
        for other, before in order[max(0, k - 3) : k]:
            if (
                kind == "ask"
                and other.endswith("put")
                and where == (Item(before["item"]), before["ctx"], before["index"])
            ):
                hit.add("reads what was just written")
    hit |= {"several beats"} if any(b["len"] for _, b in got["reads"]) else set()
    ends = [cycle for cycle, _ in sorted(beat for beats in got["data"].values() for beat in map(tuple, beats))]
    flights = Counter()
    asks = [len(words(e.p, beat)) for name, beat in order if name.endswith("ask")]
    lasts = [ends[n - 1] for n in (sum(asks[: k + 1]) for k in range(len(asks))) if n <= len(ends)]
    for cycle, _ in got["reads"]:
        flights["asks"] = max(
            flights["asks"], sum(c <= cycle for c, _ in got["reads"]) - sum(c <= cycle for c in lasts)
        )
    for cycle, _ in got["writes"]:
        left = sum(c <= cycle for c, _ in got["writes"]) - sum(c < cycle for c in got["answers"])
        flights["puts"] = max(flights["puts"], left)
    hit |= {f"{n} {name} in flight" for name, n in flights.items() if n >= min(READS, PUTS)}
    return hit


BINS = {
    *(f"{kind} {item.name}" for kind in ("ask", "put") for item in Item),
    *(f"{b} behind {a}" for a in ("ask", "put") for b in ("ask", "put")),
    *("clients in turn", "a client again", "part of a group", "a whole group", "several items of a beat"),
    *("several words of counts", "a word of counts", "part of a word"),
    *("several beats", "reads what was just written"),
    *(f"{READS + 1} asks in flight", f"{PUTS} puts in flight"),
}


def test_coverage(record_property):
    """The traffic of `test_equals_the_reference` and the episodes of the time view reach every bin."""
    assert {item for items in ITEMS.values() for item in items} == set(Item)
    assert {*BULK} == {*ITEMS}
    episodes = [*traffic("tiny"), *(e for e, _ in timed("tiny"))]
    hit = set().union(*(bins(e, got) for e, got in run("tiny", episodes)))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= BINS, BINS - hit


MUTANTS = {  # by size
    "tiny": {
        "$and 1.93a4a4e7: A[0] const1": "a write beside reads",
        "$and 1.8431f9f4: A[0] const1": "a read beside writes",
        "$and 1.8431f9f4: B[0] const1": "a read without room",
        "$ne 1.c5558018: Y[0] const1": "more writes than may be outstanding",
        "$or 1.bb8a2cd8: B[0] const0": "reads that are outstanding are forgotten",
        "$or 1.69011b6c: Y[0] const1": "an address over one that waits",
        "$or 1.5ab59ae9: A[0] const0": "an ask always goes before a put",
        "$or 1.ed0f6f14: B[0] const1": "and the reverse",
        "$or 1.4056b930: B[0] inv": "who went goes again",
        "$or 1.4056b930: B[0] const1": "the HCU always goes first",
        "$add 1.0ab40f53: B[0] const0": "neighbours have one place",
        "$or 1.0246bed2: B[0] const0": "half of a long item is not written",
        "$not 1.af56c810: Y[0] const1": "and a neighbour is",
        "$or 1.9fccd7c9: B[0] const0": "a beat is kept behind its last item",
        "$lt 0.c37fc4ac: B[0] const0": "an ask ends late",
        "$ge 1.ee5ed6e4: A[1] const1": "more counts than were asked for",
        "$not 2.e9b52bf1: Y[0] const1": "answers of the KVMU go to the HCU, too",
        "$and 1.abb82b62: A[0] const1": "it works under stop",
        "$and 1.abb82b62: B[0] const1": "it works behind an error",
        "$or 1.c539599c: B[0] const0": "an error response of a write is lost",
        "$and 1.54b0a29a: A[0] const1": "an error is told twice",
    },
    "secded": {
        "$and 2.60b8c927: B[0] const1": "a wrong word is given",
        "$or 1.a5057f6b: B[0] const0": "a wrong word does not halt it",
        "$and 1.bdfed323: Y[0] const0": "a correction is not told",
    },
}


@pytest.mark.parametrize(
    "size", ["tiny", *(pytest.param(s, marks=pytest.mark.nightly) for s in MUTANTS if s != "tiny")]
)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants(size, every):
    """Every fourth one, and at night all."""
    p = dre(size)
    cases = list(timed(size))[6:18]
    plain = [Episode(p, 3, stalls=stalls, latency=(1, 9)) for stalls in STALLS[1:4]]
    stopped = [replace(plain[0], stop_at=at) for at in range(20, 140, 3)]
    broken = faulty(size if size in ("parity", "secded") else "none")
    broken += [Episode(p, seed, stalls=STALLS[1], latency=(9, 9), apart=0, puts=0.2, errors=0.4) for seed in (4, 5)]

    def passes(unit):
        run(size, [*plain, *stopped, *broken], unit=unit, waves=False)
        compare_cycles(cases, run(size, [e for e, _ in cases], unit=unit, waves=False))

    assert not survivors(emitted(size), MUTANTS[size], passes, every=every)


def test_a_wrong_item_is_noticed():
    """The comparison fails if an item, a byte of memory or an order is not as it should be."""
    ((e, got),) = run("tiny", [Episode(dre("tiny"), 1)])
    compare(e, got)
    first = got["data"]["kvmu"][0]
    with pytest.raises(AssertionError, match="kvmu: other items"):
        compare(e, got | {"data": got["data"] | {"kvmu": [[first[0], first[1] ^ 1], *got["data"]["kvmu"][1:]]}})
    address, byte = next(iter(got["memory"].items()))
    with pytest.raises(AssertionError, match="memory differs"):
        compare(e, got | {"memory": got["memory"] | {address: byte ^ 1}})
    with pytest.raises(AssertionError):
        compare(e, got | {"writes": got["writes"][:-1]})
