"""The proofs of `tb.formal.proofs`: the quick ones, that each can fail, and what a counterexample leaves."""

import json
import re
from dataclasses import replace

import pytest
from amaranth import Cat, Module, Signal
from amaranth.hdl import Assert
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from openvrex.hdl.emit import ALL, params_of
from openvrex.hdl.params import preset
from openvrex.tb.formal import counterexample
from openvrex.tb.formal.idle_proof import shown
from openvrex.tb.formal.proofs import PROVED, Goal, Independence, goals, unit_of
from openvrex.tb.formal.prover import holds, rtlil_of
from openvrex.tb.formal.stream_proof import StreamMonitor, waiting
from openvrex.tb.formal.verilog_equivalence import UnequalError, prove
from tb.tests.by_day import by_day
from tb.tests.commands import tried, vrex

QUICK = ("hcu", "cluster_set", "motion_mask", "feeder")  # units whose streams take seconds; `vrex dev prove` has all
LARGE = ("lxe", "core", "core_ip", "system")  # whose netlists take half a minute


@pytest.mark.parametrize("unit", QUICK)
def test_offers_stay_until_taken(unit):
    goal = next(g for g in goals() if g.unit == unit and "stays" in g.claim)
    verdict = goal.judge()
    assert verdict.kind == "unbounded", verdict.note
    assert verdict.reached
    assert verdict.edited


@pytest.mark.parametrize("unit", PROVED)
def test_every_edit_applies(unit):
    """To the RTLIL of today: else `vrex dev prove` ends without a verdict."""
    for goal in goals():
        if goal.unit == unit and isinstance(goal, Goal):
            with goal.within():
                assert re.search(goal.edit[0], rtlil_of(goal.make(False))), f"{goal.claim} {goal.size}: {goal.edit[0]}"


@pytest.mark.nightly
def test_tiles_are_there_when_compared():
    """The prover's own run; `vrex dev prove` also shows that the claim can fail."""
    goal = next(g for g in goals() if g.unit == "hcu" and "while it is there" in g.claim)
    assert goal.prove().depth is None


def test_rows_that_pass_have_a_code_for_each_cluster():
    verdict = next(g for g in goals() if g.unit == "dre" and "rows have" in g.claim).judge()
    assert (verdict.kind, bool(verdict.reached), bool(verdict.edited)) == ("unbounded", True, True), verdict


def independence(unit: str, claim: str) -> None:
    found = [g.judge() for g in goals() if g.unit == unit and isinstance(g, Independence) and g.claim == claim]
    assert found
    for verdict in found:
        assert verdict.kind == "unbounded", verdict.note


@pytest.mark.parametrize("unit", sorted(ALL.keys() - set(LARGE)))
def test_no_offer_depends_on_ready(unit):
    independence(unit, "no offer depends on ready")


@pytest.mark.parametrize("unit", sorted(ALL.keys() - set(LARGE)))
def test_no_idle_payload_shows(unit):
    independence(unit, "no idle payload shows")


EQUAL = "hcu", "cluster_set", "kvmu", "motion_mask", "feeder", "loader", "storer", "retriever", "table_port"


@pytest.mark.parametrize("unit", by_day(EQUAL, "hcu", "cluster_set", "motion_mask", "feeder", "loader"))
def test_verilog_equals_rtlil(unit):
    """Those that take seconds; `vrex dev prove` has all units, at two sizes."""
    modules = list(prove(unit, params_of(unit, preset("tiny"))))
    assert modules[-1].module == unit
    assert all(m.registers and m.outputs >= m.registers for m in modules)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("scan_group + 5'h1", "scan_group + 5'h3"), "tiles r_addr"),  # another number
        (("else if (finish)", "else if (~finish)"), "register .*scan_valid"),  # another condition
        (("[4:0]  best;", "[4:0]  best, bests;"), ""),  # what stays equal is equal
    ],
)
def test_a_change_of_the_text_is_found(change, named):
    modules = prove("hcu", params_of("hcu", preset("tiny")), change)
    if not named:
        assert list(modules)
        return
    with pytest.raises(UnequalError, match=named):
        list(modules)


class Peeks(wiring.Component):
    """Looks at a payload that is not valid, and at the payload of a struct with `valid`; hides both in a payload."""

    i: In(stream.Signature(2))
    s: In(StructLayout({"valid": 1, "data": 2}))
    o: Out(stream.Signature(2))
    late: Out(1)
    t: Out(StructLayout({"data": 2, "valid": 1}))

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.i.ready.eq(self.i.payload[0] | self.o.ready), self.o.valid.eq(self.i.valid)]
        m.d.comb += [self.o.payload.eq(self.i.payload), self.t.eq(Cat(self.s.data, self.s.valid))]
        m.d.sync += self.late.eq(self.i.payload[1])
        return m


def test_an_idle_payload_that_shows_is_found():
    """At `ready`; what is valid with the payload, and what comes a cycle later, does not show it."""
    assert shown(Peeks()) == {"i__ready"}


class Square(wiring.Component):
    """Claims (a + b)^2 = a^2 + 2 a b + b^2, which takes a prover long."""

    a: In(16)
    b: In(16)

    def elaborate(self, platform):
        m = Module()
        a, b = self.a, self.b
        m.d.comb += Assert((a + b) * (a + b) == a * a + 2 * a * b + b * b)
        return m


def test_a_proof_that_takes_too_long_says_so():
    with pytest.raises(RuntimeError, match="no answer .limit: 1 seconds of processor time"):
        holds(Square(), limit=1)


def test_every_unit_has_its_channels():
    """Streams in arrays and bundles, and AXI4 channels, are found."""
    found = {unit: set(waiting(unit_of(unit))) for unit in ("arbiter", "retriever", "kvmu")}
    assert found == {
        "arbiter": {*(f"{c}__{k}" for c in "rb" for k in range(3)), "m_axi_ar", "m_axi_aw", "m_axi_w"},
        "retriever": {"order", "bus__ar", "bus__aw", "bus__w"},
        "kvmu": {"w", "x", "b", "m__ask", "m__put"},
    }


@pytest.mark.parametrize(
    ("unit", "claim", "size"),
    [
        ("wtu", "a word sees its own counts", "a ring of 2 words"),
        ("cluster_set", "no word of a collision is used", "sets of 4"),
        ("motion_mask", "no token leaves a GOP's mask", "2 x 2 patches"),
        ("motion_mask", "no token leaves a GOP's mask", "the same with residuals"),
        ("sequencer", "who may go may until it goes", "of 3 bits"),
        pytest.param(
            *("sequencer", "a register keeps what a STORE writes", "with to_register"), marks=pytest.mark.nightly
        ),
        ("sequencer", "registers are read after what sets them", "with to_register"),
        ("arbiter", "a slice keeps order, and all", "items of 2 bits"),
        ("sequencer", "a slice keeps order, and all", "items of 2 bits"),
        *(
            ("arbiter", f"{what} of two ports in order", "orders of 2 bursts")
            for what in ("reads", "beats of writes", "responses")
        ),
        ("kvmu", "each write goes once", "kept"),
        pytest.param(*("kvmu", "items come to who asked", "blocks of 1"), marks=pytest.mark.nightly),
        pytest.param(*("kvmu", "rows come to who asked", "blocks of 1"), marks=pytest.mark.nightly),
        ("retriever", "beats to pack leave once, bursts end", "groups of a beat"),
        ("retriever", "codes are golden", "any number, any step"),
        ("table_port", "reads and writes are never in flight together", "beats of two items"),
        ("table_port", "items go to who asked, in order", "asks of one item"),
        ("table_port", "a put is written once", "beats of two items"),
        ("table_port", "asks and puts go out in order", "beats of two items"),
    ],
)
def test_claims_hold_and_can_fail(unit, claim, size):
    goal = next(g for g in goals() if (g.unit, g.claim, g.size) == (unit, claim, size))
    verdict = goal.judge()
    assert verdict.kind == "unbounded", verdict.note
    assert verdict.reached
    assert verdict.edited


def test_a_selection_that_is_not_minimal_is_seen():
    """The WTU's proof, as far as an edit shows in it; `vrex dev prove wtu` has the whole."""
    goal = next(g for g in goals() if g.claim == "whole buckets, minimal")
    edited = goal.edited()
    assert not edited
    # Both break in the same cycle, and which one a solver tells is its own choice.
    assert edited.claim in ("it is not minimal", "one is left out before one that is in")
    assert holds(goal.make(False), depth=edited.depth - 1, merge=False)


def test_prove_prints_verdicts(monkeypatch):
    """A line a claim; what is broken, or could not fail, is told and is exit code 1."""
    run = vrex("dev", "prove", "feeder")
    assert re.search(r"feeder +an offer .* unbounded +pdr .* reached in \d+, edit seen in \d+", run.stdout)
    blunt = replace(next(g for g in goals() if g.unit == "feeder"), edit=("module", "module"))
    monkeypatch.setattr("openvrex.scripts.engineers.prove_command.goals", lambda: [blunt])
    run = tried("dev", "prove", "--json")
    assert run.exit_code == 1
    assert json.loads(run.stdout)[0]["kind"] == "edit not seen"
    assert "feeder , an offer stays until taken: edit not seen" in run.stderr


class Late(wiring.Component):
    """A number that goes on counting when nobody takes it, or (`eager`) is offered only to who is ready."""

    def __init__(self, eager: bool):
        self.eager = eager
        super().__init__({"i": In(stream.Signature(4)), "o": Out(stream.Signature(4))})

    def elaborate(self, platform):
        m = Module()
        count = Signal(4)
        m.d.comb += [self.i.ready.eq(1), self.o.payload.eq(count), self.o.valid.eq(count[2])]
        m.d.sync += count.eq(count + 1)
        if self.eager:
            m.d.comb += self.o.valid.eq(count[2] & self.o.ready)
        return m


def test_an_offer_that_depends_on_ready_is_seen():
    assert waiting(Late(False)) == {"o": set()}
    assert waiting(Late(True)) == {"o": {"o__ready"}}


def test_a_counterexample_is_a_waveform(tmp_path, monkeypatch):
    """Of the broken unit, up to the cycle in which the claim fails: there the number has changed while it waited."""
    monkeypatch.setattr(counterexample, "WAVES", tmp_path / "a b")
    proof = holds(StreamMonitor(Late(False)), name="late")
    assert not proof
    assert proof.claim == "o changes while it waits"
    assert proof.wave.name.startswith("late-")
    values = vcd(proof.wave)
    last = {name: bits[-1] for name, bits in values.items()}
    assert len(values["top.o_held"]) == proof.depth
    assert (last["top.o_held"], last["top.o__valid"]) == ("1", "1")
    assert last["top.o_before"] != last["top.unit.count"] == last["top.o__payload"]
    assert values["top.o__ready"][-2] == "0"


def vcd(path) -> dict[str, list[str]]:
    """Of each signal its value in every cycle, as a binary number without leading zeros."""
    names, now, out, scopes, cycle = {}, {}, {}, [], None
    for line in path.read_text().splitlines():
        word = line.split()
        match word:
            case ["$scope", _, name, *_]:
                scopes.append(name)
            case ["$upscope", *_]:
                scopes.pop()
            case ["$var", _, _, key, name, *_]:
                names[key] = ".".join([*scopes, re.sub(r"\$\d+$", "", name)])
            case [bits, key] if bits[0] == "b":
                now[key] = bits[1:].lstrip("0") or "0"
            case [change] if change[0] in "01x":
                now[change[1:]] = change[0]
            case [time] if time[0] == "#":
                if cycle is not None and cycle % 10 == 0:
                    for key, name in names.items():
                        out.setdefault(name, []).append(now[key])
                cycle = int(time[1:])
    return out
