"""What the bodies of memories do where their contract leaves it open."""

import shutil
import subprocess

import pytest

from openvrex.hdl.memory import KINDS, bodies

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
