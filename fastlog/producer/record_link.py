"""The link to a broker's topics of record batches: today's protocol, and batches that are stored once.

Source of what a lost sequence means: Apache Kafka 4.2 (Sender, TransactionManager).
"""

from __future__ import annotations

import time

from fastlog import batch_codecs
from fastlog.client.connection import Connection
from fastlog.client.kafka_connection import MOST_ANSWER_BYTES, KafkaConnection
from fastlog.client.record_requests import new_producer, parse_producer
from fastlog.client.records import meaning_of
from fastlog.errors import FastlogError, ProtocolError, TransportError
from fastlog.producer._flight import Flight
from fastlog.producer._frames import Chunk
from fastlog.producer._lane import Lane
from fastlog.producer._record_flight import RecordFlight
from fastlog.producer.brokers import CLIENT
from fastlog.producer.link import Link
from fastlog.producer.outcomes import Outcomes
from fastlog.producer.record_errors import LOST, PASSING, error_of
from fastlog.producer.refusals import Hold, Refusals

IN_FLIGHT = 5
"""Batches of a partition that may be without an answer: as many as a broker remembers of a producer."""


class RecordLink(Link):
    """One broker's topics of record batches. See ``Link``.

    With acknowledgements, and unless the settings say no, batches are numbered: what is written again after a break is
    stored once. A partition whose numbers the broker does not follow gets new ones, behind everything that it may have.
    """

    _flight: RecordFlight

    def new_lane(self) -> Lane:
        """The sequence numbers for one partition; none where batches are not numbered."""
        return Lane(IN_FLIGHT if self._is_numbered else 0)

    @property
    def _is_numbered(self) -> bool:
        return self.acks != 0 and self._config.idempotence

    def _new_flight(self) -> Flight:
        return RecordFlight(self.acks != 0)

    def _new_outcomes(self) -> Outcomes:
        return _RecordOutcomes(self._ledger, self.directory)

    def _new_refusals(self) -> Refusals:
        return _RecordRefusals(self._flight, self._config.num_retries, self._config.delivery_timeout_ms)

    def _opened(self) -> Connection:
        connection = self.directory.connector.connect(
            MOST_ANSWER_BYTES, send_buffer_bytes=self._config.send_buffer_bytes
        )
        try:
            self._begin(KafkaConnection(connection, CLIENT))
        except ProtocolError as error:
            connection.close()
            raise TransportError(f"{connection.peer} does not keep to the protocol: {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin(self, connection: KafkaConnection) -> None:
        deadline = time.monotonic() + self._config.connect_timeout_ms / 1000
        connection.begin("topics of record batches are written to", deadline)
        if not self._is_numbered or (self._flight.producer >= 0 and not self._flight.wants_producer):
            return
        found = parse_producer(connection.ask(new_producer(), deadline))
        if found.code:
            raise TransportError(f"{connection.peer} gives no id to a producer: {meaning_of(found.code)}")
        if found.id < 0 or found.epoch < 0:
            raise TransportError(f"{connection.peer} gives a producer the id {found.id} and the epoch {found.epoch}")
        self._flight.number_with(found.id, found.epoch)

    def _after_write(self) -> None:
        self.outbox.behind = self._flight.is_behind()
        if self._flight.wants_producer and self._connection is not None:
            self._broken(TransportError("another id is needed, as this one has no epochs left"))


class _RecordOutcomes(Outcomes):
    def compressed(self, chunk: Chunk, max_payload: int) -> Chunk:
        """The chunk with its batches compressed, where that makes them smaller."""
        return chunk.compressed_batches(batch_codecs.compress)

    def _error_of(self, code: int) -> FastlogError:
        return error_of(code)


class _RecordRefusals(Refusals):
    _flight: RecordFlight

    def _retried(self) -> frozenset[int]:
        # What comes behind a lost batch is none the worse for it: it is not counted as tried.
        return LOST if self._retries == 0 else PASSING | LOST

    def _meaning_of(self, code: int) -> str:
        return meaning_of(code)

    def _error_of(self, code: int, detail: str) -> FastlogError:
        return error_of(code, detail)

    def _refused(self, hold: Hold, code: int, chunk: Chunk) -> None:
        lane = chunk.lane
        if code not in LOST or lane is None or not lane.limit:
            super()._refused(hold, code, chunk)
            return
        if chunk.is_overtaken:
            detail = "refused, and what follows is stored; whether the records are stored as well is not known"
            self._flight.give_up(chunk, self._error_of(code, detail))
            self._pause(hold)
            return
        # Unless a refused batch is what is missing before it.
        hold.is_lost = hold.is_lost or hold.probe is not None or not hold.refused
        self._put_back(hold, chunk)

    def _before_probe(self, hold: Hold, probe: Chunk) -> None:
        if hold.is_lost and probe.lane is not None:
            self._flight.renew(probe.lane)
        hold.is_lost = False

    def _answered(self, hold: Hold, stored: bool, partition: int) -> None:
        lanes = [chunk.lane for chunk in hold.refused]
        if not stored or hold.probe is not None or not lanes or lanes[0] is None or not lanes[0].limit:
            super()._answered(hold, stored, partition)
            return
        # A broker that takes what follows has what was refused: its answer was lost, and it was written again. When it
        # comes once more the broker says so, or has forgotten the producer: then it may not be stored behind others.
        for chunk in hold.refused:
            chunk.is_overtaken = True
        hold.is_lost = False
