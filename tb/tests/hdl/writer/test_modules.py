"""What the writer makes of each construct, the names and comments that it keeps, and what it refuses."""

import re
import runpy
from pathlib import Path

import pytest
from amaranth import (
    Array,
    Cat,
    ClockDomain,
    ClockSignal,
    Const,
    Instance,
    Module,
    Mux,
    ResetSignal,
    Signal,
    Value,
    signed,
)
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from openvrex.hdl import writer
from openvrex.hdl.writer.designs import elaborated
from openvrex.hdl.writer.modules import Writer
from openvrex.hdl.writer.names import KEYWORDS, Names, legal
from openvrex.hdl.writer.variables import WriterError

FOLDER = Path(writer.__file__).parent


class Made(wiring.Component):
    """A component of this test.

    What follows stays out of the Verilog.
    """

    def __init__(self, members: dict, build):
        super().__init__(members)
        self.build = build

    def elaborate(self, platform):
        m = Module()
        self.build(m, self, platform)
        return m


def written(build, **members) -> str:
    """All modules of a component, which is `top`."""
    own = Writer()
    own.add(elaborated(Made(members, build), "top"), "top")
    return own.verilog()


def text(build, **members) -> str:
    """The module `top`, without its ports and its head."""
    return re.search(r"(?s)^module top\(.*?\n\);\n(.*?)endmodule", written(build, **members), re.M)[1]


def lines(*expected: str) -> str:
    return "\n".join(expected)


def test_a_register_with_enable():
    def build(m, c, _):
        held = Signal(4, init=5)  # keeps the last one
        with m.If(c.en):
            m.d.sync += held.eq(c.i)
        m.d.comb += c.o.eq(held)

    assert lines(
        "  always @(posedge clk) begin",
        "    if (rst)",
        "      held <= 4'h5;",
        "    else if (en)",
        "      held <= i;",
        "  end // always @(posedge)",
    ) in (found := text(build, i=In(4), en=In(1), o=Out(4)))
    assert "  reg  [3:0] held;  // keeps the last one\n" in found


def test_a_clock_that_a_module_only_hands_on():
    """The module has an instance in a domain whose clock copies that of the design, and no register of its own."""

    def build(m, c, _):
        m.domains.inner = ClockDomain("inner", local=True)
        m.d.comb += [ClockSignal("inner").eq(ClockSignal()), ResetSignal("inner").eq(ResetSignal())]
        m.submodules.below = below = Module()
        below.submodules.box = Instance("box", i_clk=ClockSignal("inner"), i_d=c.i, o_q=c.o)
        held = Signal()
        m.d.inner += held.eq(c.i)
        m.d.comb += c.p.eq(held)

    found = written(build, i=In(1), o=Out(1), p=Out(1))
    assert re.search(r"module top__below\(\s+input +clk,", found)
    assert ".clk (clk)" in found.partition("module top__below(")[2]


def test_a_register_without_reset():
    def build(m, c, _):
        held = Signal(4, reset_less=True)
        m.d.sync += held.eq(c.i)
        m.d.comb += c.o.eq(held)

    found = text(build, i=In(4), o=Out(4))
    assert "  always @(posedge clk)\n    held <= i;\n" in found
    assert "  wire       unused = rst;\n" in found


def test_a_state_machine():
    def build(m, c, _):
        with m.FSM() as fsm:
            with m.State("IDLE"):
                with m.If(c.go):
                    m.next = "RUN"
            with m.State("RUN"):
                m.next = "IDLE"
        m.d.comb += c.busy.eq(fsm.ongoing("RUN"))

    found = text(build, go=In(1), busy=Out(1))
    assert "  localparam [0:0] IDLE = 0;\n  localparam [0:0] RUN = 1;\n" in found
    assert "fsm_state <= IDLE;" in found
    assert re.search(r"case \(fsm_state\)\n +IDLE: begin\n +if \(go\)\n +fsm_state <= RUN;", found)
    assert "assign busy = fsm_state == RUN;" in found


def test_members_of_an_enumeration_have_names():
    """In comparisons, choices and assignments, also of a field; a name that is taken goes with the variable's."""

    class Kind(enum.Enum, shape=2):
        READ = 0
        WRITE = 1
        BOTH = 2

    class Way(enum.Enum, shape=2):
        READ = 1
        NONE = 0

    layout = data.StructLayout({"kind": Kind, "way": Way})

    def build(m, c, _):
        held = Signal(Kind)
        m.d.sync += held.eq(Mux(c.go, Kind.WRITE, Mux(c.i.kind == Kind.BOTH, Kind.READ, held)))
        m.d.comb += [c.o.eq(Mux(held == Kind.READ, 1, 2)), c.same.eq(c.i.way != Way.READ)]

    found = text(build, i=In(layout), go=In(1), o=Out(2), same=Out(1))
    assert "assign o = held == READ ? 2'h1 : 2'h2;" in found
    assert re.search(r"held <= go \? WRITE : i_kind == BOTH \? READ : held;", found)
    assert "assign same = i_way != I_WAY_READ;" in found


def test_states_are_cases():
    def build(m, c, _):
        with m.FSM():
            for i in range(3):
                with m.State(f"S{i}"):
                    m.d.comb += c.o.eq(i)
                    m.next = f"S{(i + 1) % 3}"

    found = text(build, o=Out(2))
    assert (
        lines("    case (fsm_state)", "      S0:", "        o_c = 2'h0;", "      S1:", "        o_c = 2'h1;") in found
    )
    assert "fsm_state <= S1;" in found


def test_a_struct_is_its_fields():
    layout = data.StructLayout({"hash": 4, "token": 3, "place": data.StructLayout({"row": 2, "wire": 1})})

    def build(m, c, _):
        held = Signal(layout)
        m.d.sync += held.eq(c.i.payload)
        m.d.comb += [c.i.ready.eq(1), c.o.eq(held.token), c.row.eq(held.place.row)]

    found = text(build, i=In(stream.Signature(layout)), o=Out(3), row=Out(2))
    assert "held_token <= i_token;" in found
    assert "held_place_row <= i_place_row;" in found
    assert "held_hash" not in found  # nothing reads it


def test_a_module_that_is_written_elsewhere_is_an_instance():
    """With its parameters; two of one kind are of one module."""

    def build(m, c, _):
        for i, depth in enumerate((16, 8)):
            read = Signal(8, name=f"read{i}")
            pins = {"i_clk": ClockSignal(), "i_a": c.a[i:], "o_q": read}
            m.submodules[f"words{i}"] = Instance("ram", p_WIDTH=8, p_DEPTH=depth, **pins)
            m.d.comb += c.o.word_select(i, 8).eq(read)

    found = text(build, a=In(4), o=Out(16))
    assert "  ram #(\n    .WIDTH(8),\n    .DEPTH(16)\n  ) words0 (\n    .clk (clk),\n    .a   (a),\n" in found
    assert ".DEPTH(8)\n  ) words1 (" in found


def test_a_design_that_others_have_is_written_once():
    def inner(m, c, _):
        m.d.comb += c.o.eq(~c.i)

    def outer(m, c, _):
        for i in range(2):
            read = Signal(name=f"read{i}")
            m.submodules[f"twin{i}"] = Instance("inner", i_i=c.i[i], o_o=read)
            m.d.comb += c.o[i].eq(read)

    own = Writer()
    own.add(elaborated(Made({"i": In(1), "o": Out(1)}, inner), "inner"), "inner")
    own.add(elaborated(Made({"i": In(2), "o": Out(2)}, outer), "top"), "top")
    assert re.findall(r"^module (\w+)", own.verilog(), re.M) == ["top", "inner"]
    assert own.instances["top"] == {f"twin{i}": (f"twin{i}", "inner") for i in range(2)}


def test_a_queue_has_an_array():
    def build(m, c, _):
        m.submodules.queue = queue = SyncFIFOBuffered(width=8, depth=5)
        m.d.comb += [queue.w_data.eq(c.i), queue.w_en.eq(c.en), queue.r_en.eq(1), c.o.eq(queue.r_data)]

    found = written(build, i=In(8), en=In(1), o=Out(8))
    assert re.search(r"reg +\[7:0\] +storage\[0:3\];", found)
    assert "storage[w_port_addr] <= w_port_data;" in found
    assert "  top__queue queue (" in found


def expressions(a: Signal, b: Signal) -> list[tuple[Value, str]]:
    """Values, and what the writer makes of them."""
    return [
        (a + b, "a + b"),  # modulo the target: no bit is dropped
        (a - b, "a - b"),
        (Mux(a < b, a, b), "a < b ? a : b"),
        (~(a == b), "{7'h0, a != b}"),
        (a & Const(0xFF, 8), "a"),
        (Cat(a[4:], b[:4]), "{b[3:0], a[7:4]}"),
        (a >> b[:2], "a >> b[1:0]"),
        (a.word_select(b[0], 4), "{4'h0, a[{b[0], 2'h0} +: 4]}"),
        (a.as_signed() >> 2, "{{2{a[7]}}, a[7:2]}"),
        (a.any(), "{7'h0, |a}"),
        (a >= 0, "8'h1"),  # always true
        (a > 255, "8'h0"),
        (a - a, "8'h0"),
        (a[:4] ^ a[:4], "8'h0"),
        (a & ~a, "8'h0"),
        (a | ~a, "8'hFF"),
        ((a + b) | (a + b), "a + b"),
        (a & 0, "8'h0"),
        (a | 0xFF, "8'hFF"),
        (a ^ 0xFF, "~a"),
        (a * 0, "8'h0"),
        (4 * a, "{a[5:0], 2'h0}"),
        (a % 4, "{5'h0, {1'h0, a[1:0]}}"),
        (a // 4, "{2'h0, a[7:2]}"),
        (a % 6, "{5'h0, o_remainder[2:0]}"),
        ((Const(0, 8) << b[:2])[:8], "8'h0"),
        (Mux(a[0], b, b), "b"),
        (Mux(b == 3, 0, Const(1, 1)), "{7'h0, ~(b == 8'h3)}"),
        (Mux(Const(1, 1), a, b), "a"),
        (Array([a, b, 3, 4, 5])[Const(1, 3)], "b"),
        (Cat(Const(1, 2).replicate(2), a[:4]), "{a[3:0], 4'h5}"),
        (a == a, "8'h1"),
    ]


def test_expressions():
    expected = [text for _, text in expressions(Signal(8), Signal(8))]

    def build(m, c, _):
        m.d.comb += [getattr(c, f"o{i}").eq(value) for i, (value, _) in enumerate(expressions(c.a, c.b))]

    found = text(build, a=In(8), b=In(8), **{f"o{i}": Out(8) for i in range(len(expected))})
    values = [re.search(rf"(?s)assign o{i} = (.*?);\n", found)[1] for i in range(len(expected))]
    assert [re.sub(r"\bo\d+_", "o_", value) for value in values] == expected


def test_signs_are_extended():
    def build(m, c, _):
        m.d.comb += [c.o.eq(c.a * c.b), c.less.eq(c.a < c.b)]

    found = text(build, a=In(signed(4)), b=In(signed(4)), o=Out(signed(10)), less=Out(1))
    assert "$signed(a) < $signed(b)" in found
    assert "{{4{a[3]}}, a} * {{4{b[3]}}, b}" in found
    assert re.search(r"assign o = \{\{2\{\w+\[7\]\}\}, \w+\};", found)


def test_dynamic_assignments():
    def build(m, c, _):
        words = Signal(16)
        m.d.sync += words.word_select(c.at, 4).eq(c.i)
        m.d.comb += c.o.eq(words)

    found = text(build, at=In(2), i=In(4), o=Out(16))
    assert re.search(r" 2'b00:\n +words\[3:0\] <= i;\n +2'b01:\n +words\[7:4\] <= i;\n", found)


def test_dynamic_bits():
    def build(m, c, _):
        bits = Signal(16)
        m.d.sync += bits.bit_select(c.at, 1).eq(c.i)
        m.d.comb += c.o.eq(bits.bit_select(c.at, 1))

    found = text(build, at=In(4), i=In(1), o=Out(1))
    assert "  (* nowrshmsk *) reg  [15:0] bits;\n" in found
    assert "bits[at] <= i;" in found
    assert "assign o = bits[at];" in found


def test_a_long_choice_is_a_case():
    """Of numbers; a short one stands in the expression."""

    def build(m, c, _):
        m.d.comb += [c.o.eq(Array([c.i, 3, 5, 7, 1, 0])[c.at]), c.few.eq(Array([c.i, 3])[c.at[0]])]

    found = text(build, at=In(3), i=In(4), o=Out(4), few=Out(4))
    assert "    case (at)\n      3'b000:\n        o_choice = i;\n      3'b001:\n        o_choice = 4'h3;\n" in found
    assert "assign few = at[0] ? 4'h3 : i;" in found


def test_an_arm_for_several_numbers():
    def build(m, c, _):
        held = Signal(2)
        with m.Switch(c.at):
            with m.Case(1, 3):
                m.d.sync += held.eq(1)
            with m.Case(2):
                m.d.sync += held.eq(2)
        m.d.comb += c.o.eq(held)

    assert "        2'h1, 2'h3:\n          held <= 2'h1;\n" in text(build, at=In(2), o=Out(2))


def test_parentheses_stand_around_another_operator():
    def build(m, c, _):
        m.d.comb += c.o.eq(c.a & c.b | c.a ^ c.b)

    assert "assign o = (a & b) | (a ^ b);" in text(build, a=In(1), b=In(1), o=Out(1))


def test_a_repeated_value_stands_once():
    def build(m, c, _):
        m.d.comb += c.o.eq(c.a & (c.b[0] & ~c.b[1]).replicate(6))

    assert "assign o = a & {6{b[0] & ~(b[1])}};" in text(build, a=In(6), b=In(2), o=Out(6))


def test_blocks_close_no_loop():
    """`a` needs `c` and `d` needs `b`: with `a` beside `b` and `c` beside `d` blocks would wake each other for ever."""

    def build(m, c, _):
        a, b, x, y = (Signal(name=n) for n in "abxy")
        with m.If(c.s):
            m.d.comb += [a.eq(x), b.eq(c.i)]
        with m.If(c.t):
            m.d.comb += [x.eq(c.i), y.eq(b)]
        m.d.comb += c.o.eq(Cat(a, b, x, y))

    found = text(build, s=In(1), t=In(1), i=In(1), o=Out(4))
    own = [re.findall(r"^ +([abxy]) = ", block, re.M) for block in re.findall(r"(?s)begin\n(.*?)end // always", found)]
    assert sum(map(len, own)) > 4  # defaults and values
    assert all({"a", "b"} - set(names) and {"x", "y"} - set(names) for names in own)


def test_an_element_of_an_array_is_a_case():
    def build(m, c, _):
        held = [Signal(4, name=f"held{i}") for i in range(3)]
        m.d.sync += Array(held)[c.at].eq(c.i)
        m.d.comb += c.o.eq(Cat(held))

    found = text(build, at=In(2), i=In(4), o=Out(12))
    assert re.search(r"case \(at\)\n +2'b00:\n +held0 <= i;\n +2'b01:\n +held1 <= i;\n +2'b10:\n +held2 <= i;", found)


def test_statements_that_read_each_other_stand_apart():
    """Verilog would read the old value in a block that assigns it later."""

    def build(m, c, _):
        first, second = Signal(name="first"), Signal(name="second")
        with m.If(c.a):
            m.d.comb += [second.eq(first), first.eq(c.b)]
        m.d.comb += c.o.eq(second)

    found = text(build, a=In(1), b=In(1), o=Out(1))
    blocks = re.findall(r"(?s)always @\* begin(.*?)end // always", found)
    assert len(blocks) == 2
    assert all(("first = " in block) + ("second = " in block) == 1 for block in blocks)


def test_bits_that_nothing_reads_are_said():
    found = text(lambda m, c, _: m.d.comb.__iadd__(c.o.eq(c.i[2:5])), i=In(8), o=Out(3))
    assert re.search(r"wire +unused = &\{i\[7:5\], i\[1:0\]\};", found)


def test_summary_and_comments_are_ascii():
    def build(m, c, _):
        held = Signal()  # "π" ends in a stroke \
        m.d.sync += held.eq(c.i)
        m.d.comb += c.o.eq(held)

    found = written(build, i=In(1), o=Out(1))
    assert "// A component of this test." in found
    assert "What follows" not in found
    assert '// "?" ends in a stroke\n' in found


def test_names_are_legal():
    assert legal("case") == "case_"
    assert legal("i__payload") == "i_payload"
    assert legal("$signal$12") == "signal_12"
    assert legal("dre.hcu keys") == "dre_hcu_keys"
    assert not any(legal(word) in KEYWORDS for word in KEYWORDS)
    names = Names()
    assert [names.new(n) for n in ("reg", "a", "a", "a_2")] == ["reg_", "a", "a_2", "a_2_2"]


def unsupported_division(m, c):
    m.d.comb += c.o.eq(c.i // c.i[:2])


def unsupported_bits(m, c):
    """A bit of a signal that depends on another: Verilator 5.006 sees a loop."""
    found = Signal(2)
    m.d.comb += [found[0].eq(c.i[1]), found[1].eq(found[0] & c.i[0]), c.o.eq(found)]


def unsupported_self(m, c):
    """The same behind a condition."""
    chain = Signal(2)
    with m.If(c.i[0]):
        m.d.comb += [chain[0].eq(c.i[1]), chain[1].eq(chain[0])]
    m.d.comb += c.o.eq(chain)


def unsupported_domains(m, c):
    half = Signal(8)
    m.d.sync += half[:4].eq(c.i)
    m.d.comb += half[4:].eq(c.i)
    m.d.comb += c.o.eq(half)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (unsupported_division, "operator //: divides by a value"),
        (unsupported_bits, "signal found: depends on itself, or a bit of it on another; split it"),
        (unsupported_self, "signal chain: depends on itself, or a bit of it on another; split it"),
        (unsupported_domains, "signal half: driven from sync and comb; make a signal for each"),
    ],
)
def test_what_cannot_be_written_is_named(build, message):
    with pytest.raises(WriterError, match=re.escape(message)):
        text(lambda m, c, _: build(m, c), i=In(8), o=Out(8))


def test_a_memory_that_sees_its_writes_is_refused():
    def build(m, c, _):
        m.submodules.words = words = Memory(shape=8, depth=4, init=[])
        port = words.read_port(transparent_for=[words.write_port()])
        m.d.comb += [port.en.eq(1), c.o.eq(port.data)]

    with pytest.raises(WriterError, match="memory words: a read that sees a write of its cycle; forward the word"):
        text(build, o=Out(8))


def test_only_python_source_and_circt_s_verilog_are_parsed():
    """What an operation is, its object says."""
    assert {p.stem for p in FOLDER.glob("*.py") if re.search(r"^import re$", p.read_text(), re.M)} == {"names", "circt"}


def test_the_readme_s_example_runs(tmp_path, capsys):
    path = tmp_path / "example.py"
    path.write_text(re.search(r"(?s)```python\n(.*?)```", (FOLDER / "README.md").read_text())[1])
    runpy.run_path(str(path))
    assert capsys.readouterr().out.startswith("// Counts the cycles with `en`.\nmodule counter(\n  input        clk,\n")
