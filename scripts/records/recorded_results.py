"""Holds the manual to its records: tables made from recorded results, and sentences that cite figures.

Six modules give the tables (`BLOCKS`) and the sentences (`cited`): `synthesis_results`, `run_results`, `layer_results`,
`evaluation_figures` and `block_status` from records in docs/results, `computed_figures` from code that takes no time,
docstrings too.
"""

import re
from collections.abc import Callable
from pathlib import Path

from openvrex.scripts.records import (
    block_status,
    computed_figures,
    evaluation_figures,
    layer_results,
    run_results,
    synthesis_results,
)

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(<!-- vrex dev record: ([\w-]+) -->\n)(?:(?!<!--).)*(<!-- end -->)", re.S)
BLOCKS: dict[str, Callable[[dict], str]] = {
    name: block
    for module in (
        synthesis_results,
        run_results,
        layer_results,
        evaluation_figures,
        computed_figures,
        block_status,
    )
    for name, block in module.BLOCKS.items()
}


def texts(docs: Path = DOCS) -> dict[str, Path]:
    """The pages by their paths in `docs`, and the README beside it."""
    found = {path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*.md"))}
    return found | {"README.md": docs.parent / "README.md"}


def pages(known: dict[str, dict], docs: Path = DOCS) -> dict[Path, str]:
    """Pages whose tables differ from the recorded figures -> the text with new tables."""
    out = {}
    for path in texts(docs).values():
        text = path.read_text()
        new = BLOCK.sub(lambda m: m[1] + BLOCKS[m[2]](known) + "\n" + m[3], text)
        if new != text:
            out[path] = new
    return out


def cited(known: dict[str, dict]) -> list[tuple[str, str]]:
    """Page and text, for each sentence or part of one that has figures."""
    return [
        *synthesis_results.cited(known),
        *run_results.cited(known),
        *layer_results.cited(known),
        *evaluation_figures.cited(known),
        *computed_figures.cited(),
    ]


def stale(known: dict[str, dict], docs: Path = DOCS) -> list[tuple[str, str]]:
    """Page and sentence for each cited sentence that a page lacks. A sentence may go over several lines."""
    words = {name: " ".join(path.read_text().split()) for name, path in texts(docs).items()}
    return [(page, line) for page, line in cited(known) if " ".join(line.split()) not in words[page]]
