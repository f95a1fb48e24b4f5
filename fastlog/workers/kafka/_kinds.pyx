"""The table of ``kinds`` for compiled code."""

from fastlog.workers.kafka import kinds


cdef class Kinds:
    """The request kinds that are served, as ``kinds.APIS`` and ``kinds.FORWARDED`` have them when it is made; never changes."""

    def __cinit__(self):
        for key, api in [*kinds.APIS.items(), *kinds.FORWARDED.items()]:
            if not 0 <= key < KEYS:
                raise ValueError(f"api key {key} has no place")
            self.apis[<int>key].is_served = True
            self.apis[<int>key].is_forwarded = key in kinds.FORWARDED
            self.apis[<int>key].first = api.served
            self.apis[<int>key].last = api.last
            self.apis[<int>key].flexible = api.flexible
            self.apis[<int>key].operation = api.operation or 0

    def operation_of(self, int key):
        """What a request of this kind does with the topics it names; 0: nothing, None: there is no such kind."""
        cdef const ApiVersions* api = api_of(self, key)
        return None if api == NULL else api.operation


def named():
    """The api keys that compiled code answers."""
    return {PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS}
