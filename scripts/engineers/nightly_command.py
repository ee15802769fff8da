"""`vrex dev nightly`: what takes too long for every change, in parts; each goes on where it was stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.function_params import check
from openvrex.scripts import console
from openvrex.scripts.blocks import nights
from openvrex.scripts.blocks.campaign_results import measured_at
from openvrex.scripts.engineers.record_command import VREX
from openvrex.scripts.progress import Spinner

FOLDER = Path("build/nightly")
PASSED = FOLDER / "passed.txt"  # tests that need not run again
RED = FOLDER / "red.txt"  # tests that have failed since the tests began or went on
STOPS = 300  # seconds until a part that was told to end is killed
SINGLE = "hcu wtu cluster_set kvmu table_port motion_mask dpe vpe feeder loader storer retriever sequencer arbiter"
JOINED = "dre lxe core dre_ip core_ip"
VARIANTS = "arbiter_ports vpe_hybrid kv4_codec storer_registers sequencer_registers loader_codes loader_weights"
# Words after `vrex dev` of each part; two are pytest's.
PARTS = {
    "tests": "",
    "icarus": "",
    "stress": "stress",
    "coverage": "coverage",
    "proofs": "prove",
    "equality": "prove --equal",
    "mutants": f"mutate {SINGLE} register_block",
    "mutants-large": f"mutate -n 60 {JOINED} {VARIANTS}",
}


def command(
    parts: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(PARTS)}; all by default.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time of each part, which then stops.")] = None,
    record: console.Record = False,
    as_json: console.Json = False,
) -> None:
    """Run what takes too long for every change, in parts.

    A part that was stopped goes on; after another commit all begin anew. `build/nightly` has their output.
    """
    for name in parts or ():
        check(name in PARTS, "part", name, f"must be one of {', '.join(PARTS)}")
    check(minutes is None or minutes > 0, "minutes", minutes, "must be above 0")
    night = begun()
    for name in parts or PARTS:
        if night["parts"].get(name, {}).get("end") != "passed":
            with Spinner(name, quiet=as_json):
                played(night, name, words(name, record), minutes)
    found = nights.figures(night, PASSED)
    write_atomically(FOLDER / "summary.md", nights.summary(found))
    if record:
        nights.keep(found)
    if as_json:
        console.print_json(found)
    else:
        console.out.print(nights.seen(found))
        for test in RED.read_text().splitlines() if RED.is_file() else ():
            console.note(f"red: {test}")
    if any(part["end"] == "failed" for part in night["parts"].values()):
        raise typer.Exit(1)


def begun() -> dict:
    """This commit's night so far; none goes on in a checkout that was edited."""
    file, now = FOLDER / "night.json", measured_at()
    with suppress(OSError, ValueError, KeyError):
        if (night := json.loads(file.read_text()))["commit"] == now["commit"] and "edited" not in now["commit"]:
            return night
    for old in (PASSED, RED, *FOLDER.glob("*.xml")):
        old.unlink(missing_ok=True)
    return {**now, "parts": {}}


def words(name: str, record: bool) -> list[str]:
    """The command line of a part. `record`: a campaign's results go to docs/results/blocks.json"""
    if PARTS[name]:
        campaign = PARTS[name].split()[0] != "prove"
        return [sys.executable, "-c", VREX, "dev", *PARTS[name].split(), *(["--record"] if record and campaign else [])]
    if name == "icarus":
        pytest = [sys.executable, "-m", "pytest", "-n", "auto", "-m", "", "@tb/tests/icarus.txt"]
        return ["env", "OPENVREX_SIMULATOR=icarus", *pytest]
    slices = len(list(FOLDER.glob("*.xml")))
    options = f"-n auto --dist worksteal -m nightly --night {PASSED} --junitxml {FOLDER}/tests-{slices}.xml tb/tests"
    return [sys.executable, "-m", "pytest", *options.split()]


def played(night: dict, name: str, line: list[str], minutes: float | None) -> None:
    """Runs a part by its command line and notes its end: passed, failed (as is a stop behind a red test) or stopped."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if name == "tests":
        RED.unlink(missing_ok=True)
    began, part = time.monotonic(), night["parts"].setdefault(name, {"seconds": 0.0})
    with (FOLDER / f"{name}.log").open("ab") as log:
        run = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            part["end"] = "failed" if run.wait(minutes and 60 * minutes) else "passed"
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as e:
            part["end"] = "stopped"
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGINT)
            try:
                run.wait(STOPS)
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
            if isinstance(e, KeyboardInterrupt):
                raise
        finally:
            if name == "tests" and RED.is_file():
                part["end"] = "failed"
            part["seconds"] += time.monotonic() - began
            write_atomically(FOLDER / "night.json", json.dumps(night, indent=1))
