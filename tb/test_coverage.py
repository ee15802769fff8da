"""Code coverage: what Verilator counts is read, added up, written as LCOV; event counters are left out."""

from collections import Counter

import pytest
from typer.testing import CliRunner

from scripts.main import app
from tb.coverage import Point, counts, lcov, measure, missed, read
from tb.subjects import SUBJECTS, Subject


def data(path, *points: tuple[str, int, str, str, int]):
    rows = ["# SystemC::Coverage-3"]
    for file, line, kind, what, n in points:
        fields = {"f": file, "l": line, "n": 1, "page": f"v_{kind}/hcu", "o": what, "h": "bench.unit"}
        rows.append("C '" + "".join(f"\x01{k}\x02{v}" for k, v in fields.items()) + f"' {n}")
    path.write_text("\n".join(rows))
    return path


def test_data_files_are_added_up(tmp_path):
    a = data(
        tmp_path / "a", ("u.v", 3, "line", "block", 1), ("u.v", 4, "branch", "if", 0), ("bench.v", 1, "line", "", 9)
    )
    b = data(
        tmp_path / "b",
        ("u.v", 3, "line", "block", 2),
        ("u.v", 4, "branch", "if", 0),
        ("u.v", 5, "toggle", "perf__x[9]:0->1", 0),
    )
    points = read([a, b], "u.v")
    assert points == {
        Point("u.v", 3, "line", "block", "hcu"): 3,
        Point("u.v", 4, "branch", "if", "hcu"): 0,
        Point("u.v", 5, "toggle", "perf__x[9]:0->1", "hcu"): 0,
    }
    assert counts(points) == {"line": (1, 1), "branch": (0, 1), "toggle": (0, 0)}
    assert [p.line for p in missed(points)] == [4]
    text = lcov("u", points)
    assert text.startswith("TN:u\nSF:u.v\n")
    assert "\nDA:3,3\n" in text
    assert "BRDA:4,0,1,0" in text
    assert text.endswith("end_of_record\n")


@pytest.mark.slow
def test_tests_reach_every_branch_and_none_without_them():
    points = measure(SUBJECTS["cluster_set"])
    hit, every = counts(points)["branch"]
    assert hit == every > 200
    assert not [p for p in missed(points) if p.kind != "toggle"]
    assert measure(Subject("cluster_set", (), named=False)) == Counter()


def test_bad_input_is_named():
    run = CliRunner().invoke(app, ["coverage", "x"])
    assert run.exit_code == 2
    assert "unit='x': must be one of cluster_set" in run.stderr
