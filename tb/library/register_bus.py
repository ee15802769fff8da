"""Register access in benches: reads and writes an IP block's registers by the names of its SystemRDL description."""

from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp
from systemrdl.node import AddrmapNode, RegNode

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

    async def fill(self, window: str, index: int, value: int, size: int) -> None:
        """Write entry `index` of a window, `size` bytes long."""
        base = self.top.find_by_path(window).absolute_address + index * size
        await self.master.write(base, value.to_bytes(size, "little"))
