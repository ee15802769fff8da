"""The kernels of `gpu_kernels` in Triton, which PyTorch brings for GPUs."""

import torch
import triton
import triton.language as tl

from openvrex.scripts.simulate.gpu_kernels import BITS, PAGE


@triton.jit
def _gather(src, dst, index, pieces, words, ahead, BLOCK: tl.constexpr):
    piece, head = tl.program_id(0), tl.program_id(1)
    from_ = tl.load(index + head * pieces + piece)
    to = head.to(tl.int64) * (ahead + pieces * words) + ahead + piece.to(tl.int64) * words
    for start in range(0, words, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(dst + to + at, tl.load(src + from_ * words + at, mask=at < words), mask=at < words)


@triton.jit
def _ones(x):
    """Bits that are one in each of the 32-bit words."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x * 0x01010101) >> 24


@triton.jit
def _cluster(bits, table, used, sizes, n, room, most, BLOCK: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    table += head * room
    sizes += head * room
    m = tl.load(used + head)
    for k in range(0, n):
        b = tl.load(bits + head * n + k)
        # Distance first, then place: the least is the first of the nearest.
        nearest = tl.full((BLOCK,), 64 << 32, tl.int64)
        for start in range(0, m, BLOCK):
            at = start + tl.arange(0, BLOCK)
            other = tl.load(table + at, mask=at < m, other=0)
            distance = _ones((other ^ b).to(tl.uint32)).to(tl.int64)
            nearest = tl.minimum(nearest, tl.where(at < m, (distance << 32) | at, 64 << 32))
        best = tl.min(nearest, 0)
        joins = (best >> 32) <= most
        place = tl.where(joins, best & 0xFFFFFFFF, m.to(tl.int64))
        size = tl.load(sizes + place, mask=joins, other=0)
        tl.store(table + place, b, mask=joins == 0)
        tl.store(sizes + place, size + 1)
        m += tl.where(joins, 0, 1)
        tl.debug_barrier()  # the next key reads what other threads wrote
    tl.store(used + head, m)


@triton.jit
def _score(queries, signs, out, tokens, ROWS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr, PAGE: tl.constexpr):  # noqa: E501  # fmt: skip
    head, t = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(signs + head * tokens + t, mask=t < tokens, other=0)
    bit, row = tl.arange(0, BITS), tl.arange(0, PADDED)
    own = queries + head * ROWS * BITS + row[:, None] * BITS + bit[None, :]
    q = tl.load(own, mask=(row < ROWS)[:, None], other=0.0)
    signed = (((word[:, None] >> bit[None, :]) & 1) * 2 - 1).to(q.dtype)
    logits = tl.where((row < ROWS)[:, None], tl.dot(q, tl.trans(signed)), -1e30)
    page = tl.max(tl.reshape(tl.max(logits, 0), (BLOCK // PAGE, PAGE)), 1)
    at = tl.program_id(0) * (BLOCK // PAGE) + tl.arange(0, BLOCK // PAGE)
    tl.store(out + head * (tokens // PAGE) + at, page, mask=at < tokens // PAGE)


class TritonKernels:
    """Kernels for a GPU, which reads the host's pinned memory itself."""

    name = "Triton"

    def gather(self, src: torch.Tensor, dst: torch.Tensor, index: torch.Tensor, words: int, ahead: int) -> None:
        heads, pieces = index.shape
        _gather[(pieces, heads)](src, dst, index, pieces, words, ahead, BLOCK=min(1024, triton.next_power_of_2(words)))

    def cluster(
        self, bits: torch.Tensor, table: torch.Tensor, used: torch.Tensor, sizes: torch.Tensor, most: int
    ) -> None:
        _cluster[(len(bits),)](bits, table, used, sizes, bits.shape[1], table.shape[1], most, BLOCK=4096, num_warps=16)

    def score(self, queries: torch.Tensor, signs: torch.Tensor, out: torch.Tensor) -> None:
        heads, tokens = signs.shape
        rows, block = queries.shape[1], 128
        padded = max(16, triton.next_power_of_2(rows))
        grid = triton.cdiv(tokens, block), heads
        _score[grid](queries, signs, out, tokens, ROWS=rows, PADDED=padded, BLOCK=block, BITS=BITS, PAGE=PAGE)
