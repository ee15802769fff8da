"""`vrex papers index`: what the index of a policy costs a frame, beside what the policy was measured to recall."""

import json as text_format
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.table import Table

from openvrex.golden.function_params import check
from openvrex.golden.policies.pages_policy import CodedPages
from openvrex.golden.policies.registry import override
from openvrex.golden.policies.resv_policy import ReSVPolicy
from openvrex.papers.commands.kept_runs import numbers
from openvrex.papers.evaluation.index_cost import IndexCost, Measured, cost
from openvrex.papers.policies.page_indexes import IndexedPages
from openvrex.papers.policies.registry import entry
from openvrex.papers.recall.recall_run import MODELS
from openvrex.scripts import console
from openvrex.sim.system.platforms import Vrex, platform
from openvrex.sim.system.workload import MODELS as SHAPES

COUNTED = (CodedPages, IndexedPages, ReSVPolicy)
NEEDED = ("model", "variant", "task", "tokens", "recall", "error", "blocks", "clusters")
COLUMNS = ("bits", "recall", "error", "cache", "fetched", "blocks", "link MB", "reads", "link", "index MB", "read",
           "loader", "DPE", "VPE", "WTU")  # fmt: skip


def command(
    recalled: Annotated[list[Path], typer.Argument(help="Files recall.json of `vrex papers recall`.")],
    cache: Annotated[str, typer.Option(help="Tokens in the cache; several with commas.")] = "40960,102400,1048576",
    on: Annotated[str, typer.Option("--platform", help="edge or server.")] = "edge",
    packed: Annotated[bool, typer.Option("--packed", help="Entries behind the link have 4 bits a number.")] = False,
    json: console.Json = False,
) -> None:
    """Count what an index costs a frame, beside what it recalls.

    Of Llama-3 8B, from what readings of ReSV and pages did on another decoder: a share of the cache, or a budget.
    Times are what each resource is busy in a frame of 10 tokens, in ms.
    """
    v = platform(on)
    check(isinstance(v, Vrex), "platform", on, "must be a system of cores: edge or server")
    assert isinstance(v, Vrex)  # as checked
    rows = rows_of(_summaries(recalled), v, numbers("cache", cache, int), packed)
    if json:
        console.print_json(rows)
    else:
        console.out.print(_table(rows, v))


def rows_of(summaries: list[dict[str, Any]], v: Vrex, lengths: list[int], packed: bool) -> list[dict[str, Any]]:
    """A row for each variant whose index can be counted, and each length of the cache: what it recalled, what it costs.

    summaries : of `vrex papers recall`
    packed : entries behind the link have 4 bits a number, as where the variant says so (`kv4_group`)
    """
    groups = defaultdict(list)
    for s in summaries:
        if entry(s["variant"].split()[0]).policy in COUNTED:
            groups[s["variant"]].append(s)
    rows = []
    for name, own in groups.items():
        four = packed or "kv4_group=" in name
        known: dict[str, Any] = {"variant": name, "bits": 4 if four else 16}
        known |= {figure: fmean(s[figure] for s in own) for figure in ("recall", "error")}
        for n in lengths:
            found = cost(v, SHAPES["llama3-8b"], _measured(name, own), n, four)
            rows.append(known | asdict(found))
    return rows


def _summaries(files: list[Path]) -> list[dict[str, Any]]:
    """What files hold. Raises `ValueError` for a file without summaries, or if no index can be counted."""
    out = []
    for file in files:
        try:
            for s in text_format.loads(file.read_text()):
                out.append({name: s[name] for name in NEEDED})
                entry(s["variant"].split()[0])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{file}: is no recall.json of 'vrex papers recall': run it anew") from None
    if not any(entry(s["variant"].split()[0]).policy in COUNTED for s in out):
        raise ValueError(f"{', '.join(map(str, files))}: no run of 'pages' or of a reading of ReSV: run these policies")
    return out


def _measured(name: str, own: list[dict[str, Any]]) -> Measured:
    """What the variant did on its longest texts."""
    length = max(s["tokens"] for s in own)
    longest = [s for s in own if s["tokens"] == length]
    blocks = fmean(s["blocks"] for s in longest)
    if longest[0]["clusters"] is None:
        policy, *assigned = name.split()
        params = override(entry(policy).params, dict(word.split("=", 1) for word in assigned))
        return Measured(length, blocks, None, params)
    scope = "layer" if "scope=layer" in name else entry(name.split()[0]).params.resv.scope
    tables = MODELS[own[0]["model"]].kv_heads if scope == "head" else 1
    return Measured(length, blocks, fmean(s["clusters"] for s in longest) / tables)


def _table(rows: list[dict[str, Any]], v: Vrex) -> Table:
    out = Table(title=f"A frame of Llama-3 8B on {v.name}: times in ms; bits of a number behind the link")
    out.add_column("policy", no_wrap=True)
    for column in COLUMNS:
        out.add_column(column, justify="right")
    for r in rows:
        c = IndexCost(**{name: r[name] for name in IndexCost.__dataclass_fields__})
        per_head = c.reads / SHAPES["llama3-8b"].layers / SHAPES["llama3-8b"].kv_heads
        times = (c.link, c.memory, c.load, c.dpe, c.vpe, c.wtu)
        link, *rest = (f"{1e3 * t:,.1f}" for t in times)
        known = (r["variant"], str(r["bits"]), f"{r['recall']:.1%}", f"{r['error']:.3f}", f"{c.cache:,}")
        moved = (f"{8 * per_head:,.0f}", f"{per_head:,.0f}", f"{c.moved / 1e6:,.0f}", f"{c.reads:,.0f}", link)
        out.add_row(*known, *moved, f"{c.held / 1e6:,.0f}", *rest)
    return out
