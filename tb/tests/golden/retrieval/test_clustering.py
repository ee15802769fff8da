"""Hamming clustering against a brute-force version in Python integers."""

from dataclasses import astuple, replace

import numpy as np
import pytest

from openvrex.golden.function_params import ReSVParams
from openvrex.golden.retrieval.clustering import Clusterer, hamming
from openvrex.golden.retrieval.hashing import to_int, to_words


def brute(hashes, params):
    """The rule of section IV-B as loops: (cluster, is_new, count, full_join, distance) a token."""
    table, counts, out = [], [], []
    for h in hashes:
        best = None
        for c, t in enumerate(table):
            d = bin(h ^ t).count("1")
            if best is None or d < best[0]:
                best = (d, c)
        near = best is not None and best[0] < params.th_hd
        if not near and len(table) < params.max_clusters:
            table.append(h)
            counts.append(1)
            out.append((len(table) - 1, True, 1, False, 0))
        else:
            d, c = best
            counts[c] = min(counts[c] + 1, 2**params.count_bits - 1)
            out.append((c, False, counts[c], not near, d))
    return out, table, counts


def stream(rng, n, n_hp, flips):
    """Hashes that drift around a few centres, as the keys of a video do."""
    centres = [int.from_bytes(rng.bytes(32), "little") % (1 << n_hp) for _ in range(6)]
    out = []
    for _ in range(n):
        h = centres[rng.integers(6)]
        for b in rng.integers(0, n_hp, rng.integers(0, flips + 1)):
            h ^= 1 << int(b)
        out.append(h)
    return out


def test_a_token_joins_the_first_cluster_that_is_near_enough():
    """Distances 2 and 1 to two clusters: the reading "first" takes the older one; a full table the nearest."""
    for join, want in (("nearest", 1), ("first", 0)):
        table = Clusterer(ReSVParams(n_hp=8, th_hd=3, max_clusters=2, join=join))
        assert [j.cluster for j in table.add_frame([0b0, 0b111])] == [0, 1]
        assert astuple(table.add(0b011)) == (want, False, 2, False, 1 if want else 2)
        assert astuple(table.add(0b11111111)) == (1, False, 2 + want, True, 5)


@pytest.mark.parametrize("n_hp", [1, 16, 32, 64, 65, 256])
@pytest.mark.parametrize("max_clusters", [1, 7, 100000])
@pytest.mark.parametrize("th", ["none", "default", "all"])
def test_equals_brute_force(n_hp, max_clusters, th):
    rng = np.random.default_rng([n_hp, max_clusters])
    th_hd = {"none": 0, "default": min(7, n_hp), "all": n_hp + 1}[th]
    params = ReSVParams(n_hp=n_hp, th_hd=th_hd, max_clusters=max_clusters, count_bits=4)
    hashes = stream(rng, 200, n_hp, n_hp // 3)
    want, table, counts = brute(hashes, params)
    one, frames = Clusterer(params), Clusterer(params)
    assert [astuple(one.add(h)) for h in hashes] == want
    got = [j for i in range(0, 200, 23) for j in frames.add_frame(hashes[i : i + 23])]
    assert [astuple(j) for j in got] == want
    for c in (one, frames):
        assert [to_int(w) for w in c.hashes] == table
        assert c.counts.tolist() == counts
        assert [(t, k) for k, m in enumerate(c.members) for t in m] == sorted(
            ((t, j[0]) for t, j in enumerate(want)), key=lambda p: (p[1], p[0])
        )
    if th == "none" and max_clusters == 100000:
        assert len(one) == 200


def test_members_are_within_the_threshold_of_their_leader():
    params = ReSVParams()
    hashes = stream(np.random.default_rng(1), 400, 32, 6)
    c = Clusterer(params)
    c.add_frame(hashes)
    assert 6 < len(c) < 400
    for k, members in enumerate(c.members):
        assert max(bin(hashes[t] ^ to_int(c.hashes[k])).count("1") for t in members) < params.th_hd


def test_ties_go_to_the_lowest_index_and_full_table_joins_the_nearest():
    c = Clusterer(ReSVParams(n_hp=8, th_hd=2, max_clusters=3))
    got = c.add_frame([0b0000_0000, 0b0000_0011, 0b0000_0001, 0b1111_0000, 0b1111_1110, 0b1100_0011])
    assert [j.cluster for j in got] == [0, 1, 0, 2, 2, 1]
    assert [j.full_join for j in got] == [False, False, False, False, True, True]
    assert [j.distance for j in got] == [0, 0, 1, 0, 3, 2]


def test_tokens_keep_their_names():
    c = Clusterer(ReSVParams(n_hp=8, th_hd=1))
    c.add_frame([1, 2, 1], tokens=[40, 50, 60])
    c.add(2, token=7)
    assert c.members == [[40, 60], [50, 7]]


def test_means_are_fp32_sums_rounded_once_to_bf16():
    rng = np.random.default_rng(3)
    keys = (rng.standard_normal((300, 5)) * 2.0 ** rng.integers(-8, 9, (300, 1)) + 3).astype("bfloat16")
    params = ReSVParams(n_hp=8, th_hd=1, count_bits=6)
    hashes = rng.integers(0, 3, 300).tolist()
    c = Clusterer(params, key_dim=5)
    c.add_frame(hashes, keys=keys)
    for k, members in enumerate(c.members):
        total = np.zeros(5, np.float32)
        for t in members[:63]:  # a saturated count freezes the sum
            total = total + keys[t].astype(np.float32)
        assert len(members) > 63
        assert c.counts[k] == 63
        np.testing.assert_array_equal(c.key_sums[k], total)
        np.testing.assert_array_equal(c.key_cluster()[k], (total / np.float32(63)).astype("bfloat16"))


@pytest.mark.parametrize("policy", ["first", "majority", "mean"])
def test_hash_policies(policy):
    rng = np.random.default_rng(4)
    params = ReSVParams(n_hp=8, th_hd=4, hash_policy=policy)

    def rehash(mean):
        return sum(1 << i for i, x in enumerate(mean.astype(float)) if x > 0)

    keys = rng.standard_normal((60, 8)).astype("bfloat16")
    hashes = [rehash(k) for k in keys]
    c = Clusterer(params, key_dim=8, rehash=rehash)
    c.add_frame(hashes, keys=keys)
    moved = 0
    for k, members in enumerate(c.members):
        ones = [sum(hashes[t] >> b & 1 for t in members) for b in range(8)]
        want = {
            "first": hashes[members[0]],
            "majority": sum(1 << b for b in range(8) if 2 * ones[b] > len(members)),
            "mean": rehash(c.key_cluster()[k]),
        }[policy]
        assert to_int(c.hashes[k]) == want
        moved += want != hashes[members[0]]
    assert (moved == 0) == (policy == "first")


def test_words():
    hashes = [0, 1, (1 << 200) - 1, 1 << 199]
    assert [to_int(w) for w in to_words(hashes, 200)] == hashes
    assert hamming(to_words(hashes, 200), to_words([0], 200))[:, 0].tolist() == [0, 1, 200, 1]
    with pytest.raises(ValueError, match="n_hp = 8 bits"):
        to_words([256], 8)
    with pytest.raises(ValueError, match="key_dim and rehash"):
        Clusterer(replace(ReSVParams(), hash_policy="mean"))
