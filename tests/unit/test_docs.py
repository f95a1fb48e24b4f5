"""The documents say what is so: links lead somewhere, names exist, figures are those of the configuration."""

import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fastlog import durability
from fastlog.config import BrokerConfig
from fastlog.consumer.config import ConsumerConfig
from fastlog.log import _files
from fastlog.log._shared_memory import COUNTERS
from fastlog.log.kafka_files import METADATA_NAME
from fastlog.mirror import MirrorSettings
from fastlog.moving.kraft_log import BOOTSTRAP_NAME
from fastlog.producer.config import ProducerConfig
from fastlog.segment_files import META_PROPERTIES_NAME
from fastlog.spark.options import OPTION_NAMES
from fastlog.tools.broker_command import broker_command
from fastlog.tools.cli import fastlog
from fastlog.tools.consumer_perf import consumer_perf_command
from fastlog.tools.producer_perf import producer_perf_command
from fastlog.workers.coordinator.topic_settings import KEYS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "perf" / "README.md"])
SOURCES = [
    path
    for folder in ("fastlog", "tests", "perf", "scripts", "docs", "examples", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.is_file()
]
FILE = re.compile(r"[\w./-]+\.(?:py|pyx|pxd|pyi|h|md|sh)")
PLACE = re.compile(r"((?:\w+/)+\w+)\.([A-Za-z]\w*(?:\.\w+)*)")
SETTING = re.compile(r"[a-z]+(?:\.[a-z]+)+")
SCRIPTS: dict[str, click.Command] = {
    "fastlog-broker": broker_command,
    "producer-perf": producer_perf_command,
    "consumer-perf": consumer_perf_command,
}

pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def fenced(text: str) -> list[str]:
    """The lines of code blocks."""
    return [line for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()]


def inline(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def calls(text: str) -> Iterator[list[str]]:
    """Each command with its arguments, from code blocks and from backticks."""
    for line in [*fenced(text), *inline(text)]:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue  # a sentence with an apostrophe
        command: list[str] = []
        for word in words:
            if word in ("|", "&&", "&", ";"):
                yield command
                command = []
            else:
                command.append(word)
        yield command


def options_of(command: click.Command) -> set[str]:
    found = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
    return found | set(getattr(command, "old_names", ()))


def all_commands() -> list[click.Command]:
    """Every command of ours, groups and what is in them."""
    found: list[click.Command] = [*SCRIPTS.values(), fastlog]
    for command in found:
        if isinstance(command, click.Group):
            context = click.Context(command)
            children = [command.get_command(context, name) for name in command.list_commands(context)]
            found += [child for child in children if child is not None]
    return found


def called(words: list[str]) -> tuple[click.Command, list[str]] | None:
    """The command that a line calls and the rest of its words; None when it is none of ours."""
    while words and re.fullmatch(r"\w+=\S*", words[0]):
        words = words[1:]
    name = Path(words[0]).name if words else ""
    if name in SCRIPTS:
        return SCRIPTS[name], words[1:]
    if name != "fastlog":
        return None
    command: click.Command = fastlog
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        following = command.get_command(click.Context(command), rest[0])
        assert following is not None, f"there is no command {' '.join(words)}"
        command, rest = following, rest[1:]
    return command, rest


@pages
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file, and a heading of it where it names one."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


@pages
def test_commands_and_their_options_exist(page: Path) -> None:
    """Every command that a page shows is there and knows the options it is shown with."""
    for words in calls(page.read_text()):
        found = called(words)
        if found is not None:
            given = {word.partition("=")[0] for word in found[1] if word.startswith("--")}
            assert given <= options_of(found[0]), words


@pages
def test_options_in_the_text_exist(page: Path) -> None:
    """An option that a page speaks of belongs to one of the commands, or to a module or script that the page shows."""
    known = set().union(*map(options_of, all_commands()))
    folders = ("fault", "mutants", "sanitized", "ceiling", "perf", "ab", "compare", "report", "scripts", "jobs")
    scripts = "".join(
        path.read_text() for path in SOURCES if path.parent.name in folders and path.suffix in (".py", ".c")
    )
    for text in inline(page.read_text()):
        for word in shlex.split(text) if text.startswith("--") else []:
            assert not word.startswith("--") or word in known or f'"{word}"' in scripts, word


@pages
def test_modules_and_scripts_exist(page: Path) -> None:
    """``python -m`` names a module that knows the options shown, and a script is an executable file."""
    for words in calls(page.read_text()):
        if "-m" in words[1:2] and "python" in words[0] and words[2].split(".")[0] in ("fastlog", "tests", "perf"):
            spec = importlib.util.find_spec(words[2])
            assert spec is not None and spec.origin is not None, words
            own = Path(spec.origin).parent
            folders = [own, *(own / word for word in words[3:4] if word.isidentifier())]  # a command may have one
            code = "".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
            for word in words[3:]:
                assert not word.startswith("--") or f'"{word}"' in code, words
        for word in words[:1]:
            if word.startswith(("scripts/", ".ci/")):
                assert (ROOT / word).stat().st_mode & 0o111, word


@pages
def test_files_named_in_the_text_exist(page: Path) -> None:
    """A file is there under that path, or under the end of its path; ``log/_append.Appender.append`` is in its file."""
    names = [f"/{path.relative_to(ROOT)}" for path in [*SOURCES, *PAGES, *ROOT.glob("*.py")]]
    for text in inline(page.read_text()):
        if FILE.fullmatch(text):
            assert any(name.endswith(f"/{text.lstrip('./')}") for name in names), text
        elif (found := PLACE.fullmatch(text)) and not FILE.fullmatch(text):
            module, attribute = found[1], found[2].split(".")
            paths = [
                path for path in SOURCES for end in (".py", ".pyx", ".pxd") if str(path).endswith(f"/{module}{end}")
            ]
            if paths:
                code = "".join(path.read_text() for path in paths)
                assert all(re.search(rf"\b{name}\b", code) for name in attribute), text


@pages
def test_settings_named_in_the_text_exist(page: Path) -> None:
    """A dotted name in backticks is a setting, a point of ``FASTLOG_FAULTS``, a logger or a module."""
    known = {setting.name for config in (BrokerConfig, ProducerConfig, ConsumerConfig) for setting in config.describe()}
    known |= {setting.name for setting in MirrorSettings.describe()}
    known |= {*_files.OPS, *OPTION_NAMES, *KEYS, META_PROPERTIES_NAME, METADATA_NAME, BOOTSTRAP_NAME}
    for text in inline(page.read_text()):
        name = text.partition("=")[0]
        if (
            SETTING.fullmatch(name)
            and not FILE.fullmatch(name)
            and not name.startswith(("fastlog.", "server.", "message."))
        ):
            assert name in known, text
    for words in calls(page.read_text()):
        for option, value in itertools.pairwise(words):
            if option == "--set" and "=" in value and value != "key=value":
                assert value.partition("=")[0] in known, words


def test_options_of_07_are_known_where_that_is_said() -> None:
    """Each row of docs/tools-of-0.7.md that names a command names options of that command."""
    text = (ROOT / "docs" / "tools-of-0.7.md").read_text().partition("## Options")[2]
    rows = re.findall(r"^\| (\w+) \| `([^`]+)` \|([^|]*)\|", text, re.M)
    assert len(rows) == 17
    for tool, command, names in rows:
        found = called(command.split())
        assert found is not None
        assert set(inline(names)) <= options_of(found[0]), tool


def test_the_promise_of_the_start_line_is_that_of_the_configuration() -> None:
    """The figures of the sentence are those of the flush policy, whatever it is."""
    config = BrokerConfig(flush_interval_messages=123, flush_bytes=4567, flush_interval_ms=89)
    promise = durability.promise(config)
    assert "at most 123 messages or 4567 bytes per partition" in promise
    assert "nothing older than 178 ms" in promise


def test_the_promise_of_the_readme_is_that_of_the_defaults() -> None:
    """README gives the bounds in figures."""
    config = BrokerConfig()
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"at most {config.flush_interval_messages:,} messages and {config.flush_bytes >> 20} MiB of each" in text
    assert config.flush_interval_ms == 1000 and "within the last two seconds" in text
    assert f"127.0.0.1:{config.port}" in text and (config.host, config.log_dirs) == ("127.0.0.1", ("./fastlog-data",))


def test_the_counters_are_all_explained_and_no_others() -> None:
    """docs/processes.md has a row for each counter."""
    section = (ROOT / "docs" / "processes.md").read_text().partition("### Counters")[2]
    rows = re.findall(r"^\| (`[a-z0-9_`, ]+`) \|", section, re.M)
    assert sorted(name for row in rows for name in inline(row)) == sorted(COUNTERS)


def test_the_shared_words_are_those_of_the_arena() -> None:
    """docs/processes.md names every word of a slot that changes, and none that is not there."""
    header = (ROOT / "fastlog" / "log" / "_arena.h").read_text()
    section = (ROOT / "docs" / "processes.md").read_text().partition("## The shared memory")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", section, re.M) for name in inline(row)}
    slot = header.partition("the append lock: robust")[2].partition("} fl_slot;")[0]
    words = set(re.findall(r"uint64_t (\w+)", slot))
    assert words <= named
    everything = set(re.findall(r"\b(\w+)(?: FL_LINE)?;", header))
    assert named <= everything


def test_named_tests_exist() -> None:
    """Every promise of docs/crash-safety.md is shown by a file of tests, or says why it holds."""
    text = (ROOT / "docs" / "crash-safety.md").read_text()
    rows = re.findall(r"^\| (P\d+) \| (.*) \| (.*) \|$", text, re.M)
    assert [name for name, _, _ in rows] == [f"P{number}" for number in range(1, len(rows) + 1)]
    for name, _, shown in rows:
        for path in re.findall(r"`(tests/[^`]+)`", shown):
            assert (ROOT / path).is_file(), name
        assert shown.strip(), name
    used = set(re.findall(r"\bA\d+\b", text))
    defined = re.findall(r"^\| (A\d+) \|", text, re.M)
    assert defined == [f"A{number}" for number in range(1, len(defined) + 1)] and used <= set(defined)
