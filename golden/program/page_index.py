"""Sizes of the index of coded pages on an LXE, its arrays in memory, and what a host writes into them."""

from math import sqrt
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import check
from openvrex.golden.program.code_stages import Coding
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.layer_memory import LayerShape, Space, divisors
from openvrex.golden.retrieval.coded_pages import CodeWords, PageParams, expanded, with_ones, words
from openvrex.golden.retrieval.key_matrices import KeyMatrices


class PageIndex:
    """The index of a layer's keys, and how a pass asks it.

    shape : of the layer and the pass · fmt : of the LXE
    pages : most pages of a KV head
    params : of the pages; `page`, `mean` and `numbers` matter

    coded : memory holds codes, which LOAD expands; then `coding` says how a program writes them
    places : codes in a word of weights, a power of two
    shifts : words of activations of a row: one for each place, or for one in each half of a word (`fmt.halves`)
    size : numbers of 16 bits that a token has in `codes`
    period : words of a key · page, mean : tokens of a page, and those that share a mean
    turned : rows that `turn` works on at once
    scale : of products of queries and keys

    Raises `ParamError` for sizes that do not fit together.
    """

    def __init__(self, shape: LayerShape, fmt: LxeFormat, pages: int, params: PageParams):
        n, size = fmt.lanes, shape.head_size
        self.shape, self.fmt, self.pages = shape, fmt, pages
        self.page, self.mean, self.numbers, self.scale = params.page, params.mean, params.numbers, 1 / sqrt(size)
        check(size % n == 0, "head_size", size, f"must be a multiple of lanes = {n}")
        own, self.coded = CodeWords(n, params.numbers), fmt.codes > 0
        reason = f"must be {fmt.codes}, lxe.codes of the core, or lxe.codes=0"
        check(not self.coded or params.numbers == fmt.codes, "numbers", params.numbers, reason)
        self.places = own.places if self.coded else min(own.places, params.page)
        reason = f"must be at least {self.places}, codes of a word of W"
        check(self.places <= params.page, "page", params.page, reason)
        self.shifts = self.places // 2 if fmt.halves and self.places > 1 else self.places
        self.size = own.code_bytes // 2 if self.coded else n // self.places
        self.period = size // n
        step = n * params.page
        reason = f"must be at most {step}, the tokens of lanes = {n} pages of {params.page}"
        check(params.mean <= step, "mean", params.mean, reason)
        check(pages % (2 * n) == 0 and pages > 0, "pages", pages, f"must be a multiple of {2 * n}: two steps")
        need = params.page // self.places + self.period
        check(need <= fmt.w_depth // 2, "page", params.page, f"needs {need} words of half of W: raise w_depth")
        rows = shape.rows
        reason = f"makes {rows} rows, more than depth = {fmt.depth}: take fewer"
        check(rows <= fmt.depth, "tokens", shape.tokens, reason)
        need = rows * (self.shifts + self.period)
        check(need <= fmt.x_depth, "tokens", shape.tokens, f"needs {need} words of X: take fewer, or raise x_depth")
        room = (fmt.depth - 2 * self.shifts) // max(2, self.shifts)  # of bank B
        room = min(fmt.depth // 3, room, fmt.x_depth // 2 // self.period)
        self.turned = max(d for d in divisors(rows) if d <= room)
        if self.coded:
            self.coding = Coding(fmt, params, size)

    def place(self, table: Space, work: Space) -> None:
        """Place what the index holds in `table`, and in `work` what a pass leaves."""
        n, s, pages = self.fmt.lanes, self.shape, self.pages
        rows = s.kv_heads * s.rows
        arrays: list[tuple[str, tuple[int, ...], Any]] = [
            ("codes", (s.kv_heads, pages * self.page, self.size), BF16),
            ("means", (s.kv_heads, pages * self.page // self.mean, s.head_size), BF16),
            ("turn_weight", (s.kv_heads, self.shifts * n, s.head_size), BF16),
            ("ones", (2 * self.shifts, n), BF16),
        ]
        for array in arrays + (self.coding.arrays(s.kv_heads, s.head_size) if self.coded else []):
            table.add(*array)
        work.add("row_sums", (rows, 2, n), np.float32)
        work.add("turned", (rows, self.shifts, n), BF16)
        work.add("ranks", (s.kv_heads, pages), np.float32)

    def constants(self, matrices: KeyMatrices) -> dict[str, np.ndarray]:
        """The arrays of the table by name that a model's layer has once."""
        n, width = self.fmt.lanes, self.fmt.lanes // self.places
        turn = np.zeros((self.shape.kv_heads, self.shifts * n, self.shape.head_size), BF16)
        ones = np.zeros((2 * self.shifts, n), BF16)
        for place in range(self.places):
            k, first = place % self.shifts, place * width
            turn[:, k * n + first : k * n + first + self.numbers] = matrices.query
            for half in range(2):
                ones[2 * k + half, first + self.numbers + half] = 1
        return {"turn_weight": turn, "ones": ones} | (self.coding.constants(matrices) if self.coded else {})

    def pack(self, numbers: np.ndarray, gains: np.ndarray) -> np.ndarray:
        """Codes of a KV head's tokens [N, numbers] with gains [N], whole pages, as its part of the array `codes`."""
        own = np.zeros((self.pages * self.page, self.size), BF16)
        if self.coded:
            own[: len(numbers)] = words(numbers, gains).view(BF16)
        else:
            own[: len(numbers), : self.numbers + 2] = with_ones(expanded(numbers, gains))
        return own
