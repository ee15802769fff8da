"""What a measured GPU does: the platform file that `vrex simulate gpu` writes and `--platform FILE` reads.

All times are of the decoder whose sizes the file names, in BF16, in milliseconds; rates count 10^9 bytes a second.
"""

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from openvrex.golden.text_files import read_text
from openvrex.sim.system.workload import Decoder

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Table = Annotated[dict[Count, Positive], Field(min_length=1)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Shape(_Fields):
    """Sizes of a decoder, as of `sim.system.workload.Decoder`."""

    layers: Count
    width: Count
    heads: Count
    kv_heads: Count
    head: Count
    hidden: Count
    vocab: Count

    @property
    def decoder(self) -> Decoder:
        """The decoder of these sizes."""
        return Decoder(**self.model_dump())

    @classmethod
    def of(cls, m: Decoder) -> Self:
        """The sizes of a decoder."""
        return cls(**{name: getattr(m, name) for name in cls.model_fields})


class Attention(_Fields):
    """Milliseconds of one layer's attention to a resident cache: `rows` queries a stream, `tokens` cached ones each."""

    streams: Count
    rows: Count
    tokens: Count
    ms: Positive


class Frame(_Fields):
    """Milliseconds of a measured pass through all layers, without encoder, to hold the model against.

    share     : of the cache, that each layer fetches · cluster : mean tokens of a cluster, of `resv` alone
    home_bits : of a number at home, 16 or 4
    given     : the choice was known, and took no time
    """

    policy: str
    streams: Count = 1
    rows: Count = 10
    tokens: Count
    share: Share = 1.0
    cluster: Positive = 1.0
    home_bits: Literal[4, 16] = 16
    given: bool = False
    ms: Positive


class GpuFigures(_Fields):
    """A measured GPU.

    version       : of this format
    device, date, versions : what was measured, when, with which libraries
    note          : how it was measured, and what is not said by a field
    shape         : of the decoder
    capacity_gib  : of device memory
    copy_gbps, matmul_tflops : a large copy, bytes read and written; a large product
    launch_us     : of a kernel, by "graph" and "python"
    layers_ms     : all layers without attention, by rows
    attention     : of one layer, for one stream at two lengths or more
    encoder_ms    : the vision encoder, by pictures at once
    link_copy_gbps, link_gather_gbps : from the host, by bytes of a copy, and of a piece that a kernel gathers
    steps_ms      : of a policy's choice in one layer, by policy, then clusters of a KV head (`resv`) or cached tokens
                    (`pages`), then name of the step
    join_gbps     : fetched entries put beside resident ones; None: gathers write them there
    expand_gbps   : BF16 entries made of 4-bit ones; None: not measured
    watts         : of the board, by policy
    frames        : measured whole
    fitted        : fields that were not measured but fitted, each with what it was fitted to
    """

    version: Literal[1]
    device: str
    date: str
    versions: dict[str, str]
    note: str = ""
    shape: Shape
    capacity_gib: Positive
    copy_gbps: Positive
    matmul_tflops: Positive
    launch_us: dict[str, Positive]
    layers_ms: Table
    attention: Annotated[list[Attention], Field(min_length=2)]
    encoder_ms: Table
    link_copy_gbps: Table
    link_gather_gbps: Table
    steps_ms: dict[str, Annotated[dict[Count, dict[str, Figure]], Field(min_length=2)]]
    join_gbps: Positive | None = None
    expand_gbps: Positive | None = None
    watts: dict[str, Positive] = {}
    frames: list[Frame] = []
    fitted: dict[str, str] = {}

    @model_validator(mode="after")
    def _attention_is_enough(self) -> Self:
        for rows in {a.rows for a in self.attention}:
            own = [a for a in self.attention if a.rows == rows]
            for streams in (1, max(a.streams for a in own)):
                if len({a.tokens for a in own if a.streams == streams}) < 2:
                    raise ValueError(f"attention of {rows} rows and {streams} streams needs two lengths or more")
        return self


def read(path: Path) -> GpuFigures:
    """The figures of a platform file. `ValueError` names the file, the field and its value where one is wrong."""
    try:
        found = json.loads(read_text(path))
    except json.JSONDecodeError as e:
        raise ValueError(f"{path}: is no JSON ({e}): `vrex simulate gpu` writes platform files") from None
    try:
        return GpuFigures.model_validate(found)
    except ValidationError as e:
        first = e.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        if first["type"] == "missing":
            said = f"{field} is missing"
        elif first["type"] == "value_error":
            said = str(first["ctx"]["error"])
        else:
            given = repr(first["input"])
            said = f"{field}={given if len(given) < 60 else given[:60] + '...'}: {_must(first['msg'])}"
        raise ValueError(f"{path}: {said}; `vrex simulate gpu` writes platform files") from None


def _must(message: str) -> str:
    return message.replace("Input should", "must").replace("Extra inputs are not permitted", "is no field of it")


def written(figures: GpuFigures) -> str:
    """The text of a platform file, rounded to five digits."""
    fields = json.loads(figures.model_dump_json(), parse_float=lambda x: float(f"{float(x):.5g}"))
    return json.dumps(fields, indent=1) + "\n"
