"""Names the slow tests, which `make check` leaves out, from the durations of runs.

make test nightly-tests && .venv/bin/python -m tb.tests.slow_tests build/tests.xml build/nightly.xml

Of several reports, a test is slow if it is slow in one: the first test of a module pays for its fixtures. Files that
are slow as a whole, tests whose parameters all are, and tests that no report has stay as they stand in slow.txt. So a
new parameter of the hardware, which a test of all parameters plays too, asks for no new line.

A slow test runs at night, unless day.txt names it. That list is made by hand; CONTRIBUTING.md says what belongs there.
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from openvrex.golden.atomic_files import write_atomically
from tb.tests.conftest import SLOW

LIMIT = 0.5  # seconds, with two workers on two cores


def durations(report: Path) -> dict[str, float]:
    """Seconds that each function of a JUnit report took, by its file below tb/tests and its name."""
    out = {}
    for case in ET.parse(report).iter("testcase"):
        parts = case.get("classname", "").removeprefix("tb.tests.").split(".")
        file = next((k for k, part in enumerate(parts) if part.startswith("test_")), None)  # none: a skipped file
        if file == len(parts) - 1:
            out[f"{'/'.join(parts[: file + 1])}.py::{case.get('name')}"] = float(case.get("time", "0"))
    return out


def slow_lines(lines: set[str], reports: list[dict[str, float]]) -> set[str]:
    """The lines of slow.txt after these reports."""
    ran = {test for report in reports for test in report}
    found = {test for report in reports for test, seconds in report.items() if seconds > LIMIT}
    kept = lines - ran - {test.partition("[")[0] for test in ran}  # files, and tests that no report has
    stems = {test: test.partition("[")[0] for test in found}  # without parameters
    own = {test: stem for test, stem in stems.items() if test.partition("::")[0] not in lines}
    return kept | {stem if stem in lines else test for test, stem in own.items()}


if __name__ == "__main__":
    lines = set(SLOW.read_text().splitlines())
    found = slow_lines(lines, [durations(Path(report)) for report in sys.argv[1:]])
    write_atomically(SLOW, "\n".join(sorted(found)).encode() + b"\n")
