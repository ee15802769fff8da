"""A layer of Mosaic's clusters on a golden core, beside the same layer in NumPy: programs without a decoder."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.policies.mosaic_core import CoreLayer, Job
from openvrex.golden.policies.mosaic_hardware import HardwareLayer
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.lxe_model import Lxe, Memory, Result
from openvrex.golden.program.vpe_known_lanes import Known
from openvrex.tb.library.small_mosaic import PARAMS, ROOM, shown, stream

WIDTH, HEADS = 16, 2  # numbers of a key of all KV heads
OUTSIDE = 1 << 36
AT_ONCE = 8  # tokens that make clusters together


def layers(entries: np.ndarray, core: tuple[str, ...] = (), members: int = 16) -> tuple[CoreLayer, HardwareLayer, Lxe]:
    """A layer on a golden core, the same in NumPy, and the core. The layer's tokens have these entries [n, 32].

    core : more of the core's parameters

    Nothing is defined in the core's scratchpads and banks when a program begins: it may not use what another one left.
    Registers that it is not given are addresses outside the memory, but for the small number in REST.
    """
    host = stream(shown(frames=3, tokens=max(4, len(entries) // 2)), 1, replace(ROOM, members=members), core).host
    own, driver, tokens = host.policy.layers[0], host.core, np.arange(len(entries))

    def launch(job: Job) -> Result:
        unit = host.unit
        unit.w_known[:] = unit.x_known[:] = False
        unit.known = Known(unit.fmt.vector)
        given = {r: value or OUTSIDE * (r not in (Register.KV, Register.REST)) for r, value in job.registers.items()}
        return host.run(replace(job, registers=given))

    driver.launch = launch
    driver.take_slots(0, tokens)
    rows = driver.read(0, "ring")
    rows[driver.slot[0, tokens]] = entries
    driver.write(0, "ring", rows)
    want = HardwareLayer(WIDTH, HEADS, host.plan.fmt.dot)
    for state, x in ((own, np.full(entries.shape, np.nan)), (want, entries.astype(np.float32))):
        for growing, part in ((state.keys, x[:, :WIDTH]), (state.values, x[:, WIDTH:])):
            growing.append(part[None].astype(np.float32))
        state.cluster, state.buffered = np.full(len(entries), -1), np.zeros(len(entries), bool)
    assert isinstance(own, CoreLayer)
    return own, want, host.unit


def differences(own: CoreLayer, want: HardwareLayer) -> list[str]:
    """What differs between the core's tables and NumPy's: clusters of tokens, statistics, centroids, pairs."""
    n = len(want.clusters)
    if not np.array_equal(own.cluster, want.cluster):
        return ["clusters of tokens"]
    core, table = own.core, want.clusters
    stats = core.read(0, "stats").swapaxes(0, 1).reshape(3, -1)[:, :n]
    pairs = core.read(0, "ring")[core.plan.tokens_slots :][:n]
    pairs_of = {
        "statistics": (stats, np.stack([table.norm / -2, table.variance, table.size])),
        "centroids": (core.read(0, "centroids")[:n], table.mean),
        "pairs": (pairs, want.pairs.reshape(pairs.shape)),
    }
    return [name for name, (a, b) in pairs_of.items() if not np.array_equal(*(x.astype(np.float32) for x in (a, b)))]


class ClusterRun:
    """The clusters of some tokens, made at once, then split, then joined by more tokens, on both.

    entries : BF16 [n, 32]
    first : tokens that make clusters at once; the others come one by one · k : clusters of `AT_ONCE` tokens
    launch : takes a job and what runs it on golden, in place of running it
    core : more of the core's parameters

    taken, refused, split : tokens that came one by one and joined a cluster, stayed outside, split a cluster
    """

    def __init__(
        self,
        entries: np.ndarray,
        first: int,
        k: int,
        launch: Callable[[Job, Callable], object] | None = None,
        core: tuple[str, ...] = (),
    ):
        self.entries, self.first, self.k = entries, first, k
        self.own, self.want, self.unit = layers(entries.astype(BF16), core)
        self.taken = self.refused = self.split = 0
        run = self.own.core.launch
        if launch:
            self.own.core.launch = lambda job: launch(job, run)

    @property
    def memory(self) -> Memory:
        """The core's memory."""
        return self.own.core.memory

    def play(self) -> list[str]:
        """Run everything; what differs."""
        old, new = np.arange(self.first), np.arange(self.first, len(self.entries))
        for state in (self.own, self.want):
            for part in np.split(old, range(AT_ONCE, len(old), AT_ONCE)):
                state.create(part, 0, self.k, 0)
        wrong = differences(self.own, self.want)
        ends = []
        for state in () if wrong else (self.own, self.want):
            ends.append(state.split(state.members(0), 0, 0))
        wrong += ["what a split made"] * (len(ends) == 2 and ends[0] != ends[1])
        wrong += [] if wrong else differences(self.own, self.want)
        if len(new) and not wrong:
            ends = [self._join(state, new) for state in (self.own, self.want)]
            self.taken, self.refused, self.split = (
                sum(e == kind for e in ends[1]) for kind in ("taken", "left", "split")
            )
            wrong += ["who took a token"] * (ends[0] != ends[1]) or differences(self.own, self.want)
        return wrong

    def _join(self, state: HardwareLayer, tokens: np.ndarray) -> list[str]:
        """Let clusters take tokens; those that none may take split it, or stay outside where there are too many."""
        ends = []

        def absorbed(i: int, c: int) -> None:
            ends.append("taken")
            state.absorbed(int(tokens[i]), c)

        def invalid(i: int, c: int) -> list[int]:
            members = np.append(state.members(c), tokens[i])
            ends.append("split" if len(members) <= 6 and len(state.clusters) < ROOM.clusters else "left")
            return state.split(members, c, 0)[0] if ends[-1] == "split" else []

        at = np.zeros(len(tokens), np.int64)
        state.clusters.assign(state.directions(tokens), at, PARAMS.semantic, absorbed, invalid)
        return ends
