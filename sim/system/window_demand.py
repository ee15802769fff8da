"""What a policy that chooses tokens by positions asks of the hardware, block by block.

The policy's own class decides (`golden.policies.window_decisions`), and the slots of the hardware's host
(`golden.program.window_slots`) turn that into passes and turned keys. So the simulator has no window of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from openvrex.golden.arithmetic.state_space import StateSpaceParams
from openvrex.golden.function_params import check
from openvrex.golden.inputs.codec import Coded
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.full_streaming import Full
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.window_decisions import Decider, branch_of, without_branch
from openvrex.golden.program.window_slots import Decision, Slots, sizes
from openvrex.sim.system.workload import Decoder, Session

PROMPT = 16  # tokens of text before the frames
FRAMES = 32  # frames that are counted, a multiple of the default stride of CodecSight
ENOUGH = 2  # times that a window has left itself behind, from when on its figures repeat


@dataclass(frozen=True)
class BlockDemand:
    """What a block asks of each layer.

    passes : tokens of each pass, refreshed ones included
    turned : keys that each program turns, and whether they are saved first
    """

    passes: tuple[int, ...]
    turned: tuple[tuple[int, bool], ...]


@dataclass(frozen=True)
class WindowDemand:
    """What frames, then a generated token, ask behind `cached` tokens of a stream.

    cached : tokens of the stream before them, pruned and dropped ones included
    held : most tokens in the window
    most : tokens of the largest pass of the stream
    drops : whether the policy may drop tokens
    branch : sizes of hybrid memory's state-space branch; None: the policy has none
    """

    cached: int
    frames: tuple[BlockDemand, ...]
    token: BlockDemand
    held: int
    most: int
    drops: bool
    branch: StateSpaceParams | None = None

    @property
    def rows(self) -> float:
        """Mean number of tokens that a frame computes."""
        return sum(sum(f.passes) for f in self.frames) / len(self.frames)

    def slots(self, pair: int, most: int, ring: int) -> tuple[int, int]:
        """Slots of the pool, whole pairs of tiles, and entries behind it.

        pair : entries of a pair of tiles · most : slots whose masks a core holds · ring : slots before others behind

        A policy that drops nothing needs masks for the tokens of a pass alone. Raises `ParamError` for a larger window
        of another policy.
        """
        need = -(-max(self.held, self.most) // pair) * pair
        fits = need <= most
        reason = f"must be at most {most}, whose masks a core holds: shrink the window (-p NAME.PARAMETER=VALUE)"
        check(fits or not self.drops, "slots", need, reason)
        return (need, 0) if fits else (ring, self.held - ring)


def demand(
    entry: Entry,
    model: Decoder,
    cached: int,
    coded: Sequence[Coded | None] = (None,),
    at_once: int = 16,
    frame_tokens: int = Session.frame_tokens,
    frames: int = FRAMES,
) -> WindowDemand:
    """What a policy asks for.

    coded : types and motion of the video's frames, which come again and again · at_once : most tokens of a pass
    frames : frames that are counted, those behind `cached`; the first alone if the policy drops nothing

    Of a stream whose window has moved on by twice its size, the rest repeats, and is left out. Raises `ParamError` as
    the policy does.
    """
    shape = Shape(1, model.heads, model.kv_heads, model.head, ((1.0,) * (model.head // 2),))
    decider, decisions = Decider(without_branch(entry).build(shape)), list[Decision]()
    drops = entry.policy is not Full
    frames = frames if drops else 1
    counted, dropped, largest = -1, 0, 0
    for block in _stream(cached, coded, frame_tokens):
        before = int(decider.keep.sum())
        d = decider.step(block)
        decisions.append(d)
        now = int(d.keep.sum())
        dropped += before + len(d.admitted) - now
        largest = max(largest, now)
        if counted < 0 and (block.stop >= cached or dropped > ENOUGH * largest):
            counted = len(decisions)
        if counted >= 0 and len(decisions) == counted + frames:
            break
    start = decisions[-1].stop
    decisions.append(decider.step(Block(len(decisions), "generation", start, start + 1)))
    held, places = sizes(decisions)
    blocks = list(_blocks(decisions, held, at_once, places, counted))
    most = min(at_once, max(len(d.rows) for d in decisions))
    return WindowDemand(cached, tuple(blocks[:-1]), blocks[-1], held, most, drops, branch_of(entry))


def _stream(cached: int, coded: Sequence[Coded | None], frame_tokens: int) -> Iterator[Block]:
    """A prompt, then frames without end; a stream of few tokens begins with them."""
    at = min(PROMPT, cached)
    yield Block(0, "prompt", 0, at)
    for number, frame in enumerate(cycle(coded), 1):
        yield Block(number, "frame", at, at + frame_tokens, None, frame)  # type: ignore[arg-type]
        at += frame_tokens


def _blocks(decisions: list[Decision], held: int, at_once: int, places: int, counted: int) -> Iterator[BlockDemand]:
    """The demand of the blocks from number `counted` on."""
    slots = Slots(max(held, at_once), at_once, places)
    for number, d in enumerate(decisions):
        turned = tuple((len(t.tokens), t.fresh) for t in slots.turns(d))
        passes = tuple(len(p.tokens) for p in slots.pieces(d))
        if number >= counted:
            yield BlockDemand(passes, turned)
