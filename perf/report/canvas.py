"""A drawing: SVG pieces put down in pixels, with a title and a description for those who cannot see it."""

from __future__ import annotations

from perf.report.markup import Markup, element, join
from perf.report.scales import Scale

WIDE = 760
NARROW = 380
"""Every plot is drawn twice, for screens and paper and for phones; the style sheet shows the one that fits."""

TEXT = 12.0
SMALL = 11.0
LINE_HEIGHT = 14.0


class Canvas:
    """Collects what is drawn; ``svg`` makes one element of it. Later pieces lie above earlier ones."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.narrow = width < WIDE
        self._parts: list[Markup] = []

    def add(self, part: Markup) -> None:
        """Put down what was made elsewhere."""
        self._parts.append(part)

    def text(
        self, x: float, y: float, text: str, class_: str = "t", *, anchor: str | None = None, full: str | None = None
    ) -> None:
        """A line of text on its base line; ``full`` is what a cut text was, shown under the pointer."""
        shown = element("title", full) if full is not None and full != text else None
        self.add(element("text", shown, text, x=x, y=y, class_=class_, text_anchor=anchor))

    def line(self, x1: float, y1: float, x2: float, y2: float, class_: str) -> None:
        """A straight line."""
        self.add(element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_))

    def path(self, points: list[tuple[float, float]], class_: str) -> None:
        """A line through points."""
        steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.add(element("path", d=f"M{steps}", class_=class_))

    def rect(self, x: float, y: float, width: float, height: float, class_: str, title: str | None = None) -> None:
        """A rectangle, with a text under the pointer."""
        shown = element("title", title) if title else None
        self.add(element("rect", shown, x=x, y=y, width=max(width, 0.0), height=height, class_=class_))

    def point(self, x: float, y: float, shape: str, class_: str, size: float = 3.2, title: str | None = None) -> None:
        """A mark of one of the shapes, about ``size`` around its place."""
        shown = element("title", title) if title else None
        if shape in {"circle", "ring"}:
            ring = " ring" if shape == "ring" else ""
            self.add(element("circle", shown, cx=x, cy=y, r=size, class_=f"p {class_}{ring}"))
            return
        drawn = {
            "square": "M-.9,-.9H.9V.9H-.9Z",
            "up": "M0,-1.2L1.1,.8H-1.1Z",
            "down": "M0,1.2L1.1,-.8H-1.1Z",
            "diamond": "M0,-1.35L1.35,0L0,1.35L-1.35,0Z",
            "cross": "M-.4,-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z",
            "star": "M0,-1.4L.4,-.4L1.4,0L.4,.4L0,1.4L-.4,.4L-1.4,0L-.4,-.4Z",
        }[shape]
        place = f"translate({x:.1f} {y:.1f}) scale({size:.1f})"
        self.add(element("path", shown, d=drawn, transform=place, class_=f"p {class_}"))

    def grid(self, scale: Scale, labels: list[tuple[float, str]], top: float, bottom: float, *, both: bool) -> None:
        """Vertical lines at the labelled values; their texts stand below, and above too when ``both``."""
        for value, label in labels:
            x = scale(value)
            self.line(x, top, x, bottom, "grid")
            self.text(x, bottom + LINE_HEIGHT, label, "a", anchor="middle")
            if both:
                self.text(x, top - 6, label, "a", anchor="middle")

    def svg(self, height: float, key: str, title: str, description: str) -> Markup:
        """The drawing as one element; ``key`` makes its ids differ from those of all others on the page."""
        kind = "narrow" if self.narrow else "wide"
        key = f"{key}-{kind}"
        return element(
            "svg",
            element("title", title, id=f"{key}-t"),
            element("desc", description, id=f"{key}-d"),
            join(self._parts),
            viewBox=f"0 0 {self.width:g} {height:.0f}",
            class_=kind,
            role="img",
            aria_labelledby=f"{key}-t {key}-d",
        )
