"""ReSV against a brute-force version (loops, Python integers and fractions), and its properties."""

from dataclasses import replace
from fractions import Fraction
from math import exp, frexp, sqrt

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.function_params import READINGS, ReSVParams, ScoreFormat
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.retrieval.dre_model import DreModel
from openvrex.golden.retrieval.hashing import hyperplanes, to_int
from openvrex.golden.retrieval.kvmap import KvMap, MapSizes
from openvrex.golden.retrieval.resv import ReSV, attend, probabilities
from openvrex.golden.retrieval.scores import exp_codes
from openvrex.hdl.emit import emit
from openvrex.hdl.params import override, preset
from openvrex.scripts.check.verify_command import FIXTURE
from openvrex.tb.library.trace_check import verify
from tb.tests.golden.retrieval.resv_samples import video

SMALL = ReSVParams(n_hp=16, th_hd=4, recent=12, sinks=3, count_bits=5, ratio_q16=20000)


def dot(a, b):
    return sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))


def value(code, fmt):
    e, m = code >> fmt.man_bits, code % (1 << fmt.man_bits)
    return m if e == 0 else ((1 << fmt.man_bits) + m) << (e - 1)


class Brute:
    """One HC table and its selection as loops; keys are already the table's slice of each token."""

    def __init__(self, params, dim, head_dim):
        self.p, self.head_dim = params, head_dim
        self.planes = hyperplanes(params.n_hp, dim, params.hash_seed)
        self.clusters = []  # dicts of hash, tokens, sum, count
        self.thresholds = None

    def first(self, keys):
        """Thresholds from the first frame's keys: zeros, or for centred hash bits the mean products."""
        share = float(to_bf16(np.array([1 / len(keys)]))[0])
        self.thresholds = [np.float32(0)] * self.p.n_hp
        for key in keys if self.p.centre else []:
            both = zip(self.products(key), self.thresholds, strict=True)
            self.thresholds = [np.float32(float(p * Fraction(share) + Fraction(float(t)))) for p, t in both]

    def products(self, key):
        exact = [dot(key, plane) for plane in self.planes]
        return [Fraction(float(np.float32(float(x)))) for x in exact] if self.p.centre else exact

    def append(self, token, key):
        above = [p > Fraction(float(t)) for p, t in zip(self.products(key), self.thresholds, strict=True)]
        h = sum(1 << i for i, bit in enumerate(above) if bit)
        distances = [(bin(c["hash"] ^ h).count("1"), i) for i, c in enumerate(self.clusters)]
        distance, nearest = min(distances, default=(self.p.n_hp + 9, 0))
        if self.p.join == "first":
            distance, nearest = next(((d, i) for d, i in distances if d < self.p.th_hd), (distance, nearest))
        if distance >= self.p.th_hd and len(self.clusters) < self.p.max_clusters:
            nearest = len(self.clusters)
            self.clusters.append({"hash": h, "tokens": [], "sum": np.zeros(len(key), np.float32), "count": 0})
        c = self.clusters[nearest]
        c["tokens"].append(token)
        if c["count"] < 2**self.p.count_bits - 1:
            c["count"] += 1
            c["sum"] = c["sum"] + key.astype(np.float32)
        return h, nearest

    def select(self, query, piece):
        """Clusters of one row; `piece` is the key slice that the query's head uses. The maps exp and raw only."""
        means = [to_bf16(c["sum"] / np.float32(c["count"]))[piece] for c in self.clusters]
        s = [float(np.float32(float(dot(query, m)))) for m in means]
        step = 256 * 1.4426950408889634 / sqrt(self.head_dim)
        table = exp_codes(self.p.score).tolist()
        code = [table[min(round((max(s) - x) * step), len(table) - 1)] for x in s]
        values = [value(x, self.p.score) for x in code]
        if self.p.score_map == "raw":
            code = values = [round(Fraction(x) * Fraction(2) ** (30 - max(frexp(y)[1] for y in s))) for x in s]
        weight = [x * c["count"] for x, c in zip(values, self.clusters, strict=True)]
        total, acc, chosen = sum(weight), 0, set()
        if self.p.selection == "exact":
            groups = [[i] for i in sorted(range(len(code)), key=lambda i: (-code[i], i))]
        else:
            n, top, low = self.p.n_buckets, max(code), min(code)
            of = [((top - x) * n) // (top - low + 1) for x in code]
            groups = [[i for i in range(len(code)) if of[i] == b] for b in range(n)]
        for group in groups:
            chosen |= set(group)
            acc += sum(weight[i] for i in group)
            if acc > Fraction(total * self.p.ratio_q16, 65536):
                break
        return code, chosen


CASES = {
    "layer": SMALL,
    "head": replace(SMALL, scope="head"),
    "raw hash bits": replace(SMALL, centre=False),
    "equations": replace(READINGS["equations"], n_hp=16, th_hd=4, recent=12),
    "first": replace(READINGS["first"], n_hp=16, th_hd=5, recent=12, sinks=3),
    "buckets": replace(READINGS["buckets"], n_hp=16, th_hd=4, recent=12, sinks=3, n_buckets=4),
    "full": replace(SMALL, max_clusters=3, count_bits=3),
    "fixed point": replace(SMALL, score=ScoreFormat(0, 16), ratio_q16=9000),
    "no sinks, short window": replace(SMALL, sinks=0, recent=1),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_brute_force(name):
    """V-Rex section IV, Figures 8 and 9, step by step in plain Python."""
    params = CASES[name]
    resv = ReSV(params, 2, 8)
    heads_of = [[0, 1, 2, 3]] if params.scope == "layer" else [[0, 1], [2, 3]]
    brute = [Brute(params, 8 * len(heads) // 2, 8) for heads in heads_of]
    n, sizes = 0, set()
    for q, k, _ in video(1):
        done = resv.append(k)
        assert done.tokens.tolist() == [t for t in range(n, n + 7) if t >= params.sinks]
        for i, b in enumerate(brute):
            keys = k.reshape(7, 16) if params.scope == "layer" else k[:, i]
            if not n:
                b.first(keys[params.sinks :])
            want = [b.append(n + t, keys[t]) for t in range(7) if n + t >= params.sinks]
            assert [to_int(h) for h in done.hashes[i]] == [h for h, _ in want]
            assert [j.cluster for j in done.joined[i]] == [c for _, c in want]
        n += 7
        got = resv.retrieve(q)
        resident = set(range(min(params.sinks, n))) | set(range(max(0, n - params.recent), n))
        keep, fetched = [resident | set(range(n - 7, n)) for _ in range(2)], [set(), set()]  # a frame sees itself
        for i, (b, heads) in enumerate(zip(brute, heads_of, strict=True)):
            assert got.counts[i].tolist() == [c["count"] for c in b.clusters]
            union, row = set(), 0
            for t in range(7):
                for h in heads:
                    g = h // 2
                    piece = slice(8 * g, 8 * g + 8) if params.scope == "layer" else slice(0, 8)
                    code, chosen = b.select(q[t, h], piece)
                    assert got.codes[i][row].tolist() == code
                    assert set(np.flatnonzero(got.rows[i].mask[row])) == chosen
                    union |= chosen
                    row += 1
            assert set(np.flatnonzero(got.clusters[i])) == union
            sizes.add(len(union) / len(b.clusters))
            tokens = {t for c in union for t in b.clusters[c]["tokens"]}
            for g in [0, 1] if params.scope == "layer" else [i]:
                keep[g] |= tokens
                fetched[g] = tokens - resident
        for g in range(2):
            assert set(np.flatnonzero(got.keep[g])) == keep[g]
            assert set(np.flatnonzero(got.fetched[g])) == fetched[g]
    assert name == "full" or min(sizes) < 1  # the case is no proof if everything is always selected


@pytest.mark.parametrize("score_map", ["exp", "shift", "clip"])
def test_selected_set_grows_with_the_ratio(score_map):
    frames = list(video(2, frames=8, tokens=16))
    before = None
    for ratio in (0, 6554, 19661, 32768, 52429, 65536):
        resv = ReSV(replace(SMALL, th_hd=2, ratio_q16=ratio, score_map=score_map), 2, 8)
        for q, k, _ in frames:
            resv.append(k)
            got = resv.retrieve(q)
        if before is not None:
            assert (got.rows[0].mask >= before.rows[0].mask).all()
            assert (got.fetched >= before.fetched).all()
        before = got
    assert got.keep.all()


@pytest.mark.parametrize("scope", ["head", "layer"])
def test_clusters_cover_every_token_once_and_fetch_only_whole_ones(scope):
    resv = ReSV(replace(SMALL, scope=scope), 2, 8)
    for q, k, _ in video(3, frames=9):
        resv.append(k)
        got = resv.retrieve(q)
    old = ~resv.resident()
    heads = 2 // len(resv.tables)  # KV heads of a table
    for i, table in enumerate(resv.tables):
        assert sorted(t for m in table.members for t in m) == list(range(SMALL.sinks, resv.length))
        fetched = got.fetched[i * heads : (i + 1) * heads]
        assert fetched.any()
        for c, m in enumerate(table.members):
            m = np.array(m)
            assert (fetched[:, m[old[m]]] == got.clusters[i][c]).all()


def test_query_order_does_not_matter():
    rng = np.random.default_rng(6)
    resv = ReSV(SMALL, 2, 8)
    frames = list(video(4))
    for _, k, _ in frames:
        resv.append(k)
    q = frames[-1][0]
    want = resv.retrieve(q)
    for _ in range(4):
        p = rng.permutation(7)
        got = resv.retrieve(q[p])
        np.testing.assert_array_equal(got.keep, want.keep)
        np.testing.assert_array_equal(got.codes[0].reshape(7, 4, -1), want.codes[0].reshape(7, 4, -1)[p])


def test_order_of_dimensions_does_not_matter():
    """Permuting the head dimensions of keys, queries and hyperplanes changes no bit: sums are exact."""
    p = np.random.default_rng(7).permutation(8)
    one, two = ReSV(replace(SMALL, scope="head"), 2, 8), ReSV(replace(SMALL, scope="head"), 2, 8)
    two.hasher.planes = two.hasher.planes[:, p]
    for q, k, _ in video(5):
        a, b = one.append(k), two.append(k[..., p])
        np.testing.assert_array_equal(a.hashes, b.hashes)
        a, b = one.retrieve(q), two.retrieve(q[..., p])
        np.testing.assert_array_equal(a.keep, b.keep)
        for x, y in zip(a.codes, b.codes, strict=True):
            np.testing.assert_array_equal(x, y)


def test_subnormal_keys_are_zero():
    resv = ReSV(replace(SMALL, sinks=0), 2, 8)
    done = resv.append(np.full((1, 2, 8), 1, np.uint16).view(to_bf16(0.0).dtype))
    assert to_int(done.hashes[0, 0]) == 0
    assert (resv.tables[0].key_cluster().view(np.uint16) == 0).all()


@pytest.mark.parametrize("everything", [True, False])
def test_attention_by_definition(everything):
    frames = list(video(8))
    q, k, v = frames[-1][0], *(np.concatenate([f[i] for f in frames]) for i in (1, 2))
    rng = np.random.default_rng(9)
    keep = np.ones((2, 42), bool) if everything else rng.random((2, 42)) < 0.5
    keep[:, 35:] = True
    got = attend(probabilities(q, k, keep), v)
    for t in range(7):
        for h in range(4):
            g = h // 2
            js = [j for j in range(35 + t + 1) if keep[g, j]]
            s = [float(dot(q[t, h], k[j, g])) / sqrt(8) for j in js]
            e = [exp(x - max(s)) for x in s]
            want = sum(w / sum(e) * v[j, g].astype(float) for w, j in zip(e, js, strict=True))
            np.testing.assert_allclose(got[t, h], want, atol=2e-6)


def test_empty_stream_selects_nothing():
    resv = ReSV(SMALL, 2, 8)
    got = resv.retrieve(next(video(1))[0])
    assert got.keep.shape == (2, 0)
    resv.append(next(video(1))[1][:2])  # all sinks
    got = resv.retrieve(next(video(1))[0][:2])
    assert got.keep.all()
    assert not got.fetched.any()


@pytest.mark.parametrize("tokens", [1, 7, 12, 13, 30])
def test_fetches_what_the_memory_map_does(tokens):
    """Frames shorter and longer than the ring: one rule for what is resident, in the policy and in the KVMU's map."""
    params = replace(SMALL, th_hd=2, ratio_q16=1000)
    resv = ReSV(params, 2, 8)
    sizes = {"clusters": 1024, "blocks": 512, "block_slots": 4, "recent": SMALL.recent}
    dre = DreModel(params, KvMap(MapSizes(**sizes, entry_bytes=16)))
    home: dict[int, int] = {}  # tokens by their address
    reached = set()
    for q, k, _ in video(6, frames=max(3, 60 // tokens), tokens=tokens):
        for key, token in zip(
            resv.append(k).hashes[0], range(max(resv.length - tokens, SMALL.sinks), resv.length), strict=True
        ):
            home[dre.key(0, to_int(key))[1].home] = token
        got = resv.retrieve(q)
        assert got.keep[:, -tokens:].all()
        assert (got.fetched <= got.keep).all()
        if resv.length <= SMALL.sinks:
            continue
        dre.switch(0)
        fetched = [home[a] for b in dre.query(got.codes[0]).bursts for a in range(b.addr, b.addr + b.bytes, 16)]
        assert sorted(fetched) == np.flatnonzero(got.fetched[0]).tolist()
        reached |= {"own" if t >= resv.length - tokens else "older" for t in fetched}
        reached |= {"attended alone"} if (got.keep & ~got.fetched & ~resv.resident()).any() else set()
    assert ("older" in reached, "own" in reached) == (True, tokens > SMALL.recent)
    assert "attended alone" in reached or tokens < 30


@pytest.mark.parametrize("tokens", [17, pytest.param(36, marks=pytest.mark.nightly)])
def test_long_frames_on_the_rtl(tokens):
    """Frames longer than the ring of 16 entries, recorded keys and queries: the DRE fetches what ReSV says."""
    p = override(preset("tiny"), ["blocks=128"]).core.dre
    t = Trace.load(FIXTURE)
    trace = replace(t, layers=t.layers[:1], k=t.k[:1], q=t.q[:1], v=t.v[:1], model=None)
    ends = [0, 3, *range(trace.tokens, 3, -tokens)[::-1]]
    sized = {"offsets": np.array(ends, np.int32), "stages": np.array([0] + [1] * (len(ends) - 2), np.uint8)}
    f = replace(p.function(), th_hd=4)
    outcomes = verify("dre", replace(trace, **sized), p, emit("dre", p), f)
    assert len({outcome.table for outcome in outcomes}) == t.kv_heads
    for outcome in outcomes:
        assert not outcome.differences
        assert outcome.bursts > 1
        assert not outcome.refused


@pytest.mark.parametrize(
    ("own", "n_hp", "near"), [(7, 32, 7), (7, 16, 4), (7, 64, 14), (3, 16, 2), (3, 1, 1), (0, 16, 0)]
)
def test_th_hd_is_the_same_share_of_any_hash_rounded_up(own, n_hp, near):
    assert ReSVParams(th_hd=own).th_hd_of(n_hp) == near
    tiny = preset("tiny").core.dre
    assert tiny.function().th_hd == ReSVParams().th_hd_of(tiny.hcu.n_hp)
