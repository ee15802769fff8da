"""The status of the blocks: one line each, the same in the command, on data sheets and in the README."""

import json
import re

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.hdl.emit import ALL
from openvrex.scripts.blocks import block_status, campaign_results
from openvrex.scripts.blocks.block_status import COLUMNS, MARK, NONE, Figure
from openvrex.scripts.engineers import coverage_command, mutate_command
from openvrex.scripts.pages.unit_datasheet import page
from openvrex.scripts.records import recorded_results
from openvrex.tb.campaigns.mutants import Verdict
from openvrex.tb.campaigns.subjects import SUBJECTS
from openvrex.tb.formal.proofs import goals
from tb.tests.commands import refuses, tried, vrex

OF = {"verilog": "today's"}
COVERAGE = OF | {
    "size": "tiny",
    "reached": {"line": 100.0, "branch": 99.1, "stall": 100.0, "toggle": 50.0},
    "left_out": {},
}
MUTANTS = OF | {"size": "tiny", "seed": 1, "made": 40, "killed": 36, "equivalent": 2, "counter": 0, "surviving": 2}


def test_command_sheets_and_readme_show_the_same_lines():
    found = block_status.lines(block_status.recorded())
    assert found.keys() == ALL.keys()
    told = json.loads(vrex("verify", "--status", "--json").stdout)
    assert {u: {c: Figure(**f) for c, f in own.items()} for u, own in told.items()} == found
    readme = recorded_results.texts()["README.md"].read_text()
    for unit, own in found.items():
        row = " | ".join(f.marked("") for f in own.values()).replace(campaign_results.OLDER, "")
        assert f"| `{unit}` | {row} |" in readme
        assert own["proofs"].fine
    line = " | ".join(f.marked() for f in found["cluster_set"].values())
    assert f"\n| {line} |\n" in page("cluster_set")


def test_the_command_prints_a_line_for_each_block():
    run = vrex("verify", "--status")
    assert {line.split()[1] for line in run.stdout.splitlines() if line.startswith("│")} == set(ALL)
    assert "no figure" in run.stdout
    refuses("verify", "--status", "--plan")


def test_a_figure_that_is_missing_below_its_target_or_of_older_hardware_is_marked(monkeypatch):
    monkeypatch.setattr(campaign_results, "hardware", lambda unit: OF["verilog"])
    known = {"clock": {"hcu": {"with_access": 800.0}}, "area": {"embedded": {"ge": {"hcu": 1234.0}}}}
    known["blocks"] = {"hcu": {"coverage": COVERAGE, "mutants": MUTANTS}}
    found = block_status.lines(known)
    shown = [found["hcu"][name] for name in ("MHz", "kGE", "coverage", "mutants")]
    assert shown == [Figure("1,250"), Figure("1.2"), Figure("99.1 %"), Figure("94.7 %", False)]
    assert shown[-1].marked() == f"{MARK} 94.7 %"
    assert [found["wtu"][name] for name in COLUMNS if name != "proofs"] == [Figure(NONE, False)] * 4
    assert (Figure(NONE, False).marked(), Figure(NONE, False).marked("")) == (f"{MARK} {NONE}", MARK)
    for kind, least in campaign_results.COVERAGE_TARGETS.items():
        below = {"coverage": COVERAGE | {"reached": COVERAGE["reached"] | {kind: 100 * least - 0.1}}}
        assert not block_status.lines(known | {"blocks": {"hcu": below}})["hcu"]["coverage"].fine
    older = {kind: own | {"verilog": "another"} for kind, own in known["blocks"]["hcu"].items()}
    found = block_status.lines(old := known | {"blocks": {"hcu": older}})["hcu"]
    assert f"| `hcu` | 1,250 | 1.2 | {MARK} 99.1 % | {MARK} 94.7 % |" in block_status.readme(old)
    assert found["coverage"].marked() == f"{MARK} 99.1 %, older hardware"
    assert found["mutants"].marked() == f"{MARK} 94.7 %, older hardware"
    readme = block_status.readme(known)
    assert f"| `hcu` | 1,250 | 1.2 | 99.1 % | {MARK} 94.7 % |" in readme
    assert f"| `wtu` | {MARK} | {MARK} | {MARK} | {MARK} |" in readme


def test_proofs_are_counted_in_their_registry():
    every = list(goals())
    found = block_status.lines(block_status.recorded())
    for unit in ALL:
        counts = sum(int(n) for n in found[unit]["proofs"].text.split(" + "))
        assert counts == sum(g.unit == unit for g in every)
        assert page_rows(block_status.section(unit, block_status.recorded())) == counts
    assert found["hcu"]["proofs"].text == "12 + 1"  # its collisions are followed from reset


def page_rows(section: str) -> int:
    """Claims in the table of a data sheet."""
    return len(re.findall(r"^\| [^|]+ \| [^|]* \| (?:unbounded|\d+ cycles) \|$", section, re.M))


def test_what_is_recorded_is_whole():
    for name, kinds in campaign_results.load().items():
        assert name in SUBJECTS
        for found in kinds.values():
            assert re.fullmatch(r"\d{4}-\d\d-\d\d [0-9a-f]{12}", f"{found['date']} {found['commit']}"), name
        if mutants := kinds.get("mutants"):
            ends = sum(mutants.get(verdict, 0) for verdict in campaign_results.VERDICTS)
            assert ends == mutants["made"] or "equivalent" not in mutants, name


def test_a_campaign_is_recorded_beside_the_others(tmp_path, monkeypatch):
    """By `--record`; the figures of other kinds and subjects stay."""
    path = tmp_path / "blocks.json"
    path.write_text(json.dumps({"commands": {}, "figures": {"wtu": {"mutants": MUTANTS}}}))
    monkeypatch.setattr(campaign_results, "RECORD", path)
    verdicts = [Verdict("", name, name, "") for name in ("killed", "survives", "equivalent")]
    monkeypatch.setattr(mutate_command, "campaign", lambda *_: verdicts)
    assert tried("dev", "mutate", "cluster_set", "-n", "3", "--json").exit_code == 1
    assert "cluster_set" not in campaign_results.load()
    assert tried("dev", "mutate", "cluster_set", "-n", "3", "--record").exit_code == 1
    kept = campaign_results.load()
    assert kept["wtu"] == {"mutants": MUTANTS}
    own = kept["cluster_set"]["mutants"]
    counts = {"made": 3, "killed": 1, "equivalent": 1, "counter": 0, "surviving": 1, "explained": 0}
    of = {"verilog": campaign_results.hardware("cluster_set")}
    assert own == {"size": "tiny", "seed": 1} | counts | campaign_results.measured_at() | of
    row = {kind: {"hit": 3, "total": 4, "excluded": 1} for kind in ("line", "branch", "stall", "toggle", "state")}
    campaign_results.keep("coverage", {"cluster_set": coverage_command.kept({"size": 2} | row)})
    assert campaign_results.load()["cluster_set"]["mutants"] == own
    assert campaign_results.load()["cluster_set"]["coverage"]["reached"]["toggle"] == 75.0
    assert coverage_command.percent({"hit": 9999, "total": 10000}) == 99.9  # 100 means all


def test_without_records_the_command_says_so(tmp_path, monkeypatch):
    for module in (campaign_results, block_status):
        monkeypatch.setattr(module, "RECORD", tmp_path / "none.json")
    run = refuses("verify", "--status")
    assert "run the command in a checkout" in run.stderr
    with pytest.raises(ParamError, match="is missing"):
        campaign_results.keep("stress", {"hcu": {"transactions": 1}})
