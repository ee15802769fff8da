"""A design: one file that every command takes, and the folder that a unit was generated into."""

import hashlib
import json
import re

import pytest
from typer.main import get_command

from openvrex.golden.function_params import OF_HARDWARE, READINGS, ParamError
from openvrex.hdl import generated
from openvrex.hdl.design import load, text
from openvrex.hdl.emit import ALL, Emitted, emit, params_of
from openvrex.hdl.params import PRESETS, flat, override, override_part, preset, stated
from openvrex.scripts import console
from openvrex.scripts.main import GROUPS, app
from openvrex.tb.campaigns.faults import with_fault
from tb.tests.commands import refuses, tried, vrex

CHANGES = ["clusters=64", "wtu.n_w=8", "vpe.score=e3m4"]


@pytest.mark.parametrize("base", PRESETS)
def test_a_saved_design_is_the_preset(base, tmp_path):
    file = tmp_path / "my.toml"
    vrex("presets", "--save", file, "--preset", base)
    assert load(str(file)) == PRESETS[base]
    words = ("presets", "--save", file, "--preset", base, *(x for c in CHANGES for x in ("-p", c)))
    vrex(*words, "--force")
    vrex(*words)
    changed = override(PRESETS[base], CHANGES)
    assert load(str(file)) == changed
    assert file.read_text() == text(changed, base)
    for name in flat(changed):
        assert re.search(rf"^{name.rpartition('.')[2]} = .* # \w", file.read_text(), re.M), f"{name} without a meaning"
    assert f"; {base} has {flat(PRESETS[base])['wtu.n_w']}\n" in file.read_text() or base in ("tiny",)


def test_a_file_states_what_differs_and_p_wins(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text('preset = "tiny"\nclusters = 64\ncores = 2\n[wtu]\nn_w = 8\nbin_bits = 2\n[vpe]\nscore = "e3m4"\n')
    same = ["clusters=64", "cores=2", "wtu.n_w=8", "wtu.bin_bits=2", "vpe.score=e3m4"]
    assert load(str(file)) == override(preset("tiny"), same)
    made = {}
    for name, words in {
        "file": ("--design", file),
        "-p": ("--preset", "tiny", "-p", "clusters=64"),
        "both": (f"--design={file}", "-p", "n_ctx=1"),
    }.items():
        vrex("generate", "hcu", *words, "-o", tmp_path / name, "--json")
        made[name] = json.loads((tmp_path / name / "manifest.json").read_text())
    assert made["file"]["sha256"] == made["-p"]["sha256"]
    assert made["both"]["params"] == made["file"]["params"] | {"n_ctx": 1}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read (No such file or directory); `vrex presets --save` writes a design file"),
        ("n_w = ", "not TOML"),
        (b"\xff", "not TOML"),
        ("preset = 'big'", "preset='big': must be one of tiny, small"),
        ("preset = ['tiny']", "preset=['tiny']: must be one of tiny, small"),
        ("n_v = 3", "parameter='n_v': unknown; valid names: n_"),
        ("[hcu]\nn_v = 3", "parameter='hcu.n_v': unknown; valid names: hcu.n_"),
        ("[hcv]\nn_w = 3", "parameter='hcv.n_w': unknown"),
        ("[hcu]\nn_w = 3", "hcu.n_w=3: must divide n_hp = 32"),
        ("[hcu]\nn_w = 8.0", "hcu.n_w=8.0: must be an integer, true, false or a word in quotes"),
        ("[hcu]\nn_w = [8]", "hcu.n_w=[8]: must be an integer"),
        ("[hcu]\nn_w = true", "n_w=True: must be of type int"),
        ("[hcu]\nprotect = 'x'", "protect='x': must be one of"),
        ("[hcu]\nprotect = ''", "-p='hcu.protect=': must look like name=value"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(content, why, tmp_path):
    file = tmp_path / "my.toml"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ParamError, match=re.escape(why)):
        load(str(file))
    run = refuses("generate", "hcu", "--design", file, "-o", tmp_path / "out")
    assert run.stderr.startswith(f"error: {file}: ")
    assert not (tmp_path / "out").exists()


def test_a_design_comes_alone_and_a_design_file_is_toml(tmp_path):
    for words, why in (
        (("generate", "hcu", "--design", "a.toml", "--preset", "tiny"), "--design --preset: give one of them"),
        (("presets", "--save", tmp_path / "a.txt"), "must end in .toml"),
        (("presets", "-p", "n_w=8"), "-p=['n_w=8']: changes a design file: give --save"),
        (("presets", "--save", tmp_path / "a.toml", "--preset", "big"), "preset='big'"),
    ):
        run = refuses(*words)
        assert why in run.stderr
    assert not list(tmp_path.iterdir())


def every_command() -> dict:
    """The commands of `vrex`, those of its groups included, by name."""
    commands = get_command(app).commands
    return commands | {n: c for group in GROUPS for n, c in commands[group].commands.items()}


def test_every_command_of_one_design_takes_a_file():
    commands = every_command()
    takes = {n for n, c in commands.items() for p in c.params if "--design" in p.opts}
    assert takes == {n for n, c in commands.items() for p in c.params if "--preset" in p.opts} - {"bench", "presets"}
    assert takes >= {
        "generate",
        "verify",
        "area",
        "timing",
        "fpga",
        "power",
        "sweep",
        "ip",
        "resv",
        "windows",
        "mosaic",
    }


@pytest.fixture
def folder(tmp_path):
    """A generated HCU that is not of the default preset."""
    vrex("generate", "hcu", "--preset", "tiny", "-o", tmp_path / "hcu")
    return tmp_path / "hcu"


def test_verify_and_area_take_a_generated_folder(folder):
    run = vrex("verify", folder, "--queries", "1", "--json")
    assert not run.stderr
    assert all(t["clusters"] <= 32 for t in json.loads(run.stdout)["tables"])
    areas = []
    for words in ((folder,), ("hcu", "--preset", "tiny")):
        run = vrex("size", "area", *words, "--json")
        areas.append(json.loads(run.stdout)["units"]["hcu"]["total_ge"])
    assert areas[0] == areas[1] > 0


def test_a_folder_of_the_other_dialect_is_taken(tmp_path):
    """Also with lines of the source; the text and the assertions of an earlier call do not stay beside it."""
    words = ("generate", "hcu", "--preset", "tiny", "-o", tmp_path)
    vrex(*words, "--assertions")
    assert {f.name for f in tmp_path.iterdir()} == {"hcu.v", "hcu_assertions.sv", "manifest.json"}
    vrex(*words, "--language", "systemverilog", "--source-lines")
    assert {f.name for f in tmp_path.iterdir()} == {"hcu.sv", "manifest.json"}
    for command in (("verify", tmp_path, "--queries", "1"), ("size", "area", tmp_path)):
        run = tried(*command, "--json")
        assert (run.exit_code, run.stderr) == (0, "")


def test_verilog_that_was_edited_or_of_another_version_is_told_of_and_verified(folder, capsys):
    verilog, manifest = folder / "hcu.v", folder / "manifest.json"
    tie = "$lt 0.4c618331: B[0] const1"  # the last instead of the first of a tie
    verilog.write_text(with_fault(emit("hcu", params_of("hcu", preset("tiny"))), tie).verilog)
    run = tried("verify", folder, "--queries", "1")
    assert run.exit_code == 1, "the fault in the folder must be seen"
    assert f"note: {folder}/hcu.v: edited since it was generated" in run.stderr
    assert "expected" in run.stderr
    told = {"sha256": hashlib.sha256(verilog.read_bytes()).hexdigest()}
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | told))
    console.chosen(str(folder), "core", None)
    assert "hcu.v: this version generates other Verilog" in capsys.readouterr().err


def older(folder):
    """Makes a manifest of a version without dialects, whose ports were not by field."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["language"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("spoil", "words", "why"),
    [
        (lambda f: (f / "manifest.json").unlink(), (), "manifest.json: cannot be read"),
        (lambda f: (f / "hcu.v").unlink(), (), "hcu.v: cannot be read"),
        (lambda f: (f / "manifest.json").write_text("{}"), (), "manifest.json: not of a unit"),
        (lambda f: (f / "manifest.json").write_text("x"), (), "manifest.json: not of a unit"),
        (older, (), "manifest.json: not of a unit ('language'); generate it again"),
        (lambda f: None, ("-p", "hcu.n_w=4"), "-p='hcu.n_w=4': must not change the generated hcu of"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_line(spoil, words, why, folder):
    spoil(folder)
    for command in (("verify",), ("size", "area"), ("size", "power")):
        run = refuses(*command, folder, *words)
        assert re.fullmatch(rf"error: .*{re.escape(why)}.*\n", run.stderr), run.stderr


def test_the_published_machine():
    """V-Rex as published: its reading's function on 1,024 clusters, all else as in the presets of our own."""
    for published, own in (("vrex1", "core"), ("vrex8", "edge8"), ("vrex48", "server48")):
        assert preset(published).core.dre.function() == READINGS["buckets"]
        changes = [
            "clusters=1024",
            "wtu.selection=buckets",
            "wtu.budget=false",
            "lxe.codes=0",
            "dpe.halves=false",
            "hcu.newest=false",
            "kvmu.kept=0",
            "reading=buckets",
            "common=false",
        ]
        assert preset(published) == override(preset(own), changes)
    kvmu = emit("kvmu", preset("vrex1").core.dre.kvmu)
    assert "vrex generate kvmu --preset vrex1\n" in kvmu.verilog


@pytest.mark.parametrize("reading", OF_HARDWARE)
def test_a_reading_gives_threshold_ratio_and_hash_bits(reading):
    """For hashes of any width; what a run sets by itself comes first."""
    p = override(preset("core"), [f"reading={reading}", "n_hp=64"]).core.dre
    f, want = p.function(), READINGS[reading]
    assert (f.th_hd, f.ratio_q16, f.centre) == (2 * want.th_hd, want.ratio_q16, want.centre)
    assert console.function(p, None, None, None) == p.function()
    own = console.function(p, 0, 0.5, not want.centre)
    assert (own.th_hd, own.ratio_q16, own.centre) == (0, 32768, not want.centre)


def test_commands_of_a_design_take_its_reading():
    """No default of theirs hides it."""
    seen = 0
    for command in every_command().values():
        options = {option.name: option for option in command.params}
        for name in {"th_hd", "ratio", "centre"} & options.keys() if "preset" in options else ():
            assert options[name].default is None, f"{command.name} {name}"
            seen += 1
    assert seen >= 15


@pytest.mark.parametrize("unit", ["hcu", "kvmu", "retriever"])
def test_a_folder_that_was_not_edited_is_written_again(unit, tmp_path):
    """Memories of their own file, too."""
    words = ("generate", unit, "--preset", "tiny", "--no-memory-bodies", "-o", tmp_path)
    assert [tried(*words).exit_code for _ in range(2)] == [0, 0]


def test_files_that_a_user_edited_or_that_are_another_s_are_kept(tmp_path):
    """Of every command that writes a file or a folder of sources that a user names: one line, and nothing is lost."""
    design, source, hcu = tmp_path / "my.toml", tmp_path / "program.s", tmp_path / "hcu"
    design.write_text('preset = "tiny"\nclusters = 16  # mine\n')
    source.write_text("halt\n")
    vrex("generate", "hcu", "--preset", "tiny", "-o", hcu)
    (hcu / "hcu.v").write_text((hcu / "hcu.v").read_text() + "// mine\n")
    macros = tmp_path / "macros"
    vrex("generate", "hcu", "--preset", "tiny", "--no-memory-bodies", "-o", macros)
    file = macros / "hcu_memories.v"
    file.write_text(file.read_text() + "// mine\n")
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    for words, what in (
        (("presets", "--save", design), "holds another design"),
        (("generate", "hcu", "--preset", "tiny", "-o", hcu), "hcu.v': was edited"),
        (("generate", "hcu", "--preset", "tiny", "--no-memory-bodies", "-o", macros), "hcu_memories.v': was edited"),
        (("asm", source, "-o", source), "holds no words of a program"),
        (("trace", "world", "-o", source), "holds no trace"),
        (("papers", "prune", "world", "--vectors", source), "holds no motion vectors"),
    ):
        run = refuses(*words)
        assert what in run.stderr
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before
    vrex("presets", "--save", design, "--force")
    vrex("generate", "hcu", "--preset", "tiny", "-o", hcu, "--force")
    for _ in range(2):  # what an earlier call wrote is replaced
        vrex("asm", source, "-o", tmp_path / "words.hex")


def test_what_a_core_fixes_is_told_where_a_parameter_is_listed(tmp_path):
    """In design files and data sheets, for every parameter of which a core takes one value."""
    p, file = preset("core"), tmp_path / "my.toml"
    for name in ("vpe.n_h",):
        with pytest.raises(ParamError, match=f"{name}=2: must be 1"):
            override(p, [f"{name}=2"]).core.joined()
    file.write_text(text(p, "core"))
    told = re.findall(r"^(\w+) = .*in a core 1", file.read_text(), re.M)
    assert told == ["n_h"]


@pytest.mark.parametrize("made", ["tiny", "omni"])
@pytest.mark.parametrize("unit", ALL)
def test_a_folder_s_parameters_do_not_depend_on_the_preset(unit, made):
    """Those of its manifest, whatever optional hardware the preset has or lacks beside them."""
    given = params_of(unit, preset(made))
    manifest = json.loads(json.dumps({"unit": unit, "params": stated(given)}))
    words = generated.assignments(Emitted("", unit, manifest, ""))
    for other in ("core", "omni", "vrex8"):
        assert stated(params_of(unit, override_part(preset(other), ALL[unit][2], words))) == stated(given)
