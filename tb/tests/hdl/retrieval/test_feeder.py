"""Feeder: hash and score words equal to a bit-wise reference, cycles to the time view; stalls, sizes, mutants."""

import pytest

from openvrex.golden.program.isa import StoreTo
from openvrex.hdl.params import ParamError, override, preset
from openvrex.hdl.retrieval.hcu_state import CLEAR, SWITCH
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import feeder_checks
from openvrex.tb.checks.feeder_checks import (
    SIZES,
    emitted,
    is_hash,
    run,
    traffic,
)
from openvrex.tb.library.transfer_traffic import params
from tb.tests.by_day import at_sizes

test_equals_the_reference = at_sizes(feeder_checks.check_equals_the_reference, SIZES, "tiny", "one", "joined")
test_takes_the_cycles_of_the_time_view = at_sizes(
    feeder_checks.check_takes_the_cycles_of_the_time_view, SIZES, "tiny", "one", "joined"
)
test_two_beats_wait = at_sizes(feeder_checks.check_two_beats_wait, SIZES, "joined")
test_reset_in_flight = feeder_checks.check_reset_in_flight


def bins(size: str) -> set[str]:
    """What the traffic reaches."""
    p, out = params(SIZES[size]), set()
    lanes, n_w, words = p.dpe.n_w, p.dre.wtu.n_w, -(-p.dre.hcu.n_hp // p.dpe.n_w)
    for e in traffic(size):
        before, at = None, 0
        for i, word in enumerate(e["d"]):
            kind = StoreTo(word["target"]).name.lower()
            at += 1
            out |= {f"{before}_{kind}"} if before else set()
            before = kind
            if not word["row_last"]:
                continue
            if kind == "hash":
                out |= {"more_words"} if at > words else {"just_enough"}
            else:
                n = (at - 1) * lanes + word["keep"] + 1
                out |= {"one_score"} if n == 1 else set()
                out |= {"longest_row"} if n == p.dre.wtu.clusters else set()
                out |= {"whole_words"} if n % n_w == 0 else {"part_of_a_word"}
                out |= {"block_ends"} if word["last"] else {"block_goes_on"}
            at = 0
            out |= {f"{NAMES[op]}_behind_{kind}" for k, op, _ in e["orders"] if k == i + 1}
        for k, op, _ in e["orders"]:
            out |= {f"{NAMES[op]}_in_a_row"} if 0 < k < len(e["d"]) and not e["d"][k - 1]["row_last"] else set()
        pairs = zip(e["orders"], e["orders"][1:], strict=False)
        out |= {f"{NAMES[a]}_{NAMES[b]}" for (k, a, _), (at, b, _) in pairs if k == at}
        contexts = [w["ctx"] for w in e["d"] if is_hash(w)], [ctx for *_, ctx in e["orders"]]
        for kind, found in zip(("key", "order"), contexts, strict=True):
            out |= {f"{kind}_of_{where(ctx, p.dre.hcu.n_ctx)}_context" for ctx in found}
    return out


def where(ctx: int, n_ctx: int) -> str:
    return "the_first" if ctx == 0 else "the_last" if ctx == n_ctx - 1 else "another"


NAMES = {CLEAR: "clear", SWITCH: "switch"}
BINS = {
    *("hash_hash", "hash_score", "score_hash", "score_score", "just_enough", "more_words", "one_score", "longest_row"),
    *("whole_words", "part_of_a_word", "block_ends", "block_goes_on"),
    *(f"{op}_{rest}" for op in NAMES.values() for rest in ("behind_hash", "behind_score", "in_a_row", *NAMES.values())),
    *(f"{kind}_of_{which}_context" for kind in ("key", "order") for which in ("the_first", "the_last", "another")),
}


def test_coverage(record_property):
    """The traffic of `test_equals_the_reference` reaches every bin."""
    hit = bins("tiny") | bins("joined")
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= BINS, BINS - hit


MUTANTS = {  # by size
    "joined": {
        "$and 1.ad27d6fe: A[0] const1": "a word takes the place of one that waits",
        "$and 1.c12e8d86: A[0] const1": "an order that nobody gave",
        "$logic_not 1.b2058ff1: Y[0] const1": "an order within a row",
        "$dff 1.5b05182a: D[1] const0": "a SWITCH becomes a CLEAR",
        "$eq 0.8f2fb6a5: B[3] const0": "the words of a row are not counted",
        "$mux 1.f1989bfb: S[0] const0": "a row has no first word",
        "$or 1.d6506e1a: A[0] const0": "a row's last word waits until it is full",
        "$add 0.df1ad39b: A[1] const0": "a row's last word has fewer scores",
    },
    "cut": {
        "$eq 1.f10c5b4d: B[0] const1": "hash bits are scores",
        "$and 1.ee291e3c: B[0] const1": "parts of a word are skipped",
        "$and 1.f309090b: A[0] const1": "a row ends with its first part",
        "$dff 1.b2059bfd: D[0] const0": "a bit of a score is lost",
        "$mux 1.97af9bde: S[0] const0": "a row's last word is whole",
    },
}


@pytest.mark.parametrize("size", [pytest.param("cut", marks=pytest.mark.nightly), "joined"])
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants(size, every):
    """Every fourth one, and at night all."""
    beats = traffic(size)
    assert not survivors(
        emitted(size), MUTANTS[size], lambda unit: run(size, beats, unit=unit, waves=False), every=every
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["entry_bytes=100"], "entry_bytes=100: must be a multiple of a word of 8 bytes"),
        (["entry_bytes=32776"], "entry_bytes=32776: must be at most 32768"),
        (["boundary=4"], "boundary=4: must be 8 to 32768"),
        (["boundary=65536"], "boundary=65536: must be 8 to 32768"),
        (["wtu.n_w=3", "clusters=33", "hcu.n_h=1"], "wtu.n_w=3: must divide counts = 16"),
        (["wtu.score=e4m8"], "wtu.score=.*: must equal vpe.score"),
        (["addr_bits=41"], "addr_bits=41: takes 41 bits, a core has 40"),
        (["n_ctx=65537"], "n_ctx=65537: must be 1 to 65536"),
        (["token_bits=41"], "token_bits=41: takes 41 bits, a core has 40"),
        (["dpe.n_w=3", "dpe.n_h=3"], "dpe.n_w=3: must be a power of two in an LXE"),
    ],
)
def test_bad_parameters(changes, message):
    with pytest.raises(ParamError, match=message):
        override(preset("tiny"), changes).core.core_format()
