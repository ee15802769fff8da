"""Predicts latency, timeline and power of a frame or a token under coded pages.

The programs are those of `sim.system.page_share`, cycle by cycle. A stage lasts as long as core 0, or as the bytes of
all cores take at the device memory. The DRE places keys while the LXE computes queries, and attention to the pages
waits until they have come. In a team the leader places keys and chooses, and each member scores and attends to its own
part. Pages are read over the link as the KVMU lists them; the copier counts where it is slower.
Encoder, vocabulary, barriers and the gap of a layer are those of a pass with clusters (`sim.system.accelerator`).

If the cores keep blocks (`kvmu.kept`), a set finds a share of its pages in device memory, as recorded.

Pages are chosen by the layer's own queries, and nothing overlaps their fetch. Left out, as there: new entries on their
way home, against the direction of fetches.

A batch runs the programs of a batch, of as many streams as a product takes at once: more streams take several, each of
which loads the weights. Rows that cores read together (`system.common`) count once. A long pass has several sections of
each stream, which are like streams (`golden.program.model_host`): each chooses and fetches for itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from openvrex.golden.function_params import check
from openvrex.golden.policies.registry import Entry
from openvrex.golden.program.share_plan import barriers, shared_space
from openvrex.golden.program.shares import divide
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import CLOCK
from openvrex.sim.system import dre_demand
from openvrex.sim.system.accelerator import assembled, seconds
from openvrex.sim.system.core_pass import CorePass, Given
from openvrex.sim.system.dre_demand import joined
from openvrex.sim.system.home import fetching, near
from openvrex.sim.system.layer_load import Load, most_rows
from openvrex.sim.system.layer_share import REST, StageShare
from openvrex.sim.system.page_share import PageShare, shared
from openvrex.sim.system.platforms import Vrex
from openvrex.sim.system.selection import records
from openvrex.sim.system.timeline import Pass, Point, Timeline
from openvrex.sim.units.retriever_time import copied_entry

STREAM = "world"  # on which the share of kept pages was recorded
# Stages of the programs by the names that a pass with clusters gives them.
PRODUCT = ("norm1", "qkv")
KEYS = ("norm1", "qkv", "keys", "entries", "hash")
QUERIES = ("queries", "rotary")
PREDICT = ("ring", "sums", "turn", "rank")
ATTENTION = ("scores", "softmax", "values", "join")
NEEDED = {"lxe.codes": PageParams.numbers, "wtu.budget": "true"}  # of the hardware


class PagesPass(CorePass):
    """Frames and tokens of streams under coded pages, which recall all of each. `pages` : their parameters"""

    own_share = "whose budget is pages.budget"
    beside = 0  # bytes of blocks in device memory

    def __init__(self, v: Vrex, pages: PageParams, point: Point):
        v, added = equipped(v)
        super().__init__(v, point)
        self.pages, self.rows = pages, point.rows
        self.most = v.core.dre.kvmu.recent + self.share().entries
        found = [f"{self.found('frame'):.0%} of them kept"] if self.found("frame") else []
        self.note = ", ".join([f"{pages.budget} tokens of pages of {pages.page}", *found, *added])
        tables = point.batch * point.model.layers * point.model.kv_heads
        blocks = self.share().home_blocks * tables * v.core.dre.kvmu.block_bytes
        self.near = near(v, self.device_bytes, blocks)
        self.home, self.beside = blocks * (1 - self.near), int(blocks * self.near)

    @classmethod
    def of(cls, v: Vrex, entry: Entry, point: Point, given: Given) -> Self:
        return cls(v, entry.params, point)

    @property
    def section(self) -> int:
        """Most tokens of a section: of keys that the HCU holds, and of rows that a bank does."""
        m, core = self.point.model, self.v.core
        return max(1, min(core.dre.hcu.frame, core.vpe.depth // (m.heads // m.kv_heads)))

    def sections(self, tokens: int) -> int:
        """Sections of so many tokens."""
        return -(-tokens // self.section)

    def batches(self, tokens: int) -> list[int]:
        """Sections of each batch that so many tokens of each stream take."""
        own = self.sections(tokens)
        at_once, every = max(1, most_rows(self.v.core) * own // tokens), self.point.batch * own
        return [len(part) for part in divide(every, -(-every // at_once))]

    def share(self, tokens: int = 0, streams: int = 1) -> PageShare:
        """Core 0's share of a layer, with a section of so many tokens of each stream, those of a frame if not given."""
        found, rows = self.found("text" if tokens == 1 else "frame"), self.point.rows
        of = tokens or -(-rows // self.sections(rows)), self.point.cache, self.v.latency
        return shared(self.v.system, self.point.model, *of, self.pages, found, streams)

    @property
    def whole(self) -> float:
        """The share of a page that lies in its first block, if that is whole: a core keeps no other."""
        slots, page = self.v.core.dre.kvmu.block_slots, self.pages.page
        return slots / page if slots <= page else 0.0

    def found(self, stage: str) -> float:
        """The share of a set's pages that the cores find kept, as recorded on `STREAM`, relative to the places."""
        pages = self.pages.budget // self.pages.page + self.pages.pinned
        places = self.v.core.dre.kvmu.kept if self.whole else 0
        return records()[STREAM]["pages"].kept(stage, places, pages)

    @property
    def arrays(self) -> dict[str, int]:
        """Bytes of device memory by the kind of array.

        weights : of both models, with the matrices of codes, padded as cores share them
        tables, rings : of the retrieval engine · codes : of keys, with means · fetched : room for pages
        work : what programs pass on
        kept : places of pages that have been fetched, if the cores keep blocks
        blocks : entries that have left the rings, as far as there is room, if they lie here (`Vrex.home`)
        """
        m, kvmu, batch = self.point.model, self.v.core.dre.kvmu, self.point.batch
        streams = max(self.batches(self.point.rows))
        share = self.share(streams=streams)
        plan, s = share.plan, share.shares
        contexts, each = batch * m.layers * s.groups, s.teams * s.groups * m.layers
        codes, fetched = each * (plan["codes"].size + plan["means"].size), each * plan["behind"].size
        layers = s.teams * plan.apart * m.layers - m.layers * m.layer_bytes
        # Of further streams: matrices of codes are copies, with what belongs to each.
        copies = (batch - 1) * (each * plan.context_bytes - codes - fetched)
        codes, fetched = batch * codes, batch * fetched
        inputs = streams * plan.input_bytes * s.cores * (streams > 1)
        return {
            "weights": self.point.device_bytes + layers - (codes + fetched) // batch + copies,
            "tables": s.teams * self.v.core.dre.layout().address(Item.LEVEL, contexts),
            "rings": s.teams * contexts * kvmu.recent * kvmu.entry_bytes,
            "codes": codes,
            "fetched": fetched,
            **({"kept": contexts * s.teams * kvmu.map_sizes().kept_bytes} if kvmu.kept else {}),
            "work": s.cores * plan.work.size + s.teams * plan.team_bytes + shared_space(s, True).size + inputs,
        } | ({"blocks": self.beside} if self.beside else {})

    @property
    def held_bytes(self) -> int:
        return sum(self.arrays.values()) - self.point.device_bytes

    def frame(self) -> Pass:
        return self._pass(self.point.rows, True)

    def token(self) -> Pass:
        return self._pass(1, False)

    def question(self) -> Pass:
        """The tokens of `point` as text, in as few passes as products take, and the token behind them."""
        return self._pass(self.point.rows, False)

    def layer(self) -> tuple[int, Mapping[str, Mapping[str, float]]]:
        reason = f"must be at most {self.section}, a section of a pass: a longer one repeats its stages"
        check(self.point.rows <= self.section, "tokens", self.point.rows, reason)
        share = self.share()
        return share.entries, share.layer()

    def _pass(self, tokens: int, frame: bool) -> Pass:
        known, p = self.v.core.dre.kvmu.n_ctx, self.point
        contexts = p.batch * p.model.layers * self.share().shares.groups
        reason = f"must be at least {contexts}: a core has a context for each stream, layer and table"
        check(contexts <= known, "n_ctx", known, f"{reason}; take fewer streams")

        def decode(line: Timeline) -> float:
            size = -(-tokens // self.sections(tokens))
            return sum(self._batch(line, size, streams) for streams in self.batches(tokens))

        return assembled(self.v, replace(self.point, rows=tokens if frame else 1, frame=frame), decode)

    def _batch(self, line: Timeline, tokens: int, streams: int) -> float:
        """Enter the layers of a batch; returns the bytes that they fetch over the link."""
        share, v, m = self.share(tokens, streams), self.v, self.point.model
        stages, placing, reads = share.times
        s, k = share.shares, v.core.dre.kvmu
        team = s.members > 1
        waits = barriers(share.phases, s.cores)
        addr, size = joined(reads)
        entries = share.entries * m.kv_heads
        moved = entries * k.home_bytes
        near = self.near + (1 - self.near) * share.found * self.whole  # the share that device memory has
        kept = (1 - share.found) * self.whole if k.kept else 0.0  # the share that is copied to its places
        copied = share.entries * (1 + kept) * copied_entry(v.core) / CLOCK  # for one table
        keys, row = (
            dre_demand.clustering(v.core.dre, share.compared, tokens, v.latency),
            dre_demand.selecting(v.core.dre, share.clusters, v.latency),
        )
        ops = {name: 2.0 * tokens * a * b for name, (a, b) in m.matrices.items()}
        of_keys = 1 - m.heads / (m.heads + 2 * m.kv_heads)  # of the product `qkv`
        together = PRODUCT if streams > 1 else ()

        def lxe(layer: int, name: str, own: Sequence[str], after: float = 0.0, ops: float = 0.0, part: float = 1.0):
            took = read = 0.0
            for n in (n for n in own if n in stages):
                cores, once = share.alike(n), stages[n].get("rows", 0.0) * v.system.common
                moved = stages[n]["bytes"] - (once - once / s.in_step(n) if once else 0.0)
                counts = {**stages[n], "bytes": moved * cores}
                took, read = took + self.took(counts), read + counts["bytes"]
            return line.put(layer, name, "LXE", took * part, after, read * part, ops)

        def stream(layer: int) -> None:
            """What runs stream by stream."""
            own = ops["qkv"] * (not together)
            hashed = lxe(layer, "qkv", [n for n in KEYS if n not in together], 0.0, own * of_keys)
            lxe(layer, "code", ("code",))
            placed = line.put(layer, "cluster", "DRE", placing / CLOCK, hashed, keys.bytes * m.kv_heads)
            asked = lxe(layer, "qkv", QUERIES, 0.0, own * (1 - of_keys))
            each = 1 / s.groups
            for _ in range(s.groups):
                predict = PREDICT if team else ("resident", *PREDICT)
                asked = lxe(layer, "predict", predict, max(asked, placed), 0.0, each)
                chosen = lxe(layer, "select", ("select",), asked, 0.0, each)
                line.put(layer, "select", "DRE", chosen - asked, asked, row.bytes * m.kv_heads * each)
                came = chosen
                if entries:
                    took = max(fetching(v, moved * each, addr, size, near), copied)
                    came = line.put(layer, "fetch", "link", took, chosen, moved * each * (1 + near + 2 * kept))
                if team:
                    lxe(layer, "attention", ("resident",), chosen)
                macs = 2.0 * m.attention_macs(tokens, share.entries + k.recent) * each
                asked = lxe(layer, "attention", ATTENTION, came, macs, each)

        for layer in range(m.layers):
            line.put(layer, "gap", "LXE", v.gap)
            if together:
                lxe(layer, "qkv", together, 0.0, streams * ops["qkv"])
            for _ in range(streams):
                stream(layer)
            for name, own in REST.items():
                lxe(layer, name, own, 0.0, streams * ops[name])
                if name == "out":
                    line.put(layer, "barriers", "LXE", seconds(v, [StageShare(Load(), 0, waits)]))
        return moved * m.layers * streams * (1 - near)


def equipped(v: Vrex) -> tuple[Vrex, list[str]]:
    """The platform with what coded pages need of the hardware, and what had to be added, as text."""
    lacks = {"lxe.codes": not v.core.lxe.codes, "wtu.budget": not v.core.dre.wtu.budget}
    added = [f"{name}={value}" for name, value in NEEDED.items() if lacks[name]]
    return (replace(v.changed(*added), name=v.name) if added else v), added
