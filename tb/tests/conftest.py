"""What all tests share: checks that explain themselves, and which tests run in `make check`, by day and at night."""

import gc
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Machines are shared: no test fails because an example took long.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

# A script that starts tests with `&`, and nohup, has them ignore SIGINT; commands under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Checks outside of test files explain a failed `assert` as tests do.
pytest.register_assert_rewrite("openvrex.tb.checks", "openvrex.tb.library")

# Fixtures that tests of several folders use.
pytest_plugins = ("tb.tests.golden.inputs.trace_samples", "tb.tests.golden.policies.policy_runs")

SLOW = Path(__file__).with_name("slow.txt")  # made by `python -m tb.tests.slow_tests`
DAY = Path(__file__).with_name("day.txt")  # slow tests that `make test` runs; all others wait for `make nightly`
NIGHT: list[Path] = []  # file of `--night`, in the process that writes it
COLLECTED = pytest.StashKey[list[tuple[set[str], pytest.Item]]]()  # the tests found, with what a line may call each


def pytest_collection_finish():
    """Python looks for circles in all that tests import, again and again; that would take a tenth of the time."""
    gc.freeze()
    gc.set_threshold(10_000)


def pytest_addoption(parser):
    parser.addoption(
        "--night", type=Path, metavar="FILE", help="tests that FILE names have passed; add those that pass"
    )


def pytest_runtest_logreport(report):
    """Note a test that has passed, or that skips, and beside it, in `red.txt`, one that fails.

    Workers of pytest-xdist send their reports to one process.
    """
    if NIGHT and (report.failed or report.skipped or report.when == "call"):
        with (NIGHT[0].with_name("red.txt") if report.failed else NIGHT[0]).open("a") as file:
            file.write(f"{report.nodeid}\n")


def pytest_configure(config):
    if (file := config.getoption("--night")) and not hasattr(config, "workerinput"):
        NIGHT.append(file)


def pytest_collection_modifyitems(config, items):
    """Mark the tests of slow.txt, and those of them that day.txt lacks as `nightly`. A line is a file below this
    folder, or a file and the name of a test in it, with or without its parameters."""
    slow, day = (set(file.read_text().splitlines()) for file in (SLOW, DAY))
    config.stash[COLLECTED] = []
    for item in items:
        file = item.path.relative_to(SLOW.parent).as_posix()
        names = {file, f"{file}::{item.name}", f"{file}::{item.originalname}"}
        config.stash[COLLECTED].append((names, item))
        if names & slow:
            item.add_marker("slow")
            if not names & day:
                item.add_marker("nightly")
    file = config.getoption("--night")
    passed = set(file.read_text().splitlines()) if file and file.is_file() else set()
    items[:] = [item for item in items if item.nodeid not in passed]
