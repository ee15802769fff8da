"""Programs that fail on the RTL of a core: golden's status, a bus at rest, a core that works after a reset."""

import pytest

from openvrex.golden.arithmetic.vector import Bank, Format, Op, Source
from openvrex.golden.arithmetic.vector import Instruction as Vector
from openvrex.golden.program.isa import Instruction, LoadTo, Opcode, Queue, Status
from openvrex.golden.program.isa import vector as vector_of
from openvrex.hdl.emit import Emitted
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks.branch_checks import check_the_branch_equals_golden_and_time_view
from openvrex.tb.checks.core_checks import emitted
from openvrex.tb.checks.lxe_checks import (
    HALT,
    check_a_layer_equals_golden,
    check_faults,
    check_good,
    copy,
    golden,
    load,
    play,
    words,
)
from openvrex.tb.library.lxe_programs import Script


def test_faults():
    check_faults()


def test_resets_in_flight():
    program = words([*copy(60, to=2048), *copy(60, to=3072), HALT])
    for g in play([{"program": program, "cut_at": at} for at in (1, 7, 24, 31, 40, 77, 120)]):
        assert g["status"]["code"] == Status.RUNNING
        check_good(g)


def test_engines_wait_for_semaphores():
    """The VPE for a load that it takes no words from, the storer for words that are there: layers do neither."""
    take = Vector(words=8, a=Source.STREAM, wide=1, write=Bank.C)
    program = [
        load(30, target=LoadTo.X, wide=0, words=1, signal=1),
        load(9),
        vector_of(take, source=Queue.LOAD, wait=1, signal=2),
        vector_of(Vector(op=Op.STORE, words=8, format=Format.WIDE)),
        Instruction(Opcode.STORE, {"wide": 1, "rows": 8, "stride": 16, "addr": 1024, "wait": 2}),
        HALT,
    ]
    unit = golden()
    script = Script(unit.memory, ["memory"])
    script.add(program, {})
    unit.run(program, {})
    script.expect()
    ran, after = script.play(emitted(), dict.fromkeys(("th_hd", "ratio", "device_base", "home_base"), 0))
    assert not script.differences(ran, after)
    assert ran[0].perf["lxe.sequencer.vector_waits"] > 0
    assert ran[0].perf["lxe.sequencer.store_waits"] > 0


def test_a_layer_equals_golden():
    check_a_layer_equals_golden()


def test_a_history_branch_equals_golden_and_time_view(record_property):
    """Two passes of a selective scan on an LXE with the feature hybrid: every byte, and every event's cycle."""
    record_property("cycles", check_the_branch_equals_golden_and_time_view()["done"])


MUTANTS = {
    "$and 1.555b501f: A[0] inv": "words for instructions that take none",
    "$mux 0.b33c5658: S[0] inv": "words of the other source",
    "$and 1.b008043a: B[0] const1": "a loaded word is gone with every word",
    "$and 1.012bc479: B[0] const1": "so is a result",
    "$and 1.41e55e40: B[0] const1": "an instruction is gone with its first word",
    "$mux 0.49def16b: S[0] inv": "a word for X has the other writer's address",
    "instance 0.511c5c64: fault_bus[0] const0": "a fault of the bus is lost",
    "instance 0.511c5c64: fault_range[0] const0": "a fault of an address is lost",
}


@pytest.mark.nightly
def test_mutants_of_the_join_are_killed():
    """A layer, or one of the programs that fail, does not end as in golden."""

    def sound(mutant: Emitted) -> None:
        check_a_layer_equals_golden(mutant, waves=False)
        check_faults(("a word of W", "reads", "writes", "a wait for ever"), mutant, waves=False)

    assert not survivors(emitted(), MUTANTS, sound, "core__lxe")
