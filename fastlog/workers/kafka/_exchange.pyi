"""Where the request at the front of a connection's bytes stands."""

def transitions() -> dict[str, set[str]]:
    """The states that may follow each state."""
