"""What hosts of compiled programs share: regions one after the other, and a layer's arrays by name."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from openvrex.golden.program.bus_memory import Memory, Region
from openvrex.golden.program.layer_compiler import LayerPlan
from openvrex.golden.program.layer_memory import Array, Register
from openvrex.golden.program.stage_plan import Plan


@dataclass
class MemoryMap:
    """Regions of a memory, one behind the other from address 0, each at a multiple of `align` bytes."""

    align: int = 1
    regions: list[Region] = field(default_factory=list)

    def add(self, name: str, size: int) -> int:
        """Place a region behind the others; its first address."""
        end = self.regions[-1].end if self.regions else 0
        base = -(-end // self.align) * self.align
        self.regions.append(Region(name, base, size))
        return base

    def layers(self, plan: LayerPlan, number: int) -> list[dict[int, int]]:
        """Place the arrays of a pass, then of each layer its weights and its entries; the `bases` of each layer."""
        work, out = self.add("work", plan.work.size), []
        for i in range(number):
            weights, kv = self.add(f"weights {i}", plan.weights.size), self.add(f"entries {i}", plan.kv.size)
            out.append({0: work, int(Register.WEIGHTS): weights, int(Register.KV): kv})
        return out


class LayersInMemory(ABC):
    """Layers of one shape in one memory.

    bases : of each layer, addresses by the register behind which arrays lie, 0 for arrays at an address of their own
    """

    memory: Memory
    bases: list[dict[int, int]]

    @abstractmethod
    def plan_of(self, layer: int) -> Plan:
        """The plan of a layer's pass."""

    def address(self, array: Array, layer: int = 0) -> int:
        """Address of the first byte of an array of a layer."""
        return array.offset + self.bases[layer][array.base]

    def put(self, name: str, x: np.ndarray, layer: int = 0) -> None:
        """Write an array of a layer's plan. Raises `ParamError` for another shape or type."""
        array = self.plan_of(layer)[name]
        array.check(x)
        self.memory.put(self.address(array, layer), x)

    def get(self, name: str, layer: int = 0) -> np.ndarray:
        """Read an array of a layer's plan."""
        array = self.plan_of(layer)[name]
        return self.memory.get(self.address(array, layer), array.shape, array.dtype)
