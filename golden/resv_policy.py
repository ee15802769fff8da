"""ReSV (`golden.resv`, V-Rex section IV) as a retrieval policy: every layer has its tables, the KVMU's memory."""

import numpy as np

from golden.numerics import BF16
from golden.params import ReSVParams
from golden.policy import Policy, Selected, Shape, Step
from golden.resv import ReSV


class ReSVPolicy(Policy):
    """Hash-bit key clustering and WiCSum thresholding; sinks and the last `recent` tokens stay on the device.

    The tokens of the chosen clusters are fetched before the layer's attention (step 5 of Fig. 10), a cluster's in one
    piece (section V-C: its tokens are contiguous). Counted as prediction: query by representative; as index: hash
    projections and running sums; as comparisons: Hamming distances and the threshold's; as sorting: rows of clusters.
    """

    Params = ReSVParams
    source = "V-Rex IV, Eq. 1-3, V-C"

    def __init__(self, params: ReSVParams, shape: Shape):
        super().__init__(params, shape)
        self.layers = [ReSV(params, shape.kv_heads, shape.head_size) for _ in range(shape.layers)]

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        resv = self.layers[layer]
        before = [len(t) for t in resv.tables]
        done = resv.append(k.astype(BF16))
        clustered, dim = len(done.tokens), resv.hasher.dim
        self.ledger.work("index", len(resv.tables) * clustered * dim * (self.params.n_hp + 1))
        for table, old in zip(resv.tables, before, strict=True):
            new = len(table) - old
            self.ledger.work("compare", clustered * old + new * clustered)
            self.ledger.hold("device", new * self._cluster_bytes(dim) + clustered * 4)
        self.offload_but(layer, self.params.sinks, max(self.params.recent, len(tokens)))

    def _cluster_bytes(self, dim: int) -> int:
        """A cluster in the HC table: BF16 representative, hash-bits, count. A token adds its index of 4 bytes."""
        return 2 * dim + -(-self.params.n_hp // 8) + -(-self.params.count_bits // 8)

    def select(self, step: Step) -> Selected:
        resv = self.layers[step.layer]
        got = resv.retrieve(step.q.astype(BF16))
        for codes in got.codes:
            rows, clusters = codes.shape
            self.ledger.work("prediction", rows * clusters * self.shape.head_size)
            self.ledger.work("compare", rows * clusters)
            self.ledger.sort(clusters, rows)
        heads = self.shape.kv_heads // len(got.clusters)
        pieces = sum(int(c.sum()) for c in got.clusters) * heads
        self.store.fetch(step.layer, got.keep, pieces=pieces)
        return Selected(got.keep)
