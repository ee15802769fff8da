"""Sentences of `docs/papers/evaluation.md` that cite recorded or computed figures."""

import re

from openvrex.papers.evaluation.other_policies import PROFILES
from openvrex.papers.evaluation.paper_points import Number, Points
from openvrex.scripts.markdown import table
from openvrex.scripts.records.run_results import evaluated
from openvrex.sim.system.platforms import A100, AGX, EDGE, PAPER_EDGE, PAPER_SERVER, Vrex
from openvrex.sim.system.selection import PUBLISHED
from openvrex.sim.system.workload import TABLE_II, Decoder, Session

PAGE = "papers/evaluation.md"
LATENCIES = {  # the paper's speed-ups over FlexGen at 40K, and V-Rex's latencies in ms, whose product is FlexGen's
    "token, AGX": ("agx", "token", 15.1, 97),
    "token, A100": ("a100", "token", 16.8, 15),
    "frame, AGX": ("agx", "frame", 7.3, 254),
    "frame, A100": ("a100", "frame", 7.3, 48),
}


class Anchors:
    """Numbers of the evaluation by the beginning of their place and description."""

    def __init__(self, known: dict):
        self.found = [n for some in evaluated(known) for n in some]

    def __call__(self, where: str, what: str) -> Number:
        """The first number of `where` whose description begins with `what`."""
        return next(n for n in self.found if n.where == where and n.what.startswith(what))

    def ours(self, where: str, what: str) -> float:
        """Our value."""
        value = self(where, what).ours
        assert value is not None, what
        return value

    def trace(self, where: str, what: str) -> float:
        """Our value with the shares of the recorded stream."""
        value = self(where, what).trace
        assert value is not None, what
        return value


def cited(known: dict) -> list[tuple[str, str]]:
    """Page and text, for each sentence or part of one that has figures."""
    anchors = Anchors(known)
    parts = (_reasons(anchors), _fits(), _limits(known), _engines(known), _others(anchors), _policies(known))
    return [(PAGE, line) for some in parts for line in some]


def flexgen(known: dict) -> str:
    """FlexGen at 40K: ours, and the paper's speed-up times its latency."""
    p, rows = Points(), []
    for name, (gpu, stage, faster, ms) in LATENCIES.items():
        ours = p.ms(gpu, 40960, stage=stage, policy="flexgen")
        rows.append([name, f"{ours:,.0f}", f"{faster} x {ms} = {faster * ms:,.0f}"])
    return table(["FlexGen at 40K", "ours, ms", "paper: speed-up x V-Rex's latency, ms"], rows)


BLOCKS = {"flexgen": flexgen}


def _encoder(n: Number) -> tuple[str, str]:
    """Milliseconds of the encoder, and of its products, from the reason of a verdict."""
    said = re.search(r"our encoder takes (\d+) ms, of which its products are (\d+)", n.why)
    assert said, n.what
    return said[1], said[2]


def _reasons(a: Anchors) -> list[str]:
    """Where we agree and where not."""
    m, p, share = Decoder(), Points(), TABLE_II["resv"][0]
    edge, server = (a("Fig. 13a", "V-Rex8, frame, 1K"), a("Fig. 13b", "V-Rex48, frame, 1K"))
    own48, products48 = _encoder(server)
    weights8, weights48 = (1e3 * _read(v, 2 * m.pass_weights) for v in (PAPER_EDGE, PAPER_SERVER))
    resident = p.ms("agx", 1024, policy="resident")
    need = share * 40960 * m.token_bytes
    energies = [n for n in a.found if "energy" in n.what and n.where == "VI-B"]
    doubted = sum(n.verdict == "unexplained" for n in energies)
    assert isinstance(AGX.launch, float)
    four = re.search(r"are ([\d,]+) ms, their bytes ([\d,]+) ms", a("Fig. 18", "V-Rex8 of the roof").why)
    assert four
    return [
        f"Its stages take {own48} ms on V-Rex48, of which its products are {products48}. So a frame at 1K takes "
        f"{server.ours:.0f} ms on the server (paper: 20). On V-Rex8 it takes {edge.ours:.0f} (paper: 121)",
        f"takes {weights8:.1f} ms of the 89 on V-Rex8, and {weights48:.1f} of the 14 on V-Rex48",
        f"A fitted gap of {1e3 * EDGE.gap:.2f} ms in each of {m.layers} layers, {1e3 * EDGE.gap * m.layers:.1f} ms a "
        "token",
        f"Fetching Table II's share of 40K tokens takes {need / 4e6:.0f} ms at 4 GB/s",
        f"With the trace's share ours takes {a.trace('Fig. 13a', 'V-Rex8, frame, 40K'):.0f} ms, and "
        f"{a.trace('Fig. 13b', 'V-Rex48, frame, 40K'):.0f} ms on the server (paper: 48)",
        f"its frame takes {resident:.0f} ms, {a.ours('Fig. 15', 'V-Rex8 over AGX'):.2f} times V-Rex8's (paper: 1.5)",
        f"spends {1e3 * AGX.launch * m.layers:.0f} ms of a token at 1K ({1e3 * AGX.launch:.1f} ms a layer)",
        f"We get {a.ours('Fig. 18', 'operations per byte'):.1f} from all products except attention's",
        f"so its work takes {four[1]} ms",
        f"At 4 GB/s they take {four[2]} ms if all of it is fetched",
        f"in {_words(doubted)} of {_words(len(energies))} cases",
        f"With Table III's cores instead the systems take {a.ours('Table I', 'V-Rex8, cores'):.0f} and "
        f"{a.ours('Table I', 'V-Rex48, cores'):.0f} W",
    ]


def _read(v: Vrex, count: float) -> float:
    """Seconds in which the device memory reads bytes in order."""
    return count / (v.dram.t.bandwidth * v.dram.efficiency(4096, random=False))


def _words(n: int) -> str:
    return {9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}.get(n, f"{n}")


def _fits() -> list[str]:
    """The constants that were fitted."""
    gpus = (AGX, A100)
    launch, attention, vision = (
        " and ".join(f"{getattr(g, name) * scale:.3g}" for g in gpus)
        for name, scale in (("launch", 1e3), ("attention", 1e-12), ("vision", 1e-12))
    )
    link = " and ".join(f"{g.link / 1e9:.3g}" for g in gpus)
    return [
        f"| V-Rex: {1e3 * EDGE.gap:.2f} ms a layer |",
        f"time of a layer beside its bytes, {launch} ms |",
        f"link, {link} GB/s |",
        f"attention in frames, {attention} TFLOPS |",
        f"encoder, {vision} TFLOPS |",
    ]


def _limits(known: dict) -> list[str]:
    """What limits V-Rex."""
    rows = {name: [int(c.split()[0]) for c in cells[:2]] for name, *cells in known["simulation"]["limits"]["rows"]}
    base, ring = rows["edge"], rows["edge, 2,048 recent tokens on the device"]
    return [f"gains {max(100 * (1 - y / x) for x, y in zip(base, ring, strict=True)):.0f} % at most"]


def _engines(known: dict) -> list[str]:
    """Which DRE is best."""
    rows = known["simulation"]["engines"]["rows"]
    frames = {(name, hcu, wtu): float(cells[0].split()[0]) for name, hcu, wtu, *cells in rows}

    def cost(on: str, hcu: str, wtu: str) -> float:
        return 100 * (frames[on, hcu, wtu] / frames[on, "1 x 16", "1 x 16"] - 1)

    edge, server = dict.fromkeys(name for name, *_ in frames)
    return [
        f"the smallest DRE costs {cost(edge, '1 x 4', '1 x 2'):.0f} % of a frame",
        f"a WTU of 4 lanes costs {cost(server, '1 x 8', '1 x 4'):.0f} % of a frame at 40K, of 2 lanes "
        f"{cost(server, '1 x 4', '1 x 2'):.0f} %",
    ]


def _others(a: Anchors) -> list[str]:
    """Latencies of the other papers."""
    low, high = (a.ours("CodecSight 6.1.4", f"InternVL3 over Full-Comp, {x}") for x in ("low", "high"))
    vrex = a.ours("CodecSight Fig. 11", "a window of 80 frames")
    mask = a.ours("CodecSight 6.4", "InternVL3, token pruning")
    query = a("Mosaic VIII-C", "the same: a question")
    assert query.ours is not None
    assert query.trace is not None
    branch, full = (a.ours("hybrid V-A 2, Fig. 1", x) for x in ("throughput over full attention's, 48", "throughput "
                    "over full attention's in frames"))  # fmt: skip
    more = re.search(r"adds (\d+ %)", a("hybrid V-A 2, Fig. 1", "throughput over full attention's, 48").why)
    assert more
    return [
        f"have {low:.1f} times less work than full recomputation, and {high:.1f} times with 13 %",
        f"On V-Rex8 CodecSight gains {vrex:.1f} times",
        f"The motion mask replaces 49 ms by {mask:.3f} ms",
        f"{a.ours('Mosaic VIII-C', 'prefetch'):.1f} % of them and the 170 ms of Table III",
        f"a question takes {query.ours:.0f} % less if prefetch brings all",
        f"it takes {-query.trace:.0f} % more",
        f"take {a.ours('Mosaic VIII-C', 'batches'):.0f} % less each than alone on one core",
        f"has {more[1]} of a layer's products, which makes 48 frames {branch:.2f} times as fast",
        f"takes {full:.2f} times as long as the attention of hybrid memory, so its branch may take "
        f"{100 * (full - 1):.0f} % of a frame",
    ]


def _policies(known: dict) -> list[str]:
    """Other policies on this hardware, and the fleets."""
    m, resv, published, mosaic = Decoder(), *(PROFILES[name] for name in ("resv", PUBLISHED, "mosaic-eager"))
    full = {d["policy"]: d["room"] for d in known["fleet"] if d["platform"] == "server" and d["streams"] == 1}
    gib = [n * m.token_bytes / 2**30 for n in (131072, 1 << 20)]
    return [
        f"they fetch {100 * resv.frame:.1f} and {100 * published.frame:.1f} % of the offloaded tokens",
        f"({100 * mosaic.frame:.1f} against {100 * published.frame:.1f} % of `{PUBLISHED}`)",
        f"({100 * mosaic.text:.1f} against {100 * published.text:.1f} %)",
        f"from {full['resv']:.2f} hours on (`resv`) or {full['mosaic-eager']:.1f} (`mosaic-eager`",
        f"128K tokens of one stream are {gib[0]:.0f} GiB and fit beside the weights in V-Rex8's "
        f"{EDGE.capacity / 2**30:.0f} GiB. At 1M tokens ({gib[1]:.0f} GiB)",
        f"V-Rex as published fetches {100 * published.frame:.1f} % of a cache that grows by "
        f"{Session.frame_tokens * m.token_bytes / 1e6:.1f} MB a frame",
    ]
