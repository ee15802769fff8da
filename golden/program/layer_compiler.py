"""The layer compiler: turns a Llama-style decoder layer into a program of the LXE (`golden.program.isa`).

`LayerPlan` places a layer's arrays in memory and writes its program. A pass takes the hidden states of `tokens` tokens
through the layer, in stages one after the other:

=========  ===========================================================================================================
norm1      RMSNorm of each token: `golden.program.vector_programs.rms_norm`
qkv        queries, keys and values: GEMM
rotary     rotates queries and keys (pairs i and i + head / 2); puts keys and values together as entries
append     copies the entries of the pass to their slots of the ring
scores     queries times all keys of the ring and of the entries behind it, FP32
softmax    of each row of scores with an additive mask: `vector_programs.softmax`; probabilities are BF16. A row that
           a bank does not hold is read in parts, three times; FP32 sums of the ring, of whole parts and of the rest
           are added
values     probabilities times values
output     GEMM: output projection, added to the hidden states
norm2      as norm1
gate_up    GEMM: SiLU(gate) * up
down       GEMM: added to the hidden states
=========  ===========================================================================================================

Hidden states, rotary tables and scores are FP32 in memory, everything else BF16. A stage begins when all results of
the stage before are in memory.

GEMM, y = x W^T. N is cut into blocks of tiles of `lanes` outputs, K into slices. A step loads one slice of a block's
weights and of the activations into one half of W and of X, while the DPE works on the other half. The DPE's dot
products of a slice (`golden.arithmetic.dot`) are FP32. Bank C of the VPE adds them in FP32 in the order of the slices,
after the residual if there is one. Weights lie in memory in the order in which they are loaded.

Scores and values run the same steps, with keys and transposed values as weights, one tile of `lanes` entries a step.

An entry is the keys of all KV heads of a token, then the values. The ring holds the entries of the last `recent`
tokens, those of the pass included: token t is in slot t mod recent. Behind the ring lie up to `entries` more entries
(sinks and fetched ones); the register ENTRIES holds their number when `scores` begins. Keys are multiplied in pairs of
tiles, so some products lie beyond the last entry; those are masked. The host's mask hides slots of the ring that a
token must not see. All masked numbers must be finite, so memory must be zero at first.

Rows of attention are ordered by KV head, then token, then query head of the group.

Teams. Cores may share the attention of the same heads (`golden.program.layer_memory.Team`). A member computes scores,
softmax and values over its own tiles of entries (`golden.program.attention_stages`). The stage `join` behind `values`
then makes some rows of attention from the parts of all members (`golden.program.join_stage`). The host places `stats`
and `parts` of all members at the same addresses, and starts `join` once all members have ended `values`. A GEMM may be
cut in K over cores, too: `Compiler.gemm` leaves the product of a slice of K, and `Compiler.total` adds the slices.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.packed_weights import Matrix, part, vector
from openvrex.golden.function_params import check
from openvrex.golden.program.attention_stages import AttentionCompiler
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.join_stage import WORDS as JOIN_WORDS
from openvrex.golden.program.join_stage import join
from openvrex.golden.program.layer_memory import Array, LayerShape, Register, Space, Team, Tiling, divisors
from openvrex.golden.program.sequencer_model import register_values
from openvrex.golden.program.stage_plan import Plan, Planned, Stage, Work

ROWS_AT_ONCE = 4  # of softmax, as the VPE has scalar registers for
GEMMS = ("output", "gate_up", "down", "qkv")  # in the order of their weights in memory

__all__ = ["Array", "LayerPlan", "LayerShape", "Register", "Stage", "Work"]


class LayerPlan(Plan):
    """The program of one pass through a layer, and the arrays that it uses in memory.

    `plan["q"]` is an array by its name. Arrays of `work` start at address 0 and belong to the pass. Those of `weights`
    and `kv` start at the addresses in the registers WEIGHTS and KV, so one program serves all layers of a decoder.

    cuts : how each GEMM is cut, which decides how its weights lie in memory; chosen for the pass if not given
    team : the core's place among the cores that share its heads; alone if not given

    Raises `ParamError` for a shape that does not fit the format; it names the size and its limit.
    """

    _compiler = AttentionCompiler
    _bound = ("softmax", "values")

    def __init__(
        self, shape: LayerShape, fmt: LxeFormat, cuts: dict[str, Tiling] | None = None, team: Team | None = None
    ):
        self.shape, self.fmt, self.team = shape, fmt, team or Team()
        self._check()
        s, n = shape, fmt.lanes
        head, period = s.head_size, s.head_size // n
        fits = [d for d in divisors(s.rows) if d <= min(fmt.depth, fmt.x_depth // 2) and d * period <= fmt.x_depth]
        self.batch = max(fits)  # rows of attention that a step computes
        self.value_tiles = max(d for d in divisors(period) if self.batch * d <= fmt.depth and d <= fmt.w_depth // 2)
        scale = head**-0.5
        self.scale = float(to_bf16(np.array([scale]))[0])  # factor of the scores
        self.query_scale = scale / self.scale  # puts the rounding error of that factor right, in the queries' tables
        qkv = (s.heads + 2 * s.kv_heads) * head
        self._size_rows()

        align = max(4096, 4 * n)
        self.work, self.weights, self.kv = Space(align), Space(align, Register.WEIGHTS), Space(align, Register.KV)
        for name, dims, dtype in (
            ("hidden", (self.joint, s.width), np.float32),
            ("tables", (2, 2, s.tokens, head), np.float32),  # for queries, then keys: cos, sin
            ("mask", (s.rows, s.recent), BF16),
            ("zeros", (n,), BF16),
            ("tails", (n + 1, 2, n), BF16),  # row m: masks of a tile with m entries and of an empty one
            ("norm1", (1, self.joint, s.width), BF16),
            ("qkv", (self.joint, qkv), BF16),
            ("q", (s.kv_heads, s.tokens, s.group * head), BF16),
            ("fresh", (s.tokens, s.entry), BF16),
            ("scores", (s.kv_heads * s.rows, self.row), np.float32),
            ("probabilities", (s.kv_heads * s.rows, self.spread), BF16),
            ("attention", (s.kv_heads, s.tokens, s.group * head), BF16),
            ("norm2", (1, self.joint, s.width), BF16),
            ("gated", (1, self.joint, s.ffn), BF16),
        ):
            self.work.add(name, dims, dtype)
        if (members := self.team.members) > 1:
            rows = s.kv_heads * s.rows
            self.work.add("stats", (members, rows, 2, n), np.float32)
            self.work.add("parts", (members, rows, head), np.float32)
        cut = partial(self._cut, packing=s.packing)
        self.cuts = cuts or {
            "qkv": cut(qkv, s.width, s.width),
            "output": cut(s.width, s.heads * head, s.group * head),
            "gate_up": cut(s.ffn, s.width, s.width, 2),
            "down": cut(s.width, s.ffn, s.ffn),
        }
        self.weights.add("norm1_weight", (s.width,), BF16)
        self.weights.add("norm2_weight", (s.width,), BF16)
        for name in (name for name in GEMMS if name in self.cuts):
            self.weights.add_weights(f"{name}_weight", self.cuts[name], n, shape.packing)
        self._entry_arrays()
        self._more_arrays()
        self.arrays = self.work.arrays | self.weights.arrays | self.kv.arrays | self._views
        self.stages = list(self._stages())

    def of(self, tokens: int) -> "LayerPlan":
        """The plan of a pass of fewer tokens that uses the same weights and entries in memory."""
        return LayerPlan(self._fewer(tokens), self.fmt, self.cuts, self.team)

    def _fewer(self, tokens: int) -> LayerShape:
        """The shape of a pass of fewer tokens."""
        check(tokens <= self.shape.tokens, "tokens", tokens, f"must be at most the plan's {self.shape.tokens}")
        return replace(self.shape, tokens=tokens)

    def _size_rows(self) -> None:
        """Choose the length of a row of scores, and the parts in which softmax reads it."""
        s, f, n = self.shape, self.fmt, self.fmt.lanes
        pair, team = 2 * n, self.team
        ring = s.recent // pair
        behind = -(-s.entries // pair)
        self.behind = behind * pair  # entries that there is room for behind the ring
        self.near = team.share(0, ring) * pair  # entries of the ring that this core attends to
        self.row = max(pair, self.near + team.share(ring, behind) * pair)  # the longest row of scores
        # The word of bank C where a row's mask begins: words 0 and 1 are free after a row, for its maximum and sum.
        self.masks = 0 if self.near else 2
        # Words of a part of a row of scores behind the ring; 0 where a bank holds the row. Its mask takes one more.
        room = f.depth - self.masks - self.near // n - 1
        whole = self.row <= (f.depth - self.masks) * n
        most = (f.depth - 3) // 2 * pair * team.members
        reason = f"must be at most {most}, so that a bank holds masks behind the ring"
        check(whole or room >= 2, "recent", s.recent, reason)
        self.part = 0 if whole else 1 << room.bit_length() - 1
        # Rows of a token whose softmax a member of a team works on at once: banks hold them, C a mask and results, too.
        words = self.row // n
        fits = [d for d in divisors(s.group) if d * words <= f.depth and self.masks + words + 2 * d <= f.depth]
        few = [d for d in fits if d <= ROWS_AT_ONCE] if team.members > 1 and not self.part else []
        self.rows_at_once = max(few, default=1)
        # Numbers from a row of probabilities to the next. In a team with several heads, long rows lie as far apart as
        # those of scores: then loops move one pointer for both, and have enough of them.
        self.spread = self.row * (2 if self.part and team.members > 1 and s.kv_heads > 1 else 1)

    def _check(self) -> None:
        s, f = self.shape, self.fmt
        check(f.weights or s.packing is None, "lxe.weights", f.weights, "must be true for 4-bit weights")
        n, half = f.lanes, f.w_depth // 2
        for name in ("width", "head_size", "ffn"):
            value = getattr(s, name)
            check(value % n == 0, name, value, f"must be a multiple of lanes = {n}")
        check(s.recent % (2 * n) == 0, "recent", s.recent, f"must be a multiple of two words of lanes = {n}")
        period = s.head_size // n
        check(period & (period - 1) == 0, "head_size", s.head_size, f"must be a power of two times lanes = {n}")
        check(period <= half, "head_size", s.head_size, f"must be at most {half * n}: a key is a word of half of W")
        check(2 * period <= f.depth, "head_size", s.head_size, f"must be at most {f.depth // 2 * n}, half a bank")
        need = JOIN_WORDS + period
        fits = self.team.members == 1 or f.depth >= need
        check(fits, "depth", f.depth, f"must be at least {need} in a team: a bank holds what joins a row")
        check(period <= f.x_depth, "head_size", s.head_size, f"must be at most {f.x_depth * n}, as X")
        check(s.width <= f.depth * n, "width", s.width, f"must be at most {f.depth * n} numbers, as a bank holds")
        self._check_tokens()
        check(s.recent < 1 << 15, "recent", s.recent, f"must be below {1 << 15}")

    def _entry_arrays(self) -> None:
        """Place the ring, with the entries behind it in the same array."""
        s = self.shape
        ring = self.kv.add("ring", (s.recent + self.behind, s.entry), BF16)
        offset = ring.offset + s.recent * s.entry * 2
        self._views = {"behind": Array("behind", offset, (self.behind, s.entry), BF16, ring.base)}

    def _more_arrays(self) -> None:
        """Place the arrays that a derived plan adds."""

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        a, team = self.arrays, self.team.members > 1
        rows = self.team.rows(self.shape.kv_heads * self.shape.rows)
        return [
            Planned("norm1", lambda: c.norm(a["hidden"], a["norm1_weight"], a["norm1"])),
            Planned("qkv", lambda: gemm("qkv", "norm1", "qkv")),
            Planned("rotary", c.rotary),
            Planned("append", c.append),
            Planned("scores", c.scores),
            Planned("softmax", c.softmax),
            Planned("values", c.values),
            Planned("join", lambda: join(c, a["parts"], a["stats"], a["attention"], rows), team),
            Planned("output", lambda: gemm("output", "attention", "hidden")),
            Planned("norm2", lambda: c.norm(a["hidden"], a["norm2_weight"], a["norm2"])),
            Planned("gate_up", lambda: gemm("gate_up", "norm2", "gated", True)),
            Planned("down", lambda: gemm("down", "gated", "hidden")),
        ]

    def costs(self, entries: int) -> dict[str, Work]:
        """The work of each stage, by name, with `entries` entries behind the ring."""
        registers = register_values(self.registers(0, entries, 0, 0))
        return {stage.name: self._cost(stage.name, registers) for stage in self.stages}

    # The host's part

    def registers(self, start: int, entries: int, weights: int, kv: int) -> dict[int, int]:
        """Values of the host's registers for a pass from token `start`, with `entries` behind the ring.

        weights, kv : addresses of the layer's weights and entries
        """
        s = self.shape
        check(0 <= entries <= s.entries, "entries", entries, f"must be 0 to {s.entries}")
        slot = start % s.recent
        first = min(s.tokens, s.recent - slot)
        return {
            Register.WEIGHTS: weights,
            Register.KV: kv,
            Register.SLOT: kv + slot * s.entry * 2,
            Register.FIRST: first,
            Register.REST: s.tokens - first,
            Register.ENTRIES: entries,
        }

    def inputs(self, hidden: np.ndarray, cos: np.ndarray, sin: np.ndarray, start: int) -> dict[str, np.ndarray]:
        """The arrays by name that the host writes before a pass from token `start`.

        hidden : hidden states [tokens, width] · cos, sin : FP32 [tokens, head / 2] of the tokens' positions
        """
        s = self.shape
        check(hidden.shape == (s.tokens, s.width), "hidden", hidden.shape, f"must be {(s.tokens, s.width)}")
        both = np.stack([np.concatenate([cos, cos], axis=1), np.concatenate([-sin, sin], axis=1)])
        return {
            "hidden": hidden.astype(np.float32),
            "tables": np.stack([both * self.query_scale, both]).astype(np.float32),
            "mask": np.where(np.repeat(self.seen(start), s.group, axis=0), 0.0, -np.inf).astype(BF16),
        }

    def seen(self, start: int) -> np.ndarray:
        """Slots of the ring that each token of a pass from `start` may attend to, bool [tokens, recent]."""
        s = self.shape
        newest = start + s.tokens - 1
        token = newest - (newest - np.arange(s.recent)) % s.recent  # the token in each slot
        return (token >= 0) & (token <= start + np.arange(s.tokens)[:, None])

    def constants(self) -> dict[str, np.ndarray]:
        """The arrays by name that are the same for every pass."""
        rows, _, n = self["tails"].shape
        unused = np.arange(rows)[:, None] <= np.arange(2 * n)
        return {
            "zeros": np.zeros(n, BF16),
            "tails": np.where(unused, -np.inf, 0.0).astype(BF16).reshape(rows, 2, n),
        }

    def pack(self, layer: dict[str, Matrix]) -> dict[str, np.ndarray]:
        """The arrays of weights by name, from a layer as `golden.inputs.decoder` keeps it ([inputs, outputs])."""
        gate, up = (part(layer["gate_up"], outputs=x) for x in np.arange(2 * self.shape.ffn).reshape(2, -1))
        return {
            "norm1_weight": to_bf16(vector(layer["attn_norm"])),
            "norm2_weight": to_bf16(vector(layer["ffn_norm"])),
            "qkv_weight": self.matrix("qkv", layer["qkv"]),
            "output_weight": self.matrix("output", layer["attn_output"]),
            "gate_up_weight": self.matrix("gate_up", gate, up),
            "down_weight": self.matrix("down", layer["ffn_down"]),
        }
