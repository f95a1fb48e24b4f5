"""The table of ``kinds`` for compiled code."""

class Kinds:
    """The request kinds that are served, as ``kinds.OPERATIONS`` has them when it is made; never changes."""
