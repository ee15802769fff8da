"""The policies that run on a core by name, with their parameters, and the parsing of parameters given as text."""

from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from openvrex.golden.function_params import READINGS, check
from openvrex.golden.policies import codecsight_policy, full_streaming, hybrid, mosaic, pages_policy, resv_policy
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.policy import Policy


@dataclass(frozen=True)
class Entry:
    """A policy class and the parameters that a name stands for."""

    policy: type[Policy]
    params: Any

    def build(self, shape: Shape) -> Policy:
        """A fresh policy for a model."""
        return self.policy(self.params, shape)


POLICIES = {
    "full": Entry(full_streaming.Full, full_streaming.FullParams()),
    "streamingllm": Entry(full_streaming.Streaming, full_streaming.StreamingParams()),
    "codecsight": Entry(codecsight_policy.CodecSightPolicy, codecsight_policy.CodecSightParams()),
    "mosaic": Entry(mosaic.Mosaic, mosaic.MosaicParams()),
    "mosaic-eager": Entry(mosaic.Mosaic, mosaic.MosaicParams(defer=False)),
    "hybrid": Entry(hybrid.Hybrid, hybrid.HybridParams()),
    "pages": Entry(pages_policy.CodedPages, pages_policy.PagesPolicyParams()),
}
# ReSV in every reading of its paper: "resv", "resv-equations", ...
POLICIES |= {
    name if name == "resv" else f"resv-{name}": Entry(resv_policy.ReSVPolicy, resv_policy.ReSVPolicyParams(params))
    for name, params in READINGS.items()
}


def entry(name: str) -> Entry:
    """The entry of a name. Raises `ParamError` with the valid names for an unknown one."""
    check(name in POLICIES, "policy", name, f"must be one of {', '.join(POLICIES)}")
    return POLICIES[name]


def override(params: Any, assignments: dict[str, str], prefix: str = "") -> Any:
    """Parameters with some fields replaced by values given as text.

    assignments : text by field; "resv.th_hd" names a field of a field
    prefix : put before names in messages

    Raises `ParamError` for an unknown field and for text that is not of the field's type.
    """
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, str]] = {}
    for path, text in assignments.items():
        name, _, rest = path.partition(".")
        nested = is_dataclass(getattr(params, name, None))
        valid = ", ".join(f"{name}.*" if is_dataclass(value) else name for name, value in vars(params).items())
        check(name in vars(params) and nested == bool(rest), "parameter", prefix + path, f"unknown; valid: {valid}")
        if nested:
            inner.setdefault(name, {})[rest] = text
        else:
            own[name] = _parse(prefix + name, text, getattr(params, name))
    own |= {name: override(getattr(params, name), part, f"{prefix}{name}.") for name, part in inner.items()}
    return replace(params, **own)


def _parse(name: str, text: str, old: Any) -> Any:
    try:
        return {"true": True, "false": False}[text] if isinstance(old, bool) else type(old)(text)
    except (KeyError, ValueError):
        check(False, name, text, f"must be of type {type(old).__name__}, such as {old!r}")
