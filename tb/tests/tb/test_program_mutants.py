"""Faults in the programs of Mosaic's clusters, each of which the checks of programs must notice."""

from random import Random

import pytest

from golden.program.isa import Instruction, Opcode
from tb.campaigns.program_mutants import FAULTS, ProgramMutant, mutants
from tb.checks.clusters_checks import noticed, programs

SAMPLE = 14  # every so many-th mutant of a kind
LEAST = 0.95  # of the mutants


def sample(each: int) -> list[tuple[str, list[Instruction], ProgramMutant]]:
    """Mutants of every program, of each kind of fault."""
    rng = Random(1)
    return [(kind, program, m) for kind, program in programs() for m in mutants(program, each, rng)]


def alive(found: list[tuple[str, list[Instruction], ProgramMutant]]) -> list[str]:
    """Mutants that nothing notices."""
    return [f"{kind}, {m}" for kind, program, m in found if not noticed(program, m.program)]


@pytest.mark.slow
def test_faults_of_programs_are_noticed(record_property):
    """Some of every kind."""
    found = sample(1)
    assert {m.fault for _, _, m in found} == set(FAULTS)
    chosen = [one for fault in FAULTS for one in [x for x in found if x[2].fault == fault][::SAMPLE]]
    lives = alive(chosen)
    record_property("survivors", ", ".join(lives))
    assert not lives


@pytest.mark.nightly
def test_nearly_all_faults_of_programs_are_noticed(record_property):
    found = sample(2)
    lives = alive(found)
    record_property("survivors", ", ".join(lives))
    assert len(lives) <= (1 - LEAST) * len(found), lives


def test_mutants_differ_in_one_instruction():
    program = [
        Instruction(Opcode.SYNC, {"signal": 1}),
        Instruction(Opcode.LOAD, {"base": 3, "rows": 2, "wait": 1, "signal": 2}),
        Instruction(Opcode.HALT, {}),
    ]
    found = list(mutants(program, 9, Random(1)))
    assert {m.fault for m in found} == {"dropped", "register", "count", "fence"}
    assert all(m.program[:1] + m.program[2:] == program[:1] + program[2:] for m in found)  # a credit and HALT stay
    assert [m.program[1]["signal"] for m in found if m.fault == "fence"] == [0]
    assert not any(m.program == program for m in found)
