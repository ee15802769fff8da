"""Plays a core's share of a decoder layer without retrieval, instruction by instruction.

A policy that chooses tokens by positions leaves them in a pool of slots (`golden.program.window_plan`). One core runs
the layer as one program, the one that `vrex run windows` plays on the RTL. Several cores share it as they share a
layer with retrieval (`golden.program.shares`): the attention of a core's KV heads is that program's, the products are
those of `golden.program.share_plan`. Members of a team attend to pairs of tiles of slots, and join their parts.

Full attention needs more slots than a mask covers. Its older entries, which every row of a pass may see, lie behind the
pool: the program is that of `golden.program.layer_compiler`. The host moves the pool's address down by the tokens of
each pass, so nothing is copied.

Time view: `sim.units.lxe_time.LxeTime`, whose cycles are those of the RTL. Core 0 is played, which has the most work.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.layer_compiler import LayerPlan
from openvrex.golden.program.layer_memory import LayerShape, Register, Team
from openvrex.golden.program.share_plan import SharePlan, shared_space
from openvrex.golden.program.shares import Shares
from openvrex.golden.program.window_plan import LAYER, WindowPlan
from openvrex.hdl.params import SystemParams
from openvrex.sim.system.share_cycles import DEVICE, TEAM, UNITS, WEIGHTS, WORK, by_stage, executed
from openvrex.sim.system.window_demand import WindowDemand
from openvrex.sim.system.workload import Decoder
from openvrex.sim.units.lxe_time import LxeTime

ATTENTION = ("scores", "softmax", "values")
TURNING = ("keep", "turn")


@dataclass(frozen=True)
class Part:
    """A program of core 0 in a layer.

    stages : those of `plan` that it runs, one after the other
    times : that the core runs it, once for each of its tables or once
    cores : that run such a program, for the bytes of all
    """

    plan: LayerPlan
    stages: tuple[str, ...]
    times: int
    cores: int


@dataclass(frozen=True)
class WindowShare:
    """Core 0's share of a layer over a pool of slots, in a pass of `tokens` tokens.

    most : tokens of the largest pass, which decides how weights lie in memory
    slots : of the pool, whole pairs of tiles
    behind : further entries, which all rows of the pass see
    latency : cycles from a burst's address to its first beat

    Raises `ParamError` where the hardware has no program for the layer.
    """

    system: SystemParams
    model: Decoder
    tokens: int
    most: int
    slots: int
    behind: int
    latency: int

    @classmethod
    def of(cls, system: SystemParams, model: Decoder, d: WindowDemand, tokens: int, latency: int) -> "WindowShare":
        """The share of a pass of so many tokens under a policy. Raises `ParamError` for a window that is too large."""
        core, lanes = system.core, system.core.lxe_format().lanes
        pair = 2 * lanes
        members = cls(system, model, 1, 1, pair, 0, latency).shares.members
        slots, behind = d.slots(pair, core.vpe.depth * lanes * members, core.dre.kvmu.recent)
        return cls(system, model, tokens, d.most, slots, behind, latency)

    @cached_property
    def shares(self) -> Shares:
        """How the cores share the layer, with a table's KV heads as a core's unit."""
        m, core = self.model, self.system.core
        lanes = core.lxe_format().lanes
        whole = LayerShape(**m.sizes, tokens=self.most, recent=self.slots, entries=self.behind)
        if self.system.cores == 1:
            return Shares(whole, lanes, 1, m.kv_heads)
        return Shares.of(whole, lanes, self.system.cores, core.dre.kvmu.entry_bytes)

    @cached_property
    def window(self) -> LayerPlan:
        """The program over the pool, of the KV heads of a table."""
        s, w, fmt = self.shares, self.shares.whole, self.system.core.lxe_format()
        shape = replace(w, heads=w.group * s.heads, kv_heads=s.heads)
        team = Team(0, s.members)
        return LayerPlan(shape, fmt, None, team) if self.behind else WindowPlan(shape, fmt, self.most, None, team)

    def share(self, number: int = 0) -> SharePlan:
        """A core's program of the products, without its retrieval."""
        s = self.shares
        whole = replace(s.whole, recent=2 * s.lanes, entries=1)
        check(whole.tokens <= whole.recent, "tokens", whole.tokens, f"must be at most {whole.recent}: cut the pass")
        retrieval = RetrievalShape(centre=False, frame=whole.tokens)
        return SharePlan(replace(s, whole=whole), self.system.core.lxe_format(), retrieval, number, WORK, TEAM)

    def parts(self) -> Iterator[Part]:
        """Core 0's programs of a layer, in order; of a team those of the rotation, too, which run beside `place`."""
        s, window = self.shares, self.window.of(self.tokens)
        if s.cores == 1:
            names = [stage.name for stage in window.stages]
            yield Part(window, tuple(names[names.index(LAYER[0]) :]), 1, 1)
            return
        share, every = self.share().of(self.tokens), s.cores
        if s.members == 1:
            yield Part(share, ("norm1",), 1, every)
            yield Part(window, ("qkv", "rotary", "append", *ATTENTION), s.groups, every)
        else:
            yield Part(share, ("norm1", "qkv"), 1, every)
            yield Part(share, ("entries",), 1, s.teams)
            yield Part(window, ("append",), 1, s.teams)
            yield Part(self.share(every - 1).of(self.tokens), ("rotary",), 1, every - s.teams)
            yield Part(window, ATTENTION, 1, every)
            yield Part(window, ("join",), 1, every)
        for stages in (("output",), ("add_output",), ("norm2", "gate_up"), ("down",), ("add_down",)):
            if s.parts > 1 or not stages[0].startswith("add"):
                yield Part(share, stages, 1, every)

    @property
    def barriers(self) -> int:
        """Times that all cores wait for all others in a layer: before the norm, `output`, the FFN and `down`.

        Teams also wait before they place, attend and join, and cores that cut sums before they add them.
        """
        s = self.shares
        return (s.cores > 1) * (4 + 3 * (s.members > 1) + 2 * (s.parts > 1))

    def layer(self) -> dict[str, dict[str, int]]:
        """`share_cycles.COUNTS` of each stage: cycles, those in which each unit works, bytes of all cores."""
        out = _layer(self)
        if "entries" in out:  # in a team the leader's stages, or the rotation beside them
            lead = ("entries", "append")
            slower = out["rotary"]["cycles"] > sum(out[n]["cycles"] for n in lead)
            for name in lead if slower else ("rotary",):
                out[name] = out[name] | dict.fromkeys(("cycles", *UNITS), 0)
        return out

    def turning(self, keys: int, fresh: bool) -> dict[str, dict[str, int]]:
        """`share_cycles.COUNTS` of the stages that turn the keys of so many tokens. `fresh` : they are saved first."""
        check(isinstance(self.window, WindowPlan), "behind", self.behind, "must be 0: keys of a pool are turned")
        plan = self.window.of(min(keys, self.most))
        one = self.played(Part(plan, TURNING[not fresh :], self.shares.groups, self.shares.teams))
        return {name: {k: n * -(-keys // self.most) for k, n in counts.items()} for name, counts in one.items()}

    def played(self, part: Part) -> dict[str, dict[str, int]]:
        """`share_cycles.COUNTS` of the stages of a program."""
        core, plan = self.system.core, part.plan
        steps = executed(core, plan.program(part.stages[0], part.stages[-1]), self.registers(part)).steps
        cycles = LxeTime(core, self.latency).run(steps)
        found = by_stage(core, self.latency, plan, part.stages, steps, cycles)
        for counts in found.values():
            counts["bytes"] *= part.cores
        return {name: {k: n * part.times for k, n in counts.items()} for name, counts in found.items()}

    def registers(self, part: Part) -> dict[int, int]:
        """Values of the registers that a program starts with. Tokens and keys are in the first slots."""
        plan, given = part.plan, dict[int, int]()
        if isinstance(plan, SharePlan):
            given |= {Register.OUT: shared_space(plan.shares).arrays["attention"].offset, Register.REST: 0}
            given |= {Register.CONTEXT: 0, Register.SLOT: 0, Register.ENTRIES: 0}
        elif isinstance(plan, WindowPlan) and part.stages[-1] in TURNING:
            given |= plan.turning(0, 0, DEVICE)
        elif isinstance(plan, WindowPlan):
            given |= plan.addresses(np.arange(plan.shape.tokens), WEIGHTS, DEVICE)
        else:
            given |= plan.registers(0, self.behind, WEIGHTS, DEVICE)
        return given | {Register.WEIGHTS: WEIGHTS, Register.KV: DEVICE}


@lru_cache(maxsize=256)
def _layer(share: WindowShare) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for part in share.parts():
        out |= share.played(part)
    return out
