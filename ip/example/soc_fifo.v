// A queue: what was put in first is at `head` while `some` is high. DEPTH is a power of two.
module soc_fifo #(parameter WIDTH = 8, DEPTH = 16) (
  input wire clk, input wire rst,
  input wire put, input wire [WIDTH-1:0] tail, output wire room,
  input wire take, output wire [WIDTH-1:0] head, output wire some
);
  localparam BITS = $clog2(DEPTH);
  reg [WIDTH-1:0] words [0:DEPTH-1];
  reg [BITS:0] written, read;

  assign room = written - read != DEPTH[BITS:0];
  assign some = written != read;
  assign head = words[read[BITS-1:0]];

  always @(posedge clk) begin
    if (put & room) begin
      words[written[BITS-1:0]] <= tail;
      written <= written + 1'b1;
    end
    if (take & some) read <= read + 1'b1;
    if (rst) begin
      written <= 0;
      read <= 0;
    end
  end
endmodule
