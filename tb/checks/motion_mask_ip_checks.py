"""Checks of the motion mask's IP block, shared by tests, mutants and coverage: masks as software asks for them."""

from dataclasses import asdict
from functools import cache
from itertools import pairwise

from openvrex.golden.program.isa import Status
from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import MaskParams
from openvrex.sim.units.motion_mask_time import MotionMaskTime
from openvrex.tb.checks.motion_mask_checks import SIZES, Frames, bits, covering, listing, masks, stream
from openvrex.tb.library.runner import Run, emit


@cache
def emitted(p: MaskParams) -> Emitted:
    return emit("motion_mask_ip", p)


def step(p: MaskParams, frames: Frames, k: int, ends: bool = True, hold: bool = False) -> dict:
    """Frame k as software describes it. ends, hold : as in the bench"""
    command, blocks = frames[k]
    beats = bits(p, frames[k : k + 1])
    motion = {"threshold": {"value": command.threshold}, "weight": {"value": command.weight}}
    flags = {name: int(getattr(command, name)) for name in ("leads", "take", "accumulate")}
    registers = {
        "size": {"width": command.width, "height": command.height},
        "blocks": {"value": len(blocks)},
        **(motion if p.residuals else {"threshold": {"value": command.limit}}),
        "frame": flags,
    }
    told = [{"data": beat, "last": int(i == len(beats) - 1)} for i, beat in enumerate(beats)]
    return {"registers": registers, "stream": told, "ends": ends, "hold": hold, "reset_after": 20}


def play(unit: Emitted, p: MaskParams, steps: list[dict], idle=0.0, stall=0.0, polls=False, seed=1, **how) -> dict:
    c = {"params": asdict(p), "frames": steps, "idle": idle, "stall": stall, "polls": polls}
    return Run(unit, "bench_motion_mask_ip", "frames", c, seed, **how)()


def check_masks(p: MaskParams, frames: Frames, got: list[dict]) -> None:
    """Rows, their number of kept tokens, and the status are golden's."""
    assert [one["code"] for one in got] == [Status.DONE] * len(frames)
    wants, rows = iter(masks(p, frames)), iter(listing(p, frames))
    for (command, _), one in zip(frames, got, strict=True):
        whole, tokens = next(wants) if command.take else (False, None)
        own = [next(rows) for _ in range(p.tokens if command.take else 0)]
        assert [{"tokens": t, "whole": w, "last": last} for _, t, w, last in one["o"]] == own
        assert (one["tokens"], one["whole"]) == (0 if tokens is None else int(tokens.sum()), int(whole))


def check_cycles(p: MaskParams, frames: Frames, got: list[dict]) -> None:
    """From the START of each frame on, blocks and rows move in the cycles of the time view."""
    want = MotionMaskTime(p).run((c, len(b)) for c, b in frames)
    i, o = iter(want.i), iter(want.o)
    for (command, blocks), first, one in zip(frames, want.f, got, strict=True):
        assert [c - one["f"] for c in one["i"]] == [next(i) - first for _ in blocks]
        assert [c - one["f"] for c, *_ in one["o"]] == [next(o) - first for _ in range(p.tokens if command.take else 0)]


BINS = {
    *("leads", "accumulate", "taken", "not taken", "no block", "another size", "whole", "in part", "empty"),
    *("interrupt", "polls"),
}


def bins(frames: Frames, got: list[dict], polls: bool) -> set[str]:
    """What a run reaches, from software's view."""
    hit = {"polls" if polls else "interrupt"}
    for (command, blocks), one in zip(frames, got, strict=True):
        hit |= {name for name in ("leads", "accumulate") if getattr(command, name)}
        hit |= {"taken" if command.take else "not taken"} | ({"no block"} if not len(blocks) else set())
        if command.take:
            hit.add("whole" if one["whole"] else "in part" if one["tokens"] else "empty")
    sizes = [(command.width, command.height) for command, _ in frames]
    return hit | ({"another size"} if any(a != b for a, b in pairwise(sizes)) else set())


def check_equals_golden_and_time_view(size: str, record_property, unit: Emitted | None = None, **how) -> None:
    """Under stalls golden's masks, at full rate the cycles of the time view, too. All bins are hit."""
    p = SIZES[size]
    unit = unit or emitted(p)
    stalled, steady = stream(p, 3, 20) + covering(p, 2, 6), covering(p, 3, 6) + stream(p, 4, 14)
    got = play(unit, p, [step(p, stalled, k) for k in range(len(stalled))], 0.4, 0.4, seed=2, **how)
    check_masks(p, stalled, got["frames"])
    taken = sum(c.take for c, _ in stalled)
    hit = bins(stalled, got["frames"], False)
    assert got["perf"] == {"frames": len(stalled), "blocks": sum(len(b) for _, b in stalled), "masks": taken}
    got = play(unit, p, [step(p, steady, k) for k in range(len(steady))], polls=True, **how)
    check_masks(p, steady, got["frames"])
    check_cycles(p, steady, got["frames"])
    hit |= bins(steady, got["frames"], True)
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit == BINS, BINS - hit


def check_a_wrong_number_of_blocks_is_refused(unit: Emitted | None = None, **how) -> None:
    """Too few, too many, a last block that does not say so; resets while blocks are missing, and while a mask waits to
    be taken, which it still is. Then masks equal golden again, from a GOP on.
    """
    p = SIZES["tiny"]
    wrong = [f for f in covering(p, 5, 4) if len(f[1]) > 3]
    few, many, mute = (step(p, wrong, 0) for _ in range(3))
    del few["stream"][1]
    many["stream"].insert(1, many["stream"][0])
    mute["stream"][-1]["last"] = 0
    missing = step(p, wrong, 0, ends=False)
    del missing["stream"][2:]
    missing["stream"][-1]["last"] = 0
    held, whole = wrong[:1], covering(p, 6, 3)
    assert held[0][0].take
    waits = step(p, held, 0, ends=False, hold=True)
    waits["reset_after"] = 100
    steps = [few, many, mute, missing, waits]
    got = play(unit or emitted(p), p, [*steps, *(step(p, whole, k) for k in range(3))], **how)["frames"]
    assert [one["code"] for one in got[:5]] == [Status.RANGE] * 3 + [Status.RUNNING] * 2
    assert not any(one["o"] for one in got[:4])
    assert [{"tokens": t, "whole": w, "last": last} for _, t, w, last in got[4]["o"]] == listing(p, held)
    check_masks(p, whole, got[5:])
