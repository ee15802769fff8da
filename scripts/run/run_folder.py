"""The folder of any `vrex run`, read for a report."""

import json
from pathlib import Path

from openvrex.scripts.pages.html_page import Section
from openvrex.scripts.run import resv_command
from openvrex.scripts.run.mosaic_command import MosaicRun
from openvrex.scripts.run.policy_run import PolicyRun
from openvrex.scripts.run.windows_command import WindowRun


def kind(policy: str) -> type[PolicyRun]:
    """What runs a policy but ReSV."""
    return MosaicRun if policy == "mosaic" else WindowRun


def load(folder: Path) -> list[Section]:
    """The sections of the run in a folder of `vrex run`. Raises `ValueError` for any other folder."""
    try:
        result = json.loads((folder / resv_command.RESULT).read_text())
        if "policy" not in result:
            return resv_command.told(folder, result)
        return kind(result["policy"]).sections(result)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as e:
        raise ValueError(f"run={folder}: not a folder that `vrex run` wrote ({e})") from None
