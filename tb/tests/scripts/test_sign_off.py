"""Sign-off: each criterion is judged from the records and turns red with a lower figure; pages show the figures."""

import json
import re
from dataclasses import replace

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.hdl.emit import ALL
from openvrex.scripts.blocks import campaign_results, sign_off
from openvrex.scripts.blocks.block_status import NONE
from openvrex.scripts.blocks.sign_off import CHECKLIST, KINDS, MILLION, TARGETS, Records, index, judged, page, reached
from openvrex.tb.campaigns.plan import STAGES, TESTS, Feature, _names
from tb.tests.commands import refuses, tried

FACTS = {"date": "2026-01-02", "commit": "0123456789ab", "verilog": "today's"}
EVERY = ("line", "branch", "toggle", "state", "stall")
FEATURES = [
    Feature("hcu", "equals golden", "V1", (("hcu", "a"),)),
    Feature("hcu", "bins: all", "V2", (("hcu", "a"),)),
    Feature("hcu", "sizes: all", "V2", (("hcu", "b"),)),
    Feature("hcu", "mutants", "V3", (("hcu", "b"),)),
]


@pytest.fixture
def todays(monkeypatch) -> None:
    """Figures of FACTS are of today's hardware."""
    monkeypatch.setattr(campaign_results, "hardware", lambda subject: FACTS["verilog"])


def whole() -> Records:
    """Records in which every criterion of the HCU holds."""
    reached = dict.fromkeys(EVERY, 100.0)
    hcu = {
        "coverage": {"reached": reached, "points": dict.fromkeys(EVERY, 7), "left_out": dict.fromkeys(EVERY, 0)}
        | FACTS,
        "mutants": {"made": 100, "killed": 97, "equivalent": 0, "counter": 0, "surviving": 3, "explained": 3} | FACTS,
        "stress": {"transactions": MILLION} | FACTS,
        "cones": {"inside": 9, "registers": 10} | FACTS,
    }
    cases = {test: ["passed"] for test in sign_off.tests() | {("hcu", "a"), ("hcu", "b")}}
    return Records({"hcu": hcu}, cases, FACTS, FEATURES, {"coverage": {}, "survivors": {}})


def changed(kind: str, **figures: object) -> Records:
    """The same with other figures of a campaign on the HCU."""
    known = whole()
    known.campaigns["hcu"][kind] |= figures
    return known


def failed(*tests: tuple[str, str], end: str = "failed") -> Records:
    known = whole()
    return replace(known, cases=known.cases | {test: ["passed", end] for test in tests})


def coverage(**shares: float) -> Records:
    return changed("coverage", reached=dict.fromkeys(EVERY, 100.0) | shares)


def holes(known: Records) -> Records:
    return replace(known, reasons={"coverage": {}, "survivors": {"hcu": {"$and": "A hole: a full queue."}}})


def test_a_block_of_which_all_holds_is_signed_off(todays):
    found = judged("hcu", whole())
    assert all(f.fine for f in found.values()), found
    assert reached(found) == "V3"
    assert not sign_off.below("hcu", found)
    assert sign_off.open_criteria("hcu", found) == []


_SIZES = ("hcu", "b")


@pytest.mark.parametrize(
    ("known", "red", "stage"),
    [
        (failed(("hcu", "a")), {"main path", "bins", "features"}, "none"),
        (failed(("datasheet", "a_sheet_tells_corner_cases")), {"data sheet"}, "none"),
        (failed(("emit", "no_warning_is_waived"), end="skipped"), {"lint"}, "none"),
        (failed(("reset", "outputs_are_known")), {"power-up"}, "V1"),
        (failed(_SIZES), {"sizes", "features", "evidence"}, "V1"),
        (coverage(stall=99.9), {"stalls"}, "V1"),
        (coverage(toggle=89.9), {"code", "toggles"}, "V1"),
        *((coverage(**{kind: 99.9}), {many}, "V2") for kind, many in KINDS.items()),
        (changed("mutants", killed=94, surviving=6, explained=6), {"mutants"}, "V1"),
        (changed("mutants", explained=2), {"survivors"}, "V2"),
        (changed("coverage", verilog=""), {"code", "stalls", *KINDS.values()}, "V1"),
        (changed("mutants", verilog=""), {"mutants", "survivors"}, "V1"),
        (changed("stress", verilog=""), {"stress", "million"}, "V1"),
        (changed("cones", verilog=""), {"cones"}, "V2"),
        (changed("stress", transactions=19_999), {"stress", "million"}, "V1"),
        (changed("stress", transactions=MILLION - 1), {"million"}, "V2"),
        (changed("cones", inside=8), {"cones"}, "V2"),
        (holes(whole()), {"open points"}, "V2"),
    ],
)
def test_a_lower_figure_turns_its_criterion_red(todays, known, red, stage):
    found = judged("hcu", known)
    assert {name for name, f in found.items() if not f.fine} == red
    assert reached(found) == stage
    assert sign_off.below("hcu", found)


def test_nothing_is_fine_without_a_record(todays):
    """But what is counted in this checkout, and what it admits."""
    none = Records({}, {}, FACTS, FEATURES, {"coverage": {}, "survivors": {}})
    assert {name for name, f in judged("hcu", none).items() if f.fine} == {"proofs", "open points"}
    assert not judged("no block", none)["proofs"].fine  # every block has some
    assert not judged("wtu", none)["main path"].fine  # a block without features
    old = changed("coverage")
    del old.campaigns["hcu"]["coverage"]["points"]  # of before toggles had a target
    assert not judged("hcu", old)["code"].fine


def test_a_figure_of_older_hardware_is_told(todays):
    """Also of a block's feature: of Verilog that differs from today's, or recorded without its digest."""
    assert judged("hcu", changed("stress", verilog=""))["million"].figure == "1,000,000 of 1,000,000, older hardware"
    known = whole()
    for name in ("kvmu", "kvmu_kept"):
        known.campaigns[name] = {"mutants": dict(known.campaigns["hcu"]["mutants"])}
    assert judged("kvmu", known)["mutants"] == sign_off.Finding(
        "97.0 % of 200", True, "2026-01-02, commit 0123456789ab"
    )
    del known.campaigns["kvmu_kept"]["mutants"]["verilog"]
    assert not judged("kvmu", known)["mutants"].fine
    assert judged("kvmu", known)["survivors"].figure == "0, older hardware"


def test_a_stage_is_reached_only_behind_those_before(todays):
    found = judged("hcu", coverage(toggle=89.9))
    assert all(found[c.name].fine for c in CHECKLIST if c.stage == "V3" and c.name != "toggles")
    assert reached(found) == "V1"


def test_a_joined_block_plays_its_share(todays):
    known = whole()
    known.campaigns["dre"] = {"stress": {"transactions": 5_000} | FACTS}
    found = judged("dre", known)
    assert found["stress"].figure == "5,000 of 5,000"
    assert found["stress"].fine
    assert not found["million"].fine


def test_every_block_has_a_target_and_every_criterion_is_its_own():
    assert TARGETS.keys() == ALL.keys() | {"register_block"}
    assert set(TARGETS.values()) <= set(STAGES)
    assert len({c.name for c in CHECKLIST}) == len(CHECKLIST)
    assert [c.stage for c in CHECKLIST] == sorted(c.stage for c in CHECKLIST)
    assert all(test in _names(file) and file in TESTS for file, test in sign_off.tests())


@pytest.mark.parametrize("unit", TARGETS)
def test_pages_show_what_is_recorded(unit):
    """Each criterion in a line, with figure, command and date; a red one is marked."""
    known = sign_off.recorded()
    text, found = page(unit, known), judged(unit, known)
    for c in CHECKLIST:
        f = found[c.name]
        mark = "" if f.fine else "🔴 "
        command, of = re.escape(c.command.replace("UNIT", unit)), re.escape(f.of)
        of = of or ("" if f.figure == NONE else "this checkout")
        assert re.search(rf"\| {c.name} \| .* \| {mark}{re.escape(f.figure)} \| `{command}` \| {of} \|", text), c.name
    assert f"has reached **{reached(found)}**" in text
    assert re.search(rf"`{unit}`.* \| {TARGETS[unit]} \| (🔴 )?{reached(found)} \|", index(known))
    campaigns = known.campaigns.get(unit, {})
    if "points" in campaigns.get("coverage", {}):
        for kind, many in KINDS.items():
            assert found[many].figure.startswith((f"{campaigns['coverage']['reached'][kind]:g} %", "there are none"))
    if "stress" in campaigns:
        assert f"{campaigns['stress']['transactions']:,} of" in text


def test_the_command_says_what_is_open_and_fails_below_a_target(monkeypatch):
    records = sign_off.recorded()
    run = tried("verify", "--signoff")
    firsts = {line.split()[1] for line in run.stdout.splitlines() if line.startswith("│")}
    assert firsts - {"│"} == TARGETS.keys()  # a long cell wraps
    found = {unit: judged(unit, records) for unit in TARGETS}
    assert run.exit_code == int(any(sign_off.below(unit, own) for unit, own in found.items()))
    told = json.loads(tried("verify", "--signoff", "--json").stdout)
    for unit, own in found.items():
        assert told[unit]["reached"] == reached(own)
        assert {name: c["figure"] for name, c in told[unit]["criteria"].items()} == {
            n: f.figure for n, f in own.items()
        }
        for c in sign_off.open_criteria(unit, own):
            assert f"{unit}, {c.stage}, {c.name}: {own[c.name].figure}" in run.stderr
    monkeypatch.setattr("openvrex.scripts.check.sign_off_table.TARGETS", {"hcu": "V3"})
    monkeypatch.setattr(campaign_results, "hardware", lambda subject: FACTS["verilog"])
    monkeypatch.setattr(sign_off, "recorded", whole)
    run = tried("verify", "--signoff")
    assert (run.exit_code, run.stderr) == (0, "")
    monkeypatch.setattr(sign_off, "recorded", lambda: coverage(toggle=99.9))
    run = tried("verify", "--signoff")
    assert (run.exit_code, run.stderr) == (1, "hcu, V3, toggles: 99.9 %: vrex dev coverage hcu\n")


def test_without_records_the_command_says_so(tmp_path, monkeypatch):
    sign_off.recorded.cache_clear()
    monkeypatch.setattr(sign_off, "TESTS", tmp_path / "none.json")
    with pytest.raises(ParamError, match="is missing"):
        sign_off.recorded()
    monkeypatch.undo()
    monkeypatch.setattr(campaign_results, "RECORD", tmp_path / "none.json")
    refuses("verify", "--signoff")
    sign_off.recorded.cache_clear()
