"""cocotb side of a scenario: drives the streams of any unit and logs all of them, cycle by cycle."""

import cocotb
from amaranth.lib import stream
from amaranth.lib.wiring import In

from openvrex.hdl.emit import component_of, params_of
from openvrex.hdl.params import preset
from openvrex.hdl.retrieval.hcu_state import client_sizes
from openvrex.hdl.retrieval.kvmu_layouts import map_port
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of, unpack
from openvrex.tb.library.table_memory import TableMemory

CLIENTS = {"hcu": client_sizes, "kvmu": map_port}  # units with tables in memory: the sizes of their port


@cocotb.test()
async def scenario(dut):
    """Drive config["beats"] (In stream -> beats), hold config["ports"], and log config["cycles"] cycles from "first"
    on. The beats of a stream come from the cycle of config["starts"] on.

    The log has valid and ready of each stream and cycle, and the payload if it is valid. Out streams stall as "stall"
    says. A unit with tables has a memory of zeros and of config["latency"] cycles behind its port `m`.
    """
    c = config()
    unit, bench, streams = component_of(c["unit"], params_of(c["unit"], preset(c["preset"]))), Bench(dut, c["seed"]), {}
    for name, member in unit.signature.members.items():
        if not member.is_port and isinstance(member.signature, stream.Signature):
            layout = member.signature.members["payload"].shape
            ours = bench.source if member.flow == In else bench.sink
            streams[name] = ours(name, layout, c["stall"].get(name, 0.0))
    if sizes := CLIENTS.get(c["unit"]):
        memory = TableMemory(bench, "m", sizes(unit.p), latency=c["latency"])
        streams |= {f"m_{name}": getattr(memory, name) for name in ("ask", "data", "put")}
    for name, value in c["ports"].items():
        getattr(dut, name).value = value
    await bench.start()
    log = {name: [] for name in streams}
    for cycle in range(c["first"] + c["cycles"]):
        for name, beats in c["beats"].items():
            if c["starts"].get(name, 0) == cycle:
                streams[name].put(beats)
        await bench.step()
        for name, s in streams.items() if cycle >= c["first"] else ():
            valid, ready = bits_of(s.valid_), bits_of(s.ready_)
            log[name].append([valid, ready, unpack(s.layout, bits_of(s.payload)) if valid else None])
    result(log)
