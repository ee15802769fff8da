"""Names the signals of the source through which a mapped path runs. Mapping renames the signals between registers.

The lookup uses the graph of the module before mapping, when it was gates of two inputs, multiplexers and flip-flops
(`synth.worker`). The longest way there between the ends of a path need not be the mapped path itself, but it reads the
same signals.
"""

import re

_PINS = {"address": "ADDR", "data": "DATA", "enable": "EN", "reset": "SRST"}
_MEMORY = re.compile(rf"(?P<name>.+) (?P<verb>read|write)(?: \d+)? (?P<pin>{'|'.join(_PINS)})(?:\[\d+\])?")


def through(source: dict, start: str, end: str) -> tuple[str, ...]:
    """Named signals on the longest way from `start` to `end`, in order, each once; () if there is no way.

    source : {gates: {net: nets it depends on}, names: {net: signal}, starts and ends: {register, port or pin: nets}}
    start, end : names as in `timing.Path`
    """
    gates, names = source["gates"], source["names"]
    before: dict[str, str | None] = {}  # net -> the one before it on the longest way from the start
    depth = dict.fromkeys(_find(source["starts"], start), 0)
    ends = _find(source["ends"], end)
    todo = list(ends)
    seen = set()
    while todo:
        net = todo[-1]
        inputs = gates.get(net, ())
        if net not in seen:
            seen.add(net)
            todo += [n for n in inputs if n not in seen]
            continue
        todo.pop()
        late = max((n for n in inputs if n in depth), key=depth.__getitem__, default=None)
        if late is not None and net not in before:
            before[net], depth[net] = late, depth[late] + 1
    at: str | None = max((n for n in ends if n in depth), key=depth.__getitem__, default=None)
    words: list[str] = []
    while at is not None:
        word = names.get(at, "").partition("[")[0]
        if word and word not in (*words[-1:], start.partition("[")[0], end.partition("[")[0]):
            words.append(word)
        at = before.get(at)
    return tuple(reversed(words))


def _find(nets: dict[str, list[str]], name: str) -> list[str]:
    """Nets of a register, of a port, or of a memory's pins."""
    m = _MEMORY.fullmatch(name)
    return nets.get(name, []) if m is None else nets.get(f"{m['name']} {m['verb']} {m['pin']}", [])
