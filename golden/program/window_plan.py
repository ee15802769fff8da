"""A layer's program over a pool of slots: for policies that choose tokens by their positions, on a core or an LXE.

`WindowPlan` is a `golden.program.layer_compiler.LayerPlan` whose ring is a pool. The host says in which slots a pass
leaves its entries, and which slots each token may see (the mask). Nothing lies behind the ring. So the host can drop a
token (its slot is masked, then used again), keep one for good, and compute one anew in its old slots.

Two stages more turn the keys of kept tokens, when other tokens between them and the window are dropped:

====  ==================================================================================================================
keep  copies keys from slots of the pool to `kept`, where they stay as they were computed
turn  rotates keys of `kept` by the tables of the pass, rounds them to BF16, and stores them in their slots
====  ==================================================================================================================

A key is always turned from its first form by the whole distance, so roundings do not add up. Values stay in their
slots. A plan of n tokens turns n keys. They lie in adjacent slots and in adjacent places of `kept`.

With hybrid memory's history branch, `norm1` also stores the hidden states divided by their root mean square, which the
branch reads (`golden.policies.hybrid`). The stages of `golden.program.scan_compiler` stand between `values` and
`output`. The last of them adds the branch's FP32 products to `attention` and rounds once to BF16.
State and last inputs of each layer stay in memory with its entries, from pass to pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.state_space import HistoryBranch, StateSpaceParams
from openvrex.golden.arithmetic.vector import Bank, Source
from openvrex.golden.function_params import check
from openvrex.golden.program.attention_stages import AttentionCompiler
from openvrex.golden.program.isa import LoadTo, LxeFormat, Queue
from openvrex.golden.program.layer_compiler import LayerPlan
from openvrex.golden.program.layer_memory import Array, LayerShape, Register, Team, Tiling
from openvrex.golden.program.scan_compiler import BranchPlan
from openvrex.golden.program.stage_plan import Planned, Stage

# Registers that a pool uses otherwise than a ring does. Their values are addresses.
SECOND = Register.OUT  # of the second run of slots of a pass; `Register.SLOT` holds the first run's
KEPT = Register.OUT  # of the first key in `kept`, for `keep` and `turn`

LAYER = "norm1", "down"  # first and last stage of a pass through a layer


class WindowCompiler(AttentionCompiler):
    """Writes the stages of a `WindowPlan`."""

    second = SECOND

    def keep_keys(self) -> None:
        """Copy keys of adjacent slots to `kept`."""
        s, p = self.shape, self.plan
        width = p["kept"].shape[1]
        for at, words in self.columns(width):
            self.load(p["ring"], at, s.tokens, words, s.entry, LoadTo.VECTOR, base=Register.SLOT)
            self.vector(s.tokens * words, Queue.LOAD, a=Source.STREAM, write=Bank.B)
            self.give(self.kept, at, words, rows=s.tokens, stride=width, base=KEPT)

    def turn_keys(self) -> None:
        """Rotate keys of `kept` by the keys' tables, and store them in adjacent slots."""
        s, p = self.shape, self.plan

        def place(h: int, first: int) -> tuple[Array, int, int]:
            return p["ring"], first * s.entry + h * s.head_size, s.entry

        self.turn_heads(range(s.kv_heads), 1, place, self.kept, {"base": KEPT}, {"base": Register.SLOT})

    @property
    def kept(self) -> Array:
        """`kept` from the place that the register KEPT names."""
        return replace(self.plan["kept"], offset=0)


class WindowPlan(LayerPlan):
    """The program of one pass through a layer over a pool of slots, and the arrays that it uses in memory.

    shape : `recent` is the number of slots; `entries` must be 0
    places : keys that `kept` has room for; 0: none is ever turned
    cuts, team : as in `LayerPlan`
    history : sizes of the history branch; None: the layer has attention alone

    `branch` is the plan of the history branch, or None. Raises `ParamError` for a shape that does not fit the format,
    for entries behind the ring, and as `BranchPlan` does.
    """

    _compiler: type[Any] = WindowCompiler

    def __init__(
        self,
        shape: LayerShape,
        fmt: LxeFormat,
        places: int,
        cuts: dict[str, Tiling] | None = None,
        team: Team | None = None,
        history: StateSpaceParams | None = None,
    ):
        check(shape.entries == 0, "entries", shape.entries, "must be 0: a pool of slots has nothing behind it")
        check(places >= 0, "places", places, "must not be negative")
        self.places, self.history = places, history
        self.branch: BranchPlan | None = None
        super().__init__(shape, fmt, cuts, team)

    def of(self, tokens: int) -> "WindowPlan":
        """The plan of a pass of fewer tokens that uses the same weights and entries in memory."""
        return WindowPlan(self._fewer(tokens), self.fmt, self.places, self.cuts, self.team, self.history)

    def _more_arrays(self) -> None:
        """Place the first forms of the kept keys, and the arrays of the branch."""
        if self.places:
            self.kv.add("kept", (self.places, self.shape.entry // 2), BF16)
        if self.history:
            spaces, total = (self.weights, self.work, self.kv), self.work.arrays["attention"]
            self.branch = BranchPlan(self.shape, self.fmt, self.history, total, spaces, self.cuts)
            self.cuts = self.cuts | self.branch.cuts

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        a, turns = self.arrays, self.places > 0
        norm1, *others = super()._table(c, gemm)
        if self.branch:
            scaled = a["history_normed"]
            norm1 = Planned("norm1", lambda: c.norm(a["hidden"], a["norm1_weight"], a["norm1"], scaled))
        return [Planned("keep", c.keep_keys, turns), Planned("turn", c.turn_keys, turns), norm1, *others]

    def _stages(self) -> Iterator[Stage]:
        for stage in super()._stages():
            if self.branch and stage.name == "output":
                yield from self.branch.stages
            yield stage

    # The host's part

    def begin(self, branch: HistoryBranch) -> list[tuple[Array, np.ndarray]]:
        """What the host writes for a layer's history branch before a stream: weights, and a state of zero."""
        assert self.branch is not None  # the plan was made with `history`
        zero = {name: np.zeros(self.branch[name].shape) for name in ("kept", "state")}
        return [(self.branch[name], x) for name, x in (self.branch.pack(branch) | zero).items()]

    def addresses(self, slots: np.ndarray, weights: int, kv: int) -> dict[int, int]:
        """Values of the host's registers for a pass whose tokens go to the slots [tokens], at most two runs of them.

        weights, kv : addresses of the layer's weights and entries
        """
        s = self.shape
        check(len(slots) == s.tokens, "slots", len(slots), f"must be {s.tokens}, one for each token")
        cuts = (np.flatnonzero(np.diff(slots) != 1) + 1).tolist()
        check(len(cuts) <= 1, "slots", slots.tolist(), "must be two runs at most: cut the pass")
        first = (cuts or [s.tokens])[0]
        at = [kv + int(slot) * s.entry * 2 for slot in (slots[0], slots[first % s.tokens])]
        return {
            Register.WEIGHTS: weights,
            Register.KV: kv,
            Register.SLOT: at[0],
            SECOND: at[1],
            Register.FIRST: first,
            Register.REST: s.tokens - first,
            Register.ENTRIES: 0,
        }

    def turning(self, slot: int, place: int, kv: int) -> dict[int, int]:
        """Values of the host's registers for `keep` and `turn`, of keys from slot `slot` and place `place` on."""
        s = self.shape
        kept = self["kept"]
        return {
            Register.SLOT: kv + slot * s.entry * 2,
            KEPT: kv + kept.offset + place * kept.shape[1] * 2,
            Register.REST: 0,
        }

    def key_tables(self, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        """The array `tables` for `turn`, from FP32 [tokens, head / 2] of the distances."""
        both = np.stack([np.concatenate([cos, cos], axis=1), np.concatenate([-sin, sin], axis=1)])
        return np.stack([both, both]).astype(np.float32)

    def inputs_of(
        self, hidden: np.ndarray, cos: np.ndarray, sin: np.ndarray, seen: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The arrays by name that the host writes before a pass.

        hidden : hidden states [tokens, width] · cos, sin : FP32 [tokens, head / 2] of the tokens' positions
        seen : slots that each token may attend to, bool [tokens, recent]
        """
        s = self.shape
        check(seen.shape == (s.tokens, s.recent), "seen", seen.shape, f"must be {(s.tokens, s.recent)}")
        mask = np.where(np.repeat(seen, s.group, axis=0), 0.0, -np.inf).astype(BF16)
        return super().inputs(hidden, cos, sin, 0) | {"mask": mask}
