"""Small layers."""

import numpy as np

from openvrex.golden.arithmetic import elementwise
from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import Machine, Sum, fma
from openvrex.golden.program import vector_programs as programs
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.layer_compiler import LayerPlan
from openvrex.golden.program.recipes import Scalar, reciprocal

TINY = LxeFormat(lanes=4, w_depth=64, x_depth=64, depth=128)


def inverse(total: np.float32) -> np.ndarray:
    """1 / total as the VPE refines it, FP32 [1]."""
    machine, steps = Machine(TINY.vector), programs.Steps()
    machine.scalars[0] = total
    reciprocal(steps, Scalar(0), Scalar(1), Scalar(2), Scalar(1))
    list(machine.run(steps))
    return machine.scalars[1:2]


class Composed:
    """A layer from the functions that are verified on their own: `golden.arithmetic.dot` and the VPE's sequences."""

    def __init__(self, plan: LayerPlan, layer: dict[str, np.ndarray]):
        self.plan, self.shape, self.fmt, self.v = plan, plan.shape, plan.fmt, plan.fmt.vector
        self.w = {k: to_bf16(np.asarray(w)) for k, w in layer.items()}

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        words, eps = self.shape.width // self.fmt.lanes, self.shape.epsilon
        steps = [programs.rms_norm(to_bf16(row), self.w[name], eps, self.v, 0, words) for row in x]
        return np.concatenate([programs.run(p, self.v)[0].view(BF16)[None] for p in steps])

    def gemm(self, name: str, x: np.ndarray, w: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        """Sums of slices added in FP32, in order."""
        step = self.plan.cuts[name].words * self.fmt.lanes
        for k in range(0, x.shape[1], step):
            part = dot(x[:, k : k + step], np.ascontiguousarray(w[k : k + step].T), self.fmt.dot)
            y = part if y is None else fma(part, np.ones(1, BF16), y)
        return y

    def turn(self, heads: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        """Heads [tokens, heads, head]; one head a program."""
        out = []
        for x, c, s in zip(heads, cos, sin, strict=True):
            for head in x:
                steps = programs.rotary_tables(c, s, "halves", self.v)
                out += programs.run([*steps, *programs.rotary(head[None], len(head), "halves", self.v)], self.v)
        return np.stack(out).view(BF16).reshape(heads.shape)

    def attention(self, q: np.ndarray, entries: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, ...]:
        """Scores, probabilities and outputs of the rows of a KV head: q [rows, head], entries [n, 2, head]."""
        k, v = (np.ascontiguousarray(entries[:, i]) for i in range(2))
        scores = dot(q, k, self.fmt.dot)
        p = np.stack([self.softmax(row) for row in np.where(seen, scores, np.float32(-np.inf))])
        n, out = self.fmt.lanes, None
        for at in range(0, len(entries), n):
            part = dot(p[:, at : at + n], np.ascontiguousarray(v[at : at + n].T), self.fmt.dot)
            out = part if out is None else fma(part, np.ones(1, BF16), out)
        return scores, p, to_bf16(out)

    def gate(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        return np.stack([programs.run(programs.silu_gate(*r, self.v), self.v)[0] for r in zip(gate, up, strict=True)])

    def softmax(self, row: np.ndarray) -> np.ndarray:
        if not self.plan.part:
            return programs.run(programs.softmax(row, self.plan.scale, self.v), self.v)[0].view(BF16)
        one, none = np.ones(1, BF16), np.float32(-0.0)
        row = fma(row, to_bf16(np.array([self.plan.scale])), none)
        e = elementwise.exp(to_bf16(fma(row, one, -row.max())))
        ring, size, total = self.shape.recent, self.plan.part * self.fmt.lanes, np.zeros(1, np.float32)
        for first in (0, *range(ring, len(row), size)):
            part = Sum()
            for word in e[first : ring if first == 0 else first + size].reshape(-1, self.fmt.lanes):
                part.add(word.astype(np.float32))
            total = fma(part.total()[None], one, total)
        return to_bf16(fma(inverse(total[0]), e, none))

    def gated(self, x: np.ndarray) -> np.ndarray:
        gate, up = (self.gemm("gate_up", x, w) for w in np.split(self.w["gate_up"], 2, axis=1))
        rows = [programs.run(programs.silu_gate(*r, self.v), self.v)[0] for r in zip(gate, up, strict=True)]
        return np.stack(rows).view(BF16)


def same(have: np.ndarray, want: np.ndarray) -> None:
    """Equal bit for bit."""
    assert have.dtype == want.dtype
    bits = np.uint16 if have.dtype == BF16 else np.uint32
    np.testing.assert_array_equal(have.view(bits).reshape(want.shape), want.view(bits))


def near(have: np.ndarray, want: np.ndarray, bound: np.ndarray) -> None:
    """Each number within its bound of the exact one."""
    error = np.abs(have.astype(np.float64) - want)
    worst = np.unravel_index(np.argmax(error - bound), error.shape)
    assert (error <= bound).all(), f"{worst}: off by {error[worst]}, at most {bound[worst]} is allowed"
