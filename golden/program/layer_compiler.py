"""The layer compiler: a Llama-style decoder layer as a program of the LXE (`golden.program.isa`).

A pass takes the hidden states of `tokens` tokens through one layer, in stages one after the other:

=========  ===========================================================================================================
norm1      RMSNorm of each token: `golden.program.vector_programs.rms_norm`
qkv        queries, keys and values: GEMM
rotary     queries and keys turned (pairs i and i + head / 2); keys and values put together as entries
append     the pass's entries to their slots of the ring
scores     queries against all keys of the ring and all entries behind it, FP32
softmax    each row of scores, with an additive mask: `vector_programs.softmax`; probabilities are BF16. A row longer
           than a bank in parts, three times: FP32 sums of the ring, of whole parts and of what is left are added
values     probabilities against the values
output     output projection, added to the hidden states
norm2      as norm1
gate_up    SiLU(gate) * up
down       added to the hidden states
=========  ===========================================================================================================

Hidden states are FP32 in memory, everything else BF16. A stage begins when all of the one before is in memory.

GEMM, y = x W^T: N is cut in blocks of tiles of `lanes` outputs, K in slices; a step loads one slice of a block's
weights and of the activations into a half of W and of X while the DPE works on the other half. Sums of a slice are
dot products of the DPE (`golden.arithmetic.dot`), FP32, and are added up in bank C of the VPE in FP32: in the order of
the slices, after the residual, if there is one. Weights lie in memory in the order in which they are loaded.

Scores and values are the same steps with keys and transposed values for weights, one tile of `lanes` entries a step.

Entries are kept in whole: the keys of all KV heads, then the values. The ring holds the last `recent` tokens, those of
the pass included: token t in slot t mod recent. Behind it lie up to `entries` more (sinks and what was fetched), as
many as the register ENTRIES says when `scores` begins; keys are multiplied in pairs of tiles, so some beyond them,
which are masked, as are slots of the ring that a token does not see: the host's mask says which. All that is masked
must be finite: memory is zero at first.

Rows of attention are ordered by KV head, token and query head of its group.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from golden.arithmetic.numerics import BF16, to_bf16
from golden.function_params import check
from golden.program.isa import ENGINE, Instruction, LxeFormat, Opcode
from golden.program.layer_memory import Array, LayerShape, Register, Space, Tiling, divisors
from golden.program.layer_stages import FREE, POINTERS, Compiler, semaphores
from golden.program.loop_rolling import Item, assemble, op, roll
from golden.program.sequencer_model import register_values, sequence

__all__ = ["Array", "LayerPlan", "LayerShape", "Register", "Stage", "Work"]


@dataclass
class Work:
    """What a stage does in a pass.

    issued : instructions of the four engines · loaded, stored : bytes over the bus · words : through the VPE's lanes
    or out of it · chunks : steps of the DPE, all trees at once
    """

    issued: int = 0
    loaded: int = 0
    stored: int = 0
    words: int = 0
    chunks: int = 0

    def cycles(self, bus_bytes: int) -> dict[str, int]:
        """Lower bounds by resource: DPE and VPE a chunk or word, the bus `bus_bytes` a cycle in either direction."""
        load, store = (-(-n // bus_bytes) for n in (self.loaded, self.stored))
        return {"dpe": self.chunks, "vpe": self.words, "load": load, "store": store}

    def utilisation(self, bus_bytes: int) -> tuple[float, str]:
        """Upper bound of the DPE's share of the stage's cycles, and the resource that sets it."""
        cycles = self.cycles(bus_bytes)
        most = max(cycles, key=lambda name: cycles[name])
        return self.chunks / max(1, cycles[most]), most


@dataclass(frozen=True)
class Stage:
    """A part of the program, and the arrays it leaves in memory.

    waits : for all of the stage before to be in memory; else for the one before that
    """

    name: str
    items: tuple[Item, ...]
    outputs: tuple[Array, ...]
    waits: bool = True


class LayerPlan:
    """The program of a layer's pass and its memory.

    `work`, `weights` and `kv` hold arrays (`plan["q"]` is one by its name); the first from address 0, the others from
    the registers WEIGHTS and KV, so that one program serves all layers of a decoder. `work` is the pass's own.

    cuts : how the GEMMs are cut and so how weights lie in memory; chosen for the pass if not given

    Raises `ParamError` for a shape that does not fit the format: it names the dimension and what it may be.
    """

    _compiler = Compiler
    _beside: tuple[str, ...] = ()  # names of stages that do not wait for the one before
    _hands: dict[int, tuple[str, str]] = {}  # semaphores from one stage to another that is not the next

    def __init__(self, shape: LayerShape, fmt: LxeFormat, cuts: dict[str, Tiling] | None = None):
        self.shape, self.fmt = shape, fmt
        self._check()
        s, n = shape, fmt.lanes
        head, period = s.head_size, s.head_size // n
        fits = [d for d in divisors(s.rows) if d <= min(fmt.depth, fmt.x_depth // 2) and d * period <= fmt.x_depth]
        self.batch = max(fits)  # rows of attention at once
        self.value_tiles = max(d for d in divisors(period) if self.batch * d <= fmt.depth and d <= fmt.w_depth // 2)
        self.turned = max(d for d in divisors(s.tokens) if 2 * d * period <= fmt.depth)  # tokens at once in `rotary`
        scale = head**-0.5
        self.scale = float(to_bf16(np.array([scale]))[0])  # of the scores
        self.query_scale = scale / self.scale  # what BF16 leaves of it, in the tables of the queries
        qkv = (s.heads + 2 * s.kv_heads) * head
        behind = -(-s.entries // (2 * n)) * 2 * n
        self.row = s.recent + behind  # the longest row of scores
        # Words of a part of a row of scores behind the ring, with one more for its mask; 0 where a bank holds a row.
        room = fmt.depth - s.recent // n - 1
        whole = self.row <= fmt.depth * n
        most = (fmt.depth - 3) // 2 * 2 * n
        check(
            whole or room >= 2,
            "recent",
            s.recent,
            f"must be at most {most}, so that a bank holds masks behind the ring",
        )
        self.part = 0 if whole else 1 << room.bit_length() - 1

        align = max(4096, 4 * n)
        self.work, self.weights, self.kv = Space(align), Space(align, Register.WEIGHTS), Space(align, Register.KV)
        for name, dims, dtype in (
            ("hidden", (s.tokens, s.width), np.float32),
            ("tables", (2, 2, s.tokens, head), np.float32),  # of queries and keys: cos, sin
            ("mask", (s.rows, s.recent), BF16),
            ("zeros", (n,), BF16),
            ("tails", (n + 1, 2, n), BF16),  # masks of a tile with so many entries, and of one with none
            ("norm1", (1, s.tokens, s.width), BF16),
            ("qkv", (s.tokens, qkv), BF16),
            ("q", (s.kv_heads, s.tokens, s.group * head), BF16),
            ("fresh", (s.tokens, s.entry), BF16),
            ("scores", (s.kv_heads * s.rows, self.row), np.float32),
            ("probabilities", (s.kv_heads * s.rows, self.row), BF16),
            ("attention", (s.kv_heads, s.tokens, s.group * head), BF16),
            ("norm2", (1, s.tokens, s.width), BF16),
            ("gated", (1, s.tokens, s.ffn), BF16),
        ):
            self.work.add(name, dims, dtype)
        self._entry_arrays()
        self.cuts = cuts or {
            "qkv": self._cut(qkv, s.width, s.width),
            "output": self._cut(s.width, s.heads * head, s.group * head),
            "gate_up": self._cut(s.ffn, s.width, s.width, 2),
            "down": self._cut(s.width, s.ffn, s.ffn),
        }
        self.weights.add("norm1_weight", (s.width,), BF16)
        self.weights.add("norm2_weight", (s.width,), BF16)
        for name, cut in self.cuts.items():
            dims = (cut.blocks, cut.slices, cut.tiles * n, cut.words * n)
            self.weights.add(f"{name}_weight", dims, BF16)
        self._more_arrays()
        self.arrays = self.work.arrays | self.weights.arrays | self.kv.arrays | self._views
        self.stages = list(self._stages())

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def of(self, tokens: int) -> "LayerPlan":
        """The plan of a pass of fewer tokens over the same weights and entries."""
        check(tokens <= self.shape.tokens, "tokens", tokens, f"must be at most the plan's {self.shape.tokens}")
        return LayerPlan(replace(self.shape, tokens=tokens), self.fmt, self.cuts)

    def _check(self) -> None:
        s, f = self.shape, self.fmt
        n, half = f.lanes, f.w_depth // 2
        for name in ("width", "head_size", "ffn"):
            value = getattr(s, name)
            check(value % n == 0, name, value, f"must be a multiple of lanes = {n}")
        check(s.recent % (2 * n) == 0, "recent", s.recent, f"must be a multiple of two words of lanes = {n}")
        period = s.head_size // n
        check(period & (period - 1) == 0, "head_size", s.head_size, f"must be a power of two times lanes = {n}")
        check(period <= half, "head_size", s.head_size, f"must be at most {half * n}: a key is a word of half of W")
        check(2 * period <= f.depth, "head_size", s.head_size, f"must be at most {f.depth // 2 * n}, half a bank")
        check(period <= f.x_depth, "head_size", s.head_size, f"must be at most {f.x_depth * n}, as X")
        check(s.width <= f.depth * n, "width", s.width, f"must be at most {f.depth * n} numbers, as a bank holds")
        most = min(f.depth, f.x_depth // 2)
        check(s.tokens <= most, "tokens", s.tokens, f"must be at most {most}: words of a bank, and of half of X")
        check(s.recent < 1 << 15, "recent", s.recent, f"must be below {1 << 15}")

    def _cut(self, outputs: int, length: int, segment: int, gates: int = 1) -> Tiling:
        """The cut of a GEMM with the fewest words of activations, a step for 32; whole blocks and slices only."""
        f, tokens = self.fmt, self.shape.tokens
        n_tiles, k = outputs // f.lanes, length // f.lanes
        cuts: list[tuple[float, Tiling]] = []
        for tiles in (d for d in divisors(n_tiles) if tokens * d <= f.depth):
            for words in divisors(segment // f.lanes):
                if tiles * words > f.w_depth // 2 or tokens * words > f.x_depth // 2:
                    continue
                cut = Tiling(gates * n_tiles // tiles, tiles, k // words, words)
                odd = 1.2 if cut.slices % 2 and cut.slices > 1 else 1  # the halves' turns make its loop twice as long
                cuts.append((cut.blocks * (tokens * k + 32 * cut.slices) * odd, cut))
        return min(cuts, key=lambda x: x[0])[1]

    def _stages(self) -> Iterator[Stage]:
        c, a = self._compiler(self), self.arrays

        def gemm(name: str, x: str, y: str, gated: bool = False) -> None:
            c.gemm(a[x], a[f"{name}_weight"], self.cuts[name], a[y], gated)

        for name, outputs, build in self._steps(c, gemm):
            c.items = []
            build()
            yield Stage(name, tuple(roll(c.items)), tuple(a[o] for o in outputs), name not in self._beside)

    def _entry_arrays(self) -> None:
        """The ring, and the entries behind it, here in one array."""
        s = self.shape
        ring = self.kv.add("ring", (self.row, s.entry), BF16)
        offset = ring.offset + s.recent * s.entry * 2
        self._views = {"behind": Array("behind", offset, (self.row - s.recent, s.entry), BF16, ring.base)}

    def _more_arrays(self) -> None:
        """For plans that do more."""

    def _steps(self, c: Compiler, gemm: Callable[..., None]) -> list[tuple[str, tuple[str, ...], Callable[[], None]]]:
        """Name of each stage, names of the arrays that it leaves in memory, what builds it."""
        a = self.arrays
        return [
            ("norm1", ("norm1",), lambda: c.norm(a["hidden"], a["norm1_weight"], a["norm1"])),
            ("qkv", ("qkv",), lambda: gemm("qkv", "norm1", "qkv")),
            ("rotary", ("q", "fresh"), c.rotary),
            ("append", ("ring",), c.append),
            ("scores", ("scores",), c.scores),
            ("softmax", ("probabilities",), c.softmax),
            ("values", ("attention",), c.values),
            ("output", ("hidden",), lambda: gemm("output", "attention", "hidden")),
            ("norm2", ("norm2",), lambda: c.norm(a["hidden"], a["norm2_weight"], a["norm2"])),
            ("gate_up", ("gated",), lambda: gemm("gate_up", "norm2", "gated", True)),
            ("down", ("hidden",), lambda: gemm("down", "gated", "hidden")),
        ]

    def program(self, first: str | None = None, last: str | None = None) -> list[Instruction]:
        """The instructions of the stages from `first` to `last`, all if not given.

        `ParamError` if they do not fit in the program's memory, or need more registers for loops than there are.
        """
        names = [stage.name for stage in self.stages]
        for name in (first, last):
            check(name is None or name in names, "stage", name, f"must be one of {', '.join(names)}")
        chosen = self.stages[names.index(first or names[0]) : names.index(last or names[-1]) + 1]
        c = self._compiler(self)
        chosen_names = [stage.name for stage in chosen]
        given = [s for s, (a, b) in self._hands.items() if b in chosen_names and a not in chosen_names]
        c.items = [op(Opcode.SYNC, **semaphores((), (s,))) for s in (FREE, FREE, *given)]
        for k, stage in enumerate(chosen):
            if k and stage.waits:
                c.end()
                c.begin()
            c.items += stage.items
        out = [*assemble(c.items, POINTERS), Instruction(Opcode.HALT, {})]
        name = f"instructions of {first or names[0]} to {last or names[-1]}"
        check(len(out) <= self.fmt.i_depth, name, len(out), f"must be at most i_depth = {self.fmt.i_depth}: run fewer")
        return out

    def costs(self, entries: int) -> dict[str, Work]:
        """What each stage does with so many entries behind the ring, by name."""
        registers = register_values(self.registers(0, entries, 0, 0))
        return {stage.name: self._cost(stage.name, registers) for stage in self.stages}

    def _cost(self, name: str, registers: list[int]) -> Work:
        out = Work()
        for i in sequence(self.program(name, name), registers, self.fmt):
            out.issued += i.op in ENGINE
            if i.skip:
                continue
            if i.op in (Opcode.LOAD, Opcode.STORE):
                moved = i["rows"] * i["words"] * self.fmt.word_bytes * (1 + i["wide"])
                out.loaded += moved * (i.op == Opcode.LOAD)
                out.stored += moved * (i.op == Opcode.STORE)
            elif i.op == Opcode.MUL:
                out.chunks += i["rows"] * i["tiles"] * i["chunks"]
            elif i.op == Opcode.VECTOR:
                out.words += i["words"]
        return out

    # The host's part

    def registers(self, start: int, entries: int, weights: int, kv: int) -> dict[int, int]:
        """Of a pass whose first token is token `start`, with `entries` behind the ring; addresses of the layer."""
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
        """Arrays of a pass by name: hidden states [tokens, width], cos and sin [tokens, head / 2] of its positions."""
        s = self.shape
        check(hidden.shape == (s.tokens, s.width), "hidden", hidden.shape, f"must be {(s.tokens, s.width)}")
        both = np.stack([np.concatenate([cos, cos], axis=1), np.concatenate([-sin, sin], axis=1)])
        return {
            "hidden": hidden.astype(np.float32),
            "tables": np.stack([both * self.query_scale, both]).astype(np.float32),
            "mask": np.where(np.repeat(self.seen(start), s.group, axis=0), 0.0, -np.inf).astype(BF16),
        }

    def seen(self, start: int) -> np.ndarray:
        """Which slots of the ring the tokens from `start` see, bool [tokens, recent]."""
        s = self.shape
        newest = start + s.tokens - 1
        token = newest - (newest - np.arange(s.recent)) % s.recent  # in each slot
        return (token >= 0) & (token <= start + np.arange(s.tokens)[:, None])

    def constants(self) -> dict[str, np.ndarray]:
        """Arrays by name that no pass changes."""
        rows, _, n = self["tails"].shape
        unused = np.arange(rows)[:, None] <= np.arange(2 * n)
        return {
            "zeros": np.zeros(n, BF16),
            "tails": np.where(unused, -np.inf, 0.0).astype(BF16).reshape(rows, 2, n),
        }

    def pack(self, layer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Arrays of weights by name, from a layer as `golden.inputs.decoder` keeps it ([inputs, outputs])."""

        def gemm(name: str, *parts: np.ndarray) -> np.ndarray:
            blocks, slices, rows, numbers = self[f"{name}_weight"].shape
            cut = [to_bf16(w.T).reshape(-1, rows, slices, numbers).swapaxes(1, 2) for w in parts]
            return np.stack(cut, axis=1).reshape(blocks, slices, rows, numbers)

        return {
            "norm1_weight": to_bf16(layer["attn_norm"]),
            "norm2_weight": to_bf16(layer["ffn_norm"]),
            "qkv_weight": gemm("qkv", layer["qkv"]),
            "output_weight": gemm("output", layer["attn_output"]),
            "gate_up_weight": gemm("gate_up", *np.split(layer["gate_up"], 2, axis=1)),
            "down_weight": gemm("down", layer["ffn_down"]),
        }
