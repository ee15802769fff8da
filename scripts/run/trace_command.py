"""`vrex trace`: record queries, keys and values of a video in a decoder."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, TimeElapsedColumn
from rich.table import Table

from openvrex.golden.function_params import ParamError, check
from openvrex.golden.inputs import hugging_face
from openvrex.golden.inputs import video as video_in
from openvrex.golden.inputs.model_file import open_model
from openvrex.golden.inputs.trace import STAGES, Trace
from openvrex.golden.inputs.trace_recorder import record
from openvrex.scripts import console
from openvrex.scripts.progress import Bar
from openvrex.scripts.run import run_options


def command(
    video: Annotated[str, typer.Argument(help=f"Video file, or a clip: {', '.join(video_in.CLIPS)}.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", parser=console.file, help="Trace file to write (safetensors).")
    ],
    hf: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a Hugging Face model to run instead of SmolLM2 (docs/traces.md); needs 'make hf'."
        ),
    ] = None,
    model: run_options.Model = None,
    frames: Annotated[int, typer.Option(help="Most frames to take.")] = 48,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of each frame: g*g, or g*g + 1 with the class token (default: 36, or the model's own)."
        ),
    ] = None,
    layers: Annotated[str, typer.Option(help="Decoder layers from 0 (SmolLM2: to 29), e.g. 0,1,2.")] = "0,1,2",
    fps: Annotated[
        float | None, typer.Option(help="Sample this many frames per second; all frames by default.")
    ] = None,
    queries: Annotated[int | None, typer.Option(help="Keep queries of the last N frames only.")] = None,
    values: Annotated[bool, typer.Option(help="Also record values and the inputs of the first layer.")] = True,
    question: Annotated[str, typer.Option(help="Text that follows the frames.")] = "",
    generate: Annotated[int, typer.Option(help="Generate this many tokens; then all layers run.")] = 0,
    json: console.Json = False,
) -> None:
    """Record queries, keys and values of a video in a decoder."""
    console.check_replaced(output, "-o", "trace", rb".{8}\{.*")
    check(not (hf and model), "--model", str(model), "must be alone: --hf names a model, too")
    if hf is None:
        tokens = 36 if tokens is None else tokens
    options = {
        "hf": hf and hf.resolve().name,
        "model": model and model.resolve().name,
        "frames": frames,
        "tokens": tokens,
        "layers": layers,
        "fps": fps,
        "queries": queries,
    }
    options |= {"question": question, "generate": generate}
    line = ["vrex", "trace", video if video in video_in.CLIPS else Path(video).name, "-o", output.name]
    line += [
        part for name, value in options.items() if value not in (None, "", 0) for part in (f"--{name}", str(value))
    ]
    line += [] if values else ["--no-values"]
    with Bar(BarColumn(), TimeElapsedColumn(), quiet=json) as bar:
        task = bar.add_task(f"trace {line[2]}")
        make: Callable[..., Trace] = partial(record, file=open_model(model)) if model else record
        make = partial(hugging_face.record, hf) if hf else make
        trace = make(
            video,
            frames=frames,
            tokens=tokens,
            layers=layer_numbers(layers),
            fps=fps,
            queries=queries,
            values=values,
            question=question,
            generate=generate,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    trace = replace(trace, provenance=trace.provenance | {"command": shlex.join(line)})
    trace.save(output)
    summary = describe(trace) | {"file": str(output), "bytes": output.stat().st_size}
    summary |= {"sha256": video_in.digest(output)}
    if json:
        console.print_json(summary)
        return
    table = Table(title=f"{output}", show_header=False)
    for key in ("frames", "tokens", "tokens_per_frame", "layers", "heads", "kv_heads", "queries", "answer", "bytes"):
        table.add_row(key.replace("_", " "), str(summary[key]))
    console.out.print(table)
    if "content" in trace.provenance:
        console.out.print(trace.provenance["content"], highlight=False)


def describe(trace: Trace) -> dict:
    """The summary of a trace, as `--json` prints it."""
    p = trace.provenance
    return {
        "frames": len(trace.spans("frame")),
        "tokens": trace.tokens,
        "tokens_per_frame": p.get("tokens_per_frame"),
        "layers": list(trace.layers),
        "heads": trace.heads,
        "kv_heads": trace.kv_heads,
        "head_size": trace.head_size,
        "model": trace.model and trace.model.header(trace.heads, trace.kv_heads, trace.head_size),
        "queries": trace.tokens - trace.first_query,
        "segments": {stage: len(trace.spans(stage)) for stage in STAGES},
        "answer": p.get("answer", ""),
        "provenance": p,
    }


def layer_numbers(text: str) -> tuple[int, ...]:
    """The layers in an option such as "0,1,2". Raises `ParamError` for anything else."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ParamError(f"layers={text!r}: must be numbers with commas between, e.g. 0,1,2") from None
