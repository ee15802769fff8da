"""Traces: queries, keys and values of a real video stream in a real decoder, to replay without running the decoder.

`golden.inputs.trace_recorder` makes a trace with the built-in models; `Trace` holds it and reads and writes its file.
The file is safetensors with the BF16 type, so any safetensors reader that knows BF16 opens it.

| tensor | type | shape | content |
| --- | --- | --- | --- |
| `k` | BF16 | [layers, tokens, KV heads, head size] | keys, post-rotary |
| `v` | BF16 | [layers, tokens, KV heads, head size] | values; optional |
| `q` | BF16 | [layers, tokens - first_query, heads, head size] | queries of the last tokens, post-rotary, not scaled |
| `offsets` | I32 | [segments + 1] | segment s is tokens offsets[s] to offsets[s + 1] |
| `stages` | U8 | [segments] | stage of each segment, an index into `STAGES` |
| `hidden` | BF16 | [tokens, width] | input of the decoder's first layer, whichever layers are recorded; optional |

One metadata entry, `openvrex.trace`, holds JSON:

* `version`, `layers`, `first_query` and `provenance`.
* `model`: layout of the heads, rotary base, scaling and frequencies, and the norms' epsilon
  (`golden.inputs.trace_model`).
* `sha256` of the tensors' bytes, in the order of the table, and of `model`. It reveals a damaged file.

The reader also takes version 1, which has no `model`. Numbers are fp32 rounded to BF16, to nearest even. The same
arguments on the same machine give the same bytes.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save as to_safetensors

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.inputs.finite import first_not_finite
from openvrex.golden.inputs.trace_model import Model

VERSION = 2  # of the file that `Trace.save` writes
KEY = "openvrex.trace"
STAGES = ("prompt", "frame", "question", "generation")
DTYPES = {"BF16": ml_dtypes.bfloat16, "I32": np.int32, "U8": np.uint8}
TENSORS = {"k": "BF16", "v": "BF16", "q": "BF16", "offsets": "I32", "stages": "U8", "hidden": "BF16"}
OPTIONAL = {"v", "hidden"}
MAX_TOKENS = 8192  # positions that the decoder was trained on
PROMPT = "<|im_start|>user\n"
TURN = "<|im_end|>\n<|im_start|>assistant\n"


class TraceError(ValueError):
    """Raised for a trace that cannot be read, written or used. The message is one line with the reason and the fix."""


@dataclass(frozen=True)
class Trace:
    """Q, K and V of the recorded layers of one stream, in token order. The arrays are those of the module's table.

    A segment is one block of tokens that the decoder took at once: the prompt, a frame, the question, or one generated
    token. Query head h reads KV head h // (heads / kv_heads). Raises `TraceError` for arrays that do not fit together
    and for numbers that are not finite.
    """

    layers: tuple[int, ...]  # decoder layer of k[i]
    k: np.ndarray
    q: np.ndarray
    v: np.ndarray | None
    offsets: np.ndarray
    stages: np.ndarray
    provenance: dict
    hidden: np.ndarray | None = None
    model: Model | None = None  # None: unknown, as in files of version 1

    def __post_init__(self) -> None:
        try:
            self._check()
        except TraceError:
            raise
        except (AttributeError, TypeError, ValueError, IndexError) as e:
            raise TraceError(f"not the arrays of a trace: {e}") from None

    def _check(self) -> None:
        """Raise `TraceError` for the first disagreement between the arrays."""

        def agree(ok: bool, what: str) -> None:
            if not ok:
                raise TraceError(f"{what}; record the trace again with 'vrex trace'")

        agree(self.k.ndim == 4 and min(self.k.shape) > 0, f"k has shape {list(self.k.shape)}, not 4 axes of 1 or more")
        n_layers, tokens, kv_heads, size = self.k.shape
        agree(len(self.layers) == n_layers, f"the layers are {list(self.layers)}, but k has {n_layers} of them")
        agree(all(isinstance(i, int) for i in self.layers), f"layers {list(self.layers)} are not integers")
        shape = list(self.q.shape)
        ok = len(shape) == 4 and shape[0] == n_layers and shape[1] <= tokens and shape[3] == size
        agree(ok, f"q has shape {shape}, which does not fit k's {list(self.k.shape)}")
        agree(shape[2] > 0 and shape[2] % kv_heads == 0, f"q has {shape[2]} heads, not a multiple of k's {kv_heads}")
        if self.v is not None:
            agree(self.v.shape == self.k.shape, f"v has shape {list(self.v.shape)}, not k's {list(self.k.shape)}")
        ok = self.offsets.ndim == self.stages.ndim == 1 and len(self.offsets) == len(self.stages) + 1 > 1
        lengths = f"shapes {list(self.offsets.shape)} and {list(self.stages.shape)}"
        agree(ok, f"offsets and stages have {lengths}, but there must be one more offset than stages")
        ok = self.offsets[0] == 0 and self.offsets[-1] == tokens and bool((np.diff(self.offsets) > 0).all())
        agree(ok, f"offsets do not rise from 0 to {tokens} tokens")
        if self.hidden is not None:
            ok = self.hidden.ndim == 2 and len(self.hidden) == tokens and self.hidden.shape[1] > 0
            agree(ok, f"hidden has shape {list(self.hidden.shape)}, not {tokens} tokens")
        if self.model is not None:
            turns, turned = self.model.frequencies, len(self.model.turned)
            ok = turned == n_layers and (turns is None or len(turns) == size // 2)
            agree(
                ok, f"model has {turned} layers and {turns and len(turns)} frequencies, not {n_layers} and {size // 2}"
            )
        agree(int(self.stages.max()) < len(STAGES), f"stage {int(self.stages.max())} is not in 0 to {len(STAGES) - 1}")
        for name, first in (("k", 0), ("q", self.first_query), ("v", 0), ("hidden", 0)):
            x = getattr(self, name)
            at = None if x is None else first_not_finite(x)
            if at is not None:
                layer, token = ("", at[0]) if name == "hidden" else (f"layer {self.layers[at[0]]}, ", at[1])
                agree(False, f"{name}={x[at]} at {layer}token {first + token}: must be finite")

    @property
    def tokens(self) -> int:
        """Number of tokens in the stream."""
        return self.k.shape[1]

    @property
    def kv_heads(self) -> int:
        """KV heads per layer."""
        return self.k.shape[2]

    @property
    def heads(self) -> int:
        """Query heads per layer."""
        return self.q.shape[2]

    @property
    def head_size(self) -> int:
        """Numbers per head."""
        return self.k.shape[3]

    @property
    def first_query(self) -> int:
        """Number of the first token whose queries are recorded."""
        return self.tokens - self.q.shape[1]

    def spans(self, stage: str | None = None, queries: bool = False) -> list[tuple[int, int]]:
        """Token ranges (start, stop) of the segments, in order.

        `stage` keeps the segments of one stage only, `queries` only those whose queries are recorded.
        """
        pairs = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), self.stages.tolist(), strict=True)
        return [
            (start, stop)
            for start, stop, s in pairs
            if stage in (None, STAGES[s]) and (not queries or start >= self.first_query)
        ]

    def queries(self, i: int, start: int, stop: int) -> np.ndarray:
        """Queries of tokens start to stop in the i-th recorded layer, BF16 [stop - start, heads, head size].

        Raises `TraceError` for tokens whose queries are not recorded.
        """
        if not self.first_query <= start <= stop <= self.tokens:
            recorded = f"queries are recorded from {self.first_query} to {self.tokens}"
            raise TraceError(f"tokens {start} to {stop}: {recorded}; ask for these or record more queries")
        return self.q[i, start - self.first_query : stop - self.first_query]

    def save(self, path: str | Path) -> None:
        """Write the trace file, whole or not at all. Raises `OSError` that names the file."""
        tensors = {name: np.ascontiguousarray(a) for name in TENSORS if (a := getattr(self, name)) is not None}
        head: dict[str, Any] = {
            "version": VERSION,
            "layers": list(self.layers),
            "first_query": self.first_query,
            "provenance": self.provenance,
        }
        if self.model is not None:
            head["model"] = self.model.header(self.heads, self.kv_heads, self.head_size)
        head["sha256"] = _digest(tensors, head.get("model"))
        write_atomically(Path(path), to_safetensors(tensors, {KEY: json.dumps(head, sort_keys=True)}))

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read and check a trace file. Raises `TraceError` with the name of the file, the reason and the fix."""
        name = str(path)  # messages show the path as the user typed it
        try:
            raw = Path(path).read_bytes()
            tensors = dict(safetensors.deserialize(raw))
        except OSError as e:
            raise TraceError(f"{name}: cannot be read ({e.strerror}); record one with 'vrex trace'") from None
        except safetensors.SafetensorError:
            raise TraceError(f"{name}: damaged, or not a safetensors file; record it with 'vrex trace'") from None
        header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
        if KEY not in (header.get("__metadata__") or {}):
            raise TraceError(f"{name}: no trace of openvrex inside; record one with 'vrex trace'")
        try:
            head = json.loads(header["__metadata__"][KEY])
            version, layers, provenance = head["version"], tuple(head["layers"]), dict(head["provenance"])
            first_query, digest = head["first_query"], head["sha256"]
        except (KeyError, TypeError, ValueError):
            raise TraceError(f"{name}: incomplete trace header; record the trace again with 'vrex trace'") from None
        if version not in (1, VERSION):
            what = f"trace version {version!r}, but this program reads 1 and {VERSION}"
            raise TraceError(f"{name}: {what}; record it with 'vrex trace'")
        missing = sorted(TENSORS.keys() - tensors.keys() - OPTIONAL)
        unknown = sorted(tensors.keys() - TENSORS.keys())
        if missing or unknown:
            what = f"tensor {missing[0]} is missing" if missing else f"tensor {unknown[0]} is unknown"
            raise TraceError(f"{name}: {what}; record the trace again with 'vrex trace'")
        arrays: dict[str, Any] = dict.fromkeys(OPTIONAL)
        for key, t in tensors.items():
            if t["dtype"] != TENSORS[key]:
                what = f"{key} is {t['dtype']}, not {TENSORS[key]}"
                raise TraceError(f"{name}: {what}; record the trace again with 'vrex trace'")
            arrays[key] = np.frombuffer(t["data"], DTYPES[t["dtype"]]).reshape(t["shape"])
        try:
            trace = cls(layers=layers, provenance=provenance, **arrays)
            if "model" in head:
                trace = replace(trace, model=_model(head["model"], trace))
        except TraceError as e:
            raise TraceError(f"{name}: {e}") from None
        if digest != _digest(arrays, head.get("model")):
            raise TraceError(f"{name}: damaged, its checksum differs; record the trace again with 'vrex trace'")
        if trace.first_query != first_query:
            what = f"q starts at token {trace.first_query}, the header says {first_query}"
            raise TraceError(f"{name}: {what}; record the trace again with 'vrex trace'")
        return trace


def _model(header: dict, trace: Trace) -> Model:
    """The constants of a trace's model from the file's header; raises `TraceError` if they do not fit the trace."""
    try:
        return Model.read(header, trace.heads, trace.kv_heads, trace.head_size)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        what = f"the header's part on the model cannot be used ({e})"
        raise TraceError(f"{what}; record the trace again with 'vrex trace'") from None


def _digest(tensors: Mapping[str, np.ndarray | None], model: dict | None) -> str:
    """The checksum of a trace file: of its tensors in the order of `TENSORS`, and of its model."""
    present = [a.tobytes() for name in TENSORS if (a := tensors.get(name)) is not None]
    said = [] if model is None else [json.dumps(model, sort_keys=True).encode()]
    return hashlib.sha256(b"".join(present + said)).hexdigest()
