"""Programs that the VPE's bench drives and the words that golden stores; also the VPE's share of ReSV on a trace."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from openvrex.golden.arithmetic.numerics import matmul
from openvrex.golden.arithmetic.vector import Bank, Format, Instruction, Machine, Op, Step, VectorFormat
from openvrex.golden.function_params import ReSVParams
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.program import vector_programs as programs
from openvrex.golden.retrieval.hashing import unpack
from openvrex.golden.retrieval.resv import ReSV
from openvrex.hdl.params import VpeParams
from openvrex.sim.units.vpe_time import VpeTime
from openvrex.tb.library.runner import Run

LANE_BITS = {Format.WIDE: 32, Format.HALF: 16, Format.SIGN: 1, 3: 1}


@dataclass
class Episode:
    """A program, the words of each row's stream, and the words that golden stores."""

    p: VpeParams
    rows: list[list[Step]]  # all rows have the same instructions
    stalls: list[tuple[float, float, float]]
    cut_at: int = 0

    def __post_init__(self):
        machines = [Machine(self.p.format) for _ in self.rows]
        self.want = list(zip(*(m.run(row) for m, row in zip(machines, self.rows, strict=True)), strict=True))

    @property
    def instructions(self) -> list[Instruction]:
        return [step.instruction for step in self.rows[0]]

    def beats(self) -> dict:
        """The beats that the bench drives."""
        c = [{k: fit(self.p, k, v) for k, v in asdict(i).items()} for i in self.instructions]
        i = []
        for steps in zip(*self.rows, strict=True):
            if steps[0].instruction.streams:
                bits = 32 if steps[0].instruction.wide else 16
                i += [[packed(w, bits) for w in row] for row in zip(*(s.words for s in steps), strict=True)]
        return {"c": c, "i": i, "outputs": len(self.want), "stalls": self.stalls, "cut_at": self.cut_at}

    def check(self, got: dict) -> None:
        """Compare every stored word."""
        assert len(got["o"]) == len(self.want)
        for at, (want, (_, beat)) in enumerate(zip(self.want, got["o"], strict=True)):
            first = want[0]
            head = {"format": first.format, "keep": first.keep, "last": first.last}
            assert {k: beat[k] for k in head} == head, at
            assert beat["data"] == [packed(w.data, LANE_BITS[w.format]) for w in want], at
        counts = {"instructions": len(self.rows[0]), "loads": len(self.beats()["i"]), "stores": len(self.want)}
        lanes = [i for i in self.instructions if i.op != Op.STORE]
        counts["words"] = sum(i.words + 1 for i in lanes)
        counts["functions"] = sum(i.words + 1 for i in lanes if self.p.format.is_function(i.post))
        assert {k: got["perf"][k] for k in counts} == counts

    def check_cycles(self, got: dict) -> Counter:
        """Compare every transfer of an unstalled run with the time view; the reasons for waiting."""
        time = VpeTime(self.p).run(self.instructions)
        first = got["c"][0]
        for name, want in (("c", time.c), ("i", time.i)):
            assert [cycle - first for cycle in got[name]] == want, name
        assert [cycle - first for cycle, _ in got["o"]] == time.o
        assert got["perf"]["waits"] == time.waits.total()
        assert got["perf"]["starved"] == 0
        return time.waits


def fit(p: VpeParams, field: str, value: int) -> int:
    """A field's value as the instruction holds it: addresses wrap."""
    return value & p.depth - 1 if field.startswith("addr_") else int(value)


def packed(lanes: np.ndarray, bits: int) -> int:
    return sum(int(v) << bits * j for j, v in enumerate(lanes.tolist()))


def run(e, p: VpeParams, episodes: list[Episode], waves: bool = True) -> list[dict]:
    c = {"params": asdict(p), "episodes": [episode.beats() for episode in episodes]}
    return Run(e, "bench_vpe", "programs", c, waves=waves)()["episodes"]


@dataclass(frozen=True)
class Share:
    """A step of ReSV on one layer: its program, and the rows that the policy computes (None if only golden defines
    them).
    """

    name: str
    program: list[Step]
    want: list[np.ndarray] | None


def shares(trace: Trace, layer: int, asked: list[tuple[int, int]], f: ReSVParams, fmt: VectorFormat) -> Iterator[Share]:
    """The VPE's work for the retrieval engine, from the DPE's results on the `layer`-th recorded layer.

    For the `asked` segments (start, stop): hash bits of their keys from the products with the hyperplanes, and score
    codes of their queries. Then the clusters' means from their sums.
    """
    policy = ReSV(f, trace.kv_heads, trace.head_size)
    for start, stop in trace.spans():
        policy.append(trace.k[layer, start:stop])
        if (start, stop) not in asked:
            continue
        keys = policy.hasher.split(trace.k[layer, start:stop])
        for t, own in enumerate(keys):
            bits = unpack(policy.hasher.words(own, t), f.n_hp)
            dots = matmul(own, policy.hasher.planes)
            limits = None if policy.hasher.thresholds is None else policy.hasher.thresholds[t]
            steps = [s for row in dots for s in programs.hash_bits(row, fmt, thresholds=limits)]
            yield Share("hash bits", steps, list(bits))
        q = trace.queries(layer, start, stop)
        group, per = q.shape[1] // trace.kv_heads, trace.kv_heads // len(policy.tables)
        for h in range(trace.kv_heads):
            means = policy.tables[h // per].key_cluster().reshape(-1, per, trace.head_size)[:, h % per]
            if len(means):
                rows = matmul(q[:, h * group : (h + 1) * group].reshape(-1, trace.head_size), means)
                words = programs.count_words(rows.shape[1], fmt)
                codes = [
                    programs.score_codes(s, trace.head_size**-0.5, fmt, k % 2 * words, k % 2)
                    for k, s in enumerate(rows)
                ]
                yield Share("score codes", programs.interleave(codes, fmt), None)
    for table in policy.tables:
        steps, words = [], programs.count_words(table.key_sums.shape[1], fmt)
        for total, count in zip(table.key_sums, table.counts.tolist(), strict=True):
            steps.append(programs.load(total, fmt, Bank.A | Bank.C, 0))
            steps += programs.cluster_mean(len(total), count, fmt, 0, words)
        yield Share("cluster means", steps, list(table.key_cluster().view(np.uint16)))
