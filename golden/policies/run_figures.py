"""Policies side by side: figures of their runs against full attention's."""

import numpy as np

from golden.policies.codecsight_policy import CodecSightPolicy
from golden.policies.hybrid import Hybrid
from golden.policies.mosaic import Mosaic
from golden.policies.policy_run import Record, Run

STAGES = {"frame": ("frame",), "answer": ("question", "generation"), "generation": ("generation",)}
PLACES = ("device", "host")


def summary(run: Run, teacher: Run) -> dict:
    """Figures of a run on a stream.

    By stage (`frame`; `answer`: the question and the generated tokens; `generation`: these alone), over the blocks that
    have a past and queries; nan where there is none:

    * `kept`: earlier tokens attended, of those that have arrived (V-Rex's retrieval ratio); mean over layers and heads;
      `fetched`: those whose home is the host.
    * `error`: |y - y_full| / |y_full| of the attention's output over the same q, k and v, mean over layers.
    * `agreement`: share of rows whose most likely next token is full attention's, after the same input; `loss`: nats of
      the next token, mean. Only where a decoder ran.

    Then the ledger's totals over the stream; `tokens`: where its entries are in the end, tokens a layer and head;
    `pruned`: frame tokens that a plan kept out of the decoder, a share of all; `growth`: bytes a frame by which device
    and host memory grow over the second half of the frames; and the figures of `of_policy`.
    """
    out: dict = {}
    for stage, names in STAGES.items():
        pairs = [(r, t) for r, t in zip(run.records, teacher.records, strict=True) if r.stage in names]
        past = [r for r, _ in pairs if r.start and not np.isnan(r.error).all()]
        out[stage] = {
            "kept": _mean([np.nanmean(r.kept) / r.start for r in past]),
            "fetched": _mean([np.nanmean(r.fetched) / r.start for r in past]),
            "error": _mean([np.nanmean(r.error) for r in past]),
            "agreement": _mean([same for r, t in pairs for same in agreements(r, t)]),
            "loss": _mean([x for r, _ in pairs for x in r.losses]),
        }
    last = run.records[-1]
    entries = run.shape.layers * run.shape.kv_heads
    out |= {"totals": last.totals, "tokens": {place: n / entries for place, n in last.census.items()}}
    frames = [r for r in run.records if r.stage == "frame"]
    came = [x for r in frames for x in run.known[r.start : r.stop]]
    half = [r.totals for r in frames[len(frames) // 2 :]]
    steps = len(half) - 1
    growth = {x: (half[-1][x] - half[0][x]) / steps if steps > 0 else float("nan") for x in PLACES}
    return out | {"pruned": 1 - _mean(came), "growth": growth, "policy": of_policy(run)}


def of_policy(run: Run) -> dict:
    """What one policy alone counts.

    Mosaic: `splits`; `deferred`, entries that wait for one; `coverage`, of the tokens that layers after the first
    retrieve, those that prefetch had brought. CodecSight: `reduction`, tokens that its windows after the first need not
    compute, of those of full recomputation, which computes a window's frames whole whenever it moves on (text not
    counted; the windows' stated length, though they may begin earlier, at an I-frame); nan with one window. Hybrid
    memory: `random`, whether parameters that nobody trained add to the output.
    """
    policy = run.policy
    if isinstance(policy, Mosaic):
        coverage = policy.covered / policy.needed if policy.needed else float("nan")
        return {"splits": policy.splits, "deferred": policy.deferred, "coverage": coverage}
    if isinstance(policy, CodecSightPolicy):
        w, s = policy.params.window, policy.params.stride
        frames = [r for r in run.records if r.stage == "frame"]
        moves = max(0, len(frames) - w) // s
        later = frames[w : w + moves * s]
        full = moves * w * (frames[0].stop - frames[0].start) if frames else 0
        return {"reduction": 1 - sum(r.rows for r in later) / full if full else float("nan")}
    return {"random": policy.params.ssm == "random"} if isinstance(policy, Hybrid) else {}


def agreements(record: Record, teacher: Record) -> list[bool]:
    """Whether the choices of a block are the teacher's, from the last row back (a policy may have dropped rows)."""
    pairs = zip(reversed(record.choices), reversed(teacher.choices), strict=False)
    return [a == b for a, b in pairs]


def series(run: Run, teacher: Run) -> dict[str, list[float]]:
    """A run's figures after every block, against the length of the stream (`tokens`).

    `error` of the block (nan without queries), `agreement` over all blocks so far, `in_bytes`, `out_bytes` and
    `operations` (of all kinds but the decoder's linear layers) so far, `held_tokens` (on device or host, mean over
    layers and heads), `device_peak`.
    """
    entries = run.shape.layers * run.shape.kv_heads
    same: list[bool] = []
    rows = []
    for r, t in zip(run.records, teacher.records, strict=True):
        same += agreements(r, t)
        rows.append(
            {
                "tokens": r.stop,
                "error": _mean([e for e in r.error if not np.isnan(e)]),
                "agreement": _mean(same),
                "in_bytes": _total(r, "in."),
                "out_bytes": _total(r, "out."),
                "operations": _total(r, "ops.") - r.totals.get("ops.linear", 0),
                "held_tokens": (r.census["device"] + r.census["host"]) / entries,
                "device_peak": r.totals["device.peak"],
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]}


def ratios(run: Run) -> np.ndarray:
    """Retrieval ratio of the frame stage by layer and KV head (V-Rex Fig. 20), [layers, kv_heads]; nan without one."""
    past = [r.kept / r.start for r in run.records if r.stage == "frame" and r.start and not np.isnan(r.kept).all()]
    return np.mean(past, axis=0) if past else np.full((run.shape.layers, run.shape.kv_heads), np.nan)


def _total(record: Record, prefix: str) -> int:
    return sum(count for name, count in record.totals.items() if name.startswith(prefix))


def _mean(values: list) -> float:
    return float(np.mean(values)) if values else float("nan")
