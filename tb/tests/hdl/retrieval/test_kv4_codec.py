"""The copier's codec alone: every number at several steps, every header, every code; stalls, resets, cycles."""

import numpy as np
import pytest

from openvrex.golden.retrieval import kv4
from openvrex.tb.checks import kv4_codec_checks
from openvrex.tb.checks.kv4_codec_checks import (
    SIZES,
    Traffic,
    check_real_entries,
    check_reset_in_flight,
    emitted,
    whole,
)
from openvrex.tb.library.runner import lint
from tb.tests.by_day import at_sizes
from tb.tests.golden.retrieval.kv4_samples import ENDS, groups_of_every_number

pytestmark = pytest.mark.slow
BURST = 64  # packed beats, or beats of numbers


def every_header(group: int) -> np.ndarray:
    """Packed groups: every header, with each code at a place of either kind."""
    headers = np.arange(1 << kv4.HEADER)[:, None]
    codes = np.arange(group) + headers & 15
    at = np.arange(kv4.HEADER) * (group // 16)
    codes[:, at] = 2 * (np.arange(kv4.HEADER) + headers) & 14 | headers >> np.arange(kv4.HEADER) & 1
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)


def test_every_header():
    """At the sizes of `core`: all headers, with all codes."""
    t = Traffic("core")
    packed = every_header(t.group)
    t.expand(packed, [BURST] * (2 * packed.size // (t.bus // 2) // BURST))
    t.play()


@pytest.mark.parametrize("ends", [ENDS[0], *(pytest.param(e, marks=pytest.mark.nightly) for e in ENDS[1:])])
def test_every_number(ends):
    """All numbers between the ends of a group."""
    t = Traffic("wide")
    quads = 4 * t.bus // 2 // t.group * BURST
    numbers = whole(groups_of_every_number(t.group, ends), quads)
    t.pack(numbers, [BURST] * (len(numbers) // quads))
    t.play()


test_equals_golden_and_time_view = at_sizes(kv4_codec_checks.check_equals_golden_and_time_view, SIZES, "core", "wide")


def test_real_entries():
    check_real_entries("core")


@pytest.mark.parametrize("cut", [1, 9, 17, 18, 30, 52, 75])
def test_reset_in_flight(cut):
    check_reset_in_flight("core", cut)


def test_lint(tmp_path):
    for size in SIZES:
        assert lint(emitted(size), tmp_path) == ""
