# An entry of a message set; its fields stand in the .pyx.
cdef enum:
    LENGTH_BYTES = 4
    LEAST_ENTRY_BYTES = 9        # length, magic and checksum: magic 0 with an empty payload
    ENTRY_HEADER_BYTES = 10      # with attributes: what stands before the payload of magic 1
    CODEC_MASK = 3               # of the attributes
    LAST_CODEC = 2

cdef enum ScanStatus:
    SCAN_OK = 0          # the bytes end exactly at the end of an entry
    SCAN_TAIL = 1        # the bytes end inside an entry
    SCAN_SIZE = 2        # a length that is negative or too small for its magic
    SCAN_MAGIC = 3       # a magic byte other than 0 and 1
    SCAN_CODEC = 4       # codec 3, or reserved attribute bits that are not 0
    SCAN_CRC = 5         # the payload's checksum is wrong
    SCAN_TOO_LARGE = 6   # a payload above max_payload

cdef struct Scan:
    Py_ssize_t valid_bytes   # end of the last whole and valid entry
    long long count          # entries before valid_bytes
    long long wrappers       # of these, compressed ones
    long long suspicious     # of these, uncompressed ones whose payload begins like gzip or xerial snappy
    int status               # a ScanStatus: why the walk ended at valid_bytes

# Walk the top-level entries of p[0:n] and check each one (size, magic, attributes, CRC); max_payload < 0: no limit.
cdef void scan_set(const unsigned char* p, Py_ssize_t n, Py_ssize_t max_payload, Scan* out) noexcept nogil
