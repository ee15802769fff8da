"""The address map of an IP block for software: C header, HTML."""

import re
import zlib
from pathlib import Path

from peakrdl_cheader.c_standards import CStandard
from peakrdl_cheader.exporter import CHeaderExporter
from peakrdl_html import HTMLExporter
from systemrdl.node import AddrmapNode


def header(top: AddrmapNode, path: Path) -> None:
    """C header: a struct for each level, names of hierarchical paths, so that they are the same for all parameters."""
    CHeaderExporter().export(top, str(path), std=CStandard.gnu99, reuse_typedefs=False)


def html(top: AddrmapNode, folder: Path) -> None:
    """Pages to read, the first of them index.html. The same to the byte for the same registers: where the exporter puts
    the time, so that browsers fetch pages anew, is a number of what they say."""
    HTMLExporter(generate_source_links=False).export(top, str(folder))
    number = zlib.crc32(b"".join(f.read_bytes() for f in sorted((folder / "data").glob("*.json"))))
    index = folder / "index.html"
    index.write_text(re.sub(r"(BUILD_TS = |\?ts=)\d+", rf"\g<1>{number}", index.read_text()))
