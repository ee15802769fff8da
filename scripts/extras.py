"""Extras of the package, and the line for a command whose extra is not installed."""

import re
from importlib import metadata
from typing import Any

import typer

# A requirement in the metadata of this package: `cocotbext-axi; extra == "verify"`.
NAMED = re.compile(r"^(?P<package>[\w.-]+).*; extra == ['\"](?P<extra>\w+)['\"]$")


def missing(e: ModuleNotFoundError) -> tuple[str, str] | None:
    """The package that a module is missing of and the extra that brings it, `None` if no extra does."""
    module = (e.name or "").partition(".")[0].replace("_", "-")
    found = filter(None, map(NAMED.match, metadata.requires("openvrex") or ()))
    brings = {match["package"]: match["extra"] for match in found}
    family = (package for package in brings if package.partition("-")[0] == module.partition("-")[0])
    package = module if module in brings else next(family, None)
    return (package, brings[package]) if package else None


def needs(command: str, package: str, extra: str) -> str:
    """The line for a command that misses a package."""
    return f"{command} needs {package}: pip install 'openvrex[{extra}]'"


def stand_in(command: str, package: str, extra: str) -> Any:
    """A command that says what it needs, whatever its options, to be registered in place of the one that needs it."""

    def stub(ctx: typer.Context) -> None:
        raise ValueError(needs(command, package, extra))

    stub.__doc__ = f"Needs the extra `{extra}`, which is not installed."
    return stub
