"""WiCSum threshold unit: one core, in the variant that the parameters name."""

from amaranth import Module

from hdl.params import WtuParams
from hdl.retrieval.wtu_buckets import WtuBuckets
from hdl.retrieval.wtu_exact import WtuExact
from hdl.retrieval.wtu_lanes import WtuPorts


class Wtu(WtuPorts):
    """Selects the clusters of a row of scores whose weights make up the ratio Th_r-wics of the row's total weight.

    A row comes in on `i`, n_w scores a word; the unit multiplies each score with the token count of its cluster. The
    weights value(code) x count add up to Sum, and Th = floor(Sum x ratio / 2^16). The selection leaves on `o` as masks
    of n_w clusters, in row order. With `selection` "exact" (`hdl.retrieval.wtu_exact`) it is the shortest prefix that
    weighs more than Th, by code descending; ties go to the lower index. With "buckets" (`hdl.retrieval.wtu_buckets`) it
    is whole buckets of equal width in the code.

    A code of `score` = eEmM is an exponent e of E bits above a mantissa m of M bits. Its value is an integer: m for
    e = 0, else (2^M + m) x 2^(e - 1); with E = 0 the code itself. A larger code has a larger value.

    Corner cases: a row of Sum 0, and ratio 65536, select everything. After a reset the exact variant clears its bins:
    `i` is not ready for `lane_bins` cycles. Nobody has to wait or count for that.

    Parameters
    ----------
    p : WtuParams (n_h is the number of these units that its owner puts side by side)

    Members
    -------
    c : In(stream of `count_layout`) : token counts, one a cycle. Taken while no row is in flight; a count that waits
        keeps the next row from starting, so a row sees exactly the counts offered before its first word was taken.
        Count memory has no initial content: write the count of every cluster of a row before the row. Else the row may
        never end, as the exact variant keeps two copies. With `protect` a count is 0 until it is written
    i : In(stream of `row_layout`) : rows, one word a cycle, at least one score in each. The exact variant takes a word
        with the last digit of its counts. It reads these counts a cycle ahead, so a row's first word waits for them.
        Scores go straight to its multipliers, and `ready` depends on `keep` and `last`: drive them from registers
    ratio : In(17) : Th_r-wics in units of 2^-16, 0 to 65536; keep it stable while rows are in flight
    o : Out(stream of `beat_layout`) : selections, in row order; only a row's last beat may have an empty mask
    perf : Out(struct of 32-bit counters) : rows (selected), words (taken), walked (bins, or passes over the row),
        scanned (words read back), zooms (further digits of the exact variant)

    Latency: from the acceptance of a row's first word to its last beat. It depends on the data;
        `sim.units.wtu_time.WtuTime` gives it exactly, and its worst case. For L words: exact: load + th_steps + bins
        walked + scan + candidates popped + 8 at most. load is a cycle for each digit of `count_digit` bits of each
        word's largest count (of the first word, the last alone): L where counts have one digit. scan is 1 for each word
        that holds a code at or above the crossing bin, 1 more for every further candidate in it, and 1 for `group`
        words without one. A zoom adds another load, walk and scan. buckets: L * (1 + buckets visited) + 4. A row of
        1,024 clusters of the `core` preset has L = 64 words: two buckets take 196 cycles.
    Throughput: exact: with double_buffer alone a row every load + th_steps + walked + 3 cycles, or as long as its
        selection takes, if that is longer. With walk_ahead the largest of load + 2 (load + th_steps + 2 if th_steps is
        more than 1), th_steps + walked + 3, and the selection; without either every latency + 2. At the `core` preset a
        row of 1,024 clusters with counts below 512 takes 64 + 1 + walked + 3 = 68 + walked cycles. buckets: a row every
        latency + 1 cycles.
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
