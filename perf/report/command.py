"""``python -m perf report``: result files as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fastlog.installation import how_to_install
from fastlog.tools import options
from fastlog.tools.placing import placed
from fastlog.tools.report import EXIT_DONE, EXIT_USAGE, CommandError, note

if TYPE_CHECKING:
    from perf.figures.beside import Beside
    from perf.figures.results import Result

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
        ("1", "the page cannot be written, or matplotlib is missing, which draws its plots"),
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
@options.option(
    "--images",
    group="Format",
    metavar="DIRECTORY",
    type=click.Path(file_okay=False, path_type=Path),
    help="Every plot as an SVG file, too, on white paper; the directory is made, files of the same names are replaced.",
)
def report_command(files: tuple[Path, ...], out: Path | None, images: Path | None) -> int:
    """Show results as one HTML page: fastlog, what was published, the ceiling and every peer side by side.

    The page loads nothing and runs no script. Of several files, what two of them measured on the same system is shown
    twice, under the letters of the files; ratios and goals only compare what one file measured. What python -m
    perf.beside_kafka printed gets a section of its own.
    """
    try:
        from perf.report import page  # numpy and matplotlib are behind it
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise CommandError("the plots cannot be drawn", "matplotlib is missing", how_to_install("perf")) from error

    out = Path(files[0].with_suffix(".html").name) if out is None else out
    if any(out.resolve() == path.resolve() for path in files):
        raise CommandError(f"{out} is one of the results", "it would be overwritten", "name another --out", EXIT_USAGE)
    loaded, beside = _loaded(files)
    written = page.render(loaded, beside)
    if images is not None:
        images.mkdir(parents=True, exist_ok=True)
        for name, image in page.images(page.parts(loaded, beside)).items():
            with placed(images / name) as file:
                file.write(image)
    if str(out) == STDOUT:
        click.echo(written, nl=False)
        return EXIT_DONE
    with placed(out) as file:
        file.write(written.encode())
    note(f"wrote {out}, {len(written.encode()) / 1000:,.0f} kB")
    return EXIT_DONE


def _loaded(files: tuple[Path, ...]) -> tuple[list[Result], list[Beside]]:
    """The results, and what set fastlog beside Apache Kafka."""
    from perf.figures import beside, reading, results

    found: list[Result] = []
    compared: list[Beside] = []
    try:
        for path in files:
            with reading.named(path):
                document = reading.document(path)
                if beside.is_one(document):
                    compared.append(beside.read(document))
                else:
                    found.append(results.read(document))
    except reading.ResultsError as error:
        raise CommandError(
            str(error),
            "it is not what python -m perf replay or python -m perf.beside_kafka writes",
            "give result files",
            EXIT_USAGE,
        ) from error
    return found, compared
