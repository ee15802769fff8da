"""A trace through golden ReSV and through the RTL, beat by beat: what `vrex verify` and the demo run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from golden.hashing import to_int
from golden.params import ReSVParams
from golden.resv import ReSV
from golden.trace import Trace, TraceError
from hdl.emit import Emitted
from hdl.params import DreParams
from tb.dre import Scenario
from tb.runner import Run


@dataclass
class Table:
    """What one HC table sees of a trace: the segments' hashes, the rows of those whose queries are used."""

    name: str  # "layer 3", or "layer 3 head 1" with scope "head"
    hashes: list[list[int]] = field(default_factory=list)  # of each segment, sinks left out
    codes: list[np.ndarray | None] = field(default_factory=list)  # of each segment, [R, C]
    fetched: list[set[int]] = field(default_factory=list)  # tokens that golden ReSV fetches, per query block


@dataclass(frozen=True)
class Outcome:
    """One table of a trace on the RTL."""

    table: str
    keys: int
    clusters: int
    rows: int
    bursts: int
    refused: int  # keys without a free block: kvmu.blocks is too small for the trace
    beats: int  # compared bit by bit
    differences: list[str]
    cycles: int  # of the whole run in Verilator


def tables(trace: Trace, f: ReSVParams, queries: int) -> Iterator[Table]:
    """The HC tables of every recorded layer; rows for the last `queries` segments whose queries are recorded.

    Raises `TraceError` if there is no such segment.
    """
    spans = trace.spans()
    asked = trace.spans(queries=True)[-queries:]
    if not asked:
        raise TraceError("no segment of the trace has its queries recorded: record it with --queries 1 or more")
    for i, layer in enumerate(trace.layers):
        policy = ReSV(f, trace.kv_heads, trace.head_size)
        # Informative hash bits first: same distances, earlier abandon (docs/decisions.md).
        start, stop = next(iter(trace.spans("frame")), spans[0])
        policy.hasher.sort_planes(policy.hasher.split(trace.k[i, start:stop]))
        own = [
            Table(f"layer {layer}" + (f" head {h}" if len(policy.tables) > 1 else ""))
            for h in range(len(policy.tables))
        ]
        for start, stop in spans:
            appended = policy.append(trace.k[i, start:stop])
            got = policy.retrieve(trace.queries(i, start, stop)) if (start, stop) in asked else None
            for t, table in enumerate(own):
                table.hashes.append([to_int(words) for words in appended.hashes[t]])
                rows = got is not None and got.codes[t].shape[1] > 0
                table.codes.append(got.codes[t].astype(int) if rows else None)
                if rows:
                    table.fetched.append(set(np.flatnonzero(got.fetched[t]).tolist()))
        yield from own


def scenario(table: Table, p: DreParams, f: ReSVParams) -> tuple[Scenario, list[str]]:
    """The table's keys and rows for the DRE, and where the bursts do not fetch exactly golden ReSV's tokens."""
    s = Scenario(p, f, device_base=1 << 16, home_base=1 << 20)
    wrong = []
    for hashes, codes in zip(table.hashes, table.codes, strict=True):
        if hashes:
            s.keys(0, hashes)
        if codes is None:
            continue
        s.query(0, codes)
        if any(beat["full"] for beat in s.w):
            continue  # refused entries are not stored, so fetches are fewer than the policy's
        at = {beat["home"]: f.sinks + beat["token"] for beat in s.w}
        size = p.kvmu.entry_bytes
        tokens = {at[a] for b in s.queries[-1].bursts for a in at if b.addr <= a < b.addr + b.bytes}
        tokens |= {at[a] for b in s.queries[-1].bursts for a in at if a < b.addr < a + size}  # cut by the boundary
        want = table.fetched[len(s.queries) - 1]
        if tokens != want:
            wrong.append(f"query block {len(s.queries) - 1}: bursts fetch {len(tokens)} tokens, ReSV {len(want)}")
    return s, wrong


def verify(
    trace: Trace,
    p: DreParams,
    emitted: Emitted,
    f: ReSVParams,
    queries: int = 1,
    idle: float = 0.0,
    stall: float = 0.0,
    seed: int = 1,
    progress: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Every table of the trace through the DRE's RTL; the differences stand in the outcomes.

    Raises `BenchError` if a simulator cannot be built or does not end.
    """
    out = []
    for table in tables(trace, f, queries):
        s, wrong = scenario(table, p, f)
        got = Run(emitted, "tb.bench_dre", "phases", s.config(idle, stall), seed)()
        outcome = Outcome(
            table=table.name,
            keys=len(s.w),
            clusters=len(s.model.tables[0]),
            rows=sum(len(c) for c in table.codes if c is not None),
            bursts=len(s.b),
            refused=sum(w["full"] for w in s.w),
            beats=sum(len(getattr(s, name)) for name in "twxb"),
            differences=wrong + s.differences(got),
            cycles=got["cycles"],
        )
        out.append(outcome)
        progress(outcome)
    return out
