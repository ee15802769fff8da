"""Memories of the simulator: closed forms, data sheets, every timing constraint of every command, and conservation."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.retrieval.kvmap import Burst
from openvrex.sim.system.dram import Channel, Dram
from openvrex.sim.system.dram_timings import DDR4, DEVICES, HBM2E, LPDDR5
from openvrex.sim.system.memory_curves import size
from openvrex.sim.system.pcie import GEN3_X4, LINKS, Link, _windowed, transfers
from openvrex.sim.system.served import pieces
from openvrex.sim.system.ssd import Ssd

SMALL = {name: replace(t, channels=2) for name, t in DEVICES.items()}
lists = st.lists(st.tuples(st.integers(0, 1 << 22), st.integers(1, 6000)), min_size=1, max_size=25)
quick = settings(max_examples=15)


# DRAM


@pytest.mark.parametrize(("device", "gigabytes"), [(LPDDR5, 204.8), (HBM2E, 1935), (DDR4, 204.8)])
def test_peak_bandwidth_is_the_data_sheet_s(device, gigabytes):
    assert device.bandwidth / 1e9 == pytest.approx(gigabytes, rel=1e-3)


@pytest.mark.parametrize("t", DEVICES.values(), ids=DEVICES)
def test_a_single_read_takes_activation_column_access_and_burst(t):
    served = Dram(t).run([0], [t.atom])
    assert served.seconds == pytest.approx(t.read_latency * 1e-9)
    assert served.counts == {"reads": 1, "writes": 0, "activations": 1, "refreshes": 0}


@pytest.mark.parametrize("t", SMALL.values(), ids=SMALL)
def test_a_stream_of_rows_gets_all_that_refresh_leaves(t):
    for refresh in ("all", "none"):
        d = Dram(t, refresh=refresh)
        assert d.efficiency(4096, random=False) == pytest.approx(d.stream_efficiency, rel=0.02)
    n = int(2.5 * t.refi / t.beat) * t.channels * t.atom // 4096
    served = Dram(t).run(np.arange(n) * 4096, np.full(n, 4096))
    assert served.counts["refreshes"] == 2 * t.channels
    assert served.utilisation == pytest.approx(served.bandwidth / t.bandwidth)


@pytest.mark.parametrize("t", [LPDDR5, HBM2E], ids=lambda t: t.name)
def test_refresh_bank_by_bank_costs_less_than_all_banks_at_once(t):
    t = replace(t, channels=1)
    least = 1 - t.rfc_bank / t.refi
    assert least - 0.01 <= Dram(t, refresh="bank").efficiency(4096, random=False) <= 1.0
    assert Dram(t, refresh="all").stream_efficiency < least


def check_commands(t, commands):
    """What the standard demands between commands, looked up in the list of what was issued."""
    c, groups = t.clocks, t.groups
    beat = c(t.beat)
    mine = {b: {} for b in range(groups * t.banks)}  # clock of a bank's last command of each kind
    opened = dict.fromkeys(mine)  # row
    acts, accesses, buses = [], [], {}
    for at, what, bank, row in sorted(commands):

        def after(kind, clocks, at=at, bank=bank):
            assert at - mine[bank].get(kind, -1 << 40) >= clocks, kind

        if what == "REF":
            for b in mine if bank < 0 else (bank,):
                mine[b]["REF"], opened[b] = at, None
            continue
        bus = buses.setdefault(t.split_bus and what in ("RD", "WR"), {})
        assert at >= bus.get("free", 0), "two commands at a time"
        bus["free"] = at + (t.act_slots if what == "ACT" else 1)
        if what == "ACT":
            assert opened[bank] is None
            after("PRE", c(t.rp))
            after("ACT", c(t.ras) + c(t.rp))
            after("REF", c(t.rfc if any(k[1:3] == ("REF", -1) for k in commands) else t.rfc_bank))
            assert not acts or at - acts[-1][0] >= c(t.rrd_s), "tRRD_S"
            assert all(at - o >= c(t.rrd_l) for o, b in acts[-9:] if b % groups == bank % groups), "tRRD_L"
            assert len(acts) < 4 or at - acts[-4][0] >= c(t.faw), "tFAW"
            acts.append((at, bank))
            opened[bank] = row
        elif what == "PRE":
            after("ACT", c(t.ras))
            after("RD", c(t.rtp))
            after("WR", t.cwl + beat + c(t.wr))
            opened[bank] = None
        else:
            assert opened[bank] == row, "column access to another row"
            after("ACT", c(t.rcd))
            for o, kind, b in accesses[-30:]:
                same = b % groups == bank % groups
                if kind == what:
                    assert at - o >= (c(t.ccd_l) if same else beat), "tCCD"
                elif what == "WR":
                    assert at + t.cwl >= o + t.cl + beat + 2, "read to write"
                else:
                    assert at - o >= t.cwl + beat + c(t.wtr_l if same else t.wtr_s), "tWTR"
            accesses.append((at, what, bank))
        mine[bank][what] = at


@pytest.mark.parametrize("refresh", ["all", "bank"])
@given(seed=st.integers(0, 1 << 16), rows=st.sampled_from([1, 3, 40]), queue=st.sampled_from([1, 4, 64]))
@settings(max_examples=6)
def test_every_command_keeps_every_constraint(refresh, seed, rows, queue):
    rng = np.random.default_rng(seed)
    for t in (LPDDR5, HBM2E, DDR4):
        if refresh == "bank" and not t.rfc_bank:
            continue
        # Refresh often, so that a short run has many.
        t = replace(t, refi=900.0 if refresh == "all" else 6000.0)
        n = 300
        channel = Channel(t, queue, refresh)
        arrival = np.sort(rng.integers(0, 4 * n, n)).tolist()
        bank, row = rng.integers(0, 16, n).tolist(), rng.integers(0, rows, n).tolist()
        write = (rng.random(n) < rng.choice([0.0, 0.3])).tolist()
        entered, ended = channel.run(arrival, bank, row, write)
        check_commands(t, channel.commands)
        served = sorted((b, r, w) for _, w, b, r in channel.commands if w in ("RD", "WR"))
        assert served == sorted((b, r, "WR" if w else "RD") for b, r, w in zip(bank, row, write, strict=True))
        assert all(a <= e < f for a, e, f in zip(arrival, entered, ended, strict=True))


def test_a_broken_constraint_is_found():
    """The checker itself: commands of a device that is faster than the one they are checked against."""
    rng = np.random.default_rng(1)
    args = (
        [0] * 200,
        rng.integers(0, 16, 200).tolist(),
        rng.integers(0, 9, 200).tolist(),
        (rng.random(200) < 0.3).tolist(),
    )
    for t, name, value in (
        (LPDDR5, "rcd", 10),
        (LPDDR5, "rp", 9),
        (LPDDR5, "ras", 20),
        (DDR4, "faw", 5),
        (LPDDR5, "ccd_l", 2.5),
        (LPDDR5, "wtr_l", 1),
        (LPDDR5, "wr", 9),
        (HBM2E, "rrd_s", 1),
        (HBM2E, "rrd_l", 1),
    ):
        channel = Channel(replace(t, **{name: value}), 64, "none")
        channel.run(*args)
        with pytest.raises(AssertionError):
            check_commands(t, channel.commands)


@given(bursts=lists, write=st.booleans())
@quick
def test_dram_serves_every_byte_once(bursts, write):
    addr, length = zip(*bursts, strict=True)
    served = Dram(SMALL["lpddr5"]).run(addr, length, write)
    atoms = sum((a + n - 1) // 32 - a // 32 + 1 for a, n in bursts)
    assert served.counts["writes" if write else "reads"] == atoms
    assert served.bytes.sum() == sum(length)
    assert (served.end > served.start).all()
    again = Dram(SMALL["lpddr5"]).run(addr, length, write)
    assert (again.end == served.end).all()
    assert again.joules == served.joules


def test_addresses_are_places_and_places_are_addresses():
    """No two accesses share a place, and a stream visits channels and bank groups in turn."""
    d = Dram(SMALL["ddr4"])
    t = d.t
    step = 256
    addr = np.arange(0, t.channels * t.groups * t.banks * t.row * 2, step)
    channel, bank, row = d.place(addr)
    assert len({*zip(channel.tolist(), bank.tolist(), row.tolist(), strict=True)}) == len(addr) * step // t.row
    assert (channel[:4] == [0, 1, 0, 1]).all()
    assert len(set(bank[: t.channels * t.groups].tolist())) == t.groups


@pytest.mark.parametrize("name", DEVICES)
def test_more_bandwidth_is_never_slower(name):
    t = SMALL[name]
    rng = np.random.default_rng(3)
    for piece in (64, 512, 4096):
        n = 32768 // piece
        addr = rng.integers(0, 1 << 14, n) * piece
        times = [Dram(replace(t, channels=c)).run(addr, np.full(n, piece)).seconds for c in (1, 2, 4)]
        assert times == sorted(times, reverse=True)


def test_random_chunks_cost_activations():
    """64 B at random: at most what tRRD, tFAW and tRC of all banks allow; larger chunks are never less efficient by
    much."""
    for t in DEVICES.values():
        d = Dram(replace(t, refi=900.0), refresh="none")  # so that a short run is measured
        shares = [d.efficiency(n) for n in (64, 256, 4096)]
        acts = min(4 / t.faw, 1 / t.rrd_s, t.groups * t.banks / (t.ras + t.rp))  # a nanosecond
        assert shares[0] <= 64 * acts / (t.atom / t.beat) + 1e-9
        assert shares[0] < shares[1] <= shares[2] + 0.02


@pytest.mark.parametrize("t", DEVICES.values(), ids=DEVICES)
def test_turning_the_bus_costs_time(t):
    d = Dram(replace(t, channels=1), refresh="none")
    n = 300
    rng = np.random.default_rng(2)
    pure, half, writes = (
        d.run(np.arange(n) * 256, np.full(n, 256), rng.random(n) < w).utilisation for w in (0, 0.5, 1)
    )
    assert 0.6 < half < 0.9 < min(pure, writes)
    # One access at a time: nothing is batched, and a write and a read take at least both turns.
    one = replace(d, queue=1).run(np.arange(100) * 256, np.full(100, t.atom), np.arange(100) % 2 == 1)
    turns = t.turn_rw + t.cwl + t.clocks(t.beat) + t.clocks(t.wtr_s)
    assert one.seconds >= 49 * turns * t.tck * 1e-9


# PCI Express


@pytest.mark.parametrize(("name", "gigabytes"), [("pcie3x4", 3.938), ("pcie4x16", 31.51), ("pcie5x16", 63.02)])
def test_link_rate(name, gigabytes):
    assert LINKS[name].raw / 1e9 == pytest.approx(gigabytes * 370 / 371, rel=1e-3)


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("piece", [64, 256, 512, 4096, 65536])
@pytest.mark.parametrize("combine", [True, False])
def test_bandwidth_of_many_transfers_is_the_closed_form(read, piece, combine):
    link = replace(GEN3_X4, combine=combine, ack=1 << 20)
    served = (link.read if read else link.write)(*transfers(1 << 22, piece))
    assert served.bandwidth == pytest.approx(link.bandwidth(piece, read), rel=0.01)


def test_packet_overhead_is_that_of_intel_s_example():
    """Intel AN 690: 512 bytes as two completions of 256 with 20 bytes each, 92 %."""
    assert GEN3_X4.efficiency(512) == pytest.approx(512 / (512 + 40))


def test_a_single_read_takes_the_closed_form():
    for n in (64, 256, 512):
        assert GEN3_X4.read([0], [n]).seconds == pytest.approx(GEN3_X4.read_latency(n), rel=0.01)


def test_few_tags_bound_the_bandwidth():
    link = replace(GEN3_X4, tags=2)
    assert link.read(*transfers(1 << 20, 4096)).bandwidth == pytest.approx(link.window, rel=0.35)
    assert link.read(*transfers(1 << 20, 4096)).bandwidth <= link.window
    # Credits for one packet: it leaves when the receiver has passed on the one before.
    slow = replace(GEN3_X4, credits=256)
    assert slow.write(*transfers(1 << 16, 256)).bandwidth == pytest.approx(256 / (280 / slow.raw + 300e-9), rel=0.02)


@given(bursts=lists, mps=st.sampled_from([128, 256, 512]), combine=st.booleans(), tags=st.integers(1, 9))
@quick
def test_link_carries_every_byte_once(bursts, mps, combine, tags):
    link = Link(8.0, 4, mps=mps, combine=combine, tags=tags)
    addr, length = zip(*bursts, strict=True)
    served = link.read(addr, length)
    asked = [(a, n) for a, m in bursts for a, n in split(a, m, 512)]
    back = sum(len(split(a, n, mps if combine else 64)) for a, n in asked)
    assert served.counts == {"requests": len(asked), "completions": back}
    assert (served.end > served.start).all()
    assert (np.diff(served.end) >= 0).all()
    wide = replace(link, lanes=8).read(addr, length)
    assert wide.seconds <= served.seconds
    assert served.busy * link.raw >= sum(length)
    assert link.write(addr, length).counts["packets"] == sum(len(split(a, n, mps)) for a, n in bursts)


def split(addr, length, unit):
    """Pieces of a request at multiples of `unit`, one at a time."""
    out = []
    while length:
        n = min(length, unit - addr % unit)
        out.append((addr, n))
        addr, length = addr + n, length - n
    return out


@given(bursts=lists, unit=st.sampled_from([32, 64, 512, 4096]))
@quick
def test_pieces(bursts, unit):
    owner, begin, length = pieces(*(np.array(x) for x in zip(*bursts, strict=True)), unit)
    expected = [(i, a, n) for i, (x, m) in enumerate(bursts) for a, n in split(x, m, unit)]
    assert list(zip(owner.tolist(), begin.tolist(), length.tolist(), strict=True)) == expected


@given(
    times=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=30),
    trip=st.floats(0, 5),
    window=st.integers(1, 12),
    again=st.floats(0, 2),
)
@quick
def test_windows_are_the_recurrence(times, trip, window, again):
    ask, take = (np.array(x) for x in zip(*times, strict=True))
    issued, done = _windowed(ask, take, trip, window, again)
    i_last = d_last = 0.0
    for i, (a, k) in enumerate(times):
        start = max(i_last, done[i - window] + again if i >= window else 0.0)
        i_last = start + a
        d_last = max(d_last, i_last + trip) + k
        assert issued[i] == pytest.approx(start)
        assert done[i] == pytest.approx(d_last)


# SSD


def test_ssd_is_the_data_sheet_s():
    """Kioxia BG6, 2 TB, PCIe 4.0 x4: 6,000 MB/s of sequential reads, 850,000 random reads of 4 KB a second."""
    drive = Ssd(LINKS["pcie4x4"])
    assert drive.read(*transfers(1 << 26, 131072), 32).bandwidth / 1e9 == pytest.approx(6.0, rel=0.06)
    addr = np.random.default_rng(0).integers(0, 1 << 28, 8000) * 4096
    assert drive.read(addr, np.full(8000, 4096), 256).bandwidth / 4096 == pytest.approx(850e3, rel=0.06)


def test_one_read_takes_the_closed_form_and_depth_hides_it():
    drive = Ssd()
    assert drive.read([0], [4096]).seconds == pytest.approx(drive.read_latency(4096), rel=1e-6)
    addr = np.random.default_rng(0).integers(0, 1 << 28, 600) * 4096
    rates = [drive.read(addr, np.full(600, 4096), depth).bandwidth for depth in (1, 4, 16, 64)]
    assert rates[0] == pytest.approx(4096 / drive.read_latency(4096), rel=1e-3)
    assert rates == sorted(rates)
    assert rates[1] == pytest.approx(4 * rates[0], rel=0.1)


def test_long_reads_reach_the_least_of_flash_channels_and_link():
    for drive in (
        Ssd(),
        Ssd(LINKS["pcie4x16"]),
        replace(Ssd(LINKS["pcie4x16"]), sense=400e-6),
        replace(Ssd(), bus=0.4e9),
    ):
        served = drive.read(*transfers(1 << 26, 1 << 20), 64)
        assert served.bandwidth == pytest.approx(drive.peak(), rel=0.05)
        assert served.bandwidth <= drive.peak()


@given(bursts=lists, depth=st.sampled_from([1, 3, 64]))
@quick
def test_ssd_serves_every_byte_once(bursts, depth):
    drive = Ssd()
    addr, length = zip(*bursts, strict=True)
    served = drive.read(addr, length, depth)
    assert served.counts["pages"] == sum(len(split(a, n, drive.page)) for a, n in bursts)
    assert served.bytes.sum() == sum(length)
    assert (served.end - served.start >= drive.sense).all()
    active = ((served.start[:, None] >= served.start) & (served.start[:, None] < served.end)).sum(1)
    assert active.max() <= depth
    assert drive.read(addr, length, depth).end.tolist() == served.end.tolist()
    faster = replace(drive, sense=drive.sense / 2, bus=2 * drive.bus, link=replace(drive.link, lanes=8))
    assert faster.read(addr, length, depth).seconds <= served.seconds


# All


def test_bursts_of_the_kvmu_are_taken_as_they_are():
    bursts = [Burst(0, 4096), Burst(8192, 512)]
    addr, length, *_ = zip(*bursts, strict=True)
    for model in (Dram(LPDDR5).run, GEN3_X4.read, GEN3_X4.write, Ssd().read):
        served = model(addr, length)
        assert served.bytes.tolist() == [4096, 512]
        assert served.latency(50) > 0
        assert served.joules > 0


def test_nothing_takes_no_time():
    for model in (Dram(LPDDR5).run, GEN3_X4.read, GEN3_X4.write, Ssd().read):
        assert (model([], []).seconds, model([], []).bandwidth, model([], []).latency(99)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dram(LPDDR5, refresh="often"), "refresh='often': must be one of all, bank, none"),
        (lambda: Dram(DDR4, refresh="bank"), "refresh='bank': DDR4"),
        (lambda: Dram(DDR4, queue=0), "queue=0: must be at least 1"),
        (lambda: Dram(DDR4).run([0, 1], [4]), "must be lists of the same length"),
        (lambda: Dram(DDR4).run([0], [0]), "a request has at least 1 byte"),
        (lambda: Link(8.0, 4, mps=100), "mps=100: must be a power of two, 64 to 4096"),
        (lambda: Link(8.0, 4, tags=0), "tags=0: must be at least 1"),
        (lambda: Link(8.0, 4, credits=64), "credits=64: must hold at least one packet of mps=256 bytes"),
        (lambda: Ssd(dies=0), "dies=0: must be at least 1"),
        (lambda: Ssd().read([0], [1], 0), "depth=0: must be at least 1"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match="=") as e:
        make()
    assert message in str(e.value)


def test_sizes_as_people_write_them():
    assert [size(n) for n in (64, 4096, 1 << 20)] == ["64 B", "4 KB", "1 MB"]
