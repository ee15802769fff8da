"""Retrieval of coded pages (`golden.retrieval.coded_pages`) as a policy."""

from collections import Counter
from dataclasses import dataclass
from math import sqrt

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import fma
from openvrex.golden.function_params import parameter
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.policy import LayerBlock, Policy
from openvrex.golden.retrieval.coded_pages import CodedKeys, PageParams, matrices_of, resident_sum
from openvrex.golden.retrieval.kvmap import KEEPS
from openvrex.golden.retrieval.scores import scores

PLACES = tuple(1 << n for n in range(3, 12))  # for kept pages of a KV head


@dataclass(frozen=True)
class PagesPolicyParams(PageParams):
    """Parameters of coded pages, and of their home."""

    kv4_group: int = parameter(
        0, "numbers of a group of 4-bit entries on the host (`golden.retrieval.kv4`); 0: entries stay BF16"
    )


class KeptPages:
    """What device memory with places for `places` pages of a KV head would have of each set of pages.

    As `golden.retrieval.kvmap` keeps blocks, where a page is a block. `seen` : pages that are whole, at home and
    chosen, by stage; `found` : those of them that were kept
    """

    def __init__(self, places: int, tables: int):
        self.places, self.opened = places, [0] * tables
        self.kept = np.full((tables, places), -1)
        self.seen, self.found = Counter[str](), Counter[str]()

    def take(self, table: int, stage: str, pages: np.ndarray, opened: int) -> None:
        """A set of pages, ascending; `opened` : pages so far, whose places have been taken from others."""
        kept = self.kept[table]
        for page in range(max(self.opened[table], opened - self.places), opened):
            kept[page % self.places] = -1
        self.opened[table] = opened
        near = kept[pages % self.places] == pages
        new = pages[~near][: min(KEEPS, self.places)]
        kept[new % self.places] = new
        self.seen[stage] += len(pages)
        self.found[stage] += int(near.sum())


class CodedPages(Policy):
    """Every key has a code in device memory; a KV head fetches the pages that its queries score highest, in a budget.

    Recent tokens stay on the device, and a block attends to all of its own tokens. Codes are those of the exact keys,
    with a 4-bit home, too.

    The ledger counts as index: sums, products of keys with the code matrix, squares of numbers. As prediction: products
    of queries with the query matrix, with means and with codes. It counts a sort of the candidates for each KV head.
    """

    source = "this project: docs/papers/recall.md"

    def __init__(self, params: PagesPolicyParams, shape: Shape):
        super().__init__(params, shape, kv4_group=params.kv4_group)
        matrices = matrices_of(params, shape.layers, shape.kv_heads, shape.head_size, shape.model)
        self.layers = [CodedKeys(params, own) for own in matrices]
        self.kept = [KeptPages(places, shape.layers * shape.kv_heads) for places in PLACES]
        self.sets = Counter[str]()  # of pages, by stage

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        p, s, own = self.params, self.shape, self.layers[layer]
        before = own.coded
        own.append(k.astype(BF16))
        new = (own.coded - before) * s.kv_heads
        self.ledger.work("index", new * (s.head_size + p.numbers * (s.head_size + 1)))
        self.ledger.hold("device", new * p.code_bytes + new // p.mean * 2 * s.head_size)
        self.pack(layer, tokens, k, v, self.store.offload(layer, ~own.resident()))

    def select(self, step: LayerBlock) -> Selected:
        own, p, s = self.layers[step.layer], self.params, self.shape
        resident = own.resident()
        resident[step.block.start :] = True
        at = np.flatnonzero(resident)
        q = step.q.astype(BF16)
        logits = self._logits(q, to_bf16(step.k[:, at]))
        seen = np.broadcast_to(at <= step.rows[:, None, None], logits.shape)
        sums = resident_sum(logits.reshape(-1, len(at)), seen.reshape(-1, len(at))).reshape(q.shape[:2])
        chosen = own.choose(q, sums)
        rows = len(step.rows) * s.heads
        products = (p.numbers + own.means.shape[1]) * s.head_size + own.coded * p.numbers
        self.ledger.work("prediction", rows * products)
        self.ledger.sort(own.coded // p.page, s.kv_heads)
        self.store.fetch(step.layer, chosen)
        self._keep(step, chosen[:, : own.length - p.recent] if own.length > p.recent else chosen[:, :0])
        keep = chosen & self.store.on_device(step.layer) | self.store.readable(step.layer, step.block)
        return self.attended(step.layer, keep)

    def _keep(self, step: LayerBlock, chosen: np.ndarray) -> None:
        """Count what kept pages would save; chosen [kv_heads, n]: of the tokens at home."""
        page, s = self.params.page, self.shape
        whole = chosen.shape[1] // page
        opened = -(-self.layers[step.layer].length // page)
        for g in range(s.kv_heads):
            pages = np.flatnonzero(chosen[g, : whole * page].reshape(whole, page).all(axis=1))
            self.sets[step.block.stage] += 1
            for kept in self.kept:
                kept.take(step.layer * s.kv_heads + g, step.block.stage, pages, opened)

    def _logits(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Products of queries [T, heads, size] with keys [kv_heads, n, size], by attention's scale: [T, heads, n]."""
        keys = k.swapaxes(0, 1).reshape(k.shape[1], -1)
        products = scores(q, keys, self.shape.kv_heads)
        scale = to_bf16(np.full(products.shape, 1 / sqrt(self.shape.head_size)))
        return fma(products, scale, np.full(products.shape, -0.0, np.float32))
