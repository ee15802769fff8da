"""Writes into each file of a package where it comes from: its licence, the release, and the command that makes it."""

from pathlib import Path

from openvrex.hdl.header import origin

# Suffixes of files in which # begins a comment; in others // does.
_HASH = (".core", ".mk", ".sdc", ".tcl", ".upf", ".yaml", ".ys")
_FIRST = ("CAPI=2:", "<?xml")  # stays the first line


def stamped(name: str, text: str, command: str) -> str:
    """The text of a file, with `hdl.header.origin` at its top. XML gets a processing instruction: its comments may not
    hold the hyphens of options.
    """
    suffix = Path(name).suffix
    if suffix == ".xml":
        above = "\n".join(["<?openvrex", *origin(command), "?>"])
    else:
        mark = "#" if suffix in _HASH else "//"
        above = "\n".join(f"{mark} {line}" for line in origin(command))
    head, newline, rest = text.partition("\n")
    return f"{head}\n{above}\n{rest}" if head.startswith(_FIRST) else f"{above}\n{head}{newline}{rest}"
