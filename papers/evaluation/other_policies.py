"""Predicts time and traffic of other cache policies on V-Rex's hardware, with the shares measured on a real stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from openvrex.golden.policies.state_space import StateSpaceParams
from openvrex.sim.system.memory_curves import Curve
from openvrex.sim.system.passes import lacks, legend, mark, simulate
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.selection import recorded as record_of
from openvrex.sim.system.selection import records
from openvrex.sim.system.timeline import Pass, Point
from openvrex.sim.system.workload import CLUSTER_TOKENS, Selection, Session, constant

CACHES = (10240, 40960, 131072)


@dataclass(frozen=True)
class Profile:
    """What a policy does with the cache of a stream.

    home    : where old tokens live: "host" (fetched from there), "device" (all kept there), "window" (dropped)
    frame   : share of the tokens at home on the host that a frame fetches
    text    : the same for a generated token
    enters  : share of a frame's tokens that enter the decoder
    held    : share of all tokens whose K and V are kept; for "window", the number of tokens
    bits    : bits of each number of K and V on the device
    branch  : a state-space branch runs beside the attention, of hybrid memory's default sizes
    cluster, sizes : of a fetch, as of `sim.system.workload.Selection`
    """

    home: str
    frame: float = 0.0
    text: float = 0.0
    enters: float = 1.0
    held: float = 1.0
    bits: int = 16
    branch: bool = False
    cluster: float = CLUSTER_TOKENS
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)


def recorded(policy: str) -> Profile:
    """The profile of a record of `sim.system.selection`, 56 frames of 36 tokens of `world`."""
    r = records()["world36"][policy]
    return Profile("host", _mean(r.unions), r.text[0], cluster=r.cluster, sizes=r.sizes)


def _mean(unions: list[list[float]]) -> float:
    return round(sum(row[0] for row in unions) / len(unions), 3)


# Made by `profile` from 56 frames of 36 tokens of `world` (docs/papers/comparison.md). The window of "hybrid" is that
# of its paper (4,096).
PROFILES = {
    "full": Profile("device"),
    "flexgen": Profile("host", 1.0, 1.0),
    "infinigen": Profile("host", 1.0, 0.068),
    "infinigenp": Profile("host", 0.535, 0.068),
    "rekv": Profile("host", 0.612, 0.313),
    "streamingllm": Profile("window", held=261),
    "oaken": Profile("device", bits=4),
    "codecsight": Profile("device", enters=0.488, held=0.362),
    "mosaic-eager": Profile("host", 0.137, 0.144),
    "hybrid": Profile("window", held=4096, branch=True),
    "resv": recorded("resv"),
    "resv-buckets": recorded("resv-buckets"),
}


def profile(results: dict, name: str) -> Profile:
    """Profile of the policy `name`, from the content of a results.json that `vrex papers stream` wrote."""
    r = results["policies"][name]
    full, tokens = results["policies"]["full"]["growth"]["device"], r["tokens"]
    if r.get("clusters"):
        own = record_of(results, name)
        return Profile("host", _mean(own.unions), own.text[0], cluster=own.cluster, sizes=own.sizes)
    if tokens["host"]:
        shares = [r[s]["fetched"] / (1 - r[s]["kept"] + r[s]["fetched"]) for s in ("frame", "generation")]
        return Profile("host", *(round(share, 3) for share in shares))
    if not r["growth"]["device"]:
        return Profile("window", held=tokens["device"], branch=r.get("policy", {}).get("random", False))
    held = tokens["device"] / sum(tokens.values())
    bits = 4 if held == 1 and r["growth"]["device"] < full / 2 else 16
    return Profile("device", enters=round(1 - r["pruned"], 3), held=round(held, 3), bits=bits)


def point(p: Profile, cache: int, stage: str = "frame", batch: int = 1) -> Point:
    """The pass to simulate for a policy: `batch` streams with `cache` tokens each; `stage` : "frame" or "token"."""
    frame = stage == "frame"
    rows = max(1, round(Session.frame_tokens * p.enters)) if frame else 1
    if p.home == "host":
        return Point(cache, batch, rows, frame, "flexgen" if p.frame == p.text == 1 else "resv")
    held = min(cache, round(p.held)) if p.home == "window" else max(1, round(cache * p.held))
    branch = StateSpaceParams() if p.branch else None
    return Point(held, batch, rows, frame, "oaken" if p.bits == 4 else "resident", branch=branch)


def shares(p: Profile, at: Point) -> Selection:
    """The shares that a policy fetches, the same in all layers."""
    return constant("profile", p.frame, p.text, at.model, cluster=p.cluster, sizes=p.sizes)


def run(v: Vrex, p: Profile, at: Point) -> Pass | None:
    """Simulates the pass `at`; None if it does not fit the device's memory or the drive."""
    return None if lacks(v, at, shares(p, at)) else simulate(v, at, shares(p, at))


def policies(v: Vrex, profiles: dict[str, Profile], caches: tuple[int, ...] = CACHES, batch: int = 1) -> Curve:
    """Table of milliseconds for a frame and a token of `batch` streams, by policy and cache.

    The last column is the megabytes that a frame fetches at the middle cache.
    """
    rows = []
    for name, p in profiles.items():
        points = [point(p, cache, stage, batch) for stage in ("frame", "token") for cache in caches]
        passes = [run(v, p, at) for at in points]
        shown = [
            f"{done.seconds * 1e3:.0f}{mark(v, at, shares(p, at))}"
            if done
            else lacks(v, at, shares(p, at)).partition(" of")[0] + " GiB"
            for at, done in zip(points, passes, strict=True)
        ]
        middle = passes[len(caches) // 2]
        rows.append((name, p.home, *shown, f"{middle.fetched / 1e6:.0f}" if middle else "-"))
    sizes = [f"{c >> 10}K" for c in caches]
    head = ("policy", "cache", *(f"frame {s}" for s in sizes), *(f"token {s}" for s in sizes), "MB a frame")
    title = f"Policies on {v.name}, batch {batch}: ms, or what memory would be needed of {v.capacity / 2**30:.0f} GiB"
    return Curve(legend(title, rows), head, rows)
