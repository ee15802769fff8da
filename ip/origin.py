"""Writes into each file of a package where it comes from: its licence, the release, and the command that makes it."""

from pathlib import Path

from openvrex.hdl.header import origin

_LINES = {".core": "#", ".sdc": "#", ".ys": "#"}  # begin a comment, by suffix; in other files // does
_FIRST = ("CAPI=2:", "<?xml")  # stays the first line


def stamped(name: str, text: str, command: str) -> str:
    """The text of a file, with `hdl.header.origin` at its top. XML gets a processing instruction: its comments may not
    hold the hyphens of options.
    """
    suffix = Path(name).suffix
    if suffix == ".xml":
        above = "\n".join(["<?openvrex", *origin(command), "?>"])
    else:
        above = "\n".join(f"{_LINES.get(suffix, '//')} {line}" for line in origin(command))
    head, newline, rest = text.partition("\n")
    return f"{head}\n{above}\n{rest}" if head.startswith(_FIRST) else f"{above}\n{head}{newline}{rest}"
