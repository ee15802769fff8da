"""Counts the work that the layer compiler's programs put on a core, stage by stage.

A stage's program is executed step by step (`sim.units.sequencer_time`), and each step counts with the units that it
keeps busy, as in `vrex simulate layer`. So a pass of the simulator runs what the core runs. The results are cached.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from golden.function_params import check
from golden.program.core_compiler import LEVEL, CorePlan, RetrievalShape
from golden.program.isa import Opcode, encode
from golden.program.layer_compiler import LayerPlan
from golden.program.layer_memory import LayerShape, Register
from hdl.params import CoreParams
from sim.units.loader_time import cut
from sim.units.lxe_time import busy
from sim.units.sequencer_time import trace

LONGEST = 10_000_000  # steps of a program
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


def counted(core: CoreParams, latency: int, plan: LayerPlan, stage: str, registers: Mapping[int, int]) -> Load:
    """The load of a stage of a plan. `latency` : cycles from a burst's address to its first beat."""
    program = [encode(i) for i in plan.program(stage, stage)]
    steps = trace(core, program, {**registers, Register.WEIGHTS: WEIGHTS, Register.KV: KV}, LONGEST).steps
    check(steps[-1].op == Opcode.HALT, "steps", len(steps), f"must be fewer: {stage} does not end")
    work = {"dpe": 0, "vpe": 0, "load": 0, "store": 0}
    waits = {"load": 0, "store": 0}  # latency of all bursts
    for step in steps:
        for unit, cycles in busy(core, step).items():
            work[unit] += cycles
            if unit in waits:
                bursts = cut(core, step.beat, joined=unit == "load")
                waits[unit] += len(bursts) * (latency + 1) + sum(beats for beats, _ in bursts)
    port = max(max(work[way], waits[way] / core.lxe.bursts) for way in waits)
    return Load(work["dpe"], work["vpe"], port, (work["load"] + work["store"]) * core.lxe.bus_bytes)


def most_rows(core: CoreParams) -> int:
    """Rows of activations that pass through the core at once: words of a bank, and of half of X."""
    return min(core.vpe.depth, core.dpe.x_depth // 2)


@lru_cache(maxsize=4096)
def product(core: CoreParams, latency: int, rows: int, inputs: int, columns: int, gated: bool = False) -> Load:
    """The load of a product [rows, inputs] x [inputs, columns] on one core.

    The result is added to FP32 numbers, as those of `output` and `down`. With `gated` there are two such products, and
    the result is SiLU of one times the other, as in `gate_up`. More rows than `most_rows` take several passes, each of
    which reads the weights again.
    """
    passes = -(-rows // most_rows(core))
    rows = -(-rows // passes)
    bank = core.vpe.depth * core.vpe.n_w  # numbers of a row that a program normalises
    if gated:
        return counted(core, latency, _plan(core, rows, inputs, columns), "gate_up", {}) * passes
    out = Load()
    for part in {bank: columns // bank, columns % bank: 1}.items():
        if all(part):
            out += counted(core, latency, _plan(core, rows, part[0], inputs), "down", {}) * part[1]
    return out * passes


@lru_cache(maxsize=64)
def norm(core: CoreParams, latency: int, rows: int, width: int) -> Load:
    """The load of the norm of `rows` hidden states, as in `norm2`."""
    return counted(core, latency, _plan(core, rows, width, core.lxe_format().lanes), "norm2", {})


@lru_cache(maxsize=256)
def _plan(core: CoreParams, rows: int, width: int, ffn: int) -> LayerPlan:
    """A layer of one head, for its FFN."""
    fmt = core.lxe_format()
    small = {"heads": 1, "kv_heads": 1, "head_size": fmt.lanes, "recent": max(2 * fmt.lanes, rows), "entries": 0}
    small["recent"] = -(-small["recent"] // (2 * fmt.lanes)) * 2 * fmt.lanes
    return LayerPlan(LayerShape(width=width, ffn=ffn, tokens=rows, **small), fmt)


@lru_cache(maxsize=1024)
def stages(core: CoreParams, latency: int, shape: LayerShape, retrieval: RetrievalShape, clusters: int) -> dict:
    """The load of each stage before the attention for the heads of a table, by name.

    The GEMM of queries that runs within `cluster` counts among `keys`. `clusters` : those that are ranked.
    """
    plan = CorePlan(shape, core.lxe_format(), retrieval)
    known: dict[int, int] = {Register.ENTRIES: 0, LEVEL: clusters}
    names = [s.name for s in plan.stages]
    names = names[: names.index("resident")]
    out = {name: counted(core, latency, plan, name, known) for name in names}
    whole, own = plan.cuts["qkv"].blocks, plan.turns * plan.beside
    queries = out["keys"] * (own / (whole - own))  # each block takes the same work
    out["keys"] += queries
    out["cluster"] += queries * -1
    return out


def attention(
    core: CoreParams, latency: int, shape: LayerShape, retrieval: RetrievalShape, entries: int
) -> dict[str, Load]:
    """The load of the stages `ATTENTION` for the heads of a table with `entries` entries behind the ring.

    The work grows evenly with the entries between the programs that are counted.
    """
    at = _knots(core.vpe.depth * core.vpe.n_w - shape.recent, 2 * core.vpe.n_w)
    k = min(int(np.searchsorted(at, entries)), len(at) - 1)
    if at[k] == entries:
        return _attention(core, latency, shape, retrieval, at[k])
    low, high = (_attention(core, latency, shape, retrieval, n) for n in (at[k - 1], at[k]))
    part = (entries - at[k - 1]) / (at[k] - at[k - 1])
    return {name: low[name] * (1 - part) + high[name] * part for name in ATTENTION}


def _knots(bank: int, pair: int) -> list[int]:
    """Numbers of entries whose programs are counted: up to four times the entries of a bank.

    bank : entries behind the ring whose scores still fit a bank with the ring's; longer rows are read in parts
    pair : entries of a pair of tiles
    """
    known = {0, 1, bank, bank + 1, 2 * bank, 4 * bank} if bank > pair else {0, 1, 2 * pair, 8 * pair}
    return sorted(known | {n for n in (pair, 4 * pair, 16 * pair) if n < bank})


@lru_cache(maxsize=512)
def _attention(
    core: CoreParams, latency: int, shape: LayerShape, retrieval: RetrievalShape, entries: int
) -> dict[str, Load]:
    plan = CorePlan(_with_entries(shape, entries), core.lxe_format(), retrieval)
    size = plan.part * plan.fmt.lanes
    known: dict[int, int] = {Register.ENTRIES: entries, LEVEL: 0}
    known |= {Register.PARTS: entries // size, Register.LEFT: entries % size} if size else {}
    return {name: counted(core, latency, plan, name, known) for name in ATTENTION}


def _with_entries(shape: LayerShape, entries: int) -> LayerShape:
    names = (f.name for f in fields(shape))
    return LayerShape(**{n: max(1, entries) if n == "entries" else getattr(shape, n) for n in names})
