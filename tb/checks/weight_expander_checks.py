"""Checks of the expander of packed weights, shared by tests and mutants: words equal golden, with stalls."""

from functools import cache

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Packing, Rule, weights
from openvrex.hdl.emit import Emitted, to_verilog
from openvrex.hdl.execution.weight_expander import WeightExpander, expanded_layout, packed_layout, slots
from openvrex.hdl.params import DpeParams
from openvrex.hdl.ports import ports
from openvrex.tb.library.runner import Run


def sizes(lanes: int) -> DpeParams:
    return DpeParams(n_h=lanes, n_w=lanes)


@cache
def emitted(lanes: int) -> Emitted:
    component = WeightExpander(sizes(lanes))
    return Emitted(to_verilog(component, "weight_expander"), "weight_expander", {"ports": ports(component)})


def run(lanes: int, rule: np.ndarray, q: np.ndarray, scale: np.ndarray, other: np.ndarray, move="1", dut=None) -> None:
    """Play words and compare each with golden.

    rule : [words] · q : [words, lanes] · scale, other : [words, groups]
    """
    p = sizes(lanes)
    given, made, many = packed_layout(p), expanded_layout(p), slots(p)
    steps, at = WeightExpander.LATENCY, {name: field.offset for name, field in given}
    fields = {"q": q.astype(np.uint8), "scale": scale.astype("<u2"), "other": other.astype("<u2")}
    words = []
    for k in range(len(rule)):
        word = 1 + (int(rule[k]) % 4 << at["rule"]) + (k % lanes << at["tree"]) + (k // lanes % p.w_depth << at["addr"])
        word += sum(int.from_bytes(x[k].tobytes(), "little") << at[name] for name, x in fields.items())
        words.append(f"{word:x}")
    got = Run(dut or emitted(lanes), "bench_weight_expander", "words", {"i": words + ["0"] * steps, "move": move})()
    each = np.repeat(np.stack([scale, other]), lanes // many, axis=2)
    want = np.empty((len(rule), lanes), np.uint16)
    for one in Rule:
        at = rule == one
        own = q[at] % (1 << Packing(one).bits)
        want[at] = weights(own.astype(np.uint8), *each[:, at].astype(np.uint16), one).view(np.uint16)
    for k, word in enumerate(got["o"][steps:]):  # what leaves with a move, after cycles without one
        number = int(word, 16)
        tree, addr = (number >> made[name].offset & (1 << made[name].width) - 1 for name in ("tree", "addr"))
        assert (number & 1, tree, addr) == (1, k % lanes, k // lanes % p.w_depth)
        bits = np.frombuffer((number >> 1).to_bytes(made.size // 8 + 1, "little"), "<u2", lanes)
        wrong = np.flatnonzero(bits != want[k])
        assert not len(wrong), (Rule(rule[k]), *(hex(x) for x in (scale[k][0], other[k][0])), q[k][wrong[0]])
    assert got["more"] == [0] + [1] * (len(rule) + steps - 2) + [0]


def numbers(count: int, lanes: int = 16) -> np.ndarray:
    """Every q of 4 bits in each word of 16 lanes, at other lanes in each; of 8 bits in 16 words."""
    return (np.arange(count)[:, None] * 21 + np.arange(lanes)) % 256


def pairs(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scales, and minima of three kinds: any; near a multiple of the scale; halfway between two BF16 numbers.

    For the last, the scale is often a power of two, so that a single bit decides how a sum is rounded, or so small that
    multiples begin where FP32 ends.
    """
    scale, other, q = rng.integers(0, 1 << 16, count), rng.integers(0, 1 << 16, count), rng.integers(0, 16, count)
    with np.errstate(invalid="ignore", over="ignore"):
        near = -scale.astype(np.uint16).view(np.float16).astype(np.float32) * q
        near = near.astype(np.float16).view(np.uint16) + rng.integers(-2, 3, count) & 0xFFFF
    halfway = other & ~7 | 4
    alone = scale & ~1023 | np.where(rng.random(count) < 0.5, 0, 1 << rng.integers(0, 10, count))
    high = other & ~(31 << 10 | 7) | rng.integers(25, 31, count) << 10 | 4
    small = alone & ~(31 << 10) | np.maximum((high >> 10 & 31) - rng.integers(23, 29, count), 0) << 10
    kind = rng.integers(0, 4, count)
    return np.choose(kind, [scale, scale, alone, small]), np.choose(kind, [other, near, halfway, high])


def mixed(lanes: int, count: int = 300) -> tuple[np.ndarray, ...]:
    """Rules, numbers, scales, and minima or zero points of random words."""
    rng = np.random.default_rng(lanes)
    many = slots(sizes(lanes))
    scale, other = (x.reshape(count, many) for x in pairs(count * many, rng))
    return rng.integers(1, 5, count), rng.integers(0, 256, (count, lanes)), scale, other


def check_words_of_several_groups_and_stalls(lanes: int, count: int = 300, dut: Emitted | None = None) -> None:
    run(lanes, *mixed(lanes, count), move="110100111", dut=dut)
