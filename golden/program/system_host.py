"""Runs the layers of a decoder on golden cores that share one memory (`golden.program.share_plan`).

A host starts a phase on all cores, waits for all of them, and starts the next one. Between programs it passes two
numbers, which a program takes from a register: how many clusters a team's table has (LEVEL), and how many entries were
fetched (ENTRIES, in a team and with prefetch). On hardware it reads performance counters of the core that has the
table, before and after the program. `dre.hcu.opened` counts clusters. Fetched entries are those copied,
`retriever.beats` over the beats of an entry, less those placed and moved, `retriever.entries` and `retriever.moves`.

With prefetch, the program of `guess` ends while its FETCH goes on. The host reads these counters when the FETCH has
ended, too, which `retriever.instructions` counts: before the `guess` of another table, or behind the program that next
retrieves, `cluster` or `place` of the next layer, whose HALT waits for it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, product
from typing import NamedTuple

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Matrix
from openvrex.golden.function_params import ReSVParams
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.core_model import Core
from openvrex.golden.program.core_stages import ROW
from openvrex.golden.program.isa import Engine, LxeFormat
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.lxe_model import Memory, Result
from openvrex.golden.program.share_plan import AHEAD, JOINT
from openvrex.golden.program.shares import Shares
from openvrex.golden.program.system_map import SystemMap
from openvrex.golden.retrieval.dre_model import DreSizes
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.golden.retrieval.table_image import TableMemory


class SystemHost(SystemMap):
    """Layers of one shape on golden cores that share a memory.

    shape : shape of a whole layer
    retrieval : sizes of a layer's retrieval; the host sets `ctx`, `ahead` and `fetched`
    layers : weights of each layer as `golden.inputs.decoder` keeps them
    matrices : of each layer, as `SharePlan.pack_table` takes them: hyperplanes, or those of coded pages
    params : parameters of the retrieval
    sizes : of each core's DRE; memory holds the tables of the contexts that the layers use
    cores : number of cores
    heads : KV heads of a table
    ahead : whether each layer fetches for the next one
    more : names and bytes of further regions behind the layers' weights
    streams : most streams of a batch
    batch : most tokens that all of them have in a pass; 0: each stream runs alone
    sections : most sections of a pass (`golden.program.model_host`); one of each stream if not given

    `begin` writes the inputs of a pass. `run` executes a phase of a layer on all cores. The function `batch_steps`
    says in which order the phases of a batch run. Raises `ParamError` where `retrieval` does not suit the engine and
    `params`.
    """

    def __init__(
        self,
        shape: LayerShape,
        fmt: LxeFormat,
        retrieval: RetrievalShape,
        layers: Sequence[dict[str, Matrix]],
        matrices: Sequence[np.ndarray | KeyMatrices],
        params: ReSVParams,
        sizes: DreSizes,
        *,
        cores: int,
        heads: int = 1,
        ahead: bool = False,
        more: dict[str, int] | None = None,
        streams: int = 1,
        batch: int = 0,
        sections: int = 0,
    ):
        shares, many = Shares(shape, fmt.lanes, cores, heads, batch), {"streams": streams, "sections": sections}
        super().__init__(shares, fmt, retrieval, len(layers), sizes, ahead=ahead, more=more, **many)
        retrieval.check_engine(sizes, params, self.plans[0][0].shape)
        self.memory = Memory(self.regions)
        self.cores, self.tables = [], []
        for i in range(cores):
            dre = sizes.model(params, self.contexts, self.device_bases[i], self.home_bases[i])
            self.cores.append(Core(fmt, self.memory, dre))
            if shares.member(i) == 0:
                own = self.memory.region(self.table_bases[i], 1)
                own.written = None
                self.tables.append(TableMemory(sizes.layout, self.cores[i].dre, own.data))
        self.positions = [0] * self.sections  # of the first token of each section of the pass that has begun
        self.fetched = np.zeros((streams, shares.teams, len(layers), shares.groups), int)  # entries, of each table
        self._write_weights(layers, matrices)

    def _write_weights(self, layers: Sequence[dict[str, Matrix]], matrices: Sequence[np.ndarray | KeyMatrices]) -> None:
        for i, plans in enumerate(self.plans):
            for k, (plan, layer, own) in enumerate(zip(plans, layers, matrices, strict=True)):
                for name, x in plan.pack(layer).items():
                    self.put(i, name, x, k)
                for group, stream in product(range(self.shares.groups), range(self.streams)):
                    for name, x in plan.pack_table(layer, own, group).items():
                        if name != "qkv_weight" or not stream:
                            self.put(i, name, x, k, group, stream)

    def put(self, core: int, name: str, x: np.ndarray, layer: int = 0, group: int = 0, stream: int = 0) -> None:
        """Write an array of a core's plan. Raises `ParamError` for another shape or type."""
        array = self.plans[core][layer][name]
        array.check(x)
        self.memory.put(self.address(core, array, layer, group, stream), x)

    def get(self, core: int, name: str, layer: int = 0, group: int = 0, stream: int = 0) -> np.ndarray:
        """Read an array of a core's plan."""
        array = self.plans[core][layer][name]
        return self.memory.get(self.address(core, array, layer, group, stream), array.shape, array.dtype)

    def begin(
        self, hidden: np.ndarray, cos: np.ndarray, sin: np.ndarray, start: int, stream: int = 0, first: int = 0
    ) -> None:
        """Write the inputs of a pass from token `start`: hidden [tokens, width], cos and sin [tokens, head / 2].

        stream : of a batch · first : its first row of the hidden states

        Constants are written with them, because a pass of another size may have overwritten them.
        """
        self.positions[self.section] = start
        for i, plans in enumerate(self.plans):
            inputs = plans[0].constants() | plans[0].inputs(hidden, cos, sin, start)
            rows = inputs.pop("hidden")
            self.memory.put(self.address(i, plans[0]["hidden"]) + first * rows.strides[0], rows)
            for name, x in inputs.items():
                self.put(i, name, x, stream=stream)

    def registers(
        self, core: int, layer: int = 0, group: int = 0, phase: str = "", stream: int = 0, first: int = 0
    ) -> dict[int, int]:
        """Values of the registers that a core's program starts with, for one of its tables of a layer.

        phase : with coded pages, and in a batch, what these values depend on
        stream : of a batch · first : its first row
        """
        team = self.shares.team(core)
        clusters = 0  # which the programs of a core alone find out
        if self.shares.members > 1:
            clusters = self.cores[team].dre.level(self.context(layer + (phase in AHEAD), group, stream))
        fetched = int(self.fetched[stream, team, layer, group])
        out = self.start(core, layer, group, stream, first, phase, clusters=clusters, fetched=fetched)
        plan = self.plans[core][layer]
        if plan.retrieval.pages is None:
            return out
        at = out[Register.WEIGHTS], out[Register.KV], out.get(Register.STREAM, 0)
        return out | plan.page_registers(phase, self.positions[self.section], *at)

    def steps(self, layer: int = 0) -> Iterator[tuple[str, int]]:
        """As `SystemMap.steps`, in the pass that `begin` has begun: keys are coded where some are complete."""
        plan, without = self.plans[0][layer], set[str]()
        if plan.retrieval.pages is not None:
            without = set() if plan.split(self.positions[self.section])[0] else {"hash", "code"}
        return (step for step in super().steps(layer) if step[0] not in without)

    def run(
        self,
        phase: str,
        layer: int = 0,
        group: int = 0,
        order: Sequence[int] | None = None,
        stream: int = 0,
        first: int = 0,
    ) -> dict[int, Result]:
        """Execute a phase of a layer, for one of each core's tables, on the cores in the given order."""
        return {
            core: self.step(core, phase, layer, group, stream, first)
            for core in (order if order is not None else range(len(self.cores)))
            if self.program(core, phase, layer)
        }

    def step(self, core: int, phase: str, layer: int = 0, group: int = 0, stream: int = 0, first: int = 0) -> Result:
        """Execute a core's program of a phase for one of its tables, and note what later programs must know."""
        program = self.program(core, phase, layer)
        assert program is not None, f"core {core} has nothing to do in the phase {phase}"
        out = self.cores[core].run(program, self.registers(core, layer, group, phase, stream, first))
        if core < self.shares.teams and out.instructions[Engine.RETRIEVE]:  # others change no table
            self.tables[core].write([self.context(layer + (phase == "guess"), group, stream)])
            registers, retrieval = self.cores[core].registers, self.plans[core][layer].retrieval
            if phase == "guess":
                self.fetched[stream, core, layer + 1, group] = registers[ROW]
            elif phase in ("select", "cluster") and not retrieval.fetched:
                self.fetched[stream, core, layer, group] = registers[Register.ENTRIES]
        return out


class BatchPart(NamedTuple):
    """A section of a batch: its host (`SystemMap.at`), its stream, its first row of the hidden states."""

    host: SystemHost
    stream: int
    first: int


def batch_steps(parts: Sequence[BatchPart], layer: int = 0) -> Iterator[tuple[BatchPart, str, int]]:
    """The phases of a layer in a batch, each with the section and the table for which it runs.

    Products take the rows of all sections, and run with the values of the first.
    """
    lead = parts[0]
    for joint, steps in groupby(lead.host.steps(layer), lambda step: step[0] in JOINT):
        if joint:
            yield from ((lead, *step) for step in steps)
            continue
        for part in parts:
            own = part.host.steps(layer)
            yield from ((part, *step) for step in own if step[0] not in JOINT)
