"""cocotb side of the WTU's bench: drives counts and rows, returns beats and the cycles of every handshake."""

import cocotb

from openvrex.hdl.params import ScoreFormat, WtuParams
from openvrex.hdl.retrieval.wtu import Wtu
from openvrex.hdl.retrieval.wtu_lanes import beat_layout, count_layout, row_layout
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, Sink, Source, level_of


@cocotb.test()
async def rows(dut):
    """Play the contexts of each episode one after the other; one result an episode.

    Every episode starts with a reset. With "reset_at" it is first cut short after so many cycles, and then repeated.

    period : stalls are on in every other stretch of so many cycles (0: always)
    late : rows are offered as soon as the first word of counts is taken, behind a reset even before; otherwise once
        the unit has all it can hold
    """
    c = config()
    p = WtuParams(**c["params"] | {"score": ScoreFormat(**c["params"]["score"])})
    bench = Bench(dut, c["seed"])
    budgets = _Budgets(dut) if p.budget else None
    counts = bench.source("c", count_layout(p))
    source = bench.source("i", row_layout(p))
    sink = bench.sink("o", beat_layout(p))
    if budgets:
        budgets.sink = sink
        bench.streams.append(budgets)
    freed = _Freed(dut)
    bench.streams.append(freed)
    await bench.start()
    results = []
    for e in c["episodes"]:
        for cut in [e["reset_at"], 0] if e["reset_at"] else [0]:
            await bench.begin()
            dut.ratio.value = e["ratio"]
            if budgets:
                budgets.begin(e.get("budgets") or [0])
            await _play(bench, p, e, cut, counts, source, sink)
        await bench.rest(20)
        results.append(
            {
                "counted": list(counts.sent),
                "taken": list(source.sent),
                "freed": freed.cycles,
                "cycles": [cycle for cycle, _ in sink.got],
                "beats": sink.values,
                "perf": bench.counters(Wtu.counters()),
            }
        )
    result({"episodes": results})


class _Budgets:
    """Gives each row its budget in the cycle in which its first word can be taken, just behind the row before."""

    sink: Sink

    def __init__(self, dut):
        self.on, self.value = dut.budgeted, dut.budget
        self.rows: list[int] = [0]
        self.seen = self.ended = 0

    def begin(self, rows: list[int]) -> None:
        """Begin an episode. `rows`: the budget of each row; 0: it takes a share."""
        self.rows, self.seen, self.ended = rows, 0, 0
        self._set()

    def drive(self, rng) -> None:
        """Follow the beats so far, just after the rising edge."""
        ends = sum(v["last"] for _, v in self.sink.got[self.seen :])
        self.seen, self.ended = len(self.sink.got), self.ended + ends
        if ends:
            self._set()

    def sample(self, cycle: int) -> None:
        """Nothing to record."""

    def reset(self) -> None:
        """A reset changes no input."""

    def _set(self) -> None:
        budget = self.rows[min(self.ended, len(self.rows) - 1)]
        self.on.value, self.value.value = int(budget > 0), max(0, budget - 1)


class _Freed:
    """Records the cycles in which the unit says that a place of the ring of counts is free again."""

    def __init__(self, dut):
        self.used, self.cycles = dut.used, list[int]()

    def drive(self, rng) -> None:
        """Nothing to drive."""

    def sample(self, cycle: int) -> None:
        """Record a pulse."""
        if level_of(self.used):
            self.cycles.append(cycle)

    def reset(self) -> None:
        """Forget the pulses so far."""
        self.cycles = []


async def _play(bench: Bench, p: WtuParams, e: dict, cut: int, counts: Source, source: Source, sink: Sink) -> None:
    """Offers the counts of each context, then its rows. Counts that do not fit come again until all rows are done."""
    start, expected = bench.cycle, 0
    for context in e["contexts"]:
        table, rounds = context["counts"], [w | {"first": 0} for w in context["counts"]]
        sent = len(counts.sent)
        counts.put(table)
        enough = int(sent > 0) if e["late"] else min(len(table), p.count_words)

        def drive(limit: int = 0, table=table, rounds=rounds) -> bool:
            on = not e["period"] or (bench.cycle - start) // e["period"] % 2 == 0
            source.idle, sink.stall = (e["idle"], e["stall"]) if on else (0.0, 0.0)
            counts.idle = e["gaps"] if on else 0.0
            if not table[0]["keep"] and len(counts.queue) < 2:
                counts.put(rounds)
            return bool(cut) and bench.cycle - start >= cut

        source.idle, sink.stall = e["idle"], e["stall"]  # `run` looks at its start whether anything stalls
        await bench.run(lambda drive=drive, n=sent + enough: drive() or len(counts.sent) >= n, limit=e["limit"])
        if not e["late"]:
            for _ in range(2):  # the first word is read
                drive()
                await bench.step()
        for row in context["rows"]:
            for _ in range(p.readings):
                source.put(row)
        expected += len(context["rows"])
        lasts = [0, 0]  # beats seen, last ones among them

        def done(drive=drive, expected=expected, lasts=lasts) -> bool:
            lasts[1] += sum(v["last"] for _, v in sink.got[lasts[0] :])
            lasts[0] = len(sink.got)
            return drive() or lasts[1] == expected

        source.idle, sink.stall = e["idle"], e["stall"]
        await bench.run(done, limit=e["limit"])
        await bench.step()
        counts.queue.clear()  # a word that waits may be withdrawn between rows
        counts.pending = False
        if cut and bench.cycle - start >= cut:
            return
