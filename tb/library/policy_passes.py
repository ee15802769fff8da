"""A decoder in FP32 under the policy ReSV, pass by pass, to hold a golden core against."""

from dataclasses import replace

import numpy as np

from openvrex.golden.function_params import DotFormat, ReSVParams
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.policies.blocks import Block
from openvrex.golden.policies.policy_run import DecoderRun, decoder_shape
from openvrex.golden.policies.resv_policy import ReSVPolicy, ReSVPolicyParams


class PolicyPasses(DecoderRun):
    """Passes of a decoder whose policy hashes and scores with the core's dot products and score codes.

    hidden, logits : of the last token of the last pass, [width] and [vocabulary]
    """

    def __init__(self, decoder: Decoder, resv: ReSVParams, dot: DotFormat):
        params = ReSVPolicyParams(replace(resv, dot=dot, score_map="vpe"), "none")
        super().__init__(ReSVPolicy(params, decoder_shape(decoder)), decoder.width)
        self.decoder = decoder
        self.hidden, self.logits = np.zeros(0), np.zeros(0)

    def take_pass(self, x: np.ndarray) -> np.ndarray:
        """Run a pass over embeddings [tokens, width]; the numbers of entries fetched, [layers, KV heads]."""
        block = Block(len(self.records), "frame", self.length, self.length + len(x))
        return self.step(self.decoder, block, x).fetched

    def _predict(self, decoder: Decoder, hidden: np.ndarray, at: np.ndarray, targets: np.ndarray | None) -> None:
        self.hidden, self.logits = hidden[-1], decoder.logits(hidden[-1:])[0]
