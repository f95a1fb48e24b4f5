"""What a child process tells the kernel about itself."""

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int, unsigned long, ...)
    int PR_SET_PDEATHSIG, PR_SET_NAME

cdef extern from "<signal.h>" nogil:
    int SIGKILL

cdef extern from *:
    """
    #include <malloc.h>
    #ifdef M_TRIM_THRESHOLD
    static void keep_freed_memory(int most, int largest) {
        mallopt(M_TRIM_THRESHOLD, most);
        mallopt(M_MMAP_THRESHOLD, largest);
    }
    #else
    static void keep_freed_memory(int most, int largest) { (void)most; (void)largest; }
    #endif
    """
    void keep_freed_memory(int, int) nogil


def die_with_parent():
    """Have the kernel kill this process when its parent dies; the caller checks the parent again afterwards."""
    prctl(PR_SET_PDEATHSIG, <unsigned long>SIGKILL)


def set_name(str name):
    """Name this process for ps and top, which see what the kernel takes of it: 15 bytes."""
    cdef bytes encoded = name.encode()
    prctl(PR_SET_NAME, <unsigned long><char*>encoded)


def keep_memory(int most_bytes, int largest_bytes):
    """Have the C library keep up to ``most_bytes`` of freed memory, in pieces of up to ``largest_bytes``, where it can.

    Without it each large request takes its buffer from the kernel page by page, and gives it back.
    """
    keep_freed_memory(most_bytes, largest_bytes)
