// AXI4 managers on one memory, in turns. Ports of the managers stand side by side, the first one's in the lowest bits.
// The memory's ID is the manager's number and the manager's ID. Beats of writes follow in the order of their addresses,
// burst by burst.
module soc_interconnect #(parameter BYTES = 8, MANAGERS = 3) (
  input wire clk, input wire rst,

  input wire [MANAGERS-1:0] s_arvalid, output wire [MANAGERS-1:0] s_arready, input wire [40*MANAGERS-1:0] s_araddr,
  input wire [8*MANAGERS-1:0] s_arlen, input wire [MANAGERS-1:0] s_arid,
  output wire [MANAGERS-1:0] s_rvalid, input wire [MANAGERS-1:0] s_rready,
  output wire [8*BYTES*MANAGERS-1:0] s_rdata, output wire [2*MANAGERS-1:0] s_rresp,
  output wire [MANAGERS-1:0] s_rlast, output wire [MANAGERS-1:0] s_rid,
  input wire [MANAGERS-1:0] s_awvalid, output wire [MANAGERS-1:0] s_awready, input wire [40*MANAGERS-1:0] s_awaddr,
  input wire [8*MANAGERS-1:0] s_awlen, input wire [MANAGERS-1:0] s_awid,
  input wire [MANAGERS-1:0] s_wvalid, output wire [MANAGERS-1:0] s_wready,
  input wire [8*BYTES*MANAGERS-1:0] s_wdata, input wire [BYTES*MANAGERS-1:0] s_wstrb,
  input wire [MANAGERS-1:0] s_wlast,
  output wire [MANAGERS-1:0] s_bvalid, input wire [MANAGERS-1:0] s_bready, output wire [2*MANAGERS-1:0] s_bresp,
  output wire [MANAGERS-1:0] s_bid,

  output reg m_arvalid, input wire m_arready, output reg [39:0] m_araddr, output reg [7:0] m_arlen,
  output reg [2:0] m_arid,
  input wire m_rvalid, output wire m_rready, input wire [8*BYTES-1:0] m_rdata, input wire [1:0] m_rresp,
  input wire m_rlast, input wire [2:0] m_rid,
  output reg m_awvalid, input wire m_awready, output reg [39:0] m_awaddr, output reg [7:0] m_awlen,
  output reg [2:0] m_awid,
  output wire m_wvalid, input wire m_wready, output wire [8*BYTES-1:0] m_wdata, output wire [BYTES-1:0] m_wstrb,
  output wire m_wlast,
  input wire m_bvalid, output wire m_bready, input wire [1:0] m_bresp, input wire [2:0] m_bid
);
  wire [MANAGERS-1:0] ar_valid, ar_take, aw_valid, aw_take, w_take, r_valid, b_valid;
  wire [49*MANAGERS-1:0] ar, aw;
  wire [(9*BYTES+1)*MANAGERS-1:0] w;

  genvar i;
  generate for (i = 0; i < MANAGERS; i = i + 1) begin : manager
    soc_port #(.BYTES(BYTES)) port (
      .clk(clk), .rst(rst),
      .s_arvalid(s_arvalid[i]), .s_arready(s_arready[i]), .s_araddr(s_araddr[40*i +: 40]), .s_arlen(s_arlen[8*i +: 8]),
      .s_arid(s_arid[i]),
      .s_rvalid(s_rvalid[i]), .s_rready(s_rready[i]), .s_rdata(s_rdata[8*BYTES*i +: 8*BYTES]),
      .s_rresp(s_rresp[2*i +: 2]), .s_rlast(s_rlast[i]), .s_rid(s_rid[i]),
      .s_awvalid(s_awvalid[i]), .s_awready(s_awready[i]), .s_awaddr(s_awaddr[40*i +: 40]), .s_awlen(s_awlen[8*i +: 8]),
      .s_awid(s_awid[i]),
      .s_wvalid(s_wvalid[i]), .s_wready(s_wready[i]), .s_wdata(s_wdata[8*BYTES*i +: 8*BYTES]),
      .s_wstrb(s_wstrb[BYTES*i +: BYTES]), .s_wlast(s_wlast[i]),
      .s_bvalid(s_bvalid[i]), .s_bready(s_bready[i]), .s_bresp(s_bresp[2*i +: 2]), .s_bid(s_bid[i]),
      .ar_valid(ar_valid[i]), .ar_take(ar_take[i]), .ar(ar[49*i +: 49]),
      .r_valid(r_valid[i]), .r({m_rid[0], m_rlast, m_rresp, m_rdata}),
      .aw_valid(aw_valid[i]), .aw_take(aw_take[i]), .aw(aw[49*i +: 49]),
      .w_take(w_take[i]), .w(w[(9*BYTES+1)*i +: 9*BYTES+1]),
      .b_valid(b_valid[i]), .b({m_bid[0], m_bresp}));
  end endgenerate

  // The manager whose turn it is: the first after `last` that has something; `last` again where nobody else has.
  function [1:0] turn(input [MANAGERS-1:0] valid, input [1:0] last);
    integer k, n;
    begin
      turn = last;
      for (k = MANAGERS - 1; k > 0; k = k - 1) begin
        n = ({30'd0, last} + k) % MANAGERS;
        if (|(valid & one(1'b1, n[1:0]))) turn = n[1:0];
      end
    end
  endfunction

  // A manager's bit.
  function [MANAGERS-1:0] one(input take, input [1:0] manager);
    integer k;
    for (k = 0; k < MANAGERS; k = k + 1)
      one[k] = take && manager == k[1:0];
  endfunction

  // Reads.
  reg [1:0] last_read;
  wire [1:0] reader = turn(ar_valid, last_read);
  wire reads = |(ar_valid & one(1'b1, reader)) & (~m_arvalid | m_arready);
  assign ar_take = one(reads, reader);
  assign m_rready = 1'b1;
  assign r_valid = one(m_rvalid, m_rid[2:1]);

  // Writes: a burst's address, and its beats, which are all there; then the next one's.
  reg [1:0] last_write, writer;
  reg writing;
  wire [1:0] chosen = turn(aw_valid, last_write);
  wire ends = m_wvalid & m_wready & m_wlast;
  wire begins = |(aw_valid & one(1'b1, chosen)) & ~writing & (~m_awvalid | m_awready);
  assign aw_take = one(begins, chosen);
  assign m_wvalid = writing;
  assign {m_wlast, m_wstrb, m_wdata} = w[(9*BYTES+1)*writer +: 9*BYTES+1];
  assign w_take = one(m_wvalid & m_wready, writer);
  assign m_bready = 1'b1;
  assign b_valid = one(m_bvalid, m_bid[2:1]);

  always @(posedge clk) begin
    if (m_arready) m_arvalid <= 1'b0;
    if (reads) begin
      m_arvalid <= 1'b1;
      {m_arid[0], m_arlen, m_araddr} <= ar[49*reader +: 49];
      m_arid[2:1] <= reader;
      last_read <= reader;
    end
    if (m_awready) m_awvalid <= 1'b0;
    if (ends) writing <= 1'b0;
    if (begins) begin
      m_awvalid <= 1'b1;
      {m_awid[0], m_awlen, m_awaddr} <= aw[49*chosen +: 49];
      m_awid[2:1] <= chosen;
      writing <= 1'b1;
      writer <= chosen;
      last_write <= chosen;
    end
    if (rst) begin
      m_arvalid <= 1'b0;
      m_awvalid <= 1'b0;
      writing <= 1'b0;
      last_read <= 2'd0;
      last_write <= 2'd0;
    end
  end
endmodule
