"""Turns a trace into the inputs of one HC table's units: key hashes, clusters, and the rows of the timed frames."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openvrex.golden.function_params import ReSVParams
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.retrieval.clustering import Clusterer
from openvrex.golden.retrieval.wicsum import select_rows
from openvrex.tb.library.trace_check import tables


@dataclass(frozen=True)
class Block:
    """A timed frame of one HC table: its segment, score codes, token counts, and the clusters that its rows select."""

    segment: int
    codes: np.ndarray  # [R, C]
    counts: np.ndarray  # [C]
    clusters: list[int]


@dataclass(frozen=True)
class Stream:
    """The inputs of one HC table's units: key hashes and clusters of every segment, and the timed frames."""

    hashes: list[list[int]]
    clusters: list[list[int]]
    blocks: list[Block]


def stream(f: ReSVParams, path: str, trace_digest: str, queries: int) -> list[Stream]:
    """Runs the trace through golden ReSV and returns a `Stream` for each HC table.

    queries : number of frames to time, from the end
    Raises: `TraceError` for a file that cannot be read or whose digest is not `trace_digest`.
    """
    if file_digest(Path(path)) != trace_digest:
        raise TraceError(f"{path}: not the trace that the sweep was started with; give workers the same file")
    out = []
    for table in tables(Trace.load(path), f, queries):
        model, clusters, blocks = Clusterer(f), [], []
        for segment, (hashes, codes) in enumerate(zip(table.hashes, table.codes, strict=True)):
            clusters.append([j.cluster for j in model.add_frame(hashes)])
            if codes is not None:
                counts = model.counts.copy()
                union = select_rows(codes, counts, f).mask.any(0)
                blocks.append(Block(segment, codes, counts, np.flatnonzero(union).tolist()))
        out.append(Stream(table.hashes, clusters, blocks))
    return out


def file_digest(path: Path) -> str:
    """Hash of a file's content. Raises `TraceError` if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:32]
    except OSError as e:
        raise TraceError(
            f"{path}: cannot be read on this worker ({e.strerror}); put it where all workers see it"
        ) from None
