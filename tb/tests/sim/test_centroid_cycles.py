"""The page's cycles of the nearest centroid are those of the time view, on the paper's core."""

from pathlib import Path

from openvrex.hdl.params import preset
from openvrex.tb.library.centroid_runs import CentroidRun

PAGE = Path(__file__).parents[3] / "docs/papers/policies.md"
LATENCY = 100
SIZES = [(192, 32, 64), (192, 32, 1024), (1024, 16, 64), (1024, 16, 1024)]  # numbers, tokens, centroids
ESTIMATE = 10  # cycles of a row beside its words: the figure for a reduction ARGMAX


def test_the_page_shows_what_the_time_view_says():
    p, lines = preset("core").core, []
    for numbers, tokens, clusters in SIZES:
        run = CentroidRun(p.lxe_format(), numbers, tokens, clusters)
        whole, last = run.cycles(p, LATENCY), run.cycles(p, LATENCY, "nearest")
        reduced = clusters // p.lxe_format().lanes + ESTIMATE
        saved = last - tokens * reduced
        cells = (f"{numbers:,}", str(tokens), f"{clusters:,}", f"{whole:,}", f"{last / tokens:.0f}", str(reduced))
        lines.append(f"| {' | '.join(cells)} | {saved:,} |")
    page = PAGE.read_text()
    assert all(line in page for line in lines), "docs/papers/policies.md must have these rows:\n" + "\n".join(lines)
