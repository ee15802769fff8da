"""The figures command on a synthetic trace: its table is right where the answer is known."""

import json

import pytest

from openvrex.golden.function_params import ReSVParams
from openvrex.golden.inputs.trace import TraceError
from openvrex.papers.commands import measure_command
from tb.tests.commands import vrex
from tb.tests.papers.commands.figure_samples import trace


def test_selective_queries_fetch_their_own_kind():
    (row,) = measure_command.measure(trace(), 0, ReSVParams(recent=6, sinks=0))
    assert (row["layer"], row["stage"], row["blocks"], row["clusters"]) == (3, "frame", 9, 2)
    assert row["tokens_per_cluster"] == 30
    assert row["fetched_of_cached"] == row["fetched_of_offloaded"] == row["visited"] == 0.5
    assert row["buckets_row"] == row["buckets_fetched"] == 1
    assert row["error"] < 0.01
    assert abs(row["error"] - row["error_topk"]) < 0.01
    assert row["error_window"] > 0.3


def test_everything_selected_has_no_error():
    (row,) = measure_command.measure(trace(), 0, ReSVParams(recent=6, ratio_q16=65536))
    assert row["fetched_of_offloaded"] == 1
    assert row["error"] == row["error_topk"] == 0


def test_nothing_offloaded_and_no_values():
    (row,) = measure_command.measure(trace(), 0, ReSVParams(recent=100))
    assert row["blocks"] == 0
    assert row["fetched_of_cached"] is None
    (row,) = measure_command.measure(trace(values=False), 0, ReSVParams(recent=6))
    assert row["error"] is None
    assert row["visited"] == 0.5
    with pytest.raises(TraceError, match="more --queries"):
        measure_command.measure(trace(queries=2), 0, ReSVParams())


@pytest.fixture
def run():
    return lambda *args: vrex("papers", "measure", *map(str, args))


def test_command(run, tmp_path):
    trace().save(tmp_path / "t.safetensors")
    done = run(tmp_path / "t.safetensors", "--recent", 6, "--json", "--every", 3)
    (row,) = json.loads(done.stdout)
    assert (row["trace"], row["blocks"], set(row) >= set(measure_command.COLUMNS)) == ("t.safetensors", 3, True)
    run(tmp_path / "t.safetensors")


def test_the_verdict_counts_layers():
    def row(layer, stage, error, topk, window):
        return {"layer": layer, "stage": stage, "error": error, "error_topk": topk, "error_window": window}

    rows = [row(0, "frame", 0.01, 0.02, 0.03), row(7, "frame", 0.5, 0.25, 0.4), row(7, "generation", 1.0, 0.0, 2.0)]
    said = measure_command.verdict(rows)
    assert "above top-k's in 1 of 2 layers (layer 7: 50.00 against 25.00 %), and below" in said
    assert "recent window alone in 1 of 2." in said
    assert "in 0 of 1 layers, and" in measure_command.verdict(rows[:1])
    assert not measure_command.verdict([row(0, "frame", None, None, None)])
