"""V-Rex of N cores (Fig. 10), stage by stage.

In a layer the LXE makes Q, K and V, then hash bits and cluster scores that predict the next layer; HCU, WTU and KVMU
select on the DRE; link and drive bring what was selected for the next layer, while the LXE attends to what came for
this one and runs the rest of the layer. LXE, DRE and link each take one stage at a time, in order; a stage starts when
its resource is free and what it needs is there. What the first layer attends to is fetched from the end of the encoder
on.

- LXE: the largest of its products on the DPEs, its words on the VPEs, its bytes on the cores' ports, as far as the
  latency of the bursts that are under way lets them come, and all cores' bytes at the device memory. Products take a
  chunk a cycle, row by row and tile by tile (`sim.units.dpe_time`). Weights stay in a tree's memory while rows pass;
  rows that do not fit the activation memory are read again for every load of half of it: that is what limits the
  vision encoder.
- DRE: the cycles of the units' time views (`sim.system.dre_demand`).
- Link and drive: their models on the KVMU's bursts, a sample of them: latency once, then the sample's rate.

New entries are written home against the direction of fetches, 1.3 MB a frame: left out.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from sim.system import dre_demand
from sim.system.pcie import Link
from sim.system.platforms import CLOCK, HOST, POWER, Vrex
from sim.system.ssd import Ssd
from sim.system.timeline import RESIDENT, Pass, Point, Timeline
from sim.system.workload import Selection
from sim.units.dpe_time import TO_RESULT, DpeTime

SOFTMAX_WORDS = 4  # passes of the VPE over a score: largest; exp and sum; product; conversion
ELEMENT_WORDS = 4  # over an element of the encoder's hidden layers and normalisations
# As in `vrex simulate layer`: beats of the bursts that read keys and values, whose rows lie apart, and
# cycles of a core's port for a score of the decoder, which goes through memory: 0.14 (1K) to 0.20 (40K) in the softmax,
# 0.1 where it meets the values.
BEATS = {"keys": 4, "values": 2}
SCORE_PORT = 0.28
ENOUGH = 1 << 24  # bytes of a sample


@dataclass(frozen=True)
class Work:
    """What a stage asks of a core's DPE, its port (cycles) and VPE (words), of the device memory (bytes); its
    products."""

    dpe: float = 0.0
    port: float = 0.0
    vpe: float = 0.0
    bytes: float = 0.0
    macs: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)))

    def seconds(self, v: Vrex, crowd: float = 1.0) -> float:
        """Time on `v` while its memory moves `crowd` times these bytes."""
        lanes = v.core.vpe.n_h * v.core.vpe.n_w
        return max(max(self.dpe, self.port, self.vpe / lanes) / CLOCK, crowd * self.bytes / v.bandwidth)


def port(v: Vrex, moved: float, beats: int | None = None) -> float:
    """Cycles of every core's port for `moved` bytes of all cores in bursts of `beats`, the longest ones if not given:
    a beat a cycle, or the latency."""
    p = v.core.lxe
    beats = beats or p.burst_bytes // p.bus_bytes
    return moved / v.cores / p.bus_bytes * max(1.0, (1 + (v.latency + 1) / beats) / p.bursts)


def product(v: Vrex, rows: int, k: int, n: int) -> Work:
    """`rows` rows of `k` numbers times `k` x `n` weights: every core has the rows and a part of the outputs."""
    d = v.core.dpe
    cycles = -(-n // (d.n_h * v.cores)) * rows * DpeTime(d).chunks(k) + TO_RESULT
    again = 1.0
    if rows * min(k, d.w_depth * d.n_w) > d.x_depth * d.n_w:
        # Half of the weight memory is filled while the other half is used: n_h outputs of up to w_depth / 2 chunks.
        # The rows pass once for each filling.
        again = max(1.0, n / d.n_h / max(1.0, (d.w_depth // 2) / DpeTime(d).chunks(k)))
    moved = 2 * k * n + 2 * rows * k * again + 2 * rows * n
    return Work(cycles, port(v, moved), rows * n / v.cores, moved, float(rows) * k * n)


def attention(
    v: Vrex,
    streams: int,
    rows: int,
    heads: int,
    head: int,
    tokens: float,
    kv_bytes: float,
    score_port: float = SCORE_PORT,
) -> Work:
    """Scores, softmax and values of `rows` rows of each stream over `tokens` tokens of its own."""
    macs = 2.0 * streams * rows * heads * head * tokens
    scores = streams * rows * heads * tokens / v.cores
    moved = streams * tokens * kv_bytes
    ports = port(v, moved / 2, BEATS["keys"]) + port(v, moved / 2, BEATS["values"]) + score_port * scores
    return Work(macs * CLOCK / v.macs + 2 * TO_RESULT, ports, SOFTMAX_WORDS * scores, moved, macs)


def encoder(v: Vrex, p: Point) -> tuple[Work, float]:
    """Of all streams' images: what it asks for, and its seconds, layer by layer and product by product."""
    e = p.vision
    rows = p.batch * e.tokens
    works = [product(v, rows, k, n) for k, n in e.matrices.values()]
    # Blocks of rows whose scores fit the activation memory: nothing of them leaves the core.
    works.append(attention(v, p.batch, e.tokens, e.heads, e.width // e.heads, e.tokens, 4 * e.width, score_port=0.0))
    works.append(Work(vpe=ELEMENT_WORDS * rows * (e.hidden + 4 * e.width) / v.cores))
    seconds = v.gap + sum(w.seconds(v) for w in works)
    whole = sum(works, Work())
    return Work(*(e.layers * getattr(whole, f.name) for f in fields(Work))), e.layers * seconds


def prediction(v: Vrex, p: Point, clusters: int) -> Work:
    """Hash bits of the new keys, and the scores of all queries with the clusters' representatives."""
    m = p.model
    rows = p.batch * p.rows
    hashes = product(v, rows * m.kv_heads, m.head, v.core.dre.hcu.n_hp)
    macs = float(rows * m.heads * m.head * clusters)
    means = p.batch * clusters * m.kv_heads * m.head * 2
    words = SOFTMAX_WORDS * rows * m.heads * clusters / v.cores
    return hashes + Work(macs * CLOCK / v.macs, port(v, means, BEATS["keys"]), words, means, macs)


@lru_cache(maxsize=512)
def transfer(link: Link, ssd: Ssd | None, addr: bytes, size: bytes) -> tuple[float, float]:
    """Latency, and bytes per second after it, of a list of reads over link and drive (or the host's memory).

    The list is repeated at other places until its end, when dies and tags fall idle, no longer counts.
    """
    a, n = np.frombuffer(addr, np.int64), np.frombuffer(size, np.int64)
    times = -(-ENOUGH // int(n.sum()))
    apart = (1 << 34) + (1 << 15)  # other planes, too
    a, n = (a + apart * np.arange(times)[:, None]).ravel(), np.tile(n, times)
    if ssd is None:
        first = 2 * link.latency + link.memory
        # The host's memory gives no more than its own rate for pieces of this size.
        host = HOST.t.bandwidth * HOST.efficiency(1 << int(np.log2(min(4096, n.mean()))))
        return first, float(min(host, n.sum() / (link.read(a, n).seconds - first)))
    drive = replace(ssd, link=link)
    first = drive.read_latency(1)
    return first, float(n.sum() / (drive.read(a, n).seconds - first))


def fetch(v: Vrex, tokens: float, share: float, per_cluster: int) -> tuple[float, float]:
    """Seconds of link and drive for `tokens` tokens of a layer, from `share` of its clusters; cycles of the KVMU's
    walk."""
    if tokens <= 0:
        return 0.0, 0.0
    f = dre_demand.fetch(
        v.core.dre, per_cluster, max(1, min(dre_demand.CLUSTERS, round(share * dre_demand.CLUSTERS))), v.kvmu
    )
    first, rate = transfer(v.link, v.ssd, f.addr.tobytes(), f.bytes.tobytes())
    return first + tokens * v.core.dre.kvmu.entry_bytes / rate, f.cycles * tokens / per_cluster


def run(v: Vrex, p: Point, selection: Selection) -> Pass:
    """One pass."""
    m, dre = p.model, v.core.dre
    rows = p.batch * p.rows
    shares = selection.layers(p.stage)
    recent = min(p.cache, dre.kvmu.recent)
    home = p.cache - recent
    clusters = max(1, min(dre.hcu.clusters, -(-home // selection.cluster)))
    per_cluster = max(1, min(512, round(home / clusters)))
    predicts = home > 0 and 0 < shares.mean() < 1
    works = {name: product(v, rows, k, n) for name, (k, n) in m.matrices.items()}
    selects = (0.0, 0.0)
    if predicts:
        keys = rows * dre_demand.cluster_cycles(dre, clusters) / min(v.cores, p.batch)  # a table is in one core
        scores = rows * m.heads * dre_demand.select_cycles(dre, clusters) / dre.wtu.n_h / v.cores
        selects = (keys, scores)
    line = Timeline()
    crowd = 1.0  # bytes of the device memory, those that come over the link included, over the LXE's

    def lxe(layer: int, name: str, w: Work, after: float = 0.0) -> float:
        return line.put(layer, name, "LXE", w.seconds(v, crowd), after, w.bytes, 2 * w.macs)

    if p.frame:
        w, seconds = encoder(v, p)
        line.put(-1, "vision", "LXE", seconds, 0.0, w.bytes, 2 * w.macs)
    asked = [line.free.get("LXE", 0.0)] * v.ahead  # when it is known what each layer attends to
    fetched = 0.0
    for layer, share in enumerate(shares.tolist()):
        tokens = share * home
        seconds, walk = fetch(v, p.batch * tokens, share, per_cluster)
        moved = p.batch * tokens * m.entry_bytes
        came = line.put(layer, "fetch", "link", seconds, asked[layer], moved) if moved else 0.0
        fetched += moved
        crowd = 1 + moved / sum(w.bytes for w in works.values())
        line.put(layer, "gap", "LXE", v.gap)
        asked.append(lxe(layer, "qkv", works["qkv"]))
        if predicts:
            scored = lxe(layer, "predict", prediction(v, p, clusters), asked[-1])
            asked[-1] = line.put(layer, "select", "DRE", (sum(selects) + walk) / CLOCK, scored)
        attended = float(p.cache) if p.policy in RESIDENT else tokens + recent
        w = attention(v, p.batch, p.rows, m.heads, m.head, attended, m.entry_bytes / (4 if p.policy == "oaken" else 1))
        lxe(layer, "attention", w, came)
        for name in ("out", "gate_up", "down"):
            lxe(layer, name, works[name])
    crowd = 1.0
    lxe(-1, "vocabulary", product(v, p.batch if p.frame else rows, m.width, m.vocab))
    return Pass(line.stages, fetched, _watts(v, line, fetched))


def _watts(v: Vrex, line: Timeline, fetched: float) -> dict[str, float]:
    """Mean power: cores by use (ours) or as given (paper), memory by bytes, link and drive by the time they work."""
    total = max(s.end for s in line.stages)
    mw = POWER[v.power]
    use = sum(s.ops for s in line.stages) / 2 / v.macs / total if v.power == "ours" else 1.0
    core = mw["dpe idle"] + mw["dpe busy"] * use + mw["vpe"] + mw["dre"] + mw["memory"]
    moved = sum(s.bytes for s in line.stages)
    link = sum(s.end - s.start for s in line.stages if s.resource == "link") / total
    drive = HOST.idle_watts + HOST.joules(fetched) / total
    if v.ssd:
        drive = v.ssd.idle_watts + (v.ssd.active_watts - v.ssd.idle_watts) * link
    return {
        "cores": v.cores * core * 1e-3,
        "memory": v.dram.idle_watts + v.dram.joules(moved) / total,
        "link": v.link.watts * (v.link.idle_share + (1 - v.link.idle_share) * link),
        "store": drive,
    }
