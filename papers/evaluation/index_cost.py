"""What an index costs a frame on a system of cores: bytes and reads on the link, its memory, cycles of the units.

Everything is counted from what a policy was measured to do (`papers.recall`) and from sizes of the units. A frame of
`FRAME` tokens asks for the entries of a Llama-3 8B, whose KV heads are dealt to the cores. A policy fetches a share of
the cache, which then grows with it, or a fixed budget. Blocks are counted as they are filled. Every read of a block is
one read of the drive, at an address of its own.

Times are what each resource is busy, so the largest of them is the least that the choice can take. Those of coded
pages are counted from the program of a step (`golden.program.page_stages`), on cores that expand codes (`lxe.codes`).
What programs do beside the scores is not in them: softmax, score codes, the scores of clusters that leave the core.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from openvrex.golden.program.isa import Opcode, encode
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.page_stages import PAGES, PagePlan
from openvrex.golden.retrieval.coded_pages import GAIN_BITS, PageParams
from openvrex.hdl.params import CLOCK, override_part
from openvrex.papers.policies.page_indexes import IndexedPagesParams
from openvrex.papers.recall.recall_run import SLOTS
from openvrex.sim.system.home import transfer
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.workload import Decoder
from openvrex.sim.units.loader_time import LoaderTime
from openvrex.sim.units.sequencer_time import trace

FRAME = 10  # tokens of a frame: V-Rex section VI
SAMPLE = 4096  # blocks of a layer whose reads are simulated, pages of which a program is counted


@dataclass(frozen=True)
class Measured:
    """What a policy was measured to do for a question and its answer, means over texts.

    length : tokens of the text · blocks : that a KV head fetches, of `SLOTS` entries each, as they are filled
    clusters : of a table for each 1,000 tokens, and the policy fetches a share of the cache; None for pages, of which
    it fetches as many however long the text is
    pages : parameters of pages, with what finds them
    """

    length: int
    blocks: float
    clusters: float | None
    pages: PageParams = PageParams()


@dataclass(frozen=True)
class IndexCost:
    """Of a frame, at one length of the cache.

    reads : of the link, in all layers · moved, held, read : bytes on the link, of the index in device memory, of the
    index read by a frame · link, memory, load, dpe, vpe, wtu : seconds of the link, of reading the index from device
    memory, of the loader, which hands it to the DPE, of the DPE, of the VPE (one pass over the scores of clusters), of
    the WTU
    """

    cache: int
    reads: float
    moved: float
    held: float
    read: float
    link: float
    memory: float
    load: float
    dpe: float
    vpe: float
    wtu: float


def cost(v: Vrex, model: Decoder, measured: Measured, cache: int, packed: bool) -> IndexCost:
    """Cost of a measured policy with `cache` tokens. `packed`: entries behind the link have 4 bits a number."""
    grown = 1.0 if measured.clusters is None else cache / measured.length
    entry = (1 if packed else 4) * model.head  # K and V
    blocks = measured.blocks * grown  # of a KV head and layer
    reads = blocks * model.kv_heads * model.layers
    link = _link(v, blocks * model.kv_heads, SLOTS * entry) * model.layers
    rows = FRAME * model.heads // model.kv_heads  # of a KV head
    heads = -(-model.kv_heads // v.cores)  # of a core
    wtu, every = v.core.dre.wtu, model.kv_heads * model.layers
    if measured.clusters is None:  # a score for each page leaves the core
        held, read, load, dpe, vpe = (cache * x for x in _of_pages(v, model, measured.pages))
        selected, rows_selected = cache / measured.pages.page, 1
    else:  # a mean key for each cluster; a score for each row and cluster leaves the core
        scored = measured.clusters / 1000 * cache
        load = scored * -(-model.head // v.core.dpe.n_w)
        held = read = scored * 2 * model.head
        dpe, vpe = rows * load / v.core.dpe.n_h, rows * scored / v.core.vpe.n_w
        selected, rows_selected = scored, rows
    cycles = heads * model.layers / CLOCK
    return IndexCost(
        cache,
        reads,
        reads * SLOTS * entry,
        held * every,
        read * every,
        link,
        read * every / v.bandwidth,
        load * cycles,
        dpe * cycles,
        vpe * cycles,
        rows_selected * (wtu.readings + 1) * selected / wtu.n_w * cycles,
    )


def _of_pages(v: Vrex, model: Decoder, pages: PageParams) -> np.ndarray:
    """Of a token and KV head: bytes held and read, cycles of the loader, of the DPE, of the VPE.

    Codes are counted from their program. Of other indexes, a word of W takes the loader a cycle, and the DPE one for
    each row; the VPE takes the scores once.
    """
    held = pages.code_bytes + 2 * model.head / pages.mean
    codes = np.array([held, *_scoring(v, model, pages)])
    if not isinstance(pages, IndexedPagesParams) or pages.index == "entries":
        return codes
    rows, lanes = FRAME * model.heads // model.kv_heads, v.core.dpe.n_w

    def vectors(each: float, numbers: int, size: float) -> np.ndarray:
        """So many vectors a token, of so many numbers in `size` bytes."""
        words = each * numbers / lanes
        return np.array([each * size, each * size, words, rows * words / v.core.dpe.n_h, rows * each / v.core.vpe.n_w])

    key, short = 2 * model.head, (3 * pages.short + GAIN_BITS) / 8
    means = vectors(1 / pages.page, model.head, key)
    alone = {"keys": vectors(1, model.head, key), "minmax": means * [2, 2, 2, 2, 1], "means": means}
    if pages.index in alone:
        return alone[pages.index]
    # Of two levels, the second one takes a share of the codes. A row has two numbers more, of its sum.
    first = means if pages.index == "means-codes" else vectors(1, pages.short + 2, short) * [0, 1, 1, 1, 1]
    return first + codes * [1, *4 * [pages.share]]


def _scoring(v: Vrex, model: Decoder, pages: PageParams) -> tuple[float, float, float, float]:
    """Of a token and KV head: bytes read, cycles of the loader, of the DPE, of the VPE. Counted from the program."""
    core = override_part(v.system, "core", [f"lxe.codes={pages.numbers}"]).core
    fmt, group = core.lxe_format(), model.heads // model.kv_heads
    sizes: dict[str, Any] = {"width": model.head, "ffn": model.head, "tokens": FRAME, "entries": 0}
    plan = PagePlan(LayerShape(heads=group, kv_heads=1, head_size=model.head, **sizes), fmt, SAMPLE, pages)
    [program] = plan.programs("rank0", "rank0")

    def done(pages: int) -> np.ndarray:
        work, registers = plan.cost(pages), {int(PAGES): pages}
        steps = trace(core, [encode(i) for i in program], registers).steps
        loads = [step.beat for step in steps if step.op == Opcode.LOAD]
        cycles = LoaderTime(core, 1, detail=False).run(loads).done[-1]
        return np.array([work.loaded, cycles, work.chunks, work.words])

    return tuple(((done(SAMPLE) - done(SAMPLE // 2)) / (SAMPLE // 2 * pages.page)).tolist())


def _link(v: Vrex, blocks: float, size: int) -> float:
    """Seconds of a layer's reads of so many blocks, at random places of the home."""
    if not blocks:
        return 0.0
    count = max(1, min(SAMPLE, round(blocks)))
    addr = np.random.default_rng(1).permutation(16 * count)[:count].astype(np.int64) * size
    first, rate = transfer(v.link, v.ssd, addr.tobytes(), np.full(count, size, np.int64).tobytes())
    return first + blocks * size / rate
