"""Checks of the motion mask, shared by tests, mutants, coverage and stress: masks of frames, and their cycles."""

from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.inputs.codec import BLOCK, CELL
from openvrex.golden.inputs.codec_mask import PARTS, WEIGHT_BITS, WEIGHT_SHIFT, Command, MotionMask, centres, residuals
from openvrex.hdl.params import MaskParams, preset
from openvrex.hdl.video.motion_mask import block_layout, frame_layout
from openvrex.sim.units.motion_mask_time import MotionMaskTime
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate

TINY = preset("tiny").mask
SIZES = {
    "tiny": TINY,
    "core": preset("core").mask,
    "one": MaskParams(grid=1, group=1, size_bits=6, block_bits=4, tau_bits=2),
    "ragged": MaskParams(grid=6, group=3, size_bits=9, block_bits=9, tau_bits=5),
    "group-of-one": replace(TINY, grid=5, group=1),
    "one-token": replace(TINY, grid=3, group=3),
    "residuals": replace(TINY, residuals=True),
    "residuals-core": preset("omni").mask,
    "residuals-one": MaskParams(grid=1, group=1, size_bits=6, block_bits=4, tau_bits=1, residuals=True),
}
STALLS = [(0.4, 0.4, 0.4), (0.0, 0.8, 0.0), (0.0, 0.0, 0.0), (0.8, 0.0, 0.8), (0.0, 0.0, LATE)]
LENGTHS = [1, 2, 3, 4, 7, 8, 16, 16, 16, 60, 255]  # of a block's side
TILE = 252  # pixels: the longest whole cells of a block
Frames = list[tuple[Command, np.ndarray]]


@cache
def emitted(p: MaskParams):
    return emit("motion_mask", p)


def place(p: MaskParams, rng: Random, size: int) -> int:
    """The edge of a block along an axis: anywhere, or within two cells of a patch's centre."""
    if rng.random() < 0.5:
        return rng.randrange(-40, size + 20)
    return CELL * (int(rng.choice(centres(size, p.grid))) + rng.randint(-2, 2)) + rng.randrange(CELL)


def some_blocks(p: MaskParams, rng: Random, width: int, height: int, limit: int) -> np.ndarray:
    """Blocks of a frame: some standing still, some at the limit, one of them far; over the edges, upon each other."""
    top = (1 << p.block_bits) - 1
    share = rng.choice([0.0, 0.3, 1.0, 3.0])
    n = min(top, 40, int(share * (1 + width * height // 256)) + rng.choice([0, 0, 1, 2]))
    out, near = np.zeros(n, BLOCK), round(limit**0.5)
    for b in out:
        b["w"], b["h"] = rng.choice(LENGTHS), rng.choice(LENGTHS)
        b["x"], b["y"] = (place(p, rng, size) for size in (width, height))
        kind = rng.random()
        if kind < 0.5:
            b["dx"], b["dy"] = rng.choice([0, 1, -1]), 0
        elif kind < 0.9:
            b["dx"] = rng.choice([-1, 1]) * max(0, near + rng.choice([-1, 0, 1]))
            b["dy"] = rng.choice([0, 0, 1, -1, near])
            if rng.random() < 0.5:
                b["dx"], b["dy"] = b["dy"], b["dx"]
        else:
            b["dx"], b["dy"] = rng.randrange(-(1 << 15), 1 << 15), rng.choice([0, -(1 << 15), rng.randrange(-99, 99)])
    tiles = [(x, y) for y in range(0, height, TILE) for x in range(0, width, TILE)]
    if len(tiles) + n <= min(top, 60) and rng.random() < 0.8:  # blocks that stand still cover the picture
        ground = np.zeros(len(tiles), BLOCK)
        ground["w"] = ground["h"] = TILE
        ground["x"], ground["y"] = np.transpose(tiles)
        out = rng.choice([np.concatenate(pair) for pair in ((ground, out), (out, ground))])
    return out


def some_residuals(p: MaskParams, rng: Random, command: Command, blocks: np.ndarray) -> tuple[Command, np.ndarray]:
    """A frame with residuals: none, some at the threshold, alone or beside a vector, just above, and the largest."""
    if not p.residuals:
        return command, blocks
    top = (PARTS << p.tau_bits) - 1
    threshold = rng.choice([0, PARTS, min(4 * PARTS, top), rng.randint(0, top), top])
    weight = rng.choice(
        [0, 1, rng.randint(2, 40), 1 << WEIGHT_BITS // 2, rng.randrange(1 << WEIGHT_BITS), (1 << WEIGHT_BITS) - 1]
    )
    for b in blocks:
        if rng.random() < 0.1:  # the longest vectors that can be near
            b["dx"], b["dy"] = (rng.choice([-1, 1]) * max(0, (1 << p.tau_bits) - rng.randint(1, 4)) for _ in range(2))
        length = int(PARTS * np.hypot(float(b["dx"]), float(b["dy"])))  # of the vector
        part = max(0, threshold - length * (rng.random() < 0.7))  # what the residual may have
        edge = -(-part * (1 << WEIGHT_SHIFT) // weight) if weight else 0  # the least residual that has it
        kind = rng.random()
        value = edge + rng.choice([-1, 0, 1, -(-(1 << WEIGHT_SHIFT) // (weight or 1))]) if kind < 0.6 else 0
        value = max(0, min(value, 65535)) if kind < 0.9 else 65535
        pixels = int(b["w"]) * int(b["h"])
        b["sad"] = min(-(-value * pixels // 256), (1 << 32) - 1)
    return replace(command, threshold=threshold, weight=weight), blocks


def stream(p: MaskParams, seed: int, n: int) -> Frames:
    """Frames of a few GOPs, some not taken, now and then of another size."""
    rng, out = Random(seed), []
    most = (1 << p.size_bits) - 1
    width, height = (rng.randint(1, most) for _ in range(2))
    accumulate = rng.random() < 0.7
    for k in range(n):
        if rng.random() < 0.1:
            even = most // CELL // 2 // p.grid * CELL * 2 * p.grid or most  # centres at edges of cells
            width, height = rng.choice([(even, most), (most, even), (1, 1), (rng.randint(1, most), height)])
        if rng.random() < 0.1:
            accumulate = not accumulate
        limit = rng.choice([0, 1, 5, rng.randrange(1 << 2 * p.tau_bits), (1 << 2 * p.tau_bits) - 1])
        leads, take = k > 0 and rng.random() < 0.15, k == n - 1 or rng.random() < 0.7
        command = Command(width, height, limit, leads, take, accumulate)
        out.append(some_residuals(p, rng, command, some_blocks(p, rng, width, height, limit)))
    return out


def covering(p: MaskParams, seed: int, n: int) -> Frames:
    """Frames whose blocks cover the picture in macroblocks, of which few move: masks grow over a GOP.

    In every other frame a macroblock is missing, each in turn and one of each token of two by two before the next, so
    that one patch decides alone that its token is dynamic.
    """
    rng, out = Random(seed), []
    size = min(64, (1 << p.size_bits) - 1)
    tiles = [(x, y) for y in range(0, size, 16) for x in range(0, size, 16)]
    tiles.sort(key=lambda at: (at[0] % 32, at[1] % 32))
    first = rng.randrange(len(tiles))
    for k in range(n):
        turn = (first + k // 2) % len(tiles)
        others = tiles[turn + 1 :] + tiles[:turn]
        blocks = np.zeros(min(len(tiles) - k % 2, (1 << p.block_bits) - 1), BLOCK)
        for b, (x, y) in zip(blocks, [*rng.sample(others, len(others)), tiles[turn]], strict=False):
            b["x"], b["y"], b["w"], b["h"] = x, y, 16, 16
            b["dx"] = 3 * (rng.random() < 0.01)
            b["sad"] = 2048 * p.residuals * (rng.random() < 0.01)
        if k == 1:
            blocks["dx"][:1] = -(1 << 15)  # whose length has a bit more
        command = Command(size, size, 1, k % 9 == 0, k == n - 1 or rng.random() < 0.8, True, PARTS, 64)
        out.append((command, blocks))
    return out


def decisive(p: MaskParams, seed: int, n: int) -> Frames:
    """Frames that one block or none decides, upon still ones that cover the picture: any lost bit of a number shows.

    In half of the frames a block just covers a patch's centre, with a vector at the limit or just above it, or a power
    of two. In the others three blocks move, which along one axis just miss a centre, or are a power of two of cells
    away. Every fifth picture has another size, and half of these are often small.
    """
    rng, out = Random(seed), []
    most, top, low, high = (1 << p.size_bits) - 1, (1 << 2 * p.tau_bits) - 1, -(1 << 15), (1 << 15) - 1
    for k in range(n):
        if k % 5 == 0:
            width, height = (rng.randint(1, most >> rng.choice([0, rng.randrange(p.size_bits)])) for _ in range(2))
            at = [centres(size, p.grid) for size in (width, height)]
            tiles = list(product(*({CELL * int(c) // TILE * TILE for c in cells} for cells in at)))
        missed = rng.choice(["x", "y", None, None])
        long, short = (1 << rng.randrange(16), rng.randrange(4)), [rng.randrange(1 << p.tau_bits) for _ in range(2)]
        vector = (low, 0) if missed else rng.sample(rng.choice([long, short, short]), 2)
        own = np.zeros(3 if missed else 1, BLOCK)
        for b in own:
            for axis, side, cells in zip("xy", "wh", at, strict=True):
                b[side] = rng.choice([*LENGTHS, rng.randrange(1, 256)])
                span = max(1, int(b[side]) // CELL)
                away = [-1, span, *[rng.choice([-1, 1]) << rng.randrange(13)] * 2]
                behind = rng.choice(away if axis == missed else [0, span - 1])
                b[axis] = max(low, min(CELL * (int(rng.choice(cells)) - behind) + rng.randrange(CELL), high))
            b["dx"], b["dy"] = (max(low, min(rng.choice([-1, 1]) * d, high)) for d in vector)
        ground = np.zeros(min(len(tiles), (1 << p.block_bits) - 1 - len(own)), BLOCK)
        ground["x"], ground["y"] = np.transpose(tiles[: len(ground)])
        ground["w"] = ground["h"] = TILE
        squared = sum(d * d for d in vector)
        limit = max(0, min(squared - rng.choice([0, 1, 1]), top))
        threshold = max(0, min(int(PARTS * squared**0.5) - rng.choice([0, 1]), (PARTS << p.tau_bits) - 1))
        command = Command(width, height, limit, False, True, False, threshold)
        out.append((command, np.concatenate(rng.choice([(own, ground), (ground, own)]))))
    return out


def beats(p: MaskParams, frames: Frames) -> list[dict]:
    """The beats of `f`."""
    fields = set(frame_layout(p).members) - {"blocks"}
    return [{k: int(v) for k, v in vars(c).items() if k in fields} | {"blocks": len(b)} for c, b in frames]


def bits(p: MaskParams, frames: Frames) -> list[int]:
    """The beats of `i`: the first bytes of each block, and its residual if the unit takes one."""
    size = block_layout(replace(p, residuals=False)).size
    out = []
    for _, blocks in frames:
        own = residuals(blocks).tolist() if p.residuals else [0] * len(blocks)
        beats = [int.from_bytes(b.tobytes()[: size // 8], "little") for b in blocks]
        out += [beat | r << size for beat, r in zip(beats, own, strict=True)]
    return out


def masks(p: MaskParams, frames: Frames) -> list[tuple[bool, np.ndarray]]:
    """For every frame taken: whether it is kept whole, and its tokens."""
    golden, out = MotionMask(p.grid, p.group, p.residuals), []
    for command, blocks in frames:
        size = command.width, command.height
        whole = golden.whole or command.leads or size != golden.size
        tokens = golden(command, blocks)
        if tokens is not None:
            out.append((whole, tokens))
    return out


def listing(p: MaskParams, frames: Frames) -> list[dict]:
    """The beats that `o` must give."""
    return [
        {"tokens": sum(int(t) << k for k, t in enumerate(row)), "whole": int(whole), "last": int(r == p.tokens - 1)}
        for whole, tokens in masks(p, frames)
        for r, row in enumerate(tokens)
    ]


def episode(p: MaskParams, frames: Frames, stalls=((0.0, 0.0, 0.0),), cut_at=0) -> dict:
    return {"frames": beats(p, frames), "blocks": bits(p, frames), "stalls": list(stalls), "cut_at": cut_at}


def run(e, p: MaskParams, episodes: list[dict], waves=True) -> list[dict]:
    c = {"params": asdict(p), "episodes": episodes}
    return Run(e, "bench_motion_mask", "masks", c, waves=waves)()["episodes"]


@dataclass
class RandomTraffic(StressTraffic):
    """Hundreds of frames."""

    p: MaskParams
    frames: Frames
    stalls: list[tuple[float, float, float]]

    @classmethod
    def random(cls, rng: Random) -> Self:
        p = SIZES[rng.choice(list(SIZES))]
        stalls = [(stall_rate(rng), stall_rate(rng), stall_rate(rng)) for _ in range(3)]
        kinds = [(stream, 100), (covering, 100), (decisive, 100)]
        return cls(p, [f for kind, n in kinds for f in kind(p, rng.getrandbits(31), n)], stalls)

    def play(self) -> Any:
        return run(emitted(self.p), self.p, [episode(self.p, self.frames, self.stalls)])

    def check(self, got: Any) -> int:
        check_beats(self.p, self.frames, got[0])
        return len(self.frames)


def check_equals_golden_and_time_view(size):
    """Masks equal golden, and cycles the time view, under every stall pattern and at full rate.

    Between these, resets in flight cut episodes: while the unit measures a picture, takes blocks and offers rows.
    """
    p = SIZES[size]
    stalled = stream(p, 1, 60) + covering(p, 2, 30) + decisive(p, 5, 200)
    steady = covering(p, 3, 30) + stream(p, 4, 60) + decisive(p, 6, 400)
    cut = [episode(p, stream(p, n, 20), STALLS[:1], n) for n in (2, p.grid + 3, 97)]
    results = run(emitted(p), p, [cut[0], episode(p, stalled, STALLS), *cut[1:], episode(p, steady)])
    check_beats(p, stalled, results[0])
    check_beats(p, steady, results[1])
    check_cycles(p, steady, results[1])


def check_beats(p: MaskParams, frames: Frames, got: dict):
    """An episode gave the masks and the counters."""
    assert [v for _, v in got["o"]] == listing(p, frames)
    taken = sum(c.take for c, _ in frames)
    assert got["perf"] == {"frames": len(frames), "blocks": sum(len(b) for _, b in frames), "masks": taken}


def check_cycles(p: MaskParams, frames: Frames, got: dict):
    """An episode at full rate took the cycles of the time view."""
    want, first = MotionMaskTime(p).run((c, len(b)) for c, b in frames), got["f"][0]
    assert [c - first for c in got["f"]] == want.f
    assert [c - first for c in got["i"]] == want.i
    assert [c - first for c, _ in got["o"]] == want.o
