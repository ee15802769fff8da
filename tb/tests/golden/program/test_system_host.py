"""Layers on several golden cores: against NumPy in FP64, and against one core."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.function_params import ParamError, ReSVParams
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.system_host import SystemHost
from openvrex.golden.retrieval.hashing import Hasher
from openvrex.golden.retrieval.resv import ReSV
from openvrex.hdl.params import CoreParams, override, preset
from openvrex.tb.library.random_layers import turns, weights

SHAPE = LayerShape(width=32, heads=4, kv_heads=2, head_size=8, ffn=48, tokens=3, recent=16, entries=40)
SIZES = ("lxe.i_depth=512", "entry_bytes=32", "recent=16", "blocks=128", "clusters=12", "n_ctx=8")
LAYERS, PASSES, SINKS = 2, 9, 3
HALF = 2.0**-8  # relative error of a rounding to BF16


@cache
def core(*more: str) -> CoreParams:
    return override(preset("tiny"), [*SIZES, *more]).core


def host(
    cores: int,
    heads: int = 1,
    ahead: bool = False,
    layers: int = LAYERS,
    sinks: int = 0,
    shape: LayerShape = SHAPE,
    **more,
) -> SystemHost:
    rng = np.random.default_rng(1)
    keys = shape.kv_heads * shape.head_size
    own = [weights(shape, rng) for _ in range(layers)], [rng.normal(size=(16, keys)) for _ in range(layers)]
    p = core(f"entry_bytes={32 * heads}")
    function = replace(p.dre.function(), **{"th_hd": 3} | more)
    sizes = p.dre.sizes()
    retrieval = RetrievalShape.of(sizes, function.centre, sinks=sinks)
    return SystemHost(shape, p.core_format(), retrieval, *own, function, sizes, cores=cores, heads=heads, ahead=ahead)


def begin(h: SystemHost, k: int, seed: int = 2) -> np.ndarray:
    """Write the inputs of pass k; its hidden states."""
    s = h.shares.whole
    hidden = np.random.default_rng([seed, k]).normal(size=(s.tokens, s.width)).astype(np.float32)
    h.begin(hidden, *turns(s, k * s.tokens), k * s.tokens)
    return hidden


def play(h: SystemHost, passes: int = PASSES, order=None) -> list[np.ndarray]:
    """The outputs of some passes through all layers."""
    out = []
    for k in range(passes):
        begin(h, k)
        for layer in range(len(h.plans[0])):
            for phase, group in h.steps(layer):
                h.run(phase, layer, group, order)
        out.append(h.get(0, "hidden"))
    return out


def tables(h: SystemHost, head: int, layer: int = 0) -> dict:
    """What a KV head's retrieval has: clusters, chains of blocks, ring, fetched entries, mean keys."""
    s = h.shares
    team, group = head % s.teams, head // s.teams // s.heads
    ctx = h.context(layer, group)
    dre = h.cores[team].dre
    table = h.get(team, "table", layer, group)
    return {
        "clusters": dre.level(ctx),
        "offloaded": {i: c.offloaded for i, c in dre.kv.contexts[ctx].clusters.items()},
        "table": table[: dre.level(ctx)].tobytes(),
        "ring": h.get(team, "ring", layer, group).tobytes(),
        "behind": h.get(team, "behind", layer, group).tobytes(),
    }


def near(have: np.ndarray, want: np.ndarray, bound: np.ndarray) -> None:
    """Each number within its bound of the exact one."""
    error = np.abs(have.astype(np.float64) - want)
    assert (error <= bound).all(), (error.max(), (error - bound).max())


class Reference:
    """A plain decoder layer in FP64, stage by stage on each stage's own inputs, with bounds of the errors.

    A sum of n products loses n 2^(2 - window) of their sizes by alignment, and 2^-23 for each FP32 addition.
    """

    def __init__(self, h: SystemHost, layer: dict[str, np.ndarray]):
        self.h, self.s = h, h.shares.whole
        self.w = {k: to_bf16(np.asarray(v)).astype(np.float64) for k, v in layer.items()}
        self.checked = 0
        self.outputs: dict[int, np.ndarray] = {}  # attention of each KV head

    def near(self, have: np.ndarray, want: np.ndarray, bound: np.ndarray) -> None:
        near(have, want, bound)
        self.checked += have.size

    def product(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = np.abs(x) @ np.abs(y)
        return x @ y, size * x.shape[-1] * (2.0 ** (2 - self.h.plans[0][0].fmt.window) + 2.0**-23)

    def get(self, core: int, name: str, group: int = 0) -> np.ndarray:
        return self.h.get(core, name, 0, group).astype(np.float64)

    def norm(self, x: np.ndarray, weight: str, have: np.ndarray) -> None:
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.s.epsilon) * self.w[weight]
        self.near(have, y, np.abs(y) * 3.1 * HALF)

    def heads(self, core: int, group: int, start: int) -> None:
        """Queries and entries of one table after they were computed."""
        s, h = self.s, self.h
        own = h.shares.heads_of(core, group)
        q, k = s.heads * s.head_size, s.kv_heads * s.head_size

        def some(first: int, size: int) -> np.ndarray:
            return np.concatenate([first + head * size + np.arange(size) for head in own])

        columns = np.concatenate([some(0, s.group * s.head_size), some(q, s.head_size), some(q + k, s.head_size)])
        y, lost = self.product(self.get(core, "norm1")[0], self.w["qkv"][:, columns])
        self.near(self.get(core, "qkv"), y, np.abs(y) * HALF + lost)
        many, each = len(own), len(own) * s.group
        x = self.get(core, "qkv").reshape(s.tokens, -1, s.head_size)
        have = self.get(core, "q", group).reshape(many, s.tokens, s.group, s.head_size).swapaxes(0, 1)
        fresh = self.get(core, "fresh").reshape(s.tokens, 2, many, s.head_size)
        cos, sin = (t[:, None].astype(np.float64) for t in turns(s, start))
        scale = h.plans[core][0].query_scale
        for got, part, factor in (
            (have.reshape(s.tokens, each, -1), x[:, :each], scale),
            (fresh[:, 0], x[:, each : each + many], 1),
        ):
            a, b = np.split(part, 2, axis=-1)
            y = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1) * factor
            self.near(got, y, np.abs(y) * HALF + np.tile(np.abs(a) + np.abs(b), 2) * 2.0**-22)
        ring = self.get(core, "ring", group).reshape(s.recent, 2, many, s.head_size)
        assert (ring[(start + np.arange(s.tokens)) % s.recent] == fresh).all()

    def attention(self, core: int, group: int, fetched: int, start: int) -> None:
        """Attention of one table's heads, by one core or joined.

        A probability is exp of a BF16 number, a second one in a team, whose arguments add up to the row's depth below
        its maximum. Each exp is within 0.69 units in the last place. Sums are off as their terms are. A probability,
        its share of the joined row and the result are rounded.
        """
        s, h = self.s, self.h
        plan = h.plans[core][0]
        own = h.shares.heads_of(core, group)
        ring = self.get(core, "ring", group).reshape(s.recent, 2, len(own), s.head_size)
        behind = self.get(core, "behind", group)[:fetched].reshape(fetched, 2, len(own), s.head_size)
        entries = np.concatenate([ring, behind])
        seen = np.concatenate([plan.seen(start), np.ones((s.tokens, fetched), bool)], axis=1).repeat(s.group, axis=0)
        rows = self.get(core, "q", group).reshape(len(own), s.rows, s.head_size)
        outs = self.get(core, "attention", group).reshape(len(own), s.rows, s.head_size)
        for g, head in enumerate(own):
            self.outputs[head] = outs[g]
            scores, lost = self.product(rows[g], entries[:, 0, g].T)
            z = np.where(seen, scores * plan.scale, -np.inf)
            depth = np.where(seen, z.max(axis=1, keepdims=True) - z, 0)
            e = np.exp(-depth) * seen
            p = e / e.sum(axis=1, keepdims=True)
            relative = (depth + 2 * lost) * HALF * 1.02 + 2 * lost * plan.scale + 2 * 0.69 * 2 * HALF + 2.0**-12
            bound = 1.1 * p * (relative + (p * relative).sum(axis=1, keepdims=True) + 1.1 * HALF) + 2.0**-120
            y, lost = self.product(p, entries[:, 1, g])
            self.near(outs[g], y, 1.01 * (np.abs(y) * HALF + bound @ np.abs(entries[:, 1, g]) + lost))

    def adds(self, x: np.ndarray, weight: str, before: np.ndarray) -> None:
        """A product that is added to the hidden states, perhaps in parts."""
        y, lost = self.product(x, self.w[weight])
        many = x.shape[-1] + self.h.shares.parts
        self.near(self.get(0, "hidden"), before + y, lost + (np.abs(before) + np.abs(y)) * many * 2.0**-23)

    def gated(self) -> None:
        norm2 = self.get(0, "norm2")[0]
        (gate, lost_gate), (up, lost_up) = (self.product(norm2, m) for m in np.split(self.w["gate_up"], 2, axis=1))
        y = gate / (1 + np.exp(-gate))
        silu = 1.1 * (np.abs(gate) * HALF + lost_gate) + 0.93 * 2 * HALF * np.abs(y) + 2.0**-120
        bound = np.abs(y * up) * HALF * 1.1 + (np.abs(up) + lost_up) * silu + np.abs(y) * lost_up
        self.near(self.get(0, "gated")[0], y * up, bound)

    def check(self, hidden: np.ndarray, start: int) -> None:
        """Run a pass through the layer, and compare each stage."""
        h, s = self.h, self.s
        for phase, group in h.steps():
            before = self.get(0, "hidden")
            for core in range(h.shares.cores):
                if h.program(core, phase):
                    h.step(core, phase, 0, group)
                    if phase == "attention":
                        self.heads(core, group, start)
                        entries = h.cores[core].registers[Register.ENTRIES]
                        self.attention(core, group, entries, start)
            x = [self.get(core, "norm1")[0] for core in range(h.shares.cores)]
            if phase in ("norm", "project"):
                for have in x:
                    self.norm(hidden.astype(np.float64), "attn_norm", have)
            if phase == "place":
                for team in range(h.shares.teams):
                    self.heads(team, 0, start)
            if phase == "join":
                for team in range(h.shares.teams):
                    self.attention(team, 0, SINKS + int(h.fetched[0, team, 0, 0]), start)
            parts = h.shares.parts > 1
            order = h.shares.order
            if phase == ("add_output" if parts else "output"):
                each = self.get(0, "all_attention")[np.argsort(order)]
                want = np.stack([self.outputs.pop(head) for head in range(s.kv_heads)])
                assert np.array_equal(each.reshape(want.shape), want)
                self.adds(each.swapaxes(0, 1).reshape(s.tokens, -1), "attn_output", before)
            if phase == "ffn":
                for core in range(h.shares.cores):
                    self.norm(before, "ffn_norm", self.get(core, "norm2")[0])
                self.gated()
            if phase == ("add_down" if parts else "down"):
                self.adds(self.get(0, "gated")[0], "ffn_down", before)


SYSTEMS = [(1, 1), (1, 2), (2, 1), (4, 1), (6, 1), (2, 2), (3, 2), (6, 2)]  # cores, KV heads of a table


@pytest.mark.parametrize(("cores", "heads"), SYSTEMS)
def test_a_layer_equals_numpy(cores, heads):
    h = host(cores, heads, layers=1, sinks=SINKS)
    assert h.shares.parts == (2 if cores == 6 else 1)
    for team in range(h.shares.teams):
        for group in range(h.shares.groups):
            behind = h.get(team, "behind", 0, group)
            behind[:SINKS] = np.random.default_rng(team).normal(size=behind[:SINKS].shape)
            h.put(team, "behind", behind, 0, group)
    layer = weights(SHAPE, np.random.default_rng(1))
    r = Reference(h, layer)
    for k in range(PASSES):
        r.check(begin(h, k), k * SHAPE.tokens)
    assert r.checked > 9 * 3 * (32 * 3 + 48)
    assert h.fetched.sum() > 8 or h.shares.members == 1
    assert sum(c.dre.kv.fresh for c in h.cores) > 8  # entries have left the ring


def test_cores_alone_cut_sums_and_add_them():
    """Six tiles of hidden states on four cores with a table each: four parts of all columns take less time."""
    shape = replace(SHAPE, width=24, kv_heads=4)
    h = host(4, layers=1, shape=shape)
    assert (h.shares.members, h.shares.parts) == (1, 4)
    r = Reference(h, weights(shape, np.random.default_rng(1)))
    for k in range(2):
        r.check(begin(h, k), k * shape.tokens)
    assert r.checked > 2 * 3 * (24 * 3 + 48)


def test_two_cores_compute_the_bits_of_one():
    """Each sum is computed by one core, with the same slices: layers, tables and prefetched entries are the same."""
    for ahead in (False, True):
        one, two = host(1, ahead=ahead), host(2, ahead=ahead)
        for a, b in zip(play(one), play(two), strict=True):
            assert np.array_equal(a, b)
        for head in range(SHAPE.kv_heads):
            for layer in range(LAYERS):
                assert tables(one, head, layer) == tables(two, head, layer)
        counts = one.fetched[0, 0, 1], two.fetched[0, :, 1, 0]
        assert np.array_equal(*counts)
        assert (counts[0] > 0).all() == ahead


def test_prefetched_entries_are_those_of_each_head():
    """With prefetch a core passes on as many numbers of entries as it has heads."""
    h = host(1, ahead=True)
    play(h)
    assert h.fetched.shape == (1, 1, LAYERS, 2)
    assert (h.fetched[0, 0, 0] > 0).all()  # the first layer's own
    assert len(set(h.fetched[0, 0, 1])) == 2
    assert [p.retrieval.fetched for p in h.plans[0]] == [False, True]


@pytest.mark.parametrize(("cores", "heads"), [(4, 1), (6, 1), (3, 2), (6, 2)])
def test_teams_prefetch_what_a_core_alone_does(cores, heads):
    """Given each layer's input, guesses, choices, fetched entries and tables have the bits of one core.

    Only the joined attention is rounded otherwise, so the layers behind it get the one core's hidden states.
    """
    one, team = (host(n, heads, ahead=True, layers=3) for n in (1, cores))
    assert team.shares.members > 1
    for k in range(PASSES):
        begin(one, k)
        begin(team, k)
        for layer in range(3):
            for h in (one, team):
                for phase, group in h.steps(layer):
                    h.run(phase, layer, group)
            team.put(0, "hidden", one.get(0, "hidden"))
            for head in range(SHAPE.kv_heads):
                assert tables(team, head, layer) == tables(one, head, layer)
    for layer in range(3):
        by_head = one.fetched[0, 0, layer], team.fetched[0, :, layer, 0]
        assert np.array_equal(*by_head)
        assert (by_head[0] > 0).all()


def test_a_team_prefetches_what_the_policy_does():
    """As `golden.policies.resv_policy` with prefetch `only`, guessed queries choose from the next layer's table.

    That has no keys of this pass yet; entries that leave its ring with them are not among those fetched.
    """
    h, rng, seen = host(4, ahead=True), np.random.default_rng(1), Counter[bool]()
    s, dot = h.shares.whole, h.plans[0][0].fmt.dot
    own = replace(core().dre.function(), th_hd=3, dot=dot, score_map="vpe", sinks=0)
    resv = [[ReSV(own, 1, s.head_size) for _ in range(s.kv_heads)] for _ in range(LAYERS)]
    for _ in range(LAYERS):
        weights(SHAPE, rng)
    for some in resv:
        planes = to_bf16(rng.normal(size=(16, s.kv_heads, s.head_size)))
        for head, one in enumerate(some):
            one.hasher.planes = planes[:, head]
    entries: dict[tuple[int, int], list[bytes]] = {}  # of each layer and head, in the order of tokens
    for k in range(PASSES):
        begin(h, k)
        for layer in range(LAYERS):
            for phase, group in h.steps(layer):
                h.run(phase, layer, group)
                for head in range(s.kv_heads):
                    if phase == "place":
                        fresh = h.get(head, "fresh").reshape(s.tokens, 2, 1, s.head_size)
                        resv[layer][head].append(fresh[:, 0])
                        entries.setdefault((layer, head), []).extend(x.tobytes() for x in fresh)
                    if phase == "guess" and k:
                        q = h.get(head, "guess").reshape(s.tokens, s.group, s.head_size)
                        wanted = resv[layer + 1][head].retrieve(q).fetched[0].nonzero()[0]
                        behind = h.get(head, "behind", layer + 1)[: h.fetched[0, head, layer + 1, 0]]
                        known = sorted(entries[layer + 1, head][t] for t in wanted)
                        assert sorted(x.tobytes() for x in behind) == known
                        seen[len(wanted) > 0] += 1
    assert min(seen[True], seen[False]) > 3


@pytest.mark.parametrize(("heads", "systems"), [(1, (1, 2, 4, 6)), (2, (1, 2, 3, 6))])
def test_tables_and_fetches_do_not_depend_on_the_number_of_cores(heads, systems):
    """A layer on so many cores: clusters, rings, blocks, mean keys and fetched entries of each table."""
    seen = []
    for cores in systems:
        h = host(cores, heads, layers=1)
        seen.append([])
        for k in range(PASSES):
            begin(h, k)
            for phase, group in h.steps():
                h.run(phase, 0, group)
            seen[-1].append([tables(h, head) for head in range(SHAPE.kv_heads)])
    assert all(x == seen[0] for x in seen)
    assert (seen[0][-1][0] != seen[0][-1][1]) == (heads == 1)  # two heads of one table
    assert len({x[0]["behind"] for x in seen[0]}) > 3  # fetches that differ


@pytest.mark.parametrize(("cores", "heads"), [(2, 1), (4, 1), (6, 1), (3, 2), (6, 2)])
def test_the_order_of_the_cores_changes_no_bit(cores, heads):
    results = []
    for order in (range(cores), range(cores - 1, -1, -1)):
        h = host(cores, heads, layers=1)
        play(h, 8, order)
        results.append([r.data.copy() for r in h.memory.regions])
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("cores", "heads"), [(1, 2), (2, 1), (4, 1), (2, 2)])
def test_centred_tables_have_thresholds_of_their_own_heads(cores, heads):
    h = host(cores, heads, centre=True)
    begin(h, 0)
    for phase, group in h.steps():
        h.run(phase, 0, group)
        if phase == "place" or (phase == "attention" and h.shares.groups == 1):
            planes = np.random.default_rng(1)
            for _ in range(LAYERS):
                weights(SHAPE, planes)
            own = planes.normal(size=(16, 16)).reshape(16, SHAPE.kv_heads, -1)
            for team in range(h.shares.teams):
                keys = h.get(team, "fresh")[:, : h.plans[team][0].shape.entry // 2]
                hasher = Hasher(ReSVParams(n_hp=16, centre=True, dot=h.plans[0][0].fmt.dot), 1, keys.shape[1])
                hasher.planes = to_bf16(own[:, h.shares.heads_of(team)].reshape(16, -1))
                hasher.frame(keys[None])
                assert (h.get(team, "thresholds")[:16] == hasher.thresholds[0]).all()
            return
    raise AssertionError("no phase has hashed keys")


def test_a_program_for_another_engine_is_refused():
    sizes, function, shape = core().dre.sizes(), core().dre.function(), host(1).plans[0][0].shape
    of = RetrievalShape.of(sizes, function.centre)
    of.check_engine(sizes, function, shape)
    for name, other in (
        ("entry_bytes", core("entry_bytes=64").dre.sizes()),
        ("recent", core("recent=32").dre.sizes()),
        ("clusters", core("clusters=8").dre.sizes()),
        ("readings", replace(sizes, readings=sizes.readings + 1)),
    ):
        with pytest.raises(ParamError, match=f"{name}=.*must be"):
            of.check_engine(other, function, shape)


def test_more_tables_than_contexts_are_refused():
    with pytest.raises(ParamError, match="n_ctx=8: must be at least 10, the tables of a core"):
        host(1, layers=5)
    assert host(2, layers=5).context(4) == 4
