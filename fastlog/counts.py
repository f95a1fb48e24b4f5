"""How many of something, and the first of many, as people read it: ``2 messages``, ``a, b and 5 more``."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str, verb: str = "") -> str:
    """``1 message``, ``0 messages``; with a verb (``was``, ``is``, ``has``): ``1 message was``, ``3 messages were``."""
    if count == 1:
        return f"1 {noun} {verb}".rstrip()
    many = noun[:-1] + "ies" if noun.endswith("y") else noun + ("es" if noun.endswith(("ch", "sh", "x")) else "s")
    return f"{count} {many} {_PLURAL_VERBS.get(verb, verb)}".rstrip()


def listed(names: Sequence[str], most: int, *, separator: str = ", ", noun: str = "") -> str:
    """``a, b and 5 more``: the first ``most`` names, and how many are left; ``noun`` stands behind the number."""
    left = len(names) - most
    more = f" and {left} more {noun}".rstrip() if left > 0 else ""
    return separator.join(names[:most]) + more


_PLURAL_VERBS = {"was": "were", "is": "are", "has": "have"}
