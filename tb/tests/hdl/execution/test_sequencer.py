"""Sequencer: beats as an interpreter and golden have them, cycles as the time view; statuses, mutants, proof."""

import pytest

from openvrex.golden.program.isa import (
    ENGINE,
    PAYLOAD,
    Engine,
    Instruction,
    Opcode,
    Retrieve,
    Status,
    decode,
)
from openvrex.golden.program.sequencer_model import sequence
from openvrex.hdl.execution.sequencer import Sequencer
from openvrex.sim.units.sequencer_time import NAMES, SequencerTime, trace
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import sequencer_checks
from openvrex.tb.checks.sequencer_checks import (
    BAD,
    FAULTS,
    SIZES,
    beats,
    core,
    emitted,
    fault,
    given,
    op,
    play,
    random_program,
)
from openvrex.tb.formal.sequencer_proof import prove_loops, prove_semaphores
from tb.tests.by_day import at_sizes

test_equals_interpreter_and_time_view = at_sizes(
    sequencer_checks.check_equals_interpreter_and_time_view, SIZES, "tiny", "registers", "one"
)
test_equals_interpreter_under_stalls = at_sizes(sequencer_checks.check_equals_interpreter_under_stalls, ["tiny", "one"])


@pytest.mark.parametrize("size", SIZES)
def test_interpreter_equals_golden(size):
    """The interpreter behind the time view against golden's sequence, which other code resolves."""
    p = core(size)
    for seed in range(20):
        words = random_program(p, seed, tame=True)
        want, registers = trace(p, words), [0] * 16
        steps = [s for s in want.steps if s.op != Opcode.END or s.wait or s.signal]
        for issue, step in zip(sequence([decode(w) for w in words], registers, p.lxe_format()), steps, strict=True):
            assert (issue.pc, issue.op) == (step.pc, step.op)
            if step.op in ENGINE:
                own = step.beat | step.beat.get("instruction", {})
                assert own["skip"] == issue.skip
                assert own.get("addr") == (issue.addr if "base" in PAYLOAD[step.op] else None) or "source" in own
                assert issue.skip or all(own[name] == count - 1 for name, count in issue.counts.items())
        assert registers == want.registers


test_every_semaphore_for_everyone = sequencer_checks.check_every_semaphore_for_everyone
test_instructions_hold_while_they_wait = sequencer_checks.check_instructions_hold_while_they_wait
test_loops_in_loops = sequencer_checks.check_loops_in_loops
test_every_bit_of_a_register = sequencer_checks.check_every_bit_of_a_register
test_statuses = sequencer_checks.check_statuses
test_faults_beside_a_program = sequencer_checks.check_faults_beside_a_program
test_events = sequencer_checks.check_events
test_every_register = sequencer_checks.check_every_register
test_a_store_sets_registers = sequencer_checks.check_a_store_sets_registers
test_stores_between_instructions = sequencer_checks.check_stores_between_instructions
test_halt_leaves_a_retrieve = sequencer_checks.check_halt_leaves_a_retrieve
test_watchdog = sequencer_checks.check_watchdog


def test_functional_coverage(record_property):
    """The random programs reach every stated bin; without this a comparison could pass on dull data."""
    hit = set()
    for size in SIZES:
        p = core(size)
        for words in [random_program(p, 100 + i) for i in range(5)]:
            depth = 0
            steps = trace(p, words).steps
            for before, step in zip([None, *steps], steps, strict=False):
                i = decode(words[step.pc])
                hit |= {step.op.name.lower(), *({"wait"} if step.wait else ()), *({"signal"} if step.signal else ())}
                if step.op in ENGINE and i["len"]:
                    how = "skipped" if step.beat["skip"] else f"by unit {i['unit']}"
                    hit.add(f"{step.op.name.lower()} {how}")
                hit |= {"pair"} if i["pair"] else set()
                hit |= {"loop by a register"} if step.op == Opcode.LOOP and i["len"] and not step.jumps else set()
                hit |= {"loop skipped"} if step.op == Opcode.LOOP and step.jumps else set()
                hit |= {"empty body"} if step.op == Opcode.END and before.op == Opcode.LOOP else set()
                writes = before is not None and before.op in (Opcode.SET, Opcode.ADD)
                hit |= {"register read at once"} if writes and _reads(i) == decode(words[before.pc])["to"] else set()
                depth += (step.op == Opcode.LOOP and not step.jumps) - (step.op == Opcode.END and not step.jumps)
                hit.add(f"{depth} loops")
    hit |= {f"status {code.name}" for code in (*(code for *_, code, _ in BAD.values()), *(code for code, _ in FAULTS))}
    want = {f"status {s.name}" for s in set(Status) - {Status.IDLE, Status.RUNNING, Status.DEADLOCK}}
    want |= {o.name.lower() for o in Opcode} | {f"{d} loops" for d in range(5)} | {"wait", "signal", "pair"}
    want |= {f"{e.name.lower()} {how}" for e in Engine for how in ("skipped", "by unit 0", "by unit 1")}
    want |= {"loop by a register", "loop skipped", "empty body", "register read at once"}
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= want, want - hit


def _reads(i: Instruction) -> int | None:
    """The register that an instruction's address is made of."""
    return i["base"] if "base" in PAYLOAD[i.op] else i["a"] if i.op == Opcode.ADD else None


MUTANTS = {
    "$reduce_or 1.f01f467c: Y[0] const0": "a register is read before it is written",
    "$and 1.5f155ce8: B[0] const1": "HALT waits for nobody",
    "$and 1.b4b4357c: B[0] const1": "HALT never leaves a RETRIEVE",
    "$mux 1.e210b9e4: B[0] const0": "a loop of no rounds is not skipped",
    "$and 1.78694af5: Y[0] const0": "no count is out of range",
    "$and 1.8d61175b: Y[0] const0": "a loop has one round",
    "$eq 0.ed6e1be6: B[0] const1": "the watchdog waits a cycle longer",
    "$mux 1.31ccbf15: S[0] const0": "a length is not rounded",
    "$reduce_or 1.39e7d6d4: Y[0] const0": "it runs on behind the program's memory",
}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(every):
    p = core("tiny")
    programs = [(random_program(p, 103), {}, Status.DONE)]
    programs += [BAD[name] for name in ("past-the-end", "keep", "pairs", "skipped")]
    want = [beats(trace(p, [*w, *[0] * p.lxe.i_depth], x).steps) for w, x, *_ in programs]
    lost = fault([op("MUL", wait=4), op("HALT")], sleep={"8": 4090}, limit=9000)
    leaves = [op("RETRIEVE", action=Retrieve.FETCH), op("HALT", leave=1)]
    ends = [
        SequencerTime(p, dict.fromkeys(NAMES.values(), 9)).run(trace(p, leaves).steps).done,
        4 + Sequencer.WATCHDOG + 3,
    ]
    runs = [*(fault(w, x, limit=1000) for w, x, *_ in programs), fault(leaves), lost]

    def passes(unit):
        *own, left, last = play(unit, "tiny", runs, (9, 9), waves=False)
        for got, wants, (_, _, status, *_) in zip(own, want, programs, strict=True):
            assert given(got) == wants
            assert got["status"]["code"] == status
        assert [left["end"], last["end"]] == ends

    assert not survivors(emitted("tiny"), MUTANTS, passes, every=every)


@pytest.mark.parametrize("prove", [prove_semaphores, prove_loops])
def test_semaphores_and_loops_are_proved(prove):
    assert prove()
    assert not prove(reach=True)


@pytest.mark.parametrize(
    ("prove", "edit"),
    [
        (prove_semaphores, (r"connect \\S \\taken0 \[0\]", r"connect \\S 1'0")),  # nothing is taken
        (prove_semaphores, (r"connect \\B \\more0 \[2:0\]", r"connect \\B { 1'0 \\more0 [1:0] }")),
        (prove_loops, (r"assign (\$\d+) \[15:0\] \\last1 \[15:0\]", r"assign \1 [15:0] \\last0 [15:0]")),
        (prove_loops, (r"connect \\B 3'100(\s+connect \\Y \\full)", r"connect \\B 3'101\1")),
    ],
)
def test_proof_sees_what_is_broken(prove, edit):
    assert not prove(edit)


def test_wait_without_a_signal_is_told():
    with pytest.raises(ValueError, match="pc=0: waits for semaphore 2, which no earlier instruction signals"):
        SequencerTime(core("tiny")).run(trace(core("tiny"), [op("MUL", wait=4), op("HALT")]).steps)
