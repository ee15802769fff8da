"""The table of the paper's numbers beside ours: rows, Markdown, and the counts of verdicts."""

from collections import Counter

from openvrex.papers.evaluation.paper_points import AGREE, DIFFER, Number
from openvrex.scripts.markdown import table
from openvrex.scripts.quantity import number

HEAD = ("where", "what", "paper", "ours", "ratio, x", "trace", "scaled GPU", "verdict", "why")


def summary(found: list[Number]) -> str:
    """The count of each verdict, those of numbers within 10 % first."""
    counts = Counter(n.verdict for n in found)
    same, other = ([f"{counts[v]} {v}" for v in some if counts[v]] for some in (AGREE, DIFFER))
    near = sum(counts[v] for v in AGREE)
    return "; ".join([*([f"{near} of {len(found)} within 10 %: {', '.join(same)}"] if near else []), ", ".join(other)])


def row(n: Number) -> list[str]:
    """The cells of a number, under `HEAD`."""
    ours, trace, scaled = ("-" if x is None else f"{number(x, 4)} {n.unit}" for x in (n.ours, n.trace, n.scaled))
    ratio = "-" if n.ratio is None else f"{n.ratio:.2f}"
    why = "; ".join(x for x in (n.proof and f"proof: {n.proof}", n.why) if x)
    return [n.where, n.what, f"{n.paper:,} {n.unit}", ours, ratio, trace, scaled, n.verdict, why]


def markdown(found: list[Number]) -> str:
    """The table in Markdown, with the reasons."""
    return table(list(HEAD), [row(n) for n in found])
