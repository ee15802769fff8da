"""The verification plan: features of each unit, their evidence, and the verdict of the last test run."""

import ast
import json
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PLAN = Path(__file__).with_name("plan.toml")
TESTS = {p.stem.removeprefix("test_"): p for p in PLAN.parents[1].glob("tests/**/test_*.py")}
STAGES = ("V1", "V2", "V3")
VERDICTS = ("passed", "failed", "skipped", "not run", "nightly", "not recorded", "no evidence")
Cases = dict[tuple[str, str], list[str]]  # verdicts of each test by (file, name), both without test_


class PlanError(ValueError):
    """A plan or a test run that cannot be read; one line names the thing and the fix."""


@dataclass(frozen=True)
class Feature:
    """A feature of a unit, its stage, and the tests that show it: (file, name), both without test_."""

    unit: str
    name: str
    stage: str
    evidence: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Status:
    """A feature with its verdict.

    verdict : one of VERDICTS; skipped, not run, left to `make nightly`, or absent in a record, if one of its tests was
    tests : number of cases that passed
    """

    feature: Feature
    verdict: str
    tests: int


def load(path: Path = PLAN) -> list[Feature]:
    """The plan's features. Raises `PlanError` for an unknown stage, or for evidence that is no test."""
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise PlanError(f"plan={path}: cannot be read as TOML ({e})") from None
    out = []
    for unit, features in tables.items():
        if not isinstance(features, dict):
            raise PlanError(f"{path.name}: {unit}={features!r}: must be a table of features")
        for name, line in features.items():
            where = f"{path.name}: {unit}, {name!r}"
            if not isinstance(line, list) or not line or not all(isinstance(word, str) for word in line):
                raise PlanError(f"{where}={line!r}: must be a list, the stage and the tests that show it")
            stage, *tests = line
            if stage not in STAGES:
                raise PlanError(f"{where}: stage={stage!r}: must be one of {', '.join(STAGES)}")
            evidence = tuple((t if "::" in t else f"{unit}::{t}").split("::", 1) for t in tests)
            for file, test in evidence:
                if test not in _names(file):
                    raise PlanError(f"{where}: test_{file}.py has no test_{test}: correct the plan or write it")
            out.append(Feature(unit, name, stage, tuple((file, test) for file, test in evidence)))
    return out


@cache
def _names(file: str) -> frozenset[str]:
    """Tests of a file, without test_."""
    return frozenset(_tests(file))


@cache
def _nightly(file: str) -> frozenset[str]:
    """Tests of a file that `make test` leaves out, without test_: marked ones, and slow ones that day.txt lacks."""
    marked = {name for name, marks in _tests(file).items() if "pytest.mark.nightly" in marks}
    return frozenset(marked | (_listed(file, "slow.txt") - _listed(file, "day.txt")))


def _listed(file: str, name: str) -> set[str]:
    """Tests of a file that a list of tests names, with any of their parameters, without test_."""
    if file not in TESTS:
        return set()
    lines = (line.partition("::") for line in (PLAN.parents[1] / "tests" / name).read_text().splitlines())
    named = {test.partition("[")[0][5:] for path, _, test in lines if path.endswith(f"/{TESTS[file].name}")}
    return set(_names(file)) if "" in named else named


def _tests(file: str) -> dict[str, list[str]]:
    """Decorators of a file's tests by name, without test_: functions, and names of checks."""
    tree = ast.parse(TESTS[file].read_text()) if file in TESTS else ast.Module([], [])
    out = {n.name: list(map(ast.unparse, n.decorator_list)) for n in tree.body if isinstance(n, ast.FunctionDef)}
    out |= {ast.unparse(n.targets[0]): [] for n in tree.body if isinstance(n, ast.Assign)}
    return {name[5:]: marks for name, marks in out.items() if name.startswith("test_")}


def cases(path: Path) -> Cases:
    """The verdicts of each test's cases. Raises `PlanError` if the file is not JUnit's XML."""
    out: Cases = {}
    try:
        for case in ET.parse(path).iter("testcase"):
            file = case.get("classname", "").rpartition(".")[2].removeprefix("test_")
            test = case.get("name", "").partition("[")[0].removeprefix("test_")
            bad = case.find("failure") is not None or case.find("error") is not None
            verdict = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
            out.setdefault((file, test), []).append(verdict)
    except OSError:
        raise PlanError(f"tests={path}: not there; `make test` leaves it") from None
    except ET.ParseError as e:
        raise PlanError(f"tests={path}: not JUnit's XML ({e}); `make test` leaves it") from None
    return out


def record(features: list[Feature], found: Cases, of: dict[str, str], more: Iterable[tuple[str, str]] = ()) -> str:
    """JSON that keeps the verdicts of the plan's tests and of `more`, with facts `of` the run such as its commit."""
    named = sorted({test for feature in features for test in feature.evidence} | {*more})
    kept = {"::".join(test): dict(Counter(found[test])) for test in named if test in found}
    return json.dumps(of | {"cases": kept}, indent=1) + "\n"


def recorded(path: Path) -> tuple[Cases, dict[str, str]]:
    """The verdicts that `record` kept, and the facts of that run. Raises `PlanError`."""
    try:
        kept = json.loads(path.read_text())
        found = {tuple(name.split("::")): list(Counter(n).elements()) for name, n in kept.pop("cases").items()}
    except (OSError, ValueError, KeyError, AttributeError) as e:
        raise PlanError(
            f"tests={path}: no record of a test run ({e}); `vrex verify --plan --record` writes it"
        ) from None
    return found, kept


def judge(features: list[Feature], found: Cases, of_record: bool = False) -> list[Status]:
    """Verdict of each feature: that of its worst test. `of_record` : `found` was recorded, maybe before some tests."""
    out = []
    for feature in features:
        absent = (["not recorded" if of_record else _absent(*test)] for test in feature.evidence)
        ends = [v for test, none in zip(feature.evidence, absent, strict=True) for v in found.get(test, none)]
        order = ("failed", "not run", "nightly", "not recorded", "skipped")
        worst = next((v for v in order if v in ends), "passed" if ends else "no evidence")
        out.append(Status(feature, worst, ends.count("passed")))
    return out


def _absent(file: str, test: str) -> str:
    return "nightly" if test in _nightly(file) else "not run"
