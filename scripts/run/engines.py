"""DPE and VPE on a trace: their utilisation by the time views, and the errors of the dot product."""

import numpy as np

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.function_params import DotFormat
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.program import vector_programs as programs
from openvrex.hdl.params import CoreParams
from openvrex.sim.units.dpe_time import DpeTime
from openvrex.sim.units.vpe_time import VpeTime

WINDOWS = (16, 24, 32)


def operands(trace: Trace) -> list[tuple[np.ndarray, np.ndarray]]:
    """Queries [R, d] and keys [n, d] of each recorded layer and KV head, in the last frame with recorded queries."""
    start, stop = (trace.spans("frame", queries=True) or trace.spans(queries=True))[-1]
    out = []
    for i in range(len(trace.layers)):
        q = trace.queries(i, start, stop)
        group = q.shape[1] // trace.kv_heads
        for h in range(trace.kv_heads):
            rows = q[:, h * group : (h + 1) * group].reshape(-1, trace.head_size)
            out.append((rows, trace.k[i, :stop, h]))
    return out


def errors(trace: Trace, n: int) -> dict[int, np.ndarray]:
    """Errors of the trace's scores by alignment window, as shares of each score's sum of magnitudes."""
    out: dict[int, list[np.ndarray]] = {w: [] for w in WINDOWS}
    for q, k in operands(trace):
        a, b = q.astype(np.float64), k.astype(np.float64)
        exact, size = a @ b.T, np.abs(a) @ np.abs(b).T  # wrong by at most 2^-47 of the sum of magnitudes
        for w in WINDOWS:
            got = dot(q, k, DotFormat(n, w)).astype(np.float64)
            out[w].append((np.abs(got - exact) / np.where(size > 0, size, 1)).ravel())
    return {w: np.concatenate(parts) for w, parts in out.items()}


def utilisation(trace: Trace, core: CoreParams) -> list[tuple[str, int, float]]:
    """Name, cycles and utilisation of each step on the trace's shapes, without stalls and with operands in place."""
    rows, keys = operands(trace)[0]
    dpe, width = core.dpe, trace.kv_heads * trace.head_size
    out = []
    for name, n, length in (("keys x hyperplanes", len(rows), width), ("queries x keys", len(rows), trace.head_size)):
        chunks = DpeTime(dpe).chunks(length)
        most = dpe.x_depth // chunks
        command = {"rows": min(n, most) - 1, "chunks": chunks - 1, "end": 1}
        product = DpeTime(dpe).run([command])
        label = f"DPE: {name}, {command['rows'] + 1} rows of {length}"
        out.append((label, int(product.results[-1]), product.utilisation))
    fmt = core.vpe.format
    scores = dot(rows[:16], keys[: fmt.n * fmt.depth // 2], core.dpe.dot)
    words = programs.count_words(scores.shape[1], fmt)
    fits = min(4, max(1, fmt.depth // words))  # rows that are in the machine at once
    for name, make in (("softmax", programs.softmax), ("score codes", programs.score_codes)):
        steps = [make(s, trace.head_size**-0.5, fmt, k % fits * words, k % fits * 4) for k, s in enumerate(scores)]
        run = VpeTime(core.vpe).run([step.instruction for step in programs.interleave(steps, fmt)])
        out.append((f"VPE: {name}, {len(scores)} rows of {scores.shape[1]}", run.end, run.words / run.end))
    return out
