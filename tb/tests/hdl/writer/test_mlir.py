"""How operations print, and what CIRCT says of one that it does not know."""

import pytest

from openvrex.hdl.writer.circt import Language, exported
from openvrex.hdl.writer.mlir import Literal, Number, Op, Result, text
from openvrex.hdl.writer.variables import WriterError


def test_operations_print_in_one_form():
    """Results by number, names in the Verilog and attributes in braces, regions with and without a block."""
    a, wire = Result(4, "a"), Result(4, 'say "x"')
    low, held = Result(1), Result(2, "held", place=True, depth=3)
    ops = [
        Op("hw.wire", (a,), results=(wire,)),
        Op("comb.extract", (wire,), {"lowBit": Number(2)}, (low,)),
        Op("sv.reg", (), {"sv.attributes": (Literal("#x"),)}, (held,)),
        Op("sv.if", (low,), regions=([Op("sv.assign", (held, low), source=("a.py", 3))], None)),
    ]
    assert text([Op("m", regions=(ops,), inputs=(a,))]).split("\n") == [
        '"m"()',
        "({",
        "^bb0(%0: i4):",
        '%1 = "hw.wire"(%0)',
        '{name = "say \\"x\\""} : (i4) -> (i4)',
        '%2 = "comb.extract"(%1)',
        "{lowBit = 2 : i32} : (i4) -> (i1)",
        '%3 = "sv.reg"()',
        '{name = "held", sv.attributes = [#x]} : () -> (!hw.inout<uarray<3xi2>>)',
        '"sv.if"(%2)',
        "({",
        "^bb0:",
        '"sv.assign"(%3, %2)',
        '{} : (!hw.inout<uarray<3xi2>>, i1) -> () loc("a.py":3:0)',
        "}",
        ", {",
        "}",
        "){} : (i1) -> ()",
        "}",
        "){} : () -> ()",
    ]


def test_circt_s_error_is_said():
    with pytest.raises(WriterError, match=r"(?s)CIRCT could not write Verilog.*hw\.nothing"):
        exported([Op("hw.nothing")], Language.VERILOG2005, False)
