"""Faults in the programs of Mosaic's clusters, each of which the checks of programs must notice."""

from random import Random

import pytest

from openvrex.golden.program.isa import Instruction, Opcode
from openvrex.tb.campaigns.program_mutants import FAULTS, ProgramMutant, mutants
from openvrex.tb.checks.clusters_checks import STEERED, noticed, programs

SAMPLE = 45  # every so many-th mutant of a kind
# Of the mutants. In the rounds of K-means that steer themselves more of them change nothing: a fence that stands twice,
# or words that are loaded again where they still are.
LEAST = {(): 0.95, STEERED: 0.85}


def sample(each: int, core: tuple[str, ...]) -> list[tuple[str, list[Instruction], ProgramMutant]]:
    """Mutants of every program, of each kind of fault; of a core that steers itself, of what only it has."""
    rng, plain = Random(1), {kind for kind, _ in programs()} if core else set()
    own = [(kind, program) for kind, program in programs(core) if kind not in plain]
    return [(kind, program, m) for kind, program in own for m in mutants(program, each, rng)]


def alive(found: list[tuple[str, list[Instruction], ProgramMutant]], core: tuple[str, ...]) -> list[str]:
    """Mutants that nothing notices."""
    return [f"{kind}, {m}" for kind, program, m in found if not noticed(program, m.program, core)]


@pytest.mark.slow
@pytest.mark.parametrize("core", [(), pytest.param(STEERED, marks=pytest.mark.nightly)])
def test_faults_of_programs_are_noticed(record_property, core):
    """Some of every kind."""
    found = sample(1, core)
    assert {m.fault for _, _, m in found} == set(FAULTS)
    chosen = [one for fault in FAULTS for one in [x for x in found if x[2].fault == fault][::SAMPLE]]
    lives = alive(chosen, core)
    record_property("survivors", ", ".join(lives))
    assert not lives


@pytest.mark.nightly
@pytest.mark.parametrize("core", [(), STEERED])
def test_nearly_all_faults_of_programs_are_noticed(record_property, core):
    found = sample(12 if core else 2, core)  # of two programs, or of all
    lives = alive(found, core)
    record_property("survivors", ", ".join(lives))
    assert len(lives) <= (1 - LEAST[core]) * len(found), lives


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
