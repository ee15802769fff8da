"""cocotb side of the motion mask's bench: drives frames and blocks, returns beats and cycles."""

import cocotb

from openvrex.hdl.params import MaskParams
from openvrex.hdl.video.motion_mask import MotionMask, block_layout, frame_layout, row_layout
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench


@cocotb.test()
async def masks(dut):
    """Drive the "frames" and "blocks" of each of config["episodes"], with a reset before each; return its outputs.

    Blocks are integers of the bits of `block_layout`. The (idle of f, idle of i, stall) patterns of "stalls" alternate
    every 50 cycles. With "cut_at" the reset of the next episode cuts this one short after so many cycles, and it
    returns nothing.
    """
    c = config()
    p = MaskParams(**c["params"])
    bench = Bench(dut, c["seed"])
    frames, blocks = bench.source("f", frame_layout(p)), bench.source("i", block_layout(p))
    sink = bench.sink("o", row_layout(p))
    await bench.start()
    results = []
    for e in c["episodes"]:
        await bench.begin()
        frames.put(e["frames"])
        blocks.queue.extend(e["blocks"])
        rows = p.tokens * sum(f["take"] for f in e["frames"])

        def stall(e=e) -> None:
            pattern = e["stalls"][bench.cycle // 50 % len(e["stalls"])]
            frames.idle, blocks.idle, sink.stall = pattern

        def done(rows=rows) -> bool:
            return not frames.queue and not blocks.queue and len(sink.got) == rows

        steps = len(e["blocks"]) + len(e["frames"]) * (p.grid + (1 << p.size_bits) + 10) + rows
        if await bench.play(stall, done, e["cut_at"], 10 * steps + 500):
            counts = bench.counters(MotionMask.COUNTERS)
            results.append({"f": frames.sent[:], "i": blocks.sent[:], "o": sink.got[:], "perf": counts})
    result({"episodes": results})
