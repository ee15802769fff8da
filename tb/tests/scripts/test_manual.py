"""The manual: no broken link, data sheets whole, waveforms of real runs, commands that can be typed, files there."""

import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr
from importlib import import_module
from pathlib import Path

import mkdocs.commands.build
import numpy as np
import pytest
import yaml
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from typer.main import get_command

from openvrex.golden.function_params import ParamError, ReSVParams
from openvrex.golden.policies.window_decisions import WINDOWED
from openvrex.golden.retrieval.clustering import Clusterer
from openvrex.golden.retrieval.kvmap import KvMap
from openvrex.golden.retrieval.wicsum import select
from openvrex.hdl.design import SUFFIX
from openvrex.hdl.emit import ALL, component_of, params_of
from openvrex.hdl.params import override, preset
from openvrex.hdl.ports import ports
from openvrex.scripts.blocks.sign_off import TARGETS
from openvrex.scripts.main import app
from openvrex.scripts.pages import unit_datasheet
from openvrex.scripts.pages.waveform_scenarios import PRESET, SCENARIOS, log
from openvrex.scripts.run import run_folder
from openvrex.scripts.run.policy_run import split
from openvrex.scripts.run.run_options import Watching
from openvrex.tb.library.runner import BUILD, ROOT

PAGES = {p.relative_to(ROOT / "docs").as_posix(): p for p in sorted(Path(ROOT, "docs").rglob("*.md"))}
TEXTS = {name: p.read_text() for name, p in PAGES.items()}
TEXTS |= {f"{name}.md": (ROOT / f"{name}.md").read_text() for name in ("README", "CONTRIBUTING", "CHANGELOG")}
COMMANDS = get_command(app).commands
ENV = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
ENV |= {"OPENVREX_BUILD": str(BUILD.parent)}  # simulators of the suite, wherever a block runs
# A line of a block, with its continuations; a file or a thing that text names in backticks; what a browser fetches.
VREX = re.compile(r"^(?: {4})?(?:\.venv/bin/)?vrex ((?:.*\\\n)*.*)", re.M)
FILE = re.compile(
    r"`((?:golden|hdl|sim|tb|synth|scripts|papers|docs|\.ci|\.github)[/.]\w[\w./*]*|(?:tb/)?test_\w+\.py(?:::\w+)?)`"
)
RECORD_WORDS = 120  # of a decision record
MANUAL_WORDS = 40_000  # of all pages but those on papers and the archive
NEWCOMERS = 20  # records on the page that a newcomer reads
ELSEWHERE = re.compile(r'<(script|img|iframe)[^>]* src="(https?:)?//|<link[^>]*stylesheet"[^>]*"(https?:)?//')


def build(path: Path, folder: Path) -> bool:
    """Whether MkDocs builds the site, as `make docs` does. (With --quiet it would count no warnings.)"""
    config = load_config(str(path), site_dir=str(folder))
    config.plugins.on_startup(command="build", dirty=False)
    try:
        mkdocs.commands.build.build(config)
        return True
    except Abort:
        return False
    finally:
        config.plugins.on_shutdown()


def test_site(tmp_path, caplog):
    """Strict: bad links, bad anchors, pages out of the navigation are errors. Nothing is fetched from another place."""
    assert build(ROOT / "mkdocs.yml", tmp_path), caplog.text
    names = (
        [name.removesuffix(".md") for name in PAGES]
        + [f"datasheets/{u}" for u in ("index", *ALL)]
        + [f"signoff/{u}" for u in ("index", *TARGETS)]
        + ["index", "changelog", "contributing", "recorded"]
    )
    assert not [n for n in names if ELSEWHERE.search((tmp_path / f"{n}.html").read_text())]
    assert not list(tmp_path.rglob("*.py"))
    assert all("<svg viewBox" in (tmp_path / f"datasheets/{unit}.html").read_text() for unit in SCENARIOS)
    assert all(
        "Block diagram" in (tmp_path / f"datasheets/{u}.html").read_text() for u in ("dre", "lxe", "core", "system")
    )
    for page in ("datasheets/kvmu", "integration"):  # a state diagram, and one from a page
        assert '<div class="diagram"><svg id="diagram-' in (tmp_path / f"{page}.html").read_text()
    for page, shown in {"tables": "all contexts share", "integration": "run_frame", "recorded": "OpenSTA"}.items():
        assert shown in (tmp_path / f"{page}.html").read_text()  # a docstring, a file, a page made of records
    assert not any('class="mermaid"' in (tmp_path / f"{n}.html").read_text() for n in names)  # the theme would load it


def test_the_manual_is_short():
    """A page that grows takes its words from another one. The changelog is no page to read."""
    counts = {name: len(text.split()) for name, text in TEXTS.items() if not name.startswith(("papers/", "archive/"))}
    del counts["CHANGELOG.md"]
    assert sum(counts.values()) <= MANUAL_WORDS, sorted(counts.items(), key=lambda page: -page[1])


def test_data_sheets_ask_for_the_package():
    """Not for the folder `hdl`, which only a test finds: mkdocs runs without the checkout in its path."""
    own = unit_datasheet._layout("hdl.retrieval.retriever.fault_layout", "openvrex.hdl.execution.lxe")
    assert own.__module__ == "openvrex.hdl.retrieval.retriever"
    assert unit_datasheet._layout("rows_layout", "openvrex.hdl.execution.lxe").__module__ == "openvrex.hdl.bus.axi"


def test_a_broken_page_is_an_error(tmp_path, caplog):
    """The settings of mkdocs.yml, on a site of three pages: each of its checks can fail."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# A\n\n[a](none.md) [b](b.md#nothing) [c](/b.md)")
    (docs / "b.md").write_text("# B\n")
    (docs / "c.md").write_text("# C\n")
    config |= {"docs_dir": str(docs), "nav": ["index.md", "b.md"], "hooks": [], "extra_css": [], "exclude_docs": ""}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
    assert not build(tmp_path / "mkdocs.yml", tmp_path / "site")
    said = [r.message for r in caplog.records if r.levelname == "WARNING"]
    for part in ("'none.md'", "'#nothing'", "'/b.md'", "- c.md"):
        assert sum(part in line for line in said) == 1, (part, said)


@pytest.mark.parametrize("unit", ALL)
def test_a_sheet_has_all_of_its_unit(unit):
    p = params_of(unit, preset("core"))
    text, made = unit_datasheet.page(unit), component_of(unit, p)
    for section in ("Parameters", "Ports", "Timing", "Counters", "Errors and source"):
        assert f"\n## {section}\n" in text
    for part in ("**Latency.** ", "**Throughput.** ", "Raises: "):
        assert len(text.partition(part)[2].partition("\n")[0]) > 3, part
    assert all(f"    | `{port['name']}` | {port['dir']} | {port['width']} |" in text for port in ports(made))
    assert all(f"`{counter}`" in text for counter in made.counters())
    assert all(f"| {name} | `{formula}` |" in text for name, formula in made.timing(p).items())
    assert not re.search(r"^\| `[\w.]+` \|.*\|\s*\|$", text, re.M), "a parameter or port without a meaning"


def test_a_docstring_without_a_section_is_refused():
    doc = "A.\n\nParameters\n---\np : P\n\nMembers\n---\ni : In : x\n\nLatency: 1\nRaises: no\nSource: x"
    with pytest.raises(ParamError, match="has no section Throughput"):
        unit_datasheet.parse(doc)


def test_waveforms_show_what_golden_says():
    """A picture that differs from golden, or ends before what its caption tells, would mislead."""
    dre, put, beats = preset(PRESET).core.dre, {u: s.beats for u, s in SCENARIOS.items()}, {}
    for unit in SCENARIOS:
        beats[unit] = {name: [b for valid, ready, b in of if valid and ready] for name, of in log(unit).items()}

    th_hd = SCENARIOS["hcu"].ports["th_hd"]
    table = Clusterer(ReSVParams(n_hp=dre.hcu.n_hp, th_hd=th_hd, max_clusters=dre.hcu.clusters))
    joined = [table.add(key["hash"]) for key in put["hcu"]["i"]]
    got = [(o["cluster"], o["is_new"]) for o in beats["hcu"]["o"]]
    assert got == [(j.cluster, j.is_new) for j in joined]

    codes = np.array([word["scores"] for word in put["wtu"]["i"]]).reshape(dre.wtu.readings, -1)[:1]
    rows = [select(row, np.ones(8, int), ReSVParams(ratio_q16=SCENARIOS["wtu"].ports["ratio"])) for row in codes]
    chosen = [set()]
    for o in beats["wtu"]["o"]:
        chosen[-1] |= {4 * o["addr"] + i for i in range(4) if o["mask"] >> i & 1}
        chosen += [set()] * o["last"]
    assert chosen[:-1] == [set(np.flatnonzero(r.mask).tolist()) for r in rows] == [{1, 2, 5}]

    clusters = [(o["cluster"], o["empty"]) for o in beats["cluster_set"]["o"]]
    assert clusters == [(1, 0), (6, 0), (8, 0), (9, 0), (0, 1)]

    ports = dict(SCENARIOS["kvmu"].ports)
    kv = KvMap(dre.kvmu.map_sizes(ports.pop("blocks", 0)), **ports)
    placed = [kv.append(0, a["cluster"]) for a in put["kvmu"]["a"]]
    shown = [(w["device"], w["home"]) for w in beats["kvmu"]["w"]]
    assert shown == [(w.device, w.home) for w in placed[-len(shown) :]]
    fetched = [(b.addr, b.bytes) for b in kv.fetch(0, [0, 1])]
    assert [(b["addr"], b["bytes"]) for b in beats["kvmu"]["b"]] == fetched


def typed() -> dict[str, str]:
    """Every `vrex` command that a page shows, in blocks and in running text: what follows `vrex` -> page."""
    found = {}
    for page, text in TEXTS.items():
        lines = [m[1].replace("\\\n", " ") for m in VREX.finditer(text)]
        lines += re.findall(r"`(?:\.venv/bin/)?vrex ([a-z]+[^`]*)`", text)
        found |= {re.sub(r"\$\([^)]*\)|\s#.*", "", line).strip(): page for line in lines}
    return found


def wrong(line: str) -> str:
    """Why a command line cannot be typed, else empty; of a synopsis (brackets, dots) only options are looked at."""
    name, *words = shlex.split(line)
    if name not in COMMANDS:
        return f"no command {name}"
    command = COMMANDS[name]
    while words and hasattr(command, "commands"):  # a group
        group, (name, *words) = name, words
        if name not in command.commands:
            return f"no command {group} {name}"
        command = command.commands[name]
    if not words:
        return ""  # the command's name in a sentence
    if "[" in line or "..." in line or words[-1].startswith("-"):  # a synopsis, or an option named in a sentence
        known = {"--help", *(o for p in command.params for o in (*p.opts, *p.secondary_opts))}
        return " ".join(set(re.findall(r"(?<!\S)\[?(--?[a-z][\w-]*)", " ".join(words))) - known)
    given, said = {}, io.StringIO()
    command.callback = lambda **options: given.update(options)
    try:
        with redirect_stderr(said):
            command.main(words, prog_name=name)
    except SystemExit as e:
        if e.code:
            return said.getvalue()
    try:
        if "preset" in given and "param" in given:
            base = "core" if (given["preset"] or SUFFIX).endswith(SUFFIX) else given["preset"]
            policy, rest, owned = given.get("policy") or name, given["param"] or [], {}
            for one in WINDOWED if policy == "all" else policy.split(","):  # --policy takes parameters of both
                owned[one], rest = split(one, rest)
            system = override(preset(base), rest)
            for one, own in owned.items():
                if own:
                    run_folder.KINDS[one](one, own, Watching(), system)
    except ParamError as e:
        return str(e)
    return ""


def test_commands_can_be_typed():
    commands = typed()
    assert len(commands) > 80
    assert not {page: (line, why) for line, page in commands.items() if (why := wrong(line))}
    for line in (
        "generat dre",
        "generate dre --presets core",
        "generate dre -p hcu.n_q=1",
        "area [UNIT] [--efort area|speed]",
        "simulate stages",
        "size area hcu --efort area",
        "verify hcu --queries two",
    ):
        assert wrong(line), line


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    scripts = [(ROOT / name).read_text() for name in (".github/workflows/ci.yml", ".ci/run")]
    used = {
        t for text in (*TEXTS.values(), *scripts) for t in re.findall(r"(?:^|`|    |run: )make ([a-z]+)", text, re.M)
    }
    assert {"setup", "demo", "test", "docs"} <= used <= targets


@pytest.mark.parametrize("page", [name for name, p in PAGES.items() if "```bash\n" in p.read_text()])
def test_tested_blocks_run(page, tmp_path):
    """Blocks marked `bash`, one after the other in one folder, as a reader would type them."""
    blocks = re.findall(r"^```bash\n(.*?)^```", TEXTS[page], re.M | re.S)
    for name in ("tb", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)]
    run = subprocess.run(command, capture_output=True, text=True, env=ENV, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]


def exists(name: str) -> bool:
    """Whether there is a file (or one of a pattern), a test in it, or a thing that a module defines."""
    path, _, test = name.partition("::")
    path = f"tb/tests/**/{path}" if path.startswith("test_") else path
    if "/" in path:
        found = list(ROOT.glob(path))
        return bool(found) and all(f"def {test}" in f.read_text() for f in found if test)
    words = path.split(".")
    depth = max(n for n in range(1, len(words) + 1) if n == 1 or list(ROOT.glob("/".join(words[:n]) + "*")))
    thing = import_module(".".join(("openvrex", *words[:depth])))
    for word in words[depth:]:
        if not hasattr(thing, word) and word not in getattr(thing, "__dataclass_fields__", {}):
            return False
        thing = getattr(thing, word, None)
    return True


def test_what_is_named_exists():
    texts = {page: re.sub(r"^```.*?^```", "", text, flags=re.M | re.S) for page, text in TEXTS.items()}
    named = {(page, name) for page, text in texts.items() for name in FILE.findall(text)}
    assert len(named) > 100
    assert not sorted((page, name) for page, name in named if not exists(name))
    assert not any(
        map(
            exists,
            (
                "hdl/none.py",
                "golden.arithmetic.dot.none",
                "tb/tests/hdl/retrieval/test_hcu.py::test_none",
                "golden.none",
            ),
        )
    )


def records(text: str) -> dict[str, str]:
    """Decision records by title, without the headings of areas."""
    bodies = re.split(r"^### ", text, flags=re.M)[1:]
    return {body.partition("\n")[0]: re.split(r"^## ", body, flags=re.M)[0] for body in bodies}


def wrong_record(body: str) -> str:
    """Why a decision record is refused, else empty; code and tables count as words, too."""
    if (words := len(body.split())) > RECORD_WORDS:
        return f"{words} words: at most {RECORD_WORDS}; move tables to the page of their subject"
    labels = re.findall(r"^- \*\*(\w+):\*\* ", body, re.M)
    wanted = ["Decision", "Reason", *(["Figure"] if "Figure" in labels else []), "Consequence"]
    return "" if labels == wanted else f"has {labels} instead of {wanted}"


def test_decisions_are_short_records():
    """Twenty for newcomers; the rest in the archive, and none in both."""
    found = {page: records(TEXTS[page]) for page in ("decisions.md", "archive/decisions.md")}
    few, rest = found.values()
    assert len(few) <= NEWCOMERS < len(rest)
    assert not few.keys() & rest.keys()
    for page, of in found.items():
        assert not {title: why for title, body in of.items() if (why := wrong_record(body))}
        areas = re.findall(r"^## (.*)", TEXTS[page], re.M)
        listed = re.findall(r"^\| \[([^]]*)\]\(#", TEXTS[page], re.M)
        assert listed == areas, "the index lists every area in its order"
    whole = "### A\n\n- **Decision:** b\n- **Reason:** c\n- **Consequence:** d\n## E\n"
    assert not wrong_record(records(whole)["A"])
    assert "words: at most" in wrong_record(records(whole.replace(" d\n", " d" * 200 + "\n"))["A"])
    assert "instead of" in wrong_record(records(whole.replace("Reason", "History"))["A"])


def test_a_term_stands_once_and_means_one_thing():
    """In the glossary, those of docstrings included; what is said instead of a second meaning is a term as well."""
    rows = re.findall(r"^\| (?!---)(.*?) \| (.*) \|$", TEXTS["glossary.md"], re.M)
    rows = [row for row in rows if row[0] not in ("unit", "parameter", "term")]
    names = [re.sub(r"[\[`]|\]?\(.*\)", "", name).strip() for name, _ in rows]  # without links and names of parameters
    terms = [term for name in names for term in name.split(", ")]
    assert len(terms) > 50
    assert not {term for term in terms if terms.count(term) > 1}
    assert not [name for name, meaning in rows if re.search(r"\b1\. .*\b2\. ", meaning)]
    said = {word for _, meaning in rows for word in re.findall(r"[Ff]or [^.|]*?\bsay \"([^\"]*)\"", meaning)}
    assert said - {"refreshed I-frame", "coverage bin"} <= set(terms)


def test_the_readme_draws_figures_of_the_simulator():
    """Its last lines are times of a frame on `edge8` in the table of docs/simulator.md; the first is above all."""
    lines = [[int(x) for x in m.split(",")] for m in re.findall(r"^    line \[(.*)\]$", TEXTS["README.md"], re.M)]
    every, published, *others = lines
    kinds = "resv`", "pages`", "pages`, weights of 4 bits: `edge8x`"
    for policy, line in zip(kinds, others, strict=True):
        [row] = re.findall(rf"^\| `edge8` \| `{policy} \| (.*) \|$", TEXTS["simulator.md"], re.M)
        assert line[1:] == [round(float(x.removesuffix(" *"))) for x in row.split(" | ")[1:3]]
    assert all(more > n for line in (published, *others) for more, n in zip(every, line, strict=True))


def test_versions_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"## {version}" in TEXTS["CHANGELOG.md"]


def test_workflow_runs_what_people_run():
    """Each supported Python, exact versions of actions, and commands that stand in the repository."""
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = [c.rpartition(" :: ")[2] for c in project["classifiers"]]
    assert job["strategy"]["matrix"]["python"] == supported
    major, minor = map(int, supported[-1].split("."))
    assert project["requires-python"] == f">={supported[0]},<{major}.{minor + 1}"
    for step in job["steps"]:
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", step.get("uses", "a/b@v1.2.3"))
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs == [".ci/run", ".venv/bin/vrex verify --plan", "make docs"]
    assert not wrong(runs[1].partition("vrex ")[2])
