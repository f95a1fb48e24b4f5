"""One run of ``fastlog consume`` as a member of a group: prints what its share of the partitions holds, and commits.

Source: Kafka 0.7.2 (consumer/ConsoleConsumer).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from fastlog.consumer.assignment import TopicFilter
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.connector import Consumer
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.simple import SimpleConsumer
from fastlog.consumer.skipping import OF_ONE_MESSAGE, find_end_of_damage
from fastlog.consumer.stream import GroupMessage, NoMessage, Stream
from fastlog.errors import ConsumerTimeout, CoordinationError, FastlogError, OwnershipLostError
from fastlog.escaping import in_json, printable
from fastlog.tools import groups_access, signals
from fastlog.tools.group_places import GroupStore
from fastlog.tools.lines import NEWLINE
from fastlog.tools.printing import checksum_line, json_fields, prefixed_line, without_nulls, write_all
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DAMAGED, EXIT_DONE, EXIT_FAILED, EXIT_NOTHING_CAME, EXIT_USAGE, CommandError, note
from fastlog.zkpaths import group_path

_LOOK_SECONDS = 0.2
_MESSAGES_AT_ONCE = 10_000
_BYTES_AT_ONCE = 4 * 2**20
_ANSWER_SECONDS = 10.0
_SHOWN = 16

GroupForm = Callable[[GroupMessage], bytes]


def json_line(found: GroupMessage) -> bytes:
    """As of one broker, with the broker's id in ``broker``."""
    broker, number = found.partition
    return f'{{"topic": {in_json(found.topic)}, "broker": {broker}, {json_fields(number, found)}}}'.encode()


def offsets_line(found: GroupMessage) -> bytes:
    """Topic, broker and partition, offset, and the payload, between tabs."""
    payload = found.payload or b""
    return b"%b\t%d-%d\t%d\t%b" % (printable(found.topic).encode(), *found.partition, found.offset, payload)


def prefixed(found: GroupMessage) -> bytes:
    """The payload with its length before it, for ``--length-prefixed``."""
    return prefixed_line(found.topic, 0, found)


def checksum_form(prefix: str) -> GroupForm:
    """The CRC-32 of the payload, with ``prefix`` and a dash before it unless that is empty."""
    start = f"{prefix}-".encode() if prefix else b""
    return lambda found: start + checksum_line(found.topic, 0, found)


class Chosen(NamedTuple):
    """What is read: one topic, or all that a filter allows."""

    topic: str | None
    whitelist: str | None
    blacklist: str | None

    def streams(self, consumer: Consumer) -> Stream:
        """Subscribe the consumer to these topics, with one stream, and return that; joins the group."""
        if self.topic is not None:
            return consumer.create_message_streams({self.topic: 1}, acknowledge=True)[self.topic][0]
        (stream,) = consumer.create_message_streams_by_filter(
            whitelist=self.whitelist, blacklist=self.blacklist, acknowledge=True
        )
        return stream

    def allows(self, topic: str) -> bool:
        """Whether the topic is the chosen one, or passes the filter."""
        if self.topic is not None:
            return topic == self.topic
        return TopicFilter(self.whitelist or self.blacklist or "", self.whitelist is not None).allows(topic)


def new_group() -> str:
    """A name as 0.7's console consumer makes one when none is given."""
    return f"console-consumer-{random.randrange(100_000)}"


def forget_offsets(place: GroupStore, group: str, chosen: Chosen) -> None:
    """Remove what the group has committed of these topics, so that it begins at the oldest messages.

    Raises:
        CommandError: the group has live members.
    """
    view = place.view(group)
    if view is None:
        return
    if view.members:
        raise CommandError(
            f"group {group!r} has {len(view.members)} live members, so it cannot begin again",
            "they go on where they are, and commit that",
            "stop them, leave --from-beginning out, or use another --group",
        )
    place.forget(group, [partition for partition in view.committed if chosen.allows(partition.topic)])


def remove_group(where: groups_access.Where, group: str) -> None:
    """Leave nothing of a group that nobody named; that it fails is said."""
    try:
        with where._replace(timeout=_ANSWER_SECONDS).open() as place:
            place.remove(group)
    except CoordinationError as error:
        left = "in ZooKeeper" if where.zookeeper is not None else "with the broker"
        note(f"{group_path(group)} is left {left}: {error}")


class GroupReading:
    """For the main thread, inside ``signals.deferred()``. What is on stdout, and nothing else, counts as consumed."""

    def __init__(
        self,
        config: ConsumerConfig,
        chosen: Chosen,
        form: GroupForm | None,
        progress: ConsoleProgress,
        *,
        max_messages: int | None,
        timeout: float | None,
        exit_at_end: bool,
        skips_damage: bool,
        delimiter: bytes | None = NEWLINE,
    ) -> None:
        """``delimiter`` is behind each message; None: its length is before it, and ``form`` does not count."""
        self.has_joined = False
        self._consumer = Consumer(config)
        self._chosen = chosen
        self._form = prefixed if delimiter is None else form
        self._delimiter = delimiter or b""
        self._progress = progress
        self._left = max_messages
        self._timeout = timeout
        self._exit_at_end = exit_at_end
        self._skips_damage = skips_damage
        self._skipped = 0
        self._jumps = 0
        self._code = EXIT_DONE

    def run(self) -> int:
        """Print until an end is reached; leaves the group in any case. Returns the exit code.

        Raises:
            CommandError: a partition cannot be read on.
            CoordinationError: ZooKeeper or the broker cannot be reached.
            BrokenPipeError: nobody reads what is printed.
        """
        try:
            stream = self._chosen.streams(self._consumer)
            self.has_joined = True
            self._read(stream)
        finally:
            self._leave()
        if self._code == EXIT_DONE and self._skipped:
            return EXIT_DAMAGED
        return self._code

    def _read(self, stream: Stream) -> None:
        last = time.monotonic()
        while self._left != 0:
            try:
                if self._print_some(stream):
                    last = time.monotonic()
                    continue
            except ConsumerTimeout:
                pass  # only so long at once, so that it is noticed when the end comes
            except FastlogError as error:
                self._get_past(error)
            self._say_jumps()
            self._progress.idle()
            if self._exit_at_end and self._has_all(stream):
                self._check_topics()
                return
            if self._timeout is not None and time.monotonic() - last >= self._timeout:
                if not self._progress.count:
                    self._code = EXIT_NOTHING_CAME
                return

    def _has_all(self, stream: Stream) -> bool:
        silence = stream.silence()
        if silence is NoMessage.AT_END:
            return self._consumer.wait_assigned(0.0)
        return silence is NoMessage.NOT_ASSIGNED and self._consumer.wait_assigned(0.0) and not self._consumer.owned

    def _check_topics(self) -> None:
        """Raises ``CommandError`` when there was nothing to read from."""
        if any(self._consumer.topics.values()):
            return
        chosen = self._chosen
        what = f"topic {chosen.topic!r} does not exist" if chosen.topic is not None else "the filter allows no topic"
        brokers, config = len(self._consumer.brokers), self._consumer.config
        if config.zk_connect:
            why = f"{brokers} brokers are registered in the ZooKeeper at {config.zk_connect}, and none announces"
            hint = "fastlog topics list shows what a broker holds; the path behind ZooKeeper's servers counts"
        else:
            why = f"the broker at {config.brokers} does not have, among its topics,"
            hint = "fastlog topics list shows what it holds; --zookeeper is for groups that are kept there"
        raise CommandError(what, f"{why} what is asked for", hint, EXIT_USAGE)

    def _print_some(self, stream: Stream) -> bool:
        """Print what is there; waits a little while when there is nothing."""
        step = _LOOK_SECONDS if self._timeout is None else min(_LOOK_SECONDS, self._timeout)
        most = _MESSAGES_AT_ONCE if self._left is None else min(_MESSAGES_AT_ONCE, self._left)
        if self._form is None:
            with signals.waiting():
                batch = stream.batch(most, _BYTES_AT_ONCE, step)
            if batch is None:
                return False
            lines = without_nulls(batch)
            self._write(lines, sum(map(len, lines)))
            stream.done(batch)
            return True
        with signals.waiting():
            found = stream.poll(step)
        lines = []
        given: dict[TopicPartition, GroupMessage] = {}
        size = extra = 0
        error: FastlogError | None = None
        while isinstance(found, GroupMessage):
            lines.append(self._form(found))
            given[found.source] = found
            size += len(found.payload or b"")
            extra += len(lines[-1])
            if len(lines) >= most or extra >= _BYTES_AT_ONCE:
                break
            try:
                found = stream.poll(0.0)
            except FastlogError as failure:
                error = failure  # once what came before it is printed
                break
        if lines:
            self._write(lines, size)
            for message in given.values():
                stream.done(message)
        if error is not None:
            raise error
        return bool(lines)

    def _write(self, lines: list[bytes], payload_bytes: int) -> None:
        write_all(self._delimiter.join([*lines, b""]))
        self._progress.count += len(lines)
        self._progress.size += payload_bytes
        self._progress.idle()
        if self._left is not None:
            self._left -= len(lines)

    # -- what cannot be read -------------------------------------------------------------------------------------------

    def _get_past(self, error: FastlogError) -> None:
        """Go on behind a damaged message if that is wanted. Raises ``CommandError`` otherwise."""
        place = next((item for item, state in self._consumer.partitions.items() if state.error is error), None)
        why = str(error).replace("\n", "; ")
        if not isinstance(error, OF_ONE_MESSAGE) or place is None:
            raise CommandError(
                "reading cannot go on", why, "what was printed is committed: run this again to try again", EXIT_FAILED
            ) from error
        offset = self._consumer.offsets[place]
        if not self._skips_damage:
            raise CommandError(
                f"{type(error).__name__}: {place}, offset {offset}",
                why,
                "--skip-message-on-error goes on behind it; fastlog fsck on the broker's log directory looks closer",
                EXIT_DAMAGED,
            ) from error
        address = self._consumer.partitions[place].address
        with SimpleConsumer(address.host, address.port, timeout=_ANSWER_SECONDS, local="off") as simple:
            skip = find_end_of_damage(simple, place.topic, place.partition.partition, offset)
        if skip.end <= offset:
            raise CommandError(f"{place} ends at {offset}", why, "look at the broker's log", EXIT_DAMAGED) from error
        self._progress.say(f"skipped {place}, offsets {skip.start} to {skip.end}: {why}")
        self._skipped += 1
        self._consumer.seek(place, skip.end)

    def _say_jumps(self) -> None:
        jumps = self._consumer.jumps
        for jump in jumps[self._jumps :]:
            self._progress.say(str(jump))
        self._jumps = len(jumps)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Commit what is on stdout, and leave the group."""
        consumer = self._consumer
        offsets = dict(consumer.offsets)
        commits = consumer.config.auto_commit
        if commits and offsets:
            try:
                consumer.commit_offsets()
            except OwnershipLostError as error:
                note(f"others have taken over, and print again what was printed since the last commit: {error}")
            except FastlogError as error:
                self._code = EXIT_FAILED
                note(f"not committed, so it comes again: {str(error).partition(chr(10))[0]}")
        consumer.shutdown()
        skipped = f"; skipped {self._skipped} damaged places" if self._skipped else ""
        verb = "committed" if commits else "next offset"
        self._progress.summary(f"{skipped}; {verb} {_listed(offsets.items())}")


def _listed(offsets: Iterable[tuple[TopicPartition, int]]) -> str:
    shown = [f"{partition}:{offset}" for partition, offset in sorted(offsets)]
    return (", ".join(shown[:_SHOWN]) or "nothing") + (", …" if len(shown) > _SHOWN else "")
