"""Policies side by side: figures of their runs against full attention's."""

import numpy as np

from golden.run import Record, Run

STAGES = {"frame": ("frame",), "answer": ("question", "generation")}


def summary(run: Run, teacher: Run) -> dict:
    """Figures of a run on a stream.

    By stage (`frame`, and `answer`: the question and the generated tokens), over the blocks that have a past and
    queries; nan where there is none:

    * `kept`: earlier tokens attended, of those that have arrived (V-Rex's retrieval ratio); mean over layers and heads;
      `fetched`: those whose home is the host.
    * `error`: |y - y_full| / |y_full| of the attention's output over the same q, k and v, mean over layers.
    * `agreement`: share of rows whose most likely next token is full attention's, after the same input; `loss`: nats of
      the next token, mean. Only where a decoder ran.

    Then the ledger's totals over the stream, and `tokens`: where its entries are in the end, tokens a layer and head.
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
    return out | {"totals": last.totals, "tokens": {place: n / entries for place, n in last.census.items()}}


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
