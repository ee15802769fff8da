"""Installed without its extras, the package generates; a command says in one line which extra it needs."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
from packaging.specifiers import SpecifierSet

from openvrex.scripts.extras import missing
from openvrex.tb.library.runner import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# An extra -> command lines that work with it and without the larger ones, and commands that need a larger one.
# `{}` is a folder of the test.
CASES = {
    "": (
        ["presets --json", "generate hcu --preset tiny -o {}/hcu", "ip dre_ip --preset tiny -o {}/ip", "asm --help"],
        {"verify": "verify", "dev mutate": "papers", "sweep": "size", "run resv": "models", "papers demo": "papers"},
    ),
    "verify": (["verify --help", "size area --help", "dev prove --help", "dev mutate --help"], {"report": "size"}),
    "size": (["sweep --help", "report --help", "size power --help"], {"answer": "models"}),
}
# Run in a process without some modules.
RUN = """
import json, sys
sys.modules |= dict.fromkeys(json.loads(sys.argv[1]))
from openvrex.scripts.main import app
from typer.testing import CliRunner
runs = [CliRunner().invoke(app, line.split()) for line in sys.argv[2:]]
print(json.dumps([(run.exit_code, run.stderr + run.stdout) for run in runs]))
"""


def brought(extra: str) -> set[str]:
    """Modules of the packages that an extra installs, those of the extras that it names included."""
    named = {n for line in EXTRAS[extra] for n in re.findall(r"openvrex\[(.*)\]", line) for n in n.split(",")}
    own = {line for line in EXTRAS[extra] if not line.startswith("openvrex[")}
    packages = metadata.packages_distributions()
    return {m for m, by in packages.items() if own & set(by)}.union(*map(brought, named))


def run(absent: set[str], lines: list[str]) -> list[tuple[int, str]]:
    command = [sys.executable, "-c", RUN, json.dumps(sorted(absent)), *lines]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("extra", CASES)
def test_a_command_works_with_its_extra_and_names_it_without(extra, tmp_path):
    works, needs = CASES[extra]
    lines = [*(line.format(tmp_path) for line in works), *(f"{command} x --y=1" for command in needs)]
    told = run(brought("all") - (brought(extra) if extra else set()), lines)
    for line, (code, said) in zip(works, told, strict=False):
        assert code == 0, f"{line}: {said}"
        assert "not installed" not in said, line
    for (command, larger), (code, said) in zip(needs.items(), told[len(works) :], strict=True):
        assert code == 2, command
        assert re.fullmatch(rf"error: vrex {command} needs [\w-]+: pip install 'openvrex\[{larger}\]'\n", said), said


def test_what_is_pinned_admits_the_oldest_python():
    """`make setup` works with 3.11.0, whatever later one the pins were made with."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = wanted.removeprefix(">=").partition(",")[0]
    pinned = set(re.findall(r"^([^#\s=]+)==", (ROOT / "constraints.txt").read_text(), re.M))
    names = {d.metadata["Name"]: d.metadata.get("Requires-Python", "") for d in metadata.distributions()}
    wrong = {n: need for n, need in names.items() if n in pinned and not SpecifierSet(need).contains(f"{oldest}.0")}
    assert len(pinned & names.keys()) > 50
    assert not wrong


def test_the_extra_that_brings_a_module_is_named():
    assert missing(ModuleNotFoundError(name="cocotb_tools.config")) == ("cocotb", "verify")
    assert missing(ModuleNotFoundError(name="av.filter")) == ("av", "models")
    assert missing(ModuleNotFoundError(name="nothing_of_ours")) is None
