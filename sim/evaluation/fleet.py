"""A device of a fleet over hours of video: until when it keeps up, what it takes till then."""

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from sim.evaluation.other_policies import PROFILES, point, run, shares
from sim.system.passes import lacks
from sim.system.platforms import EDGE, SERVER
from sim.system.timeline import Pass
from sim.system.workload import Session

PLATFORMS = {"edge": EDGE, "server": SERVER}
SAMPLES = 12  # a decade of the cache's length; passes between are on a straight line


@dataclass(frozen=True)
class Device:
    """`streams` videos of `fps` frames a second, `hours` long, on one platform under one policy.

    Frames of all streams come at once and are one pass. Raises: `ValueError` where a value is unknown or not positive.
    """

    platform: str
    policy: str
    streams: int = 1
    fps: float = 2.0
    hours: float = 24.0

    def __post_init__(self):
        for name, known in (("platform", PLATFORMS), ("policy", PROFILES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(known)}")
        for name in ("streams", "fps", "hours"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: must be more than 0, and finite")


def day(device: Device) -> dict[str, float | str]:
    """hours : of video until the device falls behind or its memory is full · limit : speed, memory, or none

    Until then: busy : share of the time · joules : of its passes, what it takes while idle left out · fetched : bytes
    over the link · seconds : of the last pass. A device that never keeps up has zeros.
    """
    v, p = PLATFORMS[device.platform], PROFILES[device.policy]
    a_second = device.fps * Session.frame_tokens  # tokens of a stream
    last = max(2, round(device.hours * 3600 * a_second))
    count = 2 + max(0, int(SAMPLES * np.log10(last / Session.frame_tokens)))
    caches = np.unique(np.geomspace(min(Session.frame_tokens, last - 1), last, count).astype(int))
    taken: list[tuple[int, Pass]] = []
    limit, end = "none", float(last)
    for cache in caches.tolist():
        done = run(v, p, point(p, cache, batch=device.streams))
        if not done:
            limit, end = "memory", float(_fits(device, cache))
            break
        if done.seconds > 1 / device.fps:
            limit, end = "speed", _crossing(taken, cache, done.seconds, 1 / device.fps)
            taken.append((cache, done))
            break
        taken.append((cache, done))
    if not taken:  # not even the first frames fit
        return {"hours": 0.0, "limit": limit} | dict.fromkeys(("seconds", "joules", "fetched", "busy"), 0.0)
    at = [0, *(cache for cache, _ in taken)]
    grid = np.unique([*(float(n) for n in at if n < end), end])

    def course(name: str) -> np.ndarray:
        values = [getattr(done, name) for _, done in taken]
        return np.interp(grid, at, [values[0], *values])

    def total(name: str) -> float:
        return float(np.trapezoid(course(name), grid) / Session.frame_tokens)

    hours = end / a_second / 3600
    out = {"hours": hours, "limit": limit, "seconds": float(course("seconds")[-1])}
    busy = total("seconds") / (hours * 3600) if hours else 0.0
    return out | {"joules": total("joules"), "fetched": total("fetched"), "busy": busy}


def _fits(device: Device, cache: int) -> int:
    """The most tokens of each stream, fewer than `cache`, that the memory holds."""
    v, p = PLATFORMS[device.platform], PROFILES[device.policy]

    def full(tokens: int) -> bool:
        at = point(p, tokens, batch=device.streams)
        return bool(lacks(v, at, shares(p, at)))

    return bisect_left(range(1, cache), True, key=full)


def _crossing(taken: list[tuple[int, Pass]], cache: int, seconds: float, most: float) -> float:
    """Tokens at which a pass takes `most` seconds, on the line from the last pass to one of `seconds`; 0 if none was
    faster."""
    if not taken:
        return 0.0
    before, done = taken[-1]
    return before + (cache - before) * (most - done.seconds) / (seconds - done.seconds)
