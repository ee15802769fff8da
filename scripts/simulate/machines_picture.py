"""Draws `vrex simulate machines`: time and energy of a frame over the cache, for each number of streams."""

from pathlib import Path

from openvrex.sim.system.frame_times import size
from openvrex.sim.system.machines import CACHES, EDGES, Cell, Way
from openvrex.sim.system.pass_picture import plt, saved

LABELS = {"ms": "ms a frame", "joules": "J a frame"}
STYLES = {"memory": "-", "host": "--", "drive": ":"}


def draw(some: list[Way], found: dict[int, dict[str, list[Cell]]], folder: Path) -> list[Path]:
    """machines.svg and machines.png: a colour for each machine, a style for each home, thin lines for servers."""
    figure, axes = plt.subplots(2, len(found), figsize=(5 * len(found) + 2, 7), squeeze=False, layout="constrained")
    names = list(dict.fromkeys(w.machine for w in some))
    colours = {name: f"C{i}" for i, name in enumerate(names)}
    for column, (streams, cells) in enumerate(found.items()):
        for row, (field, label) in enumerate(LABELS.items()):
            axis = axes[row][column]
            for w in some:
                points = [(c.cache, getattr(c, field)) for c in cells[w.name]]
                x, y = zip(*points, strict=True) if points else ((), ())
                wide = 1.8 if w.kind == EDGES else 0.9
                axis.plot(x, y, STYLES[w.home], color=colours[w.machine], linewidth=wide, marker=".", label=w.name)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xticks(CACHES, [size(n) for n in CACHES])
            axis.minorticks_off()
            axis.set_ylabel(label)
            axis.grid(linewidth=0.3)
            axis.set_title(f"{streams} stream{'s' * (streams > 1)}", fontsize=9)
        axes[-1][column].set_xlabel("tokens of each stream in the cache")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=7)
    return saved(figure, folder, "machines")
