"""The programs of Mosaic on a core: passes over a pool of slots, and the steps that decide about clusters.

`MosaicPlan` is a `WindowPlan` whose pool also holds a slot for the representative of each cluster, its mean key and
value. A pass is cut where the queries are known: `ask` ends with their mean, `attend` goes on with the scores. In
between the host chooses clusters and has entries fetched.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import Bank, Post
from openvrex.golden.function_params import check
from openvrex.golden.program.cluster_stages import ANSWERS, DST, SRC, ClusterCompiler, Limit, at_register
from openvrex.golden.program.isa import Instruction, LxeFormat
from openvrex.golden.program.layer_memory import Array, LayerShape, Register, Space, Tiling
from openvrex.golden.program.recipes import BANK
from openvrex.golden.program.steered_stages import VERDICTS, SteeredCompiler, factors
from openvrex.golden.program.window_plan import WindowPlan

CENTRES = 16  # of K-means at most
LEAST = 8  # members of the smallest program of K-means


class MosaicPlan(WindowPlan):
    """The programs of one pass and of Mosaic's steps, and the arrays that they use in memory.

    shape : `recent` are all slots, those of tokens first, then one for each cluster
    clusters, visual : most clusters of a layer, most visual clusters; multiples of `lanes`
    tokens : of the stream, each with a place at home
    members : most tokens of a cluster that is split or made; its steps are as long
    limit : variance that a cluster may have

    Besides what a `WindowPlan` has, the layer's memory holds `home` for offloaded entries, the table of clusters, and
    room for the steps' work. Raises `ParamError` for sizes that do not fit the format.
    """

    _compiler = ClusterCompiler

    def __init__(
        self,
        shape: LayerShape,
        fmt: LxeFormat,
        clusters: int,
        visual: int,
        tokens: int,
        members: int,
        limit: Limit,
        cuts: dict[str, Tiling] | None = None,
    ):
        self._sized(shape, fmt, clusters, visual, tokens, members, limit)
        super().__init__(shape, fmt, 0, cuts)

    def _sized(
        self, shape: LayerShape, fmt: LxeFormat, clusters: int, visual: int, tokens: int, members: int, limit: Limit
    ) -> None:
        """Set the sizes of the steps. Raises `ParamError` for those that do not fit the format."""
        n = fmt.lanes
        self.clusters, self.visual, self.stream, self.members, self.limit = clusters, visual, tokens, members, limit
        self.width = shape.kv_heads * shape.head_size
        self.tiles, self.visual_tiles = clusters // n, visual // n
        for name, value in (("clusters", clusters), ("visual", visual)):
            check(value % n == 0 and value > 0, name, value, f"must be a multiple of lanes = {n}")
        most = (fmt.depth - 1) // 2
        check(2 * self.tiles <= fmt.depth, "clusters", clusters, f"must be at most {fmt.depth // 2 * n}: half a bank")
        check(members <= most, "members", members, f"must be at most {most}: half of a bank less one word")
        words = self.width // n
        half = min(fmt.w_depth, fmt.x_depth) // 2
        check(words <= half, "width", self.width, f"must be at most {half * n}: half of W and of X hold a direction")
        check(2 * words < fmt.depth, "width", self.width, f"must be below {fmt.depth // 2 * n}: a bank holds an entry")
        if fmt.to_register:
            odd, room = factors(2 * self.width)[0], fmt.depth - 2 * words
            check(odd < 256, "width", self.width, "must be at most 255 times a power of two: its rows have addresses")
            reason = f"must be at most {room * n}: a bank holds a lane for each beside an entry"
            check(self.tiles <= room, "clusters", clusters, reason)
        scale = (self.width * shape.kv_heads) ** -0.5  # 1 / sqrt(head size), and the mean over KV heads
        self.rank_scale = scale
        self.above = 1 << max(clusters, members).bit_length()
        self._made: dict[str, list[Instruction]] = {}

    def of(self, tokens: int) -> "MosaicPlan":
        """The plan of a pass of fewer tokens that uses the same weights, entries and tables in memory."""
        sizes = self.clusters, self.visual, self.stream, self.members
        return MosaicPlan(self._fewer(tokens), self.fmt, *sizes, self.limit, self.cuts)

    def _more_arrays(self) -> None:
        """Place home, tables and work of the steps. They do not depend on the tokens of the pass."""
        n, width, many, entry = self.fmt.lanes, self.width, self.members, self.shape.entry
        for name, dims, dtype in (
            ("home", (self.stream, entry), BF16),
            ("centroids", (self.clusters, width), BF16),
            ("stats", (self.tiles, 3, n), np.float32),
            ("closed", (self.clusters,), BF16),
            ("unasked", (self.clusters,), BF16),
            ("codes", (self.clusters,), BF16),
            ("visual_sums", (self.visual, width), np.float32),
            ("visual_counts", (self.visual, n), np.float32),
            ("visual_means", (self.visual, width), BF16),
            ("visual_unasked", (self.visual,), BF16),
            ("visual_codes", (self.visual,), BF16),
            ("query", (width,), BF16),
            ("answer", (ANSWERS, n), np.float32),
            ("numbers", (self.clusters,), np.float32),
            ("identity", (n, n), BF16),
            ("places", (many, n), np.float32),
            ("valid", (many, n), BF16),
            ("x", (self.stream, width), BF16),
            ("gathered", (many, entry), BF16),
            ("y", (many, width), BF16),
            ("norms", (many, n), np.float32),
            ("left", (many, n), np.float32),
            ("labels", (many, n), np.float32),
            ("middle", (width,), BF16),
            ("centres", (CENTRES, width), BF16),
            ("halves", (CENTRES, n), np.float32),
            ("weights", (CENTRES, many, n), BF16),
        ):
            self.kv.add(name, dims, dtype)
        if self.steered:
            self.kv.add("whole", (self.clusters,), BF16)
            self.kv.add("verdicts", (self.stream, VERDICTS, n), np.float32)

    def tables(self) -> dict[str, np.ndarray]:
        """The arrays by name that the host writes once, for each layer."""
        n, many = self.fmt.lanes, self.members
        return {
            "numbers": self.above - np.arange(self.clusters, dtype=np.float32),
            "places": np.repeat(self.above - np.arange(many, dtype=np.float32)[:, None], n, 1),
            "identity": np.eye(n).astype(BF16),
        }

    # Programs

    def size(self, many: int) -> int:
        """Members for which there is a program, at least so many."""
        check(many <= self.members, "members", self.members, f"must be at least {many}, the tokens of a cluster")
        return min(self.members, max(LEAST, 1 << (many - 1).bit_length()))

    def made(self, name: str, *parts: Callable[[Any], None], many: int = 0) -> list[Instruction]:
        """The program of some parts, one after the other; each begins when the one before is in memory.

        name : the program is written once for it and for a size · many : members that K-means works on
        """
        if many:
            name = f"{name} of {self.size(many)}"
        if name not in self._made:
            c = SteeredCompiler(self) if self.steered else ClusterCompiler(self)
            c.many = self.size(many) if many else 0
            groups = []
            for part in parts:
                with c.block() as items:
                    part(c)
                groups.append((c.stage(name, items), True))
            self._made[name] = self._assembled(name, groups)
        return self._made[name]

    def ask(self) -> list[Instruction]:
        """From the hidden states to entries and queries, and the mean of the queries."""
        if "ask" not in self._made:
            c = ClusterCompiler(self)
            c.query()
            own = {stage.name: stage.items for stage in self.stages}
            groups = [*(own[name] for name in ("norm1", "qkv", "rotary")), c.stage("query", c.items)]
            self._made["ask"] = self._assembled("ask", [(items, True) for items in groups])
        return self._made["ask"]

    def attend(self) -> list[Instruction]:
        """From queries and entries in slots to the hidden states behind the layer."""
        if "attend" not in self._made:
            self._made["attend"] = self.program("scores", "down")
        return self._made["attend"]

    def visual_ranks(self, c: ClusterCompiler) -> None:
        """Score codes of the visual clusters."""
        c.codes(self["visual_means"], self.width, self.visual_tiles, self["visual_unasked"], self["visual_codes"])

    def ranks(self, c: ClusterCompiler) -> None:
        """Score codes of the clusters, from their representatives in the pool."""
        c.codes(self.pairs, self.shape.entry, self.tiles, self["unasked"], self["codes"])

    @property
    def steered(self) -> bool:
        """Whether steps take their control from the core's numbers, as a STORE can set a register."""
        return self.fmt.to_register

    @property
    def pairs(self) -> Array:
        """The representatives of the clusters, behind the slots for tokens."""
        ring = self["ring"]
        first = ring.offset + 2 * self.tokens_slots * self.shape.entry
        return replace(ring, offset=first, shape=(self.clusters, self.shape.entry))

    @property
    def tokens_slots(self) -> int:
        """Slots for tokens; those of representatives follow."""
        return self.shape.recent - self.clusters


class FramePlan(MosaicPlan):
    """The steps for visual clusters. A frame is a token whose keys are the sum of its vision tokens, without values.

    width : numbers of a vision token · tokens : most of a frame · clusters : visual clusters, a multiple of `lanes`
    frames : of the stream · members : frames that are put into clusters at once · limit : as in `MosaicPlan`

    Only the arrays of `kv` exist: those of `MosaicPlan`, and `vision`, the tokens of a frame. `fits` says whether a
    core has room for a direction.
    """

    def __init__(self, width: int, tokens: int, fmt: LxeFormat, clusters: int, frames: int, members: int, limit: Limit):
        recent = members + clusters
        sizes: dict[str, Any] = {"width": width, "head_size": width, "ffn": width, "tokens": 1, "recent": recent}
        self.shape, self.fmt = LayerShape(heads=1, kv_heads=1, entries=0, **sizes), fmt
        self._sized(self.shape, fmt, clusters, fmt.lanes, frames, members, limit)
        align = max(4096, 4 * fmt.lanes)
        self.work, self.weights, self.kv = Space(align), Space(align, Register.WEIGHTS), Space(align, Register.KV)
        self.kv.add("ring", (recent, self.shape.entry), BF16)
        self.kv.add("vision", (tokens, width), BF16)
        self._more_arrays()
        self.arrays, self.near = self.kv.arrays, 0

    @staticmethod
    def fits(width: int, members: int, fmt: LxeFormat) -> bool:
        """Whether banks and scratchpads hold directions of so many numbers, and so many members."""
        words, n = width // fmt.lanes, fmt.lanes
        odd = factors(2 * width)[0] < 256 or not fmt.to_register
        room = 2 * words < fmt.depth and 2 * members < fmt.depth
        return width % n == 0 and odd and room and words <= min(fmt.w_depth, fmt.x_depth) // 2

    def take_frame(self, c: ClusterCompiler) -> None:
        """The sum of ROWS vision tokens from SRC on, as BF16, to the keys of the entry at DST."""
        words = c.words
        with c.scalars(1) as (count,):
            c.sums(at_register(SRC, self.width), self.width, None, count)
        c.vector(words, a=BANK, post=Post.ROUND, write=Bank.B)
        c.give(at_register(DST, self.width), 0, words)
