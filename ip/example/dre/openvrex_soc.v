// An example SoC: a DRE, an interconnect, a memory. The CPU and the GPU or NPU are outside of it (main.cpp): the
// AXI4-Lite port, `irq` and the two streams are what they see. In a SoC of your own, their ports go where these go.
module openvrex_soc #(
  parameter BYTES = 8, SIZE = 1 << 24, LATENCY = 20, ADDRESS_BITS = 10, K_DATA = 16, K_USER = 20, S_DATA = 64, S_USER = 3
) (
  input wire aclk, input wire aresetn, output wire irq,
  input wire [ADDRESS_BITS-1:0] s_axi_awaddr, input wire s_axi_awvalid, output wire s_axi_awready,
  input wire [31:0] s_axi_wdata, input wire s_axi_wvalid, output wire s_axi_wready,
  output wire [1:0] s_axi_bresp, output wire s_axi_bvalid, input wire s_axi_bready,
  input wire [ADDRESS_BITS-1:0] s_axi_araddr, input wire s_axi_arvalid, output wire s_axi_arready,
  output wire [31:0] s_axi_rdata, output wire [1:0] s_axi_rresp, output wire s_axi_rvalid, input wire s_axi_rready,
  input wire [K_DATA-1:0] s_axis_k_tdata, input wire [K_USER-1:0] s_axis_k_tuser, input wire s_axis_k_tlast,
  input wire s_axis_k_tvalid, output wire s_axis_k_tready,
  input wire [S_DATA-1:0] s_axis_s_tdata, input wire [S_USER-1:0] s_axis_s_tuser, input wire s_axis_s_tlast,
  input wire s_axis_s_tvalid, output wire s_axis_s_tready
);
  // The DRE's managers side by side: {t_axi, m_axi}.
  wire [1:0] arvalid, arready, arid, rvalid, rready, rlast, rid, awvalid, awready, awid, wvalid, wready, wlast, bvalid,
    bready, bid;
  wire [79:0] araddr, awaddr;
  wire [15:0] arlen, awlen;
  wire [16*BYTES-1:0] rdata, wdata;
  wire [2*BYTES-1:0] wstrb;
  wire [3:0] rresp, bresp;

  openvrex_dre dre (
    .aclk(aclk), .aresetn(aresetn), .irq(irq),
    .s_axi_awaddr(s_axi_awaddr), .s_axi_awprot(3'd0), .s_axi_awvalid(s_axi_awvalid), .s_axi_awready(s_axi_awready),
    .s_axi_wdata(s_axi_wdata), .s_axi_wstrb(4'hf), .s_axi_wvalid(s_axi_wvalid), .s_axi_wready(s_axi_wready),
    .s_axi_bresp(s_axi_bresp), .s_axi_bvalid(s_axi_bvalid), .s_axi_bready(s_axi_bready),
    .s_axi_araddr(s_axi_araddr), .s_axi_arprot(3'd0), .s_axi_arvalid(s_axi_arvalid), .s_axi_arready(s_axi_arready),
    .s_axi_rdata(s_axi_rdata), .s_axi_rresp(s_axi_rresp), .s_axi_rvalid(s_axi_rvalid), .s_axi_rready(s_axi_rready),
    .s_axis_k_tdata(s_axis_k_tdata), .s_axis_k_tuser(s_axis_k_tuser), .s_axis_k_tlast(s_axis_k_tlast),
    .s_axis_k_tvalid(s_axis_k_tvalid), .s_axis_k_tready(s_axis_k_tready),
    .s_axis_s_tdata(s_axis_s_tdata), .s_axis_s_tuser(s_axis_s_tuser), .s_axis_s_tlast(s_axis_s_tlast),
    .s_axis_s_tvalid(s_axis_s_tvalid), .s_axis_s_tready(s_axis_s_tready),

    .m_axi_arid(arid[0]), .m_axi_araddr(araddr[39:0]), .m_axi_arlen(arlen[7:0]), .m_axi_arsize(), .m_axi_arburst(),
    .m_axi_arlock(), .m_axi_arcache(), .m_axi_arprot(), .m_axi_arvalid(arvalid[0]), .m_axi_arready(arready[0]),
    .m_axi_rid(rid[0]), .m_axi_rdata(rdata[8*BYTES-1:0*BYTES]), .m_axi_rresp(rresp[1:0]), .m_axi_rlast(rlast[0]),
    .m_axi_rvalid(rvalid[0]), .m_axi_rready(rready[0]),
    .m_axi_awid(awid[0]), .m_axi_awaddr(awaddr[39:0]), .m_axi_awlen(awlen[7:0]), .m_axi_awsize(), .m_axi_awburst(),
    .m_axi_awlock(), .m_axi_awcache(), .m_axi_awprot(), .m_axi_awvalid(awvalid[0]), .m_axi_awready(awready[0]),
    .m_axi_wdata(wdata[8*BYTES-1:0*BYTES]), .m_axi_wstrb(wstrb[1*BYTES-1:0*BYTES]), .m_axi_wlast(wlast[0]),
    .m_axi_wvalid(wvalid[0]), .m_axi_wready(wready[0]),
    .m_axi_bid(bid[0]), .m_axi_bresp(bresp[1:0]), .m_axi_bvalid(bvalid[0]), .m_axi_bready(bready[0]),

    .t_axi_arid(arid[1]), .t_axi_araddr(araddr[79:40]), .t_axi_arlen(arlen[15:8]), .t_axi_arsize(), .t_axi_arburst(),
    .t_axi_arlock(), .t_axi_arcache(), .t_axi_arprot(), .t_axi_arvalid(arvalid[1]), .t_axi_arready(arready[1]),
    .t_axi_rid(rid[1]), .t_axi_rdata(rdata[16*BYTES-1:8*BYTES]), .t_axi_rresp(rresp[3:2]), .t_axi_rlast(rlast[1]),
    .t_axi_rvalid(rvalid[1]), .t_axi_rready(rready[1]),
    .t_axi_awid(awid[1]), .t_axi_awaddr(awaddr[79:40]), .t_axi_awlen(awlen[15:8]), .t_axi_awsize(), .t_axi_awburst(),
    .t_axi_awlock(), .t_axi_awcache(), .t_axi_awprot(), .t_axi_awvalid(awvalid[1]), .t_axi_awready(awready[1]),
    .t_axi_wdata(wdata[16*BYTES-1:8*BYTES]), .t_axi_wstrb(wstrb[2*BYTES-1:1*BYTES]), .t_axi_wlast(wlast[1]),
    .t_axi_wvalid(wvalid[1]), .t_axi_wready(wready[1]),
    .t_axi_bid(bid[1]), .t_axi_bresp(bresp[3:2]), .t_axi_bvalid(bvalid[1]), .t_axi_bready(bready[1]));

  wire m_arvalid, m_arready, m_rvalid, m_rready, m_rlast, m_awvalid, m_awready, m_wvalid, m_wready, m_wlast, m_bvalid,
    m_bready;
  wire [39:0] m_araddr, m_awaddr;
  wire [7:0] m_arlen, m_awlen;
  wire [2:0] m_arid, m_rid, m_awid, m_bid;
  wire [1:0] m_rresp, m_bresp;
  wire [8*BYTES-1:0] m_rdata, m_wdata;
  wire [BYTES-1:0] m_wstrb;

  soc_interconnect #(.BYTES(BYTES), .MANAGERS(2)) network (
    .clk(aclk), .rst(~aresetn),
    .s_arvalid(arvalid), .s_arready(arready), .s_araddr(araddr), .s_arlen(arlen), .s_arid(arid),
    .s_rvalid(rvalid), .s_rready(rready), .s_rdata(rdata), .s_rresp(rresp), .s_rlast(rlast), .s_rid(rid),
    .s_awvalid(awvalid), .s_awready(awready), .s_awaddr(awaddr), .s_awlen(awlen), .s_awid(awid),
    .s_wvalid(wvalid), .s_wready(wready), .s_wdata(wdata), .s_wstrb(wstrb), .s_wlast(wlast),
    .s_bvalid(bvalid), .s_bready(bready), .s_bresp(bresp), .s_bid(bid),
    .m_arvalid(m_arvalid), .m_arready(m_arready), .m_araddr(m_araddr), .m_arlen(m_arlen), .m_arid(m_arid),
    .m_rvalid(m_rvalid), .m_rready(m_rready), .m_rdata(m_rdata), .m_rresp(m_rresp), .m_rlast(m_rlast), .m_rid(m_rid),
    .m_awvalid(m_awvalid), .m_awready(m_awready), .m_awaddr(m_awaddr), .m_awlen(m_awlen), .m_awid(m_awid),
    .m_wvalid(m_wvalid), .m_wready(m_wready), .m_wdata(m_wdata), .m_wstrb(m_wstrb), .m_wlast(m_wlast),
    .m_bvalid(m_bvalid), .m_bready(m_bready), .m_bresp(m_bresp), .m_bid(m_bid));

  soc_memory #(.BYTES(BYTES), .SIZE(SIZE), .LATENCY(LATENCY)) memory (
    .clk(aclk), .rst(~aresetn),
    .arvalid(m_arvalid), .arready(m_arready), .araddr(m_araddr), .arlen(m_arlen), .arid(m_arid),
    .rvalid(m_rvalid), .rready(m_rready), .rdata(m_rdata), .rresp(m_rresp), .rlast(m_rlast), .rid(m_rid),
    .awvalid(m_awvalid), .awready(m_awready), .awaddr(m_awaddr), .awlen(m_awlen), .awid(m_awid),
    .wvalid(m_wvalid), .wready(m_wready), .wdata(m_wdata), .wstrb(m_wstrb), .wlast(m_wlast),
    .bvalid(m_bvalid), .bready(m_bready), .bresp(m_bresp), .bid(m_bid));
endmodule
