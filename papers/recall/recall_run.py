"""What a policy recalls of a text: a task of `papers.recall.recall_tasks` in the real decoder, block by block."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from time import process_time

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.policies.blocks import Block
from openvrex.golden.policies.ledger import PolicyError
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.policy import LayerBlock, Policy
from openvrex.golden.policies.policy_run import DecoderRun, Record, decoder_shape
from openvrex.golden.policies.registry import POLICIES as ENTRIES
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.resv_policy import ReSVPolicy
from openvrex.hdl.params import KvmuParams
from openvrex.papers.recall.gemma3 import Gemma3
from openvrex.papers.recall.recall_tasks import LEAST, RecallTask, task

BLOCK = 32  # tokens of the text that arrive together, as a frame's do
READ = 256  # of them full attention reads at once for all policies: twice as fast
SLOTS = KvmuParams().block_slots  # entries of a block
ROOM = 128  # tokens of a question and its answer
READERS = ("policy", "full")
MODELS: dict[str, type[Decoder]] = {"smollm2": Decoder, "gemma3": Gemma3}


@dataclass(frozen=True)
class Case:
    """One task: its name, the tokens of its text, where in the text the fact stands (0 to 1), the seed, the decoder.

    reader : what reads the text before the question, "policy" itself or "full" attention, which reads it once for all
    """

    name: str = "passkey"
    tokens: int = 1500
    depth: float = 0.25
    seed: int = 1
    model: str = "smollm2"
    reader: str = "policy"

    def checked(self) -> "Case":
        """This case. Raises: `ParamError` for an unknown decoder, a depth outside the text, or a text too long."""
        check(self.model in MODELS, "model", self.model, f"must be one of {', '.join(MODELS)}")
        check(self.reader in READERS, "reader", self.reader, f"must be one of {', '.join(READERS)}")
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
    tokens, blocks, shared : that a KV head fetches for a question or a token of the answer: blocks as they are filled,
    and if adjacent tokens shared blocks whatever their cluster · error : of attention's output for the question
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
    tokens: float
    blocks: float
    shared: float
    error: float
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
    if case.reader == "full":
        replay(run, read(case, layers))
    else:
        read_text(run, decoder, asked)
    answer = ask(run, decoder, asked)
    totals, late = run.records[-1].totals, [r for r in run.records if r.stage in ("question", "generation")]
    return Recalled(
        recall=float(np.mean([r.choices[-1] == token for r, token in zip(answer, asked.answer, strict=True)])),
        answer_loss=float(np.mean([r.losses[-1] for r in answer])),
        text_loss=float(np.mean([x for r in run.records if r.stage == "frame" for x in r.losses])),
        frames=fetched([r for r in run.records if r.stage == "frame"]),
        answers=fetched(late),
        in_bytes=sum(n for name, n in totals.items() if name.startswith("in.")),
        pieces=sum(n for name, n in totals.items() if name.startswith("pieces.in.")),
        clusters=_clusters(run),
        tokens=float(np.mean([r.fetched for r in late])),
        blocks=float(np.mean(run.blocks)),
        shared=float(np.mean(run.shared)),
        error=float(np.mean(late[0].error)),
        seconds=process_time() - begun,
    )


class RecallRun(DecoderRun):
    """A run that counts the blocks which a question and its answer fetch.

    A block holds 8 entries of a KV head: of one cluster if the policy is ReSV, else adjacent tokens.
    """

    def __init__(self, policy: Policy, width: int):
        super().__init__(policy, width)
        # of each KV head, layer and block of the question and the answer
        self.blocks: list[int] = []
        self.shared: list[int] = []  # if adjacent tokens shared blocks, whatever their cluster

    def look(self, step: LayerBlock, chosen: Selected) -> None:
        if step.block.stage not in ("question", "generation"):
            return
        store, layer = self.policy.store, step.layer
        for head, mask in enumerate(chosen.keep & store.on_host(layer) & store.on_device(layer)):
            tokens = np.flatnonzero(mask)
            self.shared.append(len(np.unique(tokens // SLOTS)))
            if isinstance(self.policy, ReSVPolicy):
                tables = self.policy.layers[layer].cluster_of
                own = tables[head * len(tables) // self.shape.kv_heads][tokens]
                self.blocks.append(int((-(-np.unique(own, return_counts=True)[1] // SLOTS)).sum()))
            else:
                self.blocks.append(self.shared[-1])


def prepared(case: Case, entry: Entry, layers: int | None = None) -> tuple[RecallRun, Decoder, RecallTask]:
    """What `play` takes: a policy's run that has seen nothing, the decoder, and the task. Errors as `recall`."""
    case.checked()
    decoder = _decoder(case.model, layers)
    asked = task(case.name, case.seed, case.tokens, case.depth, decoder.tokenizer)
    return RecallRun(entry.build(decoder_shape(decoder)), decoder.width), decoder, asked


def play(run: DecoderRun, decoder: Decoder, asked: RecallTask) -> list[Record]:
    """The text, the question, then the answer token by token; the records that predict the answer's tokens."""
    read_text(run, decoder, asked)
    return ask(run, decoder, asked)


def _step(run: DecoderRun, decoder: Decoder, stage: str, ids: list[int], follow: list[int]) -> Record:
    block = Block(len(run.records), stage, run.length, run.length + len(ids))
    return run.step(decoder, block, decoder.inputs(ids), np.array(follow))


def read_text(run: DecoderRun, decoder: Decoder, asked: RecallTask, size: int = BLOCK) -> None:
    """The text, in blocks of `size` tokens."""
    n, follow = len(asked.text), [*asked.text[1:], asked.question[0]]
    for start in range(0, n, size):
        part = slice(start, min(start + size, n))
        _step(run, decoder, "frame" if start else "prompt", asked.text[part], follow[part])


def ask(run: DecoderRun, decoder: Decoder, asked: RecallTask) -> list[Record]:
    """The question behind the text, then the answer token by token; the records that predict the answer's tokens."""
    out = [_step(run, decoder, "question", asked.question, [*asked.question[1:], asked.answer[0]])]
    for token, following in pairwise(asked.answer):
        out.append(_step(run, decoder, "generation", [token], [following]))
    return out


@lru_cache(maxsize=1)  # runs on a case follow each other
def read(case: Case, layers: int | None) -> RecallRun:
    """The run of full attention over a task's text."""
    run, decoder, asked = prepared(case, ENTRIES["full"], layers)
    read_text(run, decoder, asked, READ)
    return run


def replay(run: DecoderRun, source: DecoderRun) -> None:
    """Give a run that has seen nothing the keys and values of another's text, as if full attention had read it.

    Raises `PolicyError` for a policy that does not take every token.
    """
    run.embeddings, run.windows = source.embeddings.copy(), dict(source.windows)
    losses = [x for record in source.records for x in record.losses]
    for start in range(0, source.length, BLOCK):
        block = Block(len(run.records), "frame" if start else "prompt", start, min(start + BLOCK, source.length))
        admit, _, _ = run.begin(block)
        if len(admit) < len(block.tokens):
            raise PolicyError(f"{type(run.policy).__name__} prunes tokens of a text that full attention has read")
        own = slice(block.start, block.stop)
        for layer, history in enumerate(source.histories):
            run.take(layer, admit, history.k[:, own].swapaxes(0, 1), history.v[:, own].swapaxes(0, 1))
        run.finish(block).losses = losses[own]


def fetched(records: list[Record]) -> float:
    """Share of the earlier cache, over all layers and KV heads, that these blocks fetched; 0 without blocks."""
    cached = sum(r.start * r.fetched.size for r in records)
    return float(sum(np.nansum(r.fetched) for r in records) / cached) if cached else 0.0


def _clusters(run: DecoderRun) -> float | None:
    if not isinstance(run.policy, ReSVPolicy):
        return None
    own = sum(len(table) for layer in run.policy.layers for table in layer.tables)
    return 1000 * own / (run.length * len(run.policy.layers))
