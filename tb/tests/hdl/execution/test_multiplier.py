"""Multiplier: every MUL is told done once, in order, and not before the DPE has read it."""

import random

import pytest

from openvrex.hdl.execution.multiplier import Multiplier
from openvrex.hdl.params import preset
from openvrex.tb.library.simulated import simulated


def play(muls: list[dict], seed: int, limit: int = 4000) -> tuple[list[int], list[int]]:
    """Signals of what is done, and how many reads each end came after; each read comes a cycle or more after its
    command, one a cycle."""
    dut, rng = Multiplier(preset("tiny").core), random.Random(seed)
    done, reads = [], []

    async def bench(ctx):
        todo, running, read = list(muls), 0, 0
        for _ in range(limit):
            offer = bool(todo) and rng.random() < 0.8
            ctx.set(dut.i.valid, offer)
            if offer:
                ctx.set(dut.i.payload.skip, todo[0]["skip"])
                ctx.set(dut.i.payload.signal, todo[0]["signal"])
            ctx.set(dut.c.ready, rng.random() < 0.7)
            pulse = running > 0 and rng.random() < 0.6
            ctx.set(dut.read, pulse)
            running, read = running - pulse, read + pulse
            if ctx.get(dut.done.valid):
                done.append(ctx.get(dut.done.signal))
                reads.append(read)
            taken = offer and ctx.get(dut.i.ready)
            running += ctx.get(dut.c.valid) and ctx.get(dut.c.ready)
            await ctx.tick()
            todo = todo[1:] if taken else todo
            if len(done) == len(muls):
                return

    simulated(dut, bench)
    return done, reads


@pytest.mark.parametrize("seed", range(6))
def test_every_instruction_is_done_once_and_in_order(seed):
    """Also where reads follow each other while skipped instructions stand between them."""
    rng = random.Random(seed)
    muls = [{"skip": int(rng.random() < 0.1 * seed), "signal": rng.getrandbits(16)} for _ in range(200)]
    done, reads = play(muls, seed)
    assert done == [m["signal"] for m in muls]
    needs = 0
    for m, read in zip(muls, reads, strict=True):
        needs += not m["skip"]
        assert read >= needs
