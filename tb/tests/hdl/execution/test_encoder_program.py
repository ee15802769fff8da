"""A vision encoder on the RTL of a core: every byte of memory equals golden after each program."""

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from openvrex.golden.program.encoder_compiler import EncoderShape
from openvrex.golden.program.isa import Status, encode
from openvrex.hdl.bus.arbiter import Arbiter
from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import SystemParams
from openvrex.sim.units.lxe_time import Run as TimeRun
from openvrex.sim.units.sequencer_time import trace
from openvrex.tb.checks.lxe_time_checks import differences
from openvrex.tb.library.lxe_programs import Script, image
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.small_encoder import SHAPE, encoder, model, patches
from openvrex.tb.library.small_models import PORTS, params
from openvrex.tb.library.small_models import SIZES as CORE

# As the golden tests; heads of two words and slices of K; one token and one patch, whose products are single rows.
LONG = replace(SHAPE, width=16, ffn=96, layers=1, extra=2, projector=(8,))
# So many rows that some sums of slices stay in banks A and C, and others go through memory; rows come before weights.
MANY = replace(LONG, heads=4, side=8, extra=0, shown=0)
# Enough tiles for each of four cores to have as many in all products.
WIDE = replace(SHAPE, width=16, heads=4, layers=1, projector=(16,))
ONE = EncoderShape(layers=1, width=4, heads=1, ffn=4, side=1, patch=3, extra=0, shown=0, cells=1, projector=(4,))


@cache
def emitted() -> Emitted:
    return emit("core", params())


@pytest.mark.parametrize(
    "shape",
    [SHAPE, LONG, pytest.param(MANY, marks=pytest.mark.nightly), ONE],
    ids=["two layers", "slices", "many", "one patch"],
)
def test_pictures_equal_golden(shape):
    """Two pictures one after the other, with pauses on every port."""
    own = encoder(shape, params().lxe_format(), model(shape, 3))
    host, seen = own.host, []
    script = Script(host.memory, [r.name for r in host.memory.regions])
    for seed in (1, 2):
        host.begin(patches(shape, seed))
        for step in host.steps():
            [program] = step.programs
            script.add(program, step.registers[0])
            own.run(step)
            script.expect()
        seen.append(host.embeddings.copy())
    ran, after = script.play(emitted(), PORTS, 0.1)
    assert not script.differences(ran, after)
    assert not np.array_equal(*seen)


@pytest.mark.parametrize(("cores", "shape"), [(2, SHAPE), pytest.param(4, WIDE, marks=pytest.mark.nightly)])
def test_cores_read_rows_together(cores, shape):
    """Bytes equal golden; rows of products come over the memory port once for each group of cores."""
    p = SystemParams(params(), cores, common=True)
    own = encoder(shape, p.core.lxe_format(), model(shape, 3), cores, common=True)
    host, programs, phases, wants, groups = own.host, [], [], [], []
    host.begin(patches(shape, 1))
    first = image(host.memory)
    for step in host.steps():
        starts = []
        for core, program in enumerate(step.programs):
            if program is not None:
                words = [f"{encode(i):x}" for i in program]
                programs += [words] * (words not in programs)
                starts.append([core, programs.index(words), step.registers[core]])
        work = host.bases["vision work"] // 4096
        together = {"common_base": work, "common_limit": work + host.plans[0].together // 4096}
        groups.append(step.group)
        inputs = {"common_log2": step.group.bit_length() - 1} | together
        phases.append({"starts": starts, "writes": [], "errors": [], "inputs": inputs})
        own.run(step)
        wants.append([(r.data.copy(), r.unknown) for r in host.memory.regions])
    reads = {}
    for common in (True, False):
        off = {"common_log2": 0}
        some = phases if common else [one | {"inputs": one["inputs"] | off} for one in phases]
        got = played(p, programs, some, first)
        assert [s["code"] for one in got["phases"] for s in one["status"]] == [Status.DONE] * cores * len(phases)
        for memory, want in zip(got["images"], wants, strict=True):
            for r, (data, unknown) in zip(host.memory.regions, want, strict=True):
                wrong = memory[r.base : r.end] != data
                assert not (wrong if unknown is None else wrong & ~unknown).any(), r.name
        counters = int(got["arbiter"], 16)
        reads[common] = dict(zip(Arbiter.counters(), (counters >> 32 * k & 0xFFFFFFFF for k in range(6)), strict=True))
    assert max(groups) == cores
    assert reads[True]["read_beats"] < 0.9 * reads[False]["read_beats"]
    assert reads[True]["write_beats"] == reads[False]["write_beats"]


def played(p: SystemParams, programs: list, phases: list, first: np.ndarray) -> dict:
    """Phases on the RTL of a system, and "images", the memory after each."""
    unit, cores = emit("system", p), p.cores
    unit = replace(unit, manifest=unit.manifest | {"leaves": {"system_core": 8}})  # its core is built once
    none = ("th_hd", "ratio", "device_base", "home_base", "table_base", "blocks", "contexts")
    config = {"params": list(CORE), "cores": cores, "common": True, "programs": programs, "phases": phases}
    config |= {
        "memory_ports": p.ports,
        "memory": "own",
        "latency": (1, 30),
        "pause": 0.1,
        "cut_at": 0,
        "limit": 200_000,
    }
    config |= {"ports": {name: [0] * cores for name in none}, "counters": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "memory.bin")
        first.tofile(path)
        got = Run(unit, "bench_system", "phases", config | {"data": str(path)}, 1)()
        return got | {"images": np.fromfile(path, np.uint8).reshape(-1, len(first))[1:]}


def test_cycles_are_those_of_the_time_view():
    """Every transfer of a layer's programs; the simulator's times of an encoder come from this view."""
    latency, own = 9, encoder(SHAPE, params().lxe_format(), model(SHAPE, 3))
    own.host.begin(patches(SHAPE, 1))
    steps = list(own.host.steps())[1:3]
    programs = [(step.programs[0] or [], step.registers[0]) for step in steps]
    config = {
        "params": list(CORE),
        "runs": [{"program": [f"{encode(i):x}" for i in p], "registers": r, "writes": []} for p, r in programs],
        "memory": bytes(1 << 17).hex(),
        "ports": dict.fromkeys(("th_hd", "ratio", "device_base", "home_base"), 0),
        "latency": latency,
        "counters": emitted().manifest["counters"],
    }
    got = Run(emitted(), "bench_lxe_time", "timed", config)()["runs"]
    for (program, registers), ran in zip(programs, got, strict=True):
        view = TimeRun(params(), latency, trace(params(), [encode(i) for i in program], registers).steps, detail=True)
        view.play()
        assert not differences(view, ran)
