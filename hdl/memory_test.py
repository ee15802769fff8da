"""Test ports of memories (`vrex generate --bist`): a bus on which a controller of memory tests reaches every macro."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.hdl import Fragment

from openvrex.hdl.writer.amaranth_private import PortDirection

PATTERN = 8  # bits of a pattern: bit k stands in bits k, k + 8, ... of a word, check bits included
MEANING = {
    "bist_enable": "memories obey these ports and not the unit; reset the unit afterwards",
    "bist_write": "write bist_data to the selected memories",
    "bist_read": "read a word of the selected memories, in a cycle without bist_write",
    "bist_address": "of the word, below the words of every selected memory",
    "bist_data": f"pattern to write: bit k in bits k, k + {PATTERN}, ... of the word",
    "bist_expect": "pattern that the last word read must have",
    "bist_compare": "compare that word, from the cycle after its bist_read on",
    "bist_select": "a bit for each memory, those that take part; `bist` of a memory in the manifest is its bit",
    "bist_fail": "a bit for each memory: it was compared, and differs",
}


class MemoryTest:
    """The test ports of one module: those of its memories, and of its leaves that hold memories.

    Amaranth carries the signals of the bus through the hierarchy. Everything is combinational: while `bist_enable` is
    0 a unit is the one without these ports.
    """

    def __init__(self) -> None:
        self.enable, self.write, self.read, self.compare = (
            Signal(name=f"bist_{name}") for name in ("enable", "write", "read", "compare")
        )
        self.data, self.expect = (Signal(PATTERN, name=f"bist_{name}") for name in ("data", "expect"))
        self._select: list[Signal] = []
        self._address: list[Signal] = []
        self._fail: list[Signal] = []

    @property
    def memories(self) -> int:
        """Memories so far, those of leaves included."""
        return sum(map(len, self._select))

    def reach(self, memories: int, address: int) -> tuple[Signal, Signal, Signal]:
        """Selects, address, and fails of so many more memories, the longest with an address of so many bits."""
        made = Signal(memories, name="select"), Signal(address, name="address"), Signal(memories, name="fail")
        for kept, one in zip((self._select, self._address, self._fail), made, strict=True):
            kept.append(one)
        return made

    def hook(self, m: Module, ports: dict[str, Value], single: bool) -> dict[str, Value]:
        """The ports of one memory's macro behind those of its wrapper; `m` takes the logic.

        ports : of the wrapper, by the names of the kind's module in `hdl/memories.v` · single : it has one port
        """
        lanes, width = len(ports["write" if single else "w_en"]), len(ports["w_data"])
        select, address, fail = self.reach(1, len(ports["addr" if single else "w_addr"]))
        writes, reads = select & self.write, select & self.read
        if single:
            ours = {"en": writes | reads, "write": writes.replicate(lanes), "addr": address}
        else:
            ours = {"w_en": writes.replicate(lanes), "w_addr": address, "r_en": reads, "r_addr": address}
        ours["w_data"] = self._word(self.data, width)
        pins = {name: Signal.like(ports[name], name=f"macro_{name}") for name in ours}
        m.d.comb += [pin.eq(Mux(self.enable, ours[name], ports[name])) for name, pin in pins.items()]
        m.d.comb += fail.eq(select & self.compare & (ports["r_data"] != self._word(self.expect, width)))
        return ports | pins

    @staticmethod
    def _word(pattern: Signal, width: int) -> Value:
        return Cat(pattern for _ in range(-(-width // PATTERN)))[:width]

    def wires(self, memories: int, address: int) -> dict[str, Value]:
        """The wires to the test ports of a leaf with so many memories."""
        select, to, fail = self.reach(memories, address)
        names = ("enable", "write", "read", "compare", "data", "expect")
        wires = {f"i_bist_{name}": getattr(self, name) for name in names}
        return wires | {"i_bist_address": to, "i_bist_select": select, "o_bist_fail": fail}

    def ports(self, fragment: Fragment) -> dict[str, tuple[Signal, PortDirection]]:
        """The test ports of the module that `fragment` is, none without memories; `fragment` takes their wiring."""
        if not self.memories:
            return {}
        address = Signal(max(map(len, self._address)), name="bist_address")
        select, fail = (Signal(self.memories, name=f"bist_{name}") for name in ("select", "fail"))
        fragment.add_statements("comb", [Cat(self._select).eq(select), fail.eq(Cat(self._fail))])
        fragment.add_statements("comb", [own.eq(address) for own in self._address])
        inputs = (self.enable, self.write, self.read, address, self.data, self.expect, self.compare, select)
        found = {signal.name: (signal, PortDirection.Input) for signal in inputs}
        return found | {"bist_fail": (fail, PortDirection.Output)}


def listed(ports: dict[str, tuple[Signal, PortDirection]]) -> list[dict]:
    """Test ports as the manifest has them."""
    directions = {PortDirection.Input: "in", PortDirection.Output: "out"}
    return [{"name": name, "dir": directions[way], "width": len(signal)} for name, (signal, way) in ports.items()]
