"""Jobs of connections that another process does."""

class Remote:
    """The way to one other process, for compiled code; one of this class does no job."""
