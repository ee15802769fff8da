"""What the manual takes from code at once: sentences with sizes, shares and work; terms that the code defines."""

import inspect
from collections.abc import Callable

from openvrex.golden.function_params import ReSVParams, described
from openvrex.hdl.docstrings import parse, prose
from openvrex.hdl.emit import unit_class
from openvrex.hdl.params import KvmuParams
from openvrex.papers.evaluation.other_papers import branch_share
from openvrex.scripts.pages.markdown import table
from openvrex.sim.system.workload import Decoder

NAMES = {  # units of a core, and the motion mask, by the names that they have on pages
    "hcu": "HCU, hash-bit cluster unit",
    "wtu": "WTU, WiCSum threshold unit",
    "cluster_set": "`cluster_set`",
    "kvmu": "KVMU, KV cache management unit",
    "table_port": "table port",
    "dre": "DRE, dynamic KV cache retrieval engine",
    "feeder": "feeder",
    "retriever": "retriever",
    "dpe": "DPE, dot product engine",
    "vpe": "VPE, vector processing engine",
    "sequencer": "sequencer",
    "loader": "loader",
    "storer": "storer",
    "lxe": "LXE, LLM execution engine",
    "core": "core",
    "system": "system",
    "motion_mask": "motion mask",
}
TERMS = (  # parameters that are terms of the manual
    (ReSVParams, "th_hd", "Th_hd (`th_hd`)"),
    (ReSVParams, "sinks", "sinks (`sinks`)"),
    (ReSVParams, "recent", "recent (`recent`)"),
    (KvmuParams, "entry_bytes", "size of an entry (`entry_bytes`)"),
)


def units(_: dict) -> str:
    """A row for each unit: the first sentence of its docstring."""
    rows = []
    for unit, name in NAMES.items():
        lead = parse(inspect.getdoc(unit_class(unit)) or "").lead[0]
        rows.append([f"[{name}](datasheets/{unit}.md)", prose(lead)])
    return table(["unit", "what it does"], rows)


def terms(_: dict) -> str:
    """A row for each parameter that pages use as a term: its meaning."""
    return table(["parameter", "meaning"], [[term, prose(described(of)[name].meaning)] for of, name, term in TERMS])


BLOCKS: dict[str, Callable[[dict], str]] = {"units": units, "terms": terms}


def cited() -> list[tuple[str, str]]:
    """Page and text, for each sentence or part of one that has such figures."""
    return [
        ("papers/evaluation.md", f"with Mamba's sizes {100 * branch_share(Decoder()):.1f} % of a layer's MACs"),
    ]
