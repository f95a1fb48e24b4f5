"""Regular expressions that others wrote: whether a name matches as a whole, in a number of steps that is bounded.

A member's filter comes from ZooKeeper, and every member of its group has to evaluate it. ``re`` goes back and tries
again, for ever with ``(a+)+b``; here all places up to which the name may have been read are followed at once, as the
bits of a number, so that nothing is tried twice. Steps are counted, not seconds, since all members have to come to the
same result. The syntax is that of ``re``, whose parser is used, with the classes of Java: ``\\w`` is ASCII.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from fastlog.errors import ConfigError

MOST_CHARACTERS = 10_000
"""The longest pattern that is compiled."""
MOST_STEPS = 50_000
"""The most steps that matching one name may take. A usual pattern needs some tens."""
_KEPT_PATTERNS = 64
_KEPT_NAMES = 100_000

_Masks = dict[Any, int]


class Pattern:
    """A regular expression without references to groups and without atomic ones. Safe in several threads."""

    def __init__(self, text: str) -> None:
        """Raises ``ConfigError``: it is no regular expression, is too long, or has what cannot be followed."""
        self.text = text
        if len(text) > MOST_CHARACTERS:
            raise ConfigError(
                f"{_shown(text)} is no filter: it has {len(text)} characters, more than {MOST_CHARACTERS}"
            )
        try:
            self._tree = parser.parse(text, re.ASCII)
            _check(self._tree)
        except (re.error, OverflowError, RecursionError, ValueError) as error:
            raise ConfigError(f"{_shown(text)} is no regular expression: {error}") from None
        self._flags: int = self._tree.state.flags
        self._known: dict[str, bool | ConfigError] = {}

    def matches(self, name: str) -> bool:
        """Whether the whole name matches. Raises ``ConfigError``: that takes more steps than anybody should do."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _KEPT_NAMES:
                self._known.clear()
            try:
                known = _Match(name).is_whole(self._tree, self._flags, self.text)
            except ConfigError as error:
                known = error
            self._known[name] = known
        if isinstance(known, ConfigError):
            raise ConfigError(str(known))
        return known


@functools.lru_cache(_KEPT_PATTERNS)
def compiled(text: str) -> Pattern:
    """The pattern, of the last ones that were asked for. Raises ``ConfigError``."""
    return Pattern(text)


def _shown(text: str) -> str:
    return f"{text[:100]!r}…" if len(text) > 100 else repr(text)


def _check(tree: Any) -> None:
    """Raises ``ValueError`` for what ``_Match`` does not know."""
    for kind, value in tree:
        if kind is op.BRANCH:
            for branch in value[1]:
                _check(branch)
        elif kind is op.SUBPATTERN:
            _check(value[3])
        elif kind in (op.ASSERT, op.ASSERT_NOT):
            _check(value[1])
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            _check(value[2])
        elif kind is op.POSSESSIVE_REPEAT:
            if len(value[2]) != 1 or value[2][0][0] not in _OF_ONE_CHARACTER:
                raise ValueError("a possessive quantifier of more than one character is not supported")
        elif kind in (op.GROUPREF, op.GROUPREF_EXISTS):
            raise ValueError("a reference to a group is not supported")
        elif kind not in _KNOWN:
            raise ValueError(f"{str(kind).lower().replace('_', ' ')} is not supported")


class _Match:
    """One name. Bit n of a number stands for the place before its character n."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._all = (1 << len(name) + 1) - 1
        self._steps = 0
        self._before: dict[str, int] = {}  # by character, the places before it
        for at, character in enumerate(name):
            self._before[character] = self._before.get(character, 0) | 1 << at
        self._masks: _Masks = {}

    def is_whole(self, tree: Any, flags: int, text: str) -> bool:
        """Whether the parsed pattern matches the whole name.

        Raises:
            ConfigError: matching takes more than ``MOST_STEPS`` steps; ``text`` is the pattern for the message.
        """
        try:
            return bool(self._ends(tree, 1, flags) >> len(self._name))
        except (_TooMuchError, RecursionError):
            raise ConfigError(
                f"{_shown(text)} cannot be a filter: to compare it with {_shown(self._name)} takes too many steps"
            ) from None

    def _ends(self, tree: Any, starts: int, flags: int) -> int:
        """Where the tree may end that begins at one of these places."""
        for kind, value in tree:
            if not starts:
                break
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise _TooMuchError
            if kind in _OF_ONE_CHARACTER:
                starts = (starts & self._characters(kind, value, flags)) << 1
            else:
                starts = _KNOWN[kind](self, value, starts, flags)
        return starts

    def _characters(self, kind: Any, value: Any, flags: int) -> int:
        """The places before a character that is meant."""
        key = (kind, id(value) if kind is op.IN else value, flags & (re.IGNORECASE | re.DOTALL))
        found = self._masks.get(key)
        if found is None:
            if kind is op.LITERAL and not flags & re.IGNORECASE:
                found = self._before.get(chr(value), 0)
            else:
                found = sum(places for one, places in self._before.items() if _is_one(kind, value, one, flags))
            self._masks[key] = found
        return found

    def _branch(self, value: Any, starts: int, flags: int) -> int:
        return functools.reduce(lambda ends, branch: ends | self._ends(branch, starts, flags), value[1], 0)

    def _group(self, value: Any, starts: int, flags: int) -> int:
        _, added, removed, tree = value
        return self._ends(tree, starts, (flags | added) & ~removed)

    def _repeat(self, value: Any, starts: int, flags: int) -> int:
        least, most, tree = value
        for _ in range(least):
            before, starts = starts, self._ends(tree, starts, flags)
            if starts == before:
                break  # and so it would be each time
        ends = new = starts
        count = int(least)
        while new and (most is op.MAXREPEAT or count < most):
            new = self._ends(tree, new, flags) & ~ends
            ends |= new
            count += 1
        return ends

    def _possessive(self, value: Any, starts: int, flags: int) -> int:
        """Of one character: as many as there are, and no fewer."""
        least, most, ((kind, inner),) = value
        meant = self._characters(kind, inner, flags)
        ends = 0
        for start in _places(starts):
            run = ~(meant >> start)
            length = min((run & -run).bit_length() - 1, int(most))
            if length >= least:
                ends |= 1 << start + length
        return ends

    def _looks(self, value: Any, starts: int, flags: int) -> int:
        direction, tree = value
        if direction > 0:
            return sum(1 << at for at in _places(starts) if self._ends(tree, 1 << at, flags))
        return starts & self._ends(tree, self._all, flags)

    def _looks_not(self, value: Any, starts: int, flags: int) -> int:
        return starts & ~self._looks(value, starts, flags)

    def _at(self, value: Any, starts: int, flags: int) -> int:
        name, end = self._name, len(self._name)
        if (value is op.AT_BEGINNING and not flags & re.MULTILINE) or value is op.AT_BEGINNING_STRING:
            return starts & 1
        if value is op.AT_BEGINNING:
            return sum(1 << at for at in _places(starts) if at == 0 or name[at - 1] == "\n")
        if value is op.AT_END_STRING:
            return starts & 1 << end
        if value is op.AT_END:
            any_line = bool(flags & re.MULTILINE)
            return sum(
                1 << at for at in _places(starts) if at == end or (name[at] == "\n" and (any_line or at == end - 1))
            )
        is_word = [_is_word(character) for character in name]
        edges = [False, *is_word], [*is_word, False]
        wanted = value is op.AT_BOUNDARY
        return sum(1 << at for at in _places(starts) if (edges[0][at] != edges[1][at]) == wanted)

    def _never(self, value: Any, starts: int, flags: int) -> int:
        return 0


class _TooMuchError(Exception):
    """Matching took more than ``MOST_STEPS`` steps."""


def _places(bits: int) -> list[int]:
    return [at for at in range(bits.bit_length()) if bits >> at & 1]


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    op.CATEGORY_DIGIT: lambda character: character.isascii() and character.isdigit(),
    op.CATEGORY_SPACE: lambda character: character in " \t\n\r\f\v",
    op.CATEGORY_WORD: _is_word,
    op.CATEGORY_NOT_DIGIT: lambda character: not (character.isascii() and character.isdigit()),
    op.CATEGORY_NOT_SPACE: lambda character: character not in " \t\n\r\f\v",
    op.CATEGORY_NOT_WORD: lambda character: not _is_word(character),
}


def _is_one(kind: Any, value: Any, character: str, flags: int) -> bool:
    """Whether the character is one of those that are meant."""
    if kind is op.ANY:
        return character != "\n" or bool(flags & re.DOTALL)
    forms = {character}
    if flags & re.IGNORECASE and character.isascii():
        forms |= {character.lower(), character.upper()}
    codes = {ord(form) for form in forms}
    if kind is op.LITERAL:
        return value in codes
    if kind is op.NOT_LITERAL:
        return value not in codes
    is_negated = False
    is_in = False
    for inner, item in value:
        if inner is op.NEGATE:
            is_negated = True
        elif inner is op.LITERAL:
            is_in |= item in codes
        elif inner is op.RANGE:
            is_in |= any(item[0] <= code <= item[1] for code in codes)
        else:
            is_in |= any(_CATEGORIES[item](form) for form in forms)
    return is_in != is_negated


_OF_ONE_CHARACTER = frozenset((op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN))
_KNOWN: dict[Any, Callable[[_Match, Any, int, int], int]] = {
    op.BRANCH: _Match._branch,
    op.SUBPATTERN: _Match._group,
    op.MAX_REPEAT: _Match._repeat,
    op.MIN_REPEAT: _Match._repeat,
    op.POSSESSIVE_REPEAT: _Match._possessive,
    op.ASSERT: _Match._looks,
    op.ASSERT_NOT: _Match._looks_not,
    op.AT: _Match._at,
    op.FAILURE: _Match._never,
    **dict.fromkeys(_OF_ONE_CHARACTER, _Match._never),
}
