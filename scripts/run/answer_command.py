"""`vrex answer`: a whole decoder watches a video and answers a question, on golden and on the RTL of a core."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from openvrex.golden.function_params import check
from openvrex.golden.inputs import video as video_in
from openvrex.golden.inputs.decoder import N_LAYERS, Decoder
from openvrex.golden.inputs.model_file import Constants, FileDecoder, ModelFile, open_model
from openvrex.golden.program.encoder_host import EncoderHost
from openvrex.golden.program.model_host import ModelHost, Part, Picture
from openvrex.golden.program.share_plan import JOINT
from openvrex.golden.program.system_map import SystemMap
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.hdl.params import CoreParams
from openvrex.scripts.pages import html_page
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.progress import Bar
from openvrex.scripts.run import run_options
from openvrex.scripts.run.answer_report import MORE, events, passes, phases, rates, sections, stages, thumbnails
from openvrex.scripts.run.policy_run import PolicyRun, run, split, told
from openvrex.scripts.run.run_options import ENCODERS, Answering, Encoder, check_encoder, grouped
from openvrex.tb.library import stage_log
from openvrex.tb.library.decoder_model import AT_ONCE, PAGES, SEEN, TOKENS, core, decoder_host, page_params
from openvrex.tb.library.model_stream import ModelStream
from openvrex.tb.library.page_watch import PageWatch
from openvrex.tb.library.video_question import VideoQuestion, answer

if TYPE_CHECKING:  # Dask takes half a second to import; no other command should wait for it.
    from openvrex.scripts.run.pass_engine import PassEngine

# A simulator in one piece ends earlier from about this many steps on, and is built for at most so many multipliers.
LONG, LARGE = 300, 256


@grouped
def command(
    videos: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Video file, or a clip: {', '.join(video_in.CLIPS)}. Several are watched at once.",
            show_default="world",
        ),
    ] = None,
    question: Annotated[str, typer.Option(help="Text behind the frames.")] = "What is in the video?",
    prompt: Annotated[str, typer.Option(help="Text before the frames.")] = "You see a short film.",
    frames: Annotated[int, typer.Option(min=0, help="Number of frames, from the first one.")] = 4,
    tokens: Annotated[int, typer.Option(help="Tokens of each frame: g*g, or g*g + 1.")] = TOKENS,
    fps: Annotated[float | None, typer.Option(help="Sample this many frames per second; all by default.")] = None,
    gop: Annotated[int, typer.Option(min=0, help="Encode the video again with this GOP; 0 takes it as it is.")] = 0,
    generate: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 8,
    at_once: Annotated[int, typer.Option(min=1, help="Most tokens of a pass, of all videos together.")] = AT_ONCE,
    policy: Annotated[str, typer.Option(help="What is retrieved: pages or resv.")] = "pages",
    encoder: Encoder = "core",
    model: run_options.Model = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, help="Decoder layers; fewer make no sense of text.", show_default="all"),
    ] = None,
    *,
    how: Answering,
) -> None:
    """Answer a question about a video, on a core's RTL.

    The core computes the whole stream: DINOv2 and a projector on the pixels of each frame, then the decoder on prompt,
    frames, question and answer, up to token numbers. Golden runs the same programs; the command compares every store
    and all memory. Run it again to resume.

    Several videos are a batch: the core loads weights once for the next tokens of all, and each gets the answer that
    it gets alone.
    """
    check_encoder(encoder)
    check(policy in ("resv", "pages"), "policy", policy, "must be resv or pages: they retrieve in a whole decoder")
    asked = [VideoQuestion(video, frames, tokens, fps, prompt, question, gop) for video in videos or ["world"]]
    own = Model(None if model is None else open_model(model))
    depth, many = own.depth(layers), len(asked)
    pages, (changes, sizes) = None, split(policy, how.param or ())
    sizes = own.sizes(many, depth) + sizes
    seen = SEEN if encoder == ENCODERS[0] and frames else ()
    if policy == "pages":
        p = core([*PAGES, *seen, *sizes])
        check(p.lxe.codes > 0, "lxe.codes", 0, "must be the numbers of a code for pages: leave it out, or take resv")
        pages = page_params(p, changes)
    else:
        p = core([*seen, *sizes])
    run(AnswerRun(asked, p, depth, generate, at_once, pages, bool(seen), own), {"param": how.param or []}, how)


@dataclass(frozen=True)
class Model:
    """The decoder that answers: that of the user's file or folder, else SmolLM2."""

    file: ModelFile | None = None

    @property
    def of(self) -> type[Decoder] | Constants:
        """Its sizes."""
        return self.file.constants if self.file else Decoder

    @property
    def layers(self) -> int:
        return self.file.constants.layers if self.file else N_LAYERS

    def depth(self, layers: int | None) -> int:
        """How many layers run, of so many that were asked for. Raises `ParamError` for more than there are."""
        known = layers is None or layers <= self.layers
        check(known, "--layers", layers, f"must be at most {self.layers}, those of the decoder")
        return layers or self.layers

    def sizes(self, streams: int, depth: int) -> list[str]:
        """Assignments to a core's parameters that the decoder needs."""
        out = [f"n_ctx={streams * depth * self.of.kv_heads}"] * (streams > 1 or bool(self.file))
        return out + ([f"entry_bytes={4 * self.of.head_size}"] if self.file else [])

    def read(self, depth: int, tokens: int) -> Decoder:
        """The decoder with its first layers, and a cache of so many tokens."""
        return FileDecoder(self.file, depth, tokens) if self.file else Decoder(depth, tokens)

    def notes(self, decoder: Decoder, packed: bool) -> list[str]:
        """What the core holds otherwise than the user's file. Raises `ParamError` for weights that it does not take."""
        return decoder.notes(decoder.held(packed)[1]) if isinstance(decoder, FileDecoder) else []


class AnswerRun(PolicyRun):
    """A run of a whole decoder, or its first layers, over prompt, frames, question and answer."""

    title, file = "an answer on the RTL", "answer.json"
    noted: Sequence[str] = ()

    def __init__(
        self,
        asked: list[VideoQuestion],
        p: CoreParams,
        layers: int,
        generate: int,
        at_once: int,
        pages: PageParams | None = None,
        seen: bool = False,
        model: Model = Model(),
    ):
        self.model = model
        self.page_params, self.seen = pages, seen
        self.asked, self.core, self.layers, self.generate = asked, p, layers, generate
        self.pictures = [one.pictures() for one in asked]  # a bad input fails here, before the models are loaded
        self.units = stage_log.units(p)
        self.counters = [u.busy for u in self.units]
        own = {name: value for name, value in asdict(asked[0]).items() if name != "clip"}
        self.key = {"clips": [one.clip for one in asked]} | own
        self.key |= {"generate": generate, "layers": layers, "encoder": ENCODERS[not seen], "at_once": at_once}
        if model.file:
            self.key |= {"model": model.file.digests()}
        if pages:
            self.key |= {"policy": "pages", "params": asdict(pages)}

    def start(self, folder: Path, bar: Bar) -> ModelStream:
        self.decoder = self.model.read(self.layers, 1)
        self.noted = self.model.notes(self.decoder, self.core.lxe.weights)
        seen, pages, vision = bar.add_task("vision encoder", total=sum(map(len, self.pictures))), self.page_params, None
        self.parts, given, first = list[list[np.ndarray]](), list[list[Part]](), None
        for one, pictures in zip(self.asked, self.pictures, strict=True):
            watched = one.watch(pictures, self.decoder, lambda _: bar.advance(seen), first)
            self.parts.append(watched.parts)
            given.append(list(watched.parts))
            if self.seen and watched.projector:
                first = watched.projector  # one encoder with one projector encodes all videos
                given[-1][1:-1] = [Picture(watched.encoder.pixels(picture)) for picture in pictures]
        if first:
            shape = watched.encoder.shape(self.asked[0].tokens, self.decoder.width)
            vision = EncoderHost(shape, self.core.core_format(), watched.encoder.folded(first))
        self.tokens = max(sum(map(len, parts)) for parts in self.parts) + self.generate
        most = self.decoder.positions
        check(
            self.tokens <= most, "tokens of the stream", self.tokens, f"must be at most {most}, the model's positions"
        )
        longest = -(-max(len(x) for parts in self.parts for x in parts) // TOKENS) * TOKENS
        at_once = min(self.key["at_once"], len(given) * longest)
        how: dict[str, Any] = {"pages": pages, "vision": vision, "streams": len(given), "at_once": at_once}
        self.host = decoder_host(self.decoder, self.core, self.tokens, TOKENS, **how)
        self.stream = ModelStream(self.host, given, self.generate, PageWatch(self.host, pages) if pages else None)
        self.total = steps(self.host, given, self.generate)
        self.flat = self.total >= LONG and self.core.dpe.n_h * self.core.dpe.n_w <= LARGE
        return self.stream

    def disagreements(self) -> list[str]:
        return [f"golden chooses otherwise: {line}" for line in self.stream.disagreements]

    def result(self, records: list[dict[str, Any]], engine: "PassEngine") -> dict[str, Any]:
        answers, errors = list[dict[str, Any]](), dict[int, float]()
        probabilities = [(n, x) for one in records for n, _, x in one.get("said", ())]
        for n, parts in enumerate(self.parts):
            full: list[np.ndarray] = []
            plain = list(answer(self.model.read(self.layers, self.tokens), parts, self.generate, full))
            answers.append(
                {
                    "clip": self.asked[n].clip,
                    "text": said(self.decoder, self.host.said[n].tokens),
                    "full": said(self.decoder, [token for token, _ in plain]),
                    "probabilities": [x for of, x in probabilities if of == n],
                    "full_probabilities": [x for _, x in plain],
                }
            )
            for number, error in self.stream.errors(n, parts, full).items():
                errors[number] = max(error, errors.get(number, 0.0))
        busy = {one["number"]: engine.samples(one["number"])[-1, 1:].tolist() for one in records}
        names, bus = [u.name for u in self.units], self.core.lxe.bus_bytes
        return self.key | {
            "decoder": self.decoder.title,
            "all_layers": self.model.layers,
            "answers": answers,
            "passes": passes(records, busy, names, errors, bus),
            "phases": phases(records),
            "stages": stages(records),
            "events": events(records) | (self.stream.watch.told() if self.stream.watch else {}),
            "per_second": rates(records, max(map(len, self.parts)), sum(map(len, self.pictures))),
            "steps": len(records),
            "compared": sum(one["compared"] for one in records),
            "simulator_seconds": max(1e-3, round(sum(engine.seconds(one["number"]) for one in records), 3)),
        }

    def pages(self) -> list[Section]:
        every = [picture for pictures in self.pictures for picture in pictures]
        return [Section("Frames", plot=html_page.inline(thumbnails(every)))] if every else []

    def warnings(self, result: dict[str, Any]) -> list[str]:
        finer = [*self.host.system.plans[0][0].finer, *self.host.head.finer]
        what = "slices of K are shorter than in a short pass of one video"
        mend = "numbers may be rounded otherwise than there: raise -p dpe.x_depth, or take fewer videos or --at-once"
        out = list(self.noted)
        out += [f"{', '.join(finer)}: {what}, so {mend}"] * bool(finer)
        return out + [f"not exercised: no {name}: {MORE}" for name, times in result["events"].items() if not times]

    @staticmethod
    def lead(result: dict[str, Any]) -> str:
        layers = f"{result['layers']} of {result.get('all_layers', N_LAYERS)} layers"
        of = f"{layers}, {result['frames']} frames of {' and '.join(result['clips'])}"
        of += f", coded pages: {told(result['params'])}" if "params" in result else ""
        return f"{result['decoder']}, {of}: {result['question']}"

    @staticmethod
    def sections(result: dict[str, Any]) -> list[Section]:
        return sections(result)


def steps(host: ModelHost, streams: Sequence[Sequence[Part]], generate: int) -> int:
    """Most steps of streams; an end-of-text token makes them shorter."""
    system, many = host.system, len(streams)
    phases = [phase for phase, _ in SystemMap.steps(system)]  # of which some passes leave out some
    joint = sum(phase in JOINT for phase in phases)
    seen = sum(isinstance(x, Picture) for parts in streams for x in parts)
    pictures = seen * len(list(host.vision.steps())) if host.vision else 0

    def turns(parts: Sequence[Part], size: int) -> int:
        return sum(-(-host.tokens_of(x) // size) for x in parts) + generate - 1

    passes = max(turns(parts, host.most) for parts in streams)
    each = passes * joint + sum(turns(parts, host.shape.tokens) for parts in streams) * (len(phases) - joint)
    return pictures + len(host.weights.layers) * each + generate * (many + 1 if many > 1 else 1)


def said(decoder: Decoder, tokens: Sequence[int]) -> list[str]:
    """The text of each token."""
    return [decoder.tokenizer.decode([token]) for token in tokens]
