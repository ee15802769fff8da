// A stream, or a channel of AXI. What is offered stays until it is taken.
module stream_checks #(
  parameter WIDTH = 1  // bits of the payload
) (
  input wire             clk,
  input wire             rst,
  input wire             valid,
  input wire             ready,
  input wire [WIDTH-1:0] payload
);
  offer_stays: assert property (@(posedge clk) disable iff (rst !== 1'b0) valid && !ready |=> valid)
    else $error("%m: valid fell before ready");
  payload_stays: assert property (@(posedge clk) disable iff (rst !== 1'b0) valid && !ready |=> $stable(payload))
    else $error("%m: the payload changed before ready");
  known: assert property (@(posedge clk) disable iff (rst !== 1'b0) !$isunknown({valid, ready}))
    else $error("%m: valid or ready is unknown");
endmodule


// A register whose numbers are the states of a machine.
module state_checks (
  input wire clk,
  input wire rst,
  input wire legal  // it holds one of them
);
  state: assert property (@(posedge clk) disable iff (rst !== 1'b0) legal === 1'b1)
    else $error("%m: the number is no state");
endmodule


// A queue whose user relies on room or on words.
module queue_checks (
  input wire clk,
  input wire rst,
  input wire overflow,  // a word is written into a full queue
  input wire underflow  // a word is read from an empty one
);
  room: assert property (@(posedge clk) disable iff (rst !== 1'b0) overflow === 1'b0)
    else $error("%m: a word is written into the full queue");
  words: assert property (@(posedge clk) disable iff (rst !== 1'b0) underflow === 1'b0)
    else $error("%m: a word is read from the empty queue");
endmodule


// An AXI4 manager and the memory that answers it (Arm IHI 0022). Bursts are counted modulo 256.
module axi_manager_checks #(
  parameter BYTES = 8  // of a beat
) (
  input wire            clk,
  input wire            rst,
  input wire            arvalid,
  input wire            arready,
  input wire [11:0]     araddr,
  input wire [7:0]      arlen,
  input wire            rvalid,
  input wire            rready,
  input wire            rlast,
  input wire            awvalid,
  input wire            awready,
  input wire [11:0]     awaddr,
  input wire [7:0]      awlen,
  input wire            wvalid,
  input wire            wready,
  input wire            wlast,
  input wire            bvalid,
  input wire            bready
);
  localparam SIZE = $clog2(BYTES);

  // Bytes from the beginning of the 4 KB page to the end of a burst.
  function automatic [31:0] last_byte(input [11:0] first, input [7:0] len);
    last_byte = ((32'(first) >> SIZE) + 32'(len) + 1) << SIZE;
  endfunction

  wire ar = arvalid && arready, aw = awvalid && awready, w = wvalid && wready;
  reg [7:0] reads, answers, addresses, bursts, responses;
  reg [7:0] beats;                         // of the burst that is written
  reg [7:0] asked [0:255], sent [0:255];   // beats but one of each burst
  wire [7:0] early = bursts - addresses;   // bursts whose data came before their address
  wire [7:0] late = addresses - bursts;

  always @(posedge clk)
    if (rst !== 1'b0) begin
      reads <= 0;
      answers <= 0;
      addresses <= 0;
      bursts <= 0;
      responses <= 0;
      beats <= 0;
    end
    else begin
      if (ar) reads <= reads + 1;
      if (rvalid && rready && rlast) answers <= answers + 1;
      if (aw) begin
        asked[addresses] <= awlen;
        addresses <= addresses + 1;
      end
      if (w) beats <= wlast ? 0 : beats + 1;
      if (w && wlast) begin
        sent[bursts] <= beats;
        bursts <= bursts + 1;
      end
      if (bvalid && bready) responses <= responses + 1;
    end

  read_in_page: assert property (@(posedge clk) disable iff (rst !== 1'b0)
    arvalid |-> last_byte(araddr, arlen) <= 4096)
    else $error("%m: a read crosses a 4 KB page");
  write_in_page: assert property (@(posedge clk) disable iff (rst !== 1'b0)
    awvalid |-> last_byte(awaddr, awlen) <= 4096)
    else $error("%m: a write crosses a 4 KB page");
  data_after_address: assert property (@(posedge clk) disable iff (rst !== 1'b0)
    w && wlast && late != 0 && !late[7] |-> beats == asked[bursts])
    else $error("%m: wlast is not at the last beat of the burst");
  address_after_data: assert property (@(posedge clk) disable iff (rst !== 1'b0)
    aw && early != 0 && !early[7] |-> awlen == sent[addresses])
    else $error("%m: awlen is not that of the burst that was sent");
  data_with_address: assert property (@(posedge clk) disable iff (rst !== 1'b0)
    aw && w && wlast && late == 0 |-> beats == awlen)
    else $error("%m: wlast is not at the last beat of the burst");
  read_was_asked: assert property (@(posedge clk) disable iff (rst !== 1'b0) rvalid |-> reads != answers)
    else $error("%m: read data without a request");
  write_was_sent: assert property (@(posedge clk) disable iff (rst !== 1'b0)
    bvalid |-> responses != addresses && responses != bursts)
    else $error("%m: a write response before its address and data");
endmodule
