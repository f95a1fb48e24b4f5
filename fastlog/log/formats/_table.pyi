"""The table of log formats that compiled code goes through; see ``_table.pxd``."""

def numbers() -> dict[str, int]:
    """The number of each format by its name."""
