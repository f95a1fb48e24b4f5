"""What compiled code has to say in the broker's log. Python limits lines of a kind about a peer or a partition."""

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memcpy

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_bump, fl_cell_at, fl_slot
from fastlog.log._shared_memory cimport N_INVALID_REQUEST
from fastlog.workers.net._connection cimport Conn


cdef class Reports:
    """The lines of one processor; its loop's thread only. ``services`` is its Python side, see ``Services``."""

    def __cinit__(self, Arena arena, int process, services):
        self.services = services
        self.counters = fl_cell_at(arena.header, process).counters
        self.tracing_memory = services.tracing
        self.tracing = &self.tracing_memory[0]

    cdef void refused(self, Conn* c, const char* reason, int detail, const uint8_t* name=NULL, int name_size=0,
                      int32_t partition=-1) noexcept nogil:
        """Why a request, or its part for one partition, was refused."""
        with gil:
            try:
                topic = None if name == NULL else <bytes>name[:name_size]
                self.services.report(c.fd, reason.decode(), detail, topic, partition)
            except Exception as error:
                self.services.unexpected(error)

    cdef void invalid_request(self, Conn* c, const char* reason, int detail) noexcept nogil:
        """Why a request has no answer, which is counted too: its connection closes."""
        fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
        self.refused(c, reason, detail)

    cdef void set_refused(self, Conn* c, const uint8_t* name, int name_size, int32_t partition,
                          char* said=NULL, size_t room=0) noexcept nogil:
        """Why the compressed message set was refused that was counted last for this connection; ``said`` gets it, too,
        as a string of ASCII that is cut where it does not fit."""
        cdef size_t size
        with gil:
            try:
                why = self.services.report_set(c.fd, c.name, <bytes>name[:name_size], partition)
                if said != NULL:
                    text = why.encode("ascii", "backslashreplace")
                    size = min(<size_t>len(text), room - 1)
                    memcpy(said, <const char*>text, size)
                    said[size] = 0
            except Exception as error:
                self.services.unexpected(error)

    cdef void write_failed(self, Conn* c, fl_slot* s, int error) noexcept nogil:
        """What a connection produced was not stored because of the disk; ``error`` is the errno."""
        with gil:
            try:
                self.services.write_failed(c.fd, <bytes>(<char*>s.name)[:s.name_bytes], s.partition, error)
            except Exception as raised:
                self.services.unexpected(raised)

    cdef void read_failed(self, fl_slot* s, uint64_t base, uint64_t position, int error) noexcept nogil:
        """Bytes of a segment cannot be had; ``error`` is the errno, 0 when the file ends before them."""
        with gil:
            try:
                self.services.read_failed(<bytes>(<char*>s.name)[:s.name_bytes], s.partition, base, position, error)
            except Exception as raised:
                self.services.unexpected(raised)

    cdef void trace(self, Conn* c, int kind, size_t size) noexcept nogil:
        """A request of this kind begins. For who has seen ``tracing`` set: it may be set and cleared while the broker runs."""
        with gil:
            try:
                self.services.trace(c.fd, kind, size)
            except Exception as error:
                self.services.unexpected(error)
