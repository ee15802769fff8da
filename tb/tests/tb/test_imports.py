"""Every import points one way, and no product code needs a test or pytest."""

import ast
import re
import tomllib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

import pytest

from openvrex.tb.library.runner import ROOT

# A room imports those before it, and itself. CONTRIBUTING.md shows this order.
ROOMS = (
    "golden",  # parameters of functions, files
    *("golden.arithmetic", "golden.retrieval", "golden.program", "golden.inputs", "golden.policies"),
    "hdl.writer",  # Verilog of a design
    "hdl",  # parameters of hardware, emission, what every unit uses
    *("hdl.arith", "hdl.bus", "hdl.retrieval", "hdl.execution", "hdl.video", "hdl.shells"),
    *("sim", "sim.units", "sim.system"),
    *("tb", "tb.library", "tb.fixtures", "tb.benches", "tb.checks"),
    *("synth", "synth.sweep", "tb.formal", "tb.campaigns", "ip"),
    *("scripts", "scripts.blocks", "scripts.pages", "scripts.generation", "scripts.check"),
    *("scripts.simulate", "scripts.run", "scripts.size"),
    *("papers", "papers.policies", "papers.recall", "papers.evaluation", "papers.commands"),
    *("scripts.records", "scripts.engineers", "docs", "tb.tests"),
)
FILES = [
    p
    for top in ("golden", "hdl", "sim", "tb", "synth", "ip", "scripts", "papers", "docs")
    for p in (ROOT / top).rglob("*.py")
]
MODULES = {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in FILES}
LAST = {"scripts.main"}  # imports every command
PRIVATE = "hdl.writer.amaranth_private"


def room(module: str) -> str:
    """The folder of a module, as deep as ROOMS has it."""
    folder = module if MODULES[module].stem == "__init__" else module.rpartition(".")[0]
    while folder not in ROOMS:
        folder = folder.rpartition(".")[0]
    return folder


def _imported(tree: ast.AST) -> set[str]:
    """These modules and names in full. Imports for the type checker alone count, too."""
    out = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            out |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        out |= _imported(node)
    return out


@pytest.fixture(scope="module")
def in_full() -> dict[str, set[str]]:
    """Modules and names that each file imports."""
    return {module: _imported(ast.parse(path.read_text())) for module, path in MODULES.items()}


@pytest.fixture(scope="module")
def imports(in_full) -> dict[str, set[str]]:
    """The same as folders of the repository name them."""
    return {module: {name.removeprefix("openvrex.") for name in names} for module, names in in_full.items()}


def test_imports_point_one_way(imports):
    """From later rooms to earlier ones."""
    wrong = []
    for module, names in imports.items():
        for other in names & MODULES.keys() - {module}:
            if module not in LAST and ROOMS.index(room(other)) > ROOMS.index(room(module)):
                wrong.append(f"{module} imports {other}")
    assert not wrong, sorted(wrong)


def test_no_circle(imports):
    graph = defaultdict(set)
    for module, names in imports.items():
        graph[module] = {n for n in names if n in MODULES and n != module and MODULES[n].stem != "__init__"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        pytest.fail(" -> ".join(e.args[1]))


def test_product_code_needs_no_test(imports):
    """Users install without pytest, and a test may change what it checks at any time."""
    for module, names in imports.items():
        if room(module) != "tb.tests":
            assert not {n for n in names if n.split(".")[0] in ("pytest", "hypothesis") or n.startswith("tb.tests")}, (
                module
            )


def test_no_test_needs_a_test(imports):
    """What several test files share stands in a module beside them that holds no tests."""
    for module, names in imports.items():
        if module.startswith("tb.tests"):
            assert not {n for n in names if re.match(r"tb\.tests\.(\w+\.)*test_", n)}, module


def test_the_writer_stands_alone(imports):
    """A library: it knows nothing of the designs that it writes."""
    for module, names in imports.items():
        if room(module) == "hdl.writer":
            assert not {n for n in names & MODULES.keys() if not n.startswith("hdl.writer")}, module


def test_one_file_imports_private_modules_of_amaranth(imports):
    """Amaranth promises nothing of them: an upgrade breaks one place."""
    private = re.compile(r"amaranth\.(\w+\.)*_(?!_)")
    assert [module for module, names in imports.items() if any(map(private.match, names))] == [PRIVATE]


def test_one_file_asks_private_attributes_of_amaranth():
    """A private attribute that nothing here defines is another package's."""
    texts = {module: path.read_text() for module, path in MODULES.items()}
    own = {"_asdict", "_replace", "_exit"}  # documented, of named tuples and of `os`
    own |= {"_handle"}  # of a pin of cocotb: `tb.library.streams.bits_of`
    own |= set(re.findall(r"(?m)(?:def |class |self\.|cls\.|^(?=\w+ = ))(_\w+)", "\n".join(texts.values())))
    asked = {m: set(re.findall(r"(?<!self)(?<!cls)\.(_[^\W_]\w*)", text)) for m, text in texts.items()}
    of_amaranth = asked.pop(PRIVATE)
    wrong = {f"{module}: {name}" for module, names in asked.items() for name in names & of_amaranth | names - own}
    assert len(of_amaranth) > 10
    assert not wrong


def test_contributing_shows_the_order():
    """The table of folders has one line each, in the order that is enforced."""
    table = re.findall(r"^\| `([\w/]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert table == [name.replace(".", "/") for name in ROOMS]


def test_every_room_is_known():
    """A new folder gets its place in the order."""
    folders = {".".join(p.parent.relative_to(ROOT).parts) for p in FILES}
    assert {f for f in folders if not f.startswith("tb.tests")} <= set(ROOMS)


def test_no_import_without_the_package(in_full):
    """A folder's name alone is some other package's, once this one is installed. Tests are not."""
    plain = {name.split(".")[0] for name in MODULES}
    for module, names in in_full.items():
        assert not {n for n in names if n.split(".")[0] in plain and not n.startswith("tb.tests")}, module


def test_the_wheel_s_packages_are_the_folders():
    """Setuptools maps them, and finds none by itself below another name."""
    setting = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {".".join(("openvrex", *p.parent.relative_to(ROOT).parts)) for p in FILES if p.name == "__init__.py"}
    ours = {f for f in folders if not f.startswith(("openvrex.tb.tests", "openvrex.docs"))}
    assert set(setting["packages"]) == ours | {"openvrex"}
    assert setting["package-dir"] == {f: f.removeprefix("openvrex.") for f in ours if f.count(".") == 1}
