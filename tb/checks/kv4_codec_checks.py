"""Checks of the copier's codec, shared by tests and mutants: bits against golden, cycles against the time view."""

import random
from functools import cache

import numpy as np

from openvrex.golden.inputs.trace import Trace
from openvrex.golden.retrieval import kv4
from openvrex.hdl.emit import Emitted, to_verilog
from openvrex.hdl.leaf import Leaves
from openvrex.hdl.params import CoreParams
from openvrex.hdl.ports import ports
from openvrex.hdl.retrieval.kv4_codec import Kv4Codec
from openvrex.sim.units.retriever_time import converted
from openvrex.tb.library.runner import ROOT, Run
from openvrex.tb.library.transfer_traffic import params

# Groups of half a beat, of one beat, of two and of four; beats of 4 to 64 numbers, 1 to 4 codes a cycle.
SIZES = {
    "core": ["dpe.n_h=64", "dpe.n_w=64", "vpe.n_w=64", "bus_bytes=64", "burst_bytes=256", "kv4_group=32"],
    "half": ["dpe.n_h=64", "dpe.n_w=64", "vpe.n_w=64", "bus_bytes=64", "burst_bytes=256", "kv4_group=16"],
    "two": ["dpe.n_h=32", "dpe.n_w=32", "vpe.n_w=32", "bus_bytes=64", "burst_bytes=64", "kv4_group=64"],
    "four": ["bus_bytes=8", "kv4_group=16"],
    "wide": ["dpe.n_h=64", "dpe.n_w=64", "vpe.n_w=64", "bus_bytes=128", "burst_bytes=256", "kv4_group=32"],
}
PACKS, EXPANDS = 1, 0
BINS = {
    *("packs", "expands", "packs behind expands", "expands behind packs", "begins within a packed beat"),
    *("zeros packed", "NaNs packed", "zeros expanded", "NaNs expanded", "one sign", "both signs"),
}
EXPONENTS = [0, *(1 << k for k in range(8)), 3, 5, 252, 253, 254, 255]


def core(size: str) -> CoreParams:
    return params(["entry_bytes=512", "boundary=1024", *SIZES[size]])


@cache
def emitted(size: str) -> Emitted:
    component = Kv4Codec(core(size))
    return Emitted(to_verilog(component, "kv4_codec", Leaves("kv4_codec")), "kv4_codec", {"ports": ports(component)})


class Traffic:
    """Bursts of a codec of one size, and what must come of them.

    beats : of the buffer, in order
    bursts : (packs, beats made, cycles until a reset cuts it or 0, the buffer's next beat behind it)
    """

    def __init__(self, size: str):
        self.size, self.p = size, core(size)
        self.bus, self.group = self.p.lxe.bus_bytes, self.p.dre.kvmu.kv4_group
        self.beats: list[bytes] = []
        self.bursts: list[tuple[int, int, int, int]] = []
        self.bins: set[str] = set()
        self.want: list[tuple[list[str], list[int], list[int], int]] = []  # beats, gives, makes, beats that have left

    def pack(self, numbers: np.ndarray, lengths: list[int], cut: int = 0) -> None:
        """Pack groups of numbers (uint16), as bursts of so many packed beats."""
        e = numbers.reshape(-1, self.group) >> 7 & 255
        sign = (numbers.reshape(-1, self.group) >> 15)[e.any(-1) & (e < 255).all(-1)]
        self.bins |= {"zeros packed"} if (~e.any(-1)).any() else set()
        self.bins |= {"NaNs packed"} if (e == 255).any() else set()
        self.bins |= {"one sign" if len(set(row)) == 1 else "both signs" for row in sign.tolist()}
        self._add(PACKS, numbers.view(np.uint8), kv4.pack(numbers, self.group), lengths, cut)

    def expand(self, packed: np.ndarray, lengths: list[int], cut: int = 0) -> None:
        """Expand packed groups (uint8), as bursts of so many beats of numbers."""
        out = kv4.expand(packed, self.group).reshape(-1, self.group)
        self.bins |= {"zeros expanded"} if (out == 0).all(-1).any() else set()
        self.bins |= {"NaNs expanded"} if (out == kv4.NAN).all(-1).any() else set()
        self._add(EXPANDS, packed, kv4.expand(packed, self.group).view(np.uint8), lengths, cut)

    def _add(self, packs: int, into: np.ndarray, out: np.ndarray, lengths: list[int], cut: int) -> None:
        first, made = len(self.beats), words(out, self.bus)
        self.beats += [row.tobytes() for row in np.ascontiguousarray(into).reshape(-1, self.bus)]
        assert sum(lengths) == len(made)
        kinds = {PACKS: "packs", EXPANDS: "expands"}
        self.bins |= {kinds[packs]}
        if self.bursts and self.bursts[-1][0] != packs:
            self.bins.add(f"{kinds[packs]} behind {kinds[not packs]}")
        done = 0
        for n in lengths:
            part = 0 if packs else done % kv4.RATIO
            self.bins |= {"begins within a packed beat"} if part else set()
            gives, makes = converted(self.p, "packs" if packs else "expands", n, part)
            left = first + (done + n) * kv4.RATIO if packs else first - (-(done + n) // kv4.RATIO)
            self.want.append((made[done : done + n], gives, makes, left))
            self.bursts.append((packs, n, cut, len(self.beats)))
            done += n
            if cut:
                return  # the reset leaves nothing of the rest

    def play(self, stall: float = 0.0, seed: int = 1, of: Emitted | None = None, waves: bool = True) -> list[dict]:
        """Play them and compare; what the bench saw of each burst."""
        longest = converted(self.p, "packs", 1, 0)[1][-1]
        config = {
            "beats": [f"{int.from_bytes(b, 'little'):x}" for b in self.beats],
            **{"bursts": self.bursts, "stall": stall, "seed": seed, "limit": longest + 2},
        }
        unit = of or emitted(self.size)
        got = Run(unit, "bench_kv4_codec", "converts", config, seed, waves)()["bursts"]
        for (_, _, cut, _), want, g in zip(self.bursts, self.want, got, strict=True):
            made, gives, makes, left = want
            if cut:
                gives, makes = ([t for t in some if t < cut] for some in (gives, makes))
                assert g["made"] == made[: len(g["made"])]
            else:
                assert (g["made"], g["left"]) == (made, left)
            assert (g["gives"], g["makes"]) == (gives, makes)
        return got


def words(x: np.ndarray, size: int) -> list[str]:
    """An array of bytes as beats of `size` bytes, hexadecimal."""
    rows = np.ascontiguousarray(x).view(np.uint8).reshape(-1, size)
    return [f"{int.from_bytes(row.tobytes(), 'little'):x}" for row in rows]


def whole(x: np.ndarray, rows: int) -> np.ndarray:
    """As many rows as whole quads take, the first ones again."""
    return np.resize(x, (len(x) + -len(x) % rows, *x.shape[1:]))


def random_groups(rng: np.random.Generator, group: int, n: int) -> np.ndarray:
    """Groups of every spread of exponents and of both signs or one, some with zeros, infinities and NaNs.

    Some have one exponent, of a single bit or at the ends of the range.
    """
    spread = rng.choice([1, 2, 4, 12, 40, 256], (n, 1))
    low = (rng.random((n, 1)) * (257 - spread)).astype(int)
    ends = (spread == 1) & (rng.random((n, 1)) < 0.5)
    low = np.where(ends, rng.choice(EXPONENTS, (n, 1)), low)
    x = low + (rng.random((n, group)) * spread).astype(int) << 7 | rng.integers(0, 128, (n, group))
    signs = rng.integers(0, 2, (n, group)) << 15
    x |= np.where(rng.random((n, 1)) < 0.6, signs, rng.integers(0, 2, (n, 1)) << 15)
    x[rng.random((n, group)) < 0.1] &= 0x8000
    x[rng.random(n) < 0.06] &= 0x8000
    return x.astype(np.uint16)


def random_packed(rng: np.random.Generator, group: int, n: int) -> np.ndarray:
    """Any bytes as packed groups; some have an e of a single bit, or at the ends of the range."""
    codes = rng.integers(0, 16, (n, group))
    at = np.arange(8) * (group // 16)
    chosen = rng.choice(EXPONENTS, (n, 1)) >> np.arange(8) & 1
    codes[:, at] = np.where(rng.random((n, 1)) < 0.4, codes[:, at] & 14 | chosen, codes[:, at])
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)


def split(rng: random.Random, n: int, most: int) -> list[int]:
    """`n` beats as bursts of 1 to `most`."""
    out = []
    while sum(out) < n:
        out.append(min(n - sum(out), rng.randint(1, most)))
    return out


def random_traffic(size: str, n: int, seed: int) -> Traffic:
    """`n` copies of 1 to 3 packed beats, which pack or expand in bursts that begin and end anywhere."""
    t, rng, numbers = Traffic(size), random.Random(seed), np.random.default_rng(seed)
    quad = kv4.RATIO * t.bus // 2 // t.group  # groups in a packed beat
    for _ in range(n):
        quads = rng.randint(1, 3)
        if rng.random() < 0.5:
            t.pack(random_groups(numbers, t.group, quads * quad), split(rng, quads, 3))
        else:
            t.expand(random_packed(numbers, t.group, quads * quad), split(rng, kv4.RATIO * quads, 7))
    return t


def check_equals_golden_and_time_view(size):
    """Random copies at the full rate, and with a bus that stalls."""
    n = 60 if core(size).lxe.bus_bytes < 32 else 24
    hit: set[str] = set()
    for stall in (0.0, 0.5):
        t = random_traffic(size, n, 1 + int(2 * stall))
        t.play(stall)
        hit |= t.bins
    assert hit >= BINS, BINS - hit


def check_real_entries(size):
    """Keys and values of the real decoder go home and come back."""
    t, trace = Traffic(size), Trace.load(ROOT / "tb/fixtures/world.safetensors")
    numbers = np.concatenate([x.view(np.uint16)[1, :12].reshape(-1, t.group) for x in (trace.k, trace.v)])
    numbers = whole(numbers, kv4.RATIO * t.bus // 2 // t.group)
    quads = numbers.size * 2 // t.bus // kv4.RATIO
    t.pack(numbers, [quads])
    t.expand(kv4.pack(numbers, t.group), [kv4.RATIO * quads])
    t.play()


def check_reset_in_flight(size, cut):
    """A reset in any state of a burst leaves nothing of it."""
    t, rng = Traffic(size), np.random.default_rng(cut)
    quad = kv4.RATIO * t.bus // 2 // t.group
    numbers = random_groups(rng, t.group, 2 * quad)
    packed = random_packed(rng, t.group, 2 * quad)
    for at in (cut, 0):
        t.pack(numbers, [2], at)
        t.expand(packed, [2 * kv4.RATIO], at)
    t.play()
