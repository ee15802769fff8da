"""`vrex papers calibrate`: derive the matrices of coded pages from a decoder that reads a text."""

import platform
import sysconfig
from pathlib import Path
from typing import Annotated, Any

import typer

from openvrex.golden.function_params import check
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.policies.blocks import Block
from openvrex.golden.policies.policy_run import DecoderRun, decoder_shape
from openvrex.golden.retrieval import key_matrices
from openvrex.golden.retrieval.coded_pages import ONE, PageParams
from openvrex.golden.retrieval.key_matrices import FAR, Moments
from openvrex.papers.policies.calibrating import Calibrating
from openvrex.papers.recall.recall_run import MODELS
from openvrex.scripts import console
from openvrex.scripts.progress import track

BLOCK = 256  # tokens that the decoder takes together
LETTERS = 16  # more than a token has, in the mean
DEFAULT = PageParams()
SOURCES = ("argparse", "ast", "calendar", "configparser", "csv", "datetime", "difflib")  # of Python, read as one text


def command(
    texts: Annotated[list[Path] | None, typer.Argument(help="Text files; if none, source files of Python.")] = None,
    model: Annotated[str, typer.Option(help=f"The decoder: {' or '.join(MODELS)}.")] = "smollm2",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens that are read of each text, at most.")] = 8000,
    numbers: Annotated[int, typer.Option(min=1, help="Numbers of a code.")] = DEFAULT.numbers,
    weight: Annotated[float, typer.Option(min=0, max=1, help="How much the queries count.")] = 0.5,
    mean: Annotated[int, typer.Option(min=1, help="Adjacent tokens that share a mean key.")] = DEFAULT.mean,
    output: Annotated[Path | None, typer.Option("-o", help="Default: build/matrices/<model>.npz.")] = None,
) -> None:
    """Derive coded pages' matrices from texts that a decoder reads.

    The file holds, for each layer and KV head, the matrix that codes keys and the one that turns queries. Texts should
    be as long as the caches that the matrices will serve.
    """
    check(model in MODELS, "model", model, f"must be one of {', '.join(MODELS)}")
    most, size = MODELS[model].positions, MODELS[model].head_size
    check(tokens <= most, "tokens", tokens, f"must be at most {most}: {model} knows {most} positions")
    check(tokens > FAR, "tokens", tokens, f"must be above {FAR}: queries count that look back so far")
    check(numbers <= size, "numbers", numbers, f"must be at most {size}, the numbers of a head")
    read = [path.read_text(errors="replace") for path in texts or ()] or [_sources()]
    decoder = MODELS[model](None, most)
    shape = decoder_shape(decoder)
    moments = [Moments(shape.kv_heads, shape.head_size) for _ in range(shape.layers)]
    lengths = [_gather(decoder, text, tokens, Calibrating(mean, moments, shape)) for text in read]
    matrices = [own.matrices(numbers, weight, ONE) for own in moments]
    output = output or Path("build/matrices", f"{model}.npz")
    key_matrices.save(
        output, matrices, {"model": model, "tokens": lengths, "weight": weight, "mean": mean} | _read(texts)
    )
    console.out.print(f"{output}: {shape.layers} layers, {shape.kv_heads} KV heads, {numbers} numbers a code")


def _gather(decoder: Decoder, text: str, tokens: int, policy: Calibrating) -> int:
    """Read a text, at most so many tokens; returns how many."""
    ids = [*decoder.tokenizer.start, *decoder.tokenizer.encode(text[: LETTERS * tokens])][:tokens]
    run = DecoderRun(policy, decoder.width)
    for start in track(range(0, len(ids), BLOCK), "tokens / 256"):
        stop = min(start + BLOCK, len(ids))
        run.step(decoder, Block(len(run.records), "frame", start, stop), decoder.inputs(ids[start:stop]))
    return len(ids)


def _read(texts: list[Path] | None) -> dict[str, Any]:
    """What has been read, by name."""
    if texts:
        return {"texts": [path.name for path in texts]}
    return {"texts": [f"{name}.py" for name in SOURCES], "python": platform.python_version()}


def _sources() -> str:
    """Source files of Python."""
    return "".join(Path(sysconfig.get_path("stdlib"), f"{name}.py").read_text() for name in SOURCES)
