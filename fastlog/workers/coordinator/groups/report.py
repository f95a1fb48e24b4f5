"""Tells how the groups stand whenever somebody of this broker asks: nothing that is not flushed."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

from fastlog import logs
from fastlog.workers.coordinator.groups.groups import Groups
from fastlog.workers.coordinator.loop import Step, Until, Wait
from fastlog.workers.group_board import GroupBoard, GroupRow, encoded

STEP_ROWS = 2_000
"""Groups and offsets that are gathered before others have a turn."""
_WAIT_SECONDS = 3600.0
_RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


def answer_questions(board: GroupBoard, groups: Groups) -> Generator[Wait, Any, None]:
    """For as long as the process runs. A question during the start is answered once the log has been read."""
    while True:
        asked = yield Until(lambda: groups.is_ready and board.is_asked, time.monotonic() + _WAIT_SECONDS)
        if not asked:
            continue
        question = board.question
        lines = []
        for rows in _parts(groups):
            lines.append((yield Step(partial(encoded, rows))))
        if not groups.is_ready:
            continue  # the log is read anew, and what was gathered may not stand there
        try:
            yield Step(partial(board.answer, question, lines))
        except OSError as error:
            line = "how the groups stand could not be told: %s"
            log.error(line, error, extra=logs.about("groups not told", type(error)))
            yield Until(lambda: False, time.monotonic() + _RETRY_SECONDS)


def _parts(groups: Groups) -> Iterator[list[GroupRow]]:
    part: list[GroupRow] = []
    size = 0
    for name in groups.names():
        group = groups.group(name)
        offsets = [(topic, number, kept.offset) for (topic, number), kept in groups.offsets(name).items()]
        part.append(GroupRow(name, len(group.members) if group is not None else 0, offsets))
        size += 1 + len(offsets)
        if size >= STEP_ROWS:
            yield part
            part, size = [], 0
    if part:
        yield part
