"""What the manual takes from the sources when it is built (MkDocs calls the functions by their names)."""

import hashlib
import inspect
import posixpath
import re
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import mermaidx  # noqa: E402
from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.structure.pages import Page  # noqa: E402

from openvrex.hdl.emit import ALL, BLOCKS, UNITS, params_of  # noqa: E402
from openvrex.hdl.emit_cache import emitted  # noqa: E402
from openvrex.hdl.params import override, preset  # noqa: E402
from openvrex.scripts.blocks import sign_off  # noqa: E402
from openvrex.scripts.pages import block_diagram, html_page, unit_datasheet, waveform_scenarios  # noqa: E402
from openvrex.scripts.records import recorded_page  # noqa: E402
from openvrex.tb.library.runner import BUILD  # noqa: E402

SHEETS, SIGNED = "datasheets", "signoff"
# Units whose sheets have a block diagram, and the design that it shows.
DRAWN = {"dre": (), "lxe": (), "core": (), "system": ("cores=2",)}
COPIED = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}


def on_config(config: MkDocsConfig) -> None:
    """A page a unit, below the heading that names the folder; fences of Mermaid become diagrams."""
    mermaid = {"name": "mermaid", "class": "diagram", "format": diagram}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [mermaid]}
    for entry in config.nav:
        for title, pages in entry.items():
            if pages == [f"{SHEETS}/index.md"]:
                entry[title] = [*pages, *({u: f"{SHEETS}/{u}.md"} for u in ALL)]
            if pages == [f"{SIGNED}/index.md"]:
                entry[title] = [*pages, *({u: f"{SIGNED}/{u}.md"} for u in sign_off.TARGETS)]


def diagram(source: str, language: str, css_class: str, options: dict, md: object, **_: object) -> str:
    """A fence of Mermaid as SVG, so that a page needs no script from elsewhere. An invalid one ends the build."""
    name = f"diagram-{hashlib.sha256(source.encode()).hexdigest()[:12]}"  # its styles are its own
    return f'<div class="{css_class}">{mermaidx.render(source).svg().replace("my-svg", name)}</div>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages that nobody writes by hand."""
    texts = {f"{SHEETS}/{unit}.md": unit_datasheet.page(unit, picture(unit), blocks(unit)) for unit in ALL}
    texts[f"{SHEETS}/index.md"] = unit_datasheet.index(UNITS, BLOCKS)
    records = sign_off.recorded()
    texts |= {f"{SIGNED}/{unit}.md": sign_off.page(unit, records) for unit in sign_off.TARGETS}
    texts[f"{SIGNED}/index.md"] = sign_off.index(records)
    texts["recorded.md"] = recorded_page.page()
    texts |= {page: (ROOT / source).read_text() for page, source in COPIED.items()}
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    return files


def picture(unit: str) -> str:
    """The waveform of a unit, from its bench on Verilator; empty for a unit without a scenario."""
    return waveform_scenarios.picture(unit) if unit in waveform_scenarios.SCENARIOS else ""


def blocks(unit: str) -> str:
    """The block diagram of a unit that is made of others, drawn from its Verilog; empty for the others."""
    if unit not in DRAWN:
        return ""
    design = override(preset("core"), list(DRAWN[unit]))
    made = emitted(unit, params_of(unit, design), BUILD.parent)
    svg = html_page.svg(block_diagram.draw(made.verilog, made.top))
    changes = "".join(f", `{change}`" for change in DRAWN[unit])
    return f"""Drawn from the Verilog of preset `core`{changes}. A blue box is a part with its
largest memories (words x bits), a grey one a stream or an AXI bus. An arrow is data that passes no register on the way,
with the bits of the widest stream or port.

<div style="overflow-x:auto; background:#fff">{svg}</div>
"""


def docstring(name: re.Match) -> str:
    """The docstring of a module as it stands, for a page that would say the same."""
    return f"```text\n{inspect.getdoc(import_module(f'openvrex.{name[1]}'))}\n```"


def code(name: re.Match) -> str:
    """A source file as it stands."""
    path = ROOT / name[1]
    return f"```{path.suffix[1:]}\n{path.read_text()}```"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository's own files, such as ../README.md or docs/run.md, lead to pages of the manual."""
    here = posixpath.dirname(page.file.src_uri)

    def mend(link: re.Match) -> str:
        path, anchor = link[1], link[2] or ""
        if page.file.src_uri in COPIED:
            path = path.removeprefix("docs/")
        for name, source in COPIED.items():
            if posixpath.basename(path) == source:
                path = posixpath.relpath(name, here or ".")
        return f"]({path}{anchor})"

    pages = {f.src_uri for f in files if f.src_uri.endswith(".md")}

    def link(name: re.Match) -> str:
        known = name[1] in pages and name[1] != page.file.src_uri
        return f"[{name[0]}]({posixpath.relpath(name[1], here or '.')})" if known else name[0]

    markdown = re.sub(r"<!-- docstring: ([\w.]+) -->", docstring, markdown)
    markdown = re.sub(r"<!-- file: ([\w./]+) -->", code, markdown)
    markdown = re.sub(r"\]\(([^)#:]+\.md)(#[^)]*)?\)", mend, markdown)
    return re.sub(r"(?<!\[)`docs/(\w+\.md)`", link, markdown)
