"""`vrex simulate layer` and `vrex simulate prediction` play a core's share of a layer on the preset as generated."""

import re
from dataclasses import replace

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.program.isa import Opcode
from openvrex.golden.program.layer_memory import Register
from openvrex.hdl.params import override, preset
from openvrex.scripts.simulate import layer_command
from openvrex.scripts.simulate.layer_command import measure
from openvrex.scripts.simulate.prediction_command import predict
from openvrex.sim.system.share_cycles import UNITS, CoreShare
from openvrex.sim.system.workload import Decoder
from openvrex.sim.units.dre_time import DreTime
from openvrex.sim.units.hcu_time import SWITCH
from openvrex.sim.units.loader_time import cut
from openvrex.tb.library.runner import ROOT

PAGE = (ROOT / "docs/simulator.md").read_text()
SMALL = {"width": 256, "heads": 4, "kv_heads": 2, "head_size": 64, "ffn": 1024}


def small(cores: int, cached: int, **changes) -> CoreShare:
    """A layer of two KV heads, with a table for each."""
    p = override(preset("core"), ["kvmu.entry_bytes=256", "kvmu.recent=128"])
    return CoreShare(replace(p, cores=cores), SMALL, 4, cached, **({"share": 0.5, "latency": 20} | changes))


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_stages_of_a_small_model(cores):
    """What the units do is what the layer compiler counts, and takes no less than their time."""
    share = small(cores, 400)
    assert (share.shares.groups, share.shares.members) == {1: (2, 1), 2: (1, 1), 4: (1, 2)}[cores]
    assert (share.clusters, share.entries) == (12, 138)
    rows = {row.stage: row for row in measure(share)}
    entries = share.entries
    for name, work in share.plan.costs(entries, share.clusters).items():
        row, least = rows[name], work.cycles(share.core.lxe.bus_bytes)
        [turns] = (share.turns(phase) for phase, stages in share.phases.items() if name in stages)
        assert (row.dpe, row.load) == (turns * least["dpe"], turns * least["load"]), name
        if name not in ("hash", "select"):  # whose STOREs go to the DRE
            assert row.store == turns * least["store"], name
        assert row.cycles >= max(row.dpe, row.load, row.store), name
    layer = rows.pop("layer")
    assert {stage.name for stage in share.plan.stages} == set(rows)
    for unit in ("cycles", *UNITS):
        assert getattr(layer, unit) == sum(getattr(row, unit) for row in rows.values())


def test_a_core_s_tables_take_the_same_cycles():
    """The second table's program makes the same bursts, instruction by instruction."""
    share = small(1, 400)
    [first, second] = [
        share.traced(share.plan, stages, share.registers("attention") | {
            int(Register.WEIGHTS): share.registers("attention")[Register.WEIGHTS] + group * share.plan.group_bytes,
            int(Register.KV): share.registers("attention")[Register.KV] + group * share.core.dre.kvmu.recent * 256,
            int(Register.CONTEXT): group,
            int(Register.OUT): share.registers("attention")[Register.OUT] + group * share.plan["attention"].size,
        }).steps
        for group in range(2)
        for stages in [share.phases["attention"]]
    ]  # fmt: skip
    assert len(first) == len(second)
    bursts = 0
    for a, b in zip(first, second, strict=True):
        assert (a.pc, a.op) == (b.pc, b.op)
        if a.op in (Opcode.LOAD, Opcode.STORE):
            bursts += 1
            joined = a.op == Opcode.LOAD
            assert cut(share.core, a.beat, joined) == cut(share.core, b.beat, joined)
    assert bursts > 100


@pytest.mark.parametrize("cores", [1, 4])
def test_prediction_of_a_small_model(cores):
    """What shows is what the LXE has to do for it; a longer fetch is waited for longer."""
    few, more = (small(cores, cached) for cached in (400, 1200))
    rows = [predict(few), predict(more)]
    for share, row in zip((few, more), rows, strict=True):
        assert row.codes >= row.tables * share.plan.shape.rows * -(-row.clusters // share.core.dre.wtu.n_w)
        assert row.clustering >= 0
        assert row.rank > 0
        assert row.visible == row.clustering + row.rank + row.codes < row.layer
    assert rows[0].entries < rows[1].entries
    assert 0 < rows[0].fetch < rows[1].fetch


def test_switches_stay_visible_in_a_team():
    """Its stages are short, so the leader waits for its two SWITCHes; a memory with more latency shows more of them."""
    near, far = (
        predict(CoreShare(preset("server48"), Decoder().sizes, 10, 1024, 0.327, latency)).switch
        for latency in (20, 200)
    )
    assert 0 <= near < far
    dre = CoreShare(preset("server48"), Decoder().sizes, 10, 1024, 0.327, 200).held(DreTime)
    assert far <= 2 * dre.keys([(SWITCH, 0, 0, 1)], [0]).w[-1] + 20


def test_a_fetch_follows_the_blocks_in_memory():
    """The bursts come as the KVMU walks over the chains: with fewer entries a block it waits more often."""
    wide, narrow = (
        CoreShare(override(preset("core"), [
            "kvmu.entry_bytes=256", "kvmu.recent=128", f"kvmu.block_slots={slots}"
        ]), SMALL, 4, 1200, 0.5, 100)
        for slots in (8, 2)
    )  # fmt: skip
    assert predict(wide).fetch < predict(narrow).fetch


@pytest.mark.parametrize(("name", "tables", "members"), [("core", 8, 1), ("edge8", 1, 1), ("server48", 1, 6)])
def test_presets_as_generated_play_llama(name, tables, members):
    """With the cycles that docs/simulator.md has."""
    share = CoreShare(preset(name), Decoder().sizes, 10, 1024, 0.327, 100)
    assert (share.shares.groups, share.shares.members, share.entries) == (tables, members, 240)
    assert share.plan.shape.recent == preset(name).core.dre.kvmu.recent
    rows = {row.stage: row for row in layer_command.measure(share)}
    weights = 2 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    assert rows["layer"].load > weights / share.core.lxe.bus_bytes / share.system.cores
    table = PAGE.partition("| preset | core 0 computes | 1K | 10K | 40K |")[2]
    [line] = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
    assert line.split(" | ")[2] == f"{rows['layer'].cycles:,}"
    if name == "core":
        for stage, row in rows.items():
            assert re.search(rf"^\| (\*\*)?{stage}\b[^|]* \| {row.cycles:,} \|", PAGE, re.M), stage


def test_hardware_without_a_program_is_refused():
    with pytest.raises(ParamError, match="entry_bytes=768: must be a multiple of 512"):
        CoreShare(preset("tiny"), Decoder().sizes, 10, 1024, 0.3, 100).layer()
    with pytest.raises(ParamError, match="blocks=.*raise kvmu.blocks"):
        CoreShare(override(preset("core"), ["kvmu.blocks=8"]), Decoder().sizes, 10, 1024, 0.3, 100).layer()
