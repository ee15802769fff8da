"""The wheel: it holds every file that the commands read, and they write below the current folder alone."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from openvrex.tb.library.runner import BUILD, ROOT

PACKAGES = ("golden", "hdl", "ip", "papers", "scripts", "sim", "synth", "tb")
# Without `site`, which would put the checkout on the path again where it is installed to be edited.
VREX = (
    "import sys; sys.argv[0] = 'vrex'; import openvrex.scripts.main as m; assert m.__file__.startswith({0!r}); m.app()"
)


def built(folder: Path) -> zipfile.ZipFile:
    """The wheel of these sources, made of a copy: setuptools writes beside what it packs."""
    ignore = shutil.ignore_patterns("__pycache__")
    for package in ("openvrex", *PACKAGES):
        shutil.copytree(ROOT / package, folder / "source" / package, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    how = {"capture_output": True, "text": True, "check": False}
    run = subprocess.run([*command, "-w", str(folder), str(folder / "source")], **how)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    [wheel] = folder.glob("openvrex-*.whl")
    return zipfile.ZipFile(wheel)


def test_an_installed_package_generates_verifies_and_synthesises(tmp_path):
    """From a folder that nobody may write to, in one that holds packages of the user with the names of our folders."""
    site, work = tmp_path / "site", tmp_path / "work"
    with built(tmp_path) as wheel:
        wheel.extractall(site)
    sources = tmp_path / "source"
    shipped = {f.relative_to(sources) for p in PACKAGES for f in (sources / p).rglob("*") if f.is_file()}
    shipped = {f for f in shipped if f.parts[:2] != ("tb", "tests")}
    assert not {f.as_posix() for f in shipped if not (site / "openvrex" / f).exists()}
    assert not (site / "openvrex" / "tb" / "tests").exists()
    assert {p.name for p in site.iterdir() if p.suffix != ".dist-info"} == {"openvrex"}
    before = sorted(site.rglob("*"))
    for path in before:
        path.chmod(0o555 if path.is_dir() else 0o444)
    site.chmod(0o555)
    for name in PACKAGES:
        (work / name).mkdir(parents=True)
        (work / name / "__init__.py").write_text(f"raise ImportError('{name} is the user\\'s')")
    for folder in BUILD.glob("runtime-*"):  # the simulator's own objects, which take longest to compile
        shutil.copytree(folder, work / "build" / "sim" / folder.name)
    paths = dict.fromkeys([str(site), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    env = {n: v for n, v in os.environ.items() if n != "OPENVREX_BUILD"}
    env |= {"PYTHONPATH": os.pathsep.join([".", *paths]), "PYTHONPYCACHEPREFIX": str(tmp_path / "pycache")}

    def vrex(*args: str) -> dict:
        command = [sys.executable, "-S", "-c", VREX.format(str(site)), *args, "--preset", "tiny", "--json"]
        run = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
        return json.loads(run.stdout)

    try:
        assert vrex("generate", "hcu")["files"][0] == "build/rtl/hcu/hcu.v"
        assert all(t["beats"] and not t["differences"] for t in vrex("verify", "hcu", "--queries", "1")["tables"])
        assert vrex("size", "area", "hcu", "--effort", "area")["units"]
        assert sorted(site.rglob("*")) == before
        assert {p.name for p in (work / "build").iterdir()} == {"rtl", "sim", "synth", "verilog"}
    finally:  # so that pytest can remove it
        for path in (site, *site.rglob("*")):
            path.chmod(0o755)
