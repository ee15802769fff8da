"""What all tests share: checks that explain themselves, and the slow tests that `make check` leaves out."""

import gc
import signal
from pathlib import Path

import pytest

# A script that starts tests with `&`, and nohup, has them ignore SIGINT; commands under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Checks outside of test files explain a failed `assert` as tests do.
pytest.register_assert_rewrite("openvrex.tb.checks", "openvrex.tb.library")

# Fixtures that tests of several folders use.
pytest_plugins = ("tb.tests.golden.inputs.trace_samples", "tb.tests.golden.policies.policy_runs")

SLOW = Path(__file__).with_name("slow.txt")  # made by `python -m tb.tests.slow_tests`


def pytest_collection_finish():
    """Python looks for circles in all that tests import, again and again; that would take a tenth of the time."""
    gc.freeze()
    gc.set_threshold(10_000)


def pytest_collection_modifyitems(items):
    """Mark the tests of slow.txt. A line is a file below this folder, or a file and the name of a test in it, with
    or without its parameters."""
    slow = set(SLOW.read_text().splitlines())
    for item in items:
        file = item.path.relative_to(SLOW.parent).as_posix()
        if {file, f"{file}::{item.name}", f"{file}::{item.originalname}"} & slow:
            item.add_marker("slow")
