"""cocotb side of the codec's bench: bursts that pack or expand, a buffer to read from, and a bus that stalls."""

import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import bits_of

EVENTS = ("reads", "gives", "again", "makes")


class Player:
    """Plays bursts, one after the other, over the beats of a buffer.

    next, left : the beat of the buffer that is read next, and the first that has not left
    """

    def __init__(self, dut, beats: list[int], seed: int):
        self.dut, self.beats, self.rng = dut, beats, random.Random(seed)
        self.next = self.left = self.stored = 0
        self.events = [name for name in EVENTS if hasattr(dut, name)]

    async def reset(self, then: int = 0) -> None:
        """Resets the codec; the next burst begins with the beat `then` of the buffer."""
        dut = self.dut
        await FallingEdge(dut.clk)
        for name in ("starts", "packs", "runs", "ends"):
            getattr(dut, name).value = 0
        dut.rst.value = 1
        for _ in range(2):
            await FallingEdge(dut.clk)
        dut.rst.value = 0
        self.next = self.left = then

    async def burst(self, packs: int, beats: int, stall: float, cut: int, limit: int) -> dict:
        """Play a burst of `beats`, or its first `cut` cycles; the beats made, and the cycles of what the codec asked.

        Only cycles in which the codec may go on count. Each must end in a beat within `limit` cycles.
        """
        dut, out, t, waits = self.dut, {name: [] for name in self.events}, 0, 0
        made: list[int] = []
        while len(out["makes"]) < beats or len(made) < beats:
            await FallingEdge(dut.clk)
            more = len(out["makes"]) < beats
            moves = t == 0 or self.rng.random() >= stall
            dut.starts.value = int(t == 0)
            dut.packs.value = packs if t == 0 else self.rng.getrandbits(1)  # it counts at the start alone
            dut.runs.value = int(t > 0 and more and moves)
            dut.ends.value = int(t > 0 and len(out["makes"]) == beats - 1)
            dut.stored.value = self.stored
            await ReadOnly()
            if len(made) < len(out["makes"]) and moves:  # the bus takes a beat late, if it stalls
                made.append(bits_of(dut.o))
            asked = [name for name in self.events if bits_of(getattr(dut, name))]
            assert moves or not asked, f"{asked} while it must wait"
            for name in asked:
                out[name].append(t)
            self._answer(asked)
            waits = 0 if "makes" in asked else waits + moves
            t += moves
            if waits > limit or t == cut:
                break
        return {"made": [f"{x:x}" for x in made], "left": self.left, **out}

    def _answer(self, asked: list[str]) -> None:
        """What the buffer does at the end of a cycle."""
        if "again" in asked:
            self.next = self.left
        if "reads" in asked:
            self.stored = self.beats[self.next] if self.next < len(self.beats) else 0
            self.next += 1
        self.left += "gives" in asked


@cocotb.test()
async def converts(dut):
    """Play config["bursts"]: (packs, beats, cut, then). A burst with a `cut` ends with a `reset(then)`."""
    c = config()
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    player, out = Player(dut, [int(x, 16) for x in c["beats"]], c["seed"]), []
    dut.stored.value = 0
    await player.reset()
    for packs, beats, cut, then in c["bursts"]:
        out.append(await player.burst(packs, beats, c["stall"], cut, c["limit"]))
        if cut:
            await player.reset(then)
    result({"bursts": out})
