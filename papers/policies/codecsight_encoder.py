"""CodecSight and the systems it is compared with: sliding windows of a video through a vision encoder and a decoder.

All of them save work that successive windows share. The sequence of a window is: system prompt, visual tokens of its
frames in order, query. `Server` runs window after window in two steps:

1. **Vision** (`Vision`) turns the patches of each frame into visual tokens, in one of the ways of `VISION`: `whole`,
   `pruned` (codec-guided token pruning, section 3.3, `golden.inputs.codec`) or `similar` (Deja-Vu-like patch reuse).
2. **Prefill** (`prefill`) computes K and V. Tokens that the window before held already, the overlap, may keep theirs; a
   `Reuse` says which tokens are computed anew (section 3.4). Reused keys are rotated to their new positions (Equation
   5); reused values stay as they are. All tokens after the overlap are computed.

`SYSTEMS` names the combinations: CodecSight, its ablations, and the systems that the paper compares it with.

Equation 5. A cached key is K = R(p_old) k. Here k is the key before rotation, and R(p) is the rotary matrix of position
p, which turns the pair (i, i + d/2) by the angle p base^(-2i/d). Rotations of a plane add their angles. So
R(p_new - p_old) R(p_old) k = R(p_new) k, the key at the new position, whatever k was. The paper calls p a "position
embedding", but the equation subtracts positions. In BF16 every correction rounds once more, by at most 2^-8 of the
length of each pair.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.codec import PruneParams, Pruner, patches_of
from openvrex.golden.inputs.frames import Frame, Window
from openvrex.golden.inputs.vision import GRID, Past, Projector, VisionEncoder
from openvrex.golden.policies.light_attention import bf16, turn_keys

TEXT = -1  # stands for the frame of a text token


class Model(Protocol):
    """The interface of a decoder that prefill needs; `golden.inputs.decoder.Decoder` has it."""

    layers: list[dict[str, np.ndarray]]
    heads: int
    kv_heads: int
    head_size: int
    frequencies: tuple[float, ...]  # of the rotary embedding: radians a position, [head_size / 2]

    def qkv(self, layer: int, x: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...

    def after_attention(self, layer: int, x: np.ndarray, y: np.ndarray) -> np.ndarray: ...


@dataclass
class Counts:
    """The work done for a frame or a window."""

    frames: int = 0  # frames encoded
    patches: int = 0  # patches encoded, without class tokens
    vision: int = 0  # MACs of the vision encoder
    tokens: int = 0  # tokens prefilled, summed over the layers
    linear: int = 0  # MACs of the decoder's projections and feed-forward layers
    attention: int = 0  # MACs of q k and p v, causal pairs only
    rotated: int = 0  # keys rotated to another position, counted in every layer and KV head

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


# Vision


@dataclass(frozen=True, eq=False)
class Visual:
    """The visual tokens of a frame that go to the decoder."""

    frame: int  # index of the frame in the stream
    anchor: bool  # whether it is an I-frame, the first of a GOP
    cells: np.ndarray  # [T] numbers of these tokens among the frame's, row by row
    x: np.ndarray  # [T, width] embeddings
    counts: Counts


VISION = ("whole", "pruned", "similar")


class Vision:
    """Turns the frames of a stream, in order, into visual tokens. A token is the mean of 2 x 2 patches, projected.

    * `whole`: the ViT runs on every patch of every frame.
    * `pruned`: the ViT runs only on the group-complete patches that `golden.inputs.codec.Pruner` chooses. Its outputs
      are put back in place, and only the tokens of dynamic groups are passed on (section 3.3.2).
    * `similar`: after Deja Vu, without its training. A patch keeps the keys, values and outputs last computed at its
      place if the cosine of the two embeddings is at least `similarity`. Other patches are computed and attend to all.
      Every token is passed on.
    """

    def __init__(
        self,
        encoder: VisionEncoder,
        projector: Projector,
        kind: str = "pruned",
        prune: PruneParams = PruneParams(),  # noqa: B008 - frozen
        similarity: float = 0.95,
    ):
        check(kind in VISION, "vision", kind, f"must be one of {', '.join(VISION)}")
        check(prune.grid == GRID, "grid", prune.grid, f"must be {GRID}, the patches that this encoder has on a side")
        self.encoder, self.projector, self.kind, self.similarity = encoder, projector, kind, similarity
        self.group = prune.group
        self.pruner = Pruner(prune)
        self.embedded: np.ndarray | None = None  # patches as last computed
        self.past: Past | None = None

    def __call__(self, frame: Frame) -> Visual:
        g = GRID // self.group
        tokens, keep = np.ones((g, g), bool), np.ones((GRID, GRID), bool)
        if self.kind == "pruned":
            tokens = self.pruner(frame)
            keep = patches_of(tokens, self.group)
        patches = int(keep.sum())
        macs = self.encoder.macs(patches, patches + 1)
        if self.kind == "similar":
            keep, out = self._similar(frame.picture)
            patches = int(keep.sum())
            # Every patch is embedded to be compared.
            macs = self.encoder.macs(patches, GRID * GRID + 1) + (GRID * GRID - patches) * self.encoder.kernel.size
        else:
            out = self.encoder(frame.picture, None if keep.all() else keep)
        grid = out[1:].reshape(g, self.group, g, self.group, -1).mean((1, 3)).reshape(g * g, -1)
        cells = np.flatnonzero(tokens)
        return Visual(frame.index, frame.leads, cells, self.projector(grid[cells]), Counts(1, patches, macs))

    def _similar(self, picture: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Encode the patches that have changed; returns which, bool [16, 16], and the outputs of all patches."""
        now, old = self.encoder.patches(picture), self.embedded
        if old is None:
            changed = np.ones(len(now), bool)
            self.embedded = now
        else:
            length = np.linalg.norm(now, axis=1) * np.linalg.norm(old, axis=1)
            changed = (now * old).sum(1) < self.similarity * length
            self.embedded = np.where(changed[:, None], now, old)
        keep = changed.reshape(GRID, GRID)
        self.past = self.encoder.reuse(now, keep, self.past)
        return keep, self.past.out


# Prefill


@dataclass(frozen=True, eq=False)
class Tokens:
    """The sequence of a window. The position of a token is its index."""

    frame: np.ndarray  # [n] index in the stream of the token's frame, or `TEXT`
    anchor: np.ndarray  # [n] bool: token of an I-frame
    x: np.ndarray  # [n, width] embeddings
    prompt: int  # text tokens before the frames
    query: int  # text tokens after them

    @classmethod
    def of(cls, prompt: np.ndarray, visuals: Iterable[Visual], query: np.ndarray) -> "Tokens":
        """The sequence of a window from its parts: prompt [p, width], visual tokens, query [q, width]."""
        visuals = list(visuals)
        sizes = [len(prompt), *(len(v.cells) for v in visuals), len(query)]
        frame = np.repeat([TEXT, *(v.frame for v in visuals), TEXT], sizes)
        anchor = np.repeat([False, *(v.anchor for v in visuals), False], sizes)
        x = np.concatenate([prompt, *(v.x for v in visuals), query]).astype(np.float32)
        return cls(frame, anchor, x, len(prompt), len(query))


@dataclass(frozen=True, eq=False)
class Prefilled:
    """The cache of a window after prefill, and the outputs at the query."""

    tokens: Tokens
    k: np.ndarray  # [layers, kv_heads, n, head_size] BF16 values in FP32, after rotary
    v: np.ndarray  # the same for values
    outputs: np.ndarray  # [layers, query, heads, head_size]: attention output at the query
    hidden: np.ndarray  # [query, width]: hidden states after the last layer
    computed: np.ndarray  # [layers, n] bool: tokens whose K and V were computed; the others were reused
    counts: Counts


class Reuse:
    """Decides which tokens of a window are computed and which keep the K and V of the window before.

    This base class computes all tokens: full recomputation (Full-Comp).
    """

    name = "full recomputation"

    def rows(self, tokens: Tokens, source: np.ndarray) -> np.ndarray:
        """Tokens to compute in layer 0, bool [n].

        source : [n], index of each token in the window before, -1 for a token that it did not hold
        """
        return np.ones(len(source), bool)

    def narrow(self, layer: int, layers: int, rows: np.ndarray, source: np.ndarray) -> np.ndarray:
        """The tokens, of `rows` bool [n] of the layer before, that this layer still computes."""
        return rows

    def choose(self, layer: int, rows: np.ndarray, source: np.ndarray, deviation: np.ndarray) -> np.ndarray:
        """The tokens, of `rows` bool [n] whose K and V this layer has just computed, that use them and go on.

        deviation : [n], squared distance of the new K and V to the reused ones, where there are both
        """
        return rows


class FullReuse(Reuse):
    """Every token of the overlap keeps its values, and its keys rotated to their new positions."""

    name = "full reuse"

    def rows(self, tokens: Tokens, source: np.ndarray) -> np.ndarray:
        return source < 0


class Anchors(FullReuse):
    """CodecSight 3.4.1: computes the overlap's tokens of I-frames anew, from their cached embeddings."""

    name = "anchors refreshed"

    def rows(self, tokens: Tokens, source: np.ndarray) -> np.ndarray:
        return (source < 0) | (tokens.anchor & moved(source))


@dataclass(frozen=True)
class CacheBlend(Reuse):
    """After CacheBlend: computes the share `ratio` of the overlap whose K and V deviate most.

    The first layer is computed for all tokens, since its K and V depend on the token alone. So K and V of the second
    layer show how much the new context changes a token. The tokens chosen there are computed in all later layers.
    CacheBlend also thins the choice out layer by layer around the same mean; that is left out here.
    """

    ratio: float = 0.15
    name = "CacheBlend-like"

    def __post_init__(self):
        check(0 <= self.ratio <= 1, "ratio", self.ratio, "must be 0 to 1")

    def choose(self, layer: int, rows: np.ndarray, source: np.ndarray, deviation: np.ndarray) -> np.ndarray:
        if layer != 1:
            return rows
        old = np.flatnonzero(moved(source))
        ranked = old[np.argsort(-deviation[old], kind="stable")]
        chosen = source < 0
        chosen[ranked[: round(self.ratio * len(old))]] = True
        return chosen


@dataclass(frozen=True)
class VLCache(Reuse):
    """After VLCache: computes the first tokens of the overlap, fewer in each layer.

    Errors of reused tokens add up along the sequence, so it is best to compute the earliest. VLCache profiles the share
    of every layer offline. Here the share falls linearly, from twice `ratio` in the first layer to 0 behind the last.
    """

    ratio: float = 0.05
    name = "VLCache-like"

    def __post_init__(self):
        check(0 <= self.ratio <= 0.5, "ratio", self.ratio, "must be 0 to 0.5")

    def narrow(self, layer: int, layers: int, rows: np.ndarray, source: np.ndarray) -> np.ndarray:
        old = np.flatnonzero(moved(source))
        chosen = source < 0
        chosen[old[: round(2 * self.ratio * (1 - layer / layers) * len(old))]] = True
        return chosen


def prefill(model: Model, tokens: Tokens, reuse: Reuse, old: Prefilled | None = None) -> Prefilled:
    """Compute K and V of a window; `old` is the window before, None for the first (section 3.4).

    The prompt comes first in every window, so its K and V do not change. Every method but full recomputation keeps
    them. Tokens of the query are always computed.
    """
    n, layers, position = len(tokens.frame), len(model.layers), np.arange(len(tokens.frame))
    source = overlap(tokens, old)
    rows = reuse.rows(tokens, source)
    kept = np.flatnonzero(source >= 0)
    shape = layers, model.kv_heads, n, model.head_size
    k, v = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    if old is not None:
        k[:, :, kept] = turn_keys(old.k[:, :, source[kept]], kept - source[kept], model.frequencies)  # Equation 5
        v[:, :, kept] = old.v[:, :, source[kept]]
    x = tokens.x.copy()
    outputs = np.zeros((layers, tokens.query, model.heads, model.head_size), np.float32)
    computed = np.zeros((layers, n), bool)
    counts = Counts()
    for layer in range(layers):
        rows = reuse.narrow(layer, layers, rows, source)
        at = np.flatnonzero(rows)
        q, fresh_k, fresh_v = (bf16(a) for a in model.qkv(layer, x[at], position[at]))
        deviation = np.zeros(n)
        for new, cached in ((fresh_k, k), (fresh_v, v)):
            deviation[at] += ((new - cached[layer][:, at].swapaxes(0, 1)) ** 2).sum((1, 2))
        rows = reuse.choose(layer, rows, source, deviation)
        on = rows[at]
        sizes = {name: w.size for name, w in model.layers[layer].items() if w.ndim == 2}
        counts.linear += len(at) * sizes["qkv"] + int(on.sum()) * (sum(sizes.values()) - sizes["qkv"])
        at, q = at[on], q[on]
        k[layer][:, at], v[layer][:, at] = fresh_k[on].swapaxes(0, 1), fresh_v[on].swapaxes(0, 1)
        y = attend(q, k[layer], v[layer], at)
        x[at] = model.after_attention(layer, x[at], y)
        outputs[layer] = y[len(y) - tokens.query :]
        computed[layer, at] = True
        counts.tokens += len(at)
        counts.attention += 2 * model.heads * model.head_size * int((at + 1).sum())
    counts.rotated = model.kv_heads * int((moved(source) & ~computed).sum())
    return Prefilled(tokens, k, v, outputs, x[n - tokens.query :], computed, counts)


def overlap(tokens: Tokens, old: Prefilled | None) -> np.ndarray:
    """Index of each token in the window before, int64 [n]; -1 for a token that it did not hold, and for the query.

    The tokens of a frame are the same in both windows. The prompt is reused if it is the same text.
    """
    source = np.full(len(tokens.frame), -1)
    if old is None:
        return source
    p = tokens.prompt
    if p == old.tokens.prompt and np.array_equal(tokens.x[:p], old.tokens.x[:p]):
        source[:p] = np.arange(p)
    for frame in np.intersect1d(tokens.frame[tokens.frame != TEXT], old.tokens.frame):
        source[tokens.frame == frame] = np.flatnonzero(old.tokens.frame == frame)
    return source


def moved(source: np.ndarray) -> np.ndarray:
    """Tokens of the overlap whose position has changed, bool [n].

    A token that stays in place has the same tokens before it, so its old K and V are right.
    """
    return (source >= 0) & (source != np.arange(len(source)))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, at: np.ndarray, rows: int = 256) -> np.ndarray:
    """Causal attention, FP32 [T, heads, d]: row t of q [T, heads, d] attends to k, v [kv_heads, n, d] up to at[t].

    rows : rows of q computed at once
    """
    kv_heads, n, d = k.shape
    out = np.empty_like(q)
    for i in range(0, len(q), rows):
        part, seen = q[i : i + rows], at[i : i + rows]
        stop = int(seen[-1]) + 1
        s = part.reshape(len(part), kv_heads, -1, d).transpose(1, 2, 0, 3) @ k[:, None, :stop].swapaxes(-1, -2)
        s *= np.float32(d**-0.5)
        s[..., np.arange(stop) > seen[:, None]] = -np.inf
        s -= s.max(-1, keepdims=True)
        np.exp(s, out=s)
        s /= s.sum(-1, keepdims=True)
        out[i : i + rows] = (s @ v[:, None, :stop]).transpose(2, 0, 1, 3).reshape(part.shape)
    return out


# Systems


@dataclass(frozen=True)
class System:
    """A combination of a vision method and a reuse method; `source` says which system it stands for."""

    vision: str
    reuse: Reuse
    every_window: bool = False  # encode a frame in every window that holds it; False: once
    source: str = ""


SYSTEMS = {
    "full": System("whole", Reuse(), True, "Full-Comp: everything in every window"),
    "full-reuse": System("whole", FullReuse(), False, "naive reuse of section 3.4: no refresh"),
    "dejavu": System("similar", Reuse(), False, "Deja Vu [22]: patches reused, no KV reuse"),
    "cacheblend": System("whole", CacheBlend(), True, "CacheBlend [78]: KV refresh by deviation"),
    "vlcache": System("whole", VLCache(), False, "VLCache [51]: encoder cache, KV refresh by layer"),
    "prune": System("pruned", Reuse(), False, "section 6.2: token pruning alone"),
    "prune-reuse": System("pruned", FullReuse(), False, "token pruning with naive reuse"),
    "refresh": System("whole", Anchors(), False, "section 6.2: selective KVC refresh alone"),
    "codecsight": System("pruned", Anchors(), False, "CodecSight, section 3"),
}


@dataclass
class Server:
    """Runs a system over the windows of a stream, and keeps the last window for the next."""

    system: System
    model: Model
    vision: Callable[[Frame], Visual]  # a `Vision` of the system's kind
    prompt: np.ndarray  # [p, width] embeddings
    query: np.ndarray  # [q, width] embeddings
    last: Prefilled | None = None
    visuals: dict[int, Visual] = field(default_factory=dict)  # those of the last window's frames, by frame

    def __call__(self, window: Window) -> Prefilled:
        """Run one window; returns its cache and outputs, with the vision encoder's work in `counts`."""
        held = self.visuals
        self.visuals = {f.index: held.get(f.index) or self.vision(f) for f in window.frames}
        out = prefill(
            self.model, Tokens.of(self.prompt, self.visuals.values(), self.query), self.system.reuse, self.last
        )
        for index, visual in self.visuals.items():
            if self.system.every_window or index not in held:
                out.counts.frames += visual.counts.frames
                out.counts.patches += visual.counts.patches
                out.counts.vision += visual.counts.vision
        self.last = out
        return out
