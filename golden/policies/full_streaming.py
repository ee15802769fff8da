"""Full attention (also as FlexGen) and StreamingLLM as policies."""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.function_params import Parameters, parameter
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.policy import LayerBlock, Policy


@dataclass(frozen=True)
class FullParams:
    """Parameters of full attention."""

    offload: bool = parameter(False, "keep the cache on the host; every layer of every block fetches all of it")


class Full(Policy):
    """Full attention with the cache on the device. With `offload` it is FlexGen, whose cache is in host memory."""

    source = "V-Rex VI-B; with offload FlexGen, V-Rex [30]"
    events = ()

    def select(self, step: LayerBlock) -> Selected:
        self.store.fetch(step.layer, np.ones(step.n, bool))
        return Selected(self.store.on_device(step.layer))

    def end(self, block: Block) -> None:
        if self.params.offload:
            for layer in range(self.shape.layers):
                self.offload_but(layer, 0, 0)


@dataclass(frozen=True)
class StreamingParams(Parameters):
    """Parameters of StreamingLLM."""

    sinks: int = parameter(4, "first tokens of the stream, kept for good", low=0)
    recent: int = parameter(256, "last tokens before a block, kept", low=0)


class Streaming(Policy):
    """Attention to sinks and to a window of recent tokens; tokens in between are dropped for good.

    The original counts positions inside the cache. Rotary attention depends on differences of positions only. So here
    the window keeps the positions of the stream, and the sinks' keys move up to it by one position for each dropped
    token.
    """

    source = "StreamingLLM, hybrid [3] and II-B, Eq. 1"
    turns = True
    events = ("dropped", "turned")

    def __init__(self, params: StreamingParams, shape: Shape):
        super().__init__(params, shape)
        self.window = [params.sinks] * shape.layers  # first token behind the sinks that a layer holds

    def select(self, step: LayerBlock) -> Selected:
        p, layer = self.params, step.layer
        first, self.window[layer] = self.window[layer], max(p.sinks, step.block.start - p.recent)
        self.store.drop(layer, slice(first, self.window[layer]))
        gone = self.window[layer] - p.sinks
        if not gone:
            return Selected(self.store.on_device(layer))
        moved = p.sinks * self.shape.kv_heads * self.shape.head_size
        self.ledger.work("elementwise", 3 * moved)  # a rotation: 2 multiplications and an addition a number
        return Selected(self.store.on_device(layer), turn=np.full(p.sinks, gone))
