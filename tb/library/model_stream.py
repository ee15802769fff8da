"""A whole decoder on a core, step by step of its stream: a stream of passes (`tb.library.pass_stream`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openvrex.golden.program.isa import Instruction
from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.lxe_model import Result
from openvrex.golden.program.model_host import HEAD, NORMED, VISION, ModelHost, ModelStep, Part, Picture
from openvrex.golden.program.share_plan import JOINT, OF_TABLES
from openvrex.golden.program.stage_plan import Plan
from openvrex.tb.library import stage_log
from openvrex.tb.library.page_watch import PageWatch
from openvrex.tb.library.pass_stream import Place
from openvrex.tb.library.video_question import likeliest


@dataclass(frozen=True)
class StepPass:
    """One step of a stream: a `tb.library.pass_stream.Pass`.

    Its facts: `of`, the number of the pass of the stream · part, tokens, layer, phase, group of the step
    (`golden.program.model_host.ModelStep`) · `entries` that an attention has fetched, `clusters` of its table then ·
    `said` of a head: of each row its stream, the token that was chosen, and its probability
    """

    stream: "ModelStream"
    step: ModelStep

    @property
    def name(self) -> str:
        """Pass of the stream, layer, phase and KV head."""
        s = self.step
        if s.seen:
            layer = [f"layer {s.seen.layer}"] * (s.seen.layer is not None)
            return ", ".join([f"pass {s.number}", s.phase, *layer, *s.seen.stages])
        parts = [f"pass {s.number}"] + [f"layer {s.layer}"] * (s.layer is not None) + [s.phase]
        own = [f"stream {s.stream}"] * (s.batch > 0 and s.phase not in (*JOINT, HEAD))
        return ", ".join(parts + own + [f"KV head {s.group}"] * (s.phase in OF_TABLES))

    @property
    def program(self) -> Sequence[Instruction]:
        """Shared by all steps of a phase and a number of tokens."""
        return self.step.program

    @property
    def registers(self) -> dict[int, int]:
        """Addresses."""
        return self.step.registers

    @property
    def stages(self) -> Sequence[str]:
        """The stage of each instruction."""
        return self.stream.stages(self.step)

    def run(self) -> Result:
        """Execute the step on golden."""
        return self.stream.host.run(self.step)

    def facts(self, result: Result) -> dict[str, Any]:
        """Figures of the step after `run`."""
        h, s = self.stream.host, self.step
        tokens = s.batch if s.phase in JOINT and s.batch else s.tokens
        out = {"of": s.number, "part": s.part, "tokens": tokens, "layer": s.layer, "phase": s.phase, "group": s.group}
        if s.phase == "attention":
            core = h.system.cores[0]
            level = core.dre.level(s.registers[Register.CONTEXT])
            return out | {"entries": core.registers[Register.ENTRIES], "clusters": level}
        if s.phase != HEAD:
            return out
        rows = enumerate(s.rows)
        return out | {"said": [[n, h.chosen(row), likeliest(h.logits(row))[1]] for row, n in rows]}

    def places(self) -> list[Place]:
        """The arrays of the layer and of the step's KV head, or of the head, then the regions of memory."""
        h, s = self.stream.host, self.step
        if s.seen:
            assert h.vision
            own = list(h.vision.arrays(s.seen.layer))
        elif s.layer is None:
            own = [
                (a, h.head_address(a.name)) for space in (h.head.weights, h.head.work) for a in space.arrays.values()
            ]
        else:
            system = h.of(s.tokens, s.batch)
            at = s.layer, s.group, s.stream, s.first, s.phase
            own = [(a, system.address(0, a, *at)) for a in system.plans[0][s.layer].arrays.values()]
        places = [Place(a.name, at, a.shape, a.dtype) for a, at in own]
        return [*places, *(Place(r.name, r.base, (r.size,), np.uint8) for r in h.memory.regions)]


class ModelStream:
    """Parts of streams, and generated tokens behind them, on a host of a whole decoder.

    streams, generate : as for `ModelHost.batch`
    watch : follows the steps, if there is one

    Iteration gives the steps (`tb.library.pass_stream.PassStream`). `host.said` then has the generated tokens,
    `outputs` of each stream the hidden states of each pass behind the last layer by its number, FP32 [tokens, width],
    and of each picture its embeddings.
    """

    def __init__(
        self, host: ModelHost, streams: Sequence[Sequence[Part]], generate: int, watch: PageWatch | None = None
    ):
        self.host, self.streams, self.generate = host, streams, generate
        self.core = host.system.cores[0]
        self.outputs: list[dict[int, np.ndarray]] = [{} for _ in host.said]
        self.watch, self.disagreements = watch, list[str]()  # what it has found
        self._stages: dict[tuple, list[str]] = {}  # by tokens, batch, rows of the head, phase, encoder's stages

    @property
    def ports(self) -> dict[str, int]:
        """Constant inputs of the core, for the host's memory and retrieval."""
        s, f = self.host.system, self.core.dre.params
        bases = {"device_base": s.device_bases[0], "home_base": s.home_bases[0], "table_base": s.table_bases[0]}
        return {"th_hd": f.th_hd, "ratio": f.ratio_q16, **bases, "blocks": s.blocks, "contexts": s.contexts}

    def __iter__(self) -> Iterator[StepPass]:
        h = self.host
        last = len(h.weights.layers) - 1, list(h.system.steps())[-1][0]
        passing: dict[int, ModelStep] = {}  # a step of each stream in the pass
        for step in h.batch(self.streams, self.generate):
            yield StepPass(self, step)
            h.ran(step)
            if step.layer is not None:
                passing[step.stream] = step
            if self.watch:
                self.disagreements += self.watch.take(step)
            if (step.layer, step.phase) == last:
                for n, one in passing.items():
                    self.outputs[n][step.number] = h.hidden(one.tokens, one.batch, one.first).copy()
                passing = {}
            elif h.vision and step.seen and step.seen.stages[-1] == h.vision.plans[0].names[-1]:
                self.outputs[step.stream][step.number] = h.vision.embeddings.copy()

    def errors(self, stream: int, given: Sequence[np.ndarray], full: Sequence[np.ndarray]) -> dict[int, float]:
        """Distance of the outputs of a stream's given passes from those in FP32, relative to their length, by number.

        given : embeddings of each part in FP32, [tokens, width] · full : its hidden states behind full attention
        """
        most, wanted = self.host.shape.tokens, list[np.ndarray]()
        for part, x, y in zip(self.streams[stream], given, full, strict=True):
            wanted += [x] * isinstance(part, Picture)
            wanted += [y[i : i + most] for i in range(0, len(y), most)]
        numbers = zip(self.outputs[stream].items(), wanted, strict=False)  # generated tokens follow
        return {n: float(np.linalg.norm(got - want) / np.linalg.norm(want)) for (n, got), want in numbers}

    def stages(self, step: ModelStep) -> list[str]:
        """The stage of each instruction of a step, which all layers and KV heads share."""
        key = step.tokens, step.batch, step.rows, (step.phase, *(step.seen.stages if step.seen else ()))
        if key not in self._stages:
            plan: Plan = self.host.head_of(max(1, len(step.rows)))
            own = [stage.name for stage in plan.stages]
            if len(step.rows) > 1:
                own = own[:1] if step.phase == NORMED else own[1:]
            if step.seen:
                assert self.host.vision
                plan, own = self.host.vision.plans[0], list(step.seen.stages)
            elif step.layer is not None:
                plan = share = self.host.of(step.tokens, step.batch).plans[0][step.layer]
                own = [stage.name for stage in share.stages if stage.name in share.phases[step.phase]]
            names = [stage.name for stage in plan.stages]
            of = f"{VISION} " if step.seen else ""
            self._stages[key] = [of + names[k] for k in stage_log.stage_of(plan, own[0], own[-1])]
        return self._stages[key]
