"""Stress runs: a slice of each unit's, kept results, a failure that is told."""

import json
from dataclasses import dataclass

import pytest

from openvrex.scripts.engineers import stress_command
from openvrex.tb.campaigns import stress
from openvrex.tb.campaigns.stress import UNITS, drawn, play
from openvrex.tb.checks.clusters_checks import BINS as CLUSTERS
from openvrex.tb.library.runner import waveforms_in
from openvrex.tb.library.stress_traffic import StressTraffic
from tb.tests.by_day import by_day
from tb.tests.commands import tried, vrex


# Random traffic of every unit is in its own tests; `vrex dev stress` plays much more of it at night.
@pytest.mark.parametrize("unit", by_day(UNITS, "hcu", "arbiter", "table_port", "registers"))
def test_a_slice_equals_golden(unit):
    assert play(unit, 1) > 10


BUDGETS = {f"{kind} by {where}" for kind in ("exact", "more", "all") for where in ("instruction", "register", "store")}
TABLES = {
    "copied",
    "left out",
    "none copied",
    "every row",
    "by a threshold",
    "one row",
    "another word",
    "the first word",
}


@pytest.mark.parametrize(
    ("unit", "seeds", "bins"),
    [
        pytest.param("core", 12, BUDGETS | {"share"}, marks=pytest.mark.nightly),
        ("registers", 20, TABLES | {f"rows of {n} words" for n in (1, 2, 4)}),
        pytest.param("clusters", 60, CLUSTERS, marks=pytest.mark.nightly),
    ],
)
def test_random_traffic_reaches_its_bins(unit, seeds, bins, record_property):
    """The first seeds, on golden alone; `test_a_slice_equals_golden` and `vrex dev stress` compare the RTL."""
    traffic = [drawn(unit, seed) for seed in range(1, seeds + 1)]
    for one in traffic if unit == "clusters" else ():
        one.golden()
    hit = set().union(*(one.bins for one in traffic))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= bins, bins - hit


def test_a_campaign_goes_on_where_it_was(tmp_path, monkeypatch):
    seeds = []
    monkeypatch.setattr(stress, "play", lambda unit, seed: seeds.append(seed) or 40)
    for n, total in ((100, 120), (100, 120), (130, 160)):
        run = vrex("dev", "stress", "hcu", "-n", str(n), "-o", str(tmp_path))
        assert f"hcu: {total} transactions as golden" in run.stdout
    assert seeds == [1, 2, 3, 4]
    run = vrex("dev", "stress", "hcu", "-n", "1", "-o", str(tmp_path), "--json")
    assert json.loads(run.stdout) == [{"unit": "hcu", "transactions": 160}]
    assert [json.loads(line)["seed"] for line in kept(tmp_path)] == [1, 2, 3, 4]
    monkeypatch.setattr(stress_command, "hardware", lambda unit: "of tomorrow")
    vrex("dev", "stress", "hcu", "-n", "40", "-o", str(tmp_path))
    assert seeds == [1, 2, 3, 4, 1]


def kept(folder) -> list[str]:
    [one] = folder.glob("hcu-*.jsonl")
    return one.read_text().splitlines()


def test_a_join_has_a_share_of_the_transactions(tmp_path, monkeypatch):
    monkeypatch.setattr(stress, "play", lambda unit, seed: 40)
    run = tried("dev", "stress", "dre", "-n", "300", "-o", str(tmp_path))
    assert "dre: 80 transactions as golden" in run.stdout


@dataclass
class Sums(StressTraffic):
    """Fails while 3 and 11 are among the numbers."""

    PARTS = "numbers"
    numbers: list[int]

    @classmethod
    def random(cls, rng):
        return cls(list(range(20)))

    def play(self):
        return set(self.numbers)

    def check(self, got):
        assert not {3, 11} <= got, "beat 7 differs"
        return 40


def test_a_difference_is_told_and_what_was_good_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(stress, "drawn", lambda unit, seed: Sums([3, 4] if seed == 1 else list(range(20))))
    run = tried("dev", "stress", "hcu", "-n", "100", "-o", str(tmp_path))
    assert run.exit_code == 1
    assert "hcu: seed 2, numbers 3, 11, 19 of 20: beat 7 differs" in run.stderr
    assert str(tmp_path / "hcu-2") in run.stderr
    assert len(kept(tmp_path)) == 1


def test_what_passes_again_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(stress, "drawn", lambda unit, seed: Sums([1, 2]))
    assert "seed 5, numbers 0, 1 of 2: it was X (passes when it is played again)" in stress.explained(
        "hcu", 5, "it was X", tmp_path
    )


def test_runs_within_leave_waveforms(tmp_path):
    with waveforms_in(tmp_path):
        play("storer", 1)
    assert list(tmp_path.glob("*.gtkw"))
