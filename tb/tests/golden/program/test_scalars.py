"""Values get scalar registers that no other value holds."""

import pytest

from openvrex.golden.arithmetic.vector import SCALARS
from openvrex.golden.program.compiler import Compiler
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.layer_compiler import LayerPlan
from openvrex.golden.program.layer_memory import LayerShape


def test_scopes_share_no_register_and_give_theirs_back():
    fmt = LxeFormat(lanes=4, w_depth=16, x_depth=64, depth=64, i_depth=1 << 12)
    c = Compiler(LayerPlan(LayerShape(width=16, heads=2, kv_heads=2, head_size=8, ffn=8, tokens=1, recent=8), fmt))
    free = list(c.free)
    with c.scalars(3) as outer, c.scalars(2) as inner:
        assert len({*outer, *inner}) == 5
        with pytest.raises(AssertionError, match="no more scalar registers"), c.scalars(SCALARS - 4):
            pass
    assert c.free == free
    with c.scalars(3) as again:
        assert again == outer  # so that loops have the same registers in each round
