"""Writes the address map of an IP block for software, as a C header."""

from pathlib import Path

from peakrdl_cheader.c_standards import CStandard
from peakrdl_cheader.exporter import CHeaderExporter
from systemrdl.node import AddrmapNode


def header(top: AddrmapNode, path: Path) -> None:
    """Writes a C header with a struct for each level. Names are hierarchical paths, the same for all parameters."""
    CHeaderExporter().export(top, str(path), std=CStandard.gnu99, reuse_typedefs=False)
