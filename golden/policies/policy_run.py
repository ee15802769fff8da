"""Runs a policy over a stream, block by block: on a recorded trace (`TraceRun`) or inside a decoder (`DecoderRun`).

Each block gives a `Record`. A run can be pickled; a loaded run continues as if it had never stopped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.policies.blocks import STAGES, Block, Shape
from openvrex.golden.policies.history import History
from openvrex.golden.policies.ledger import PolicyError
from openvrex.golden.policies.light_attention import Selected, attention, bf16
from openvrex.golden.policies.policy import LayerBlock, Policy


@dataclass
class Record:
    """The figures of one block. Arrays are nan where a layer had no query."""

    index: int  # the block's number, stage, first token and end, as in `Block`
    stage: str
    start: int
    stop: int
    rows: int  # tokens whose queries ran
    kept: np.ndarray  # [layers, kv_heads]: number of earlier tokens attended
    fetched: np.ndarray  # [layers, kv_heads]: number of attended tokens that were fetched from the host
    error: np.ndarray  # [layers]: |y - y_full| / |y_full| of the attention output over the same q, k and v
    totals: dict[str, int] = field(default_factory=dict)  # totals of the ledger since the stream began
    census: dict[str, int] = field(default_factory=dict)  # where the stream's entries are (`Store.census`)
    choices: list[int] = field(default_factory=list)  # most likely next token of each row, if a decoder ran
    losses: list[float] = field(default_factory=list)  # nats of the next token of each row, if targets were given
    # [layers, kv_heads]: number of earlier tokens that any of k heads attends to, k = 1 to kv_heads; mean over all k
    # neighbouring heads
    unions: np.ndarray = field(default_factory=lambda: np.full((0, 0), np.nan))


class Run:
    """The state of a policy's run: histories of all layers, tokens so far (`length`), records of the blocks so far.

    For each block, call `begin`, then `take` and `attend` in every layer, then `finish`. Raises `PolicyError` if the
    policy breaks a rule of `golden.policies.policy`.
    """

    def __init__(self, policy: Policy):
        self.policy = policy
        self.shape = policy.shape
        self.histories = [History(self.shape) for _ in range(self.shape.layers)]
        self.length = 0
        self.known = np.zeros(0, bool)  # [length]: whether a token has keys and values; plans pruned the others
        self.records: list[Record] = []

    def begin(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Begin a block and ask for its plan: the admitted tokens, all rows (refreshed first), their positions."""
        check(
            block.start == self.length, "block.start", block.start, f"must be {self.length}, the length of the stream"
        )
        check(block.stage in STAGES, "stage", block.stage, f"must be one of {', '.join(STAGES)}")
        check(block.stop > block.start, "block.stop", block.stop, f"must be above start = {block.start}")
        self.length = block.stop
        self.policy.store.arrive(block.stop)
        plan = self.policy.plan(block)
        admit = block.tokens if plan.admit is None else block.tokens[plan.admit]
        rows = np.concatenate([plan.refresh, admit]).astype(np.int64)
        if (np.diff(rows) <= 0).any() or (rows < 0).any():
            raise PolicyError(f"rows {rows.tolist()} of {type(self.policy).__name__}: must rise, refreshed before new")
        self.known = np.concatenate([self.known, np.isin(block.tokens, admit)])
        if not self.known[block.start :].all():
            for layer in range(self.shape.layers):
                self.policy.store.drop(layer, ~self.known)
        nothing = np.full((self.shape.layers, self.shape.kv_heads), np.nan)
        self.records.append(
            Record(
                block.index,
                block.stage,
                block.start,
                block.stop,
                len(rows),
                nothing,
                nothing.copy(),
                nothing[:, 0].copy(),
                unions=nothing.copy(),
            )
        )
        return admit, rows, rows if plan.positions is None else np.asarray(plan.positions)

    def take(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Give K and V [T, kv_heads, head_size] of tokens [T] of a layer to history, store and policy."""
        self.histories[layer].write(tokens, k, v, self.length)
        self.policy.store.append(layer, tokens)
        self.policy.append(layer, tokens, k, v)

    def attend(self, step: LayerBlock) -> np.ndarray:
        """Let the policy select, and run light attention: the output of a layer, FP32 [T, heads, head_size]."""
        policy, store, layer = self.policy, self.policy.store, step.layer
        chosen = policy.select(step)
        self.look(step, chosen)
        missing = np.argwhere(chosen.keep & ~store.readable(layer, step.block))
        if len(missing):
            head, token = missing[0].tolist()
            name = type(policy).__name__
            raise PolicyError(
                f"{name} attends to token {token} of layer {layer}, head {head}, without having it: fetch it"
            )
        turns = None if self.shape.frequencies is None else self.shape.frequencies[layer]
        y, macs = attention(step.q, step.k, step.v, step.rows, chosen, turns)
        policy.ledger.work("attention", macs)
        record, old = self.records[-1], np.arange(step.n) < step.block.start
        record.kept[layer] = (chosen.keep & old).sum(axis=1)
        record.unions[layer] = united(chosen.keep & old)
        record.fetched[layer] = (chosen.keep & store.on_host(layer) & store.on_device(layer)).sum(axis=1)
        record.error[layer] = self._error(step, chosen, y)
        store.release(layer)
        return y

    def look(self, step: LayerBlock, chosen: Selected) -> None:
        """See what a layer chose, before its attention. For subclasses that measure more than a `Record` holds."""

    def _error(self, step: LayerBlock, chosen: Selected, y: np.ndarray) -> float:
        everything = Selected(np.broadcast_to(self.known, chosen.keep.shape))
        exact = all(getattr(chosen, name) is None for name in ("k", "v", "turn", "extra_k", "add"))
        if exact and np.array_equal(chosen.keep, everything.keep):
            return 0.0
        full, _ = attention(step.q, step.k, step.v, step.rows, everything)
        return float(np.linalg.norm(y - full) / np.linalg.norm(full))

    def finish(self, block: Block) -> Record:
        """End a block; returns its record."""
        self.policy.end(block)
        self.records[-1].totals = self.policy.ledger.totals()
        self.records[-1].census = self.policy.store.census()
        return self.records[-1]


def united(keep: np.ndarray) -> np.ndarray:
    """Number of tokens that any of k neighbouring heads keeps, k = 1 to kv_heads: [kv_heads], means over the heads.

    keep : bool [kv_heads, n]; behind the last head comes the first
    """
    out, whole = np.zeros(len(keep)), keep
    for k in range(len(keep)):
        whole = whole | np.roll(keep, -k, axis=0)
        out[k] = whole.sum() / len(keep)
    return out


class TraceRun(Run):
    """Runs a policy over a recorded trace (`golden.inputs.trace`). Layers are the recorded ones, numbered from 0.

    Queries and keys are those of full attention at their recorded positions, whatever the policy chose before. So a
    plan's `refresh` and `positions` have no effect here. Pruned tokens have neither rows nor keys.
    """

    def __init__(self, policy: Policy, trace: Trace):
        super().__init__(policy)
        check(trace.v is not None, "trace", "without values", "must have values: record it without --no-values")

    def step(self, trace: Trace, block: Block) -> Record:
        """Run one block of the trace."""
        admit, _, _ = self.begin(block)
        asked = block.start >= trace.first_query
        for layer in range(self.shape.layers):
            assert trace.v is not None  # as `__init__` has checked
            k, v = (a[layer, admit].astype(np.float32) for a in (trace.k, trace.v))
            self.take(layer, admit, k, v)
            if asked and len(admit):
                q = trace.q[layer, admit - trace.first_query].astype(np.float32)
                history = self.histories[layer]
                self.attend(LayerBlock(layer, block, admit, q, history.k, history.v))
        return self.finish(block)


class DecoderRun(Run):
    """Runs a policy inside a decoder, whose attention is the policy's light attention in all layers and heads.

    Q, K and V are rounded to BF16, like the cache and the queries of the paper. The rest of the decoder runs in FP32.
    Hidden states carry the policy's error into later layers and tokens. `embeddings` keeps the decoder's input for all
    tokens, from which a plan's `refresh` computes K and V anew.

    A decoder may have local layers, which attend to a window of tokens (`Decoder.window`). A window is small and stays
    on the device, so nothing is retrieved for it: the run computes local layers by itself. The policy serves the other
    layers, and numbers them from 0. The ledger counts the operations and the device memory of all layers; bytes moved,
    shares and the census are those of the policy's layers. A policy guesses the next layer's queries
    (`LayerBlock.ahead`) only where its next layer follows directly. Local layers need every token in order, so a
    policy that prunes or refreshes tokens raises `PolicyError` there.
    """

    def __init__(self, policy: Policy, width: int):
        super().__init__(policy)
        self.embeddings = np.zeros((0, width), np.float32)
        self.spoken: list[int] = []  # tokens of an answer in its own words (`golden.policies.stream_runs`)
        self.windows: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # K and V [kv_heads, n, d] that local layers keep

    def step(self, decoder: Decoder, block: Block, x: np.ndarray, targets: np.ndarray | None = None) -> Record:
        """Run one block with the embeddings x [T, width].

        targets : [T], the token that follows each token, -1 for the decoder's own choice

        With targets the record holds the choice and the loss at each admitted token, else only the choice after the
        last. The decoder never chooses to end the answer.
        """
        admit, rows, positions = self.begin(block)
        self.embeddings = np.concatenate([self.embeddings, x])
        x = self.embeddings[rows]
        retrieving = 0  # of the policy's layers, the next one
        for layer in range(len(decoder.layers) if len(rows) else 0):
            q, k, v = (bf16(a) for a in decoder.qkv(layer, x, positions))
            if decoder.window(layer) is not None:
                if not np.array_equal([rows, positions], [block.tokens] * 2):
                    name = type(self.policy).__name__
                    raise PolicyError(
                        f"{name} prunes, refreshes or moves tokens, which the decoder's local layers cannot"
                    )
                y = self._local(decoder, layer, q, k, v)
            else:
                self.take(retrieving, rows, k, v)
                ahead, following = None, layer + 1
                if self.policy.uses_ahead and following < len(decoder.layers) and decoder.window(following) is None:
                    ahead = bf16(decoder.qkv(following, x, positions)[0])
                history = self.histories[retrieving]
                y = self.attend(LayerBlock(retrieving, block, rows, q, history.k, history.v, x, ahead))
                retrieving += 1
            x = decoder.after_attention(layer, x, y)
            self.policy.ledger.work(
                "linear", len(rows) * sum(w.size for w in decoder.layers[layer].values() if w.ndim == 2)
            )
        if len(admit):
            self._predict(decoder, x[-len(admit) :], admit - block.start, targets)
        return self.finish(block)

    def _local(self, decoder: Decoder, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Attention output of a local layer for a block's q, k and v [T, heads, d]; keeps what the next block sees."""
        window, k, v = decoder.window(layer), k.swapaxes(0, 1), v.swapaxes(0, 1)
        assert window is not None  # it is a local layer
        before = 0
        if layer in self.windows:
            old_k, old_v = self.windows[layer]
            before = old_k.shape[1]
            k, v = np.concatenate([old_k, k], axis=1), np.concatenate([old_v, v], axis=1)
        y, macs = decoder.attend(layer, q, k, v)
        self.policy.ledger.work("attention", macs)
        first = max(0, k.shape[1] - window + 1)
        self.windows[layer] = k[:, first:].copy(), v[:, first:].copy()
        grown = k.shape[1] - first - before
        self.policy.ledger.hold("device", grown * self.shape.kv_heads * self.shape.entry_bytes)
        return y

    def _predict(self, decoder: Decoder, hidden: np.ndarray, at: np.ndarray, targets: np.ndarray | None) -> None:
        logits = decoder.logits(hidden if targets is not None else hidden[-1:]).astype(np.float64)
        allowed = logits.copy()
        allowed[:, decoder.end] = -np.inf
        choices = allowed.argmax(axis=1)
        self.records[-1].choices = choices.tolist()
        if targets is not None:
            top = logits.max(axis=1)
            total = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
            token = np.where(targets[at] < 0, choices, targets[at])
            self.records[-1].losses = (total - logits[np.arange(len(logits)), token]).tolist()


def decoder_shape(decoder: Decoder) -> Shape:
    """The shape that a policy serves: a decoder's loaded layers, without local ones."""
    layers = sum(decoder.window(layer) is None for layer in range(len(decoder.layers)))
    turns = (tuple(decoder.frequencies),) * layers
    sizes = decoder.heads, decoder.kv_heads, decoder.head_size
    return Shape(layers, *sizes, turns, float(decoder.epsilon), decoder.name)


def shape_of(trace: Trace) -> Shape:
    """The shape of a trace's recorded layers. Fields that the trace does not know are None."""
    known = () if trace.model is None else (trace.model.turns, trace.model.epsilon)
    return Shape(len(trace.layers), trace.heads, trace.kv_heads, trace.head_size, *known)


def blocks(trace: Trace) -> Iterator[Block]:
    """The blocks of a trace, one for each segment."""
    for i, ((start, stop), stage) in enumerate(zip(trace.spans(), trace.stages.tolist(), strict=True)):
        yield Block(i, STAGES[stage], start, stop)
