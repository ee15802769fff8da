"""A design as one TOML file: a preset, and the parameters in which the design differs from it.

    preset = "core"
    clusters = 256      # in all units that have it, as `-p clusters=256`

    [wtu]
    n_w = 8             # in this unit alone, as `-p wtu.n_w=8`

Keys without a table come before the tables. `text` writes a complete file: every parameter, its meaning, its limit.
"""

import tomllib
from pathlib import Path

from openvrex.golden.function_params import ParamError, check
from openvrex.golden.text_files import check_regular, read_text
from openvrex.hdl.params import PRESETS, SystemParams, flat, listed, override, preset

SUFFIX = ".toml"
_HEAD = """# A design of OpenVRex, for --design of vrex generate, verify, synth, power, sweep, ip and run.
# A parameter that is left out has the preset's value.
"""


def load(name: str) -> SystemParams:
    """Loads the parameters of a preset, or of a design file. Raises: `ParamError`, which names the file."""
    try:
        if name not in PRESETS:
            check_regular(Path(name))
    except ValueError as e:
        raise ParamError(f"{name}: {e}") from None
    if not name.endswith(SUFFIX):
        return preset(name)
    try:
        found = tomllib.loads(read_text(Path(name)))
    except OSError as e:
        raise ParamError(f"{name}: cannot be read ({e.strerror}); `vrex presets --save` writes a design file") from None
    except ValueError as e:
        raise ParamError(f"{name}: not TOML ({e})") from None
    try:
        base = found.pop("preset", "core")
        check(isinstance(base, str), "preset", base, f"must be one of {', '.join(PRESETS)}")
        return override(preset(base), [text for key, value in found.items() for text in _assignments(key, value)])
    except ParamError as e:
        raise ParamError(f"{name}: {e}") from None


def _assignments(key: str, value: object) -> list[str]:
    """A key, or all of a table, as `-p` takes it."""
    if isinstance(value, dict):
        return [text for name, inner in value.items() for text in _assignments(f"{key}.{name}", inner)]
    check(isinstance(value, int | str), key, value, "must be an integer, true, false or a word in quotes")
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}"]


def text(system: SystemParams, base: str) -> str:
    """A complete design file. Where a value differs from preset `base`, a comment gives that preset's value."""
    of_base, out = flat(PRESETS[base]), [_HEAD, f'preset = "{base}"']
    unit = ""
    values = sorted(listed(system).items(), key=lambda item: "." in item[0])  # those without a table first
    for name, (word, own) in values:
        table, _, leaf = name.rpartition(".")
        if table != unit:
            out.append(f"\n[{table}]")
            unit = table
        number = word in ("true", "false") or word.isdigit()
        differs = f"{base} has {of_base[name]}" if of_base[name] != word else ""
        notes = [note for note in (own.meaning, own.values, differs) if note]
        line = f"{leaf} = {word}" if number else f'{leaf} = "{word}"'
        out.append(f"{line:<24}# {'; '.join(notes)}" if notes else line)
    return "\n".join(out) + "\n"
