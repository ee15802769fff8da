"""What a policy recalls of a text: a task of `papers.recall.recall_tasks` in the real decoder, block by block."""

from dataclasses import dataclass
from functools import lru_cache
from time import process_time

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.policies.policy import Block
from openvrex.golden.policies.policy_run import DecoderRun, Record, decoder_shape
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.resv_policy import ReSVPolicy
from openvrex.papers.recall.gemma3 import Gemma3
from openvrex.papers.recall.recall_tasks import LEAST, RecallTask, task

BLOCK = 32  # tokens of the text that arrive together, as a frame's do
ROOM = 128  # tokens of a question and its answer
MODELS: dict[str, type[Decoder]] = {"smollm2": Decoder, "gemma3": Gemma3}


@dataclass(frozen=True)
class Case:
    """One task: its name, the tokens of its text, where in the text the fact stands (0 to 1), the seed, the decoder."""

    name: str = "passkey"
    tokens: int = 1500
    depth: float = 0.25
    seed: int = 1
    model: str = "smollm2"

    def checked(self) -> "Case":
        """This case. Raises: `ParamError` for an unknown decoder, a depth outside the text, or a text too long."""
        check(self.model in MODELS, "model", self.model, f"must be one of {', '.join(MODELS)}")
        check(0 <= self.depth <= 1, "depth", self.depth, "must be 0 to 1")
        check(self.tokens >= LEAST, "tokens", self.tokens, f"must be at least {LEAST}: a task needs room for its facts")
        known = MODELS[self.model].positions
        most = known - ROOM
        check(
            self.tokens <= most,
            "tokens",
            self.tokens,
            f"must be at most {most}: {self.model} knows {known} positions",
        )
        return self


@dataclass(frozen=True)
class Recalled:
    """What a policy did on a task.

    recall : share of the answer's tokens that were the decoder's first choice, each after the right ones before it
    answer_loss, text_loss : mean nats of a token · frames, answers : share of the earlier cache (all layers and KV
    heads) that a block of text, or a token of the answer, fetched · in_bytes, pieces : moved to the device, in how many
    transfers · clusters : of all tables, for each 1,000 tokens and layer; None for other policies
    seconds : of the processor
    """

    recall: float
    answer_loss: float
    text_loss: float
    frames: float
    answers: float
    in_bytes: int
    pieces: int
    clusters: float | None
    seconds: float


@lru_cache(maxsize=1)
def _decoder(model: str, depth: int | None) -> Decoder:
    return MODELS[model](depth, MODELS[model].positions)


def recall(case: Case, entry: Entry, layers: int | None = None) -> Recalled:
    """Run a policy on a task, with the first `layers` layers or all; the same case gives the same result.

    Raises: `ParamError` for a task that there is not, or a text longer than the decoder's context.
    """
    run, decoder, asked = prepared(case, entry, layers)
    begun = process_time()
    answer = play(run, decoder, asked)
    totals = run.records[-1].totals
    return Recalled(
        recall=float(np.mean([r.choices[-1] == token for r, token in zip(answer, asked.answer, strict=True)])),
        answer_loss=float(np.mean([r.losses[-1] for r in answer])),
        text_loss=float(np.mean([x for r in run.records if r.stage == "frame" for x in r.losses])),
        frames=fetched([r for r in run.records if r.stage == "frame"]),
        answers=fetched([r for r in run.records if r.stage in ("question", "generation")]),
        in_bytes=sum(n for name, n in totals.items() if name.startswith("in.")),
        pieces=sum(n for name, n in totals.items() if name.startswith("pieces.in.")),
        clusters=_clusters(run),
        seconds=process_time() - begun,
    )


def prepared(case: Case, entry: Entry, layers: int | None = None) -> tuple[DecoderRun, Decoder, RecallTask]:
    """What `play` takes: a policy's run that has seen nothing, the decoder, and the task. Errors as `recall`."""
    case.checked()
    decoder = _decoder(case.model, layers)
    asked = task(case.name, case.seed, case.tokens, case.depth, decoder.tokenizer)
    return DecoderRun(entry.build(decoder_shape(decoder)), decoder.width), decoder, asked


def play(run: DecoderRun, decoder: Decoder, asked: RecallTask) -> list[Record]:
    """The text, the question, then the answer token by token; the records that predict the answer's tokens."""

    def step(stage: str, ids: list[int], follow: list[int]) -> Record:
        block = Block(len(run.records), stage, run.length, run.length + len(ids))
        return run.step(decoder, block, decoder.inputs(ids), np.array(follow))

    text = [*asked.text, *asked.question, *asked.answer]
    for start in range(0, len(asked.text), BLOCK):
        stop = min(start + BLOCK, len(asked.text))
        step("frame" if start else "prompt", text[start:stop], text[start + 1 : stop + 1])
    n = len(asked.text)
    m = n + len(asked.question)
    out = [step("question", text[n:m], text[n + 1 : m + 1])]
    return out + [step("generation", text[i : i + 1], text[i + 1 : i + 2]) for i in range(m, len(text) - 1)]


def fetched(records: list[Record]) -> float:
    """Share of the earlier cache, over all layers and KV heads, that these blocks fetched; 0 without blocks."""
    cached = sum(r.start * r.fetched.size for r in records)
    return float(sum(np.nansum(r.fetched) for r in records) / cached) if cached else 0.0


def _clusters(run: DecoderRun) -> float | None:
    if not isinstance(run.policy, ReSVPolicy):
        return None
    own = sum(len(table) for layer in run.policy.layers for table in layer.tables)
    return 1000 * own / (run.length * len(run.policy.layers))
