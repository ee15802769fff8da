"""What a path runs through in the source: mapping renames the signals between registers, so they are looked up in it.

The graph is the module as it was when all was gates of two inputs, multiplexers and flip-flops (`synth.worker`). The
longest way there between the ends of a mapped path need not be that path's own, but reads the same signals.
"""

import re

_PINS = {"address": "ADDR", "data": "DATA", "enable": "EN", "reset": "SRST"}
_MEMORY = re.compile(rf"(?P<name>.+) (?P<verb>read|write)(?: \d+)? (?P<pin>{'|'.join(_PINS)})(?:\[\d+\])?")


def through(source: dict, start: str, end: str) -> tuple[str, ...]:
    """Named signals on the longest way from `start` to `end`, in order, a word once; () where there is none.

    source : {gates: {net: nets it depends on}, names: {net: signal}, starts and ends: {register, port or pin: nets}}
    start, end : as in `timing.Path`
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
    net = max((n for n in ends if n in depth), key=depth.__getitem__, default=None)
    words = []
    while net is not None:
        word = names.get(net, "").partition("[")[0]
        if word and word not in (*words[-1:], start.partition("[")[0], end.partition("[")[0]):
            words.append(word)
        net = before.get(net)
    return tuple(reversed(words))


def _find(nets: dict[str, list[str]], name: str) -> list[str]:
    """Nets of a register or port, or of a memory's pins."""
    m = _MEMORY.fullmatch(name)
    return nets.get(name, []) if m is None else nets.get(f"{m['name']} {m['verb']} {m['pin']}", [])
