"""Counts the work that the layer compiler's programs put on a core, stage by stage.

A stage's program is executed step by step (`sim.units.sequencer_time`), and each step counts with the units that it
keeps busy, as in `vrex simulate layer`. So a pass of the simulator runs what the core runs. The results are cached.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Packing
from openvrex.golden.program.core_compiler import LEVEL, RetrievalShape
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.layer_compiler import LayerPlan
from openvrex.golden.program.layer_memory import LayerShape, Register, Team
from openvrex.golden.program.share_plan import SharePlan
from openvrex.golden.program.shares import Shares
from openvrex.hdl.params import CoreParams
from openvrex.sim.system.share_cycles import BURSTS, busy_for, executed

FETCHED = 1 << 16  # most entries of a FETCH
ATTENTION = ("resident", "scores", "softmax", "values")  # stages whose work grows with the attended entries
WEIGHTS, KV = 1 << 34, 1 << 36  # addresses far apart, so that no burst is cut because of another array


@dataclass(frozen=True)
class Load:
    """The work of a program on one core.

    dpe, vpe : cycles in which the DPE works on a chunk of all trees, and the VPE on a word
    port : cycles of the memory port: a beat a cycle in each direction, or the latency of all bursts over those that
        may be in flight
    bytes : over the port, in both directions
    """

    dpe: float = 0.0
    vpe: float = 0.0
    port: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Load") -> "Load":
        return Load(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Load)))

    def __mul__(self, times: float) -> "Load":
        return Load(*(getattr(self, f.name) * times for f in fields(Load)))

    @property
    def cycles(self) -> float:
        """The cycles of the unit that works longest."""
        return max(self.dpe, self.vpe, self.port)


def counted(
    core: CoreParams, latency: int, plan: LayerPlan, stage: str, registers: Mapping[int, int]
) -> tuple[Load, dict[int, int]]:
    """The load of a stage of a plan, and the registers that it leaves.

    latency : cycles from a burst's address to its first beat
    """
    ran = executed(core, plan.program(stage, stage), {**registers, Register.WEIGHTS: WEIGHTS, Register.KV: KV})
    work = busy_for(core, latency, ran.steps)
    port = max(max(work[way], work[waits] / core.lxe.bursts) for way, waits in BURSTS.items())
    load = Load(work["dpe"], work["vpe"], port, work["bytes"])
    return load, dict(enumerate(ran.registers))


def most_rows(core: CoreParams) -> int:
    """Rows of activations that pass through the core at once: words of a bank, and of half of X."""
    return min(core.vpe.depth, core.dpe.x_depth // 2)


@lru_cache(maxsize=4096)
def product(
    core: CoreParams, latency: int, rows: int, inputs: int, columns: int, packing: Packing | None = None
) -> Load:
    """The load of a product [rows, inputs] x [inputs, columns] on one core, as `down` computes one.

    packing : of its weights; None: BF16

    The result is added to FP32 numbers. More rows than `most_rows` take several passes, each of which reads the weights
    again.
    """
    passes = -(-rows // most_rows(core))
    rows = -(-rows // passes)
    bank = core.vpe.depth * core.vpe.n_w  # numbers of a row that a program normalises
    out = Load()
    for part in {bank: columns // bank, columns % bank: 1}.items():
        if all(part):
            out += counted(core, latency, _plan(core, rows, part[0], inputs, packing), "down", {})[0] * part[1]
    return out * passes


@lru_cache(maxsize=256)
def _plan(core: CoreParams, rows: int, width: int, ffn: int, packing: Packing | None) -> LayerPlan:
    """A layer of one head, for its FFN."""
    fmt = core.lxe_format()
    recent = -(-rows // (2 * fmt.lanes)) * 2 * fmt.lanes
    small: dict[str, Any] = {"heads": 1, "kv_heads": 1, "head_size": fmt.lanes, "recent": recent, "entries": 0}
    return LayerPlan(LayerShape(width=width, ffn=ffn, tokens=rows, packing=packing, **small), fmt)


@lru_cache(maxsize=256)
def share(fmt: LxeFormat, shares: Shares, retrieval: RetrievalShape, number: int) -> SharePlan:
    """The program of core `number`'s share of a layer; the DRE's sizes do not change it."""
    return SharePlan(shares, fmt, retrieval, number)


@lru_cache(maxsize=4096)
def stage(
    core: CoreParams,
    latency: int,
    shares: Shares,
    retrieval: RetrievalShape,
    number: int,
    name: str,
    clusters: int = 0,
) -> Load:
    """The load of a stage of core `number`'s share, but one of `ATTENTION`. `clusters` : those of the table."""
    known: dict[int, int] = {Register.ENTRIES: 0, LEVEL: clusters}
    return counted(core, latency, share(core.lxe_format(), shares, retrieval, number), name, known)[0]


def attention(
    core: CoreParams, latency: int, shares: Shares, retrieval: RetrievalShape, pairs: int, number: int = 0
) -> dict[str, Load]:
    """The load of the stages `ATTENTION` of core `number` for the heads of a table.

    pairs : the core's own pairs of tiles of entries behind the ring, whole ones

    The work grows evenly with the pairs between the programs that are counted.
    """
    ring = Team(shares.member(number), shares.members).share(0, shares.whole.recent // (2 * core.vpe.n_w))
    at = _knots(core.vpe.depth // 2 - ring)
    k = min(int(np.searchsorted(at, pairs)), len(at) - 1)
    if at[k] == pairs:
        return _attention(core, latency, shares, retrieval, pairs, number)
    low, high = (_attention(core, latency, shares, retrieval, n, number) for n in (at[k - 1], at[k]))
    part = (pairs - at[k - 1]) / (at[k] - at[k - 1])
    return {name: low[name] * (1 - part) + high[name] * part for name in ATTENTION}


def _knots(bank: int) -> list[int]:
    """Numbers of a core's pairs behind the ring whose programs are counted: up to four times those of a bank.

    bank : pairs whose scores still fit a bank with the ring's; longer rows are read in parts
    """
    known = {0, 1, bank, bank + 1, 2 * bank, 4 * bank} if bank > 1 else {0, 1, 2, 8}
    return sorted(known | {n for n in (4, 16) if n < bank})


@lru_cache(maxsize=512)
def _attention(
    core: CoreParams, latency: int, shares: Shares, retrieval: RetrievalShape, pairs: int, number: int
) -> dict[str, Load]:
    """With entries that fill the core's last pair. Those that one FETCH does not bring count as sinks: the attention
    to them is the same.
    """
    pair, members = 2 * core.vpe.n_w, shares.members
    before = Team(shares.member(number), members).ahead(shares.whole.recent // pair)  # pairs of others behind the ring
    entries = (before + (pairs - 1) * members + 1) * pair if pairs else 0
    sinks = max(0, entries - FETCHED)
    retrieval = replace(retrieval, sinks=sinks)
    longer = replace(shares, whole=replace(shares.whole, entries=max(1, entries)))
    plan = share(core.lxe_format(), longer, retrieval, number)
    added = sinks * (members == 1 and not retrieval.fetched)  # by `scores`
    registers: dict[int, int] = {Register.ENTRIES: entries - added, LEVEL: 0}
    out = {}
    for name in ATTENTION:
        out[name], registers = counted(core, latency, plan, name, registers)
    return out
