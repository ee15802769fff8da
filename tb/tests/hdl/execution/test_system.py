"""Systems of two and four cores: decoder layers shared out, every byte of the memory against golden in every phase."""

import itertools
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.program.bus_memory import Region
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.isa import LoadTo, Opcode, Status, encode
from openvrex.golden.program.layer_compiler import LayerPlan
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.share_plan import together
from openvrex.golden.program.system_host import BatchPart, SystemHost, batch_steps
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.golden.retrieval.key_matrices import KeyMatrices
from openvrex.hdl.bus.arbiter import MANAGERS, Arbiter
from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import SystemParams
from openvrex.tb.checks.core_checks import ELSEWHERE, PUBLISHED
from openvrex.tb.library.layer_host import LayerHost
from openvrex.tb.library.lxe_programs import image
from openvrex.tb.library.random_layers import turns, weights
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.transfer_traffic import params

SHAPE = LayerShape(width=16, heads=4, kv_heads=2, head_size=8, ffn=32, tokens=3, recent=8, entries=16)
MORE = replace(SHAPE, heads=4, kv_heads=4)  # two tables a core
TEAM = replace(SHAPE, heads=2, kv_heads=1, entries=32)  # a team of two cores
TEAMS = replace(SHAPE, width=24)  # two teams of two cores, which cut sums
WIDE = replace(SHAPE, head_size=4, entries=32)  # a team of two cores whose table has both KV heads
SIZES = ["lxe.i_depth=512", "lxe.queue=4", "entry_bytes=32", "recent=8", "blocks=64", "clusters=8", "n_ctx=4"]
KEPT = ("kvmu.kept=4", "block_slots=1")
CORES = 2


@cache
def system(cores: int = CORES, sizes: tuple[str, ...] = (), common: bool = False, ports: int = 1) -> SystemParams:
    return SystemParams(params([*SIZES, *sizes]), cores, common, ports)


@cache
def emitted(cores: int = CORES, sizes: tuple[str, ...] = (), common: bool = False, ports: int = 1) -> Emitted:
    """The system; its core is built once, as a library, in half the time of all in one piece."""
    e = emit("system", system(cores, sizes, common, ports))
    return replace(e, manifest=e.manifest | {"leaves": {"system_core": 8}})  # so often that the runner makes it one


def inputs(rng: np.random.Generator, k: int, shape: LayerShape = SHAPE) -> tuple:
    """Of pass k."""
    start = k * shape.tokens
    return rng.normal(size=(shape.tokens, shape.width)).astype(np.float32), *turns(shape, start), start


PAGE = PageParams(page=2, mean=4, numbers=2, budget=4, recent=8, sinks=2)
CODES = (
    *("lxe.codes=2", "dpe.halves=true", "vpe.depth=64", "w_depth=128"),
    *("wtu.budget=true", "hcu.newest=true", "clusters=64", "counts=64"),
)


def page_host(
    rng: np.random.Generator, shape: LayerShape, cores: int, sizes: tuple[str, ...] = (), **more: int
) -> SystemHost:
    """A layer that retrieves coded pages."""
    core = system(cores, (*CODES, *sizes)).core
    function, engine = replace(core.dre.function(), th_hd=1, centre=False), core.dre.sizes()
    matrices = to_bf16(rng.normal(size=(2, shape.kv_heads, PAGE.numbers, shape.head_size)) / 2)
    own = RetrievalShape.of(engine, False, pages=PAGE), [weights(shape, rng)], [KeyMatrices(*matrices)]
    return SystemHost(shape, core.lxe_format(), *own, function, engine, cores=cores, **more)


def host(
    rng: np.random.Generator,
    shape: LayerShape = SHAPE,
    cores: int = CORES,
    layers: int = 1,
    ahead: bool = False,
    heads: int = 1,
    sizes: tuple[str, ...] = (),
    **more,
) -> SystemHost:
    core = system(cores, sizes).core
    function, engine = replace(core.dre.function(), th_hd=2, **more), core.dre.sizes()
    planes = [rng.normal(size=(16, shape.kv_heads * shape.head_size)) for _ in range(layers)]
    own = RetrievalShape.of(engine, function.centre), [weights(shape, rng) for _ in range(layers)], planes
    more_of = {"cores": cores, "heads": heads, "ahead": ahead}
    return SystemHost(shape, core.lxe_format(), *own, function, engine, **more_of)


@dataclass
class Script:
    """Phases on all cores, and the memory that golden leaves after each."""

    host: SystemHost
    sizes: tuple[str, ...] = ()  # beside SIZES
    common: bool = False  # whether the system has `common`
    ports: int = 1  # of memory
    rows: int = 0  # beats of rows that two cores read together
    programs: list[list[str]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of the phases
    phases: list[dict] = field(default_factory=list)
    wants: list[list[tuple[np.ndarray, np.ndarray | None]]] = field(default_factory=list)  # of each region
    coming: list[tuple[int, int]] = field(default_factory=list)  # addresses to which a FETCH may still copy

    def __post_init__(self):
        self.first = self.before = image(self.host.memory)

    def add(
        self,
        phase: str,
        layer: int = 0,
        group: int = 0,
        cores=None,
        errors=(),
        failing=(),
        part: BatchPart | None = None,
    ) -> None:
        """A phase on some cores, all if not given, for one table of each, and in a batch for one stream.

        The host writes before it what has changed since the last one. Golden runs the cores that do not fail.
        """
        h, starts, now = part.host if part else self.host, [], image(self.host.memory)
        where = {"stream": part.stream, "first": part.first} if part else {}
        if not self.phases:
            self.first = self.before = now
        writes = []
        for at in np.flatnonzero((now != self.before).reshape(-1, 64).any(axis=1)) * 64:
            writes.append([int(at), now[at : at + 64].tobytes().hex()])
        cores = [core for core in cores or range(len(h.cores)) if h.program(core, phase, layer)]
        for core in cores:
            words = [f"{encode(i):x}" for i in h.program(core, phase, layer)]
            if words not in self.programs:
                self.programs.append(words)
            starts.append([core, self.programs.index(words), h.registers(core, layer, group, phase, **where)])
        self.names.append(phase)
        self.phases.append({"starts": starts, "writes": writes, "errors": list(errors)})
        if self.common:
            low, high = (at // 4096 for at in together(h.shares))
            log2 = h.in_step(phase).bit_length() - 1
            self.phases[-1]["inputs"] = {"common_log2": log2, "common_base": low, "common_limit": high}
        if phase in ("cluster", "place", "guess"):  # SWITCH and HALT have waited for the FETCH before
            self.coming = []
        for core in cores:
            if core not in failing:
                result = h.step(core, phase, layer, group, **where)
                if core == 1 and h.in_step(phase) == CORES:
                    loads = (i for i in result.issues if i.op == Opcode.LOAD and i["target"] == LoadTo.X)
                    self.rows += sum(i["rows"] * i["words"] for i in loads)
            if phase == "guess":
                behind = h.plans[core][layer + 1]["behind"]
                at = h.address(core, behind, layer + 1, group)
                self.coming.append((at, at + behind.size))
        self.wants.append([(r.data.copy(), self.unknown(r)) for r in h.memory.regions])
        self.before = image(h.memory)

    def unknown(self, r: Region) -> np.ndarray | None:
        """Bytes of a region that mean nothing: golden does not know them, or a FETCH goes on."""
        out = None if r.unknown is None else r.unknown.copy()
        for low, high in self.coming:
            if r.base <= low < r.end:
                out = np.zeros(r.size, bool) if out is None else out
                out[low - r.base : high - r.base] = True
        return out

    def play(self, seed: int = 1, memory: str = "own", pause: float = 0.0, latency=(1, 30), cut_at: int = 0) -> dict:
        """On the RTL: what the bench gives back, and "images", the memory after each phase."""
        h, f, cores = self.host, self.host.cores[0].dre.params, len(self.host.cores)
        each = {"th_hd": [f.th_hd] * cores, "ratio": [f.ratio_q16] * cores}
        config = {
            "params": [*SIZES, *self.sizes],
            "cores": cores,
            "programs": self.programs,
            "phases": self.phases,
            "memory": memory,
            "common": self.common,
            "memory_ports": self.ports,
        }
        config |= {"latency": latency, "pause": pause, "cut_at": cut_at, "limit": 200_000}
        bases = {"device_base": h.device_bases, "home_base": h.home_bases, "table_base": h.table_bases}
        config |= {"ports": each | bases | {"blocks": [h.blocks] * cores, "contexts": [h.contexts] * cores}}
        unit = emitted(cores, self.sizes, self.common, self.ports)
        config |= {"counters": len(unit.manifest["core_counters"])}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "memory.bin")
            self.first.tofile(path)
            got = Run(unit, "bench_system", "phases", config | {"data": str(path)}, seed)()
            images = np.fromfile(path, np.uint8).reshape(-1, len(self.first))[1:]
        names = unit.manifest["core_counters"]
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
    """So many passes through all layers; entries that each core has fetched in each phase that fetches."""
    out, h = [], script.host
    for k in range(count):
        h.begin(*inputs(rng, k, h.shares.whole))
        for layer in range(len(h.plans[0])):
            for phase, group in h.steps(layer):
                script.add(phase, layer, group)
                if phase in ("attention", "select"):
                    out.append([core.registers[Register.ENTRIES] for core in h.cores[: h.shares.teams]])
    return out


def equal(script: Script, got: dict) -> None:
    """Every program has ended, and every byte that means something is golden's after every phase.

    While a core's bus owes an answer, a write of its tables may be under way: a host waits for that (`bus`).
    """
    codes = [s["code"] for p in got["phases"] for s in p["status"]]
    assert codes == [Status.DONE] * len(codes)
    assert len(got["images"]) == len(script.phases)
    owed = [{f" tables {i} " for i, s in enumerate(p["status"]) if s["bus"]} for p in got["phases"]]
    texts = [(k, text) for k, memory in enumerate(got["images"]) for text in script.differences(k, memory)]
    assert not [text for k, text in texts if not any(name in text for name in owed[k])]


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
    for port in got["order"]:
        hit |= {f"manager {i} reads" for i in set(port["r"])} | {f"manager {i} writes" for i in set(port["b"])}
        mixed = sum(a // MANAGERS != b // MANAGERS for a, b in itertools.pairwise(port["r"]))
        hit |= {"beats of cores mixed"} if mixed > 100 else set()
    hit |= {f"core {int(np.argmax(p['ends']))} ends last" for p in got["phases"] if len(set(p["ends"])) > 1}
    return hit


BINS = {
    *("cores fetch differently", "read_waits", "write_waits", "beats of cores mixed"),
    *(
        f"core {i} {what}"
        for i in range(CORES)
        for what in ("fetches", "opens", "joins", "joins a full table", "offloads", "waits", "ends last")
    ),
    *(f"manager {i} {what}" for i in range(MANAGERS * CORES) for what in ("reads", "writes")),
}


@pytest.mark.parametrize("ports", [1, 2])
def test_layers_equal_golden(ports, record_property):
    """Both cores cluster, offload and fetch entries of their own; answers of the memory late and in any order."""
    rng = np.random.default_rng(3)
    script = Script(host(rng), ports=ports)
    fetched = passes(script, rng, 4)
    got = script.play(pause=0.2)
    equal(script, got)
    hit = bins(got, fetched)
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= BINS, BINS - hit
    assert all(got["arbiter"].values())
    still = set(got["perf"][0]) - {name for perf in got["perf"] for name, n in perf.items() if n}
    assert still == ELSEWHERE.keys() | {"dre.wtu0.waits"}  # counts that stream: test_core


@pytest.mark.nightly  # short form: test_core.py, of one core
def test_packed_homes_equal_golden(record_property):
    """Both cores pack entries on their way home, and expand what they fetch."""
    rng, sizes = np.random.default_rng(3), ("kv4_group=16",)
    script = Script(host(rng, sizes=sizes), sizes)
    h = script.host
    assert [4 * core.dre.kv.home_bytes for core in h.cores] == [h.entry_bytes] * CORES
    fetched = passes(script, rng, 4)
    got = script.play(pause=0.2)
    equal(script, got)
    moves = [perf["retriever.moves"] for perf in got["perf"]]
    record_property("entries packed, fetched by core", f"{moves}, {np.sum(fetched, axis=0).tolist()}")
    assert min(moves) > 0
    assert min(np.sum(fetched, axis=0)) > 0


@pytest.mark.nightly  # short form: test_pass_engine.py, of one core
@pytest.mark.parametrize(("shape", "ports"), [(SHAPE, 1), (TEAM, 1), (SHAPE, 4)], ids=["alone", "team", "ports"])
def test_a_batch_equals_golden(shape, ports):
    """Two streams, whose rows the cores read together: bytes with and without it, and each beat that it saves."""
    more, rng = ("n_ctx=8", "x_depth=256"), np.random.default_rng(5)
    h = page_host(rng, shape, CORES, more, streams=2, batch=2 * shape.tokens)
    script, fetched = Script(h, (*CODES, *more), True, ports), Counter[int]()
    for k in range(6):
        parts = [BatchPart(h.of(shape.tokens, 2 * shape.tokens).at(n), n, n * shape.tokens) for n in range(2)]
        for view, n, first in parts:
            view.begin(*inputs(rng, k, shape), n, first)
        for part, phase, group in batch_steps(parts):
            script.add(phase, 0, group, part=part)
            if phase in ("attention", "select"):
                fetched[part.stream] += h.cores[0].registers[Register.ENTRIES]
    assert min(fetched[n] for n in range(2)) > 10
    runs = [script.play(pause=0.1)]
    assert {one["inputs"]["common_log2"] for one in script.phases} == {0, 1}
    script.phases = [one | {"inputs": one["inputs"] | {"common_log2": 0}} for one in script.phases]
    runs.append(script.play(pause=0.1))
    for got in runs:
        equal(script, got)
    beats = [got["arbiter"]["read_beats"] for got in runs]
    assert beats[1] - beats[0] == script.rows > 500


@pytest.mark.nightly
def test_a_pass_with_a_memory_of_cocotbext_axi():
    rng = np.random.default_rng(2)
    script = Script(host(rng, centre=True))
    passes(script, rng, 2)
    equal(script, script.play(memory="axi", pause=0.3))


def test_a_bus_error_ends_in_a_status_of_one_core():
    """The other core ends its phase and goes on; all that after a reset in the middle of a phase."""
    rng = np.random.default_rng(3)
    script = Script(host(rng))
    h = script.host
    h.begin(*inputs(rng, 0))
    for phase in ("norm", "attention", "output"):
        script.add(phase)
    weight = h.plans[0][0]["gate_up_weight"]
    at = h.address(0, weight)
    script.add("ffn", errors=[(at, at + weight.size)], failing=[0])
    script.add("ffn", cores=[1])
    got = script.play(cut_at=150)
    codes = [[s["code"] for s in p["status"]] for p in got["phases"]]
    assert codes == [[Status.DONE] * 2] * 3 + [[Status.BUS, Status.DONE]] * 2
    assert not [text for k in range(3) for text in script.differences(k, got["images"][k])]
    own = h.plans[1][0]["own_gated"]
    at = own.offset + 2 * np.arange(SHAPE.tokens)[:, None] * SHAPE.ffn + np.arange(SHAPE.ffn // CORES * 2)
    for k in (3, 4):
        assert not script.differences(k, got["images"][k], " 1")
        assert np.array_equal(got["images"][k][at], image(h.memory)[at])


@pytest.mark.nightly
def test_an_error_of_a_fetch_ends_in_a_status_of_one_core():
    rng = np.random.default_rng(4)
    script = Script(host(rng))
    h = script.host
    for k in range(3):
        h.begin(*inputs(rng, k))
        script.add("norm")
        script.add("attention")
    h.begin(*inputs(rng, 3))
    script.add("norm")
    size = h.plans[0][0].shape.entry * 2
    script.add("attention", errors=[(h.home_bases[0], h.home_bases[0] + size * 64 * 4)], failing=[0])
    got = script.play(pause=0.1)
    codes = [[s["code"] for s in p["status"]] for p in got["phases"]]
    assert codes == [[Status.DONE] * 2] * 7 + [[Status.BUS, Status.DONE]]
    assert not [text for k in range(7) for text in script.differences(k, got["images"][k])]
    assert not script.differences(7, got["images"][7], " 1")


def counted(script: Script, got: dict, fetched: list[list[int]]) -> None:
    """What a host reads from the leaders' counters is what golden's host passes from one program to the next."""
    h = script.host
    s, placed = h.shares, len(h.plans[0]) * h.shares.groups * h.shares.whole.tokens
    count = len(script.phases) // sum(len(list(h.steps(k))) for k in range(len(h.plans[0])))
    for i, perf in enumerate(got["perf"]):
        leads = i < s.teams
        levels = [h.cores[i].dre.level(ctx) for ctx in range(len(h.plans[0]) * s.groups)]
        assert perf["dre.hcu.opened"] == sum(levels) * leads
        assert perf["retriever.entries"] == placed * count * leads
        beats = h.entry_bytes // system(len(h.cores)).core.lxe.bus_bytes
        copied = perf["retriever.beats"] // beats - perf["retriever.entries"] - perf["retriever.moves"]
        assert copied == (sum(x[i] for x in fetched) if leads else 0)


def test_a_team_equals_golden():
    """Two cores share one KV head: the leader retrieves, both attend to entries of their own, and join."""
    rng = np.random.default_rng(8)
    script = Script(host(rng, TEAM))
    fetched = passes(script, rng, 7)
    got = script.play(pause=0.2)
    equal(script, got)
    counted(script, got, fetched)
    assert max(x[0] for x in fetched) > 8  # entries behind the ring for both members: a pair of tiles has 8
    assert {len(p["starts"]) for p in script.phases} == {2}  # the last member rotates while the leader places


@pytest.mark.nightly
def test_a_team_with_a_table_of_two_heads_equals_golden():
    """The second member rotates the queries of both heads; each multiplies both heads' queries by its own entries."""
    rng = np.random.default_rng(11)
    script = Script(host(rng, WIDE, heads=2))
    h = script.host
    assert (h.shares.teams, h.shares.members, h.entry_bytes) == (1, 2, 32)
    fetched = passes(script, rng, 7)
    got = script.play(pause=0.2)
    equal(script, got)
    counted(script, got, fetched)
    assert max(x[0] for x in fetched) > 8  # entries behind the ring for both members
    assert {len(p["starts"]) for p in script.phases} == {2}


@pytest.mark.nightly
def test_teams_that_cut_sums_equal_golden():
    rng = np.random.default_rng(9)
    script = Script(host(rng, TEAMS, 4))
    assert script.host.shares.parts == 2
    fetched = passes(script, rng, 4)
    got = script.play(pause=0.1)
    equal(script, got)
    counted(script, got, fetched)
    assert {tuple(x > 0 for x in some) for some in fetched} >= {(True, True)}


def beside(script: Script, got: dict) -> Counter:
    """Phases that have started beside a FETCH, by name."""
    return Counter(name for name, p in zip(script.names, got["phases"], strict=True) if p["beside"])


@pytest.mark.nightly
def test_cores_with_two_tables_each_prefetch_for_each():
    """Programs of the second table are those of the first, with other registers."""
    rng = np.random.default_rng(10)
    script = Script(host(rng, MORE, layers=2, ahead=True))
    passes(script, rng, 6)
    got = script.play()
    equal(script, got)
    h = script.host
    kinds = sum(len(h.phases(layer)) for layer in range(2))
    assert len(script.programs) == CORES * kinds  # one for each core and phase, not for each table
    assert (h.fetched[0, :, 1] > 0).all()
    order = ["norm", "cluster", "cluster", "guess", "attention", "attention", "output", "ffn", "guess", "down"]
    assert script.names[:10] == order
    assert {"attention", "down"} <= beside(script, got).keys()


@pytest.mark.nightly
@pytest.mark.parametrize("sizes", [(), PUBLISHED])
def test_a_prefetch_goes_on_beside_the_phases_behind_it(sizes):
    """One table a core and a slow memory: the FETCH ends in a later phase. Of V-Rex as published, too."""
    rng = np.random.default_rng(12)
    script = Script(host(rng, SHAPE, layers=2, ahead=True, sizes=sizes), sizes)
    passes(script, rng, 6)
    got = script.play(latency=(20, 80))
    equal(script, got)
    assert beside(script, got) == {"attention": 5}


@pytest.mark.parametrize(
    ("shape", "cores", "heads", "sizes"),
    [
        (TEAM, 2, 1, ()),
        *(
            pytest.param(*x, marks=pytest.mark.nightly)
            for x in ((WIDE, 2, 2, ()), (TEAMS, 4, 1, ()), (TEAM, 2, 1, PUBLISHED))
        ),
    ],
)
def test_teams_prefetch_as_golden_does(shape, cores, heads, sizes):
    """All members guess and rank for the next layer; the leader's FETCH goes on beside the phases behind it.

    Of V-Rex as published, too.
    """
    rng = np.random.default_rng(12)
    script = Script(host(rng, shape, cores, layers=2, ahead=True, heads=heads, sizes=sizes), sizes)
    h = script.host
    fetched = passes(script, rng, 6)
    got = script.play(latency=(20, 80))
    equal(script, got)
    assert beside(script, got)["attend"] >= 5
    assert (h.fetched[0, :, 1] > 0).all()
    assert fetched


@pytest.mark.nightly
def test_a_prefetch_keeps_blocks():
    """A FETCH for the next layer changes that layer's table: blocks stay. It ends behind its own phase, `guess`."""
    rng = np.random.default_rng(12)
    script = Script(h := host(rng, SHAPE, layers=2, ahead=True, sizes=KEPT), sizes=KEPT)
    passes(script, rng, 6)
    got = script.play(latency=(20, 80))
    assert {s["code"] for p in got["phases"] for s in p["status"]} == {Status.DONE}
    texts = [
        (script.names[k], text) for k, memory in enumerate(got["images"]) for text in script.differences(k, memory)
    ]
    assert {name for name, _ in texts} == {"guess"}, texts
    assert (h.fetched[0, :, 1] > 0).all()


@pytest.mark.nightly
def test_keys_enter_beside_a_prefetch():
    """Without attention between them, the keys of one table are hashed and clustered beside the FETCH of another."""
    rng = np.random.default_rng(13)
    script = Script(host(rng, MORE, layers=2, ahead=True))
    for k in range(7):
        script.host.begin(*inputs(rng, k, MORE))
        for phase, group in (("norm", 0), ("cluster", 0), ("guess", 0), ("cluster", 1), ("guess", 1)):
            script.add(phase, 0, group)
        for group in range(2):
            script.add("cluster", 1, group)
    got = script.play(latency=(10, 60), pause=0.1)
    equal(script, got)
    assert beside(script, got)["cluster"] >= 6


@pytest.mark.nightly
def test_an_error_of_a_prefetch_ends_in_a_status_of_a_later_program():
    rng = np.random.default_rng(12)
    script = Script(host(rng, SHAPE, layers=2, ahead=True))
    h = script.host
    passes(script, rng, 5)
    h.begin(*inputs(rng, 5))
    script.add("norm")
    script.add("cluster")
    home = next((r.base, r.end) for r in h.memory.regions if r.name == "home 0")
    script.add("guess", errors=[home])
    script.add("attention", errors=[home], failing=[0])
    codes = [[s["code"] for s in p["status"]] for p in script.play(latency=(20, 80))["phases"]]
    assert codes[:-1] == [[Status.DONE] * 2] * (len(codes) - 1)
    assert codes[-1] == [Status.BUS, Status.DONE]


def test_shares_make_the_layer_of_one_core():
    """As long as no entry has left the ring, selection plays no part: one LXE gives the same up to rounding."""
    h = host(np.random.default_rng(5))
    layer = weights(SHAPE, np.random.default_rng(5))
    for i, plan in enumerate(h.plans):
        for name, x in (plan[0].pack(layer) | plan[0].pack_table(layer, np.ones((16, 16)))).items():
            h.put(i, name, x)
    one = LayerHost(LayerPlan(SHAPE, h.plans[0][0].fmt), [layer])
    for k in range(2):
        for each in (h, one):
            each.begin(*inputs(np.random.default_rng(k), k))
        for phase in h.phases():
            h.run(phase, order=(1, 0))
        one.run()
        np.testing.assert_allclose(h.get(0, "hidden"), one.get("hidden"), rtol=0, atol=2e-6)


@pytest.mark.parametrize("members", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_cores_with_coded_pages_equal_golden(members):
    """Two KV heads on two cores, or one on a team, whose members score pages of their own.

    `test_page_host.py` holds what golden chooses against a core alone.
    """
    rng = np.random.default_rng(5)
    script = Script(page_host(rng, SHAPE if members == 1 else TEAM, CORES), CODES)
    h, count = script.host, 14
    assert h.shares.members == members
    fetched = passes(script, rng, count)
    got = script.play(pause=0.2)
    equal(script, got)
    leaders = [perf for i, perf in enumerate(got["perf"]) if i < h.shares.teams]
    pages = -(-count * SHAPE.tokens // PAGE.page)
    assert [perf["dre.hcu.opened"] for perf in leaders] == [pages] * len(leaders)
    assert script.names.count("code") == count * SHAPE.tokens // PAGE.mean
    assert max(map(min, fetched)) == PAGE.budget + PAGE.page  # pages of the budget and of sinks, on each core
    old = -(-(count * SHAPE.tokens - PAGE.recent) // PAGE.page)
    assert old > 2 * 4 or members == 1  # more than a pair of steps: each member has some
