"""DRE: the joined units equal golden in bits and the time view in cycles, under stalls, resets, in every shape."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from golden.params import ParamError
from hdl.emit import emit
from hdl.params import DreParams, override, preset
from tb.dre import Scenario
from tb.runner import Run

TINY = preset("tiny").core.dre
SHAPES = {
    "tiny": [],
    "buckets": ["selection=buckets"],
    "cores": ["wtu.n_h=3", "hcu.n_h=2"],
    "single-buffer": ["double_buffer=false", "recent=1"],
    "one": ["hcu.n_w=1", "n_hp=1", "wtu.n_w=1", "clusters=1", "n_ctx=1", "frame=1", "blocks=3", "block_slots=1"],
}


def play(p: DreParams, seed: int, frames: int = 6) -> Scenario:
    """Frames of keys around a few centres in every context, each followed by rows peaked at a few clusters."""
    rng = random.Random(seed)
    nrng = np.random.default_rng(seed)
    s = Scenario(p, replace(p.function(), th_hd=max(1, p.hcu.n_hp // 4)), 1 << 12, (1 << 18) + 256)
    centres = [rng.getrandbits(p.hcu.n_hp) for _ in range(max(2, p.hcu.clusters // 2))]
    for _ in range(frames):
        ctx = rng.randrange(p.hcu.n_ctx)
        if rng.random() < 0.1:
            s.clear(ctx)
        flips = [sum(1 << rng.randrange(p.hcu.n_hp) for _ in range(rng.choice([0, 1, 2]))) for _ in range(9)]
        s.keys(ctx, [(rng.choice(centres) ^ f) & (1 << p.hcu.n_hp) - 1 for f in flips[: rng.randrange(1, 10)]])
        n = len(s.model.tables[ctx])
        top = (1 << p.wtu.score.bits) - 1
        codes = np.maximum(0, top - nrng.exponential(nrng.choice([1, 100, 400]), (rng.randrange(1, 5), n))).astype(int)
        s.query(ctx, np.where(nrng.random(codes.shape) < 0.1, 0, codes))
    return s


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_golden(shape):
    p = override(preset("tiny"), SHAPES[shape]).core.dre
    e = emit("dre", p)
    for seed, (idle, stall) in enumerate([(0.0, 0.0), (0.3, 0.3), (0.0, 0.7)], 1):
        s = play(p, seed, 24)
        got = Run(e, "tb.bench_dre", "phases", s.config(idle, stall), seed)()
        assert s.differences(got) == [], f"seed {seed}"
        if not (idle or stall) and p.wtu.n_h == 1:
            assert [b - a for a, b in zip(got["first"], got["ends"], strict=True)] == s.phase_cycles()


@pytest.mark.parametrize("reset_at", [3, 60, 333])
def test_reset_in_flight(reset_at):
    s = play(TINY, reset_at, 10)
    got = Run(emit("dre", TINY), "tb.bench_dre", "phases", s.config(0.2, 0.2, reset_at), reset_at)()
    assert s.differences(got) == []


def test_no_unit_looks_at_a_memory_after_a_write():
    """A single-port macro may put anything out then: here the complement of what is written."""
    e = emit("dre", TINY)
    read = re.compile(r"if \(rp__en\) begin\n\s+(\S+) <= mem\[wp__addr\];\n\s+end")
    broken, n = read.subn(r"if (rp__en) \1 <= mem[wp__addr]; else if (wp__en) \1 <= ~wp__data;", e.verilog)
    assert n == e.verilog.count("[wp__addr];\n    end"), "a single-port memory was missed"
    assert n >= 5
    s = play(TINY, 1, 24)
    got = Run(replace(e, verilog=broken), "tb.bench_dre", "phases", s.config(0.3, 0.3), 1)()
    assert s.differences(got) == []


def test_a_wrong_golden_is_noticed():
    """The comparison itself can fail: one bit of one expected beat of each stream."""
    s = play(TINY, 1, 24)
    got = Run(emit("dre", TINY), "tb.bench_dre", "phases", s.config(), 1)()
    assert s.differences(got) == []
    for name, key in (("t", "cluster"), ("w", "home"), ("x", "dst"), ("b", "addr")):
        beats = getattr(s, name)
        assert beats, f"the scenario makes no beat on {name}"
        index = next(i for i, beat in enumerate(beats) if key in beat)
        beats[index] = {**beats[index], key: beats[index][key] ^ 1}
        assert len(s.differences(got)) == 1
        beats[index] = {**beats[index], key: beats[index][key] ^ 1}


def test_units_must_agree():
    with pytest.raises(ParamError, match="token_bits.*same in every unit"):
        replace(TINY, kvmu=replace(TINY.kvmu, token_bits=9))
