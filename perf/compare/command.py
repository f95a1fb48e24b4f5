"""``python -m perf compare``: whether one result file shows another speed than another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fastlog.tools import options
from fastlog.tools.report import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, CommandError, note

if TYPE_CHECKING:
    from perf.compare.comparison import Comparison, Row
    from perf.figures.results import Result

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    cls=options.Command,
    name="compare",
    examples=(
        "python -m perf compare before.json after.json",
        "python -m perf compare before.json after.json --fail-below 0.95",
    ),
    exit_codes=(
        ("0", "compared"),
        ("1", "--fail-below: a series is shown to be below it, or nothing could be compared"),
        ("2", "wrong usage, or a file that is no result"),
        ("130, 143", "stopped by SIGINT, by SIGTERM"),
    ),
)
@click.argument("a", type=FILE)
@click.argument("b", type=FILE)
@options.option(
    "--fail-below",
    group="Limits",
    type=click.FloatRange(0, min_open=True),
    metavar="RATIO",
    help="Exit with 1 when a series of B is shown to be slower than RATIO times A: its whole interval lies below, and"
    " there are enough runs.",
)
@options.option(
    "--only",
    group="Selection",
    multiple=True,
    metavar="PATTERN",
    help="Scenarios whose name matches, such as 'produce-*'. May be given again.",
)
@options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object with every row and warning.")
def compare_command(a: Path, b: Path, fail_below: float | None, only: tuple[str, ...], as_json: bool) -> int:
    """Compare two result files: B over A for each series.

    The interval holds the ratio of medians in 95 % of resamplings of the runs. Faster or slower is said when it
    excludes 1 and both files have at least five runs of the series; otherwise no difference is shown.
    """
    from perf.compare.comparison import Comparison, compare  # numpy is behind it

    found = compare(_loaded(a), _loaded(b))
    if only:
        from fnmatch import fnmatchcase

        rows = [row for row in found.rows if any(fnmatchcase(row.scenario, pattern) for pattern in only)]
        found = Comparison(tuple(rows), found.warnings)
    failed = [row for row in found.rows if fail_below is not None and row.is_below(fail_below)]
    if as_json:
        names = [{"scenario": row.scenario, "system": row.system} for row in failed]
        document = {"a": str(a), "b": str(b), **found.document(), "fail_below": fail_below, "failed": names}
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        _show(found)
    if not any(row.ratio for row in found.rows):
        raise CommandError(
            "nothing was compared",
            "no series has runs in both files" + (f" and matches {', '.join(only)}" if only else ""),
            "measure the same scenarios twice: python -m perf replay --list shows them",
        )
    for row in failed:
        note(f"below {fail_below:g}: {row.scenario} on {row.system}, {row.speed}")
    return EXIT_FAILED if failed else EXIT_DONE


def _loaded(path: Path) -> Result:
    from perf.figures import reading, results

    try:
        return results.load(path)
    except reading.ResultsError as error:
        raise CommandError(
            str(error), "it is not what python -m perf replay writes", "give two result files", EXIT_USAGE
        ) from error


def _show(found: Comparison) -> None:
    from perf.figures.text import table

    for warning in found.warnings:
        note(f"warning: {warning}")
    header = ("scenario", "system", "a", "b", "b / a", "95 % interval", "runs", "verdict")
    for line in table(header, [_cells(row) for row in found.rows], right=(2, 3, 4, 5, 6)):
        click.echo(line)


def _cells(row: Row) -> tuple[str, ...]:
    from perf.figures.text import figure

    ratio = row.ratio
    return (
        row.scenario,
        row.system,
        figure(row.a.median, row.unit) if row.a else "–",
        figure(row.b.median, row.unit) if row.b else "–",
        f"{ratio.value:.3f}" if ratio else "–",
        f"{ratio.low:.3f} … {ratio.high:.3f}" if ratio else "–",
        f"{row.a.n if row.a else 0}, {row.b.n if row.b else 0}",
        f"{row.verdict} ({row.note})" if row.note else row.verdict,
    )
