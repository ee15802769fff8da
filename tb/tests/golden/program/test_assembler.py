"""The assembler: text and words are two forms of one program, and every error names its line and the fix."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.arithmetic.vector import FOREVER, Bank
from openvrex.golden.arithmetic.vector import Instruction as Vector
from openvrex.golden.function_params import ParamError
from openvrex.golden.program.assembler import AssemblyError, assemble, bf16_text, disassemble, statement
from openvrex.golden.program.isa import HEADER, PAYLOAD, Instruction, LxeFormat, Opcode, decode, encode, vector
from openvrex.golden.program.lxe_model import Lxe, Memory, Region
from openvrex.hdl.params import preset
from openvrex.tb.library.runner import ROOT
from tb.tests.commands import refuses, tried, vrex

FMT = LxeFormat(lanes=4, w_depth=16, x_depth=32, depth=16, i_depth=64)
WIDE = LxeFormat(lanes=16, w_depth=1 << 16, x_depth=1 << 16, depth=4096, i_depth=64, halves=True)


@st.composite
def instructions(draw, ops=tuple(Opcode)) -> Instruction:
    """Any instruction."""
    op = draw(st.sampled_from(ops))
    values = {}
    for name, bits in (HEADER | PAYLOAD[op]).items():
        if name != "op" and draw(st.booleans()):
            low = 1 << bits - 1 if name == "add" else 0
            values[name] = draw(st.integers(-low, (1 << bits) - 1 - low))
    return Instruction(op, values)


@settings(max_examples=100)
@given(instructions())
def test_a_word_keeps_every_field(i):
    """And nothing else: other bits of the word are zero."""
    back = decode(encode(i))
    assert back.op == i.op
    assert all(back[name] == i[name] for name in (HEADER | PAYLOAD[i.op]) if name != "op")
    assert encode(back) == encode(i) < 1 << 256


def test_an_unknown_opcode_has_no_instruction():
    with pytest.raises(ParamError, match="opcode=15: must be 0 to 10"):
        decode(15)


TRANSFER = {"base": 15, "addr": (1 << 35) - 1, "rows": 63, "words": 15, "stride": (1 << 27) - 1, "to": 999, "step": 999}
LIMITS = {
    Opcode.LOOP: {"count": (1 << 16) - 1},
    Opcode.LOAD: TRANSFER | {"target": 3},
    Opcode.STORE: TRANSFER | {"target": 3},
    Opcode.MUL: {
        "w": 99,
        "x": 99,
        "rows": 63,
        "tiles": 31,
        "chunks": 31,
        "keep": 15,
        "x_step": 999,
        "start": 1,
        "end": 1,
    },
    Opcode.VECTOR: {"keep": 15},
}
WAITERS = [Opcode.LOAD, Opcode.MUL, Opcode.VECTOR, Opcode.STORE, Opcode.RETRIEVE, Opcode.SYNC]


@st.composite
def programs(draw) -> list[Instruction]:
    """Programs that fit in `WIDE`: loops nested anyhow, semaphores of one waiter each, all of them signalled."""
    out = [Instruction(Opcode.SYNC, {"len": 1, "signal": 0xFFFF})]
    loops = []
    for _ in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from([o for o in Opcode if o not in (Opcode.HALT, Opcode.END)] + [Opcode.END] * 2))
        if (op == Opcode.LOOP and len(loops) == 4) or (op == Opcode.END and not loops):
            continue
        values = {}
        for name, bits in (HEADER | PAYLOAD[op]).items():
            if name not in ("op", "end" if op == Opcode.LOOP else "op") and draw(st.integers(0, 2)):
                low = 1 << bits - 1 if name == "add" else 0
                top = LIMITS.get(op, {}).get(name, (1 << bits) - 1 - low)
                values[name] = draw(st.integers(-low, top) | st.sampled_from([0, top]))
        who = WAITERS.index(op if op in WAITERS else Opcode.SYNC)
        values["wait"] = values.get("wait", 0) & 3 << 2 * who
        if op in (Opcode.LOAD, Opcode.STORE):
            values["addr"], values["stride"] = (32 * values.get(k, 0) for k in ("addr", "stride"))
            values["wide"] = 0 if (op, values.get("target", 0)) != (Opcode.LOAD, 3) else values.get("wide", 0)
            if values.get("target") == 1 and op == Opcode.LOAD:
                values["words"] = 0
        if op == Opcode.MUL and not (values.get("start") and values.get("end")):
            values |= {"rows": 0, "tiles": 0}
            values["len"] = values["len"] if values.get("unit") and values.get("len") else 0
        if op == Opcode.LOOP:
            loops.append(len(out))
            values["count"] = values.get("count", 0)
        out.append(Instruction(op, values))
        if op == Opcode.END:
            start = loops.pop()
            out[start] = Instruction(Opcode.LOOP, out[start].values | {"end": len(out) - 1})
    for start in reversed(loops):
        out[start] = Instruction(Opcode.LOOP, out[start].values | {"end": len(out)})
        out.append(Instruction(Opcode.END, {}))
    return [*out, Instruction(Opcode.HALT, {})]


@settings(max_examples=40)
@given(programs())
def test_text_keeps_every_word(program):
    text = disassemble(program, WIDE)
    again = assemble("\n".join(text), WIDE)
    assert again.words == [encode(i) for i in program]
    assert disassemble(again.instructions, WIDE) == text
    assert disassemble([decode(w) for w in again.words], WIDE) == text


def test_immediates_have_short_texts():
    """A decimal number where few digits give it; else its bits."""
    for bits, text in {
        0x3F00: "0.5",
        0x0000: "0.0",
        0x8000: "-0.0",
        0x4049: "3.14",
        0xC2F7: "-123.5",
        0x0080: "1.18e-38",
        0x7F7F: "3.39e+38",
        0x7F80: "0x7f80",
        0xFFC1: "0xffc1",
        0x0001: "0x0001",
    }.items():
        assert statement(vector(Vector(imm_c=bits, keep=3)), FMT) == f"vector imm_c={text}".replace(" imm_c=-0.0", "")
    for bits in range(0, 1 << 16, 61):
        text = bf16_text(bits)
        assert len(text) <= 10
        assert (int(text, 16) if "x" in text else to_bf16(np.float64([float(text)])).view(np.uint16)[0]) == bits


def one(line: str) -> Instruction:
    """The instruction of a line."""
    return assemble(f"sync len=r1 signal=0\n{line}\nhalt", FMT).instructions[1]


def test_values():
    """Counts, defaults, enumerations, numbers, expressions."""
    i = one("vector a=STREAM b=BANK words=3 write=B|C post=EXP imm_c=-0.5 span_a=2 source=LOAD wide=1")
    assert i.vector == Vector(
        a=1, b=0, words=2, keep=3, write=Bank.B | Bank.C, post=4, imm_c=0xBF00, span_a=2, wide=1, span_b=FOREVER
    )
    assert i["source"] == 1
    assert one("vector imm_a=0x8001 imm_b=1 imm_c=1//3*0.25")["imm_a"] == 0x8001
    assert one("vector imm_b=3").vector.imm_b == 0x4040
    assert one("LOAD words=3 rows=2 target=X").values == {"target": 2, "rows": 1, "words": 2, "stride": 24, "step": 3}
    assert one("store words=3 wide=1")["stride"] == 48
    assert one("mul chunks=2 keep=1").values == {"chunks": 1, "start": 1, "end": 1, "x_step": 2}
    assert one("load words=(LANES+WORD-4)//2 stride=1<<4|8")["words"] == 3
    assert one("load stride=1<<4|8")["stride"] == 24
    assert one("sync signal=1,3,0")["signal"] == 11
    assert one("loop len=r7 add=-5 unit=1\nend").values == {"len": 7, "add": -5, "unit": 1, "end": 2}
    assert one("retrieve action=CLUSTER to=r3 level=r4 shift=6").values == {"to": 3, "level": 4, "shift": 6}


def test_names_and_comments():
    text = """
    const N=2 M=N*3 HALF=0.5    ; numbers
    sem a d=1 b c               ; the lowest free number, or a given one
    reg p=r5
    set to=p imm=M ; comment
    ; nothing

    sync signal=a,c
    vector imm_b=HALF
    halt
    """
    program = assemble(text, FMT)
    names = {"LANES": 4, "WORD": 8, "N": 2, "M": 6, "HALF": 0.5, "a": 0, "d": 1, "b": 2, "c": 3, "p": "r5"}
    assert program.symbols == names
    assert program.lines == [5, 8, 9, 10]
    assert [i["signal"] for i in program.instructions] == [0, 9, 0, 0]
    assert program.instructions[0].values == {"to": 5, "imm": 6}
    assert program.instructions[2].vector.imm_b == 0x3F00


WRONG = {
    "lod to=r1": "unknown opcode lod: use one of halt, set, add, loop",
    "load imm=3": "unknown field imm: load has wait, signal, len, add, unit, ",
    "end end=3": "unknown field end: end has wait",
    "loop count=1 end=3": "unknown field end: loop has wait, signal, len, add, unit, ",
    "set to=r16": "to=r16: unknown register: use r0 to r15",
    "set to=q": "to=q: unknown register: use r0 to r15",
    "load base=1": "base=1: unknown register",
    "set to=r1 imm=1<<40": "imm=1<<40: 1099511627776 does not fit, must be 0 to 1099511627775",
    "set to=r1 imm=-1": "imm=-1: -1 does not fit, must be 0",
    "load rows=0": "rows=0: 0 does not fit, must be 1 to 65536",
    "load len=r1 add=32768": "add=32768: 32768 does not fit, must be -32768 to 32767",
    "load rows": "rows has no value: write rows=value, without blanks",
    "load rows= 3": "rows has no value",
    "load rows=2 rows=2": "rows is given twice: leave one out",
    "load rows=2.5": "rows=2.5: must be an integer",
    "load rows=two": "rows=two: two is unknown: use one of LANES, WORD, or define it: const two=...",
    "load target=Q": "target=Q: Q is unknown: use one of W, COLUMN, X, VECTOR",
    "vector write=D": "write=D: D is unknown: use one of NONE, A, B, C",
    "load rows=1+": "rows=1+: cannot be read (invalid syntax",
    "load rows=1%2": "rows=1%2: cannot be read: use numbers, names, + - * // << | and brackets",
    "load rows=1//0": "rows=1//0: cannot be read (integer",
    "load rows=1<<-1": "rows=1<<-1: cannot be read (negative shift count)",
    "load rows='a'": "rows='a': cannot be read: use numbers",
    "vector imm_a=x": "imm_a=x: x is unknown",
    "vector imm_a=0x10000": "imm_a=0x10000: 65536 does not fit, must be 0 to 65535",
    "load wait=full": "wait=full: unknown semaphore: use 0 to 15, or define it: sem full",
    "load wait=16": "wait=16: unknown semaphore",
    "load wait=3": "waits for semaphore 3, which nothing signals: add signal=",
    "load to=15 words=2": "to=15: words 15 to 16 are outside W of 16 words",
    "load target=X to=32": "to=32: words 32 to 32 are outside X of 32 words",
    "load rows=9 to=14": "to=14: words 14 to 16 are outside W",
    "load len=r1 to=16": "to=16: words 16 to 16 are outside W",
    "store target=X rows=5 step=8": "to=0: words 0 to 32 are outside X",
    "mul tiles=9 chunks=2": "w=0: words 0 to 17 are outside W",
    "mul x=30 rows=2 x_step=2": "x=30: words 30 to 32 are outside X",
    "mul keep=5": "keep=4: must be below lanes = 4",
    "vector words=17": "words 17 does not fit: at most the 16 of a bank",
    "vector addr_a=16": "addr_a=16: words 16 to 16 are outside a bank",
    "load addr=4": "addr=0x4: must be a multiple of a word's 8 bytes",
    "load base=r3 addr=12": "addr=0xc: must be a multiple",
    "load stride=4": "stride=0x4: must be a multiple",
    "load wide=1": "wide: FP32 words go between memory and VPE only",
    "mul rows=2 end=0": "a sum over several MULs (start=0 or end=0) needs one row and one tile",
    "end": "has no loop: remove it",
    "loop\nend": "gives no number of rounds: add count= or len=",
    "loop count=2": "has no end: add `end` behind its body",
    "loop count=2\n" * 5 + "end\n" * 5: "is nested too deep: at most 4 loops may be",
    "sync\n" * 63: "the program is too long: the program memory holds i_depth = 64 instructions: use loops",
    "load wait=1 signal=1\nmul wait=1": "waits for semaphore 1, as instruction 1 (LOAD) does: only one engine",
    "const 3=4": "'3' is not a name",
    "const r3=4": "'r3' is not a name: use letters, digits and _, but not r0 to r15",
    "const a": "a has no value: write a=value",
    "const a=1 a=2": "a is defined already: choose another name",
    "reg LANES=r1": "LANES is defined already",
    "reg a=17": "a=17: unknown register",
    "sem a=16": "a=16: unknown semaphore",
    "sem " + " ".join(f"s{k}" for k in range(17)): "s16: all 16 semaphores have names",
    "halt signal=1": "must not signal",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong(text):
    """The first of its lines that is wrong, or where what is missing would be."""
    with pytest.raises(AssemblyError) as e:
        assemble(f"sync len=r1\n{text}\nhalt", FMT)
    assert WRONG[text] in str(e.value)
    assert re.match(r"line \d+: ['\"]", str(e.value))
    late = {"has no end": 2, "only one engine": 3, "nested too": 6, "too long": 66}
    at = next((line for words, line in late.items() if words in str(e.value)), 2)
    assert e.value.line == at
    assert e.value.text == f"sync len=r1\n{text}\nhalt".splitlines()[at - 1]


@pytest.mark.parametrize("text", ["", "; nothing", "set to=r1\n", "halt\nset to=r1"])
def test_a_halt_is_missing(text):
    with pytest.raises(AssemblyError, match="ends without a halt: add `halt` as its last line"):
        assemble(text, FMT)


TINY = preset("tiny").core.lxe_format()
PAGE = (ROOT / "docs" / "lxe.md").read_text()
PRODUCT = (ROOT / "golden/program/product.asm").read_text()


def test_the_program_of_the_manual():
    """Assembled as it stands on the page, it multiplies, and orders all it does."""
    program = assemble(PRODUCT, TINY)
    assert program.order.problems() == []
    rng = np.random.default_rng(1)
    x, w = (to_bf16(rng.normal(size=(n, 8))) for n in (8, 16))
    memory = Memory([Region("x", 0, 0x400), Region("w", 0x1000, 0x400), Region("y", 0x2000, 0x400)])
    memory.put(0, x)
    memory.put(0x1000, w)
    Lxe(TINY, memory).run(program.instructions)
    assert np.array_equal(memory.get(0x2000, (8, 16), np.float32), dot(x, w, TINY.dot))


def test_a_third_credit_is_the_hazard_that_the_manual_tells():
    credit = "      sync signal=free\n"
    hazards = assemble(PRODUCT.replace(credit, 2 * credit, 1), TINY).order.hazards
    assert f"hazard: {hazards[0]}" in " ".join(PAGE.split())


LOAD_V = "load target=VECTOR words=6 addr=64\n"
DEADLOCKS = {
    "sem a\nsync wait=a\nload signal=a": (
        2,
        "deadlock: sequencer (line 2) waits for semaphore a: move what they wait for in front of them, and let",
    ),
    "load wait=1 signal=2\nmul wait=2 signal=1": (
        1,
        "LOAD (line 1) waits for semaphore 1; MUL (line 2) waits for semaphore 2:",
    ),
    "set to=r1\nvector a=STREAM": (2, "VECTOR (line 2) waits for 1 words of the queue of MUL words"),
    LOAD_V: (1, "LOAD (line 1) waits for room in the queue of LOAD words (4 places) for 2 more"),
    "vector v_op=STORE words=2": (1, "VECTOR (line 1) waits for room in the VPE's output (1 places) for 1 more"),
    "vector v_op=STORE": (2, "1 words are left in the VPE's output at the end: add an instruction that takes them"),
    "loop count=256\nsync signal=1\nend": (2, "signals semaphore 1 to 256: a counter has 8 bits"),
}


@pytest.mark.parametrize("text", DEADLOCKS)
def test_a_program_that_cannot_end(text):
    line, message = DEADLOCKS[text]
    with pytest.raises(AssemblyError) as e:
        assemble(f"{text}\nhalt", FMT)
    assert message in str(e.value)
    assert e.value.line == line


def test_what_is_not_played():
    """Counts from registers; programs of many rounds. Whether they end is not known."""
    assert assemble("sync len=r1\nvector a=STREAM\nhalt", FMT).order is None
    assert assemble("loop count=65535\nadd to=r1 a=r1 imm=1\nadd to=r1 a=r1 imm=1\nend\nhalt", FMT).order is None
    assert assemble("loop count=9\nadd to=r1 a=r1 imm=1\nend\nhalt", FMT).order.problems() == []


def test_places_of_the_queues():
    """Words and instructions that wait are as many as the parameters say."""
    text = LOAD_V + "vector a=STREAM source=LOAD words=6 write=B\nsync signal=1\n" + "load wait=1\n" * 3
    text += "sync signal=1\n" * 2 + "halt"
    with pytest.raises(AssemblyError, match=r"sequencer \(line 6\) waits for room in the queue of LOAD instructions"):
        assemble(text, FMT, queue=1)
    assert assemble(text, FMT, queue=2).order.problems() == []


def test_crossed_loops_have_no_text():
    loop = [Instruction(Opcode.LOOP, {"end": e, "count": 1}) for e in (2, 3)]
    end = Instruction(Opcode.END, {})
    for program in ([*loop, end, end], [end], [loop[0]]):
        with pytest.raises(ValueError, match="such a program has no text"):
            disassemble(program, FMT)


def test_command(tmp_path):
    source, out = tmp_path / "product.s", tmp_path / "product.hex"
    source.write_text(PRODUCT)
    run = vrex("asm", source, "--preset", "tiny", "-o", out, "--list")
    words = [int(line, 16) for line in out.read_text().split()]
    assert words == assemble(PRODUCT, TINY).words
    assert all(len(line) == 64 for line in out.read_text().split())
    assert "load wait=1 signal=2 base=r1 rows=4 words=2" in run.stdout
    assert "21 of 64 instructions; the program ends, and takes all words." in run.stdout
    found = json.loads(vrex("asm", source, "--preset", "tiny", "--json").stdout)
    assert [int(w, 16) for w in found["words"]] == words
    assert (found["played"], found["hazards"], found["symbols"]["weights"]) == (True, [], "r1")
    assert found["lines"][0] == 1 + PRODUCT.splitlines().index("      set  to=weights imm=0x1000")


def test_command_with_hazards_and_errors(tmp_path):
    source, out = tmp_path / "product.s", tmp_path / "product.hex"
    source.write_text(PRODUCT.replace(" wait=free", ""))
    run = vrex("asm", source, "--preset", "tiny")
    assert "hazard: instruction 7 (LOAD) and instruction 9 (MUL) both use W word 0" in run.stderr
    source.write_text("load len=r1\nhalt")
    assert "was not played" in tried("asm", source).stdout
    source.write_text("halt now")
    run = refuses("asm", source, "--preset", "tiny", "-o", out)
    assert run.stderr.startswith("error: line 1: 'halt now': unknown field now: halt has wait")
    assert not out.exists()
    source.write_text("load to=63 words=2\nhalt")
    assert "to=63: words 63 to 64 are outside W of 64 words" in tried("asm", source, "--preset", "tiny").stderr
    vrex("asm", source, "--preset", "tiny", "-p", "w_depth=128")
    assert "No such file" in tried("asm", tmp_path / "none.s").stderr


def test_functions_of_hybrid_need_the_feature():
    """Their names are known to hardware that has them alone; elsewhere their codes are numbers."""
    hybrid = replace(FMT, features="hybrid")
    for name, code in (("EXPM1", 2), ("SOFTPLUS", 3)):
        line = f"vector a=SCALAR post={name} write=C\nhalt"
        program = assemble(line, hybrid)
        assert program.instructions[0]["post"] == code
        assert f"post={name}" in disassemble(program.instructions, hybrid)[0]
        assert f"post={code}" in disassemble(program.instructions, FMT)[0]
        with pytest.raises(AssemblyError, match=f"post={name}: this hardware has no such function: add the feature"):
            assemble(line, FMT)
        assert assemble(line.replace(name, str(code)), FMT).words == program.words
