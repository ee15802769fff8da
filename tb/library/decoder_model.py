"""The whole real decoder on a golden core: SmolLM2-135M, all layers and heads, with its embeddings as language head."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from openvrex.golden.function_params import ReSVParams, check
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.policies import registry as parameters
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.encoder_host import EncoderHost
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.model_host import ModelHost, Weights, blocks_needed
from openvrex.golden.retrieval.coded_pages import PageParams, matrices_of
from openvrex.golden.retrieval.hashing import hyperplanes
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.hdl.params import CoreParams, override, preset

# 16 lanes and a bus of 32 bytes; a table for each KV head, whose entries are K and V of 64 numbers. The ring is short:
# short streams then fetch.
SIZES = ("dpe.n_h=16", "dpe.n_w=16", "vpe.n_w=16", "vpe.depth=128", "bus_bytes=32", "entry_bytes=256", "n_ctx=90")
SIZES += ("recent=32",)
# To retrieve coded pages: a code's numbers and its two ones fill a word, a page is a block.
PAGES = ("lxe.codes=14", "wtu.budget=true", "hcu.newest=true", "block_slots=8")
# To encode pictures: W holds keys and values of a head for all 257 tokens.
SEEN = ("dpe.w_depth=256",)
TOKENS = 10  # of the largest section of a pass
AT_ONCE = 64  # most tokens of a pass


def core(more: Sequence[str] = ()) -> CoreParams:
    """The core on which the decoder runs at 16 lanes."""
    return override(preset("small"), [*SIZES, *more]).core


def page_params(p: CoreParams, changes: dict[str, str]) -> PageParams:
    """Coded pages on a core, with some parameters given as text: short streams leave pages out."""
    recent = p.dre.kvmu.recent
    mean = min(recent, PageParams.mean)
    own = PageParams(min(mean, PageParams.page), mean, p.lxe.codes, budget=16, recent=recent)
    return parameters.override(own, changes, "pages.")


def layer_shape(p: CoreParams, total: int, tokens: int = TOKENS, like: type[Decoder] | Decoder = Decoder) -> LayerShape:
    """The shape of a layer for streams of up to `total` tokens, in sections of up to `tokens`."""
    recent = p.dre.kvmu.recent
    return LayerShape(
        width=like.width,
        heads=like.heads,
        kv_heads=like.kv_heads,
        head_size=like.head_size,
        tokens=tokens,
        recent=recent,
        entries=max(1, total - recent),  # the most that a pass may fetch
    )


def decoder_host(
    decoder: Decoder,
    p: CoreParams,
    total: int,
    tokens: int = TOKENS,
    f: ReSVParams | None = None,
    pages: PageParams | None = None,
    vision: EncoderHost | None = None,
    streams: int = 1,
    at_once: int = 0,
) -> ModelHost:
    """A golden core with all loaded layers of a decoder, for streams of up to `total` tokens.

    f : parameters of the retrieval, those of the hardware if not given; sinks are none, as the prompt is clustered
    pages : retrieve coded pages instead of clusters of similar keys
    vision : encodes pictures on the same core
    streams, at_once : most streams of a batch, most tokens of a pass, as of `ModelHost`

    On a core with `lxe.weights` the layers' matrices stay in the 4 bits of the decoder's file, and its head in 8 or 4
    where it has them.

    Home memory is as large as the stream needs. Raises `ParamError` for a core that does not hold the decoder.
    """
    f, k, h = replace(f or p.dre.function(), sinks=0), p.dre.kvmu, decoder.head_size
    check(k.entry_bytes == 4 * h, "entry_bytes", k.entry_bytes, f"must be {4 * h}, keys and values of a KV head")
    contexts = streams * len(decoder.layers) * decoder.kv_heads
    blocks = max(1, blocks_needed(total, k.clusters, k.block_slots, contexts))
    if pages:
        f, most = replace(f, th_hd=1, centre=False), k.clusters * pages.page
        check(total <= most, "clusters", k.clusters, f"must be at least {-(-total // pages.page)}, pages of the stream")
    reason = f"must be at least {blocks} for {total} tokens" + f" of {streams} streams" * (streams > 1)
    check(blocks <= k.blocks, "blocks", k.blocks, reason)
    layers, packing = decoder.held(p.lxe.weights)
    matrices: Sequence[np.ndarray | KeyMatrices] = [
        np.tile(hyperplanes(f.n_hp, h, f.hash_seed), (1, decoder.kv_heads))
    ] * len(layers)
    if pages:
        matrices = matrices_of(pages, len(layers), decoder.kv_heads, h, decoder.name)
    turns = np.array(decoder.frequencies)
    packed = decoder.packed_head() if p.lxe.weights else None
    weights = Weights(layers, matrices, decoder.norm, decoder.embeddings, turns, decoder.head, packed)
    shape = layer_shape(p, total, tokens, decoder)
    ffn = decoder.layers[0]["ffn_down"].shape[0]
    shape = replace(shape, ffn=ffn, epsilon=float(decoder.epsilon), packing=packing)
    sizes = p.dre.sizes(blocks)
    retrieval = RetrievalShape.of(sizes, f.centre, pages=pages)
    how: dict[str, Any] = {"end": decoder.end, "vision": vision, "streams": streams, "at_once": at_once}
    return ModelHost(shape, p.core_format(), retrieval, weights, f, sizes, **how)
