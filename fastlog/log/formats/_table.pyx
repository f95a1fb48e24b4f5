"""The table of log formats that compiled code goes through; filled when modules are imported, read-only after a fork."""

from libc.stdint cimport uint32_t
from libc.string cimport strcmp

from fastlog.errors import LogError

cdef (const Format*)[MAX_FORMATS] table
cdef uint32_t count = 0


cdef const Format* format_of(uint32_t number) noexcept nogil:
    return table[number] if number < count else NULL


cdef int add_format(const Format* added) except -1:
    global count
    cdef uint32_t i
    for i in range(count):
        if strcmp(table[i].name, added.name) == 0:
            raise LogError("there is a log format of this name", found=added.name.decode())
    if count == MAX_FORMATS:
        raise LogError(f"no room for more than {MAX_FORMATS} log formats", found=added.name.decode())
    table[count] = added
    count += 1
    return 0


def numbers():
    """The number of each format by its name."""
    return {table[i].name.decode(): i for i in range(count)}
