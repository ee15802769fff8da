"""A whole decoder on a core, step by step of its stream: a stream of passes (`tb.library.pass_stream`)."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from openvrex.golden.program.layer_memory import Register
from openvrex.golden.program.lxe_model import Result
from openvrex.golden.program.model_host import HEAD, NORMED, VISION, ModelHost, ModelStep, Part, Picture
from openvrex.golden.program.share_plan import JOINT, OF_TABLES
from openvrex.golden.program.stage_plan import Plan
from openvrex.tb.library import stage_log
from openvrex.tb.library.page_watch import PageWatch
from openvrex.tb.library.pass_stream import Pass, Place, distance, places
from openvrex.tb.library.video_question import likeliest


class ModelStream:
    """Parts of streams, and generated tokens behind them, on a host of a whole decoder.

    streams, generate : as for `ModelHost.batch`
    watch : follows the steps, if there is one

    Iteration gives the steps (`tb.library.pass_stream.PassStream`). Their facts: `of`, the number of the pass of the
    stream · part, tokens, layer, phase, group of the step (`golden.program.model_host.ModelStep`) · `entries` that an
    attention has fetched, `clusters` of its table then · `said` of a head: of each row its stream, the token that was
    chosen, and its probability. `host.said` then has the generated tokens,
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

    def __iter__(self) -> Iterator[Pass]:
        h = self.host
        last = len(h.weights.layers) - 1, list(h.system.steps())[-1][0]
        passing: dict[int, ModelStep] = {}  # a step of each section of the pass
        for step in h.batch(self.streams, self.generate):
            yield self._pass(step)
            h.ran(step)
            if step.layer is not None:
                passing[step.section] = step
            if self.watch:
                self.disagreements += self.watch.take(step)
            if (step.layer, step.phase) == last:
                for n in {one.stream for one in passing.values()}:
                    own = [h.hidden(one.tokens, one.batch, one.first) for one in passing.values() if one.stream == n]
                    self.outputs[n][step.number] = np.concatenate(own)
                passing = {}
            elif h.vision and step.seen and step.seen.stages[-1] == h.vision.plans[0].names[-1]:
                self.outputs[step.stream][step.number] = h.vision.embeddings.copy()

    def _pass(self, s: ModelStep) -> Pass:
        run, facts, where = partial(self.host.run, s), partial(self._facts, s), partial(self._places, s)
        return Pass(self._name(s), s.program, s.registers, run, facts, where, self.stages(s), s)

    @staticmethod
    def _name(s: ModelStep) -> str:
        """Pass of the stream, layer, phase and KV head."""
        layer = [f"layer {s.seen.layer if s.seen else s.layer}"]
        if s.seen:
            return ", ".join([f"pass {s.number}", s.phase, *layer * (s.seen.layer is not None), *s.seen.stages])
        own = [f"stream {s.stream}, from token {s.start}"] * (s.batch > 0 and s.phase not in (*JOINT, HEAD))
        own += [f"KV head {s.group}"] * (s.phase in OF_TABLES)
        return ", ".join([f"pass {s.number}", *layer * (s.layer is not None), s.phase, *own])

    def _facts(self, s: ModelStep, result: Result) -> dict[str, Any]:
        h, core = self.host, self.core
        tokens = s.batch if s.phase in JOINT and s.batch else s.tokens
        out = {"of": s.number, "part": s.part, "tokens": tokens, "layer": s.layer, "phase": s.phase, "group": s.group}
        if s.phase == "attention":
            level = core.dre.level(s.registers[Register.CONTEXT])
            return out | {"entries": core.registers[Register.ENTRIES], "clusters": level}
        if s.phase != HEAD:
            return out
        return out | {"said": [[n, h.chosen(row), likeliest(h.logits(row))[1]] for row, n in enumerate(s.rows)]}

    def _places(self, s: ModelStep) -> list[Place]:
        """The arrays of the layer and of the step's KV head, or of the head, then the regions of memory."""
        h = self.host
        if s.seen:
            assert h.vision
            return places(h.vision.arrays(s.seen.layer), h.memory)
        if s.layer is None:
            own = [a for space in (h.head.weights, h.head.work) for a in space.arrays.values()]
            return places(((a, h.head_address(a.name)) for a in own), h.memory)
        system, at = h.running(s), (s.layer, s.group, s.stream, s.first, s.phase)
        held = system.plans[0][s.layer].arrays.values()
        return places(((a, system.address(0, a, *at)) for a in held), h.memory)

    def errors(self, stream: int, given: Sequence[np.ndarray], full: Sequence[np.ndarray]) -> dict[int, float]:
        """Distance of the outputs of a stream's given passes from those in FP32, relative to their length, by number.

        given : embeddings of each part in FP32, [tokens, width] · full : its hidden states behind full attention
        """
        most, wanted = self.host.most, list[np.ndarray]()
        for part, x, y in zip(self.streams[stream], given, full, strict=True):
            wanted += [x] * isinstance(part, Picture)
            wanted += [y[i : i + most] for i in range(0, len(y), most)]
        numbers = zip(self.outputs[stream].items(), wanted, strict=False)  # generated tokens follow
        return {n: distance(got, want) for (n, got), want in numbers}

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
