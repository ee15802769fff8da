"""The copier's codec alone: every number at several steps, every header, every code, against the definition."""

from functools import cache

import numpy as np
import pytest

from golden.arithmetic.numerics import BF16
from golden.inputs.trace import Trace
from golden.retrieval import kv4
from hdl.emit import Emitted, to_verilog
from hdl.leaf import Leaves
from hdl.params import CoreParams
from hdl.ports import ports
from hdl.queues import kv4_cycles
from hdl.retrieval.kv4_codec import Kv4Codec
from scripts.check.verify_command import FIXTURE
from tb.library.runner import Run, lint
from tb.library.transfer_traffic import params
from tb.tests.golden.retrieval.test_kv4 import ENDS, groups_of_every_number

pytestmark = pytest.mark.slow
# Groups of half a beat, of one beat, of two and of four; a beat of 4 to 32 numbers.
SIZES = {
    "core": ["dpe.n_h=64", "dpe.n_w=64", "vpe.n_w=64", "bus_bytes=64", "burst_bytes=256", "kv4_group=32"],
    "half": ["dpe.n_h=64", "dpe.n_w=64", "vpe.n_w=64", "bus_bytes=64", "burst_bytes=256", "kv4_group=16"],
    "two": ["dpe.n_h=32", "dpe.n_w=32", "vpe.n_w=32", "bus_bytes=64", "burst_bytes=64", "kv4_group=64"],
    "four": ["bus_bytes=8", "kv4_group=16"],
}


def core(size: str) -> CoreParams:
    return params(["entry_bytes=512", "boundary=1024", *SIZES[size]])


@cache
def unit(size: str) -> Emitted:
    component = Kv4Codec(core(size))
    return Emitted(to_verilog(component, "kv4_codec", Leaves("kv4_codec")), "kv4_codec", {"ports": ports(component)})


def words(x: np.ndarray, size: int) -> list[str]:
    """An array of bytes as beats of `size` bytes, hexadecimal."""
    return [
        f"{int.from_bytes(row.tobytes(), 'little'):x}"
        for row in np.ascontiguousarray(x).view(np.uint8).reshape(-1, size)
    ]


def run(size: str, numbers: np.ndarray, packed: np.ndarray, of: Emitted | None = None, waves: bool = True) -> None:
    """Pack groups of numbers (uint16) and expand packed ones (uint8), and compare both with golden."""
    p = core(size)
    bus, group = p.lxe.bus_bytes, p.dre.kvmu.kv4_group
    numbers = whole(numbers.reshape(-1, group), 4 * bus // (2 * group))
    packed = whole(packed.reshape(-1, group // 2), 2 * bus // group)
    # A quad can be read kv4_cycles + 1 cycles after its last beat went in.
    behind = 1 + -(-(kv4_cycles(p) + 1) // 4)
    config = {"beats": words(numbers, bus), "packed": words(packed, bus), "behind": behind}
    got = Run(of or unit(size), "tb.benches.bench_kv4_codec", "converts", config, waves=waves)()
    assert got["packed"] == words(kv4.pack(numbers, group), bus)
    assert got["expanded"] == words(kv4.expand(packed, group), bus)
    assert all(got["quads"])
    assert got["left"] == 0


def whole(x: np.ndarray, rows: int) -> np.ndarray:
    """As many rows as whole quads take."""
    return np.concatenate([x, x[: -len(x) % rows]])


def random_groups(rng: np.random.Generator, group: int, n: int) -> np.ndarray:
    """Groups of every spread of exponents and of both signs or one, some with zeros, infinities and NaNs."""
    spread = rng.choice([1, 2, 4, 12, 40, 256], (n, 1))
    low = (rng.random((n, 1)) * (257 - spread)).astype(int)
    x = low + (rng.random((n, group)) * spread).astype(int) << 7 | rng.integers(0, 128, (n, group))
    signs = rng.integers(0, 2, (n, group)) << 15
    x |= np.where(rng.random((n, 1)) < 0.6, signs, rng.integers(0, 2, (n, 1)) << 15)
    x[rng.random((n, group)) < 0.1] &= 0x8000
    return x.astype(np.uint16)


def every_header(group: int) -> np.ndarray:
    """Packed groups: every header, with each code at a place of either kind."""
    headers = np.arange(1 << kv4.HEADER)[:, None]
    codes = np.arange(group) + headers & 15
    at = np.arange(kv4.HEADER) * (group // 16)
    codes[:, at] = 2 * (np.arange(kv4.HEADER) + headers) & 14 | headers >> np.arange(kv4.HEADER) & 1
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)


def test_every_number_and_every_header():
    """At the sizes of `core`: all numbers between the ends of several groups, and all headers with all codes."""
    run("core", np.concatenate([groups_of_every_number(32, ends) for ends in ENDS]), every_header(32))


@pytest.mark.parametrize("size", SIZES)
def test_random_groups(size):
    rng, group = np.random.default_rng(1), core(size).dre.kvmu.kv4_group
    n = 3000 if size == "core" else 800
    run(size, random_groups(rng, group, n), rng.integers(0, 256, (n // 4, group // 2)).astype(np.uint8))


def test_real_entries():
    trace = Trace.load(FIXTURE)
    numbers = np.concatenate([x.view(np.uint16)[1, :60].reshape(-1, 32) for x in (trace.k, trace.v)])
    run("core", numbers, kv4.pack(numbers, 32))
    assert trace.k.dtype == BF16


def test_lint(tmp_path):
    assert lint(unit("core"), tmp_path) == ""
