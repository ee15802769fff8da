"""Figures of a policy's run compared with full attention on the same stream: tokens, errors, bytes, operations."""

from collections import Counter

import numpy as np

from openvrex.golden.policies.codecsight_policy import CodecSightPolicy
from openvrex.golden.policies.hybrid import Hybrid
from openvrex.golden.policies.mosaic import Mosaic
from openvrex.golden.policies.pages_policy import CodedPages
from openvrex.golden.policies.policy_run import Record, Run
from openvrex.golden.policies.resv_policy import ReSVPolicy

STAGES = {"frame": ("frame",), "answer": ("question", "generation"), "generation": ("generation",)}
PLACES = ("device", "host")
TYPICAL = 32  # sizes that stand for those of all clusters


def summary(run: Run, teacher: Run) -> dict:
    """Figures of a run over the whole stream; `teacher` is the run of full attention.

    For each stage, over its blocks that have a past and queries (nan if there is none). Stages are `frame`, `answer`
    (the question and the generated tokens) and `generation` (the generated tokens alone):

    * `kept`: share of the earlier tokens that is attended (V-Rex's retrieval ratio), mean over layers and heads.
    * `fetched`: the same of tokens whose home is the host.
    * `error`: |y - y_full| / |y_full| of the attention output over the same q, k and v, mean over layers.
    * `agreement`: share of rows whose most likely next token is that of full attention after the same input.
    * `loss`: nats of the next token, mean. `agreement` and `loss` need a decoder.

    For the stream:

    * `totals`: the ledger's totals.
    * `tokens`: where the entries are in the end, in tokens for each layer and head.
    * `pruned`: share of the frame tokens that the plan kept out of the decoder.
    * `growth`: bytes a frame by which device and host memory grow over the second half of the frames.
    * `policy`: the figures of `of_policy`.
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
    """Figures that only one policy has; empty for the others.

    * Mosaic: `splits` of clusters; `deferred`, entries that had to wait for a split; `coverage`, the share of the
      tokens retrieved by layers after the first that prefetch had brought.
    * CodecSight: `reduction`, the share of tokens that windows after the first need not compute. Full recomputation,
      the base, computes all frames of a window whenever it moves on. Text does not count. Windows have their stated
      length, though they may begin earlier, at an I-frame. nan with a single window.
    * Coded pages: by stage, `pages`, whole pages of a set, and `found`, by places for kept pages of a KV head, the
      share of them that would be found there.
    * Hybrid memory: `random`, whether untrained parameters add to the output.
    """
    policy = run.policy
    if isinstance(policy, Mosaic):
        coverage = policy.covered / policy.needed if policy.needed else float("nan")
        return {"splits": policy.splits, "deferred": policy.deferred, "coverage": coverage}
    if isinstance(policy, CodedPages):
        stages = [stage for stage in ("frame", "generation") if policy.kept[0].seen[stage]]
        found = {s: {str(k.places): k.found[s] / k.seen[s] for k in policy.kept} for s in stages}
        return {"found": found, "pages": {s: policy.kept[0].seen[s] / policy.sets[s] for s in stages}}
    if isinstance(policy, CodecSightPolicy):
        w, s = policy.params.window, policy.params.stride
        frames = [r for r in run.records if r.stage == "frame"]
        moves = max(0, len(frames) - w) // s
        later = frames[w : w + moves * s]
        full = moves * w * (frames[0].stop - frames[0].start) if frames else 0
        return {"reduction": 1 - sum(r.rows for r in later) / full if full else float("nan")}
    return {"random": policy.params.ssm == "random"} if isinstance(policy, Hybrid) else {}


def agreements(record: Record, teacher: Record) -> list[bool]:
    """Whether each choice of a block is the teacher's, from the last row back, as a policy may have dropped rows."""
    pairs = zip(reversed(record.choices), reversed(teacher.choices), strict=False)
    return [a == b for a, b in pairs]


def series(run: Run, teacher: Run) -> dict[str, list[float]]:
    """A run's figures after every block, as lists of one number a block.

    * `tokens`: length of the stream.
    * `error`: of the block, nan without queries.
    * `agreement`, `in_bytes`, `out_bytes`, `operations`: over all blocks so far; operations without the decoder's
      linear layers.
    * `held_tokens`: on device or host, mean over layers and heads.
    * `device_peak`: bytes.
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
    """Retrieval ratio of the frame stage, [layers, kv_heads] (V-Rex Fig. 20); nan if no frame has a past."""
    past = [r.kept / r.start for r in run.records if r.stage == "frame" and r.start and not np.isnan(r.kept).all()]
    return np.mean(past, axis=0) if past else np.full((run.shape.layers, run.shape.kv_heads), np.nan)


def unions(run: Run, stage: str) -> np.ndarray:
    """Retrieval ratio of tables of k KV heads in a stage, [layers, kv_heads] for k = 1 to kv_heads; nan without a past.

    A table of several heads fetches what any of them chose.
    """
    past = [r.unions / r.start for r in run.records if r.stage == stage and r.start and not np.isnan(r.kept).all()]
    return np.mean(past, axis=0) if past else np.full((run.shape.layers, run.shape.kv_heads), np.nan)


def clusters(run: Run) -> dict:
    """How the tokens of a policy with tables of clusters lie at home; empty for the others.

    * `tokens`: of a cluster, at the stream's end, mean over all clusters of all tables.
    * `sizes`: for frames and for generation, sizes that stand for those of all fetched clusters (`typical`). A size is
      the tokens of the cluster that are at home, all of which a fetch brings.
    """
    if not isinstance(run.policy, ReSVPolicy):
        return {}
    tables = [(table, of) for resv in run.policy.layers for table, of in zip(resv.tables, resv.cluster_of, strict=True)]
    number, tokens = sum(len(table) for table, _ in tables), sum(int((of >= 0).sum()) for _, of in tables)
    found = run.policy.sizes
    stages = {stage: typical(found[stage]) for stage in ("frame", "generation") if found.get(stage)}
    return {"tokens": tokens / number if number else float("nan"), "sizes": stages}


def typical(sizes: Counter[int], number: int = TYPICAL) -> list[int]:
    """`number` rising sizes with the distribution and the mean of the counted ones, each at least 1."""
    every = np.sort(np.repeat([*sizes.keys()], [*sizes.values()]))
    upto = np.interp(np.linspace(0, len(every), number + 1), np.arange(len(every) + 1), [0, *np.cumsum(every)])
    whole = np.round(upto * number / len(every)).astype(int)  # rounded sums, so that no rounding adds up
    return sorted(max(1, int(n)) for n in np.diff(whole))


def _total(record: Record, prefix: str) -> int:
    return sum(count for name, count in record.totals.items() if name.startswith(prefix))


def _mean(values: list) -> float:
    return float(np.mean(values)) if values else float("nan")
