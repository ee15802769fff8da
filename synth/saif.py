"""Writes what a mapped netlist does in a run as SAIF, the activity format that power tools read.

A net of the SAIF has its time at 0 (T0), its time at 1 (T1), and its toggles (TC). Nets of the module stand under its
instance; pins stand under theirs once more, where OpenSTA looks for them.
"""

from collections.abc import Iterable

from openvrex.synth.switching_activity import Counts

_HEAD = """(SAIFILE
(SAIFVERSION "2.0")
(DIRECTION "backward")
(DESIGN "{top}")
(PROGRAM_NAME "OpenVRex")
(DIVIDER / )
(TIMESCALE 1 fs)
(DURATION {duration})
(INSTANCE {top}
"""


def half_period(mhz: float) -> int:
    """Half a clock period in fs, rounded."""
    return round(5e8 / mhz)


def write(top: str, netlist: dict, nets: dict[int, str], counts: Counts, mhz: float) -> str:
    """The SAIF of a run.

    netlist, nets : a flat netlist, and the names of its nets in the Verilog of `synth.opensta.verilog`
    counts : what `synth.power.measure` evaluated of the run; steps between its samples do not count
    """
    half = half_period(mhz)
    duration = 2 * counts.steps * half
    known = counts.nets()

    def line(name: str, net: int | str) -> str:
        toggles, ones = known[net] if isinstance(net, int) else (0, 2 * counts.steps * (net == "1"))
        escaped = name.replace("[", "\\[").replace("]", "\\]")
        return f"({escaped} (T0 {duration - ones * half}) (T1 {ones * half}) (TX 0) (TC {toggles}) (IG 0))\n"

    def block(lines: Iterable[str]) -> str:
        return f"(NET\n{''.join(lines)})\n"

    text = [block(line(name, net) for net, name in nets.items() if net in known)]
    for i, (_, _, pins) in enumerate(netlist["cells"]):
        text.append(f"(INSTANCE u{i}\n{block(line(pin, bits[0]) for pin, bits in pins.items() if bits)})\n")
    return _HEAD.format(top=top, duration=duration) + "".join(text) + "))\n"
