"""Compares every number in the text of V-Rex section VI, Fig. 4 and the abstract with ours.

Each function covers a part of the paper. It states the paper's value, ours, and the doubts, proofs and reasons from
which `paper_points.judged` makes the verdict.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import isnan

from openvrex.papers.evaluation.paper_points import (
    CACHES,
    PLATFORMS,
    PREDICTED,
    RESTATED,
    ROWS,
    TOLERANCE,
    Claims,
    Number,
    Points,
    budgeted,
)
from openvrex.sim.system import platforms
from openvrex.sim.system.layer_load import most_rows
from openvrex.sim.system.passes import simulate
from openvrex.sim.system.selection import PUBLISHED
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import TABLE_II, Decoder, Vision, traced

EDGE, SERVER = ("edge", "agx"), ("server", "a100")
SHARE = TABLE_II["resv"][0]
FIT_GAP = "the gap of a layer, 0.15 ms, is fitted to it"
FIT_GPU = "the GPU's rates are fitted to it"
ENCODER = "our encoder takes {:.0f} ms, of which its products are {:.0f}"
# Premises that the paper leaves open. A number that rests on one is doubted, not refuted.
RESIDENT = "if all is fetched: not stated"
FIG_15_BATCH = 16  # not stated; AGX then runs out of memory between 5K and 10K, Oaken between 20K and 40K
FIT_BATCH = "the batch of Fig. 15 is not stated: {} was chosen"

# V-Rex Table II: accuracy in percent on five benchmarks.
ACCURACY = {
    "none": (62.1, 49.0, 92.5, 49.5, 51.6),
    "infinigenp": (58.6, 45.6, 91.5, 46.4, 50.2),
    "resv": (62.0, 47.5, 92.2, 48.2, 50.5),
}


def numbers(p: Points, trace: str = "world") -> list[Number]:
    """All numbers with their verdicts, in the order of the text; `trace` names the stream of the second selection.

    Numbers that a fitted GPU enters say so, and what they are with a GPU scaled from the measured one.
    """
    found = _numbers(p, trace)
    others = _numbers(replace(p, scaled=True), trace)
    return [replace(n, **_rests(n, s)) if s.ours != n.ours else n for n, s in zip(found, others, strict=True)]


def _rests(n: Number, scaled: Number) -> dict:
    """What a number says whose value another GPU changes."""
    known = scaled.ours is not None and not isnan(scaled.ours)
    other = f"scaled from the H100 it gives {scaled.ours:.3g} {n.unit}" if known else "its policy was not measured"
    why = f"{n.why}; rests on the fitted GPU: {other}".removeprefix("; ")
    return {"scaled": scaled.ours if known else None, "why": why}


def _numbers(p: Points, trace: str) -> list[Number]:
    c = Claims(trace)
    _motivation(c, p)
    _latency(c, p)
    _sessions(c, p)
    _energy(c, p)
    _oaken(c, p)
    _ablation(c, p)
    _analysis(c, p)
    _retrieval(c, p)
    _overhead(c)
    return c.found


def allowed(cache: int, batch: int = 8) -> str:
    """States the TFLOPS that V-Rex48's memory allows in frames, without the encoder and with it."""
    m, v, rows = Decoder(), platforms.PAPER_SERVER, 10
    moved = (2 * m.pass_weights + batch * SHARE * cache * m.token_bytes) / 1935e9
    attention = m.layers * m.attention_macs(rows, cache) * SHARE
    macs, seen = batch * (rows * m.pass_weights + attention), batch * Vision().macs
    first = 2 * (macs + seen) / (moved + 2 * seen / v.flops)
    return (
        f"bytes of weights and Table II's share allow {2 * macs / moved / 1e12:.0f} without the encoder, and with it "
        f"{first / 1e12:.0f} if it runs before the layers, up to the peak if beside them: not stated"
    )


def without_encoder(p: Points) -> str:
    """States what Fig. 16 needs of V-Rex8's encoder if neither frame has its encoder there."""
    agx = 1e3 * p.at("agx", 40960, policy="flexgen")["vision"]
    own = 254 - (7.3 * 254 - agx) / 8.1
    return (
        "frames at batch 1 reach at most 7.3 over AGX+FlexGen (VI-B), unless Fig. 16 leaves the encoder out: not "
        f"stated. Less our AGX's {agx:.0f} ms for it, V-Rex8's would take {own:.0f}"
    )


def bytes_need(cache: int, gigabytes: float) -> str:
    """States how long a link of `gigabytes` GB/s takes for Table II's share of a cache."""
    need = SHARE * cache * Decoder().token_bytes / 1e9
    time = f"32.7 % of {cache >> 10}K are {need:.2f} GB, {need / gigabytes * 1e3:.0f} ms at {gigabytes:g} GB/s"
    return f"{time}, {RESIDENT}"


def most(p: Points, pair: tuple[str, str], batch: int = 1) -> str:
    """States the largest possible speed-up at 40K, from the link's nominal rate."""
    need = SHARE * batch * 40960 * Decoder().token_bytes / (4e9 if pair is EDGE else 32e9)
    base = p.at(pair[1], 40960, batch, policy="flexgen")["seconds"]
    fetch, frame = need * 1e3, base * 1e3
    return (
        f"its fetch takes {fetch:,.0f} ms, FlexGen's simulated frame {frame:,.0f} ms, {base / need:.1f} times that, "
        f"{RESIDENT}"
    )


def encoder(p: Points, on: str, batch: int = 1) -> str:
    """States what the encoder takes in a frame of V-Rex, and what its products alone would take.

    More rows than a core takes at once read the weights once more.
    """
    v = PLATFORMS[on]
    assert isinstance(v, platforms.Vrex)
    products = batch * 2 * Vision().macs / v.flops
    rows, most = batch * ROWS["frame"], most_rows(v.core)
    again = f"; {rows} rows read the weights {-(-rows // most)} times" * (rows > most)
    return ENCODER.format(1e3 * p.at(on, 1024, batch)["vision"], 1e3 * products) + again


def _ms(p: Points, on: str, cache: int, stage: str = "frame") -> Callable[[str], float]:
    """Milliseconds of a point, as a function of the selection."""
    return lambda select: p.ms(on, cache, stage=stage, select=select)


def _per_second(p: Points, on: str, cache: int) -> Callable[[str], float]:
    """Frames per second, as a function of the selection."""
    return lambda select: 1e3 / p.ms(on, cache, select=select)


def _gain(
    p: Points, pair: tuple[str, str], cache: int, batch: int, stage: str, of: str = "seconds"
) -> Callable[[str], float]:
    """V-Rex over FlexGen on a GPU, as a function of the selection."""
    return lambda select: p.gain(pair, cache, batch, stage, select, of)


def _motivation(c: Claims, p: Points) -> None:
    c.say("abstract", "most over AGX Orin", 19.7, "x", lambda s: p.gain(EDGE, 40960, stage="token", select=s),
          proof="the most over AGX in section VI is 15.1 (VI-B, tokens); 19.7 is there over A100, frames at batch 8"
          )  # fmt: skip
    whole = p.session("a100", 81920, "infinigen")
    prefill = (whole["frame"] + whole["question"]) / whole["total"]
    c.say("Fig. 4b", "A100+InfiniGen, 80K: prefill", 83, "%", 100 * prefill, fitted="its prediction is fitted to it")
    frame = p.at("a100", 81920, policy="infinigen")
    share = (frame["fetch"] + frame["predict"]) / (frame["fetch"] + frame["compute"])
    c.say("Fig. 4b", "A100+InfiniGen, 80K: retrieval of prefill", 74, "%", 100 * share)
    budget = budgeted()
    parts = {"prediction": 100 * budget.busy_share("predict"), "fetch": 100 * budget.busy_share("fetch")}
    off = "shares of all work; the paper's leave 29 ms for the rest, less than A100's token takes (39 ms)"
    c.say("Fig. 4c", "A100+InfiniGenP, 10K of 40K: prediction", 40, "%", parts["prediction"], off=off)
    c.say("Fig. 4c", "A100+InfiniGenP, 10K of 40K: fetch", 39, "%", parts["fetch"], off=off)
    proof = "it is prediction and fetch, and 40 % + 39 % = 79 %"
    c.say("Fig. 4c", "A100+InfiniGenP, 10K of 40K: both", 85, "%", sum(parts.values()), proof=proof)


def _latency(c: Claims, p: Points) -> None:
    doubts = {n: bytes_need(n, 4) for n in (20480, 40960)}
    doubts[10240] = "from 5K to 10K 75 ms more, from 10K to 20K 2 ms; " + bytes_need(10240, 4)
    off = encoder(p, "edge") + "; the paper's frame takes 32 ms more than its token in all (1K)"
    for cache, ms in zip(CACHES, (121, 123, 198, 200, 254), strict=True):
        ours = _ms(p, "edge", cache)
        c.say("Fig. 13a", f"V-Rex8, frame, {cache >> 10}K", ms, "ms", ours, doubts.get(cache, ""), off=off)
    for cache, rate in ((1024, 8.3), (40960, 3.9)):
        ours = _per_second(p, "edge", cache)
        c.say("VI-B", f"V-Rex8, frames per second, {cache >> 10}K", rate, "1/s", ours, doubts.get(cache, ""), off=off)
    for on, name, low, high in (("edge", "V-Rex8", 89, 97), ("server", "V-Rex48", 14, 15)):
        for cache, ms in ((1024, low), (40960, high)):
            ours = _ms(p, on, cache, "token")
            fit = FIT_GAP if cache == 1024 else ""
            c.say("VI-B", f"{name}, time per token, {cache >> 10}K", ms, "ms", ours, fitted=fit)
    for cache, ms in ((1024, 20), (40960, 48)):
        doubt = bytes_need(cache, 32) if cache == 40960 else ""
        ours = _ms(p, "server", cache)
        c.say("Fig. 13b", f"V-Rex48, frame, {cache >> 10}K", ms, "ms", ours, doubt, off=encoder(p, "server"))
    for pair, name, rows in (
        (EDGE, "V-Rex8 over AGX", (("frame", 1, 2.2, 7.3), ("frame", 4, 2.1, 13.8), ("token", 1, 1.9, 15.1))),
        (SERVER, "V-Rex48 over A100", (("frame", 1, 2.6, 7.3), ("frame", 8, 3.4, 19.7), ("token", 1, 2.8, 16.8))),
    ):
        for stage, batch, least, largest in rows:
            for cache, x in ((1024, least), (40960, largest)):
                ours = _gain(p, pair, cache, batch, stage)
                doubt = most(p, pair, batch) if stage == "frame" and cache == 40960 else ""
                fit = FIT_GPU if batch == 1 else ""
                off = "" if stage == "token" else encoder(p, pair[0], batch)
                c.say("VI-B", f"{name}, {stage}, batch {batch}, {cache >> 10}K", x, "x", ours, doubt, fit, off)


def _sessions(c: Claims, p: Points) -> None:
    def gain(select: str) -> float:
        return p.session("agx", 40960, "flexgen")["total"] / p.session("edge", 40960, "resv", select)["total"]

    def beside(policy: str) -> float:
        return p.session("agx", 20480, policy)["total"] / p.session("agx", 20480, "flexgen")["total"]

    doubt = (
        "26 frames and 39 tokens of 7.3 x 254 and 15.1 x 97 ms over as many of 254 and 97 ms are 10.1 (Fig. 13), if "
        "the 5.4 is of 40K: the text does not say"
    )
    c.say("Fig. 14", "V-Rex8 over AGX+FlexGen, session, 40K", 5.4, "x", gain, doubt)
    what = "{} over FlexGen on AGX, session, 20K (text: slower)"
    c.say("Fig. 14", what.format("InfiniGenP"), 1.0, "x", beside("infinigenp"), fitted="its prediction is fitted to it")
    doubt = "Fig. 18 has ReKV 2.3 times as fast as FlexGen at 40K; prediction grows with the cache as the fetch does"
    c.say("Fig. 14", what.format("ReKV"), 1.0, "x", beside("rekv"), doubt)


@lru_cache
def _our_power() -> str:
    """What all cores take in a frame, by our synthesis and by Table III."""

    def cores(v: platforms.Vrex, power: str) -> float:
        return simulate(replace(v, power=power), Point(40960)).watts["cores"]

    (edge, edge_paper), (server, server_paper) = (
        (cores(v, "ours"), cores(v, "paper")) for v in (platforms.EDGE, platforms.SERVER)
    )
    return (
        f"our synthesised cores take {edge:.1f} W, Table III's {edge_paper:.0f} W "
        f"(server: {server:.1f} and {server_paper:.0f})"
    )


def _energy(c: Claims, p: Points) -> None:
    for pair, name, power, rows in (
        (EDGE, "V-Rex8 over AGX", 40 / 35,
         (("frame", 1, (5.5, 2.2), (10.2, 7.3)), ("frame", 4, (3.1, 2.1), (12.8, 13.8)),
          ("token", 1, (4.3, 1.9), (18.5, 15.1)))),
        (SERVER, "V-Rex48 over A100", 300 / 203.68,
         (("frame", 1, (9.0, 2.6), (29.7, 7.3)), ("frame", 8, (5.9, 3.4), (52.2, 19.7)),
          ("token", 1, (13.2, 2.8), (70.6, 16.8)))),
    ):  # fmt: skip
        for stage, batch, low, high in rows:
            for cache, (x, faster) in ((1024, low), (40960, high)):
                implied = faster * power
                doubt = f"{faster:g} times the speed at Table I's powers, which are maxima, make {implied:.1f}"
                doubt = "" if abs(implied / x - 1) <= TOLERANCE else doubt
                ours = _gain(p, pair, cache, batch, stage, "joules")
                what = f"{name}, energy, {stage}, batch {batch}, {cache >> 10}K"
                c.say("VI-B", what, x, "x", ours, doubt, off=_our_power())
    for cache, x in ((1024, 1.1), (40960, 1.4)):
        doubt = f"at 203.68 W, a maximum, that is {x * 203.68:.0f} TFLOPS; {allowed(cache)}"

        def efficiency(select: str, n: int = cache) -> float:
            a = p.at("server", n, 8, select=select)
            return a["ops"] / a["joules"] / 1e12

        c.say("VI-B", f"V-Rex48, frames, batch 8, {cache >> 10}K", x, "TOPS/W", efficiency, doubt)


def _oaken(c: Claims, p: Points) -> None:
    for what, on, policy, x in (("AGX, cache resident", "agx", "resident", 1.5), ("Oaken", "edge", "oaken", 1.1)):
        base = p.ms(on, 1024, policy=policy)
        off = "taken as our cores without DRE: at 1K 0.03 GB of cache are nothing beside 15 GB of weights"
        ours = lambda s, b=base: b / p.ms("edge", 1024, select=s)  # noqa: E731
        c.say("Fig. 15", f"V-Rex8 over {what}, 1K", x, "x", ours, off=off, fitted=FIT_BATCH.format(1))
    fits = [n for n in CACHES if Point(n, FIG_15_BATCH, policy="oaken").device_bytes <= platforms.AGX.capacity]
    fit = FIT_BATCH.format(FIG_15_BATCH)
    c.say("Fig. 15", f"Oaken's longest cache (batch {FIG_15_BATCH})", 20, "K", max(fits) >> 10, fitted=fit)
    doubt = "Fig. 13 has 5.0 a second at 20K and 3.9 at 40K, at batch 1: that of Fig. 15 is not stated"
    c.say("Fig. 15", "V-Rex8, beyond 20K", 7, "1/s", lambda s: 1e3 / p.ms("edge", 40960, select=s), doubt)


def _ablation(c: Claims, p: Points) -> None:
    base = p.at("agx", 40960, policy="flexgen")
    resv = p.at("agx", 40960, policy="resv")
    fit = "its prediction is fitted to it"
    c.say("Fig. 16", "AGX+ReSV over AGX+FlexGen", 2.8, "x", base["seconds"] / resv["seconds"], fitted=fit)
    c.say("Fig. 16", "AGX+ReSV: prediction", 48, "%", 100 * resv["predict"] / resv["seconds"], fitted=fit)
    for name, on, x, doubt in (("KVPU", "kvpu", 6.0, most(p, EDGE)), ("All", "edge", 8.1, without_encoder(p))):
        faster = lambda s, a=on: base["seconds"] / p.at(a, 40960, select=s)["seconds"]  # noqa: E731
        c.say("Fig. 16", f"V-Rex8 {name} over AGX+FlexGen", x, "x", faster, doubt)

    def gain(select: str) -> float:
        return p.ms("kvpu", 40960, select=select) / p.ms("edge", 40960, select=select)

    off = "an entry is K and V of one head, 512 B: apart, the drive gives 0.44 GB/s of them (docs/simulator.md)"
    c.say("Fig. 16", "All over KVPU", 1.35, "x", gain, off=off)
    for name, on, x in (("KVPU", "kvpu", 9.2), ("All", "edge", 10.2)):
        less = lambda s, a=on: base["joules"] / p.at(a, 40960, select=s)["joules"]  # noqa: E731
        c.say("Fig. 16", f"V-Rex8 {name}, energy", x, "x", less, off="as latency; " + _our_power())
    one = p.at("kvpu", 40960)
    frame = 7.3 * 254 / 6.0  # FlexGen's by Fig. 13, over Fig. 16's speed-up
    parts = (
        f"{1e3 * one['predict']:.1f} ms of a frame of {1e3 * one['seconds']:,.0f}, the paper's {0.005 * frame:.1f} of "
        f"{frame:.0f}"
    )
    ours = 100 * one["predict"] / one["seconds"]
    c.say("Fig. 16", "V-Rex8 KVPU: prediction", 0.5, "%", ours, off=parts, basis=("accident", parts))
    sizes = RESTATED, "the paper's sizes of an entry's parts"
    c.say("VI-B", "HC table of the cache, 32 tokens a cluster", 1.67, "%", 100 * table_share(), basis=sizes)


def _analysis(c: Claims, p: Points) -> None:
    v = platforms.PAPER_SERVER
    scores = [s for s in simulate(v, Point(40960)).stages if s.name == "predict"]
    rate = sum(s.bytes for s in scores) / sum(s.end - s.start for s in scores)
    off = "cores of a team read representatives, and weights to guess queries, side by side; they write scores, too"
    c.say("Fig. 17", "prediction's bandwidth", 600, "GB/s", rate / 1e9, off=off)
    used = 100 * v.link.bandwidth(4096) / v.dram.t.bandwidth
    proof = "PCIe over DRAM by Table I: 32 of 1,935 GB/s are 1.65 %, 4 of 204.8 GB/s 1.95 %"
    c.say("Fig. 17", "retrieval of the memory's bandwidth", 1, "%", used, proof=proof)
    m, batch, rows, cache = Decoder(), 4, 10, 40960
    dense = 2.0 * batch * rows * m.pass_weights
    attention = 2.0 * batch * m.layers * m.attention_macs(rows, cache)
    weights, entries = 2 * m.pass_weights, batch * cache * m.token_bytes
    what = "operations per byte, 40K, batch 4: of products, by weights and whole caches"
    shapes = RESTATED, "shapes of Llama-3 8B: nothing is simulated"
    c.say("Fig. 18", what, 15.2, "Op/B", dense / (weights + entries), basis=shapes)
    roof = 15.2 * 204.8e9

    def reached(on: str, policy: str, select: str) -> float:
        a = p.at(on, cache, batch, policy=policy, select=select)
        return 100 * (a["ops"] - 2 * batch * Vision().macs) / (a["seconds"] - a["vision"]) / roof

    table = "table2"
    c.say("Fig. 18", "AGX+FlexGen of the roof", 6.6, "%", reached("agx", "flexgen", table))
    doubt = "58.4 % of FlexGen's bytes are at most 1.71 times 6.6 %, 11.3 %, if FlexGen's time is all fetching"
    c.say("Fig. 18", "AGX+ReKV of the roof", 15, "%", reached("agx", "rekv", table), doubt)
    light = dense + SHARE * attention
    need = SHARE * entries / 4e9
    time = (
        f"{light / 1e12:.2f} TOP at 71.5 % are {light / (0.715 * roof) * 1e3:,.0f} ms, their bytes {need * 1e3:,.0f} ms"
    )
    doubt = f"{time}, {RESIDENT}"
    c.say("Fig. 18", "V-Rex8 of the roof", 71.5, "%", lambda s: reached("edge", "resv", s), doubt)
    ours = lambda s: reached("edge", "resv", s) / reached("agx", "flexgen", table)  # noqa: E731
    c.say("Fig. 18", "V-Rex8 over AGX+FlexGen", 10.8, "x", ours, "rests on the 71.5 %")


def _retrieval(c: Claims, p: Points) -> None:
    base = p.ms("agx", 40960, policy="flexgen")
    keys = (
        RESTATED,
        (
            "bytes of the link: all keys, and the values of Table II's share. With th_hd=0 our DRE gives each key a "
            "cluster, but a table holds 1,024"
        ),
    )
    c.say("Fig. 19", "ReSV without clusters over the baseline", 1.6, "x", 1 / (0.5 + SHARE / 2), basis=keys)
    doubt = "7.3 in Fig. 13, 8.1 in Fig. 16, if the baseline is AGX+FlexGen at batch 1: not stated; " + most(p, EDGE)
    c.say("Fig. 19", "ReSV over the baseline, 40K", 9.4, "x", lambda s: base / p.ms("edge", 40960, select=s), doubt)
    drops = {name: [a - b for a, b in zip(ACCURACY["none"], row, strict=True)] for name, row in ACCURACY.items()}
    table = RESTATED, "Table II"
    c.say("VI-E", "ReSV's mean drop of accuracy (Table II)", 0.8, "%", sum(drops["resv"]) / 5, basis=table)
    c.say("VI-E", "InfiniGenP's largest drop (Table II)", 3.4, "%", max(drops["infinigenp"]), basis=table)
    fewer = TABLE_II["rekv"][0] / SHARE
    c.say(
        "Fig. 20",
        "tokens fewer than ReKV's",
        3.0,
        "x",
        fewer,
        f"58.4 / 32.7 = {fewer:.2f} in Table II, of five benchmarks: this is one video",
    )
    known = traced(Decoder(), c.trace, PUBLISHED)
    layers = known.layers("frame")
    one = "one stream of a small decoder; its 36-token streams have 4.1 to 59 %"
    c.say("Fig. 20", "least share of a layer", 4.2, "%", 100 * layers.min(), off=one, basis=PREDICTED)
    c.say("Fig. 20", "largest share of a layer", 44, "%", 100 * layers.max(), off=one, basis=PREDICTED)
    off = "our trace of 10 tokens a frame; 36 tokens a frame select 21 to 23 %"
    c.say("Table II", "share in frames", 32.7, "%", 100 * layers.mean(), off=off, basis=PREDICTED)
    text = 100 * known.layers("text").mean()
    c.say("Table II", "share in generation", 2.5, "%", text, off=off, basis=PREDICTED)


def _overhead(c: Claims) -> None:
    for vrex, flops, watts in ((platforms.PAPER_EDGE, 53.3, 35.0), (platforms.PAPER_SERVER, 319.5, 203.68)):
        v = replace(vrex, power="paper")
        sizes = RESTATED, "the paper's multipliers and clock, which our presets have"
        c.say("Table I", f"{v.name}, peak", flops, "TFLOPS", v.flops / 1e12, basis=sizes)
        ours = sum(simulate(v, Point(40960)).watts.values())
        what = f"{v.name}, cores of Table III with our memory and link"
        off = "memory and link work for a part of the time only"
        parts = RESTATED, "Table III's cores make most of it"
        c.say("Table I", what, watts, "W", ours, off=off, basis=parts)
    table = RESTATED, "Tables I and III"
    for cores, area in ((8, 15.12), (48, 90.57)):
        c.say("VI-F", f"{cores} cores of 1.89 mm2", area, "mm2", cores * 1.89, basis=table)
    c.say("VI-F", "V-Rex8's power below AGX's", 11.4, "%", 100 * (1 - 35 / 40), basis=table)
    c.say("VI-F", "V-Rex48's power below A100's", 32.1, "%", 100 * (1 - 203.68 / 300), basis=table)
    proof = "57.04 of 2,609.43 mW are 2.2 % (Table III and the abstract)"
    c.say("VI-F", "DRE of the power", 2.4, "%", 100 * 57.04 / 2609.43, proof=proof)
    c.say("VI-F", "DRE of the area", 2.0, "%", 0.28 + 1.23 + 0.53, basis=table)


def table_share() -> float:
    """Size of the HC table over that of its tokens' K and V.

    Its entry is a representative key of all KV heads, hash bits, a count and the indices of its members.
    """
    m, tokens = Decoder(), 32
    entry = m.kv_heads * m.head * 2 + 32 / 8 + 16 / 8 + tokens * 20 / 8
    return entry / (tokens * m.entry_bytes)
