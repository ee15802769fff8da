"""Register access in benches: reads and writes an IP block's registers by the names of its SystemRDL description."""

from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp
from systemrdl.node import AddrmapNode, RegNode

from openvrex.golden.program.isa import ADDR_BITS
from openvrex.golden.program.regions import PAGE_BITS, Allow

_PAGES = ADDR_BITS - PAGE_BITS  # bits of a page's number
WORD = 4  # bytes of an access


class Registers:
    """Registers of `top` behind the AXI4-Lite port s_axi of `dut`. A response other than OKAY fails."""

    def __init__(self, dut, top: AddrmapNode):
        self.top = top
        self.master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)

    async def word(self, address: int) -> tuple[int, AxiResp]:
        """Read a word; its value and the response."""
        got = await self.master.read(address, WORD)
        return int.from_bytes(got.data, "little"), got.resp

    async def put(self, address: int, value: int) -> AxiResp:
        """Write a word; the response."""
        return (await self.master.write(address, value.to_bytes(WORD, "little"))).resp

    async def read(self, path: str) -> int:
        """Read a register, or one of its fields: "status.code"."""
        node = self.top.find_by_path(path)
        field = None if isinstance(node, RegNode) else node
        reg, value = node if field is None else node.parent, 0
        for i in range(0, reg.size, WORD):
            part, resp = await self.word(reg.absolute_address + i)
            assert resp == AxiResp.OKAY, f"{path}: {resp}"
            value |= part << 8 * i
        return value if field is None else value >> field.low & (1 << field.width) - 1

    async def write(self, path: str, **fields: int) -> None:
        """Write a register; fields that are not named become zero. `value` is that of a register as one number."""
        reg = self.top.find_by_path(path)
        value = fields.pop("value", 0) + sum(v << reg.get_child_by_name(name).low for name, v in fields.items())
        for i in range(0, reg.size, WORD):
            resp = await self.put(reg.absolute_address + i, value >> 8 * i & 0xFFFFFFFF)
            assert resp == AxiResp.OKAY, f"{path}: {resp}"

    async def settings(self, values: dict[str, int]) -> None:
        """Write registers by name; `regions` as a core's port takes them."""
        for name, value in values.items():
            if name == "regions":
                await self.regions(value)
            else:
                await self.write(name, value=value)

    async def regions(self, packed: int) -> None:
        """Write the regions of a core, as its port takes them."""
        for k in range(self.top.get_child_by_name("region").array_dimensions[0]):
            for name, bits, zeros in (
                ("first", _PAGES, PAGE_BITS),
                ("last", _PAGES, PAGE_BITS),
                ("allow", len(Allow), 0),
            ):
                await self.write(f"region[{k}].{name}", value=(packed & (1 << bits) - 1) << zeros)
                packed >>= bits

    async def fill(self, window: str, index: int, value: int, size: int) -> None:
        """Write entry `index` of a window, `size` bytes long."""
        base = self.top.find_by_path(window).absolute_address + index * size
        await self.master.write(base, value.to_bytes(size, "little"))
