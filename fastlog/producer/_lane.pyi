class Lane:
    """The numbers of one partition's batches."""

    limit: int
    producer: int
    epoch: int
    next: int
    generation: int
    in_flight: int
    is_known: bool
    def __init__(self, limit: int, first: int = 0) -> None:
        """``limit``: batches that may be without an answer, 0: they are not numbered. ``first``: the first record's."""
