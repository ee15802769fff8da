"""A plan of few stages on a golden LXE, alone, with three regions of memory."""

from typing import Any

import numpy as np

from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.layers_in_memory import MemoryMap
from openvrex.golden.program.lxe_model import Lxe, Memory


class PlanRun:
    """A plan with its memory.

    plan : its arrays start at the addresses in the registers OUT, WEIGHTS and KV
    sizes : names and bytes of the regions behind these registers, in this order; each at a multiple of 4,096 bytes
    """

    def __init__(self, plan: Any, sizes: dict[str, int]):
        self.plan = plan
        own = MemoryMap(4096)
        bases = zip((Register.OUT, Register.WEIGHTS, Register.KV), sizes.items(), strict=True)
        self.registers = {int(register): own.add(*one) for register, one in bases} | {int(Register.REST): 0}
        self.memory = Memory(own.regions)
        self.lxe = Lxe(plan.fmt, self.memory)

    def put(self, name: str, x: np.ndarray) -> None:
        """Write an array of the plan."""
        array = self.plan[name]
        self.memory.put(self.registers[array.base] + array.offset, x.astype(array.dtype).reshape(array.shape))

    def get(self, name: str) -> np.ndarray:
        """Read an array of the plan."""
        array = self.plan[name]
        return self.memory.get(self.registers[array.base] + array.offset, array.shape, array.dtype)
