"""What dumps and loads are tried with: a topic's partitions, its settings, its batches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fastlog import message
from fastlog.client.addresses import Address
from fastlog.client.records import RecordsError
from fastlog.record_batches import Record, build
from fastlog.tools.report import CommandError
from fastlog.zkpaths import PartitionId

ADDRESS = Address("h", 7)
ONE, TWO = PartitionId(4, 0), PartitionId(4, 1)
TIMEOUT = 2.5
SETTINGS = {"retention.ms": "-1"}


def batch(offset: int, *values: bytes) -> bytes:
    return build([Record(None, value, 5) for value in values], base_offset=offset)


def refused(error: pytest.ExceptionInfo[CommandError]) -> tuple[str, str, str]:
    what, why, what_to_do = str(error.value).split("\n")
    return what, why, what_to_do


SIZE = len(message.encode_set([b"a"]))


class Settings:
    """A broker that tells and takes the settings of topics."""

    def __init__(self, **settings: tuple[str | None, bool]) -> None:
        self.settings_of = settings
        self.made: list[tuple[str, int, dict[str, str]]] = []
        self.refuses: RecordsError | None = None
        self.open = 0

    def __enter__(self) -> Settings:
        self.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.open -= 1

    def settings(self, topic: str) -> dict[str, SimpleNamespace]:
        assert topic == "records"
        return {name: SimpleNamespace(value=value, is_own=own) for name, (value, own) in self.settings_of.items()}

    def create(self, topic: str, count: int, settings: dict[str, str]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.made.append((topic, count, settings))
