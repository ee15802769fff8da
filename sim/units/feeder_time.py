"""Predicts when the feeder takes words from the storer, and when it passes keys and scores on to the DRE."""

from dataclasses import dataclass, field

from openvrex.golden.program.isa import StoreTo
from openvrex.hdl.params import CoreParams


@dataclass
class FeederCycles:
    """Cycle of each transfer without stalls. Words and orders are offered from cycle 0 on.

    d : words from the storer
    k : keys and orders for the HCU
    s : scores for the WTU
    """

    d: list[int] = field(default_factory=list)
    k: list[int] = field(default_factory=list)
    s: list[int] = field(default_factory=list)


class FeederTime:
    """Time view of `hdl.retrieval.feeder.Feeder`. Nothing stalls its outputs."""

    def __init__(self, p: CoreParams):
        self.n_w, self.lanes = p.dre.wtu.n_w, p.dpe.n_w

    def run(self, words: list[dict], orders: int = 0) -> FeederCycles:
        """Cycles of `words`, beats of `hdl.instruction_layouts.dre_layout`.

        orders : CLEARs and SWITCHes that the feeder passes on before every row of HASH
        """
        out = FeederCycles(k=list(range(1, orders + 1)))
        cycle, joined = 0, 0  # joined: words in the score word that the feeder assembles
        for word in words:
            if word["target"] == StoreTo.HASH:
                cycle = max(cycle, orders)
                out.k += [cycle + 1] * word["row_last"]
                out.d.append(cycle)
            else:
                used = word["keep"] + 1 if word["row_last"] else self.lanes
                parts = -(-used // self.n_w)
                joined += 1
                if word["row_last"] or joined * self.lanes >= self.n_w:
                    out.s += range(cycle + 1, cycle + 1 + parts)
                    joined = 0
                out.d.append(cycle + parts - 1)
            cycle = out.d[-1] + 1
        return out
