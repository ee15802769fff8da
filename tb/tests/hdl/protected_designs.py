"""Designs with protected memories."""

from openvrex.hdl.emit import Emitted
from openvrex.tb.checks.dre_checks import play
from openvrex.tb.library.runner import Run


def dre(unit: Emitted, p, flips: float = 0.0) -> bool:
    """Of the beats that the DRE reads from its tables, a share `flips` has a wrong bit."""
    s = play(p.dre, 2, 16)
    config = s.config() | {"limit": 20_000, "flips": flips}
    return not s.differences(Run(unit, "bench_dre", "phases", config, 2, waves=False)())
