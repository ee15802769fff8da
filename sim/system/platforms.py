"""The platforms to simulate: V-Rex systems, which are presets with memories around them, and GPUs as rooflines."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openvrex.golden.function_params import check
from openvrex.golden.text_files import read_text
from openvrex.hdl.design import load
from openvrex.hdl.params import CLOCK, CoreParams, SystemParams, override, preset
from openvrex.sim.system.dram import Dram
from openvrex.sim.system.dram_timings import DDR4, HBM2E, LPDDR5
from openvrex.sim.system.gpu_figures import read
from openvrex.sim.system.measured_gpu import MeasuredGpu, scaled
from openvrex.sim.system.pcie import GEN3_X4, GEN4_X16, Link
from openvrex.sim.system.ssd import Ssd
from openvrex.sim.system.workload import HEADS, WEIGHTS, Decoder

# Milliwatts of a core's units. "ours": measured with `vrex size power`, 14 nm, embedded library, before layout. From
# docs/results/power.json, by `vrex dev record`. The DPE has its power at rest, and what a chunk a cycle adds; the
# others are as busy as a trace keeps them. "paper": V-Rex Table III, one figure each.
POWER_FILE = Path(__file__).with_name("core_power.json")
POWER: dict[str, dict[str, float]] = {
    "ours": json.loads(read_text(POWER_FILE)),
    "paper": {"dpe idle": 0.0, "dpe busy": 2311.39, "vpe": 122.06, "dre": 57.04, "memory": 118.94},
}


@dataclass(frozen=True)
class Vrex:
    """A system of V-Rex cores on one device memory, with a link to a drive, or to a host's memory if `ssd` is None.

    system   : the hardware, a preset or one with parameters overridden; no other size of cores, tables or ports counts
    gap      : seconds of a layer that the model does not explain, fitted to V-Rex's time per token at 1K, 89 and 14 ms
    latency  : cycles from a burst's address to its first beat, as in `vrex simulate layer`; also of the DRE's tables
    kvmu     : a cluster's tokens lie together; else tokens lie in order of arrival and are fetched one by one
    prefetch : each layer fetches for the next one; else it waits for its own fetch
    power    : which figures of `POWER` count
    capacity : bytes of device memory
    home     : where entries lie that have left the ring: behind the "link", or in "device" memory while there is room;
               `home_of` has a preset's own
    network  : a network of the chip, which OpenVRex does not have, joins the cores to memory; else `system.ports` do
    """

    name: str
    system: SystemParams
    dram: Dram
    link: Link
    ssd: Ssd | None
    capacity: int
    gap: float = 0.15e-3
    latency: int = 100
    kvmu: bool = True
    prefetch: bool = True
    power: str = "ours"
    home: str = "link"
    network: bool = False

    @property
    def core(self) -> CoreParams:
        """Parameters of each core."""
        return self.system.core

    @property
    def cores(self) -> int:
        """Number of cores."""
        return self.system.cores

    def held(self, model: Decoder, weights: str = "") -> Decoder:
        """The model as the device memory has it.

        weights : how its layers have weights, one of `workload.WEIGHTS`, and behind a "+" how its vocabulary has them,
            one of `workload.HEADS`. Left out, layers have q4_0 where the cores expand it, and the vocabulary q8_0
            where layers are not bf16.

        Raises `ParamError` for other names, and where the cores do not expand weights.
        """
        name = weights or ("q4_0" if self.core.lxe.weights else "bf16")
        layers, plus, head = name.partition("+")
        check(layers in WEIGHTS, "weights", name, f"must be one of {', '.join(WEIGHTS)}")
        head = head if plus else "q8_0" if WEIGHTS[layers] else "bf16"
        check(head in HEADS, "weights", name, f"must have one of {', '.join(HEADS)} behind the +, for the vocabulary")
        packed = WEIGHTS[layers] or HEADS[head]
        check(not packed or self.core.lxe.weights, "weights", name, "need -p lxe.weights=true, or --preset edge8x")
        return replace(model, packing=WEIGHTS[layers], head_packing=HEADS[head])

    def changed(self, *assignments: str) -> "Vrex":
        """The same platform with "unit.name=value" or "name=value" of its hardware overridden, as by `-p`."""
        return replace(self, system=override(self.system, list(assignments)))

    @property
    def macs(self) -> float:
        """Multiplications per second of all MAC trees."""
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
        """Bytes per second of sequential reads from the device memory, as far as the memory ports carry them."""
        memory = self.dram.t.bandwidth * self.dram.efficiency(4096, random=False)
        ports = self.system.ports * self.core.lxe.bus_bytes * CLOCK
        return memory if self.network else min(memory, ports)


@dataclass(frozen=True)
class Gpu:
    """A GPU as a roofline, calibrated on the measurements of V-Rex VI-B. Figures in pairs are AGX Orin and A100.

    peak      : peak operations per second
    bandwidth : peak of the device memory, bytes per second
    weights   : share of that peak that streaming weights reaches
    launch    : seconds of a layer beyond its bytes if the cache is offloaded: FlexGen's TPOT at 1K (1.9 x 89, 2.8 x
                14 ms) less weights and cache. It is 0 without offloading: AGX's frame at 1K then takes 178 ms, and
                Fig. 15 has 1.5 x 121
    link      : bytes per second: slope of FlexGen's TPOT over the cache, which does not overlap (4.04, 24.6 GB/s)
    attention : operations per second of attention in frames: slope of FlexGen's frame latency less the link's
    dense     : operations per second of products with many rows
    vision    : operations per second of the encoder: FlexGen's frame at 1K (2.2 x 121, 2.6 x 20 ms) less its TPOT
    predict   : seconds of prediction per cached token and layer, by policy
    watts     : power, V-Rex Table I
    capacity  : bytes of device memory
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


EDGE = Vrex("edge8", preset("edge8"), Dram(LPDDR5), GEN3_X4, Ssd(), 32 << 30, home="device")
SERVER = Vrex("server48", preset("server48"), Dram(HBM2E), GEN4_X16, None, 80 << 30, home="device", network=True)

# The paper's machine: the presets of V-Rex as published. Each table has one KV head. The paper has one for all (its HC
# table has 1.67 % of the cache, VI-B), which takes these cores longer: it fetches the union of what the heads select.
# Its cache lies behind the link.
PAPER_EDGE = replace(EDGE, name="V-Rex8", system=preset("vrex8"), home="link")
PAPER_SERVER = replace(SERVER, name="V-Rex48", system=preset("vrex48"), home="link")
KVPU = replace(EDGE, name="edge8 KVPU", kvmu=False, home="link")
HOST = Dram(DDR4)

# Sources of `predict`, figures of the V-Rex paper:
# - A100, InfiniGenP: Fig. 4c. Prediction is 40 % of the latency while fetching 10K of 40K tokens at the link's rate is
#   39 %. That makes 56 ms, or 43 ns a token and layer.
# - A100, InfiniGen: Fig. 4b. Answers are 17 % of a session.
# - AGX, ReSV: Fig. 16. Prediction is 48 % of a latency that is 2.8 times less than FlexGen's.
# - AGX, InfiniGenP: Fig. 14. It is as fast as FlexGen in a session of 20K.
# - ReKV: Fig. 18 shows almost none. We take a tenth of the least of the others.
AGX = Gpu(
    "AGX Orin", 54e12, 204.8e9, launch=1.6e-3, link=4.04e9, attention=0.66e12, dense=27e12, vision=4.6e12,
    predict={"infinigen": 1.07e-6, "infinigenp": 1.07e-6, "rekv": 24e-9, "resv": 242e-9}, watts=40, capacity=32 << 30,
)  # fmt: skip
A100 = Gpu(
    "A100", 312e12, 1935e9, launch=0.775e-3, link=24.6e9, attention=2.3e12, dense=156e12, vision=36e12,
    predict={"infinigen": 15e-9, "infinigenp": 43e-9, "rekv": 1.5e-9, "resv": 17e-9}, watts=300, capacity=80 << 30,
)  # fmt: skip


# One that was measured (docs/results/h100.json, from which `vrex dev record` makes its file), and two scaled from it by
# data sheets: H100 SXM 3,352 GB/s, 989 TFLOPS, PCI Express 5.0, 700 W; A100 80 GB PCIe 1,935 GB/s, PCI Express 4.0; AGX
# Orin 204.8 GB/s; the latter two's operations and watts as in V-Rex's Table I. AGX has one memory for processor and
# GPU, so that its other home is a drive.
H100_FILE = Path(__file__).with_name("h100.json")
H100 = MeasuredGpu("H100", read(H100_FILE))
A100_SCALED = MeasuredGpu(
    "A100, scaled", scaled(H100.figures, "A100", 1935 / 3352, A100.peak / 989e12, 0.5, A100.watts / 700, 80)
)
AGX_SCALED = MeasuredGpu(
    "AGX Orin, scaled",
    scaled(H100.figures, "AGX Orin", 204.8 / 3352, AGX.peak / 989e12, 1.0, AGX.watts / 700, 32),
    drive=Ssd(),
)

Platform = Vrex | Gpu | MeasuredGpu
PLATFORMS: dict[str, Platform] = {
    "edge": EDGE,
    "kvpu": KVPU,
    "server": SERVER,
    "agx": AGX,
    "a100": A100,
    "h100": H100,
    "a100-scaled": A100_SCALED,
    "agx-scaled": AGX_SCALED,
}


HOMES = {"link": "behind the link", "device": "in device memory"}


def home_of(system: SystemParams) -> str:
    """Where entries of a preset lie first: in device memory with coded pages, else behind the link, as V-Rex's."""
    return "device" if system.core.policy == "pages" else "link"


def platform(
    name: str, preset_name: str | None = None, assignments: Sequence[str] = (), home: str | None = None
) -> Platform:
    """The platform `name` of `PLATFORMS`, with the hardware of a preset or design file, or with parameters overridden.

    name : or the path of a platform file, which ends in .json
    home : as of `Vrex`; that of the platform, or of the preset, if None

    Raises `ParamError` for unknown names, and for parameters or another home of a GPU, but for "home_bits=4" of one
    that was measured; `ValueError` as `gpu_figures.read`.
    """
    check(home is None or home in HOMES, "home", home, f"must be one of {', '.join(HOMES)}")
    file = name.endswith(".json")
    check(file or name in PLATFORMS, "platform", name, f"must be one of {', '.join(PLATFORMS)}, or a .json file")
    found = MeasuredGpu(Path(name).stem, read(Path(name))) if file else PLATFORMS[name]
    if not isinstance(found, Vrex):
        check(home != "device", "home", home, f"must be link on {name}: a GPU's cache is resident or behind the link")
        if isinstance(found, MeasuredGpu) and list(assignments) == ["home_bits=4"]:
            found, assignments = replace(found, home_bits=4), ()
        own = " but -p home_bits=4" * isinstance(found, MeasuredGpu)
        why = f"has no preset and no parameters{own}: leave them out"
        check(not preset_name and not assignments, "platform", name, why)
        return found
    if preset_name:
        system = load(preset_name)
        found = replace(found, name=preset_name, system=system, home=home_of(system))
    if home and home != found.home:
        found = replace(found, name=f"{found.name}, home {HOMES[home]}", home=home)
    if assignments:
        found = replace(found.changed(*assignments), name=f"{found.name} -p {' -p '.join(assignments)}")
    return found
