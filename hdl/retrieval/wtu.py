"""WiCSum threshold unit: one core, in the variant that the parameters name."""

from amaranth import Module

from openvrex.hdl.params import WtuParams
from openvrex.hdl.retrieval.wtu_buckets import WtuBuckets
from openvrex.hdl.retrieval.wtu_exact import WtuExact
from openvrex.hdl.retrieval.wtu_lanes import WtuPorts


class Wtu(WtuPorts):
    """Selects the clusters of a row of scores whose weights make up the ratio Th_r-wics of the row's total weight.

    A row comes in on `i`, n_w scores a word; the unit multiplies each score with the token count of its cluster. The
    weights value(code) x count add up to Sum, and Th = floor(Sum x ratio / 2^16). The selection leaves on `o` as masks
    of n_w clusters, in row order. With `selection` "exact" (`hdl.retrieval.wtu_exact`) it is the shortest prefix that
    weighs more than Th, by code descending; ties go to the lower index. With "buckets" (`hdl.retrieval.wtu_buckets`) it
    is whole buckets of equal width in the code.

    The exact variant keeps no row, so a row has any length. A row is offered `readings` times: once for each digit of
    `bin_bits` bits of a code, and once to select. The unit counts the readings itself, and the selection leaves during
    the last one. Buckets keep the row, and are offered it once.

    Token counts are on chip in a ring of `counts` counts. The ring holds a context of at most as many clusters, and
    starts again with each reading. A larger context streams its counts, once for each reading.

    A code of `score` = eEmM is an exponent e of E bits above a mantissa m of M bits. Its value is an integer: m for
    e = 0, else (2^M + m) x 2^(e - 1); with E = 0 the code itself. A larger code has a larger value.

    Budget: with parameter `budget`, a row may take a budget of tokens instead of a share. Then codes only rank: the
    selection is the shortest prefix that holds more than `budget` tokens, or the whole row. The unit adds counts
    instead of weights, and begins to walk with `budget` in place of Th. It needs no Sum, which saves 2^bin_bits + 16
    cycles.

    Corner cases: a row of Sum 0, and ratio 65536, select everything. A word of scores waits for its counts.

    Parameters
    ----------
    p : WtuParams (n_h is the number of these units that its owner puts side by side)

    Members
    -------
    c : In(stream of `count_layout`) : words of token counts, clusters ascending. A word with `first` begins a context:
        it empties the ring, waits until `idle`, and keeps the next row from starting. Other words wait while the ring
        is full. Between rows such a word may be withdrawn, or give way to one with `first`. A row of a context that
        streams has a score for each of its clusters
    idle : Out(1) : no row is in flight
    used : Out(1) : pulse: a place of the ring is free again, in a context that streams
    i : In(stream of `row_layout`) : rows, one word a cycle, at least one score in each; the same words in each reading.
        Scores go straight to the multipliers, and `ready` depends on the payload: drive it from registers
    ratio : In(17) : Th_r-wics in units of 2^-16, 0 to 65536; keep it stable while rows are in flight
    budgeted : In(1), if `WtuParams.budget` : rows take a budget, not a share; stable as `ratio`
    budget : In(24), if `WtuParams.budget` : tokens of the budget less one; stable as `ratio`
    o : Out(stream of `beat_layout`) : selections, in row order. The last beat belongs to the row's last word; only it
        may have an empty mask
    perf : Out(struct of 32-bit counters) : rows (selected), words (taken, in all readings), walked (bins, or passes
        over the row), tests (of equal codes; exact), waits (cycles in which a word of scores waits for its counts)

    Latency: from the acceptance of a row's first word to its last beat. `sim.units.wtu_time.WtuTime` gives it exactly,
        and its worst case. For L words: exact: readings * (load + 3) + walked + 2^bin_bits + 16 + tests * (digits + 4)
        at most. load is a cycle for each digit of `count_digit` bits of each word's largest count: L where counts have
        one digit. A word that holds the crossing code takes a test, and the word in which equal codes cross takes
        `test_steps` more. buckets: L * (1 + buckets visited) + 4. At the `core` preset, a row of 1,024 clusters with
        counts below 256 that walks 12 bins and tests one word takes 5 * (64 + 3) + 12 + 8 + 16 + 5 = 376 cycles.
    Throughput: a row every latency + 1 cycles, with one more for each further digit of its first word. A context that
        streams takes 1 to 1.5 cycles a word, because counts that come in may delay those that are read.
    Raises: `ParamError` from `WtuParams`.
    Source: V-Rex sections IV-C and V-B, Equations 1 to 3, Figures 9 and 11.
    """

    @staticmethod
    def timing(p: WtuParams) -> dict[str, str]:
        """Formulas for the manifest."""
        words = f"ceil(clusters / {p.n_w})"
        if p.selection == "buckets":
            return {"latency": f"{words} * (1 + buckets) + 4", "interval": "latency + 1"}
        return {
            "load": f"sum over {words} words of the digits ({p.count_digit} bits) of the largest count",
            "latency": f"{p.readings} * (load + 3) + walked + tests * (digits + 4) + {len(p.bin_units) + 16}",
            "interval": "latency + 1",
        }

    def elaborate(self, platform):
        m = Module()
        core = WtuExact if self.p.selection == "exact" else WtuBuckets
        m.submodules.core = core = core(self.p)
        for name in ("c", "i", "o"):
            ours, theirs = getattr(self, name), getattr(core, name)
            if name == "o":
                m.d.comb += [ours.payload.eq(theirs.payload), ours.valid.eq(theirs.valid), theirs.ready.eq(ours.ready)]
            else:
                m.d.comb += [theirs.payload.eq(ours.payload), theirs.valid.eq(ours.valid), ours.ready.eq(theirs.ready)]
        m.d.comb += [core.ratio.eq(self.ratio), self.perf.eq(core.perf)]
        if self.p.budget:
            m.d.comb += [core.budgeted.eq(self.budgeted), core.budget.eq(self.budget)]
        m.d.comb += [self.idle.eq(core.idle), self.used.eq(core.used)]
        if hasattr(self, "error"):
            m.d.comb += self.error.eq(core.error)
        return m
