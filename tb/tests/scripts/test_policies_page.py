"""The areas of docs/policies.md are those of the recorded budgets."""

import json
import re

from openvrex.golden.function_params import READINGS
from openvrex.hdl.params import preset
from openvrex.tb.library.runner import ROOT

PAGE = (ROOT / "docs/policies.md").read_text()
BUDGETS = json.loads((ROOT / "tb/budgets.json").read_text())
CORE = ("dpe", "vpe", "dre", "feeder", "loader", "retriever", "sequencer", "storer")  # units side by side


def kge(preset: str, unit: str) -> float:
    return BUDGETS[f"{preset}.{unit}.logic_ge"] / 1e3


def test_optional_hardware():
    part = PAGE[PAGE.index("**What the optional hardware costs**") : PAGE.index("### A 4-bit home")]
    rows = re.findall(r"^\|.* \| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|$", part, re.M)
    assert rows == [(unit, f"{kge('core', unit):.1f}", f"{kge('omni', unit):.1f}") for unit, *_ in rows]
    changed = {unit for unit in (*CORE, "motion_mask") if kge("core", unit) != kge("omni", unit)}
    assert {unit for unit, *_ in rows} == changed
    base, more = (sum(kge(preset, unit) for unit in CORE) for preset in ("core", "omni"))
    mask = kge("omni", "motion_mask") - kge("core", "motion_mask")
    assert f"adds {more - base:.0f} kGE to a core of {base:,.0f}, and {mask:.1f} kGE to" in " ".join(part.split())


def test_v_rex_as_published():
    """The presets have what the table says of both kinds."""
    part = PAGE[PAGE.index("### V-Rex as published") :]
    rows = {
        name.partition(" (")[0]: list(cells) for name, *cells in re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", part, re.M)
    }
    for ours, theirs in (("core", "vrex1"), ("edge8", "vrex8"), ("server48", "vrex48")):
        systems = [preset(name) for name in (ours, theirs)]
        own, other = (READINGS[s.core.dre.reading] for s in systems)
        assert rows["clusters of a table"] == [f"{s.core.dre.kvmu.clusters:,}" for s in systems]
        assert rows["reading"] == [f"`{s.core.dre.reading}`" for s in systems]
        selections = [cell.split("`")[1] for cell in rows["selection"]]
        assert selections == [s.core.dre.wtu.selection for s in systems]
        assert rows["Th_hd, of 32 hash bits"] == [f"{f.th_hd}" for f in (own, other)]
        assert rows["ratio"] == [f"{f.ratio_q16 / 65536:.1f}" for f in (own, other)]
        assert ["raw" not in cell for cell in rows["hash bits"]] == [own.centre, other.centre] == [True, False]
