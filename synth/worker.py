"""One Yosys job, in a process of its own: a script that `synth.flow` starts in the job's folder.

Reads `job.json`: {top, macro_bits, read: commands, map: commands}. Writes `done.json`: {cpu: seconds, peak: KiB,
memories: {name: [width, words, read ports, write ports]}, cells: {type: count}}.
"""

import json
import re
import resource
from pathlib import Path

from pyosys import libyosys


def main() -> None:
    """Run the job of the current folder."""
    job = json.loads(Path("job.json").read_text())
    design = libyosys.Design()
    for command in job["read"]:
        libyosys.run_pass(command, design)
    kept = {}
    found = json.loads(Path("memories.json").read_text())["modules"].get(job["top"], {"cells": {}})
    for name, cell in found["cells"].items():
        parameters = cell["parameters"]
        shape = [int(parameters[k], 2) for k in ("WIDTH", "SIZE", "RD_PORTS", "WR_PORTS")]
        if shape[0] * shape[1] >= job["macro_bits"]:
            kept[parameters["MEMID"].lstrip("\\")] = shape
        else:
            libyosys.run_pass(f"memory_map {job['top']}/{re.sub(r'[][*?]', '?', name)}", design)
    for command in job["map"]:
        libyosys.run_pass(command, design)
    # `stat` does not list a module that is empty.
    stat = json.loads(Path("stat.json").read_text())["modules"].get("\\" + job["top"], {})
    cpu, peak = _usage()
    done = {"cpu": cpu, "peak": peak, "memories": kept, "cells": stat.get("num_cells_by_type", {})}
    Path("done.json").write_text(json.dumps(done))


def _usage() -> tuple[float, int]:
    """Processor seconds of Yosys and ABC, and the larger of their peaks in KiB."""
    me, abc = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    try:  # Linux's ru_maxrss counts the process that started this one too
        peak = int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1])
    except OSError:
        peak = me.ru_maxrss
    return me.ru_utime + me.ru_stime + abc.ru_utime + abc.ru_stime, max(peak, abc.ru_maxrss)


main()
