cdef enum:
    KEYS = 128                   # api keys are below

# The api keys that compiled code knows by name.
cdef enum ApiKey:
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18

# One request kind, see ``kinds.Api``.
cdef struct ApiVersions:
    bint is_served
    bint is_forwarded            # by the coordinator
    int first                    # version served
    int last
    int flexible                 # first version with tagged fields
    int operation                # an ``Operation``, 0: none

cdef class Kinds:
    cdef ApiVersions[KEYS] apis


cdef inline const ApiVersions* api_of(Kinds kinds, int key) noexcept nogil:
    """What is served of a request kind; NULL: nothing."""
    return &kinds.apis[key] if 0 <= key < KEYS and kinds.apis[key].is_served else NULL
