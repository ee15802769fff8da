"""Implementation parameters (cycles and area), validated at construction, and the presets."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from operator import attrgetter

from openvrex.golden.arithmetic.secded import PROTECTIONS
from openvrex.golden.arithmetic.vector import VectorFormat
from openvrex.golden.function_params import (
    BUDGET_BITS,
    FEATURES,
    OF_HARDWARE,
    READINGS,
    SELECTIONS,
    DotFormat,
    ParamError,
    Parameter,
    Parameters,
    ReSVParams,
    ScoreFormat,
    bits_for,
    check,
    described,
    parameter,
)
from openvrex.golden.program.isa import ADDR_BITS, CONTEXT_BITS, PAYLOAD, LxeFormat, Opcode
from openvrex.golden.retrieval import kv4
from openvrex.golden.retrieval.dre_model import DreSizes
from openvrex.golden.retrieval.kvmap import MapSizes
from openvrex.golden.retrieval.table_layout import Item, TableLayout

# Fields that hold parameters of their own.
_GROUPS = ("core", "dre", "hcu", "wtu", "kvmu", "table", "dpe", "vpe", "lxe", "mask")


APART = ("mask",)  # those of units beside a system

# Sizes that are equal in all units that have them, once these are joined. They have no unit in names: `-p clusters=64`.
SHARED = ("clusters", "n_ctx", "counts", "count_bits", "token_bits", "bus_bytes")
# Sizes of a unit that are those of another one, where both are joined.
FOLLOWS = {("kvmu", "count_lanes"): ("wtu", "n_w")}

# Largest sizes for which elaboration takes minutes at most.
SIZE, WIDTH, CLUSTERS = 1 << 16, 1 << 10, 1 << 20
CONTEXTS = 1 << CONTEXT_BITS
CLOCK = 800e6  # Hz: the clock of every preset (V-Rex VI-A), for all that counts seconds or watts
PROTECT = {"choices": PROTECTIONS}


COUNT_BANKS = 2  # of the exact WTU's ring of counts: words lie in them in turn


def depths(p: object) -> list[int]:
    """Words of each protected memory under these parameters, parts included."""
    own = []
    if isinstance(p, CoreParams) and p.dre.kvmu.kv4_group and p.lxe.protect != "none":
        own = [(kv4.RATIO + 1) * (p.lxe.burst_bytes // p.lxe.bus_bytes)]  # `hdl.queues.copied_beats`, at least
    if getattr(p, "protect", "none") != "none":
        match p:
            case HcuParams():
                own = [2 * p.tile // p.n_h, p.frame]
            case WtuParams():
                own = [p.bank_words, p.words]
            case KvmuParams():
                own = [p.rows]
            case DpeParams():
                own = [p.w_depth, p.x_depth]
            case VpeParams():
                own = [p.depth]
            case LxeParams():
                own = [p.i_depth, (p.copies + 1) * max(1, p.burst_bytes // p.bus_bytes)]
    return own + [d for name, part in vars(p).items() if name in _GROUPS for d in depths(part)]


def reset_cycles(p: object) -> int:
    """Cycles by which a unit prolongs its reset, to clear its protected memories, a word a cycle."""
    return max([0, *(max(2, depth) for depth in depths(p))])


@dataclass(frozen=True)
class HcuParams(Parameters):
    """Parameters of the HCU: n_h accumulators of n_w XOR bits compare n_h clusters with a token, n_w bits a cycle."""

    n_h: int = parameter(1, "N_HCU-h: clusters compared at a time", low=1, high=WIDTH)
    n_w: int = parameter(16, "N_HCU-w: hash bits of a cluster compared a cycle", low=1, high=1 << 12)
    n_hp: int = parameter(32, "hash bits of a key", low=1, high=WIDTH)
    clusters: int = parameter(1 << 14, "most clusters of a context", low=1, high=CLUSTERS)
    n_ctx: int = parameter(CONTEXTS, "contexts, whose tables are in memory", low=1, high=CONTEXTS)
    tile: int = parameter(64, "clusters of a tile; the unit holds two of the table", high=WIDTH, power_of_two=True)
    frame: int = parameter(32, "keys compared with a tile: most of a batch", low=1, high=WIDTH)
    token_bits: int = parameter(20, "bits of a token's number", low=1, high=64)
    early_abandon: bool = parameter(True, "leave a comparison that can no longer win")
    newest: bool = parameter(False, "a key may look at the newest clusters alone", optional=True)
    protect: str = parameter("none", "check bits of the memories: parity, or Hsiao's code", **PROTECT)

    def __post_init__(self):
        super().__post_init__()
        check(self.n_hp % self.n_w == 0, "n_w", self.n_w, f"must divide n_hp = {self.n_hp}")
        check(self.tile % self.n_h == 0, "n_h", self.n_h, f"must divide tile = {self.tile}")
        few = f"must be at most tile = {self.tile}: clusters that a batch opens lie behind its last tile"
        check(self.frame <= self.tile, "frame", self.frame, few)
        check(
            self.n_h & (self.n_h - 1) == 0,
            "n_h",
            self.n_h,
            "must be a power of two: the lane is the low bits of a cluster",
        )

    @property
    def chunks(self) -> int:
        """Cycles of a whole comparison."""
        return self.n_hp // self.n_w

    @property
    def cluster_bits(self) -> int:
        """Bits of a cluster index."""
        return bits_for(self.clusters)

    def rest_bits(self, chunk: int) -> int:
        """Bits of the population count of the hash bits behind `chunk`; 0 where early abandon does not need it."""
        rest = self.n_hp - (chunk + 1) * self.n_w
        return bits_for(rest + 1) if rest and self.early_abandon else 0

    @property
    def distance_bits(self) -> int:
        """Bits of a Hamming distance, 0 to n_hp + 1 (the limit of a full table)."""
        return bits_for(self.n_hp + 2)


@dataclass(frozen=True)
class WtuParams(Parameters):
    """Parameters of a WTU core: n_w lanes over rows of any length. N_WTU-h cores are n_h of these."""

    n_h: int = parameter(1, "N_WTU-h: WTU cores, which take rows in turn", low=1, high=WIDTH)
    n_w: int = parameter(16, "N_WTU-w: scores a cycle", low=1, high=1 << 12)
    clusters: int = parameter(
        1 << 14, "longest row, in scores: sets the bits of addresses and sums", low=1, high=CLUSTERS
    )
    counts: int = parameter(1024, "token counts on chip; a longer row streams its counts", low=1, high=SIZE)
    score: ScoreFormat = parameter(ScoreFormat(), "exponent and mantissa bits of a score code")
    count_bits: int = parameter(16, "bits of a cluster's token count", low=1, high=64)
    selection: str = parameter("exact", "the minimal set of Equation 3, or the paper's buckets", choices=SELECTIONS)
    n_buckets: int = parameter(16, "equal buckets of a row; of selection buckets", high=WIDTH, power_of_two=True)
    bin_bits: int = parameter(3, "bits of a code that a reading finds; of selection exact", low=1, high=6)
    count_digit: int = parameter(8, "bits of a count multiplied a cycle; of selection exact", low=1, high=64)
    budget: bool = parameter(False, "a row may take a budget of tokens instead of a share", optional=True)
    protect: str = parameter("none", "check bits of the memories", **PROTECT)

    def __post_init__(self):
        super().__post_init__()
        for name in ("clusters", "counts"):
            size = getattr(self, name)
            check(size % self.n_w == 0, "n_w", self.n_w, f"must divide {name} = {size}")
        few = f"must be at least clusters = {self.clusters}: selection buckets keeps a row and its counts on chip"
        check(self.selection == "exact" or self.clusters <= self.counts, "counts", self.counts, few)
        whole = "must be false with selection buckets, which takes whole buckets: set selection=exact"
        check(self.selection == "exact" or not self.budget, "budget", self.budget, whole)

    @property
    def words(self) -> int:
        """Words of n_w scores in the longest row."""
        return self.clusters // self.n_w

    @property
    def count_words(self) -> int:
        """Words of n_w token counts on chip."""
        return self.counts // self.n_w

    @property
    def bank_words(self) -> int:
        """Words of each memory of token counts."""
        return -(-self.count_words // (COUNT_BANKS if self.selection == "exact" else 1))

    @property
    def cluster_bits(self) -> int:
        """Bits of a cluster index."""
        return bits_for(self.clusters)

    @property
    def sum_bits(self) -> int:
        """Bits of the weighted sum of a whole row (Equation 1)."""
        return self.score.value_bits + self.count_bits + bits_for(self.clusters + 1)

    @property
    def left_bits(self) -> int:
        """Bits of what is left of Th, or of a budget of tokens, in units of the highest bin with a fraction."""
        return max(self.sum_bits, self.bin_units[-1] + BUDGET_BITS) if self.budget else self.sum_bits

    @property
    def digits(self) -> list[tuple[int, int]]:
        """Width and lowest bit of each digit of a code, highest digit first; of selection exact."""
        bits = self.score.bits
        ends = range(bits, 0, -self.bin_bits)
        return [(min(self.bin_bits, end), max(0, end - self.bin_bits)) for end in ends]

    @property
    def readings(self) -> int:
        """Times that a row is offered: once for each digit of a code, and once to select."""
        return len(self.digits) + 1 if self.selection == "exact" else 1

    @property
    def bin_units(self) -> list[int]:
        """Power of two that each bin of the first digit counts in: that of its least code.

        A code with exponent e stands for its significand x 2^max(0, e - 1).
        """
        return [low for low, _ in self._bin_exponents()]

    @property
    def bin_shift(self) -> int:
        """Most powers of two between the exponent of a code and the unit of its bin."""
        return max(high - low for low, high in self._bin_exponents())

    def _bin_exponents(self) -> list[tuple[int, int]]:
        """Powers of two of the least and of the highest code of each bin of the first digit."""
        f, (width, low) = self.score, self.digits[0]
        least = [bin_ << low for bin_ in range(1 << width)]
        return [tuple(max(1, code >> f.man_bits) - 1 for code in (c, c + (1 << low) - 1)) for c in least]

    @property
    def test_steps(self) -> int:
        """Tests in which halving finds the lane of a word that crosses; of selection exact."""
        return (self.n_w - 1).bit_length()

    @property
    def count_digits(self) -> int:
        """Digits of a count."""
        return -(-self.count_bits // self.count_digit)


@dataclass(frozen=True)
class KvmuParams(Parameters):
    """Parameters of the KVMU: home addresses contiguous by cluster, and a ring of recent entries in device memory."""

    n_ctx: int = parameter(CONTEXTS, "contexts, whose maps are in memory", low=1, high=CONTEXTS)
    clusters: int = parameter(1 << 14, "most clusters of a context", low=1, high=CLUSTERS)
    count_bits: int = parameter(16, "bits of a cluster's token count, which saturates", low=1, high=64)
    blocks: int = parameter(1 << 23, "most blocks of offload memory", low=1, high=1 << 28)
    block_slots: int = parameter(8, "entries a block", low=1, high=WIDTH)
    recent: int = parameter(256, "entries of a context kept in device memory", low=1, high=SIZE)
    entry_bytes: int = parameter(
        512, "bytes of K and V of a token (a KV head of Llama-3 8B: 128 x 2 x BF16)", low=1, high=SIZE
    )
    boundary: int = parameter(
        4096, "bytes; a burst never crosses a multiple of this (AXI)", low=1, high=SIZE, power_of_two=True
    )
    addr_bits: int = parameter(40, "bits of a byte address", low=1, high=64)
    token_bits: int = parameter(20, "bits of a token's number", low=1, high=64)
    rows: int = parameter(16, "rows of clusters that a fetch reads ahead", high=WIDTH, power_of_two=True)
    counts: int = parameter(1024, "token counts that the WTU holds", low=1, high=SIZE)
    count_lanes: int = parameter(16, "token counts of a word: wtu.n_w", high=1 << 12, power_of_two=True)
    read_counts: int = parameter(128, "token counts of a read", high=1 << 12, power_of_two=True)
    protect: str = parameter("none", "check bits of the memories", **PROTECT)
    kv4_group: int = parameter(0, "numbers of a group of 4-bit entries at home; 0: BF16", high=128, optional=True)
    kept: int = parameter(
        0, "blocks of a context that device memory keeps, a power of two; 0: none", high=CLUSTERS, optional=True
    )
    shared: bool = parameter(False, "contexts of users who do not trust each other", optional=True)

    def __post_init__(self):
        super().__post_init__()
        self.map_sizes()
        check(self.kept & (self.kept - 1) == 0 and self.kept != 1, "kept", self.kept, "must be 0 or a power of two")
        few = f"must be at least count_lanes = {self.count_lanes}: a read is whole words"
        check(self.read_counts >= self.count_lanes, "read_counts", self.read_counts, few)
        whole = f"must be a multiple of read_counts = {self.read_counts}: the WTU has room for whole reads"
        check(self.counts % self.read_counts == 0, "counts", self.counts, whole)
        top = self.blocks * self.block_bytes
        few = f"cannot address blocks of {top} bytes in all: raise it, or lower blocks, block_slots or entry_bytes"
        check(top <= 1 << self.addr_bits, "addr_bits", self.addr_bits, few)
        whole = f"must be at least {self.block_bytes}, a block, which a CLEAR wipes in one burst"
        check(not self.shared or self.boundary >= self.block_bytes, "boundary", self.boundary, whole)
        top = self.n_ctx * self.recent * self.entry_bytes
        few = f"cannot address rings of {top} bytes in all: raise it, or lower n_ctx, recent or entry_bytes"
        check(top <= 1 << self.addr_bits, "addr_bits", self.addr_bits, few)

    def map_sizes(self, blocks: int = 0) -> MapSizes:
        """Sizes of the KV memory map, with a pool of so many blocks, the most if not given."""
        own = {f.name: getattr(self, f.name) for f in fields(MapSizes)}
        return MapSizes(**own | {"blocks": blocks or self.blocks})

    @property
    def home_bytes(self) -> int:
        """Bytes of an entry at home."""
        return self.map_sizes().home_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.map_sizes().block_bytes

    @property
    def cluster_bits(self) -> int:
        """Bits of a cluster index."""
        return bits_for(self.clusters)

    @property
    def block_bits(self) -> int:
        """Bits of a block index."""
        return bits_for(self.blocks)

    @property
    def ring(self) -> int:
        """Words of token counts that the WTU holds."""
        return self.counts // self.count_lanes

    @property
    def read_words(self) -> int:
        """Words of token counts of a read."""
        return self.read_counts // self.count_lanes


@dataclass(frozen=True)
class TableParams(Parameters):
    """Parameters of the table port: how the tables of contexts lie in memory, and how the DRE reads them."""

    bus_bytes: int = parameter(64, "bytes of a beat of the table port", low=1, high=128, power_of_two=True)
    burst_bytes: int = parameter(512, "bytes of the longest read of a table", low=1, high=4096, power_of_two=True)
    protect: str = parameter("none", "check bits of every item of the tables in memory", **PROTECT)

    def __post_init__(self):
        super().__post_init__()
        beats = self.burst_bytes // self.bus_bytes
        check(1 <= beats <= 256, "burst_bytes", self.burst_bytes, f"must be 1 to 256 beats of {self.bus_bytes} bytes")


@dataclass(frozen=True)
class DreParams(Parameters):
    """Parameters of a DRE = HCU + WTU + KVMU. Sizes of `SHARED` are equal in all units (`joined`)."""

    hcu: HcuParams = field(default_factory=HcuParams)
    wtu: WtuParams = field(default_factory=WtuParams)
    kvmu: KvmuParams = field(default_factory=KvmuParams)
    table: TableParams = field(default_factory=TableParams)
    reading: str = parameter(
        "resv",
        "reading of ReSV that gives Th_hd, the ratio and centred or raw hash bits, which software sets",
        choices=OF_HARDWARE,
        optional=True,
    )

    def joined(self) -> "DreParams":
        """These parameters; `ParamError` if the units do not fit together."""
        _check_equal(self)
        reads = (("tile", self.hcu.tile, Item.HASH), ("read_counts", self.kvmu.read_counts, Item.COUNT))
        for name, items, item in reads:
            size = items * self.layout().bytes(item)
            few = f"takes {size} bytes, more than a read of burst_bytes = {self.table.burst_bytes}: lower it"
            check(size <= self.table.burst_bytes, name, items, few)
        end = self.layout().address(Item.LEVEL, self.hcu.n_ctx)
        large = f"makes tables of {end} bytes, more than {ADDR_BITS} bits of an address reach: lower it, or n_ctx"
        check(end <= 1 << ADDR_BITS, "clusters", self.hcu.clusters, large)
        return self

    def layout(self) -> TableLayout:
        """Where the tables lie in memory. Raises `ParamError` where an item does not fit in a beat."""
        h, k, t = self.hcu, self.kvmu, self.table
        return TableLayout(
            *(h.n_hp, h.clusters, k.recent, k.count_bits, k.blocks, k.block_slots, t.protect),
            beat=t.bus_bytes,
            burst=t.burst_bytes,
            kept=k.kept,
            shared=k.shared,
        )

    def sizes(self, blocks: int = 0) -> DreSizes:
        """What golden models and hosts must know of this hardware; its pool has so many blocks, the most if not given.

        Raises `ParamError` as `layout` does.
        """
        w = self.wtu
        h = self.hcu
        engine = h.frame, w.readings, w.counts, w.budget, h.tile if h.newest else 0
        return DreSizes(self.kvmu.map_sizes(blocks), self.layout(), *engine)

    def function(self) -> ReSVParams:
        """The function parameters that this hardware fixes; the others are those of its reading."""
        self.joined()
        of = READINGS[self.reading]
        return replace(
            of,
            n_hp=self.hcu.n_hp,
            max_clusters=self.hcu.clusters,
            count_bits=self.kvmu.count_bits,
            score=self.wtu.score,
            selection=self.wtu.selection,
            n_buckets=self.wtu.n_buckets,
            recent=self.kvmu.recent,
            th_hd=of.th_hd_of(self.hcu.n_hp),
        )


@dataclass(frozen=True)
class DpeParams(Parameters):
    """Parameters of the DPE: n_h MAC trees of n_w BF16 inputs, memories for their weights and the shared
    activations.
    """

    n_h: int = parameter(64, "N_DPE-h: dot-product trees", low=1, high=WIDTH)
    n_w: int = parameter(64, "N_DPE-w: BF16 inputs of a tree", low=1, high=WIDTH)
    window: int = parameter(24, "bits of an aligned product in a dot product", low=16, high=32)
    w_depth: int = parameter(
        32, "words of n_w weights a tree: 256 KB in all", low=1, high=SIZE, power_of_two="addresses wrap"
    )
    x_depth: int = parameter(512, "words of n_w activations: 64 KB", low=1, high=SIZE, power_of_two="addresses wrap")
    halves: bool = parameter(False, "a sum can be the larger of those of a word's halves", optional=True)
    protect: str = parameter(
        "none", "check bits of the memories, for 8 bits of weights, a word of activations", **PROTECT
    )

    def __post_init__(self):
        super().__post_init__()
        self.dot  # noqa: B018 - checks the rest

    @property
    def dot(self) -> DotFormat:
        """The function that the trees compute."""
        return DotFormat(self.n_w, self.window, self.halves)

    @property
    def w_addr_bits(self) -> int:
        """Bits of the address of a word of weights."""
        return bits_for(self.w_depth)

    @property
    def x_addr_bits(self) -> int:
        """Bits of the address of a word of activations."""
        return bits_for(self.x_depth)


@dataclass(frozen=True)
class VpeParams(Parameters):
    """Parameters of the VPE: n_h vector units of n_w lanes, which execute the same instruction on rows of their own."""

    n_h: int = parameter(1, "N_VPE-h: vector units", low=1, high=WIDTH, in_core=1)
    n_w: int = parameter(64, "N_VPE-w: lanes of a unit", high=1 << 12, power_of_two=True)
    depth: int = parameter(64, "words of n_w numbers in each of a unit's three banks", high=1 << 12, power_of_two=True)
    score: ScoreFormat = parameter(ScoreFormat(), "exponent and mantissa bits of the score codes that it makes")
    protect: str = parameter("none", "check bits of the banks", **PROTECT)
    features: str = parameter(
        "", "optional hardware: hybrid adds the functions EXPM1 and SOFTPLUS", features=FEATURES, optional=True
    )

    def __post_init__(self):
        super().__post_init__()
        self.format  # noqa: B018 - checks the rest

    @property
    def format(self) -> VectorFormat:
        """The function that a unit computes."""
        return VectorFormat(self.n_w, self.depth, self.score, self.features)

    @property
    def addr_bits(self) -> int:
        """Bits of a word's address in a bank."""
        return bits_for(self.depth)


@dataclass(frozen=True)
class LxeParams(Parameters):
    """Parameters that the LXE adds to DPE and VPE: program memory, queues and the bus."""

    i_depth: int = parameter(512, "instructions of 32 bytes: 16 KB", low=2, high=SIZE, power_of_two=True)
    queue: int = parameter(8, "instructions that wait in front of an engine", low=1, high=WIDTH)
    words: int = parameter(16, "words that wait between bus, DPE and VPE", low=2, high=1 << 12, power_of_two=True)
    bus_bytes: int = parameter(64, "bytes of a beat of the AXI port", low=1, high=128, power_of_two=True)
    bursts: int = parameter(32, "bursts in flight: the loader's reads, and the storer's writes", low=1, high=WIDTH)
    copies: int = parameter(
        8, "bursts of the retriever in flight in each direction; its buffer has room for one more", low=1, high=WIDTH
    )
    burst_bytes: int = parameter(1024, "bytes of the longest burst", low=1, high=4096, power_of_two=True)
    to_register: bool = parameter(False, "STORE can set a register from a number of the VPE", optional=True)
    codes: int = parameter(
        0, "numbers of a key's code that LOAD expands to BF16 on its way to W; 0: none", high=62, optional=True
    )
    weights: bool = parameter(False, "LOAD can expand 4-bit and 8-bit weights to BF16 on its way to W", optional=True)
    protect: str = parameter("none", "check bits of program memory and of the retriever's buffer", **PROTECT)

    def __post_init__(self):
        super().__post_init__()
        beats = self.burst_bytes // self.bus_bytes
        check(1 <= beats <= 256, "burst_bytes", self.burst_bytes, f"must be 1 to 256 beats of {self.bus_bytes} bytes")


@dataclass(frozen=True)
class CoreParams(Parameters):
    """Parameters of a core: its retrieval engine, its two execution engines and the LXE around them."""

    dre: DreParams = field(default_factory=DreParams)
    dpe: DpeParams = field(default_factory=DpeParams)
    vpe: VpeParams = field(default_factory=VpeParams)
    lxe: LxeParams = field(default_factory=LxeParams)
    regions: int = parameter(
        4, "regions of memory outside which a core reads and writes nothing; 0: no such check", high=64
    )

    @property
    def policy(self) -> str:
        """The policy that this core is made for: `pages` with all that coded pages need, else `resv`."""
        return "pages" if self.lxe.codes and self.dre.wtu.budget else "resv"

    def lxe_format(self) -> LxeFormat:
        """The function of the LXE; `ParamError` if its engines do not fit together."""
        lanes = self.dpe.n_w
        ok = lanes & (lanes - 1) == 0
        check(ok, "dpe.n_w", lanes, "must be a power of two in an LXE: words are whole beats")
        check(
            self.dpe.n_h == lanes, "dpe.n_h", self.dpe.n_h, f"must equal dpe.n_w = {lanes} in an LXE: results are words"
        )
        check(self.vpe.n_w == lanes, "vpe.n_w", self.vpe.n_w, f"must equal dpe.n_w = {lanes} in an LXE")
        check(self.vpe.n_h == 1, "vpe.n_h", self.vpe.n_h, "must be 1 in an LXE")
        check(
            self.lxe.bus_bytes <= 2 * lanes,
            "bus_bytes",
            self.lxe.bus_bytes,
            f"must be at most a word of {2 * lanes} bytes: raise dpe.n_w, dpe.n_h and vpe.n_w",
        )
        reason = f"must be at least {-(-lanes // 8)}, the signs of a word, with lxe.codes"
        check(not self.lxe.codes or 8 * self.lxe.bus_bytes >= lanes, "bus_bytes", self.lxe.bus_bytes, reason)
        d, v = self.dpe, self.vpe
        sizes = lanes, d.window, d.w_depth, d.x_depth, v.depth, self.lxe.i_depth
        least = max(4, lanes)
        reason = f"must be at least {least} with lxe.weights: a scale and a minimum, and a word of 8-bit weights"
        check(not self.lxe.weights or self.lxe.bus_bytes >= least, "bus_bytes", self.lxe.bus_bytes, reason)
        options = self.lxe.to_register, self.lxe.codes, self.dre.hcu.newest, self.lxe.weights, d.halves
        out = LxeFormat(*sizes, v.score, v.features, *options)
        assert not self.lxe.codes or out.code_words  # checks that codes fit words
        return out

    def joined(self) -> "CoreParams":
        """These parameters; `ParamError` if the units and the ports of a core do not fit together."""
        self.core_format()
        _check_equal(self)
        return self

    def core_format(self) -> LxeFormat:
        """The function of the LXE beside its DRE; `ParamError` if they do not fit together."""
        out = self.lxe_format()
        word, d = out.word_bytes, self.dre
        entry, n_w = d.kvmu.entry_bytes, d.wtu.n_w
        check(entry % word == 0, "entry_bytes", entry, f"must be a multiple of a word of {word} bytes in a core")
        top = word << PAYLOAD[Opcode.LOAD]["words"]
        check(entry <= top, "entry_bytes", entry, f"must be at most {top} in a core: bytes of the longest transfer")
        if d.kvmu.kv4_group:
            top //= kv4.RATIO
            whole = f"must be a multiple of {kv4.RATIO} words of {word} bytes: a packed entry is whole words"
            check(entry % (kv4.RATIO * word) == 0, "entry_bytes", entry, whole)
            most = 2 * self.lxe.bus_bytes
            few = f"must be at most {most}: a beat of lxe.bus_bytes = {self.lxe.bus_bytes} holds whole groups"
            check(d.kvmu.kv4_group <= most, "kv4_group", d.kvmu.kv4_group, few)
        ok = word <= d.kvmu.boundary <= top
        check(ok, "boundary", d.kvmu.boundary, f"must be {word} to {top} in a core: a burst is part of a transfer")
        check(
            n_w & (n_w - 1) == 0, "wtu.n_w", n_w, "must be a power of two in a core: words of scores are cut or joined"
        )
        check(d.wtu.score == out.score, "wtu.score", d.wtu.score, f"must equal vpe.score = {out.score} in a core")
        for name, bits, high in (
            ("addr_bits", d.kvmu.addr_bits, ADDR_BITS),
            ("token_bits", d.hcu.token_bits, ADDR_BITS),
        ):
            check(bits <= high, name, getattr(d.kvmu, name), f"takes {bits} bits, a core has {high}: lower it")
        return out


@dataclass(frozen=True)
class MaskParams(Parameters):
    """Parameters of the motion mask, a unit in front of the vision encoder."""

    grid: int = parameter(16, "patches on a side of a frame", low=1, high=64)
    group: int = parameter(2, "patches on a side of a visual token", low=1, high=64)
    size_bits: int = parameter(13, "bits of a picture's width and height in pixels", low=3, high=15)
    block_bits: int = parameter(20, "bits of a frame's number of blocks", low=1, high=32)
    tau_bits: int = parameter(8, "bits of the threshold tau in quarter pixels", low=1, high=15)
    residuals: bool = parameter(False, "blocks have residuals, which count as motion (Equation 3)", optional=True)

    def __post_init__(self):
        super().__post_init__()
        check(self.grid % self.group == 0, "group", self.group, f"must divide grid = {self.grid}")

    @property
    def tokens(self) -> int:
        """Visual tokens on a side of a frame."""
        return self.grid // self.group


@dataclass(frozen=True)
class SystemParams(Parameters):
    """Parameters of a system of `cores` equal cores, and of the units beside it."""

    core: CoreParams = field(default_factory=CoreParams)
    cores: int = parameter(1, "cores, which share the memory ports", low=1, high=64)
    common: bool = parameter(
        False, "what several cores read at the same addresses is read from memory once", optional=True
    )
    ports: int = parameter(1, "memory ports; bursts go to them in turn by address", high=8, power_of_two=True)
    mask: MaskParams = field(default_factory=MaskParams)


def preset(name: str) -> SystemParams:
    """The preset `name`; `ParamError` lists the valid names."""
    check(name in PRESETS, "preset", name, f"must be one of {', '.join(PRESETS)}")
    return PRESETS[name]


def override(params: SystemParams, assignments: list[str]) -> SystemParams:
    """A system with each "unit.name=value" or "name=value" applied.

    A bare name sets every unit that has it, as `SHARED` sizes are always set. Values are integers, true/false or words;
    the word for no features is none. `ParamError` names the unit; for an unknown name it lists the valid ones, the
    nearest first.
    """
    out = _replaced(params, "", _changes(params, "", assignments))
    out.core.dre.joined()
    return out


def override_part(params: SystemParams, path: str, assignments: list[str]) -> SystemParams:
    """A system of which only the part at `path` ("core.dre.kvmu"; "": all) is overridden, and checked by its own rules.

    The other parts stay, whether they fit or not. Raises `ParamError` as `override` does, and for a name that only
    other parts have.
    """
    own, unit = part_of(params, path), path.rpartition(".")[2]
    names = flat(own, unit)
    for text in assignments:
        name = text.partition("=")[0]
        known = any(name in (full, full.rpartition(".")[2]) for full in names)
        if not known:
            _changes(params, "", [text])  # refuses a name that no part has
        check(known, "parameter", name, f"{unit} has none of this name; it has {', '.join(names)}")
    return _with_part(params, path, _replaced(own, unit, _changes(own, unit, assignments)))


def part_of(params: SystemParams, path: str) -> object:
    """The part of a system at `path`, as in `override_part`."""
    return attrgetter(path)(params) if path else params


def _with_part(params: object, path: str, part: object) -> object:
    name, _, rest = path.partition(".")
    return replace(params, **{name: _with_part(getattr(params, name), rest, part)}) if path else part


def _changes(params: object, part: str, assignments: list[str]) -> dict[tuple[str, str], object]:
    """(unit, name) of each assignment below `params`, which are of `part`, and the value."""
    leaves = list(_leaves(params, part))
    changes: dict[tuple[str, str], object] = {}
    for text in assignments:
        name, eq, word = text.partition("=")
        check(bool(eq and name and word), "-p", text, "must look like name=value")
        scope, _, leaf = name.rpartition(".")
        check(
            not scope or leaf not in SHARED, "parameter", name, f"is one size in all units: set {leaf} without a unit"
        )
        hit = [(unit, n) for unit, n in leaves if n == leaf and scope in ("", unit)]
        for one in hit:
            owner = FOLLOWS.get(one)
            check(owner not in leaves, "parameter", name, f"is {'.'.join(owner or ())} in a DRE: set that")
        own = [n for unit, n in leaves if unit == scope]
        valid = [f"{scope}.{n}" for n in own] if scope and own else sorted({n for _, n in leaves})
        near = get_close_matches(name, valid, cutoff=0.5)
        rest = [n for n in valid if n not in near]
        check(bool(hit), "parameter", name, f"unknown; valid names: {', '.join(near + rest)}")
        changes |= dict.fromkeys(hit, _parse(name, word))
    followers = {one: changes[owner] for one, owner in FOLLOWS.items() if one in leaves and owner in changes}
    return changes | followers


def flat(params: object, unit: str = "") -> dict[str, str]:
    """Every value below `params`, with the name and in the form that `override` takes."""
    return {name: word for name, (word, _) in listed(params, unit).items()}


def listed(params: object, unit: str = "", with_off: bool = True) -> dict[str, tuple[str, Parameter]]:
    """`flat` with what each parameter is declared as.

    with_off : also optional hardware that is off, and units beside a system
    """
    leaves, out = set(_leaves(params, unit)), {}
    for part, of in _parts(params, unit):
        about = described(of) if with_off or part not in APART else {}
        for name, own in about.items():
            if FOLLOWS.get((part, name)) not in leaves and (with_off or not is_off(of, name, about)):
                out[named(part, name)] = (_word(getattr(of, name)), own)
    return out


def named(unit: str, name: str) -> str:
    """A parameter of a unit as `override` takes it."""
    return f"{unit}.{name}" if unit and name not in SHARED else name


def _word(value: object) -> str:
    if isinstance(value, ScoreFormat):
        return f"e{value.exp_bits}m{value.man_bits}"
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"


def stated(params: object) -> dict[str, object]:
    """Every value below `params`, for manifests, but of optional hardware that is off and of units beside a system."""
    about, out = described(params), {}
    for name, value in vars(params).items():
        if name in _GROUPS and name not in APART:
            out[name] = stated(value)
        elif name not in APART and not is_off(params, name, about):
            out[name] = asdict(value) if is_dataclass(value) else value
    return out


def is_off(params: object, name: str, about: dict[str, Parameter]) -> bool:
    """Whether a parameter is optional and has its default; `about`: `described` of `params`."""
    default = next(f.default for f in fields(params) if f.name == name)
    return name in about and about[name].optional and getattr(params, name) == default


def _parts(params: object, unit: str = "") -> Iterator[tuple[str, object]]:
    """The group of parameters `unit`, and those in it."""
    yield unit, params
    for name, value in vars(params).items():
        if name in _GROUPS:
            yield from _parts(value, name)


def _leaves(params: object, unit: str = "") -> Iterator[tuple[str, str]]:
    for part, of in _parts(params, unit):
        yield from ((part, name) for name in vars(of) if name not in _GROUPS)


def _check_equal(params: object) -> None:
    """Raise `ParamError` unless sizes that units share are equal in all of `params`."""
    parts = dict(_parts(params))
    for name in SHARED:
        values = {unit: getattr(part, name) for unit, part in parts.items() if hasattr(part, name)}
        same = f"must be one size in all units: set {name} without a unit"
        check(len(set(values.values())) <= 1, name, values, same)
    for (unit, name), (owner, size) in FOLLOWS.items():
        value, wanted = getattr(parts[unit], name), getattr(parts[owner], size)
        check(value == wanted, f"{unit}.{name}", value, f"must equal {owner}.{size} = {wanted}")


def _replaced(params: object, unit: str, changes: dict[tuple[str, str], object]) -> object:
    new = {}
    for name, old in vars(params).items():
        if name in _GROUPS:
            new[name] = _replaced(old, name, changes)
        elif (unit, name) in changes:
            value = changes[unit, name]
            check(type(old) is type(value), name, value, f"must be of type {type(old).__name__}, as {old!r}")
            new[name] = value
    try:
        return replace(params, **new)
    except ParamError as e:
        name, _, rest = str(e).partition("=")
        raise ParamError(f"{named(unit, name)}={rest}") if name in vars(params) else e from None


def _parse(name: str, word: str) -> object:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if name.rpartition(".")[2] == "features":
        return "" if word == "none" else word
    if name.rpartition(".")[2] == "score":
        e, _, m = word.partition("e")[2].partition("m")
        check(e.isdigit() and m.isdigit(), name, word, "must look like e4m7")
        return ScoreFormat(int(e), int(m))
    try:
        return int(word, 0)
    except ValueError:
        return word


# Presets, as changes of the default. `core` is section VI-A: N_DPE 64x64, N_VPE 1x64, N_HCU 1x16, N_WTU 1x16.
# V-Rex as published: section V-B's buckets with early exit, the 1,024 clusters that 20.125 KB of DRE memory hold,
# Th_hd 7, raw hash bits, ratio 0.3. All else is as in `core`.
_VREX = "clusters=1024 wtu.selection=buckets dre.reading=buckets"
# What coded pages need, the retrieval that we recommend (docs/papers/recall.md); ReSV runs beside it.
_PAGES = "wtu.budget=true lxe.codes=18 dpe.halves=true hcu.newest=true kvmu.kept=512"
_CHANGES = {
    # Fast tests: a trace of 300 tokens fills the HC table of a layer and nearly all blocks, directed tests overflow
    # every memory in a short run.
    "tiny": "clusters=32 n_ctx=48 counts=16 token_bits=14 bus_bytes=8 hcu.n_w=8 hcu.n_hp=16 hcu.tile=8 hcu.frame=4"
    " wtu.n_w=4 kvmu.blocks=256 kvmu.block_slots=4 kvmu.recent=16 kvmu.entry_bytes=768 kvmu.addr_bits=32 kvmu.rows=4"
    " kvmu.read_counts=8 table.burst_bytes=32 dpe.n_h=4 dpe.n_w=4 dpe.w_depth=64 dpe.x_depth=64 vpe.n_w=4 vpe.depth=128"
    " lxe.i_depth=64 lxe.queue=2 lxe.words=4 lxe.bursts=2 lxe.copies=2 lxe.burst_bytes=64"
    " mask.grid=4 mask.size_bits=8 mask.block_bits=8 mask.tau_bits=4",
    # Layers of the small decoder that the tests use (`golden.inputs.decoder`).
    "small": "clusters=256 counts=256 token_bits=14 kvmu.blocks=65536 kvmu.recent=64 kvmu.entry_bytes=768"
    " dpe.n_h=32 dpe.n_w=32 dpe.w_depth=64 vpe.n_w=32 vpe.depth=64 lxe.i_depth=1024",
    "core": _PAGES,
    # Four ports of 51.2 GB/s are the memory's 204.8.
    "edge8": f"cores=8 ports=4 common=true {_PAGES}",
    "server48": f"cores=48 common=true {_PAGES}",
    # Weights of 4 bits: a quarter of the bytes that bound a frame. Entries stay BF16: docs/archive/decisions.md.
    "corex": f"{_PAGES} lxe.weights=true",
    "edge8x": f"cores=8 ports=4 common=true {_PAGES} lxe.weights=true",
    "server48x": f"cores=48 common=true {_PAGES} lxe.weights=true",
    # core with all optional hardware
    "omni": f"{_PAGES} lxe.weights=true kvmu.kv4_group=32 kvmu.block_slots=32 lxe.to_register=true"
    f" mask.residuals=true common=true vpe.features={'+'.join(FEATURES)}",
    "vrex1": _VREX,
    "vrex8": f"cores=8 ports=4 {_VREX}",
    "vrex48": f"cores=48 {_VREX}",
}
PRESETS = {name: override(SystemParams(), changes.split()) for name, changes in _CHANGES.items()}

__all__ = [
    "APART",
    "CLOCK",
    "PRESETS",
    "SHARED",
    "CoreParams",
    "DpeParams",
    "DreParams",
    "HcuParams",
    "KvmuParams",
    "MaskParams",
    "ParamError",
    "SystemParams",
    "TableParams",
    "VpeParams",
    "WtuParams",
    "bits_for",
    "flat",
    "listed",
    "named",
    "override",
    "override_part",
    "part_of",
    "preset",
    "stated",
]
