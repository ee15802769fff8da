"""Names the slow tests, which `make check` leaves out, from the durations of a whole run.

make test && .venv/bin/python -m tb.tests.slow_tests build/tests.xml
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from golden.atomic_files import write_atomically
from tb.tests.conftest import SLOW

LIMIT = 1.0  # seconds, with two workers on two cores


def slow_tests(report: Path) -> list[str]:
    """Those of a JUnit report that took longer than LIMIT, with their files below tb/tests."""
    out = []
    for case in ET.parse(report).iter("testcase"):
        parts = case.get("classname", "").removeprefix("tb.tests.").split(".")
        file = next(k for k, part in enumerate(parts) if part.startswith("test_"))
        if float(case.get("time", "0")) > LIMIT:
            out.append(f"{'/'.join(parts[: file + 1])}.py::{case.get('name')}")
    return sorted(out)


if __name__ == "__main__":
    write_atomically(SLOW, "\n".join(slow_tests(Path(sys.argv[1]))) + "\n")
