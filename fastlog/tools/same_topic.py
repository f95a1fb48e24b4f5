"""Whether a topic that is read for long is still the one that it was: neither deleted since, nor made anew."""

from __future__ import annotations

from collections.abc import Sequence

from fastlog.client.topics import described_in
from fastlog.tools import options
from fastlog.tools.record_topics import records_at
from fastlog.tools.report import EXIT_FAILED, CommandError
from fastlog.tools.topic_places import Site


class SameTopic:
    """Knows what brokers call the logs of a topic now: an id where it is one of records, else when each was made.

    A broker of plain Kafka 0.7 does not report that, and no broker knows it of logs from before it was written down.
    """

    def __init__(self, topic: str, sites: Sequence[Site], timeout: float, so: str, what_to_do: str) -> None:
        """``so``: what that means for the command, in its errors. Raises ``TransportError``."""
        self._topic = topic
        self._timeout = timeout
        self._so = so
        self._what_to_do = what_to_do
        self._known = [(site, self._names(site)) for site in sites]

    def check(self) -> None:
        """Raise ``CommandError`` where it is another one now, or gone; ``TransportError`` where nobody can say."""
        for site, before in self._known:
            now = self._names(site)
            for number, name in before.items():
                if number not in now:
                    raise self._error("deleted", f"{site.address} does not have it any more")
                if name and now[number] and name != now[number]:
                    raise self._error("made anew", f"{site.address} has another one of that name now")

    def _names(self, site: Site) -> dict[int, object]:
        """By partition; falsy where nobody knows."""
        broker = options.broker_at(str(site.address), self._timeout)
        if site.is_plain:
            return {}
        if site.is_of_records:
            with records_at(broker) as records:
                found = records.known_topics([self._topic])[self._topic]
            return dict.fromkeys(found.partitions, found.id)
        metadata = broker.metadata_or_none((self._topic,))
        described = () if metadata is None else described_in(metadata, self._topic).partitions
        return {item.partition: item.created_ms for item in described}

    def _error(self, what: str, why: str) -> CommandError:
        return CommandError(
            f"topic {self._topic!r} was {what} while it was read; {self._so}", why, self._what_to_do, EXIT_FAILED
        )
