"""Compares the latency figures of CodecSight, Mosaic and hybrid memory with ours, as far as their text gives numbers.

Figures that are pictures are not in the text: of CodecSight's Figs. 3, 11 and 14 to 19 and Mosaic's Figs. 7 to 14, only
what sentences cite is here. The papers run on GPUs, so most of ours are rooflines of theirs: products at the rate of an
A100 in `sim.system.platforms`, and nothing else. Neither transmission, decoding, CPU, launches nor messages are
simulated, so a ratio of ours is what work alone allows.

Rows that name V-Rex8, or one core of it, are of our hardware: the policy's own programs, cycle by cycle
(`sim.system.window_pass`, `sim.system.mosaic_pass`), on Llama-3 8B with frames of 10 tokens.

A value has two selections, as V-Rex's numbers have: the demand that the paper states, and that of recorded streams
(`RECORDED`, and the profile of `world` in `papers.evaluation.other_policies`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from openvrex.golden.arithmetic.state_space import StateSpaceParams, branch_macs
from openvrex.golden.inputs.codec_mask import Command
from openvrex.golden.policies.block_allocator import BlockPool
from openvrex.golden.policies.hybrid import Client, HybridParams
from openvrex.golden.policies.mosaic import MosaicParams
from openvrex.golden.policies.window_decisions import windowed
from openvrex.hdl.params import CLOCK, MaskParams, preset
from openvrex.papers.evaluation.paper_points import RESTATED, TABLE_II, Claims, Number
from openvrex.sim.system.mosaic_demand import WORLD, MosaicDemand
from openvrex.sim.system.mosaic_pass import MosaicPass
from openvrex.sim.system.platforms import A100, PAPER_EDGE
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.window_demand import PROMPT, BlockDemand, WindowDemand, demand
from openvrex.sim.system.window_pass import WindowPass
from openvrex.sim.system.workload import Decoder, Session, Vision
from openvrex.sim.units.motion_mask_time import MotionMaskTime

STATED = TABLE_II  # the selection whose demand is the paper's own
CACHE = 10240  # tokens in the cache where a row of ours runs on V-Rex8
LONGEST_WINDOW = 240  # recent blocks of hybrid memory: with sink, frame and prompt, the slots whose masks a core holds


@dataclass(frozen=True)
class Served:
    """A vision-language model on several A100 (CodecSight Table 2). Shapes are those of the published models."""

    name: str
    decoder: Decoder
    vision: Vision
    frame_tokens: int  # visual tokens of a frame in the decoder
    gpus: int

    def seconds(self, seen: float, rows: float, keys: float) -> float:
        """Seconds for the products of encoder and decoder.

        seen : frames that the encoder encodes · rows : tokens that the decoder computes · keys : mean number of tokens
        that a row attends to
        """
        m = self.decoder
        macs = seen * self.vision.macs + m.layers * (rows * m.layer_weights + m.attention_macs(1, keys) * rows)
        return 2 * macs / (self.gpus * A100.dense)


INTERNVL3 = Served("InternVL3", Decoder(48, 5120, 40, 8, 128, 13824, 152064), Vision(24, 1024, 16, 4096, 1025), 256, 2)
QWEN3_VL = Served("Qwen3-VL", Decoder(64, 5120, 64, 8, 128, 25600, 151936), Vision(27, 1152, 16, 4304, 784), 196, 4)
QWEN25_VL = Decoder(36, 2048, 16, 2, 128, 11008, 151936)  # Qwen2.5-VL-3B, hybrid memory's model
LLAVA_OV = Decoder(28, 3584, 28, 4, 128, 18944, 152064)  # LLaVA-OneVision-7B, Mosaic's first model
NOCACHE = Served("LLaVA-OV", LLAVA_OV, Vision(27, 1152, 16, 4304, 729), 196, 1)  # which Mosaic's baseline runs anew


@dataclass(frozen=True)
class Window:
    """What CodecSight computes of a window that has moved on by `stride`, each as a share of the window's tokens.

    pruned : left out by motion · new : computed of the frames that came · refreshed : I-frames of the overlap
    """

    pruned: float
    new: float
    refreshed: float
    stride: float = 0.2

    @classmethod
    def of(cls, pruned: float, stride: float = 0.2, gop: int = 16) -> "Window":
        """The window of a pruned share, by geometry: of the overlap, one frame in a GOP is computed anew."""
        return cls(pruned, stride * (1 - pruned), (1 - stride) / gop, stride)

    def seconds(self, on: Served, frames: int = 80) -> float:
        """Seconds of encoder and prefill of a window of `frames` frames on GPUs."""
        return on.seconds(self.stride * frames * (1 - self.pruned), 0, 0) + self.prefill(on, frames)

    def prefill(self, on: Served, frames: int = 80) -> float:
        """Seconds of the decoder's part."""
        tokens, kept = frames * on.frame_tokens, 1 - self.pruned
        computed = self.new + self.refreshed
        # A new token comes after the overlap, and in the mean after half of the new ones. A refreshed one is in the
        # mean in the middle of the overlap.
        keys = self.new * (1 - self.stride / 2) + self.refreshed * (1 - self.stride) / 2
        return on.seconds(0, computed * tokens, kept * tokens * keys / computed)


def whole(on: Served, pruned: float = 0.0, frames: int = 80) -> float:
    """Seconds of a window of which everything but a pruned share is computed: Full-Comp, or pruning alone."""
    tokens = frames * on.frame_tokens * (1 - pruned)
    return on.seconds(frames * (1 - pruned), tokens, tokens / 2)


# Shares of a window of 80 frames, and its refreshed frames, by clip, parameter and value: `docs/results/paper.json`,
# written by `vrex papers figure codecsight --errors`. A test holds both equal.
RECORDED = {
    ("world", "stride", "0.2"): (0.608246, 0.128311, 4.0),
    ("bigbuckbunny", "stride", "0.2"): (0.125947, 0.199772, 4.0),
    ("bikes", "stride", "0.2"): (0.0129844, 0.24813, 4.0),
    ("world", "stride", "0.1"): (0.608246, 0.0670531, 2.5),
    ("world", "stride", "1"): (0.608246, 0.392236, 0.0),
    ("world", "gop", "4"): (0.521988, 0.295752, 16.0),
}


def recorded(clip: str, varied: str = "stride", value: str = "0.2") -> Window:
    """The mean window of a clip, from `RECORDED`. Refreshed frames are I-frames, of which nothing is pruned."""
    pruned, computed, refreshed = RECORDED[clip, varied, value]
    stride = float(value) if varied == "stride" else 0.2
    return Window(pruned, computed - refreshed / 80, refreshed / 80, stride)


MEAN = 0.30  # pruned share over CodecSight's three groups: (50 + 27 + 13) / 3 %


def numbers(c: Claims) -> list[Number]:
    """All numbers with their verdicts, in the order of the papers; `c` collects them."""
    _codecsight(c)
    _codecsight_parts(c)
    _mosaic(c)
    _hybrid(c)
    return c.found


def _moved(on: Served, stated: Window, clip: str = "world") -> Callable[[str], float]:
    """Full recomputation over CodecSight, as a function of the selection: the stated window's, or a clip's."""
    return lambda select: whole(on) / (stated if select == STATED else recorded(clip)).seconds(on)


WORK = "products alone; transmission, decoding, CPU and the answer are not simulated, which shrink the paper's ratio"


def _codecsight(c: Claims) -> None:
    prefill = INTERNVL3.seconds(0, 80 * 256, 40 * 256)
    doubt = (
        "63 % and 3.2 s are both the most that Fig. 3 has, if they are of one request; attention at the products' rate"
    )
    c.say("CodecSight Fig. 3", "InternVL3, a window's prefill, 63 % of 3.2 s", 2.02, "s", prefill, doubt)
    most = "Fig. 14 has 3.08 and Fig. 15 3.87 for InternVL3, unless Fig. 11 counts stages that they leave out"
    c.say("CodecSight Fig. 11", "InternVL3 over Full-Comp, at most", 2.97, "x", _moved(INTERNVL3, Window.of(0.5)), most)
    c.say(
        "CodecSight Fig. 11", "Qwen3-VL over Full-Comp, at most", 1.66, "x", _moved(QWEN3_VL, Window.of(0.5)), off=WORK
    )
    for system, less, x in (("CacheBlend", 0.60, 1.35), ("VLCache", 0.40, 1.25)):
        # Its tokens are CodecSight's 15 % of full recomputation's over (1 - less); it prunes nothing.
        other = Window(0.0, 0.2, 0.15 / (1 - less) - 0.2)
        ratio = other.prefill(INTERNVL3) / Window.of(0.5).prefill(INTERNVL3)
        doubt = f"{less:.0%} fewer tokens (6.1.3) make {1 / (1 - less):.2f}, if prefill's time follows its tokens"
        c.say("CodecSight 6.1.1", f"prefill over {system}", x, "x", ratio, doubt.replace("%", " %"))
    stated = RESTATED, "products of its model's shapes, with the mean pruned share of 6.1.4"
    saved = lambda select: 100 * (1 - 1 / _moved(INTERNVL3, Window.of(MEAN))(select))  # noqa: E731
    c.say("CodecSight Fig. 13b", "InternVL3, FLOPs less than Full-Comp's by", 87, "%", saved, basis=stated)
    off = (
        "a pass reads all weights for any number of tokens: 80 frames take 50 passes of 16, CodecSight's window 18; "
        "the encoder sees whole frames"
    )
    what = "a window of 80 frames over Full-Comp on V-Rex8, Llama-3 8B"
    c.say("CodecSight Fig. 11", what, 2.97, "x", on_vrex, off=off)
    groups = (("low", 0.50, 3.08, "world"), ("medium", 0.27, 2.74, "bigbuckbunny"), ("high", 0.13, 2.49, "bikes"))
    for name, pruned, x, clip in groups:
        what = f"InternVL3 over Full-Comp, {name} motion (trace: {clip})"
        c.say("CodecSight 6.1.4", what, x, "x", _moved(INTERNVL3, Window.of(pruned), clip), off=WORK)


def on_vrex(select: str) -> float:
    """Full recomputation over CodecSight on V-Rex8, half of the tokens pruned, or as in a clip."""
    return window_on_vrex(None) / window_on_vrex(Window.of(0.5) if select == STATED else recorded("world"))


def _codecsight_parts(c: Claims) -> None:
    both = "Fig. 11 says at most 2.97, unless it counts stages that Fig. 15 leaves out"
    c.say("CodecSight 6.2", "InternVL3 over Full-Comp, both parts", 3.87, "x", _moved(INTERNVL3, Window.of(MEAN)), both)
    half = whole(INTERNVL3) / whole(INTERNVL3, 0.5)
    doubt = f"30 % fewer tokens are the mean of 6.1.4; its most, 50 %, make {half:.1f}, if time follows the products"

    def pruning(select: str) -> float:
        return whole(INTERNVL3) / whole(INTERNVL3, MEAN if select == STATED else recorded("world").pruned)

    c.say("CodecSight 6.2", "InternVL3 over Full-Comp, pruning alone", 2.61, "x", pruning, doubt)
    c.say("CodecSight 6.2", "the same, refresh alone", 1.64, "x", whole(INTERNVL3) / Window.of(0.0).seconds(INTERNVL3),
          off=WORK)  # fmt: skip
    for what, paper, window, of in (
        ("stride 100 % over 20 %", 1.45, Window.of(MEAN, 1.0), ("stride", "1")),
        ("stride 10 % over 20 %", 0.92, Window.of(MEAN, 0.1), ("stride", "0.1")),
        ("GOP 4 over 16", 1.33, Window.of(MEAN, gop=4), ("gop", "4")),
    ):

        def latency(select: str, w: Window = window, of: tuple[str, str] = of) -> float:
            own, base = (w, Window.of(MEAN)) if select == STATED else (recorded("world", *of), recorded("world"))
            return own.seconds(INTERNVL3) / base.seconds(INTERNVL3)

        c.say("CodecSight 6.3", f"latency, {what}", paper, "x", latency, off=WORK)
    off = "the motion mask, our unit, takes a block a cycle; the paper's analyser and pruner are Python in vLLM"
    for on, ms in ((INTERNVL3, 48.9), (QWEN3_VL, 49.1)):
        c.say("CodecSight 6.4", f"{on.name}, token pruning a window", ms, "ms", 1e3 * masking(), off=off)
    share = 100 * masking() / window_on_vrex(Window.of(0.5))
    off = "the motion mask beside the passes of V-Rex8"
    c.say("CodecSight 6.4", "token pruning of a window's latency, on V-Rex8", 3.9, "%", share, off=off)
    off = "not simulated: I-frames are rows that the host lists"
    c.say("CodecSight 6.4", "choice of what to refresh a window", 0.6, "ms", None, off=off)
    doubt = "49.5 ms are 3.9 % of 1.27 s, and 2.97 times that 3.8 s, if all are one request's: Fig. 3 has 3.2 s at most"
    share = 100 * 49.5 / (3200 / 2.97)
    c.say("CodecSight 6.4", "InternVL3, both of its latency (ours: of 3.2 s / 2.97)", 3.9, "%", share, doubt)


def masking(frames: int = 16, side: int = 448) -> float:
    """Seconds of the motion mask for the frames by which a window moves on: blocks of 16 x 16, patches of 14."""
    frame = Command(side, side, 1), (side // 16) ** 2
    return MotionMaskTime(MaskParams(grid=side // 14)).run([frame] * frames).o[-1] / CLOCK


def window_on_vrex(w: Window | None, frames: int = 80, at_once: int = PROMPT) -> float:
    """Seconds of V-Rex8 for a window that has moved on, by the programs of its passes.

    w : what is computed of it; None: all of its frames, and all are encoded. Each frame that came is encoded whole.
    """
    tokens = Session.frame_tokens
    came = frames if w is None else round(w.stride * frames)
    new = tokens if w is None else round(w.new * frames * tokens / came)
    fresh = 0 if w is None else round(w.refreshed * frames * tokens)

    def cut(rows: int) -> list[int]:
        return [min(at_once, rows - k) for k in range(0, rows, at_once)]

    # The first frame's passes also take the refreshed tokens, and the prompt's keys are turned before.
    sizes = cut(came * tokens) if w is None else [*cut(new + fresh), *cut(new) * (came - 1)]
    turned = () if w is None else ((PROMPT, False),)
    blocks = tuple(BlockDemand((n,), turned * (k == 0)) for k, n in enumerate(sizes))
    held = PROMPT + round(frames * tokens * (1 - (w.pruned if w else 0)))
    d = WindowDemand(frames * tokens, blocks, BlockDemand((1,), ()), held, at_once, True)
    one = WindowPass(PAPER_EDGE, d, Point(frames * tokens)).frame()
    vision, answer = one.named("vision"), one.named("vocabulary")  # of a pass that ends with an answer: none here
    return len(blocks) * (one.seconds - vision - answer) + vision * came


def on_core(prefetch: str, covered: float = WORLD.covered, frames: int = 1) -> MosaicPass:
    """Mosaic on one core of V-Rex8, behind `CACHE` tokens. frames : that enter as one block"""
    d = MosaicDemand(
        MosaicParams(arithmetic="hardware", prefetch=prefetch),
        replace(WORLD, covered=covered),
        CACHE,
        frames * Session.frame_tokens,
        Session.question,
    )
    return MosaicPass(replace(PAPER_EDGE, system=preset("core")), d, Point(CACHE))


def prefetched(select: str) -> float:
    """Per cent by which prefetch shortens a question; stated: it brings all that the next layer asks for."""
    covered = 1.0 if select == STATED else WORLD.covered
    with_, without = (on_core(name, covered).question().seconds for name in ("query", "none"))
    return 100 * (1 - with_ / without)


def batched(frames: int = 3) -> float:
    """Per cent by which a frame is shorter where several enter as one block; each is encoded alone."""
    one, many = (on_core("query", frames=n).frame() for n in (1, frames))
    vision = one.named("vision")
    return 100 * (1 - ((many.seconds - vision) / frames + vision) / one.seconds)


def beside_full() -> float:
    """Full attention's seconds of a frame over those of hybrid memory's attention on V-Rex8, behind `CACHE` tokens."""
    hybrid = windowed("hybrid")
    hybrid = replace(hybrid, params=replace(hybrid.params, recent_blocks=LONGEST_WINDOW))
    full, window = (
        WindowPass(PAPER_EDGE, demand(x, Decoder(), CACHE), Point(CACHE)).frame().seconds
        for x in (windowed("full"), hybrid)
    )
    return full / window


def _mosaic(c: Claims) -> None:
    frames, answer = 64, 0.17  # retrieved frames (VIII-A), and latency of LLaVA-OV-7B (Table III)
    anew = NOCACHE.seconds(frames, frames * 196, frames * 196 / 2)
    what = "NoCache, LLaVA-OV-7B, MLVU: 64 sampled frames encoded and computed anew"
    c.say("Mosaic Table III", what, 3.26, "s", anew, off=WORK)
    moved = frames * 196 * LLAVA_OV.token_bytes
    hidden = moved / A100.link
    doubt = (
        f"64 frames of 196 tokens are {moved / 1e9:.2f} GB, at 24.6 GB/s beside 0.17 s (Table III), if all is hidden: "
        "rate and tokens of a frame are not stated"
    )
    c.say("Mosaic VIII-C", "prefetch: response latency less by", 14.5, "%", 100 * hidden / (answer + hidden), doubt)
    off = (
        "prefetch hides the link and not the copies, which are programs of the core; trace: its query covers a fifth, "
        "so a layer fetches nearly twice"
    )
    what = f"the same: a question of 25 tokens on a core of V-Rex8, {CACHE >> 10}K; ours: all is covered"
    c.say("Mosaic VIII-C", what, 14.5, "%", prefetched, off=off)
    off = "how many frames a batch has is not stated; a core reads its weights once for three, which choose together"
    what = "batches: a frame less by; ours: three of 10 tokens on a core of V-Rex8"
    c.say("Mosaic VIII-C", what, 26, "%", batched(), off)


def _hybrid(c: Claims) -> None:
    m, tokens = QWEN25_VL, 48 * 196
    kept = HybridParams().recent_tokens
    keys = kept - kept * kept / (2 * tokens)  # mean keys of a row that sees up to `kept`
    branch = branch_share(m) * m.layer_weights
    full = m.layer_weights + m.attention_macs(1, tokens / 2)
    hybrid = m.layer_weights + m.attention_macs(1, keys) + branch
    more = f"{100 * branch_share(m):.0f} %"
    doubt = f"a branch of Mamba's sizes adds {more} to a layer's products, if it has these sizes: not stated"
    what = "throughput over full attention's, 48 frames"
    c.say("hybrid V-A 2, Fig. 1", what, round(4027 / 4011, 3), "x", full / hybrid, doubt)
    what = "latency over full attention's, 48 frames"
    c.say("hybrid V-A 3, Fig. 2", what, round(1.87 / 1.86, 3), "x", hybrid / full, doubt)
    ratio = beside_full()
    doubt = (
        "without the branch, which has no program on eight cores; parity leaves it "
        f"{100 * (ratio - 1):.0f} % of a frame, if its size allows that: not stated"
    )
    what = f"throughput over full attention's in frames on V-Rex8, {CACHE >> 10}K; "
    what += "ours: attention alone, a window of 3,840"
    c.say("hybrid V-A 2, Fig. 1", what, round(4027 / 4011, 3), "x", ratio, doubt)
    off = "not simulated: messages between attention, worker and scheduler; the KVMU frees blocks as it goes"
    c.say("hybrid Table I", "compression's time per token over masking's", 1.126, "x", None, off=off)
    doubt = "tokens computed, one request a frame, 17 s at 30 frames/s: rate of requests and answers are not stated"
    ratio = computed_by_client(100) / computed_by_client(20)
    c.say("hybrid V-C", "time, window of 100 frames over 20", round(456.36 / 130.06, 2), "x", ratio, doubt)


def branch_share(m: Decoder) -> float:
    """MACs of a layer's state-space branch over those of its products, with Mamba 1.0's sizes."""
    return branch_macs(StateSpaceParams(), m.width, m.heads * m.head) / m.layer_weights


@lru_cache
def computed_by_client(window: int, frames: int = 510, sink: int = 1) -> int:
    """Frames that all requests of a client compute anew, which sends one after each frame."""
    client = Client(BlockPool(1 << 12), sink, window, 1, 1, window)
    for _ in range(frames):
        client.request(1)
    return client.computed
