"""Scenarios of the DRE: phases of keys and rows that a bench drives, and the beats that golden expects."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from openvrex.golden.function_params import ReSVParams, ScoreFormat
from openvrex.golden.retrieval.clustering import Joined
from openvrex.golden.retrieval.dre_model import Query
from openvrex.golden.retrieval.kvmap import Move, Placed
from openvrex.golden.retrieval.table_image import image
from openvrex.hdl.params import DreParams, HcuParams, KvmuParams, TableParams, WtuParams
from openvrex.hdl.retrieval.hcu_state import CLEAR, SWITCH
from openvrex.sim.units.dre_time import DreTime
from openvrex.sim.units.hcu_time import HcuCycles, HcuTime
from openvrex.sim.units.table_time import alone
from openvrex.sim.units.wtu_time import WtuTime

HCU_BEAT = ("op", "ctx", "hash", "last")  # of a key, for the time view of the HCU


def params_from(tree: dict) -> DreParams:
    """The parameters of a tree that `asdict` made."""
    wtu = dict(tree["wtu"], score=ScoreFormat(**tree["wtu"]["score"]))
    table = TableParams(**tree["table"])
    return DreParams(HcuParams(**tree["hcu"]), WtuParams(**wtu), KvmuParams(**tree["kvmu"]), table)


@dataclass
class Scenario:
    """Phases for the bench, and the beats that golden expects on the streams `t`, `w`, `x` and `b`.

    pool : blocks of the pool, as the register says; 0: as many as the hardware can name
    """

    p: DreParams
    f: ReSVParams
    device_base: int = 0
    home_base: int = 0
    table_base: int = 0
    phases: list[dict] = field(default_factory=list)
    t: list[dict] = field(default_factory=list)
    w: list[dict] = field(default_factory=list)
    x: list[dict] = field(default_factory=list)
    b: list[dict] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    label: str = ""  # names what is played next, for messages
    pool: int = 0

    def __post_init__(self):
        self.pool = self.pool or self.p.kvmu.blocks
        self.model = self.p.sizes(self.pool).model(self.f, 0, self.device_base, self.home_base)
        self.tokens: dict[int, int] = {}  # keys of each context so far
        self.blocks: list[tuple[int, np.ndarray]] = []  # context and codes of each query
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

    def clear(self, ctx: int, along: bool = False) -> list[Move]:
        """Forget a context; its blocks, if they are wiped. `along` has the meaning that it has in `keys`."""
        self._order(CLEAR, ctx, self.model.level(ctx), along)
        self.tokens[ctx] = 0
        wiped = self.model.clear(ctx)
        for block in wiped:
            self._moves(block)
        return wiped

    def _moves(self, move: Move) -> None:
        """A move, or a block that is wiped."""
        wipes = {"wipes": int(move.wipes)} if self.p.kvmu.shared else {}
        self._expect("x", move._asdict() | wipes)

    def switch(self, ctx: int, along: bool = False, budget: int = 0, what: str = "keys") -> None:
        """Let the rows that follow be of a context, and select a budget of tokens or (0) a share.

        `along` has the meaning that it has in `keys`. what : "then" offers it once the last row of the phase has gone,
        while its sets are still to come
        """
        self._order(SWITCH, ctx, self.model.switch(ctx, budget), along, what)

    def tokens_of(self, ctx: int) -> int:
        """Tokens of a context's clusters, as the WTU counts them."""
        return int(self.model.tables[ctx].counts.sum()) if ctx in self.model.tables else 0

    def _order(self, op: int, ctx: int, clusters: int, along: bool, what: str = "keys") -> None:
        self._phase(along, what, [{"op": op, "ctx": ctx, "token": 0, "hash": 0, "last": 1}])
        self._expect("t", {"op": op, "ctx": ctx, "clusters": clusters})
        self._expect("w", {"op": op})

    def keys(self, ctx: int, hashes: list[int], along: bool = False) -> list[tuple[int, Joined, Placed]]:
        """Add a frame's keys; returns golden's answers, each behind the number of clusters of its context.

        along : offer them right behind the keys before, or beside the rows before, which must be of other contexts;
            otherwise they wait until all of those have ended. Rows use the counts of the last `switch`
        """
        beats, answers = [], []
        for i, h in enumerate(hashes):
            token, last = self.tokens.get(ctx, 0), int(i == len(hashes) - 1)
            self.tokens[ctx] = token + 1
            joined, placed = self.model.key(ctx, h)
            answers.append((self.model.level(ctx), joined, placed))
            beats.append({"op": 0, "ctx": ctx, "token": token, "hash": h, "last": last})
            news = {"cluster": joined.cluster, "is_new": int(joined.is_new), "full_join": int(joined.full_join)}
            news["clusters"] = self.model.level(ctx)
            self._expect("t", {"op": 0, "ctx": ctx, "token": token, **news, "last": last})
            full = int(not placed.ok)
            self._expect("w", {"op": 0, "token": token, "full": full, "device": placed.device, "home": placed.home})
            if placed.move:
                self._moves(placed.move)
        self._phase(along, "keys", beats)
        self.most_blocks = max(self.most_blocks, self.model.kv.fresh - len(self.model.kv.freed))
        return answers

    def query(self, codes: np.ndarray, along: bool = False) -> None:
        """Add the rows of a query block, [R, C], of the context of the last `switch`.

        along : right behind the rows before
        """
        ctx, q = self.model.ctx, self.model.query(codes)
        self.queries.append(q)
        self.blocks.append((ctx, codes))
        self.asked.append(self.label)
        self._phase(along, "rows", row_beats(self.p.wtu, codes))
        self.phases[-1]["budget"] = q.budget
        self.phases[-1]["blocks"] = self.phases[-1].get("blocks", 0) + 1
        beats = [burst.beat(self.p.kvmu.kept > 0) | {"ctx": ctx, "last": 0, "empty": 0} for burst in q.bursts]
        for beat in [*beats[:-1], *(beat | {"last": 1} for beat in beats[-1:])]:
            self._expect("b", beat)
        if not q.bursts:
            self._expect("b", {"ctx": ctx, "last": 1, "empty": 1})

    def config(
        self, idle: float = 0.0, stall: float = 0.0, reset_at: int = 0, latency: tuple[int, int] = (20, 20)
    ) -> dict:
        """The configuration that `tb.benches.bench_dre` reads."""
        return {
            "params": asdict(self.p),
            "phases": self.phases,
            "th_hd": self.f.th_hd,
            "ratio": self.f.ratio_q16,
            "ports": {
                "device_base": self.device_base,
                "home_base": self.home_base,
                "table_base": self.table_base,
                "blocks": self.pool,
                "contexts": self.model.kv.n_ctx,
            },
            "latency": latency,
            "idle": idle,
            "stall": stall,
            "reset_at": reset_at,
            "gap": latency[1] + 16,  # the last writes of a phase are answered
            "limit": 400_000,
        }

    def phase_cycles(self, latency: int, first: Sequence[int] = ()) -> list[int | None]:
        """Cycles of each phase by the time view: from its first beat to its last reply, or to its last burst.

        None for a phase of keys beside rows, and for one of several query blocks.
        first : cycle of each phase's first beat from a reset on; the reset is long past if not given
        """
        time = DreTime(self.p, self.f.th_hd, latency, self.device_base, self.home_base, self.pool)
        out, t, queries = [], iter(self.t), iter(self.queries)
        blocks = iter(self.blocks)
        for number, phase in enumerate(self.phases):
            ends, begins = [], first[number] if first else None
            for _ in range(phase.get("blocks", 0)):
                q, (ctx, codes) = next(queries), next(blocks)
                ends.append(time.query(ctx, codes, q.counts, self.f.ratio_q16, q.clusters, begins, q.budget))
            if keys := [*phase.get("keys", []), *phase.get("then", [])]:
                news = [next(t) for _ in keys]
                beats = [(k["op"], k["ctx"], k["hash"], k["last"]) for k in keys]
                ends.append(time.keys(beats, [n.get("cluster", 0) for n in news]).w[-1])
            out.append(ends[0] if len(ends) == 1 else None)
        return out

    def cycles_differ(self, got: dict) -> list[str]:
        """Phases whose cycles differ from the time view, a line each. For a run without stalls on one WTU core."""
        spans = zip(
            self.phases, self.phase_cycles(got["latency"], got["first"]), got["first"], got["ends"], strict=True
        )
        wrong = [(p, b - a, n) for p, n, a, b in spans if n is not None and b - a != n]
        return [f"{p['label']}: {b} cycles of a phase, {n} by the time view" for p, b, n in wrong]

    def perf(self) -> dict[str, int]:
        """Values that the event counters must have, without the cycles in which words of scores wait for counts."""
        p, keys = self.p, [beat for beat in self.t if beat["op"] == 0]
        beats = [beat for phase in self.phases for beat in (*phase.get("keys", []), *phase.get("then", []))]
        hcu = HcuCycles()
        alone(HcuTime(p.hcu, self.f.th_hd).requests([tuple(map(b.get, HCU_BEAT)) for b in beats], hcu), 1)
        placed = [beat for beat in self.w if beat["op"] == 0]
        full = sum(beat["full"] for beat in placed)
        size = p.kvmu.entry_bytes
        out = {
            "hcu.tokens": len(keys),
            "hcu.opened": sum(beat["is_new"] for beat in keys),
            "hcu.full_joins": sum(beat["full_join"] for beat in keys),
            "hcu.compares": sum(hcu.compares),
            "cluster_set.sets": len(self.queries),
            "cluster_set.clusters": sum(len(q.clusters) for q in self.queries),
            "kvmu.appends": len(placed) - full,
            "kvmu.full": full,
            "kvmu.offloads": len(self.x),
            "kvmu.fetched": sum(beat.get("bytes", 0) for beat in self.b) // size,
            "kvmu.bursts": sum(not beat["empty"] for beat in self.b),
        }
        wtu = WtuTime(p.wtu)
        own: list[list] = [[] for _ in range(p.wtu.n_h)]  # rows of each core
        turn = 0
        for q, (_, codes) in zip(self.queries, self.blocks, strict=True):
            rolls = len(q.counts) > p.kvmu.counts
            for row in codes:
                own[0 if rolls else turn % p.wtu.n_h].append((row, q.counts, self.f.ratio_q16, q.budget))
                turn += not rolls
        for i, rows in enumerate(own):
            times = [wtu.row(*row) for row in rows]
            out |= {f"wtu{i}.{name}": sum(getattr(t, name) for t in times) for name in ("walked", "tests")}
            words = p.wtu.readings * sum(t.words for t in times)
            out |= {f"wtu{i}.rows": len(times), f"wtu{i}.words": words}
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
        base = self.table_base
        for at, data in image(self.p.layout(), self.model).items():
            have = bytes(got["memory"].get(str(base + at + k), 0) for k in range(len(data)))
            if have != data:
                out.append(f"memory at {at:#x}: {have.hex()}, golden {data.hex()}")
                break
        perf = got["perf"]
        out += [f"{n} counts {perf[n]}, golden {v}" for n, v in self.perf().items() if perf[n] != v]
        return out


def row_beats(p: WtuParams, codes: np.ndarray) -> list[dict]:
    """Rows [R, C] as words of the stream `s`, each row as often as the WTU reads it."""
    rows, n = codes.shape
    words = math.ceil(n / p.n_w)
    padded = np.zeros((rows, words * p.n_w), int)
    padded[:, :n] = codes
    out = []
    for r in range(rows):
        words_of_row = []
        for i in range(words):
            scores = padded[r, i * p.n_w : (i + 1) * p.n_w].tolist()
            last = int(i == words - 1)
            row = {"scores": scores, "keep": (n - 1) % p.n_w if last else p.n_w - 1, "last": last}
            words_of_row.append({"row": row, "set_last": int(r == rows - 1)})
        out += words_of_row * p.readings
    return out
