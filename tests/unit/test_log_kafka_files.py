"""The small files beside the segments of a partition of record batches: read as written, and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastlog.log.files import FileOps
from fastlog.log.kafka_files import (
    EPOCHS_NAME,
    METADATA_NAME,
    NO_TOPIC_ID,
    next_epochs,
    read_epochs,
    read_topic_id,
    topic_id_text,
    write_epochs,
    write_metadata,
)

ID = bytes.fromhex("e2905f6235b64364 2a42689d8f367ae0".replace(" ", ""))
FILES = FileOps()


@pytest.mark.parametrize("topic_id", [ID, bytes(range(16)), b"\xff" * 16, b"\xfb\xef\xbe" * 5 + b"\xfb"])
def test_a_topic_id_is_read_as_it_was_written(tmp_path: Path, topic_id: bytes) -> None:
    write_metadata(tmp_path, topic_id, FILES)
    assert read_topic_id(tmp_path, FILES) == topic_id
    assert (tmp_path / METADATA_NAME).read_text() == f"version: 0\ntopic_id: {topic_id_text(topic_id)}\n"
    assert "=" not in topic_id_text(topic_id) and len(topic_id_text(topic_id)) == 22


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: 0\n",
        f"version: 1\ntopic_id: {topic_id_text(ID)}\n",
        f"topic_id: {topic_id_text(ID)}\n",
        f"version: 0\ntopic_id: {topic_id_text(ID)[:-2]}\n",
        f"version: 0\ntopic_id: {topic_id_text(ID)}AAAA\n",
        f"version: 0\ntopic_id: {topic_id_text(ID)[:-1]}\n",
        f"version: 0\ntopic_id: é{topic_id_text(ID)[1:]}\n",
    ],
)
def test_what_cannot_be_a_topic_id_is_none_and_is_logged(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_topic_id(tmp_path, FILES) == NO_TOPIC_ID
    assert caplog.text == "", "there is no file yet"
    (tmp_path / METADATA_NAME).write_text(text)
    assert read_topic_id(tmp_path, FILES) == NO_TOPIC_ID
    assert f"topic id not understood path={tmp_path / METADATA_NAME}" in caplog.text


@pytest.mark.parametrize("epochs", [[], [(0, 0)], [(0, 0), (1, 1734), (5, 2**62)]])
def test_epochs_are_read_as_they_were_written(tmp_path: Path, epochs: list[tuple[int, int]]) -> None:
    write_epochs(tmp_path, epochs, FILES)
    assert read_epochs(tmp_path, FILES) == epochs


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0\n",
        "1\n1\n0 0\n",
        "0\n2\n0 0\n",
        "0\n1\n0 0\n1 5\n",
        "0\n2\n1 5\n0 0\n",
        "0\n1\n0\n",
        "0\n1\n0 x\n",
        "x\n",
    ],
)
def test_damaged_epochs_are_none_and_are_logged(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert read_epochs(tmp_path, FILES) == []
    assert caplog.text == "", "there is no file yet"
    (tmp_path / EPOCHS_NAME).write_text(text)
    assert read_epochs(tmp_path, FILES) == []
    assert f"leader epochs not understood path={tmp_path / EPOCHS_NAME}" in caplog.text


def test_an_epoch_that_has_no_record_gives_way_to_the_next() -> None:
    assert next_epochs([], 7) == [(0, 7)]
    assert next_epochs([(0, 0), (1, 9)], 10) == [(0, 0), (1, 9), (2, 10)]
    assert next_epochs([(0, 0), (1, 9)], 9) == [(0, 0), (2, 9)]
    assert next_epochs([(0, 0), (1, 9)], 5) == [(0, 0), (2, 5)]
