"""Scenarios of the DRE: phases of keys and rows that a bench drives, and the beats that golden expects."""

import math
from dataclasses import asdict, dataclass, field

import numpy as np

from golden.function_params import ReSVParams, ScoreFormat
from golden.retrieval.dre_model import DreModel, Query
from golden.retrieval.kvmap import KvMap
from hdl.params import DreParams, HcuParams, KvmuParams, WtuParams
from sim.units.dre_time import DreTime
from sim.units.hcu_time import HcuTime
from sim.units.wtu_time import WtuTime


def params_from(tree: dict) -> DreParams:
    """The parameters of a tree that `asdict` made."""
    wtu = dict(tree["wtu"], score=ScoreFormat(**tree["wtu"]["score"]))
    return DreParams(HcuParams(**tree["hcu"]), WtuParams(**wtu), KvmuParams(**tree["kvmu"]))


@dataclass
class Scenario:
    """Phases for the bench, and the beats that golden expects on the streams `t`, `w`, `x` and `b`."""

    p: DreParams
    f: ReSVParams
    device_base: int = 0
    home_base: int = 0
    phases: list[dict] = field(default_factory=list)
    t: list[dict] = field(default_factory=list)
    w: list[dict] = field(default_factory=list)
    x: list[dict] = field(default_factory=list)
    b: list[dict] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    label: str = ""  # names what is played next, for messages

    def __post_init__(self):
        k = self.p.kvmu
        names = ("n_ctx", "clusters", "blocks", "block_slots", "recent", "entry_bytes", "boundary")
        bases = {"device_base": self.device_base, "home_base": self.home_base}
        self.model = DreModel(self.f, KvMap(**{n: getattr(k, n) for n in names}, **bases))
        self.tokens = [0] * k.n_ctx
        self.blocks: list[tuple[int, np.ndarray]] = []  # context and codes of each query
        self.counts: list[list[np.ndarray]] = []  # counts of every context, at each query
        self.asked: list[str] = []  # label of each query
        self.labels: dict[str, list[str]] = {name: [] for name in "twxb"}  # label of each beat
        self.most_blocks = 0  # the most blocks that the KVMU had taken at once

    def _phase(self, along: bool, what: str, beats: list[dict]) -> None:
        """Add beats to a phase of their own, or to the phase before."""
        if not along:
            self.phases.append({"label": self.label})
        self.phases[-1].setdefault(what, []).extend(beats)

    def _expect(self, stream: str, beat: dict) -> None:
        """Add a beat that must come."""
        getattr(self, stream).append(beat)
        self.labels[stream].append(self.label)

    def clear(self, ctx: int, along: bool = False) -> None:
        """Forget a context. `along` has the meaning that it has in `keys`."""
        self.model.clear(ctx)
        self.tokens[ctx] = 0
        self._phase(along, "keys", [{"op": 1, "ctx": ctx, "token": 0, "hash": 0, "last": 1}])
        self._expect("t", {"op": 1, "ctx": ctx})

    def keys(self, ctx: int, hashes: list[int], along: bool = False) -> None:
        """Add a frame's keys.

        along : offer them right behind the keys before, or beside the rows before, which must be of other contexts;
            otherwise they wait until all of those have ended
        """
        beats = []
        for i, h in enumerate(hashes):
            token, last = self.tokens[ctx], int(i == len(hashes) - 1)
            self.tokens[ctx] += 1
            joined, placed = self.model.key(ctx, h)
            beats.append({"op": 0, "ctx": ctx, "token": token, "hash": h, "last": last})
            news = {"cluster": joined.cluster, "is_new": int(joined.is_new), "full_join": int(joined.full_join)}
            self._expect("t", {"op": 0, "ctx": ctx, "token": token, **news, "count": joined.count, "last": last})
            full = int(not placed.ok)
            self._expect("w", {"token": token, "full": full, "device": placed.device, "home": placed.home})
            if placed.move:
                self._expect("x", placed.move._asdict())
        self._phase(along, "keys", beats)
        self.most_blocks = max(self.most_blocks, self.model.kv.fresh - len(self.model.kv.freed))

    def query(self, ctx: int, codes: np.ndarray, along: bool = False) -> None:
        """Add the rows of a query block, [R, C]. With `along` they come right behind the rows before."""
        q = self.model.query(ctx, codes)
        self.queries.append(q)
        self.blocks.append((ctx, codes))
        self.counts.append([table.counts.copy() for table in self.model.tables])
        self.asked.append(self.label)
        self._phase(along, "rows", row_beats(self.p.wtu, ctx, codes))
        self.phases[-1]["blocks"] = self.phases[-1].get("blocks", 0) + 1
        for i, burst in enumerate(q.bursts):
            self._expect("b", {**burst._asdict(), "ctx": ctx, "last": int(i == len(q.bursts) - 1), "empty": 0})
        if not q.bursts:
            self._expect("b", {"ctx": ctx, "last": 1, "empty": 1})

    def config(self, idle: float = 0.0, stall: float = 0.0, reset_at: int = 0) -> dict:
        """The configuration that `tb.benches.bench_dre` reads."""
        return {
            "params": asdict(self.p),
            "phases": self.phases,
            "th_hd": self.f.th_hd,
            "ratio": self.f.ratio_q16,
            "device_base": self.device_base,
            "home_base": self.home_base,
            "idle": idle,
            "stall": stall,
            "reset_at": reset_at,
            "gap": 16,
            "limit": 400_000,
        }

    def phase_cycles(self) -> list[int | None]:
        """Cycles of each phase by the time view: from its first beat to its last beat on `t`, or to its last burst.

        None for a phase of keys beside rows, and for one of several query blocks.
        """
        time = DreTime(self.p, self.f.th_hd, self.device_base, self.home_base)
        out, t, queries = [], iter(self.t), iter(self.queries)
        blocks = iter(self.blocks)
        for phase in self.phases:
            ends = []
            for _ in range(phase.get("blocks", 0)):
                q, (ctx, codes) = next(queries), next(blocks)
                ends.append(time.query(ctx, codes, q.counts, self.f.ratio_q16, q.clusters))
            if "keys" in phase:
                news = [next(t) for _ in phase["keys"]]
                beats = zip(phase["keys"], news, strict=True)
                ends.append(time.keys([(k["op"], k["ctx"], k["hash"], n.get("cluster", 0)) for k, n in beats])[-1])
            out.append(ends[0] if len(ends) == 1 else None)
        return out

    def cycles_differ(self, got: dict) -> list[str]:
        """Phases whose cycles differ from the time view, a line each. For a run without stalls on one WTU core."""
        spans = zip(self.phases, self.phase_cycles(), got["first"], got["ends"], strict=True)
        wrong = [(p, b - a, n) for p, n, a, b in spans if n is not None and b - a != n]
        return [f"{p['label']}: {b} cycles of a phase, {n} by the time view" for p, b, n in wrong]

    def perf(self) -> dict[str, int]:
        """Values that the event counters must have, without the words that the WTU reads back."""
        p, keys = self.p, [beat for beat in self.t if beat["op"] == 0]
        time, compares = HcuTime(p.hcu, self.f.th_hd), 0
        for beat in (beat for phase in self.phases for beat in phase.get("keys", [])):
            if beat["op"]:
                time.clear(beat["ctx"])
            else:
                compares += time.key(beat["ctx"], beat["hash"])[0]
        full = sum(beat["full"] for beat in self.w)
        size = p.kvmu.entry_bytes
        out = {
            "hcu.tokens": len(keys),
            "hcu.opened": sum(beat["is_new"] for beat in keys),
            "hcu.full_joins": sum(beat["full_join"] for beat in keys),
            "hcu.compares": compares,
            "cluster_set.sets": len(self.queries),
            "cluster_set.clusters": sum(len(q.clusters) for q in self.queries),
            "kvmu.appends": len(self.w) - full,
            "kvmu.full": full,
            "kvmu.offloads": len(self.x),
            "kvmu.fetched": sum(beat.get("bytes", 0) for beat in self.b) // size,
            "kvmu.bursts": sum(not beat["empty"] for beat in self.b),
        }
        wtu = WtuTime(p.wtu)
        rows = [(row, q.counts) for q, (_, codes) in zip(self.queries, self.blocks, strict=True) for row in codes]
        for i in range(p.wtu.n_h):
            times = [wtu.row(row, counts, self.f.ratio_q16) for row, counts in rows[i :: p.wtu.n_h]]
            sums = {name: sum(getattr(time, name) for time in times) for name in ("words", "walked", "zooms")}
            out |= {f"wtu{i}.{name}": n for name, n in ({"rows": len(times)} | sums).items()}
        return out

    def differences(self, got: dict) -> list[str]:
        """The first wrong beat of each stream, and every wrong counter, a line each; empty if the RTL equals golden."""
        out = []
        for name in ("t", "w", "x", "b"):
            want, have = getattr(self, name), got[name]
            labels = [label and f"{label}: " for label in self.labels[name]]
            for i, (a, b) in enumerate(zip(want, have, strict=False)):
                wrong = {key: (b[key], v) for key, v in a.items() if b[key] != v}
                if wrong:
                    fields = ", ".join(f"{k} is {h}, golden {g}" for k, (h, g) in wrong.items())
                    out.append(f"{labels[i]}{name}[{i}]: {fields}")
                    break
            if len(want) != len(have):
                out.append(f"{name}: {len(have)} beats, golden has {len(want)}")
        perf = got["perf"]
        out += [f"{n} counts {perf[n]}, golden {v}" for n, v in self.perf().items() if perf[n] != v]
        return out


def row_beats(p: WtuParams, ctx: int, codes: np.ndarray) -> list[dict]:
    """Rows [R, C] as words of the stream `s`."""
    rows, n = codes.shape
    words = math.ceil(n / p.n_w)
    padded = np.zeros((rows, words * p.n_w), int)
    padded[:, :n] = codes
    out = []
    for r in range(rows):
        for i in range(words):
            scores = padded[r, i * p.n_w : (i + 1) * p.n_w].tolist()
            last = int(i == words - 1)
            row = {"ctx": ctx, "scores": scores, "keep": (n - 1) % p.n_w if last else p.n_w - 1, "last": last}
            out.append({"row": row, "set_last": int(r == rows - 1)})
    return out
