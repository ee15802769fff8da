"""What the bodies of memories do where their contract leaves it open."""

import re
import shutil
import subprocess

import pytest

from openvrex.hdl.memory import KINDS, bodies
from openvrex.tb.library.runner import verilator_env

_BENCH = """
module bench;
  reg clk = 0, w_en = 1, r_en = 0;
  reg [3:0] w_data = 4'h5;
  wire [3:0] r_data;
  top_ram_1r1w #(.WIDTH(4), .DEPTH(2)) ram(clk, w_en, 1'b1, w_data, r_en, 1'b1, r_data);
  task edge_; begin #1 clk = 1; #1 clk = 0; end endtask
  initial begin
    edge_;
    r_en = 1; w_data = 4'h3; edge_;
    $display("%h", r_data);
    r_en = 0; w_en = 0; edge_;
    $display("%h", r_data);
    r_en = 1; edge_;
    $display("%h", r_data);
  end
endmodule
"""


@pytest.mark.skipif(not shutil.which("iverilog"), reason="needs Icarus Verilog (iverilog) on the path")
@pytest.mark.parametrize(("define", "collided"), [((), "5"), (("-DOPENVREX_CHECK",), "a")])
def test_a_collision_gives_what_no_unit_may_use(define, collided, tmp_path):
    """Benches define OPENVREX_CHECK: a unit that used the word of a collision would differ from its golden model."""
    source, binary = tmp_path / "bench.v", tmp_path / "bench.vvp"
    source.write_text(bodies("top", KINDS) + _BENCH)
    command = ["iverilog", "-g2005", *define, "-s", "bench", "-o", binary, source]
    subprocess.run(command, check=True, capture_output=True)
    run = subprocess.run(["vvp", "-n", binary], check=True, capture_output=True, text=True)
    assert run.stdout.split() == [collided, collided, "3"]


_START = """
module bench;
  reg clk = 0;
  wire [39:0] one [0:1];
  wire [39:0] two;
  integer k;
  genvar g;
  generate for (g = 0; g < 2; g = g + 1) begin : rams
    top_ram_1r1w #(.WIDTH(40), .DEPTH(16)) ram(clk, 1'b0, 4'b0, 40'b0, 1'b0, 4'b0, one[g]);
  end endgenerate
  top_ram_1rw #(.WIDTH(40), .DEPTH(16)) ram(clk, 1'b0, 1'b0, 4'b0, 40'b0, two);
  initial $finish;
  final for (k = 0; k < 16; k = k + 1) $display("%h %h %h", rams[0].ram.mem[k], rams[1].ram.mem[k], ram.mem[k]);
endmodule
"""


def test_words_start_with_random_bits_of_their_own(tmp_path):
    """Under Verilator, which by itself gives all words of a memory one value, and others with another seed."""
    (tmp_path / "bench.sv").write_text(bodies("top", KINDS) + _START)
    flags = ["-Wno-fatal", "-DOPENVREX_CHECK", "--x-initial", "unique", "--top-module", "bench", "--no-timing"]
    command = ["verilator", "--binary", *flags, "bench.sv"]
    subprocess.run(command, cwd=tmp_path, env=verilator_env(), check=True, capture_output=True)
    runs = []
    for seed in (1, 1, 2):
        start = [tmp_path / "obj_dir/Vbench", "+verilator+rand+reset+2", f"+verilator+seed+{seed}"]
        run = subprocess.run(start, check=True, capture_output=True, text=True, cwd=tmp_path)
        runs.append(re.findall(r"^([0-9a-f]{10}) ([0-9a-f]{10}) ([0-9a-f]{10})$", run.stdout, re.M))
    assert runs[0] == runs[1] != runs[2]
    for run in (runs[0], runs[2]):
        assert len({word for words in run for word in words}) == 3 * 16
