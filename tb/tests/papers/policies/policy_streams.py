"""Streams of keys for baselines."""

import numpy as np

from openvrex.golden.inputs.trace_model import frequencies
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.policy import LayerBlock
from openvrex.golden.policies.policy_run import Run
from tb.tests.golden.retrieval.resv_samples import video

SHAPE = Shape(1, 4, 2, 8, (frequencies(100.0, 8),), 1e-5)


ENTRY = 32  # bytes of K and V of a token and a head of 8 BF16 numbers


class Stream:
    """Frames of seven tokens, one layer; the last one generates one token at a time if asked to."""

    def __init__(self, policy, frames=8, seed=1):
        self.run, self.policy, self.data = Run(policy), policy, list(video(seed, frames + 6))
        self.q, self.k, self.v = (np.concatenate([f[i] for f in self.data]).astype(np.float32) for i in range(3))
        self.y = []
        for i in range(frames):
            self.block("prompt" if i == 0 else "frame", 7)

    def block(self, stage, size):
        run = self.run
        block = Block(len(run.records), stage, run.length, run.length + size)
        run.begin(block)
        at = block.tokens
        run.take(0, at, self.k[at], self.v[at])
        history = run.histories[0]
        y = run.attend(LayerBlock(0, block, at, self.q[at], history.k, history.v))
        self.y.append(y)
        return run.finish(block)

    def moved(self, direction="in", reason="fetch"):
        return self.policy.ledger.moved[direction, reason]
