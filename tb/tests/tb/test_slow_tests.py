"""Tests the list of slow tests: a test that was renamed would run in `make check` without a word."""

import re

from tb.tests.conftest import SLOW


def test_every_line_names_a_test():
    lines = SLOW.read_text().splitlines()
    assert lines == sorted(set(lines))
    for line in lines:
        file, _, test = line.partition("::")
        name = test.partition("[")[0]
        found = rf"^def {name}\(" if name else "^def test_"
        assert re.search(found, (SLOW.parent / file).read_text(), re.MULTILINE), line
