"""cocotb side of the register block's bench: random accesses against the SystemRDL description."""

from functools import cache
from itertools import product

import cocotb
from amaranth.lib import data
from cocotb.triggers import FallingEdge, RisingEdge
from cocotbext.axi import AxiResp
from systemrdl.node import FieldNode, MemNode, RegNode

from openvrex.hdl.shells.register_block import access_layout, address_map, path_of
from openvrex.tb.library.register_bus import WORD, Registers
from openvrex.tb.library.runner import config, result
from openvrex.tb.library.streams import Bench, bits_of, pack, unpack
from openvrex.tb.library.transfer_traffic import params


class Model:
    """The registers of a SystemRDL description: the words that software sees, and the values that hardware gets."""

    def __init__(self, top):
        self.top = top
        self.fields = [n for n in top.descendants(unroll=True) if isinstance(n, FieldNode)]
        self.windows = [n for n in top.descendants(unroll=True) if isinstance(n, MemNode)]
        self.regs = [n for n in top.descendants(unroll=True) if isinstance(n, RegNode)]
        self.values = {f.get_path(): f.get_property("reset") or 0 for f in self.fields}
        self.zeros = {f.get_path(): f.get_property("zeros", default=0) for f in self.fields}
        self.limits = {
            f.get_path(): (f.get_property("least", default=0), f.get_property("most"))
            for f in self.fields
            if f.get_property("most", default=None) is not None
        }
        self.parts, self.can = cache(self.parts), cache(self.can)  # the description is slow to query
        self.busy, self.quiet = False, cache(self.quiet)
        self.pulses: list[tuple[str, int]] = []
        self.passed: list[tuple[str, int, int]] = []

    def window(self, address: int):
        """The window that contains an address."""
        return next((w for w in self.windows if w.absolute_address <= address < w.absolute_address + w.size), None)

    def quiet(self, address: int) -> bool:
        """Whether a write waits until nothing runs."""
        nodes = (n for n in (*self.regs, *self.windows) if n.absolute_address <= address < n.absolute_address + n.size)
        return any(n.get_property("quiet", default=False) for n in nodes)

    def parts(self, address: int, way: str) -> list[tuple[FieldNode, int, int]]:
        """Fields of a word that software can read or write: first bit in the word, first bit of the field."""
        out = []
        for f in self.fields:
            at = f.parent.absolute_address * 8 + f.low - address * 8
            if getattr(f, f"is_sw_{way}able") and -f.width < at < 32:
                out.append((f, max(at, 0), max(-at, 0)))
        return out

    def can(self, address: int, way: str) -> bool:
        """Whether an address belongs to a register that software can read or write."""
        regs = (r for r in self.regs if r.absolute_address <= address < r.absolute_address + r.size)
        return any(getattr(r, f"has_sw_{way}able") for r in regs)

    def read(self, address: int) -> tuple[int, AxiResp]:
        """The answer to a read."""
        parts = self.parts(address, "read")
        word = sum((self.values[f.get_path()] >> low) << at for f, at, low in parts) & 0xFFFFFFFF
        return (word, AxiResp.OKAY) if self.can(address, "read") else (0, AxiResp.SLVERR)

    def write(self, address: int, word: int, strobe: int) -> AxiResp:
        """Apply a write; its answer."""
        if self.busy and self.quiet(address):
            return AxiResp.SLVERR
        if window := self.window(address):
            if strobe != 0xF:
                return AxiResp.SLVERR
            self.passed.append((window.inst_name, (address - window.absolute_address) // 4, word))
            return AxiResp.OKAY
        mask = sum(0xFF << 8 * i for i in range(4) if strobe >> i & 1)
        parts = self.parts(address, "writ")
        for f, _, _ in parts:
            new = (word & mask) | (self.values[f.get_path()] & ~mask)
            least, most = self.limits.get(f.get_path(), (0, new))
            if not least <= new <= most:
                return AxiResp.SLVERR
        for f, at, low in parts:
            name, bits = f.get_path(), (1 << f.width) - 1
            new, sets = word >> at << low & bits, mask >> at << low & bits & -1 << self.zeros[name]
            if low == 0 and f.width + at > 32:
                sets &= (1 << 32 - at) - 1
            if f.get_property("onwrite"):  # writing a one clears the bit
                self.values[name] &= ~(new & sets)
            elif f.get_property("singlepulse"):
                self.pulses += [(path_of(f, self.top), 1)] if new & sets else []
            else:
                self.values[name] = (new & sets) | (self.values[name] & ~sets)
        return AxiResp.OKAY if self.can(address, "writ") else AxiResp.SLVERR


@cocotb.test(timeout_time=100_000, timeout_unit="ns")  # for a port that never answers
async def accesses(dut):
    """Random reads, writes of some bytes and pulses from hardware, on registers, windows and gaps between them.

    kinds : what the accesses reached
    """
    c = config()
    top = address_map(c["map"], params(c["params"]))
    bench, model, kinds = Bench(dut, c["seed"]), Model(top), set()
    rng = bench.rng
    given = data.StructLayout({path_of(f, top): f.width for f in model.fields if f.is_hw_writable})
    taken = [f for f in model.fields if f.is_hw_readable]
    outs = data.StructLayout({path_of(f, top): f.width for f in taken})
    wires = {path_of(f, top): f for f in model.fields if f.is_hw_writable and not f.get_property("intr")}
    irqs = [f for f in model.fields if f.get_property("intr")]
    enables = [(f.get_path(), f.get_property("enable").get_path()) for f in irqs]
    pulsed = {path_of(f, top): outs[path_of(f, top)] for f in taken if f.get_property("singlepulse")}
    regs = Registers(dut, top)
    for window in model.windows:
        getattr(dut, f"{window.inst_name}_ready").value = 0
    dut.i.value = dut.busy.value = 0
    passed, pulses = [], []

    async def watch():
        while True:
            await FallingEdge(dut.clk)
            for w in model.windows:
                name = w.inst_name
                ready = int(rng.random() < 0.5)
                getattr(dut, f"{name}_ready").value = ready
            await RisingEdge(dut.clk)
            for w in model.windows:
                name = w.inst_name
                if bits_of(getattr(dut, f"{name}_valid")) and bits_of(getattr(dut, f"{name}_ready")):
                    layout = access_layout(w.get_property("mementries"))
                    beat = unpack(layout, bits_of(getattr(dut, f"{name}_payload")))
                    passed.append((name, beat["addr"], beat["data"]))
            out = bits_of(dut.o)
            pulses.extend((name, 1) for name, f in pulsed.items() if out >> f.offset & 1)

    await bench.start()
    cocotb.start_soon(watch())
    spots = [r.absolute_address + i for r in model.regs for i in range(0, r.size, WORD)]
    writable = [a for a in spots if model.can(a, "writ")]
    plain = {path_of(f, top): f.get_path() for f in taken if path_of(f, top) not in pulsed}
    for _ in range(c["count"]):
        window = rng.choice(model.windows) if model.windows and rng.random() < 0.2 else None
        address = rng.choice(writable if rng.random() < 0.4 else spots)
        if rng.random() < 0.1:
            address = rng.randrange(0, spots[-1] + 64, WORD)
        if window:
            address = window.absolute_address + WORD * rng.randrange(window.get_property("mementries"))
        if rng.random() < 0.3:
            model.busy = rng.random() < 0.2
            await FallingEdge(dut.clk)
            dut.busy.value = model.busy
        if rng.random() < 0.3:  # hardware changes its values, and raises interrupts for a cycle
            values = {path: rng.getrandbits(f.width) for path, f in wires.items()}
            model.values |= {f.get_path(): values[path] for path, f in wires.items()}
            raised = [f for f in irqs if rng.random() < 0.5]
            model.values |= {f.get_path(): 1 for f in raised}
            rest = {path_of(f, top): 0 for f in irqs}
            await FallingEdge(dut.clk)
            dut.i.value = pack(given, values | rest | {path_of(f, top): 1 for f in raised})
            await FallingEdge(dut.clk)
            dut.i.value = pack(given, values | rest)
            kinds |= {f"raised {f.inst_name}" for f in raised}
        if rng.random() < 0.1:  # several at once
            writes = [(rng.choice(spots), rng.getrandbits(32)) for _ in range(4)]
            tasks = [cocotb.start_soon(regs.put(a, word)) for a, word in writes]
            answers = [await task for task in tasks]
            assert answers == [model.write(a, word, 0xF) for a, word in writes]
            kinds.add("several")
        elif rng.random() < 0.5:
            got, want = await regs.word(address), model.read(address)
            kinds.add(f"read {want[1].name}")
            assert got == want, f"read of {address:#x}: {got}, not {want}"
        else:
            word, first = rng.getrandbits(32), rng.choice((0, 0, 0, 1, 2, 3))
            limits = [
                model.limits[f.get_path()] for f, *_ in model.parts(address, "writ") if f.get_path() in model.limits
            ]
            for least, most in limits:
                word, first = rng.choice((least, most, rng.randint(least, most), max(0, least - 1), most + 1, word)), 0
            size = 4 - first if rng.random() < 0.7 else 1
            answer = await regs.master.write(address + first, (word >> 8 * first).to_bytes(4, "little")[:size])
            strobe = ((1 << size) - 1) << first
            want = model.write(address, word & ~((1 << 8 * first) - 1), strobe)
            kinds |= {f"limit {want.name}"} if limits else set()
            kinds |= {f"quiet {want.name}"} if model.busy and model.quiet(address) else set()
            kinds |= {f"write {want.name}", "window" if window else "register", "part" if size < 4 else "whole"}
            assert answer.resp == want, f"write to {address:#x}: {answer.resp}, not {want}"
        for _ in range(rng.randint(1, 2)):
            await FallingEdge(dut.clk)
        have = unpack(outs, bits_of(dut.o))
        for path, name in plain.items():
            assert have[path] == model.values[name], name
        pending = any(model.values[name] and model.values[enable] for name, enable in enables)
        assert bits_of(dut.irq) == pending
        kinds |= {"irq"} if pending else set()
    model.busy = False
    await FallingEdge(dut.clk)
    dut.busy.value = 0
    near = sorted({a ^ WORD << k for a in spots for k in range(len(dut.s_axi_araddr) - 2)} - {*spots})
    for k in range(4):  # every bit high and low, and addresses with one wrong bit
        if k % 2:
            values = {path: value ^ (1 << wires[path].width) - 1 for path, value in values.items()}
        else:
            values = {path: rng.getrandbits(f.width) for path, f in wires.items()}
        model.values |= {f.get_path(): values[path] for path, f in wires.items()}
        await FallingEdge(dut.clk)
        dut.i.value = pack(given, values | {path_of(f, top): 0 for f in irqs})
        for address in [*spots, *(near if k == 0 else ())]:
            assert await regs.word(address) == model.read(address), f"read of {address:#x}"
    for address in sorted({a ^ WORD << k for a in writable for k in range(len(dut.s_axi_awaddr) - 2)}):
        if not model.window(address):
            word = rng.getrandbits(32)
            await FallingEdge(dut.clk)
            dut.i.value = pack(given, values | {path_of(f, top): 1 for f in irqs})
            await FallingEdge(dut.clk)
            dut.i.value = pack(given, values | {path_of(f, top): 0 for f in irqs})
            model.values |= {f.get_path(): 1 for f in irqs}
            assert await regs.put(address, word) == model.write(address, word, 0xF), f"write to {address:#x}"
            for f in irqs:
                assert await regs.word(f.parent.absolute_address) == model.read(f.parent.absolute_address)
    for address in [a for a in writable for _ in range(4)]:  # and every byte alone, over ones
        for byte in range(4):
            assert await regs.put(address, 0xFFFFFFFF) == model.write(address, 0xFFFFFFFF, 0xF)
            new = rng.getrandbits(8)
            answer = await regs.master.write(address + byte, bytes([new]))
            assert answer.resp == model.write(address, new << 8 * byte, 1 << byte)
            await FallingEdge(dut.clk)
            have = unpack(outs, bits_of(dut.o))
            assert all(have[path] == model.values[name] for path, name in plain.items()), f"write to {address:#x}"
    for address in writable:  # every bit that software writes, high and low, beside the other half of its register
        for value in (0xFFFFFFFF, 0, 0xFFFFFFFF, 0):
            assert await regs.put(address, value) == model.write(address, value, 0xF), f"{value:#x} to {address:#x}"
            for half in (address & ~WORD, address | WORD):
                assert await regs.word(half) == model.read(half), f"read of {half:#x}"
    for address in writable:  # values that a limit allows
        for least, most in {m for f, *_ in model.parts(address, "writ") if (m := model.limits.get(f.get_path()))}:
            for value in [most, least, *(rng.randint(least, most) for _ in range(30))]:
                assert await regs.put(address, value) == model.write(address, value, 0xF), f"{value} to {address:#x}"
                assert await regs.word(address) == model.read(address), f"read of {address:#x}"
    model.busy = True
    dut.busy.value = 1
    for address in writable:  # what is quiet stays as it is while something runs
        for flip in (1, 0xFFFFFFFF):
            word = model.read(address)[0] ^ flip
            assert await regs.put(address, word) == model.write(address, word, 0xF), f"write to {address:#x} while busy"
    for address in spots:
        assert await regs.word(address) == model.read(address), f"read of {address:#x}"
    for _ in range(4):
        await FallingEdge(dut.clk)
    assert passed == model.passed
    assert pulses == model.pulses
    result({"kinds": sorted(kinds)})


@cocotb.test(timeout_time=100_000, timeout_unit="ns")  # for a port that never answers
async def cycles(dut):
    """Cycles of a single write and read on a quiet port, and of many in a row, driven by hand; bytes written."""
    c = config()
    bench = Bench(dut, c["seed"])
    for name in ("awvalid", "wvalid", "bready", "arvalid", "rready", "awprot", "arprot"):
        getattr(dut, f"s_axi_{name}").value = 0
    dut.i.value = 0
    await bench.start()
    address = c["address"]
    dut.s_axi_awaddr.value = dut.s_axi_araddr.value = address
    dut.s_axi_wdata.value, dut.s_axi_wstrb.value = 5, 0xF
    seen = {"aw": [], "w": [], "b": [], "ar": [], "r": []}

    async def run(valid: tuple[str, ...], ready: str, late: str = "") -> None:
        for s in seen.values():
            s.clear()
        await RisingEdge(dut.clk)
        for name in valid:
            getattr(dut, f"s_axi_{name}valid").value = int(name != late)
        getattr(dut, f"s_axi_{ready}ready").value = 1
        for _ in range(40):
            await FallingEdge(dut.clk)
            for name, when in seen.items():
                if all(bits_of(getattr(dut, f"s_axi_{name}{x}")) for x in ("valid", "ready")):
                    when.append(bench.cycle)
            await RisingEdge(dut.clk)
            bench.cycle += 1
            if late and bench.cycle % 8 == 0:
                getattr(dut, f"s_axi_{late}valid").value = 1
        for name in valid:
            getattr(dut, f"s_axi_{name}valid").value = 0
        for _ in range(8):
            await RisingEdge(dut.clk)
        getattr(dut, f"s_axi_{ready}ready").value = 0

    out = {}
    await run(("aw", "w"), "b")
    out["write"], out["writes"] = (
        seen["b"][0] - seen["w"][0],
        [b - a for a, b in zip(seen["b"], seen["b"][1:], strict=False)],
    )
    await run(("aw", "w"), "b", late="w")
    out["late_data"] = seen["b"][0] - seen["w"][0]
    await run(("aw", "w"), "b", late="aw")
    out["late_address"] = seen["b"][0] - seen["aw"][0]
    await run(("ar",), "r")
    out["read"], out["reads"] = (
        seen["r"][0] - seen["ar"][0],
        [b - a for a, b in zip(seen["r"], seen["r"][1:], strict=False)],
    )
    out["bytes"] = []
    for word, strobe in ((0, 0xF), (0xFFFFFFFF, 0b0101), (0, 0xF), (0xFFFFFFFF, 0b1010)):
        dut.s_axi_wdata.value, dut.s_axi_wstrb.value = word, strobe  # bytes that are not written hold something
        dut.s_axi_araddr.value = address | strobe & 3  # a read is of a whole word, whoever asks
        dut.s_axi_awprot.value = dut.s_axi_arprot.value = strobe & 7
        await run(("aw", "w"), "b")
        await run(("ar",), "r")
        out["bytes"].append(bits_of(dut.s_axi_rdata))
    result(out)


@cocotb.test(timeout_time=100_000, timeout_unit="ns")  # for a port that never answers
async def by_hand(dut):
    """Writes of some bytes beside others that hold something, numbers one bit off a limit, reads of a host that waits:
    what the master of a library does not do.
    """
    c = config()
    top = address_map(c["map"], params(c["params"]))
    bench, model = Bench(dut, c["seed"]), Model(top)
    rng = bench.rng
    model.values |= {f.get_path(): 0 for f in model.fields if f.is_hw_writable and not f.get_property("intr")}
    for window in model.windows:
        getattr(dut, f"{window.inst_name}_ready").value = 1
    for name in ("awvalid", "wvalid", "bready", "arvalid", "rready", "awprot", "arprot"):
        getattr(dut, f"s_axi_{name}").value = 0
    dut.i.value = dut.busy.value = 0
    await bench.start()
    await RisingEdge(dut.clk)

    async def offered(*channels: str) -> None:
        """Offer beats until each is taken."""
        left = set(channels)
        for name in left:
            getattr(dut, f"s_axi_{name}valid").value = 1
        while left:
            await FallingEdge(dut.clk)
            taken = {name for name in left if bits_of(getattr(dut, f"s_axi_{name}ready"))}
            await RisingEdge(dut.clk)
            for name in taken:
                getattr(dut, f"s_axi_{name}valid").value = 0
            left -= taken

    async def answered(name: str, payload: tuple[str, ...]) -> tuple[int, ...]:
        """Let an answer wait, in which it stays; then take it."""
        seen = []
        for ready in (*[0] * rng.randint(3, 6), 1):
            getattr(dut, f"s_axi_{name}ready").value = ready
            await FallingEdge(dut.clk)
            if bits_of(getattr(dut, f"s_axi_{name}valid")):
                seen.append(tuple(bits_of(getattr(dut, f"s_axi_{x}")) for x in payload))
            await RisingEdge(dut.clk)
        getattr(dut, f"s_axi_{name}ready").value = 0
        assert len(set(seen)) == 1, f"an answer on {name} changes while it waits: {seen}"
        return seen[0]

    async def write(address: int, word: int, strobe: int) -> None:
        dut.s_axi_awaddr.value, dut.s_axi_wdata.value, dut.s_axi_wstrb.value = address, word, strobe
        await offered("aw", "w")
        where = f"write of {word:#x}, strobe {strobe:#x}, to {address:#x}"
        assert await answered("b", ("bresp",)) == (int(model.write(address, word, strobe)),), where
        dut.s_axi_araddr.value = address
        await offered("ar")
        want = tuple(map(int, model.read(address)))
        assert await answered("r", ("rdata", "rresp")) == want, f"read behind a {where}"

    for address in [r.absolute_address + i for r in model.regs for i in range(0, r.size, WORD)]:
        if model.can(address, "writ"):
            for strobe in (0xF, *range(0xF), 0xF, *range(0xF)):
                await write(address, rng.getrandbits(32), strobe)
            for least, most in {m for f, *_ in model.parts(address, "writ") if (m := model.limits.get(f.get_path()))}:
                for legal, bit in product((least, most), range(32)):
                    await write(address, legal, 0xF)
                    await write(address, legal ^ 1 << bit, 0xF)
    result({})


@cocotb.test(timeout_time=100_000, timeout_unit="ns")  # for a port that never answers
async def after_reset(dut):
    """An IP block as it leaves reset: words at `reads`, then words at `writes` after all ones were written there.

    writes : [[address, the greatest value if there is a limit, which is then written behind the ones]]
    resets : address and bit that says whether the reset is still in progress
    """
    c = config()
    bench, regs = Bench(dut, c["seed"]), Registers(dut, None)
    await bench.start()
    address, bit = c["resets"]
    while (await regs.word(address))[0] >> bit & 1:
        pass
    reads = [await regs.word(address) for address in c["reads"]]
    for address, most in c["writes"]:
        answer = AxiResp.OKAY if most is None else AxiResp.SLVERR
        before = await regs.word(address)
        for value in (0xFFFFFFFF, *(() if most is None else (most + 1,))):
            assert await regs.put(address, value) == answer, f"write of {value:#x} to {address:#x}"
        if most is not None:
            assert await regs.word(address) == before, f"a value beyond its limit is stored at {address:#x}"
            assert await regs.put(address, most) == AxiResp.OKAY, f"write to {address:#x}"
    ones = [(await regs.word(address))[0] for address, _ in c["writes"]]
    result({"reads": [(value, int(resp)) for value, resp in reads], "ones": ones})
