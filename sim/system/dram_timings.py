"""Timing, organisation and energy of three DRAM devices, from public sources.

A comment above each device names its standard. Where a standard leaves a value to the vendor, we take it from the
public configurations of DRAMsim3 (umd-memsys/DRAMsim3, configs/) and Ramulator 2 (CMU-SAFARI/ramulator2,
src/dram/impl/).

Energies are accurate to a factor of 1.5 either way. Sources:

- HBM2: O'Connor et al., Fine-Grained DRAM, MICRO 2017: about 0.9 nJ an activation of 1 KB, about 2.9 pJ/bit for moving
  data on the die and over the interface.
- DDR4: IDD0, IDD4R, IDD5B and IDD3N of an 8 Gb x8 part at 1.2 V, from DRAMsim3's configuration.
- LPDDR5: an estimate, because vendors publish no LPDDR5 currents. It scales LPDDR4X's interface: about 4 pJ/bit in
  all, 1.5 nJ for a row of 2 KB.
"""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class DramTiming:
    """A DRAM device of equal channels. A channel is a data bus with its own command bus, and one rank of bank groups.

    Times are in nanoseconds, `cl` and `cwl` in clocks. `beat` is the time of an access on the data bus, which is also
    the least distance between accesses to different bank groups (tCCD_S). Accesses to the same group keep tCCD_L.
    """

    name: str
    channels: int
    tck: float  # tCK, clock of the command bus
    atom: int  # bytes of an access
    beat: float  # tCCD_S = time of an access on the data bus
    ccd_l: float  # tCCD_L, accesses of one bank group
    groups: int
    banks: int  # banks in a group
    row: int  # bytes of a row in a channel
    rows: int
    cl: int  # CL, read latency
    cwl: int  # CWL, write latency
    rcd: float  # tRCD, activation to column command
    rp: float  # tRP, precharge to activation
    ras: float  # tRAS, activation to precharge
    rrd_s: float  # tRRD_S, activations of different bank groups
    rrd_l: float  # tRRD_L, activations of one bank group
    faw: float  # tFAW, window of four activations
    rtp: float  # tRTP, read to precharge
    wr: float  # tWR, last write beat to precharge
    wtr_s: float  # tWTR_S, last write beat to a read of another bank group
    wtr_l: float  # tWTR_L, the same of one bank group
    refi: float  # tREFI, mean distance of refreshes
    rfc: float  # tRFC, refresh of all banks
    rfc_bank: float  # refresh of one bank; 0 if the standard has none
    split_bus: bool  # row commands and column commands have a bus each
    act_slots: int  # clocks of the command bus that an activation takes
    act_pj: float  # energy of an activation and its precharge
    bit_pj: float  # energy of a bit read or written, interface included
    ref_pj: float  # energy of an all-bank refresh
    idle_mw: float  # background power of a channel

    def clocks(self, ns: float) -> int:
        """Clocks that cover `ns`. An excess of up to 2.5 % of a clock is ignored, as JEDEC rounds."""
        return max(0, ceil(ns / self.tck - 0.025))

    @property
    def bandwidth(self) -> float:
        """Peak bytes per second of all channels."""
        return self.channels * self.atom / self.beat * 1e9

    @property
    def read_latency(self) -> float:
        """Nanoseconds for one read access to a closed bank of an idle channel: tRCD + CL + burst."""
        return (self.clocks(self.rcd) + self.cl + self.clocks(self.beat)) * self.tck

    @property
    def turn_rw(self) -> int:
        """Clocks from a read to a write, with two clocks between their data on the bus."""
        return self.cl + self.clocks(self.beat) + 2 - self.cwl


# JEDEC JESD209-5B at 6,400 Mb/s, 16 Gb, 16 banks in groups, CK 800 MHz, WCK 3,200 MHz, BL16: an access takes 2 clocks.
# RL 17 and WL 9 (set 0, set A). tRFCab 280 ns, tRFCpb 140 ns, tREFI 3,906 ns. 16 channels of 16 bits are 256 bits.
LPDDR5 = DramTiming(
    name="LPDDR5-6400 x256", channels=16, tck=1.25, atom=32, beat=2.5, ccd_l=5.0, groups=4, banks=4,
    row=2048, rows=65536, cl=17, cwl=9, rcd=18, rp=18, ras=42, rrd_s=5, rrd_l=5, faw=20, rtp=7.5, wr=34,
    wtr_s=6.25, wtr_l=12, refi=3906, rfc=280, rfc_bank=140, split_bus=False, act_slots=2,
    act_pj=1500, bit_pj=4.0, ref_pj=90000, idle_mw=12,
)  # fmt: skip

# JEDEC JESD235C/D (HBM2E), pseudo channels of 64 bits, BL4, 8 Gb each; 5 stacks of 16 pseudo channels (A100 80 GB) at
# 3,023 Mb/s. DRAMsim3 HBM2_8Gb_x128: CL 14 ns, tRCD 14, tRP 14, tRAS 34, tRRD 4/6, tWTR 6/8, tWR 16, tRTP 4/6; tFAW is
# 4 tRRD_S; tRFC 350 ns for 8 Gb, tRFCSB 160 ns (Ramulator 2).
HBM2E = DramTiming(
    name="HBM2e 5120 bit", channels=80, tck=1 / 1.5117, atom=32, beat=2 / 1.5117, ccd_l=4 / 1.5117, groups=4, banks=4,
    row=1024, rows=65536, cl=22, cwl=7, rcd=14, rp=14, ras=34, rrd_s=4, rrd_l=6, faw=16, rtp=5, wr=16,
    wtr_s=6, wtr_l=8, refi=3900, rfc=350, rfc_bank=160, split_bus=True, act_slots=2,
    act_pj=909, bit_pj=2.9, ref_pj=45000, idle_mw=25,
)  # fmt: skip

# JEDEC JESD79-4C, DDR4-3200AA 22-22-22, 8 Gb x8, 64 bits a channel; tRFC1 350 ns, tREFI 7.8 us; 8 channels of one rank.
DDR4 = DramTiming(
    name="DDR4-3200 x8", channels=8, tck=0.625, atom=64, beat=2.5, ccd_l=5.0, groups=4, banks=4,
    row=8192, rows=65536, cl=22, cwl=16, rcd=13.75, rp=13.75, ras=32, rrd_s=2.5, rrd_l=4.9, faw=21, rtp=7.5, wr=15,
    wtr_s=2.5, wtr_l=7.5, refi=7800, rfc=350, rfc_bank=0, split_bus=False, act_slots=1,
    act_pj=4300, bit_pj=5.8, ref_pj=640000, idle_mw=500,
)  # fmt: skip

DEVICES = {"lpddr5": LPDDR5, "hbm2e": HBM2E, "ddr4": DDR4}
