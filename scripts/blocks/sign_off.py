"""Sign-off by checklist: one list of criteria for every block, judged from recorded results.

A block has reached a stage if all criteria of it and of the stages before hold. `vrex verify --signoff` and the pages
`signoff/` of the manual show the same findings. OpenTitan's checklist is the model.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from openvrex.golden.function_params import check
from openvrex.hdl.emit import ALL
from openvrex.scripts.blocks.block_status import MARK, NONE, claims, percent
from openvrex.scripts.blocks.campaign_results import MUTANTS_TARGET, RECORD, killed_share, load, older
from openvrex.scripts.markdown import table
from openvrex.tb.campaigns import plan
from openvrex.tb.campaigns.plan import STAGES, Cases, Feature
from openvrex.tb.campaigns.stress import SLOW
from openvrex.tb.library.runner import ROOT

# The stage that each block is to reach: units are signed off whole, what joins them for its main and all features.
TARGETS = {
    **dict.fromkeys(("hcu", "wtu", "cluster_set", "kvmu", "table_port", "dpe", "vpe", "loader", "storer"), "V3"),
    **dict.fromkeys(("feeder", "retriever", "sequencer", "arbiter", "register_block", "motion_mask"), "V3"),
    **dict.fromkeys(("dre", "lxe", "core", "system", "dre_ip", "core_ip", "motion_mask_ip"), "V2"),
}
REASONS = {name: ROOT / "tb" / "campaigns" / f"{name}.toml" for name in ("coverage", "survivors")}
TESTS = RECORD.with_name("tests.json")
KINDS = {"line": "lines", "branch": "branches", "toggle": "toggles", "state": "states"}
ENOUGH, MILLION = 20_000, 1_000_000  # random transactions
CONE = 90.0  # percent of the registers


@dataclass(frozen=True)
class Records:
    """What the criteria are judged from.

    campaigns : results by subject, as docs/results/blocks.json has them · cases : verdicts of tests
    ran : date and commit of these · features : the plan · reasons : why something is left out, by campaign and subject
    """

    campaigns: dict[str, dict]
    cases: Cases
    ran: dict[str, str]
    features: list[Feature]
    reasons: dict[str, dict[str, dict[str, str]]]


@dataclass(frozen=True)
class Finding:
    """What a criterion comes to for a block. of : date and commit of what was measured, "" if that is this checkout"""

    figure: str
    fine: bool
    of: str = ""


@dataclass(frozen=True)
class Criterion:
    """A line of the checklist. asks : what must hold · command : measures it again, with the block for UNIT"""

    name: str
    stage: str
    asks: str
    command: str
    judge: Callable[[str, Records], Finding]


def tests() -> set[tuple[str, str]]:
    """The tests that the checklist names, beside those of the plan: (file, name), both without test_."""
    return {(file, test) for name in (*_SHEET, *_LINT, *_POWER) for file, test in [name.split("::")]}


@cache
def recorded() -> Records:
    """The recorded results of this checkout. Raises: `ParamError` outside of a checkout."""
    check(TESTS.is_file(), "record", str(TESTS), "is missing: run the command in a checkout of the project")
    cases, ran = plan.recorded(TESTS)
    reasons = {name: tomllib.loads(path.read_text()) for name, path in REASONS.items()}
    return Records(load(), cases, ran, plan.load(), reasons)


def _of(found: dict) -> str:
    return f"{found['date']}, commit {found['commit']}"


def _plan(pick: Callable[[Feature], bool], unit: str, known: Records) -> Finding:
    """Those of a block's features that `pick` takes."""
    found = plan.judge([f for f in known.features if f.unit == unit and pick(f)], known.cases, of_record=True)
    open_ = [s for s in found if s.verdict != "passed"]
    if not found:
        return Finding("none in the plan", False)
    first = f": {open_[0].feature.name.partition(':')[0]} ({open_[0].verdict})" if open_ else ""
    cases = sum(s.tests for s in found)
    text = f"{len(found) - len(open_)} of {len(found)}" + (first or f", {cases:,} test case{'s' * (cases != 1)}")
    return Finding(text, not open_, _of(known.ran))


def _tests(names: tuple[str, ...], unit: str, known: Records) -> Finding:
    """Tests that run for every block: all cases of each passed."""
    found = {name: known.cases.get((file, test)) for name in names for file, test in [name.split("::")]}
    bad = [name for name, ends in found.items() if not ends or set(ends) != {"passed"}]
    if bad:
        return Finding(f"{bad[0]}: {'not passed' if found[bad[0]] else 'not recorded'}", False, _of(known.ran))
    return Finding(f"{sum(map(len, filter(None, found.values())))} cases passed", True, _of(known.ran))


def _campaign(of: dict[str, dict], figure: str, fine: bool) -> Finding:
    """What campaigns came to; their hardware must be today's. of : results by subject, first the one that decides"""
    old = next(filter(None, (older(name, found) for name, found in of.items())), "")
    return Finding(figure + old, fine and not old, _of(next(iter(of.values()))))


def _covered(kinds: tuple[str, ...], least: float, unit: str, known: Records) -> Finding:
    """Shares that the tests of a block reach, of what is not left out."""
    found = known.campaigns.get(unit, {}).get("coverage")
    if not found or "points" not in found:  # a record from before toggles and states had a target
        return Finding(NONE, False)
    asked = {kind: found["reached"][kind] for kind in kinds if found["points"][kind]}
    shown = ", ".join(f"{KINDS.get(k, 'stalls')} {percent(share)}" if len(kinds) > 1 else percent(share)
                      for k, share in asked.items())  # fmt: skip
    left = sum(found["left_out"][kind] for kind in kinds)
    reasons = f"; {left} left out" if left else ""
    return _campaign({unit: found}, (shown or "there are none") + reasons, all(s >= least for s in asked.values()))


def _of_subjects(kind: str, unit: str, known: Records) -> dict[str, dict]:
    """Results of a campaign on a block and on its features; empty if the block itself has none."""
    from openvrex.tb.campaigns.subjects import SUBJECTS  # imports the benches

    own = [name for name, subject in SUBJECTS.items() if subject.unit == unit]
    found = {name: known.campaigns[name][kind] for name in own if kind in known.campaigns.get(name, {})}
    return found if unit in found else {}


def _killed(unit: str, known: Records) -> Finding:
    """The least share of killed mutants."""
    if not (found := _of_subjects("mutants", unit, known)):
        return Finding(NONE, False)
    by_share = dict(sorted(found.items(), key=lambda own: killed_share(own[1])))
    share = killed_share(next(iter(by_share.values())))
    made = sum(own["made"] for own in found.values())
    return _campaign(by_share, f"{percent(100 * share)} of {made}", share >= MUTANTS_TARGET)


def _survivors(unit: str, known: Records) -> Finding:
    """Survivors of the recorded campaigns that have no reason."""
    if not (found := _of_subjects("mutants", unit, known)):
        return Finding(NONE, False)
    left = {name: own["surviving"] - own.get("explained", 0) for name, own in found.items()}
    by_left = {name: found[name] for name in sorted(left, key=lambda name: -left[name])}
    return _campaign(by_left, str(sum(left.values())), not any(left.values()))


def _stressed(least: int, unit: str, known: Records) -> Finding:
    found = known.campaigns.get(unit, {}).get("stress")
    if not found:
        return Finding(NONE, False)
    asked = -(-least // SLOW.get(unit, 1))
    return _campaign({unit: found}, f"{found['transactions']:,} of {asked:,}", found["transactions"] >= asked)


def _proved(unit: str, known: Records) -> Finding:
    depths = [depth for _, _, depth in claims(unit)]
    bounded = sum(depth is not None for depth in depths)
    return Finding(f"{len(depths) - bounded} unbounded, {bounded} bounded", bool(depths))


def _looked_at(unit: str, known: Records) -> Finding:
    found = known.campaigns.get(unit, {}).get("cones")
    if not found or not found["registers"]:
        return Finding(NONE, False)
    share = 100 * found["inside"] / found["registers"]
    return _campaign({unit: found}, f"{found['inside']} of {found['registers']}", share >= CONE)


def _holes(unit: str, known: Records) -> Finding:
    from openvrex.tb.campaigns.subjects import SUBJECTS  # imports the benches

    own = [name for name, subject in SUBJECTS.items() if subject.unit == unit]
    reasons = [why for name in own for why in known.reasons["survivors"].get(name, {}).values()]
    holes = sum(why.startswith("A hole") for why in reasons)
    return Finding(str(holes), not holes)


def _stage(stage: str) -> Callable[[str, Records], Finding]:
    return partial(_plan, lambda f: f.stage == stage)


def _named(word: str) -> Callable[[str, Records], Finding]:
    return partial(_plan, lambda f: f.name.startswith(word))


_PLAN, _COVERAGE, _MUTATE = "vrex verify --plan", "vrex dev coverage UNIT", "vrex dev mutate UNIT"
_SHEET = ("datasheet::public_things_are_documented", "datasheet::a_sheet_tells_corner_cases")
_LINT = ("emit::lints_clean_and_reads_in_yosys", "emit::no_warning_is_waived")
_POWER = ("reset::outputs_are_known", "reset::bits_and_cycles_are_those_of_any_power_up")
CHECKLIST = (
    Criterion("main path", "V1", "all features of V1", _PLAN, _stage("V1")),
    Criterion("data sheet", "V1", "every section, with corner cases",
              'pytest -m "" tb/tests/scripts/test_datasheet.py', partial(_tests, _SHEET)),
    Criterion("lint", "V1", "no warning of four tools, and none is waived",
              'pytest -m "" tb/tests/hdl/test_emit.py', partial(_tests, _LINT)),
    Criterion("features", "V2", "all features of V2", _PLAN, _stage("V2")),
    Criterion("bins", "V2", "every bin of functional coverage", _PLAN, _named("bins")),
    Criterion("sizes", "V2", "sizes of 1, ragged ones and those of presets", _PLAN, _named("sizes")),
    Criterion("code", "V2", "90 % of lines, branches, toggles and states", _COVERAGE,
              partial(_covered, tuple(KINDS), 90.0)),
    Criterion("stalls", "V2", "on each stream a beat waited, was missing, followed at once", _COVERAGE,
              partial(_covered, ("stall",), 100.0)),
    Criterion("power-up", "V2", "outputs are known after a reset, and equal from any power-up",
              'pytest -m "" tb/tests/hdl/test_reset.py', partial(_tests, _POWER)),
    Criterion("mutants", "V2", "tests notice 95 % of those that differ from the block", _MUTATE, _killed),
    Criterion("stress", "V2", f"{ENOUGH:,} random transactions, of a joined block a share",
              f"vrex dev stress UNIT -n {ENOUGH}", partial(_stressed, ENOUGH)),
    Criterion("evidence", "V3", "all features of V3", _PLAN, _stage("V3")),
    *(Criterion(many, "V3", f"all {many}, but those with a reason", _COVERAGE, partial(_covered, (kind,), 100.0))
      for kind, many in KINDS.items()),
    Criterion("proofs", "V3", "claims are proved", "vrex dev prove UNIT", _proved),
    Criterion("cones", "V3", f"{CONE:g} % of the registers lead to a claim", "vrex dev prove UNIT --cones", _looked_at),
    Criterion("survivors", "V3", "no surviving mutant without a reason", _MUTATE, _survivors),
    Criterion("million", "V3", f"{MILLION:,} random transactions, of a joined block a share",
              "vrex dev stress UNIT", partial(_stressed, MILLION)),
    Criterion("open points", "V3", "no hole that `tb/campaigns/survivors.toml` admits", _MUTATE, _holes),
)  # fmt: skip


def judged(unit: str, known: Records) -> dict[str, Finding]:
    """What every criterion comes to for a block."""
    return {criterion.name: criterion.judge(unit, known) for criterion in CHECKLIST}


def reached(found: dict[str, Finding]) -> str:
    """The highest stage of which all criteria hold, with those of the stages before; "none" below the first."""
    stage = "none"
    for candidate in STAGES:
        if not all(found[c.name].fine for c in CHECKLIST if c.stage == candidate):
            break
        stage = candidate
    return stage


def below(unit: str, found: dict[str, Finding]) -> bool:
    """Whether a block is below its target."""
    order = ("none", *STAGES)
    return order.index(reached(found)) < order.index(TARGETS[unit])


def open_criteria(unit: str, found: dict[str, Finding]) -> list[Criterion]:
    """The criteria that a block's target asks for and that do not hold, those of the first stage first."""
    asked = STAGES[: STAGES.index(TARGETS[unit]) + 1]
    return [c for c in CHECKLIST if c.stage in asked and not found[c.name].fine]


def page(unit: str, known: Records) -> str:
    """The sign-off page of a block as Markdown."""
    found = judged(unit, known)
    name = f"[`{unit}`](../datasheets/{unit}.md)" if unit in ALL else f"`{unit}`"
    out = [f"# Sign-off: `{unit}`\n", f"Target {TARGETS[unit]}; {name} has reached **{reached(found)}**.\n"]
    rows = []
    for c in CHECKLIST:
        f = found[c.name]
        figure = f.figure if f.fine else f"{MARK} {f.figure}"
        of = f.of or ("" if f.figure == NONE else "this checkout")
        rows.append([c.stage, c.name, c.asks, figure, f"`{c.command.replace('UNIT', unit)}`", of])
    out += [table(["stage", "criterion", "asks for", "found", "command", "measured"], rows), ""]
    titles = {"coverage": "Left out of coverage", "survivors": "Surviving mutants with a reason"}
    for kind, title in titles.items():
        if reasons := known.reasons[kind].get(unit):
            out += [
                f"## {title}\n",
                table(["what", "why"], [[f"`{_cell(what)}`", why] for what, why in reasons.items()]),
                "",
            ]
    return "\n".join(out)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


def index(known: Records) -> str:
    """The page that lists all blocks: stage reached, and the first open criterion."""
    out = ["# Sign-off\n", _INDEX]
    rows = []
    for unit in TARGETS:
        found = judged(unit, known)
        first = open_criteria(unit, found)
        mark = f"{MARK} " if below(unit, found) else ""
        rows.append(
            [f"[`{unit}`]({unit}.md)", TARGETS[unit], mark + reached(found),
             f"{first[0].name}: {found[first[0].name].figure}" if first else "", str(len(first) or "")]
        )  # fmt: skip
    return "\n".join([*out, table(["block", "target", "reached", "first open criterion", "open"], rows), ""])


_INDEX = f"""The stage that each block has reached by the checklist of `scripts/blocks/sign_off.py`, judged from the
recorded results; `vrex verify --signoff` prints the same. {MARK} is below the target.
"""
