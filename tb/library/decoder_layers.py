"""Runs layers of the real decoder on a core, frame by frame of a recorded stream: on golden, then on the RTL."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from golden.arithmetic.numerics import BF16
from golden.function_params import ReSVParams, check
from golden.inputs import decoder as model
from golden.inputs.decoder import Decoder
from golden.inputs.trace import Trace, TraceError, source
from golden.program.core_compiler import CorePlan, RetrievalShape
from golden.program.core_host import CoreHost
from golden.program.layer_memory import LayerShape, Register
from golden.retrieval.hashing import hyperplanes
from hdl.emit import Emitted
from hdl.params import CoreParams
from tb.library import stage_log
from tb.library.layer_runs import Place, Ran, Session


@dataclass(frozen=True)
class Pass:
    """One frame through one layer.

    ends : work of the units at the end of each stage (`tb.library.stage_log.work`)
    clusters : clusters of the layer after the frame
    entries : entries behind the ring, sinks included
    offloaded : the layer's entries at home after the frame
    """

    frame: int
    layer: int
    ends: np.ndarray
    clusters: int
    entries: int
    offloaded: int


class DecoderLayers:
    """The first layers of the decoder of a trace, on a core, over the first frames of that trace.

    Tokens before the first frame (the prompt) are sinks: every frame attends to them. The decoder computes their keys
    and values in FP32. Every frame is a pass of each layer. The core's memory carries hidden states from layer to
    layer; a frame's come from the trace. With `ahead`, every layer but the last selects and fetches for the next one.
    `f` holds function parameters other than the hardware's defaults.

    Raises `TraceError` for a trace that does not fit, `ParamError` for parameters that do not.
    """

    def __init__(
        self, trace: Trace, p: CoreParams, layers: int, frames: int, ahead: bool = False, f: ReSVParams | None = None
    ):
        check(1 <= layers <= model.N_LAYERS, "layers", layers, f"must be 1 to {model.N_LAYERS}, those of the decoder")
        if trace.hidden is None:
            raise TraceError("holds nothing that goes into the first layer: record it with 'vrex trace', without --hf")
        recorded, own = trace.provenance.get("decoder", {}), source(model.MODEL)
        if recorded.get("sha256") != own["sha256"]:
            what = f"recorded with {recorded.get('model', 'an unknown model')}, {recorded.get('package', 'no package')}"
            raise TraceError(f"{what}; layers run on {own['package']}: record it again with 'vrex trace'")
        spans = trace.spans("frame")
        check(1 <= frames <= len(spans), "frames", frames, f"must be 1 to {len(spans)}, those of the trace")
        self.spans, self.p = spans[:frames], p
        self.sinks, self.tokens = spans[0][0], spans[0][1] - spans[0][0]
        k, fmt = p.dre.kvmu, p.core_format()
        size = 4 * trace.kv_heads * trace.head_size
        check(k.entry_bytes == size, "entry_bytes", k.entry_bytes, f"must be {size}, keys and values of a token")
        check(layers <= k.n_ctx, "n_ctx", k.n_ctx, f"must be at least {layers}, a context of each layer")
        self.decoder = Decoder(layers, trace.tokens)
        shape = LayerShape(
            width=trace.hidden.shape[1],
            heads=trace.heads,
            kv_heads=trace.kv_heads,
            head_size=trace.head_size,
            ffn=self.decoder.layers[0]["ffn_down"].shape[0],
            tokens=self.tokens,
            recent=k.recent,
            entries=self.sinks + max(1, frames * self.tokens - k.recent),  # the most entries that a frame may fetch
            epsilon=float(self.decoder.epsilon),
        )
        f = f or p.dre.function()
        sizes = {"n_hp": p.dre.hcu.n_hp, "clusters": k.clusters, "sinks": self.sinks, "centre": f.centre}
        sizes |= {"frame": p.dre.hcu.frame, "readings": p.dre.wtu.readings}
        next_ = [i + 1 if ahead and i < layers - 1 else -1 for i in range(layers)]
        self.plans = [
            CorePlan(shape, fmt, RetrievalShape(ctx=i, ahead=next_[i], fetched=ahead and i > 0, **sizes))
            for i in range(layers)
        ]
        planes = hyperplanes(f.n_hp, trace.kv_heads * trace.head_size, f.hash_seed)
        self.host = CoreHost(
            self.plans,
            self.decoder.layers,
            [planes] * layers,
            f,
            blocks=layers * frames * self.tokens,  # an upper bound; `run` says how many it takes
            layout=p.dre.layout(),
            counts=k.counts,
            boundary=k.boundary,
            n_ctx=k.n_ctx,
        )
        self.hidden = trace.hidden.astype(np.float32)
        self.units = stage_log.units(p)
        self.stages = [stage_log.stage_of(plan) for plan in self.plans]
        counters = [unit.counters for unit in self.units] + [unit.busy for unit in self.units]
        self.session = Session(self.host.memory, p, counters)
        self.passes: list[Pass] = []
        self.outputs: list[np.ndarray] = []  # of the last layer, one array a frame

    def run(self, progress: Callable[[int], None] = lambda done: None) -> None:
        """Run all passes on golden.

        Raises `ParamError` if offload memory does not hold the entries; the message says how many blocks would.
        """
        h = self.host
        if self.sinks:
            self.decoder(self.hidden[: self.sinks])
            for i, plan in enumerate(self.plans):
                both = np.stack([x[i, :, : self.sinks].swapaxes(0, 1) for x in (self.decoder.k, self.decoder.v)], 1)
                h.memory.put(h.address(plan["behind"], i), both.astype(BF16))
        for frame, (start, stop) in enumerate(self.spans):
            turns = (table[start:stop] for table in (self.decoder.cos, self.decoder.sin))
            h.begin(self.hidden[start:stop], *turns, start - self.sinks)
            for i in range(len(self.plans)):
                label = f"frame {frame}, layer {i}"
                self.session.add(label, h.program(i), h.registers(i))
                got = h.run(i)
                ends = stage_log.work(self.stages[i], got.issues, self.units)
                self.session.expect(got.writes, self._places(i, frame == len(self.spans) - 1))
                at_home = sum(c.offloaded for c in h.core.dre.kv.contexts[i].clusters.values())
                entries = h.core.registers[Register.ENTRIES]
                self.passes.append(Pass(frame, i, ends, h.core.dre.level(i), entries, at_home))
                progress(len(self.passes))
            self.outputs.append(h.get("hidden"))
        k = self.p.dre.kvmu
        need = h.core.dre.kv.fresh
        reason = f"the KV cache needs {need} blocks, {need * k.block_bytes:,} bytes of offload memory: -p blocks={need}"
        check(need <= k.blocks, "blocks", k.blocks, reason)

    def _places(self, layer: int, everything: bool) -> list[Place]:
        """Places to compare after a pass: those that it may change, or the whole memory."""
        h, plan = self.host, self.plans[layer]
        spaces = plan.work, plan.weights, plan.kv
        own = [a for space in spaces for a in space.arrays.values() if not a.name.endswith("_weight")]
        regions = [r for r in h.memory.regions if everything or r.name == "home"]
        return [
            *(Place(a.name, h.address(a, layer), a.shape, a.dtype) for a in own),
            *(Place(r.name, r.base, (r.size,), np.uint8) for r in regions),
        ]

    def errors(self) -> list[float]:
        """Error of each frame: the last layer's output against full attention in FP64, relative to that output's
        length.
        """
        d = self.decoder
        d.k, d.v, d.length = np.zeros_like(d.k, np.float64), np.zeros_like(d.v, np.float64), 0
        full = d(self.hidden[: self.spans[-1][1]].astype(np.float64))
        wanted = [full[start:stop] for start, stop in self.spans]
        return [
            float(np.linalg.norm(got - want) / np.linalg.norm(want))
            for got, want in zip(self.outputs, wanted, strict=True)
        ]

    def play(self, emitted: Emitted, progress: Callable[[int], None] = lambda done: None) -> list[Ran]:
        """Run the same passes on the RTL. `emitted` is a core of these parameters with a memory (`layer_runs`)."""
        h, f = self.host, self.host.core.dre.params
        bases = {"device_base": h.device_base, "home_base": h.home_base, "table_base": h.table_base}
        ports = {"th_hd": f.th_hd, "ratio": f.ratio_q16, **bases, "blocks": h.blocks}
        return self.session.play(emitted, ports, progress=progress)
