"""What reads the partitions of one consumer: a fetch for each, made and given up as the group's worker says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from fastlog.client.addresses import Address
from fastlog.consumer._delivery import Place
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.feed import Feed, Fetching, Jump, PartitionState
from fastlog.consumer.fetcher import Fetch
from fastlog.consumer.links import BrokerLink, Links
from fastlog.consumer.partitions import Claim, TopicPartition
from fastlog.consumer.stream import Stream


class Fetchers:
    """What reads the partitions of one consumer: ``Readers``, for the group's worker, and what its users ask for.

    ``stream_of(topic, thread)`` is the stream of a thread. ``on_begin`` is called, in any thread, with a partition of
    which the broker has said where it begins: no offset was given, or the one given was out of range.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        stream_of: Callable[[str, str], Stream],
        on_jump: Callable[[Jump], None] = lambda jump: None,
        on_begin: Callable[[TopicPartition], None] = lambda source: None,
    ) -> None:
        self._config = config
        self._stream_of = stream_of
        self._on_jump = on_jump
        self._on_begin = on_begin
        self._links = Links(config)
        self._feeds: dict[TopicPartition, Feed] = {}
        self._is_closed = False

    # -- Readers -------------------------------------------------------------------------------------------------------

    def acquire(self, claims: Mapping[TopicPartition, Claim]) -> None:
        """Begin to read and to hand out these partitions."""
        self.release([source for source in claims if source in self._feeds])
        self.moved({source.partition.broker: claim.address for source, claim in claims.items()})
        for source, claim in claims.items():
            stream = self._stream_of(source.topic, claim.thread)
            offset = claim.offset if claim.offset is not None and claim.offset >= 0 else None
            place = Place(source, offset, by_hand=stream.acknowledge, log=claim.log)
            fetch = Fetch(place, self._links, self._config, stream.wake, self._on_jump, self._on_begin)
            feed = self._feeds[source] = Feed(source, claim.thread, fetch, self._on_begin)
            stream.add(feed)
            fetch.start()
        if self._is_closed:
            self.close()

    def release(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Stop; nothing of them is handed out any more. Those of which no offset was known are left out.

        One that is interrupted, as ``close`` may be, has not forgotten what it did not stop.
        """
        consumed = {}
        for source in partitions:
            feed = self._feeds.get(source)
            while feed is not None:
                offset = feed.release()
                self._stream_of(source.topic, feed.thread).remove(feed)
                if offset >= 0:
                    consumed[source] = offset
                gone = self._feeds.pop(source, None)
                feed = gone if gone is not feed else None  # another one, if it was acquired again meanwhile
        return consumed

    def consumed(self) -> dict[TopicPartition, int]:
        """The offset to which each partition has been consumed, as far as it is known."""
        offsets = {source: feed.fetch.place.consumed for source, feed in list(self._feeds.items())}
        return {source: offset for source, offset in offsets.items() if offset >= 0}

    def logs(self) -> dict[TopicPartition, int]:
        """When the log was made that each partition is consumed from, in ms; 0: not known."""
        return {source: feed.fetch.place.log for source, feed in list(self._feeds.items())}

    def beginning(self) -> set[TopicPartition]:
        """The partitions whose first offset is not known yet, although their broker has not failed."""
        return {
            source
            for source, feed in list(self._feeds.items())
            if feed.fetch.place.consumed < 0 and feed.fetch.error is None
        }

    def moved(self, addresses: Mapping[int, Address]) -> None:
        """Take the present address of each broker that is alive. Others are tried at their last address."""
        elsewhere = {broker for broker, address in addresses.items() if self._links.learn(broker, address)}
        for source, feed in list(self._feeds.items()):
            if source.partition.broker in elsewhere:
                feed.replace(lambda before: before.renewed())

    # -- for users -----------------------------------------------------------------------------------------------------

    def feeds(self) -> dict[TopicPartition, Feed]:
        """The feed of each partition that is read now."""
        return dict(self._feeds)

    def states(self) -> dict[TopicPartition, PartitionState]:
        """The state of each partition that is read now."""
        return {source: feed.fetch.state(feed) for source, feed in list(self._feeds.items())}

    def close(self) -> None:
        """Give up whatever is still read, and take nothing on any more."""
        self._is_closed = True
        self.release(list(self._feeds))

    def link(self, broker: int) -> BrokerLink:
        """Where a broker is that has a partition of ours."""
        return self._links.get(broker)

    def seek(self, source: TopicPartition, offset: int) -> bool:
        """Go on at an offset; what was fetched or handed out before counts no more. False when it is not ours now."""
        feed = self._feeds.get(source)
        if feed is None:
            return False
        stream = self._stream_of(source.topic, feed.thread)

        def following(before: Fetching) -> Fetching:
            before.place.end()
            place = Place(source, offset, by_hand=stream.acknowledge, log=before.log)
            return Fetch(place, self._links, self._config, stream.wake, self._on_jump, self._on_begin)

        return feed.replace(following)
