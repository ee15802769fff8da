"""Runs `vrex` in this process, as a test expects it to end."""

from click.testing import Result
from typer.testing import CliRunner

from openvrex.scripts.main import app


def tried(*words: object) -> Result:
    """`vrex` with these words, however it ends."""
    return CliRunner().invoke(app, list(map(str, words)))


def vrex(*words: object) -> Result:
    """One that succeeds."""
    run = tried(*words)
    assert run.exit_code == 0, (run.output, run.exception)
    return run


def refuses(*words: object) -> Result:
    """One that ends with one line that says why."""
    run = tried(*words)
    assert run.exit_code == 2, run.output
    assert run.stderr.count("\n") == 1, run.stderr
    return run
