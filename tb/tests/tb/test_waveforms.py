"""Waveforms that a user asks for: a file, and a save file for GTKWave that names what is in it."""

import re
import shutil
from unittest.mock import patch

import pytest

from openvrex.tb.library import waveforms
from tb.tests.commands import tried


@pytest.mark.nightly
def test_a_save_file_groups_streams_and_names_states(tmp_path, monkeypatch):
    """Every signal of it is in the waveform, every group is closed, and a state has the name of the source."""
    monkeypatch.chdir(tmp_path)
    with patch("openvrex.tb.library.runner.suffix", lambda: "vcd"):  # a kind that this test can read
        run = tried("verify", "kvmu", "--preset", "tiny", "--queries", "1", "--waves")
    assert run.exit_code == 0, run.output
    folder = tmp_path / "build" / "waves" / "kvmu"
    assert f"waveform: cd {folder} && gtkwave traffic.gtkw" in " ".join(run.output.split())
    seen, scope = set(), []
    for line in (folder / "traffic.vcd").read_text().partition("$enddefinitions")[0].splitlines():
        match line.split():
            case ["$scope", _, name, "$end"]:
                scope.append(name)
            case ["$upscope", "$end"]:
                scope.pop()
            case ["$var", _, _, _, name, *_]:
                seen.add(".".join([*(s for s in scope if not s.startswith("$")), name]))
    save = (folder / "traffic.gtkw").read_text()
    named = re.findall(r"^(bench_kvmu\.\S+?)(?:\[\d+:0\])?$", save, re.M)
    assert len(named) > 20
    assert set(named) <= seen
    begin, end = (re.findall(rf"^@{code}200\n-(\w+)", save, re.M) for code in ("800", "1000"))
    assert begin == end == [*"awxfb", "m_ask", "m_data", "m_put"]
    assert save.startswith('[dumpfile] "traffic.vcd"')
    assert "^1 traffic_states_0.txt\nbench_kvmu.unit.placer.fsm_state[4:0]" in save
    assert "0 IDLE\n1 PLACE\n" in (folder / "traffic_states_0.txt").read_text()


def test_the_kind_depends_on_headers(monkeypatch):
    """Without those that FST needs, and without a compiler, the waveform is a VCD."""
    for found, kind in ((None, "vcd"), ("/bin/false", "vcd"), ("/bin/true", "fst")):
        waveforms.suffix.cache_clear()
        monkeypatch.setattr(shutil, "which", lambda _, found=found: found)
        code = 0 if found == "/bin/true" else 1
        with patch("openvrex.tb.library.waveforms.subprocess.run") as run:
            run.return_value.returncode = code
            assert waveforms.suffix() == kind
    waveforms.suffix.cache_clear()
