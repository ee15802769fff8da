"""`vrex answer`: a whole decoder watches a video and answers a question, on golden and on the RTL of a core."""

import json as json_format
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.inputs import video as video_in
from openvrex.golden.inputs.decoder import N_LAYERS, Decoder
from openvrex.golden.program.model_host import ModelHost
from openvrex.scripts import console
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.progress import Bar
from openvrex.scripts.run.answer_report import MORE, events, passes, phases, rates, sections, stages, thumbnails
from openvrex.scripts.run.play_passes import differences, end, play, tell_repeated
from openvrex.scripts.run.run_options import Played, grouped
from openvrex.tb.library import stage_log
from openvrex.tb.library.core_simulator import CoreSimulator
from openvrex.tb.library.decoder_model import TOKENS, core, decoder_host
from openvrex.tb.library.model_stream import ModelStream
from openvrex.tb.library.runner import emit
from openvrex.tb.library.video_question import VideoQuestion, answer

RESULT, FOLDER = "answer.json", "passes"  # in the folder
# A simulator in one piece ends earlier from about this many steps on, and is built for at most so many multipliers.
LONG, LARGE = 300, 256


@grouped
def command(
    video: Annotated[str, typer.Argument(help=f"Video file, or a clip: {', '.join(video_in.CLIPS)}.")] = "world",
    question: Annotated[str, typer.Option(help="Text behind the frames.")] = "What is in the video?",
    prompt: Annotated[str, typer.Option(help="Text before the frames.")] = "You see a short film.",
    frames: Annotated[int, typer.Option(min=0, help="Number of frames, from the first one.")] = 4,
    tokens: Annotated[int, typer.Option(help="Tokens of each frame: g*g, or g*g + 1.")] = TOKENS,
    fps: Annotated[float | None, typer.Option(help="Sample this many frames per second; all by default.")] = None,
    gop: Annotated[int, typer.Option(min=0, help="Encode the video again with this GOP; 0 takes it as it is.")] = 0,
    generate: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 8,
    layers: Annotated[int, typer.Option(min=1, max=N_LAYERS, help="Decoder layers; fewer make no sense of text.")] = (
        N_LAYERS
    ),
    *,
    how: Played,
    param: console.Param = None,
    folder: console.Folder = Path("build/answer"),
    json: console.Json = False,
) -> None:
    """Answer a question about a video, on a core's RTL.

    SmolLM2 computes the whole stream on the core: prompt, frames, question and answer, from embeddings to token
    numbers. Golden runs the same programs; the command compares every store and all memory. Run it again to resume.
    """
    # Dask takes half a second to import; no other command should wait for it.
    from openvrex.scripts.run.pass_engine import PassEngine, alone

    asked = VideoQuestion(video, frames, tokens, fps, prompt, question, gop)
    p = core(param or ())
    started = time.perf_counter()
    pictures = asked.pictures()  # a bad input fails here, before the models are loaded
    with ExitStack() as stack:
        bar = stack.enter_context(Bar(quiet=json, transient=False))
        decoder = Decoder(layers, 1)
        seen = bar.add_task("vision encoder", total=len(pictures))
        parts = asked.parts(pictures, decoder, lambda done: bar.update(seen, completed=done))
        total = sum(map(len, parts)) + generate
        host = decoder_host(decoder, p, total, TOKENS)
        stream = ModelStream(host, parts, generate)
        units = stage_log.units(p)
        most = steps(host, parts, generate)
        flat = not how.repeat and most >= LONG and p.dpe.n_h * p.dpe.n_w <= LARGE
        simulator = CoreSimulator(emit("core", p), p, [u.busy for u in units], flat)
        key = asdict(asked) | {"generate": generate, "layers": layers}
        stack.enter_context(alone(folder))
        engine = PassEngine(folder / FOLDER, stream, simulator, key)
        records = play(engine, bar, most, how.repeat, cache(lambda: how.connect(stack)))
        if not how.repeat:
            full: list[np.ndarray] = []
            plain = list(answer(Decoder(layers, total), parts, generate, full))
    found = differences(records)
    if how.repeat:
        tell_repeated(records, json)
    else:
        busy = {one["number"]: engine.samples(one["number"])[-1, 1:].tolist() for one in records}
        result = key | {
            "param": param or [],
            "decoder": "SmolLM2-135M-Instruct",
            "text": said(decoder, host.tokens),
            "full": said(decoder, [token for token, _ in plain]),
            "probabilities": [one["probability"] for one in records if "token" in one],
            "full_probabilities": [x for _, x in plain],
            "passes": passes(records, busy, [u.name for u in units], stream.errors(full), p.lxe.bus_bytes),
            "phases": phases(records),
            "stages": stages(records),
            "events": (happened := events(records)),
            "per_second": rates(records, len(parts)),
            "steps": len(records),
            "compared": sum(one["compared"] for one in records),
            "differences": found,
            "seconds": round(time.perf_counter() - started, 1),
            "simulator_seconds": max(1e-3, round(sum(engine.seconds(one["number"]) for one in records), 3)),
        }
        shown = sections(result)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / RESULT, json_format.dumps(result, indent=1).encode())
        pages = [Section("Frames", "", [], [], html_page.inline(thumbnails(pictures)))] if pictures else []
        passed = not found
        verdict = "Every store and all memory equal golden." if passed else "The RTL differs from golden."
        lead = f"{result['decoder']}, {layers} of {N_LAYERS} layers, {frames} frames of {video}: {question}"
        drawn = [*shown[:1], *pages, *shown[1:]]
        html_page.write(folder / "report.html", "OpenVRex: an answer on the RTL", lead, verdict, passed, drawn)
        if json:
            console.print_json(result)
        else:
            for s in shown:
                console.out.print(s.table())
            console.out.print(f"Report: {folder / 'report.html'}")
        for name in (name for name, times in happened.items() if not times):
            console.err.print(f"[yellow]not exercised:[/] no {name}: {MORE}", highlight=False, soft_wrap=True)
    end(found)


def steps(host: ModelHost, parts: Sequence[np.ndarray], generate: int) -> int:
    """Most steps of a stream; an end-of-text token makes it shorter."""
    system = host.system
    each = len(list(system.steps()))
    given = sum(-(-len(x) // host.shape.tokens) for x in parts)
    return (given + generate - 1) * len(host.weights.layers) * each + generate


def said(decoder: Decoder, tokens: Sequence[int]) -> list[str]:
    """The text of each token."""
    return [decoder.tokenizer.decode([token]) for token in tokens]
