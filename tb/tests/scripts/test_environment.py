"""The `vrex` command in the processes that people start it in: streams, locale, width of the terminal."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.main import get_command

from openvrex.golden.function_params import ParamError
from openvrex.scripts import command_group, environment
from openvrex.scripts.main import app
from tb.tests.commands import tried

VREX = [sys.executable, "-c", "from openvrex.scripts.main import app; app()"]


def commands(command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


@pytest.mark.parametrize("columns", [40, 80])
def test_help_cuts_no_name_whatever_the_width(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for path, command in commands(get_command(app)):
        shown = re.sub(r"\x1b\[[0-9;]*m", "", tried(*path, "--help").stdout)
        options = [name for p in command.params if p.param_type_name == "option" for name in p.opts + p.secondary_opts]
        assert not [name for name in [*options, *getattr(command, "commands", {})] if name not in shown], path


@pytest.mark.parametrize("level", [1, 2])
def test_asserts_and_docstrings_are_needed(level, monkeypatch):
    """Without asserts every check of hardware would pass."""
    monkeypatch.setattr(environment.sys, "flags", type("Flags", (), {"optimize": level, "utf8_mode": 1}))
    with pytest.raises(ParamError, match=f"^PYTHONOPTIMIZE={level}: must be 0 .*: unset it"):
        environment.prepare()


def test_the_environment_is_seen_to_before_any_work(monkeypatch, capsys):
    """In one line, as every error."""

    def refuse() -> None:
        raise ParamError("LEVEL=1: must be 0")

    monkeypatch.setattr(command_group.environment, "prepare", refuse)
    monkeypatch.setattr(sys, "argv", ["vrex", "presets"])
    with pytest.raises(SystemExit) as e:
        app()
    assert e.value.code == 2
    assert capsys.readouterr() == ("", "error: LEVEL=1: must be 0\n")


def test_letters_that_a_stream_lacks_are_question_marks(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    environment.prepare()
    print("3 µm²", file=stream, flush=True)
    assert stream.buffer.getvalue() == b"3 ?m?\n"


def test_files_are_utf8_whatever_the_locale(monkeypatch):
    """The command starts itself again, once."""
    started = []
    monkeypatch.setattr(environment.locale, "getencoding", lambda: "ISO-8859-1")
    monkeypatch.setattr(environment.sys, "flags", type("Flags", (), {"optimize": 0, "utf8_mode": 0}))
    monkeypatch.setattr(os, "execve", lambda *process: started.append(process))
    monkeypatch.delenv("PYTHONUTF8", raising=False)
    environment.prepare()
    ((program, words, variables),) = started
    assert (program, words[1:], variables["PYTHONUTF8"]) == (sys.executable, sys.orig_argv[1:], "1")
    monkeypatch.setenv("PYTHONUTF8", "1")
    environment.prepare()
    assert len(started) == 1


def test_streams_that_are_closed_are_opened():
    """A file of the command would take their number, and its child processes would write into it."""
    code = (
        "import os, sys; from openvrex.scripts import environment; environment.prepare(); print('lost');"
        "assert [os.path.samestat(os.fstat(k), os.stat(os.devnull)) for k in range(2)] == [True] * 2;"
        "sys.exit(os.system('echo lost'))"
    )
    run = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_the_command_runs_with_closed_streams_and_without_utf8():
    """`PYTHONUTF8=0 vrex presets <&- >&-`, as a batch system may start it."""
    variables = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}
    run = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&-', "sh", *VREX, "presets"],
        capture_output=True, text=True, check=False, env=variables,
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_full_disk_is_named(monkeypatch):
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("openvrex.scripts.generation.presets_command.flat", lambda p: full())
    assert tried("presets").stderr == "error: No space left on device\n"
