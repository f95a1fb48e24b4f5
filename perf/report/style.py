"""The style sheet: one column of 760 pixels with notes beside it, light and dark, and paper."""

from __future__ import annotations

import re

from perf.report.systems import variables

_LIGHT = """
--paper: #fff; --ink: #1d2126; --quiet: #5a6370; --rule: #d5dae0; --grid: #e7eaee; --met: #00714f; --missed: #b3260e;
"""
_DARK = """
--paper: #14171b; --ink: #e7eaed; --quiet: #9da7b2; --rule: #39414a; --grid: #272d34; --met: #3fd0a0; --missed: #ff8f7a;
"""
_TEXT = """
* { box-sizing: border-box; }
html { color-scheme: light dark; -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 "Helvetica Neue", Helvetica, Arial, "Liberation Sans", sans-serif;
  font-variant-numeric: lining-nums tabular-nums; overflow-wrap: anywhere;
}
main { max-width: 1088px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -.01em; margin: 0 0 8px; }
h2 { font-size: 21px; line-height: 1.25; margin: 64px 0 4px; padding-top: 14px; border-top: 2px solid var(--ink); }
h3 { font-size: 15px; line-height: 1.3; margin: 0 0 10px; }
p { max-width: 720px; margin: 8px 0 12px; }
a { color: inherit; text-decoration-color: var(--rule); text-underline-offset: 3px; }
code {
  font: 12.5px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; white-space: pre-wrap;
}
code span { display: inline-block; max-width: 100%; }
nav { display: flex; flex-wrap: wrap; column-gap: 18px; font-size: 14px; line-height: 2; margin: 20px 0 0; }
nav a { white-space: nowrap; }
.lede { font-size: 17px; margin: 0 0 4px; }
.quiet, .small, .sub { color: var(--quiet); }
.small, .sub { font-size: 11.5px; font-weight: 400; }
.sub { display: block; }
.strong { font-weight: 600; }
dl { display: grid; gap: 4px 20px; grid-template-columns: max-content 1fr; font-size: 13.5px; margin: 24px 0 0; }
dt { color: var(--quiet); }
dd { margin: 0; min-width: 0; }
footer { margin-top: 64px; color: var(--quiet); font-size: 12.5px; }
"""

_TABLES = """
.scroll { overflow-x: auto; margin: 12px 0 0; }
.scroll:focus-visible { outline: 2px solid var(--s-fastlog); outline-offset: 2px; }
table { border-collapse: collapse; font-size: 13px; line-height: 1.35; overflow-wrap: break-word; }
th, td { text-align: left; vertical-align: top; padding: 5px 18px 5px 0; font-weight: 400; }
th:last-child, td:last-child { padding-right: 2px; }
thead th { color: var(--quiet); font-size: 12px; border-bottom: 1px solid var(--ink); vertical-align: bottom; }
thead th.num { max-width: 110px; }
tbody { border-bottom: 1px solid var(--rule); }
tbody th { min-width: 130px; max-width: 320px; }
tbody.flat tr + tr > *, tbody.points tr.new > * { border-top: 1px solid var(--grid); }
tbody.points td.num:first-child { font-weight: 600; }
.num { text-align: right; }
td.num { white-space: nowrap; }
td.strong { font-weight: 600; }
table.files td { max-width: 360px; }
td.note { min-width: 150px; max-width: 360px; }
tr.head th { font-weight: 600; padding-top: 10px; max-width: none; }
.system::before {
  content: ""; display: inline-block; width: 9px; height: 9px; margin-right: 7px; background: var(--system);
}
.goals { width: 100%; }
.goals td.wanted { min-width: 110px; max-width: 210px; }
td.times { white-space: nowrap; color: var(--quiet); font-size: 11.5px; }
.gauge { display: inline-block; position: relative; width: 90px; height: 8px; }
.gauge::after {
  content: ""; position: absolute; left: 50%; top: -4px; height: 16px; border-left: 1.6px dashed var(--ink);
}
.gauge span { position: absolute; height: 8px; opacity: .75; }
.gauge .met { background: var(--met); }
.gauge .missed { background: var(--missed); }
.verdict { font-weight: 600; white-space: nowrap; }
.verdict.met { color: var(--met); }
.verdict.missed { color: var(--missed); }
.verdict.none { color: var(--quiet); font-weight: 400; }
details { margin-top: 12px; }
summary { font-size: 13px; color: var(--quiet); cursor: pointer; }
"""

_PLOTS = """
figure { margin: 28px 0 44px; }
figcaption { font-size: 12.5px; color: var(--quiet); max-width: 760px; margin-top: 8px; }
figcaption p { margin: 0 0 8px; }
.plot { max-width: 760px; overflow-x: auto; }
svg { display: block; width: 100%; height: auto; }
"""

_SIZES = """
@media screen and (min-width: 1100px) {
  figure { display: grid; grid-template-columns: 760px 1fr; column-gap: 36px; }
  figure > h3, figure > details { grid-column: 1 / 3; min-width: 0; }
  figcaption { margin-top: 0; border-left: 1px solid var(--rule); padding-left: 14px; align-self: start; }
}
@media screen and (max-width: 640px) {
  svg { width: 760px; }
  main { padding: 24px 16px 48px; }
  h1 { font-size: 24px; }
  h2 { margin-top: 48px; }
  dl { display: block; }
  dt { margin-top: 8px; }
  .scroll { margin-right: -16px; }
}
@page { margin: 15mm 14mm; }
@media print {
  body { font-size: 10.5pt; }
  main { padding: 0; max-width: none; }
  nav, summary { display: none; }
  h2 { margin-top: 28px; }
  h2, h3 { break-after: avoid; }
  .plot, tr, dl { break-inside: avoid; }
  svg { max-height: 210mm; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; }
  details::details-content { content-visibility: visible; display: block; }
  svg, .gauge, .system::before { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  table { font-size: 8.5pt; }
  th, td { padding-right: 10px; }
}
"""


def sheet() -> str:
    """The style sheet of the page, as CSS."""
    light, dark = (
        f":root {{{text}{''.join(f'--{name}: {colour}; ' for name, colour in variables(dark=dark).items())}}}\n"
        for text, dark in ((_LIGHT, False), (_DARK, True))
    )
    night = f"@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"
    return re.sub(r"\s+", " ", f"{light}{night}{_TEXT}{_TABLES}{_PLOTS}{_SIZES}").strip()
