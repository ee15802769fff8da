"""Traffic of the loader and the storer: instructions, and the bursts, words and faults that they must cause."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.arithmetic.packed_weights import Packing, Rule
from openvrex.golden.program.isa import (
    ADDR_BITS,
    NUMBER_BITS,
    REGISTERS,
    SIGNS,
    LoadTo,
    StoreTo,
    expands,
    packs_signs,
    sets_register,
    unpacks,
)
from openvrex.golden.retrieval.coded_pages import CodeWords
from openvrex.hdl.bus.axi import connect_ports, port_members
from openvrex.hdl.emit import Emitted, to_verilog
from openvrex.hdl.execution.loader import Loader
from openvrex.hdl.execution.storer import Storer
from openvrex.hdl.params import CoreParams, override_part, preset
from openvrex.hdl.ports import ports
from openvrex.tb.library.runner import Run
from openvrex.tb.library.streams import bits_of

_SIXTEEN = ["dpe.n_h=16", "dpe.n_w=16", "vpe.n_w=16", "bus_bytes=16", "burst_bytes=128"]
# Words of 1 to 8 beats, bursts of 1 to 256: changes of preset `tiny`.
SIZES = {
    "tiny": [],
    "one": ["dpe.n_h=1", "n_w=1", "w_depth=1", "x_depth=1", "bus_bytes=1", "lxe.burst_bytes=256", "bursts=1"],
    "narrow": ["dpe.n_h=8", "n_w=8", "bus_bytes=2", "lxe.burst_bytes=2", "bursts=3"],
    "registers": ["to_register=true"],
    "sixteen": _SIXTEEN,
    "codes": [*_SIXTEEN, "lxe.codes=5", "hcu.newest=true"],  # two codes in a word of W, two words of W in one of memory
    "codes-narrow": [*_SIXTEEN, "bus_bytes=4", "burst_bytes=32", "lxe.codes=5"],  # four beats for a word of W
    "weights": [*_SIXTEEN, "lxe.weights=true"],  # two words of W in a beat, or one of 8 bits
    "weights-narrow": ["dpe.n_h=8", "n_w=8", "bus_bytes=8", "lxe.burst_bytes=32", "lxe.weights=true"],
    "weights-two": ["dpe.n_h=2", "n_w=2", "bus_bytes=4", "lxe.burst_bytes=16", "lxe.weights=true"],  # the fewest lanes
    # Two groups in a word of W, and codes beside the weights.
    "weights-core": [
        *("dpe.n_h=64", "dpe.n_w=64", "vpe.n_w=64", "w_depth=32", "x_depth=64"),
        *("bus_bytes=64", "burst_bytes=1024", "queue=8", "bursts=32", "lxe.codes=18", "lxe.weights=true"),
    ],
    "core": [
        *("dpe.n_h=64", "dpe.n_w=64", "vpe.n_w=64", "w_depth=32", "x_depth=512"),
        *("bus_bytes=64", "burst_bytes=1024", "queue=8", "bursts=32"),
    ],
}
PACKINGS = [Packing.of(code) for code in range(1, 8)]
TOP = 1 << ADDR_BITS
PAGE = 4096
_NOISE = random.Random(1).randbytes(1 << 13)


def params(changes: list[str]) -> CoreParams:
    """The core of preset `tiny` with changes."""
    return override_part(preset("tiny"), "core", changes).core


def content(addr: int, size: int) -> bytes:
    """Initial content of the memory from `addr` on: noise that differs between pages."""
    where = ((addr + k) % TOP for k in range(size))
    return bytes(_NOISE[(a + (a >> 12) * 97 & 0xFFF) + (a >> 12 & 1)] for a in where)


def transfer(target: int, addr: int, rows: int = 1, words: int = 1, **fields: int) -> dict:
    """A beat of `transfer_layout` with encoded counts; `fields`: stride, to, step, wide, skip, signal."""
    zero = dict.fromkeys(("skip", "signal", "wait", "wide", "stride", "to", "step"), 0)
    return {**zero, "target": int(target), "addr": addr % TOP, "rows": rows - 1, "words": words - 1, **fields}


@dataclass
class Expected:
    """What a program must do up to its end or its first fault.

    bursts : (address, length), including those that LOADs may read ahead
    words : (port, payload) in order
    beats : (data, strobe, last) on `w`
    sets : (register, value) of a storer
    signals : signals of the instructions that complete
    fault : "", "bus" or "range"
    taken : words taken from the VPE
    collected : of these, words of signs that no beat followed
    bins : coverage bins that the program reaches
    """

    bursts: list[tuple[int, int]] = field(default_factory=list)
    words: list[tuple[str, dict]] = field(default_factory=list)
    beats: list[tuple[int, int, int]] = field(default_factory=list)
    sets: list[tuple[int, int]] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    fault: str = ""
    taken: int = 0
    collected: int = 0
    bins: set[str] = field(default_factory=set)


def rows_of(p: CoreParams, c: dict) -> list[list[int]]:
    """Addresses of the words of each row."""
    size = 2 * p.dpe.n_w << c["wide"]
    first = [(c["addr"] + r * c["stride"]) % TOP for r in range(c["rows"] + 1)]
    return [[(a + j * size) % TOP for j in range(c["words"] + 1)] for a in first]


def bursts_of(p: CoreParams, c: dict, joined: bool = False) -> list[tuple[int, int]]:
    """Bursts (address, length) of an instruction. A new one begins at every multiple of burst_bytes and at every row.

    With `joined`, as for a LOAD, a row that follows the row before without a gap continues its burst.
    """
    bus, out = p.lxe.bus_bytes, []
    size, end = 2 * p.dpe.n_w << c["wide"], None
    for row in rows_of(p, c):
        begins = not joined or row[0] != end
        for a in ((word + k) % TOP for word in row for k in range(0, size, bus)):
            if begins or a % p.lxe.burst_bytes == 0:
                out.append((a, 0))
            else:
                out[-1] = (out[-1][0], out[-1][1] + 1)
            begins, end = False, (a + bus) % TOP
    return out


def off_the_grid(p: CoreParams, c: dict, through: int) -> bool:
    """Whether the unit refuses the instruction: address or stride off the words, or wide words for a target without."""
    size = 2 * p.dpe.n_w
    return c["addr"] % size != 0 or c["stride"] % size != 0 or (c["wide"] and c["target"] != through)


def numbers(raw: bytes, size: int) -> list[int]:
    """Little-endian numbers of `size` bytes."""
    return [int.from_bytes(raw[i : i + size], "little") for i in range(0, len(raw), size)]


def loads(p: CoreParams, commands: list[dict], errors: frozenset[int] = frozenset()) -> Expected:
    """What LOADs must do. `errors`: addresses of beats that the memory answers with an error."""
    out, lanes = Expected(), p.dpe.n_w

    def coded(c: dict) -> bool:
        return p.lxe.codes > 0 and expands(c)

    def refused(c: dict) -> bool:
        return not c["skip"] and (
            off_the_grid(p, c, LoadTo.VECTOR) or (c["target"] == LoadTo.COLUMN and c["words"] > 0)
        )

    # A row of codes or weights has the bytes of a word of BF16 numbers, and becomes several words.
    marked: list[tuple[dict, CodeWords | Packing | None]] = []
    for c in commands:
        if p.lxe.weights and unpacks(c):
            marked.append((c | {"wide": 0, "stride": 2 * lanes}, Packing.of(c["stride"])))
        else:
            marked.append((c | {"wide": 0}, p.lxe_format().code_words) if coded(c) else (c, None))

    def alike(c: dict, codes: CodeWords | Packing | None) -> bool:
        """Whether all rows are one word, which is read once and goes to all its trees in one cycle."""
        same = p.lxe.codes > 0 and c["target"] == LoadTo.W and not (c["words"] or c["stride"] or codes)
        return same and c["rows"] < lanes

    for c, codes in marked:
        read = c | {"words": 0} if codes else c | {"rows": 0} if alike(c, codes) else c
        if read["rows"] != c["rows"] and not c["skip"] and not refused(c):
            out.bins.add("once")
        out.bursts += [] if c["skip"] or refused(c) else bursts_of(p, read, joined=True)
    for c, codes in marked:
        if c["skip"]:
            out.signals.append(c["signal"])
            out.bins.add("skip")
            continue
        if refused(c):
            out.fault = "range"
            return out
        name = "weights" if isinstance(codes, Packing) else "codes" if codes else LoadTo(c["target"]).name.lower()
        _note(p, c | {"words": 0} if codes else c, out.bins, name)
        if codes:
            out.fault = (_unpack if isinstance(codes, Packing) else _expand)(p, c, codes, errors, out)  # type: ignore[operator]
            if out.fault:
                return out
            out.signals.append(c["signal"])
            continue
        size = 2 * lanes << c["wide"]
        upto = int(alike(c, codes))
        for r, row in enumerate(rows_of(p, c)[: 1 if upto else None]):
            for j, a in enumerate(row):
                group, k = divmod(c["rows"] if upto else r, lanes)
                data = numbers(content(a, size), 2)
                words = []
                match c["target"]:
                    case LoadTo.W:
                        at = c["to"] + group * c["step"] + j
                        words = [("w", _weights(k, at, data, upto))]
                    case LoadTo.COLUMN:
                        at = c["to"] + group
                        words = [("w", _weights(0, at, data) | {"column": 1, "lane": k})]
                    case LoadTo.X:
                        at = c["to"] + r * c["step"] + j
                        words = [("x", {"addr": at, "data": data})]
                    case _:
                        at, words = 0, [("v", {"data": data, "wide": c["wide"]})]
                if at >= (p.dpe.x_depth if c["target"] == LoadTo.X else p.dpe.w_depth):
                    out.fault = "range"
                    return out
                if errors & {(a + k) % TOP for k in range(size)}:
                    out.fault = "bus"
                    return out
                out.words += words
        out.signals.append(c["signal"])
    return out


def _weights(tree: int, addr: int, data: list[int], upto: int = 0) -> dict:
    """A word on port `w`."""
    return {"tree": tree, "addr": addr, "column": 0, "lane": 0, "upto": upto, "data": data}


def _expand(p: CoreParams, c: dict, codes: CodeWords, errors: frozenset[int], out: Expected) -> str:
    """Add the words of a LOAD of codes, up to its fault, which is returned. Slices of whole words of W may fail one by
    one.
    """
    size, q = max(codes.places * codes.code_bytes, p.lxe.bus_bytes), 0
    slices = [r * c["stride"] + k for r in range(c["rows"] + 1) for k in range(0, 2 * p.dpe.n_w, size)]
    for a in ((c["addr"] + k) % TOP for k in slices):
        if errors & {(a + k) % TOP for k in range(size)}:
            return "bus"
        for part in parted(codes, content(a, size)):
            row, j = divmod(q, c["words"] + 1)
            group, tree = divmod(row, p.dpe.n_w)
            at = c["to"] + group * c["step"] + j
            if at >= p.dpe.w_depth:
                return "range"
            out.words.append(("w", _weights(tree, at, part)))
            out.bins |= {"tree_within_a_word"} if tree and not j and q % codes.many else set()
            q += 1
    return ""


def _unpack(p: CoreParams, c: dict, packing: Packing, errors: frozenset[int], out: Expected) -> str:
    """Add the words of a LOAD of packed weights, up to its fault, which is returned. Beats may fail one by one."""
    lanes, bus, bits, q = p.dpe.n_w, p.lxe.bus_bytes, packing.bits, 0
    many, raw, made = 8 * bus // (bits * lanes), b"", 0  # words of a beat; the word of scales; words of W of the pack
    out.bins |= {packing.rule.name.lower(), f"groups_of_{packing.group}"}
    for r in range(c["rows"] + 1):
        scales = r % packing.words == 0
        if scales:
            if r == c["rows"]:
                return "range"
            raw, made = b"", 0
            out.bins |= {"another_pack"} if r else set()
        for a in ((c["addr"] + r * 2 * lanes + k) % TOP for k in range(0, 2 * lanes, bus)):
            if a in errors:
                return "bus"
            beat = content(a, bus)
            if scales:
                raw += beat
                continue
            for part in range(many):
                row, j = divmod(q, c["words"] + 1)
                at = c["to"] + row // lanes * c["step"] + j
                if at >= p.dpe.w_depth:
                    return "range"
                number = int.from_bytes(beat, "little") >> bits * lanes * part
                own = [number >> bits * k & (1 << bits) - 1 for k in range(lanes)]
                data = [exact_weight(packing, raw, made * lanes + k, x) for k, x in enumerate(own)]
                out.words.append(("w", _weights(row % lanes, at, data)))
                q, made = q + 1, made + 1
    out.bins |= {"cut_short"} if made < packing.made else {"whole_pack"}
    return ""


def exact_weight(packing: Packing, scales: bytes, k: int, q: int) -> int:
    """Bits of weight k of a pack, of number q, by exact rationals: rounded to FP32, then to BF16."""

    def half(bits: int) -> Fraction:
        up = bits >> 10 & 31
        size = Fraction((bits & 1023) + (1024 if up else 0)) * Fraction(2) ** (max(up, 1) - 25)
        return -size if bits >> 15 else size

    given = numbers(scales, 2)[k // packing.group * packing.numbers :]
    d = half(given[0])
    match packing.rule:
        case Rule.SCALE:
            exact = d * (q - 8)
        case Rule.MINIMUM:
            exact = d * q + half(given[1])
        case Rule.ZERO:
            exact = d * (q - given[1] % 32)
        case _:
            exact = d * (q - 256 * (q > 127))
    for bits in (24, 8):
        if exact:
            step = Fraction(2) ** (exponent_of(abs(exact)) - bits + 1)
            exact = round(exact / step) * step  # ties to even
    return int(np.array(float(exact), np.float32).view(np.uint32)) >> 16


def exponent_of(x: Fraction) -> int:
    """The largest e with 2^e at most x."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def parted(codes: CodeWords, raw: bytes) -> list[list[int]]:
    """The words of W of a word of codes, bit by bit from its definition."""
    out, size = [], codes.code_bytes
    for first in range(0, len(raw), codes.places * size):
        word = []
        for at in range(first, first + codes.places * size, size):
            whole = int.from_bytes(raw[at : at + size], "little")
            gain = whole >> 3 * codes.numbers & 63
            n = codes.numbers
            fields = [[whole >> third * n + k & 1 for third in range(3)] for k in range(n)]
            exact = [(4 * high + 2 * low + 1) * 2 ** (gain / 8 - 4) * (-1) ** sign for sign, high, low in fields]
            bits = [int(x) for x in to_bf16(np.array(exact)).view(np.uint16)] + [0x3F80] * 2
            word += bits + [0] * (codes.lanes // codes.places - len(bits))
        out.append(word)
    return out


def same_word(p: CoreParams, name: str, beat: object, port: str, payload: dict) -> bool:
    """Whether a beat of the loader's stream `name` equals the word that `loads` gives as (port, payload)."""
    if port != "v":
        return (name, beat) == (port, payload)
    bits = 16 * p.dpe.n_w << payload["wide"]  # higher bits are undefined
    return name == port and beat[0] % (1 << bits) == sum(v << 16 * i for i, v in enumerate(payload["data"]))


def stores(p: CoreParams, commands: list[dict], words: list[dict], errors: frozenset[int] = frozenset()) -> Expected:
    """What STOREs must do with `words` ({data, keep, last} of `output_layout`). `errors`: failing bursts."""
    out, lanes, bus = Expected(), p.dpe.n_w, p.lxe.bus_bytes

    def raw(word: dict, c: dict) -> bytes:
        return word["data"].to_bytes(4 * lanes, "little")[: 2 * lanes << c["wide"]]

    for c in commands:
        if c["skip"]:
            out.signals.append(c["signal"])
            out.bins.add("skip")
            continue
        target = StoreTo(c["target"])
        if refuses(p, c):
            out.fault = "range"
            return out
        if p.lxe.to_register and sets_register(c):
            n = words[out.taken]["data"] & (1 << NUMBER_BITS) - 1
            out.sets.append((c["to"], (c["addr"] + (n << c["step"])) % (1 << ADDR_BITS)))
            out.taken += 1
            out.signals.append(c["signal"])
            out.bins.add("sets")
            continue
        _note(p, c, out.bins, target.name.lower())
        if target == StoreTo.HASH:
            which = {0: "first", p.dre.hcu.n_ctx - 1: "last"}.get(c["addr"], "another")
            out.bins.add(f"context_{which}")
        if target == StoreTo.MEMORY:
            new = bursts_of(p, c)
            count = words_of(p, c)
            given = words[out.taken : out.taken + count]
            if p.lxe.codes and packs_signs(c):
                out.bins.add("signs")
                bits = sum((w["data"] & (1 << lanes) - 1) << k * lanes for k, w in enumerate(given))
                data = bits.to_bytes(count * lanes // 8, "little")
                out.collected += count - len(data) // bus
            else:
                data = b"".join(raw(w, c) for w in given)
            beats = [int.from_bytes(data[i : i + bus], "little") for i in range(0, len(data), bus)]
            lasts = [int(k == length) for _, length in new for k in range(length + 1)]
            out.beats += zip(beats, [(1 << bus) - 1] * len(beats), lasts, strict=True)
            out.bursts += new
            out.taken += count
            if any(a in errors for a, _ in new):
                out.fault = "bus"
                return out
            out.signals.append(c["signal"])
            continue
        goes_on = target == StoreTo.SCORE and c["step"] % 2  # the rows are parts of rows for the WTU
        if goes_on:
            out.bins.add("part_of_a_row")
        for r in range(c["rows"] + 1):
            j, ends = 0, False
            while not ends:
                word, at = words[out.taken], c["to"] + r * c["step"] + j
                ends = bool(word["last"]) if target == StoreTo.SCORE else j == c["words"]
                if target == StoreTo.X:
                    if at >= p.dpe.x_depth:
                        out.fault = "range"
                        return out
                    out.words.append(("x", {"addr": at, "data": numbers(raw(word, c), 2)}))
                else:
                    closes = r == c["rows"] and (target == StoreTo.HASH or c["wide"])
                    fields = {"target": c["target"], "ctx": c["addr"] if target == StoreTo.HASH else 0}
                    if p.dre.hcu.newest:
                        fields["newest"] = c["wide"] * (target == StoreTo.HASH)
                        out.bins |= {"newest"} if fields["newest"] else set()
                    fields |= {"row_last": int(ends and not goes_on), "last": int(closes), "keep": word["keep"]}
                    out.words.append(("d", fields | {"data": word["data"] % (1 << 16 * lanes)}))
                out.taken += 1
                j += 1
        out.signals.append(c["signal"])
    return out


def known(beat: dict) -> dict:
    """A beat of the storer as `stores` has it: a word of SCORE has no context."""
    ignored = {"ctx": 0} | ({"newest": 0} if "newest" in beat else {})
    return beat | ignored if beat.get("target") == StoreTo.SCORE else beat


def refuses(p: CoreParams, c: dict) -> bool:
    """Whether the storer refuses a STORE as a whole."""
    if p.lxe.to_register and sets_register(c):
        return bool(c["rows"] or c["words"] or c["to"] >= REGISTERS or c["step"] >= 32)
    if c["target"] in (StoreTo.MEMORY, StoreTo.X):
        return off_the_grid(p, c, StoreTo.MEMORY)
    short = (c["words"] + 1) * p.dpe.n_w < p.dre.hcu.n_hp
    wide = c["wide"] == 1 and not p.dre.hcu.newest
    return c["target"] == StoreTo.HASH and (short or c["addr"] >= p.dre.hcu.n_ctx or wide)


def words_of(p: CoreParams, c: dict) -> int:
    """Words that a STORE takes."""
    return (c["rows"] + 1) * (c["words"] + 1) * (SIGNS if p.lxe.codes and packs_signs(c) else 1)


def vpe_words(p: CoreParams, rng: random.Random, commands: list[dict]) -> list[dict]:
    """Words for STOREs, {data, keep, last}. Rows of SCORE end with `last`; elsewhere `last` is random."""
    out = []
    for c in commands:
        if not c["skip"]:
            whole = c["target"] == StoreTo.MEMORY and not refuses(p, c)  # elsewhere more words than this are refused
            for k in range(words_of(p, c) if whole else min(words_of(p, c), 1 << 12)):
                ends = k % (c["words"] + 1) == c["words"] if c["target"] == StoreTo.SCORE else rng.random() < 0.3
                fields = {"keep": rng.randrange(p.dpe.n_w), "last": int(ends)}
                out.append({"data": rng.getrandbits(32 * p.dpe.n_w), **fields})
    return out


def _one(x: int) -> bool:
    """Whether one bit is set."""
    return x > 0 and x & x - 1 == 0


def _note(p: CoreParams, c: dict, bins: set[str], target: str) -> None:
    bins.add(f"wide_{target}" if c["wide"] else target)
    bins.add("one_row" if not c["rows"] else "rows")
    bins.add("one_word" if not c["words"] else "words")
    row = (c["words"] + 1) * 2 * p.dpe.n_w << c["wide"]
    if c["rows"]:
        bins.add("stride_0" if not c["stride"] else "contiguous" if c["stride"] == row else "apart")
        bins.add("overlapping" if 0 < c["stride"] < row else "clear")
        bins |= {"groups"} if c["rows"] >= p.dpe.n_w else set()
        bins |= {f"stride_{(c['stride'] ^ row).bit_length() - 1}"} if _one(c["stride"] ^ row) else set()
    bins |= {f"addr_{c['addr'].bit_length() - 1}"} if _one(c["addr"]) else set()
    for row_words in rows_of(p, c):
        a, b = row_words[0], row_words[0] + row - 1
        bins |= {"crosses_page"} if a // PAGE != b // PAGE else set()
        bins |= {"wraps"} if b >= TOP else set()
    longest = p.lxe.burst_bytes // p.lxe.bus_bytes - 1
    bins |= {"longest_burst" if n == longest else "short_burst" for _, n in bursts_of(p, c)}


def random_transfers(p: CoreParams, rng: random.Random, n: int, targets: list[int], memory: int) -> list[dict]:
    """Add `n` valid instructions. `memory` is the target without a scratchpad."""
    out, lanes, size = [], p.dpe.n_w, 2 * p.dpe.n_w
    loading = memory == LoadTo.VECTOR
    for k in range(n):
        target = rng.choice(targets)
        column = loading and target == LoadTo.COLUMN
        by_group = loading and target in (LoadTo.W, LoadTo.COLUMN)
        to_dre = not loading and target in (StoreTo.HASH, StoreTo.SCORE)
        depth = 12 if target == memory or to_dre else p.dpe.w_depth if by_group else p.dpe.x_depth
        may = target in (memory, StoreTo.SCORE) or (not loading and target == StoreTo.HASH and p.dre.hcu.newest)
        wide = int(may and rng.random() < 0.5)
        coded = loading and target == LoadTo.W and p.lxe.codes and rng.random() < 0.6
        packs = loading and target == LoadTo.W and p.lxe.weights and not coded and rng.random() < 0.7
        words = 1 if column else min(depth, rng.choice([1, 1, 2, rng.randint(1, 12)]))
        to, step = rng.randint(0, depth - words), rng.choice([0, 1, words, rng.randint(0, 9)])
        groups = (depth - words - to) // (1 if column else max(1, step)) + 1
        most = rng.choice([1, 2, 6]) if target == memory or to_dre else groups * (lanes if by_group else 1)
        rows = rng.choice([1, rng.randint(1, min(most, 3 * lanes, 40))])
        if coded:  # as many words as fit, in whole words of memory
            rows = rows * words // p.lxe_format().code_words.many
            coded, rows = rows > 0, max(1, rows)
        if packs:  # as many words as fit, in whole words of memory
            packing = rng.choice(PACKINGS)
            most = (groups * lanes if rng.random() < 0.7 else rows) * words
            rows = min(40, packing.read(most // packing.each * packing.each))
            packs, rows = rows > 1, max(1, rows - (rows % packing.words == 1))
        if to_dre:
            words += -(-p.dre.hcu.n_hp // lanes) - 1 if target == StoreTo.HASH else 0
        length = size if coded else words * size << wide
        wide |= int(coded or packs)
        stride = rng.choice([0, size, length, length, length + size, PAGE, 3 * PAGE - size, (1 << 32) - size])
        near = rng.choice([0, PAGE, 2 * PAGE, TOP, rng.randrange(1 << 30) * PAGE])
        addr = near + rng.randint(-6, 6) * size
        if packs:
            stride = packing.code
        if not loading and target == StoreTo.HASH:
            addr = rng.choice([0, p.dre.hcu.n_ctx - 1, rng.randrange(p.dre.hcu.n_ctx)])
        elif to_dre:
            addr = rng.getrandbits(ADDR_BITS)
        fields = {"stride": stride % (1 << 32), "to": to, "step": step, "wide": wide, "signal": 1 << k % 16}
        out.append(transfer(target, addr, rows, words, **fields))
        if p.lxe.to_register and not loading and target == StoreTo.X and rng.random() < 0.6:
            fields = {"stride": rng.getrandbits(32), "to": rng.randrange(REGISTERS), "step": rng.randrange(32)}
            out[-1] = transfer(target, rng.getrandbits(ADDR_BITS), **fields, wide=1, signal=1 << k % 16)
            out[-1]["skip"] = int(rng.random() < 0.2)
        # Fields that do not count hold anything.
        out[-1]["wait"] = k % 2 * 0xFFFF
        if target == memory or to_dre or column:
            out[-1]["step"] = rng.getrandbits(12)  # of a STORE to memory a bit counts where codes are
        if target == memory or to_dre:
            out[-1]["to"] = rng.getrandbits(16)
        if to_dre:
            out[-1]["stride"] = rng.getrandbits(32)
        if rng.random() < 0.08:
            widths = {"to": 16, "step": 12, "rows": 16, "words": 12, "wide": 1, "stride": 32, "addr": ADDR_BITS}
            out[-1] |= {"skip": 1} | {name: rng.getrandbits(bits) for name, bits in widths.items()}
    return out


def octaves(p: CoreParams, memory: int) -> list[dict]:
    """Two rows whose distance differs from their length in one bit of the stride, for each bit; each bit of an address.

    What looks at a part of a stride or an address takes one of them for another.
    """
    size = 2 * p.dpe.n_w
    grid = size.bit_length() - 1
    far = [
        transfer(memory, PAGE, 2, words, stride=words * size ^ 1 << k, signal=1 << k % 16)
        for words in (1, 3)
        for k in range(grid, 32)
    ]
    return far + [transfer(memory, 1 << k, signal=1 << k % 16) for k in range(grid, ADDR_BITS)]


def octave_bins(p: CoreParams) -> set[str]:
    """What `octaves` reaches: the lowest bit in which a stride differs from a row, and each bit of an address."""
    grid = (2 * p.dpe.n_w).bit_length() - 1
    return {f"stride_{k}" for k in range(grid, 32)} | {f"addr_{k}" for k in range(grid, ADDR_BITS)}


def long(memory: int, size: int, rows: tuple[int, ...]) -> list[dict]:
    """Rows of many words, with and without a gap between them, and many rows of one word."""
    return [
        *(transfer(memory, 0, 1, n, signal=1) for n in (2732, 1367)),
        *(transfer(memory, 0, 2, n, stride=n * size, signal=4) for n in (107, 342, 683)),
        transfer(memory, 0, 2, 107, stride=108 * size, signal=8),
        *(transfer(memory, PAGE, n, stride=size, signal=2) for n in rows),
    ]


def beyond(p: CoreParams, x: int) -> list[dict]:
    """Instructions that leave a scratchpad, each by one bit of another field."""
    first = p.dpe.x_depth.bit_length() - 1
    return [
        *(transfer(x, 0, to=1 << k, signal=4) for k in range(first, 16)),
        *(transfer(x, 0, 2, step=1 << k, signal=4) for k in range(first, 12)),
        *(transfer(x, 0, 1 + (1 << k), 2, step=p.dpe.x_depth, signal=4) for k in range(16)),
        *(transfer(x, 0, 1, 1 + (1 << k), signal=4) for k in range(first, 12)),
    ]


def episode(want: Expected, commands: list[dict], stalls=None, latency=(1, 9), errors=(), cut_at=0, **inputs) -> dict:
    """An episode for the benches of loader and storer, with its expectations under "want"."""
    return {
        "c": commands,
        **inputs,
        "stalls": stalls or {},
        "latency": list(latency),
        "errors": list(errors),
        "dones": len(want.signals),
        "fault": bool(want.fault),
        "cut_at": cut_at,
        "limit": 20_000 + 4 * max(len(want.words), len(want.beats)) + 4 * len(want.bursts),
        "hold": 20,
        "want": want,
    }


def play(unit: Emitted, bench: str, size: str, episodes: list[dict], compare: Callable, **how) -> list[dict]:
    """Results of a bench's episodes. `compare(size, episode, result)` checks each that is not cut short."""
    plain = [{k: v for k, v in e.items() if k != "want"} for e in episodes]
    got = Run(unit, bench, "transfers", {"params": SIZES[size], "episodes": plain}, **how)()["episodes"]
    for e, g in zip([e for e in episodes if not e["cut_at"]], got, strict=True):
        compare(size, e, g)
    return got


class Transfers(wiring.Component):
    """Loader and storer behind one set of AXI ports, as in an LXE. Their streams are named l_* and s_*.

    Parameters
    ----------
    p : CoreParams
    """

    def __init__(self, p: CoreParams):
        self.p, self.loader, self.storer = p, Loader(p), Storer(p)
        own = {f"l_{n}": m for n, m in self.loader.signature.members.items() if n in ("c", "w", "x", "v", "done")}
        own |= {f"s_{n}": m for n, m in self.storer.signature.members.items() if n in ("c", "i", "x", "d", "done")}
        super().__init__({**own, **port_members(p)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.loader, m.submodules.storer = self.loader, self.storer
        for name in self.signature.members:
            unit = {"l": self.loader, "s": self.storer}.get(name.partition("_")[0])
            port = getattr(unit, name.partition("_")[2], None) if unit else None
            if name.endswith("done"):
                m.d.comb += getattr(self, name).eq(port)
            elif port is not None:
                connect(m, port, flipped(getattr(self, name)))
        connect_ports(m, self.p, self, self.loader, self.storer)
        return m


def ported(p: CoreParams) -> Emitted:
    """`Transfers` as a unit for the bench."""
    component = Transfers(p)
    return Emitted(to_verilog(component, "transfers"), "transfers", {"ports": ports(component)})


class Control:
    """Drives `stop` of a unit and records its `done` and `fault`; it steps like a stream of the bench."""

    def __init__(self, bench):
        self.dut = bench.dut
        self.reset()
        self.dut.stop.value = 0
        bench.streams.append(self)

    def reset(self) -> None:
        """Lower `stop` and forget everything with a reset."""
        self.stop = 0
        self.done: list[tuple[int, int]] = []  # (cycle, signal)
        self.faults: list[tuple[int, str]] = []

    def drive(self, rng) -> None:
        """Set `stop`, just after the rising edge."""
        self.dut.stop.value = self.stop

    def sample(self, cycle: int) -> None:
        """Record `done` and `fault`, at the falling edge."""
        done, fault = bits_of(self.dut.done), bits_of(self.dut.fault)
        if done & 1:
            self.done.append((cycle, done >> 1))
        if fault:
            self.faults.append((cycle, {1: "bus", 2: "range"}[fault]))
