"""What the tools of Kafka 0.7 call an option that a command has by another name, or writes in another unit.

Such a name is put into ours before the command line is read, so that it means exactly the same; ``--help`` lists them.
docs/tools-of-0.7.md has the whole list, with what 0.7 knows and a command does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import click

_CODECS = {"0": "none", "1": "gzip", "2": "snappy"}
_CODEC_NAMES = "0 (none), 1 (gzip) or 2 (snappy)"


class OldName(NamedTuple):
    """``words`` are ours for a value; of a name that takes none it is given an empty one."""

    meaning: str
    words: Callable[[str], list[str]]
    takes_value: bool = True


def flag(*words: str) -> OldName:
    """An option of 0.7 that takes no value and stands for ``words``; without any, for what is done in any case."""
    return OldName(" ".join(words) or "what is done anyway", lambda _: list(words), takes_value=False)


def same(name: str) -> OldName:
    """An option of 0.7 that is ``name`` here and takes the same value."""
    return OldName(name, lambda value: [name, value])


def milliseconds(name: str) -> OldName:
    """A number of milliseconds; -1 is for ever, as without the option."""
    return OldName(f"{name}, in ms", lambda value: [] if value.strip() == "-1" else [name, f"{value.strip()}ms"])


def unless_all(name: str) -> OldName:
    """The same name and value; -1 is what the command does without it."""
    return OldName(f"{name}; -1: all", lambda value: [] if value.strip() == "-1" else [name, value])


def positional() -> OldName:
    """What the command takes without a name."""
    return OldName("the same without the name", lambda value: [value])


SERVER = OldName("--brokers, as kafka://H:P", lambda value: ["--brokers", value.partition("://")[2] or value])


def _codec(value: str) -> list[str]:
    if value.strip() not in _CODECS:
        raise click.UsageError(f"--compression-codec {value}: write {_CODEC_NAMES}")
    return ["--compression", _CODECS[value.strip()]]


CODEC = OldName(f"--compression, as {_CODEC_NAMES}", _codec)


def _brokerinfo(value: str) -> list[str]:
    name, _, given = value.partition("=")
    if name == "zk.connect" and given:
        return ["--to-zookeeper", given]
    if name == "broker.list" and given:
        parts = (item.strip() for item in given.split(","))
        return ["--to-brokers", ",".join(item.partition(":")[2] if item.count(":") > 1 else item for item in parts)]
    raise click.UsageError(f"--brokerinfo {value}: write broker.list=id:host:port,… or zk.connect=host:port/path")


BROKERINFO = OldName("--to-zookeeper or --to-brokers, as zk.connect=… or broker.list=…", _brokerinfo)


def translated(args: Iterable[str], names: Mapping[str, OldName]) -> list[str]:
    """A command line with our names in the place of old ones. Raises ``UsageError`` for one whose value is missing."""
    found: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            return [*found, word, *words]
        name, equals, value = word.partition("=")
        old = names.get(name)
        if old is None:
            found.append(word)
            continue
        if old.takes_value and not equals:
            following = next(words, None)
            if following is None:
                raise click.UsageError(f"Option {name!r} requires an argument.")
            value = following
        found += old.words(value)
    return found
