"""The folder of any `vrex run`, read for a report."""

import json
from pathlib import Path

from openvrex.golden.policies.window_decisions import WINDOWED
from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.run.mosaic_command import MosaicRun
from openvrex.scripts.run.policy_run import PolicyRun
from openvrex.scripts.run.resv_command import ResvRun
from openvrex.scripts.run.windows_command import WindowRun

KINDS: dict[str, type[PolicyRun]] = {"resv": ResvRun, "mosaic": MosaicRun, **dict.fromkeys(WINDOWED, WindowRun)}


def load(folder: Path) -> list[Section]:
    """The sections of the run in a folder of `vrex run`. Raises `ValueError` for any other folder."""
    try:
        result = json.loads((folder / PolicyRun.file).read_text())
        return KINDS[result.get("policy", "resv")].told(folder, result)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as e:
        raise ValueError(f"run={folder}: not a folder that `vrex run` wrote ({e})") from None
