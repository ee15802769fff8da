// A memory behind the AXI4 ports of a core, and what starts and watches a program, for `tb.library.core_simulator`.
// Nothing here is synthesized.

// Answers the bursts of each port in order. The first beat of a read comes LATENCY cycles after its address, then a beat
// each cycle; the response of a write comes LATENCY cycles after its last beat. All ports see the same bytes, which are
// in core_run.cpp.
module axi_memory #(parameter BYTES = 64, LATENCY = 32, PORTS = 2, DEPTH = 64) (
  input clk, input rst,
  input [PORTS-1:0] arvalid, output [PORTS-1:0] arready, input [PORTS*40-1:0] araddr, input [PORTS*8-1:0] arlen,
  output reg [PORTS-1:0] rvalid, input [PORTS-1:0] rready, output reg [PORTS*8*BYTES-1:0] rdata,
  output reg [PORTS-1:0] rlast,
  input [PORTS-1:0] awvalid, output [PORTS-1:0] awready, input [PORTS*40-1:0] awaddr,
  input [PORTS-1:0] wvalid, output [PORTS-1:0] wready, input [PORTS*8*BYTES-1:0] wdata, input [PORTS*BYTES-1:0] wstrb,
  input [PORTS-1:0] wlast,
  output [PORTS-1:0] bvalid, input [PORTS-1:0] bready
);
  localparam SHIFT = $clog2(BYTES);
  import "DPI-C" function void memory_open(input int bytes);
  import "DPI-C" function void memory_read(input longint word, output bit [8*BYTES-1:0] data);
  import "DPI-C" function void memory_write(
    input int port, input longint word, input bit [BYTES-1:0] strobes, input bit [8*BYTES-1:0] data);
  reg [31:0] now;
  initial memory_open(BYTES);
  always @(posedge clk) now <= rst ? 0 : now + 1;

  genvar p;
  generate for (p = 0; p < PORTS; p = p + 1) begin : port
    reg [39:0] read_at [0:DEPTH-1], write_at [0:DEPTH-1];
    reg [7:0] read_len [0:DEPTH-1];
    reg [31:0] due [0:DEPTH-1], write_due [0:DEPTH-1];
    reg [$clog2(DEPTH):0] asked, read, announced, written, answered;
    reg [7:0] beat, write_beat;
    bit [8*BYTES-1:0] word;
    wire [$clog2(DEPTH)-1:0] r = read[$clog2(DEPTH)-1:0], w = written[$clog2(DEPTH)-1:0];
    // A burst's first beat may come with its address.
    wire comes = announced == written;
    wire [39:0] first = comes ? awaddr[p*40 +: 40] : write_at[w];
    wire [39:0] from = (read_at[r] >> SHIFT) + beat, to = (first >> SHIFT) + write_beat;
    wire moves = rready[p] | ~rvalid[p];
    wire gives = moves && asked != read && $signed(now - due[r]) >= 0;
    wire [$clog2(DEPTH):0] reads = asked - read, writes = announced - answered;
    assign arready[p] = reads < DEPTH;
    assign awready[p] = writes < DEPTH;
    assign wready[p] = !comes || awvalid[p] && awready[p];
    assign bvalid[p] = written != answered && $signed(now - write_due[answered[$clog2(DEPTH)-1:0]]) >= 0;
    always @(posedge clk) begin
      if (moves) begin
        rvalid[p] <= gives;
        rlast[p] <= beat == read_len[r];
      end
      if (gives) begin
        if (!rst) memory_read(64'(from), word);
        rdata[p*8*BYTES +: 8*BYTES] <= word;
        beat <= beat == read_len[r] ? 0 : beat + 1;
        if (beat == read_len[r]) read <= read + 1;
      end
      if (arvalid[p] & arready[p]) begin
        read_at[asked[$clog2(DEPTH)-1:0]] <= araddr[p*40 +: 40];
        read_len[asked[$clog2(DEPTH)-1:0]] <= arlen[p*8 +: 8];
        due[asked[$clog2(DEPTH)-1:0]] <= now + LATENCY - 1;  // `rvalid` is a register
        asked <= asked + 1;
      end
      if (awvalid[p] & awready[p]) begin
        write_at[announced[$clog2(DEPTH)-1:0]] <= awaddr[p*40 +: 40];
        announced <= announced + 1;
      end
      if (wvalid[p] & wready[p]) begin
        if (!rst) memory_write(p, 64'(to), wstrb[p*BYTES +: BYTES], wdata[p*8*BYTES +: 8*BYTES]);
        write_beat <= wlast[p] ? 0 : write_beat + 1;
        if (wlast[p]) begin
          write_due[w] <= now + LATENCY;
          written <= written + 1;
        end
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

// Sends the requests of the file `requests` (a word a line, in hexadecimal) to the host port after HOLD cycles, and
// follows the program that they start. The file `samples` gets a line of COUNTS counts every EVERY cycles. At the end
// the file `end` gets: cycles, status, all counters in hexadecimal. A program that moves no counter for QUIET samples
// hangs, and ends with the status that it has.
module core_run #(parameter REQUEST = 1, STATUS = 1, CODE = 0, CODE_BITS = 4, RUNNING = 0, COUNTERS = 1, COUNTS = 1,
                  HOLD = 0, EVERY = 64, QUIET = 4096) (
  input clk, input rst, output reg host_valid, input host_ready, output reg [REQUEST-1:0] host_payload,
  input [STATUS-1:0] status, input [32*COUNTERS-1:0] perf, input [32*COUNTS-1:0] counts
);
  integer requests, samples, out, hold, quiet;
  reg [63:0] cycle;
  reg [REQUEST-1:0] next;
  reg [32*COUNTERS-1:0] last;
  reg started;
  wire running = status[CODE +: CODE_BITS] == RUNNING;
  initial begin
    requests = $fopen("requests", "r");
    samples = $fopen("samples", "w");
  end
  always @(posedge clk)
    if (rst) begin
      {host_valid, started, cycle, last} <= 0;
      hold <= 0;
      quiet <= 0;
    end else begin
      hold <= hold + 1;
      if (hold >= HOLD && (!host_valid || host_ready)) begin
        host_valid <= $fscanf(requests, "%h", next) == 1;
        host_payload <= next;
      end
      if (running) begin
        started <= 1;
        cycle <= cycle + 1;
      end
      if (running && cycle % EVERY == 0 || started && !running) $fwrite(samples, "%h%h\n", cycle, counts);
      if (running && cycle % EVERY == 0) begin
        last <= perf;
        quiet <= perf == last ? quiet + 1 : 0;
      end
      if (started && (!running || quiet == QUIET)) begin
        out = $fopen("end", "w");
        $fwrite(out, "%h %h %h\n", cycle, status, perf);
        $fclose(out);
        $fclose(samples);
        $finish;
      end
    end
endmodule
