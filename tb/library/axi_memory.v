// A memory behind the two AXI4 ports of a core, for runs that are too long for a memory in Python.
//
// It answers the bursts of a port in order. The first beat of a read comes LATENCY cycles after its address, then a beat
// each cycle; a write is answered in the cycle after its last beat. Both ports see the same words.
//
// When `run` becomes k, the memory reads memory<k>.hex (addresses in words of BYTES bytes) and writes "run k" to
// writes.log. Then it writes a line for every beat written: port, word, strobes and data in hexadecimal. At the end of
// a simulation `run` becomes 0, and the log is complete. Files are in the working directory.
module axi_memory #(parameter BYTES = 64, WORDS = 1, LATENCY = 32, PORTS = 2, DEPTH = 16) (
  input clk, input rst, input [15:0] run,
  input [PORTS-1:0] arvalid, output [PORTS-1:0] arready, input [PORTS*40-1:0] araddr, input [PORTS*8-1:0] arlen,
  output reg [PORTS-1:0] rvalid, input [PORTS-1:0] rready, output reg [PORTS*8*BYTES-1:0] rdata,
  output reg [PORTS-1:0] rlast,
  input [PORTS-1:0] awvalid, output [PORTS-1:0] awready, input [PORTS*40-1:0] awaddr,
  input [PORTS-1:0] wvalid, output [PORTS-1:0] wready, input [PORTS*8*BYTES-1:0] wdata, input [PORTS*BYTES-1:0] wstrb,
  input [PORTS-1:0] wlast,
  output [PORTS-1:0] bvalid, input [PORTS-1:0] bready
);
  localparam SHIFT = $clog2(BYTES);
  reg [8*BYTES-1:0] mem [0:WORDS-1];
  reg [31:0] now;
  reg [15:0] last;
  integer out;

  always @(posedge clk) begin
    now <= rst ? 0 : now + 1;
    last <= rst ? 0 : run;
    if (!rst && run != last) begin
      if (last == 0) out = $fopen("writes.log", "w");
      if (run == 0) $fclose(out);
      else begin
        $readmemh($sformatf("memory%0d.hex", run), mem);
        $fdisplay(out, "run %0d", run);
      end
    end
  end

  genvar p, k;
  generate for (p = 0; p < PORTS; p = p + 1) begin : port
    reg [39:0] read_at [0:DEPTH-1], write_at [0:DEPTH-1];
    reg [7:0] read_len [0:DEPTH-1];
    reg [31:0] due [0:DEPTH-1];
    reg [$clog2(DEPTH):0] asked, read, announced, written, answered;
    reg [7:0] beat, write_beat;
    wire [$clog2(DEPTH)-1:0] r = read[$clog2(DEPTH)-1:0], w = written[$clog2(DEPTH)-1:0];
    wire [39:0] from = (read_at[r] >> SHIFT) + beat, to = (write_at[w] >> SHIFT) + write_beat;
    wire [8*BYTES-1:0] mask;
    for (k = 0; k < BYTES; k = k + 1) assign mask[8*k +: 8] = {8{wstrb[p*BYTES + k]}};
    wire moves = rready[p] | ~rvalid[p];
    wire gives = moves && asked != read && $signed(now - due[r]) >= 0;
    wire [$clog2(DEPTH):0] reads = asked - read, writes = announced - answered;
    assign arready[p] = reads < DEPTH;
    assign awready[p] = writes < DEPTH;
    assign wready[p] = announced != written;
    assign bvalid[p] = written != answered;
    always @(posedge clk) begin
      if (moves) begin
        rvalid[p] <= gives;
        rdata[p*8*BYTES +: 8*BYTES] <= mem[from];
        rlast[p] <= beat == read_len[r];
      end
      if (gives) begin
        beat <= beat == read_len[r] ? 0 : beat + 1;
        if (beat == read_len[r]) read <= read + 1;
      end
      if (arvalid[p] & arready[p]) begin
        read_at[asked[$clog2(DEPTH)-1:0]] <= araddr[p*40 +: 40];
        read_len[asked[$clog2(DEPTH)-1:0]] <= arlen[p*8 +: 8];
        due[asked[$clog2(DEPTH)-1:0]] <= now + LATENCY;
        asked <= asked + 1;
      end
      if (awvalid[p] & awready[p]) begin
        write_at[announced[$clog2(DEPTH)-1:0]] <= awaddr[p*40 +: 40];
        announced <= announced + 1;
      end
      if (wvalid[p] & wready[p]) begin
        mem[to] <= (mem[to] & ~mask) | (wdata[p*8*BYTES +: 8*BYTES] & mask);
        $fdisplay(out, "%0h %h %h %h", p, to, wstrb[p*BYTES +: BYTES], wdata[p*8*BYTES +: 8*BYTES]);
        write_beat <= wlast[p] ? 0 : write_beat + 1;
        if (wlast[p]) written <= written + 1;
      end
      if (bvalid[p] & bready[p]) answered <= answered + 1;
      if (rst) begin
        rvalid[p] <= 0;
        {asked, read, announced, written, answered} <= 0;
        {beat, write_beat} <= 0;
      end
    end
  end endgenerate
endmodule
