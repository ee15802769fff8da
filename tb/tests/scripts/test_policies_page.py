"""The areas of docs/policies.md are those of the recorded budgets."""

import json
import re

from tb.library.runner import ROOT

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
    assert f"adds {more - base:.0f} kGE to a core of {base:,.0f}, and {mask:.1f} kGE to" in part
