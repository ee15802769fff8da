"""The golden retrieval policies in plain PyTorch: the other side of the comparison by `vrex dev speed`.

Each is written for a CPU: FP32, dense tensors, one fused attention over the selected tokens, no ledger of bytes and
operations, no place of every token. Each serves one layer. A step takes a frame's queries [T, heads, head_size], keys
and values [T, kv_heads, head_size], and returns the attention's output [T, heads, head_size]. Parameters, hyperplanes,
random draws and the weights of the history branch are those of the golden policies, so both sides select alike.
"""

from math import ceil

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from openvrex.golden.arithmetic.state_space import HistoryBranch
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.retrieval.hashing import hyperplanes
from openvrex.golden.retrieval.signatures import LENGTH_BITS, LOWEST, planes, significands

HIDDEN = float("-inf")


def bf16(x: torch.Tensor) -> torch.Tensor:
    """Round to BF16, and keep the type FP32."""
    return x.bfloat16().float()


def unit(x: torch.Tensor) -> torch.Tensor:
    """Scale to length 1."""
    return F.normalize(x, dim=-1, eps=1e-30)


def turned(k: torch.Tensor, by: int, frequencies: tuple[float, ...]) -> torch.Tensor:
    """Rotate keys [..., d] on by this many positions."""
    half = k.shape[-1] // 2
    angle = by * torch.tensor(frequencies, dtype=torch.float64)
    cos, sin = angle.cos().float(), angle.sin().float()
    a, b = k[..., :half], k[..., half:]
    return bf16(torch.cat([a * cos - b * sin, b * cos + a * sin], -1))


class Rows:
    """A tensor [lead, n, width] that grows, at a cost that does not depend on n."""

    def __init__(self, lead: int, width: int):
        self._data = torch.zeros(lead, 4096, width)
        self.n = 0

    def append(self, x: torch.Tensor) -> None:
        """Append x [T, lead, width]."""
        start, self.n = self.n, self.n + len(x)
        while self.n > self._data.shape[1]:
            self._data = torch.cat([self._data, torch.zeros_like(self._data)], 1)
        self._data[:, start : self.n] = x.transpose(0, 1)

    @property
    def data(self) -> torch.Tensor:
        """The rows so far."""
        return self._data[:, : self.n]


class TorchPolicy:
    """Base of the policies of one layer. Subclasses select; this one attends to all (full attention, FlexGen)."""

    def __init__(self, params, shape: Shape):
        self.params, self.shape = params, shape
        self.k, self.v = (Rows(shape.kv_heads, shape.head_size) for _ in range(2))
        self._mask = torch.zeros(1, 0)

    def plan(self, block: Block) -> torch.Tensor:
        """Tokens of the block's rows: first those computed anew, then the new ones."""
        return torch.arange(block.start, block.stop)

    def step(
        self, q: torch.Tensor | None, k: torch.Tensor, v: torch.Tensor, tokens: torch.Tensor, attend: bool = True
    ) -> torch.Tensor | None:
        """Process one block; without queries it is only entered. `tokens` are the tokens of the rows, as planned."""
        self.append(k, v)
        y = None
        if q is not None:
            chosen = self.select(q)
            y = self.attend(q, *chosen) if attend else None
        self.end()
        return y

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Enter keys and values."""
        self.k.append(k)
        self.v.append(v)

    def select(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values to attend to, [kv_heads, n, d], with the block's own at the end."""
        return self.k.data, self.v.data

    def end(self) -> None:
        """Maintenance after the attention."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention, causal among the last T keys. The query heads of a KV head are rows side by side."""
        t, heads, d = q.shape
        kv_heads, n, _ = k.shape
        group = heads // kv_heads
        if self._mask.shape != (t * group, max(n, self._mask.shape[1])):
            own = torch.ones(t, t, dtype=torch.bool).triu(1).repeat_interleave(group, 0)
            self._mask = torch.zeros(t * group, 2 * n)
            self._mask[:, -t:].masked_fill_(own, HIDDEN)
        rows = q.reshape(t, kv_heads, group, d).transpose(0, 1).reshape(1, kv_heads, t * group, d)
        y = F.scaled_dot_product_attention(rows, k[None], v[None], attn_mask=self._mask[:, -n:])
        return y.view(kv_heads, t, group, d).transpose(0, 1).reshape(t, heads, d)

    def by_kv_head(self, q: torch.Tensor) -> torch.Tensor:
        """Queries as rows of their KV heads, [kv_heads, T x group, d]."""
        kv_heads = self.shape.kv_heads
        return q.view(len(q), kv_heads, -1, q.shape[2]).transpose(0, 1).reshape(kv_heads, -1, q.shape[2])

    def taken(self, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of tokens [n], the same tokens in all heads."""
        return self.k.data.index_select(1, at), self.v.data.index_select(1, at)


class Streaming(TorchPolicy):
    """StreamingLLM: sinks and a window; the sinks' positions move up to the window."""

    def __init__(self, params, shape: Shape):
        super().__init__(params, shape)
        self.sinks: tuple[torch.Tensor, torch.Tensor] | None = None
        self.window = (torch.zeros(shape.kv_heads, 0, shape.head_size),) * 2
        self.n = 0

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        p = self.params
        if self.sinks is None:
            self.sinks = k[:, : p.sinks], v[:, : p.sinks]
            k, v = k[:, p.sinks :], v[:, p.sinks :]
            self.n = p.sinks
        self.n += k.shape[1]
        recent = max(0, self.window[0].shape[1] - p.recent)
        self.window = tuple(torch.cat([old[:, recent:], new], 1) for old, new in zip(self.window, (k, v), strict=True))

    def select(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = self.sinks
        gone = self.n - k.shape[1] - self.window[0].shape[1]
        if gone:
            k = turned(k, gone, self.shape.frequencies[0])
        return torch.cat([k, self.window[0]], 1), torch.cat([v, self.window[1]], 1)


class ReKV(TorchPolicy):
    """ReKV: selects whole frames by the cosine of their mean key and the mean query."""

    def __init__(self, params, shape: Shape):
        super().__init__(params, shape)
        self.means = Rows(1, shape.kv_heads * shape.head_size)
        self.starts: list[int] = []

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self.starts.append(self.k.n)
        self.size = len(k)
        super().append(k, v)
        self.means.append(bf16(k.mean(0)).view(1, 1, -1))

    def select(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = self.k.n
        host = n - max(self.params.recent, self.size)  # tokens before this one are in host memory
        starts = torch.tensor(self.starts)
        prompt = self.starts[1] if len(self.starts) > 1 else n
        count = max(1, int((starts < host).sum()))
        query = q.view(len(q), self.shape.kv_heads, self.shape.group, -1).mean((0, 2)).flatten()
        similarity = unit(self.means.data[0, 1:count]) @ query
        keep = torch.zeros(len(starts), dtype=torch.bool)
        keep[1 + similarity.topk(ceil(self.params.frame_ratio * len(similarity))).indices] = True
        keep = keep.repeat_interleave(torch.diff(starts, append=torch.tensor([n])))
        keep[:prompt] = True
        keep[max(host, 0) :] = True
        return self.taken(keep.nonzero()[:, 0])


class InfiniGen(TorchPolicy):
    """InfiniGen: fetches a share of tokens, by attention predicted from a few columns of skewed queries and keys."""

    def __init__(self, params, shape: Shape):
        super().__init__(params, shape)
        self.columns = max(1, round(params.partial_ratio * shape.head_size))
        self.rows: list[torch.Tensor] = []
        self.basis: torch.Tensor | None = None
        self.partial = Rows(shape.kv_heads, self.columns)
        self.before = 0

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self.before = self.k.n
        super().append(k, v)
        if self.basis is not None:
            self._index(k.transpose(0, 1))

    def _index(self, k: torch.Tensor) -> None:
        self.partial.append(bf16(k @ self.basis).transpose(0, 1))

    def select(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old, n, rows = self.before, self.k.n, self.by_kv_head(q)
        if self.basis is None:
            self._calibrate(rows)
            return super().select(q)
        budget = ceil(self.params.frame_ratio * old)
        if budget == old:
            return super().select(q)
        s = (rows @ self.basis) @ self.partial.data[:, :old].transpose(1, 2) * self.shape.head_size**-0.5
        best = s.softmax(-1).sum(1).topk(budget).indices
        at = torch.cat([best, torch.arange(old, n).expand(self.shape.kv_heads, -1)], 1)
        at = at[:, :, None].expand(-1, -1, self.shape.head_size)
        return self.k.data.gather(1, at), self.v.data.gather(1, at)

    def _calibrate(self, rows: torch.Tensor) -> None:
        self.rows.append(rows)
        rows = torch.cat(self.rows, 1)
        if rows.shape[1] >= self.params.calibrate:
            right = torch.linalg.svd(rows.double(), full_matrices=rows.shape[1] < rows.shape[2]).Vh.transpose(1, 2)
            best = (rows.double() @ right).abs().sum(1).topk(self.columns).indices.sort().values
            self.basis = right.gather(2, best[:, None].expand(-1, right.shape[1], -1)).float()
            self._index(self.k.data)


class Oaken(TorchPolicy):
    """Oaken: full attention over K and V quantised to 4 bits in three groups, kept as the numbers they stand for."""

    def __init__(self, params, shape: Shape):
        super().__init__(params, shape)
        self.seen: list[torch.Tensor] | None = []
        self.limits = torch.zeros(2, 2)

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        if self.seen is not None:
            self.seen.append(torch.stack([k.flatten(1), v.flatten(1)]).abs())
            seen = torch.cat(self.seen, 1)
            share = torch.tensor([self.params.inner, 1 - self.params.outer])
            self.limits = torch.quantile(seen.flatten(1), share, dim=1).T
            self.seen = self.seen if seen.shape[1] < self.params.calibrate else None
        super().append(*(self._quantised(x, *limits) for x, limits in zip((k, v), self.limits, strict=True)))

    def _quantised(self, x: torch.Tensor, inner: torch.Tensor, outer: torch.Tensor) -> torch.Tensor:
        flat, bits = x.flatten(1), self.params.bits
        size = flat.abs()
        out = torch.zeros_like(flat)
        for low, high, width in ((0.0, inner, bits + 1), (inner, outer, bits), (outer, np.inf, bits + 1)):
            group = (size >= low) & (size < high)
            shifted = torch.where(group, size - low, 0)
            levels = 1 << (width - 1)
            step = bf16(shifted.amax(1, keepdim=True)).clamp_min(1e-30) / levels
            code = (shifted / step).floor().clamp_max(levels - 1)
            out = torch.where(group, torch.copysign((code + 0.5) * step + low, flat), out)
        return bf16(out).view_as(x)


class HashTable:
    """One table of ReSV: hash-bit clusters of the keys of the KV heads that share it, end to end."""

    def __init__(self, params, heads: int, size: int):
        p, self.params, self.heads = params, params, heads
        self.planes = torch.from_numpy(hyperplanes(p.n_hp, heads * size, p.hash_seed).astype(np.float32))
        self.hashes = torch.zeros(p.max_clusters, p.n_hp)  # bits as 1 and -1
        self.sums, self.counts = torch.zeros(p.max_clusters, heads * size), torch.zeros(p.max_clusters)
        self.thresholds: torch.Tensor | None = None if p.centre else torch.zeros(p.n_hp)
        self.clusters = 0
        self.cluster_of = torch.zeros(4096, dtype=torch.long)

    def append(self, keys: torch.Tensor, n: int) -> None:
        """Cluster keys [T, heads x d], the last T of n tokens."""
        p = self.params
        products = keys @ self.planes.T
        if self.thresholds is None and len(keys):
            self.thresholds = (products * bf16(torch.tensor(1 / len(keys)))).sum(0)
        bits = torch.where(products > self.thresholds, 1.0, -1.0)
        away = (p.n_hp - bits @ self.hashes[: self.clusters].T) / 2
        far, at = away.min(1) if self.clusters else (torch.full((len(bits),), HIDDEN * -1), torch.zeros(len(bits)))
        at, i = at.long(), 0
        while self.clusters < p.max_clusters and len(lone := (far[i:] >= p.th_hd).nonzero()):
            i += int(lone[0])  # the next token without a near cluster opens one, which later tokens can join
            self.hashes[self.clusters] = bits[i]
            own = (p.n_hp - bits[i:] @ bits[i]) / 2
            nearer = own < far[i:]
            far[i:][nearer], at[i:][nearer] = own[nearer], self.clusters
            self.clusters += 1
        self.sums.index_add_(0, at, keys)
        self.counts.index_add_(0, at, torch.ones(len(at)))
        while n > len(self.cluster_of):
            self.cluster_of = self.cluster_of.repeat(2)
        self.cluster_of[n - len(at) : n] = at

    def rows(self, q: torch.Tensor) -> torch.Tensor:
        """Clusters that each row of queries [heads, rows, d] selects, bool [heads, rows, clusters]."""
        counts = self.counts[: self.clusters]
        key = bf16(self.sums[: self.clusters] / counts[:, None]).view(self.clusters, self.heads, -1)
        s = q @ key.permute(1, 2, 0) * q.shape[-1] ** -0.5
        ranked, order = s.sort(-1, descending=True)
        weight = (ranked - ranked[:, :, :1]).exp() * counts[order]
        acc = weight.cumsum(-1)
        last = (acc <= acc[:, :, -1:] * (self.params.ratio_q16 / 65536)).sum(-1, keepdim=True)
        return s >= ranked.gather(-1, last.clamp_max(self.clusters - 1))


class ReSV(TorchPolicy):
    """V-Rex: hash-bit clusters of keys, WiCSum for each query row, union over the rows of a table."""

    def __init__(self, params, shape: Shape):
        super().__init__(params.resv, shape)
        self.heads = shape.kv_heads if self.params.scope == "layer" else 1  # KV heads of a table
        self.tables = [HashTable(self.params, self.heads, shape.head_size) for _ in range(shape.kv_heads // self.heads)]

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        first = max(0, self.params.sinks - self.k.n)
        super().append(k, v)
        self.size = len(k)
        for table, own in zip(self.tables, k[first:].split(self.heads, 1), strict=True):
            table.append(own.flatten(1), self.k.n)

    def rows(self, q: torch.Tensor) -> list[torch.Tensor]:
        """Clusters that each row selects, bool [heads, T x group, clusters] of each table."""
        queries = self.by_kv_head(q).split(self.heads)
        return [table.rows(own) for table, own in zip(self.tables, queries, strict=True)]

    def select(self, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Tokens to attend to, [n] of each table."""
        p, n, out = self.params, self.k.n, []
        for table, chosen in zip(self.tables, self.rows(q), strict=True):
            keep = chosen.flatten(0, 1).any(0)[table.cluster_of[:n]]
            keep[: p.sinks] = True
            keep[max(0, n - max(p.recent, self.size)) :] = True
            out.append(keep.nonzero()[:, 0])
        return tuple(out)

    def attend(self, q: torch.Tensor, *kept: torch.Tensor) -> torch.Tensor:
        """Attention, table by table, as each keeps tokens of its own."""
        out = []
        for i, (own, at) in enumerate(zip(q.chunk(len(kept), 1), kept, strict=True)):
            mine = slice(i * self.heads, (i + 1) * self.heads)
            k, v = (x.data[mine].index_select(1, at) for x in (self.k, self.v))
            out.append(super().attend(own, k, v))
        return torch.cat(out, 1)


class Signatures(TorchPolicy):
    """Token signatures: signs and length of each key less its page's mean; a KV head takes the highest scores."""

    def __init__(self, params, shape: Shape):
        super().__init__(params, shape)
        heads, size = shape.kv_heads, shape.head_size
        n_hp = params.signs(size)
        self.planes = torch.from_numpy(planes(n_hp, size, params.hash_seed).astype(np.float32))
        self.means, self.signs, self.lengths = Rows(heads, size), Rows(heads, n_hp), Rows(heads, 1)
        steps, octave = significands(n_hp)
        self.steps = torch.from_numpy(steps).float() / 2**octave

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        super().append(k, v)
        self.size = len(k)
        while self.k.n - self.signs.n >= self.params.page:
            keys = self.k.data[:, self.signs.n : self.signs.n + self.params.page].transpose(0, 1)
            mean = bf16(keys.mean(0))
            rest = bf16(keys - mean)
            quarters = ((rest * rest).sum(-1, keepdim=True).log2() * 4).floor()
            code = (quarters - 8 * LOWEST).clamp(0, 2**LENGTH_BITS - 1).long()
            self.means.append(mean[None])
            self.signs.append(torch.where(rest @ self.planes.T > 0, 1.0, -1.0))
            self.lengths.append(self.steps[code & 7] * 2 ** (code >> 3))

    def select(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        p, n = self.params, self.k.n
        first, last = min(p.sinks, n), max(p.sinks, n - p.recent)
        rows = self.by_kv_head(q)
        products = rows @ self.planes.T
        unit = (torch.frexp(products.abs().amax(-1, keepdim=True)).exponent - (p.query_bits - 1)).float().exp2()
        top = 2 ** (p.query_bits - 1) - 1
        integers = (products / unit).round().clamp(-top, top) * unit
        pages = (rows @ self.means.data.transpose(1, 2)).repeat_interleave(p.page, -1)
        score = (integers @ self.signs.data.transpose(1, 2) * self.lengths.data[:, None, :, 0] + pages).amax(1)
        count = (last - first) * p.budget_q16 >> 16
        best = score[:, first:last].argsort(dim=-1, descending=True, stable=True)[:, :count] + first
        always = torch.tensor([*range(first), *range(max(first, min(last, n - self.size)), n)])
        at = torch.cat([best.sort(-1).values, always.expand(len(best), -1)], 1)
        at = at[:, :, None].expand(-1, -1, self.shape.head_size)
        return self.k.data.gather(1, at), self.v.data.gather(1, at)


class Hybrid(TorchPolicy):
    """Hybrid memory: sink and recent blocks, and the state-space branch as in Mamba's reference implementation."""

    def __init__(self, params, shape: Shape):
        super().__init__(params, shape)
        width = shape.heads * shape.head_size
        branch = HistoryBranch(params.state, width, width)
        self.branch, self.w = branch, {}
        for name in ("in_proj", "conv_weight", "conv_bias", "x_proj", "dt_proj", "dt_bias", "a", "d", "out_proj"):
            self.w[name] = torch.from_numpy(getattr(branch, name))
        self.taps = self.w["conv_weight"].T[:, None]  # [inner, 1, taps]
        self.conv = torch.zeros(1, branch.inner, params.state.conv - 1)
        self.h = torch.zeros(branch.inner, params.state.state)
        self.window = (torch.zeros(shape.kv_heads, 0, shape.head_size),) * 2  # sink and recent
        self.first = self.n = 0  # first: the window's first token after the sink

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self.n += len(k)
        self.window = tuple(torch.cat([old, x.transpose(0, 1)], 1) for old, x in zip(self.window, (k, v), strict=True))
        self.add = self.history(v.repeat_interleave(self.shape.group, 1).flatten(1))

    def history(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the branch for input [T, width]; its state advances."""
        w, n, rank = self.w, self.params.state.state, self.branch.rank
        x, z = (x @ w["in_proj"]).chunk(2, 1)
        past = torch.cat([self.conv, x.T[None]], 2)
        self.conv = past[:, :, past.shape[2] - self.conv.shape[2] :]
        x = F.silu(F.conv1d(past, self.taps, w["conv_bias"], groups=len(self.taps))[0].T)
        dt, b, c = (x @ w["x_proj"]).split([rank, n, n], 1)
        dt = F.softplus(dt @ w["dt_proj"] + w["dt_bias"])
        fade = torch.exp(dt[:, :, None] * w["a"])
        new = (dt * x)[:, :, None] * b[:, None]
        h, y = self.h, []
        for t in range(len(x)):
            h = torch.addcmul(new[t], fade[t], h)
            y.append(h @ c[t])
        self.h = h
        return ((torch.stack(y) + w["d"] * x) * F.silu(z)) @ w["out_proj"]

    def select(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.window

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return super().attend(q, k, v) + self.add.view_as(q)

    def end(self) -> None:
        p = self.params
        first = (-(-self.n // p.block_tokens) - p.recent_blocks) * p.block_tokens
        gone = first - max(self.first, p.sink_tokens)
        if gone > 0:
            sink = p.sink_tokens
            self.window = tuple(torch.cat([x[:, :sink], x[:, sink + gone :]], 1) for x in self.window)
            self.first = first


class CodecSight(TorchPolicy):
    """CodecSight: a window of frames that advances by a stride; I-frames in the overlap are computed anew."""

    def __init__(self, params, shape: Shape):
        super().__init__(params, shape)
        self.leads: list[bool] = []
        self.starts: list[int] = []  # first token of each frame
        self.first = 0  # the window's first frame

    def plan(self, block: Block) -> torch.Tensor:
        p, frame, new = self.params, len(self.leads), super().plan(block)
        self.leads.append(block.frame.leads)
        self.starts.append(block.start)
        if frame < p.window or (frame - p.window) % p.stride:
            return new
        start = frame - p.window + p.stride
        first, self.first = self.first, max((i for i in range(self.first, start + 1) if self.leads[i]), default=start)
        if self.first == first or not p.refresh:
            return new
        frames = [i for i in range(self.first, frame) if self.leads[i]]
        return torch.cat([*(torch.arange(self.starts[i], self.starts[i + 1]) for i in frames), new])

    def step(
        self, q: torch.Tensor | None, k: torch.Tensor, v: torch.Tensor, tokens: torch.Tensor, attend: bool = True
    ) -> torch.Tensor | None:
        old = int((tokens < self.k.n).sum())
        for cache, x in ((self.k, k), (self.v, v)):
            cache.data[:, tokens[:old]] = x[:old].transpose(0, 1)
            cache.append(x[old:])
        return self.window(q, tokens) if q is not None and attend else None

    def window(self, q: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Attention of rows anywhere in the window, in parts: each part attends up to its last token."""
        first = self.starts[self.first]
        out = []
        for rows, at in zip(q.split(64), tokens.split(64), strict=True):
            stop = int(at[-1]) + 1
            k, v = (x.data[None, :, first:stop] for x in (self.k, self.v))
            seen = (torch.arange(first, stop) <= at[:, None]).repeat_interleave(self.shape.group, 0)
            y = F.scaled_dot_product_attention(self.by_kv_head(rows)[None], k, v, attn_mask=seen)[0]
            out.append(y.view(len(k[0]), len(rows), -1, q.shape[2]).transpose(0, 1).reshape(rows.shape))
        return torch.cat(out)


class Mosaic(TorchPolicy):
    """Mosaic: nested clusters. Frames are clustered by mean key, entries inside them; retrieval has two stages, splits
    are deferred.
    """

    def __init__(self, params, shape: Shape):
        super().__init__(params, shape)
        self.width = shape.kv_heads * shape.head_size
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []  # embedding and tokens of unclustered frames
        self.visual: Clusters | None = None
        self.semantic = Clusters(self.width)
        self.sums = torch.zeros(0, 2, self.width)  # sums of each cluster's keys and values
        self.cluster = torch.zeros(0, dtype=torch.long)  # cluster of every token; -1: none
        self.buffered, self.host = (torch.zeros(0, dtype=torch.bool) for _ in range(2))

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        tokens = torch.arange(self.k.n, self.k.n + len(k))
        super().append(k, v)
        self.cluster = torch.cat([self.cluster, torch.full((len(k),), -1)])
        self.buffered, self.host = (F.pad(x, (0, len(k))) for x in (self.buffered, self.host))
        self.pending.append((unit(unit(k.flatten(1)).mean(0)), tokens))

    def entries(self, tokens: torch.Tensor) -> torch.Tensor:
        """Keys and values of tokens, [n, 2, width]."""
        return torch.stack([x.data[:, tokens].transpose(0, 1).flatten(1) for x in (self.k, self.v)], 1)

    def select(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query = q.view(len(q), self.shape.kv_heads, self.shape.group, -1).mean((0, 2)).flatten()
        weight = torch.bincount(self.cluster[self.host], minlength=len(self.semantic))
        chosen = self._choose(query, weight)
        keep = ~self.host | (F.pad(chosen, (0, 1))[self.cluster] & (self.cluster >= 0))
        left = ((weight > 0) & ~chosen).nonzero()[:, 0]
        means = bf16(self.sums[left] / self.semantic.size[left, None, None])
        means = means.view(len(left), 2, self.shape.kv_heads, self.shape.head_size).permute(1, 2, 0, 3)
        for c in (chosen & self.semantic.lazy).nonzero()[:, 0].tolist():
            self._split(self._members(c), c)
        k, v = self.taken(keep.nonzero()[:, 0])
        return torch.cat([means[0], k], 1), torch.cat([means[1], v], 1)

    def _choose(self, query: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        p, partition = self.params, self.semantic.partition
        chosen = torch.zeros(len(weight), dtype=torch.bool)
        budget = ceil(p.ratio * int(weight.sum()))
        if not budget:
            return chosen
        groups = len(self.visual)
        held = torch.bincount(partition, weights=weight, minlength=groups)
        size = torch.bincount(partition, weights=self.semantic.size, minlength=groups)
        sums = torch.zeros(groups, self.width).index_add_(0, partition, self.sums[:, 0])
        keep = best(sums @ query / size.clamp_min(1), held, p.breadth * budget)
        at = keep[partition].nonzero()[:, 0]
        chosen[at] = best(self.sums[at, 0] @ query / self.semantic.size[at], weight[at], budget)
        return chosen

    def end(self) -> None:
        p = self.params
        if self.visual is None:
            if len(self.pending) == p.build:
                x = torch.stack([embedding for embedding, _ in self.pending])
                labels = kmeans(x, ceil(len(x) / p.partition_frames), p.seed)
                self.visual = Clusters(self.width)
                for label in range(int(labels.max()) + 1):
                    self.visual.add(x[labels == label])
                    own = [tokens for (_, tokens), of in zip(self.pending, labels, strict=True) if of == label]
                    self._create(torch.cat(own), label)
                self.pending = []
        else:
            ((embedding, tokens),), self.pending = self.pending, []
            c = int((unit(self.visual.mean) @ embedding).argmax())
            if self.visual.fits(c, embedding, p.visual):
                self.visual.absorb(c, embedding)
                self._assign(tokens, c)
            else:
                self._create(tokens, self.visual.add(embedding[None]))
        old = torch.arange(self.k.n) < self.k.n - p.recent
        self.host |= old & (self.cluster >= 0) & ~self.buffered

    def _members(self, c: int) -> torch.Tensor:
        return (self.cluster == c).nonzero()[:, 0]

    def _place(self, tokens: torch.Tensor, c: int) -> None:
        self.cluster[tokens], self.buffered[tokens] = c, False
        total = self.entries(tokens).sum(0)
        if c == len(self.sums):
            self.sums = torch.cat([self.sums, total[None]])
        self.sums[c] = total

    def _create(self, tokens: torch.Tensor, partition: int) -> None:
        x = unit(self.entries(tokens)[:, 0])
        labels = kmeans(x, ceil(len(x) / self.params.cluster_tokens), self.params.seed)
        for label in range(int(labels.max()) + 1):
            self._place(tokens[labels == label], self.semantic.add(x[labels == label], partition))

    def _assign(self, tokens: torch.Tensor, partition: int) -> None:
        entries, clusters = self.entries(tokens), self.semantic
        x = unit(entries[:, 0])
        own = (clusters.partition == partition).nonzero()[:, 0]
        close = x @ unit(clusters.mean[own]).T
        for i, token in enumerate(tokens.tolist()):
            at = int(close[i].argmax())
            c = int(own[at])
            if clusters.fits(c, x[i], self.params.semantic):
                clusters.absorb(c, x[i])
                self.cluster[token] = c
                self.sums[c] += entries[i]
            else:
                members = torch.cat([self._members(c), tokens[i : i + 1]])
                if self.params.defer and self.host[members].any():
                    clusters.lazy[c], self.cluster[token], self.buffered[token] = True, c, True
                    continue
                new = self._split(members, c)
                if new is not None:
                    own = torch.cat([own, torch.tensor([new])])
                    close = torch.cat([close, (x @ unit(clusters.mean[new]))[:, None]], 1)
            close[:, at] = x @ unit(clusters.mean[c])

    def _split(self, tokens: torch.Tensor, c: int) -> int | None:
        x, clusters = unit(self.entries(tokens)[:, 0]), self.semantic
        labels = kmeans(x, 2, self.params.seed)
        clusters.put(c, x[labels == 0])
        self._place(tokens[labels == 0], c)
        if not labels.any():
            return None
        new = clusters.add(x[labels == 1], int(clusters.partition[c]))
        self._place(tokens[labels == 1], new)
        return new


class Clusters:
    """Centroid, variance and size of Mosaic's clusters."""

    def __init__(self, width: int):
        self.mean = torch.zeros(0, width)
        self.variance, self.size = torch.zeros(0), torch.zeros(0)
        self.partition, self.lazy = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.bool)

    def __len__(self) -> int:
        return len(self.size)

    def add(self, x: torch.Tensor, partition: int = 0) -> int:
        """Add a cluster of unit vectors; its number."""
        self.mean = F.pad(self.mean, (0, 0, 0, 1))
        self.variance, self.size, self.lazy = (F.pad(t, (0, 1)) for t in (self.variance, self.size, self.lazy))
        self.partition = F.pad(self.partition, (0, 1), value=partition)
        self.put(len(self) - 1, x)
        return len(self) - 1

    def put(self, c: int, x: torch.Tensor) -> None:
        """Compute the statistics of cluster c from its members."""
        self.mean[c] = x.mean(0)
        self.variance[c] = (x - self.mean[c]).square().sum(1).mean()
        self.size[c], self.lazy[c] = len(x), False

    def grown(self, c: int, x: torch.Tensor) -> float:
        """Variance of cluster c if x joined it."""
        n = float(self.size[c])
        return n / (n + 1) * float(self.variance[c] + (x - self.mean[c]).square().sum() / (n + 1))

    def fits(self, c: int, x: torch.Tensor, threshold) -> bool:
        """Whether cluster c may take x."""
        return self.grown(c, x) <= threshold(int(self.size[c]) + 1)

    def absorb(self, c: int, x: torch.Tensor) -> None:
        """Take x into cluster c."""
        self.variance[c] = self.grown(c, x)
        self.size[c] += 1
        self.mean[c] += (x - self.mean[c]) / self.size[c]


def kmeans(x: torch.Tensor, k: int, seed: int, iterations: int = 10) -> torch.Tensor:
    """Labels of unit vectors, from 0 without gaps. The random draws are those of the golden k-means."""
    rng = np.random.default_rng(seed)
    centres = x[rng.integers(len(x))][None]
    far = 1 - x @ centres[0]
    while len(centres) < min(k, len(x)):
        weight = torch.where(far > 1e-6, far, 0).double().numpy()
        if not weight.any():
            break
        centres = torch.cat([centres, x[rng.choice(len(x), p=weight / weight.sum())][None]])
        far = torch.minimum(far, 1 - x @ centres[-1])
    labels = torch.full((len(x),), -1)
    for _ in range(iterations):
        new = (x @ centres.T).argmax(1)
        if torch.equal(new, labels):
            break
        labels = new
        sums = torch.zeros_like(centres).index_add_(0, labels, x)
        centres = torch.where(torch.bincount(labels, minlength=len(centres))[:, None] > 0, unit(sums), centres)
    return labels.unique(return_inverse=True)[1]


def best(score: torch.Tensor, weight: torch.Tensor, enough: float) -> torch.Tensor:
    """The highest scores, among those with a weight, whose weights first reach `enough`; bool."""
    order = score.argsort(descending=True, stable=True)
    order = order[weight[order] > 0]
    before = weight[order].cumsum(0) - weight[order]
    out = torch.zeros(len(score), dtype=torch.bool)
    out[order[before < enough]] = True
    return out
