"""Writes the IP-XACT description (IEEE 1685-2014) of an IP block: ports, bus interfaces, address map, files."""

import xml.etree.ElementTree as ET
from copy import deepcopy
from pathlib import Path

from peakrdl_ipxact import IPXACTExporter
from systemrdl.messages import MessagePrinter
from systemrdl.node import AddrmapNode, MemNode

from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import CoreParams, MaskParams
from openvrex.ip.shell import VENDOR, VERSION, Interface, interfaces, top_module, top_ports

_SPACE = "http://www.accellera.org/XMLSchema/IPXACT/1685-2014"
_BITS = 32  # width of the AXI4-Lite bus; no register of the description is wider


def ipxact(top: AddrmapNode, emitted: Emitted, p: CoreParams | MaskParams, path: Path, version: str) -> None:
    """Writes the component to `path`, with the ports of the shell and the registers of the address map `top`.

    The component has the name of the unit's module. The bus writes a register of 64 bits in halves, so it becomes two
    registers: `<name>_low` and, if it has a field there, `<name>_high`. A window becomes an array of registers,
    because IP-XACT has no window in an address block.
    """
    printer, top.env.msg.printer = top.env.msg.printer, _Quiet()
    try:
        IPXACTExporter(vendor="openvrex", library="ip", version=version).export(top, str(path))
    finally:
        top.env.msg.printer = printer
    ET.register_namespace("ipxact", _SPACE)
    ET.register_namespace("xsi", "http://www.w3.org/2001/XMLSchema-instance")
    tree = ET.parse(path)
    _find(tree.getroot(), "name").text = emitted.top
    component, block = tree.getroot(), _find(tree.getroot(), "memoryMaps", "memoryMap", "addressBlock")
    _find(block, "width").text = str(_BITS)
    _halve(block)
    block.extend(_window(n) for n in top.children() if isinstance(n, MemNode))
    buses, at = interfaces(emitted, p), [child.tag for child in component].index(f"{{{_SPACE}}}memoryMaps")
    memory = _find(component, "memoryMaps", "memoryMap", "name").text
    spaces = [b for b in buses if b.master and b.kind == "aximm"]
    component[at:at] = [
        _element("busInterfaces", *(_interface(b, memory) for b in buses)),
        _element("addressSpaces", *map(_address_space, spaces)),
    ]
    component.extend([_model(emitted), _file_sets(emitted)])
    ET.indent(tree)
    tree.write(path, encoding="UTF-8", xml_declaration=True)


class _Quiet(MessagePrinter):
    """Drops the exporter's warnings of windows, which `ipxact` adds itself."""

    def print_message(self, *_: object) -> None:
        pass


def _element(tag: str, *inner: ET.Element | str | int, **attributes: str) -> ET.Element:
    """An IP-XACT element with inner elements or a text."""
    element = ET.Element(f"{{{_SPACE}}}{tag}", attributes)
    for part in inner:
        if isinstance(part, ET.Element):
            element.append(part)
        else:
            element.text = str(part)
    return element


def _find(element: ET.Element, *tags: str) -> ET.Element:
    """The first inner element on a path of tags."""
    return element.find("/".join(f"{{{_SPACE}}}{tag}" for tag in tags))


def _halve(parent: ET.Element) -> None:
    """Replaces each register that is wider than the bus by two."""
    for index, child in reversed(list(enumerate(parent))):
        if child.tag == f"{{{_SPACE}}}registerFile":
            _halve(child)
        elif child.tag == f"{{{_SPACE}}}register" and int(_find(child, "size").text) > _BITS:
            halves = [_half(child, 0), _half(child, 1)]
            parent[index : index + 1] = [half for half in halves if half.find(f"{{{_SPACE}}}field") is not None]


def _half(register: ET.Element, upper: int) -> ET.Element:
    """The lower or upper word of a register, with its own fields."""
    half = deepcopy(register)
    _find(half, "name").text += "_high" if upper else "_low"
    _find(half, "addressOffset").text = f"'h{_number(_find(half, 'addressOffset')) + upper * _BITS // 8:x}"
    _find(half, "size").text = str(_BITS)
    for field in half.findall(f"{{{_SPACE}}}field"):
        offset = _find(field, "bitOffset")
        if _number(offset) // _BITS == upper:
            offset.text = str(_number(offset) % _BITS)
        else:
            half.remove(field)
    return half


def _number(element: ET.Element) -> int:
    """The number in an element, decimal or hexadecimal."""
    return int(element.text[2:], 16) if element.text.startswith("'h") else int(element.text)


def _window(window: MemNode) -> ET.Element:
    """A window as an array of registers."""
    bits = window.get_property("memwidth")
    field = (_element("bitOffset", 0), _element("bitWidth", bits), _element("access", "write-only"))
    return _element(
        "register",
        _element("name", window.inst_name),
        _element("description", window.get_property("desc")),
        _element("dim", window.get_property("mementries")),
        _element("addressOffset", f"'h{window.address_offset:x}"),
        _element("size", bits),
        _element("field", _element("name", "value"), *field),
    )


def _interface(bus: Interface, memory: str) -> ET.Element:
    """A bus interface: its definition, the port of each signal, and the memory map or address space behind it."""
    of = {"vendor": VENDOR, "library": bus.library, "version": VERSION}
    maps = [
        _element(
            "portMap",
            _element("logicalPort", _element("name", signal)),
            _element("physicalPort", _element("name", port)),
        )
        for signal, port in bus.ports.items()
    ]
    mapped = bus.kind == "aximm"
    if bus.master:
        role = _element("master", *([_element("addressSpaceRef", addressSpaceRef=bus.name)] if mapped else []))
    else:
        role = _element("slave", *([_element("memoryMapRef", memoryMapRef=memory)] if mapped else []))
    parameters = [_element("parameter", _element("name", k), _element("value", v)) for k, v in bus.parameters.items()]
    abstraction = _element("abstractionRef", name=f"{bus.kind}_rtl", **of)
    return _element(
        "busInterface",
        _element("name", bus.name),
        _element("busType", name=bus.kind, **of),
        _element("abstractionTypes", _element("abstractionType", abstraction, _element("portMaps", *maps))),
        role,
        _element("parameters", *parameters),
    )


def _address_space(bus: Interface) -> ET.Element:
    """The address space of a master."""
    return _element(
        "addressSpace",
        _element("name", bus.name),
        _element("range", f"'h{1 << bus.parameters['ADDR_WIDTH']:x}"),
        _element("width", bus.parameters["DATA_WIDTH"]),
    )


def _model(emitted: Emitted) -> ET.Element:
    """The model: a Verilog view with the top module's ports."""
    view = _element(
        "view",
        _element("name", "verilog"),
        _element("componentInstantiationRef", "verilog"),
    )
    instantiation = _element(
        "componentInstantiation",
        _element("name", "verilog"),
        _element("language", "verilog"),
        _element("moduleName", top_module(emitted)),
        _element("fileSetRef", _element("localName", "rtl")),
        _element("fileSetRef", _element("localName", "constraints")),
    )
    ports = (_port(name, *of) for name, of in top_ports(emitted).items())
    return _element(
        "model", _element("views", view), _element("instantiations", instantiation), _element("ports", *ports)
    )


def _port(name: str, direction: str, width: int) -> ET.Element:
    """A port of the top module."""
    vector = _element("vector", _element("left", width - 1), _element("right", 0))
    bits = [_element("vectors", vector)] if width > 1 else []
    return _element("port", _element("name", name), _element("wire", _element("direction", direction), *bits))


def _file_sets(emitted: Emitted) -> ET.Element:
    """The files of the package: Verilog and SDC."""
    top = top_module(emitted)
    sets = {
        "rtl": [(emitted.file, _kind(emitted.file)), (f"{top}.v", "verilogSource")],
        "constraints": [(f"{top}.sdc", "SDC")],
    }
    for name, text in (("memories.v", emitted.memories), ("assertions.sv", emitted.assertions)):
        if text:  # black boxes, which macros replace; rules to bind
            sets[name.partition(".")[0]] = [(f"{emitted.top}_{name}", _kind(name))]
    return _element(
        "fileSets",
        *(
            _element(
                "fileSet",
                _element("name", name),
                *(_element("file", _element("name", file), _element("fileType", kind)) for file, kind in files),
            )
            for name, files in sets.items()
        ),
    )


def _kind(file: str) -> str:
    return "systemVerilogSource" if file.endswith(".sv") else "verilogSource"
