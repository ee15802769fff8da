"""Assertions to bind: units keep them in their benches, and each fails on traffic that breaks its rule."""

import subprocess
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from openvrex.hdl.emit import ALL, Emitted, emit, params_of
from openvrex.hdl.params import preset
from openvrex.tb.campaigns.subjects import SUBJECTS
from openvrex.tb.library.runner import verilator_env
from tb.tests.by_day import by_day

FLAGS = ("--assert", "-Wno-fatal", "-CFLAGS", "-std=gnu++20 -fcoroutines -O0")  # delays are coroutines


def checked(unit: str) -> Emitted:
    return emit(unit, params_of(unit, preset("tiny")), checked=True)


@pytest.mark.parametrize("unit", ALL)
def test_lints_clean(unit, tmp_path):
    e = checked(unit)
    e.write(tmp_path)
    command = ["verilator", "--lint-only", "-Wall", "--assert", "--top-module", unit, e.file, f"{unit}_assertions.sv"]
    run = subprocess.run(command, cwd=tmp_path, env=verilator_env(), capture_output=True, text=True, check=False)
    assert (run.returncode, "%" in run.stderr + run.stdout) == (0, False), run.stdout + run.stderr
    assert f"bind {unit} " in e.assertions


@pytest.mark.parametrize("unit", by_day(["dpe", "retriever", "sequencer", "core"], "retriever"))
def test_units_keep_their_rules(unit):
    """In the tests that judge mutants, with stalls on both sides: for an AXI manager also beside slow memories."""
    subject = SUBJECTS[unit]
    module = subject._module()
    emitted = getattr(module.emitted, "__wrapped__", module.emitted)
    with patch.object(module, "emit", partial(emit, checked=True)):
        e = emitted(*subject._arguments(subject.size))
    assert e.assertions.count("\nbind ") > 1
    subject.judge(e)


# What breaks each rule, in Verilog, and the message; "" for traffic that breaks none.
CASES = {
    "none": (
        "i_valid = 1; stop; @(negedge clk); o_ready = 1; wait (i_ready); @(posedge clk); @(negedge clk); i_valid = 0;",
        "",
    ),
    "offer": ("i_valid = 1; stop; i_valid = 0;", "valid fell before ready"),
    "payload": ("i_valid = 1; stop; i_hash = 1;", "the payload changed before ready"),
    "state": ("legal = 0;", "the number is no state"),
    "overflow": ("w_en = 1;", "a word is written into the full queue"),
    "underflow": ("r_en = 1;", "a word is read from the empty queue"),
    "read page": ("addr = 12'hff8; len = 1; arvalid = 1;", "a read crosses a 4 KB page"),
    "write page": ("addr = 12'hff8; len = 1; awvalid = 1;", "a write crosses a 4 KB page"),
    "end of a page": ("addr = 12'hff0; len = 1; arvalid = 1;", ""),
    "early wlast": (
        "len = 3; awvalid = 1; @(negedge clk); awvalid = 0; wvalid = 1; @(negedge clk); wlast = 1;",
        "wlast is not at the last beat",
    ),
    "late wlast": (
        "awvalid = 1; @(negedge clk); awvalid = 0; wvalid = 1; @(negedge clk); wlast = 1;",
        "wlast is not at the last beat",
    ),
    "address behind its data": (
        "wvalid = 1; wlast = 1; @(negedge clk); wvalid = 0; len = 1; awvalid = 1;",
        "awlen is not that of the burst",
    ),
    "address with its data": ("wvalid = 1; wlast = 1; len = 1; awvalid = 1;", "wlast is not at the last beat"),
    "a write": (
        "len = 1; awvalid = 1; wvalid = 1; @(negedge clk); awvalid = 0; wlast = 1;"
        " @(negedge clk); wvalid = 0; bvalid = 1; @(negedge clk); bvalid = 0;",
        "",
    ),
    "answer": ("rvalid = 1;", "read data without a request"),
    "response": ("awvalid = 1; @(negedge clk); awvalid = 0; bvalid = 1;", "a write response before its address and"),
}
BENCH = """
module bench;
  reg clk = 0, rst = 1, i_valid = 0, o_ready = 0, legal = 1, w_en = 0, r_en = 0;
  reg arvalid = 0, rvalid = 0, awvalid = 0, wvalid = 0, wlast = 0, bvalid = 0;
  reg [7:0] i_hash = 0, len = 0;
  reg [11:0] addr = 0;
  wire i_ready;
  wire m_ask_valid;
  reg m_data_valid = 0;
  integer number = 0;
  always #1 clk = ~clk;
  always @(posedge clk) m_data_valid <= m_ask_valid && o_ready && !rst;  // tables of zeros
  initial #10000 $fatal(1, "no end");
  hcu unit({pins});
  hcu_state_checks state(.clk(clk), .rst(rst), .legal(legal));
  hcu_queue_checks queue(.clk(clk), .rst(rst), .overflow(w_en), .underflow(r_en));
  hcu_axi_manager_checks #(.BYTES(8)) axi(.clk(clk), .rst(rst), .arvalid(arvalid), .arready(1'b1), .araddr(addr),
    .arlen(len), .rvalid(rvalid), .rready(1'b1), .rlast(1'b1), .awvalid(awvalid), .awready(1'b1), .awaddr(addr),
    .awlen(len), .wvalid(wvalid), .wready(1'b1), .wlast(wlast), .bvalid(bvalid), .bready(1'b1));
  task stop;  // the unit fills up, and then takes no beat
    begin
      repeat (200) @(negedge clk);
      if (i_ready) $display("the unit never filled up");
    end
  endtask
  initial begin
    if (!$value$plusargs("case=%d", number)) $stop;
    repeat (4) @(negedge clk);
    rst = 0;
    @(negedge clk);
    case (number)
{cases}
      default: $stop;
    endcase
    repeat (4) @(negedge clk);
    $display("end");
    $finish;
  end
endmodule
"""


@pytest.fixture(scope="module")
def simulator(tmp_path_factory) -> Path:
    """A simulator of all `CASES`."""
    e, folder = checked("hcu"), tmp_path_factory.mktemp("assertions")
    e.write(folder)
    named = {"clk": "clk", "rst": "rst", "i_valid": "i_valid", "i_ready": "i_ready", "o_ready": "o_ready"}
    named |= {"i_hash": "i_hash", "th_hd": "4'd3", "m_ask_valid": "m_ask_valid", "m_data_valid": "m_data_valid"}
    named |= {"m_ask_ready": "o_ready", "m_put_ready": "o_ready"}
    pins = []
    for p in e.manifest["ports"]:
        name = p["name"]
        pins.append(f".{name}({named.get(name, '' if p['dir'] == 'out' else str(p['width']) + chr(39) + 'd0')})")
    cases = "\n".join(f"      {i}: begin {body} end" for i, (body, _) in enumerate(CASES.values()))
    text = BENCH.replace("{pins}", ", ".join(pins)).replace("{cases}", cases)
    (folder / "bench.sv").write_text(text)
    command = ["verilator", "--binary", *FLAGS, "--top-module", "bench", "bench.sv", e.file, "hcu_assertions.sv"]
    run = subprocess.run(command, cwd=folder, env=verilator_env(), check=False, capture_output=True, text=True)
    assert not run.returncode, (run.stdout + run.stderr)[-2000:]
    return folder / "obj_dir" / "Vbench"


@pytest.mark.parametrize("case", CASES)
def test_each_rule_can_be_broken(case, simulator):
    number, message = list(CASES).index(case), CASES[case][1]
    run = subprocess.run([simulator, f"+case={number}"], capture_output=True, text=True, check=False)
    said = run.stdout + run.stderr
    assert "never filled up" not in said
    assert message in said
    assert ("end" in said.split()) == (not message), said
