"""Assertions to `bind` to a unit's Verilog, which check a user's integration of it in their simulator."""

import re
from collections.abc import Iterator
from pathlib import Path

from openvrex.hdl.writer.modules import Inside, Pin, Writer

CHECKS = Path(__file__).with_name("assertions.sv")  # modules that check one thing each
_AXI = re.compile(r"(\w+_axi_)arvalid")
_CHANNEL = re.compile(r"(\w+_axi_(?:ar|aw|w|r|b)|\w+_axis_\w+_t|\w+_)valid")
_MANAGER = ("ar", "valid ready addr len"), ("r", "valid ready last"), ("aw", "valid ready addr len")
_MANAGER += ("w", "valid ready last"), ("b", "valid ready")


def assertions(writer: Writer, top: str, units: tuple[type, ...]) -> str:
    """SystemVerilog of all checks of a design, whose top module is `top`, and of their `bind`s.

    Streams and channels of AXI keep their offers at every unit, registers of states hold a state, and a queue whose
    user does not look at its readiness never overflows or underflows. AXI managers at the ports of `top` keep the rules
    of bursts. Clock and reset are those of each module. `units` are classes that keep the rules of streams at their
    ports, as proved; smaller parts may agree on others: a burst that has failed is withdrawn.
    """
    kinds = "|".join(re.findall(r"^module (\w+)", CHECKS.read_text(), re.M))
    found: list[str] = []
    for name, pins in writer.pins.items():
        unit = any(isinstance(origin, units) for origin in writer.inside[name].origins)
        found += _module(name, pins, writer.inside[name], unit or name == top, name == top)
    text = (
        f"// Assertions of {top}, which OpenVRex generated: compile this file beside {top}'s, with assertions on.\n"
        f"/* verilator lint_off DECLFILENAME */\n{CHECKS.read_text()}\n\n" + "\n".join(found) + "\n"
    )
    return re.sub(rf"\b({kinds})\b", rf"{top}_\1", text)


def _module(name: str, pins: list[Pin], inside: Inside, unit: bool, outer: bool) -> Iterator[str]:
    own = {pin.name: pin for pin in pins}
    if "clk" not in own:
        return
    clocked = {"clk": "clk", "rst": "rst" if "rst" in own else "1'b0"}
    for channel, valid in _channels(own) if unit else ():
        payload = _payload(own, channel, valid)
        width = sum(own[p].width for p in payload)
        ends = {"valid": valid, "ready": f"{channel}ready"}
        yield _bind(
            name, "stream_checks", channel.strip("_"), clocked | ends | {"payload": _joined(payload)}, WIDTH=width or 1
        )
    for state, (width, names) in inside.states.items():
        numbers = list(names)
        if len(numbers) == 1 << width:
            continue  # it can hold nothing else
        legal = " || ".join(f"{state} == {number}" for number in numbers)
        if numbers == list(range(len(numbers))):
            legal = f"{state} < {len(numbers)}"
        yield _bind(name, "state_checks", state, clocked | {"legal": legal})
    for kind, pairs in (("overflow", inside.overflow), ("underflow", inside.underflow)):
        for access, ready in pairs:
            none = {"overflow": "1'b0", "underflow": "1'b0"} | {kind: f"{access} && !{ready}"}
            yield _bind(name, "queue_checks", kind, clocked | none)
    for port in own if outer else ():
        if (found := _AXI.fullmatch(port)) and own[port].output and f"{found[1]}arlen" in own:
            prefix = found[1]
            pins_ = {f"{c}{word}": f"{prefix}{c}{word}" for c, words in _MANAGER for word in words.split()}
            pins_ |= {f"{c}addr": f"{prefix}{c}addr[11:0]" for c in ("ar", "aw")}
            beat = own[f"{prefix}wdata"].width // 8
            yield _bind(name, "axi_manager_checks", prefix.strip("_"), clocked | pins_, BYTES=beat)


def _channels(pins: dict[str, Pin]) -> Iterator[tuple[str, str]]:
    """Beginning of the names of every stream and AXI channel, and its `valid`."""
    for name in pins:
        found = _CHANNEL.fullmatch(name)
        if found and f"{found[1]}ready" in pins:
            yield found[1], name


def _payload(pins: dict[str, Pin], channel: str, valid: str) -> list[str]:
    """The ports that go with a `valid`."""
    longer = tuple(c for c, _ in _channels(pins) if c != channel and c.startswith(channel))
    return [
        name
        for name, pin in pins.items()
        if name.startswith(channel)
        and name != valid
        and pin.output == pins[valid].output
        and not name.startswith(longer)
    ]


def _joined(names: list[str]) -> str:
    return f"{{{', '.join(names)}}}" if len(names) > 1 else names[0] if names else "1'b0"


def _bind(module: str, kind: str, of: str, pins: dict[str, str], **sizes: int) -> str:
    parameters = f"#({', '.join(f'.{n}({v})' for n, v in sizes.items())}) " if sizes else ""
    return f"bind {module} {kind} {parameters}check_{of} ({', '.join(f'.{n}({v})' for n, v in pins.items())});"
