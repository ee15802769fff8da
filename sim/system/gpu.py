"""Predicts latency and timeline of one pass on a GPU, at the calibrated rates of `sim.system.platforms.Gpu`.

The GPU runs one stage at a time. With InfiniGen, InfiniGenP, ReKV and ReSV it predicts on the GPU and fetches for the
next layer while this layer computes, as V-Rex VI-B says of all baselines. With FlexGen no transfer overlaps with
computation, because the paper's latencies grow by the whole time of the transfer.
"""

from openvrex.sim.system.platforms import Gpu
from openvrex.sim.system.timeline import RESIDENT, Pass, Point, Timeline
from openvrex.sim.system.workload import Selection


def run(g: Gpu, p: Point, selection: Selection) -> Pass:
    """Simulates one pass of `p` on `g`; `selection` says which share of the cache each layer fetches."""
    m = p.model
    rows = p.batch * p.rows
    line = Timeline()
    memory = g.bandwidth * g.weights
    launch = 0.0 if p.policy in RESIDENT else g.launch
    overlaps = p.policy in g.predict

    def gpu(layer: int, name: str, seconds: float, after: float = 0.0, ops: float = 0.0) -> float:
        return line.put(layer, name, "GPU", seconds, after, 0.0, ops)

    if p.frame:
        ops = 2.0 * p.batch * p.vision.macs
        gpu(-1, "vision", ops / g.vision, ops=ops)
    asked = line.free.get("GPU", 0.0)
    fetched = 0.0
    predicts = p.batch * p.cache * g.predict[p.policy] if overlaps else 0.0  # seconds of a layer
    for layer, share in enumerate(selection.layers(p.stage).tolist()):
        attended = p.cache if p.policy in RESIDENT else share * p.cache
        moved = p.batch * share * p.cache * m.entry_bytes
        fetched += moved
        came = line.put(layer, "fetch", "link", moved / g.link, asked if overlaps else line.free.get("GPU", 0.0))
        ops = 2.0 * rows * m.layer_weights
        # With FlexGen the whole layer waits for the cache, so nothing of the transfer is hidden.
        asked = gpu(
            layer, "layer", launch + max(2 * m.layer_weights / memory, ops / g.dense), 0.0 if overlaps else came, ops
        )
        if predicts:
            asked = gpu(layer, "predict", predicts)
        ops = 2 * p.batch * m.attention_macs(p.rows, attended)
        read = p.batch * attended * m.entry_bytes / memory
        gpu(layer, "attention", max(ops / g.attention, read), came, ops)
    gpu(-1, "vocabulary", 2 * m.width * m.vocab / memory)
    return Pass(line.stages, fetched, {"GPU": g.watts})
