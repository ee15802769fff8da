# amaranth: UnusedElaboratable=no
"""Data sheets of the manual: a unit's docstring, parameters, ports, timing and counters as Markdown."""

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from importlib import import_module

from amaranth.lib import data, wiring

from openvrex import hdl
from openvrex.golden.function_params import ParamError, ScoreFormat, described
from openvrex.hdl.docstrings import Sheet, joined, parse, prose
from openvrex.hdl.emit import ALL, component_of, params_of, unit_class
from openvrex.hdl.params import flat, named, preset
from openvrex.hdl.ports import ports
from openvrex.scripts.blocks import block_status
from openvrex.scripts.pages.state_diagram import Machine, machines, mermaid
from openvrex.tb.campaigns import plan
from openvrex.tb.library.runner import ROOT

SHOWN = ("core", "tiny")  # presets whose values stand in the table of parameters
# Classes whose docstrings belong to the data sheet of a unit: its variants.
_VARIANTS = {"wtu": ("openvrex.hdl.retrieval.wtu_exact.WtuExact", "openvrex.hdl.retrieval.wtu_buckets.WtuBuckets")}
# Classes inside of a unit whose states belong to its data sheet.
_PARTS = _VARIANTS | {"kvmu": ("openvrex.hdl.retrieval.placer.Placer",)}


def page(unit: str, picture: str = "", blocks: str = "") -> str:
    """The data sheet of `unit` as Markdown.

    picture : SVG of its waveform with a caption · blocks : SVG of its block diagram
    Raises: `ParamError` for a docstring that lacks a section.
    """
    cls = unit_class(unit)
    sheet = parse(_doc(cls))
    title = _doc(import_module(cls.__module__)).split("\n")[0].rstrip(".")
    title = re.sub(rf"(?i)^{unit.replace('_', ' ')}: ", "", title)
    out = [f"# `{unit}`: {title[0].lower() + title[1:] if title.split()[0][1:].islower() else title}", ""]
    out += [f"{_text(p)}\n" for p in sheet.lead]
    for variant in map(_named, _VARIANTS.get(unit, ())):
        out += [f"**{variant.__name__}.** {_text(' '.join(parse(_doc(variant)).lead))}\n"]
    out += [_files(cls, unit), block_status.section(unit, block_status.recorded())]
    if blocks:
        out += ["## Block diagram\n", blocks, ""]
    out += [*_machines(unit), "## Parameters\n", *_parameters(unit, sheet)]
    out += ["## Ports\n", *_members(cls, sheet), *_signals(unit)]
    if picture:
        out += ["## Waveform\n", picture, ""]
    out += ["## Timing\n", f"**Latency.** {_text(sheet.final['Latency'])}\n"]
    out += [f"**Throughput.** {_text(sheet.final['Throughput'])}\n", *_formulas(unit)]
    out += ["## Counters\n", _counters(unit), *_features(unit)]
    out += ["## Errors and source\n", f"Raises: {_text(sheet.final['Raises'])}\n", _text(sheet.final["Source"]), ""]
    return "\n".join(out)


def _doc(thing: object) -> str:
    """The docstring without its indentation; empty if there is none."""
    return inspect.getdoc(thing) or ""


def _named(name: str) -> type:
    """The class with this full name."""
    module, _, cls = name.rpartition(".")
    return getattr(import_module(module), cls)


def _text(text: str) -> str:
    """Prose of a docstring as Markdown; names of units become links."""
    return prose(text, _link)


def _link(name: str) -> str:
    for unit, (module, cls, _) in ALL.items():
        if name in (cls, f"{module}.{cls}"):
            return f"[`{name}`]({unit}.md)"
    return f"`{name}`"


def _files(cls: type, unit: str) -> str:
    own = f"{cls.__module__.replace('.', '/')}.py"
    parts = [f"Hardware `{own}`"]
    views = (("time view", f"sim/units/{unit}_time.py"), ("tests", f"tb/tests/hdl/*/test_{unit}.py"))
    parts += [f"{what} `{f.relative_to(ROOT).as_posix()}`" for what, place in views for f in ROOT.glob(place)]
    return f"{', '.join(parts)}. Generate it: `vrex generate {unit}`.\n"


def _machines(unit: str) -> Iterator[str]:
    """State diagrams of the unit and of the parts that belong to its sheet."""
    title = "## States\n"
    for made in _with_parts(unit, params_of(unit, preset(SHOWN[0]))):
        for machine in machines(made):
            yield f"{title}\n{_STATES}\n" if title else ""
            yield f"`{type(made).__name__}`, register `{machine.name}`:\n\n{mermaid(machine)}"
            title = ""


def _with_parts(unit: str, p: object) -> Iterator[wiring.Component]:
    """The unit, and the parts that belong to its sheet."""
    yield from (component_of(unit, p), *(part(p) for part in map(_named, _PARTS.get(unit, ()))))


def state_machines(unit: str, p: object) -> list[Machine]:
    """The state machines of the unit and of the parts that belong to its sheet."""
    return [machine for made in _with_parts(unit, p) for machine in machines(made)]


def _parameters(unit: str, sheet: Sheet) -> Iterator[str]:
    yield from (f"`{name}`: {_text(meaning)}{';' if name != sheet.parameters[-1][0] else ''}" for name, _, meaning
                in sheet.parameters)  # fmt: skip
    values = [params_of(unit, preset(n)) for n in SHOWN]
    linked: list[str] = []
    rows = list(_rows(ALL[unit][2].rpartition(".")[2], values, linked))
    if linked:
        yield f"\nThose of its parts: {', '.join(f'[`{u}`]({u}.md#parameters)' for u in linked)}."
    if rows:
        yield f"\n| `-p` | {' | '.join(f'`{n}`' for n in SHOWN)} | values | |"
        yield f"| --- {'| --- ' * len(SHOWN)}| --- | --- |"
        yield from rows
    yield from _derived(unit, values)
    yield "\nWhat does not fit together is refused by name.\n"


def _derived(unit: str, values: list) -> Iterator[str]:
    """The sizes that follow from the parameters, if a docstring names them."""
    classes = [unit_class(unit), *(_named(name) for name in _VARIANTS.get(unit, ()))]
    words = set(re.findall(r"\w+", " ".join(map(_doc, classes))))
    sizes = {n: p for n, p in vars(type(values[0])).items() if isinstance(p, property) and n in words}
    if sizes:
        yield f"\nSizes that follow from these:\n\n| | {' | '.join(f'`{n}`' for n in SHOWN)} | |"
        yield f"| --- {'| --- ' * len(SHOWN)}| --- |"
        for name, size in sizes.items():
            cells = " | ".join(str(getattr(v, name)) for v in values)
            yield f"| `{name}` | {cells} | {_text(joined(_doc(size)))} |"


def _rows(group: str, values: list, linked: list[str]) -> Iterator[str]:
    """One row for each parameter of a class; parts with a data sheet of their own are added to `linked`."""
    about = described(values[0])
    for name in vars(values[0]):
        own = [getattr(v, name) for v in values]
        if not is_dataclass(own[0]) or isinstance(own[0], ScoreFormat):
            key = named("" if group == "core" else group, name)
            cells = " | ".join(flat(v)[name] for v in values)
            yield f"| `{key}` | {cells} | {about[name].values} | {_text(about[name].meaning)} |"
        elif name in ALL and ALL[name][2].rpartition(".")[2] == name:
            linked.append(name)
        else:
            yield from _rows(name, own, linked)


def _members(cls: type, sheet: Sheet) -> Iterator[str]:
    yield "| port | shape | meaning |\n| --- | --- | --- |"
    for members, shape, meaning in sheet.members:
        cells = ", ".join(f"`{n.strip()}`" for n in members.split(","))
        yield f"| {cells} | {_text(shape)} | {_text(meaning)} |"
    yield "\n`clk` and a synchronous `rst`, high for a cycle at least, belong to every unit.\n"
    names = [n for _, shape, _ in sheet.members for n in re.findall(r"`([\w.]*_layout)`", shape)]
    for name in dict.fromkeys(names):
        yield f"- `{name}`: {_text(joined(_doc(_layout(name, cls.__module__))))}"


def _layout(name: str, module: str) -> Callable:
    """The function with this name: in the module that it names, in the unit's own, or the only one in `hdl`."""
    path, _, name = name.rpartition(".")
    first = f"openvrex.{path}" if path else module
    for own in (first, *(m.name for m in pkgutil.walk_packages(hdl.__path__, "openvrex.hdl."))):
        if hasattr(found := import_module(own), name):
            return getattr(found, name)
    raise ParamError(f"docstring={module}: names `{name}`, which is no function of hdl")


def _signals(unit: str) -> Iterator[str]:
    """Every port of the Verilog at the first shown preset; structs with the bits of their fields."""
    made = component_of(unit, params_of(unit, preset(SHOWN[0])))
    members = made.signature.members.items()
    fields = {n: m.shape for n, m in members if m.is_port and isinstance(m.shape, data.StructLayout)}
    yield f'\n??? note "Ports of the Verilog, preset `{SHOWN[0]}`"\n'
    yield "    | port | direction | bits | fields, lowest first |\n    | --- | --- | --- | --- |"
    for port in ports(made):
        yield f"    | `{port['name']}` | {port['dir']} | {port['width']} | {_fields(fields.get(port['name']))} |"
    yield ""


def _fields(layout: object) -> str:
    """The fields of a struct with their bits; many fields of one width (counters) are only counted."""
    if not isinstance(layout, data.StructLayout):
        return ""
    parts = [(name, f.offset, f.width) for name, f in layout]
    if len(parts) > 8 and len({width for *_, width in parts}) == 1:
        return f"{len(parts)} of {parts[0][2]} bits"
    return ", ".join(f"`{n}` {o + w - 1}:{o}" if w > 1 else f"`{n}` {o}" for n, o, w in parts)


def _formulas(unit: str) -> Iterator[str]:
    yield f"`timing` of the manifest, preset `{SHOWN[0]}`:\n\n| | |\n| --- | --- |"
    formulas = unit_class(unit).timing(params_of(unit, preset(SHOWN[0])))
    yield from (f"| {name} | `{formula}` |" for name, formula in formulas.items())
    yield ""


def _counters(unit: str) -> str:
    names = ", ".join(f"`{n}`" for n in component_of(unit, params_of(unit, preset(SHOWN[0]))).counters())
    return f"`perf`, 32 bits each, in this order: {names}.\n" if names else "None.\n"


def _features(unit: str) -> Iterator[str]:
    features = [f for f in plan.load() if f.unit == unit]
    if features:
        yield "## Verified features\n"
        yield "From `tb/campaigns/plan.toml`; `vrex verify --plan` says what the last test run came to"
        yield "([Verification](../verification.md)).\n"
        yield "| stage | feature | shown by |\n| --- | --- | --- |"
        for f in features:
            tests = ", ".join(f"`{file}::{test}`" if file != unit else f"`{test}`" for file, test in f.evidence)
            yield f"| {f.stage} | {_text(f.name)} | {tests} |"
        yield ""


def index(*groups: dict) -> str:
    """The page that lists the data sheets: units that stand alone, then the blocks of a core."""
    titles = ("Units, which run on a trace alone", "Blocks of a core, IP blocks, systems")
    out = ["# Data sheets\n", _INDEX]
    for title, units in zip(titles, groups, strict=True):
        out.append(f"## {title}\n\n| unit | |\n| --- | --- |")
        for unit in units:
            out.append(f"| [`{unit}`]({unit}.md) | {_text(parse(_doc(unit_class(unit))).lead[0])} |")
        out.append("")
    return "\n".join(out)


_STATES = f"""Derived from the design at preset `{SHOWN[0]}`, with the conditions as the source states them. A branch of
an `If` counts only where the branches before it do not, and a later assignment overrides an earlier one. An arrow
without a condition is taken unless another one is. "any state" stands where the condition does not depend on the state.
"""
_INDEX = """Made from the docstrings, parameter classes and signatures in `hdl/` when this manual is built; a unit's
sheet for parameters of your own is the `manifest.json` beside its Verilog.

All units have one clock `clk` and one synchronous reset `rst`, active high. A reset of one cycle is enough: a unit that
then sets itself up, or clears protected memories (`reset_cycles` of the manifest), is not ready meanwhile. After it no
output is unknown, but for what stands beside a `valid` that is low.

A stream `s` is `s_valid` and a port for each field of its payload, such as `s_hash`, from its source, and `s_ready`
from its sink. A beat is handed over in a cycle in which `valid` and `ready` are high; once `valid` is high, it and the
payload hold until then. `valid` never waits for `ready`. A payload that is a number is `s_payload`. The manifest names
each port's stream, and its lowest bit in the payload. `perf` is a struct of 32-bit counters
that wrap.

Shapes: `In` and `Out` as the unit sees them; `n_ctx`, `clusters` and the like are parameters.
"""
