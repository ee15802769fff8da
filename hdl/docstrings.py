"""Parser of unit docstrings, which are the data sheets."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from openvrex.golden.function_params import check

_FINAL = ("Latency", "Throughput", "Raises", "Source")
_LISTS = ("Parameters", "Members")


@dataclass
class Sheet:
    """A docstring in its parts.

    lead : paragraphs · parameters, members : entries, (names, what stands between, meaning)
    final : Latency, Throughput, Raises, Source
    """

    lead: list[str] = field(default_factory=list)
    parameters: list[tuple[str, str, str]] = field(default_factory=list)
    members: list[tuple[str, str, str]] = field(default_factory=list)
    final: dict[str, str] = field(default_factory=dict)


def parse(doc: str) -> Sheet:
    """Splits a unit's docstring into its sections. Raises: `ParamError` for a missing or unknown section."""
    sheet = Sheet()
    sections = re.split(r"^(Parameters|Members)\n-+\n", doc, flags=re.M)
    sheet.lead = [joined(part) for part in re.split(r"\n\s*\n", sections[0].strip())]
    final = re.split(rf"^({'|'.join(_FINAL)}): ", sections[-1], flags=re.M)
    sections[-1] = final[0]
    for name, text in zip(sections[1::2], sections[2::2], strict=True):
        setattr(sheet, name.lower(), list(_entries(text)))
    sheet.final = {name: joined(text) for name, text in zip(final[1::2], final[2::2], strict=True)}
    for name in (*_LISTS, *_FINAL):
        found = getattr(sheet, name.lower(), None) or sheet.final.get(name)
        check(bool(found), "docstring", doc.split("\n")[0], f"has no section {name}")
    return sheet


def joined(text: str) -> str:
    """Joins a text of several lines to one line."""
    return re.sub(r"\s+", " ", text).strip()


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """`names : shape : meaning`, continued by indented lines; a middle dot separates entries on one line."""
    for block in re.split(r"\n(?=\S)", text.strip()):
        for entry in re.split(r" · (?=[\w*, ]+ : )", joined(block)):
            parts = entry.split(" : ", 2)
            yield (parts[0], parts[1] if len(parts) == 3 else "", parts[-1] if len(parts) > 1 else "")


def prose(text: str, code: Callable[[str], str] = "`{}`".format) -> str:
    """Converts prose of a docstring to Markdown: only backticks have a meaning, and `code` formats what they
    enclose.
    """
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        code(p[1:-1]) if i % 2 else re.sub(r"([*_|])", r"\\\1", p).replace("<", "&lt;") for i, p in enumerate(parts)
    )
