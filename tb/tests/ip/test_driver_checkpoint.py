"""The driver's checkpoints: equal to golden's byte for byte, on memory as the core leaves it; errors; wrong drivers."""

import ctypes
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
from systemrdl.node import AddrmapNode

from openvrex.golden.program.isa import Status
from openvrex.golden.retrieval.checkpoint import HEADER, restore, save
from openvrex.golden.retrieval.table_layout import Item, TableLayout
from openvrex.hdl.params import CoreParams, override, preset
from openvrex.hdl.shells.register_block import address_map
from openvrex.ip.address_map import header
from openvrex.ip.software import HERE
from openvrex.ip.table_header import table_header
from openvrex.tb.checks.checkpoint_checks import ENTRY, N_CTX, PACKED, SIZES, Engine, engines, hashes

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-ffreestanding", "-shared", "-fPIC")
NAMES = ("OK", "NO_DEVICE", "VERSION", "PARAMETERS", "RANGE", "BUSY", "FAULT", "TIMEOUT")
NAMES += ("FULL", "USED", "CHECKPOINT", "MEMORY", "FILE")
PROTECT = ("none", "parity", "secded")

_READ = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)
_WRITE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
_MEMORY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t)
_FILE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@cache
def params(protect: str, packed: bool = False, more: tuple[str, ...] = ()) -> CoreParams:
    """A core with the sizes of `tb.checks.checkpoint_checks`."""
    own = [f"{n}={SIZES[n]}" for n in ("n_hp", "clusters", "recent", "count_bits", "blocks", "block_slots")]
    own += [f"n_ctx={N_CTX}", f"entry_bytes={ENTRY}", f"table.protect={protect}", "table.burst_bytes=32"]
    own += [f"{name}={value}" for name, value in PACKED.items()] * packed
    return override(preset("tiny"), [*own, *more]).core


def layout(protect: str = "none", more: tuple[str, ...] = ()) -> TableLayout:
    return params(protect, more=more).dre.layout()


def build(
    folder: Path, protect: str, old: str = "", new: str = "", packed: bool = False, more: tuple[str, ...] = ()
) -> tuple[ctypes.CDLL, AddrmapNode]:
    """The driver for a core, with `new` in place of `old`, and the core's registers."""
    p = params(protect, packed, more)
    top = address_map("core_ip", p)
    header(top, folder / "core_ip.h")
    table_header(p.dre.layout(), "core_ip", folder / "core_ip_tables.h", p.dre.kvmu.kv4_group)
    text = (HERE / "driver" / "openvrex_checkpoint.c").read_text()
    assert old in text, old
    (folder / "checkpoint.c").write_text(text.replace(old, new, 1))
    sources = ["checkpoint.c", HERE / "driver" / "openvrex_block.c"]
    command = ["gcc", *(() if old else STRICT), "-shared", "-fPIC", "-I.", "-I", HERE / "driver", "-o", "driver.so"]
    built = subprocess.run([*command, *sources], cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    symbols = subprocess.run(["nm", "-u", "driver.so"], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert not [s for s in symbols.split() if len(s) > 1 and not s.startswith("_")]  # no library
    return ctypes.CDLL(str(folder / "driver.so")), top


@pytest.fixture(scope="module")
def drivers(tmp_path_factory) -> dict[str, tuple[ctypes.CDLL, AddrmapNode]]:
    return {protect: build(tmp_path_factory.mktemp(protect), protect) for protect in PROTECT}


class Device:
    """An idle core with the memory of an engine, and the driver on both."""

    def __init__(self, driver: tuple[ctypes.CDLL, AddrmapNode], engine: Engine):
        self.library, top = driver
        self.data = bytearray(engine.memory.tobytes())
        self.at = {n: top.find_by_path(n).absolute_address for n in ("status", "control", "blocks", "contexts")}
        bases = {n: getattr(engine, n) for n in ("table_base", "device_base", "home_base")}
        self.words = {self.at["status"]: int(Status.DONE), self.at["blocks"]: engine.kv.blocks}
        self.words[self.at["contexts"]] = engine.kv.n_ctx
        for name, base in bases.items():
            at = top.find_by_path(name).absolute_address
            self.words |= {at: base & 0xFFFFFFFF, at + 4: base >> 32}
        self.log: list[tuple[int, int]] = []
        self.calls: list[Callable] = [_READ(lambda _, at: self.words.get(at, 0)), _WRITE(self._register)]
        self.calls += [_MEMORY(self._read), _MEMORY(self._write)]
        address = [ctypes.cast(c, ctypes.c_void_p).value for c in self.calls]
        self.device, self.memory = (ctypes.c_void_p * 3)(*address[:2]), (ctypes.c_void_p * 3)(*address[2:])

    def _register(self, _, at: int, value: int) -> None:
        self.log.append((at, value))

    def _read(self, _, address: int, to: int, count: int) -> None:
        ctypes.memmove(to, bytes(self.data[address : address + count]), count)

    def _write(self, _, address: int, source: int, count: int) -> None:
        assert address + count <= len(self.data)
        self.data[address : address + count] = ctypes.string_at(source, count)

    def save(self, ctx: int, fails: int = -1) -> tuple[str, bytes]:
        """The result and the checkpoint. fails : number of the call of `put` that does not succeed"""
        out, calls = bytearray(), iter(range(1 << 20))

        def put(_, source, count):
            out.extend(ctypes.string_at(source, count))
            return int(next(calls) == fails)

        got = self.library.openvrex_save(self.device, self.memory, ctx, _FILE(put), None)
        return NAMES[-got], bytes(out)

    def restore(self, ctx: int, checkpoint: bytes, fails: int = -1) -> str:
        """The result. fails : number of the call of `get` that does not succeed"""
        at, calls = 0, iter(range(1 << 20))

        def get(_, to, count):
            nonlocal at
            if next(calls) == fails or at + count > len(checkpoint):
                return 1
            ctypes.memmove(to, checkpoint[at : at + count], count)
            at += count
            return 0

        return NAMES[-self.library.openvrex_restore(self.device, self.memory, ctx, _FILE(get), None, 10)]


def move(driver: tuple[ctypes.CDLL, AddrmapNode], one: Engine, source: int, two: Engine) -> None:
    """Context `source` moves to context 0 of `two` as in golden: the same checkpoint, the same memory after it."""
    wants = save(one.layout, one.model, one.memory, source)
    first, second = Device(driver, one), Device(driver, two)
    assert first.save(source) == ("OK", wants)
    assert first.data == one.memory.tobytes()
    assert second.restore(0, wants) == "OK"
    restore(two.layout, two.model, two.memory, 0, wants)
    two.tables.write()
    assert second.data == two.memory.tobytes()
    assert second.log == [(second.at["control"], 2)]  # a reset, after which the KVMU reads the pool
    assert second.save(0) == ("OK", wants)


def move_random(driver: tuple[ctypes.CDLL, AddrmapNode], protect: str, seed: int) -> None:
    """A random context moves."""
    one, two = engines(seed, layout(protect))
    source = seed % N_CTX
    one.keys(source, hashes(Random(seed), 4 + 3 * seed, 16))
    move(driver, one, source, two)


def of_blocks(number: int, protect: str) -> Engine:
    """An engine whose context 0 has so many blocks."""
    out = Engine(layout(protect), blocks=SIZES["blocks"], entry_bytes=ENTRY)
    while out.kv.fresh < number:
        out.keys(0, hashes(Random(5), 1, 16))
    return out


def move_to_the_last_block(driver: tuple[ctypes.CDLL, AddrmapNode], protect: str) -> None:
    """The context that moves takes every block that is free."""
    _, two = engines(5, layout(protect))
    move(driver, of_blocks(two.kv.free, protect), 0, two)
    assert two.kv.free == 0


@pytest.mark.parametrize("protect", PROTECT)
@pytest.mark.parametrize("seed", range(8))
def test_contexts_move_as_in_golden(drivers, seed, protect):
    move_random(drivers[protect], protect, seed)


@pytest.mark.parametrize("protect", PROTECT)
def test_a_restored_context_has_no_kept_block(tmp_path, protect):
    """What an earlier context has left behind its ring says nothing of the one that moves there."""
    more = ("entry_bytes=32", "kept=4")
    own, driver = layout(protect, more), build(tmp_path, protect, more=more)
    one, two = (Engine(own, blocks=SIZES["blocks"], entry_bytes=32) for _ in range(2))
    one.keys(1, hashes(Random(3), 40, 16))
    at = two.table_base + own.address(Item.RING, 0, own.recent)
    places = slice(at, at + 4 * own.bytes(Item.RING))
    two.memory[places] = 1
    move(driver, one, 1, two)
    assert not two.memory[places].any()


def test_contexts_with_packed_homes_move_as_in_golden(tmp_path, drivers):
    """A device without packed homes refuses their checkpoints."""
    driver = build(tmp_path, "none", packed=True)
    for seed in range(1, 6):
        one, two = engines(seed, params("none", packed=True).dre.layout(), **PACKED)
        one.keys(1, hashes(Random(seed), 30, 16))
        assert any(c.offloaded for c in one.kv.contexts[1].clusters.values())
        move(driver, one, 1, two)
    checkpoint = save(one.layout, one.model, one.memory, 1)
    assert Device(drivers["none"], engines(1, layout())[1]).restore(0, checkpoint) == "CHECKPOINT"


@pytest.mark.parametrize("protect", PROTECT)
def test_the_last_free_block_is_taken(drivers, protect):
    move_to_the_last_block(drivers[protect], protect)


def test_an_empty_context_moves(drivers):
    one, two = engines(1, layout())
    one.clear(2)
    result, checkpoint = Device(drivers["none"], one).save(2)
    assert (result, len(checkpoint)) == ("OK", HEADER.size + one.layout.bytes(Item.PLACE))
    device = Device(drivers["none"], two)
    assert device.restore(0, checkpoint) == "OK"
    assert device.data == two.memory.tobytes()


def test_the_driver_refuses_what_cannot_be(drivers):
    one, two = engines(5, layout())
    one.keys(1, hashes(Random(5), 30, 16))
    checkpoint = save(one.layout, one.model, one.memory, 1)

    def device(**words: int) -> Device:
        out = Device(drivers["none"], two)
        out.words |= {out.at[name]: value for name, value in words.items()}
        return out

    for status, result in ((Status.RUNNING, "BUSY"), (1 << 9, "BUSY"), (1 << 10, "BUSY"), (Status.FULL, "FAULT")):
        busy = device(status=int(status))
        assert busy.save(1)[0] == busy.restore(0, checkpoint) == result
    assert device().save(N_CTX)[0] == device().restore(N_CTX, checkpoint) == "RANGE"
    used = next(ctx for ctx in range(N_CTX) if two.model.level(ctx))
    assert device().restore(used, checkpoint) == "USED"
    for at in (0, 4, 10):
        wrong = bytearray(checkpoint)
        wrong[at] ^= 0xFF
        assert device().restore(0, bytes(wrong)) == "CHECKPOINT"
    long = of_blocks(two.kv.free + 1, "none")
    assert device().restore(0, save(long.layout, long.model, long.memory, 0)) == "FULL"


def test_a_failure_leaves_an_empty_context(drivers):
    """Wherever the file fails: the device's other contexts and its pool are whole, and the restore can be repeated."""
    one, two = engines(6, layout())
    one.keys(1, hashes(Random(6), 25, 16))
    checkpoint = save(one.layout, one.model, one.memory, 1)
    whole = Device(drivers["none"], two)
    assert whole.restore(0, checkpoint) == "OK"
    failed = 0
    for n in range(200):
        device = Device(drivers["none"], two)
        result = device.restore(0, checkpoint, fails=n)
        if result == "OK":
            break
        assert (result, device.log) == ("FILE", [])
        assert Device(drivers["none"], one).save(1, fails=n)[0] == "FILE"
        data = np.frombuffer(device.data, np.uint8)
        two.memory[:] = data
        two.tables.write()
        assert (data == two.memory).all()  # items that mean something are as before
        assert device.restore(0, checkpoint) == "OK"
        assert device.data == whole.data
        failed += 1
    assert failed > 20


@pytest.mark.parametrize("protect", ["parity", "secded"])
@pytest.mark.parametrize("item", [Item.LEVEL, Item.PLACE, Item.ROW, Item.NEXT, Item.POOL])
def test_wrong_bits_are_corrected_or_refused(drivers, item, protect):
    """In memory: one wrong bit, then two; data and check bits."""
    one, two = engines(7, layout(protect))
    one.keys(1, hashes(Random(7), 30, 16))
    wants = save(one.layout, one.model, one.memory, 1)
    chain = next(k.blocks for _, k in sorted(one.kv.contexts[1].clusters.items()) if len(k.blocks) > 1)
    index = {Item.NEXT: chain[0]}.get(item, 0)
    engine = two if item == Item.POOL else one
    at = engine.table_base + engine.layout.address(item, 1, index)
    for bit in (0, engine.layout.bits(item)):
        device = Device(drivers[protect], engine)
        device.data[at + bit // 8] ^= 1 << bit % 8
        result = device.restore(0, wants) if engine is two else device.save(1)
        if protect == "parity":
            assert "MEMORY" in (result, result[0])
            continue
        assert result == ("OK" if engine is two else ("OK", wants))
        device = Device(drivers[protect], engine)
        for wrong in (bit, 1):
            device.data[at + wrong // 8] ^= 1 << wrong % 8
        result = device.restore(0, wants) if engine is two else device.save(1)
        assert "MEMORY" in (result, result[0])


def test_a_chain_without_an_end_is_refused(drivers):
    one, _ = engines(8, layout())
    one.keys(1, hashes(Random(8), 30, 16))
    chain = next(k.blocks for _, k in sorted(one.kv.contexts[1].clusters.items()) if len(k.blocks) > 2)
    device = Device(drivers["none"], one)
    at = one.table_base + one.layout.address(Item.NEXT, 0, chain[1])
    device.data[at] = chain[0]
    assert device.save(1)[0] == "MEMORY"


WRONG = [
    ("pool->fresh < job->blocks", "pool->fresh + 1 < job->blocks"),
    ("pool->freed = pool->head != pool->tail;", "pool->freed = 1;"),
    ("write_pool(&job, &pool);", ""),
    ("seal(item, word);", ""),
    ("SET(row, ROW__OFF, block);", "SET(row, ROW__OFF, off);"),
    ("SET(word, NEXT__BLOCK, block);", ""),
    ("while (block != off", "while (0 && block != off"),
    ("GET(row, ROW__OFF_SLOTS) * HOME_BYTES", "BLOCK_BYTES"),
    ("GET(word, PLACE__FILLED) ? CORE_IP_TABLES__RECENT : ", ""),
    ("return openvrex_reset(device, polls);", "return OPENVREX_OK;"),
]


@pytest.mark.parametrize(("old", "new"), WRONG)
def test_wrong_drivers_are_noticed(tmp_path, old, new):
    driver = build(tmp_path, "secded", old, new)

    def passes() -> bool:
        try:
            for seed in range(8):
                move_random(driver, "secded", seed)
            move_to_the_last_block(driver, "secded")
        except AssertionError:
            return False
        return True

    assert not passes()


def test_tables_have_the_bytes_of_the_layout(tmp_path):
    """What the header says of sizes."""
    build(tmp_path, "secded")
    text = (tmp_path / "core_ip_tables.h").read_text()
    found = dict(line.split()[1:3] for line in text.splitlines() if line.startswith("#define ") and line.count(" ") > 1)
    own = layout("secded")
    for item in Item:
        wants = {"OFFSET": own.offsets[item], "BYTES": own.bytes(item), "BITS": own.bits(item)}
        assert {n: int(found[f"CORE_IP_TABLES__{item.name}__{n}"].rstrip("u")) for n in wants} == wants
    assert found["CORE_IP_TABLES__TABLE_BYTES"] == f"{own.table_bytes}u"
    assert found["CORE_IP_TABLES__POOL_BYTES"] == f"{own.pool_bytes}u"
