"""`vrex asm`: assemble a program of the LXE to hexadecimal words."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.program.assembler import Program, assemble, disassemble
from openvrex.golden.program.isa import WORD_BITS, LxeFormat
from openvrex.golden.text_files import read_text
from openvrex.scripts import console


def command(
    file: Annotated[Path, typer.Argument(help="Source of the program; docs/lxe.md describes the language.")],
    preset: console.Preset = "core",
    param: console.Param = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", parser=console.file, help="File to write: one hexadecimal word in each line, for $readmemh."
        ),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Print every instruction with its word.")] = False,
    json: console.Json = False,
) -> None:
    """Assemble a program of the LXE.

    Exit code 2 and the line where something is wrong.
    """
    p = console.params(preset, param).core
    fmt = p.lxe_format()
    try:
        source = read_text(file)
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is no text: give the source of a program") from None
    program = assemble(source, fmt, p.lxe.queue, p.lxe.words)
    if out:
        console.check_replaced(out, "-o", "words of a program", rb"[0-9a-f\n]*")
        write_atomically(out, "".join(f"{word:0{WORD_BITS // 4}x}\n" for word in program.words))
    hazards = [str(h) for h in program.order.hazards] if program.order else []
    if json:
        facts = {"instructions": len(program.words), "played": program.order is not None, "hazards": hazards}
        words = [f"{word:0{WORD_BITS // 4}x}" for word in program.words]
        console.print_json(facts | {"symbols": program.symbols, "lines": program.lines, "words": words})
        return
    if listing:
        console.out.print(table(program, fmt))
    ends = (
        "ends, and takes all words"
        if program.order
        else "was not played: its counts come from registers, or it is long"
    )
    console.out.print(f"{len(program.words)} of {fmt.i_depth} instructions; the program {ends}.", highlight=False)
    for h in hazards:
        console.err.print(f"[yellow]hazard:[/] {escape(h)}", highlight=False, soft_wrap=True)


def table(program: Program, fmt: LxeFormat) -> Table:
    """The listing: index, line of the source, disassembled instruction, word."""
    out = Table("index", "line", "instruction", "word", title="Program")
    texts = disassemble(program.instructions, fmt)
    for pc, (line, text, word) in enumerate(zip(program.lines, texts, program.words, strict=True)):
        out.add_row(str(pc), str(line), escape(text), f"{word:x}")
    return out
