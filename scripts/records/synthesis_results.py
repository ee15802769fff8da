"""The manual's tables of areas, clocks and powers, and its sentences that cite them."""

import math
from collections.abc import Callable

from openvrex.golden.function_params import check
from openvrex.scripts.markdown import table
from openvrex.synth import technology
from openvrex.synth.opensta_power import Row, compared
from openvrex.synth.power import Beside, Part
from openvrex.synth.table3 import CONTROL, CORE, DRE, OWN, PAPER, POWER, SYSTEMS

NODE = 14  # nm, the paper's
# Table III's powers as printed (mW); they have more digits than its shares.
PRINTED = {"dpe": 2311.39, "vpe": 122.06, "memory": 118.94, "hcu": 2.99, "wtu": 39.04, "kvmu": 15.01}
PRINTED_DRE = sum(PRINTED[name] for name in ("hcu", "wtu", "kvmu"))
STEP = technology.node(NODE).fo4.value / technology.node(7).fo4.value  # factor of a delay from ASAP7 to NODE
LOGIC = ("cells", "registers", "memories")


def clock(known: dict) -> str:
    """The table of areas and clocks with ASAP7, and of how much longer wires made the path in a layout."""
    laid = {x["unit"]: f"{x['with_wires'] / x['delay']:.2f}" for x in known["layout"].values()}
    rows = []
    for name, u in known["clock"].items():
        clocks = (u["with_access"], u["at_14"])
        rows.append([name, f"{u['area']:,.0f}", *(f"{1e6 / x:,.0f}" for x in clocks), laid.get(name, "-")])
    return table(["unit", "µm²", "MHz", f"at {NODE} nm", "wires, times"], rows)


def paths(known: dict) -> str:
    """The table of longest paths with ASAP7."""
    head = ["unit", "no memories, ps", "from, to", "with them, ps", "from, to", f"from, to a memory at {NODE} nm, ps"]
    rows = []
    for name, u in known["clock"].items():
        ends = [f"`{u[a]}`, `{u[b]}`" for a, b in (("start", "end"), ("access_start", "access_end"))]
        memory = ", ".join(
            f"{max(found):,.0f}" if (found := [d for k, d in u["kinds_14"].items() if part in k]) else "-"
            for part in ("memory to", "to memory")
        )
        rows.append([name, f"{u['delay']:,.1f}", ends[0], f"{u['with_access']:,.1f}", ends[1], memory])
    return table(head, rows)


def macros(known: dict) -> str:
    """The table of public macros and the model's errors."""

    def percent(error: float | None) -> str:
        return "-" if error is None else f"{100 * error:+.0f}"

    rows = []
    for m in known["macros"]["macros"]:
        unseen = ", ".join(percent(m[k].get("access")) for k in ("without_macro", "without_generator"))
        size = f"{m['rows']} x {m['columns']}"
        times = [f"{m[k]:,.0f}" if m[k] else "-" for k in ("access", "setup")]
        errors = [percent(m["errors"].get(k)) for k in ("access", "setup", "area", "energy")]
        name = f"{m['name']} (formula)" if m["formula"] else m["name"]
        unseen = "-" if not m["without_macro"] else unseen
        rows.append([name, f"{m['node']}", size, *times, errors[0], unseen, *errors[1:], m["source"]])
    head = ["macro", "nm", "rows x columns", "access, ps", "setup, ps", "access %", "left out %", "setup %", "area %"]
    return table([*head, "energy %", "from"], rows)


def opensta(known: dict) -> str:
    """The table of longest paths by two timing analyses."""
    rows = []
    for library, units in known["opensta"].items():
        unit = "τ" if library == "embedded" else "ps"
        for name, path in units.items():
            own, other = path["ours"], path["opensta"]
            difference = f"{100 * (own / other - 1) + 0.0:.3f} %".replace("-0.000", "0.000")
            same = "yes" if path["same_ends"] else "no"
            rows.append([library, name, f"{own:,.2f} {unit}", f"{other:,.2f} {unit}", difference, same])
    return table(["library", "unit", "ours", "OpenSTA", "difference", "same start and end"], rows)


def opensta_power(known: dict) -> str:
    """The table of power by two tools."""
    rows = []
    for library, units in known["opensta_power"].items():
        for name, unit in units.items():
            for kind, row in beside(unit).items():
                percents = ("-" if x is None else f"{round(x, 2) + 0.0:+.2f} %" for x in row.differences)
                total, nets, inside, _, same = percents
                rows.append([library, name, kind, f"{row.ours:,.2f}", f"{row.opensta:,.2f}", total, nets, inside, same])
    heads = ["library", "unit", "cells", "ours, µW", "OpenSTA, µW", "difference", "nets", "inside"]
    return table([*heads, "with our slew and loads"], rows)


def beside(unit: dict) -> dict[str, Row]:
    """The rows of a recorded unit."""
    readings = {reading: {kind: Part(**part) for kind, part in parts.items()} for reading, parts in unit.items()}
    return compared(Beside(**readings))


def layout(known: dict) -> str:
    """The table of layouts in SKY130: size, wire, and the longest path without and with wires."""
    rows = []
    for name, u in known["layout"].items():
        sizes = (f"{u['cells']:,}", f"{100 * u['density']:.0f} %", f"{u['wire_mm']:,.0f}")
        rows.append([name, *sizes, f"{u['delay']:,.0f}", f"{u['with_wires']:,.0f}"])
    return table(["unit, effort", "cells", "of the rows", "wire, mm", "path, ps", "with wires, ps"], rows)


def routing(known: dict) -> str:
    """The table of layouts in SKY130: die, wire by layer, what the router left, and times by OpenSTA."""
    rows = []
    for name, u in known["layout"].items():
        metals = ", ".join(f"{length / 1000:,.1f}" for length in u["lengths"].values())
        left = (str(u["unrouted"]), f"{u['open'] + u['split']}, {u['touching']}")
        seconds = f"{sum(u['seconds'].values()):.0f}"
        opensta = (f"{u['opensta']:,.0f}", f"{u['opensta_wires']:,.0f}")
        paths = (*opensta, f"{u['start']}, {u['end']}", f"{u['with_memories']:,.0f}")
        rows.append([name, " x ".join(f"{x:,.0f}" for x in u["die"]), metals, f"{u['vias']:,}", *left, seconds, *paths])
    heads = [
        "unit, effort",
        "die, µm",
        "wire by layer, mm",
        "vias",
        "pieces without a track",
        "nets open, touching",
        "CPU s",
    ]
    paths = ("path by OpenSTA, ps", "with wires", "from, to with wires", "with wires and memories, ps (ours)")
    return table([*heads, *paths], rows)


def fpga(known: dict) -> str:
    """The table of what units take on an FPGA."""
    rows = []
    for preset, units in known["fpga"].items():
        for name, u in units.items():
            counts = (f"{u[k]:,}" for k in ("luts", "flip_flops", "dsps", "block_rams"))
            times = (f"{u['mhz']:.1f}", f"{u['path_ns']:.1f}", f"{u['logic_ns']:.1f}")
            rows.append([preset, name, *counts, *times, f"{u['start']}, {u['end']}"])
    head = ["preset", "unit", "LUTs", "flip-flops", "DSPs", "block RAMs", "MHz", "longest path, ns", "of it logic"]
    return table([*head, "from, to"], rows)


def scan(known: dict) -> str:
    """The table of scan chains by the embedded library."""
    rows = []
    for name, u in known["scan"]["embedded"].items():
        kge = f"{u['kge_without']:.2f}, {u['kge']:.2f}"
        counts = (f"{u[k]:,}" for k in ("faults", "untestable"))
        rows.append([name, f"{u['flip_flops']:,}", kge, *counts, f"{100 * u['coverage']:.2f}"])
    return table(["unit", "flip-flops", "kGE, with scan", "faults", "untestable", "covered, %"], rows)


def scan_by_library(known: dict) -> str:
    """The table of scan chains by three libraries."""
    rows = []
    for library, units in known["scan"].items():
        for name, u in units.items():
            kge = (f"{u['kge_without']:.2f}", f"{u['kge']:.2f}", f"{100 * (u['kge'] / u['kge_without'] - 1):.1f}")
            counts = (f"{u[k]:,}" for k in ("length", "faults", "by_random", "by_sat", "untestable", "undetected"))
            rows.append([library, name, *kge, *counts, f"{u['sat_patterns']:,}"])
    head = ["library", "unit", "kGE", "with scan", "% more", "longest chain", "faults", "by random patterns", "by SAT"]
    return table([*head, "untestable", "undetected", "patterns of SAT"], rows)


def area(known: dict) -> str:
    """The areas of Table III with the embedded library."""
    own = known["area"]["embedded"]["rows"]
    whole, rows = own["core"], []
    for key in (*PAPER, *CONTROL, "dre", "core"):
        paper, value = own[key]["paper_area"], own[key]["area"]["value"]
        name = f"**{own[key]['name']}**" if key in ("dre", "core") else own[key]["name"]
        theirs = [f"{paper:.4f}", f"{100 * paper / whole['paper_area']:.2f}"] if paper else ["-", "-"]
        rows.append([name, *theirs, f"{value:.4f}", f"{100 * value / whole['area']['value']:.2f}"])
    return table(["", "paper mm²", "%", "ours mm²", "%"], rows)


def area_by_library(known: dict) -> str:
    """The areas of Table III with three libraries."""
    libraries = known["area"]
    first = libraries["embedded"]["rows"]
    paper = first["core"]["paper_area"]
    head = ["", "paper", "%", "embedded", "%", "of it cells, registers, memories"]
    head += [x for name in list(libraries)[1:] for x in (name, "%")]
    rows = []
    for key in (*PAPER, *CONTROL, "dre", "core"):
        own = first[key]
        places = 4 if key in DRE or key == "dre" or key in CONTROL else 3
        line = [
            f"**{own['name']}**" if key == "dre" else own["name"],
            f"{own['paper_area']:.{places}f}" if own["paper_area"] else "-",
        ]
        line.append(f"{100 * own['paper_area'] / paper:.2f}" if own["paper_area"] else "")
        for name, library in libraries.items():
            value, core = library["rows"][key]["area"], library["rows"]["core"]["area"]
            ends = f" ({value['low']:.2f} to {value['high']:.2f})" if key == "core" else ""
            line += [f"{value['value']:.{places}f}{ends}", f"{100 * value['value'] / core['value']:.2f}"]
            line += [", ".join(f"{own[k]:.4f}" for k in LOGIC)] if name == "embedded" else []
        rows.append(line)
    for cores, mm2 in SYSTEMS.items():
        if cores > 1:
            line = [f"{cores} cores", f"{mm2:.2f}", ""]
            for name, library in libraries.items():
                value = {k: cores * x for k, x in library["rows"]["core"]["area"].items()}
                line += [f"{value['value']:.2f} ({value['low']:.1f} to {value['high']:.1f})", ""]
                line += [""] if name == "embedded" else []
            rows.append(line)
    return table(head, rows)


def readings(known: dict) -> str:
    """The table of the WTU's variants by the readings of a row."""
    variants, dre = known["readings"], known["area"]["embedded"]["rows"]["dre"]["area"]["value"]
    first = variants["as generated"]
    nand2 = technology.node(NODE).nand2.value / 1e6
    rows = []
    for name, v in variants.items():
        more = (v["ge"] - first["ge"]) * nand2 + v["memories"] - first["memories"]
        cycles = (f"{n:,}" for n in v["rows"].values())
        times = (f"{ms:.1f}" for ms in v["frames"].values())
        rows.append([name, str(v["readings"]), f"{v['ge'] / 1000:.1f}", f"{dre + more:.4f}", *cycles, *times])
    head = ["WTU", "readings", "kGE", "DRE, mm²", *(f"row of {int(n):,}" for n in first["rows"])]
    return table([*head, *(f"{name}, ms" for name in first["frames"])], rows)


def power_table3(known: dict) -> str:
    """The powers of Table III."""
    ours = known["power"]["embedded"]["dre"]["table3"]
    whole = sum(ours.values())
    lines = [(name, PRINTED[key], ours[key]) for key, (name, *_) in PAPER.items()]
    lines += [(name, 0.0, ours[key]) for key, name in OWN.items()]
    lines.append(("**DRE**", PRINTED_DRE, sum(ours[k] for k in DRE)))
    lines.append(("Core", POWER, whole))
    rows = []
    for name, paper, mw in lines:
        theirs = (f"{paper:,.1f}", f"{100 * paper / POWER:.2f}") if paper else ("-", "-")
        rows.append([name, *theirs, f"{mw:,.2f}", f"{100 * mw / whole:.2f}"])
    return table(["", "paper mW", "%", "ours mW", "%"], rows)


def core_power(known: dict) -> dict[str, float]:
    """Milliwatts of a core's units for the simulator (`sim.system.platforms.POWER`), rounded to four digits."""
    of = known["power"]["embedded"]
    dpe = of["dpe"]
    powers = {
        "dpe idle": dpe["idle"],
        "dpe busy": (dpe["total"] - dpe["idle"]) / dpe["use"],
        "vpe": of["vpe"]["total"],
        "dre": of["dre"]["total"],
        "memory": 0.0,  # in the others
    }
    return {name: float(f"{mw:.4g}") for name, mw in powers.items()}


def power(known: dict) -> str:
    """The power of each unit alone, and of the DRE's units in its own run."""
    first, *others = known["power"].values()
    paper = {name: f"{mw:,.1f}" for name, mw in (PRINTED | {"dre": PRINTED_DRE}).items()}
    paper["wtu"] += " with cluster_set"
    paper |= {name: f"{paper[name]} without memories" for name in ("vpe", "dpe")}
    rows = []
    for name, u in first.items():
        pj = ", ".join(f"{u['pj'][k]:,.2f}" for k in ("switching", "internal", "clock"))
        rows.append([name, f"{u['cycles']:,}", pj, *_powers(u, [x[name] for x in others]), paper.get(name, "")])
        for part, p in u["parts"].items() if name == "dre" else ():
            inner = part.rstrip("0123456789")
            title, theirs = ("- the join", "") if part == "dre" else (f"- {inner} in it", paper.get(inner, ""))
            rows.append([title, "", "", *_powers(p, [x[name]["parts"][part] for x in others]), theirs])
    head = ["unit", "cycles", "nets, cells, clock, pJ a cycle", "logic", "memories", "all", "idle"]
    return table([*head, *(f"logic, {library}" for library in list(known["power"])[1:]), "paper"], rows)


def _powers(own: dict, others: list[dict]) -> list[str]:
    powers = (own[k] for k in ("dynamic", "memory", "total", "idle"))
    return [f"{x:,.2f}" for x in (*powers, *(o["dynamic"] for o in others))]


BLOCKS: dict[str, Callable[[dict], str]] = {
    "clock": clock,
    "layout": layout,
    "scan": scan,
    "area": area,
}


def cited(known: dict) -> list[tuple[str, str]]:
    """Page and text, for each sentence or part of one that has recorded figures."""
    embedded = known["area"]["embedded"]
    shares = {name: _share(x["rows"], "dre") for name, x in known["area"].items()}
    powers = known["power"]["embedded"]
    alone = sum(powers[u]["total"] for u in ("hcu", "wtu", "cluster_set", "kvmu"))
    pj = ("switching", "internal", "clock")
    clocks = [u["pj"]["clock"] / sum(u["pj"][k] for k in pj) for x in known["power"].values() for u in x.values()]
    ours = powers["dre"]["table3"]
    core = sum(ours.values())
    ratios = [
        [u["dynamic"] / known["power"][library][name]["dynamic"] for name, u in powers.items()]
        for library in ("ASAP7", "SKY130")
    ]
    over = [
        f"{min(x):.2f} to {max(x):.2f} times {library}'s"
        for x, library in zip(ratios, ("ASAP7", "SKY130"), strict=True)
    ]
    clocked = f"The clock takes {100 * min(clocks):.0f} to {100 * max(clocks):.0f} % of the logic's"
    memory = embedded["rows"]["memory"]
    simulated = core_power(known)
    rest = sum(simulated.values()) - simulated["dpe busy"]
    cores = f"{rest / 1000:.2f} W idle to {sum(simulated.values()) / 1000:.1f} W busy each"
    faults = sum(u["open"] + u["split"] + u["touching"] for u in known["layout"].values())
    longer = [u["with_wires"] / u["delay"] for u in known["layout"].values()]
    apart = max(abs(u["opensta_wires"] / u["with_wires"] - 1) for u in known["layout"].values())
    slowest = max(known["clock"], key=lambda name: known["clock"][name]["with_access"])
    latest = max(known["clock"], key=lambda name: known["clock"][name]["at_14"])
    placed = {name: f"{units['dre']['mhz']:.0f}" for name, units in known["fpga"].items()}
    at_14 = f"{1e6 / known['clock'][latest]['at_14']:,.0f} MHz"
    return [
        ("papers/evaluation.md", f"cores of our synthesis ({cores}"),
        ("size.md", f"The DRE of `core` reaches {placed['core']} MHz there, that of `small` {placed['small']}"),
        (
            "limits.md",
            f"allow {at_14} in the slowest recorded unit (`{latest}`)",
        ),
        ("limits.md", f"{clocked} power"),
        ("size.md", f"The slowest unit, `{slowest}`, allows {1e6 / known['clock'][slowest]['with_access']:,.0f} MHz"),
        ("size.md", f"KLayout finds {faults or 'no'} net open or touching another"),
        ("size.md", f"A path is {min(longer):.2f} to {max(longer):.2f} times as long with wires"),
        ("size.md", f"OpenSTA's delays with wires are within {math.ceil(100 * apart)} %"),
        ("size.md", f"it agrees with OpenSTA within {_worst(known['opensta']):.2f} %"),
        ("size.md", "agrees within {} %, with our slew and loads within {} %".format(*_apart(known["opensta_power"]))),
        ("size.md", f"At {NODE} nm it is `{latest}` with {at_14}"),
        ("size.md", clocked),
        ("size.md", f"the embedded library's logic is {over[0]} and {over[1]}"),
        (
            "limits.md",
            f"The DRE is {shares['embedded']:.2f} % of our core** by the embedded library "
            f"({shares['ASAP7']:.2f} % by ASAP7's)",
        ),
        (
            "limits.md",
            f"On-chip memory is {memory['area']['value']:.2f} mm²** where the paper has {memory['paper_area']:.2f}",
        ),
        (
            "size.md",
            f"our core takes {embedded['rows']['core']['area']['value']:.2f} mm² (paper: {CORE:.2f})",
        ),
        ("size.md", f"(DRE) is {shares['embedded']:.2f} % of it"),
        ("size.md", f"The DRE takes {100 * sum(ours[k] for k in DRE) / core:.1f} % of the core's power"),
        ("size.md", f"each as busy as it can be, are {alone:.1f} mW in sum"),
    ]


def _worst(libraries: dict) -> float:
    """The largest difference (%) of a longest path from OpenSTA's, rounded up to 0.01."""
    paths = [path for units in libraries.values() for path in units.values()]
    return math.ceil(1e4 * max(abs(x["ours"] / x["opensta"] - 1) for x in paths)) / 100


def _apart(libraries: dict) -> tuple[int, int]:
    """The largest difference (%) of a unit's power from OpenSTA's, as it is and with our slew and loads, rounded up."""
    rows = [beside(unit)["all"].differences for units in libraries.values() for unit in units.values()]
    first, last = ([abs(x) for row in rows if (x := row[i]) is not None] for i in (0, -1))
    alone = "has no power with our slew and loads: record with release 2.0"
    check(len(first) == len(last) == len(rows), "sta", "a release that reads SAIF", alone)
    return math.ceil(max(first)), math.ceil(max(last))


def _share(rows: dict, name: str) -> float:
    return 100 * rows[name]["area"]["value"] / rows["core"]["area"]["value"]
