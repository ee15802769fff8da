"""A decoder in FP32 under a policy, pass by pass, to hold a golden core against."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from openvrex.golden.function_params import DotFormat, ReSVParams
from openvrex.golden.inputs.decoder import Decoder
from openvrex.golden.policies.blocks import Block
from openvrex.golden.policies.pages_policy import CodedPages, PagesPolicyParams
from openvrex.golden.policies.policy import Policy
from openvrex.golden.policies.policy_run import DecoderRun, decoder_shape
from openvrex.golden.policies.resv_policy import ReSVPolicy, ReSVPolicyParams
from openvrex.golden.retrieval.coded_pages import CodedKeys, PageParams
from openvrex.golden.retrieval.key_matrices import KeyMatrices


def resv(decoder: Decoder, params: ReSVParams, dot: DotFormat) -> Policy:
    """ReSV that hashes and scores with the core's dot products and score codes."""
    own = ReSVPolicyParams(replace(params, dot=dot, score_map="vpe"), "none")
    return ReSVPolicy(own, decoder_shape(decoder))


def pages(decoder: Decoder, params: PageParams, matrices: Sequence[KeyMatrices], dot: DotFormat) -> Policy:
    """Coded pages that score with the core's dot products."""
    out = CodedPages(PagesPolicyParams(**vars(params)), decoder_shape(decoder))
    out.layers = [CodedKeys(params, own, dot) for own in matrices]
    return out


class PolicyPasses(DecoderRun):
    """Passes of a decoder under a policy.

    hidden, logits : of the last token of the last pass, [width] and [vocabulary]
    """

    def __init__(self, decoder: Decoder, policy: Policy):
        super().__init__(policy, decoder.width)
        self.decoder = decoder
        self.hidden, self.logits = np.zeros(0), np.zeros(0)

    def take_pass(self, x: np.ndarray) -> np.ndarray:
        """Run a pass over embeddings [tokens, width]; the numbers of entries fetched, [layers, KV heads]."""
        block = Block(len(self.records), "frame", self.length, self.length + len(x))
        return self.step(self.decoder, block, x).fetched

    def _predict(self, decoder: Decoder, hidden: np.ndarray, at: np.ndarray, targets: np.ndarray | None) -> None:
        self.hidden, self.logits = hidden[-1], decoder.logits(hidden[-1:])[0]
