// One manager's side of the interconnect. It offers a burst to the memory only when nothing that the burst needs can be
// held up by the manager any more: a read when all its beats have room here, a write when all its beats are here. So a
// manager that takes no answer, or is late with its data, never holds up the other one.
//
// Upstream, the manager's AXI4 port. Downstream, requests `ar_*` and `aw_*`, beats of the write that was taken last
// (`w_*`), and answers, which are always taken.
module soc_port #(parameter BYTES = 8, DEPTH = 512) (
  input wire clk, input wire rst,

  input wire s_arvalid, output wire s_arready, input wire [39:0] s_araddr, input wire [7:0] s_arlen, input wire s_arid,
  output wire s_rvalid, input wire s_rready, output wire [8*BYTES-1:0] s_rdata, output wire [1:0] s_rresp,
  output wire s_rlast, output wire s_rid,
  input wire s_awvalid, output wire s_awready, input wire [39:0] s_awaddr, input wire [7:0] s_awlen, input wire s_awid,
  input wire s_wvalid, output wire s_wready, input wire [8*BYTES-1:0] s_wdata, input wire [BYTES-1:0] s_wstrb,
  input wire s_wlast,
  output wire s_bvalid, input wire s_bready, output wire [1:0] s_bresp, output wire s_bid,

  output wire ar_valid, input wire ar_take, output wire [48:0] ar,  // id, len, addr
  input wire r_valid, input wire [8*BYTES+3:0] r,                   // id, last, resp, data
  output wire aw_valid, input wire aw_take, output wire [48:0] aw,
  input wire w_take, output wire [9*BYTES:0] w,                     // last, strb, data
  input wire b_valid, input wire [2:0] b                            // id, resp
);
  localparam WRITES = 16;  // under way
  localparam BITS = $clog2(DEPTH);

  // Reads: `reserved` beats are on their way or wait here.
  wire some_ar;
  reg [BITS:0] reserved;
  wire [BITS:0] beats = {{(BITS-8){1'b0}}, {1'b0, ar[47:40]} + 9'd1};
  assign ar_valid = some_ar && reserved + beats <= DEPTH[BITS:0];
  soc_fifo #(.WIDTH(49), .DEPTH(4)) reads (
    .clk(clk), .rst(rst), .put(s_arvalid), .tail({s_arid, s_arlen, s_araddr}), .room(s_arready),
    .take(ar_take), .head(ar), .some(some_ar));
  soc_fifo #(.WIDTH(8*BYTES + 4), .DEPTH(DEPTH)) answers (
    .clk(clk), .rst(rst), .put(r_valid), .tail(r), .room(),
    .take(s_rready), .head({s_rid, s_rlast, s_rresp, s_rdata}), .some(s_rvalid));

  // Writes: `whole` bursts are here, `under_way` ones have not been answered to the manager.
  wire some_aw;
  reg [BITS:0] whole;
  reg [$clog2(WRITES):0] under_way;
  wire ends = s_wvalid & s_wready & s_wlast;
  assign aw_valid = some_aw && whole != 0 && under_way != WRITES[$clog2(WRITES):0];
  soc_fifo #(.WIDTH(49), .DEPTH(4)) writes (
    .clk(clk), .rst(rst), .put(s_awvalid), .tail({s_awid, s_awlen, s_awaddr}), .room(s_awready),
    .take(aw_take), .head(aw), .some(some_aw));
  soc_fifo #(.WIDTH(9*BYTES + 1), .DEPTH(DEPTH)) beats_written (
    .clk(clk), .rst(rst), .put(s_wvalid), .tail({s_wlast, s_wstrb, s_wdata}), .room(s_wready),
    .take(w_take), .head(w), .some());
  soc_fifo #(.WIDTH(3), .DEPTH(WRITES)) responses (
    .clk(clk), .rst(rst), .put(b_valid), .tail(b), .room(),
    .take(s_bready), .head({s_bid, s_bresp}), .some(s_bvalid));

  always @(posedge clk) begin
    reserved <= reserved + (ar_take ? beats : {(BITS+1){1'b0}}) - {{BITS{1'b0}}, s_rvalid & s_rready};
    whole <= whole + {{BITS{1'b0}}, ends} - {{BITS{1'b0}}, aw_take};
    under_way <= under_way + {{$clog2(WRITES){1'b0}}, aw_take} - {{$clog2(WRITES){1'b0}}, s_bvalid & s_bready};
    if (rst) begin
      reserved <= 0;
      whole <= 0;
      under_way <= 0;
    end
  end
endmodule
