// A memory behind AXI4: INCR bursts of whole beats, answered in order. The first beat of a read comes LATENCY cycles after
// its address, then a beat a cycle. An address beyond SIZE bytes, a power of two, gives DECERR.
module soc_memory #(parameter BYTES = 8, SIZE = 1 << 24, LATENCY = 20) (
  input wire clk, input wire rst,
  input wire arvalid, output wire arready, input wire [39:0] araddr, input wire [7:0] arlen, input wire [2:0] arid,
  output reg rvalid, input wire rready, output reg [8*BYTES-1:0] rdata, output reg [1:0] rresp, output reg rlast,
  output reg [2:0] rid,
  input wire awvalid, output wire awready, input wire [39:0] awaddr, input wire [7:0] awlen, input wire [2:0] awid,
  input wire wvalid, output wire wready, input wire [8*BYTES-1:0] wdata, input wire [BYTES-1:0] wstrb, input wire wlast,
  output reg bvalid, input wire bready, output reg [1:0] bresp, output reg [2:0] bid
);
  localparam OKAY = 2'b00, DECERR = 2'b11;
  localparam SHIFT = $clog2(BYTES), WORDS = SIZE / BYTES, BITS = $clog2(WORDS);
  reg [8*BYTES-1:0] words [0:WORDS-1] /* verilator public_flat_rw */;

  // Reads.
  reg [31:0] now;
  reg [7:0] beat;
  wire [82:0] head;
  wire some;
  wire [39:0] from = (head[39:0] >> SHIFT) + {32'd0, beat};
  wire outside_read = |from[39:BITS];
  wire gives = some && now - head[82:51] < 32'h80000000 && (~rvalid | rready);
  wire ends = beat == head[47:40];
  soc_fifo #(.WIDTH(83), .DEPTH(64)) reads (
    .clk(clk), .rst(rst), .put(arvalid), .tail({now + LATENCY, arid, arlen, araddr}), .room(arready),
    .take(gives & ends), .head(head), .some(some));

  // Writes: the address comes no later than the data.
  wire [42:0] at;
  wire written;
  reg [7:0] write_beat;
  reg outside;
  wire [39:0] to = (at[39:0] >> SHIFT) + {32'd0, write_beat};
  wire moves = wvalid & wready;
  wire bad = outside | |to[39:BITS];
  assign wready = written & (~bvalid | bready);
  soc_fifo #(.WIDTH(43), .DEPTH(4)) writes (
    .clk(clk), .rst(rst), .put(awvalid), .tail({awid, awaddr}), .room(awready),
    .take(moves & wlast), .head(at), .some(written));

  integer k;
  always @(posedge clk) begin
    now <= now + 1'b1;
    if (rready) rvalid <= 1'b0;
    if (gives) begin
      rvalid <= 1'b1;
      rdata <= outside_read ? {BYTES{8'h00}} : words[from[BITS-1:0]];
      rresp <= outside_read ? DECERR : OKAY;
      rlast <= ends;
      rid <= head[50:48];
      beat <= ends ? 8'd0 : beat + 8'd1;
    end
    if (bready) bvalid <= 1'b0;
    if (moves) begin
      for (k = 0; k < BYTES; k = k + 1)
        if (wstrb[k] & ~bad) words[to[BITS-1:0]][8*k +: 8] <= wdata[8*k +: 8];
      write_beat <= wlast ? 8'd0 : write_beat + 8'd1;
      outside <= ~wlast & bad;
      bvalid <= wlast;
      bresp <= bad ? DECERR : OKAY;
      bid <= at[42:40];
    end
    if (rst) begin
      now <= 0;
      beat <= 0;
      rvalid <= 1'b0;
      write_beat <= 0;
      outside <= 1'b0;
      bvalid <= 1'b0;
    end
  end
endmodule
