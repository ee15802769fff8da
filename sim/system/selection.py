"""What recorded streams fetch: shares of the tokens at home by layer and KV head, their unions, and sizes of clusters.

`selections.json` beside this file holds the records. `world` is the paper's setting, 180 frames of 10 tokens; streams
whose name ends in 36 are 56 frames of 36 tokens. The decoder has 30 layers and 3 KV heads. Tables of `resv` have room
for as many clusters as those of the presets. Commands:

    vrex papers stream world --policy resv,resv-buckets -p resv.resv.max_clusters=16384 --tokens 10 --fps 15 --gop 16 \
        --frames 180 -o build/selection
    vrex papers stream world --policy resv,resv-paper,resv-buckets -p resv.resv.max_clusters=16384 --gop 16 \
        --frames 56 -o build/selection36
    vrex simulate selection build/selection/results.json build/selection36/results.json -o sim/system/selections.json

What device memory has of coded pages (`kvmu.kept`) was recorded with a budget of 7 % of the stream:

    vrex papers stream world --policy pages -p pages.budget=128 --tokens 10 --fps 15 --gop 16 --frames 180 \
        -o build/pages

Of `bigbuckbunny36` and `bikes36` only the shares of `resv-buckets` were recorded (`--policy resv-buckets --gop 16
--frames 56`). Their clusters are taken to have 32 tokens, as in V-Rex's paper.

The share of a layer and head is (kept - resident) / (1 - resident). This takes out the recent window and the sinks,
which are never fetched, so that the share holds for any cache length. A table of several heads fetches the union of
what they select. Unions are means over all neighbouring heads.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from openvrex.golden.function_params import check

FILE = Path(__file__).with_name("selections.json")
POLICY = "resv"  # the default function
PUBLISHED = "resv-buckets"  # V-Rex as its paper publishes it, with a table for each KV head
FRAME_TOKENS = 10  # of a frame of a stream whose name does not say it


@dataclass(frozen=True)
class Record:
    """What a policy fetched on a stream.

    stream, policy : names · function : the policy's parameters in words
    frame : shares in frames, [layers][kv_heads] · text : mean shares in generation of the union of 1, 2, ... heads
    unions : shares in frames of the same unions, [layers][kv_heads]
    cluster : mean tokens of a cluster, or of a piece that the policy fetches
    sizes : by stage ("frame", "text"), typical tokens at home of a fetched cluster
    pages : by stage, whole pages of a set, of coded pages alone
    found : by stage, the share of them that device memory has, by places for kept pages of a KV head
    """

    stream: str
    policy: str
    function: str
    frame: list[list[float]]
    text: list[float]
    unions: list[list[float]]
    cluster: float
    sizes: dict[str, list[int]]
    pages: dict[str, float] = field(default_factory=dict)
    found: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For titles of tables."""
        return f"{self.policy} on {self.stream} ({self.function})"

    def kept(self, stage: str, places: int, pages: int) -> float:
        """The share of a set of so many pages that device memory has: that of as many places a page in the record.

        0 without places; beyond the record's ends their shares.
        """
        known = self.found[stage]
        if not places:
            return 0.0
        ratios = [np.log2(int(n) / self.pages[stage]) for n in known]
        return float(np.interp(np.log2(places / pages), ratios, list(known.values())))


def fetching(results: dict) -> list[str]:
    """The policies of a results.json that fetch tokens, all but those that fetch everything."""
    return [name for name, r in results["policies"].items() if r["frame"]["fetched"] and r["frame"]["kept"] < 1]


def recorded(results: dict, policy: str) -> Record:
    """The record of one of the policies that `fetching` gives; results : what `vrex papers stream` writes."""
    r, source = results["policies"][policy], results["source"]
    name, tokens = Path(source["stream"]).stem, source.get("tokens", FRAME_TOKENS)

    def fetched(stage: str, kept: list) -> np.ndarray:
        resident = r[stage]["kept"] - r[stage]["fetched"]
        return np.clip((np.array(kept, float) - resident) / (1 - resident), 0.0, 1.0)

    if clusters := r["clusters"]:
        cluster, known = clusters["tokens"], clusters["sizes"]
        sizes = {stage: known.get(long, known["frame"]) for stage, long in (("frame", "frame"), ("text", "generation"))}
    else:  # no tables of clusters: a piece is what lies together
        cluster = _piece(r["totals"], results["entry_bytes"])
        sizes = dict.fromkeys(("frame", "text"), [max(1, round(cluster))])
    unions = r["unions"]
    generated = "generation" if r["generation"]["kept"] is not None else "frame"  # a stream without an answer
    return Record(
        stream=name if tokens == FRAME_TOKENS else f"{name}{tokens}",
        policy=policy,
        function=_words(r["parameters"]),
        frame=_rounded(fetched("frame", r["ratio"]), 3),
        text=_rounded(fetched(generated, unions[generated]).mean(0), 4),
        unions=_rounded(fetched("frame", unions["frame"]), 3),
        cluster=round(cluster, 3),
        sizes=sizes,
        **_kept(r.get("policy", {})),
    )


def _kept(figures: dict) -> dict:
    """`pages` and `found` of a record, rounded, with the simulator's names of stages."""
    if "found" not in figures:
        return {}
    stages = {"frame": "frame", "generation": "text"}
    found = {stages[s]: {n: round(x, 3) for n, x in own.items()} for s, own in figures["found"].items()}
    return {"pages": {stages[s]: round(n, 2) for s, n in figures["pages"].items()}, "found": found}


def _rounded(a: np.ndarray, digits: int) -> list:
    return np.round(a, digits).tolist()


def _piece(totals: dict, entry_bytes: int) -> float:
    """Mean tokens of a piece that crosses the link."""
    ways = [way for way in ("in.fetch", "in.prefetch") if way in totals]
    return sum(totals[way] for way in ways) / entry_bytes / sum(totals[f"pieces.{way}"] for way in ways)


def _words(parameters: dict) -> str:
    """The parameters of a policy in a few words."""
    p = parameters.get("resv")
    if p is None:
        return ", ".join(f"{name} {value}" for name, value in parameters.items() if not isinstance(value, dict))
    chosen = "exact set" if p["selection"] == "exact" else f"{p['n_buckets']} buckets"
    keys = "centred keys" if p["centre"] else "raw keys"
    table = "KV head" if p["scope"] == "head" else "layer"
    return f"Th_hd {p['th_hd']}, ratio {p['ratio_q16'] / 65536:.2g}, {chosen}, {keys}, a table a {table}"


def written(records: Iterable[Record]) -> str:
    """Records as a JSON file, a field a line."""
    each = []
    for r in records:
        known = {name: value for name, value in asdict(r).items() if value != {}}
        fields = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in known.items())
        each.append("{\n" + ",\n".join(fields) + "\n}")
    return "[" + ",\n".join(each) + "]\n"


def read(text: str) -> dict[str, dict[str, Record]]:
    """The records of a file that `written` made, by stream and policy."""
    out: dict[str, dict[str, Record]] = {}
    for fields in json.loads(text):
        out.setdefault(fields["stream"], {})[fields["policy"]] = Record(**fields)
    return out


@lru_cache(maxsize=1)
def records() -> dict[str, dict[str, Record]]:
    """The recorded streams that come with this project."""
    return read(FILE.read_text())


def of_reading(reading: str) -> str:
    """The policy of a reading of ReSV (`golden.function_params.READINGS`), which a preset names."""
    return POLICY if reading == POLICY else f"{POLICY}-{reading}"


def chosen(name: str, policy: str, known: Iterable[str], default: str = POLICY) -> str:
    """The policy to take of `known`, of which a stream or file `name` has records.

    policy : as asked for; empty takes `default`, or the only one

    Raises `ParamError` where there is none of that name, or where several are left.
    """
    names = list(known)
    check(
        bool(names), "select", name, "has no policy that fetches a part of the cache: run `vrex papers stream` with one"
    )
    found = policy or (names[0] if len(names) == 1 else default)
    check(
        found in names, "select", name, f"has records of {', '.join(names)}: take one of them, as in {name}:{names[0]}"
    )
    return found
