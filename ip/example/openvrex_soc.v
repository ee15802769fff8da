// An example SoC: a core, an interconnect, a memory. The CPU is outside of it (main.cpp): the AXI4-Lite port and `irq`
// are what it sees. In a SoC of your own, its bus goes where these ports go.
module openvrex_soc #(parameter BYTES = 8, SIZE = 1 << 24, LATENCY = 20, ADDRESS_BITS = 17) (
  input wire aclk, input wire aresetn, output wire irq,
  input wire [ADDRESS_BITS-1:0] s_axi_awaddr, input wire s_axi_awvalid, output wire s_axi_awready,
  input wire [31:0] s_axi_wdata, input wire s_axi_wvalid, output wire s_axi_wready,
  output wire [1:0] s_axi_bresp, output wire s_axi_bvalid, input wire s_axi_bready,
  input wire [ADDRESS_BITS-1:0] s_axi_araddr, input wire s_axi_arvalid, output wire s_axi_arready,
  output wire [31:0] s_axi_rdata, output wire [1:0] s_axi_rresp, output wire s_axi_rvalid, input wire s_axi_rready
);
  // The core's managers side by side: {t_axi, h_axi, m_axi}.
  wire [2:0] arvalid, arready, arid, rvalid, rready, rlast, rid, awvalid, awready, awid, wvalid, wready, wlast, bvalid,
    bready, bid;
  wire [119:0] araddr, awaddr;
  wire [23:0] arlen, awlen;
  wire [24*BYTES-1:0] rdata, wdata;
  wire [3*BYTES-1:0] wstrb;
  wire [5:0] rresp, bresp;

  openvrex_core core (
    .aclk(aclk), .aresetn(aresetn), .irq(irq),
    .s_axi_awaddr(s_axi_awaddr), .s_axi_awprot(3'd0), .s_axi_awvalid(s_axi_awvalid), .s_axi_awready(s_axi_awready),
    .s_axi_wdata(s_axi_wdata), .s_axi_wstrb(4'hf), .s_axi_wvalid(s_axi_wvalid), .s_axi_wready(s_axi_wready),
    .s_axi_bresp(s_axi_bresp), .s_axi_bvalid(s_axi_bvalid), .s_axi_bready(s_axi_bready),
    .s_axi_araddr(s_axi_araddr), .s_axi_arprot(3'd0), .s_axi_arvalid(s_axi_arvalid), .s_axi_arready(s_axi_arready),
    .s_axi_rdata(s_axi_rdata), .s_axi_rresp(s_axi_rresp), .s_axi_rvalid(s_axi_rvalid), .s_axi_rready(s_axi_rready),

    .m_axi_arid(arid[0]), .m_axi_araddr(araddr[39:0]), .m_axi_arlen(arlen[7:0]), .m_axi_arsize(), .m_axi_arburst(),
    .m_axi_arlock(), .m_axi_arcache(), .m_axi_arprot(), .m_axi_arvalid(arvalid[0]), .m_axi_arready(arready[0]),
    .m_axi_rid(rid[0]), .m_axi_rdata(rdata[8*BYTES-1:0]), .m_axi_rresp(rresp[1:0]), .m_axi_rlast(rlast[0]),
    .m_axi_rvalid(rvalid[0]), .m_axi_rready(rready[0]),
    .m_axi_awid(awid[0]), .m_axi_awaddr(awaddr[39:0]), .m_axi_awlen(awlen[7:0]), .m_axi_awsize(), .m_axi_awburst(),
    .m_axi_awlock(), .m_axi_awcache(), .m_axi_awprot(), .m_axi_awvalid(awvalid[0]), .m_axi_awready(awready[0]),
    .m_axi_wdata(wdata[8*BYTES-1:0]), .m_axi_wstrb(wstrb[BYTES-1:0]), .m_axi_wlast(wlast[0]),
    .m_axi_wvalid(wvalid[0]), .m_axi_wready(wready[0]),
    .m_axi_bid(bid[0]), .m_axi_bresp(bresp[1:0]), .m_axi_bvalid(bvalid[0]), .m_axi_bready(bready[0]),

    .h_axi_arid(arid[1]), .h_axi_araddr(araddr[79:40]), .h_axi_arlen(arlen[15:8]), .h_axi_arsize(), .h_axi_arburst(),
    .h_axi_arlock(), .h_axi_arcache(), .h_axi_arprot(), .h_axi_arvalid(arvalid[1]), .h_axi_arready(arready[1]),
    .h_axi_rid(rid[1]), .h_axi_rdata(rdata[16*BYTES-1:8*BYTES]), .h_axi_rresp(rresp[3:2]), .h_axi_rlast(rlast[1]),
    .h_axi_rvalid(rvalid[1]), .h_axi_rready(rready[1]),
    .h_axi_awid(awid[1]), .h_axi_awaddr(awaddr[79:40]), .h_axi_awlen(awlen[15:8]), .h_axi_awsize(), .h_axi_awburst(),
    .h_axi_awlock(), .h_axi_awcache(), .h_axi_awprot(), .h_axi_awvalid(awvalid[1]), .h_axi_awready(awready[1]),
    .h_axi_wdata(wdata[16*BYTES-1:8*BYTES]), .h_axi_wstrb(wstrb[2*BYTES-1:BYTES]), .h_axi_wlast(wlast[1]),
    .h_axi_wvalid(wvalid[1]), .h_axi_wready(wready[1]),
    .h_axi_bid(bid[1]), .h_axi_bresp(bresp[3:2]), .h_axi_bvalid(bvalid[1]), .h_axi_bready(bready[1]),

    .t_axi_arid(arid[2]), .t_axi_araddr(araddr[119:80]), .t_axi_arlen(arlen[23:16]), .t_axi_arsize(), .t_axi_arburst(),
    .t_axi_arlock(), .t_axi_arcache(), .t_axi_arprot(), .t_axi_arvalid(arvalid[2]), .t_axi_arready(arready[2]),
    .t_axi_rid(rid[2]), .t_axi_rdata(rdata[24*BYTES-1:16*BYTES]), .t_axi_rresp(rresp[5:4]), .t_axi_rlast(rlast[2]),
    .t_axi_rvalid(rvalid[2]), .t_axi_rready(rready[2]),
    .t_axi_awid(awid[2]), .t_axi_awaddr(awaddr[119:80]), .t_axi_awlen(awlen[23:16]), .t_axi_awsize(), .t_axi_awburst(),
    .t_axi_awlock(), .t_axi_awcache(), .t_axi_awprot(), .t_axi_awvalid(awvalid[2]), .t_axi_awready(awready[2]),
    .t_axi_wdata(wdata[24*BYTES-1:16*BYTES]), .t_axi_wstrb(wstrb[3*BYTES-1:2*BYTES]), .t_axi_wlast(wlast[2]),
    .t_axi_wvalid(wvalid[2]), .t_axi_wready(wready[2]),
    .t_axi_bid(bid[2]), .t_axi_bresp(bresp[5:4]), .t_axi_bvalid(bvalid[2]), .t_axi_bready(bready[2]));

  wire m_arvalid, m_arready, m_rvalid, m_rready, m_rlast, m_awvalid, m_awready, m_wvalid, m_wready, m_wlast, m_bvalid,
    m_bready;
  wire [39:0] m_araddr, m_awaddr;
  wire [7:0] m_arlen, m_awlen;
  wire [2:0] m_arid, m_rid, m_awid, m_bid;
  wire [1:0] m_rresp, m_bresp;
  wire [8*BYTES-1:0] m_rdata, m_wdata;
  wire [BYTES-1:0] m_wstrb;

  soc_interconnect #(.BYTES(BYTES), .MANAGERS(3)) network (
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
