"""Base classes of units: parameters, performance counters, the error pulses of their memories."""

from amaranth import Module, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out

from openvrex.hdl.memory import error_members
from openvrex.hdl.named import reg

COUNTER_BITS = 32  # of a performance counter


class Unit(wiring.Component):
    """A component with performance counters, and with error pulses if its memories are protected.

    A unit lists its events in `COUNTERS`, and counts each with one of the methods below or beside the event.

    Parameters
    ----------
    p : parameters of the unit
    members : its other ports
    protects : protection of each of its memories

    Members
    -------
    perf : Out(struct of 32-bit counters modulo 2^32) : one for each of `COUNTERS`
    error : Out(2) : as in `hdl.memory.error_members`

    Latency: a counter includes an event in the cycle after it, or in the one after that.
    Throughput: an event of each kind every cycle.
    Raises: nothing of its own.
    Source: this project's own.
    """

    COUNTERS = ()

    def __init__(self, p: object, members: dict[str, wiring.Member], *protects: str):
        self.p = p
        perf = Out(data.StructLayout(dict.fromkeys(self.counters(), COUNTER_BITS)))
        super().__init__({**members, "perf": perf, **error_members(*protects)})

    @classmethod
    def counters_of(cls, p: object) -> list[str]:
        """Names of the performance counters of a unit with these parameters."""
        return list(cls.COUNTERS)

    @classmethod
    def counters(cls) -> list[str]:
        """Names of the performance counters in `perf`."""
        return list(cls.COUNTERS)

    def _count(self, m: Module, **events: Value) -> None:
        """Adds each event to its counter."""
        for name, event in events.items():
            m.d.sync += self.perf[name].eq(self.perf[name] + event)

    def _count_when(self, m: Module, **events: Value) -> None:
        """The same, with an enable of the counter's register."""
        for name, event in events.items():
            with m.If(event):
                m.d.sync += self.perf[name].eq(self.perf[name] + 1)

    def _count_later(self, m: Module, **events: Value) -> None:
        """The same a cycle later, for events that come late in a cycle: each drives 32 bits."""
        for name, event in events.items():
            counted = reg(m, f"counted_{name}", event, reset_less=False)
            with m.If(counted.any() if len(counted) > 1 else counted):
                m.d.sync += self.perf[name].eq(self.perf[name] + counted)


class Composite(Unit):
    """A unit made of other units: its counters and formulas are theirs, named unit.counter.

    Parameters
    ----------
    p, members, protects : as in `Unit`

    Members
    -------
    perf, error : as in `Unit`

    Latency: none of its own.
    Throughput: that of the units.
    Raises: nothing of its own.
    Source: this project's own.
    """

    @staticmethod
    def units(p: object) -> list[tuple[str, type, object]]:
        """Instance name, class and parameters of every unit inside that counts its events."""
        raise NotImplementedError

    @classmethod
    def counters_of(cls, p: object) -> list[str]:
        """Names of the performance counters of a unit with these parameters."""
        return [f"{name}.{counter}" for name, unit, own in cls.units(p) for counter in unit.counters_of(own)]

    def counters(self) -> list[str]:
        """Names of the performance counters in `perf`."""
        return self.counters_of(self.p)

    @classmethod
    def timing(cls, p: object) -> dict[str, str]:
        """Formulas for the manifest."""
        return {f"{name}.{key}": text for name, unit, own in cls.units(p) for key, text in unit.timing(own).items()}

    def _pass_counters(self, m: Module, parts: dict[str, Unit]) -> None:
        """Connects the counters of each part to those of the whole."""
        for name, part in parts.items():
            for counter in part.counters():
                m.d.comb += self.perf[f"{name}.{counter}"].eq(part.perf[counter])
