"""What a child process tells the kernel about itself."""

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int, unsigned long, ...)
    int PR_SET_PDEATHSIG, PR_SET_NAME

cdef extern from "<signal.h>" nogil:
    int SIGKILL


def die_with_parent():
    """Have the kernel kill this process when its parent dies; the caller checks the parent again afterwards."""
    prctl(PR_SET_PDEATHSIG, <unsigned long>SIGKILL)


def set_name(str name):
    """Name this process (15 bytes) for ps and top."""
    cdef bytes short_name = name.encode()[:15]
    prctl(PR_SET_NAME, <unsigned long><char*>short_name)
