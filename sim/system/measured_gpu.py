"""Predicts a pass on a measured GPU from the figures of its platform file (`sim.system.gpu_figures`).

The GPU runs one stage at a time. A kernel gathers what the layer has just chosen from the host's memory and occupies
the GPU meanwhile, so nothing overlaps a fetch but FlexGen's, which copies whole layers ahead. Between measured rows,
clusters, tokens and pictures figures are interpolated, beyond them extrapolated. A batch multiplies clusters and tokens
of a choice, whose kernels take all heads of all streams at once.

Attention to `tokens` of each of `streams` streams takes `fixed + tokens * (shared + each * streams)`: of one stream
through its shortest and longest cache, and of `streams` from how much more each token of the largest measured batch
takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.sim.system.gpu_figures import Attention, Frame, GpuFigures
from openvrex.sim.system.ssd import Ssd
from openvrex.sim.system.timeline import EVERYTHING, RESIDENT, Pass, Point, Timeline
from openvrex.sim.system.workload import Decoder, Selection, constant

RECENT = 64  # tokens of the ring, which are attended to beside what is fetched
HOME_BITS = {16: 16.0, 4: 4.5}  # of a number at home: 4 bits with a scale and an offset for 32 of them
PIECE = {"resv": 32, "pages": 8}  # tokens that lie together at home


@dataclass(frozen=True)
class MeasuredGpu:
    """A GPU at the rates of a platform file.

    home_bits : of a number at home, 16 or 4; those of 4 are expanded on the GPU after their fetch
    given     : the choice is known, as if a retrieval engine beside the GPU had made it
    drive     : home is this drive; None: the host's memory

    Raises `ParamError` for other bits, and for 4 where expanding them was not measured.
    """

    name: str
    figures: GpuFigures
    home_bits: int = 16
    given: bool = False
    drive: Ssd | None = None

    def __post_init__(self) -> None:
        known = [16, *([4] if self.figures.expand_gbps else [])]
        check(self.home_bits in known, "home_bits", self.home_bits, f"must be {' or '.join(map(str, known))}")

    @property
    def decoder(self) -> Decoder:
        """The decoder that was measured."""
        return self.figures.shape.decoder

    @property
    def capacity(self) -> int:
        """Bytes of device memory."""
        return int(self.figures.capacity_gib * 2**30)

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies that the figures time."""
        return "resident", EVERYTHING, *self.figures.steps_ms

    @property
    def remarks(self) -> list[str]:
        """What a reader of its times must know: how it was measured, what is fitted, whose sizes these are."""
        f, m = self.figures, self.decoder
        out = [f.note] if f.note else []
        if m != Decoder():
            out.append(f"sizes are those of the file's decoder: {m.layers} layers, {m.width} wide")
        return [*out, *(["fitted, not measured: " + ", ".join(f.fitted)] if f.fitted else [])]

    def index_bytes(self, policy: str, tokens: float, cluster: float) -> float:
        """Bytes of what a policy ranks, in all layers, of so many tokens: mean keys, or 64 bits a token and head."""
        m, each = self.decoder, {"resv": 2 * self.decoder.head / cluster, "pages": 8}
        return m.layers * m.kv_heads * tokens * each.get(policy, 0)

    def products(self, rows: int) -> float:
        """Seconds of one layer's products and norms."""
        return 1e-3 * between(self.figures.layers_ms, rows) / self.figures.shape.layers

    def attention(self, streams: int, rows: int, tokens: float) -> float:
        """Seconds of one layer's attention, each stream to so many tokens of its own."""
        fixed, shared, each = attention_terms(self.figures.attention, rows)
        return 1e-3 * max(0.0, fixed + tokens * (shared + each * streams))

    def encoder(self, pictures: int) -> float:
        """Seconds of the vision encoder."""
        return 1e-3 * between(self.figures.encoder_ms, pictures)

    def choice(self, policy: str, units: float) -> float:
        """Seconds of the steps of a choice in one layer, from so many clusters of a head or tokens."""
        known = self.figures.steps_ms[policy]
        return 1e-3 * between({n: sum(parts.values()) for n, parts in known.items()}, units)

    def fetched(self, policy: str, tokens: float) -> float:
        """Seconds in which one layer's entries of so many tokens come from home."""
        m, bits = self.decoder, HOME_BITS[self.home_bits] / 16
        piece = PIECE[policy] * m.entry_bytes / m.kv_heads * bits
        rate = 1e9 * between(self.figures.link_gather_gbps, piece)
        if self.drive:
            rate = min(rate, drive_rate(self.drive, round(piece)))
        return tokens * m.entry_bytes * bits / rate

    def copied(self, size: float) -> float:
        """Seconds of a copy of so many bytes from home."""
        rate = 1e9 * between(self.figures.link_copy_gbps, size)
        return size / (min(rate, self.drive.peak()) if self.drive else rate)

    def watts(self, policy: str) -> dict[str, float]:
        """Mean power under a policy, or the most that was measured; empty if none was."""
        known = self.figures.watts
        return {"GPU": known.get(policy, max(known.values()))} if known else {}


def between(known: Mapping[int, float], at: float) -> float:
    """Linear between measured points, and beyond them as between the two last; never below the least of them."""
    x, y = np.array(sorted(known), float), np.array([known[n] for n in sorted(known)], float)
    if len(x) == 1 or x[0] <= at <= x[-1]:
        return float(np.interp(at, x, y))
    a, b = (0, 1) if at < x[0] else (-2, -1)
    return max(float(y.min()), float(y[b] + (at - x[b]) * (y[b] - y[a]) / (x[b] - x[a])))


def attention_terms(known: list[Attention], rows: int) -> tuple[float, float, float]:
    """`fixed`, `shared` and `each` of the attention of `rows` queries, in ms: linear in rows between two measured."""
    own = {r: _terms([a for a in known if a.rows == r]) for r in {a.rows for a in known}}
    if len(own) == 1:
        return next(iter(own.values()))
    low, high = sorted(own, key=lambda r: (abs(r - rows), r))[:2]
    part = (rows - low) / (high - low)
    fixed, shared, each = (max(0.0, a + part * (b - a)) for a, b in zip(own[low], own[high], strict=True))
    return fixed, shared, each


def _terms(known: list[Attention]) -> tuple[float, float, float]:
    def line(streams: int) -> tuple[float, float]:
        """What no token takes, and each token of all streams."""
        ends = sorted((a.tokens, a.ms) for a in known if a.streams == streams)
        (n, first), (m, last) = ends[0], ends[-1]
        slope = (last - first) / (m - n) if m > n else first / n
        return max(0.0, first - n * slope), slope

    most = max(a.streams for a in known)
    fixed, one = line(1)
    each = (line(most)[1] - one) / (most - 1) if most > 1 else one
    return fixed, one - each, each


@lru_cache(maxsize=64)
def drive_rate(drive: Ssd, piece: int, reads: int = 1 << 14) -> float:
    """Bytes per second of reads of `piece` bytes at scattered addresses, with the drive's queue full."""
    addr = np.random.default_rng(1).integers(0, drive.capacity // 4096, reads) * 4096
    return reads * piece / drive.read(addr, np.full(reads, piece)).seconds


def run(g: MeasuredGpu, p: Point, selection: Selection) -> Pass:
    """Simulates one pass of `p` on `g`; `selection` says which share of the cache each layer fetches.

    Raises `ParamError` for a policy or a model that was not measured.
    """
    why = f"was not measured on {g.name}: take one of {', '.join(g.policies)}"
    check(p.policy in g.policies, "policy", p.policy, why)
    check(p.model == g.decoder, "model", p.model, f"was not measured on {g.name}: take that of its file")
    m, rows = p.model, p.batch * p.rows
    line, fetched = Timeline(), 0.0

    def gpu(layer: int, name: str, seconds: float, after: float = 0.0, ops: float = 0.0, moved: float = 0.0) -> float:
        return line.put(layer, name, "GPU", seconds, after, moved, ops)

    if p.frame:
        gpu(-1, "vision", g.encoder(p.batch), ops=2.0 * p.batch * p.vision.macs)
    chooses = p.policy in g.figures.steps_ms
    for layer, share in enumerate(selection.layers(p.stage).tolist()):
        tokens = p.cache if p.policy in RESIDENT else share * p.cache
        moved = p.batch * share * p.cache * m.entry_bytes * HOME_BITS[g.home_bits] / 16
        fetched += moved
        gpu(layer, "layer", g.products(rows), ops=2.0 * rows * m.layer_weights, moved=m.layer_bytes)
        entries, came = p.batch * tokens * m.entry_bytes, 0.0
        if p.policy == EVERYTHING:
            came = line.put(layer, "fetch", "link", g.copied(moved))
        if chooses:
            units = p.cache / selection.cluster if p.policy == "resv" else p.cache
            if not g.given:
                gpu(layer, "predict", g.choice(p.policy, p.batch * units))
            took = g.fetched(p.policy, p.batch * tokens)
            came = line.put(layer, "fetch", "link", took, line.free["GPU"])
            if g.figures.join_gbps:
                came = gpu(layer, "join", entries / g.figures.join_gbps / 1e9, came)
            tokens += RECENT
        if moved and g.home_bits != 16 and g.figures.expand_gbps:
            came = gpu(layer, "expand", entries / g.figures.expand_gbps / 1e9, came)
        ops = 2.0 * p.batch * m.attention_macs(p.rows, tokens)
        gpu(layer, "attention", g.attention(p.batch, p.rows, tokens), came, ops, entries)
    head = 2 * m.width * m.vocab
    gpu(-1, "vocabulary", head / (m.layer_bytes / g.products(1)), moved=head)
    return Pass(line.stages, fetched, g.watts(p.policy))


def of_pages(params: PageParams, p: Point) -> Selection:
    """What coded pages fetch on a GPU: their budget and the pages of sinks, of whatever cache."""
    tokens = params.budget + params.pinned * params.page
    share = min(1.0, tokens / p.cache)
    return constant(f"{params.budget} tokens of pages of {params.page}", share, share, p.model)


def predicted(g: MeasuredGpu, f: Frame) -> float:
    """Milliseconds of a measured pass by the model; as measured, without encoder, with a vocabulary for tokens."""
    name = f"{f.share:.0%}"
    shares = constant(name, f.share, f.share, g.decoder, cluster=f.cluster)
    point = Point(f.tokens, f.streams, f.rows, False, f.policy, g.decoder)
    p = run(replace(g, home_bits=f.home_bits, given=f.given), point, shares)
    return 1e3 * (p.seconds - (p.named("vocabulary") if f.rows > 1 else 0.0))


def scaled(
    known: GpuFigures, device: str, memory: float, peak: float, link: float, watts: float, capacity_gib: float
) -> GpuFigures:
    """Figures of another GPU, at ratios of its data sheet to that of the measured one.

    memory, peak, link, watts : the other's bandwidths, operations and power over the measured one's

    Steps of one row, of attention and of choices go with the memory; what more rows add, and the encoder, with the
    peak. What a layer's attention takes without tokens is launches, and stays.
    """
    one = known.layers_ms[min(known.layers_ms)]

    def attention(a: Attention) -> Attention:
        fixed = attention_terms(known.attention, a.rows)[0]
        return a.model_copy(update={"ms": fixed + max(0.0, a.ms - fixed) / memory})

    return known.model_copy(
        update={
            "device": device,
            "note": f"scaled from {known.device} by data sheets: memory x {memory:.3f}, operations x {peak:.3f}, "
            f"link x {link:.3f}, power x {watts:.3f}",
            "capacity_gib": capacity_gib,
            "copy_gbps": known.copy_gbps * memory,
            "matmul_tflops": known.matmul_tflops * peak,
            "layers_ms": {n: one / memory + (ms - one) / peak for n, ms in known.layers_ms.items()},
            "attention": [attention(a) for a in known.attention],
            "encoder_ms": {n: ms / peak for n, ms in known.encoder_ms.items()},
            "link_copy_gbps": {n: x * link for n, x in known.link_copy_gbps.items()},
            "link_gather_gbps": {n: x * link for n, x in known.link_gather_gbps.items()},
            "steps_ms": {
                policy: {n: {step: ms / memory for step, ms in steps.items()} for n, steps in table.items()}
                for policy, table in known.steps_ms.items()
            },
            "join_gbps": known.join_gbps and known.join_gbps * memory,
            "expand_gbps": known.expand_gbps and known.expand_gbps * memory,
            "watts": {name: w * watts for name, w in known.watts.items()},
            "frames": [],
        }
    )
