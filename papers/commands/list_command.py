"""`vrex papers list`: the retrieval policies with their parameters and sources."""

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

from rich.table import Table

from openvrex.golden.function_params import described
from openvrex.papers.policies.registry import POLICIES
from openvrex.scripts import console


def command(json: console.Json = False) -> None:
    """List the retrieval policies with their parameters and sources."""
    listing: dict[str, dict[str, Any]] = {
        name: {
            "summary": (inspect.getdoc(found.policy) or "").partition("\n")[0],
            "source": found.policy.source,
            "params": parameters(found.params),
        }
        for name, found in POLICIES.items()
    }
    if json:
        console.print_json(listing)
        return
    out = Table("policy", "parameter", "value", "meaning", title="Retrieval policies")
    first: dict[str, str] = {}  # the first policy with each summary: later ones list only different parameters
    for name, p in listing.items():
        out.add_section()
        base = first.setdefault(p["summary"], name)
        shown = p["params"]
        note = f"{p['summary']} [dim]({p['source']})[/]"
        if base != name:
            shown = {k: v for k, v in shown.items() if v != listing[base]["params"][k]}
            note = f"{base} with"
        out.add_row(f"[bold]{name}[/]", "", "", note)
        for param, (value, meaning) in shown.items():
            out.add_row("", param, str(value), meaning)
    console.out.print(out)


def parameters(params: Any, prefix: str = "") -> dict[str, tuple[Any, str]]:
    """The value and the meaning of every parameter; nested ones are named "outer.inner"."""
    about = described(params)
    out: dict[str, tuple[Any, str]] = {}
    for f in fields(params):
        value = getattr(params, f.name)
        if is_dataclass(value):
            out |= parameters(value, f"{prefix}{f.name}.")
        else:
            out[prefix + f.name] = (value, about[f.name].meaning)
    return out
