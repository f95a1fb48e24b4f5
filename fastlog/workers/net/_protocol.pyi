"""What a listener speaks, as its connections see it."""

class Protocol:
    """One protocol of one processor, for all connections that speak it; the methods are for compiled code."""
