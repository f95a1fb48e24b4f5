"""The compiled beginning of ``Producer.send``: from a topic and a key to a buffer, for what is simple."""

import os

from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from fastlog._bytes cimport GIL_SPAN_BYTES
from fastlog._crc cimport crc32_span
from fastlog.producer._buffer cimport Buffer, Quota
from fastlog.producer._frames cimport checksum
from fastlog.producer._parts cimport (
    RecordParts, are_lasting, begin_parts, checked_time, pack_headers, parts_bytes, set_headers, simple_key,
)
from fastlog.producer._stamp cimport Stamp, find_key


cdef extern from "Python.h":
    PyObject* PyList_GET_ITEM(object items, Py_ssize_t i)  # borrowed
    Py_ssize_t PyList_GET_SIZE(object items)
    PyObject* PyDict_GetItemWithError(object mapping, object key) except? NULL  # borrowed
    bint PyUnicode_Check(object value)
    bint PyLong_CheckExact(object value)
    bint PyTuple_Check(object value)
    bint PyCallable_Check(object value)
    bint PyList_CheckExact(object value)

cdef enum:
    ANYWHERE = 0xFFFFFFFF         # in place of the number of a buffer that a key has chosen

cdef long long fork_generation = 0


def _after_fork_in_child():
    global fork_generation
    fork_generation += 1


os.register_at_fork(after_in_child=_after_fork_in_child)


def generation():
    """A number that differs between a process and the child it forks."""
    return fork_generation


cdef class Route:
    """The buffers that messages of one topic may go to.

    ``anywhere`` are those of messages without a key, one of which is used until a frame of it is finished; ``keyed``
    those that a key's hash chooses from, or None when that is not for compiled code to decide.
    """

    cdef list anywhere
    cdef Buffer current
    cdef bint is_unused            # so far, since it was chosen
    cdef list keyed
    cdef uint32_t mask             # of the bits of a key's hash that choose
    cdef dict by_hand              # buffers by the partitions that were named so far
    cdef uint32_t random
    cdef Stamp stamp               # of the topic when its messages get envelopes, else None

    def __init__(self, list anywhere, list keyed, uint32_t seed):
        self.random = seed | 1
        self.keyed, self.mask = keyed, 0x7FFFFFFF
        self.by_hand = {}
        self.choose_from(anywhere)

    def choose_from(self, list anywhere):
        """Replace the buffers for messages without a key."""
        if not anywhere:
            raise ValueError("a route has at least one buffer")
        self.anywhere = anywhere
        self.turn()

    def set_keyed(self, list keyed, uint32_t mask=0x7FFFFFFF):
        """Let these bits of a key's CRC-32 choose among these buffers; None leaves it to Python."""
        self.keyed, self.mask = keyed, mask

    cdef Buffer buffer_for_key(self, object key):
        """The buffer that a key's hash chooses; None when that is not for compiled code to decide."""
        cdef const uint8_t* p
        cdef Py_ssize_t size
        if self.keyed is None:
            return None
        size = simple_key(key, &p)
        if size < 0:
            return None
        return <Buffer>self.keyed[(crc32_span(0, p, <size_t>size) & self.mask) % <uint32_t>len(self.keyed)]

    def set_by_hand(self, partition, Buffer buffer):
        """Let compiled code use a buffer for messages of which this partition is asked for."""
        self.by_hand[partition] = buffer

    def forget_by_hand(self):
        """Leave partitions that are asked for to Python, until it has looked at each again."""
        self.by_hand.clear()

    cdef Buffer buffer_by_hand(self, object partition):
        """The buffer of a partition that was named before, as a number or as (broker id, number); else None."""
        cdef PyObject* found
        if not PyLong_CheckExact(partition):
            if not PyTuple_Check(partition):
                return None
            for part in <tuple>partition:  # True is equal to 1, and no number of a partition
                if not PyLong_CheckExact(part):
                    return None
        found = PyDict_GetItemWithError(self.by_hand, partition)
        return <Buffer>found if found != NULL else None

    def buffer_for_any(self):
        """The buffer that the next message without a key goes to."""
        return self.current

    cdef Buffer buffer_for_next(self):
        """The same for compiled code, which does not turn each time: another one where no frame of it is open any more."""
        if self.current.open_messages == 0 and not self.is_unused and len(self.anywhere) > 1:  # its time was over
            self.turn()
        self.is_unused = False
        return self.current

    def turn(self):
        """Choose another buffer for messages without a key."""
        self.random ^= self.random << 13
        self.random ^= self.random >> 17
        self.random ^= self.random << 5
        self.current = <Buffer>self.anywhere[self.random % <uint32_t>len(self.anywhere)]
        self.is_unused = True


cdef class Routes:
    """The routes that compiled code may use, by topic."""

    cdef dict by_topic
    cdef object stamps             # gives a topic its Stamp, or None; None when there are no envelopes
    cdef dict held                 # how many messages wait until something is known of their topic, by topic
    cdef readonly long long waiting
    cdef readonly long long failed
    cdef object last_topic         # that of the last call: the same str each time in the loop of a program
    cdef Route last_route

    def __init__(self):
        self.by_topic = {}
        self.held = {}

    def stamp_with(self, stamps):
        """Give the messages of topics the envelopes of what ``stamps`` returns for the topic, unless that is None."""
        self.stamps = stamps

    def set(self, str topic, Route route):
        """Have the compiled path use a route for a topic from now on, unless the topic is held."""
        route.stamp = self.stamps(topic) if self.stamps is not None else None
        if topic not in self.held:  # nothing lets another thread run between this and the next line
            self.by_topic[topic] = route
        self.last_topic = self.last_route = None

    def hold(self, str topic, items, item):
        """Leave a topic to Python until as many calls of ``let_go``: messages before the next are in no buffer yet. The
        item joins those that wait in the same step, during which no signal is handled."""
        self.held[topic] = self.held.get(topic, 0) + 1
        self.waiting += 1
        self.by_topic.pop(topic, None)
        self.last_topic = self.last_route = None
        items.append(item)

    def let_go(self, str topic, bint failed):
        """Whether that was the last of them; ``failed``: the message comes into no buffer."""
        cdef long long left = self.held.get(topic, 1) - 1
        self.waiting -= 1
        self.failed += failed
        if left:
            self.held[topic] = left
            return False
        self.held.pop(topic, None)
        return True

    def is_held(self, topic=None):
        """Whether the topic is held; None: whether any topic is."""
        return topic in self.held if topic is not None else bool(self.held)

    def clear(self):
        """Forget all routes, so that Python handles the messages of every topic."""
        self.by_topic.clear()
        self.last_topic = self.last_route = None

    cdef Route find(self, object topic):
        """The route of a topic; None where the message is for Python to handle."""
        cdef PyObject* found = NULL
        if PyUnicode_Check(topic):  # anything else is for Python to look at, and need not have a hash
            found = PyDict_GetItemWithError(self.by_topic, topic)
        if found == NULL:
            return None
        if type(topic) is str:
            self.last_topic, self.last_route = topic, <Route>found
        return <Route>found


cdef bytes begin_values(RecordParts* parts, object headers, object timestamp):
    """Begin what all records of a call have in common; returns the bytes that ``parts`` then points to."""
    cdef bytes packed = None
    begin_parts(parts)
    if headers is not None:
        packed = pack_headers(headers)
        set_headers(parts, packed)
    if timestamp is not None:
        parts.timestamp = checked_time(timestamp)
    return packed


cdef int put_record(Buffer buffer, object value, object key, object headers, object timestamp, object on_delivery) except -1:
    """Add a record, or one for each value of a list: 0 when that is not simple and nothing was added, 2 when a frame was
    finished."""
    cdef RecordParts parts
    cdef bytes packed                                     # holds what the parts point to
    cdef Py_ssize_t size = 0
    if headers is not None and not are_lasting(headers):
        return 0
    packed = begin_values(&parts, headers, timestamp)
    parts.key_bytes = simple_key(key, &parts.key)
    if parts.key_bytes < -1:
        return 0
    if PyList_CheckExact(value):
        return buffer.put_all(<list>value, &parts) if on_delivery is None else 0
    if PyBytes_CheckExact(value):
        size = PyBytes_GET_SIZE(value)
    elif value is not None or key is None:
        return 0
    if size + parts_bytes(&parts) > buffer.max_payload or buffer.quota.is_full():
        return 0
    if on_delivery is None:
        return 1 + buffer.put(value, 0, &parts)
    return 1 + buffer.put_called(value, 0, on_delivery, &parts) if PyCallable_Check(on_delivery) else 0


cdef int put_keyed(Route route, Buffer named, list values, list keys, object headers, object timestamp) except -1:
    """Add a list with a key for each of its values, each to the buffer that its key chooses, or all to ``named``: 0 when not
    all of it is simple, and nothing was added."""
    cdef RecordParts parts
    cdef bytes packed                                     # holds what the parts point to
    cdef Py_ssize_t i, n, total = 0, count = PyList_GET_SIZE(values)
    cdef list keyed = route.keyed
    cdef Buffer buffer, anywhere = named
    cdef Quota quota
    cdef bint has_more = headers is not None or timestamp is not None, is_full, is_finished = False
    cdef uint32_t* chosen
    cdef PyObject* value
    if not count or PyList_GET_SIZE(keys) != count or (headers is not None and not are_lasting(headers)):
        return 0
    packed = begin_values(&parts, headers, timestamp)
    if named is None:
        anywhere = route.buffer_for_next()
    quota = anywhere.quota
    chosen = <uint32_t*>malloc(<size_t>count * sizeof(uint32_t))
    if chosen == NULL:
        raise MemoryError
    try:
        # From here to the end nothing gives up the GIL, so the lists stay as they are looked at.
        for i in range(count):
            parts.key_bytes = simple_key(<object>PyList_GET_ITEM(keys, i), &parts.key)
            if parts.key_bytes < -1:
                return 0
            buffer = anywhere
            chosen[i] = ANYWHERE
            if named is None and parts.key_bytes >= 0:
                if keyed is None:
                    return 0
                chosen[i] = (crc32_span(0, parts.key, <size_t>parts.key_bytes) & route.mask) % <uint32_t>PyList_GET_SIZE(keyed)
                buffer = <Buffer>PyList_GET_ITEM(keyed, chosen[i])
            if buffer.lane is None and has_more:
                return 0
            value = PyList_GET_ITEM(values, i)
            n = 0
            if PyBytes_CheckExact(<object>value):
                n = PyBytes_GET_SIZE(<object>value)
            elif <object>value is not None or buffer.lane is None or not (has_more or parts.key_bytes >= 0):
                return 0
            total += n
            if n >= GIL_SPAN_BYTES or n + (0 if buffer.lane is None else parts_bytes(&parts)) > buffer.max_payload:
                return 0
        if count > quota.max_messages - quota.messages or total > quota.max_bytes - quota.bytes:
            return 0
        for i in range(count):
            parts.key_bytes = simple_key(<object>PyList_GET_ITEM(keys, i), &parts.key)
            buffer = anywhere if chosen[i] == ANYWHERE else <Buffer>PyList_GET_ITEM(keyed, chosen[i])
            value = PyList_GET_ITEM(values, i)
            if buffer.lane is None:
                is_full = buffer.put(<object>value, checksum(<object>value), NULL)
            else:
                is_full = buffer.put(<object>value, 0, &parts)
            is_finished = is_finished or (is_full and chosen[i] == ANYWHERE)
    finally:
        free(chosen)
    if is_finished and named is None and len(route.anywhere) > 1:
        route.turn()
    return 1


cdef int put_stamped(Buffer buffer, Stamp stamp, object value, object key) except -1:
    """Add a value, or a list, in envelopes: 0 when it is not simple and nothing was added, 2 when a frame was finished.

    From the number that a message gets to its place in the buffer, nothing here lets another thread run.
    """
    cdef const unsigned char* p
    cdef Py_ssize_t key_bytes = find_key(key, &p), size
    cdef list wrapped
    cdef bytes one
    cdef int done = 0
    if PyBytes_CheckExact(value):
        size = PyBytes_GET_SIZE(value) + stamp.extra(key_bytes)
        if size > buffer.max_payload or size >= GIL_SPAN_BYTES or buffer.quota.is_full():
            return 0
        one = stamp.wrap(value, p, key_bytes)
        try:
            return 1 + buffer.put(one, checksum(one), NULL)
        except BaseException:
            stamp.void(stamp.next - 1, 1)
            raise
    if PyList_CheckExact(value):
        for item in <list>value:
            if not PyBytes_CheckExact(item):
                return 0
        wrapped = stamp.wrap_all(value, key)
        try:
            done = buffer.put_all(wrapped, NULL)
        except BaseException:
            stamp.void(stamp.next - len(wrapped), len(wrapped))
            raise
        if not done:
            stamp.take_back(len(wrapped))
    return done


cdef class SendPath:
    """The compiled beginning of ``Producer.send``: takes what is simple and hands the rest to ``_send_slowly``."""

    cdef readonly Routes _routes
    cdef long long born

    def __cinit__(self, *args, **kwargs):
        self._routes = Routes()
        self.born = fork_generation

    def _is_forked(self):
        return self.born != fork_generation

    def send(
        self, topic, value=None, *, key=None, partition=None, on_delivery=None, headers=None, timestamp=None, keys=None
    ):
        """Send a value, or a list of them, to a topic; or a list of ``ProducerData``.

        ``key`` chooses the partition by the partitioner, for all values, ``keys`` for each; ``partition`` chooses it by hand: a number, -1 for any, or
        (broker id, number) when there are several brokers. ``on_delivery`` is called with each ``Delivery``. A topic of
        record batches keeps the key, ``headers`` and ``timestamp``, and has nulls: the value None, with any of these.
        """
        cdef Routes routes = self._routes
        cdef Route route
        cdef Buffer buffer
        cdef int done = 0
        if self.born == fork_generation:
            route = routes.last_route if topic is routes.last_topic else routes.find(topic)
            if route is not None:
                if keys is not None:
                    if (key is None and on_delivery is None and route.stamp is None and PyList_CheckExact(value)
                            and PyList_CheckExact(keys)):
                        buffer = None if partition is None else route.buffer_by_hand(partition)
                        if (partition is None or buffer is not None) and \
                                put_keyed(route, buffer, <list>value, <list>keys, headers, timestamp):
                            return ()
                    buffer = None
                elif partition is not None:
                    buffer = route.buffer_by_hand(partition)
                else:
                    buffer = route.buffer_for_next() if key is None else route.buffer_for_key(key)
                if buffer is not None:
                    if buffer.lane is not None:
                        if route.stamp is None:
                            done = put_record(buffer, value, key, headers, timestamp, on_delivery)
                    elif headers is not None or timestamp is not None:
                        pass  # refused there
                    elif on_delivery is not None:
                        if route.stamp is None and PyBytes_CheckExact(value) and PyCallable_Check(on_delivery) and \
                                PyBytes_GET_SIZE(value) <= buffer.max_payload and not buffer.quota.is_full():
                            done = 1 + buffer.put_called(value, checksum(value), on_delivery, NULL)
                    elif route.stamp is not None:
                        done = put_stamped(buffer, route.stamp, value, key)
                    elif PyBytes_CheckExact(value):
                        if PyBytes_GET_SIZE(value) <= buffer.max_payload and not buffer.quota.is_full():
                            done = 1 + buffer.put(value, checksum(value), NULL)
                    elif PyList_CheckExact(value):
                        done = buffer.put_all(<list>value, NULL)
                    if done:
                        if done > 1 and buffer is route.current and len(route.anywhere) > 1:
                            route.turn()
                        return ()
        return self._send_slowly(topic, value, key, partition, on_delivery, headers, timestamp, keys)
