"""Function parameters: everything that changes a result, and nothing that only changes cycles or area."""

from dataclasses import dataclass, fields


class ParamError(ValueError):
    """A parameter that cannot work; the message gives its name, its value and the reason."""


def check(ok: bool, name: str, value: object, reason: str) -> None:
    """Raise `ParamError` naming the parameter, its value and the reason unless `ok`."""
    if not ok:
        raise ParamError(f"{name}={value!r}: {reason}")


def check_ints(params: object) -> None:
    """Raise `ParamError` for a field annotated `int` that does not hold an integer (a bool is not one)."""
    for f in fields(params):
        value = getattr(params, f.name)
        if f.type in (int, "int"):
            check(isinstance(value, int) and not isinstance(value, bool), f.name, value, "must be an integer")


@dataclass(frozen=True)
class ScoreFormat:
    """Unsigned score code of `exp_bits + man_bits` bits, ordered as its integer.

    value(code) = m for e = 0, (2^man_bits + m) << (e - 1) otherwise: an exact integer, so sums need no rounding.
    The default (4, 7) is what a BF16 exp can give: 8 significant bits over a range of 2^22 in 11 bits;
    (0, 16) is plain 16-bit fixed point.
    """

    exp_bits: int = 4
    man_bits: int = 7

    def __post_init__(self):
        check_ints(self)
        check(0 <= self.exp_bits <= 5, "exp_bits", self.exp_bits, "must be 0 to 5")
        check(1 <= self.man_bits <= 16, "man_bits", self.man_bits, "must be 1 to 16")
        check(self.bits <= 16, "exp_bits + man_bits", self.bits, "a score code has at most 16 bits")

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.exp_bits + self.man_bits

    @property
    def significand_bits(self) -> int:
        """Bits of the significand (hidden one included where there is an exponent)."""
        return self.man_bits + (self.exp_bits > 0)

    @property
    def max_shift(self) -> int:
        """Largest left shift of a significand."""
        return max(0, (1 << self.exp_bits) - 2)

    @property
    def value_bits(self) -> int:
        """Bits of the largest value."""
        return self.significand_bits + self.max_shift


@dataclass(frozen=True)
class DotFormat:
    """The fused dot product (`golden.arithmetic.dot`): chunks of `n` products, each aligned in `window` bits."""

    n: int = 64
    window: int = 24

    def __post_init__(self):
        check_ints(self)
        check(1 <= self.n <= 1024, "n_w", self.n, "must be 1 to 1024")
        check(16 <= self.window <= 32, "window", self.window, "must be 16 (a product is that wide) to 32")

    @property
    def sum_bits(self) -> int:
        """Bits of the signed sum of a chunk."""
        return self.window + (self.n - 1).bit_length() + 1

    @property
    def row_bits(self) -> int:
        """Bits of the signed sum of a row: a chunk's shifted by up to 7, 1,024 of them."""
        return self.sum_bits + 17


SCORE_MAPS = ("exp", "vpe", "shift", "clip", "raw")
HASH_POLICIES = ("first", "majority", "mean")
SCOPES = ("layer", "head")
SELECTIONS = ("exact", "buckets")
JOINS = ("nearest", "first")
RAW_BITS = 30  # of the magnitude of a raw score (`golden.retrieval.scores`)


@dataclass(frozen=True)
class ReSVParams:
    """Function parameters of ReSV (V-Rex section IV); why these defaults: `docs/decisions.md`. Others: `READINGS`."""

    n_hp: int = 32  # hyperplanes, i.e. hash bits of a key
    th_hd: int = 7  # a token joins a cluster at a Hamming distance below this
    hash_seed: int = 2025  # of the Gaussian hyperplanes
    join: str = "nearest"  # a token joins the nearest cluster under th_hd, or the first one; hardware: nearest
    hash_policy: str = "first"  # hash of a growing cluster: its first member's, bit majority, or hash of the mean
    scope: str = "layer"  # clusters shared by the KV heads of a layer, or one table per KV head
    centre: bool = False  # subtract the mean key of the first frame before hashing
    max_clusters: int = 1024  # a token without a near cluster joins the nearest once the table is full
    count_bits: int = 16  # token counts saturate at 2^count_bits - 1
    score_map: str = "exp"  # exp(s - row max), the same as the VPE computes it, s - row min, max(s, 0), or s (raw)
    dot: DotFormat | None = None  # of hash bits and scores: None is the exact product, rounded once
    score: ScoreFormat = ScoreFormat()
    ratio_q16: int = 19661  # Th_r-wics in units of 2^-16 (0.3)
    selection: str = "exact"  # minimal set of Equation 3, or the paper's equal buckets
    n_buckets: int = 16
    recent: int = 256  # most recent tokens of a layer, always attended, resident in device memory
    sinks: int = 4  # first tokens of a stream, always attended, never clustered

    def __post_init__(self):
        check_ints(self)
        check(1 <= self.n_hp <= 256, "n_hp", self.n_hp, "must be 1 to 256")
        check(0 <= self.th_hd <= self.n_hp + 1, "th_hd", self.th_hd, f"must be 0 to n_hp + 1 = {self.n_hp + 1}")
        check(self.max_clusters >= 1, "max_clusters", self.max_clusters, "must be at least 1")
        check(1 <= self.count_bits <= 24, "count_bits", self.count_bits, "must be 1 to 24")
        check(0 <= self.ratio_q16 <= 65536, "ratio_q16", self.ratio_q16, "must be 0 to 65536 (1.0)")
        ok = self.n_buckets >= 1 and self.n_buckets & (self.n_buckets - 1) == 0
        check(ok, "n_buckets", self.n_buckets, "must be a power of two")
        check(self.recent >= 1, "recent", self.recent, "must be at least 1")
        check(self.sinks >= 0, "sinks", self.sinks, "must not be negative")
        for name, allowed in (
            ("join", JOINS),
            ("hash_policy", HASH_POLICIES),
            ("scope", SCOPES),
            ("score_map", SCORE_MAPS),
            ("selection", SELECTIONS),
        ):
            check(getattr(self, name) in allowed, name, getattr(self, name), f"must be one of {', '.join(allowed)}")


# Readings of section IV, where the paper leaves a choice; what each gives: docs/policies.md. All but the first have a
# table for each KV head. The hardware has no raw scores, which may be negative, and joins the nearest cluster.
READINGS = {
    "resv": ReSVParams(),  # our hardware: exp scores, the exact set, a table for each layer
    "equations": ReSVParams(scope="head", score_map="raw", sinks=0),  # Equations 1 to 3 as they stand, on raw Q.K
    "exact": ReSVParams(scope="head"),  # exp scores, the exact set of Equation 3
    "buckets": ReSVParams(scope="head", selection="buckets"),  # exp scores, the equal buckets of section V-B
    "first": ReSVParams(scope="head", join="first"),  # exact, a token joins the first cluster under the threshold
}
