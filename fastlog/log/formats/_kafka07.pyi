"""The log of Kafka 0.7 as compiled code sees it: an offset is a byte position in the partition's stream."""

def register() -> None:
    """Give the format its number: the first, when the package is imported."""
