// An example SoC: a motion mask. The CPU, the video decoder and the vision encoder are outside of it (main.cpp): the
// AXI4-Lite port, `irq` and the two streams are what they see. In a SoC of your own, their ports go where these go.
module openvrex_soc #(parameter ADDRESS_BITS = 8, B_DATA = 80, M_DATA = 8) (
  input wire aclk, input wire aresetn, output wire irq,
  input wire [ADDRESS_BITS-1:0] s_axi_awaddr, input wire s_axi_awvalid, output wire s_axi_awready,
  input wire [31:0] s_axi_wdata, input wire s_axi_wvalid, output wire s_axi_wready,
  output wire [1:0] s_axi_bresp, output wire s_axi_bvalid, input wire s_axi_bready,
  input wire [ADDRESS_BITS-1:0] s_axi_araddr, input wire s_axi_arvalid, output wire s_axi_arready,
  output wire [31:0] s_axi_rdata, output wire [1:0] s_axi_rresp, output wire s_axi_rvalid, input wire s_axi_rready,
  input wire [B_DATA-1:0] s_axis_b_tdata, input wire s_axis_b_tlast, input wire s_axis_b_tvalid,
  output wire s_axis_b_tready,
  output wire [M_DATA-1:0] m_axis_m_tdata, output wire m_axis_m_tuser, output wire m_axis_m_tlast,
  output wire m_axis_m_tvalid, input wire m_axis_m_tready
);
  openvrex_motion_mask mask (
    .aclk(aclk), .aresetn(aresetn), .irq(irq),
    .s_axi_awaddr(s_axi_awaddr), .s_axi_awprot(3'd0), .s_axi_awvalid(s_axi_awvalid), .s_axi_awready(s_axi_awready),
    .s_axi_wdata(s_axi_wdata), .s_axi_wstrb(4'hf), .s_axi_wvalid(s_axi_wvalid), .s_axi_wready(s_axi_wready),
    .s_axi_bresp(s_axi_bresp), .s_axi_bvalid(s_axi_bvalid), .s_axi_bready(s_axi_bready),
    .s_axi_araddr(s_axi_araddr), .s_axi_arprot(3'd0), .s_axi_arvalid(s_axi_arvalid), .s_axi_arready(s_axi_arready),
    .s_axi_rdata(s_axi_rdata), .s_axi_rresp(s_axi_rresp), .s_axi_rvalid(s_axi_rvalid), .s_axi_rready(s_axi_rready),
    .s_axis_b_tdata(s_axis_b_tdata), .s_axis_b_tlast(s_axis_b_tlast), .s_axis_b_tvalid(s_axis_b_tvalid),
    .s_axis_b_tready(s_axis_b_tready),
    .m_axis_m_tdata(m_axis_m_tdata), .m_axis_m_tuser(m_axis_m_tuser), .m_axis_m_tlast(m_axis_m_tlast),
    .m_axis_m_tvalid(m_axis_m_tvalid), .m_axis_m_tready(m_axis_m_tready));
endmodule
