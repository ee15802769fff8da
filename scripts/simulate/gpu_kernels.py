"""The steps of retrieval that need kernels of their own on a GPU: in Triton, and the same in PyTorch for processors.

Arrays, with H KV heads and M clusters or T tokens of each:

- gather: pieces of `words` int64 words at home -> their places in `dst`
- cluster: hash bits of new keys, int32 [H, n], into the table: each joins the nearest cluster within `most` bits, the
  first of equals, else opens one (ReSV, V-Rex section IV)
- score: the largest logit of a page of 8 tokens over all rows, from signs of 64 bits, int64 [H, T]
"""

from typing import Protocol

import torch

PAGE, BITS = 8, 64


class Kernels(Protocol):
    """The three steps; each changes its outputs in place."""

    name: str

    def gather(self, src: torch.Tensor, dst: torch.Tensor, index: torch.Tensor, words: int, ahead: int) -> None:
        """Copies piece `index[h, i]` of `src` to place `i` of head h of `dst`, [H, ahead + pieces * words] int64.

        src : [pieces, words] int64, in pinned memory of the host · ahead : words of a head that stay, before its pieces
        """

    def cluster(
        self, bits: torch.Tensor, table: torch.Tensor, used: torch.Tensor, sizes: torch.Tensor, most: int
    ) -> None:
        """Enters `bits` [H, n] into `table` [H, M], of which `used` [H] are clusters of `sizes` [H, M]; all int32."""

    def score(self, queries: torch.Tensor, signs: torch.Tensor, out: torch.Tensor) -> None:
        """Scores pages into `out` [H, T / 8] from `queries` [H, rows, 64] and `signs` [H, T] int64."""


class TorchKernels:
    """Plain PyTorch: slow, on any device."""

    name = "PyTorch"

    def gather(self, src: torch.Tensor, dst: torch.Tensor, index: torch.Tensor, words: int, ahead: int) -> None:
        own = src[index.cpu().reshape(-1)].to(dst.device)
        dst[:, ahead : ahead + index.shape[1] * words] = own.view(len(index), -1)

    def cluster(
        self, bits: torch.Tensor, table: torch.Tensor, used: torch.Tensor, sizes: torch.Tensor, most: int
    ) -> None:
        ones = torch.tensor([bin(i).count("1") for i in range(256)], dtype=torch.int32, device=bits.device)
        for h in range(len(bits)):
            for b in bits[h]:
                m = int(used[h])
                differ = (table[h, :m] ^ b).contiguous().view(torch.uint8).view(-1, 4).int()
                distance = ones[differ].sum(-1)
                # `min` may name any of equals.
                best = int((distance == distance.min()).int().argmax()) if m else -1
                if m and int(distance[best]) <= most:
                    sizes[h, best] += 1
                else:
                    table[h, m], sizes[h, m] = b, 1
                    used[h] = m + 1

    def score(self, queries: torch.Tensor, signs: torch.Tensor, out: torch.Tensor) -> None:
        shifts = torch.arange(BITS, device=signs.device)
        signed = ((signs[..., None] >> shifts & 1) * 2 - 1).to(queries.dtype)
        logits = (queries @ signed.transpose(-1, -2)).float().amax(1)
        out.copy_(logits.view(len(signs), -1, PAGE).amax(-1))
