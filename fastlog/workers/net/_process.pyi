"""What a child process tells the kernel about itself."""

def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; the caller checks the parent again afterwards."""

def set_name(name: str) -> None:
    """Name this process (15 bytes) for ps and top."""
