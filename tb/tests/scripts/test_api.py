"""The page on the Python interface: its lines run, and give what the commands give."""

import re

from openvrex.tb.library.runner import ROOT


def test_the_lines_of_the_page_run():
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["hcu"].verilog.startswith("//")
    assert names["fetched"].shape == (names["trace"].kv_heads, names["trace"].tokens)
    assert names["fetched"].any()
    assert len(names["tables"]) == 9
    assert all(t.beats and not t.differences for t in names["tables"])
    assert names["gates"] == names["sweep"][names["p"].core.dre.hcu.n_h]
    assert names["sweep"][1] < names["sweep"][2]
