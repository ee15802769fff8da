"""Energy of a unit's events, from one recorded run of its RTL on the sweep's trace (`synth.recorded`).

A run of a whole design in gates is too slow for every point, and needs not be: clock and leakage go with cycles, and
the rest with what a unit does, which its time view counts. So each unit is recorded once, alone and always busy, on
the first HC table of the trace, and what moves in it is divided by its events there.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from golden.function_params import ReSVParams
from hdl import emit
from hdl.params import DreParams, HcuParams, KvmuParams, WtuParams
from sim.units.hcu_time import HcuTime
from synth import recorded
from synth.sweep.trace_tables import Stream
from tb.library.dre_scenario import Scenario
from tb.library.runner import BenchError
from tb.library.trace_check import play

MHZ = 800.0  # clock whose cycles leakage is counted over, the paper's


@dataclass(frozen=True)
class Energy:
    """Energies of a unit (pJ).

    event : of a comparison (a cycle of `HcuTime.key`) in the HCU, of a word of a row in WTU and cluster set, of a cycle
        of work in the KVMU
    idle : of a cycle in which nothing moves: clock and leakage
    key : of a key besides: the new count, which every WTU core writes
    """

    event: float
    idle: float
    key: float = 0.0


def energy(unit: str, params, f: ReSVParams, options: tuple, node: int, streams: list[Stream], *_: object) -> Energy:
    """Energies of `unit`, netlist by `options` (as `evaluate.built` takes them), figures at `node`.

    Raises: `BenchError` if the RTL differs from golden, `SynthError` for a library without power tables.
    """
    liberty, _, effort, target, build = options
    s = _scenario(_around(unit, params, f), f, streams[0])
    emitted = emit.emit(unit, params)

    def run(recorder: emit.Emitted) -> None:
        wrong = play(unit, recorder, s, (0.0, 0.0), 1).differences
        if wrong:
            raise BenchError(f"{unit}: {wrong[0]}")

    files = [Path(file) for file in liberty] or None
    library = {"liberty": files, "effort": effort, "target": target, "build": Path(build)}
    power = recorded.power(emitted, run, library, mhz=MHZ, node=node)
    events = {
        "hcu": lambda: sum(hcu_events(c) for c in _comparisons(s, params)),
        "wtu": lambda: words(streams[0], params),
        "cluster_set": lambda: words(streams[0], params),
        "kvmu": lambda: power.run_cycles,
    }
    counts = [m.macro(node) for top in power.modules for m in top.accesses if re.match(r"core\.count", m.name)]
    key = sum(ram.write_energy.value for ram in counts) if unit == "wtu" else 0.0
    return Energy(float(power.work_pj * power.run_cycles / events[unit]()), float(power.idle_pj), float(key))


def hcu_events(key: tuple[int, bool]) -> int:
    """Cycles of comparisons of a key, as `HcuTime.key` gives it."""
    compares, late = key
    return max(1, compares) + late


def words(s: Stream, p: WtuParams) -> int:
    """Words of rows of all timed frames."""
    return sum(row_words(b.codes, p) for b in s.blocks)


def row_words(codes, p: WtuParams) -> int:
    """Words of a frame's rows, [R, C]."""
    return len(codes) * -(-codes.shape[1] // p.n_w)


def _scenario(p: DreParams, f: ReSVParams, s: Stream) -> Scenario:
    """The keys and timed rows of a table for the benches."""
    out = Scenario(p, f, device_base=1 << 16, home_base=1 << 20)
    blocks = {b.segment: b.codes for b in s.blocks}
    for segment, hashes in enumerate(s.hashes):
        if hashes:
            out.keys(0, hashes)
        if segment in blocks:
            out.query(0, blocks[segment])
    return out


def _comparisons(s: Scenario, p: HcuParams) -> list[tuple[int, bool]]:
    time = HcuTime(p, s.f.th_hd)
    return [time.key(0, beat["hash"]) for phase in s.phases for beat in phase.get("keys", [])]


def _around(unit: str, own, f: ReSVParams) -> DreParams:
    """A DRE with this unit; the others only have to be legal."""
    shared = {n: getattr(own, n) for n in ("n_ctx", "clusters")}
    count = {"count_bits": getattr(own, "count_bits", f.count_bits)}
    token = {"token_bits": getattr(own, "token_bits", 20)}
    hcu = HcuParams(n_h=1, n_w=f.n_hp, n_hp=f.n_hp, **shared, **count, **token)
    wtu = WtuParams(n_w=1, score=f.score, **shared, **count)
    kvmu = KvmuParams(**shared, **token, blocks=1 << 14)
    p = DreParams(hcu, wtu, kvmu)
    return replace(p, **{"wtu" if unit == "cluster_set" else unit: own})
