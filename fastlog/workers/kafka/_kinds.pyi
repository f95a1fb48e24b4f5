"""The table of ``kinds`` for compiled code."""

class Kinds:
    """The request kinds that are served, as ``kinds`` has them when it is made; never changes."""

    def operation_of(self, key: int) -> int | None:
        """What a request of this kind does with the topics it names; 0: nothing, None: there is no such kind."""

def named() -> set[int]:
    """The api keys that compiled code answers."""
