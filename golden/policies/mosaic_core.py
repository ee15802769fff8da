"""Mosaic's layer with a core as its arithmetic: each number of a decision is the result of a program.

`golden.policies.mosaic.Mosaic` itself runs. Its layers are `CoreLayer`, its store is a `CoreStore`. They start
programs, and read from memory what control needs: which cluster is nearest, whether its variance exceeds the
threshold, which centre a member has, score codes. Keys, values and queries stay in the core's memory; the policy is
given NaN in their place.

`Core` is the driver: it places entries in slots and at home, starts programs, and counts what it reads back.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import check
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.ledger import Ledger
from openvrex.golden.policies.mosaic_clusters import Absorbed, Clusters, Invalid, Threshold
from openvrex.golden.policies.mosaic_hardware import WTU, HardwareClusters, HardwareLayer
from openvrex.golden.policies.store import Store
from openvrex.golden.program import cluster_stages as stages
from openvrex.golden.program.isa import Instruction
from openvrex.golden.program.layer_memory import Array
from openvrex.golden.program.lxe_model import Memory
from openvrex.golden.program.mosaic_plan import CENTRES, FramePlan, MosaicPlan
from openvrex.golden.program.steered_stages import HALVE, RAN
from openvrex.golden.retrieval.centroids import EQUAL, ROUNDS
from openvrex.golden.retrieval.wicsum import select

NAMES = range(1, 11)  # registers that a program may read


def _seed(first: int, c: stages.ClusterCompiler) -> None:
    c.seed_told(first)


@dataclass(frozen=True)
class Job:
    """One run of a program.

    kind : what it does · layer : of the decoder · size : entries, tokens, members or clusters that it works on
    plan : whose arrays it uses · program, registers : and their values at the start
    """

    kind: str
    layer: int
    size: int
    plan: MosaicPlan
    program: list[Instruction]
    registers: dict[int, int]


@dataclass
class Counts:
    """What a stream has made the driver do.

    clustered : frames whose tokens were put into clusters · made : clusters made by K-means at once
    assigned : tokens that a cluster took · split : clusters split while on the device · deferred : tokens that went to
    the buffer · merged : clusters split at retrieval, with their buffered tokens · offloaded, fetched : entries ·
    prefetched, covered : entries brought before their layer asked, and those of them that it asked for
    represented : representatives attended · readings : answers that the driver read
    """

    clustered: int = 0
    made: int = 0
    assigned: int = 0
    split: int = 0
    deferred: int = 0
    merged: int = 0
    offloaded: int = 0
    fetched: int = 0
    prefetched: int = 0
    covered: int = 0
    represented: int = 0
    readings: int = 0


class MosaicDriver:
    """The driver of a core that runs Mosaic: memory, programs, slots.

    plan : of the largest pass · bases : addresses by register, of each layer by its number · memory : the core's
    launch : runs a job, so that memory is then as the core leaves it · what : begins the name of its programs

    slot : the slot of each token's entry in each layer, -1 for none, int64 [layers, tokens of the stream]
    owner : the token in each slot, -1 for none, int64 [layers, slots for tokens]
    """

    def __init__(
        self,
        plan: MosaicPlan,
        bases: dict[int, dict[int, int]],
        memory: Memory,
        launch: Callable[[Job], object],
        what: str = "",
    ):
        self.what = what
        self.plan, self.bases, self.memory, self.launch = plan, bases, memory, launch
        self.slot = np.full((max(bases) + 1, plan.stream), -1)
        self.owner = np.full((max(bases) + 1, plan.tokens_slots), -1)
        self.counts = Counts()
        self.query_at = 0  # address of the query of the layer in work
        for layer in bases:
            for name, x in plan.tables().items():
                self.write(layer, name, x)

    # Memory

    def address(self, layer: int, name: str, row: int = 0) -> int:
        """Address of a row of an array of the plan."""
        a = self.plan[name]
        return self.bases[layer][a.base] + a.offset + row * self._row(a)

    @staticmethod
    def _row(a: Array) -> int:
        return a.size // a.shape[0]

    def write(self, layer: int, name: str, x: np.ndarray) -> None:
        """Write an array of control: a mask, constants."""
        self.memory.put(self.address(layer, name), x)

    def read(self, layer: int, name: str, dtype: type | None = None) -> np.ndarray:
        """Read an array."""
        a = self.plan[name]
        return self.memory.get(self.address(layer, name), a.shape, dtype or a.dtype)

    def answer(self, layer: int) -> np.ndarray:
        """The words that a step has left for control, FP32 [ANSWERS]."""
        self.counts.readings += 1
        return self.read(layer, "answer")[:, 0]

    def start(self, kind: str, layer: int, size: int, program: list[Instruction], **registers: int) -> None:
        """Run a program on the arrays of a layer. `registers` by the names of `golden.program.cluster_stages`."""
        own = dict.fromkeys(NAMES, 0) | {int(k): v for k, v in self.bases[layer].items() if k}
        own |= {int(getattr(stages, name)): value for name, value in registers.items()}
        self.launch(Job(self.what + kind, layer, size, self.plan, program, own))

    # Entries

    def entry(self, layer: int, token: int) -> int:
        """Address of a token's entry in its slot."""
        slot = int(self.slot[layer, token])
        check(slot >= 0, "token", token, "must be on the device")
        return self.address(layer, "ring", slot)

    def pair(self, layer: int, c: int) -> int:
        """Address of a cluster's representative."""
        return self.address(layer, "ring", self.plan.tokens_slots + c)

    def runs(self, layer: int, tokens: np.ndarray) -> Iterator[tuple[int, int]]:
        """First place in `tokens`, and number, of tokens whose slots are adjacent."""
        cuts = np.flatnonzero(np.diff(self.slot[layer, tokens]) != 1) + 1
        for part in np.split(np.arange(len(tokens)), cuts):
            if len(part):
                yield int(part[0]), len(part)

    def take_slots(self, layer: int, tokens: np.ndarray) -> None:
        """Give tokens slots: adjacent ones where there are."""
        free = np.flatnonzero(self.owner[layer] < 0)
        need = self.plan.tokens_slots - len(free) + len(tokens)
        check(
            len(tokens) <= len(free),
            "slots",
            self.plan.tokens_slots,
            f"must be at least {need}, the tokens on the device of layer {layer}: raise it, or shrink the window",
        )
        runs = np.split(free, np.flatnonzero(np.diff(free) != 1) + 1)
        fits = [run for run in runs if len(run) >= len(tokens)]
        chosen = (min(fits, key=len) if fits else free)[: len(tokens)]
        self.slot[layer, tokens], self.owner[layer, chosen] = chosen, tokens

    def free_slots(self, layer: int, tokens: np.ndarray) -> None:
        """Take the tokens' slots back."""
        self.owner[layer, self.slot[layer, tokens]] = -1
        self.slot[layer, tokens] = -1

    def copy(self, kind: str, layer: int, src: Sequence[int], dst: Sequence[int]) -> None:
        """Copy entries from addresses to addresses: a program for each run that is adjacent at both."""
        size = self._row(self.plan["ring"])
        a, b = np.array(src, np.int64), np.array(dst, np.int64)
        cuts = np.flatnonzero((np.diff(a) != size) | (np.diff(b) != size)) + 1
        program = self.plan.made("copy", lambda c: c.copy())
        for part in np.split(np.arange(len(a)), cuts):
            if len(part):
                where = {"SRC": int(a[part[0]]), "DST": int(b[part[0]])}
                self.start(kind, layer, len(part), program, ROWS=len(part), **where)


class CoreStore(Store):
    """A store whose moves are programs of the core."""

    def __init__(self, shape: Shape, ledger: Ledger, core: MosaicDriver):
        super().__init__(shape, ledger)
        self.core = core
        self.fresh = 0  # address of the entries that a pass has just made

    def append(self, layer: int, tokens: np.ndarray) -> None:
        super().append(layer, tokens)
        core, size = self.core, MosaicDriver._row(self.core.plan["ring"])
        core.take_slots(layer, tokens)
        src = [self.fresh + k * size for k in range(len(tokens))]
        core.copy("append", layer, src, [core.entry(layer, t) for t in tokens.tolist()])

    def offload(self, layer: int, mask: np.ndarray, pieces: int | None = None) -> np.ndarray:
        going = super().offload(layer, mask, pieces)
        core, tokens = self.core, np.flatnonzero(going[0])
        if len(tokens):
            home = [core.address(layer, "home", t) for t in tokens.tolist()]
            core.copy("offload", layer, [core.entry(layer, t) for t in tokens.tolist()], home)
            core.free_slots(layer, tokens)
            core.counts.offloaded += len(tokens)
        return going

    def fetch(self, layer: int, mask: np.ndarray, reason: str = "fetch", pieces: int | None = None) -> np.ndarray:
        coming = super().fetch(layer, mask, reason, pieces)
        core, tokens = self.core, np.flatnonzero(coming[0])
        if len(tokens):
            core.take_slots(layer, tokens)
            home = [core.address(layer, "home", t) for t in tokens.tolist()]
            core.copy(reason, layer, home, [core.entry(layer, t) for t in tokens.tolist()])
            name = "prefetched" if reason == "prefetch" else "fetched"
            setattr(core.counts, name, getattr(core.counts, name) + len(tokens))
        return coming

    def release(self, layer: int) -> None:
        if self._guests[layer]:
            self.core.free_slots(layer, np.flatnonzero(self._here[layer, 0, : self.length]))
        super().release(layer)


@dataclass
class _Work:
    """What a layer's steps hold at present: tokens whose directions are in `x`, members that are gathered."""

    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    valid: int = -1


class CoreClusters(HardwareClusters):
    """Clusters whose means, lengths and variances are in the core's memory. Sizes, partitions and flags are control."""

    def __init__(self, width: int, layer: "CoreLayer"):
        super().__init__(width)
        self.layer = layer

    def open(self, partition: int) -> int:
        most = self.layer.core.plan.clusters
        check(len(self) < most, "clusters", most, "must be more: all are in use")
        c = super().open(partition)
        self.mean[c], self.norm[c], self.variance[c] = np.nan, np.nan, np.nan  # the core has them
        return c

    def assign(
        self, x: np.ndarray, partition: np.ndarray, threshold: Threshold, absorbed: Absorbed, invalid: Invalid
    ) -> None:
        if self.layer.core.plan.steered:
            self.layer.assign(partition, absorbed, invalid)
            return
        layer, taken = self.layer, -1
        for i, own in enumerate(partition.tolist()):
            c, below = layer.probe(i, self.partition == own, taken)
            taken = c if below else -1
            if below:
                self.size[c] += 1
                layer.core.counts.assigned += 1
                absorbed(i, c)
            else:
                invalid(i, c)
        layer.settle(len(x), taken)


class CoreLayer(HardwareLayer):
    """`HardwareLayer` whose numbers are those of a core. Rows of vectors that the policy hands around are NaN.

    represented : clusters whose pairs the layer attends to, of the last `means`
    """

    clusters: CoreClusters

    def __init__(self, width: int, kv_heads: int, core: MosaicDriver, number: int):
        super().__init__(width, kv_heads, core.plan.fmt.dot)
        self.core, self.number = core, number
        self.clusters = CoreClusters(width, self)
        self.work = _Work()
        self.represented = np.zeros(0, np.int64)
        self.visited: list[int] = []  # keys of each visual cluster
        self.defer = True  # as `MosaicParams.defer`
        self.frames: CoreFrames | None = None  # of layer 0, where the core makes visual clusters

    # What the policy asks

    def query(self, q: np.ndarray) -> np.ndarray:
        return np.full(q.shape[1] * q.shape[3], np.nan, np.float32)  # it is at the driver's `query_at`

    def direction(self, x: np.ndarray) -> np.ndarray:
        return super().direction(x) if self.frames is None else self.frames.arrive(x)

    def kmeans(self, x: np.ndarray, k: int, seed: int) -> tuple[np.ndarray, int]:
        return super().kmeans(x, k, seed) if self.frames is None else self.frames.first(len(x), k)

    def visual_clusters(self, width: int) -> Clusters:
        return super().visual_clusters(width) if self.frames is None else self.frames

    def directions(self, tokens: np.ndarray) -> np.ndarray:
        core, plan = self.core, self.core.plan
        size = plan.width
        program = plan.made("directions", lambda c: c.directions(stages.at_register(stages.DST, size), None))
        for first, many in core.runs(self.number, tokens):
            where = {"SRC": core.entry(self.number, tokens[first]), "DST": self._at("x", first)}
            core.start("directions", self.number, many, program, ROWS=many, **where)
        self.work.tokens = tokens
        return np.full((len(tokens), size), np.nan, np.float32)

    def visit(self, tokens: np.ndarray, partition: np.ndarray) -> None:
        core = self.core
        program = core.plan.made("visit", lambda c: c.visit())
        for group in np.unique(partition).tolist():
            check(group < core.plan.visual, "visual", core.plan.visual, "must be more: all are in use")
            self.visited += [0] * (group + 1 - len(self.visited))
            own = tokens[partition == group]
            self.visited[group] += len(own)
            names = {"DST": "visual_sums", "STATS": "visual_counts", "PAIR": "visual_means"}
            where = {register: self._at(name, group) for register, name in names.items()}
            for first, many in core.runs(self.number, own):
                src = core.entry(self.number, own[first])
                core.start("visit", self.number, many, program, ROWS=many, SRC=src, **where)

    def absorbed(self, token: int, c: int) -> None:
        self.cluster[token] = c

    def means(self, at: np.ndarray) -> np.ndarray:
        self.represented = at
        self.core.counts.represented += len(at)
        return np.full((len(at), 2, self.core.plan.width), np.nan, np.float32)

    def visual_choice(self, query: np.ndarray, held: np.ndarray, enough: float) -> np.ndarray:
        return self._chosen("visual_", np.arange(len(held)), held, int(np.ceil(enough)))

    def choice(self, query: np.ndarray, at: np.ndarray, weight: np.ndarray, enough: int) -> np.ndarray:
        return self._chosen("", at, weight, enough)

    def create(self, tokens: np.ndarray, partition: int, k: int, seed: int) -> int:
        labels, ran = self.k_means(tokens, k)
        for label in np.unique(labels):
            self.put(self.clusters.open(partition), label, tokens[labels == label])
            self.core.counts.made += 1
        return ran * len(tokens) * self.core.plan.width * k

    def split(self, tokens: np.ndarray, c: int, seed: int) -> tuple[list[int], int]:
        merged = self.buffered[tokens].any() or self.clusters.lazy[c]
        self.core.counts.merged += bool(merged)
        self.core.counts.split += not merged
        labels, ran = self.k_means(tokens, 2)
        changed = [c]
        partition = int(self.clusters.partition[c])
        first, *rest = np.unique(labels)
        self.put(c, first, tokens[labels == first])
        for label in rest:
            changed.append(self.clusters.open(partition))
            self.put(changed[-1], label, tokens[labels == label])
        return changed, 2 * ran * len(tokens) * self.core.plan.width

    # Programs

    def _at(self, name: str, row: int = 0) -> int:
        return self.core.address(self.number, name, row)

    def _mask(self, name: str, at: np.ndarray) -> None:
        """Write a mask that lets only the clusters `at` take part."""
        mask = np.full(self.core.plan[name].shape, -np.inf, np.float32)
        mask[at] = 0
        self.core.write(self.number, name, mask.astype(BF16))

    def _lane(self, c: int) -> dict[str, int]:
        tile, lane = divmod(c, self.core.plan.fmt.lanes)
        rows = {"DST": ("centroids", c), "STATS": ("stats", tile), "LANE": ("identity", lane)}
        where = {register: self._at(*row) for register, row in rows.items()}
        return where | {"PAIR": self.core.pair(self.number, c)}

    def probe(self, i: int, open_: np.ndarray, taken: int) -> tuple[int, bool]:
        """Nearest of the open clusters for direction i, and whether its variance stays below the threshold.

        taken : the cluster that takes direction i - 1 before, -1 for none
        """
        core, plan = self.core, self.core.plan
        self._mask("closed", np.flatnonzero(open_))
        if taken < 0:
            program = plan.made("probe", lambda c: c.probe(0))
            core.start("probe", self.number, 1, program, SRC=self._at("x", i))
        else:
            program = plan.made("absorb and probe", lambda c: c.absorb(), lambda c: c.probe(1))
            core.start("absorb, probe", self.number, 1, program, **self._absorbing(i - 1, taken))
        answer = core.answer(self.number)
        return plan.above - int(answer[stages.NUMBER]), bool(answer[stages.MARGIN] >= 0)

    def settle(self, count: int, taken: int) -> None:
        """Let the cluster `taken` take the last of `count` directions, if it is none of -1."""
        if taken >= 0:
            program = self.core.plan.made("absorb", lambda c: c.absorb())
            self.core.start("absorb", self.number, 1, program, **self._absorbing(count - 1, taken))

    def assign(
        self,
        partition: np.ndarray,
        absorbed: Callable[[int, int], None],
        invalid: Callable[[int, int], object],
    ) -> None:
        """As `CoreClusters.assign`, of the directions in work, by programs that run up to the next split each."""
        core, plan, number, tokens = self.core, self.core.plan, self.number, self.work.tokens
        program, at = plan.made("assign", lambda c: c.assign()), 0
        while at < len(tokens):
            own = self.clusters.partition == partition[at]
            _, many = next(core.runs(number, tokens[at:]))
            many = int(np.argmin(np.append(partition[at : at + many] == partition[at], False)))
            self._mask("closed", np.flatnonzero(own))
            whole = self._whole()
            core.write(number, "whole", np.pad(whole, (0, plan.clusters - len(whole))).astype(BF16))
            where = {"SRC": self._at("x", at), "ENTRY": core.entry(number, tokens[at])}
            core.start("assign", number, many, program, ROWS=many, GO=1, **where)
            core.counts.readings += 1
            for found, margin in self._verdicts(many):
                at += 1
                if margin >= 0:
                    self.clusters.size[found] += 1
                    core.counts.assigned += 1
                    absorbed(at - 1, found)
                    continue
                stops = whole[found]
                invalid(at - 1, found)
                if stops:
                    break

    def _verdicts(self, many: int) -> Iterator[tuple[int, float]]:
        """Nearest cluster and margin of each token. Those behind a token that stops `assign` mean nothing."""
        plan = self.core.plan
        words = self.core.read(self.number, "verdicts")[:many, :, 0]
        for number, margin in words.tolist():
            yield plan.above - int(number), margin

    def _whole(self) -> np.ndarray:
        """Clusters that are split at once when a token exceeds them: all, or those without a member at home."""
        out = np.ones(len(self.clusters), bool)
        if self.defer:
            away = self.core.slot[self.number, : len(self.cluster)] < 0
            out[self.cluster[away & (self.cluster >= 0)]] = False
        return out

    def _absorbing(self, i: int, c: int) -> dict[str, int]:
        entry = self.core.entry(self.number, self.work.tokens[i])
        return self._lane(c) | {"SRC": self._at("x", i), "ENTRY": entry}

    def _gather(self, tokens: np.ndarray) -> None:
        core, plan, many = self.core, self.core.plan, len(tokens)
        plan.size(many)
        src = [core.entry(self.number, t) for t in tokens]
        core.copy("gather", self.number, src, [self._at("gathered", k) for k in range(many)])
        if self.work.valid != many:
            self.work.valid = many
            lanes = np.repeat((np.arange(plan.members) < many)[:, None], plan.fmt.lanes, 1)
            core.write(self.number, "valid", lanes.astype(BF16))

    def k_means(self, tokens: np.ndarray, k: int) -> tuple[np.ndarray, int]:
        """As `centroids.k_means` of the directions of tokens, but labels may have gaps."""
        core, plan, many, number = self.core, self.core.plan, len(tokens), self.number
        check(min(k, many) <= CENTRES, "cluster_tokens", many // k, f"must be more: at most {CENTRES} clusters at once")
        self._gather(tokens)
        if plan.steered and min(k, many) == 2:
            program = plan.made("halve", *HALVE, many=many)
            core.start("halve", number, many, program, ROWS=many, SRC=self._at("gathered"), GO=1)
            answer = core.answer(number)
            if answer[stages.TOP] > EQUAL:
                return core.read(number, "labels")[:many, 0].astype(np.int64), int(answer[RAN])
            return self._rounds(many, 1)
        begin = plan.made(
            "middle",
            lambda c: c.directions(plan["y"], plan["norms"]),
            lambda c: c.average(plan["middle"], 0, None, None),
            many=many,
        )
        core.start("middle", number, many, begin, ROWS=many, SRC=self._at("gathered"))
        far = plan.made("farthest", lambda c: c.seed_told(0), many=many)
        core.start("seed", number, many, far, SRC=self._at("middle"))
        farthest = plan.above - int(core.answer(number)[stages.FARTHEST])
        centres, most = 0, min(k, many)
        while centres < most:
            where = {"SRC": self._at("y", farthest), "DST": self._at("centres", centres)}
            where["STATS"] = self._at("halves", centres)
            centres += 1
            if centres == most:
                core.start("seed", number, 1, plan.made("centre", lambda c: c.centre_told()), **where)
                break
            first = 1 if centres == 1 else 2
            program = plan.made(f"seed {first}", partial(_seed, first), many=many)
            core.start("seed", number, many, program, **where)
            answer = core.answer(number)
            if answer[stages.TOP] <= EQUAL:
                break
            farthest = plan.above - int(answer[stages.FARTHEST])
        return self._rounds(many, centres)

    def gather_alone(self, token: np.ndarray) -> None:
        """Gather one token [1] as the only member of label 0, for `put`."""
        core, plan = self.core, self.core.plan
        self._gather(token)
        program = plan.made("single", lambda c: c.directions(plan["y"], plan["norms"]))
        core.start("single", self.number, 1, program, ROWS=1, SRC=self._at("gathered"))
        core.memory.put(self._at("weights"), core.read(self.number, "valid"))

    def _rounds(self, many: int, centres: int) -> tuple[np.ndarray, int]:
        """Rounds of K-means: the members' labels, and the rounds that ran."""
        core, plan, number = self.core, self.core.plan, self.number
        labels, ran = np.full(many, -1), 0
        label = plan.made(f"label {centres}", lambda c: c.label(centres), many=many)
        move = plan.made(
            "move",
            lambda c: c.average(
                stages.at_register(stages.DST, plan.width),
                0,
                stages.at_register(stages.STATS, plan.fmt.lanes, np.float32),
                stages.at_register(stages.WEIGHED, plan.fmt.lanes),
            ),
        )
        while ran < ROUNDS:
            ran += 1
            core.start("label", number, many, label)
            core.counts.readings += 1
            new = core.read(number, "labels")[:many, 0].astype(np.int64)
            if np.array_equal(new, labels):
                break
            labels = new
            for c in np.unique(labels).tolist() if ran < ROUNDS else ():
                names = {"DST": "centres", "STATS": "halves", "WEIGHED": "weights"}
                where = {register: self._at(name, c) for register, name in names.items()}
                core.start("move", number, many, move, ROWS=many, **where)
        return labels, ran

    def put(self, c: int, label: int, tokens: np.ndarray) -> None:
        """Make gathered tokens, those with a label, the members of cluster c, which has no others."""
        core, plan = self.core, self.core.plan
        weighed = stages.at_register(stages.WEIGHED, plan.fmt.lanes)
        program = plan.made(
            "put",
            lambda k: k.average(stages.at_register(stages.DST, plan.width), 0, None, weighed),
            lambda k: k.put_stats(),
            lambda k: k.put_pair(),
            many=self.work.valid,
        )
        where = self._lane(c) | {"WEIGHED": self._at("weights", int(label))}
        core.start("put", self.number, len(tokens), program, ROWS=self.work.valid, **where)
        self.clusters.size[c] = len(tokens)
        self.clusters.lazy[c] = False
        self.cluster[tokens] = c
        self.buffered[tokens] = False

    def _chosen(self, which: str, at: np.ndarray, weight: np.ndarray, budget: int) -> np.ndarray:
        """As `HardwareLayer._best`, of the clusters `at`, or the visual ones, by the codes that the core makes."""
        core, plan = self.core, self.core.plan
        self._mask(f"{which}unasked", at[weight > 0])
        program = plan.made(f"{which}ranks", plan.visual_ranks if which else plan.ranks)
        core.start(f"{which}codes", self.number, len(at), program, SRC=core.query_at)
        core.counts.readings += 1
        code = core.read(self.number, f"{which}codes", np.uint16)[at]
        return select(code, weight.astype(np.int64), WTU, budget).mask & (weight > 0)


class CoreFrames(CoreClusters):
    """Visual clusters whose numbers are those of a core: clusters of frames, in a layer of their own.

    core : a driver with a `FramePlan` · number : of the layer that has its memory
    """

    def __init__(self, core: MosaicDriver, number: int):
        plan = core.plan
        assert isinstance(plan, FramePlan)
        self.core, self.seen, self.program = core, 0, plan.made("frame", plan.take_frame)
        layer = CoreLayer(plan.width, 1, core, number)
        super().__init__(plan.width, layer)
        layer.clusters = self
        layer.defer = False
        layer.cluster, layer.buffered = np.full(plan.stream, -1), np.zeros(plan.stream, bool)
        self.groups: list[tuple[int, np.ndarray]] = []  # labels and frames that `add` takes next

    def arrive(self, x: np.ndarray) -> np.ndarray:
        """Take the vision tokens x [T, width] of the next frame; its direction, which the host does not know."""
        core, layer, frame = self.core, self.layer, np.array([self.seen])
        self.seen += 1
        at = core.address(layer.number, "vision")
        core.memory.put(at, to_bf16(x))
        core.take_slots(layer.number, frame)
        where = {"SRC": at, "DST": core.entry(layer.number, int(frame[0]))}
        core.start("frame", layer.number, len(x), self.program, ROWS=len(x), **where)
        return layer.directions(frame)[0]

    def first(self, frames: int, k: int) -> tuple[np.ndarray, int]:
        """K-means of the first frames: labels without gaps, and the rounds that ran."""
        tokens = np.arange(frames)
        labels, ran = self.layer.k_means(tokens, k)
        self.groups = [(int(label), tokens[labels == label]) for label in np.unique(labels)]
        return np.unique(labels, return_inverse=True)[1], ran

    def add(self, members: np.ndarray, partition: int = 0) -> int:
        if not self.groups:  # a frame that opens a cluster
            frame = np.array([self.seen - 1])
            self.layer.gather_alone(frame)
            self.groups = [(0, frame)]
        label, tokens = self.groups.pop(0)
        c = self.open(partition)
        self.layer.put(c, label, tokens)
        self._leave(tokens)
        return c

    def assign(
        self, x: np.ndarray, partition: np.ndarray, threshold: Threshold, absorbed: Absorbed, invalid: Invalid
    ) -> None:
        super().assign(x, partition, threshold, absorbed, invalid)
        self._leave(np.array([self.seen - 1]))

    def _leave(self, tokens: np.ndarray) -> None:
        """Free the slots of frames that are in a cluster."""
        number = self.layer.number
        self.core.free_slots(number, tokens[self.core.slot[number, tokens] >= 0])
