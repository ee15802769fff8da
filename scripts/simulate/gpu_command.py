"""`vrex simulate gpu`: measure the GPU of this machine and write its platform file."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from openvrex.golden.atomic_files import write_atomically
from openvrex.scripts import console, extras
from openvrex.scripts.progress import Spinner
from openvrex.sim.system.gpu_figures import GpuFigures, written
from openvrex.sim.system.measured_gpu import MeasuredGpu, predicted


def command(
    output: Annotated[
        Path, typer.Option("-o", parser=console.file, help="The platform file, for --platform of `vrex simulate pass`.")
    ] = Path("gpu.json"),
    processor: Annotated[
        bool, typer.Option("--processor", help="Run on the processor at small sizes, to try the command.")
    ] = False,
    json: console.Json = False,
) -> None:
    """Measure this machine's GPU and write a platform file.

    PyTorch runs Llama-3 8B's shapes: products, attention, encoder, the choices of ReSV and coded pages, the link. Whole
    frames stand beside what the file's figures predict. Without a GPU it runs on the processor at small sizes.
    """
    console.check_replaced(output, "-o", "platform file", rb"\{\s*\"version\": \d+,\s*\"device\": .*")
    try:
        import torch
    except ModuleNotFoundError:
        raise ValueError(extras.needs("vrex simulate gpu", "torch", "gpu")) from None
    from openvrex.scripts.simulate.gpu_measure import SMALL, Machine, Sizes, measured

    gpu = torch.cuda.is_available() and not processor
    with Spinner("measuring", json) as spinner, torch.inference_mode():
        try:
            found = measured(Sizes() if gpu else SMALL, Machine("cuda" if gpu else "cpu"), spinner.update)
        except torch.OutOfMemoryError as e:
            raise ValueError(f"the GPU's memory is too small or in use: {str(e).splitlines()[0]}") from None
    write_atomically(output, written(found))
    if json:
        console.print_json(found.model_dump())
        return
    console.out.print(beside(found))
    console.out.print(f"{found.note}. Written: {output}", highlight=False, soft_wrap=True)


def beside(figures: GpuFigures) -> Table:
    """Measured passes beside what the figures predict."""
    out = Table("policy", "tokens", "fetched", "bits at home", "choice", "measured, ms", "predicted, ms", "off")
    out.title = f"A frame on {figures.device}, without encoder"
    gpu = MeasuredGpu(figures.device, figures)
    for f in figures.frames:
        ms = predicted(gpu, f)
        fetched = "-" if f.policy == "resident" else f"{f.share:.1%}"
        choice = "known" if f.given else "its own"
        cells = f"{f.tokens:,}", fetched, f"{f.home_bits}", choice, f"{f.ms:.3g}", f"{ms:.3g}", f"{ms / f.ms - 1:+.0%}"
        out.add_row(f.policy, *cells)
    return out
