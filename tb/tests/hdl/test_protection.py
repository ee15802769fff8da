"""Protected memories: codes equal to golden, no cycle more; single errors corrected, double ones told, none silent."""

import itertools
import random
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import cache

import numpy as np
import pytest
from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.secded import PROTECTIONS, Verdict, check_bits, columns, decode, encode
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.isa import Retrieve, Status
from openvrex.golden.program.isa import encode as encoded
from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.check_bits import checks_of, decoded
from openvrex.hdl.emit import Emitted, params_of
from openvrex.hdl.params import PRESETS, HcuParams, SystemParams, depths, override, preset, reset_cycles
from openvrex.tb.checks import core_checks as core
from openvrex.tb.checks.dpe_checks import traffic
from openvrex.tb.checks.dre_ip_checks import CHANGES, Software, frames
from openvrex.tb.checks.vpe_checks import random_rows
from openvrex.tb.library.lxe_programs import image
from openvrex.tb.library.runner import BenchError, Run, emit
from openvrex.tb.library.simulated import simulated
from openvrex.tb.library.transfer_traffic import params
from openvrex.tb.library.upsets import Log, double, logs, read_log, singles, with_upsets, wrong_items
from openvrex.tb.library.vpe_traffic import Episode
from tb.tests.hdl.protected_designs import dre

WIDTHS = (1, 3, 8, 11, 26, 32)


@pytest.mark.parametrize("width", WIDTHS)
def test_secded_corrects_every_single_and_detects_every_double_error(width):
    """Of golden, whatever its matrix."""
    bits, rng = width + check_bits(width, "secded"), random.Random(width)
    for data in {0, (1 << width) - 1, *(rng.getrandbits(width) for _ in range(20))}:
        word = encode(data, width, "secded")
        assert decode(word, width, "secded") == (data, Verdict.GOOD)
        assert all(decode(word ^ 1 << i, width, "secded") == (data, Verdict.CORRECTED) for i in range(bits))
        pairs = itertools.combinations(range(bits), 2)
        assert all(decode(word ^ 1 << i ^ 1 << j, width, "secded")[1] == Verdict.DETECTED for i, j in pairs)
        word = encode(data, width, "parity")
        assert all(decode(word ^ 1 << i, width, "parity")[1] == Verdict.DETECTED for i in range(width + 1))


def test_check_bits_are_the_fewest_and_zero_needs_none():
    assert [check_bits(n, "secded") for n in (4, 8, 16, 26, 57, 64, 120)] == [4, 5, 6, 6, 7, 8, 8]
    assert all(
        len(set(columns(n))) == n and all(c.bit_count() % 2 and c.bit_count() > 2 for c in columns(n)) for n in WIDTHS
    )
    assert encode(0, 9, "secded") == encode(0, 9, "parity") == 0  # what memories are cleared to


class Codec(wiring.Component):
    """Data to its code word, errors turned over, and back."""

    def __init__(self, width: int, protection: str):
        self.width, self.protection = width, protection
        bits = width + check_bits(width, protection)
        super().__init__({"data": In(width), "error": In(bits), "word": Out(bits), "good": Out(width), "flags": Out(2)})

    def elaborate(self, platform):
        m = Module()
        wrong = Signal(len(self.word))
        m.d.comb += [
            self.word.eq(Cat(self.data, checks_of(m, self.data, self.protection, "checks"))),
            wrong.eq(self.word ^ self.error),
        ]
        good, corrected, detected = decoded(m, wrong, self.width, self.protection, "word")
        m.d.comb += [self.good.eq(good), self.flags.eq(Cat(corrected, detected))]
        return m


@pytest.mark.parametrize("protection", ["parity", "secded"])
@pytest.mark.parametrize("width", WIDTHS)
def test_codes_equal_golden(width, protection):
    """Every single and double error, and more than that at random."""
    unit, rng = Codec(width, protection), random.Random(width)
    bits = len(unit.word)
    flips = [0, *(1 << i for i in range(bits)), *(1 << i | 1 << j for i, j in itertools.combinations(range(bits), 2))]
    flips += [rng.getrandbits(bits) for _ in range(50)]

    async def bench(ctx):
        for flip in flips:
            data = rng.getrandbits(width)
            ctx.set(unit.data, data)
            ctx.set(unit.error, flip)
            want = encode(data, width, protection)
            assert ctx.get(unit.word) == want
            value, verdict = decode(want ^ flip, width, protection)
            assert ctx.get(unit.good) == value
            assert ctx.get(unit.flags) == {Verdict.GOOD: 0, Verdict.CORRECTED: 1, Verdict.DETECTED: 2}[verdict]

    simulated(unit, bench)


def dpe(unit: Emitted, p) -> bool:
    t = traffic(p.dpe, 3, 12)
    return t.wants == t.run(unit, 3, waves=False)["beats"]


def vpe(unit: Emitted, p) -> bool:
    episode = Episode(p.vpe, random_rows(p.vpe, 4, 40), [(0.0, 0.0, 0.0)])
    got = Run(
        unit,
        "bench_vpe",
        "programs",
        {"params": asdict(p.vpe), "episodes": [episode.beats()]},
        waves=False,
    )()
    episode.check(got["episodes"][0])
    return True


PLAYS: dict[str, Callable[..., bool]] = {"dre": dre, "dpe": dpe, "vpe": vpe}


@cache
def upsettable(unit: str, protection: str):
    p = override(preset("tiny"), [f"protect={protection}"]).core
    return *with_upsets(emit(unit, getattr(p, unit))), p


def played(unit: str, e: Emitted, p) -> tuple[bool, Log]:
    """Whether all that came out is golden's, and the log of the run."""
    for path in logs(e):
        path.unlink()
    try:
        same = PLAYS[unit](e, p)
    except (BenchError, AssertionError):
        same = False
    (path,) = logs(e)
    return same, read_log(path)


@pytest.mark.parametrize("unit", [*(u for u in PLAYS if u != "vpe"), pytest.param("vpe", marks=pytest.mark.nightly)])
def test_single_errors_are_corrected(unit, record_property):
    e, _, p = upsettable(unit, "secded")
    same, log = played(unit, singles(e), p)
    record_property("upsets", sum(log.upset.values()))
    assert same
    assert sum(log.upset.values()) > 100
    assert log.corrected
    assert not log.detected


@pytest.mark.parametrize("unit", ["dpe", *(pytest.param(u, marks=pytest.mark.nightly) for u in ("dre", "vpe"))])
def test_double_errors_are_told(unit, record_property):
    """In every memory: the unit tells within four cycles of the read, through four registers at most."""
    e, names, p = upsettable(unit, "secded")
    upsets = 0
    for memory, name in enumerate(names):
        _, log = played(unit, double(e, memory, memory % 4), p)
        if log.upset:  # it is read so often
            upsets += sum(log.upset.values())
            assert all(any(0 < at - cycle <= 4 for at in log.detected) for cycle in log.upset), (name, log)
    record_property("upsets", upsets)
    assert upsets >= len(names) - 2


def test_single_errors_in_memory_are_corrected(record_property):
    """Of the tables of a DRE whose own memories have no check bits: a share of the beats read has a wrong bit."""
    p = override(preset("tiny"), ["table.protect=secded"]).core
    e, _ = with_upsets(emit("dre", p.dre))
    for path in logs(e):
        path.unlink()
    assert dre(e, p, flips=0.3)
    (path,) = logs(e)
    log = read_log(path)
    record_property("corrected", len(log.corrected))
    assert len(log.corrected) > 100
    assert not log.detected
    assert not log.upset


@cache
def software() -> tuple[Emitted, list[str]]:
    return with_upsets(emit("dre_ip", params([*CHANGES, "protect=secded"])))


def test_software_is_told():
    """Frames through the DRE IP: single errors are counted, a double one ends in MEMORY, and a reset mends it."""
    e, names = software()
    s = frames(1, 6, "secded")
    got = s.play(singles(e), waves=False)
    s.check(got)
    assert got["perf"]["protection.corrected"] > 0
    assert got["perf"]["protection.detected"] == 0
    table = next(i for i, name in enumerate(names) if name.endswith("hcu__tiles"))
    broken = Software(2, "secded")
    broken.frame(0, 11, 0)
    check_broken(broken, double(e, table, 5))


def wrong_tables(bits: int, kinds: Collection[Item]) -> tuple[Software, int]:
    """Frames, wrong bits in the tables, a reset (after which the pool is read again), and a frame that reads every kind
    of item. Also the number of the command that the reset cuts short.
    """
    s = Software(7, "secded")
    for _ in range(5):
        s.frame(0, 11, 1)
    s.upset(bits, kinds)
    s.steps.append({"command": {"action": int(Retrieve.SWITCH), "base": 2}, "reset": 50})  # to an empty context
    cut = len(s.wants)
    s.frame(0, 11, 1)
    return s, cut


def test_single_errors_in_the_tables_of_software_are_counted(record_property):
    s, cut = wrong_tables(1, Item)
    s.clear(0)
    s.frame(0, 11, 1)
    got = s.play(software()[0], waves=False)
    del got["commands"][cut]
    s.check(got)
    record_property("corrected", got["perf"]["protection.corrected"])
    assert got["perf"]["protection.corrected"] > 50  # since the reset
    assert got["perf"]["protection.detected"] == 0


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in (Item.LEVEL, Item.ROW) else pytest.mark.nightly) for k in Item]
)
def test_software_is_told_of_a_wrong_item_in_memory(kind):
    """Of two wrong bits in each item of a kind: the command that reads the first one ends in MEMORY."""
    check_broken(wrong_tables(2, [kind])[0], software()[0])


def check_broken(broken: Software, unit: Emitted) -> None:
    """A command of `broken` ends in MEMORY, so do all after it, and a reset mends the unit."""
    whole = frames(4, 2, "secded")
    for step in broken.steps:
        step["polls"] = step["broken"] = 1  # no interrupt after the first fault
    broken.steps.append({"command": {"action": int(Retrieve.SWITCH)}, "reset": 50})
    ends = sum("command" in step for step in broken.steps)
    broken.steps.append({"writes": [[0, whole.before.hex()]]})
    broken.steps += whole.steps
    got = broken.play(unit, waves=False)
    codes = [code for code, *_ in got["commands"]]
    first = codes.index(Status.MEMORY)
    assert set(codes[first:ends]) == {Status.MEMORY}
    assert codes[ends:] == [Status.DONE] * len(whole.wants)
    assert got["memory"] == bytes(whole.memory)


@cache
def core_unit() -> tuple[Emitted, list[str]]:
    return with_upsets(emit("core", core.params("secded")))


@pytest.mark.nightly
def test_programs_of_a_core_are_told(record_property):
    """Layers with retrieval: single errors leave every byte as golden's, a double one in any memory ends in MEMORY."""
    e, names = core_unit()
    h, script, _ = core.passes(1, 3, protect="secded")
    ran, after = script.play(singles(e), core.ports(h), waves=False)
    assert not script.differences(ran, after)
    told, upsets = 0, 0
    for memory, name in enumerate(names):
        for path in logs(e):
            path.unlink()
        ran, _ = script.play(double(e, memory, memory % 4), core.ports(h), waves=False)
        (path,) = logs(e)
        if upset := read_log(path).upset:  # it is read so often
            upsets += sum(upset.values())
            told += 1
            assert ran[-1].status == Status.MEMORY, name
    record_property("upsets", upsets)
    assert told >= len(names) - 1


@pytest.mark.nightly
def test_a_core_is_told_of_a_wrong_item_in_memory(tmp_path, record_property):
    """A layer with wrong bits in the tables: one an item leaves its results as golden's, two end in MEMORY."""
    rng, file = np.random.default_rng(3), tmp_path / "memory.bin"
    h = core.host(rng, core.RING, protect="secded")
    for k in range(3):  # entries at home
        core.begin(h, rng, k * core.RING.tokens)
        if k < 2:
            h.run(0)
    before, layout = image(h.memory), core.params("secded").dre.layout()
    words = [f"{encoded(i):x}" for i in h.program(0)]
    case = {"program": words, "registers": h.registers(0), "ports": core.ports(h), "errors": [], "cut_at": 0}

    def played(bits: int, kinds: Collection[Item]) -> list:
        data = before.copy()
        for at, mask in wrong_items(layout, h.core.dre, random.Random(1), bits, kinds).items():
            data[h.table_base + at :][: len(mask)] ^= np.frombuffer(mask, np.uint8)
        data.tofile(file)
        config = {"cases": [case], "memory": str(file), "limit": 20_000}
        return Run(core_unit()[0], "bench_core", "interrupted", config, waves=False)()["cases"][0]

    told = set()
    for kind in Item:
        first, *_ = played(2, [kind])
        assert first["status"] in (Status.MEMORY, Status.DONE)
        assert not first["moves"]
        told |= {kind} if first["status"] == Status.MEMORY else set()
    record_property("told", ", ".join(sorted(kind.name for kind in told)))
    assert told >= set(Item) - {Item.NEXT}, "every kind that a pass reads"
    first, second, *_, after = played(1, Item)
    h.run(0)
    assert (first["status"], second["status"]) == (Status.DONE, Status.DONE)
    for region in h.memory.regions:
        if region.name in ("rings", "home", "work"):
            assert bytes.fromhex(after)[region.base : region.end] == region.data.tobytes(), region.name


def test_the_bench_sees_errors_in_memories_without_check_bits():
    p = preset("tiny").core
    e, _ = with_upsets(emit("dpe", p.dpe))
    assert not dpe(singles(e), p)


def test_resets_last_until_memories_are_zero():
    assert reset_cycles(preset("core").core) == 0
    assert reset_cycles(override(preset("core"), ["table.protect=secded"]).core) == 0  # no memory of the core
    assert reset_cycles(override(preset("core"), ["hcu.protect=parity"]).core) == 128  # two tiles of the HCU
    assert reset_cycles(override(preset("core"), ["protect=secded"]).core) == 1024  # the cluster set


@pytest.mark.parametrize(
    "changes",
    [pytest.param([], marks=pytest.mark.nightly), ["hcu.n_h=4", "tile=64", "frame=16", "rows=64", "counts=8"]],
)
def test_every_protected_memory_counts_for_the_reset(changes):
    """The words that parameters state are those of the memories in the Verilog, of each unit and of a core."""
    p = override(preset("tiny"), ["burst_bytes=256", "protect=secded", *changes]).core
    for units in (("hcu",), ("wtu", "cluster_set"), ("kvmu",), ("dpe",), ("vpe",), ("core",)):  # of the same parameters
        own = [emit(unit, params_of(unit, SystemParams(p))).manifest for unit in units]
        memories = [m for manifest in own for m in manifest["memories"]]
        words = {m["words"] for m in memories if m["protect"] != "none"}
        assert {max(2, depth) for depth in depths(params_of(units[0], SystemParams(p)))} == words
        assert all(m["protect"] == "secded" for m in memories if m["ports"] != "fifo")
        assert all(manifest["reset_cycles"] == max(words) for manifest in own)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("protect", PROTECTIONS)
def test_every_preset_holds_with_check_bits(name, protect):
    p = override(preset(name), [f"protect={protect}"])
    assert p.core.joined().dre.layout().protect == protect


def test_protections_that_there_are_not():
    with pytest.raises(ParamError, match="protect='ecc': must be one of none, parity, secded"):
        HcuParams(protect="ecc")
