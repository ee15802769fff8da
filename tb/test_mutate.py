"""Mutation campaigns: a bench that compares kills what one that does not lets live; proofs, resuming, the command."""

from functools import cache
from pathlib import Path

import pytest

from hdl.emit import Emitted
from tb.mutate import Verdict, campaign, netlist, sample, seen
from tb.test_cluster_set import STALLS, TINY, emitted, episode, listing, rows, run, unions

N = 20
BEATS = rows(TINY, 5, 40)


def blind(unit: Emitted) -> list[dict]:
    """A bench that compares nothing: of its own it sees streams that break their rules, and what does not end."""
    return run(unit, TINY, [episode(BEATS, STALLS)])


def sharp(unit: Emitted) -> bool:
    (got,) = blind(unit)
    return [v for _, v in got["o"]] == listing(unions(TINY, BEATS)) and got["perf"]["sets"] == 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mutate")


@cache
def verdicts(folder: Path) -> list[Verdict]:
    return list(campaign("cluster_set", emitted(TINY), sharp, N, 2, folder))


def test_a_bench_that_compares_kills(folder):
    found = verdicts(folder)
    print(found)
    assert len(found) == len({v.options for v in found}) == N
    assert sum(v.verdict == "killed" for v in found) > 0.8 * N
    assert {v.key.partition(":")[0] for v in found} > {"cluster_set"}, "mutants of one module only"


def test_a_bench_that_does_not_compare_lets_live(folder):
    mutants = netlist(emitted(TINY), sample(emitted(TINY), N, 2))
    assert not seen(blind, mutants[0])
    alive = [v.verdict for v, m in zip(verdicts(folder), mutants[1:], strict=True) if not seen(blind, m)]
    assert alive.count("killed") >= 5
