// Memory with one write port and one read port, both synchronous to clk.
//
// Contract, which every unit keeps to and a macro must meet:
// - A write stores, at the rising edge, the lanes of w_data whose bit of w_en is set. Lane k is
//   bits k * WIDTH / LANES and up. The other lanes of the word keep their content.
// - A read puts the word into r_data at the rising edge. r_data holds while r_en is low.
// - A read of a word, any lane of which is written at the same edge, is undefined until the next read.
//   (This body gives the old content; with OPENVREX_CHECK it gives the inverse of that.)
// - There is no reset and no initial content. Addresses are below DEPTH whenever their enable is set.
//   (With OPENVREX_CHECK, Verilator fills the words with random bits, by +verilator+seed+N.)
module ram_1r1w #(
  parameter WIDTH = 8,  // bits of a word
  parameter DEPTH = 2,  // words, at least 2
  parameter LANES = 1   // parts of a word with a write enable each; divides WIDTH
) (
  input  wire                     clk,
  input  wire [LANES-1:0]         w_en,
  input  wire [$clog2(DEPTH)-1:0] w_addr,
  input  wire [WIDTH-1:0]         w_data,
  input  wire                     r_en,
  input  wire [$clog2(DEPTH)-1:0] r_addr,
  output reg  [WIDTH-1:0]         r_data
);
  localparam LANE = WIDTH / LANES;
  reg [WIDTH-1:0] mem [0:DEPTH-1];
  integer k;

  always @(posedge clk) begin
    for (k = 0; k < LANES; k = k + 1)
      if (w_en[k]) mem[w_addr][k*LANE +: LANE] <= w_data[k*LANE +: LANE];
    if (r_en) r_data <= mem[r_addr];
`ifdef OPENVREX_CHECK
    if (r_en && |w_en && w_addr == r_addr) r_data <= ~mem[r_addr];  // not X, which some simulators do not have
`endif
  end

`ifdef OPENVREX_CHECK
`ifdef VERILATOR
  // Each word starts with random bits of its own, as on a chip; Verilator alone would give all words one value.
  integer word, part;
  reg [WIDTH+31:0] bits;
  initial begin
    bits = 0;
    for (word = 0; word < DEPTH; word = word + 1) begin
      for (part = 0; part < WIDTH; part = part + 32) bits = {bits[WIDTH-1:0], $urandom};
      mem[word] = bits[WIDTH-1:0];
    end
  end
`endif
  reg clocked = 0;  // enables are known one cycle after the first edge under reset
  always @(posedge clk) begin
    clocked <= 1;
    if (clocked && |w_en !== 0 && (w_addr < DEPTH) !== 1) begin
      $display("%m: write to word %0d of %0d", w_addr, DEPTH);
      $stop;
    end
    if (clocked && r_en !== 0 && (r_addr < DEPTH) !== 1) begin
      $display("%m: read of word %0d of %0d", r_addr, DEPTH);
      $stop;
    end
  end
`endif
endmodule

// Memory with one port that reads or writes, synchronous to clk.
//
// Contract, which every unit keeps to and a macro must meet:
// - An access is a cycle with en high: a write if any bit of write is set, else a read.
// - A write stores, at the rising edge, the lanes of w_data whose bit of write is set. Lane k is
//   bits k * WIDTH / LANES and up. The other lanes of the word keep their content.
// - A read puts the word into r_data at the rising edge. r_data holds while en is low and is
//   undefined after a write, until the next read.
// - There is no reset and no initial content. addr is below DEPTH whenever en is high.
//   (With OPENVREX_CHECK, Verilator fills the words with random bits, by +verilator+seed+N.)
module ram_1rw #(
  parameter WIDTH = 8,  // bits of a word
  parameter DEPTH = 2,  // words, at least 2
  parameter LANES = 1   // parts of a word with a write enable each; divides WIDTH
) (
  input  wire                     clk,
  input  wire                     en,
  input  wire [LANES-1:0]         write,
  input  wire [$clog2(DEPTH)-1:0] addr,
  input  wire [WIDTH-1:0]         w_data,
  output reg  [WIDTH-1:0]         r_data
);
  localparam LANE = WIDTH / LANES;
  reg [WIDTH-1:0] mem [0:DEPTH-1];
  integer k;

  always @(posedge clk) begin
    for (k = 0; k < LANES; k = k + 1)
      if (en && write[k]) mem[addr][k*LANE +: LANE] <= w_data[k*LANE +: LANE];
    if (en && !(|write)) r_data <= mem[addr];
  end

`ifdef OPENVREX_CHECK
`ifdef VERILATOR
  // Each word starts with random bits of its own, as on a chip; Verilator alone would give all words one value.
  integer word, part;
  reg [WIDTH+31:0] bits;
  initial begin
    bits = 0;
    for (word = 0; word < DEPTH; word = word + 1) begin
      for (part = 0; part < WIDTH; part = part + 32) bits = {bits[WIDTH-1:0], $urandom};
      mem[word] = bits[WIDTH-1:0];
    end
  end
`endif
  reg clocked = 0;  // enables are known one cycle after the first edge under reset
  always @(posedge clk) begin
    clocked <= 1;
    if (clocked && en !== 0 && (addr < DEPTH) !== 1) begin
      $display("%m: access to word %0d of %0d", addr, DEPTH);
      $stop;
    end
  end
`endif
endmodule
