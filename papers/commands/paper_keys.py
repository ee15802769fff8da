"""V-Rex Fig. 7: how alike the keys of adjacent frames are, and how well Hamming distances follow their angles."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from matplotlib.figure import Figure

from openvrex.golden.function_params import ReSVParams
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.policies.light_attention import turn_keys
from openvrex.golden.retrieval.clustering import hamming
from openvrex.golden.retrieval.hashing import Hasher
from openvrex.papers.commands.paper_figure import Drawn, Row
from openvrex.scripts.quantity import Column

BITS = (16, 32, 64)
SAMPLE = 600  # most keys of which all pairs are compared
ALIKE = {
    "trace": Column("trace"),
    "layer": Column("layer"),
    "keys": Column("keys"),
    "place": Column("same place", "", 2),
    "other": Column("other places", "", 2),
    "best": Column("most alike", "", 2),
}
FOLLOWS = {
    "trace": Column("trace"),
    "layer": Column("layer"),
    "keys": Column("keys"),
    "cosine": Column("mean cosine", "", 2),
    "spread": Column("its deviation", "", 2),
    **{f"correlation_{n}": Column(f"correlation, {n} bits", "", 2) for n in BITS},
    **{f"expected_{n}": Column(f"expected, {n} bits", "", 2) for n in BITS},
}


def similarity(traces: dict[str, Trace]) -> Drawn:
    """Fig. 7a: cosines of the keys of a frame and the next, in every recorded layer."""
    rows: list[Row] = [
        {"trace": name, "layer": f"{trace.layers[i]}", "keys": kind, **alike(keys)}
        for name, trace in traces.items()
        for i in range(len(trace.layers))
        for kind, keys in kinds(trace, i)
    ]
    paper = "a heat map of the 3rd layer on COIN, bright along places; no number."
    note = (
        "Mean cosine of a key and those of the next frame: at the same place, at other places, and the largest of each "
        "key. A key is that of all KV heads end to end, as ReSV hashes it. centred: less the mean key of the first "
        "frame. unrotated: with the rotary position taken out."
    )
    return Drawn("V-Rex Fig. 7a: keys of adjacent frames", paper, ALIKE, rows, note, heat_maps(traces))


def kinds(trace: Trace, i: int) -> Iterator[tuple[str, np.ndarray]]:
    """Keys of the frames of recorded layer `i`, FP64 [frames, T, dim]: as cached, centred, and unrotated if known."""
    spans = trace.spans("frame")
    sizes = {stop - start for start, stop in spans}
    if len(sizes) != 1 or len(spans) < 2:
        raise TraceError("frames of one size are needed, and at least two: record another trace with 'vrex trace'")
    at = np.concatenate([np.arange(start, stop) for start, stop in spans])
    cached = trace.k[i, at].astype(np.float64).reshape(len(spans), sizes.pop(), -1)
    yield "cached", cached
    yield "centred", cached - cached[0].mean(axis=0)
    if trace.model is not None and trace.model.turns is not None:
        keys = turn_keys(trace.k[i, at].astype(np.float32).swapaxes(0, 1), -at, trace.model.turns[i])
        yield "unrotated", keys.swapaxes(0, 1).reshape(cached.shape).astype(np.float64)


def alike(keys: np.ndarray) -> Row:
    """Mean cosines of the keys [frames, T, dim] of adjacent frames; no other places where T is 1."""
    m = matrices(keys)
    same = np.eye(m.shape[1], dtype=bool)
    other = float(m[:, ~same].mean()) if len(same) > 1 else None
    return {"place": float(m[:, same].mean()), "other": other, "best": float(m.max(axis=1).mean())}


def matrices(keys: np.ndarray) -> np.ndarray:
    """Cosines of the keys [frames, T, dim] of each frame and the next, [frames - 1, T, T]."""
    x = keys / np.maximum(np.linalg.norm(keys, axis=-1, keepdims=True), 1e-30)
    return x[:-1] @ x[1:].swapaxes(1, 2)


def heat_maps(traces: dict[str, Trace]) -> Callable[[list[Row]], Figure]:
    """A function that draws the mean matrix of the first layer of each trace, as Fig. 7a."""

    def plot(_: list[Row]) -> Figure:
        figure = Figure((4 * len(traces), 4), layout="constrained")
        means = [matrices(next(kinds(trace, 0))[1]).mean(axis=0) for trace in traces.values()]
        low = min(float(m.min()) for m in means)
        places = figure.subplots(1, len(traces), squeeze=False)[0]
        for axes, m, (name, trace) in zip(places, means, traces.items(), strict=True):
            shown = axes.imshow(m, vmin=low, vmax=1)
            axes.set(title=f"{name}, layer {trace.layers[0]}", xlabel="token of the next frame", ylabel="token")
        figure.colorbar(shown, ax=figure.axes, label="cosine")
        return figure

    return plot


def hashes(traces: dict[str, Trace]) -> Drawn:
    """Fig. 7b: correlation of Hamming distance and cosine distance, in every recorded layer."""
    rows: list[Row] = []
    for name, trace in traces.items():
        for i, (kind, centre) in itertools.product(range(len(trace.layers)), (("cached", False), ("centred", True))):
            row: Row = {"trace": name, "layer": f"{trace.layers[i]}", "keys": kind}
            for bits in BITS:
                row |= follows(*pairs(trace, i, bits, centre))
            rows.append(row)
    paper = "a correlation of 0.8 with 32 hash bits, 3rd layer on COIN."
    note = (
        f"Pearson's correlation of Hamming distance and cosine distance over all pairs of {SAMPLE} keys or fewer, "
        "spread over the frames. expected: of independent Gaussian hyperplanes at these angles. The narrower the "
        "angles spread, the smaller it is."
    )
    return Drawn("V-Rex Fig. 7b: hash bits and cosine", paper, FOLLOWS, rows, note, scatter(traces))


def pairs(trace: Trace, i: int, bits: int, centre: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Cosines and Hamming distances of all pairs of sampled frame keys in recorded layer `i`, and the hash bits."""
    spans = trace.spans("frame")
    if not spans:
        raise TraceError("no frames in the trace: record a video with 'vrex trace'")
    params = ReSVParams(n_hp=bits, centre=centre, scope="layer")  # the paper hashes the keys of all heads together
    hasher = Hasher(params, trace.kv_heads, trace.head_size)
    first = hasher.split(trace.k[i, slice(*spans[0])])
    hasher.frame(first)  # takes the thresholds from the first frame
    at = np.concatenate([np.arange(start, stop) for start, stop in spans])
    at = at[np.linspace(0, len(at) - 1, min(SAMPLE, len(at))).astype(int)]
    keys = hasher.split(trace.k[i, at])[0]
    words = hasher.words(keys)
    x = keys.astype(np.float64) - (first[0].astype(np.float64).mean(axis=0) if centre else 0.0)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)
    upper = np.triu_indices(len(x), 1)
    return np.clip((x @ x.T)[upper], -1, 1), hamming(words, words)[upper].astype(np.float64), bits


def follows(cosine: np.ndarray, distance: np.ndarray, bits: int) -> Row:
    """How Hamming distances follow cosines over pairs.

    Each of n independent hyperplanes divides a pair at angle t with probability p = t / pi. So the distance has mean
    n p and variance n p (1 - p), which gives the correlation with 1 - cosine over these pairs.
    """
    p = np.arccos(cosine) / np.pi
    variance = p.var() + (p * (1 - p)).mean() / bits
    expected = np.cov(p, 1 - cosine, bias=True)[0, 1] / np.sqrt(variance * cosine.var())
    return {
        "cosine": float(cosine.mean()),
        "spread": float(cosine.std()),
        f"correlation_{bits}": float(np.corrcoef(1 - cosine, distance)[0, 1]),
        f"expected_{bits}": float(expected),
    }


def scatter(traces: dict[str, Trace]) -> Callable[[list[Row]], Figure]:
    """A function that draws the pairs of the first layer of each trace with 32 bits, as Fig. 7b."""

    def plot(_: list[Row]) -> Figure:
        figure = Figure((4 * len(traces), 7), layout="constrained")
        for column, (name, trace) in zip(figure.subplots(2, len(traces), squeeze=False).T, traces.items(), strict=True):
            for axes, centre in zip(column, (False, True), strict=True):
                cosine, distance, _bits = pairs(trace, 0, 32, centre)
                axes.hexbin(cosine, distance, gridsize=(40, 32), bins="log", cmap="viridis")
                kind = "centred" if centre else "cached"
                axes.set(title=f"{name}, layer {trace.layers[0]}, {kind}", xlabel="cosine", ylabel="Hamming distance")
        return figure

    return plot
