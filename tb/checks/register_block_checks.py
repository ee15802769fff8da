"""Checks of the register block, shared by tests, mutants and coverage."""

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Self

from openvrex.hdl.emit import Emitted, to_verilog
from openvrex.hdl.ports import ports
from openvrex.hdl.shells.register_block import RegisterBlock, address_map
from openvrex.tb.library.runner import Run
from openvrex.tb.library.stress_traffic import StressTraffic
from openvrex.tb.library.transfer_traffic import params

SIZES = {"tiny": [], "wide": ["addr_bits=36"], "cores": ["wtu.n_h=3", "lxe.i_depth=2"]}
KINDS = {
    *(
        "raised done",
        "raised fault",
        "raised corrected",
        "irq",
        "read OKAY",
        "read SLVERR",
        "write OKAY",
        "write SLVERR",
    ),
    *("window", "register", "part", "whole", "several", "limit OKAY", "limit SLVERR", "quiet SLVERR"),
}


@cache
def emitted(size: str, name: str) -> Emitted:
    """A register block without the unit behind it."""
    block = RegisterBlock(address_map(name, params(SIZES[size])))
    return Emitted(to_verilog(block, "register_block"), "register_block", {"ports": ports(block)})


def run(size: str, name: str, seed: int = 1, unit: Emitted | None = None, count: int = 900, **how) -> set[str]:
    config = {"map": name, "params": SIZES[size], "count": count}
    return set(Run(unit or emitted(size, name), "bench_register_block", "accesses", config, seed, **how)()["kinds"])


@dataclass
class RandomTraffic(StressTraffic):
    """Random accesses to the registers of a core's or a DRE's block, which the bench compares one by one."""

    size: str
    name: str
    seed: int
    count: int = 900

    @classmethod
    def random(cls, rng: Random) -> Self:
        return cls(rng.choice(list(SIZES)), rng.choice(("core_ip", "dre_ip")), rng.randrange(1 << 31))

    def play(self) -> Any:
        run(self.size, self.name, self.seed, count=self.count)

    def check(self, got: Any) -> int:
        return self.count


def check_accesses_are_as_described(size, name, record_property):
    kinds = run(size, name)
    record_property("bins", ", ".join(sorted(kinds)))  # for `vrex report`
    assert kinds == KINDS


def check_cycles_are_those_of_the_data_sheet():
    c = {"address": address_map("core_ip", params([])).find_by_path("watchdog").absolute_address}
    got = Run(emitted("tiny", "core_ip"), "bench_register_block", "cycles", c)()
    assert (got["write"], got["late_data"], got["late_address"], got["read"]) == (2, 2, 2, 2)
    assert set(got["writes"]) == {2}
    assert set(got["reads"]) == {3}
    assert got["bytes"] == [0, 0x00FF00FF, 0, 0xFF00FF00]


def check_accesses_by_hand(name):
    """What a tidy host does not do; the bench compares."""
    config = {"map": name, "params": SIZES["tiny"]}
    Run(emitted("tiny", name), "bench_register_block", "by_hand", config)()
