"""Platforms: V-Rex of N cores, and GPUs as calibrated rooflines."""

from dataclasses import dataclass, field

from hdl.params import CoreParams, preset
from sim.system.dram import Dram
from sim.system.dram_timings import DDR4, HBM2E, LPDDR5
from sim.system.pcie import GEN3_X4, GEN4_X16, Link
from sim.system.ssd import Ssd

CLOCK = 800e6  # V-Rex VI-A

# Milliwatts of a core's units. Ours: `vrex power` (docs/power.md: clock, and nets, cells and memories at full use; 14
# nm, embedded library, before layout). The paper's: Table III, one figure each.
POWER = {
    "ours": {"dpe idle": 359.0, "dpe busy": 1773.0, "vpe": 96.0, "dre": 10.4, "memory": 0.0},
    "paper": {"dpe idle": 0.0, "dpe busy": 2311.39, "vpe": 122.06, "dre": 57.04, "memory": 118.94},
}


@dataclass(frozen=True)
class Vrex:
    """`cores` V-Rex cores on one device memory, and a link to a drive (`ssd`) or to a host's memory.

    gap      : seconds of a layer that nothing else here explains. Fitted to V-Rex's time per token at 1K, 89 and 14 ms
    latency  : cycles from a burst's address to its first beat, as `vrex simulate layer` has it
    ahead    : layers between a prediction and the layer that it is for (V-Rex IV-A: the next one)
    kvmu     : clusters lie together; else tokens lie in their order and are fetched one by one
    capacity : bytes of device memory
    """

    name: str
    cores: int
    dram: Dram
    link: Link
    ssd: Ssd | None
    capacity: int
    core: CoreParams = field(default_factory=lambda: preset("core").core)
    gap: float = 0.15e-3
    latency: int = 100
    ahead: int = 1
    kvmu: bool = True
    power: str = "ours"

    @property
    def macs(self) -> float:
        """Multiplications per second of all trees."""
        return self.cores * self.core.dpe.n_h * self.core.dpe.n_w * CLOCK

    @property
    def flops(self) -> float:
        """Peak of DPE and VPE, operations per second (V-Rex Table I: 53.3 and 319.5 T)."""
        return 2 * (self.macs + self.lanes)

    @property
    def lanes(self) -> float:
        """Words of the vector engines per second."""
        return self.cores * self.core.vpe.n_h * self.core.vpe.n_w * CLOCK

    @property
    def bandwidth(self) -> float:
        """Bytes per second of streams from the device memory."""
        return self.dram.t.bandwidth * self.dram.efficiency(4096, random=False)


@dataclass(frozen=True)
class Gpu:
    """A GPU as a roofline, calibrated on V-Rex's own measurements of it (VI-B); each constant says how.

    bandwidth, weights : peak of the device memory, share of it that streaming weights reaches
    launch    : seconds of a layer beside its bytes, where the cache is offloaded. TPOT of FlexGen at 1K (1.9 x 89,
                2.8 x 14 ms) less weights and cache. Without offloading there is none: AGX's frame at 1K is then 178 ms,
                Fig. 15 has 1.5 x 121
    link      : bytes per second, the slope of FlexGen's TPOT over the cache, not overlapped (facts: 4.04, 24.6 GB/s)
    attention : operations per second of attention in frames. Slope of FlexGen's frame latency less the link's
    dense     : operations per second of products with many rows
    vision    : operations per second of the encoder. FlexGen's frame at 1K (2.2 x 121, 2.6 x 20 ms) less its TPOT
    predict   : seconds of prediction for a cached token and layer, by policy
    watts     : V-Rex Table I
    """

    name: str
    peak: float
    bandwidth: float
    launch: float
    link: float
    attention: float
    dense: float
    vision: float
    predict: dict[str, float]
    watts: float
    capacity: int
    weights: float = 0.87


EDGE = Vrex("V-Rex8", 8, Dram(LPDDR5), GEN3_X4, Ssd(), 32 << 30)
SERVER = Vrex("V-Rex48", 48, Dram(HBM2E), GEN4_X16, None, 80 << 30)
HOST = Dram(DDR4)

# Prediction. A100, InfiniGenP: Fig. 4c, 40 % of the latency while 10K of 40K tokens come at the link's rate are 39 %:
# 56 ms, 43 ns a token and layer; InfiniGen: Fig. 4b, 17 % of a session are answers. AGX, ReSV: Fig. 16, 48 % of what is
# 2.8 times less than FlexGen; InfiniGenP: as fast as FlexGen in a session of 20K (Fig. 14). Fig. 18 puts ReKV's at
# nearly nothing: a tenth of the least of the others.
AGX = Gpu(
    "AGX Orin", 54e12, 204.8e9, launch=1.6e-3, link=4.04e9, attention=0.66e12, dense=27e12, vision=4.6e12,
    predict={"infinigen": 1.07e-6, "infinigenp": 1.07e-6, "rekv": 24e-9, "resv": 242e-9}, watts=40, capacity=32 << 30,
)  # fmt: skip
A100 = Gpu(
    "A100", 312e12, 1935e9, launch=0.775e-3, link=24.6e9, attention=2.3e12, dense=156e12, vision=36e12,
    predict={"infinigen": 15e-9, "infinigenp": 43e-9, "rekv": 1.5e-9, "resv": 17e-9}, watts=300, capacity=80 << 30,
)  # fmt: skip
