"""A system of two cores: decoder layers shared out, every byte of the one memory against golden after every phase."""

import itertools
import tempfile
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from golden.arithmetic.numerics import to_bf16
from golden.function_params import ParamError, ReSVParams
from golden.program.core_compiler import RetrievalShape
from golden.program.isa import Status, encode
from golden.program.layer_compiler import LayerPlan
from golden.program.layer_host import LayerHost
from golden.program.layer_memory import LayerShape, Register
from golden.program.system_host import PHASES, SharePlan, SystemHost
from golden.retrieval.hashing import Hasher
from hdl.bus.arbiter import Arbiter
from hdl.emit import Emitted, emit
from hdl.params import SystemParams
from tb.checks.core_checks import ELSEWHERE
from tb.library.lxe_programs import image
from tb.library.runner import Run
from tb.library.transfer_traffic import params

SHAPE = LayerShape(width=16, heads=4, kv_heads=2, head_size=8, ffn=32, tokens=3, recent=8, entries=16)
SIZES = ["lxe.i_depth=512", "lxe.queue=4", "entry_bytes=32", "recent=8", "blocks=64", "clusters=8", "n_ctx=3"]
CORES = 2


@cache
def system() -> SystemParams:
    return SystemParams(params(SIZES), CORES)


@cache
def emitted() -> Emitted:
    """The system; its core is built once, as a library, in half the time of both in one piece."""
    e = emit("system", system())
    return replace(e, manifest=e.manifest | {"leaves": {"system_core": 8}})  # so often that the runner makes it one


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    s = SHAPE

    def matrix(k: int, n: int) -> np.ndarray:
        return rng.normal(size=(k, n)) * k**-0.5

    return {
        "attn_norm": 1 + rng.normal(size=s.width) / 8,
        "qkv": matrix(s.width, (s.heads + 2 * s.kv_heads) * s.head_size),
        "attn_output": matrix(s.heads * s.head_size, s.width),
        "ffn_norm": 1 + rng.normal(size=s.width) / 8,
        "gate_up": matrix(s.width, 2 * s.ffn),
        "ffn_down": matrix(s.ffn, s.width),
    }


def turns(start: int) -> tuple[np.ndarray, np.ndarray]:
    angle = (start + np.arange(SHAPE.tokens))[:, None] * 1e4 ** -(np.arange(0, SHAPE.head_size, 2) / SHAPE.head_size)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def inputs(rng: np.random.Generator, k: int) -> tuple:
    """Of pass k."""
    start = k * SHAPE.tokens
    return rng.normal(size=(SHAPE.tokens, SHAPE.width)).astype(np.float32), *turns(start), start


def hyperplanes(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(16, SHAPE.kv_heads * SHAPE.head_size))


def host(rng: np.random.Generator, **more) -> SystemHost:
    core = system().core
    function, k = replace(core.dre.function(), th_hd=2, **more), core.dre.kvmu
    planes = hyperplanes(rng)
    sizes = {"blocks": k.blocks, "block_slots": k.block_slots, "n_ctx": k.n_ctx}
    own = [RetrievalShape(n_hp=16, clusters=8, centre=function.centre)], [weights(rng)], [planes]
    return SystemHost(SHAPE, core.lxe_format(), *own, function, cores=CORES, **sizes)


@dataclass
class Script:
    """Phases on all cores, and the memory that golden leaves after each."""

    host: SystemHost
    programs: list[list[str]] = field(default_factory=list)
    phases: list[dict] = field(default_factory=list)
    wants: list[list[tuple[np.ndarray, np.ndarray | None]]] = field(default_factory=list)  # of each region

    def __post_init__(self):
        self.first = self.before = image(self.host.memory)

    def add(self, phase: str, cores=range(CORES), errors=(), failing=()) -> None:
        """A phase on some cores, with what the host has written since the last one; golden runs those not failing."""
        h, starts, now = self.host, [], image(self.host.memory)
        if not self.phases:
            self.first = self.before = now
        writes = []
        for at in np.flatnonzero((now != self.before).reshape(-1, 64).any(axis=1)) * 64:
            writes.append([int(at), now[at : at + 64].tobytes().hex()])
        for core in cores:
            words = [f"{encode(i):x}" for i in h.program(core, phase)]
            if words not in self.programs:
                self.programs.append(words)
            starts.append([core, self.programs.index(words), h.registers(core)])
        self.phases.append({"starts": starts, "writes": writes, "errors": list(errors)})
        h.run(phase, order=[core for core in cores if core not in failing])
        regions = h.memory.regions
        self.wants.append([(r.data.copy(), None if r.unknown is None else r.unknown.copy()) for r in regions])
        self.before = image(h.memory)

    def play(self, seed: int = 1, memory: str = "own", pause: float = 0.0, latency=(1, 30), cut_at: int = 0) -> dict:
        """On the RTL: what the bench gives back, and "images", the memory after each phase."""
        h, f = self.host, self.host.cores[0].dre.params
        each = {"th_hd": [f.th_hd] * CORES, "ratio": [f.ratio_q16] * CORES}
        config = {"params": SIZES, "cores": CORES, "programs": self.programs, "phases": self.phases, "memory": memory}
        config |= {"latency": latency, "pause": pause, "cut_at": cut_at, "limit": 200_000}
        config |= {"ports": each | {"device_base": h.device_bases, "home_base": h.home_bases}}
        config |= {"counters": len(emitted().manifest["core_counters"])}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "memory.bin")
            self.first.tofile(path)
            got = Run(emitted(), "tb.benches.bench_system", "phases", config | {"data": str(path)}, seed)()
            images = np.fromfile(path, np.uint8).reshape(-1, len(self.first))[1:]
        names = emitted().manifest["core_counters"]
        counters = int(got["arbiter"], 16)
        own = {n: counters >> 32 * k & 0xFFFFFFFF for k, n in enumerate(Arbiter.counters())}
        return got | {
            "images": images,
            "perf": [dict(zip(names, values, strict=True)) for values in got["perf"]],
            "arbiter": own,
        }

    def differences(self, phase: int, memory: np.ndarray, part: str = "") -> list[str]:
        """Regions, with `part` in their names, that differ from golden's after a phase in bytes that mean something."""
        out = []
        for r, (data, unknown) in zip(self.host.memory.regions, self.wants[phase], strict=True):
            wrong = memory[r.base : r.end] != data
            wrong = np.flatnonzero(wrong if unknown is None else wrong & ~unknown)
            if len(wrong) and part in r.name:
                out.append(f"phase {phase}: {len(wrong)} bytes of {r.name} differ, first at {wrong[0]:#x}")
        return out


def passes(script: Script, rng: np.random.Generator, count: int) -> list[list[int]]:
    """So many passes through a layer; entries that each core has fetched in each."""
    out = []
    for k in range(count):
        script.host.begin(*inputs(rng, k))
        for phase in PHASES:
            script.add(phase)
            if phase == "attention":
                out.append([core.registers[Register.ENTRIES] for core in script.host.cores])
    return out


def bins(got: dict, fetched: list[list[int]]) -> set[str]:
    """What a run reaches."""
    hit = {f"core {i} fetches" for some in fetched for i, n in enumerate(some) if n}
    hit |= {"cores fetch differently"} if any(a != b for a, b in fetched) else set()
    for i, perf in enumerate(got["perf"]):
        counts = {"opens": "dre.hcu.opened", "offloads": "retriever.moves", "waits": "lxe.sequencer.sync_waits"}
        counts["joins a full table"] = "dre.hcu.full_joins"
        hit |= {f"core {i} {what}" for what, name in counts.items() if perf[name]}
        hit |= {f"core {i} joins"} if perf["dre.hcu.tokens"] > perf["dre.hcu.opened"] else set()
    hit |= {n for n in ("read_waits", "write_waits") if got["arbiter"][n]}
    order = got["order"]["r"]
    hit |= {f"manager {i} reads" for i in set(order)} | {f"manager {i} writes" for i in set(got["order"]["b"])}
    hit |= {"beats of cores mixed"} if sum(a // 2 != b // 2 for a, b in itertools.pairwise(order)) > 100 else set()
    hit |= {f"core {int(np.argmax(p['ends']))} ends last" for p in got["phases"] if len(set(p["ends"])) > 1}
    return hit


BINS = {
    *("cores fetch differently", "read_waits", "write_waits", "beats of cores mixed"),
    *(
        f"core {i} {what}"
        for i in range(CORES)
        for what in ("fetches", "opens", "joins", "joins a full table", "offloads", "waits", "ends last")
    ),
    *(f"manager {i} {what}" for i in range(2 * CORES) for what in ("reads", "writes")),
}


def test_layers_equal_golden(record_property):
    """Both cores cluster, offload and fetch entries of their own; answers of the memory late and in any order."""
    rng = np.random.default_rng(1)
    script = Script(host(rng))
    fetched = passes(script, rng, 4)
    got = script.play(pause=0.2)
    for k, memory in enumerate(got["images"]):
        assert [s["code"] for s in got["phases"][k]["status"]] == [Status.DONE] * CORES
        assert not script.differences(k, memory)
    hit = bins(got, fetched)
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= BINS, BINS - hit
    assert all(got["arbiter"].values())
    still = set(got["perf"][0]) - {name for perf in got["perf"] for name, n in perf.items() if n}
    assert still == ELSEWHERE.keys()


def test_a_pass_with_a_memory_of_cocotbext_axi():
    rng = np.random.default_rng(2)
    script = Script(host(rng, centre=True))
    passes(script, rng, 2)
    got = script.play(memory="axi", pause=0.3)
    assert [s["code"] for p in got["phases"] for s in p["status"]] == [Status.DONE] * len(PHASES) * CORES * 2
    assert not [text for k, memory in enumerate(got["images"]) for text in script.differences(k, memory)]


def test_a_bus_error_ends_in_a_status_of_one_core():
    """The other core ends its phase and goes on; all that after a reset in the middle of a phase."""
    rng = np.random.default_rng(3)
    script = Script(host(rng))
    h = script.host
    h.begin(*inputs(rng, 0))
    script.add("attention")
    script.add("output")
    weight = h.plans[0][0]["gate_up_weight"]
    at = h.address(0, weight)
    script.add("ffn", errors=[(at, at + weight.size)], failing=[0])
    script.add("ffn", cores=[1])
    got = script.play(cut_at=1500)
    codes = [[s["code"] for s in p["status"]] for p in got["phases"]]
    assert codes == [[Status.DONE] * 2] * 2 + [[Status.BUS, Status.DONE]] * 2
    assert not [text for k in range(2) for text in script.differences(k, got["images"][k])]
    own = h.plans[1][0]["gated"]
    for k in (2, 3):
        assert not script.differences(k, got["images"][k], " 1")
        assert np.array_equal(got["images"][k][own.offset :][: own.size], image(h.memory)[own.offset :][: own.size])


def test_an_error_of_a_fetch_ends_in_a_status_of_one_core():
    rng = np.random.default_rng(4)
    script = Script(host(rng))
    h = script.host
    for k in range(3):
        h.begin(*inputs(rng, k))
        script.add("attention")
    h.begin(*inputs(rng, 3))
    size = h.plans[0][0].shape.entry * 2
    script.add("attention", errors=[(h.home_bases[0], h.home_bases[0] + size * 64 * 4)], failing=[0])
    got = script.play(pause=0.1)
    codes = [[s["code"] for s in p["status"]] for p in got["phases"]]
    assert codes == [[Status.DONE] * 2] * 3 + [[Status.BUS, Status.DONE]]
    assert not [text for k in range(3) for text in script.differences(k, got["images"][k])]
    assert not script.differences(3, got["images"][3], " 1")


def test_shares_make_the_layer_of_one_core():
    """As long as no entry has left the ring, selection plays no part: one LXE gives the same up to rounding."""
    rng = np.random.default_rng(5)
    h = host(rng)
    layer = weights(np.random.default_rng(5))
    for i, plan in enumerate(h.plans):
        for name, x in plan[0].pack(layer).items():
            h.put(i, name, x)
    one = LayerHost(LayerPlan(SHAPE, h.plans[0][0].fmt), [layer])
    for k in range(2):
        for each in (h, one):
            each.begin(*inputs(np.random.default_rng(k), k))
        for phase in PHASES:
            h.run(phase, order=(1, 0))
        one.run()
        np.testing.assert_allclose(h.get(0, "hidden"), one.get("hidden"), rtol=0, atol=2e-6)


def test_centred_shares_have_thresholds_of_their_own_heads():
    rng = np.random.default_rng(7)
    h = host(rng, centre=True)
    h.begin(*inputs(rng, 0))
    h.run("attention")
    planes = hyperplanes(np.random.default_rng(7)).reshape(16, SHAPE.kv_heads, -1)
    for core, plan in enumerate(h.plans):
        keys = h.get(core, "fresh")[:, : plan[0].shape.entry // 2]
        hasher = Hasher(ReSVParams(n_hp=16, centre=True, dot=plan[0].fmt.dot), 1, keys.shape[1])
        hasher.planes = to_bf16(planes[:, plan[0].heads].reshape(16, -1))
        hasher.frame(keys[None])
        assert (h.get(core, "thresholds")[:16] == hasher.thresholds[0]).all()


def test_the_order_of_the_cores_changes_no_bit():
    results = []
    for order in ((0, 1), (1, 0)):
        rng = np.random.default_rng(6)
        h = host(rng)
        for k in range(4):
            h.begin(*inputs(rng, k))
            for phase in PHASES:
                h.run(phase, order=order)
        results.append(image(h.memory))
    assert np.array_equal(*results)


@pytest.mark.parametrize(("name", "value"), [("kv_heads", 1), ("width", 12), ("ffn", 20)])
def test_shares_that_are_not_equal_are_refused(name, value):
    shape = replace(SHAPE, **{name: value})
    with pytest.raises(ParamError, match=f"{name}={value}: must be a multiple of"):
        SharePlan(shape, system().core.lxe_format(), RetrievalShape(n_hp=16, clusters=8), 0, CORES, 0)
