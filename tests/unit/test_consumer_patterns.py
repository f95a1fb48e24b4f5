"""Filters mean what ``re`` means by them: each of many expressions on every short name, and limits to the one."""

from __future__ import annotations

import itertools
import re

import pytest

from fastlog.consumer import patterns
from fastlog.consumer.patterns import Pattern, compiled
from fastlog.errors import ConfigError

ALPHABET = "aB_1\n é"
NAMES = ["".join(letters) for length in range(4) for letters in itertools.product(ALPHABET, repeat=length)]
LONGER = ["abab", "aaaa", "aaab", "AbAb", "a1a1", "\na\nb\n", "a\n\na", "ab1_", "éaéa", "aaaaaaa", "BBBBBB"]

EXPRESSIONS = [
    "", "a", "aB", "a|B", "a|", "|a|B1", "a.B", ".", "..", ".*", ".+", ".?", "a*", "a+", "a?", "a{2}", "a{0}",
    "a{0,1}", "a{1,2}", "a{2,}", "a{2,3}", "a{,2}", "(?:aB){2}", "(?:aB){1,2}", "(?:a|B){3}", "(?:a?){3}",
    "(?:a*)*", "(?:a*)+", "(?:a|a1)*", "(?:a{2})*", "(?:a{2,3}){2}", "a*?", "a+?B", "a{1,2}?a", "(a)(B)",
    "(?P<x>a)B", "a*+", "a*+a", "a++B", "a?+a", "a{1,2}+a", "a{2,3}+B", ".*+", "[aB]++1", "a{0,1}+B", "[aB]",
    "[^aB]", "[a-z]", "[^a-z]", "[A-Z_]", "[^\\n]", "[\\d_]", "[^\\d_]", "[\\w]+", "[^\\w]", "[\\s1]", "[\\S]",
    "[\\D]", "[\\W]", "\\d", "\\D", "\\s", "\\S", "\\w", "\\W", "\\w+", "\\W*", "\\d\\D", "[^\\s\\S]",
    "[\\s\\S]+", "é", "[é]", "[^é]", "[^a]*", "^a", "a^", "^", "^^a", "a$", "$", "$a", "a$\\n", "a\\n", "^a$",
    "\\Aa", "a\\A", "a\\Z", "\\Za", "\\Aa\\Z", "a\\Z\\n", "a\\n$", "a\\n\\Z", "(?m)^a", "(?m)a\\n^B",
    "(?m)a$\\nB", "(?m)^$", "(?m)\\n^a", "(?m)a$", "(?m)^\\n$", "(?m)a\\n\\Z", "(?m)\\Aa", "(?m)\\n\\Aa",
    "(?m)a\\Z\\n", "\\ba", "a\\b", "\\b", "\\B", "a\\Ba", "\\Ba", "a\\b ", "\\b.\\b.", ".\\B.", "\\b_", "é\\ba",
    "é\\Ba", "1\\b\\na", "(?i)a", "(?i)b", "(?i)[a]", "(?i)[^a]", "(?i)[a-b]", "(?i)[^A-B]", "(?i)é", "(?i)É",
    "(?i:A)B", "(?i:a)b", "(?i:(?-i:a)b)", "(?i)\\w", "(?s).", "(?s).*", "(?s:.)a", "(?s)(?-s:.)", "(?s)[^\\n]",
    "(?x) a # b", "(?i)[\\d_b]", "(?i)[^b]1", "(?=a)a", "(?=a)..", "(?=aB)a.", "a(?=B)B", "a(?=B)", "(?!a).",
    "(?!a)..", "(?!a)a", "a(?!B).", ".(?!)", "(?=.*1)a.*", "(?!.*1).*", "(?<=a)B", "a(?<=a)B", "(?<=a)",
    ".(?<=a)", "..(?<=aB)", ".(?<!a).", "..(?<!aB)", "(?<!a)a", "(?<!a)B", "(?<=^)a", ".(?<=^.)a",
    "(?:a|B1)(?:1|_)?", "(?:a.)+", "(?:.a|a.)*", "(?:a|B)*1(?:a|B)*", "(?:(?:a|B)(?:1|_))*", "((a)|(B))+",
    "a(?:|B)1?",
]  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_it_matches_as_a_whole_what_re_does(text: str) -> None:
    pattern, wanted = Pattern(text), re.compile(text, re.ASCII)
    for name in NAMES if "é" in text or len(text) < 9 else NAMES[::2] + LONGER:
        if not name and "\\B" in text:
            continue  # before Python 3.14 it is no match there, and a topic has a name
        assert pattern.matches(name) == (wanted.fullmatch(name) is not None), (text, name)


def test_it_is_remembered_and_forgotten_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found out once costs nothing again, errors as well; what is kept has a bound."""
    monkeypatch.setattr(patterns, "_KEPT_NAMES", 3)
    looked: list[str] = []
    real = patterns._Match.is_whole

    def counting(match: patterns._Match, *given: object) -> bool:
        looked.append(match._name)
        return real(match, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(patterns._Match, "is_whole", counting)
    pattern = Pattern("a+")
    for name in ("a", "b", "c", "a", "b", "c"):
        assert pattern.matches(name) is (name == "a")
    assert looked == ["a", "b", "c"]
    pattern.matches("d")
    pattern.matches("a")
    pattern.matches("d")
    assert looked == ["a", "b", "c", "d", "a"]
    monkeypatch.setattr(patterns, "MOST_STEPS", 1)
    hard = Pattern("aa")
    for _ in range(2):
        with pytest.raises(ConfigError, match="takes too many steps"):
            hard.matches("aa")
    assert looked[5:] == ["aa"]
    assert compiled("x+y") is compiled("x+y")


def test_steps_are_counted_to_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All members of a group have to come to the same result, so the count is a part of what is agreed on."""
    for text, name, steps in (
        ("aaa", "aaa", 3),
        ("aaa", "a", 2),
        ("aaa", "b", 1),
        ("ab|c", "c", 1 + 2),
        ("a*", "aaa", 1 + 4),
        ("(?:ab)*", "abab", 1 + 2 + 2 + 1),
        ("a{3}", "aaa", 1 + 3),
        ("(?=a)a", "a", 2 + 1),
    ):
        assert _needed(monkeypatch, text, name) == steps, text
    assert patterns.MOST_STEPS == 50_000 and patterns.MOST_CHARACTERS == 10_000


def _needed(monkeypatch: pytest.MonkeyPatch, text: str, name: str) -> int:
    """The least limit that is enough."""
    for limit in range(1, 50):
        with monkeypatch.context() as patch:
            patch.setattr(patterns, "MOST_STEPS", limit)
            try:
                Pattern(text).matches(name)
            except ConfigError:
                continue
            return limit
    raise AssertionError("more than fifty")


def test_a_pattern_has_so_many_characters_and_not_one_more() -> None:
    longest = "a" * 10_000
    assert Pattern(longest).matches(longest)
    with pytest.raises(ConfigError, match="it has 10001 characters, more than 10000") as raised:
        Pattern(longest + "a")
    assert len(str(raised.value)) < 300
    with pytest.raises(ConfigError, match="'" + "b" * 99 + r"\(' is no regular"):
        Pattern("b" * 99 + "(")
    with pytest.raises(ConfigError, match="'" + "b" * 100 + "'… is no regular"):
        Pattern("b" * 100 + "(")


@pytest.mark.parametrize(
    "text",
    [r"(a)\1", r"(a)?(?(1)b|c)", r"(?P<x>a)(?P=x)", r"(?>ab)", r"(?:ab)++", r"(?:ab|b)*+", r"(|(a)\2)", r"(?=(a)\1)",
     r"(?:(a)\1)*", r"((a)\2)", "(", "a{2,1}", "[b-a]", "*a", "\\"],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_wherever_it_stands(text: str) -> None:
    with pytest.raises(ConfigError, match="is no regular expression"):
        Pattern(text)
