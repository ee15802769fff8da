"""`vrex papers readings` on a synthetic trace: its figures by definition."""

import json
from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.function_params import READINGS
from openvrex.papers.commands import readings_command
from tb.tests.commands import refuses, vrex
from tb.tests.papers.commands.figure_samples import trace


@pytest.mark.parametrize("name", READINGS)
def test_selective_queries_fetch_their_own_kind(name):
    """Keys of two kinds, one of which the queries look for: half of the cache, without error."""
    found = readings_command.measure(trace(), 0, READINGS[name])
    assert found["fetched"] is None  # all of it is in the ring
    found = readings_command.measure(trace(), 0, replace(READINGS[name], recent=6, sinks=0))
    assert (found["rows"], found["clusters"], found["low"]) == (9 * 6 * 4, 2, 0)
    assert found["fetched"] == 0.5
    assert found["error"] < 0.01


def test_rows_of_negative_sum_are_counted():
    """Queries that point away from all keys: raw scores are negative, and a row chooses one cluster."""
    t = trace()
    away = replace(t, q=-np.abs(t.q), k=np.abs(t.k))
    raw, exp = (readings_command.measure(away, 0, replace(READINGS[n], recent=6)) for n in ("equations", "exact"))
    assert (raw["low"], exp["low"]) == (1, 0)


def test_codes_are_compared_with_scores_in_fp64():
    rows = readings_command.code_widths(trace(), 0, replace(READINGS["resv"], recent=6))
    assert [r["codes"] for r in rows] == ["FP64", "e4m7", "e4m8", "e4m10", "e5m8", "e0m16"]
    assert rows[0]["changed"] == 0
    assert all(r["rows"] == 9 * 6 * 4 for r in rows)
    coarse = replace(READINGS["resv"], recent=6, th_hd=2, ratio_q16=60000)
    rng = np.random.default_rng(3)
    mixed = replace(trace(), q=rng.standard_normal(trace().q.shape).astype(trace().q.dtype))
    changed = [r["changed"] for r in readings_command.code_widths(mixed, 0, coarse)]
    assert 0 == changed[0] <= changed[3] <= changed[1] < 0.5


def test_command(tmp_path):
    trace(values=False).save(tmp_path / "t")
    out = json.loads(vrex("papers", "readings", str(tmp_path / "t"), "--recent", "6", "--json").stdout)
    assert [r["reading"] for r in out["readings"]] == list(READINGS)
    assert all(r["error"] is None for r in out["readings"])
    vrex("papers", "readings", str(tmp_path / "t"), "--recent", "6")
    trace(queries=2).save(tmp_path / "few")
    ran = refuses("papers", "readings", str(tmp_path / "few"))
    assert "few: no queries of any frame in the trace: record it with more --queries" in ran.stderr
