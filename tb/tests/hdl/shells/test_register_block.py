"""Register blocks: accesses equal to what SystemRDL says, in the cycles of the data sheet; descriptions, mutants."""

import re

import pytest
from systemrdl import RDLCompiler
from systemrdl.node import RegNode

from openvrex.golden.program.isa import Status
from openvrex.hdl.execution.core import Core
from openvrex.hdl.shells.register_block import RDL, address_map, kind_of
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import register_block_checks
from openvrex.tb.checks.register_block_checks import (
    SIZES,
    check_accesses_are_as_described,
    emitted,
    run,
)
from openvrex.tb.library.runner import lint
from openvrex.tb.library.transfer_traffic import params

MAPS = ("core_ip",)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("size", SIZES)
def test_accesses_are_as_described(size, name, record_property):
    check_accesses_are_as_described(size, name, record_property)


test_cycles_are_those_of_the_data_sheet = register_block_checks.check_cycles_are_those_of_the_data_sheet
test_accesses_by_hand = pytest.mark.parametrize("name", MAPS)(register_block_checks.check_accesses_by_hand)


def test_lints(tmp_path):
    assert not lint(emitted("tiny", "core_ip"), tmp_path)


def test_names_are_those_of_the_hardware():
    """Codes are golden's; counters are the core's, all of them."""
    top = address_map("core_ip", params(SIZES["cores"]))
    codes = top.find_by_path("status.code").get_property("encode")
    assert {m.name: m.value for m in codes} == {s.name: s.value for s in Status}
    registers = (n for n in top.find_by_path("perf").descendants(unroll=True) if isinstance(n, RegNode))
    names = [re.sub(r"[\[\]]", "", n.get_path().removeprefix("core_ip.perf.")) for n in registers]
    assert sorted(names) == sorted(Core.counters_of(params(SIZES["cores"])))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("field {sw = rw; hw = rw; we;} x = 0;", "x: sw=rw, hw=rw: a register block has no such field"),
        ("field {sw = rw; hw = r; onread = rclr;} x = 0;", "x: sw=rw, hw=r: a register block has no such field"),
        ("field {sw = rw; hw = r; most = 3;} x = 0; field {sw = rw; hw = r;} y = 0;", "x: has limits, so it must be"),
        ("regwidth = 64; accesswidth = 32; field {sw = rw; hw = r;} x[40] = 0;", "x: must lie in one word of 32 bits"),
        ("field {sw = rw; hw = w; onwrite = wzc; intr;} x = 0;", "x: sw=rw, hw=w: a register block has no such field"),
    ],
)
def test_fields_that_it_cannot_make_are_refused(tmp_path, field, message):
    path = tmp_path / "a.rdl"
    properties = "".join(line for line in RDL.read_text().splitlines(True) if line.startswith("property "))
    path.write_text(f"{properties}addrmap a {{ reg {{ {field} }} b; }};")
    compiler = RDLCompiler()
    compiler.compile_file(str(path))
    with pytest.raises(ValueError, match=message):
        kind_of(compiler.elaborate().top.find_by_path("b.x"))


MUTANTS = {
    "$and 1.745fafa1: Y[0] const1": "a write goes without its data",
    "$and 2.aa676962: Y[0] const0": "a write does not wait for the program's memory",
    "$mux 1.0b81c124: Y[0] const1": "a write of a whole word fails",
    "$pmux 0.c60f1634: Y[0] const0": "there is a register everywhere",
    "$dff 1.e528a485: D[0] const1": "a byte is written that is not enabled",
    "$reduce_or 0.992ef8b5: Y[0] const0": "there are no interrupts",
    "$not 1.87fde0c3: Y[0] const1": "an address over one that waits",
    "$and 1.07a6875c: Y[0] const0": "the program is not there",
    "$dff 1.8eec8691: D[0] inv": "a bit that is read is wrong",
    "$and 1.0a4a22e0: B[0] const1": "a refused setting changes while something runs",
    "$and 1.9bc85f41: B[0] const1": "a setting is not refused while something runs",
    "$or 2.a89f1865: B[0] const0": "the program changes while something runs",
    "$and 1.a5cf0281: B[0] const1": "a refused write frees what is confined",
}


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(every):
    assert not survivors(
        emitted("tiny", "core_ip"),
        MUTANTS,
        lambda unit: run("tiny", "core_ip", unit=unit, waves=False),
        every=every,
    )


def test_description_is_shipped():
    assert RDL.is_file()
