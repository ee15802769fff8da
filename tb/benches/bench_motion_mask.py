"""cocotb side of the motion mask's bench: drives frames and blocks, returns beats and cycles."""

import cocotb

from openvrex.hdl.params import MaskParams
from openvrex.hdl.video.motion_mask import MotionMask, block_layout, frame_layout, row_layout
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of


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
        await bench.reset()
        sink.got.clear()
        for source in (frames, blocks):
            source.sent.clear()
        frames.put(e["frames"])
        blocks.queue.extend(e["blocks"])
        rows = p.tokens * sum(f["take"] for f in e["frames"])

        def stall(e=e) -> None:
            pattern = e["stalls"][bench.cycle // 50 % len(e["stalls"])]
            frames.idle, blocks.idle, sink.stall = pattern

        def done(stall=stall, rows=rows) -> bool:
            stall()
            return not frames.queue and not blocks.queue and len(sink.got) == rows

        stall()
        if e["cut_at"]:
            while bench.cycle < e["cut_at"]:
                stall()
                await bench.step()
            continue
        steps = len(e["blocks"]) + len(e["frames"]) * (p.grid + (1 << p.size_bits) + 10) + rows
        await bench.run(done, limit=10 * steps + 500)
        for _ in range(20):  # nothing more may come
            await bench.step()
        perf = bits_of(dut.perf)
        counts = {n: perf >> 32 * k & 0xFFFFFFFF for k, n in enumerate(MotionMask.COUNTERS)}
        results.append({"f": frames.sent[:], "i": blocks.sent[:], "o": sink.got[:], "perf": counts})
    result({"episodes": results})
