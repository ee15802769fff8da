// Turns a flip-flop with a synchronous reset and an enable into one with an enable alone, which Yosys' `clockgate` takes.
// The reset moves in front of the data. $_SDFFE_: the reset acts without the enable, so it also enables the flip-flop.
// $_SDFFCE_: the reset acts in enabled cycles only. The digits of a type are its edge, reset level, reset value, enable
// level.
(* techmap_celltype = "$_SDFFE_P[NP][01][NP]_ $_SDFFCE_P[NP][01][NP]_" *)
module reset_in_data(input D, C, R, E, output Q);
  parameter _TECHMAP_CELLTYPE_ = "";
  localparam value = _TECHMAP_CELLTYPE_[23:16] == "1";
  wire reset = _TECHMAP_CELLTYPE_[31:24] == "P" ? R : ~R;
  wire enable = _TECHMAP_CELLTYPE_[15:8] == "P" ? E : ~E;
  wire first = _TECHMAP_CELLTYPE_[63:56] != "C";
  wire data = value ? D | reset : D & ~reset;
  \$_DFFE_PP_ _TECHMAP_REPLACE_ (.D(data), .C(C), .E(enable | (reset & first)), .Q(Q));
endmodule
