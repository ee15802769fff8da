// Two AXI4 managers on one memory, in turns. Ports of the managers stand side by side: {second, first}. The memory's ID
// is the manager's number and the manager's ID. Beats of writes follow in the order of their addresses, burst by burst.
module soc_interconnect #(parameter BYTES = 8) (
  input wire clk, input wire rst,

  input wire [1:0] s_arvalid, output wire [1:0] s_arready, input wire [79:0] s_araddr, input wire [15:0] s_arlen,
  input wire [1:0] s_arid,
  output wire [1:0] s_rvalid, input wire [1:0] s_rready, output wire [16*BYTES-1:0] s_rdata, output wire [3:0] s_rresp,
  output wire [1:0] s_rlast, output wire [1:0] s_rid,
  input wire [1:0] s_awvalid, output wire [1:0] s_awready, input wire [79:0] s_awaddr, input wire [15:0] s_awlen,
  input wire [1:0] s_awid,
  input wire [1:0] s_wvalid, output wire [1:0] s_wready, input wire [16*BYTES-1:0] s_wdata,
  input wire [2*BYTES-1:0] s_wstrb, input wire [1:0] s_wlast,
  output wire [1:0] s_bvalid, input wire [1:0] s_bready, output wire [3:0] s_bresp, output wire [1:0] s_bid,

  output reg m_arvalid, input wire m_arready, output reg [39:0] m_araddr, output reg [7:0] m_arlen,
  output reg [1:0] m_arid,
  input wire m_rvalid, output wire m_rready, input wire [8*BYTES-1:0] m_rdata, input wire [1:0] m_rresp,
  input wire m_rlast, input wire [1:0] m_rid,
  output reg m_awvalid, input wire m_awready, output reg [39:0] m_awaddr, output reg [7:0] m_awlen,
  output reg [1:0] m_awid,
  output wire m_wvalid, input wire m_wready, output wire [8*BYTES-1:0] m_wdata, output wire [BYTES-1:0] m_wstrb,
  output wire m_wlast,
  input wire m_bvalid, output wire m_bready, input wire [1:0] m_bresp, input wire [1:0] m_bid
);
  wire [1:0] ar_valid, ar_take, aw_valid, aw_take, w_take, r_valid, b_valid;
  wire [97:0] ar, aw;
  wire [2*(9*BYTES+1)-1:0] w;

  genvar i;
  generate for (i = 0; i < 2; i = i + 1) begin : manager
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

  // Reads: whoever was not last comes first.
  reg last_read;
  wire reader = ar_valid[~last_read] ? ~last_read : last_read;
  wire reads = ar_valid[reader] & (~m_arvalid | m_arready);
  assign ar_take = {reads & reader, reads & ~reader};
  assign m_rready = 1'b1;
  assign r_valid = {m_rvalid & m_rid[1], m_rvalid & ~m_rid[1]};

  // Writes: a burst's address, and its beats, which are all there; then the next one's.
  reg last_write, writing, writer;
  wire chosen = aw_valid[~last_write] ? ~last_write : last_write;
  wire ends = m_wvalid & m_wready & m_wlast;
  wire begins = aw_valid[chosen] & ~writing & (~m_awvalid | m_awready);
  assign aw_take = {begins & chosen, begins & ~chosen};
  assign m_wvalid = writing;
  assign {m_wlast, m_wstrb, m_wdata} = writer ? w[9*BYTES+1 +: 9*BYTES+1] : w[0 +: 9*BYTES+1];
  assign w_take = {m_wvalid & m_wready & writer, m_wvalid & m_wready & ~writer};
  assign m_bready = 1'b1;
  assign b_valid = {m_bvalid & m_bid[1], m_bvalid & ~m_bid[1]};

  always @(posedge clk) begin
    if (m_arready) m_arvalid <= 1'b0;
    if (reads) begin
      m_arvalid <= 1'b1;
      {m_arid[0], m_arlen, m_araddr} <= reader ? ar[97:49] : ar[48:0];
      m_arid[1] <= reader;
      last_read <= reader;
    end
    if (m_awready) m_awvalid <= 1'b0;
    if (ends) writing <= 1'b0;
    if (begins) begin
      m_awvalid <= 1'b1;
      {m_awid[0], m_awlen, m_awaddr} <= chosen ? aw[97:49] : aw[48:0];
      m_awid[1] <= chosen;
      writing <= 1'b1;
      writer <= chosen;
      last_write <= chosen;
    end
    if (rst) begin
      m_arvalid <= 1'b0;
      m_awvalid <= 1'b0;
      writing <= 1'b0;
      last_read <= 1'b0;
      last_write <= 1'b0;
    end
  end
endmodule
