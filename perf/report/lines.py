"""Lines with every repetition as a dot: a value over time, over size, over percentiles; each named at its end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perf.report import numbers
from perf.report.canvas import LINE_HEIGHT, SMALL, TEXT, Canvas
from perf.report.markup import Markup
from perf.report.scales import Scale, fitted, scale_for, spaced, text_width, tight_scale, wrapped
from perf.report.systems import class_of, look_of

_MOST_POINTS = 240  # of one line; more than that are not seen at this width
_MOST_NAMES = 230.0  # pixels right of a wide plot; longer names take more lines
_NAME_LINES = 3
_DASHES = ("", " d1", " d2", " d3", " d4", " d5")

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line. ``points``: what it goes through; ``dots``: single repetitions; ``ghosts``: lines of repetitions.

    ``variant`` tells lines of one system apart (0 is drawn whole, others dashed). A line of one point is a mark, a
    ``level`` one goes all the way across.
    """

    name: str
    system: str
    points: Sequence[Point] = ()
    dots: Sequence[Point] = ()
    ghosts: Sequence[Sequence[Point]] = ()
    variant: int = 0
    marks: bool = True
    level: float | None = None

    @property
    def places(self) -> list[Point]:
        """Everything that has to be on the plot."""
        return [*self.points, *self.dots, *itertools.chain(*self.ghosts)]


@dataclass(frozen=True, kw_only=True)
class Axes:
    """What the axes say; ``x_ticks`` fixes them where values are no plain numbers. ``x_marks``: values to write
    instead of round ones. ``x_from_zero``: linear,
    from 0, whatever the values."""

    x_title: str
    y_unit: str
    y_title: str
    x_unit: str = ""
    x_ticks: Sequence[tuple[float, str]] | None = None
    x_marks: Sequence[float] = ()
    x_from_zero: bool = False


def draw(lines: Sequence[Line], axes: Axes, width: float, key: str, title: str) -> Markup:
    """Draw the lines on common axes; an axis is logarithmic when its values are far apart."""
    canvas = Canvas(width)
    names = max((text_width(line.name, TEXT) for line in lines), default=0)
    right = 8.0 if canvas.narrow else min(max(names + 20, 60), _MOST_NAMES)
    y_values = [y for line in lines for _, y in line.places] + [line.level for line in lines if line.level is not None]
    top = 28.0 + (_key_height(lines) if canvas.narrow else 0)
    plot = max(230.0 if canvas.narrow else 250.0, 0 if canvas.narrow else _names_height(lines))
    y_scale = scale_for(y_values, top + plot, top)
    y_labels = [(value, numbers.tick(value, axes.y_unit)) for value in y_scale.ticks(7)]
    left = max((text_width(label, SMALL) for _, label in y_labels), default=0) + 8
    place = _x_scale(lines, axes, left + 4, canvas.width - right)
    if canvas.narrow:
        _key(canvas, lines)
    canvas.text(0, top - 14, fitted(_y_title(axes, y_scale), canvas.width, SMALL), "a")
    for value, label in y_labels:
        canvas.line(left, y_scale(value), canvas.width - right, y_scale(value), "grid")
        canvas.text(left - 6, y_scale(value) + 4, label, "a", anchor="end")
    _x_axis(canvas, place, axes, top + plot)
    for line in lines:
        _line(canvas, line, place, y_scale, axes)
    if not canvas.narrow:
        _names(canvas, lines, place, y_scale, canvas.width - right, top, top + plot)
    return canvas.svg(top + plot + 2 * LINE_HEIGHT + 12, key, title, _description(lines, axes))


def _names_height(lines: Sequence[Line]) -> float:
    tallest = max((len(wrapped(line.name, _MOST_NAMES - 16, TEXT, _NAME_LINES)) for line in lines), default=1)
    return (LINE_HEIGHT * tallest + 6) * len(lines)


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most so many points as can be seen: neighbours are put together as their mean."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    size = -(-len(points) // _MOST_POINTS)
    found = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        found.append((sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)))
    return found


def _x_scale(lines: Sequence[Line], axes: Axes, start: float, end: float) -> Scale:
    values = [x for line in lines for x, _ in line.places]
    if axes.x_ticks is not None:
        values = [value for value, _ in axes.x_ticks]
        return Scale(min(values), max(values) if max(values) > min(values) else min(values) + 1, start, end)
    if axes.x_from_zero:
        return tight_scale([0.0, *values], start, end)
    return tight_scale(values, start, end)


def _x_axis(canvas: Canvas, scale: Scale, axes: Axes, bottom: float) -> None:
    canvas.line(scale.start - 4, bottom, scale.end, bottom, "axis")
    found = list(axes.x_ticks) if axes.x_ticks is not None else None
    if found is None:
        marks = sorted(set(axes.x_marks)) or scale.ticks(6 if canvas.narrow else 9)
        found = [(value, numbers.tick(value, axes.x_unit)) for value in marks]
    edge = 0.0
    for value, label in found:
        x, half = scale(value), text_width(label, SMALL) / 2
        canvas.line(x, bottom, x, bottom + 4, "axis")
        x = min(max(x, half), canvas.width - half)
        if x - half >= edge:
            canvas.text(x, bottom + 16, label, "a", anchor="middle")
            edge = x + half + 6
    title = axes.x_title + (", logarithmic" if scale.log else "")
    canvas.text(scale.start - 4, bottom + 2 * LINE_HEIGHT + 5, fitted(title, canvas.width - scale.start, SMALL), "a")


def _y_title(axes: Axes, scale: Scale) -> str:
    return axes.y_title + (", logarithmic" if scale.log else "")


def _line(canvas: Canvas, line: Line, x: Scale, y: Scale, axes: Axes) -> None:
    look, colour = look_of(line.system), class_of(line.system)
    dash = _DASHES[line.variant % len(_DASHES)]
    if line.level is not None:
        canvas.line(x.start - 4, y(line.level), x.end, y(line.level), f"level {colour}")
        return
    for ghost in line.ghosts:
        canvas.path([(x(a), y(b)) for a, b in thinned(ghost)], f"ghost {colour}")
    points = [(x(a), y(b)) for a, b in thinned(line.points)]
    if len(points) > 1:
        canvas.path(points, f"line {colour}{dash}")
    for a, b in line.dots:
        canvas.point(x(a), y(b), "circle", f"faint {colour}", 1.8)
    if line.marks or len(points) == 1:
        for (a, b), (at_x, at_y) in zip(line.points, points, strict=False):
            told = f"{line.name}, {numbers.short(a, axes.x_unit)}: {numbers.quantity(b, axes.y_unit)}"
            canvas.point(at_x, at_y, look.shape, colour, title=told)


def _names(canvas: Canvas, lines: Sequence[Line], x: Scale, y: Scale, edge: float, top: float, bottom: float) -> None:
    """Each line's name at the height of its end, moved where two would touch, with a thin lead to it."""
    named = [line for line in lines if line.points or line.level is not None]
    ends = [(edge, y(line.level)) if line.level is not None else _end(line, x, y) for line in named]
    room = canvas.width - edge - 16
    rows = [wrapped(line.name, room, TEXT, _NAME_LINES) for line in named]
    tallest = max((len(row) for row in rows), default=1)
    places = spaced([end for _, end in ends], LINE_HEIGHT * tallest + 3 * (tallest - 1), top, bottom)
    for line, row, (end_x, end_y), place in zip(named, rows, ends, places, strict=True):
        canvas.path([(end_x + 5, end_y), (max(edge + 2, end_x + 5), end_y), (edge + 12, place)], "lead")
        y_text = place + 4 - (len(row) - 1) * LINE_HEIGHT / 2
        for number, text in enumerate(row):
            canvas.text(edge + 15, y_text + number * LINE_HEIGHT, text, f"k {class_of(line.system)}", full=line.name)


def _end(line: Line, x: Scale, y: Scale) -> Point:
    last = thinned(line.points)[-1]
    return x(last[0]), y(last[1])


def _key_height(lines: Sequence[Line]) -> float:
    return LINE_HEIGHT * 1.15 * len(lines) + 4


def _key(canvas: Canvas, lines: Sequence[Line]) -> None:
    """Where there is no room beside the plot the names stand above it, one a line."""
    for number, line in enumerate(lines):
        y = 9 + number * LINE_HEIGHT * 1.15
        colour = class_of(line.system)
        style = "level" if line.level is not None else f"line{_DASHES[line.variant % len(_DASHES)]}"
        canvas.line(0, y - 1, 22, y - 1, f"{style} {colour}")
        if line.marks and line.level is None:
            canvas.point(11, y - 1, look_of(line.system).shape, colour)
        canvas.text(28, y + 3, fitted(line.name, canvas.width - 30, TEXT), f"k {colour}", full=line.name)


def _description(lines: Sequence[Line], axes: Axes) -> str:
    told: Callable[[float], str] = lambda value: numbers.quantity(value, axes.y_unit)  # noqa: E731
    said = []
    for line in lines:
        if line.level is not None:
            said.append(f"{line.name}: {told(line.level)}.")
        elif line.points:
            ys = [y for _, y in line.points]
            first, last = line.points[0][1], line.points[-1][1]
            said.append(
                f"{line.name}: from {told(first)} to {told(last)}, between {told(min(ys))} and {told(max(ys))}."
            )
    return f"{axes.y_title} against {axes.x_title}. " + " ".join(said)
