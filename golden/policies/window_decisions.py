"""Decisions of policies that look at no key and no query, before a block is computed.

`Decider` drives the policy class itself, so hardware and NumPy runs share one truth. The policy gets NaN for queries,
keys and values.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from openvrex.golden.arithmetic.state_space import StateSpaceParams
from openvrex.golden.function_params import check
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.codecsight_policy import CodecSightPolicy
from openvrex.golden.policies.hybrid import HybridParams
from openvrex.golden.policies.policy import LayerBlock, Policy
from openvrex.golden.policies.policy_run import Run
from openvrex.golden.policies.registry import POLICIES, Entry, entry
from openvrex.golden.program.window_slots import Decision

# Policies whose choice depends on positions and codec data alone, and the events that each is there for.
WINDOWED = {name: found.policy.events for name, found in POLICIES.items() if found.policy.events is not None}
BRANCH = ("scanned", "carried", "evicted")  # events that hybrid memory's branch is there for


class Decider(Run):
    """Runs a policy without a model: `step` gives the decision for each block. Raises `ParamError` if it needs one."""

    def __init__(self, policy: Policy):
        super().__init__(policy)
        self.keep, self.turn = np.zeros(0, bool), np.zeros(0, np.int64)

    def step(self, block: Block) -> Decision:
        """Decide for the next block."""
        admit, rows, positions = self.begin(block)
        grown = block.stop - len(self.keep)
        # A block without rows asks nothing: what was kept stays so.
        self.keep, self.turn = np.pad(self.keep, (0, grown)), np.pad(self.turn, (0, grown))
        for layer in range(self.shape.layers if len(rows) else 0):
            keep, turn = self._select(layer, block, rows)
            same = layer == 0 or (np.array_equal(keep, self.keep) and np.array_equal(turn, self.turn))
            check(same, "layer", layer, "must choose as the layers before: one pool of slots serves all")
            self.keep, self.turn = keep, turn
        self.finish(block)
        return Decision(block.index, block.stage, block.start, block.stop, rows, positions, self.keep, self.turn)

    def _select(self, layer: int, block: Block, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        s, t, n = self.shape, len(rows), block.stop
        q, new, old = (
            np.broadcast_to(np.float32(np.nan), size)
            for size in ((t, s.heads, s.head_size), (t, s.kv_heads, s.head_size), (s.kv_heads, n, s.head_size))
        )
        self.policy.store.append(layer, rows)
        self.policy.append(layer, rows, new, new)
        chosen = self.policy.select(LayerBlock(layer, block, rows, q, old, old))
        self.policy.store.release(layer)
        plain = all(getattr(chosen, name) is None for name in ("k", "v", "extra_k", "extra_v", "add"))
        alike = bool((chosen.keep == chosen.keep[:1]).all())
        name = type(self.policy).__name__
        check(plain and alike, "policy", name, "must keep whole tokens, and attend to nothing else")
        turn = np.zeros(n, np.int64)
        if chosen.turn is not None:
            turn[: len(chosen.turn)] = chosen.turn
        return chosen.keep[0].copy(), np.where(chosen.keep[0], turn, 0)


def windowed(name: str) -> Entry:
    """The entry of a policy that a core runs without retrieval. Raises `ParamError` for another policy.

    Of hybrid memory it is the attention alone. With `ssm=random` its branch has weights in BF16, as a core has.
    """
    check(
        name in WINDOWED,
        "policy",
        name,
        f"must be resv, mosaic or one of {', '.join(WINDOWED)}: others have no hardware",
    )
    found = entry(name)
    own = HybridParams(ssm="disabled", state=StateSpaceParams(weights="bf16"))
    return Entry(found.policy, own) if name == "hybrid" else found


def branch_of(entry: Entry) -> StateSpaceParams | None:
    """Sizes of the branch that a layer has beside its attention under a policy; None if it has none."""
    p = entry.params
    return p.state if isinstance(p, HybridParams) and p.ssm != "disabled" else None


def without_branch(entry: Entry) -> Entry:
    """The policy without its history branch, which plays no part in its decisions."""
    return replace(entry, params=replace(entry.params, ssm="disabled")) if branch_of(entry) else entry


def decide(
    entry: Entry, shape: Shape, blocks: Iterable[Block], masks: Iterable[np.ndarray] | None = None
) -> list[Decision]:
    """The decisions of a fresh policy for a stream.

    masks : tokens of CodecSight's frames with codec data, bool [g, g] each, in place of its own pruner's
    """
    policy = without_branch(entry).build(shape)
    if masks is not None and isinstance(policy, CodecSightPolicy):
        given = iter(masks)
        policy.pruner = lambda frame: next(given)
    decider = Decider(policy)
    return [decider.step(block) for block in blocks]
