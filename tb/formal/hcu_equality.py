"""Proof that the HCU equals its specification: for every key, table, stall and answer of memory, without a bound."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import HcuParams, bits_for
from openvrex.hdl.retrieval.hcu import Hcu
from openvrex.hdl.retrieval.hcu_state import CLEAR, JOIN, NEWEST, is_key, joined_layout, token_layout

SMALL = HcuParams(n_h=1, n_w=1, n_hp=1, clusters=3, tile=2, frame=2, n_ctx=1, token_bits=1)


class HcuSpec(wiring.Component):
    """Tables of contexts, and the rule by which keys enter them: a key, CLEAR or SWITCH in a cycle.

    Members
    -------
    key : In(`token_layout`) : the next key
    steps : In(1) : it takes effect
    th_hd : In : Th_hd
    result : Out(`joined_layout`) : its result; `cluster` only of a key
    opens : Out(1) : it opens a cluster
    ctx, index : In : an item of the tables
    level, hash : Out : number of clusters of that context, hash bits of that cluster
    """

    def __init__(self, p: HcuParams):
        self.p = p
        at = {"ctx": In(bits_for(p.n_ctx)), "index": In(bits_for(p.clusters))}
        members = {"key": In(token_layout(p)), "steps": In(1), "th_hd": In(p.distance_bits)}
        members |= {"result": Out(joined_layout(p)), "opens": Out(1)}
        super().__init__(members | at | {"level": Out(bits_for(p.clusters + 1)), "hash": Out(p.n_hp)})

    def elaborate(self, platform):
        p, m, key = self.p, Module(), self.key
        n_bits = bits_for(p.clusters + 1)
        # Memories, so that a proof starts with any tables.
        m.submodules.levels = levels = Memory(shape=n_bits, depth=max(2, p.n_ctx), init=[])
        m.submodules.hashes = hashes = Memory(shape=p.n_hp, depth=max(2, p.n_ctx * p.clusters), init=[])

        def level_of(ctx: Value) -> Value:
            port = levels.read_port(domain="comb")
            m.d.comb += [port.addr.eq(ctx), Assume(port.data <= p.clusters)]
            return port.data

        def hash_of(ctx: Value, index: Value | int) -> Value:
            port = hashes.read_port(domain="comb")
            m.d.comb += port.addr.eq(ctx * p.clusters + index)
            return port.data

        m.d.comb += [self.level.eq(level_of(self.ctx)), self.hash.eq(hash_of(self.ctx, self.index))]
        level, furthest = Signal(n_bits), p.n_hp + 1
        m.d.comb += level.eq(level_of(key.ctx))
        first = self._first(m, level)
        least: Value = Const(furthest, range(furthest + 1))
        nearest: Value = Const(0, p.cluster_bits)
        for c in range(p.clusters):
            differ, there = key.hash ^ hash_of(key.ctx, c), (c >= first) & (c < level)
            distance = Signal(range(furthest + 1), name=f"distance{c}")
            least_now, nearest_now = Signal.like(distance, name=f"least{c}"), Signal(p.cluster_bits, name=f"nearest{c}")
            m.d.comb += [
                distance.eq(Mux(there, sum(differ[i] for i in range(p.n_hp)), furthest)),
                least_now.eq(Mux(distance < least, distance, least)),
                nearest_now.eq(Mux(distance < least, c, nearest)),
            ]
            least, nearest = least_now, nearest_now
        near, keyed = Signal(), is_key(p, key.op)
        m.d.comb += [
            near.eq(least < self.th_hd),
            self.opens.eq(keyed & ~near & (level != p.clusters)),
            self.result.op.eq(Mux(keyed, JOIN, key.op)),
            self.result.ctx.eq(key.ctx),
            self.result.token.eq(key.token),
            self.result.cluster.eq(Mux(self.opens, level, nearest)),
            self.result.clusters.eq(level + self.opens),
            self.result.is_new.eq(self.opens),
            self.result.full_join.eq(keyed & ~near & ~self.opens),
            self.result.last.eq(key.last),
        ]
        w_level, w_hash = levels.write_port(), hashes.write_port()
        m.d.comb += [
            w_level.addr.eq(key.ctx),
            w_level.data.eq(Mux(key.op == CLEAR, 0, level + 1)),
            w_level.en.eq(self.steps & (self.opens | (key.op == CLEAR))),
            w_hash.addr.eq(key.ctx * p.clusters + level),
            w_hash.data.eq(key.hash),
            w_hash.en.eq(self.steps & self.opens),
        ]
        return m

    def _first(self, m: Module, level: Value) -> Value:
        """The first cluster at which the key looks: with NEWEST that of the last tile, when its batch begins."""
        p, key = self.p, self.key
        if not p.newest:
            return Const(0)
        before, kept = Signal(token_layout(p)), Signal(range(p.clusters))
        keys = Signal(range(p.frame))  # of the batch that goes on; 0: the next key begins one
        begins, first = Signal(), Signal(range(p.clusters))
        newest = Mux(level == 0, 0, (level - 1) // p.tile * p.tile)
        m.d.comb += [
            begins.eq((keys == 0) | (key.op != before.op) | (key.ctx != before.ctx)),
            first.eq(Mux(key.op == NEWEST, Mux(begins, newest, kept), 0)),
        ]
        with m.If(self.steps):
            ends = key.last | ~is_key(p, key.op) | (Mux(begins, 0, keys) == p.frame - 1)
            m.d.sync += [before.eq(key), kept.eq(first), keys.eq(Mux(ends, 0, Mux(begins, 0, keys) + 1))]
        return first


class HcuMonitor(wiring.Component):
    """An HCU and its specification, whose tables are the memory, with free keys, stalls and resets at any time.

    The memory answers asks in order, each item as late as it likes. A key takes effect in the specification when its
    last put is taken, or if it has none with its result.

    `reach`: the claim is that no key joins a cluster while another waits, which must fail.
    """

    def __init__(self, p: HcuParams, reach: bool = False):
        self.p, self.reach = p, reach
        free = {"key": token_layout(p), "key_valid": 1, "th_hd": p.distance_bits, "o_ready": 1}
        free |= {"ask_ready": 1, "put_ready": 1, "gives": 1}
        super().__init__({name: In(shape) for name, shape in free.items()})

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.unit = unit = Hcu(p)
        m.submodules.spec = spec = HcuSpec(p)
        ask, put, items, out = unit.m.ask, unit.m.put, unit.m.data, unit.o
        m.d.comb += [Assume(self.key.ctx < p.n_ctx), Assume(self.th_hd <= p.n_hp + 1)]
        if p.newest:  # a key that is offered stays, as it ends a batch even if it is not taken
            held, before = Signal(), Signal.like(self.key.as_value())
            m.d.sync += [held.eq(self.key_valid & ~unit.i.ready), before.eq(self.key)]
            m.d.comb += Assume(~held | (self.key_valid & (self.key.as_value() == before)))

        # Keys in flight, oldest first.
        room = p.frame + 1
        line = [Signal(token_layout(p), name=f"waits{i}", reset_less=True) for i in range(room)]
        count, takes = Signal(range(room + 1)), Signal()
        m.d.comb += takes.eq(unit.i.valid & unit.i.ready)
        m.d.sync += count.eq(count + takes - spec.steps)
        behind = [*line[1:], line[-1]]
        for i, (key, after) in enumerate(zip(line, behind, strict=True)):
            with m.If(takes & (count - spec.steps == i)):
                m.d.sync += key.eq(self.key)
            with m.Elif(spec.steps):
                m.d.sync += key.eq(after)

        th_hd = Signal(p.distance_bits, reset_less=True)  # stable while keys are in flight
        due, due_valid = Signal(joined_layout(p), reset_less=True), Signal()
        idle = (count == 0) & ~due_valid
        with m.If(idle & ~takes):
            m.d.sync += th_hd.eq(self.th_hd)
        m.d.comb += [
            unit.i.payload.eq(self.key),
            unit.i.valid.eq(self.key_valid),
            unit.th_hd.eq(th_hd),
            unit.o.ready.eq(self.o_ready),
            ask.ready.eq(self.ask_ready),
            put.ready.eq(self.put_ready),
            spec.th_hd.eq(th_hd),
            spec.key.eq(line[0]),
        ]

        # Memory: it owes LEVEL, or the hash bits of clusters `next` to `end` of a context.
        owes, hashes, ctx = Signal(), Signal(), Signal(bits_for(p.n_ctx))
        at, end = Signal(bits_for(p.clusters)), Signal(range(p.clusters + 2))
        asked = ask.valid & ask.ready
        bulk = Signal()
        beyond = Signal(range(2 * p.clusters + p.tile))
        m.d.comb += [
            bulk.eq(ask.payload.item == Item.HASH),
            beyond.eq(Mux(bulk, ask.payload.index + ask.payload.more + 1, 1)),
            items.valid.eq(self.gives & owes),
            spec.ctx.eq(ctx),
            spec.index.eq(at),
            items.payload.eq(Mux(hashes, spec.hash, spec.level)),
        ]
        left = owes & ~(items.valid & (at + 1 == end))
        m.d.sync += owes.eq(left | asked)
        with m.If(items.valid):
            m.d.sync += at.eq(at + 1)
        with m.If(asked):
            m.d.sync += end.eq(beyond)
            with m.If(~left):
                m.d.sync += [hashes.eq(bulk), ctx.eq(ask.payload.ctx), at.eq(Mux(bulk, ask.payload.index, 0))]

        # What the oldest key still writes, and its result.
        clears, wrote = Signal(), Signal()  # wrote: the hash bits of its cluster
        puts, moves = put.valid & put.ready, out.valid & out.ready
        m.d.comb += clears.eq(line[0].op == CLEAR)
        writes = spec.opens | clears
        writes_hash = spec.opens & ~wrote
        last_put = puts & ~writes_hash
        m.d.comb += spec.steps.eq(last_put | (moves & ~due_valid))
        with m.If(puts):
            m.d.sync += wrote.eq(writes_hash)
        with m.If(last_put):
            m.d.sync += [due.eq(spec.result), due_valid.eq(1)]
        with m.Elif(moves):
            m.d.sync += due_valid.eq(0)
        want = Signal(joined_layout(p))
        m.d.comb += want.eq(Mux(due_valid, due, spec.result))
        given = out.payload
        same = Cat(given[n] == want[n] for n, _ in joined_layout(p) if n != "cluster").all()
        same &= (given.cluster == want.cluster) | (want.op != 0)
        if self.reach:
            m.d.comb += Assert(~(out.valid & ~given.is_new & (given.op == 0) & (count == p.frame)), "a key joins")
            return m
        right = Mux(
            writes_hash,
            (put.payload.item == Item.HASH)
            & (put.payload.index == spec.result.cluster)
            & (put.payload.data[: p.n_hp] == line[0].hash),
            (put.payload.item == Item.LEVEL)
            & (put.payload.data[: len(spec.level)] == Mux(clears, 0, spec.result.clusters)),
        )
        # A key waits for more of its batch, or somebody is slow, or the unit goes on in time.
        closed = Cat((count > i) & (key.last | ~is_key(p, key.op)) for i, key in enumerate(line)).any()
        must = closed | due_valid | (self.key_valid & ~unit.i.ready)
        slow = (ask.valid & ~ask.ready) | (owes & ~self.gives) | (put.valid & ~put.ready) | (out.valid & ~out.ready)
        most = p.frame * -(-p.clusters // p.n_h) * p.chunks + 8
        waits = Signal(range(most + 2))
        moves_on = asked | items.valid | puts | moves
        m.d.sync += waits.eq(Mux(must & ~slow & ~moves_on, waits + 1, 0))
        m.d.comb += Assert(waits <= most, "the unit goes on in time")
        place = ask.payload
        in_order = ~left | (hashes & (place.index == end))
        inside = (place.index % p.tile == 0) & (place.more < p.tile) & (beyond <= spec.level)
        level = (place.item == Item.LEVEL) & (place.index == 0) & (place.more == 0)
        may_ask = Mux(bulk, (place.ctx == ctx) & in_order & inside, level & ~left)
        counts = {"tokens": Signal(2), "opened": Signal(2), "full_joins": Signal(2)}
        with m.If(spec.steps):
            r = spec.result
            for name, event in (("tokens", r.op == JOIN), ("opened", r.is_new), ("full_joins", r.full_join)):
                m.d.sync += counts[name].eq(counts[name] + event)
        for name, value in counts.items():
            m.d.comb += Assert(~idle | (unit.perf[name] == value), f"the count of {name}")
        for holds, what in (
            (~takes | (count != room), "more keys are taken than the unit holds"),
            (~out.valid | due_valid | ((count != 0) & ~writes), "a result of no key, or before its puts"),
            (~out.valid | same, "another result than the specification's"),
            (~put.valid | ((count != 0) & ~due_valid & writes), "a put of no key"),
            (~put.valid | (right & (put.payload.ctx == line[0].ctx)), "another put than the specification's"),
            (~ask.valid | may_ask, "an ask of what is not there, or not in order"),
            (~put.valid | ~((owes & ~hashes) | (ask.valid & ~bulk)), "LEVEL changes while it is asked for"),
        ):
            m.d.comb += Assert(holds, what)
        return m
