"""``fastlog consume`` of a topic of record batches: which refusals pass, and which end it."""

from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.client.record_requests import Fetched
from fastlog.client.record_topics import KnownTopic
from fastlog.kafka_codes import Code
from fastlog.tools import signals
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.record_forms import value_line
from fastlog.tools.record_reading import RecordReading
from fastlog.tools.report import EXIT_FAILED, EXIT_UNREACHABLE, CommandError

PASSING = (
    Code.LEADER_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
)
LASTING = (Code.OFFSET_OUT_OF_RANGE, Code.KAFKA_STORAGE_ERROR, Code.UNSUPPORTED_COMPRESSION_TYPE)


@pytest.mark.parametrize("code", [*PASSING, *LASTING], ids=str)
def test_what_passes_is_asked_for_again_and_nothing_else(code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just been started is waited for; one that cannot read the records says so at once."""
    answers = [code, code, Code.UNKNOWN_TOPIC_OR_PARTITION]
    records: Any = SimpleNamespace(
        known_topics=lambda names: {"t": KnownTopic(0, bytes(16), (0,), False)},
        offsets=lambda places, time_ms: dict.fromkeys(places, 0),
        fetch=lambda offsets, **_: {("t", 0): Fetched(answers.pop(0), -1, -1, b"")},
    )
    monkeypatch.setattr("fastlog.tools.record_reading._PAUSE_SECONDS", 0.0)
    reading = RecordReading(
        records,
        "t",
        value_line,
        ConsoleProgress("consumed", shown=False),
        partition=None,
        begin="beginning",
        exit_at_end=False,
        max_messages=None,
        timeout=None,
        fetch_bytes=1000,
        max_message_bytes=None,
        delimiter=b"\n",
        connect_timeout=60.0,
    )
    with signals.deferred(), pytest.raises(CommandError) as caught:
        reading.run()
    assert caught.value.exit_code == EXIT_FAILED != EXIT_UNREACHABLE
    assert len(answers) == (0 if code in PASSING else 2)
