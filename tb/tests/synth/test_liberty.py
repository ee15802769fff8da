"""Liberty texts as vendors write them, and as nobody should: read, or refused in one line that names the file."""

import os
import re
from pathlib import Path

import pytest

from openvrex.synth import cells, nldm
from openvrex.synth.flow import synthesise
from openvrex.synth.liberty import EMBEDDED, SynthError, load
from openvrex.synth.liberty_text import libraries, write
from tb.tests.synth.cell_libraries import ASAP7, SKY130, needs_pdk

TEXT = EMBEDDED.read_text()
HEAD = "library (openvrex) {"
TIE = '(two) { cell (TIE) { area : 1; dont_use : true; pin (Y) { direction : output; function : "1"; } } }'
TEMPLATE = re.search(r"  lu_table_template \(h\) \{.*?\n  \}\n", TEXT, re.S)[0]
POWER = 'capacitance : 1; internal_power () { rise_power (scalar) { values ("7"); } }'


def moved_behind(part: str) -> str:
    return TEXT.replace(part, "").rstrip().removesuffix("}") + part + "}\n"


def in_head(line: str) -> str:
    return TEXT.replace(HEAD, f"{HEAD}\n  {line}\n", 1)


READ = {
    "unit behind the cells": moved_behind('  time_unit : "1ps";\n'),
    "template behind the cells": moved_behind(TEMPLATE),
    "template on a line without blanks": TEXT.replace(TEMPLATE, re.sub(r"\s+", "", TEMPLATE)),
    "second library": TEXT + f"library {TIE}",
    "library before it": f"library {TIE}\n{TEXT}",
    "CRLF": TEXT.replace("\n", "\r\n"),
    "CRLF without a semicolon": TEXT.replace("direction : input;", "direction : input\n").replace("\n", "\r\n"),
    "no semicolon before a brace": TEXT.replace("capacitance : 1; }", "capacitance : 1 }"),
    "no semicolon behind a list": TEXT.replace("1, ff);", "1, ff)"),
    "address in a string": in_head('comment : "see http://a.b";'),
    "comment in a string": in_head('comment : "//1";') + "/* library (x) { */",
    "comment mark in a path": in_head('comment : "libs/*.lib";'),
    "brace in a string": in_head('comment : "} {";'),
    "quote in a comment": TEXT.replace(HEAD, f'/* 5" wafer */ {HEAD} // it\'s 5" \n', 1),
    "escaped quote": in_head(r'comment : "5\" wafer {";'),
    "value on the next line": TEXT.replace('time_unit : "1ps"', 'time_unit : \\\n  "1ps"'),
    "value behind a comment": TEXT.replace('time_unit : "1ps"', 'time_unit /* of all */ : /* is */ "1ps"'),
    "mark of byte order": "\ufeff" + TEXT,
    "test cell with its own register": TEXT.replace(
        "  cell (INV) {", '  cell (INV) { test_cell () { ff (a, b) { clocked_on : "A"; next_state : "A"; } }'
    ),
    "upper-case units": TEXT.replace('"1ps"', '"1PS"').replace("1, ff", "1, FF"),
    "quoted names": TEXT.replace("cell (INV)", 'cell ( "INV" )').replace("pin (A)", 'pin("A")'),
    "capacitance by default": in_head("default_input_pin_cap : 1;").replace(
        "pin (A) { direction : input; capacitance : 1;", "pin (A) { direction : input;"
    ),
    "default without effect": in_head("default_max_fanout : 1; default_wire_load : none; default_fanout_load : 9;"),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return facts(EMBEDDED, tmp_path_factory.mktemp("lib"))


def facts(path: Path, folder: Path) -> tuple:
    """All that mapping, timing and power read of a library, and what they read of the text that other tools get."""
    one = load([path], folder)
    names = one.cells.keys() - {"TIE"}
    again = load(list(one.files), folder)
    logic = {n: (g.inputs, g.loads, sorted(g.outputs), g.clock, g.state) for n, g in cells.load(one, names)[0].items()}
    shown = {n: (c.area, c.functions, c.state, c.dont_use) for n, c in one.cells.items() if n in names}
    timings = nldm.load(one, names)
    assert timings == nldm.load(again, names)
    return shown, timings, logic


@pytest.mark.parametrize("text", READ.values(), ids=READ)
def test_read_as_the_plain_file(tmp_path, expected, text):
    (tmp_path / "a.lib").write_bytes(text.encode())
    assert facts(tmp_path / "a.lib", tmp_path) == expected


REFUSED = {
    "x.lib: broken Liberty file: 2 groups are not closed, the last of line 4; it seems cut off": (
        'library (l) {\n\n\n cell (A) { comment : "}"; '
    ),
    'x.lib, line 2: broken Liberty file: " is not closed': 'library (l) {\n comment : "no end; }',
    r"x.lib, line 1: broken Liberty file: /\* is not closed": "library (l) { /* no end }",
    "x.lib, line 2: 'area 5;' is no Liberty statement": "library (l) { cell (A) {\n area 5;\n } }",
    "x.lib: not a Liberty file: line 1: 'module t;": "module t; endmodule",
    "x.lib: includes rest.lib, which is not read; put its text": in_head("include_file (rest.lib);"),
    "x.lib: cell TIE stands in it twice": TEXT + f"library {TIE} library {TIE}",
    "cell BUF: area 'nan' must be finite and not negative": TEXT.replace("area : 1.0000", "area : nan", 1),
    "cell BUF: area '-1' must be finite": TEXT.replace("area : 1.0000", "area : -1", 1),
    "cell INV: capacitance '1e999' must be finite": TEXT.replace("capacitance : 1;", "capacitance : 1e999;", 1),
    "cell INV, pin Y: cell_rise 'inf' must be finite;": TEXT.replace('"1, 33, 65"', '"1, inf, 65"', 1),
    "cell INV, pin Y: cell_rise 'x' is not a number": TEXT.replace('"1, 33, 65"', '"1, x, 65"', 1),
    "rise_transition '-1' must be finite and not negative": TEXT.replace(
        'rise_transition (h) { values ("1, ', 'rise_transition (h) { values ("-1, ', 1
    ),
    "index_1 of cell_rise '-5' must be finite and not negative": TEXT.replace('index_1 ("0,', 'index_1 ("-5,'),
    "x.lib: time_unit '0ps' is not a time": TEXT.replace('"1ps"', '"0ps"'),
    "x.lib: capacitive_load_unit '-1, ff' is not a capacitance": TEXT.replace("1, ff", "-1, ff"),
    "nom_voltage '-1.0' must be finite and not negative": TEXT.replace("nom_voltage : 1.0", "nom_voltage : -1.0"),
    "cell INV: leakage_power '-3' must be": TEXT.replace(
        "cell (INV) {", "cell (INV) { leakage_power () { value : -3; }", 1
    ),
    "x.lib: default_output_pin_cap '2' must be 0; state it in each cell": in_head("default_output_pin_cap : 2;"),
    "x.lib: default_leakage_power_density '0.1' must be 0": in_head("default_leakage_power_density : 0.1;"),
    "x.lib: default_gravity '9.81' is a default that is not known": in_head("default_gravity : 9.81;"),
    "x.lib: slew_derate_from_library '0.5' must be 1": in_head("slew_derate_from_library : 0.5;"),
    "x.lib: delay_model 'generic_cmos' must be table_lookup": TEXT.replace("table_lookup", "generic_cmos", 1),
    "cell DFF: a flip-flop without delay tables from its clock": re.sub(
        r"(cell \(DFF\).*?pin \(Q\) \{.*?\"IQ\";)\s*timing.*?\n      \}\n", r"\1\n", TEXT, flags=re.S
    ),
}


@pytest.mark.parametrize(("message", "text"), REFUSED.items())
def test_refused_in_one_line(tmp_path, message, text):
    assert text != TEXT
    (tmp_path / "x.lib").write_text(text)
    with pytest.raises(SynthError, match=message) as e:
        facts(tmp_path / "x.lib", tmp_path)
    assert "\n" not in str(e.value)


def test_default_leakage(tmp_path):
    """A default holds for cells that state nothing; a cell's own figure stands."""
    text = in_head("default_cell_leakage_power : 4;").replace("cell (INV) {", "cell (INV) { cell_leakage_power : 2;", 1)
    (tmp_path / "a.lib").write_text(text)
    gates = cells.load(load([tmp_path / "a.lib"], tmp_path), {"INV", "BUF"})[0]
    assert (gates["INV"].leakage, gates["BUF"].leakage) == (2, 4)


def test_a_pipe_is_refused(tmp_path):
    """As of `--liberty <(zcat x.lib.gz)`: a library is read more than once."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SynthError, match="pipe: is read more than once, so it must be a regular file; save it as one"):
        load([tmp_path / "pipe"], tmp_path)


def test_a_result_names_the_file_that_was_given(tmp_path):
    """Equal contents under two names, and as the embedded library: each result has its own name and unit."""
    text = "module t(input a, output y); assign y = ~a; endmodule"
    (tmp_path / "copy.lib").write_text(TEXT)
    (tmp_path / "other.lib").write_text(TEXT)
    asked = ([tmp_path / "copy.lib"], None, [tmp_path / "other.lib"], [tmp_path / "copy.lib"])
    found = [synthesise(text, "t", liberty, build=tmp_path) for liberty in asked]
    assert [a.library for a in found] == [("copy.lib",), ("openvrex",), ("other.lib",), ("copy.lib",)]
    assert [a.timing.unit for a in found] == ["ps", "tau", "ps", "ps"]
    assert [a.microns for a in found] == [True, False, True, True]


@needs_pdk
@pytest.mark.parametrize("files", [ASAP7, SKY130], ids=["ASAP7", "SKY130"])
def test_open_libraries_survive_being_written(files, tmp_path):
    """The text that other tools get has the cells, areas, pins and tables of the original."""
    one = load([f for f in files if f.stat().st_size < 3e6], tmp_path)
    names = set(sorted(one.cells)[::20]) - {n for n, c in one.cells.items() if c.state and "ff" not in c.state}
    again = load(list(one.files), tmp_path)
    assert {n: (c.area, c.functions, c.state) for n, c in again.cells.items()} == {
        n: (c.area, c.functions, c.state) for n, c in one.cells.items()
    }
    written = one.files[-1]
    assert "".join(write(libraries("x", written.read_bytes())[0])) == written.read_text()
    timed = {n for n in names if one.cells[n].functions}
    assert timed
    assert nldm.load(one, timed) == nldm.load(again, timed)
