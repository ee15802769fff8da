"""Operations of MLIR as objects, and their text.

A `Result` knows the operation that yields it: what is asked of one is never read out of text. Only `text` prints, in
MLIR's generic form, which is the same for every operation:

    %3 = "comb.extract"(%1) {lowBit = 2 : i32} : (i8) -> (i4)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Number(NamedTuple):
    """An integer as an attribute."""

    value: int
    width: int = 32


class Literal(str):
    """An attribute that is MLIR's text itself."""


Attribute = Number | str | tuple  # of attributes


@dataclass(eq=False, slots=True)
class Result:
    """What an operation yields, or an input of a module.

    name : in the Verilog, "" if it has none · place : it is a declaration, or bits of one, that can be assigned
    depth : words of an array, 0 of a number · op : the operation; `None` of an input
    """

    width: int
    name: str = ""
    place: bool = False
    depth: int = 0
    op: "Op | None" = None

    @property
    def type(self) -> str:
        """Its type in MLIR."""
        inner = f"uarray<{self.depth}xi{self.width}>" if self.depth else f"i{self.width}"
        return f"!hw.inout<{inner}>" if self.place else inner

    @property
    def known(self) -> int | None:
        """The number that it is; `None` if it is no constant."""
        op = self.op
        while op is not None and op.kind == "hw.wire":
            op = op.operands[0].op
        return op.attributes["value"].value if op is not None and op.kind == "hw.constant" else None


@dataclass(eq=False, slots=True)
class Op:
    """An operation.

    regions : operations in it, `None` of a region without a block · inputs : of its first region
    source : file and line of the statement that made it
    """

    kind: str
    operands: Sequence[Result] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    results: Sequence[Result] = ()
    regions: Sequence[list["Op"] | None] = ()
    inputs: Sequence[Result] = ()
    source: tuple[str, int] | None = None

    def __post_init__(self):
        for result in self.results:
            result.op = self


def walk(ops: Iterable[Op]) -> Iterator[Op]:
    """Operations and all those in them."""
    for op in ops:
        yield op
        for region in op.regions:
            yield from walk(region or ())


def text(ops: Iterable[Op]) -> str:
    """The text of operations; a name in the Verilog is an attribute there."""
    names: dict[Result, str] = {}
    out: list[str] = []

    def of(results: Iterable[Result]) -> str:
        return ", ".join([names.setdefault(x, f"%{len(names)}") for x in results])

    def add(op: Op) -> None:
        out.append(f'{of(op.results)}{" = " if op.results else ""}"{op.kind}"({of(op.operands)})')
        for i, region in enumerate(op.regions):
            out.append(", {" if i else "({")
            if region is not None:
                inputs = [f"{of([x])}: {x.type}" for x in op.inputs] if i == 0 else []
                out.append(f"^bb0({', '.join(inputs)}):" if inputs else "^bb0:")
                for inner in region:
                    add(inner)
            out.append("}")
        attributes = [f"name = {_attribute(x.name)}" for x in op.results if x.name]
        attributes += [f"{key} = {_attribute(value)}" for key, value in op.attributes.items()]
        types = [", ".join([x.type for x in results]) for results in (op.operands, op.results)]
        place = f" loc({_attribute(op.source[0])}:{op.source[1]}:0)" if op.source else ""
        out.append(f"{')' if op.regions else ''}{{{', '.join(attributes)}}} : ({types[0]}) -> ({types[1]}){place}")

    for op in ops:
        add(op)
    return "\n".join(out)


def _attribute(value: Attribute) -> str:
    if isinstance(value, Number):
        return f"{value.value} : i{value.width}"
    if isinstance(value, Literal):
        return value
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\0A")
        return f'"{escaped}"'
    return f"[{', '.join(map(_attribute, value))}]"
