"""`vrex simulate prediction`: the cycles of KV prediction, fetch and SWITCHes that no other work of a core hides."""

from dataclasses import asdict, dataclass

from rich.table import Table

from openvrex.scripts import console
from openvrex.scripts.progress import track
from openvrex.scripts.simulate import system_options
from openvrex.scripts.simulate.layer_command import USED, played, title
from openvrex.sim.system.share_cycles import CoreShare
from openvrex.sim.system.workload import Decoder

NOTE = (
    "clustering: hash bits, clusters and places. rank: queries times Key_cluster. codes: score codes and the choice. "
    "fetch: wait of the attention for the chosen entries. switch: cycles that SWITCHes to the layer's contexts add, "
    "which are among clustering and codes."
)


@dataclass(frozen=True)
class Prediction:
    """Cycles of a layer on core 0, and the part of each retrieval step that no other work hides.

    tables : of the core in the layer; entries and clusters are those of each table
    clustering : hash bits, clusters and places · rank : queries times Key_cluster · codes : score codes and the choice
    · fetch : wait of the attention for the entries · switch : what SWITCHes add, which is part of the other columns
    """

    cached: int
    tables: int
    entries: int
    clusters: int
    layer: int
    clustering: int
    rank: int
    codes: int
    fetch: int
    switch: int

    @property
    def visible(self) -> int:
        """Visible cycles of the prediction, without the wait for the fetch."""
        return self.clustering + self.rank + self.codes


def command(
    preset: console.Preset = "core",
    param: console.Param = None,
    tokens: console.Tokens = 10,
    cached: console.Cached = [10240, 40960],  # noqa: B006
    select: system_options.Select = None,
    share: console.Share = None,
    latency: console.Latency = 100,
    json: console.Json = False,
) -> None:
    """Count the cycles that KV prediction adds to a layer.

    The table shows the prediction, the wait for the fetch and the SWITCHes in a layer of Llama-3 8B on core 0.
    """
    p = console.params(preset, param)
    console.check_used("simulate prediction", param, USED)
    own = system_options.selection(select, "resv", Decoder(), p.core)
    plays = [played(p, own, tokens, n, share, latency) for n in cached]
    rows = [predict(play) for play in track(plays, "passes")]
    if json:
        console.print_json([asdict(row) | {"visible": row.visible} for row in rows])
        return
    counts = ("cached", "tables", "entries", "clusters", "layer")
    parts = ("clustering", "rank", "codes", "visible", "fetch", "switch")
    out = Table(*counts, *parts, title=title(f"KV prediction, Llama-3 8B, {own.name}", preset, p))
    for row in rows:
        shares = (f"{getattr(row, n):,} ({getattr(row, n) / row.layer:.2%})" for n in parts)
        out.add_row(*(f"{getattr(row, n):,}" for n in counts), *shares)
    console.out.print(out)
    for note in (NOTE, *(line for one in plays for line in one.remarks)):
        console.out.print(note, highlight=False)


def predict(share: CoreShare) -> Prediction:
    """The visible cycles of a pass.

    A layer alone on a core hides part of the clustering behind the GEMM of its queries, so what the stages up to
    `rotary` take counts, less what they take without retrieval. Fetch and SWITCHes are compared with a pass in which
    they take no time.
    """
    stages = {name: counts["cycles"] for name, counts in share.layer().items()}
    clustering = stages["hash"] + stages["cluster"]
    if share.shares.members == 1:
        clustering += sum(stages[n] for n in ("keys", "entries", "rotary")) - share.without()
    whole = share.until()
    return Prediction(
        cached=share.cached,
        tables=share.shares.groups,
        entries=share.entries,
        clusters=share.clusters,
        layer=sum(stages.values()),
        clustering=clustering,
        rank=stages["rank"],
        codes=stages["select"],
        fetch=whole - share.until(fetches=False),
        switch=whole - share.until(switches=False),
    )
