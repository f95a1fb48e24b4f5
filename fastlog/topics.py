"""Which topic names are allowed.

The rule is that of Kafka 0.7.2: a name it accepts is accepted here. Names are compared unit by unit as Java does: two
spellings of one letter (Unicode normal forms) are two topics.
"""

from __future__ import annotations

import re

OWN_PREFIX = "__"
"""Of the names of the broker's own topics, which no client makes or deletes."""
DIRECTORY_NAME_BYTES = 255  # the longest file name of Linux file systems

# The surrogates D800-DFFF lie in Java's forbidden range, so every character above U+FFFF, a pair of them, is refused
# as well; so is what the "surrogateescape" error handler makes of bytes that are not UTF-8.
_FORBIDDEN = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


def valid_topic(name: str, max_length: int = 255, *, partition: int = 0) -> str | None:
    """Return None when the name is allowed, else the reason, in ASCII and without the name itself.

    ``max_length`` counts UTF-16 units. The directory ``<name>-<partition>`` must fit 255 bytes of UTF-8, which is
    narrower for names outside ASCII.

    Source: Kafka 0.7.2 (TopicNameValidator).
    """
    if not name:
        return "the topic name is empty"
    # A character above U+FFFF is two units, but a name with one is refused below whatever its length.
    if len(name) > max_length:
        return f"the topic name has {len(name)} characters, more than {max_length}"
    if name in (".", ".."):
        return f"the topic name is {name!r}"
    found = _FORBIDDEN.search(name)
    if found:
        return f"the topic name has the illegal character U+{ord(found[0]):04X} at index {found.start()}"
    directory_bytes = len(name.encode()) + 1 + len(str(partition))
    if directory_bytes > DIRECTORY_NAME_BYTES:
        return f"the directory name of the topic would have {directory_bytes} bytes, more than {DIRECTORY_NAME_BYTES}"
    return None
