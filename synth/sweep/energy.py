"""Measures the energy of a unit's events in one recorded run of its RTL on the sweep's trace (`synth.recorded`).

A gate-level run of the whole design would be too slow for every point. It is not needed: clock and leakage are
proportional to cycles, and the rest to the unit's events, which its time view counts. So each unit is recorded once,
alone and always busy, on the first HC table of the trace. Its activity there, divided by its events, is the energy of
an event. The table port is not recorded.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from openvrex.golden.function_params import ReSVParams
from openvrex.hdl import emit
from openvrex.hdl.params import CLOCK, DreParams, HcuParams, KvmuParams, WtuParams
from openvrex.sim.units.hcu_time import JOIN, HcuTime
from openvrex.synth import recorded
from openvrex.synth.sweep.trace_tables import Stream
from openvrex.tb.library.dre_scenario import Scenario
from openvrex.tb.library.runner import BenchError
from openvrex.tb.library.trace_check import play

MHZ = CLOCK / 1e6  # whose cycles leakage counts over


@dataclass(frozen=True)
class Energy:
    """Energies of a unit (pJ).

    event : energy of one of `hcu_events` in the HCU, of a word of a row in WTU and cluster set, of a cycle of work in
        the KVMU, which includes its waits for the tables
    idle : energy of a cycle without activity: clock and leakage
    count : further energy of each count that a SWITCH reads: every WTU core writes it
    """

    event: float
    idle: float
    count: float = 0.0


def energy(
    unit: str, params: Any, f: ReSVParams, options: tuple, node: int, streams: list[Stream], *_: object
) -> Energy:
    """Energies of `unit` with `params` at `node` (nm). `options` : arguments of `point_costs.built` from the third on.

    Raises: `BenchError` if the RTL differs from the golden model, `SynthError` for a library without power tables.
    """
    liberty, _, effort, target, build = options
    s = _scenario(_around(unit, params, f), f, streams[0])
    emitted = emit.emit(unit, params)

    def run(recorder: emit.Emitted) -> None:
        """Plays the scenario and checks the results."""
        wrong = play(unit, recorder, s, (0.0, 0.0), 1).differences
        if wrong:
            raise BenchError(f"{unit}: {wrong[0]}")

    files = [Path(file) for file in liberty] or None
    library = {"liberty": files, "effort": effort, "target": target, "build": Path(build)}
    power = recorded.power(emitted, run, library, mhz=MHZ, node=node)
    events = {
        "hcu": lambda: hcu_events(_compares(s, params)),
        "wtu": lambda: words(streams[0], params),
        "cluster_set": lambda: words(streams[0], params),
        "kvmu": lambda: power.run_cycles,
    }
    counts = [m.macro(node) for top in power.modules for m in top.accesses if re.match(r"core\.(ring\.)?count", m.name)]
    count = sum(ram.write_energy.value for ram in counts) / params.n_w if unit == "wtu" else 0.0
    return Energy(float(power.work_pj * power.run_cycles / events[unit]()), float(power.idle_pj), float(count))


def hcu_events(compares: Sequence[int]) -> int:
    """Events of the HCU: a cycle of comparing, and a result. `compares` : the former, by key."""
    return sum(compares) + len(compares)


def words(s: Stream, p: WtuParams) -> int:
    """Number of words in the rows of all timed frames."""
    return sum(row_words(b.codes, p) for b in s.blocks)


def row_words(codes: np.ndarray, p: WtuParams) -> int:
    """Number of words in a frame's rows `codes` [R, C]."""
    return len(codes) * -(-codes.shape[1] // p.n_w)


def _scenario(p: DreParams, f: ReSVParams, s: Stream) -> Scenario:
    """The keys and timed rows of a table, as a scenario for the benches."""
    out = Scenario(p, f, device_base=1 << 16, home_base=1 << 20)
    blocks = {b.segment: b.codes for b in s.blocks}
    for segment, hashes in enumerate(s.hashes):
        if hashes:
            out.keys(0, hashes)
        if segment in blocks:
            out.switch(0)
            out.query(blocks[segment])
    return out


def _compares(s: Scenario, p: HcuParams) -> list[int]:
    """Cycles in which the HCU compares, by key of a scenario."""
    beats = [(b["op"], b["ctx"], b["hash"], b["last"]) for phase in s.phases for b in phase.get("keys", [])]
    compares = HcuTime(p, s.f.th_hd).beats(beats).compares
    return [n for (op, *_), n in zip(beats, compares, strict=True) if op == JOIN]


def _around(unit: str, own: Any, f: ReSVParams) -> DreParams:
    """A DRE with this unit. The other units only have to be legal."""
    clusters, n_ctx = own.clusters, getattr(own, "n_ctx", 1)
    count, token = getattr(own, "count_bits", f.count_bits), getattr(own, "token_bits", 20)
    hcu = HcuParams(n_h=1, n_w=f.n_hp, n_hp=f.n_hp, token_bits=token, clusters=clusters, n_ctx=n_ctx)
    wtu = WtuParams(n_w=1, score=f.score, count_bits=count, clusters=clusters)
    kvmu = KvmuParams(count_bits=count, token_bits=token, clusters=clusters, n_ctx=n_ctx)
    p = DreParams(hcu, wtu, kvmu)
    return replace(p, **{"wtu" if unit == "cluster_set" else unit: own})
