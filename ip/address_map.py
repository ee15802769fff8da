"""Writes the address map of an IP block for software: a C header and HTML pages."""

import re
import zlib
from pathlib import Path

from peakrdl_cheader.c_standards import CStandard
from peakrdl_cheader.exporter import CHeaderExporter
from peakrdl_html import HTMLExporter
from systemrdl.node import AddrmapNode


def header(top: AddrmapNode, path: Path) -> None:
    """Writes a C header with a struct for each level. Names are hierarchical paths, the same for all parameters."""
    CHeaderExporter().export(top, str(path), std=CStandard.gnu99, reuse_typedefs=False)


def html(top: AddrmapNode, folder: Path) -> None:
    """Writes HTML pages; index.html is the first. The same registers give the same bytes.

    The exporter puts the time into the pages, so that browsers fetch them again. We replace it by a checksum of the
    content.
    """
    HTMLExporter(generate_source_links=False).export(top, str(folder))
    number = zlib.crc32(b"".join(f.read_bytes() for f in sorted((folder / "data").glob("*.json"))))
    index = folder / "index.html"
    index.write_text(re.sub(r"(BUILD_TS = |\?ts=)\d+", rf"\g<1>{number}", index.read_text()))
