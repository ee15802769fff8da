"""Shares of Llama-3 8B on the presets as generated: programs fit, and compute every column, head and tile once."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.program.core_compiler import LEVEL, RetrievalShape
from openvrex.golden.program.isa import LoadTo, Opcode, StoreTo
from openvrex.golden.program.layer_compiler import GEMMS, LayerPlan
from openvrex.golden.program.layer_memory import Array, LayerShape, Register
from openvrex.golden.program.sequencer_model import Issue, register_values, sequence
from openvrex.golden.program.share_plan import SharePlan, shared_space, spread
from openvrex.golden.program.shares import Shares, divide
from openvrex.golden.program.system_map import SystemMap
from openvrex.hdl.params import SystemParams, override, preset
from openvrex.sim.system.workload import Decoder

PRESETS = {"core": 1, "edge8": 8, "server48": 48}
SCOPES = {1: "kvmu.entry_bytes=512", 2: "kvmu.entry_bytes=1024", 8: "kvmu.entry_bytes=4096"}  # by KV heads of a table
RECENT, FETCHED, CLUSTERS = 256, 1000, 1000  # the last tile of each is not full
PAIRS = -(-FETCHED // 128) * 128


def system_map(p: SystemParams, ahead: bool = False, layers: int = 1) -> SystemMap:
    """Layers of Llama-3 8B on the hardware of a preset."""
    core = p.core
    shape = LayerShape(**Decoder().sizes, tokens=10, recent=core.dre.kvmu.recent, entries=16384)
    fmt, sizes = core.core_format(), core.dre.sizes(1 << 16)
    shares = Shares.of(shape, fmt.lanes, p.cores, core.dre.kvmu.entry_bytes)
    return SystemMap(shares, fmt, RetrievalShape.of(sizes, True), layers, sizes, ahead=ahead)


@dataclass
class Counted:
    """How often each word of an array is read or written, by words of the LXE."""

    array: Array
    base: int
    width: int
    counts: np.ndarray = field(init=False)

    def __post_init__(self):
        self.counts = np.zeros(self.array.size // self.width, int)

    def add(self, i: Issue) -> None:
        """Count the words of a transfer that lie in the array."""
        step = self.width
        at = i.addr + np.arange(i["rows"])[:, None] * i["stride"] + np.arange(i["words"]) * step - self.base
        inside = (at >= 0) & (at < self.array.size)
        assert (at[inside] % step == 0).all()
        np.add.at(self.counts, at[inside] // step, 1)


def issues(m: SystemMap, core: int, stage: str, group: int) -> list[Issue]:
    """The instructions of a core's stage, after those before it in its phase, without those that are skipped."""
    plan = m.plans[core][0]
    given = m.start(core, 0, group, clusters=CLUSTERS, fetched=FETCHED) | {
        int(LEVEL): CLUSTERS,
        int(Register.ENTRIES): FETCHED,
    }
    registers = register_values(given)
    names = [s.name for s in plan.stages]
    out: list[Issue] = []
    for name in ("scores", "softmax", "values"):
        if stage in ("softmax", "values") and name in names and out == [] and name != stage:
            list(sequence(plan.program(name, name), registers, plan.fmt))
    return [i for i in sequence(plan.program(stage, stage), registers, plan.fmt) if not i.skip]


def transfers(m: SystemMap, stage: str, target: LoadTo | StoreTo, counted: list[Counted]) -> None:
    """Count the transfers of a stage, on all cores and for all their tables."""
    op = Opcode.LOAD if isinstance(target, LoadTo) else Opcode.STORE
    tables = m.shares.groups if "attention" in m.phases() else 1
    phases = m.plans[0][0].phases
    once = () if tables == 1 else phases["attention"]
    for core, plans in enumerate(m.plans):
        if stage not in [s.name for s in plans[0].stages]:
            continue
        for group in range(tables if stage in once else 1):
            for i in issues(m, core, stage, group):
                if i.op == op and i["target"] == target:
                    for c in counted:
                        c.add(i)


def shared(m: SystemMap, name: str) -> Counted:
    """An array of all cores."""
    a = shared_space(m.shares).arrays[name]
    return Counted(a, a.offset, m.plans[0][0].fmt.lanes * np.dtype(a.dtype).itemsize)


def of_teams(m: SystemMap, name: str) -> list[Counted]:
    """An array of every table of every team."""
    out = []
    for team in range(m.shares.teams):
        a = m.plans[team][0][name]
        for group in range(m.shares.groups):
            width = m.plans[0][0].fmt.lanes * np.dtype(a.dtype).itemsize
            out.append(Counted(a, m.address(team, a, 0, group), width))
    return out


@pytest.fixture(
    scope="module",
    params=[
        ("core", 1),
        ("edge8", 1),
        ("server48", 8),
        *(pytest.param(own, marks=pytest.mark.nightly) for own in (("edge8", 2), ("edge8", 8), ("server48", 1))),
    ],
    ids=lambda x: f"{x[0]}-{x[1]}",
)
def llama(request) -> SystemMap:
    name, heads = request.param
    p = override(preset(name), [SCOPES[heads]])
    assert p.cores == PRESETS[name]
    made = system_map(p)
    assert made.shares.heads == heads
    return made


def test_programs_fit_the_hardware(llama):
    """`program` raises where a program is longer than `i_depth`."""
    depth = llama.plans[0][0].fmt.i_depth
    assert llama.entry_bytes == 512 * llama.shares.heads
    assert preset("core").core.dre.kvmu.entry_bytes == 512
    made = [llama.program(core, phase) for core in range(llama.shares.cores) for phase in llama.phases()]
    lengths = [len(p) for p in made if p]
    assert lengths
    assert max(lengths) <= depth
    s = llama.shares
    rotating = min(s.heads, s.members - 1)  # members of a team that rotate queries in the phase "place"
    assert len(made) - len(lengths) == max(0, s.members - 1 - rotating) * s.teams


@pytest.mark.parametrize(
    ("name", "heads"), [("edge8", 1), ("edge8", 2), ("edge8", 8), ("server48", 1), ("server48", 8)]
)
def test_attention_to_very_many_entries_fits_the_hardware(name, heads):
    """1,048,576 entries, whose rows of scores a member reads in parts."""
    p = override(preset(name), [SCOPES[heads]])
    whole = LayerShape(**Decoder().sizes, tokens=10, recent=RECENT, entries=1 << 20)
    retrieval = RetrievalShape(32, 16384)
    plan = SharePlan(Shares(whole, 64, p.cores, heads), p.core.core_format(), retrieval, 0)
    assert plan.part
    longest = max(len(plan.phase(phase) or []) for phase in plan.phases if phase in ("attention", "attend"))
    assert 0 < longest <= plan.fmt.i_depth


def test_layers_with_prefetch_fit_the_hardware():
    for name, phases in (("core", 7 + 7 + 6), ("edge8", 7 + 7 + 6), ("server48", 13 + 11 + 9)):
        m = system_map(preset(name), ahead=True, layers=3)
        assert [bool(m.program(0, phase, k)) for k in range(3) for phase in m.phases(k)] == [True] * phases
    for phase in ("place", "guess"):  # of the leaders; of others that rotate
        assert [bool(m.program(core, phase)) for core in (0, 8, 40)] == [True, False, phase == "place"]


@pytest.mark.parametrize(
    ("tables", "places"), [(1, [0]), (2, [0, 4]), (4, [0, 4, 5, 6]), (8, [0, 1, 3, 4, 6, 8, 9, 10])]
)
def test_choices_are_spread_over_a_layer(tables, places):
    """In the order of the tables; the last ones stand before the three phases behind the attention."""
    assert spread(tables, 3) == places
    if tables in (2, 8):
        m = system_map(replace(preset("vrex1"), cores=8 // tables), ahead=True, layers=2)
        programs = [step for step in m.steps(0) if not step[0].startswith("add_")]
        ran = [name for name, _ in programs[1 + tables :]]
        assert [k - n for n, k in enumerate(k for k, name in enumerate(ran) if name == "guess")] == places
        assert [group for name, group in programs if name == "guess"] == list(range(tables))
        assert [name for name, _ in programs[1 : 1 + tables]] == ["cluster"] * tables
        assert "guess" not in dict(m.steps(1))


def test_keys_have_the_same_bits_on_any_number_of_cores():
    """Their slices of K are the same, so that all presets open the same clusters."""
    maps = [system_map(preset(name)) for name in ("edge8", "server48")]
    assert {plan.cuts["qkv"].words for m in maps for plans in m.plans for plan in plans} == {4}
    assert {plan.cuts["hash"] for m in maps for plans in m.plans for plan in plans} == {
        maps[0].plans[0][0].cuts["hash"]
    }


def test_every_weight_is_multiplied_once(llama):
    """Each product's weights, in the places where the cores keep them, are as many as the layer's, and loaded once."""
    stages = {"qkv": ("keys", "cluster", "qkv"), "output": ("output",), "gate_up": ("gate_up",), "down": ("down",)}
    s, total = llama.shares.whole, 0
    for name in GEMMS:
        counted = []
        for core, plans in enumerate(llama.plans):
            a = plans[0][f"{name}_weight"]
            for group in range(llama.shares.groups if name == "qkv" else 1):
                counted.append(Counted(a, llama.address(core, a, 0, group), 2 * plans[0].fmt.lanes))
        places = sorted((c.base, c.base + c.array.size) for c in counted)
        assert all(a[1] <= b[0] for a, b in zip(places, places[1:], strict=False))
        for core, plans in enumerate(llama.plans):
            mine = [c for c, at in zip(counted, _cores(llama, name), strict=True) if at == core]
            for stage in set(stages[name]) & {x.name for x in plans[0].stages}:
                for group in range(llama.shares.groups if name == "qkv" else 1):
                    for i in issues(llama, core, stage, group):
                        if i.op == Opcode.LOAD and i["target"] == LoadTo.W:
                            for c in mine:
                                c.add(i)
        assert all((c.counts == 1).all() for c in counted), name
        total += sum(c.array.size for c in counted)
    columns = (s.heads + 2 * s.kv_heads) * s.head_size + s.heads * s.head_size
    assert total == 2 * s.width * (columns + 3 * s.ffn)


def _cores(m: SystemMap, name: str) -> list[int]:
    return [core for core in range(m.shares.cores) for _ in range(m.shares.groups if name == "qkv" else 1)]


def test_every_output_is_written_once(llama):
    names = {x.name for plans in llama.plans for x in plans[0].stages}
    cut = llama.shares.parts > 1
    assert cut == ("add_output" in names) == (llama.shares.cores == 48)
    where = {"gate_up": ["gated"], "output": ["sums" if cut else "hidden"], "down": ["sums" if cut else "hidden"]}
    where |= {"add_output": ["hidden"], "add_down": ["hidden"]} if cut else {}
    where["join" if llama.shares.members > 1 else "values"] = ["attention"]
    for stage, arrays in where.items():
        for name in arrays:
            c = shared(llama, name)
            transfers(llama, stage, StoreTo.MEMORY, [c])
            assert (c.counts == 1).all(), (stage, name)


def test_every_tile_of_a_team_is_computed_once(llama):
    """Columns of queries, keys and values, clusters, entries of the ring and behind it, rows that are joined."""
    s, teams = llama.shares.whole, llama.shares.members > 1
    rows, n = s.rows * llama.shares.heads, 64
    for stage, name in (
        ("rotary", "q"),
        *((("qkv", "qkv"), ("softmax", "stats"), ("values", "parts")) if teams else ()),
    ):
        counted = of_teams(llama, name)
        transfers(llama, stage, StoreTo.MEMORY, counted)
        if teams or stage != "rotary":
            assert all((c.counts == 1).all() for c in counted), stage
        else:  # a core's tables follow each other in the same work array
            assert all((c.counts == llama.shares.groups).all() for c in counted), stage
    counted = of_teams(llama, "ranks")
    transfers(llama, "rank", StoreTo.MEMORY, counted)
    tiles = counted[0].array.shape[-1] // n
    ranked = np.arange(tiles) < -(-CLUSTERS // 128) * 2
    times = 1 if teams else llama.shares.groups
    assert all((c.counts.reshape(rows, tiles) == times * ranked).all() for c in counted)

    batches, entry = s.rows // llama.plans[0][0].batch, 4 * llama.shares.heads  # words of two for keys, two for values
    for target, stages in ((LoadTo.W, ("resident", "scores")), (LoadTo.COLUMN, ("values",))):
        ring, behind = of_teams(llama, "ring"), of_teams(llama, "behind")
        for stage in stages:
            transfers(llama, stage, target, ring + behind)
        halves = slice(0, entry // 2) if target == LoadTo.W else slice(entry // 2, entry)  # keys, values
        for c, many in [*((c, RECENT) for c in ring), *((c, PAIRS) for c in behind)]:
            counts = c.counts.reshape(-1, entry)
            want = np.zeros_like(counts)
            want[:many, halves] = batches
            assert (counts == want).all(), target


def test_members_are_busy_alike():
    """Utilisation of 48 cores: least cycles of the average core over those of the slowest, stage by stage."""
    m = system_map(preset("server48"))
    busy = utilisation(m, preset("server48").core.lxe.bus_bytes)
    for stage in ("qkv", "output", "gate_up", "down"):
        assert busy[stage][1] > 0.9, (stage, busy[stage])
    assert busy["values"][1] > 0.8


def utilisation(m: SystemMap, bus_bytes: int, entries: int = 13312, clusters: int = 1024) -> dict[str, tuple]:
    """Of each stage: least cycles on the slowest core, and the average core's share of them."""
    cycles: dict[str, list[int]] = {}
    for plans in m.plans:
        for name, work in plans[0].costs(entries, clusters).items():
            cycles.setdefault(name, []).append(max(work.cycles(bus_bytes).values()))
    return {name: (max(x), sum(x) / m.shares.cores / max(x)) for name, x in cycles.items()}


def test_divide():
    assert divide(7, 3) == [range(3), range(3, 5), range(5, 7)]
    assert divide(2, 4) == [range(1), range(1, 2), range(2, 2), range(2, 2)]
    for count in range(40):
        for parts in range(1, 9):
            ranges = divide(count, parts)
            assert [i for r in ranges for i in r] == list(range(count))
            assert len(ranges) == parts
            assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


WHOLE = LayerShape(width=24, heads=4, kv_heads=2, head_size=8, ffn=48, tokens=3, recent=16, entries=24)


@pytest.mark.parametrize(
    ("cores", "heads", "said"),
    [
        (0, 1, "cores=0: must be at least 1"),
        (3, 1, r"cores=3: must divide 2, the tables of a layer \(2 KV heads, 1 a table\), or be a multiple of it"),
        (1, 0, "heads=0: must be at least 1"),
        (1, 3, "heads=3: must divide kv_heads = 2"),
        (4, 4, "heads=4: must divide kv_heads = 2"),
    ],
)
def test_shares_that_do_not_divide_are_refused(cores, heads, said):
    with pytest.raises(ParamError, match=said):
        Shares(WHOLE, 4, cores, heads)


def test_entries_say_how_many_heads_a_table_has():
    assert Shares.of(WHOLE, 4, 1, 32).heads == 1
    assert Shares.of(WHOLE, 4, 1, 64).heads == 2
    with pytest.raises(ParamError, match="entry_bytes=48: must be a multiple of 32"):
        Shares.of(WHOLE, 4, 1, 48)


def test_a_core_without_a_column_is_refused():
    fmt = preset("tiny").core.lxe_format()
    with pytest.raises(ParamError, match="cores=8: leaves core 6 without a column of output"):
        SharePlan(Shares(WHOLE, 4, 8), fmt, RetrievalShape(n_hp=16, clusters=8), 6)


def test_weights_of_a_layer_alone_lie_in_the_order_of_the_gemms():
    plan = LayerPlan(WHOLE, preset("tiny").core.lxe_format())
    places = [plan[f"{name}_weight"].offset for name in GEMMS]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("cores", "name", "size"),
    [
        (8, "qkv", 8),
        (8, "gate_up", 8),
        (8, "down", 8),
        (48, "qkv", 16),
        (48, "gate_up", 16),  # 448 tiles: 16 cores have one more
        (48, "down", 1),  # adjacent cores have other parts of the sums
        (1, "output", 1),
    ],
)
def test_cores_that_read_rows_together(cores, name, size):
    """Groups of adjacent cores with as many tiles of the same sums, in a batch of Llama-3 8B."""
    whole = LayerShape(width=4096, heads=32, kv_heads=8, head_size=128, ffn=14336, tokens=10)
    shares = Shares(whole, 64, cores, 1, 40)
    assert shares.in_step(name) == size
    own = [shares.product(name, core) for core in range(cores)]
    for first in range(0, cores, size):
        assert len({(len(p.tiles), p.words) for p in own[first : first + size]}) == 1
