"""Draw docs/packages.svg: which package imports which, read from the import statements.

    python -m tools.draw_packages [--output FILE]

A package is drawn above the packages that it imports. A direct line is left out if a path of other lines connects the same
packages.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from cnn_harness.base import plugins
from cnn_harness.base.process import command_line
from cnn_harness.harness.reports import chart, output

ROOT = plugins.ROOT
PACKAGE = "cnn_harness"
PLACES = (ROOT / PACKAGE, ROOT)  # of the modules of the package
PURPOSES = {  # the name of each package and its purpose in a few words
    "commands": "train, validation, restore, tools, api",
    "harness.training": "the training loop and its events",
    "harness.commands": "code that all commands share",
    "harness.evaluation": "validation, predictions for photos",
    "harness.programs": "programs of a run, loss",
    "harness.distributed": "start instances, notice lost ones",
    "harness.checkpoints": "find, verify, read, write, average",
    "harness.reports": "charts, pages, profiles, trackers",
    "harness.run": "a run: options, data, length, cluster",
    "harness.options": "options, configurations, calls",
    "Optimisers": "optimisers and their options",
    "ipu_utils": "the device layer's interface",
    "emulator.numerics": "histograms of exponents",
    "emulator.inference": "inference programs",
    "emulator.program": "training programs: gradients, updates",
    "emulator.layers": "layers, norms, rounding in TensorFlow",
    "emulator.native": "kernels in C++",
    "emulator.cost_model": "time and memory on a POD",
    "emulator.plan": "stages, schedules, number formats",
    "Models": "networks",
    "LR_Schedules": "learning rates",
    "Datasets": "data sets and input pipelines",
    "tools.datasets": "convert and verify data sets",
    "log": "log.txt, CSV tables",
    "base": "option fields, random draws, files, signals, errors",
}
COLOURS = {"harness": "#dce8f5", "emulator": "#e3f0e6", "ipu_utils": "#e3f0e6", "base": chart.LIGHT, "commands": "#f6e3da"}
PLUGINS = ("Models", "LR_Schedules", "Datasets", "Optimisers")
BOX, GAP, ROW, EDGE = 290, 24, 62, 12  # pixels: width of a box, gap between boxes, height of a row, margin


def imported(path: Path, top_level_only: bool = False, types: bool = False) -> set[str]:
    """Return the modules that a file imports, without the package's name. `types` includes imports under TYPE_CHECKING."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node) for test in ast.walk(tree) if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.dump(test.test)
               for node in ast.walk(test)}  # fmt: skip
    found: set[str] = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if id(node) in skipped and not types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if _is_module(_short(name)) else node.module for name in names}
    return set(map(_short, found))


def module(path: Path) -> str:
    """Return the name of a file's module, without the package's name."""
    return _short(".".join(path.relative_to(ROOT).with_suffix("").parts))


def _short(name: str) -> str:
    return name.removeprefix(f"{PACKAGE}.")


def _is_module(name: str) -> bool:
    paths = [place.joinpath(*name.split(".")) for place in PLACES]
    return any(path.with_suffix(".py").exists() or path.is_dir() for path in paths)


def package(module: str) -> str | None:
    """Return the drawn package that contains a module; None for modules of other projects."""
    parts = module.split(".")
    for name in (".".join(parts[:2]), parts[0]):
        if name in PURPOSES:
            return name
    is_script = any((place / f"{parts[0]}.py").exists() for place in PLACES)
    return "commands" if parts[0] == "tools" or is_script else None


def graph() -> dict[str, set[str]]:
    """Return the packages that each package imports, except packages that it also imports indirectly."""
    files = [*ROOT.glob("*.py"), *(file for folder in (PACKAGE, *PLUGINS) for file in (ROOT / folder).rglob("*.py"))]
    edges: dict[str, set[str]] = {name: set() for name in PURPOSES}
    for file in files:
        here = package(module(file))
        if here:
            edges[here] |= {package(name) for name in imported(file)} - {None, here}

    @cache
    def below(name: str) -> frozenset[str]:
        return frozenset(edges[name]).union(*map(below, edges[name]))

    return {name: {other for other in to if not any(other in below(via) for via in to)} for name, to in edges.items()}


def rows(edges: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the row of each package: 0 without imports, else one above the highest package that it imports."""

    @cache
    def row(name: str) -> int:
        return 1 + max(map(row, edges[name]), default=-1)

    return {name: row(name) for name in edges}


def _columns(edges: Mapping[str, set[str]]) -> dict[str, tuple[float, float]]:
    """Return the upper left corner of each box. The emulator is drawn on the left, the harness on the right."""
    levels = rows(edges)
    top = max(levels.values())
    places, taken = {}, {}
    for name in sorted(edges, key=lambda name: (levels[name], list(PURPOSES).index(name))):
        device = name.startswith(("emulator", "ipu_utils"))
        column = 0 if device or levels[name] == 1 else 2
        while (levels[name], column) in taken:
            column += 1
        taken[levels[name], column] = name
        places[name] = (EDGE + column * (BOX + GAP), EDGE + (top - levels[name]) * ROW)
    return places


def draw(edges: Mapping[str, set[str]]) -> str:
    """Return the drawing as SVG."""
    places = _columns(edges)
    width = max(x for x, _ in places.values()) + BOX + EDGE
    places["base"] = (EDGE, places["base"][1])
    height = max(y for _, y in places.values()) + ROW
    parts = []
    for name, below in edges.items():
        for other in sorted(below - {"base"}):  # every package imports base, so lines to it say nothing
            (x, y), (to_x, to_y) = places[name], places[other]
            x, y, to_x = x + BOX / 2, y + ROW - 18, to_x + BOX / 2
            parts.append(f'<path d="M{x:g} {y:g}C{x:g} {y + 40:g} {to_x:g} {to_y - 40:g} {to_x:g} {to_y:g}"/>')
    lines = f'<g fill="none" stroke="{chart.AXIS}" stroke-width="1.2">{"".join(parts)}</g>'
    boxes = []
    for name, (x, y) in places.items():
        wide = width - 2 * EDGE if name == "base" else BOX
        fill = COLOURS.get(name.split(".")[0], "#fbf3d9")
        boxes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{ROW - 18}" rx="5" fill="{fill}" stroke="{chart.AXIS}"/>'
            f'<text x="{x + 10:g}" y="{y + 18:g}" font-weight="bold">{name.replace(".", "/")}</text>'
            f'<text x="{x + 10:g}" y="{y + 36:g}" fill="{chart.SOFT}">{PURPOSES[name]}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        'role="img" aria-label="the packages and what they import" font-family="sans-serif" font-size="13">'
        f'<rect width="100%" height="100%" fill="{chart.PAPER}"/>{lines}{"".join(boxes)}</svg>\n'
    )


def main(argv: list[str]) -> int:
    """Draw; return the exit code."""
    parser = command_line.Parser(prog="draw_packages.py", description=__doc__)
    parser.add_argument(
        "--output", default=str(ROOT / "docs/packages.svg"), help="file to write (default: docs/packages.svg)"
    )
    output.write_atomically(parser.parse_args(argv).output, draw(graph()), output.SVG)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run("draw_packages.py", main, None, ()))
