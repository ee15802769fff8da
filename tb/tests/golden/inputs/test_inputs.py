"""The retrieval engine's inputs made in hardware: keys to hash bits, queries and Key_cluster to score codes.

Real keys and queries go through the DPE's RTL, its results through the VPE's, and what that stores must be what golden
ReSV hands to the DRE (with the DPE's products and the VPE's exp as its function).
"""

from itertools import islice

import numpy as np
import pytest

from openvrex.golden.function_params import ReSVParams
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.program import vector_programs as programs
from openvrex.golden.retrieval.hashing import unpack
from openvrex.golden.retrieval.resv import ReSV
from openvrex.hdl.emit import emit
from openvrex.hdl.params import DpeParams, VpeParams
from openvrex.tb.library.dpe_traffic import Traffic
from openvrex.tb.library.runner import ROOT
from openvrex.tb.library.vpe_traffic import Episode, run

DPE = DpeParams(n_h=8, n_w=16, w_depth=16, x_depth=64)
VPE = VpeParams(n_w=16, depth=16)
PARAMS = ReSVParams(dot=DPE.dot, score_map="vpe", centre=True)


def products(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """FP32 [R, C] from the DPE's RTL."""
    t = Traffic(DPE)
    t.product(weights, rows)
    beats = t.run(emit("dpe", DPE), 1)["beats"]
    out = np.array([b["data"] for b in beats], np.uint32).view(np.float32)
    tiles = np.split(out, -(-len(weights) // DPE.n_h))
    return np.concatenate(tiles, axis=1)[:, : len(weights)]


def stored(steps: list[list]) -> list[np.ndarray]:
    """What the VPE's RTL stores for each program, compared with golden on the way."""
    episodes = [Episode(VPE, [program], [(0.0, 0.0, 0.0)]) for program in steps]
    for episode, got in zip(episodes, run(emit("vpe", VPE), VPE, episodes), strict=True):
        episode.check(got)
    return [np.concatenate([w.data[: w.keep + 1] for (w,) in e.want]) for e in episodes]


@pytest.mark.parametrize(
    ("layer", "heads"), [(2, 1), *(pytest.param(layer, 3, marks=pytest.mark.nightly) for layer in (0, 2))]
)
def test_hash_bits_and_score_codes(layer, heads):
    trace = Trace.load(ROOT / "tb" / "fixtures" / "world.safetensors")
    policy = ReSV(PARAMS, trace.kv_heads, trace.head_size)
    for start, stop in trace.spans("frame"):
        appended = policy.append(trace.k[layer, start:stop])
    keys = policy.hasher.split(trace.k[layer, start:stop])
    queries = trace.queries(layer, *trace.spans("frame", queries=True)[-1])[:2]
    fmt, want = VPE.format, policy.retrieve(queries).codes
    assert len(policy.tables) == trace.kv_heads == 3
    every = zip(policy.tables, keys, policy.hasher.thresholds, strict=True)
    for head, (table, own, limits) in enumerate(islice(every, heads)):
        rows = products(policy.hasher.planes, own)
        bits = stored([programs.hash_bits(row, fmt, thresholds=limits) for row in rows])
        np.testing.assert_array_equal(np.stack(bits), unpack(appended.hashes[head], PARAMS.n_hp))
        group = trace.heads // trace.kv_heads
        rows = queries[:, head * group : (head + 1) * group].reshape(-1, trace.head_size)
        scores = products(table.key_cluster(), rows)
        codes = stored([programs.score_codes(row, trace.head_size**-0.5, fmt) for row in scores])
        np.testing.assert_array_equal(np.stack(codes), want[head])
