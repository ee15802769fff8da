"""Layers of a decoder on a core, over a window that a policy moves: a stream of passes (`tb.library.pass_stream`)."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.state_space import HistoryBranch
from openvrex.golden.function_params import check
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.policies.blocks import Block
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.policy import LayerBlock as PolicyStep
from openvrex.golden.policies.policy_run import DecoderRun, decoder_shape
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.stream_runs import Segment
from openvrex.golden.policies.window_decisions import branch_of, decide
from openvrex.golden.program.core_model import Core
from openvrex.golden.program.lxe_model import Memory
from openvrex.golden.program.window_host import WindowHost, WindowStep
from openvrex.golden.program.window_plan import LAYER, WindowPlan
from openvrex.golden.program.window_slots import Decision, Events, Piece, Slots, sizes
from openvrex.hdl.params import CoreParams
from openvrex.tb.library.frame_vision import FrameVision, vision_pass
from openvrex.tb.library.pass_stream import Pass, arrays, distance, idle_core, idle_ports, layer_shape, places
from openvrex.tb.library.video_question import likeliest

TOKENS = 16  # of the largest pass
# Parts of the bound of the distance from FP32, to first order. On its way through a layer a number is rounded to BF16
# eight times (norm, q k v, rotary, probabilities, attention, norm, gate, product), each time by at most 2^-8 of its
# size; that adds up, if nothing amplifies it. The history branch's output is off by at most 2^-5 of itself
# (tb/tests/golden/program/test_branch.py), and one more rounding is that of the sum.
ROUNDINGS, ROUNDING, BRANCH = 8, 2.0**-8, 2.0**-5


def blocks(segments: Sequence[Segment]) -> list[Block]:
    """The blocks of a stream of segments."""
    out, at = [], 0
    for i, s in enumerate(segments):
        out.append(Block(i, s.stage, at, at + len(s.x), s.visual, s.frame))
        at += len(s.x)
    return out


class Reference(DecoderRun):
    """A policy in a decoder in FP32, as `vrex papers stream` runs it. It keeps what the hardware is compared with.

    outputs : hidden states of each block's admitted tokens behind the last layer, FP32 [n, width]
    chosen : of each block with rows: tokens attended to, bool [n]; positions by which keys are turned, int64 [n]
    moved : of each block with rows, for each layer: length of what the history branch adds to the hidden states, over
        the length of the hidden states behind the layer
    """

    def __init__(self, entry: Entry, decoder: Decoder):
        super().__init__(entry.build(decoder_shape(decoder)), decoder.embeddings.shape[1])
        self.decoder = decoder
        self.outputs: list[np.ndarray] = []
        self.chosen: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.moved: dict[int, list[float]] = {}

    def look(self, step: PolicyStep, chosen: Selected) -> None:
        turn = np.zeros(step.n, np.int64)
        if chosen.turn is not None:
            turn[: len(chosen.turn)] = chosen.turn
        self.chosen[step.block.index] = chosen.keep[0], np.where(chosen.keep[0], turn, 0)
        moved, added = self.moved.setdefault(step.block.index, []), 0.0
        if chosen.add is not None:
            own = chosen.add.reshape(len(step.rows), -1) @ self.decoder.layers[step.layer]["attn_output"]
            added = float(np.linalg.norm(own))
        if moved and step.x is not None:  # the input of this layer is the output of the one before
            moved[-1] /= float(np.linalg.norm(step.x))
        moved.append(added)

    def _predict(self, decoder: Decoder, hidden: np.ndarray, at: np.ndarray, targets: np.ndarray | None) -> None:
        self.outputs[-1] = hidden
        self.moved[len(self.outputs) - 1][-1] /= float(np.linalg.norm(hidden))

    def bounds(self, plain: "Reference | None" = None) -> list[float]:
        """For each block a bound of the distance of hidden states on a core from these (`WindowStream.errors`).

        plain : the same policy without its branch, on the same segments

        An error of the branch moves hidden states by its share of what the whole branch moves them by. That is what the
        branch adds in all layers, or the distance from `plain` where later steps amplify it: the larger of both. Errors
        stay in keys, values and states, so a block has the largest of all so far.
        """
        layers, most, apart = len(self.decoder.layers), np.zeros(len(self.decoder.layers)), 0.0
        out = []
        for k, own in enumerate(self.outputs):
            most = np.maximum(most, self.moved.get(k, 0))
            if plain is not None and len(own):
                apart = max(apart, distance(plain.outputs[k], own))
            out.append(layers * (ROUNDINGS + bool(plain)) * ROUNDING + BRANCH * max(float(most.sum()), apart))
        return out

    def take_in(self, segments: Sequence[Segment], generate: int = 0) -> list[Segment]:
        """Run segments, then generate tokens by the loaded layers; all segments, those of generated tokens too."""
        out = []
        for k in range(len(segments) + generate):
            if k < len(segments):
                own = segments[k]
            else:
                token = likeliest(self.decoder.logits(self.outputs[-1][-1:])[0])[0]
                own = Segment("generation", self.decoder.embeddings[[token]])
            self.outputs.append(np.zeros((0, own.x.shape[1]), np.float32))
            block = Block(k, own.stage, self.length, self.length + len(own.x), own.visual, own.frame)
            self.step(self.decoder, block, own.x)
            out.append(own)
        return out


class WindowStream:
    """The loaded layers of a decoder on a core, over segments of a stream, under a policy of `WINDOWED`.

    entry : the policy · segments : prompt, frames, question, later tokens · tokens : of a pass at most

    masks : as for `decide` · vision : encodes frames on the same core

    The pool has as many slots as the stream needs; `slots` asks for more. Layers have the history branch if the policy
    has it. Iteration gives the passes. Their facts: `of`, the number of the step's pass or turn · block, stage, layer,
    part · `kind`: layer or turn · `tokens` of the pass, or keys that are turned, `refreshed` of these. Then `outputs`
    has the hidden states of each block's admitted tokens, `events` what has happened. Raises `ParamError` for a core
    that does not hold the layers, or lacks what the branch needs.
    """

    def __init__(
        self,
        entry: Entry,
        segments: Sequence[Segment],
        decoder: Decoder,
        p: CoreParams,
        tokens: int = TOKENS,
        slots: int = 0,
        masks: Iterable[np.ndarray] | None = None,
        vision: FrameVision | None = None,
    ):
        self.p, self.segments = p, segments
        self.decisions = decide(entry, decoder_shape(decoder), blocks(segments), masks)
        self.need, places = sizes(self.decisions)
        pair = 2 * p.dpe.n_w
        check(tokens >= 1, "tokens", tokens, "of a pass must be at least 1")
        check(slots in (0, max(slots, self.need)), "slots", slots, f"must be at least {self.need}, or 0: as many")
        slots = -(-max(slots, self.need, tokens) // pair) * pair
        held, packing = decoder.held(p.lxe.weights)
        most = min(tokens, max(len(d.rows) for d in self.decisions))
        shape = layer_shape(decoder, packing, most, recent=slots)
        history = branch_of(entry)
        self.plan = WindowPlan(shape, p.lxe_format(), places, history=history)
        out, layers = shape.heads * shape.head_size, range(len(decoder.layers))
        branches = [HistoryBranch(history, shape.width, out, i) for i in layers] if history else []
        more = vision.host.regions if vision else {}
        self.host = WindowHost(self.plan, held, np.array(decoder.frequencies), self._core, branches, more)
        self.vision = vision
        if vision:
            vision.host.place(self.host.memory, self.host.more)
        self.block_tokens = getattr(entry.params, "block_tokens", 0)  # of a KV block that is evicted as a whole
        self.carried = 0  # passes of a layer that began with a state
        self.ports = idle_ports(p)
        self.outputs: list[np.ndarray] = []

    def _core(self, _: Any, memory: Memory) -> Core:
        self.core = idle_core(self.p, memory)
        return self.core

    @property
    def total(self) -> int:
        """The number of programs of the stream."""
        s, h = self.plan.shape, self.host
        slots, count = Slots(s.recent, s.tokens, self.plan.places), 0
        for d in self.decisions:
            count += len(slots.turns(d))
            count += sum(len(h.programs(h.of(len(piece.tokens)), *LAYER)) for piece in slots.pieces(d))
        return count * len(h.bases) + (self.vision.total if self.vision else 0)

    @property
    def events(self) -> Events:
        """What has happened; turned keys and scanned tokens in all layers."""
        own, layers = self.host.slots.events, len(self.host.bases)
        scanned = sum(len(d.rows) for d in self.decisions) * layers * bool(self.plan.branch)
        size, keep = self.block_tokens, self.decisions[-1].keep
        whole = keep[: len(keep) // size * size].reshape(-1, size) if size else keep[:0, None]
        evicted = int((~whole.any(axis=1)).sum())
        return replace(own, turned=own.turned * layers, scanned=scanned, carried=self.carried, evicted=evicted)

    def _begins_with_state(self, layer: int) -> bool:
        """Whether a layer's branch goes on from a state that is not zero."""
        if self.plan.branch is None:
            return False
        state = self.plan.branch["state"]
        return bool(self.host.memory.get(self.host.address(state, layer), state.shape, np.float32).any())

    def _see(self, d: Decision, x: np.ndarray) -> Generator[Pass, None, np.ndarray]:
        """The passes of a frame; returns the embeddings of its tokens, those of `x` where none enters the decoder."""
        assert self.vision
        for host, step in self.vision.steps(d.index):
            yield vision_pass(self.core, d.index, host, step)
        host_of, out = self.vision.of(d.index), x.copy()
        if host_of:
            out[d.admitted - d.start] = host_of.embeddings
        return out

    def _pass(self, s: WindowStep) -> Pass:
        h, tokens = self.host, len(s.of.tokens)
        kind, refreshed = ("pass", s.of.refreshed) if isinstance(s.of, Piece) else ("turn", 0)
        part = "" if s.ends and not s.part else f", part {s.part}"
        facts = {"of": s.number, "block": s.block, "stage": s.stage, "layer": s.layer, "part": s.part}
        facts |= {"kind": "layer" if kind == "pass" else kind, "tokens": tokens, "refreshed": refreshed}
        bases = h.bases[s.layer]
        return Pass(
            f"{s.stage} {s.block}, {kind} {s.number}, layer {s.layer}{part}",
            s.program,
            s.registers,
            lambda: h.run(s),
            lambda _: facts,
            lambda: places(((a, a.offset + bases[a.base]) for a in arrays(h.of(tokens))), h.memory),
            step=s,
        )

    def __iter__(self) -> Iterator[Pass]:
        h, last = self.host, len(self.host.bases) - 1
        for d, segment in zip(self.decisions, self.segments, strict=True):
            parts, x = [np.zeros((0, segment.x.shape[1]), np.float32)], segment.x
            if self.vision and d.index in self.vision.frames:
                x = yield from self._see(d, x)
            for step in h.block(d, x):
                self.carried += isinstance(step.of, Piece) and not step.part and self._begins_with_state(step.layer)
                yield self._pass(step)
                if isinstance(step.of, Piece) and step.layer == last and step.ends:
                    parts.append(h.hidden(len(step.of.tokens))[step.of.refreshed :])
            self.outputs.append(np.concatenate(parts))

    def disagreements(self, reference: Reference) -> list[str]:
        """Blocks for which the host has decided otherwise than the policy in FP32: a line for each, none if equal."""
        out = []
        for d, record in zip(self.decisions, reference.records, strict=True):
            keep, turn = reference.chosen.get(d.index, (d.keep, d.turn))
            same = {"rows": record.rows == len(d.rows), "kept": np.array_equal(d.keep, keep)}
            same["turned"] = np.array_equal(d.turn, turn)
            out += [f"{d.stage} {d.index}: {what} tokens are not the policy's" for what, ok in same.items() if not ok]
        return out

    def words(self, decoder: Decoder, outputs: Sequence[np.ndarray]) -> list[int]:
        """The tokens that a decoder chooses behind the question and each later block, by the hidden states of all."""
        whole = zip(self.decisions, outputs, strict=True)
        asked = [out for d, out in whole if d.stage in ("question", "generation")]
        return [likeliest(decoder.logits(out[-1:])[0])[0] for out in asked]

    def errors(self, reference: Reference) -> list[float | None]:
        """Distance of each block's hidden states from those in FP32, relative to their length; None without any.

        reference : a run of this policy, or of one that prunes no token
        """
        out: list[float | None] = []
        for d, got, known in zip(self.decisions, self.outputs, reference.outputs, strict=True):
            want = known if len(known) < d.stop - d.start else known[d.admitted - d.start]
            out.append(distance(got, want) if len(want) else None)
        return out
