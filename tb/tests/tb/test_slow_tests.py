"""Tests the lists that choose tests: none names a test that is gone, and `make test` plays every unit of hardware."""

import re
from pathlib import Path

import pytest

from openvrex.hdl.emit import ALL
from openvrex.tb.campaigns.plan import TESTS, load
from tb.tests.conftest import COLLECTED, DAY, SLOW
from tb.tests.slow_tests import slow_lines


@pytest.mark.parametrize("path", [SLOW, DAY], ids=["slow", "day"])
def test_every_line_names_a_test(path: Path, request: pytest.FixtureRequest):
    """To its parameters, in a run that found the tests of its file."""
    lines = path.read_text().splitlines()
    assert lines == sorted(set(lines))
    found = {name for names, _ in request.config.stash[COLLECTED] for name in names}
    for line in lines:
        file, _, test = line.partition("::")
        name = test.partition("[")[0]
        source = rf"^(def )?{name}\b" if name else "^(def )?test_"
        assert re.search(source, (SLOW.parent / file).read_text(), re.MULTILINE), line
        assert line in found or file not in found, f"{line}: no test has these parameters"


def test_a_slow_test_that_no_report_has_stays():
    """Those that became fast go; files and tests of all parameters cover what is slow in them."""
    lines = {"a.py", "b.py::test_all", "b.py::test_gone", "b.py::test_night[1]"}
    day = {"a.py::test_x": 9.0, "b.py::test_all[1]": 0.1, "b.py::test_all[2]": 0.6, "b.py::test_gone": 0.4}
    assert slow_lines(lines, [day, {"b.py::test_new[1]": 0.7}]) == {
        "a.py",
        "b.py::test_all",
        "b.py::test_new[1]",
        "b.py::test_night[1]",
    }


JOINED = ("core_ip", "system")  # cores, registers and arbiters: their parts play by day, their simulators take a minute


@pytest.mark.parametrize("unit", [unit for unit in ALL if unit not in JOINED])
def test_every_unit_plays_by_day(unit: str, request: pytest.FixtureRequest):
    """Its main path, the plan's first feature: `make test` must not pass while that is broken."""
    found = request.config.stash[COLLECTED]
    main = {(TESTS[file], f"test_{test}") for file, test in next(f for f in load() if f.unit == unit).evidence}
    if not {file for file, _ in main} <= {item.path for _, item in found}:
        pytest.skip("its tests are not in this run")
    assert main <= {(item.path, item.originalname) for _, item in found if not item.get_closest_marker("nightly")}
