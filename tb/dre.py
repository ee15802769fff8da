"""Scenarios of the DRE: what is driven, what golden says must come out."""

import math
from dataclasses import asdict, dataclass, field

import numpy as np

from golden.dre import DreModel, Query
from golden.kvmap import KvMap
from golden.params import ReSVParams, ScoreFormat
from hdl.params import DreParams, HcuParams, KvmuParams, WtuParams
from sim.dre import DreTime


def params_from(tree: dict) -> DreParams:
    """The parameters that `asdict` flattened."""
    wtu = dict(tree["wtu"], score=ScoreFormat(**tree["wtu"]["score"]))
    return DreParams(HcuParams(**tree["hcu"]), WtuParams(**wtu), KvmuParams(**tree["kvmu"]))


@dataclass
class Scenario:
    """Phases for the bench, and the beats that golden gives for them."""

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

    def __post_init__(self):
        k = self.p.kvmu
        names = ("n_ctx", "clusters", "blocks", "block_slots", "recent", "entry_bytes", "boundary")
        bases = {"device_base": self.device_base, "home_base": self.home_base}
        self.model = DreModel(self.f, KvMap(**{n: getattr(k, n) for n in names}, **bases))
        self._tokens = [0] * k.n_ctx
        self.blocks: list[tuple[int, np.ndarray]] = []  # ctx and codes of each query

    def clear(self, ctx: int) -> None:
        """Forget a context."""
        self.model.clear(ctx)
        self._tokens[ctx] = 0
        self.phases.append({"keys": [{"op": 1, "ctx": ctx, "token": 0, "hash": 0, "last": 1}]})
        self.t.append({"op": 1, "ctx": ctx})

    def keys(self, ctx: int, hashes: list[int]) -> None:
        """A frame's keys."""
        beats = []
        for i, h in enumerate(hashes):
            token, last = self._tokens[ctx], int(i == len(hashes) - 1)
            self._tokens[ctx] += 1
            joined, placed = self.model.key(ctx, h)
            beats.append({"op": 0, "ctx": ctx, "token": token, "hash": h, "last": last})
            news = {"cluster": joined.cluster, "is_new": int(joined.is_new), "full_join": int(joined.full_join)}
            self.t.append({"op": 0, "ctx": ctx, "token": token, **news, "count": joined.count, "last": last})
            self.w.append({"token": token, "full": int(not placed.ok), "device": placed.device, "home": placed.home})
            if placed.move:
                self.x.append(placed.move._asdict())
        self.phases.append({"keys": beats})

    def query(self, ctx: int, codes: np.ndarray) -> None:
        """A query block's rows, [R, C]."""
        q = self.model.query(ctx, codes)
        self.queries.append(q)
        self.blocks.append((ctx, codes))
        self.phases.append({"rows": row_beats(self.p.wtu, ctx, codes)})
        for i, burst in enumerate(q.bursts):
            self.b.append({**burst._asdict(), "ctx": ctx, "last": int(i == len(q.bursts) - 1), "empty": 0})
        if not q.bursts:
            self.b.append({"ctx": ctx, "last": 1, "empty": 1})

    def config(self, idle: float = 0.0, stall: float = 0.0, reset_at: int = 0) -> dict:
        """What `tb.bench_dre` reads."""
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

    def phase_cycles(self) -> list[int]:
        """By the time view, cycles of each phase: first beat taken to the last on `t`, or to the last burst."""
        time = DreTime(self.p, self.f.th_hd, self.device_base, self.home_base)
        out, t, queries = [], iter(self.t), iter(self.queries)
        blocks = iter(self.blocks)
        for phase in self.phases:
            if "keys" in phase:
                news = [next(t) for _ in phase["keys"]]
                beats = zip(phase["keys"], news, strict=True)
                out.append(time.keys([(k["op"], k["ctx"], k["hash"], n.get("cluster", 0)) for k, n in beats])[-1])
            else:
                q, (ctx, codes) = next(queries), next(blocks)
                out.append(time.query(ctx, codes, q.counts, self.f.ratio_q16, q.clusters))
        return out

    def differences(self, got: dict) -> list[str]:
        """Every stream's first beat that differs from golden, one line each; empty if the hardware is right."""
        out = []
        for name in ("t", "w", "x", "b"):
            want, have = getattr(self, name), got[name]
            if len(want) != len(have):
                out.append(f"{name}: {len(have)} beats, golden has {len(want)}")
            for i, (a, b) in enumerate(zip(want, have, strict=False)):
                wrong = {key: (b[key], v) for key, v in a.items() if b[key] != v}
                if wrong:
                    out.append(f"{name}[{i}]: {', '.join(f'{k} is {h}, golden {g}' for k, (h, g) in wrong.items())}")
                    break
        return out


def row_beats(p: WtuParams, ctx: int, codes: np.ndarray) -> list[dict]:
    """Rows [R, C] as words of `s`."""
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
