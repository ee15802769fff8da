"""Feeder: hash and score words equal to a bit-wise reference, cycles to the time view; stalls, sizes, mutants."""

import pytest

from golden.program.isa import StoreTo
from hdl.params import ParamError, override, preset
from tb.checks.feeder_checks import (
    SIZES,
    check_equals_the_reference,
    check_reset_in_flight,
    check_takes_the_cycles_of_the_time_view,
    emitted,
    run,
    traffic,
)
from tb.library.runner import mutants
from tb.library.transfer_traffic import params


@pytest.mark.parametrize("size", SIZES)
def test_equals_the_reference(size):
    check_equals_the_reference(size)


@pytest.mark.parametrize("size", SIZES)
def test_takes_the_cycles_of_the_time_view(size):
    check_takes_the_cycles_of_the_time_view(size)


def test_reset_in_flight():
    check_reset_in_flight()


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
            out |= {f"context_{word['ctx']}"}
            at = 0
            follows = any(k == i + 1 for k, _ in e["clears"])
            out |= {f"clear_behind_{kind}"} if follows else set()
        out |= {"clear_in_a_row" for k, _ in e["clears"] if 0 < k < len(e["d"]) and not e["d"][k - 1]["row_last"]}
    return out


BINS = {
    *("hash_hash", "hash_score", "score_hash", "score_score", "just_enough", "more_words", "one_score", "longest_row"),
    *("whole_words", "part_of_a_word", "block_ends", "block_goes_on", "clear_behind_hash", "clear_behind_score"),
    *("clear_in_a_row", "context_0", "context_1", "context_2"),
}


def test_coverage(record_property):
    """The traffic of `test_equals_the_reference` reaches every bin."""
    hit = bins("cut") | bins("joined")
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= BINS, BINS - hit


# Edits of the Verilog: the size, what is there, what takes its place.
MUTANTS = [
    ("joined", "k_takes = k_free & ", "k_takes = k_ready & "),
    ("joined", "clear_valid & ", "clear_ready & "),
    ("joined", "index == 4'h8", "index == 4'h7"),
    ("joined", "d_row_last ? 4'h0", "1'h0 ? 4'h0"),
    ("joined", "whole = d_row_last | ", "whole = 1'h0 | "),
    ("joined", "{at, 1'h0} + ", "{1'h0, at} + "),
    ("cut", "is_hash = d_target == 2'h2", "is_hash = d_target == 2'h3"),
    ("cut", "s_takes = s_free & final_", "s_takes = s_free"),
    ("cut", "final_ & d_row_last", "d_row_last"),
    ("cut", "<= d_data[138:128]", "<= d_data[202:192]"),
    ("cut", "d_row_last ? d_keep", "1'h0 ? d_keep"),
]


@pytest.mark.parametrize("size", [pytest.param("cut", marks=pytest.mark.nightly), "joined"])
def test_mutants(size):
    edits = [m[1:] for m in MUTANTS if m[0] == size]
    survivors = []
    for edit, mutant in zip(edits, mutants(emitted(size), edits), strict=True):
        try:
            run(size, traffic(size)[:2], unit=mutant, waves=False)
            survivors.append(edit)
        except (AssertionError, ValueError):
            pass
    assert not survivors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["entry_bytes=100"], "entry_bytes=100: must be a multiple of a word of 8 bytes"),
        (["entry_bytes=32776"], "entry_bytes=32776: must be at most 32768"),
        (["boundary=4"], "boundary=4: must be 8 to 32768"),
        (["boundary=65536"], "boundary=65536: must be 8 to 32768"),
        (["wtu.n_w=3", "clusters=33", "hcu.n_h=1"], "wtu.n_w=3: must be a power of two in a core"),
        (["wtu.score=e4m8"], "wtu.score=.*: must equal vpe.score"),
        (["addr_bits=41"], "addr_bits=41: takes 41 bits, a core has 40"),
        (["token_bits=41"], "token_bits=41: takes 41 bits, a core has 40"),
        (["n_ctx=257"], "n_ctx=257: takes 9 bits, a core has 8"),
        (["dpe.n_w=3", "dpe.n_h=3"], "dpe.n_w=3: must be a power of two in an LXE"),
    ],
)
def test_bad_parameters(changes, message):
    with pytest.raises(ParamError, match=message):
        override(preset("tiny"), changes).core.core_format()
