"""Every proof of the project: what is claimed of which unit, at which size, and what shows that it can fail."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from unittest.mock import patch

from amaranth.lib import wiring

from hdl.emit import ALL, params_of
from hdl.params import SystemParams, WtuParams, override, preset
from tb.formal import kvmu
from tb.formal.prover import MEMORIES, Proof, holds
from tb.formal.sequencer import SteadySemaphores
from tb.formal.streams import StreamMonitor, waiting

LIMIT = 600  # seconds

# Every count at or near its least, so that all wrap and overflow within a few cycles.
_SMALL = (
    *("clusters=4", "n_ctx=2", "n_hp=4", "hcu.n_w=2", "frame=2", "token_bits=3", "count_bits=3", "wtu.n_w=2"),
    *("score=e2m2", "bin_bits=3", "list_depth=2", "count_digit=2", "n_buckets=2"),
    *("blocks=4", "block_slots=2", "recent=2", "entry_bytes=8", "boundary=16", "addr_bits=8"),
    *("dpe.n_h=2", "dpe.n_w=2", "vpe.n_w=2", "w_depth=4", "x_depth=4", "vpe.depth=4", "lxe.words=2"),
    *("bus_bytes=4", "burst_bytes=8", "i_depth=4", "queue=1", "bursts=1", "copies=1"),
)


@cache
def small() -> SystemParams:
    """The preset tiny, smaller."""
    return override(preset("tiny"), list(_SMALL))


@dataclass(frozen=True)
class Goal:
    """A claim about a unit.

    make : the monitor that claims it; of True, one that claims the contrary of what the claim is about: that must fail
    edit : of the RTLIL, after which the claim must fail · deep : cycles within which both must fail
    size : parameters, to be read · cut, merge, depth : as `tb.formal.prover.holds` takes them
    within : what is replaced meanwhile
    """

    unit: str
    claim: str
    size: str
    make: Callable[[bool], wiring.Component]
    edit: tuple[str, str]
    deep: int
    cut: str = "none"
    merge: bool = True
    depth: int | None = None
    within: Callable[[], AbstractContextManager] = nullcontext

    @property
    def name(self) -> str:
        """Of its waveforms."""
        return "-".join(f"{self.unit} {self.size} {self.claim}".replace("=", " ").split())

    def prove(self, limit: int = LIMIT) -> Proof:
        """Whether the claim holds. Raises `RuntimeError` if there is no answer in `limit` seconds."""
        with self.within():
            how = {"merge": self.merge, "cut": self.cut, "depth": self.depth, "limit": limit}
            return holds(self.make(False), **how, name=self.name)

    def reached(self, limit: int = LIMIT) -> Proof:
        """What the claim is about happens: false, with a waveform of it, if all is well."""
        with self.within():
            return holds(self.make(True), depth=self.deep, limit=limit, name=f"{self.name}-reached")

    def edited(self, limit: int = LIMIT) -> Proof:
        """The claim of the edited unit: false if all is well."""
        with self.within():
            return holds(self.make(False), self.edit, depth=self.deep, limit=limit, name=f"{self.name}-edited")

    def judge(self, limit: int = LIMIT) -> "Verdict":
        """All three."""
        start = time.monotonic()
        try:
            proof, reached, edited = self.prove(limit), self.reached(limit), self.edited(limit)
        except RuntimeError as e:
            return Verdict(self.unit, self.claim, self.size, "no answer", "", time.monotonic() - start, note=str(e))
        found = ["broken"] * (not proof) + ["never happens"] * bool(reached) + ["edit not seen"] * bool(edited)
        kind = found[0] if found else f"{proof.depth} cycles" if proof.depth else "unbounded"
        note = str(proof) if not proof else ""
        return Verdict(
            self.unit, self.claim, self.size, kind, proof.engine, proof.seconds, reached.depth, edited.depth, note
        )


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    kind : "unbounded", "<n> cycles", or what is wrong · seconds : of the proof alone · reached, edited : cycles
    after which what the claim is about has happened, and after which the edited unit breaks it
    """

    unit: str
    claim: str
    size: str
    kind: str
    engine: str
    seconds: float
    reached: int | None = None
    edited: int | None = None
    note: str = ""

    @property
    def fine(self) -> bool:
        """The claim holds, and could have failed."""
        return self.kind == "unbounded" or self.kind.endswith("cycles")


@dataclass(frozen=True)
class Independence:
    """No `valid` and no payload that `unit` gives depends on a `ready` of the same cycle."""

    unit: str
    size: str
    make: Callable[[], wiring.Component]
    claim: str = "no offer depends on ready"

    def judge(self, limit: int = LIMIT) -> Verdict:
        """From the netlist, which takes no solver."""
        start = time.monotonic()
        found = {out: names for out, names in waiting(self.make()).items() if names}
        kind = "broken" if found else "unbounded"
        note = "; ".join(f"{out} depends on {', '.join(sorted(names))}" for out, names in found.items())
        return Verdict(self.unit, self.claim, self.size, kind, "netlist", time.monotonic() - start, note=note)


def unread(port: str, module: str = "unit") -> tuple[str, str]:
    """An edit: `module` takes the input `port`, of one bit, for high where it reads it first."""
    return rf"(?s)(\nmodule \\top\.{module}\n.*?(?:connect \\[ABS]|switch(?: {{)?) )\\{port} \[0\]", r"\g<1>1'1"


_STABLE = ("th_hd", "ratio", "device_base", "home_base")  # inputs that the data sheets ask to be so


def unit_of(name: str, p: object = None) -> wiring.Component:
    """The unit `name` with the parameters `p`, or small ones."""
    module, cls, _ = ALL[name]
    return getattr(import_module(module), cls)(p or params_of(name, small()))


def stream_goal(unit: str, edit: tuple[str, str], deep: int, p: object = None, size: str = "", **how) -> Goal:
    """What `unit` offers stays until it is taken, whatever its memories hold."""

    def make(reach: bool) -> StreamMonitor:
        made = unit_of(unit, p)
        return StreamMonitor(made, tuple(n for n in _STABLE if hasattr(made, n)), reach)

    return Goal(unit, "an offer stays until taken", size, make, edit, deep, cut=MEMORIES, merge=False, **how)


def goals() -> Iterator[Goal | Independence]:
    """All of them, unit by unit."""
    found = [*_streams(), *_independence()]
    for unit in ALL:
        yield from (g for g in found if g.unit == unit)


def _wtus() -> Iterator[tuple[str, WtuParams]]:
    for selection in ("exact", "buckets"):
        yield f"selection={selection}", replace(small().core.dre.wtu, selection=selection)


def _independence() -> Iterator[Independence]:
    for unit in ALL:
        if unit == "wtu":
            yield from (Independence(unit, size, partial(unit_of, unit, p)) for size, p in _wtus())
        else:
            yield Independence(unit, "", partial(unit_of, unit))


def _streams() -> Iterator[Goal]:
    yield stream_goal("hcu", unread("o__ready"), 30)
    for size, p in _wtus():
        yield stream_goal("wtu", unread("o__ready", "unit.core"), 40, p, size)
    yield stream_goal("cluster_set", unread("o__ready"), 30)
    yield stream_goal("kvmu", unread("w__ready"), 40, kvmu.SMALL, "two blocks of a slot")
    yield stream_goal("dpe", unread("r_en", "unit.fifo"), 40)
    yield stream_goal("vpe", unread("o__ready"), 40)
    steady = partial(patch, "hdl.sequencer.Semaphores", SteadySemaphores)
    yield stream_goal("sequencer", unread("mul__ready"), 40, within=steady)
    yield stream_goal("feeder", unread("k__ready"), 30)
    yield stream_goal("loader", unread("ar__ready"), 30)
    yield stream_goal("storer", unread("aw__ready"), 30)
    yield stream_goal("retriever", unread("bus__ar__ready"), 40)
    yield stream_goal("arbiter", unread("o__ready", "unit.read_out"), 30)
