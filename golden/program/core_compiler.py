"""The layer compiler for a core: turns a decoder layer with its retrieval into a program (V-Rex Fig. 10).

It replaces the stages `qkv`, `rotary`, `append` and `scores` of `golden.program.layer_compiler` by these:

==========  ==========================================================================================================
keys        the blocks of the GEMM `qkv` that hold keys or values
entries     rotates keys; puts keys and values together as entries
hash        multiplies keys by hyperplanes; the signs go to the HCU (with `RetrievalShape.centre` those of the products
            less the thresholds, which the first pass of a context computes; `golden.retrieval.hashing`)
cluster     for each token: asks for its cluster, copies its entry to the place that the KVMU gives, and updates the
            cluster's Key_cluster: FP32 sums and count, BF16 mean. Between tokens run the blocks of `qkv` that hold
            queries only. At the end it switches the DRE to the layer's context, for `select`
rotary      rotates queries
rank        multiplies queries by Key_cluster, FP32
select      sends rows of score codes to the WTU (`vector_programs.score_codes`), each as often as the WTU reads it;
            starts the FETCH of chosen entries
resident    multiplies queries by the keys of the ring
scores      multiplies queries by the keys behind the ring, once they are there
==========  ==========================================================================================================

Prefetch. A layer with `RetrievalShape.ahead` also chooses entries for the next layer, whose weights lie behind its own.
It then runs guess_norm, guess and guess_rotary after norm1, guess_rank and guess_select before `resident`: norm, query
projection, rotary, rank and select with this layer's input and the next layer's weights and clusters. The FETCH runs
beside all stages that follow. The next layer (`fetched`) has no rank and no select. It attends to the entries that were
fetched for it, as `golden.policies.resv_policy` does with prefetch `only`. Tokens that leave the ring in between are
not among them. The register ROW passes the number of fetched entries from one program to the next.

A row of the cluster table holds the FP32 sums of the keys of all KV heads, then a word whose first number is their
count, then the BF16 means. Rows lie a power of two of bytes apart. Memory must be zero at first.

Sinks are entries that the host puts first behind the ring (array `behind`); fetched entries follow them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import check
from openvrex.golden.program.code_stages import CODES, KEYS, MEAN
from openvrex.golden.program.core_stages import FETCHED, PLACED, SWITCHED, CoreCompiler
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.layer_compiler import LayerPlan, Work
from openvrex.golden.program.layer_memory import Array, LayerShape, Register, Team, Tiling, divisors
from openvrex.golden.program.page_choice_stages import FRESH, MARKS, TOKENS, WORDS, PageChoiceCompiler
from openvrex.golden.program.page_index import PageIndex
from openvrex.golden.program.page_stages import PAGES
from openvrex.golden.program.score_stages import LEVEL, RetrievalShape
from openvrex.golden.program.sequencer_model import register_values
from openvrex.golden.program.stage_plan import Planned
from openvrex.golden.retrieval.coded_pages import PageParams


class CorePlan(LayerPlan):
    """The program of a layer's pass on a core, and its arrays: those of `LayerPlan` and of the retrieval.

    `kv` is the ring of the layer's context, as the KVMU places it. Entries behind the ring lie among the weights. The
    program owns the registers SLOT and FIRST. One program serves one context. In `cluster`, `turns` times, `beside`
    blocks of the queries' GEMM precede some tokens.

    Raises `ParamError` as `LayerPlan` does, and for a retrieval that does not fit.
    """

    # `resident` needs only queries and the ring.
    _beside = {"resident": ("select", "guess_select")}
    _hands = {PLACED: ("cluster", "resident"), SWITCHED: ("cluster", "select"), FETCHED: ("select", "scores")}

    def __init__(
        self,
        shape: LayerShape,
        fmt: LxeFormat,
        retrieval: RetrievalShape,
        cuts: dict[str, Tiling] | None = None,
        team: Team | None = None,
    ):
        self.retrieval = retrieval
        self._compiler = CoreCompiler if retrieval.pages is None else PageChoiceCompiler
        if retrieval.pages is not None:
            self._beside, self._hands = (
                {"cluster": ("queries",), "resident": ("select",)},
                {FETCHED: ("select", "scores")},
            )
        super().__init__(shape, fmt, cuts, team)

    @property
    def given(self) -> bool:
        """Whether the host gives ENTRIES to a program with `scores`, because others have fetched the entries."""
        return self.team.members > 1

    @property
    def long_rows(self) -> bool:
        """Whether a bank of the VPE does not hold a row of scores, one for each cluster."""
        return self.retrieval.clusters > self.fmt.depth * self.fmt.lanes

    @property
    def switches(self) -> bool:
        """Whether `cluster` ends with a SWITCH to the layer's context, for a `select` of its own program or team."""
        return not self.retrieval.fetched

    def of(self, tokens: int) -> "CorePlan":
        """The plan of a pass of fewer tokens over the same weights and entries."""
        return CorePlan(self._fewer(tokens), self.fmt, self.retrieval, self.cuts, self.team)

    def _entry_arrays(self) -> None:
        """Place the ring where the KVMU has it, and the entries behind it with the layer's weights."""
        s = self.shape
        self.kv.add("ring", (s.recent, s.entry), BF16)
        self.weights.add("behind", (self.behind, s.entry), BF16)
        self._views = {}

    def _more_arrays(self) -> None:
        s, f, r = self.shape, self.fmt, self.retrieval
        reason = "the keys that the HCU holds: raise hcu.frame, or take fewer tokens"
        check(s.tokens <= r.frame, "tokens", s.tokens, f"must be at most frame = {r.frame}, {reason}")
        check(r.sinks < s.entries, "sinks", r.sinks, f"must be below entries = {s.entries}, which count the sinks, too")
        tiles = -(-r.n_hp // f.lanes)
        rows = -(-r.clusters // (2 * f.lanes)) * 2 * f.lanes
        if r.pages is None:
            self._cluster_arrays(tiles, rows)
        else:
            self._page_arrays(tiles, rows, r.pages)
        if self.long_rows:
            self.work.add("score_codes", (rows,), BF16)
        self.turns, self.beside = self._beside_queries()

    def _cluster_arrays(self, tiles: int, rows: int) -> None:
        """Place hyperplanes of so many tiles, and what a cluster table of so many rows needs."""
        s, f, r = self.shape, self.fmt, self.retrieval
        n, keys = f.lanes, s.kv_heads * s.head_size
        self.key_words = keys // n
        self.mean_bytes = 4 * (keys + n)
        self.pitch = 1 << (self.mean_bytes + 2 * keys - 1).bit_length()
        fits = [w for w in divisors(self.key_words) if tiles * w <= f.w_depth // 2 and s.tokens * w <= f.x_depth // 2]
        reason = f"its {tiles} tiles of hyperplanes do not fit: take fewer, or raise w_depth, x_depth or depth"
        check(bool(fits) and tiles * s.tokens <= f.depth, "n_hp", r.n_hp, reason)
        reason = f"its {tiles} tiles of {n} hyperplanes must be a power of two for centred hash bits: choose other n_hp"
        check(not r.centre or tiles & (tiles - 1) == 0, "n_hp", r.n_hp, reason)
        cut = self.cuts.setdefault("hash", Tiling(1, tiles, self.key_words // max(fits), max(fits)))
        self.weights.add("hash_weight", cut.weights(n), BF16)
        table = self.weights.add("table", (rows, self.pitch // 4), np.float32)
        means = table.offset + self.mean_bytes
        if r.centre:
            self.weights.add("thresholds", (tiles * n,), np.float32)
        self._views["means"] = Array("means", means, (rows, self.pitch // 2), BF16, table.base)
        self.work.add("ranks", (s.kv_heads * s.rows, rows), np.float32)
        if r.ahead >= 0:
            self.work.add("guess_norm", self.work.arrays["norm1"].shape, BF16)
            self.work.add("guess", self.work.arrays["q"].shape, BF16)
            if self.team.members > 1:  # while `qkv` holds the layer's own
                self.work.add("guess_qkv", self.work.arrays["qkv"].shape, BF16)

    def _page_arrays(self, tiles: int, rows: int, pages: PageParams) -> None:
        """Place the index of so many pages, and what hash bits of so many tiles and the choice need."""
        s, f, r = self.shape, self.fmt, self.retrieval
        check(s.kv_heads == 1, "kv_heads", s.kv_heads, "must be 1 for coded pages: a KV head chooses its own")
        alone = r.ahead < 0 and not r.fetched
        check(alone, "ahead", r.ahead, "must be -1 for coded pages, which no layer before chooses")
        check(f.codes > 0, "lxe.codes", f.codes, f"must be {pages.numbers}, the numbers of a code")
        reason = f"must be a multiple of mean = {pages.mean}: keys that share a mean are adjacent in the ring"
        check(s.recent % pages.mean == 0, "recent", s.recent, reason)
        reason = f"must be at most mean = {pages.mean}: a pass completes one mean at most"
        check(s.tokens <= pages.mean, "tokens", s.tokens, reason)
        check(s.recent == pages.recent, "pages.recent", pages.recent, f"must be {s.recent}, the slots of the ring")
        check(pages.pinned <= f.lanes, "sinks", pages.sinks, f"must be in at most {f.lanes} pages, a word of scores")
        check(tiles * s.tokens <= f.depth, "n_hp", r.n_hp, f"needs more than a bank: take at most {f.depth} words")
        self.index = PageIndex(s, f, rows, pages)
        self.coding = self.index.coding
        self.index.place(self.weights, self.work)
        if self.team.members > 1:
            self.work.add("ring_scores", (s.rows, s.recent), np.float32)
        self.work.add("marks", (s.tokens, tiles * f.lanes), BF16)
        self.work.add("candidates", (rows,), BF16)
        self.work.add("pins", (rows,), BF16)

    def _beside_queries(self) -> tuple[int, int]:
        """The blocks of the GEMM that hold queries only run within `cluster`, spread evenly over its tokens."""
        s = self.shape
        blocks = s.heads * s.head_size // (self.cuts["qkv"].tiles * self.fmt.lanes)
        turns = max(d for d in divisors(s.tokens) if d <= max(1, blocks))
        return turns, blocks // turns

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        a, r = self.arrays, self.retrieval
        cut, size = self.cuts["qkv"], self.shape.heads * self.shape.head_size
        keys = range(self.turns * self.beside, cut.blocks)
        queries = range(-(-size // (cut.tiles * self.fmt.lanes)))
        guesses = r.ahead >= 0
        table = super()._table(c, gemm)
        names = [row.name for row in table]
        return [
            *table[: names.index("qkv")],
            Planned("guess_norm", lambda: c.norm(a["hidden"], self.ahead("norm1_weight"), a["guess_norm"]), guesses),
            Planned("guess", lambda: c.product(a["guess_norm"], self.ahead("qkv_weight"), queries), guesses),
            Planned("guess_rotary", lambda: c.queries(a["guess"]), guesses),
            Planned("keys", lambda: c.product(a["norm1"], a["qkv_weight"], keys)),
            Planned("entries", c.entries),
            *(self._page_choice(c) if r.pages else self._cluster_choice(c)),
            *table[names.index("scores") :],
        ]

    def _cluster_choice(self, c: Any) -> list[Planned]:
        a, r = self.arrays, self.retrieval
        return [
            Planned("hash", c.hash),
            Planned("cluster", c.cluster),
            Planned("rotary", lambda: c.queries(a["q"])),
            Planned("rank", lambda: c.rank(a["q"], a["means"]), not r.fetched),
            Planned("select", c.select, not r.fetched),
            Planned("guess_rank", c.rank_ahead, r.ahead >= 0),
            Planned("guess_select", c.select_ahead, r.ahead >= 0),
            Planned("resident", c.resident),
        ]

    def _page_choice(self, c: Any) -> list[Planned]:
        many, resident = self.team.members > 1, Planned("resident", c.resident)
        return [
            Planned("early_hash", c.hash),
            Planned("early_cluster", c.cluster),
            Planned("code", lambda: c.code(0)),
            Planned("hash", c.hash),
            Planned("queries", lambda: c.product(self["norm1"], self["qkv_weight"], range(self.turns * self.beside))),
            Planned("cluster", c.cluster),
            Planned("rotary", lambda: c.queries(self.arrays["q"])),
            Planned("ring", c.ring) if many else resident,
            Planned("sums", c.sums),
            Planned("turn", c.turn_queries),
            Planned("rank", lambda: c.rank_pages(0)),
            Planned("select", c.select),
            *[resident] * many,
        ]

    def costs(self, entries: int, clusters: int | None = None) -> dict[str, Work]:
        """The work of each stage, by name. A RETRIEVE counts as an issued instruction only.

        entries : entries behind the ring
        clusters : clusters of the context that the layer ranks; the most it may have if not given
        """
        level = self.retrieval.clusters if clusters is None else clusters
        sinks = self.retrieval.sinks * (not self.retrieval.fetched and not self.given)  # `scores` adds them
        given: dict[int, int] = {
            LEVEL: level,
            Register.ENTRIES: entries - sinks,
        }
        out, names = {}, [stage.name for stage in self.stages]
        for k, name in enumerate(names):
            if k <= names.index("scores"):  # the stages behind it use registers that it sets
                registers = register_values(given)
            out[name] = self._cost(name, registers)
        return out

    # The host's part

    def inputs(self, hidden: np.ndarray, cos: np.ndarray, sin: np.ndarray, start: int) -> dict[str, np.ndarray]:
        out, pages = super().inputs(hidden, cos, sin, start), self.retrieval.pages
        if pages is None:
            return out
        numbers = (start + np.arange(self.shape.tokens)) // pages.page
        bits = numbers[:, None] >> np.arange(self["marks"].shape[1]) & 1
        seen = np.arange(self.index.pages) < self._candidates(start)
        return out | {
            "marks": np.where(bits, 1, -1).astype(BF16),
            "candidates": np.where(seen, 0, -np.inf).astype(BF16),
        }

    def constants(self) -> dict[str, np.ndarray]:
        out, pages = super().constants(), self.retrieval.pages
        if pages is None:
            return out
        pinned = np.arange(self.index.pages) < pages.pinned
        return out | {"pins": np.where(pinned, 0, -np.inf).astype(BF16)}

    def split(self, start: int) -> tuple[int, int]:
        """Tokens of a pass from token `start` that are placed before `code`, and behind it; (0, all) if none is due."""
        before = (start // self.index.mean + 1) * self.index.mean - start
        return (before, self.shape.tokens - before) if before <= self.shape.tokens else (0, self.shape.tokens)

    def page_registers(self, phase: str, start: int, weights: int, kv: int, inputs: int = 0) -> dict[int, int]:
        """Values of the registers of a phase (`golden.program.share_plan.PAGES`) in a pass from token `start`.

        weights, kv : addresses of the layer's weights and entries · inputs : of a stream's inputs in a batch
        """
        s, own, (before, behind) = self.shape, self.index, self.split(start)
        first, tokens = (0, before) if phase == "hash" else (before, behind)
        marks, number = self["marks"], start // own.mean  # of the mean that the pass completes, if it does
        if phase in ("hash", "rest"):
            return {
                int(TOKENS): tokens,
                int(WORDS): tokens * marks.shape[1],
                int(MARKS): inputs + marks.offset + first * marks.shape[1] * 2,
                int(FRESH): self["fresh"].offset + first * s.entry * 2,
            }
        if phase == "code":
            return {
                int(KEYS): kv + number * own.mean % s.recent * s.entry * 2,
                int(CODES): weights + self["codes"].offset + number * own.mean * own.size * 2,
                int(MEAN): weights + self["means"].offset + number * s.head_size * 2,
            }
        pair = 2 * self.fmt.lanes  # pages of a pair of steps, of which each member of a team has its own
        pages = self._candidates(start)
        if self.team.members > 1:
            pages = self.team.share(0, -(-pages // pair)) * pair
        return {int(PAGES): pages} if phase in ("attention", "rank") else {}

    @property
    def resident_scores(self) -> Array:
        """Products of queries and the keys of the whole ring, which lead each row."""
        return self["ring_scores" if self.team.members > 1 else "scores"]

    def _candidates(self, start: int) -> int:
        """Pages with a token that has left the ring after a pass from token `start`."""
        return -(-max(0, start + self.shape.tokens - self.shape.recent) // self.index.page)

    def ahead(self, name: str) -> Array:
        """The array `name` of the next layer."""
        array = self.arrays[name]
        return replace(array, offset=array.offset + self.apart)

    @property
    def apart(self) -> int:
        """Bytes from the weights of a layer to those of the next."""
        return self.weights.size

    def planes(self, hyperplanes: np.ndarray) -> np.ndarray:
        """The array `hash_weight` for hyperplanes [n_hp, KV heads * head size]."""
        _, slices, rows, numbers = self["hash_weight"].shape
        padded = np.zeros((rows, hyperplanes.shape[1]), BF16)
        padded[: len(hyperplanes)] = to_bf16(hyperplanes)
        return padded.reshape(1, rows, slices, numbers).swapaxes(1, 2)
