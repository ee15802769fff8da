"""cocotb side of the feeder's bench: drives rows of hash bits and scores, and orders."""

import cocotb

from openvrex.hdl.instruction_layouts import dre_layout
from openvrex.hdl.retrieval.feeder import Feeder, order_layout
from openvrex.hdl.retrieval.hcu_state import token_layout
from openvrex.hdl.retrieval.row_check import score_layout
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench
from openvrex.tb.library.transfer_traffic import params


@cocotb.test()
async def words(dut):
    """Run each of config["episodes"], {"d", "orders", "stalls", "k", "s", "cut_at"}, with a reset before it.

    "orders" has, for each order, the number of words of `d` before it, its op and its context. An episode ends
    after as many beats on `k` and `s` as these say. With "cut_at" the reset of the next episode cuts it short.
    """
    c = config()
    p = params(c["params"])
    bench = Bench(dut, c["seed"])
    d, order = bench.source("d", dre_layout(p)), bench.source("order", order_layout(p))
    k, s = bench.sink("k", token_layout(p.dre.hcu)), bench.sink("s", score_layout(p.dre.wtu))
    await bench.start()
    results = []
    for e in c["episodes"]:
        await bench.begin()
        for name, one in (("d", d), ("order", order)):
            one.idle = e["stalls"].get(name, 0.0)
        for name, one in (("k", k), ("s", s)):
            one.stall = e["stalls"].get(name, 0.0)
        d.put(e["d"])
        left = list(e["orders"])
        while bench.cycle < e["cut_at"] if e["cut_at"] else (len(k.got), len(s.got)) != (e["k"], e["s"]):
            assert bench.cycle < 20_000, f"no end: {len(k.got)} of {e['k']} tokens, {len(s.got)} of {e['s']} words"
            while left and left[0][0] <= len(d.sent):
                _, op, ctx = left.pop(0)
                order.put([{"op": op, "ctx": ctx}])
            await bench.step()
        if e["cut_at"]:
            continue
        await bench.rest(10)
        results.append(
            {
                "taken": d.sent[:],
                "ordered": order.sent[:],
                "k": k.got[:],
                "s": s.got[:],
                "perf": bench.counters(Feeder.counters()),
            }
        )
    result({"episodes": results})
