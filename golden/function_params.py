"""Function parameters: every setting that changes a result, with its meaning and its limits.

Settings that only change cycles or area are implementation parameters (`hdl.params`). Both kinds are dataclasses whose
fields carry a `Parameter`: the checks and the data sheets read the meaning and the limits from it.
"""

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


class ParamError(ValueError):
    """Raised for a parameter that cannot work. The message gives its name, its value and the reason."""


def check(ok: bool, name: str, value: object, reason: str) -> None:
    """Raise `ParamError` with the message "name=value: reason" unless `ok`."""
    if not ok:
        raise ParamError(f"{name}={value!r}: {reason}")


def bits_for(n: int) -> int:
    """Bits that hold the values 0 to n - 1, at least 1."""
    return max(1, (n - 1).bit_length())


@dataclass(frozen=True)
class Parameter:
    """The meaning and the allowed values of one field of a parameter class.

    meaning : a phrase for tables, with the unit
    low, high : smallest and largest value; None sets no limit
    choices : the allowed words
    power_of_two : allows only powers of two; a string gives the reason, which the error message repeats
    optional : hardware that costs nothing when off; left out of headers and manifests while it has its default
    features : names that a word may join by "+", each once and in this order; "" is none of them
    in_core : the only value that a core takes; others are for the unit alone
    """

    meaning: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    power_of_two: bool | str = False
    optional: bool = False
    features: tuple[str, ...] = ()
    in_core: int | None = None

    @property
    def values(self) -> str:
        """The allowed values as a phrase such as "1 to 1024" or "one of exact, buckets"; empty without a limit."""
        if self.features:
            return f"none, or names of {', '.join(self.features)} joined by + in this order"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        low = 1 if self.power_of_two and self.low is None else self.low
        limits = f"at least {low}" if low and not self.power_of_two else ""
        limits = limits if self.high is None else f"{low} to {self.high}"
        limits += "" if self.in_core is None else f", in a core {self.in_core}"
        return ", ".join(part for part in ("a power of two" if self.power_of_two else "", limits) if part)

    def check(self, name: str, value: Any) -> None:
        """Raise `ParamError` unless the parameter `name` may have this value."""
        if self.features:
            named = value.split("+") if value else []
            check([f for f in self.features if f in named] == named, name, value, f"must be {self.values}")
        if self.choices:
            check(value in self.choices, name, value, f"must be {self.values}")
        ok = self.low is None or value >= self.low
        check(ok or bool(self.values), name, value, "must not be negative")  # a low of 0 alone
        ok = ok and (self.high is None or value <= self.high)
        if self.power_of_two:
            ok = ok and value >= 1 and value & (value - 1) == 0
        why = f": {self.power_of_two}" if isinstance(self.power_of_two, str) else ""
        check(ok, name, value, f"must be {self.values}{why}")


def parameter(default: T, meaning: str, **limits: Any) -> T:
    """Declare a dataclass field with a default, a meaning and the limits of `Parameter`."""
    return field(default=default, metadata={"parameter": Parameter(meaning, **limits)})


def required(meaning: str, **limits: Any) -> Any:
    """The same for a field without a default."""
    return field(metadata={"parameter": Parameter(meaning, **limits)})


def described(params: "DataclassInstance | type[DataclassInstance]") -> dict[str, Parameter]:
    """The `Parameter` of each field of a parameter class or object, by field name."""
    return {f.name: f.metadata["parameter"] for f in fields(params) if "parameter" in f.metadata}


def check_ints(params: "DataclassInstance") -> None:
    """Raise `ParamError` if a field annotated `int` does not hold an integer. A bool does not count as one."""
    for f in fields(params):
        value = getattr(params, f.name)
        if f.type in (int, "int"):
            check(isinstance(value, int) and not isinstance(value, bool), f.name, value, "must be an integer")


@dataclass(frozen=True)
class Parameters:
    """Base of classes of parameters.

    Raises `ParamError` for the first field whose value is not an integer as annotated or not within its limits.
    """

    def __post_init__(self) -> None:
        check_ints(self)
        for name, about in described(self).items():
            about.check(name, getattr(self, name))


@dataclass(frozen=True)
class ScoreFormat(Parameters):
    """Format of score codes: unsigned floats of `exp_bits + man_bits` bits that compare as plain integers.

    A code has an exponent e above a mantissa m. Its value is m if e = 0, and (2^man_bits + m) << (e - 1) otherwise.
    Values are exact integers, so sums need no rounding. The default (4, 7) fits the result of a BF16 exp: 8 significant
    bits over a range of 2^22, in 11 bits. (0, 16) is plain 16-bit fixed point.
    """

    exp_bits: int = parameter(4, "bits of the exponent", low=0, high=5)
    man_bits: int = parameter(7, "bits of the mantissa", low=1, high=16)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.bits <= 16, "exp_bits + man_bits", self.bits, "a score code has at most 16 bits")

    @property
    def bits(self) -> int:
        """Bits of a score code."""
        return self.exp_bits + self.man_bits

    @property
    def significand_bits(self) -> int:
        """Bits of the significand, with the hidden one if there is an exponent."""
        return self.man_bits + (self.exp_bits > 0)

    @property
    def max_shift(self) -> int:
        """Largest left shift that decoding applies to a significand."""
        return max(0, (1 << self.exp_bits) - 2)

    @property
    def value_bits(self) -> int:
        """Bits of the largest value, as an unsigned integer."""
        return self.significand_bits + self.max_shift


@dataclass(frozen=True)
class DotFormat(Parameters):
    """Format of the DPE's dot product (`golden.arithmetic.dot`): `n` products per chunk, aligned to `window` bits."""

    n: int = parameter(64, "products of a chunk: n_w of the hardware")
    window: int = parameter(24, "bits of an aligned product; a product is 16 bits wide", low=16, high=32)
    halves: bool = parameter(False, "a sum can be the larger of those of a chunk's halves")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(1 <= self.n <= 1024, "n_w", self.n, "must be 1 to 1024")
        check(not self.halves or self.n % 2 == 0, "n_w", self.n, "must be even, to have halves")

    @property
    def sum_bits(self) -> int:
        """Bits of the signed sum of one chunk."""
        return self.window + (self.n - 1).bit_length() + 1

    @property
    def row_bits(self) -> int:
        """Bits of the signed sum of a row: up to 1,024 chunk sums, each shifted left by up to 7 bits."""
        return self.sum_bits + 17


# Optional hardware: "hybrid" adds the functions of a selective scan to the VPE.
FEATURES = ("hybrid",)
SCORE_MAPS = ("exp", "vpe", "shift", "clip", "raw")
HASH_POLICIES = ("first", "majority", "mean")
SCOPES = ("head", "layer")
SELECTIONS = ("exact", "buckets")
JOINS = ("nearest", "first")
BUDGET_BITS = 24  # of a budget of tokens, less one (`golden.retrieval.wicsum`)
RAW_BITS = 30  # bits of the magnitude of a raw score code (`golden.retrieval.scores`)


@dataclass(frozen=True)
class ReSVParams(Parameters):
    """Function parameters of the retrieval policy ReSV (V-Rex section IV).

    `docs/decisions.md` explains the defaults. `READINGS` holds other readings of the paper.
    """

    n_hp: int = parameter(32, "hash bits of a key, one for each hyperplane", low=1, high=256)
    th_hd: int = parameter(3, "a token joins a cluster at a Hamming distance below this; 0 to n_hp + 1", low=0)
    hash_seed: int = parameter(2025, "seed of the Gaussian hyperplanes")
    join: str = parameter(
        "nearest",
        "the cluster below th_hd that a token joins: the nearest, as hardware does, or the first",
        choices=JOINS,
    )
    hash_policy: str = parameter(
        "first",
        "hash of a growing cluster: its first member's, the majority of bits, or the mean key's",
        choices=HASH_POLICIES,
    )
    scope: str = parameter("head", "one table for each KV head of a layer, or one for all of them", choices=SCOPES)
    centre: bool = parameter(True, "hash bits say on which side of the first frame's mean key a key lies")
    max_clusters: int = parameter(1024, "clusters of a table; a full one lets every token join its nearest", low=1)
    count_bits: int = parameter(16, "bits of a token count, which saturates at 2^count_bits - 1", low=1, high=24)
    score_map: str = parameter(
        "exp",
        "weight of a score s: exp(s - max), the same by the VPE, s - min, max(s, 0), or s (raw)",
        choices=SCORE_MAPS,
    )
    dot: DotFormat | None = parameter(None, "dot product of hashes and scores; none: exact, rounded once")
    score: ScoreFormat = parameter(ScoreFormat(), "exponent and mantissa bits of a score code")
    ratio_q16: int = parameter(13107, "Th_r-wics in units of 2^-16; the default is 0.2", low=0, high=65536)
    selection: str = parameter(
        "exact", "the minimal set of Equation 3, or the paper's equal buckets", choices=SELECTIONS
    )
    n_buckets: int = parameter(16, "equal buckets of a row of scores", power_of_two=True)
    recent: int = parameter(256, "most recent tokens of a layer: always attended, kept in device memory", low=1)
    sinks: int = parameter(4, "first tokens of a stream: always attended, never clustered", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.th_hd <= self.n_hp + 1, "th_hd", self.th_hd, f"must be 0 to n_hp + 1 = {self.n_hp + 1}")

    def th_hd_of(self, n_hp: int) -> int:
        """Th_hd for hashes of `n_hp` bits: the same share of a hash, rounded up."""
        return -(-self.th_hd * n_hp // self.n_hp)


RATIO = round(ReSVParams.ratio_q16 / 65536, 4)  # the default of Th_r-wics as a number

# Section IV of the paper leaves choices open; each entry is one reading. docs/papers/policies.md compares them.
# All but "paper" have one table per KV head. Hardware offers neither raw scores, which may be negative, nor the
# join "first". The paper does not centre hash bits, and has Th_hd 7 of 32 bits and the ratio 0.3; docs/papers/recall.md
# says why the defaults are others.
_PAPER = ReSVParams(th_hd=7, scope="layer", centre=False, ratio_q16=19661)
READINGS = {
    "resv": ReSVParams(),  # the defaults: exp scores, the exact set, a table per KV head, centred keys, tight clusters
    "paper": _PAPER,  # the paper's point, one table for all KV heads of a layer
    "equations": replace(_PAPER, scope="head", score_map="raw", sinks=0),  # Equations 1 to 3 as they stand, on raw Q.K
    "exact": replace(_PAPER, scope="head"),  # exp scores, the exact set of Equation 3
    "buckets": replace(_PAPER, scope="head", selection="buckets"),  # exp scores, the equal buckets of section V-B
    "first": replace(_PAPER, scope="head", join="first"),  # as exact, but a token joins the first cluster under th_hd
}
OF_HARDWARE = ("resv", "exact", "buckets")  # readings with a table per KV head that hardware computes
