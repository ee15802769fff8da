"""Runs a whole decoder, from embeddings or pictures to the next token's number, on one golden core.

`ModelHost` takes a stream: a prompt, frames, a question, then generated tokens. It cuts the stream into passes of at
most as many tokens as its plan has, and each pass into steps. A step is one run of a program on the core:

=====================  ===============================================================================================
phases of each layer   `golden.program.share_plan`, of a core alone; `attention` runs once for each KV head
head                   `golden.program.head_compiler`, after the last pass of the given stream and each generated token
vision                 `golden.program.encoder_host`, before the pass of a picture, where the host has a vision encoder
=====================  ===============================================================================================

There is one program for each phase and size of pass. Layers and KV heads share it; registers say where their weights,
their ring and their table are. The prompt is computed like every other part.

**The host's part.** Before each pass it writes the hidden states of its tokens, the rotary tables of their positions,
the mask of the ring and a few constants. After a `head` it reads a token's number, and looks up the embedding for the
next pass: the instruction set has no load whose address comes from memory. It copies a picture's embeddings to where
the decoder's hidden states lie. Between steps the host passes on no number but addresses.

**Memory.** Regions follow one another from address 0, each at a multiple of 4,096 bytes:

==========================  ==========================================================================================
shared                      hidden states, attention outputs and the FFN's inner states of a pass
work 0                      other arrays of a pass; passes of different sizes overlap here
weights 0 of layer k        norms, products `output`, `gate_up`, `down`; then for each KV head `qkv`, hyperplanes,
                            fetched entries, mean keys of clusters and thresholds
head weights, head work     of `golden.program.head_compiler`
vision ...                  of `golden.program.encoder_host`, where the host has a vision encoder
tables 0, rings 0, home 0   of the retrieval engine: a context for each layer and KV head, layer by layer
==========================  ==========================================================================================

The plans give each array's place: `host.system.plans[0][k]`, `host.head`. A matrix lies in memory in the order in
which it is loaded, [blocks, slices, rows, numbers]. Weights are written once, by the constructor. Between the steps
everything that a stream is lies in memory, but for the position (`length`) and the tokens so far.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Matrix
from openvrex.golden.function_params import ReSVParams, check
from openvrex.golden.program.core_compiler import RetrievalShape
from openvrex.golden.program.encoder_host import EncoderHost, EncoderStep
from openvrex.golden.program.head_compiler import HeadPlan
from openvrex.golden.program.isa import Instruction, LxeFormat, Opcode, Status
from openvrex.golden.program.layer_memory import LayerShape, Register
from openvrex.golden.program.lxe_model import LxeError, Memory, Result
from openvrex.golden.program.share_plan import shared_space
from openvrex.golden.program.system_host import SystemHost
from openvrex.golden.retrieval.dre_model import DreSizes
from openvrex.golden.retrieval.key_matrices import KeyMatrices

HEAD = "head"  # the phase behind the last layer
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
    """

    layers: Sequence[dict[str, Matrix]]
    matrices: Sequence[np.ndarray | KeyMatrices]
    norm: np.ndarray
    embeddings: np.ndarray
    turns: np.ndarray
    head: np.ndarray | None = None


@dataclass(frozen=True)
class ModelStep:
    """One run of a program.

    number : of the pass, or of the picture · part : of the stream; generated tokens count on behind the last given part
    start, tokens : first token of the pass, and how many it has; of a picture those of the pass behind it
    layer : None for the head and for a picture · phase : of the layer, `HEAD` or `VISION`
    group : the KV head, for `attention`
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


def blocks_needed(tokens: int, clusters: int, block_slots: int, contexts: int) -> int:
    """Blocks of home memory that hold any stream of so many tokens.

    Every entry has a place at home from the start. A context has up to `clusters` chains of blocks, and each of them
    may end in a block with one entry: (tokens + clusters (block_slots - 1)) / block_slots, never above the tokens.
    """
    return contexts * min(tokens, (tokens + clusters * (block_slots - 1)) // block_slots)


class ModelHost:
    """A decoder on one golden core, with a table for each layer and KV head.

    shape : of the layers; `tokens` is the most that a pass takes
    retrieval : sizes of the retrieval, without sinks
    weights : of the whole decoder
    params : parameters of the retrieval
    sizes : of the DRE
    end : the token that ends the answer; None: none does
    vision : encodes pictures on the same core, with a projector to the decoder's width

    `stream` yields the steps of a stream; `run` executes a step on golden. `tokens` are the generated tokens so far,
    `length` the tokens that have passed through all layers. Raises `ParamError` for sizes that do not fit.
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
    ):
        check(retrieval.sinks == 0, "sinks", retrieval.sinks, "must be 0: the prompt runs on the core as all else")
        head = weights.embeddings if weights.head is None else weights.head
        self.weights, self.end, self.sizes = weights, end, sizes
        self.head = HeadPlan(shape, fmt, len(head))
        self.system = SystemHost(
            shape,
            fmt,
            retrieval,
            weights.layers,
            weights.matrices,
            params,
            sizes,
            cores=1,
            more={"head weights": self.head.weights.size, "head work": self.head.work.size} | self._seeing(vision),
        )
        if vision:
            vision.place(self.memory, self.system.more_bases)
        for name, x in self.head.pack(weights.norm, head).items():
            self.memory.put(self.head_address(name), x)
        self._sizes = {shape.tokens: self.system}
        self._head_program = self.head.program()
        self.tokens: list[int] = []
        self.length = self.passes = self.total = 0
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
        """The shape of a layer and of the largest pass."""
        return self.system.shares.whole

    @property
    def memory(self) -> Memory:
        """All of the core's memory."""
        return self.system.memory

    def of(self, tokens: int) -> SystemHost:
        """The layers for passes of so many tokens; all sizes share memory, core and tables."""
        if tokens not in self._sizes:
            self._sizes[tokens] = self.system.of(tokens)
        return self._sizes[tokens]

    def head_address(self, name: str) -> int:
        """Address of the first byte of an array of the head, but for `hidden`."""
        array, bases = self.head[name], self.system.more_bases
        return array.offset + bases["head weights" if array.base == Register.WEIGHTS else "head work"]

    def logits(self) -> np.ndarray:
        """The logits of the last `HEAD`, FP32 [vocabulary]."""
        array = self.head["logits"]
        return self.memory.get(self.head_address("logits"), array.shape, np.float32)[0, : self.head.vocabulary]

    def hidden(self, tokens: int) -> np.ndarray:
        """Hidden states of the pass that was run last, which has so many tokens, FP32 [tokens, width]."""
        return self.of(tokens).get(0, "hidden")

    def stream(self, parts: Iterable[Part], generate: int = 0) -> Iterator[ModelStep]:
        """The steps of a stream, behind what came before. Run each one before asking for the next.

        parts : embeddings [tokens, width] of the prompt, each frame, the question, or pictures; a part without tokens
            has no pass
        generate : most tokens to generate after the last part; the token `end` ends the answer

        Raises `ParamError` for parts of another width, for a picture without an encoder, and if there is no token at
        all before the first generated one.
        """
        some = list(parts)
        pieces = [(part, piece) for part, x in enumerate(some) for piece in self._pieces(x)]
        check(bool(pieces) or not generate, "parts", len(some), "must hold a token, after which others are generated")
        self.total = self.length + sum(map(self.tokens_of, some)) + max(0, generate - 1)
        for k, (part, piece) in enumerate(pieces):
            x = (yield from self._see(part, piece)) if isinstance(piece, Picture) else piece
            yield from self._pass(part, x, generate > 0 and k == len(pieces) - 1)
        for part in range(len(some), len(some) + generate - 1):
            if self.tokens[-1] == self.end:
                return
            yield from self._pass(part, self.weights.embeddings[self.tokens[-1:]], True)

    def tokens_of(self, part: Part) -> int:
        """Tokens of a part of a stream."""
        if not isinstance(part, Picture):
            return len(part)
        assert self.vision
        return self.vision.shape.seen

    def _pieces(self, part: Part) -> Iterator[Part]:
        """A part in passes."""
        most, width = self.shape.tokens, self.shape.width
        if isinstance(part, Picture):
            check(self.vision is not None, "part", "a picture", "must be embeddings: the host has no vision encoder")
            seen = self.tokens_of(part)
            check(seen <= most, "tokens", seen, f"must be at most {most}, those of a pass")
            yield part
            return
        ok = part.ndim == 2 and part.shape[1] == width
        check(ok, "part", part.shape, f"must have width = {width} numbers a token")
        yield from (part[i : i + most] for i in range(0, len(part), most))

    def _see(self, part: int, picture: Picture) -> Generator[ModelStep, None, np.ndarray]:
        """The steps of a picture; returns its embeddings [tokens, width]."""
        assert self.vision
        self.vision.begin(picture.patches)
        where = self.passes, part, self.length, self.tokens_of(picture)
        for seen in self.vision.steps():
            [program], [registers] = seen.programs, seen.registers
            assert program is not None  # a core alone has a part in every stage
            yield from self._step(ModelStep(*where, None, VISION, 0, program, registers, seen))
        self.passes += 1
        return self.vision.embeddings.copy()

    def _pass(self, part: int, x: np.ndarray, head: bool) -> Iterator[ModelStep]:
        """The steps of a pass over embeddings x [tokens, width]; with `head` a token is chosen after it."""
        system, number, start = self.of(len(x)), self.passes, self.length
        angle = (start + np.arange(len(x)))[:, None] * np.asarray(self.weights.turns)
        system.begin(x.astype(np.float32), np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32), start)
        where = number, part, start, len(x)
        for layer in range(len(self.weights.layers)):
            for phase, group in system.steps(layer):
                program = system.program(0, phase, layer)
                assert program is not None  # a core alone takes part in every phase
                yield from self._step(
                    ModelStep(*where, layer, phase, group, program, system.registers(0, layer, group, phase))
                )
        self.length, self.passes = start + len(x), number + 1
        if head:
            yield from self._step(ModelStep(*where, None, HEAD, 0, self._head_program, self._head_registers(len(x))))
            self.tokens.append(self.chosen())

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
            return self.of(step.tokens).step(0, step.phase, step.layer, step.group)
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
        """How much memory the stream takes at most, in words."""
        recent, known = self.shape.recent, self.sizes.map
        contexts = len(self.weights.layers) * self.system.shares.groups
        blocks = blocks_needed(self.total, known.clusters, known.block_slots, contexts)
        size = blocks * known.block_bytes
        entries = max(0, self.total - recent)
        return (
            f"A stream of {self.total} tokens needs at most blocks = {blocks} ({size:,} bytes of home memory) and "
            f"entries = {entries} behind the ring"
        )

    def _head_registers(self, tokens: int) -> dict[int, int]:
        hidden = shared_space(self.of(tokens).shares).arrays["hidden"]
        return {
            int(Register.WEIGHTS): self.system.more_bases["head weights"],
            int(Register.KV): self.system.more_bases["head work"],
            int(Register.REST): 0,
            int(Register.OUT): hidden.offset + (tokens - 1) * self.shape.width * 4,
        }

    def chosen(self) -> int:
        """The token that the last `HEAD` has chosen."""
        array = self.head["next"]
        number = float(self.memory.get(self.head_address("next"), array.shape, np.float32)[0, 0])
        known = 0 <= number < self.head.vocabulary
        check(known, "next token", number, f"must be below {self.head.vocabulary}: the largest logit is not finite")
        return int(number)
