"""Programs of the layer compiler on the golden LXE: each stage against an independent composition and against FP64."""

import re
from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs import video, vision
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.program.deadlock_hazard_check import simulate
from openvrex.golden.program.isa import ENGINE, LxeFormat, Opcode
from openvrex.golden.program.layer_compiler import LayerPlan, LayerShape
from openvrex.golden.program.loop_rolling import assemble, op, roll
from openvrex.golden.program.sequencer_model import register_values, sequence
from openvrex.tb.library.layer_host import LayerHost
from openvrex.tb.library.random_layers import turns, weights
from tb.tests.golden.inputs.trace_samples import models
from tb.tests.golden.program.layer_samples import TINY, Composed, near, same


def check_pass(host: LayerHost, composed: Composed, hidden: np.ndarray, start: int) -> np.ndarray:
    """Run a pass stage by stage; every array it leaves equals the composition. The layer's output."""
    plan, s = host.plan, host.plan.shape
    head, (cos, sin) = s.head_size, turns(s, start)
    outputs = {stage.name: stage.writes for stage in plan.stages}

    def after(stage: str) -> list[np.ndarray]:
        host.run(0, stage, stage)
        return [host.get(name) for name in outputs[stage]]

    host.begin(hidden, cos, sin, start)
    [[norm]] = after("norm1")
    same(norm, composed.norm(hidden, "attn_norm"))
    [qkv] = after("qkv")
    same(qkv, to_bf16(composed.gemm("qkv", norm, composed.w["qkv"])))

    heads = qkv.reshape(s.tokens, -1, head)
    q, fresh = after("rotary")
    q = q.reshape(s.kv_heads, s.tokens, s.group, head)
    scaled = np.float32(cos * plan.query_scale), np.float32(sin * plan.query_scale)
    same(q.swapaxes(0, 1).reshape(s.tokens, s.heads, head).copy(), composed.turn(heads[:, : s.heads], *scaled))
    turned, v = np.split(heads[:, s.heads :], 2, axis=1)
    fresh = fresh.reshape(s.tokens, 2, s.kv_heads, head)
    same(fresh[:, 0].copy(), composed.turn(turned, cos, sin))
    same(fresh[:, 1].copy(), v.copy())
    ring = host.ring()
    ring[(start + np.arange(s.tokens)) % s.recent] = fresh
    after("append")
    same(host.ring(), ring)

    n = s.recent + -(-host.entries[0] // (2 * plan.fmt.lanes)) * 2 * plan.fmt.lanes
    entries = host.get("ring")[:n].reshape(n, 2, s.kv_heads, head)
    behind = np.arange(s.recent, n) < s.recent + host.entries[0]
    seen = np.concatenate([plan.seen(start), np.tile(behind, (s.tokens, 1))], axis=1).repeat(s.group, axis=0)
    want = [composed.attention(q[g].reshape(-1, head), entries[:, :, g], seen) for g in range(s.kv_heads)]
    for i, stage in enumerate(("scores", "softmax", "values")):
        [have] = after(stage)
        y = np.concatenate([w[i] for w in want])
        same(np.ascontiguousarray(have.reshape(len(y), -1)[:, : y.shape[1]]), y)

    y = y.reshape(s.kv_heads, s.tokens, -1).swapaxes(0, 1).reshape(s.tokens, -1)
    hidden = composed.gemm("output", y, composed.w["attn_output"], hidden)
    same(after("output")[0], hidden)
    [[norm]] = after("norm2")
    same(norm, composed.norm(hidden, "ffn_norm"))
    [[gated]] = after("gate_up")
    same(gated, composed.gated(norm))
    hidden = composed.gemm("down", gated, composed.w["ffn_down"], hidden)
    same(after("down")[0], hidden)
    return hidden


HALF = 2.0**-8  # relative error of a rounding to BF16


def check_errors(host: LayerHost, layer: dict[str, np.ndarray], hidden: np.ndarray, start: int, turns: tuple) -> None:
    """Every stage of a pass within derived bounds of float64 on the stage's own inputs, as they stand in memory."""
    plan, s, lanes = host.plan, host.plan.shape, host.plan.fmt.lanes
    w = {k: to_bf16(np.asarray(v)).astype(np.float64) for k, v in layer.items()}

    def product(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x y, and what alignment in the DPE and FP32 sums of slices lose at most."""
        size = np.abs(x) @ np.abs(y)
        return x @ y, size * x.shape[-1] * (2.0 ** (2 - plan.fmt.window) + 2.0**-23)

    def norm(x: np.ndarray, name: str, have: np.ndarray) -> None:
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + s.epsilon) * w[name]
        # x rounded, once in the root and once outside, and the result.
        near(have, y, np.abs(y) * 3.1 * HALF)

    def get(name: str) -> np.ndarray:
        return host.get(name).astype(np.float64)

    host.begin(hidden, *turns, start)
    host.run(0, None, "output")
    norm(hidden.astype(np.float64), "attn_norm", get("norm1")[0])
    y, lost = product(get("norm1")[0], w["qkv"])
    near(get("qkv"), y, np.abs(y) * HALF + lost)

    assert plan.scale * plan.query_scale == pytest.approx(s.head_size**-0.5, rel=1e-12)
    heads = get("qkv").reshape(s.tokens, -1, s.head_size)
    q = get("q").reshape(s.kv_heads, s.tokens, s.group, s.head_size).swapaxes(0, 1).reshape(s.tokens, s.heads, -1)
    fresh = get("fresh").reshape(s.tokens, 2, s.kv_heads, s.head_size)
    cos, sin = (t[:, None].astype(np.float64) for t in turns)
    for have, x, scale in (
        (q, heads[:, : s.heads], plan.query_scale),
        (fresh[:, 0], heads[:, s.heads : s.heads + s.kv_heads], 1.0),
    ):
        a, b = np.split(x, 2, axis=-1)
        y = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1) * scale
        near(have, y, np.abs(y) * HALF + np.tile(np.abs(a) + np.abs(b), 2) * 2.0**-22)

    n = s.recent + -(-host.entries[0] // (2 * lanes)) * 2 * lanes
    entries = get("ring")[:n].reshape(n, 2, s.kv_heads, s.head_size)
    behind = np.arange(s.recent, n) < s.recent + host.entries[0]
    seen = np.concatenate([plan.seen(start), np.tile(behind, (s.tokens, 1))], axis=1).repeat(s.group, axis=0)
    rows = get("q").reshape(s.kv_heads, s.rows, s.head_size)
    scores = get("scores").reshape(s.kv_heads, s.rows, -1)[:, :, :n]
    shares = get("probabilities").reshape(s.kv_heads, s.rows, -1)[:, :, :n]
    attention = get("attention").reshape(s.kv_heads, s.rows, s.head_size)
    for g in range(s.kv_heads):
        y, lost = product(rows[g], entries[:, 0, g].T)
        near(scores[g], y, np.abs(y) * 2.0**-23 + lost)
        z = np.where(seen, scores[g] * plan.scale, -np.inf)
        depth = np.where(seen, z.max(axis=1, keepdims=True) - z, 0)
        e = np.exp(-depth) * seen
        p = e / e.sum(axis=1, keepdims=True)
        # exp takes a BF16 number and is within 0.69 units in the last place; the sum is off as its terms are.
        relative = depth * HALF * 1.01 + 0.69 * 2 * HALF + 2.0**-20
        near(shares[g], p, p * (relative + (p * relative).sum(axis=1, keepdims=True) + 1.1 * HALF) + 2.0**-120)
        y, lost = product(shares[g], entries[:, 1, g])
        near(attention[g], y, np.abs(y) * HALF + lost)

    y, lost = product(
        attention.reshape(s.kv_heads, s.tokens, -1).swapaxes(0, 1).reshape(s.tokens, -1), w["attn_output"]
    )
    near(middle := get("hidden"), hidden + y, lost + np.abs(hidden) * s.width * 2.0**-24 + np.abs(y) * 2.0**-23)
    host.run(0, "norm2")
    norm(middle, "ffn_norm", get("norm2")[0])
    (gate, lost_gate), (up, lost_up) = (product(get("norm2")[0], m) for m in np.split(w["gate_up"], 2, axis=1))
    y = gate / (1 + np.exp(-gate))
    silu = 1.1 * (np.abs(gate) * HALF + lost_gate) + 0.93 * 2 * HALF * np.abs(y) + 2.0**-120
    near(get("gated")[0], y * up, np.abs(y * up) * HALF * 1.1 + (np.abs(up) + lost_up) * silu + np.abs(y) * lost_up)
    y, lost = product(get("gated")[0], w["ffn_down"])
    near(get("hidden"), middle + y, lost + np.abs(middle) * s.ffn * 2.0**-24 + np.abs(y) * 2.0**-23)


SHAPES = {
    "long": (LayerShape(16, 2, 1, 8, 16, tokens=2, recent=16, entries=101), LxeFormat(4, 16, 32, 32, 16)),
    "grouped": (LayerShape(32, 4, 2, 8, 48, tokens=3, recent=16, entries=25), TINY),
    "one": (LayerShape(16, 2, 2, 4, 16, tokens=1, recent=8, entries=0), TINY),
    "ragged": (
        LayerShape(40, 4, 2, 16, 56, tokens=5, recent=16, entries=9),
        LxeFormat(8, 24, 16, 16, 16, i_depth=1024),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_stage_equals_the_composition(name):
    shape, fmt = SHAPES[name]
    rng = np.random.default_rng(len(name))
    layer = weights(shape, rng)
    plan = LayerPlan(shape, fmt)
    host, composed = LayerHost(plan, [layer]), Composed(plan, layer)
    for frame in range(
        0 if name == "long" else 2, 4
    ):  # the ring wraps, within a pass where its tokens do not divide it
        many = min(shape.entries, (0, 31, 64, shape.entries)[frame])
        host.fetch(rng.normal(size=(many, 2, shape.kv_heads, shape.head_size)).astype(BF16))
        hidden = rng.normal(size=(shape.tokens, shape.width)).astype(np.float32)
        want = check_pass(host, composed, hidden, frame * shape.tokens)
        host.begin(hidden, *turns(shape, frame * shape.tokens), frame * shape.tokens)
        host.run()
        same(host.get("hidden"), want)


@pytest.mark.parametrize("name", SHAPES)
def test_every_stage_is_within_its_bound_of_float64(name):
    shape, fmt = SHAPES[name]
    rng = np.random.default_rng(1)
    layer = weights(shape, rng)
    host = LayerHost(LayerPlan(shape, replace(fmt, i_depth=1024)), [layer])
    many = shape.entries // 2
    host.fetch(rng.normal(size=(many, 2, shape.kv_heads, shape.head_size)).astype(BF16))
    hidden = rng.normal(size=(shape.tokens, shape.width)).astype(np.float32)
    check_errors(host, layer, hidden, 5, turns(shape, 5))


@models
def test_a_real_layer_over_frames_of_a_real_stream():
    """Layer 1 of SmolLM2 for the third frame of `world`; two frames in the ring and behind it."""
    pictures = video.frames(video.locate("world"), 3, None, vision.IMAGE)
    encoder = vision.VisionEncoder()
    pooled = [vision.pool(encoder(picture), 10) for picture in pictures]
    decoder = Decoder(2, 64)
    projector = vision.Projector.fit(np.concatenate(pooled), decoder.embeddings)
    first, layer = decoder.layers
    layer["attn_norm"], layer["ffn_norm"] = (to_bf16(layer[k]).astype(np.float32) for k in ("attn_norm", "ffn_norm"))
    decoder.layers = [first]
    hidden = [decoder(projector(x)) for x in pooled]

    fmt = LxeFormat(lanes=16, w_depth=64, x_depth=512, depth=64)
    shape = LayerShape(tokens=10, recent=32, entries=32, epsilon=float(decoder.epsilon))
    host = LayerHost(LayerPlan(shape, fmt), [layer])
    for frame in range(3):
        at = slice(10 * frame, 10 * frame + 10)
        cos, sin = decoder.cos[at], decoder.sin[at]
        if frame < 2:
            host.begin(hidden[frame], cos, sin, 10 * frame)
            host.run(0, None, "append")
    host.fetch(host.ring()[:7])
    check_errors(host, layer, hidden[2], 20, (cos, sin))


def test_passes_of_fewer_tokens_share_weights_and_entries():
    shape, rng = LayerShape(16, 4, 2, 4, 16, tokens=4, recent=8, entries=8), np.random.default_rng(3)
    plan = LayerPlan(shape, TINY)
    layer, hidden = weights(shape, rng), rng.normal(size=(8, 16)).astype(np.float32)
    left = []
    for sizes in ((4, 4), (3, 1, 1, 3)):
        host, out, start = LayerHost(plan, [layer]), [], 0
        for tokens in sizes:
            cos, sin = turns(shape, start)
            host.begin(hidden[start : start + tokens], cos[:tokens], sin[:tokens], start)
            host.run()
            out.append(host.get("hidden"))
            start += tokens
        left.append((np.concatenate(out), host.get("ring")))
    same(left[0][0], left[1][0])
    same(left[0][1], left[1][1])


@pytest.mark.parametrize("name", SHAPES)
def test_engines_are_ordered_by_semaphores_alone(name):
    shape, fmt = SHAPES[name]
    plan = LayerPlan(shape, replace(fmt, i_depth=1024))
    registers = plan.registers(7, min(13, shape.entries), plan.work.size, plan.work.size + plan.weights.size)
    order = simulate(plan.program(), {int(k): v for k, v in registers.items()}, plan.fmt)
    assert not order.waiting
    assert not order.left
    assert not order.hazards


def test_work_is_what_the_lxe_counts():
    shape, fmt = SHAPES["grouped"]
    rng = np.random.default_rng(5)
    plan = LayerPlan(shape, fmt)
    host = LayerHost(plan, [weights(shape, rng)])
    host.fetch(rng.normal(size=(13, 2, 2, 8)).astype(BF16))
    host.begin(rng.normal(size=(3, 32)).astype(np.float32), *turns(shape, 0), 0)
    for name, work in plan.costs(13).items():
        result = host.run(0, name, name)
        assert work.chunks == result.chunks, name
        assert work.issued == sum(result.instructions.values()), name
        assert work.words == result.words[ENGINE[Opcode.VECTOR]], name
        assert work.stored == sum(w.data.size for w in result.writes), name


REFUSED = {  # dimension -> shape, format, what the message says
    "width": ({"width": 36}, {}, "multiple of lanes = 8"),
    "head_size": ({"head_size": 24}, {}, "power of two times lanes = 8"),
    "ffn": ({"ffn": 12}, {}, "multiple of lanes = 8"),
    "recent": ({"recent": 24}, {}, "multiple of two words of lanes = 8"),
    "tokens": ({"tokens": 20}, {"x_depth": 32}, "at most 16"),
    "heads": ({"heads": 5}, {}, "multiple of kv_heads = 2"),
    "kv_heads": ({"kv_heads": 0}, {}, "at least 1"),
    "entries": ({"entries": -1}, {}, "negative"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_illegal_shape_is_refused_by_its_dimension(name):
    values, fmt, reason = REFUSED[name]
    good = {"width": 32, "heads": 4, "kv_heads": 2, "head_size": 8, "ffn": 16, "tokens": 2, "recent": 32, "entries": 8}
    sizes = {"lanes": 8, "w_depth": 16, "x_depth": 64, "depth": 64}
    LayerPlan(LayerShape(**good), LxeFormat(**sizes))
    with pytest.raises(ParamError, match=re.escape(name) + "=.*" + reason):
        LayerPlan(LayerShape(**good | values), LxeFormat(**sizes | fmt))


@pytest.mark.parametrize(
    ("values", "fmt", "message"),
    [
        ({"head_size": 64, "width": 128}, {"w_depth": 8}, "head_size=64: must be at most 32: a key is"),
        ({"head_size": 64}, {"depth": 8}, "head_size=64: must be at most 32, half a bank"),
        ({"recent": 112, "entries": 200}, {"depth": 16}, "recent=112: must be at most 96"),
        ({"width": 1024}, {}, "width=1024: must be at most 512 numbers, as a bank"),
    ],
)
def test_a_memory_that_is_too_small_is_named(values, fmt, message):
    sizes = {"lanes": 8, "w_depth": 16, "x_depth": 64, "depth": 64}
    with pytest.raises(ParamError, match=message):
        LayerPlan(LayerShape(**{"width": 32, "recent": 16, "ffn": 16} | values), LxeFormat(**sizes | fmt))


def test_a_program_too_long_for_its_memory_is_refused():
    shape, fmt = SHAPES["grouped"]
    plan = LayerPlan(shape, replace(fmt, i_depth=64))
    assert len(plan.program("norm1", "norm1")) <= 64
    with pytest.raises(ParamError, match="instructions of norm1 to down=.*at most i_depth = 64"):
        plan.program()


def test_core_runs_a_layer_of_llama_3_8b_from_its_program_memory():
    plan = LayerPlan(LayerShape(4096, 32, 8, 128, 14336, 10, 256, 3840), LxeFormat())
    assert len(plan.program()) <= 512
    work = plan.costs(3840)
    assert work["qkv"].chunks == 10 * 96 * 64
    assert work["gate_up"].loaded >= 2 * 14336 * 4096 * 2


@pytest.mark.parametrize("seed", range(6))
def test_rolled_programs_issue_what_the_straight_ones_do(seed):
    rng = np.random.default_rng(seed)
    items, base = [], 0
    for block in range(rng.integers(2, 6)):
        for k in range(rng.integers(1, 7) if seed % 2 else 4):
            items.append(op(Opcode.LOAD, base=1, addr=block * 640 + k * 64, rows=1))
            items.append(op(Opcode.STORE, base=2, addr=base, rows=k % 2))
            base += 64
        items.append(op(Opcode.LOAD, addr=4096 - block * 64))

    def issued(program: list) -> list:
        program = [*program, op(Opcode.HALT).instruction]
        registers = register_values({1: 1 << 20, 2: 1 << 30})
        found = [(i.op, i.addr, i["rows"]) for i in sequence(program, registers, TINY) if i.op in ENGINE]
        assert registers[1:3] == [1 << 20, 1 << 30]
        return found

    rolled = assemble(roll(items), range(10, 16))
    assert issued(rolled) == issued(assemble(items, []))
    if seed % 2 == 0:
        assert len(rolled) < len(items)
