"""Writes the data sheet of an IP package in Markdown, with every number at the package's own parameters."""

import inspect
from collections import Counter
from collections.abc import Iterator

from openvrex.hdl.docstrings import parse, prose
from openvrex.hdl.emit import Emitted, unit_class
from openvrex.hdl.header import origin
from openvrex.hdl.memory_test import MEANING
from openvrex.hdl.params import CoreParams, MaskParams, listed
from openvrex.hdl.shells.register_block import RDL
from openvrex.ip.shell import interfaces, memory_test_ports, top_module, top_ports


def sheet(emitted: Emitted, p: CoreParams | MaskParams, command: str) -> str:
    """Text of the data sheet: interfaces, ports, payload fields, memories, registers, timing, counters, parameters.

    command : that writes the package
    """
    unit, manifest = emitted.manifest["unit"], emitted.manifest
    doc = parse(inspect.getdoc(unit_class(unit)))
    clears = (
        f" `status.resets` stays high for {n} more, in which memories are cleared."
        if (n := manifest["reset_cycles"]) > 1
        else ""
    )
    parts = [
        f"# `{top_module(emitted)}`\n",
        f"`{emitted.file}`: SHA-256 `{manifest['sha256']}`.\n",
        *(f"{line.strip()}  " for line in origin(command)),
        "",
        *(f"{prose(text)}\n" for text in doc.lead),
        "## Interfaces\n",
        *(f"- `{names}`: {prose(meaning)}" for names, _, meaning in doc.members),
        "\nAll interfaces belong to the clock `aclk`.\n",
        *_table(("interface", "definition", "role", "parameters"), _interfaces(emitted, p)),
        f"`aresetn` is synchronous and active low; one cycle suffices.{clears}\n",
        "## Ports\n",
        *_table(("port", "direction", "bits"), ((f"`{n}`", d, w) for n, (d, w) in top_ports(emitted).items())),
        *(f"- `{name}`: {MEANING[name]}" for name in memory_test_ports(emitted)),
        *_fields(manifest["ports"]),
        *_memories(manifest["memories"]),
        "## Registers\n",
        f"[Page to read](registers.html), [SystemRDL]({RDL.name}), [C header]({unit}.h), [IP-XACT]({emitted.top}.xml)."
        + (f" Tables in memory: [C header]({unit}_tables.h)." if isinstance(p, CoreParams) else "")
        + "\n",
        "## Timing\n",
        f"**Latency.** {prose(doc.final['Latency'])}\n",
        f"**Throughput.** {prose(doc.final['Throughput'])}\n",
        "Cycles, in words and numbers of these parameters; names stand for what depends on data.\n",
        *_table(("", "cycles"), ((f"`{name}`", formula) for name, formula in manifest["timing"].items())),
        "## Counters\n",
        f"{', '.join(f'`{name}`' for name in manifest['counters'])}: registers `perf.<name>`.\n",
        "## Parameters\n",
        *_table(("parameter", "value", "meaning"), _parameters(p)),
        "## Source\n",
        f"{prose(doc.final['Source'])}\n",
    ]
    return "\n".join(parts)


def _table(head: tuple[str, ...], rows: Iterator[tuple]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield f"| {' | '.join(head)} |\n|{' --- |' * len(head)}"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)
    yield ""


def _interfaces(emitted: Emitted, p: CoreParams | MaskParams) -> Iterator[tuple]:
    """A row for each bus interface."""
    for bus in interfaces(emitted, p):
        values = ", ".join(f"{name} {value}" for name, value in bus.parameters.items())
        yield f"`{bus.name}`", bus.kind, "master" if bus.master else "slave", values


def _fields(ports: list[dict]) -> Iterator[str]:
    """The table of payload fields: the bits of each port in which they lie."""
    rows = [(f"`{port['name']}`", f"`{f['name']}`", f["offset"], f["width"])
            for port in ports for f in port.get("fields", ())]  # fmt: skip
    if rows:
        yield "## Fields of payloads\n"
        yield from _table(("port", "field", "lowest bit", "bits"), iter(rows))


def _memories(memories: list[dict]) -> Iterator[str]:
    """The table of memories. Equal memories share a row; `manifest.json` lists each with its place."""
    names = ("user", "module", "words", "bits", "lanes", "ports", "protect")
    counts = Counter(tuple(memory[name] for name in names) for memory in memories)
    total = sum(memory["words"] * memory["bits"] for memory in memories)
    yield "## Memories\n"
    yield f"{len(memories)} memories, {total:,} bits; `manifest.json` names each by its place in the hierarchy.\n"
    rows = ((f"`{user}`", f"`{module}`" if module else "", *rest, n) for (user, module, *rest), n in counts.items())
    yield from _table(("in", "module", "words", "bits", "lanes", "ports", "check bits", "number"), rows)


def _parameters(p: object) -> Iterator[tuple]:
    """A row for each parameter."""
    return ((f"`{name}`", word, prose(own.meaning)) for name, (word, own) in listed(p).items())
