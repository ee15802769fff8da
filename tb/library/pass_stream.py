"""What `vrex run` plays: passes, one program run on a core after the other, which golden executes on one memory.

A host of golden's implements `PassStream`, and `tb.library.pass_engine` plays it: golden gives the memory before and
after each pass, and the RTL starts each pass from golden's memory, after a reset. So passes run on the RTL in any order
and in several processes, and a run goes on where it was stopped.

Nothing on the chip outlives a pass. `registers` therefore holds every register that the program reads before it sets
it, also one that the pass before has left, and a pass that needs a context begins with a SWITCH.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Packing
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.program.core_model import Core
from openvrex.golden.program.isa import Instruction
from openvrex.golden.program.layer_memory import LayerShape
from openvrex.golden.program.lxe_model import Memory, Result
from openvrex.hdl.params import CoreParams


@dataclass(frozen=True)
class Place:
    """An array in memory, by which messages name an address: its first byte, shape, type.

    A place of raw bytes (a table, offload memory) is an array of uint8.
    """

    name: str
    address: int
    shape: tuple[int, ...]
    dtype: type

    @property
    def size(self) -> int:
        """Its bytes."""
        return int(np.prod(self.shape)) * self.item

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize


def idle_core(p: CoreParams, memory: Memory) -> Core:
    """A golden core whose DRE holds nothing, for programs that ask it for nothing."""
    return Core(p.lxe_format(), memory, p.dre.sizes(blocks=1).model(p.dre.function()))


def idle_ports(p: CoreParams) -> dict[str, int]:
    """The constant inputs of such a core (`PassStream.ports`)."""
    f = p.dre.function()
    none = dict.fromkeys(("device_base", "home_base", "table_base", "contexts"), 0)
    return {"th_hd": f.th_hd, "ratio": f.ratio_q16, "blocks": 1, **none}


def layer_shape(decoder: Decoder, packing: Packing | None, tokens: int, recent: int, entries: int = 0) -> LayerShape:
    """That of a decoder's layers, on passes of up to `tokens` tokens."""
    return LayerShape(
        width=decoder.embeddings.shape[1],
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        head_size=decoder.head_size,
        ffn=decoder.layers[0]["ffn_down"].shape[0],
        tokens=tokens,
        recent=recent,
        entries=entries,
        epsilon=float(decoder.epsilon),
        packing=packing,
    )


def distance(got: np.ndarray, want: np.ndarray) -> float:
    """How far hidden states are from those in FP32, relative to their length."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def arrays(plan: Any) -> list[Any]:
    """The arrays of a layer, whose plan has the spaces `work`, `weights` and `kv`."""
    return [a for space in (plan.work, plan.weights, plan.kv) for a in space.arrays.values()]


def places(given: Iterable[tuple[Any, int]], memory: Memory) -> list[Place]:
    """Arrays with their addresses, then the regions of memory."""
    own = [Place(a.name, at, a.shape, a.dtype) for a, at in given]
    return own + [Place(r.name, r.base, (r.size,), np.uint8) for r in memory.regions]


@dataclass(frozen=True)
class Pass:
    """One run of a program.

    name : of the pass in messages and records: "frame 0, layer 1". No two passes of a stream have the same
    program : its instructions, up to HALT. Passes of one shape share one list
    registers : values at the start, by number of the register; those that are not named are 0
    run : executes the program on the stream's core, and writes the tables to its memory; raises `LxeError`
    facts : figures of the pass for its record, in JSON's types: what golden knows after `run`, such as the number of
        clusters
    places : the arrays that a message may name. Where several hold an address, it names the first
    stages : the stage of each instruction, whose cycles the pass's record then has; empty: none
    step : what the stream's host runs

    The engine calls, in this order, `run`, `facts` and `places`. It calls none of them for a pass that an earlier run
    of the command has executed on golden.
    """

    name: str
    program: Sequence[Instruction]
    registers: dict[int, int]
    run: Callable[[], Result]
    facts: Callable[[Result], dict[str, Any]]
    places: Callable[[], list[Place]]
    stages: Sequence[str] = ()
    step: Any = None


class PassStream(Protocol):
    """Passes in program order, all on one golden core.

    core : golden's core. Its memory's regions do not change in number, place or size. When iteration begins, memory
        holds what is written once: weights, constants. Those bytes become the run's image
    ports : values of the inputs of the RTL core that stay constant: `th_hd`, `ratio`, `device_base`, `home_base`,
        `table_base`, `blocks`, `contexts`

    Iteration yields each pass after the host has written its inputs to `core.memory`. When the iterator goes on, golden
    has executed that pass, or an earlier run of the command has: then the engine has restored memory, and before golden
    executes again, registers and DRE. So the host keeps no other state that `run` changes, and takes decisions from
    memory alone. For example, it reads a generated token there. The stream ends where the iterator ends: after the last
    pass, or behind an end-of-text token.
    """

    @property
    def core(self) -> Core: ...
    @property
    def ports(self) -> dict[str, int]: ...

    def __iter__(self) -> Iterator[Pass]: ...
