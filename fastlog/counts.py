"""How many of something, as people read it: ``1 message``, ``2 messages``."""

from __future__ import annotations


def counted(count: int, noun: str, verb: str = "") -> str:
    """``1 message``, ``0 messages``; with a verb (``was``, ``is``, ``has``): ``1 message was``, ``3 messages were``."""
    if count == 1:
        return f"1 {noun} {verb}".rstrip()
    many = noun[:-1] + "ies" if noun.endswith("y") else noun + ("es" if noun.endswith(("ch", "sh", "x")) else "s")
    return f"{count} {many} {_PLURAL_VERBS.get(verb, verb)}".rstrip()


_PLURAL_VERBS = {"was": "were", "is": "are", "has": "have"}
