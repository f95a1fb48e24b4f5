"""``fastlog perf``: says where its commands have gone. To be removed with the next version."""

from __future__ import annotations

from typing import NoReturn

import click

from fastlog.tools import options
from fastlog.tools.report import EXIT_USAGE, CommandError

MOVED = {"compare": "Compare two result files.", "report": "Show results as one HTML page."}
_ANYTHING = {"ignore_unknown_options": True, "help_option_names": []}


@click.group(
    cls=options.CommandGroup,
    name="perf",
    examples=tuple(f"python -m perf {name} --help" for name in MOVED),
    exit_codes=(("2", "always: the commands are called python -m perf now"),),
)
def perf_command() -> None:
    """Moved to python -m perf, beside what measures; run it in a checkout of fastlog."""


def _moved(name: str, help: str) -> click.Command:
    def refuse(words: tuple[str, ...]) -> NoReturn:
        raise CommandError(
            f"fastlog perf {name} is called python -m perf {name} now",
            "it reads only what python -m perf writes, and stands beside it in a checkout of fastlog",
            f"in a checkout, with the same arguments: python -m perf {name} …",
            EXIT_USAGE,
        )

    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(name, callback=refuse, params=[words], short_help=help, context_settings=_ANYTHING)


for _name, _help in MOVED.items():
    perf_command.add_command(_moved(_name, _help))
