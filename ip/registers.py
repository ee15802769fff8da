"""The address map of an IP block for software and tools: C header, HTML, IP-XACT."""

import re
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

from peakrdl_cheader.c_standards import CStandard
from peakrdl_cheader.exporter import CHeaderExporter
from peakrdl_html import HTMLExporter
from peakrdl_ipxact import IPXACTExporter
from systemrdl.messages import MessagePrinter
from systemrdl.node import AddrmapNode, MemNode

_IPXACT = "http://www.accellera.org/XMLSchema/IPXACT/1685-2014"


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


class _Quiet(MessagePrinter):
    """The exporter warns of windows, which `ipxact` adds itself."""

    def print_message(self, *_):
        pass


def ipxact(top: AddrmapNode, path: Path, version: str) -> None:
    """IP-XACT (IEEE 1685-2014) of the address map; a window, which it has no word for, as an array of registers."""
    printer, top.env.msg.printer = top.env.msg.printer, _Quiet()
    try:
        IPXACTExporter(vendor="openvrex", library="ip", version=version).export(top, str(path))
    finally:
        top.env.msg.printer = printer
    ET.register_namespace("ipxact", _IPXACT)
    ET.register_namespace("xsi", "http://www.w3.org/2001/XMLSchema-instance")
    tree = ET.parse(path)
    block = tree.find(f".//{{{_IPXACT}}}addressBlock")
    for window in (n for n in top.children() if isinstance(n, MemNode)):
        register = _add(block, "register", window.inst_name)
        _add(register, "description", text=window.get_property("desc"))
        _add(register, "dim", text=str(window.get_property("mementries")))
        _add(register, "addressOffset", text=f"'h{window.address_offset:x}")
        _add(register, "size", text=str(window.get_property("memwidth")))
        field = _add(register, "field", "value")
        _add(field, "bitOffset", text="0")
        _add(field, "bitWidth", text=str(window.get_property("memwidth")))
        _add(field, "access", text="write-only")
    ET.indent(tree)
    tree.write(path, encoding="UTF-8", xml_declaration=True)


def _add(parent: ET.Element, tag: str, name: str = "", text: str = "") -> ET.Element:
    element = ET.SubElement(parent, f"{{{_IPXACT}}}{tag}")
    element.text = text or None
    if name:
        _add(element, "name", text=name)
    return element
