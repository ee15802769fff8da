"""Names the slow tests, which `make check` leaves out, from the durations of runs.

make test && .venv/bin/python -m tb.tests.slow_tests build/tests.xml

Of several reports, a test is slow if it is slow in one: the first test of a module pays for its fixtures. Files that
are slow as a whole, and tests whose parameters all are, stay as they stand in slow.txt. So a new parameter of the
hardware, which a test of all parameters plays too, asks for no new line.
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from openvrex.golden.atomic_files import write_atomically
from tb.tests.conftest import SLOW

LIMIT = 0.5  # seconds, with two workers on two cores: all faster tests together take under 2 minutes


def slow_tests(report: Path) -> list[str]:
    """Those of a JUnit report that took longer than LIMIT, with their files below tb/tests."""
    out = []
    for case in ET.parse(report).iter("testcase"):
        parts = case.get("classname", "").removeprefix("tb.tests.").split(".")
        file = next((k for k, part in enumerate(parts) if part.startswith("test_")), None)  # None: a skipped file
        if file is not None and float(case.get("time", "0")) > LIMIT:
            out.append(f"{'/'.join(parts[: file + 1])}.py::{case.get('name')}")
    return sorted(out)


if __name__ == "__main__":
    lines = set(SLOW.read_text().splitlines())
    files = {line for line in lines if "::" not in line}
    found = {test for report in sys.argv[1:] for test in slow_tests(Path(report))}
    whole = {test: test.partition("[")[0] for test in found}  # without parameters
    alone = {stem if stem in lines else test for test, stem in whole.items() if test.partition("::")[0] not in files}
    write_atomically(SLOW, "\n".join(sorted(files | alone)).encode() + b"\n")
