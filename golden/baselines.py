"""The systems that the papers compare with, as policies."""

from dataclasses import dataclass

import numpy as np

from golden.params import check_ints
from golden.policy import Policy, Selected, Step


@dataclass(frozen=True)
class FullParams:
    """Full attention."""

    offload: bool = False  # the cache lives on the host and every layer fetches all of it

    def __post_init__(self):
        check_ints(self)


class Full(Policy):
    """Full attention over everything; with `offload`, FlexGen: every block fetches the whole cache of every layer.

    V-Rex section VI-B: "FlexGen serves as the baseline, offloading KV caches to CPU memory or storage".
    """

    Params = FullParams
    source = "V-Rex VI-B (FlexGen [30])"

    def select(self, step: Step) -> Selected:
        self.store.fetch(step.layer, np.ones(step.n, bool))
        return Selected(self.store.on_device(step.layer))

    def end(self, block) -> None:
        if self.params.offload:
            for layer in range(self.shape.layers):
                self.offload_but(layer, 0, 0)
