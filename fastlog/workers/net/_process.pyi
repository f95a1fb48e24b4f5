"""What a child process tells the kernel about itself."""

def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; the caller checks the parent again afterwards."""

def set_name(name: str) -> None:
    """Name this process for ps and top, which see what the kernel takes of it: 15 bytes."""

def keep_memory(most_bytes: int, largest_bytes: int) -> None:
    """Have the C library keep up to ``most_bytes`` of freed memory, in pieces of up to ``largest_bytes``, where it can.

    Without it each large request takes its buffer from the kernel page by page, and gives it back.
    """
