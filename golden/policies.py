"""Every retrieval policy by name."""

from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from golden import baselines, infinigen, oaken, resv_policy
from golden.params import check
from golden.policy import Policy, Shape


@dataclass(frozen=True)
class Entry:
    """A policy with the parameters that its name stands for."""

    policy: type[Policy]
    params: Any

    def build(self, shape: Shape) -> Policy:
        """A fresh one for a model."""
        return self.policy(self.params, shape)


POLICIES = {
    "full": Entry(baselines.Full, baselines.FullParams()),
    "flexgen": Entry(baselines.Full, baselines.FullParams(offload=True)),
    "infinigen": Entry(infinigen.InfiniGen, infinigen.InfiniGenParams()),
    "infinigenp": Entry(infinigen.InfiniGen, infinigen.InfiniGenParams(frame_ratio=0.508)),
    "rekv": Entry(baselines.ReKV, baselines.ReKVParams()),
    "streamingllm": Entry(baselines.Streaming, baselines.StreamingParams()),
    "oaken": Entry(oaken.Oaken, oaken.OakenParams()),
    "resv": Entry(resv_policy.ReSVPolicy, resv_policy.ReSVPolicyParams()),
    "resv-paper": Entry(resv_policy.ReSVPolicy, resv_policy.PAPER_POLICY),
}


def entry(name: str) -> Entry:
    """The entry `name`; `ParamError` lists the valid names."""
    check(name in POLICIES, "policy", name, f"must be one of {', '.join(POLICIES)}")
    return POLICIES[name]


def override(params: Any, assignments: dict[str, str]) -> Any:
    """Parameters with fields set from text, "resv.th_hd" for a field of a field; `ParamError` for what cannot be."""
    for path, text in assignments.items():
        params = _set(params, path, path, text)
    return params


def _set(params: Any, path: str, whole: str, text: str) -> Any:
    name, _, rest = path.partition(".")
    nested = is_dataclass(getattr(params, name, None))
    known = [f"{name}.*" if is_dataclass(value) else name for name, value in vars(params).items()]
    check(name in vars(params) and nested == bool(rest), "parameter", whole, f"unknown; valid: {', '.join(known)}")
    old = getattr(params, name)
    if nested:
        return replace(params, **{name: _set(old, rest, whole, text)})
    words = {"true": True, "false": False}
    try:
        new = words[text] if isinstance(old, bool) else type(old)(text)
    except (KeyError, ValueError):
        check(False, whole, text, f"must be of type {type(old).__name__}, as {old!r}")
    return replace(params, **{name: new})
