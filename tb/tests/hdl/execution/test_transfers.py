"""Loader and storer behind AXI4 ports, on a memory of cocotbext-axi; bursts proved to stay within 4 KB."""

import random

import pytest

from openvrex.golden.program.isa import LoadTo, StoreTo
from openvrex.hdl.execution.loader import Loader
from openvrex.hdl.execution.storer import Storer
from openvrex.hdl.params import CoreParams
from openvrex.tb.formal.bursts_proof import BusMonitor
from openvrex.tb.formal.prover import holds
from openvrex.tb.library.runner import Run, lint
from openvrex.tb.library.transfer_traffic import (
    SIZES,
    known,
    loads,
    params,
    ported,
    random_transfers,
    same_word,
    stores,
    vpe_words,
)

HALF = 1 << 18
STRIDES = 1 << 12


def programs(p: CoreParams) -> tuple[list[dict], list[dict]]:
    """LOADs of the lower, STOREs to the upper half of a memory."""
    rng = random.Random(6)
    reads = random_transfers(p, rng, 20, list(LoadTo), LoadTo.VECTOR)
    writes = random_transfers(p, rng, 20, list(StoreTo), StoreTo.MEMORY)
    reads = [c | within(c, 0) for c in reads]
    return reads, [c | within(c, HALF) if c["target"] != StoreTo.HASH else c for c in writes]


def within(c: dict, base: int) -> dict:
    """Fields by which a transfer stays in its half of the memory."""
    return {"addr": base + c["addr"] % (HALF // 4), "stride": c["stride"] % STRIDES}


@pytest.mark.parametrize("pause", [0.0, 0.4])
def test_axi_memory(pause):
    """cocotbext-axi takes the ports by their names, and finds what was read and written where it belongs."""
    p = params(SIZES["tiny"])
    reads, writes = programs(p)
    words = vpe_words(p, random.Random(7), writes)
    config = {"params": SIZES["tiny"], "loads": reads, "stores": writes, "i": words, "pause": pause, "size": 2 * HALF}
    config["done"] = {"l_done": len(reads), "s_done": len(writes)}
    got = Run(ported(p), "bench_transfers", "copies", config)()
    want = loads(p, reads)
    merged = sorted((cycle, name[2:], beat) for name in ("l_w", "l_x", "l_v") for cycle, beat in got[name])
    assert len(merged) == len(want.words)
    assert all(same_word(p, name, beat, *w) for (_, name, beat), w in zip(merged, want.words, strict=True))
    want, memory = stores(p, writes, words), bytearray(HALF)
    merged = sorted((cycle, name[2:], beat) for name in ("s_x", "s_d") for cycle, beat in got[name])
    assert [(name, known(beat)) for _, name, beat in merged] == want.words
    addrs = (addr + k * p.lxe.bus_bytes for addr, n in want.bursts for k in range(n + 1))
    for addr, (data, *_) in zip(addrs, want.beats, strict=True):
        memory[addr - HALF : addr - HALF + p.lxe.bus_bytes] = data.to_bytes(p.lxe.bus_bytes, "little")
    assert bytes.fromhex(got["memory"]) == bytes(memory)


def test_ports_lint_clean(tmp_path):
    assert lint(ported(params([])), tmp_path) == ""


@pytest.mark.parametrize("unit", [Loader, Storer])
def test_bursts_are_proved_to_stay_within_4_kb(unit):
    """Whatever the instructions are; and what is offered on the bus stays, whatever `stop` and the responses are."""
    longest = params(["dpe.n_h=8", "n_w=8", "bus_bytes=16", "burst_bytes=4096"])
    for p in (longest, params(SIZES["narrow"])):
        assert holds(BusMonitor(unit(p)), merge=False)
    for edit in (
        (r"cell \$le ", "cell $ge "),  # the rest of a row fits in up to the boundary
        (r"assign (\$\d+) \[0\] \\(offered|aw_valid) \[0\]", r"assign \1 [0] 1'0"),  # what is not taken is forgotten
    ):
        assert not holds(BusMonitor(unit(longest)), edit, merge=False)
