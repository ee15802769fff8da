"""Stress campaigns: random traffic of a unit, seed after seed, with every beat compared with golden.

A seed determines the size, the data and the stalls, so it can be played again.
"""

import json
import random
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from openvrex.tb.library.runner import waveforms_in

MODULES = {"lxe": "lxe_time", "registers": "register"}  # programs in the cycles of the time view
# "branch" is hybrid memory's history branch on an LXE, "registers" are programs that set registers by STORE, and
# "clusters" are Mosaic's programs that make, split and extend clusters.
UNITS = ("hcu", "wtu", "cluster_set", "kvmu", "dpe", "vpe", "loader", "storer", "retriever", "feeder", "sequencer")
UNITS += (
    "table_port",
    "motion_mask",
    "arbiter",
    "register_block",
    "dre",
    "lxe",
    "registers",
    "branch",
    "clusters",
    "core",
    "dre_ip",
    "core_ip",
)
SUBJECT = dict.fromkeys(("registers", "branch", "clusters"), "lxe")  # on whose hardware these programs run
# Transactions of a join are larger.
SLOW = {"dre": 4, "lxe": 50, "registers": 50, "branch": 4, "clusters": 50, "core": 100, "core_ip": 200, "dre_ip": 100}


def drawn(unit: str, seed: int) -> Any:
    """One seed's traffic."""
    module = import_module(f"openvrex.tb.checks.{MODULES.get(unit, unit)}_checks")
    return module.RandomTraffic.random(random.Random(f"{unit} {seed}"))


def play(unit: str, seed: int) -> int:
    """Play one seed's traffic; the number of transactions compared. Raises `AssertionError` if one differs."""
    traffic = drawn(unit, seed)
    return traffic.check(traffic.play())


def explained(unit: str, seed: int, first: str, folder: Path) -> str:
    """Play traffic that failed by `first` with the fewest parts that still do; which these are, and the waveforms."""
    traffic = drawn(unit, seed)
    kept = traffic.least()
    with waveforms_in(folder):
        why = traffic.of(kept).fails()
    some = f", {traffic.PARTS} {', '.join(map(str, kept))} of {len(traffic.parts())}" if traffic.PARTS else ""
    return f"seed {seed}{some}: {why or f'{first} (passes when it is played again)'}\nwaveforms: {folder}"


def campaign(unit: str, count: int, folder: Path, hardware: str) -> Iterator[int]:
    """Play seeds 1, 2, ... until `count` transactions are compared; the number so far, after each. Raises as `play`.

    `folder` keeps what was played, a line a seed, and a later campaign on the same hardware continues behind it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{unit}-{hardware[:12]}.jsonl"
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    total, seed = sum(d["transactions"] for d in done), len(done)
    yield total
    while total < count:
        seed += 1
        try:
            n = play(unit, seed)
        except AssertionError as e:
            raise AssertionError(explained(unit, seed, str(e), folder / f"{unit}-{seed}")) from e
        with kept.open("a") as f:
            f.write(json.dumps({"seed": seed, "transactions": n}) + "\n")
        total += n
        yield total
