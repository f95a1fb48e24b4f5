"""What every plot is drawn with: matplotlib, and its SVG made into a part of the page or a file of its own.

Letters stay letters, so that a page can be searched and its reader's fonts are used; they are measured in one that is
wider than most. Colours become the page's variables, light and dark. The same values always give the same bytes.
"""

from __future__ import annotations

import io
import json
import math
import re
import textwrap
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from perf.report import numbers
from perf.report.markup import Markup, printable
from perf.report.systems import look_of, variables

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

WIDTH = 760.0
"""Of every drawing, in pixels of the page."""
TEXT, SMALL = 12.0, 11.0
LINE_HEIGHT = 15.0
FAR_APART = 20.0
"""Values further apart than this many times get a logarithmic axis: on a linear one the smallest is not seen."""
INK, QUIET, GRID, PAPER = "#1d2126", "#5a6370", "#e7eaee", "#ffffff"

_VARIABLES = {"ink": INK, "quiet": QUIET, "grid": GRID, "paper": PAPER, **variables()}
_LEAST, _MOST = 1e-60, 1e60  # nothing that is measured lies beyond, and matplotlib computes with squares
_LETTER = 7.0  # pixels of one on an axis, rather too many than too few
_TIPS = "tips:"
_SVG = "{http://www.w3.org/2000/svg}"
_FONTS = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
_STYLE = {
    "axes.axisbelow": True, "axes.edgecolor": QUIET, "axes.facecolor": "none", "axes.grid": True,
    "axes.labelcolor": QUIET, "axes.labelsize": SMALL, "axes.spines.left": False, "axes.spines.right": False,
    "axes.spines.top": False, "figure.constrained_layout.use": True, "figure.facecolor": "none", "font.size": TEXT,
    "grid.color": GRID, "legend.fontsize": TEXT, "legend.frameon": False, "lines.markeredgecolor": PAPER,
    "lines.markeredgewidth": 0.7, "svg.fonttype": "none", "svg.hashsalt": "fastlog", "text.color": INK,
    "text.parse_math": False, "xtick.color": QUIET, "xtick.labelsize": SMALL, "ytick.color": QUIET,
    "ytick.labelsize": SMALL, "ytick.major.size": 0.0,
}  # fmt: skip


@contextmanager
def figure(height: float) -> Iterator[tuple[Figure, Axes]]:
    """A drawing that is ``height`` pixels high, and the axes in it, to be drawn on until the block ends."""
    with _styled():
        made = Figure(figsize=(WIDTH / 72, height / 72))
        yield made, made.subplots()


@contextmanager
def _styled() -> Iterator[None]:
    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the reader's fonts may have it
        yield


def placed(values: Sequence[float]) -> list[float]:
    """Values that can be drawn: those that no measurement comes near are put on the edge."""
    return [math.copysign(min(max(abs(value), _LEAST), _MOST), value) if value else 0.0 for value in values]


def axis(axes: Axes, which: Literal["x", "y"], values: Sequence[float], unit: str, *, zero: bool = True) -> bool:
    """Make an axis fit for the values, with quantities beside its ticks; return whether it is logarithmic.

    It is where they are far apart; else it begins with 0 where ``zero`` asks for it.
    """
    line = axes.xaxis if which == "x" else axes.yaxis
    set_scale, set_limits = (axes.set_xscale, axes.set_xlim) if which == "x" else (axes.set_yscale, axes.set_ylim)
    found = placed([value for value in values if math.isfinite(value)]) or [0.0, 1.0]
    low, high = min(found), max(found)
    log = low > 0 and high / FAR_APART > low
    if log:
        decades = math.log10(high / low)
        set_scale("log")
        line.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 3 else (1, 3) if decades < 5 else (1,)))
        room = 10 ** (decades / 40)
        set_limits(low / room, high * room)
    else:
        low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
        line.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
        room = (high - low) / 40 or abs(high) / 2 or 1.0
        set_limits(low - (0 if zero and low == 0 else room), high + room)
    line.set_minor_locator(NullLocator())
    line.set_major_formatter(FuncFormatter(lambda value, _: numbers.tick(value, unit)))
    return log


def marks(axes: Axes, labelled: Sequence[tuple[float, str]], *, log: bool) -> None:
    """Write these values below the axes, without those whose labels would touch the one before."""
    low, high = (math.log10(end) if log else end for end in axes.get_xlim())
    edge, kept = -math.inf, {}
    for value, label in labelled:
        place = ((math.log10(value) if log else value) - low) / (high - low) * WIDTH * 0.65
        half = len(label) * _LETTER / 2
        if place - half >= edge:
            kept[value], edge = label, place + half
    axes.xaxis.set_major_locator(FixedLocator(list(kept)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: kept.get(value, "")))


def rows_of(text: str, letters: int, rows: int) -> list[str]:
    """A text in rows, the last one with an ellipsis where there are more."""
    return textwrap.wrap(printable(text), letters, max_lines=rows, placeholder=" …") or [""]


def mark(system: str) -> dict[str, Any]:
    """The marker and colour of a system's points, as keywords for matplotlib."""
    look = look_of(system)
    size = 9.0 if look.marker == "*" else 6.0  # a star is hollow between its points
    return {"color": look.light, "marker": look.marker, "markersize": size, "linestyle": "none"}


def explain(artist: Artist, tips: Sequence[str]) -> None:
    """Show a text under the pointer at each of the points that ``artist`` draws."""
    artist.set_gid(_TIPS + json.dumps(tips))


def embedded(made: Figure, key: str, title: str, description: str) -> Markup:
    """The drawing as a part of the page; ``key`` makes its ids differ from those of all others on it."""
    root = _svg(made, key, {colour: f"var(--{name})" for name, colour in _VARIABLES.items()})
    root.attrib |= {"role": "img", "aria-labelledby": f"{key}-t {key}-d"}
    for tag, text in (("desc", description), ("title", title)):
        node = ET.Element(tag, id=f"{key}-{tag[0]}")
        node.text = printable(text)
        root.insert(0, node)
    return Markup(ET.tostring(root, encoding="unicode"))


def standalone(made: Figure, title: str) -> bytes:
    """The drawing as a file, on white paper."""
    root = _svg(made, "plot", {})
    root.attrib |= {"xmlns": _SVG[1:-1], "font-family": _FONTS, "style": f"{root.get('style')}; background: {PAPER}"}
    node = ET.Element("title")
    node.text = printable(title)
    root.insert(0, node)
    return ET.tostring(root)


def _svg(made: Figure, key: str, colours: Mapping[str, str]) -> ET.Element:
    """What matplotlib draws, without what would reach out of the drawing: names of its own, a style sheet, ids."""
    written = io.StringIO()
    with _styled():
        made.savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ET.fromstring(written.getvalue())
    used = set(re.findall(r"#([-\w]+)[\")]", written.getvalue()))
    for node in root.iter():
        node.tag = node.tag.removeprefix(_SVG)
        node.attrib = {
            name.rpartition("}")[2]: _attribute(name, value, key, colours) for name, value in node.attrib.items()
        }
        tips = node.attrib.get("id", "")
        if tips.startswith(_TIPS):
            points = list(node.iter(f"{_SVG}use")) or list(node.iter(f"{_SVG}path"))
            for point, tip in zip(points, json.loads(tips.removeprefix(_TIPS)), strict=True):
                ET.SubElement(point, f"{_SVG}title").text = printable(tip)
        if tips not in used:
            node.attrib.pop("id", None)
        elif tips:
            node.set("id", f"{key}-{tips}")
        if node.get("transform", "").startswith("rotate(-0 "):
            del node.attrib["transform"]
        if node.tag != "text":  # nothing but the indentation is lost
            node.text = node.text and node.text.strip()
        node.tail = None
    for definitions in root.findall("defs"):
        for sheet in definitions.findall("style"):
            definitions.remove(sheet)
    root.attrib = {"viewBox": root.attrib["viewBox"], "style": "stroke-linejoin: round"}
    return root


def _attribute(name: str, value: str, key: str, colours: Mapping[str, str]) -> str:
    if name == "style":
        value = re.sub(r"#[0-9a-f]{6}\b", lambda found: colours.get(found[0], found[0]), value)
        return re.sub(r" ?font-family: [^;]*;?", "", value)
    if name.endswith("href") or name == "clip-path":
        return value.replace("#", f"#{key}-")
    if name in {"d", "x", "y", "transform", "width", "height"}:
        return " ".join(re.sub(r"(\.\d\d)\d+", r"\1", value).split())
    return value
