"""A decoder layer on a team of golden LXEs that share one memory, for tests of the stages that a team needs.

The leader, member 0, runs the stages that this layer does not share. All members share the attention of all heads, and
the K of the products `output` and `down`.
"""

from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.program.isa import Instruction, LxeFormat
from openvrex.golden.program.layer_compiler import LayerPlan, LayerShape
from openvrex.golden.program.layer_memory import Array, Register, Space, Team
from openvrex.golden.program.lxe_model import Lxe, Memory, Region
from openvrex.golden.program.stage_plan import Planned

OWN = ("scores", "probabilities")  # arrays that each member has for itself; all others are the team's
CUT = ("output", "down")  # products that are cut in K
# The phases of a pass: their stages, and whether all members run them or the leader alone. A phase begins when all
# members have ended the one before.
PHASES = {
    "before": ("norm1", "append", False),
    "attention": ("scores", "values", True),
    "join": ("join", "join", True),
    "output_part": ("output_part", "output_part", True),
    "output": ("output", "output", True),
    "ffn": ("norm2", "gate_up", False),
    "down_part": ("down_part", "down_part", True),
    "down": ("down", "down", True),
}


def shares(tiles: int, n: int, of: int, among: int) -> range:
    """The numbers of `tiles` tiles of `n` that are of number `of` among so many; they differ by a tile at most."""
    return range(tiles * of // among * n, tiles * (of + 1) // among * n)


class MemberPlan(LayerPlan):
    """A member's plan. `base` is the address of its own arrays, behind those of the team and of members before it."""

    def __init__(self, shape: LayerShape, fmt: LxeFormat, team: Team, base: int = 0):
        self.shape, self.fmt, self.base = shape, fmt, base  # `_cut` reads them
        s, n = shape, fmt.lanes
        cuts = {
            "qkv": self._cut((s.heads + 2 * s.kv_heads) * s.head_size, s.width, s.width),
            "gate_up": self._cut(s.ffn, s.width, s.width, 2),
        }
        self.slices = {}  # of K that this member has; the product has at most as many slices as K has words
        for name, k, segment in (("output", s.heads * s.head_size, s.group * s.head_size), ("down", s.ffn, s.ffn)):
            many = min(team.members, k // n)
            own = self.slices[name] = shares(k // n, n, min(team.member, many - 1), many)
            cuts[name] = self._cut(s.width, len(own), gcd(segment, own.start, len(own)))
        super().__init__(shape, fmt, cuts, team)

    def _more_arrays(self) -> None:
        s, arrays = self.shape, self.work.arrays
        both = {True: Space(self.work.align), False: Space(self.work.align)}
        sizes = {name: (a.shape, a.dtype) for name, a in arrays.items()}
        for name in CUT:
            k = {"output": s.heads * s.head_size, "down": s.ffn}[name]
            sizes[f"{name}_parts"] = (min(self.team.members, k // self.fmt.lanes), s.tokens, s.width), np.float32
        for name, (shape, dtype) in sizes.items():
            both[name in OWN].add(name, shape, dtype)
        self.base = self.base or both[False].size
        own = both[True].arrays.values()
        arrays |= both[False].arrays | {a.name: Array(a.name, a.offset + self.base, a.shape, a.dtype) for a in own}
        self.end = self.base + both[True].size

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        a, s, n = self.arrays, self.shape, self.fmt.lanes
        columns = shares(s.width // n, n, self.team.member, self.team.members)

        def part(name: str, x: str) -> None:
            parts, own = a[f"{name}_parts"], self.slices[name]
            if self.team.member < parts.shape[0]:
                at = parts.offset + self.team.member * parts.size // parts.shape[0]
                view = Array(parts.name, at, parts.shape[1:], np.float32)
                c.gemm(a[x], a[f"{name}_weight"], self.cuts[name], view, first=own.start, part=True)

        out = []
        for row in super()._table(c, gemm):
            if (name := row.name) in CUT:
                x = {"output": "attention", "down": "gated"}[name]
                out.append(Planned(f"{name}_part", lambda name=name, x=x: part(name, x)))
                row = Planned(name, lambda name=name: c.total(a[f"{name}_parts"], a["hidden"], columns))
            out.append(row)
        return out

    def pack(self, layer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The member's arrays of weights by name."""
        keys = {"output": "attn_output", "down": "ffn_down"}
        return super().pack(layer | {keys[name]: layer[keys[name]][self.slices[name]] for name in CUT})


class TeamHost:
    """A layer on `members` LXEs. `begin` writes the inputs of a pass, `run` executes a phase on those that have it."""

    def __init__(self, shape: LayerShape, fmt: LxeFormat, members: int, layer: dict[str, np.ndarray]):
        self.plans: list[MemberPlan] = []
        at = 0
        for member in range(members):
            self.plans.append(MemberPlan(shape, fmt, Team(member, members), at))
            at = self.plans[-1].end
        regions = [Region("work", 0, at)]
        self.weights = []
        for member, plan in enumerate(self.plans):
            self.weights.append(at)
            regions.append(Region(f"weights {member}", at, plan.weights.size))
            at += plan.weights.size
        self.kv = at
        self.memory = Memory([*regions, Region("entries", at, self.plans[0].kv.size)])
        self.units = [Lxe(fmt, self.memory) for _ in self.plans]
        self.entries = self.start = 0
        for member, plan in enumerate(self.plans):
            for name, x in plan.pack(layer).items():
                self.memory.put(self.address(name, member), x)

    def address(self, name: str, member: int = 0) -> int:
        """Address of an array of a member."""
        a = self.plans[member][name]
        return a.offset + {0: 0, Register.WEIGHTS: self.weights[member], Register.KV: self.kv}[a.base]

    def get(self, name: str, member: int = 0) -> np.ndarray:
        """Read an array of a member."""
        a = self.plans[member][name]
        return self.memory.get(self.address(name, member), a.shape, a.dtype)

    def begin(self, hidden: np.ndarray, cos: np.ndarray, sin: np.ndarray, start: int) -> None:
        """Write the inputs of a pass from token `start`."""
        self.start, plan = start, self.plans[0]
        for name, x in (plan.constants() | plan.inputs(hidden, cos, sin, start)).items():
            self.memory.put(self.address(name), x)

    def fetch(self, entries: np.ndarray) -> None:
        """Put entries behind the ring, [n, 2 (keys, values), KV heads, head size]."""
        s = self.plans[0].shape
        self.entries = len(entries)
        if len(entries):
            at = self.address("ring") + s.recent * s.entry * 2
            self.memory.put(at, np.ascontiguousarray(entries.astype(BF16)))

    def steps(self, phase: str) -> list[tuple[int, list[Instruction], dict[int, int]]]:
        """Member, program and registers of everyone who has a part in a phase."""
        first, last, team = PHASES[phase]
        out = []
        for member, plan in enumerate(self.plans[: None if team else 1]):
            registers = plan.registers(self.start, self.entries, self.weights[member], self.kv)
            out.append((member, plan.program(first, last), {int(k): v for k, v in registers.items()}))
        return out

    def run(self, phase: str) -> None:
        """Execute a phase, one member after the other."""
        for member, program, registers in self.steps(phase):
            self.units[member].run(program, registers)
