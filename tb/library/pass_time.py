"""Predicts the cycles of passes by the time view of a core, from what golden decides."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from openvrex.golden.program.core_model import Core
from openvrex.golden.program.isa import Instruction, Opcode, Retrieve, encode
from openvrex.hdl.params import CoreParams
from openvrex.sim.units.core_time import CoreTime, Retrieval
from openvrex.sim.units.dre_time import DreTime
from openvrex.sim.units.sequencer_time import trace


@dataclass
class Recorded:
    """What the data decide in a run of a golden core.

    data : for `sim.units.core_time.CoreTime`
    registers, numbers : registers that each RETRIEVE sets, and each STORE, for `sim.units.sequencer_time.trace`
    """

    data: Retrieval = field(default_factory=Retrieval)
    registers: list[dict[int, int]] = field(default_factory=list)
    numbers: list[dict[int, int]] = field(default_factory=list)


@contextmanager
def recorded(core: Core, dre: DreTime) -> Iterator[Recorded]:
    """Record what the core does in the block. `dre` : a time view that is used for nothing else"""
    out = Recorded()

    def key(plain: Any, ctx: int, key_hash: int, first: int) -> Any:
        joined, placed = plain(ctx, key_hash, first)
        out.data.keys.append((key_hash, joined.cluster))
        move = [("x", {"src": placed.move.src, "dst": placed.move.dst})] if placed.move else []
        out.data.places.append([*move, ("w", {"device": placed.device})])
        return joined, placed

    def query(plain: Any, rows: np.ndarray) -> Any:
        known = core.dre.kv.kept(core.dre.ctx)
        got = plain(rows)
        out.data.clusters.append(rows.shape[1])
        ratio = core.dre.params.ratio_q16
        out.data.plans.append([dre.wtu.plan(row, got.counts, ratio, got.budget) for row in rows])
        dre.kvmu.kv = core.dre.kv
        core.dre.kv.contexts[core.dre.ctx].kept = known  # as before the set, which keeps its blocks again
        at = dre.fetch(core.dre.ctx, got.clusters).b
        bursts = zip(got.bursts, at, strict=False)  # an empty set has a beat, but no burst
        out.data.sets.append([b.beat() | {"after": c - at[0]} for b, c in bursts])
        out.data.firsts.append(at[0])
        return got

    def retrieve(plain: Any, i: Any) -> Any:
        got = plain(i)
        out.registers.append({i[n]: core.registers[i[n]] for n in ("to", "level") if i[n]})
        return got

    def number(plain: Any, i: Any, *word: Any) -> None:
        plain(i, *word)
        out.numbers.append({i["to"]: core.registers[i["to"]]} if i["to"] else {})

    spied = [(core, "number", number), (core.dre, "key", key), (core.dre, "query", query), (core, "retrieve", retrieve)]
    for unit, name, spy in spied:
        setattr(unit, name, partial(spy, getattr(unit, name)))
    try:
        yield out
    finally:
        for unit, name, _ in spied:
            delattr(unit, name)


class PassTime:
    """Cycles of passes that follow one another on one core.

    p : of the core
    core : golden's
    ports : values of the core's constant inputs
    latency : cycles from a read's address to its first beat, and from a write's last beat to its response

    `dre` holds what the DRE holds after the last pass; a checkpoint of it is one of the time view.
    """

    def __init__(self, p: CoreParams, core: Core, ports: dict[str, int], latency: int):
        self.p, self.core = p, core
        bases = {name: ports[name] for name in ("device_base", "home_base")}
        # `dre` goes on from pass to pass; the other one follows golden's map.
        self.dre, self._fetches = (DreTime(p.dre, ports["th_hd"], latency, **bases) for _ in range(2))

    def reset(self) -> None:
        """The core is reset before the next pass."""
        self.dre.kvmu.reset()

    def recorded(self) -> Any:
        """A block in which golden executes a pass."""
        return recorded(self.core, self._fetches)

    def cycles(
        self, program: Sequence[Instruction], registers: dict[int, int], what: Recorded, stages: Sequence[str] = ()
    ) -> tuple[int, dict[str, int]]:
        """Cycles of a pass from START to its end, with what golden has recorded of it, and those of its stages.

        stages : of each instruction. A stage lasts from the end of all before it to the end of its last instruction;
            the copies of a FETCH go on beside the next one

        Raises `ValueError` for a program that waits for ever.
        """
        words = [encode(i) for i in program]
        steps = trace(self.p, words, registers, retrieved=what.registers, stored=what.numbers).steps
        run = CoreTime(self.p, self.dre, what.data).run(steps)
        ends = dict.fromkeys(stages, 0)
        for step, end in zip(steps, run.finished.tolist(), strict=True):
            if stages and not (step.op == Opcode.RETRIEVE and step.beat["action"] == Retrieve.FETCH):
                ends[stages[step.pc]] = max(ends[stages[step.pc]], end)
        out, before = {}, 0
        for name, end in ends.items():
            out[name], before = max(0, end - before), max(before, end)
        return int(run.done), out
