"""Predicts latency, timeline and power of one pass through a model on V-Rex with N cores (V-Rex Fig. 10).

In each layer, the LXE computes Q, K and V, then hash bits and cluster scores that predict the next layer. HCU, WTU and
KVMU on the DRE select tokens for the next layer, and link and drive fetch them. Meanwhile the LXE attends to the
tokens fetched for this layer and runs the rest of it. LXE, DRE and link each run one stage at a time, in order. A
stage starts when its resource is free and its inputs are there. The fetch for the first layer starts when the encoder
ends.

- LXE: the longest of four times: products on the DPEs, words on the VPEs, bytes on the cores' ports, and all cores'
  bytes at the device memory. The latency of the bursts in flight limits the ports. Products take a chunk a cycle, row
  by row and tile by tile (`sim.units.dpe_time`). Weights stay in a tree's memory while rows pass. Rows that do not fit
  the activation memory are read again for each load of half the weight memory, which limits the vision encoder.
- DRE: cycles of the units' time views (`sim.system.dre_demand`).
- Link and drive: their models, on a sample of the KVMU's bursts. The latency counts once, then the sample's rate.

The model leaves out the write of new entries to home memory: 1.3 MB a frame, against the direction of fetches.
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

SOFTMAX_WORDS = 4  # passes of the VPE over each score: largest; exp and sum; product; conversion
ELEMENT_WORDS = 4  # passes of the VPE over each element of the encoder's hidden layers and normalisations
# Measured on the LXE's programs (`vrex simulate layer`): beats of the bursts that read keys and values, whose rows lie
# apart; and cycles of a core's port for a score of the decoder, which goes through memory. A score costs 0.14 (1K) to
# 0.20 (40K) cycles in the softmax, and 0.1 in the product with the values.
BEATS = {"keys": 4, "values": 2}
SCORE_PORT = 0.28
ENOUGH = 1 << 24  # bytes of a sample of reads


@dataclass(frozen=True)
class Work:
    """The load that a stage puts on the LXE.

    dpe, port : cycles of each core's DPE and memory port
    vpe : words through each core's VPE
    bytes : bytes of the device memory, all cores
    macs : useful multiplications, all cores
    """

    dpe: float = 0.0
    port: float = 0.0
    vpe: float = 0.0
    bytes: float = 0.0
    macs: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)))

    def seconds(self, v: Vrex, crowd: float = 1.0) -> float:
        """Seconds on `v`. Other traffic raises the bytes of the device memory by the factor `crowd`."""
        lanes = v.core.vpe.n_h * v.core.vpe.n_w
        return max(max(self.dpe, self.port, self.vpe / lanes) / CLOCK, crowd * self.bytes / v.bandwidth)


def port(v: Vrex, moved: float, beats: int | None = None) -> float:
    """Cycles of each core's port: a beat a cycle, or the limit that the latency sets for the bursts in flight.

    moved : bytes of all cores
    beats : length of the bursts, the longest possible if None
    """
    p = v.core.lxe
    beats = beats or p.burst_bytes // p.bus_bytes
    return moved / v.cores / p.bus_bytes * max(1.0, (1 + (v.latency + 1) / beats) / p.bursts)


def product(v: Vrex, rows: int, k: int, n: int) -> Work:
    """Load of the product [rows, k] x [k, n]. Every core has all rows and computes a part of the outputs."""
    d = v.core.dpe
    cycles = -(-n // (d.n_h * v.cores)) * rows * DpeTime(d).chunks(k) + TO_RESULT
    again = 1.0
    if rows * min(k, d.w_depth * d.n_w) > d.x_depth * d.n_w:
        # One half of the weight memory is filled while the other half is in use: n_h outputs of up to w_depth / 2
        # chunks. All rows pass once for each fill.
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
    """Load of scores, softmax and values for `rows` query rows of each stream.

    tokens : cached tokens that each stream attends to
    kv_bytes : bytes of K and V of one token in one layer
    score_port : cycles of a core's port for each score
    """
    macs = 2.0 * streams * rows * heads * head * tokens
    scores = streams * rows * heads * tokens / v.cores
    moved = streams * tokens * kv_bytes
    ports = port(v, moved / 2, BEATS["keys"]) + port(v, moved / 2, BEATS["values"]) + score_port * scores
    return Work(macs * CLOCK / v.macs + 2 * TO_RESULT, ports, SOFTMAX_WORDS * scores, moved, macs)


def encoder(v: Vrex, p: Point) -> tuple[Work, float]:
    """Load and seconds of the vision encoder for one image of each stream, product by product."""
    e = p.vision
    rows = p.batch * e.tokens
    works = [product(v, rows, k, n) for k, n in e.matrices.values()]
    # Rows come in blocks whose scores fit the activation memory, so no score leaves the core.
    works.append(attention(v, p.batch, e.tokens, e.heads, e.width // e.heads, e.tokens, 4 * e.width, score_port=0.0))
    works.append(Work(vpe=ELEMENT_WORDS * rows * (e.hidden + 4 * e.width) / v.cores))
    seconds = v.gap + sum(w.seconds(v) for w in works)
    whole = sum(works, Work())
    return Work(*(e.layers * getattr(whole, f.name) for f in fields(Work))), e.layers * seconds


def prediction(v: Vrex, p: Point, clusters: int) -> Work:
    """Load of a prediction: hash bits of the new keys, and scores of all queries with the cluster representatives."""
    m = p.model
    rows = p.batch * p.rows
    hashes = product(v, rows * m.kv_heads, m.head, v.core.dre.hcu.n_hp)
    macs = float(rows * m.heads * m.head * clusters)
    means = p.batch * clusters * m.kv_heads * m.head * 2
    words = SOFTMAX_WORDS * rows * m.heads * clusters / v.cores
    return hashes + Work(macs * CLOCK / v.macs, port(v, means, BEATS["keys"]), words, means, macs)


@lru_cache(maxsize=512)
def transfer(link: Link, ssd: Ssd | None, addr: bytes, size: bytes) -> tuple[float, float]:
    """Latency in seconds, then bytes per second, of reads over the link from the drive or the host's memory.

    addr, size : int64 arrays of addresses and bytes, as `tobytes` gives them, so that results can be cached
    ssd : None for the host's memory

    The function repeats the list at other addresses until the end, when dies and tags fall idle, no longer counts.
    """
    a, n = np.frombuffer(addr, np.int64), np.frombuffer(size, np.int64)
    times = -(-ENOUGH // int(n.sum()))
    apart = (1 << 34) + (1 << 15)  # distance of the repetitions, which puts them on other planes, too
    a, n = (a + apart * np.arange(times)[:, None]).ravel(), np.tile(n, times)
    if ssd is None:
        first = 2 * link.latency + link.memory
        # The host's memory limits the rate for pieces of this size.
        host = HOST.t.bandwidth * HOST.efficiency(1 << int(np.log2(min(4096, n.mean()))))
        return first, float(min(host, n.sum() / (link.read(a, n).seconds - first)))
    drive = replace(ssd, link=link)
    first = drive.read_latency(1)
    return first, float(n.sum() / (drive.read(a, n).seconds - first))


def fetch(v: Vrex, tokens: float, share: float, per_cluster: int) -> tuple[float, float]:
    """Seconds of link and drive for a layer's fetch, and cycles in which the KVMU walks over the clusters.

    tokens : tokens to fetch
    share : share of the clusters that hold them
    per_cluster : tokens of a cluster
    """
    if tokens <= 0:
        return 0.0, 0.0
    f = dre_demand.fetch(
        v.core.dre, per_cluster, max(1, min(dre_demand.CLUSTERS, round(share * dre_demand.CLUSTERS))), v.kvmu
    )
    first, rate = transfer(v.link, v.ssd, f.addr.tobytes(), f.bytes.tobytes())
    return first + tokens * v.core.dre.kvmu.entry_bytes / rate, f.cycles * tokens / per_cluster


def run(v: Vrex, p: Point, selection: Selection) -> Pass:
    """Simulates one pass of `p` on `v`; `selection` says which share of the offloaded tokens each layer fetches."""
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
        keys = (
            rows * dre_demand.cluster_cycles(dre, clusters) / min(v.cores, p.batch)
        )  # a stream's table is in one core
        scores = rows * m.heads * dre_demand.select_cycles(dre, clusters) / dre.wtu.n_h / v.cores
        selects = (keys, scores)
    line = Timeline()
    crowd = 1.0  # all bytes of the device memory, link included, over those of the LXE

    def lxe(layer: int, name: str, w: Work, after: float = 0.0) -> float:
        return line.put(layer, name, "LXE", w.seconds(v, crowd), after, w.bytes, 2 * w.macs)

    if p.frame:
        w, seconds = encoder(v, p)
        line.put(-1, "vision", "LXE", seconds, 0.0, w.bytes, 2 * w.macs)
    asked = [line.free.get("LXE", 0.0)] * v.ahead  # when each layer's selection is known
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
    """Mean power in watts, by part.

    Cores count by use ("ours") or as the paper gives them ("paper"), memory by bytes, link and drive by busy time.
    """
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
