"""The arbiter: every answer to whoever asked, whatever the order of the memory, and each in its turn."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from openvrex.hdl.bus.arbiter import MANAGERS, RoundRobin
from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import SystemParams, preset
from openvrex.sim.units.arbiter_time import ArbiterTime, Burst
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import arbiter_checks
from openvrex.tb.checks.arbiter_checks import (
    DEALT,
    RUNS,
    Traffic,
    check_cycles_equal_the_time_view,
    emitted,
    play,
    simulate,
    system,
)
from openvrex.tb.formal.arbiter_proof import PortMonitor, TurnMonitor
from openvrex.tb.formal.proofs import goals
from openvrex.tb.formal.prover import holds
from openvrex.tb.library.simulated import simulated

ONES = ("dpe.n_w=1", "dpe.n_h=1", "vpe.n_w=1", "wtu.n_w=1", "bus_bytes=1", "lxe.burst_bytes=1")
ONES += ("bursts=1", "queue=1")


THREE = [
    Traffic(cores=3, bursts=15, stalls={"": 0.2, "w": 0.9}, latency=(0, 40), errors=0.1, seed=6),
    *(Traffic(cores=3, longest=1, kinds=(kind,), seed=11) for kind in ("ar", "aw")),
]


test_every_answer_goes_to_whoever_asked = arbiter_checks.check_every_answer_goes_to_whoever_asked


def test_sizes_of_1():
    play([Traffic(cores=1, changes=ONES, stalls={"": 0.3}, latency=(0, 5), errors=0.1, seed=7)])
    play([Traffic(cores=2, changes=ONES, stalls={"": 0.3}, latency=(0, 5), errors=0.1, common=1, seed=13)])
    play([Traffic(cores=1, changes=ONES, stalls={"": 0.3}, latency=(0, 5), errors=0.1, ports=2, seed=14)])


def test_with_a_memory_of_cocotbext_axi():
    runs = [replace(RUNS[name], seed=seed, far=False) for name, seed in (("stalls everywhere", 8), ("full rate", 9))]
    play(runs, "axi", 0.3)


test_full_buffers_keep_their_beats = arbiter_checks.check_full_buffers_keep_their_beats
test_bursts_of_256_beats = arbiter_checks.check_bursts_of_256_beats
test_no_manager_holds_up_another = arbiter_checks.check_no_manager_holds_up_another


def test_ports_multiply_the_rate():
    """Beats a cycle that eight LXEs of `edge8` read, by the time view, with a memory that answers after 100 cycles."""
    p, rng, rates = preset("edge8"), np.random.default_rng(1), {}
    for ports, order in ((1, "ascending"), (4, "ascending"), (4, "random")):
        reads: list[list[Burst]] = [[] for _ in range(MANAGERS * p.cores)]
        for own in reads[::MANAGERS]:
            at = rng.integers(ports, size=48) if order == "random" else rng.integers(ports) + np.arange(48)
            own += (Burst(0, 16, int(port) % ports) for port in at)
        seen = ArbiterTime(replace(p, ports=ports), 100).run(reads, [[] for _ in reads])
        cycles = [at for port in seen.ports for at in port.r]
        rates[ports, order] = round(len(cycles) / (max(cycles) - min(cycles) + 1), 1)
    assert p.ports == 4
    assert rates == {(1, "ascending"): 1.0, (4, "ascending"): 4.0, (4, "random"): 3.2}


def in_turn(got: dict, kind: str) -> bool:
    """Whether, while all ask, every manager has one grant in as many as there are, and there is one every cycle."""
    [port] = got["ports"]
    ids, cycles = [b["id"] for _, b in port[kind]], [at for at, _ in port[kind]]
    n = len(got["managers"])
    turns = (Counter(ids[k : k + n]) == Counter(range(n)) for k in range(n, len(ids) - 2 * n))
    return all(turns) and cycles[-1] - cycles[0] == len(cycles) - 1


def test_managers_take_turns():
    _, reads, writes = play(THREE)
    assert in_turn(reads, "ar")
    assert in_turn(writes, "aw")


@pytest.mark.parametrize("cores", [2, 3])
def test_cycles_equal_the_time_view(cores):
    check_cycles_equal_the_time_view(cores)


test_ports_answer_in_order = arbiter_checks.check_ports_answer_in_order


@pytest.mark.parametrize(
    ("cores", "common", "ports"),
    [(2, None, 2), *(pytest.param(*own, marks=pytest.mark.nightly) for own in ((1, None, 4), (3, 1, 2)))],
)
def test_cycles_of_several_ports_equal_the_time_view(cores, common, ports):
    check_cycles_equal_the_time_view(cores, common, ports)


test_reads_of_a_group_go_to_memory_once = arbiter_checks.check_reads_of_a_group_go_to_memory_once


@pytest.mark.parametrize(("cores", "common"), [(3, 1), (3, 2), pytest.param(4, 2, marks=pytest.mark.nightly)])
def test_cycles_of_common_reads_equal_the_time_view(cores, common):
    check_cycles_equal_the_time_view(cores, common)


test_a_group_that_waits_goes_on_when_nothing_is_common = (
    arbiter_checks.check_a_group_that_waits_goes_on_when_nothing_is_common
)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_bound_of_waiting_holds_in_every_state(n):
    """The pick is the first that asks behind the one taken last, from every state and after every take.

    So each grant of another brings a manager that waits at least one place nearer, of at most n - 1.
    """

    def first(last: int, ask: int) -> int:
        return next((j % n for j in range(last + 1, last + n + 1) if ask >> j % n & 1), None)

    async def walk(ctx):
        def check(last: int) -> None:
            for ask in range(1 << n):
                ctx.set(dut.ask, ask)
                want = first(last, ask)
                assert ctx.get(dut.pick) == (0 if want is None else 1 << want), (last, ask)

        async def take(ask: int) -> None:
            ctx.set(dut.ask, ask)
            ctx.set(dut.take, 1)
            await ctx.tick()
            ctx.set(dut.take, 0)

        check(n - 1)  # after a reset
        for last, ask in itertools.product(range(n), range(1 << n)):
            await take(1 << last)
            check(last)
            await take(ask)
            check(first(last, ask) if ask else last)

    dut = RoundRobin(n)
    simulated(dut, walk)


def small() -> SystemParams:
    """Bursts of at most two beats, two of them."""
    return system(2, (*(size for size in ONES if size[:6] != "bursts"), "lxe.burst_bytes=2", "bursts=2"))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_turns_are_proved(n):
    assert holds(TurnMonitor(n))


def test_room_is_proved():
    assert holds(PortMonitor(small()))
    assert not holds(PortMonitor(small(), reach=True))


def test_a_group_reads_as_one_is_proved():
    """While what is common changes, too; and the proof sees a core that does not wait for its group."""
    [goal] = (g for g in goals() if g.unit == "arbiter" and "as one" in g.claim)
    verdict = goal.judge()
    assert (verdict.kind, bool(verdict.reached), bool(verdict.edited)) == ("unbounded", True, True), verdict


@pytest.mark.parametrize(
    ("monitor", "edit"),
    [
        (lambda: TurnMonitor(4), (r"connect \\B \\after \[3:0\]", r"connect \\B 4'1111")),  # the lowest first
        (lambda: PortMonitor(small()), (r"cell \$gt (\$\d+\n(?:.*\n){5}    connect \\A \\room)", r"cell $ge \1")),
        (lambda: PortMonitor(small()), (r"connect \\A \\whole \[2:0\](\n    connect \\Y)", r"connect \\A 3'001\1")),
    ],
)
def test_proofs_see_what_is_broken(monitor, edit):
    assert not holds(monitor(), edit)


MUTANTS = {
    "$reduce_or 1.a93edca9: Y[0] const1": "a write goes before its beats are here",
    "$gt 0.d559c3ae: Y[0] const1": "a read that finds no room",
    "$lt 0.9f87ec41: Y[0] const1": "a write whose response finds no room",
    "$eq 3.eb2ad411: A[0] const1": "answers go to another",
    "$and 1.54719407: B[0] const1": "beats whose order is forgotten",
    "$and 1.d6ccf992: B[0] const1": "beats of bursts mixed",
    "$mux 6.50c20f59: S[0] const0": "turns that are not",
}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(every):
    full = {f"{n}_{i}": stall for n, stall in (("r", 0.9), ("b", 0.98)) for i in range(9)}
    stalls = (full, {f"w_{i}": 0.9 for i in range(9)})
    runs = [replace(t, bursts=10) for t in (*THREE, *(Traffic(cores=3, stalls=s, seed=12) for s in stalls))]

    def passes(unit: Emitted) -> None:
        got = simulate(runs, [t.episode() for t in runs], unit)
        for t, g in zip(runs, got, strict=True):
            t.check(g)
        assert in_turn(got[1], "ar")
        assert in_turn(got[2], "aw")

    assert not survivors(emitted(3), MUTANTS, passes, every=every)


OF_PORTS = {
    "$and 1.e9c7e32f: B[0] const1": "a read that no order holds",
    "$reduce_and 0.8675250b: A[1] const1": "a write whose response no order holds",
    "$and 1.d6e434bc: B[0] const1": "the next read is due with each beat",
    "$and 1.2fdee4d2: B[0] const1": "the same of beats of writes",
    "$and 2.27ac1c4d: B[0] const1": "a read at two ports",
    "$and 1.83623ef4: B[0] const1": "a response out of its turn",
}


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_of_ports_are_killed(every):
    runs = [*(replace(t, bursts=10) for t in DEALT), Traffic(ports=2, longest=1, latency=(60, 90), seed=60)]

    def passes(unit: Emitted) -> None:
        for t, g in zip(runs, simulate(runs, [t.episode() for t in runs], unit), strict=True):
            t.check(g)

    assert not survivors(emitted(2, (), False, 2), OF_PORTS, passes, every=every)
