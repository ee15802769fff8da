"""Mosaic as a retrieval policy: retrieves clusters of the cache, first visual ones (frames), then semantic ones (keys).

`golden.policies.mosaic_clusters` has the clustering itself.
"""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.function_params import Parameters, parameter
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.ledger import PolicyError
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.mosaic_clusters import Clusters, Threshold
from openvrex.golden.policies.mosaic_hardware import HardwareLayer, SummedLayer
from openvrex.golden.policies.mosaic_layer import Layer
from openvrex.golden.policies.policy import Admitted, LayerBlock, Policy

PREFETCH = ("none", "query", "input")
ARITHMETIC = ("float", "hardware", "sums")


@dataclass(frozen=True)
class MosaicParams(Parameters):
    """Parameters of Mosaic. The paper states only 64 retrieved frames; the others are chosen on the committed trace."""

    ratio: float = parameter(
        0.1,
        "share of offloaded entries retrieved; 64 frames are 4 to 27 % of the paper's longest streams",
        low=0,
        high=1,
    )
    breadth: float = parameter(
        4.0, "the visual stage leaves at least this many times the retrieved entries to the semantic one", low=1
    )
    recent: int = parameter(
        256, "local window: last tokens before a block, always attended and kept on the device", low=0
    )
    build: int = parameter(8, "frames from which the first clusters are made; before, all is resident", low=1)
    partition_frames: int = parameter(2, "mean frames of a visual cluster when it is built", low=1)
    cluster_tokens: int = parameter(8, "mean tokens of a semantic cluster when it is built", low=1)
    visual: Threshold = parameter(Threshold(0.06, 0.12), "variance that a visual cluster may have")
    semantic: Threshold = parameter(Threshold(0.08, 0.16), "variance that a semantic cluster may have")
    visual_level: bool = parameter(True, "cluster frames; False: all frames are in one visual cluster")
    semantic_level: bool = parameter(
        True, "cluster entries; False: a visual cluster is retrieved whole, or entries one by one without that level"
    )
    adaptive: bool = parameter(True, "thresholds rise with a cluster's size; False: `large` for every size")
    defer: bool = parameter(
        True, "split a cluster with members on the host only when it is next retrieved, not at once"
    )
    prefetch: str = parameter(
        "query",
        "none; query: by this layer's query; input: by the next layer's, guessed from this layer's input",
        choices=PREFETCH,
    )
    seed: int = parameter(0, "seed of the K-means in float", low=0)
    arithmetic: str = parameter(
        "float",
        "how decisions are computed: float, NumPy's FP32; hardware, BF16 and FP32 as DPE, VPE and WTU; sums, that with "
        "means of FP32 sums",
        choices=ARITHMETIC,
    )

    @property
    def alone(self) -> bool:
        """Whether entries are retrieved one by one, without clusters."""
        return not (self.visual_level or self.semantic_level)


NEVER = Threshold(2.0, 2.0)  # unit vectors vary by 1 at most, so no cluster breaks it


class Mosaic(Policy):
    """Retrieves whole clusters of entries: representatives choose visual clusters first, then semantic ones in them.

    Construction (V-B). Frames are clustered by the direction of their mean visual embedding. The entries of a visual
    cluster's frames are clustered by the direction of their keys, in every layer separately. The first `build` frames
    are clustered by K-means; later frames join greedily. A frame that would break the variance threshold of its nearest
    visual cluster opens a new one, whose entries, still on the device, are clustered by K-means. Visual clusters are
    never split, as the paper splits only clusters of entries. If the first frame brings no visual embedding (a trace,
    text), the mean direction of a frame's keys in the first recorded layer replaces it for the whole run.

    Retrieval (V-C). The query is the mean of a block's queries over rows and over the query heads of a KV head. Its
    score is the dot product with a representative, the mean of a cluster's keys. (This is Equation 1 without the
    scaling to length 1, since representatives also take part in attention.) Queries do not live in the visual space, so
    the representative of a visual cluster is the mean of its entries' keys in the layer. The policy keeps the best
    visual clusters that hold `breadth` times the wanted entries. In them it retrieves the best semantic clusters until
    `ratio` of the offloaded entries is reached; a cluster is one transfer. Attention also reads the mean key and value
    of each cluster that stays on the host, in order of the clusters' mean token. The prompt, the text and the local
    window stay on the device.

    Maintenance (VI, Algorithm 1). After a block, each entry goes to the nearest semantic cluster of its frame's visual
    cluster. If the entry breaks Equation 5 and all of the cluster is on the device, the cluster is split at once. Else
    the cluster is flagged, and the entry waits in a buffer on the device, where it is attended as it is. At the next
    retrieval of the cluster, buffer and cluster are merged and split in two. A buffered entry does not change the
    statistics of the cluster. Without `defer` the cluster is fetched (reason `index`) and split at once.

    Prefetch (VII-B). A layer's query also chooses in the next layer and fetches its clusters (`prefetch`). The next
    layer chooses with its own query and fetches what is missing (`fetch`, the completion step), so the attended tokens
    do not change. "query" follows the paper's text to the letter, though each layer projects queries on its own.
    "input" takes the next layer's projection of this layer's input, which residual connections do keep similar; it
    needs a decoder.

    Levels (Table IV). Without `visual_level` all frames are in one visual cluster, and semantic clusters span the
    stream. Without `semantic_level` each visual cluster is one cluster of entries, which is never split. Without both,
    entries are retrieved one by one, and no means stand for the others (global token-level retrieval).

    splits, deferred : splits, and entries that went to the buffer
    needed, covered : tokens that layers after the first retrieved, and those of them that prefetch had brought

    After a split the host rearranges its own copy; the ledger does not count that.
    """

    source = "Mosaic V-VII, Eq. 1-5, Algorithm 1"

    def __init__(self, params: MosaicParams, shape: Shape):
        super().__init__(params, shape)
        self.uses_ahead = params.prefetch == "input"
        self.width = shape.kv_heads * shape.head_size
        kinds = {"float": Layer, "hardware": HardwareLayer, "sums": SummedLayer}
        kind: type[Layer] = kinds[params.arithmetic]
        self.layers = [kind(self.width, shape.kv_heads) for _ in range(shape.layers)]
        self.visual: Clusters | None = None  # None until they are built
        limits = (params.visual, params.semantic if params.semantic_level else NEVER)
        if not params.adaptive:
            limits = (Threshold(limits[0].large, limits[0].large), Threshold(limits[1].large, limits[1].large))
        self.visual_limit, self.semantic_limit = limits
        self.embeddings: list[np.ndarray] = []  # embeddings of the frames until clusters are built
        self.by_keys: bool | None = None  # whether keys replace visual embeddings; None before the first frame
        self.embedding: np.ndarray | None = None  # embedding of the current frame
        self.framed = False  # whether the current block is a frame
        self.splits = self.deferred = self.needed = self.covered = 0

    def plan(self, block: Block) -> Admitted:
        self.framed = block.stage == "frame"
        if self.framed:
            if self.by_keys is None:
                self.by_keys = block.visual is None
            if not self.by_keys:
                if block.visual is None:
                    raise PolicyError(
                        f"block {block.index}: the frame has no visual embedding, but the first one has: give all one"
                    )
                self.embedding = self.layers[0].direction(block.visual)
        return super().plan(block)

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        state = self.layers[layer]
        for growing, x in ((state.keys, k), (state.values, v)):
            growing.append(x.reshape(1, len(tokens), -1))
        state.cluster = np.concatenate([state.cluster, np.full(len(tokens), -1)])
        state.buffered = np.concatenate([state.buffered, np.zeros(len(tokens), bool)])
        if self.framed:
            state.pending.append(tokens)
            if layer == 0 and self.by_keys:
                self.embedding = state.direction(state.directions(tokens))

    def select(self, step: LayerBlock) -> Selected:
        layer, state = step.layer, self.layers[step.layer]
        query = self._query(step.q)
        there = self.store.on_device(layer)[0].copy()
        chosen = self._choose(layer, query)
        wanted = chosen[state.cluster] & (state.cluster >= 0)
        retrieved = wanted & self.store.on_host(layer)[0]
        if layer:
            self.needed += int(retrieved.sum())
            self.covered += int((retrieved & there).sum())
        self._fetch(layer, wanted, "fetch")
        resident = ~self.store.on_host(layer)[0]
        extra = self._representatives(layer, ~chosen)
        for c in np.flatnonzero(chosen[:-1] & state.clusters.lazy).tolist():
            self._split(layer, state.members(c), c)
        if self.params.prefetch != "none" and layer + 1 < self.shape.layers:
            if self.uses_ahead and step.ahead is not None:
                assert step.x is not None  # from which `ahead` was guessed
                self.ledger.work("prediction", step.x.size * self.shape.heads * self.shape.head_size)
                query = self._query(step.ahead)
            mask = self._choose(layer + 1, query)
            self._fetch(layer + 1, mask[self.layers[layer + 1].cluster], "prefetch")
        return Selected(
            np.repeat((wanted | resident)[None], self.shape.kv_heads, 0), extra_k=extra[0], extra_v=extra[1]
        )

    def _query(self, q: np.ndarray) -> np.ndarray:
        """The query [D] of a block: the mean over rows and over the query heads of a KV head."""
        self.ledger.work("prediction", q.size)
        return self.layers[0].query(q.reshape(len(q), self.shape.kv_heads, self.shape.group, -1))

    def _fetch(self, layer: int, mask: np.ndarray, reason: str) -> None:
        """Fetch tokens, each cluster in one piece. `mask` covers the tokens that have arrived in the layer."""
        state = self.layers[layer]
        full = np.zeros(self.store.length, bool)
        full[: len(mask)] = mask & (state.cluster >= 0)
        missing = full & ~self.store.on_device(layer)[0]
        pieces = len(np.unique(state.cluster[missing[: len(mask)]]))
        self.store.fetch(layer, full, reason, pieces)

    def _choose(self, layer: int, query: np.ndarray) -> np.ndarray:
        """Two-stage retrieval: clusters to retrieve, bool [C + 1]. The last is False, for tokens without a cluster."""
        state, p = self.layers[layer], self.params
        clusters = state.clusters
        chosen = np.zeros(len(clusters) + 1, bool)
        host = self.store.on_host(layer)[0, : len(state.cluster)]
        weight = np.bincount(state.cluster[host], minlength=len(clusters))
        budget = int(np.ceil(p.ratio * weight.sum()))
        if budget == 0:
            return chosen
        groups = int(clusters.partition.max()) + 1
        held = np.bincount(clusters.partition, weights=weight, minlength=groups)
        keep = state.visual_choice(query, held, p.breadth * budget)
        at = np.flatnonzero(keep[clusters.partition])
        chosen[at[state.choice(query, at, weight[at], budget)]] = True
        self.ledger.work("prediction", (groups + len(at)) * self.width)
        self.ledger.sort(groups)
        self.ledger.sort(len(at))
        return chosen

    def _representatives(self, layer: int, left: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Mean keys and values [kv_heads, m, head_size] of the clusters `left` on the host, in temporal order."""
        state = self.layers[layer]
        host = np.flatnonzero(self.store.on_host(layer)[0] & left[state.cluster])
        if self.params.alone or not len(host):
            return None, None
        at = state.order(host)
        mean = state.means(at).reshape(len(at), 2, self.shape.kv_heads, -1).transpose(1, 2, 0, 3)
        return mean[0], mean[1]

    def end(self, block: Block) -> None:
        if self.framed:
            self._frame()
        old = np.arange(block.stop) < block.stop - self.params.recent
        for layer, state in enumerate(self.layers):
            going = old & (state.cluster >= 0) & ~state.buffered & ~self.store.on_host(layer)[0]
            self.store.offload(layer, going, len(np.unique(state.cluster[going])))

    def _frame(self) -> None:
        """Cluster the frame that has just run."""
        p, embedding = self.params, self.embedding
        assert embedding is not None  # `plan` or `append` has set that of the frame
        if self.visual is None:
            self.embeddings.append(embedding)
            if len(self.embeddings) < p.build:
                return
            x = np.stack(self.embeddings)
            groups = -(-len(x) // p.partition_frames) if p.visual_level else 1
            labels, ran = self.layers[0].kmeans(x, groups, p.seed)
            visual = self.visual = self.layers[0].visual_clusters(x.shape[1])
            for label in range(labels.max() + 1):
                visual.add(x[labels == label])
            self.ledger.work("index", ran * x.size * groups)
            self.embeddings = []
            for layer, state in enumerate(self.layers):
                for label in range(labels.max() + 1):
                    parts = [t for t, own in zip(state.pending, labels, strict=True) if own == label]
                    self._create(layer, np.concatenate(parts), label)
        else:
            visual = self.visual
            partition, opened = self._visit(visual, embedding)
            for layer, state in enumerate(self.layers):
                if opened or p.alone:
                    self._create(layer, state.pending[0], partition)
                else:
                    self._assign(layer, state.pending[0], partition)
        width = 2 * len(embedding) + 8  # BF16 centroid, FP32 variance, size
        for layer, state in enumerate(self.layers):
            state.pending = []
            own = 2 * self.width if p.alone else state.row_bytes  # of a single entry its key alone
            size = len(state.clusters) * own + len(visual) * state.key_bytes  # and 4 bytes a token
            size += 4 * int((state.cluster >= 0).sum()) + (len(visual) * width if layer == 0 else 0)
            self.ledger.hold("device", size - state.index_bytes)
            state.index_bytes = size

    def _visit(self, visual: Clusters, x: np.ndarray) -> tuple[int, bool]:
        """Assign a frame with embedding x [D] to a visual cluster; returns it, and whether it is new."""
        groups: list[int] = []

        def opens(_: int, __: int) -> list[int]:
            groups.append(visual.add(x[None]))
            return groups

        if not self.params.visual_level:
            return 0, False
        before = len(visual)
        self.ledger.work("index", before * len(x))
        self.ledger.work("compare", before + 1)
        visual.assign(x[None], np.zeros(1, int), self.visual_limit, lambda _, c: groups.append(c), opens)
        return groups[0], len(visual) > before

    def _create(self, layer: int, tokens: np.ndarray, partition: int) -> None:
        if self.params.alone:
            self.layers[layer].visit(tokens, np.zeros(len(tokens), np.int64))
            self.layers[layer].single(tokens)
            return
        self.layers[layer].visit(tokens, np.full(len(tokens), partition))
        k = -(-len(tokens) // self.params.cluster_tokens) if self.params.semantic_level else 1
        self.ledger.work("index", self.layers[layer].create(tokens, partition, k, self.params.seed))

    def _assign(self, layer: int, tokens: np.ndarray, partition: int | np.ndarray) -> None:
        """Assign tokens greedily to semantic clusters of `partition`, one visual cluster for all or one for each."""
        state = self.layers[layer]
        clusters = state.clusters
        partition = np.broadcast_to(partition, len(tokens))
        state.visit(tokens, partition)

        def absorbed(i: int, c: int) -> None:
            state.absorbed(int(tokens[i]), c)

        def invalid(i: int, c: int) -> list[int]:
            members = np.append(state.members(c), tokens[i])
            away = self.store.on_host(layer)[0, members].any()
            if away and self.params.defer:
                clusters.lazy[c] = True
                state.cluster[tokens[i]], state.buffered[tokens[i]] = c, True
                self.deferred += 1
                return []
            if away:
                mask = np.zeros(self.store.length, bool)
                mask[members] = True
                self.store.fetch(layer, mask, "index", 1)
            changed = self._split(layer, members, c)
            self.store.release(layer)
            return changed

        looked = sum(int((clusters.partition == own).sum()) for own in partition)
        self.ledger.work("index", (looked + 3 * len(tokens)) * self.width)
        self.ledger.work("compare", looked + len(tokens))
        clusters.assign(state.directions(tokens), partition, self.semantic_limit, absorbed, invalid)

    def _split(self, layer: int, tokens: np.ndarray, c: int) -> list[int]:
        """Split a cluster into two; its tokens must be on the device. Returns the clusters that changed."""
        if not self.store.on_device(layer)[0, tokens].all():
            raise PolicyError(f"cluster {c} of layer {layer} is split without having its tokens: fetch them first")
        changed, macs = self.layers[layer].split(tokens, c, self.params.seed)
        self.splits += 1
        self.ledger.work("index", macs)
        return changed


def batched_attention(steps: list[LayerBlock], chosen: list[Selected]) -> np.ndarray:
    """Batched execution (VII-A): attention of several frames at once under one mask, [T, heads, head_size].

    A frame sees the tokens that it selected, up to each row, and its own representatives, but nothing of a later frame.
    The result equals that of the frames one by one, except for the order of sums. Scores that the mask removes are
    computed and thrown away, as in a dense kernel.
    """
    last = steps[-1]
    q, rows = np.concatenate([s.q for s in steps]), np.concatenate([s.rows for s in steps])
    frame = np.repeat(np.arange(len(steps)), [len(s.q) for s in steps])
    extras = [np.zeros_like(last.k[:, :0]) if c.extra_k is None else c.extra_k for c in chosen]
    extra_values = [np.zeros_like(last.v[:, :0]) if c.extra_v is None else c.extra_v for c in chosen]
    owner = np.repeat(np.arange(len(steps)), [e.shape[1] for e in extras])
    out = np.zeros_like(q)
    for g in range(len(last.k)):
        keys = np.concatenate([*[e[g] for e in extras], last.k[g]])
        values = np.concatenate([*[e[g] for e in extra_values], last.v[g]])
        selected = np.stack([np.pad(c.keep[g], (0, last.n - c.keep.shape[1])) for c in chosen])
        seen = selected[frame] & (np.arange(last.n) <= rows[:, None])
        mask = np.concatenate([owner == frame[:, None], seen], axis=1)
        group = q.shape[1] // len(last.k)
        part = slice(g * group, (g + 1) * group)
        s = np.where(mask[:, None], q[:, part] @ keys.T * np.float32(q.shape[2] ** -0.5), -np.inf)
        p = np.exp(s - s.max(axis=2, keepdims=True))
        out[:, part] = p / p.sum(axis=2, keepdims=True) @ values
    return out
