"""Mutation campaigns: what benches kill and one that does not compare lets live; proofs; resuming; the command."""

import json
import re
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from openvrex.hdl.emit import Emitted
from openvrex.scripts.engineers import mutate_command as command
from openvrex.tb.campaigns.faults import mutations
from openvrex.tb.campaigns.mutants import MutateError, Mutation, Verdict, campaign, netlist, sample, seen
from openvrex.tb.campaigns.subjects import SUBJECTS, UnusedError
from openvrex.tb.checks.cluster_set_checks import STALLS, TINY, emitted, episode, listing, rows, run, unions
from openvrex.tb.formal.mutant_equivalence import Miter
from tb.tests.commands import tried

N, SEED = 8, 1
BEATS = rows(TINY, 5, 41)


def blind(unit: Emitted) -> dict:
    """A bench that compares nothing: it sees only streams that break their rules, and what does not end."""
    return run(unit, TINY, [episode(BEATS, STALLS)])[0]


def sharp(unit: Emitted) -> bool:
    got, sets = blind(unit), unions(TINY, BEATS)
    counts = {"sets": len(sets), "clusters": sum(len(c) for *_, c in sets)}
    return [v for _, v in got["o"]] == listing(sets) and got["perf"] == counts


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mutate")


@cache
def verdicts(folder: Path) -> list[Verdict]:
    return list(campaign("cluster_set", emitted(TINY), sharp, N, SEED, folder))


@pytest.mark.nightly
def test_a_bench_that_compares_kills(folder):
    found = verdicts(folder)
    assert len({v.options for v in found}) == len(found) == N
    assert [v.verdict for v in found].count("killed") >= N - 3


def test_a_bench_that_does_not_compare_lets_live(folder, tmp_path):
    mutants = netlist(emitted(TINY), sample(emitted(TINY), N, SEED), tmp_path)
    assert not seen(blind, mutants[0])
    alive = [v.verdict for v, m in zip(verdicts(folder), mutants[1:], strict=True) if not seen(blind, m)]
    assert alive.count("killed") >= N // 4


def test_a_campaign_goes_on_and_runs_survivors_again(folder, tmp_path):
    found = verdicts(folder)
    (file,) = folder.iterdir()
    *lines, first, second = file.read_text().splitlines()
    lived = json.dumps(json.loads(first) | {"verdict": "survives"})
    (tmp_path / file.name).write_text("\n".join([*lines, lived, second[:40]]))  # cut off
    numbers = {m.options: k for k, m in enumerate(sample(emitted(TINY), N, SEED), 1)}
    left = {v.options for v in found if v.verdict == "survives"}
    left |= {json.loads(line)["options"] for line in (first, second)}
    seen_now = []

    def counting(unit: Emitted) -> bool:
        seen_now.append(unit.number)
        return sharp(unit)

    again = list(campaign("cluster_set", emitted(TINY), counting, N, SEED, tmp_path))
    assert seen_now == [0, *sorted(numbers[o] for o in left)]
    assert {(v.key, v.verdict) for v in again} == {(v.key, v.verdict) for v in found}


def test_mutants_of_a_feature_are_in_what_it_adds():
    """Every mutant of the sequencer is in a register's update, which has the port that the feature adds.

    The text of a long update is cut short, ahead of that port.
    """
    subject = SUBJECTS["sequencer_registers"]
    found = sample(subject.emitted(), N, SEED, beside=subject.plain())
    assert len(found) == N
    assert all(re.search(r"\br\d+ <= ", m.text) for m in found)
    assert any("store_set" in m.text for m in found)


def test_a_bench_that_fails_without_a_fault_is_told(tmp_path):
    with pytest.raises(MutateError, match="the bench fails without a fault"):
        list(campaign("cluster_set", emitted(TINY), lambda unit: False, 1, SEED, tmp_path))


TOY = """module toy(input clk, rst, a, b, output o_valid, output [1:0] o_payload, output reg [31:0] perf);
  reg mem [1:0];
  reg q;
  always @(posedge clk) if (b) mem[a] <= a;
  always @(posedge clk) q <= mem[b];
  assign o_valid = a & (a | b);
  assign o_payload = {q, a ^ b};
  wire [31:0] more = perf + {31'h0, b};
  always @(posedge clk) if (rst) perf <= 0; else perf <= more;
endmodule
"""
DECIDED = {
    "toy: a | b: B[0] const0": "equivalent",  # a & a
    "toy: a | b: A[0] const0": "survives",
    "toy: a ^ b: A[0] const1": "equivalent",  # where it is valid
    "toy: a ^ b: B[0] const1": "survives",
    "toy: perf + {31'h0, b}: Y[20] const0": "counter",
    "toy: perf + {31'h0, b}: Y[5] const0": "survives",
}


def told(m: Mutation) -> str:
    return f"{m.text}: {m.key.partition(': ')[2]}"


def test_equivalence_is_decided(tmp_path):
    """By proofs and counterexamples; a memory starts with anything, the same in both."""
    directions = {"o_valid": 1, "o_payload": 2, "perf": 32}
    ports = [{"name": n, "dir": "in", "width": 1} for n in ("clk", "rst", "a", "b")]
    ports += [{"name": n, "dir": "out", "width": w} for n, w in directions.items()]
    roles = {f"o_{role}": {"stream": "o", "role": role} for role in ("valid", "payload")}
    ports = [p | roles.get(p["name"], {}) for p in ports]
    toy = Emitted(TOY, "toy", {"ports": ports})
    mutations = [m for m in sample(toy, 2000, 1) if told(m) in DECIDED]
    netlist(toy, mutations, tmp_path)
    miter = Miter(toy, tmp_path, len(mutations), {})
    found = {told(m): miter.decide(k)[0] for k, m in enumerate(mutations, 1)}
    assert found == DECIDED
    cared = Miter(toy, tmp_path, len(mutations), {"o_payload": "2'h2"})
    assert cared.decide(1 + [told(m) for m in mutations].index("toy: a ^ b: B[0] const1"))[0] == "equivalent"


NESTED = """module stage(input clk, load, d, output reg q);
  reg full, held;
  always @(posedge clk) full <= load;
  always @(posedge clk) if (load) held <= d;
  always @(posedge clk) if (full) q <= held;
endmodule
module outer(input clk, rst, load, d, output o);
  stage stage(.clk(clk), .load(load), .d(d), .q(o));
endmodule
"""


def test_equivalence_is_decided_in_the_module(tmp_path):
    """A register is read only behind its load, so what it holds later makes no difference."""
    ports = [{"name": n, "dir": "in", "width": 1} for n in ("clk", "rst", "load", "d")]
    outer = Emitted(NESTED, "outer", {"ports": [*ports, {"name": "o", "dir": "out", "width": 1}]})
    mutations = [
        m for m in sample(outer, 2000, 1) if m.text == "stage: if (load) held <= d;" and m.key.endswith(" inv")
    ]
    netlist(outer, mutations, tmp_path)
    miter = Miter(outer, tmp_path, len(mutations), {})
    found = {m.key.split()[-2]: miter.decide(k, "stage") for k, m in enumerate(mutations, 1)}
    assert found.pop("A[0]") == ("equivalent", "proved of stage")  # the held bit
    assert {verdict for verdict, _ in found.values()} == {"survives"}
    assert len(found) == 3  # the new bit, the choice, the result


EXPLAINED = tomllib.loads(command.EXPLAINED.read_text())


def test_every_explanation_is_of_a_subject():
    assert EXPLAINED.keys() <= SUBJECTS.keys()
    assert all(why.startswith(("No difference: ", "A hole: ")) for own in EXPLAINED.values() for why in own.values())


@pytest.mark.nightly
@pytest.mark.parametrize("unit", EXPLAINED)
def test_every_explanation_is_of_todays_hardware(unit):
    subject = SUBJECTS[unit]
    assert len(mutations(subject.emitted(), EXPLAINED[unit], subject.module)) == len(EXPLAINED[unit])


def verdict(name: str) -> Verdict:
    return Verdict("", "cluster_set: key", name, "how")


@pytest.mark.parametrize(("killed", "survive", "code"), [(19, 1, 0), (18, 1, 1), (0, 0, 0)])
def test_command_fails_below_the_target(monkeypatch, killed, survive, code):
    """What is equivalent does not count."""
    ends = [verdict(v) for v in ["killed"] * killed + ["survives"] * survive + ["equivalent", "counter"]]
    monkeypatch.setattr(command, "campaign", lambda *args: iter(ends))
    got = tried("dev", "mutate", "cluster_set")
    assert got.exit_code == code
    assert ("not explained" in got.output) == bool(survive)


def test_a_check_that_takes_another_unit_is_no_judge():
    """Its verdict would be that no fault shows."""
    subject = replace(SUBJECTS["arbiter"], tests=(("no_manager_holds_up_another",), ("cycles_equal_the_time_view", 1)))
    with pytest.raises(UnusedError, match=r"arbiter: check_cycles_equal_the_time_view\(1,\) takes the unit in another"):
        subject.judge(subject.emitted())
