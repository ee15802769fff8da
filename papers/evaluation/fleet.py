"""Predicts how long a device keeps up with hours of video, and what time and energy it spends until then."""

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from openvrex.papers.evaluation.other_policies import PROFILES, Profile, point, run, shares
from openvrex.sim.system.passes import lacks
from openvrex.sim.system.platforms import Vrex, platform
from openvrex.sim.system.timeline import Pass
from openvrex.sim.system.workload import Session

PLATFORMS = ("edge", "server")
SAMPLES = 12  # simulated passes in each decade of the cache's length; between them we interpolate linearly


@dataclass(frozen=True)
class Device:
    """One platform with one policy that serves `streams` videos of `fps` frames a second for `hours` hours.

    preset, params : hardware other than the platform's own, as `sim.system.platforms.platform` takes it

    The frames of all streams arrive together and make one pass. Raises `ValueError` for unknown names and for values
    that are not positive and finite.
    """

    platform: str
    policy: str
    streams: int = 1
    fps: float = 2.0
    hours: float = 24.0
    preset: str | None = None
    params: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (("platform", PLATFORMS), ("policy", PROFILES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(known)}")
        for name in ("streams", "fps", "hours"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: must be more than 0, and finite")
        assert isinstance(self.hardware, Vrex)

    @property
    def hardware(self) -> Vrex:
        """The platform, its cache behind the link as the papers have it."""
        return platform(self.platform, self.preset, self.params, home="link")  # type: ignore[return-value]


def day(device: Device) -> dict[str, float | str]:
    """Simulates a device until it falls behind, its memory is full, or the videos end. Returns:

    hours : hours of video until then
    limit : "speed", "memory", or "none"
    seconds : time of the last pass
    busy : share of the time in which the device works
    joules : energy of all passes, without idle time
    fetched : bytes over the link
    room : hours of these for which the tables have room for the clusters; later times are of another function

    A device that never keeps up gets zeros.
    """
    v, p = device.hardware, PROFILES[device.policy]
    a_second = device.fps * Session.frame_tokens  # tokens a second of each stream
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
        return {"hours": 0.0, "limit": limit, "seconds": 0.0, "joules": 0.0, "fetched": 0.0, "busy": 0.0, "room": 0.0}
    at = [0, *(cache for cache, _ in taken)]
    grid = np.unique([*(float(n) for n in at if n < end), end])

    def course(name: str) -> np.ndarray:
        """A quantity of the passes over the cache's length, on `grid`."""
        values = [getattr(done, name) for _, done in taken]
        return np.interp(grid, at, [values[0], *values])

    def total(name: str) -> float:
        """A quantity, summed over all passes."""
        return float(np.trapezoid(course(name), grid) / Session.frame_tokens)

    hours = end / a_second / 3600
    return {
        "hours": hours,
        "limit": limit,
        "room": min(hours, _room(v, p) / a_second / 3600),
        "seconds": float(course("seconds")[-1]),
        "joules": total("joules"),
        "fetched": total("fetched"),
        "busy": total("seconds") / (hours * 3600) if hours else 0.0,
    }


def _room(v: Vrex, p: Profile) -> float:
    """Tokens of a stream whose clusters a table holds."""
    return v.core.dre.kvmu.recent + v.core.dre.hcu.clusters * p.cluster if p.home == "host" else math.inf


def _fits(device: Device, cache: int) -> int:
    """The largest number of tokens of each stream that the memory holds. It is less than `cache`."""
    v, p = device.hardware, PROFILES[device.policy]

    def full(tokens: int) -> bool:
        at = point(p, tokens, batch=device.streams)
        return bool(lacks(v, at, shares(p, at)))

    return bisect_left(range(1, cache), True, key=full)


def _crossing(taken: list[tuple[int, Pass]], cache: int, seconds: float, most: float) -> float:
    """Tokens at which a pass takes `most` seconds, interpolated from the last pass of `taken`; 0 without one.

    cache, seconds : tokens and time of the first pass that is too slow
    """
    if not taken:
        return 0.0
    before, done = taken[-1]
    return before + (cache - before) * (most - done.seconds) / (seconds - done.seconds)
