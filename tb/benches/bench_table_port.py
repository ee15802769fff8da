"""cocotb side of the table port's bench: two clients, and a memory that answers in order and keeps single bytes."""

from collections import deque

import cocotb
from cocotb.triggers import RisingEdge

from openvrex.hdl.retrieval.table_client import ask_layout, put_layout
from openvrex.hdl.retrieval.table_port import CLIENTS, TablePort, client_sizes
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of
from openvrex.tb.library.table_bus import TableBus
from openvrex.tb.library.transfer_traffic import params


async def stop(dut):
    """Raise `stop` behind an edge, as the register that drives it does."""
    await RisingEdge(dut.clk)
    dut.stop.value = 1


@cocotb.test()
async def requests(dut):
    """Run each of config["episodes"], with a reset before it.

    requests : {stream: beats, each with the cycle "at" from which it is offered}
    stalls : {stream: share} · memory, latency, errors : as in `TableBus`
    stop_at : cycle of `stop`, if not 0
    cut_at : cycle after which the next episode's reset cuts it short, if not 0
    """
    c = config()
    p = params(c["params"]).dre
    bench = Bench(dut, c["seed"])
    memory = TableBus(bench, p)
    sources, sinks = {}, {}
    for name, sizes in client_sizes(p).items():
        n_ctx, n_index, bits, most, *_ = sizes
        sources[f"{name}_ask"] = bench.source(f"{name}_ask", ask_layout(n_ctx, n_index, most))
        sources[f"{name}_put"] = bench.source(f"{name}_put", put_layout(n_ctx, n_index, bits))
        sinks[name] = bench.sink(f"{name}_data", sizes.beat_bits)
    ends = sources | {f"bus_{n}": getattr(memory, n) for n in ("ar", "r", "aw", "w", "b")}
    dut.stop.value = 0
    dut.table_base.value = 0
    await bench.start()
    results = []
    for e in c["episodes"]:
        dut.stop.value = 0
        dut.table_base.value = e["base"]
        await bench.begin()
        memory.begin(e["memory"], e["latency"], e["errors"])
        for name, one in ends.items():
            setattr(one, "stall" if hasattr(one, "got") else "idle", e["stalls"].get(name, 0.0))
        todo = {name: deque(e["requests"].get(name, ())) for name in sources}
        pulses: dict[str, list[int]] = {"bus": [], "corrected": [], "wrong": []}

        async def step(todo=todo, pulses=pulses, stop_at=e["stop_at"]):
            for name, left in todo.items():
                while left and left[0]["at"] <= bench.cycle + 1:
                    beat = left.popleft()
                    sources[name].put([{k: v for k, v in beat.items() if k != "at"}])
            memory.before()
            if bench.cycle + 1 == stop_at:
                cocotb.start_soon(stop(dut))
            await bench.step()
            memory.after()
            errors = bits_of(dut.error) if hasattr(dut, "error") else 0
            for name, pulse in (("bus", bits_of(dut.bus_error)), ("corrected", errors & 1), ("wrong", errors >> 1)):
                pulses[name] += [bench.cycle] * pulse
            assert bits_of(dut.busy) or not (memory.reading or memory.writing), f"not busy in cycle {bench.cycle}"
            assert bits_of(dut.bus_b_ready), "a response is not taken"

        while bench.cycle < e["cut_at"]:
            await step()
        if e["cut_at"]:
            continue
        halts, begun, quiet = False, [], 0
        while quiet < 12:
            assert bench.cycle < e["limit"], f"no end: {[len(s.queue) for s in sources.values()]} to go"
            halted = halts
            await step()
            halts = halts or bool(bits_of(dut.stop))
            begun += [bits_of(dut.perf) & (1 << 64) - 1] * halted  # asks and puts, which are counted a cycle later
            assert begun[:1] == begun[-1:], f"a request was begun in cycle {bench.cycle}"
            halts = halts or bool(pulses["bus"] or pulses["wrong"])
            ended = halts or not any(todo.values()) and not any(s.queue for s in sources.values())
            quiet = quiet + 1 if ended and not bits_of(dut.busy) else 0
            assert not (quiet and (memory.reading or memory.writing)), "busy fell too early"
        results.append(
            {
                "sent": {name: source.sent[:] for name, source in sources.items()},
                "data": {name: sinks[name].got[:] for name in CLIENTS},
                "reads": memory.ar.got[:],
                "writes": memory.aw.got[:],
                "answers": memory.b.sent[:],
                "pulses": pulses,
                "memory": {str(a): byte for a, byte in sorted(memory.bytes.items())},
                "perf": bench.counters(TablePort.counters()),
            }
        )
    result({"episodes": results})
