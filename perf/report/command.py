"""``python -m perf report``: result files as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from fastlog.tools import options
from fastlog.tools.placing import placed
from fastlog.tools.report import EXIT_DONE, EXIT_USAGE, CommandError, note

STDOUT = "-"


@click.command(
    cls=options.Command,
    name="report",
    examples=(
        "python -m perf report replay.json",
        "python -m perf report before.json after.json --out report.html",
    ),
    exit_codes=(
        ("0", "written"),
        ("1", "the page cannot be written"),
        ("2", "wrong usage, or a file that is no result"),
        ("130, 143", "stopped by SIGINT, by SIGTERM"),
    ),
)
@click.argument(
    "files",
    metavar="RESULTS.json...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@options.option(
    "--out",
    group="Format",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="The page; one that is there is replaced. - writes it to stdout. Default: the first file's name with .html, in"
    " the working directory.",
)
def report_command(files: tuple[Path, ...], out: Path | None) -> int:
    """Show results as one HTML page: fastlog, what was published, the ceiling and every peer side by side.

    The page loads nothing and runs no script. Of several files, what two of them measured on the same system is shown
    twice, under the letters of the files; ratios and goals only compare what one file measured.
    """
    from perf.figures import results
    from perf.report.page import render  # numpy is behind it

    out = Path(files[0].with_suffix(".html").name) if out is None else out
    if any(out.resolve() == path.resolve() for path in files):
        raise CommandError(f"{out} is one of the results", "it would be overwritten", "name another --out", EXIT_USAGE)
    try:
        loaded = [results.load(path) for path in files]
    except results.ResultsError as error:
        raise CommandError(
            str(error), "it is not what python -m perf replay writes", "give result files", EXIT_USAGE
        ) from error
    page = render(loaded)
    if str(out) == STDOUT:
        click.echo(page, nl=False)
        return EXIT_DONE
    with placed(out) as file:
        file.write(page.encode())
    note(f"wrote {out}, {len(page.encode()) / 1000:,.0f} kB")
    return EXIT_DONE
