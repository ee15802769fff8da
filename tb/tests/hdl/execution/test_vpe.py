"""VPE: stored words equal to golden, cycles equal to the time view; programs at random and on real rows, mutants."""

from dataclasses import asdict, replace
from functools import cache

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import matmul
from openvrex.golden.arithmetic.vector import Bank, Format, Instruction, Op, Reduce, Source, Step
from openvrex.golden.function_params import ParamError, ReSVParams
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.program import vector_programs as programs
from openvrex.hdl.emit import Emitted, to_verilog
from openvrex.hdl.execution.vpe import Vpe
from openvrex.hdl.leaf import Leaves
from openvrex.hdl.params import VpeParams, preset
from openvrex.sim.units.vpe_time import VpeTime
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import vpe_checks
from openvrex.tb.checks.vpe_checks import (
    FULL_RATE,
    SIZES,
    STALLS,
    TINY,
    emitted,
    random_results,
    random_rows,
)
from openvrex.tb.formal.netlist_equivalence import prove_equal
from openvrex.tb.library.runner import ROOT
from openvrex.tb.library.simulated import simulated
from openvrex.tb.library.vpe_traffic import Episode, fit, run, shares
from tb.tests.by_day import at_sizes

test_random_programs_equal_golden = at_sizes(vpe_checks.check_random_programs_equal_golden, SIZES)
test_cycles_equal_time_view = at_sizes(vpe_checks.check_cycles_equal_time_view, SIZES)


def bins(episode: Episode, got: dict) -> set[str]:
    """What a random program exercised."""
    hit = set()
    before = None
    for i in episode.instructions[1:]:
        hit |= {f"op {Op(i.op).name}"}
        if i.op == Op.STORE:
            hit |= {f"format {i.format}"} | ({"store part"} if i.keep < episode.p.n_w - 1 else set())
            continue
        length = "many" if i.words else "one"
        hit |= {f"{n} {Source(getattr(i, n)).name}" for n in ("abc" if i.op == Op.FMA else "ac")}
        hit |= {f"post {i.post}", f"reduce {Reduce(i.reduce).name} {length}", f"write {i.write}"}
        hit |= {f"swap {min(i.swap, 3)}"} if i.op == Op.FMA and i.b != Source.SCALAR else set()
        function = episode.p.format.is_function
        hit |= {"code"} if i.code and function(i.post) else set()
        hit |= {"reduce part"} if i.reduce and i.keep < episode.p.n_w - 1 else set()
        hit |= {"span"} if i.a == Source.BANK and i.words >> i.span_a else set()
        if before is not None and function(before.post) and not function(i.post):
            hit.add("after a function")
        before = i
    for word in episode.want:
        for row in word:
            if row.format == Format.WIDE:
                top = row.data >> 23 & 255
                hit |= {"stored NaN"} if (row.data == 0x7FC00000).any() else set()
                hit |= {"stored infinity"} if ((top == 255) & (row.data & 0x7FFFFF == 0)).any() else set()
                hit |= {"stored zero"} if (row.data & 0x7FFFFFFF == 0).any() else set()
    if episode.stalls == FULL_RATE:
        hit |= {f"wait {reason}" for reason in episode.check_cycles(got)}
    else:
        hit |= {"starved"} if got["perf"]["starved"] else set()
    return hit


BINS = {
    *(f"op {o.name}" for o in Op),
    *(f"format {k}" for k in range(4)),
    *(f"{n} {s.name}" for n in "abc" for s in Source),
    *(f"post {k}" for k in range(8)),
    *(f"reduce {r.name} {length}" for r in Reduce for length in ("one", "many")),
    *(f"write {k}" for k in range(8)),
    *(f"swap {k}" for k in range(4)),
    *(f"wait {reason}" for reason in ("order", "bank", "scalar", "store")),
    *("code", "store part", "reduce part", "span", "after a function", "starved"),
    *("stored NaN", "stored infinity", "stored zero"),
}


def test_functional_coverage(record_property):
    """Random programs reach every stated bin; without this a comparison could pass on dull data."""
    hit = frozenset().union(*(bins(e, got) for size in ("tiny", "rows") for e, got in random_results(size)))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit == BINS, (BINS - hit, hit - BINS)


def test_functional_coverage_of_hybrid():
    """The same with EXPM1 and SOFTPLUS: plain, as score codes, in every reduction, before and after others."""
    results = random_results("hybrid")
    assert frozenset().union(*(bins(e, got) for e, got in results)) == BINS
    new = [i for e, _ in results for i in e.instructions if i.op != Op.STORE and i.post in (2, 3)]
    seen = {(i.post, bool(i.code), Reduce(i.reduce)) for i in new}
    assert seen == {(post, code, reduce) for post in (2, 3) for code in (False, True) for reduce in Reduce}


def test_the_functions_of_hybrid_are_roundings_without_it():
    """Bits and cycles of values 2 and 3 of `post` are those of ROUND."""
    results = {}
    for p in (TINY, replace(TINY, features="hybrid")):
        for post in (1, 2, 3):
            rows = random_rows(TINY, 9, 40)
            steps = [Step(replace(s.instruction, post=min(s.instruction.post, 1) * post), s.words) for s in rows[0]]
            episode = Episode(p, [steps], FULL_RATE)
            results[p.features, post] = (
                [o.data.tobytes() for (o,) in episode.want],
                VpeTime(p).run(episode.instructions),
            )
    assert results["", 1] == results["", 2] == results["", 3] == results["hybrid", 1]
    assert len({repr(results["hybrid", post]) for post in (1, 2, 3)}) == 3


test_rounding_up_to_a_power_of_two = vpe_checks.check_rounding_up_to_a_power_of_two
test_every_result_is_stored = at_sizes(vpe_checks.check_every_result_is_stored, ["tiny", "hybrid"])
test_functions_over_every_operand = vpe_checks.check_functions_over_every_operand


@cache
def trace() -> Trace:
    return Trace.load(ROOT / "tb" / "fixtures" / "world.safetensors")


def score_row(length: int, head: int = 0) -> np.ndarray:
    """Scores of the last recorded query against the first keys, FP32: what the DPE gives."""
    t = trace()
    q = t.queries(1, *t.spans(queries=True)[-1])[:, head]
    return matmul(q, t.k[1, :length, head // 3])[0]


def real_programs(p: VpeParams, length: int) -> dict[str, list[Step]]:
    """Every sequence on rows of a real decoder, of `length` numbers where they can be."""
    fmt, t = p.format, trace()
    s = score_row(length)
    keys = t.k[0, :, 0]
    angle = 7 * 1e5 ** -(np.arange(p.n_w) / p.n_w)  # a head of two words
    head = [np.resize(key, 2 * p.n_w) for key in keys[:2]]
    half = p.depth // 2
    members = [programs.cluster_add(key[: p.n_w], i == 0, fmt) for i, key in enumerate(keys[:5])]
    return {
        "softmax": programs.softmax(s, 0.125, fmt),
        "score codes": programs.score_codes(s, 0.125, fmt),
        "hash bits": programs.hash_bits(s, fmt),
        "centred hash bits": programs.hash_bits(s, fmt, thresholds=s[::-1].copy()),
        "norm": programs.rms_norm(np.resize(keys[0], length), np.resize(keys[1], length), 1e-5, fmt, 0, half),
        "rotary halves": programs.rotary_tables(np.cos(angle), np.sin(angle), "halves", fmt)
        + programs.rotary(np.stack(head), 4 * p.n_w // 2, "halves", fmt, to=8),
        "rotary neighbours": programs.rotary_tables(np.cos(angle), np.sin(angle), "neighbours", fmt)
        + programs.rotary(np.stack(head), 4 * p.n_w // 2, "neighbours", fmt, to=8),
        "gate": programs.silu_gate(s, s[::-1].copy(), fmt),
        "residual": programs.residual(s, s[::-1].copy(), fmt),
        "cluster mean": [step for key in members for step in key] + programs.cluster_mean(p.n_w, 5, fmt, 0, 2),
        "many rows": programs.interleave(
            [programs.softmax(score_row(20, h), 0.125, fmt, h % 3 * 5, h % 3 * 4) for h in range(5)], fmt
        ),
    }


@pytest.mark.parametrize("stalls", [STALLS, FULL_RATE])
def test_sequences_on_real_rows(stalls):
    episodes = [Episode(TINY, [program], stalls) for program in real_programs(TINY, 30).values()]
    for episode, got in zip(episodes, run(emitted(TINY), TINY, episodes), strict=True):
        episode.check(got)
        if stalls == FULL_RATE:
            episode.check_cycles(got)


@pytest.mark.nightly
def test_sequences_at_full_size():
    """64 lanes; rows of the decoder's whole context, and one of each stall."""
    p = preset("core").core.vpe
    real = real_programs(p, 296)
    episodes = [Episode(p, [program], FULL_RATE) for program in real.values()]
    episodes += [Episode(p, [real["many rows"]], STALLS), Episode(p, random_rows(p, 5, 40), STALLS)]
    for episode, got in zip(episodes, run(emitted(p), p, episodes), strict=True):
        episode.check(got)
        if episode.stalls == FULL_RATE:
            episode.check_cycles(got)


@pytest.mark.nightly
def test_share_of_resv_at_full_size():
    """Hash bits and cluster means equal those of the policy; every stored word equals golden, score codes too."""
    p, f, t = preset("core").core.vpe, ReSVParams(), trace()
    asked = t.spans(queries=True)[-1:]
    parts = list(shares(t, 1, asked, f, p.format))
    assert {part.name for part in parts} == {"hash bits", "score codes", "cluster means"}
    episodes = [Episode(p, [part.program], FULL_RATE) for part in parts]
    for part, episode, got in zip(parts, episodes, run(emitted(p), p, episodes), strict=True):
        episode.check(got)
        episode.check_cycles(got)
        rows = programs.rows(word for (word,) in episode.want)
        if part.want is not None:
            np.testing.assert_array_equal(rows, part.want)


@pytest.mark.parametrize("bank", [Bank.B, Bank.C])
def test_stores_leave_while_a_later_instruction_waits_for_the_stream(bank):
    p = VpeParams(n_w=1, depth=4)
    unit = Vpe(p)
    two = {"words": 1, "a": Source.STREAM, "wide": 1}
    form = Format.HALF if bank == Bank.B else Format.WIDE
    reads = {"b": Source.BANK} if bank == Bank.B else {"c": Source.BANK}
    program = [
        Instruction(**two, write=bank),
        Instruction(op=Op.STORE, words=1, format=form),
        Instruction(**two, **reads, write=Bank.A),
    ]
    stored = []

    async def feed(ctx):
        for i in program:
            await send(ctx, unit.c, {k: fit(p, k, v) for k, v in asdict(i).items()})

    async def words(ctx):
        for value in (3.0, 4.0):  # none for the last instruction
            await send(ctx, unit.i, [int(np.float32(value).view(np.uint32))])

    async def send(ctx, port, payload):
        ctx.set(port.payload, payload)
        ctx.set(port.valid, 1)
        await ctx.tick().until(port.ready)
        ctx.set(port.valid, 0)

    async def take(ctx):
        await ctx.tick().repeat(40)  # by then the last instruction waits
        ctx.set(unit.o.ready, 1)
        for _ in range(20):
            *_, valid, data = await ctx.tick().sample(unit.o.valid, unit.o.payload.data)
            stored.extend([data[0]] if valid else [])

    simulated(unit, take, feed, words)
    bits = [int(np.float32(x).view(np.uint32)) for x in (3.0, 4.0)]
    assert stored == ([b >> 16 for b in bits] if bank == Bank.B else bits)


MUTANTS = {
    "$and 1.6a655917: Y[0] const0": "results come out of order",
    "$reduce_or 2.d813d939: Y[0] const0": "a word of bank A is read before it is written",
    "$reduce_or 2.addf19a8: Y[0] const0": "a word of bank B",
    "$reduce_or 2.88786d25: Y[0] const0": "a word of bank C",
    "$reduce_or 1.2b9a67d4: Y[0] const0": "a word is stored before it is written",
    "$mux 1.57740df7: S[0] const0": "scalars are taken before they come",
    "$and 1.9d174000: Y[0] const0": "words are overwritten before they are stored",
    "$or 1.5b0b89aa: Y[0] const1": "a stored word takes the place of one that waits",
    "$mux 1.050cd1b5: Y[1] const0": "a STORE reads bank B while it is being read",
    "$or 1.248aac0c: Y[0] const0": "it picks the first of two",
    "$or 1.f60ce664: Y[0] const0": "a NaN in a sum is lost",
    "$reduce_or 1.c238774a: Y[0] const0": "the highest exponent of a sum is even",
}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(every):
    p = replace(TINY, n_w=2, depth=8)
    episodes = [Episode(p, random_rows(p, 3, 300), STALLS), Episode(p, random_rows(p, 4, 300), FULL_RATE)]

    def passes(unit: Emitted) -> None:
        for episode, got in zip(episodes, run(unit, p, episodes, waves=False), strict=True):
            episode.check(got)

    assert not survivors(emitted(p), MUTANTS, passes, every=every)


def test_units_are_the_same_leaf_once_and_alone():
    """Yosys proves the netlist with one shared lane equal to the one in which every lane is its own."""
    p = VpeParams(n_w=2, depth=1)
    shared, native = to_verilog(Vpe(p), "vpe", Leaves("vpe")), to_verilog(Vpe(p), "vpe")
    assert shared.count("module vpe_lane(") == 1
    assert native.count("module vpe__unit0__lane") > 1
    prove_equal(shared, native, "vpe")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_h": 0}, "n_h=0: must be 1 to 1024"),
        ({"n_w": 0}, "n_w=0: must be a power of two"),
        ({"n_w": 24}, "n_w=24: must be a power of two"),
        ({"depth": 48}, "depth=48: must be a power of two"),
        ({"depth": 8192}, "depth=8192: must be a power of two, 1 to 4096"),
        ({"n_w": 4096, "depth": 2048}, r"n_w \* depth=8388608: must be at most 2\^22"),
        ({"depth": 1.5}, "depth=1.5: must be an integer"),
        ({"features": "retriever"}, "features='retriever': must be none, or names of hybrid"),
        ({"features": "hybrid+hybrid"}, "joined by [+] in this order"),
    ],
)
def test_parameters_that_cannot_work_are_refused(change, message):
    with pytest.raises(ParamError, match=message):
        replace(TINY, **change)
