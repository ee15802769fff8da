"""Every retrieval policy by name."""

from dataclasses import dataclass
from typing import Any

from golden import baselines, resv_policy
from golden.params import PAPER, ReSVParams, check
from golden.policy import Policy, Shape


@dataclass(frozen=True)
class Entry:
    """A policy with the parameters that its name stands for."""

    policy: type[Policy]
    params: Any


POLICIES = {
    "full": Entry(baselines.Full, baselines.FullParams()),
    "flexgen": Entry(baselines.Full, baselines.FullParams(offload=True)),
    "resv": Entry(resv_policy.ReSVPolicy, ReSVParams()),
    "resv-paper": Entry(resv_policy.ReSVPolicy, PAPER),
}


def entry(name: str) -> Entry:
    """The entry `name`; `ParamError` lists the valid names."""
    check(name in POLICIES, "policy", name, f"must be one of {', '.join(POLICIES)}")
    return POLICIES[name]


def build(name: str, shape: Shape) -> Policy:
    """A fresh policy of that name for a model."""
    found = entry(name)
    return found.policy(found.params, shape)
