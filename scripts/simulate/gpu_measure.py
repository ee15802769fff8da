"""Measures what the model of a GPU needs (`sim.system.gpu_figures`), with PyTorch, on a GPU or at small sizes without.

Random data throughout, BF16, no check of results: the same work takes the same time. A GPU replays CUDA graphs, so that
launches from Python do not count. Where little memory is free, layers share weights and caches, and lengths are halved
until they fit. Figures are medians.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from typing import Literal

import torch
from torch.nn import functional as nn

from openvrex.scripts.simulate.gpu_kernels import BITS, PAGE, Kernels, TorchKernels
from openvrex.sim.system.gpu_figures import Attention, Frame, GpuFigures, Shape
from openvrex.sim.system.measured_gpu import HOME_BITS, RECENT
from openvrex.sim.system.workload import Decoder, Vision

MOST_APART = 26  # of 32 bits: random keys of few clusters then join them, as keys of a table in use do
HASH_BITS = 32
WATCHED = 3.0  # seconds in which the driver is asked for watts
CODE = 32  # numbers that share a scale and an offset in a 4-bit home
Run = Callable[[], object]


@dataclass(frozen=True)
class Sizes:
    """What is measured: of a GPU that of Llama-3 8B, on a processor little, to try the command.

    streams, tokens : of resident caches · clusters, cached : of a KV head's choice · shared : bytes of caches that
    attention reads in turn, more than a GPU's own cache holds
    """

    decoder: Decoder = Decoder()
    vision: Vision = Vision()
    product: int = 8192
    copied: int = 1 << 30
    rows: tuple[int, ...] = (1, 10, 40, 160, 640)
    streams: tuple[int, ...] = (1, 4)
    tokens: tuple[int, ...] = (10240, 102400)
    clusters: tuple[int, ...] = (1280, 20480)
    cached: tuple[int, ...] = (40960, 1024000)
    pictures: tuple[int, ...] = (1, 4, 16)
    pieces: tuple[int, ...] = (256, 1024, 4096, 16384, 65536, 1 << 20)
    copies: tuple[int, ...] = (4096, 65536, 1 << 20, 16 << 20, 168 << 20, 1 << 30)
    resident: tuple[int, ...] = (1024, 40960)
    retrieved: int = 40960
    shared: int = 1 << 29


SMALL = Sizes(
    Decoder(2, 256, 8, 2, 32, 512, 1024),
    Vision(1, 64, 4, 128, 16, 48),
    product=256,
    copied=1 << 20,
    rows=(1, 10, 40),
    streams=(1, 2),
    tokens=(256, 1024),
    clusters=(64, 256),
    cached=(1024, 4096),
    pictures=(1, 2),
    pieces=(256, 4096),
    copies=(4096, 1 << 20),
    resident=(256,),
    retrieved=1024,
    shared=1,
)
FRAME = 10  # rows of a frame


class Machine:
    """Times functions on a device: "cuda", or "cpu"."""

    def __init__(self, device: str):
        self.device = device
        self.gpu = device != "cpu"

    def random(self, *shape: int) -> torch.Tensor:
        """Normal BF16 numbers."""
        return torch.randn(*shape, device=self.device, dtype=torch.bfloat16)

    def home(self, size: int) -> torch.Tensor:
        """Bytes of the host's memory, pinned where there is a GPU."""
        return torch.zeros(size, dtype=torch.uint8, pin_memory=self.gpu)

    def compiled(self, f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """`f` compiled for a GPU; on a processor, as it is."""
        return torch.compile(f) if self.gpu else f

    @property
    def free(self) -> int:
        """Bytes of device memory that are free."""
        return torch.cuda.mem_get_info()[0] if self.gpu else 1 << 30

    @property
    def capacity(self) -> int:
        """Bytes of device memory; without a GPU a figure that stands for none."""
        return torch.cuda.get_device_properties(0).total_memory if self.gpu else 1 << 30

    def ms(self, f: Run, times: int = 10, graph: bool = True) -> float:
        """Median milliseconds of a call. `graph` : replayed from a CUDA graph, so nothing but kernels counts"""
        if not self.gpu:
            return statistics.median(self.wall(f) for _ in range(3))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                f()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        call: Run = f
        if graph:
            recorded = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded):
                f()
            call = recorded.replay
        call()
        torch.cuda.synchronize()
        return statistics.median(self._event(call) for _ in range(times))

    @staticmethod
    def wall(f: Run) -> float:
        """Milliseconds of a call on the processor's clock."""
        start = time.perf_counter()
        f()
        return 1e3 * (time.perf_counter() - start)

    @staticmethod
    def _event(f: Run) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        f()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    def watts(self, f: Run) -> float | None:
        """Median power of the board while `f` repeats; None where the driver does not tell."""
        if not self.gpu:
            return None
        found, until = [], time.monotonic() + WATCHED
        try:
            while time.monotonic() < until:
                f()
                torch.cuda.synchronize()
                found.append(torch.cuda.power_draw() / 1e3)
        except (ModuleNotFoundError, RuntimeError, AttributeError):
            return None
        return statistics.median(found[len(found) // 3 :]) or None


class Layer:
    """Weights of a decoder layer."""

    def __init__(self, on: Machine, m: Decoder):
        self.w = {name: on.random(k, n) / math.sqrt(k) for name, (k, n) in m.matrices.items()}
        self.norm = torch.ones(m.width, device=on.device, dtype=torch.bfloat16)


class Model:
    """A decoder whose layers share weights and caches as far as memory lacks."""

    def __init__(self, on: Machine, m: Decoder):
        self.on, self.m = on, m
        count = max(1, min(m.layers, int(0.4 * on.free) // (2 * m.layer_weights)))
        self.layers = [Layer(on, m) for _ in range(count)]

    def cache(self, heads: int, tokens: int) -> torch.Tensor:
        """Keys and values of so many heads, [heads, tokens, 2, head], as they lie at home."""
        return self.on.random(heads, tokens, 2, self.m.head)

    def queries(self, projected: torch.Tensor, streams: int) -> torch.Tensor:
        """[streams * KV heads, rows, head], the queries of a KV head as rows of one product."""
        m, rows = self.m, len(projected) // streams
        own = projected[:, : m.heads * m.head].view(streams, rows, m.kv_heads, m.heads // m.kv_heads, m.head)
        return own.permute(0, 2, 3, 1, 4).reshape(streams * m.kv_heads, -1, m.head)

    def joined(self, attended: torch.Tensor, streams: int) -> torch.Tensor:
        """What `queries` took apart, back in rows."""
        m = self.m
        own = attended.view(streams, m.kv_heads, m.heads // m.kv_heads, -1, m.head)
        return own.permute(0, 3, 1, 2, 4).reshape(-1, m.heads * m.head)

    def attend(self, q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """Two products and a softmax over a cache."""
        keys, values = cache.unbind(2)
        return torch.softmax(q @ keys.transpose(-1, -2) * (1 / math.sqrt(self.m.head)), -1) @ values

    def through(self, x: torch.Tensor, attention: Callable[[int, torch.Tensor], torch.Tensor] | None) -> torch.Tensor:
        """All layers; `attention` gets a layer's number and its projected rows."""
        m = self.m
        for i in range(m.layers):
            own = self.layers[i % len(self.layers)]
            y = nn.rms_norm(x, (m.width,), own.norm) @ own.w["qkv"]
            a = attention(i, y) if attention else y[:, : m.heads * m.head]
            x = x + a @ own.w["out"]
            gate, up = (nn.rms_norm(x, (m.width,), own.norm) @ own.w["gate_up"]).chunk(2, -1)
            x = x + (nn.silu(gate) * up) @ own.w["down"]
        return x


class Choice:
    """One layer's choice of what to fetch, from `units` clusters of a head (`resv`) or tokens (`pages`)."""

    def __init__(self, model: Model, own: Kernels, policy: str, units: int):
        on, m = model.on, model.m
        self.model, self.kernels, self.policy = model, own, policy
        device = on.device
        self.out = torch.zeros(m.kv_heads, units if policy == "resv" else units // PAGE, device=device)
        self.shifts = 1 << torch.arange(HASH_BITS if policy == "resv" else BITS - 2, device=device, dtype=torch.int64)
        if policy == "resv":
            ints = partial(torch.zeros, device=device, dtype=torch.int32)
            self.planes, self.means = on.random(m.head, HASH_BITS), on.random(m.kv_heads, units, m.head)
            self.table = torch.randint(
                -(2**31), 2**31 - 1, (m.kv_heads, units + FRAME), device=device, dtype=torch.int32
            )
            self.used, self.sizes = ints(m.kv_heads) + units, ints(m.kv_heads, units + FRAME)
            self.counts = torch.randint(1, 64, (m.kv_heads, 1, units), device=device).float()
            self._ranked = on.compiled(self._threshold)
        else:
            self.planes = on.random(m.head, BITS)
            self.signs = torch.randint(-(2**62), 2**62, (m.kv_heads, units), device=device)

    def parts(self, y: torch.Tensor) -> Iterator[tuple[str, Run]]:
        """The steps by name, for rows `y` behind the product of queries, keys and values."""
        q, keys = self.model.queries(y, 1), self._keys(y)
        if self.policy == "resv":
            bits, scores = self._signs(keys).int(), self._scores(q)
            yield "hash", lambda: self._signs(keys)
            yield "cluster", lambda: self._enter(bits)
            yield "scores", lambda: self._scores(q)
            yield "mass and threshold", lambda: self._ranked(scores)
        else:
            turned = (q @ self.planes).contiguous()
            yield "code", lambda: (self._signs(keys), q @ self.planes)
            yield "scores", lambda: self.kernels.score(turned, self.signs, self.out)
        yield "rank", lambda: self.out.topk(self.out.shape[-1] // 20)

    def pieces(self, y: torch.Tensor, count: int) -> torch.Tensor:
        """All steps, one after the other; returns the numbers of the pieces that each head fetches."""
        q, bits = self.model.queries(y, 1), self._signs(self._keys(y))
        if self.policy == "resv":
            self._enter(bits.int())
            return self._ranked(self._scores(q)).topk(count, -1).indices
        self.kernels.score((q @ self.planes).contiguous(), self.signs, self.out)
        return self.out.topk(count, -1).indices

    def _enter(self, bits: torch.Tensor) -> None:
        self.kernels.cluster(bits, self.table, self.used, self.sizes, MOST_APART)

    def _keys(self, y: torch.Tensor) -> torch.Tensor:
        m = self.model.m
        own = y[:, m.heads * m.head : (m.heads + m.kv_heads) * m.head]
        return own.reshape(len(y), m.kv_heads, m.head).transpose(0, 1)

    def _signs(self, keys: torch.Tensor) -> torch.Tensor:
        return (((keys @ self.planes)[..., : len(self.shifts)] > 0).long() * self.shifts).sum(-1)

    def _scores(self, q: torch.Tensor) -> torch.Tensor:
        return (q @ self.means.transpose(-1, -2)).float() * (1 / math.sqrt(self.model.m.head))

    def _threshold(self, scores: torch.Tensor) -> torch.Tensor:
        """The mass of each cluster above the threshold that holds 30 % of its row, by bisection."""
        mass = torch.exp(scores - scores.amax(-1, keepdim=True)) * self.counts
        low, high = torch.zeros_like(mass[..., :1]), mass.amax(-1, keepdim=True)
        wanted = 0.3 * mass.sum(-1, keepdim=True)
        for _ in range(16):
            middle = (low + high) / 2
            enough = torch.where(mass >= middle, mass, 0).sum(-1, keepdim=True) >= wanted
            low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
        return torch.where(mass >= low, mass, 0).amax(1)


class Retrieval:
    """Whole passes with a choice, a fetch from the host, and attention to what came beside the ring."""

    def __init__(self, model: Model, own: Kernels, policy: str, tokens: int, bits: Literal[4, 16]):
        m, on = model.m, model.on
        self.model, self.kernels, self.bits = model, own, bits
        self.piece = 32 if policy == "resv" else PAGE
        self.count = tokens // 20 // self.piece
        self.choice = Choice(model, own, policy, tokens // 32 if policy == "resv" else tokens)
        entry = 2 * m.head * HOME_BITS[bits] / 8  # bytes of K and V of a token and head
        self.words = round(self.piece * entry) // 8
        places = m.kv_heads * (tokens // self.piece)
        self.home = on.home(8 * places * self.words).view(torch.int64).view(places, self.words)
        self.first = torch.arange(m.kv_heads, device=on.device)[:, None] * (tokens // self.piece)
        self.given = torch.randint(0, tokens // self.piece, (m.kv_heads, self.count), device=on.device)
        # Entries in BF16 lie behind those of the ring; in 4 bits they come to a place of their own.
        self.ahead = RECENT * 2 * m.head * 2 // 8 if bits == 16 else 0
        self.came = torch.zeros(m.kv_heads, self.ahead + self.count * self.words, device=on.device, dtype=torch.int64)
        self.cache = model.cache(m.kv_heads, RECENT + self.count * self.piece)
        self._expanded = on.compiled(expanded)
        share, cluster = self.count * self.piece / tokens, 32.0 if policy == "resv" else 1.0
        self.frame = Frame(policy=policy, tokens=tokens, share=share, cluster=cluster, home_bits=bits, ms=1.0)

    def attention(self, given: bool) -> Callable[[int, torch.Tensor], torch.Tensor]:
        """What a layer does behind its first product. `given` : the choice is known"""
        m = self.model.m

        def run(layer: int, y: torch.Tensor) -> torch.Tensor:
            chosen = self.given if given else self.choice.pieces(y, self.count)
            self.kernels.gather(self.home, self.came, chosen + self.first, self.words, self.ahead)
            if self.bits == 16:
                cache = self.came.view(torch.bfloat16).view(m.kv_heads, -1, 2, m.head)
            else:
                cache = self.cache
                cache[:, RECENT:] = self._expanded(self.came).view(m.kv_heads, -1, 2, m.head)
            return self.model.joined(self.model.attend(self.model.queries(y, 1), cache), 1)

        return run


def expanded(entries: torch.Tensor) -> torch.Tensor:
    """BF16 numbers of 4-bit entries, int64 words: codes of all first, then a scale and an offset for each 32."""
    own = entries.view(torch.uint8).flatten()
    groups = own.numel() // (CODE // 2 + 2)
    codes = own[: groups * CODE // 2].view(groups, CODE // 2)
    scale = own[groups * CODE // 2 : groups * (CODE // 2 + 2)].view(groups, 2).to(torch.bfloat16)
    numbers = torch.stack([codes & 15, codes >> 4], -1).view(groups, CODE).to(torch.bfloat16)
    return numbers * scale[:, :1] + scale[:, 1:]


def encoder(on: Machine, v: Vision) -> Callable[[int], Run]:
    """The vision encoder's layers, for a number of pictures."""
    w = {name: on.random(k, n) / math.sqrt(k) for name, (k, n) in v.matrices.items()}

    def of(pictures: int) -> Run:
        x = on.random(pictures, v.tokens, v.width)

        def run() -> torch.Tensor:
            y = x
            for _ in range(v.layers):
                q, k, u = (
                    a.view(pictures, v.tokens, v.heads, -1).transpose(1, 2)
                    for a in (nn.layer_norm(y, (v.width,)) @ w["qkv"]).chunk(3, -1)
                )
                a = nn.scaled_dot_product_attention(q, k, u).transpose(1, 2).reshape(y.shape)
                y = y + a @ w["out"]
                y = y + nn.gelu(nn.layer_norm(y, (v.width,)) @ w["up"], approximate="tanh") @ w["down"]
            return y

        return run

    return of


def measured(sizes: Sizes, on: Machine, say: Callable[[str], None]) -> GpuFigures:
    """All figures of a machine; `say` hears what is measured next."""
    m, own = sizes.decoder, _kernels(on)
    say("copies and products")
    copy, product, launches = _copy(sizes, on), _product(sizes, on), _launches(on)
    say("the link")
    link_copies, link_gathers = _link(sizes, on, own)
    say("the vision encoder")
    pictures = encoder(on, sizes.vision)
    encoders = {n: on.ms(pictures(n)) for n in sizes.pictures}
    say("products of all layers")
    model = Model(on, m)
    layers = {}
    for rows in sizes.rows:
        x = on.random(rows, m.width)
        layers[rows] = on.ms(lambda x=x: model.through(x, None))  # type: ignore[misc]
    say("attention to a resident cache")
    attention = list(_attention(sizes, model))
    say("choices")
    y = on.random(FRAME, m.matrices["qkv"][1])
    steps: dict[str, dict[int, dict[str, float]]] = {}
    for policy, units in (("resv", sizes.clusters), ("pages", sizes.cached)):
        steps[policy] = {n: {k: on.ms(f) for k, f in Choice(model, own, policy, n).parts(y)} for n in units}
    frames, watts = _frames(sizes, model, own, say)
    device = torch.cuda.get_device_name() if on.gpu else "a processor"
    small = "On a processor at small sizes, to try the command: these figures describe no GPU. " * (not on.gpu)
    return GpuFigures(
        version=1,
        device=device,
        date=date.today().isoformat(),
        versions={"openvrex": version("openvrex"), "torch": torch.__version__, "kernels": own.name},
        note=f"{small}Random data, BF16, medians of one run",
        shape=Shape.of(m),
        capacity_gib=on.capacity / 2**30,
        copy_gbps=copy,
        matmul_tflops=product,
        launch_us=launches,
        layers_ms=layers,
        attention=attention,
        encoder_ms=encoders,
        link_copy_gbps=link_copies,
        link_gather_gbps=link_gathers,
        steps_ms=steps,
        expand_gbps=_expansion(sizes, on),
        watts=watts,
        frames=frames,
    )


def _kernels(on: Machine) -> Kernels:
    """Triton's kernels on a GPU, else PyTorch's."""
    if not on.gpu:
        return TorchKernels()
    from openvrex.scripts.simulate.gpu_triton import TritonKernels

    return TritonKernels()


def _copy(sizes: Sizes, on: Machine) -> float:
    """GB/s of a copy in the device memory, bytes read and written."""
    a, b = (torch.zeros(sizes.copied, dtype=torch.uint8, device=on.device) for _ in range(2))
    return 2e-6 * sizes.copied / on.ms(lambda: b.copy_(a))


def _product(sizes: Sizes, on: Machine) -> float:
    """TFLOPS of a square product."""
    x = on.random(sizes.product, sizes.product)
    return 2e-9 * sizes.product**3 / on.ms(lambda: x @ x)


def _expansion(sizes: Sizes, on: Machine) -> float:
    """GB/s of BF16 numbers made of 4-bit ones."""
    entries, expand = torch.zeros(sizes.copied // 8, dtype=torch.int64, device=on.device), on.compiled(expanded)
    return 1e-6 * sizes.copied / (CODE // 2 + 2) * CODE * 2 / on.ms(lambda: expand(entries))


def _launches(on: Machine) -> dict[str, float]:
    """Microseconds of a kernel, replayed from a graph and launched from Python."""
    z = torch.zeros(1, device=on.device)

    def many() -> None:
        for _ in range(1000):
            z.add_(1)

    return {"graph": on.ms(many), "python": on.wall(many)}


def _link(sizes: Sizes, on: Machine, own: Kernels) -> tuple[dict[int, float], dict[int, float]]:
    """GB/s of copies from the host by size, and of a kernel's gathers by piece."""
    host, device = on.home(sizes.copied), torch.zeros(sizes.copied, dtype=torch.uint8, device=on.device)
    copies, gathers = {}, {}
    for size in sizes.copies:
        parts = range(0, min(sizes.copied, max(size, 64 * size if size < 1 << 20 else 0)), size)

        def copied(parts: range = parts, size: int = size) -> None:
            for at in parts:
                device[at : at + size].copy_(host[at : at + size], non_blocking=True)

        copies[size] = 1e-6 * size * len(parts) / on.ms(copied, graph=False)
    for piece in sizes.pieces:
        count = max(1, min(sizes.copied, 64 << 20) // piece)
        index = torch.randperm(sizes.copied // piece)[:count].to(on.device)[None]
        source, place = (
            host.view(torch.int64).view(-1, piece // 8),
            device.view(torch.int64)[None, : count * piece // 8],
        )
        run = partial(own.gather, source, place, index, piece // 8, 0)
        gathers[piece] = 1e-6 * count * piece / on.ms(run)
    return copies, gathers


def _attention(sizes: Sizes, model: Model) -> Iterator[Attention]:
    """A layer's attention, over several caches in turn, so that none is left in the GPU's own."""
    on, m = model.on, model.m
    for streams in sizes.streams:
        for tokens in sizes.tokens:
            while 2 * streams * tokens * m.entry_bytes > 0.6 * on.free:
                tokens //= 2
            count = max(1, min(16, sizes.shared // (streams * tokens * m.entry_bytes)))
            caches = [model.cache(streams * m.kv_heads, tokens) for _ in range(count)]
            for rows in (FRAME, 1):
                q = model.queries(on.random(streams * rows, m.matrices["qkv"][1]), streams)
                ms = on.ms(lambda q=q, caches=caches: [model.attend(q, c) for c in caches])  # type: ignore[misc]
                yield Attention(streams=streams, rows=rows, tokens=tokens, ms=ms / count)


def _frames(
    sizes: Sizes, model: Model, own: Kernels, say: Callable[[str], None]
) -> tuple[list[Frame], dict[str, float]]:
    """Whole passes, to hold the model against, and watts."""
    on, m = model.on, model.m
    x, out, watts = on.random(FRAME, m.width), [], dict[str, float]()

    def note(policy: str, run: Run) -> None:
        if found := on.watts(run):
            watts[policy] = found

    for tokens in sizes.resident:
        say(f"a resident frame of {tokens:,} tokens")
        count = max(1, min(m.layers, int(0.8 * on.free) // (tokens * m.entry_bytes)))
        caches = [model.cache(m.kv_heads, tokens) for _ in range(count)]

        def resident(i: int, y: torch.Tensor, caches: list[torch.Tensor] = caches) -> torch.Tensor:
            return model.joined(model.attend(model.queries(y, 1), caches[i % len(caches)]), 1)

        run = partial(model.through, x, resident)
        out.append(Frame(policy="resident", tokens=tokens, ms=on.ms(run)))
        note("resident", run)
    kinds: tuple[tuple[str, Literal[4, 16]], ...] = ("resv", 16), ("pages", 16), ("pages", 4)
    for policy, bits in kinds:
        say(f"a frame with {policy}, {bits} bits a number at home")
        r = Retrieval(model, own, policy, sizes.retrieved, bits)
        for given in (True, False):
            run = partial(model.through, x, r.attention(given))
            out.append(r.frame.model_copy(update={"given": given, "ms": on.ms(run)}))
        note(policy, run)
    return out, watts
