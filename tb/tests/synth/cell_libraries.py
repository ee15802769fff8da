"""Cell libraries, where they are installed."""

from pathlib import Path

import pytest

PDK = Path(__file__).parents[4] / "shared" / "pdk"


ASAP7 = sorted(PDK.glob("asap7*.lib.gz"))


SKY130 = [PDK / "sky130hd_tt.lib.gz"]


needs_pdk = pytest.mark.skipif(
    len(ASAP7) != 5 or not SKY130[0].exists(), reason="no ../shared/pdk beside the project: put ASAP7 and SKY130 there"
)


RAM = """
module ram(input clk, re, input [1:0] we, input [5:0] wa, ra, input [15:0] d, output reg [15:0] q);
  reg [15:0] mem [0:63];
  always @(posedge clk) begin
    if (we[0]) mem[wa][7:0] <= d[7:0];
    if (we[1]) mem[wa][15:8] <= d[15:8];
    if (re) q <= mem[ra];
  end
endmodule
module t(input clk, re, input [1:0] we, input [5:0] wa, ra, input [15:0] d, output y);
  wire [15:0] q;
  ram left(clk, re, we, wa, ra, d, q);
  assign y = ~(q[0] & q[1]);
endmodule
"""
