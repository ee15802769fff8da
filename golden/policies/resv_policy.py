"""ReSV (V-Rex section IV) as a policy: clusters keys by hash bits and retrieves the clusters that matter.

`golden.retrieval.resv` defines the algorithm; here it meets the store, the ledger and prefetch.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import Parameters, ReSVParams, parameter
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.policy import LayerBlock, Policy
from openvrex.golden.retrieval.resv import ReSV, Retrieved

PREFETCH = ("none", "complete", "only")


@dataclass(frozen=True)
class ReSVPolicyParams(Parameters):
    """Parameters of ReSV and of its prefetch."""

    resv: ReSVParams = ReSVParams()
    prefetch: str = parameter(
        "complete", "none; complete: guess, then fetch the rest on demand; only: the guess alone", choices=PREFETCH
    )
    kv4_group: int = parameter(
        0, "numbers of a group of 4-bit entries on the host (`golden.retrieval.kv4`); 0: entries stay BF16"
    )


class ReSVPolicy(Policy):
    """Hash-bit key clustering and WiCSum thresholding. Sinks and the last `recent` tokens stay on the device.

    Selection. A layer's own queries choose clusters among all keys that have arrived. The tokens of these clusters are
    in device memory before the layer's light attention (steps 1 to 6 of Fig. 10). The tokens of a cluster are
    contiguous, so each cluster is one piece for each KV head (section V-C). A block longer than `recent` attends to all
    of its own tokens. Those that have left the ring are on the host and are fetched with their clusters if these are
    chosen, as the KVMU does it (`golden.retrieval.resv`).

    Prefetch, in a decoder. A layer guesses the next layer's queries from its own input, and fetches the tokens that
    they choose from the next layer's table (section IV-A). With "complete" only the time of the transfers changes, not
    the attended tokens. With "only" the next layer attends to the guessed tokens and the resident ones. Where nothing
    was guessed (the first layer, a trace), the layer's own queries choose.

    With a 4-bit home (`kv4_group`) clusters are those of the exact keys.

    The ledger counts query by representative as prediction, hash projections and running sums as index, Hamming
    distances and score maxima as comparisons, and rows of clusters as sorting.
    """

    source = "V-Rex IV, Eq. 1-3, Fig. 10, V-C"

    def __init__(self, params: ReSVPolicyParams, shape: Shape):
        super().__init__(params, shape, kv4_group=params.kv4_group)
        self.uses_ahead = params.prefetch != "none"
        self.layers = [ReSV(params.resv, shape.kv_heads, shape.head_size) for _ in range(shape.layers)]
        self.predicted: set[int] = set()  # layers whose guessed tokens are prefetched
        self.sizes: dict[str, Counter[int]] = {}  # by stage: tokens at home of each cluster that a table fetched

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        resv, p = self.layers[layer], self.params.resv
        before = [len(t) for t in resv.tables]
        done = resv.append(k.astype(BF16))
        clustered, dim = len(done.tokens), resv.hasher.dim
        self.ledger.work("index", len(resv.tables) * clustered * dim * (p.n_hp + 1))
        for table, old, joined in zip(resv.tables, before, done.joined, strict=True):
            opened = np.cumsum([j.is_new for j in joined])
            self.ledger.work("compare", clustered * old + int(opened.sum()))
            self.ledger.hold("device", (len(table) - old) * self._cluster_bytes(dim) + clustered * 4)
        going = self.offload_but(layer, p.sinks, p.recent)
        self.pack(layer, tokens, k, v, going)

    def _cluster_bytes(self, dim: int) -> int:
        """Bytes of a cluster in the HC table: BF16 representative, hash bits, count. A token adds 4 bytes of index."""
        return 2 * dim + -(-self.params.resv.n_hp // 8) + -(-self.params.resv.count_bits // 8)

    def select(self, step: LayerBlock) -> Selected:
        layer = step.layer
        if not (layer in self.predicted and self.params.prefetch == "only"):
            keep = self._retrieve(layer, step.q, "fetch", self.sizes.setdefault(step.block.stage, Counter()))
        else:
            keep = self.store.readable(layer, step.block)
        self.predicted.discard(layer)
        if self.uses_ahead and step.ahead is not None:
            assert step.x is not None  # from which `ahead` was guessed
            self.ledger.work("prediction", step.x.size * self.shape.heads * self.shape.head_size)
            self._retrieve(layer + 1, step.ahead, "prefetch", Counter())
            self.predicted.add(layer + 1)
        return self.attended(layer, keep)

    def _retrieve(self, layer: int, q: np.ndarray, reason: str, sizes: Counter[int]) -> np.ndarray:
        """Choose clusters and fetch their tokens; returns the tokens to attend to, bool [kv_heads, n].

        sizes : counts the chosen clusters by their tokens at home
        """
        resv = self.layers[layer]
        got = resv.retrieve(q.astype(BF16))
        for codes in got.codes:
            rows, clusters = codes.shape
            self.ledger.work("prediction", rows * clusters * self.shape.head_size)
            self.ledger.work("compare", rows * clusters)
            self.ledger.sort(clusters, rows)
        for of, chosen in zip(resv.cluster_of, got.clusters, strict=True):
            home = np.bincount(of[~resv.resident()], minlength=len(chosen))[chosen]
            sizes.update(home[home > 0].tolist())
        keep, fetched = (np.zeros((self.shape.kv_heads, self.store.length), bool) for _ in range(2))
        keep[:, : resv.length], fetched[:, : resv.length] = got.keep, got.fetched
        self.store.fetch(layer, fetched, reason, self._pieces(layer, got))
        return keep

    def _pieces(self, layer: int, got: Retrieved) -> int:
        """Transfers: chosen clusters with a token that is only on the host, times the KV heads of their table."""
        missing = self.store.missing(layer)
        heads = self.shape.kv_heads // len(got.clusters)
        pieces = 0
        for i, mask in enumerate(got.clusters):
            absent = self.layers[layer].cluster_of[i][missing[i * heads, : self.layers[layer].length]]
            pieces += heads * int((mask & (np.bincount(absent, minlength=len(mask)) > 0)).sum())
        return pieces
