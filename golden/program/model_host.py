"""Runs a whole decoder, from embeddings or pictures to the next token's number, on one golden core.

`ModelHost` takes a stream: a prompt, frames, a question, then generated tokens. It cuts the stream into passes of at
most as many tokens as its plan has, and each pass into steps. A step is one run of a program on the core:

=====================  ===============================================================================================
phases of each layer   `golden.program.share_plan`, of a core alone; `attention` runs once for each KV head
head                   `golden.program.head_compiler`, after the last pass of the given stream and each generated token
head_norm              in a batch of several rows: the head's norm, of the last token of each stream, before `head`
vision                 `golden.program.encoder_host`, before the pass of a picture, where the host has a vision encoder
=====================  ===============================================================================================

There is one program for each phase and size of pass. Layers and KV heads share it; registers say where their weights,
their ring and their table are. The prompt is computed like every other part.

**Batches.** A host of several streams takes the next pass of each at once (`ModelHost.batch`). One load of weights then
serves the rows of all, and the phases of attention run stream by stream. Every number is that of the stream alone,
where the same cuts of products fit (`SharePlan`). Pictures are encoded one after the other.

**Sections.** A retrieval takes few tokens: those that the HCU holds, of coded pages those whose rows fit a bank. A
longer pass has several sections, one after the other, each of which retrieves for itself. They run as streams of a
batch do, but in one context. So a pass has the numbers of several short ones, and loads the weights once.

**The host's part.** Before each pass it writes the hidden states of its tokens, the rotary tables of their positions,
the mask of the ring and a few constants. After a `head` it reads a token's number, and looks up the embedding for the
next pass: the instruction set has no load whose address comes from memory. It copies a picture's embeddings to where
the decoder's hidden states lie. Between steps the host passes on no number but addresses.

**Memory.** Regions follow one another from address 0, each at a multiple of 4,096 bytes:

==========================  ==========================================================================================
shared                      hidden states, attention outputs and the FFN's inner states of a pass
work 0                      other arrays of a pass; passes of different sizes overlap here
inputs 0                    in a host of several streams: what the host writes for each
weights 0 of layer k        norms, products `output`, `gate_up`, `down`; then for each KV head `qkv`, hyperplanes,
                            fetched entries, mean keys of clusters and thresholds
stream n, table 0 of layer  of each further stream: hyperplanes and what is behind them
head weights, head work     of `golden.program.head_compiler`
vision ...                  of `golden.program.encoder_host`, where the host has a vision encoder
tables 0, rings 0, home 0   of the retrieval engine: a context for each layer and KV head, layer by layer
==========================  ==========================================================================================

The plans give each array's place: `host.system.plans[0][k]`, `host.head`. A matrix lies in memory in the order in
which it is loaded, [blocks, slices, rows, numbers]. Weights are written once, by the constructor. Between the steps
everything that a stream is lies in memory, but for its position and the tokens so far (`Said`).
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Matrix, PackedMatrix
from openvrex.golden.function_params import ReSVParams, check
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.encoder_host import EncoderHost, EncoderStep
from openvrex.golden.program.head_compiler import HeadPlan
from openvrex.golden.program.isa import Instruction, LxeFormat, Opcode, Status
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.lxe_model import LxeError, Memory, Result
from openvrex.golden.program.share_plan import shared_space
from openvrex.golden.program.system_host import BatchPart, SystemHost, batch_steps
from openvrex.golden.retrieval.dre_model import DreSizes
from openvrex.golden.retrieval.key_matrices import KeyMatrices

HEAD = "head"  # the phase behind the last layer
NORMED = "head_norm"  # the phase before it in a batch
VISION = "vision"  # the phase of a picture


@dataclass(frozen=True)
class Picture:
    """A picture as a part of a stream: its patches, normalised [patches, numbers]."""

    patches: np.ndarray


Part = np.ndarray | Picture


@dataclass(frozen=True)
class Weights:
    """A decoder's weights.

    layers : of each layer, as `golden.inputs.decoder` keeps them, or as its `four_bits` does
    matrices : of each layer's retrieval: hyperplanes [n_hp, KV heads * head size], or those of coded pages
    norm : of the last norm, [width]
    embeddings : [vocabulary, width]
    turns : radians that a position adds to the angle of each rotary pair, [head size / 2]
    head : language head [vocabulary, width]; None: the embeddings
    packed_head : the same head [width, vocabulary] in the bits of its file, which the core then has in memory; None:
        BF16
    """

    layers: Sequence[dict[str, Matrix]]
    matrices: Sequence[np.ndarray | KeyMatrices]
    norm: np.ndarray
    embeddings: np.ndarray
    turns: np.ndarray
    head: np.ndarray | None = None
    packed_head: PackedMatrix | None = None


@dataclass(frozen=True)
class ModelStep:
    """One run of a program.

    number : of the pass, or of the picture · part : of the stream; generated tokens count on behind the last given part
    start, tokens : first token of the section, and how many it has; of a picture those of the pass behind it
    layer : None for the head and for a picture · phase : of the layer, `HEAD` or `VISION`
    group : the KV head, for `attention`
    stream, first : of a section, and its first row of the hidden states; of products those of the first section
    batch : tokens of all sections; 0: the pass has one · rows : of the head, the stream of each row
    section : its number in the pass; of products 0
    registers : their values at the start: the same in every stream, as addresses do not change
    seen : of a picture, the step of the encoder
    """

    number: int
    part: int
    start: int
    tokens: int
    layer: int | None
    phase: str
    group: int
    program: list[Instruction]
    registers: dict[int, int]
    seen: EncoderStep | None = None
    stream: int = 0
    first: int = 0
    batch: int = 0
    rows: tuple[int, ...] = ()
    section: int = 0


@dataclass
class Said:
    """A stream so far: its generated tokens, the tokens that have passed through all layers, and those to come."""

    tokens: list[int] = field(default_factory=list)
    length: int = 0
    total: int = 0


class Asked(NamedTuple):
    """The next pass of a stream: its number, part, what passes, and whether a token is chosen after it."""

    stream: int
    part: int
    x: Part
    head: bool


def blocks_needed(tokens: int, clusters: int, block_slots: int, contexts: int) -> int:
    """Blocks of home memory that hold any stream of so many tokens.

    Every entry has a place at home from the start. A context has up to `clusters` chains of blocks, and each of them
    may end in a block with one entry: (tokens + clusters (block_slots - 1)) / block_slots, never above the tokens.
    """
    return contexts * min(tokens, (tokens + clusters * (block_slots - 1)) // block_slots)


class ModelHost:
    """A decoder on one golden core, with a table for each layer and KV head.

    shape : of the layers; `tokens` is the most that a section of a pass takes
    retrieval : sizes of the retrieval, without sinks
    weights : of the whole decoder
    params : parameters of the retrieval
    sizes : of the DRE
    end : the token that ends the answer; None: none does
    vision : encodes pictures on the same core, with a projector to the decoder's width
    streams : most streams of a batch
    at_once : most tokens of a pass of all streams together, in whole sections, but at least one of each

    `stream` yields the steps of a stream, `batch` those of several; `run` executes a step on golden. `said` has what
    each stream is, `tokens` and `length` are of the first. Raises `ParamError` for sizes that do not fit.
    """

    def __init__(
        self,
        shape: LayerShape,
        fmt: LxeFormat,
        retrieval: RetrievalShape,
        weights: Weights,
        params: ReSVParams,
        sizes: DreSizes,
        *,
        end: int | None = None,
        vision: EncoderHost | None = None,
        streams: int = 1,
        at_once: int = 0,
    ):
        check(retrieval.sinks == 0, "sinks", retrieval.sinks, "must be 0: the prompt runs on the core as all else")
        whole = weights.embeddings if weights.head is None else weights.head
        own = weights.packed_head
        head, packing = (whole.T, None) if own is None else (own, own.packing)
        self.weights, self.end, self.sizes = weights, end, sizes
        self.head = HeadPlan(shape, fmt, head.shape[1], streams, packing=packing)
        self.most = shape.tokens * max(1, at_once // (streams * shape.tokens))  # tokens of a stream in a pass
        sections = streams * self.most // shape.tokens
        self.system = SystemHost(
            shape,
            fmt,
            retrieval,
            weights.layers,
            weights.matrices,
            params,
            sizes,
            cores=1,
            streams=streams,
            batch=streams * self.most if sections > 1 else 0,
            sections=sections,
            more={"head weights": self.head.weights.size, "head work": self.head.work.size} | self._seeing(vision),
        )
        if vision:
            vision.place(self.memory, self.system.more_bases)
        for name, x in self.head.pack(weights.norm, head).items():
            self.memory.put(self.head_address(name), x)
        self._sizes = {(shape.tokens, self.system.shares.batch): self.system}
        self._heads = {streams: self.head}
        self.said = [Said() for _ in range(streams)]
        self.passes = 0
        self._left: ModelStep | None = None  # the step that was yielded last, until it is run

    def _seeing(self, vision: EncoderHost | None) -> dict[str, int]:
        """Names and bytes of the regions of a vision encoder."""
        self.vision = vision
        if vision is None:
            return {}
        width, size = vision.shape.projector[-1], self.head.shape.width
        check(width == size, "projector", width, f"must be {size}, the decoder's width")
        check(len(vision.plans) == 1, "cores", len(vision.plans), "must be 1: one core runs encoder and decoder")
        return vision.regions

    @property
    def shape(self) -> LayerShape:
        """The shape of a layer and of the largest section of a pass."""
        return self.system.shares.whole

    @property
    def memory(self) -> Memory:
        """All of the core's memory."""
        return self.system.memory

    @property
    def tokens(self) -> list[int]:
        """The tokens that the first stream has generated."""
        return self.said[0].tokens

    @property
    def length(self) -> int:
        """The tokens of the first stream that have passed through all layers."""
        return self.said[0].length

    def of(self, tokens: int, batch: int = 0, section: int = 0) -> SystemHost:
        """The layers for sections of so many tokens, alone or in a batch; all sizes share memory, core and tables."""
        if (tokens, batch) not in self._sizes:
            self._sizes[tokens, batch] = self.system.of(tokens, batch)
        return self._sizes[tokens, batch].at(section)

    def running(self, step: ModelStep) -> SystemHost:
        """The layers for the section of a step."""
        return self.of(step.tokens, step.batch, step.section)

    def head_of(self, rows: int) -> HeadPlan:
        """The head for so many rows; all share the weights."""
        if rows not in self._heads:
            self._heads[rows] = self.head.of(rows)
        return self._heads[rows]

    def head_address(self, name: str) -> int:
        """Address of the first byte of an array of the head, but for `hidden`."""
        array, bases = self.head[name], self.system.more_bases
        return array.offset + bases["head weights" if array.base == Register.WEIGHTS else "head work"]

    def logits(self, row: int = 0) -> np.ndarray:
        """A row of the logits of the last `HEAD`, FP32 [vocabulary]."""
        shape = (row + 1, self.head["logits"].shape[1])
        return self.memory.get(self.head_address("logits"), shape, np.float32)[row, : self.head.vocabulary]

    def hidden(self, tokens: int, batch: int = 0, first: int = 0) -> np.ndarray:
        """Hidden states of the pass that was run last, FP32 [tokens, width].

        tokens, batch, first : of the stream's `ModelStep`
        """
        return self.of(tokens, batch).get(0, "hidden")[first : first + tokens]

    def stream(self, parts: Iterable[Part], generate: int = 0) -> Iterator[ModelStep]:
        """The steps of a stream, behind what came before. Run each one before asking for the next.

        parts : embeddings [tokens, width] of the prompt, each frame, the question, or pictures; a part without tokens
            has no pass
        generate : most tokens to generate after the last part; the token `end` ends the answer

        Raises `ParamError` for parts of another width, for a picture without an encoder, and if there is no token at
        all before the first generated one.
        """
        return self.batch([parts], generate)

    def batch(self, streams: Sequence[Iterable[Part]], generate: int = 0) -> Iterator[ModelStep]:
        """The steps of several streams, as of `stream`: a pass takes the next tokens of each that has not ended.

        Raises `ParamError` as `stream` does, and for more streams than the host has.
        """
        most = len(self.said)
        check(len(streams) <= most, "streams", len(streams), f"must be at most {most}, those of the host")
        runs = {n: self._passes(n, list(parts), generate) for n, parts in enumerate(streams)}
        while runs:
            asked = {n: next(run, None) for n, run in runs.items()}
            runs = {n: run for n, run in runs.items() if asked[n]}
            now = []
            for one in filter(None, asked.values()):
                x = (yield from self._see(one, one.x)) if isinstance(one.x, Picture) else one.x
                now.append((one, x))
            if now:
                yield from self._pass(now)

    def _passes(self, n: int, parts: list[Part], generate: int) -> Iterator[Asked]:
        """What passes of a stream, one pass after the other."""
        own, embeddings = self.said[n], self.weights.embeddings
        pieces = [(part, piece) for part, x in enumerate(parts) for piece in self._pieces(x)]
        check(bool(pieces) or not generate, "parts", len(parts), "must hold a token, after which others are generated")
        own.total = own.length + sum(map(self.tokens_of, parts)) + max(0, generate - 1)
        for k, (part, piece) in enumerate(pieces):
            yield Asked(n, part, piece, generate > 0 and k == len(pieces) - 1)
        for part in range(len(parts), len(parts) + generate - 1):
            if own.tokens[-1] == self.end:
                return
            yield Asked(n, part, embeddings[own.tokens[-1:]], True)

    def tokens_of(self, part: Part) -> int:
        """Tokens of a part of a stream."""
        if not isinstance(part, Picture):
            return len(part)
        assert self.vision
        return self.vision.shape.seen

    def _pieces(self, part: Part) -> Iterator[Part]:
        """A part in passes."""
        most, width = self.most, self.shape.width
        if isinstance(part, Picture):
            check(self.vision is not None, "part", "a picture", "must be embeddings: the host has no vision encoder")
            seen = self.tokens_of(part)
            check(seen <= most, "tokens", seen, f"must be at most {most}, those of a pass")
            yield part
            return
        ok = part.ndim == 2 and part.shape[1] == width
        check(ok, "part", part.shape, f"must have width = {width} numbers a token")
        yield from (part[i : i + most] for i in range(0, len(part), most))

    def _see(self, asked: Asked, picture: Picture) -> Generator[ModelStep, None, np.ndarray]:
        """The steps of a picture; returns its embeddings [tokens, width]."""
        assert self.vision
        self.vision.begin(picture.patches)
        where = self.passes, asked.part, self.said[asked.stream].length, self.tokens_of(picture)
        for seen in self.vision.steps():
            [program], [registers] = seen.programs, seen.registers
            assert program is not None  # a core alone has a part in every stage
            yield from self._step(ModelStep(*where, None, VISION, 0, program, registers, seen, asked.stream))
        self.passes += 1
        return self.vision.embeddings.copy()

    def _pass(self, asked: list[tuple[Asked, np.ndarray]]) -> Iterator[ModelStep]:
        """The steps of a pass over embeddings [tokens, width] of each stream that is asked for."""
        size, total = self.shape.tokens, sum(len(x) for _, x in asked)
        batch = total if len(self.said) > 1 or total > size else 0
        parts, steps, first = list[BatchPart](), list[ModelStep](), 0
        for one, whole in asked:
            n = one.stream
            for i in range(0, len(whole), size):
                x, start = whole[i : i + size], self.said[n].length + i
                host = self.of(len(x), batch, len(parts))
                angle = (start + np.arange(len(x)))[:, None] * np.asarray(self.weights.turns)
                cos, sin = (of(angle).astype(np.float32) for of in (np.cos, np.sin))
                host.begin(x.astype(np.float32), cos, sin, start, n, first)
                own = ModelStep(self.passes, one.part, start, len(x), None, "", 0, [], {}, None, n, first, batch)
                steps.append(replace(own, section=len(parts)))
                parts.append(BatchPart(host, n, first))
                first += len(x)
        for layer in range(len(self.weights.layers)):
            for (host, n, first), phase, group in batch_steps(parts, layer):
                program = host.program(0, phase, layer)
                assert program is not None  # a core alone takes part in every phase
                registers = host.registers(0, layer, group, phase, n, first)
                own = replace(steps[host.section], layer=layer, phase=phase, group=group)
                yield from self._step(replace(own, program=program, registers=registers))
        self.passes += 1
        for one, x in asked:
            self.said[one.stream].length += len(x)
        last = {step.stream: step for step in steps}
        yield from self._head([last[one.stream] for one, _ in asked if one.head])

    def _head(self, asked: list[ModelStep]) -> Iterator[ModelStep]:
        """The steps that choose the next token of each stream behind a pass, of which `asked` names one step each."""
        if not asked:
            return
        rows = tuple(one.stream for one in asked)
        plan = self.head_of(len(rows))
        if len(rows) == 1:
            phases = [(asked[0], 0, HEAD, plan.program())]
        else:
            norm, head = plan.program("norm", "norm"), plan.program("head", "argmax")
            phases = [(one, k, NORMED, norm) for k, one in enumerate(asked)] + [(asked[0], 0, HEAD, head)]
        for one, k, phase, program in phases:
            registers = self._head_registers(one, k)
            yield from self._step(replace(one, phase=phase, program=program, registers=registers, rows=rows))
        for k, one in enumerate(asked):
            self.said[one.stream].tokens.append(self.chosen(k))

    def _step(self, step: ModelStep) -> Iterator[ModelStep]:
        self._left = step
        yield step
        assert self._left is None, f"{step.phase} of pass {step.number} was not run before the next step was asked for"

    def run(self, step: ModelStep) -> Result:
        """Execute a step on golden: memory is then as the hardware leaves it.

        Raises `LxeError` as `Core.run` does. For a stream that outgrows its memory (`Status.FULL`) the message says how
        much memory it needs.
        """
        self.ran(step)
        if step.layer is None:
            return self.system.cores[0].run(step.program, step.registers)
        try:
            system = self.running(step)
            return system.step(0, step.phase, step.layer, step.group, step.stream, step.first)
        except LxeError as e:
            if e.status != Status.FULL:
                raise
            where = f"pass {step.number}, layer {step.layer}, KV head {step.group}"
            raise LxeError(e.pc, Opcode.RETRIEVE, f"{where}: {e.reason}. {self.needs()}", e.status) from None

    def ran(self, step: ModelStep) -> None:
        """Memory is as after a step: of a run that goes on, which has executed the step before."""
        assert self._left in (None, step), f"{step.phase} of pass {step.number} is not the step that was asked for"
        self._left = None

    def needs(self) -> str:
        """How much memory the streams take at most, in words."""
        recent, known = self.shape.recent, self.sizes.map
        contexts = len(self.weights.layers) * self.system.shares.groups
        totals = [own.total for own in self.said if own.total]
        blocks = sum(blocks_needed(total, known.clusters, known.block_slots, contexts) for total in totals)
        size = blocks * known.block_bytes
        entries = max(0, max(totals) - recent)
        named = " and ".join(map(str, totals))
        who = f"A stream of {named} tokens needs" if len(totals) == 1 else f"Streams of {named} tokens need"
        return (
            f"{who} at most blocks = {blocks} ({size:,} bytes of home memory) and entries = {entries} behind the ring"
        )

    def _head_registers(self, step: ModelStep, row: int) -> dict[int, int]:
        """Registers of the head's programs for a row, the last token of a stream's pass."""
        hidden = shared_space(self.running(step).shares).arrays["hidden"]
        last = step.first + step.tokens - 1
        return {
            int(Register.WEIGHTS): self.system.more_bases["head weights"],
            int(Register.KV): self.system.more_bases["head work"],
            int(Register.REST): 0,
            int(Register.OUT): hidden.offset + last * self.shape.width * 4,
            int(Register.STREAM): self.head_address("norm") + row * self.shape.width * 2,
        }

    def chosen(self, row: int = 0) -> int:
        """The token that the last `HEAD` has chosen for a row."""
        array = self.head["next"]
        number = float(self.memory.get(self.head_address("next"), array.shape, np.float32)[row, 0, 0])
        known = 0 <= number < self.head.vocabulary
        check(known, "next token", number, f"must be below {self.head.vocabulary}: the largest logit is not finite")
        return int(number)
