"""The digest of a design's structure: what changes it, and what does not."""

import re
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest

from openvrex.hdl.emit import emit
from openvrex.hdl.params import preset
from openvrex.hdl.retrieval import dre, row_check
from openvrex.synth.structure import KEYWORDS, structure, tokens

DRE = preset("tiny").core.dre


@pytest.fixture(scope="module")
def text() -> str:
    return emit("dre", DRE).verilog


def edited(old: str, new: str) -> str:
    """The DRE's Verilog after an edit of the row check's source, at every place where the word stands."""
    source = Path(row_check.__file__).read_text()
    changed = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, source)
    assert changed != source
    module = ModuleType(row_check.__name__)
    with patch.dict(sys.modules, {row_check.__name__: module}):
        exec(compile(changed, row_check.__file__, "exec"), vars(module))
        with patch.object(dre, "RowCheck", module.RowCheck):
            return emit("dre", DRE).verilog


@pytest.mark.parametrize("name", ["final", "at"])
def test_a_local_name_changes_nothing(text, name):
    renamed = edited(name, f"zz_{name}")
    assert renamed != text
    assert structure(renamed) == structure(text)
    assert len(tokens(renamed)) == len(tokens(text))


def test_comments_and_spaces_change_nothing(text):
    assert structure(re.sub(r"//.*", "", text).replace("\n", " \n\n")) == structure(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.i.valid & right)", "self.i.valid | right)"),
        ("ends, 0, at + 1", "ends, 0, at + 3"),
        ("(self.clusters - 1)[", "self.clusters["),
    ],
)
def test_an_edit_is_seen(text, old, new):
    source = Path(row_check.__file__).read_text()
    assert source.count(old) == 1
    assert structure(edited(old, new)) != structure(text)


def test_words_of_verilog_are_no_names(text):
    """Those of the generated Verilog: a clock's other edge must not look like a rename."""
    assert structure(text.replace("posedge", "negedge")) != structure(text)
    assert set(re.findall(r"^ *(\w+)", re.sub(r"//.*", "", text), re.M)) & KEYWORDS >= {"always", "assign", "module"}


def test_two_names_that_change_places_are_seen():
    assert structure("assign a = b & ~c;\nassign d = b;") != structure("assign a = b & ~c;\nassign d = c;")


def test_what_only_verilator_sees_is_no_structure():
    """Memories start with random bits there; figures of a design do not depend on it."""
    body = "module a;\n  reg b;\nendmodule\n"
    seen = body.replace("  reg b;\n", "  reg b;\n`ifdef VERILATOR\n  initial b = 1;\n`endif\n")
    assert structure(seen) == structure(body)
    assert structure(seen.replace("VERILATOR", "OTHER")) != structure(body)
