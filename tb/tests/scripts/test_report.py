"""`vrex report`: what stands on the page, that it asks nothing of another place, and that a browser shows it."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from openvrex.papers.commands import demo_command
from openvrex.scripts import quantity
from openvrex.scripts.pages import block_diagram, html_page
from openvrex.scripts.size import report_command
from openvrex.tb.library.page_rules import faults
from openvrex.tb.library.trace_check import Outcome
from tb.tests.commands import refuses, tried, vrex

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
# Quiet: a browser calls home at its start otherwise.
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
SIMULATED = ("hcu", "cluster_set", "kvmu")  # of every unit in the nightly test
JUNIT = """<testsuites><testsuite>
<testcase classname="tb.tests.hdl.retrieval.test_hcu" name="a"><properties>
<property name="bins" value="full, ragged"/></properties></testcase>
<testcase classname="tb.tests.hdl.retrieval.test_hcu" name="b"><failure/></testcase>
<testcase classname="tb.tests.hdl.retrieval.test_wtu" name="c"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    (folder / "tests.xml").write_text(JUNIT)
    sweep = folder / "sweep"
    sweep.mkdir()
    points = [
        {"point": {"n_w": 8}, "result": {"area": 1.5, "cycles": 174976.0, "bytes": 7.0}, "error": "", "front": True},
        {"point": {"n_w": 5}, "result": {}, "error": "n_w=5: no", "front": False},
        {"point": {"n_w": 4}, "result": {"area": 2.5, "cycles": 174977.0, "bytes": 7.0}, "error": "", "front": False},
    ]
    (sweep / "points.json").write_text(json.dumps(points))
    (sweep / "area-fmax.svg").write_text('<?xml version="1.0"?><svg id="stale"></svg>')
    real = report_command._simulate

    def simulate(unit, *rest):
        if unit in SIMULATED:
            return real(unit, *rest)
        return [Outcome(f"{unit} run", 0, 0, 0, 0, 0, 1, [], 1)], "<svg></svg>"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_command, "_simulate", simulate)
        options = ["--preset", "tiny", "--sweep", str(sweep), "--tests", str(folder / "tests.xml"), "-o", str(folder)]
        run = tried("report", *options)
    assert run.exit_code == 0, run.output
    return folder / "report.html"


def test_page_holds_everything(made):
    text = made.read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    wanted = ["Sweep", "RTL against golden", "Retrieval engine (DRE)", "Area of the core", "Table III", "Parameters"]
    assert [t for t in titles if t in wanted] == wanted
    assert (titles[0], titles[-1]) == ("Verdicts", "Parameters"), "what is asked first, what is looked up last"
    assert [f"Streams of {u}" in titles for u in report_command.UNITS] == [True] * len(report_command.UNITS)
    assert "Every beat equals golden." in text
    swept = re.search(r'<div class="plots">.*?</div>', text, re.S)[0]
    assert (swept.count("<svg"), swept.count("of cycles and area")) == (1, 1)
    assert "stale" not in text, "a plot of an earlier sweep in the folder"
    assert "3 points, 1 failed, 1 on the Pareto front. The same at all points, so not plotted: fetched" in text
    assert re.search("<td class=n[^>]*>174,976</td>", text)
    row = re.search(r"<td[^>]*>test_hcu</td>(.*?)</tr>", text, re.S)[1]
    assert re.findall(r"<td[^>]*>(.*?)</td>", row) == ["1", "1", "0", "full, ragged"]


def test_page_opens_with_its_verdicts_and_a_table_of_contents(made):
    text = made.read_text()
    opening = text[text.index("<h2>Verdicts") :].partition("</table>")[0]
    assert "every beat is equal" in opening
    assert re.search(r"<td[^>]*>sweep: chosen point</td><td[^>]*>n_w 8</td><td[^>]*>3 points, 1 failed, 1 on", opening)
    assert "1 passed, 1 failed, 1 skipped" in opening
    nav = re.search(r"<nav>.*?</nav>", text)[0]
    links = re.findall(r'<a href="#(\w+)">(.*?)</a>', nav)
    assert links == re.findall(r'<section id="(\w+)"><h2>(.*?)</h2>', text)
    assert "<title>n_w=8: cycles 174,976, area 1.5</title>" in text


def test_page_can_be_read(made):
    assert not faults(made.read_text())


def test_cells_name_their_column_for_narrow_screens(made):
    """There each row is a card, and the heads are not shown."""
    cells = re.findall(r"<td[^>]*>", made.read_text())
    assert cells
    assert all('data-head="' in cell for cell in cells)


def test_a_legend_lies_on_no_bar(monkeypatch):
    figures = []
    monkeypatch.setattr(html_page, "inline", figures.append)
    html_page.bars(["a", "b"], {"one": [9, 9], "two": [9, 9]}, "x, cycles", "y, %")
    html_page.histogram({"one": np.arange(9)}, np.arange(10), "x, cycles", "y")
    for figure in figures:
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert not legend.get_window_extent().overlaps(figure.axes[0].bbox)


@pytest.mark.parametrize(
    ("found", "said"), [(0.36, "36 %: so its choice hardly follows the question"), (0.64, "64 %: 2.0 times as much")]
)
def test_a_scene_is_told_beside_chance(found, said):
    assert demo_command.beside_chance(found, 0.32).endswith(f"ReSV takes {said}.")


def test_faults_of_a_page_are_found():
    page = (
        '<meta name="viewport" content="width=device-width, initial-scale=1"><div class="scroll"><table><tr><th>{}</th>'
    )
    page += "</tr>\n<tr><td class=n>{}</td></tr></table></div>"
    assert not faults(page.format("mean burst, B", "4,096.5"))
    assert faults(page.format("mean burst", "4,096.5")) == ["mean burst: 4,096.5 has no unit"]
    assert faults(page.format("mean burst, B", "4.1e+03")) == ["exponent: 4.1e+03"]
    assert faults(page.format("clusters", "7")[70:]) == ["no viewport", "not in a scrolling container: <table"]
    assert faults("<meta><svg>") == ["no viewport", "not in a scrolling container: <svg"]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(4096.0, 3, "4,096"), (0.01234, 3, "0.0123"), (1.5e9, 3, "1,500,000,000"), (0, 3, "0"), (12, 1, "12"),
     (12.3456, 4, "12.35"), (-0.5, 2, "-0.50"), (None, 3, "-")],
)  # fmt: skip
def test_numbers(value, digits, text):
    assert quantity.number(value, digits) == text


@pytest.mark.nightly
def test_the_default_report_ends_well(tmp_path):
    """Every unit of the preset `core` on the fixture's trace, inputs that idle and outputs that stall included."""
    vrex("report", "-o", str(tmp_path))
    assert "Every beat equals golden." in (tmp_path / "report.html").read_text()


def test_page_asks_nothing_of_another_place(made):
    assert not re.search(r'(?:src|href)="(?!#)|<link|<script|url\((?!#)|@import', made.read_text())


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_browser_shows_the_page(made, tmp_path):
    shot = tmp_path / "page.png"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *QUIET, f"--user-data-dir={tmp_path / 'user'}"]
    command += ["--enable-logging=stderr", "--log-level=0", "--window-size=1200,3000", f"--screenshot={shot}"]
    run = subprocess.run([*command, made.as_uri()], capture_output=True, text=True, check=False, timeout=300)
    assert "CONSOLE" not in run.stderr  # nothing refused, nothing missing
    assert shot.stat().st_size > 50_000  # a blank page of this size takes about 15 kB


def test_difference_is_red_and_fails(tmp_path, monkeypatch):
    wrong = Outcome("layer 1", 0, 0, 0, 0, 0, 1, ["o[3]: cluster is 4, expected 5"], 1)
    monkeypatch.setattr(
        report_command, "_simulate", lambda unit, *rest: ([wrong] if unit == "hcu" else [], "<svg></svg>")
    )
    run = tried("report", "--preset", "tiny", "--tests", "none.xml", "-o", str(tmp_path), "--json")
    assert run.exit_code == 1
    assert "o[3]: cluster is 4, expected 5" in run.stderr
    told = json.loads(run.stdout)
    assert (told["passed"], told["differences"]) == (False, ["hcu, layer 1: o[3]: cluster is 4, expected 5"])
    assert told["RTL against golden"][0]["result"] == "DIFFERS"
    text = (tmp_path / "report.html").read_text()
    assert 'class="bad">1 differences from golden.' in text
    assert "DIFFERS" in text
    assert "No test run on record at none.xml" in text


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("--sweep", None, "not a folder that `vrex sweep` wrote"),
        ("--sweep", '[{"point": 1}]', "not a folder that `vrex sweep` wrote"),
        ("--tests", "<testsuite>", "not JUnit's XML"),
    ],
)
def test_bad_input(option, content, message, tmp_path, monkeypatch):
    monkeypatch.setattr(report_command, "_simulate", lambda *rest: ([], "<svg></svg>"))
    target = tmp_path / "input"
    if option == "--sweep" and content:
        target.mkdir()
        (target / "points.json").write_text(content)
    elif content:
        target.write_text(content)
    run = refuses("report", "--preset", "tiny", option, str(target), "-o", str(tmp_path / "out"))
    assert message in " ".join(run.output.split())
    assert not (tmp_path / "out").exists()


VERILOG = """module top(input clk, input a_valid, output a_ready, input [7:0] a_data,
  output b_valid, input b_ready, output [7:0] b_data);
  wire [7:0] mid;
  reg [7:0] late;
  assign b_data = {mid[3:0],
    late[3:0]};
  always @(posedge clk)
    late <= a_data;
  top__one one (
    .clk(clk),
    .x(a_data),
    .y(mid)
  );
endmodule
module top__one(input clk, input [7:0] x, output [7:0] y);
  reg [7:0] mem [0:15];
endmodule
"""


def test_edges_of_a_diagram():
    """Through assignments, not through registers; memories are found."""
    design = block_diagram.modules(VERILOG)
    assert block_diagram.edges(design, "top") == {("a", "one"): 8, ("one", "b"): 8}
    assert design["top__one"].memories == [(16, 8)]
    texts = [t.get_text() for t in block_diagram.draw(VERILOG, "top", {"one": "5 GE"}).axes[0].texts]
    assert "one\n5 GE\n16 x 8 bit" in texts


BUS = """module top(input clk, input [7:0] m_axi_rdata, output [7:0] m_axi_araddr);
  top__one one (
    .x(m_axi_rdata),
    .y(m_axi_araddr)
  );
endmodule
module top__one(input clk, input [7:0] x, output [7:0] y);
  top_ram_1rw #(
    .WIDTH(20),
    .DEPTH(96),
    .LANES(1)
  ) rows (
    .addr(x),
    .r_data(y)
  );
endmodule
module top_ram_1rw #(parameter WIDTH = 8, parameter DEPTH = 2, parameter LANES = 1)
  (input [7:0] addr, output [7:0] r_data);
  reg [WIDTH-1:0] mem [0:DEPTH-1];
endmodule
"""


def test_a_diagram_shows_buses_and_memories_in_modules_of_their_own():
    """An AXI bus is one node, to which a link leads back; a memory's sizes are parameters of its module."""
    design = block_diagram.modules(BUS)
    assert block_diagram.edges(design, "top") == {("m_axi", "one"): 8, ("one", "m_axi"): 8}
    assert design["top__one"].memories == [(96, 20)]
    assert "one\n96 x 20 bit" in [t.get_text() for t in block_diagram.draw(BUS, "top").axes[0].texts]
