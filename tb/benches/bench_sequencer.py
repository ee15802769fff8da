"""cocotb side of the sequencer's bench: the host, and four engines that take instructions and finish them later."""

import random

import cocotb
from cocotb.triggers import ClockCycles

from openvrex.golden.program.isa import ADDR_BITS, REGISTERS, SEMAPHORES, Engine, Status
from openvrex.hdl.execution.sequencer import Sequencer
from openvrex.hdl.instruction_layouts import (
    START,
    done_layout,
    fault_layout,
    host_layout,
    mul_layout,
    retrieve_layout,
    set_layout,
    status_layout,
    transfer_layout,
    vector_layout,
)
from openvrex.hdl.params import override_part, preset
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of, pack, unpack

NAMES = [e.name.lower() for e in Engine]
DONE = [n for n in NAMES if n != "vector"]  # in the order of the port
PINS = ("fault", "retrieve_set", "store_set", "moved", "outstanding")  # that a run may drive
KEYS = {"host", "limit", "fresh", "reset", "sleep", *PINS}


class Engines:
    """Drives `done` and `busy`. An instruction takes delays[name] = (low, high) cycles; each engine finishes one a
    cycle, in order.

    It also drives the events that `run` names by cycles from START: "fault", "retrieve_set", "store_set"
    {cycle: fields}, "moved", "outstanding" [cycles].

    sets : the inputs that set registers
    """

    def __init__(self, bench: Bench, host, sinks: dict, delays: dict[str, list[int]], sets: list[str]):
        self.bench, self.host, self.sinks, self.delays, self.sets = bench, host, sinks, delays, sets
        self.noise = random.Random(1)  # of payloads that are not valid
        self.begin({})

    def reset(self) -> None:
        """Forget the run with a reset."""
        self.begin({})

    def begin(self, run: dict) -> None:
        """Forget pending instructions and all beats, and queue a run's host beats."""
        assert not (unknown := set(run) - KEYS), f"a run has no {unknown}"
        self.run, self.start = run, None
        self.work: dict[str, list[list[int]]] = {name: [] for name in NAMES}  # [cycles left, signal]
        self.seen = dict.fromkeys(NAMES, 0)
        for s in self.sinks.values():
            s.got.clear()
        self.host.sent.clear()
        self.host.put(run.get("host", []))

    def drive(self, rng) -> None:
        """Set the pins, just after the rising edge."""
        busy, done = 0, 0
        for e, (name, work) in enumerate(self.work.items()):
            for item in work:
                item[0] -= 1
            busy |= bool(work) << e
            ends = bool(work) and work[0][0] <= 0
            _, signal = work.pop(0) if ends else (0, self.noise.getrandbits(SEMAPHORES))
            if name in DONE:
                pulse = pack(done_layout(), {"valid": int(ends), "signal": signal})
                done |= pulse << DONE.index(name) * done_layout().size
        dut, now = self.bench.dut, -1 if self.start is None else self.bench.cycle - self.start
        dut.busy.value, dut.done.value = busy, done
        dut.fault.value = pack(fault_layout(), self.run.get("fault", {}).get(str(now), {}))
        for name in self.sets:
            idle = {"valid": 0, "to": self.noise.randrange(REGISTERS), "data": self.noise.getrandbits(ADDR_BITS)}
            getattr(dut, name).value = pack(set_layout(), self.run.get(name, {}).get(str(now), idle))
        dut.moved.value = int(now in self.run.get("moved", []))
        dut.outstanding.value = int(now in self.run.get("outstanding", []))

    def sample(self, cycle: int) -> None:
        """Take instructions, at the falling edge, after the host and the sinks."""
        starts = [i for i, b in enumerate(self.run.get("host", [])) if b["op"] == START]
        if self.start is None and starts and len(self.host.sent) > starts[-1]:
            self.start = self.host.sent[starts[-1]]
        for name in NAMES:
            for _, beat in self.sinks[name].got[self.seen[name] :]:
                self.work[name].append([self.bench.rng.randint(*self.delays[name]), beat["signal"]])
            self.seen[name] = len(self.sinks[name].got)


@cocotb.test()
async def programs(dut):
    """Play config["runs"] one after the other: {"host": beats, "limit": cycle at which the bench gives up}.

    Pins are as in `Engines`. With "fresh" the unit is reset first. With "reset" it is reset in that cycle from START,
    and everything is repeated. "sleep": {cycle: number of cycles in which nobody drives or samples}. The result has, in
    cycles from the last START, every hand-over with its beat and the first cycle with the final status; also status and
    counters.
    """
    c = config()
    p = override_part(preset("tiny"), "core", c["assign"]).core
    bench = Bench(dut, c["seed"])
    host = bench.source("host", host_layout(), c["idle"])
    shapes = (transfer_layout(), mul_layout(), vector_layout(p), transfer_layout(), retrieve_layout())
    sinks = {n: bench.sink(n, s, c["stall"]) for n, s in zip(NAMES, shapes, strict=True)}
    engines = Engines(bench, host, sinks, c["delays"], ["retrieve_set", *["store_set"] * p.lxe.to_register])
    bench.streams.append(engines)
    await bench.start()
    result({"runs": [await _play(dut, bench, engines, run) for run in c["runs"]]})


async def _play(dut, bench: Bench, engines: Engines, run: dict) -> dict:
    if run.get("fresh"):
        await bench.reset()
    engines.begin(run)
    end, rest = None, 30
    while rest:
        await bench.step()
        now = None if engines.start is None else bench.cycle - engines.start
        if now is not None and now == run.get("reset"):
            run = run | {"reset": None}
            await bench.reset()
            engines.begin(run)
            continue
        if sleep := run.get("sleep", {}).get(str(now)):
            await ClockCycles(dut.clk, sleep)
            bench.cycle += sleep
            continue
        status = unpack(status_layout(), bits_of(dut.status))
        assert bits_of(dut.stop) == (status["code"] >= Status.OPCODE)
        if now and status["code"] != Status.RUNNING:  # events after the end are seen, too
            end, rest = now if end is None else end, rest - 1
        if now is not None and now >= run["limit"]:
            break
    return {
        **{n: [[cycle - engines.start, beat] for cycle, beat in s.got] for n, s in engines.sinks.items()},
        "status": status,
        "end": end,
        "perf": bench.counters(Sequencer.counters()),
    }
