"""Device memory, array by array, against the places that the compiler gives a system's arrays."""

from dataclasses import replace

import pytest

from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.system_map import SystemMap
from openvrex.hdl.params import SystemParams, override, preset
from openvrex.sim.system.accelerator import run
from openvrex.sim.system.device_memory import _Arrays, arrays
from openvrex.sim.system.layer_share import Layer
from openvrex.sim.system.passes import device_bytes
from openvrex.sim.system.platforms import AGX, EDGE, SERVER
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import Decoder, constant

SMALL = Decoder(layers=3, width=256, heads=4, kv_heads=2, head=64, hidden=1024, vocab=1024)
SHARES = constant("x", 0.25, 0.1, SMALL)
LLAMA = Decoder()


def small(cores: int) -> SystemParams:
    p = override(preset("core"), ["kvmu.entry_bytes=256", "kvmu.recent=128", "clusters=512"])
    return replace(p, cores=cores)


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_sizes_are_those_of_the_compiler_s_places(cores):
    """One core with two tables, two cores, two teams: every region that a system's map has, but home memory."""
    v = replace(EDGE, system=small(cores))
    at = Point(1000, rows=4, model=SMALL)
    layer, dre = Layer(v.system, SMALL, 1, at.rows, v.latency), v.core.dre
    shares = replace(layer.shares, whole=replace(layer.shares.whole, entries=round(0.25 * (1000 - 128))))
    retrieval = RetrievalShape.of(dre.sizes(), True)
    known = SystemMap(shares, v.core.lxe_format(), retrieval, SMALL.layers, dre.sizes(blocks=1), ahead=layer.prefetches)
    kinds = {"tables": "tables", "rings": "rings", "home": "home", "shared": "work", "work": "work", "team": "work"}
    placed: dict[str, int] = {}
    for region in known.regions:
        kind = kinds.get(region.name.split()[0], "layers")
        placed[kind] = placed.get(kind, 0) + region.end - region.base
    found = arrays(v, at, SHARES)
    beside = at.device_bytes - 2 * SMALL.layers * SMALL.layer_weights
    layers = found["weights"] - beside + found["mean keys"] + found["fetched"]
    assert layers == placed["layers"]
    assert {name: found[name] for name in ("tables", "rings", "work")} == {
        name: placed[name] for name in ("tables", "rings", "work")
    }
    assert sum(found.values()) == device_bytes(v, at, SHARES)


@pytest.mark.parametrize("v", [EDGE, SERVER], ids=["edge", "server"])
def test_cores_of_a_team_s_number_have_arrays_of_one_size(v):
    """So the leader's team stands for all; checked on Llama-3 8B, whose programs would take long to compile."""
    layer = Layer(v.system, LLAMA, 1, 10, v.latency)
    s = layer.shares
    every = [
        _Arrays(s, v.core.lxe_format(), layer.retrieval(v.core.dre.hcu.frame, False), core) for core in range(s.cores)
    ]
    for member in range(s.members):
        own = every[member * s.teams : (member + 1) * s.teams]
        assert len({(plan.work.size, plan.apart, plan.group_bytes, plan.team_bytes) for plan in own}) == 1


def test_llama_on_the_edge():
    """Mean keys are 1,024 bytes a cluster and head, of all clusters that a table may have; sizes of tables.md."""
    found = arrays(EDGE, Point(40960), constant("x", 0.25, 0.1, LLAMA))
    thresholds = 8 * 32 * 4096  # a page each
    assert found["mean keys"] == 32 * 8 * 16384 * 1024 + thresholds
    pairs = -(-10176 // 128) * 128  # a quarter of 40,704 entries, in whole pairs of tiles
    assert found["fetched"] == 32 * 8 * pairs * 512
    assert found["rings"] == 32 * 8 * (256 * 512 + 512 * 4096)  # with places of kept blocks
    layout = EDGE.core.dre.layout()
    assert found["tables"] == 8 * layout.pool_bytes + 256 * layout.table_bytes
    assert found["weights"] == pytest.approx(Point(1).device_bytes, rel=1e-3)
    two = arrays(EDGE, Point(40960, batch=2), constant("x", 0.25, 0.1, LLAMA))
    for name in ("mean keys", "fetched", "rings"):
        assert two[name] == 2 * found[name]
    assert two["weights"] == found["weights"]


def test_what_stays_on_the_device_has_no_retrieval():
    at = Point(40960, batch=2, policy="resident")
    found = arrays(EDGE, at, constant("x", 0.0, 0.0, LLAMA))
    assert found == {"weights": Point(1).device_bytes, "cache": 2 * 40960 * LLAMA.token_bytes}
    on_gpu = arrays(AGX, Point(40960), constant("x", 0.25, 0.1, LLAMA))
    assert on_gpu["fetched"] == 2 * 0.25 * 40960 * LLAMA.entry_bytes


def test_blocks_take_what_is_left():
    """Of clusters of two tokens a block of eight slots is a quarter full, and it is read where it lies."""
    far = replace(EDGE, home="link")
    at, shares = Point(10240), constant("x", 0.05, 0.1, LLAMA, cluster=2.0)
    found, apart = arrays(EDGE, at, shares), arrays(far, at, shares)
    assert {name: found[name] for name in apart} == apart
    filled, every = 8 * 32 * (10240 - 256) // 2, 8 * 32 * (10240 - 256)
    assert found["blocks"] == (filled + (every - filled) // 8) * 8 * 512
    small = replace(EDGE, capacity=sum(found.values()) - found["blocks"] // 2)
    assert arrays(small, at, shares)["blocks"] == found["blocks"] // 2
    whole, half, none = (run(v, at, shares) for v in (EDGE, small, far))
    assert (whole.fetched, half.fetched) == (0, pytest.approx(none.fetched / 2))
    assert whole.seconds < half.seconds < none.seconds


@pytest.mark.parametrize("policy", ["flexgen", "resident"])
def test_a_policy_without_choice_is_the_same_wherever_entries_lie(policy):
    """FlexGen fetches all it has over the link, by definition; a resident cache has nothing behind it."""
    p = Point(10240, model=LLAMA, policy=policy)
    far, near = (run(replace(EDGE, home=home), p, constant(policy, 1.0, 1.0, LLAMA)) for home in ("link", "device"))
    assert near.seconds == far.seconds
    assert near.fetched == far.fetched
