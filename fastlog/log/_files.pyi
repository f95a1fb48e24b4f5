"""The compiled twin of ``files.py``; Python sees the injected faults alone."""

def arm(text: str, role: str) -> None:
    """Take the fault rules of ``text`` that are for ``role``; counts begin at zero.

    Raises:
        ConfigError: a rule is malformed.
    """

def arm_from_environment(role: str) -> None:
    """Take the rules of ``FASTLOG_FAULTS`` for a process of this role."""

def reach(name: str) -> None:
    """A named point of Python code was reached: a rule may end the process here, or raise its error."""
