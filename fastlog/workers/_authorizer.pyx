"""The one place that every use of a topic passes, whatever the protocol; the rule is asked as ``authorization`` says."""

from libc.stdint cimport uint8_t

from fastlog.workers.net._connection cimport Conn

import logging

from fastlog.workers import authorization

log = logging.getLogger(__name__)


cdef class Authorizer:

    def __cinit__(self, rule=None):
        self.rule = rule
        self.has_rule = rule is not None

    def is_allowed(self, client, operation, topic):
        return not self.has_rule or self.decide(authorization.is_allowed, client, operation, topic)

    def is_allowed_on_cluster(self, client, operation):
        return not self.has_rule or self.decide(authorization.is_allowed_on_cluster, client, operation)

    def is_allowed_on_group(self, client, operation, group):
        return not self.has_rule or self.decide(authorization.is_allowed_on_group, client, operation, group)

    def decide(self, asks, *arguments):
        try:
            return bool(asks(self.rule, *arguments))
        except Exception as error:
            log.error("unexpected error in the authorization of a request, which is refused: %r", error, exc_info=error)
            return False

    cdef bint ask(self, Conn* c, int operation, const uint8_t* name, int size) noexcept nogil:
        """Whether the client of a connection may do this with a topic; False where the rule raises."""
        with gil:
            try:
                topic = (<bytes>name[:size]).decode("utf-8", "surrogateescape")
                return self.is_allowed(self.client(c), authorization.Operation(operation), topic)
            except BaseException:
                return False

    cdef object client(self, Conn* c):
        """Who is at the other end of a connection; the loop's thread, or that of a job the connection waits for."""
        host = (<bytes><const char*>c.host).decode("ascii") if c.host[0] else "?"
        return authorization.Client(authorization.PRINCIPALS[c.principal], host, c.listener, c.name)
