"""The interface of retrieval policies: what a policy is told, and what it answers.

A retrieval policy decides which tokens of a stream's KV cache each layer attends to, where their keys and values are,
and which are dropped. A run (`golden.policies.policy_run`) feeds it a stream block by block; a block is the prompt, a
frame, a question or one generated token. For each block:

1. `plan` says which tokens enter the decoder.
2. In every layer, the run writes the block's keys and values into the `History`, enters them in the policy's `Store`
   and shows them to `append`.
3. `select` gets a `LayerBlock`, the layer's queries with all keys and values that have arrived, and returns the
   `Selected` tokens. Light attention (`attention`) runs over these.
4. After the last layer, `end` does the rest, such as eviction.

Two rules make the costs honest. A policy cannot look ahead: it gets only data that has arrived, and the history is
read-only. It cannot attend to a token that is not in device memory: the run refuses that. So the `Ledger` has counted
every byte that a policy reads. A token keeps its name, its index in the stream, for good.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.history import History
from openvrex.golden.policies.ledger import Ledger
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.store import Store
from openvrex.golden.retrieval import kv4


@dataclass(frozen=True)
class Admitted:
    """The tokens of a block that enter the decoder, and their positions."""

    admit: np.ndarray | None = None  # [T] bool: tokens that enter; the others are pruned. None: all enter
    refresh: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # earlier tokens to compute anew
    positions: np.ndarray | None = None  # [rows] rotary positions, refreshed tokens first. None: indices


@dataclass(frozen=True)
class LayerBlock:
    """One layer of one block, as a policy sees it. Q, K and V are BF16 values held in FP32, after rotary embedding."""

    layer: int  # 0 to shape.layers - 1
    block: Block
    rows: np.ndarray  # [T] int64, T at least 1: tokens of the queries, rising; refreshed ones come first
    q: np.ndarray  # [T, heads, head_size]
    k: np.ndarray  # [kv_heads, n, head_size], read-only: all keys that have arrived, those of the block included
    v: np.ndarray  # values, the same
    x: np.ndarray | None = None  # [T, width] FP32: input of the layer's attention, if a decoder runs
    ahead: np.ndarray | None = None  # [T, heads, head_size]: next layer's queries guessed from x, if a decoder runs

    @property
    def n(self) -> int:
        """Tokens that have arrived."""
        return self.k.shape[1]


class Policy:
    """Base of all policies. `params` is a frozen dataclass of `golden.function_params.parameter` fields.

    entry_bytes : of K and V of a token and KV head, if they are not BF16
    kv4_group : numbers of a group of the 4-bit entries on the host (`golden.retrieval.kv4`); 0: as on the device. An
        entry that leaves the device is packed, and comes back as what its packed form expands to

    A subclass must

    * set `source`: paper, section, equations;
    * keep its state in plain attributes, as a run is pickled to be resumed later;
    * count its prediction and index work in `self.ledger`, and its memory other than K and V by `self.ledger.hold`;
    * move K and V only by `self.store`.

    The run counts attention and linear layers, and releases a layer's fetched copies after its attention.
    """

    source: ClassVar[str]
    uses_ahead: bool = False  # whether `select` needs `LayerBlock.ahead`
    speaks: ClassVar[bool] = False  # whether a stream also notes the policy's answer in its own words
    turns: ClassVar[bool] = False  # whether `Selected.turn` moves keys, by the shape's rotary frequencies
    # Of a policy that chooses by positions and codec data alone, so that a core runs it as a window: what a run
    # should show of it, fields of `golden.program.window_slots.Events`.
    events: ClassVar[tuple[str, ...] | None] = None

    def __init__(self, params: Any, shape: Shape, entry_bytes: int | None = None, kv4_group: int = 0):
        known = not self.turns or shape.frequencies is not None
        check(
            known,
            "frequencies",
            None,
            f"must be known, because {type(self).__name__} turns keys: record the trace again",
        )
        self.params = params
        self.shape = shape
        self.ledger = Ledger()
        if kv4_group:
            kv4.check_group(kv4_group, shape.head_size, "a head")
        self.kv4_group = kv4_group
        self.store = Store(shape, self.ledger, entry_bytes, shape.entry_bytes // kv4.RATIO if kv4_group else None)
        # Keys and values as their places hold them, if the host's differ from those that arrived.
        self.stored = [History(shape) for _ in range(shape.layers if kv4_group else 0)]

    def plan(self, block: Block) -> Admitted:
        """Say which tokens of a block enter the decoder. Called once, before its first layer. Default: all."""
        return Admitted()

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Learn of new tokens [T]: their K and V [T, kv_heads, head_size] are on the device now. Default: nothing.

        Called before `select`. Where a trace has no queries for a block, there is no `select`.
        """

    def select(self, step: LayerBlock) -> Selected:
        """Choose the tokens that a layer attends to. All of `keep` must be on the device when this returns."""
        raise NotImplementedError

    def end(self, block: Block) -> None:
        """Finish a block after its last layer. Default: nothing."""

    def pack(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray, going: np.ndarray) -> None:
        """Hold what `append` was told of and `Store.offload` returned as 4-bit entries, if the host has such."""
        if self.stored:
            self.stored[layer].write(tokens, k, v, self.store.length)
            self.stored[layer].pack(going, self.kv4_group)

    def attended(self, layer: int, keep: np.ndarray) -> Selected:
        """The tokens of `keep`, as their places hold them."""
        stored = self.stored[layer] if self.stored else None
        return Selected(keep, stored.k, stored.v) if stored else Selected(keep)

    def offload_but(self, layer: int, first: int, last: int) -> np.ndarray:
        """Send a layer's resident tokens to the host, except its `first` first and `last` last ones; returns which."""
        n = self.store.length
        old = np.zeros(n, bool)
        old[first : max(first, n - last)] = True
        return self.store.offload(layer, old)
