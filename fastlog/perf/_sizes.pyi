def total_bytes(payloads: list[bytes]) -> int:
    """The sum of the lengths, at about a nanosecond for each.

    Raises:
        TypeError: an item is not bytes.
    """
