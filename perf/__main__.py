"""``python -m perf``: everything again (``replay``), flush policies (``sweep``), two checkouts in turns (``ab``), and
what is done with the files that they leave (``compare``, ``report``)."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from fastlog.perf import machine
from fastlog.perf.payloads import lines_of
from perf.ab.command import ab
from perf.command import EXIT_FAILED, EXIT_INTERRUPTED, Size, run, say
from perf.compare.command import compare_command
from perf.figures.flushing import flush_policy
from perf.figures.results import Result, save
from perf.figures.text import figure, table
from perf.replay import peers, runners
from perf.replay.rounds import Rounds, series_of, tasks
from perf.replay.scenarios import PAGE_CACHE, SPARK_KAFKA, Scenario
from perf.replay.stage import MESSAGE_BYTES, Options, Stage
from perf.replay.table import needed_bytes, scenarios, selected
from perf.report.command import report_command

WARM_UP = (
    "memory for the messages of each run is touched and freed before its broker starts; consumers read what was"
    " written just before; client processes are loaded and connected before the clock starts"
)
LINES_NOTE = (
    "the ceiling, the load generator and other brokers send random messages as long as the lines are on average, {}"
    " bytes; goals are for 200 random bytes"
)
_CHOSEN_HERE = {"port": "", "log.dir": ": --scratch names another place", "num.threads": ": use --processors"}
QUICK = Options(messages=200_000, stored_bytes=200_000_000, segment_bytes=100_000_000, seconds=0.5, quick=True)
SHORT_BELOW = 5_000_000
ROUNDS = 5
QUICK_ROUNDS = 1
_JUDGED = {True: "met", False: "missed", None: "not measured"}


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What ``replay`` and ``sweep`` both know."""
    for option in reversed(
        [
            click.option("--rounds", type=click.IntRange(1, 1000), help="How often everything takes its turn.  [5]"),
            click.option("--messages", type=click.IntRange(1), help="Messages of a full run.  [10,000,000]"),
            click.option("--quick", is_flag=True, help="A look, in some minutes: 1 round of 200,000 messages."),
            click.option(
                "--out", type=click.Path(dir_okay=False, path_type=Path), help="The result file.  [.tmp/…json]"
            ),
            click.option("--list", "only_list", is_flag=True, help="Show what would run, and nothing else."),
            click.option(
                "--payload-file",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="Producers send the lines of this file; what is stamped with times stays random bytes.",
            ),
            click.option("--processors", default=2, show_default=True, type=click.IntRange(1, 48)),
            click.option("--seed", default=1, show_default=True, type=int, help="Of the random payloads."),
            click.option("--set", "extra", multiple=True, metavar="NAME=VALUE", help="A broker setting for all of it."),
            click.option(
                "--scratch",
                type=click.Path(file_okay=False, path_type=Path),
                help="Where logs are written while they are needed.  [.tmp]",
            ),
        ]
    ):
        function = option(function)
    return function


@click.group()
def main() -> None:
    """Measurements of fastlog on this machine."""


@main.command()
@click.option("--only", multiple=True, metavar="PATTERN", help="Scenarios or blocks that match. May be given again.")
@click.option("--no-peers", is_flag=True, help="Leave out RabbitMQ, ActiveMQ and Kafka.")
@click.option("--stored-bytes", type=Size(), help="The backlog of the stored-data scenario.  [20GB]")
@shared_options
def replay(only: tuple[str, ...], no_peers: bool, stored_bytes: int | None, **given: Any) -> int:
    """Measure everything: the paper's figures, the 0.7 site's curves, the goals, the ceiling and the peers.

    All scenarios of a block take turns, round by round. Ctrl-C stops it; the file then holds what was measured.
    """
    return _replay("The replay", only, not no_peers, stored_bytes, given)


@main.command()
@shared_options
def sweep(**given: Any) -> int:
    """Measure what each flush policy costs and what a power loss could take: `replay --only sweep`."""
    return _replay("The flush sweep", ("sweep",), False, None, given)


def _replay(
    title: str, only: tuple[str, ...], with_peers: bool, stored_bytes: int | None, given: dict[str, Any]
) -> int:
    options, rounds = _options(given, stored_bytes)
    known = scenarios(options)
    found = selected(known, only)
    if unknown := [pattern for pattern in only if not selected(known, (pattern,))]:
        raise click.UsageError(f"no scenario matches {' '.join(unknown)}; --list with the same options shows them")
    if given["only_list"]:
        _list(found)
        return 0
    out = given["out"] or options.scratch / time.strftime("replay-%Y%m%d-%H%M%S.json", time.gmtime())
    missing = peers.absent() if with_peers else {}
    measured = tasks(found, rounds, list(missing))
    if not with_peers:
        measured = [task for task in measured if task.system != SPARK_KAFKA]
    missing |= runners.missing({task.system for task in measured})
    for task in measured:
        task.absent = missing.get(task.system)
    started, clock = time.gmtime(), time.monotonic()
    described = machine.describe(options.scratch.parent if not options.scratch.exists() else options.scratch)
    notes: list[str] = []

    def result(*more: str) -> Result:
        return Result(
            title=title,
            command=shlex.join(["python", "-m", "perf", *sys.argv[1:]]),
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", started),
            seconds=round(time.monotonic() - clock, 1),
            machine=described,
            settings=_settings(options),
            warm_up=WARM_UP,
            series=series_of(measured),
            notes=(*notes, *more),
        )

    def round_ended() -> None:
        try:
            save(result("it has not ended yet"), out)
        except OSError as error:  # a disk that is full now may have room when the logs are gone
            say(f"not written to {out} yet: {error}")

    save(result(), out, trial=True)
    interrupted = False
    with Stage(options, say) as stage:
        stage.require_space(needed_bytes(found, options, rounds))
        playing = Rounds(stage, measured, runners.run, say, round_ended)
        notes = playing.notes
        if options.payload_file is not None:
            notes.append(LINES_NOTE.format(options.line_bytes))
        notes.extend(runners.described({task.system for task in measured if task.absent is None}))
        try:
            playing.run()
        except KeyboardInterrupt:
            interrupted = True
            notes.append("stopped by a signal before everything was measured")
        finally:
            ended = result()
            _show(ended)
            try:
                save(ended, out)
            except OSError:
                stage.clear()  # the logs may be what fills the disk
                save(ended, out)
            say(f"written to {out}")
    return EXIT_INTERRUPTED if interrupted else EXIT_FAILED if playing.failed else 0


def _options(given: dict[str, Any], stored_bytes: int | None) -> tuple[Options, int]:
    options = QUICK if given["quick"] else Options()
    chosen = {name: given[name] for name in ("processors", "seed", "payload_file", "messages", "scratch")}
    if given["messages"] is not None and not given["quick"]:
        # A short replay is short in everything that has a length.
        share = min(1.0, given["messages"] / SHORT_BELOW)
        chosen["segment_bytes"] = max(1_000_000, int(options.segment_bytes * share))
        chosen["stored_bytes"] = max(1_000_000, int(options.stored_bytes * share))
        chosen["seconds"] = max(0.2, options.seconds * share)
    if stored_bytes is not None:
        chosen["stored_bytes"] = stored_bytes
    if given["payload_file"] is not None:
        lines, _ = lines_of(given["payload_file"])
        chosen["line_bytes"] = max(1, round(sum(map(len, lines)) / len(lines)))
    settings = dict(_setting(item) for item in given["extra"])
    flush_policy({**PAGE_CACHE, **settings})  # a wrong setting is said now
    chosen = {name: value for name, value in chosen.items() if value is not None}
    options = dataclasses.replace(options, settings=settings, **chosen)
    return options, given["rounds"] or (QUICK_ROUNDS if given["quick"] else ROUNDS)


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
    if (instead := _CHOSEN_HERE.get(name)) is not None:
        raise click.BadParameter(f"{name} is chosen here{instead}", param_hint="--set")
    return name, value


def _settings(options: Options) -> dict[str, Any]:
    payload: dict[str, Any] = {"kind": "random", "seed": options.seed, "bytes": MESSAGE_BYTES}
    if options.payload_file is not None:
        payload = {"kind": "lines", "file": options.payload_file.name, "bytes": options.payload_file.stat().st_size}
        payload["line_bytes"] = options.line_bytes
    return {
        "processors": options.processors,
        "flush_policy": flush_policy({**PAGE_CACHE, **options.settings}),
        "messages": options.messages,
        "payload": payload,
    }


def _list(found: Sequence[Scenario]) -> None:
    rows = []
    for scenario in found:
        for one in scenario.figures:
            goal = one.goal
            wanted = [] if goal is None or goal.value is None else [figure(goal.value, one.unit)]
            if goal is not None and goal.ceiling_ratio is not None:
                wanted.append(f"{goal.ceiling_ratio:g} of the ceiling")
            if goal is not None and goal.of is not None:
                wanted.append(f"{goal.of_ratio:g} of {goal.of}")
            rows.append((one.name, scenario.block, ", ".join(scenario.systems), " and ".join(wanted), one.title))
    for line in table(("scenario", "block", "systems", "goal", "what"), rows):
        click.echo(line)


def _show(result: Result) -> None:
    rows = []
    for series in result.series:
        found = series.summary()
        parts = result.goal_parts(series)
        judged = ", ".join(f"{_JUDGED[part.met]}: {_wanted(part, series.unit)}" for part in parts)
        values = [figure(value, series.unit) for value in (found.median, found.low, found.high)] if found else ["–"] * 3
        rows.append(
            (series.scenario, series.system, *values, str(found.n if found else 0), judged or series.absent or "")
        )
    for line in table(("scenario", "system", "median", "low", "high", "runs", "goal"), rows, right=(2, 3, 4, 5)):
        click.echo(line)
    for note in result.notes:
        click.echo(f"note: {note}")


def _wanted(part: Any, unit: str) -> str:
    if part.what == "value":
        return figure(part.wanted, unit)
    return f"{part.wanted:g} {part.what}" + ("" if part.ratio is None else f" ({part.ratio})")


for _command in (ab, compare_command, report_command):
    main.add_command(_command)

if __name__ == "__main__":
    run(main, "python -m perf")
