"""Layers of the real decoder on a core, frame by frame of a recorded stream: a stream of passes (`pass_stream`)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import ReSVParams, check
from openvrex.golden.inputs.decoder import N_LAYERS, Decoder
from openvrex.golden.inputs.model_file import FileDecoder, ModelFile
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.inputs.trace_recorder import decoder_of
from openvrex.golden.program.core_compiler import CorePlan, RetrievalShape
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.lxe_model import Result
from openvrex.golden.retrieval.hashing import hyperplanes
from openvrex.hdl.params import CoreParams
from openvrex.tb.library import stage_log
from openvrex.tb.library.core_host import CoreHost
from openvrex.tb.library.pass_stream import Pass, arrays, distance, layer_shape, places


class DecoderLayers:
    """The first layers of the decoder of a trace, on a core, over the first frames of that trace.

    Tokens before the first frame (the prompt) are sinks: every frame attends to them. The decoder computes their keys
    and values in FP32. Every frame is a pass of each layer. The core's memory carries hidden states from layer to
    layer; a frame's come from the trace. With `ahead`, every layer but the last selects and fetches for the next one.
    `f` holds function parameters other than the hardware's defaults. `file` is the user's decoder in place of SmolLM2.

    Iteration gives the passes (`tb.library.pass_stream.PassStream`), each one frame through one layer. Its facts:
    frame, layer · `ends`, work of the units at the end of each stage (`tb.library.stage_log.work`) · `clusters` of the
    layer after the frame · `entries` behind the ring, sinks included · `offloaded` entries of the layer, at home after
    the frame. The RTL's counters tell the cycles of its stages. `outputs` then has the last layer's output of each
    frame, and `errors` measures them.

    Raises `TraceError` for a trace that does not fit, `ParamError` for parameters that do not. Iteration raises
    `ParamError` if offload memory does not hold the entries; the message says how many blocks would.
    """

    def __init__(
        self,
        trace: Trace,
        p: CoreParams,
        layers: int,
        frames: int,
        ahead: bool = False,
        f: ReSVParams | None = None,
        file: ModelFile | None = None,
    ):
        many = file.constants.layers if file else N_LAYERS
        check(1 <= layers <= many, "layers", layers, f"must be 1 to {many}, those of the decoder")
        if trace.hidden is None:
            raise TraceError("holds nothing that goes into the first layer: record it with 'vrex trace', without --hf")
        recorded, own = trace.provenance.get("decoder", {}), decoder_of(file)
        if any(recorded.get(name) != own.get(name) for name in ("sha256", "files")):
            what = f"recorded with {recorded.get('model', 'an unknown model')}, {recorded.get('package', 'no package')}"
            on = own.get("package", own["model"])
            raise TraceError(f"{what}; layers run on {on}: record it again with 'vrex trace', and the same --model")
        spans = trace.spans("frame")
        check(1 <= frames <= len(spans), "frames", frames, f"must be 1 to {len(spans)}, those of the trace")
        self.spans, self.p = spans[:frames], p
        self.sinks, self.tokens = spans[0][0], spans[0][1] - spans[0][0]
        k, fmt = p.dre.kvmu, p.core_format()
        size = 4 * trace.kv_heads * trace.head_size
        check(k.entry_bytes == size, "entry_bytes", k.entry_bytes, f"must be {size}, keys and values of a token")
        check(layers <= k.n_ctx, "n_ctx", k.n_ctx, f"must be at least {layers}, a context of each layer")
        self.decoder = FileDecoder(file, layers, trace.tokens) if file else Decoder(layers, trace.tokens)
        held, packing = self.decoder.held(p.lxe.weights)
        most = self.sinks + max(1, frames * self.tokens - k.recent)  # entries that a frame may fetch
        shape = layer_shape(self.decoder, packing, self.tokens, k.recent, most)
        f = f or p.dre.function()
        retrieval = RetrievalShape.of(p.dre.sizes(), f.centre, sinks=self.sinks)
        next_ = [i + 1 if ahead and i < layers - 1 else -1 for i in range(layers)]
        self.plans = [
            CorePlan(shape, fmt, replace(retrieval, ctx=i, ahead=next_[i], fetched=ahead and i > 0))
            for i in range(layers)
        ]
        planes = hyperplanes(f.n_hp, trace.kv_heads * trace.head_size, f.hash_seed)
        self.host = CoreHost(
            self.plans,
            held,
            [planes] * layers,
            f,
            p.dre.sizes(layers * frames * self.tokens),  # an upper bound of blocks; `run` says how many it takes
        )
        self.hidden = trace.hidden.astype(np.float32)
        self.units = stage_log.units(p)
        self.stages = [stage_log.stage_of(plan) for plan in self.plans]
        self.counters = [unit.counters for unit in self.units] + [unit.busy for unit in self.units]
        self.core, h = self.host.core, self.host
        bases = {"device_base": h.device_base, "home_base": h.home_base, "table_base": h.table_base}
        memory = bases | {"blocks": h.blocks, "contexts": self.core.dre.kv.n_ctx}
        self.ports = {"th_hd": f.th_hd, "ratio": f.ratio_q16, **memory}
        self.outputs: list[np.ndarray] = []  # of the last layer, one array a frame

    def __iter__(self) -> Iterator[Pass]:
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
                yield self._pass(frame, i)
            self.outputs.append(h.get("hidden"))
        k, need = self.p.dre.kvmu, h.core.dre.kv.fresh
        reason = f"the KV cache needs {need} blocks, {need * k.block_bytes:,} bytes of offload memory: -p blocks={need}"
        check(need <= k.blocks, "blocks", k.blocks, reason)

    def _pass(self, frame: int, layer: int) -> Pass:
        h = self.host

        def facts(result: Result) -> dict[str, Any]:
            return {
                "frame": frame,
                "layer": layer,
                "ends": stage_log.work(self.stages[layer], result.issues, self.units).tolist(),
                "clusters": h.core.dre.level(layer),
                "entries": h.core.registers[Register.ENTRIES],
                "offloaded": sum(c.offloaded for c in h.core.dre.kv.contexts[layer].clusters.values()),
            }

        return Pass(
            f"frame {frame}, layer {layer}",
            h.program(layer),
            dict(enumerate(h.core.registers)) | h.registers(layer),
            lambda: h.run(layer),
            facts,
            lambda: places(((a, h.address(a, layer)) for a in arrays(self.plans[layer])), h.memory),
        )

    def errors(self) -> list[float]:
        """Error of each frame: the last layer's output against full attention in FP64, relative to that output's
        length.
        """
        d = self.decoder
        d.k, d.v, d.length = np.zeros_like(d.k, np.float64), np.zeros_like(d.v, np.float64), 0
        full = d(self.hidden[: self.spans[-1][1]].astype(np.float64))
        wanted = [full[start:stop] for start, stop in self.spans]
        return [distance(got, want) for got, want in zip(self.outputs, wanted, strict=True)]
