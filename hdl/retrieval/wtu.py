"""WiCSum threshold unit: one core, in the variant that the parameters name."""

from amaranth import Module

from hdl.params import WtuParams
from hdl.retrieval.wtu_buckets import WtuBuckets
from hdl.retrieval.wtu_exact import WtuExact
from hdl.retrieval.wtu_lanes import WtuPorts


class Wtu(WtuPorts):
    """Selects, in a row of scores, the clusters whose weighted scores make up the ratio Th_r-wics of the row's sum.

    A row's clusters weigh value(code) x count; Sum is the sum of the weights and Th = floor(Sum x ratio / 2^16).
    A code of `score` = eEmM is an exponent e of E bits above a mantissa m of M bits. Its value is an integer: m for
    e = 0, else (2^M + m) x 2^(e - 1); with E = 0 the code itself. A larger code has a larger value.
    `selection` "exact" (`hdl.retrieval.wtu_exact`) selects the shortest prefix, by code descending then index
    ascending, that weighs more than Th; "buckets" (`hdl.retrieval.wtu_buckets`) whole buckets of equal width in the
    code. A row of Sum 0, and ratio 65536, select everything.

    Parameters
    ----------
    p : WtuParams (n_h is the number of these units that its owner puts side by side)

    Members
    -------
    c : In(stream of `count_layout`) : token counts, one a cycle. Taken while no row is in flight; a count that waits
        keeps the next row from starting, so a row sees exactly the counts offered before its first word was taken.
        Count memory has no initial content: write the count of every cluster of a row before the row, or it may never
        end, as the exact variant keeps two copies. With `protect` a count is 0 until it is written
    i : In(stream of `row_layout`) : rows, one word a cycle, at least one score in each. The exact variant takes a word
        with the last digit of its counts, which it reads a cycle ahead: a row's first word waits for them. Scores go
        straight to its multipliers, and `ready` depends on `keep` and `last`: drive them from registers
    ratio : In(17) : Th_r-wics in units of 2^-16, 0 to 65536; stable while rows are in flight
    o : Out(stream of `beat_layout`) : selections, in row order; beats without a set bit come only as last ones
    perf : Out(struct of 32-bit counters) : rows (selected), words (taken), walked (bins, or passes over the row),
        scanned (words read back), zooms (further digits of the exact variant)

    Latency: from the acceptance of a row's first word to its last beat; data dependent, exact in
    `sim.units.wtu_time.WtuTime`,
        which also has the worst case. For L words:
        exact: load + th_steps + bins walked + scan + candidates popped + 8 at most. load is a cycle for each digit of
        `count_digit` bits of each word's largest count (of the first word, the last alone): L where counts have one.
        scan is 1 for each word that holds a code at or above the
        crossing bin, 1 more for every further candidate in it, and 1 for `group` words without one. A zoom adds another
        load, walk and scan.
        buckets: L * (1 + buckets visited) + 4.
        After a reset the exact variant clears its bins: `i` is not ready for `lane_bins` cycles. Nobody has to wait or
        count for that.
    Throughput: exact: with walk_ahead a row every load + 2 cycles (load + th_steps + 2 if th_steps is more than 1), or
        th_steps + walked + 3, or selection; with double_buffer alone every load + th_steps + walked + 3, or selection;
        else every latency + 2.
        buckets: a row every latency + 1 cycles.
    Raises: `ParamError` from `WtuParams`.
    Source: V-Rex sections IV-C and V-B, Equations 1 to 3, Figures 9 and 11.
    """

    @staticmethod
    def timing(p: WtuParams) -> dict[str, str]:
        """Formulas for the manifest."""
        words = f"ceil(clusters / {p.n_w})"
        if p.selection == "buckets":
            return {"latency": f"{words} * (1 + buckets) + 4", "interval": "latency + 1"}
        interval = f"load + walked + {p.th_steps + 3}" if p.double_buffer else "latency + 2"
        if p.walk_ahead:
            interval = f"max(load + {2 if p.th_steps == 1 else p.th_steps + 2}, walked + {p.th_steps + 3})"
        return {
            "load": f"sum over {words} words of the digits ({p.count_digit} bits) of the largest count",
            "latency": f"load + walked + scan + pops + {p.th_steps + 8}",
            "interval": interval,
            "scan": f"sum over groups of {p.group} words of max(1, words that reach the crossing bin) + candidates",
            "start": f"{p.lane_bins} cycles after a reset in which i is not ready",
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
        if hasattr(self, "error"):
            m.d.comb += self.error.eq(core.error)
        return m
