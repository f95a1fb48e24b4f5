"""Patterns match as ``re`` says, whatever they are, in a number of steps that has an end."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog.consumer import patterns
from fastlog.consumer.patterns import Pattern
from fastlog.errors import ConfigError

ATOMS = st.sampled_from(
    ["a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\W", r"\d", r"\s", "^", "$", r"\b", r"\B", "", "[a-b1]", r"\.", r"\A"]
)


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeat = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", "+?"])
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, repeat).map(lambda two: f"({two[0]}){two[1]}"),
        st.tuples(st.sampled_from("abc."), st.sampled_from(["*+", "++", "?+"])).map("".join),
        st.tuples(st.sampled_from(["?=", "?!", "?i:", "?s:"]), inner).map(lambda two: f"({two[0]}{two[1]})"),
        st.sampled_from(["(?<=a)", "(?<!b)", "(?<=ab|ba)", "(?!)"]),
    )


@given(st.recursive(ATOMS, grown, max_leaves=8), st.text("abcA1 .\n", min_size=1, max_size=7))
def test_they_match_what_re_says(pattern: str, name: str) -> None:
    try:
        expected = re.compile(pattern, re.ASCII).fullmatch(name)
    except re.error:
        with pytest.raises(ConfigError, match="no regular expression"):
            Pattern(pattern)
        return
    assert Pattern(pattern).matches(name) is (expected is not None)


def test_what_matches_nothing_matches_nothing() -> None:
    """Wherever it stands, and whatever is beside it."""
    for pattern in ("(?!)", "(?!).*", ".*(?!)", "(?:(?!)|a)b"):
        assert [name for name in ("", "a", "b", "ab") if Pattern(pattern).matches(name)] == ["ab"][: "|" in pattern]


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("(a+)+$", "a" * 200 + "!"),
        ("(a|a)*b", "a" * 200),
        ("(x+x+)+y", "x" * 200),
        ("((((((a*)*)*)*)*)*)*b", "a" * 200),
        ("(.*)" * 30 + "[^9]9", "a" * 200),
        ("(?:a?){200}a{201}", "a" * 200),
        (r"\w{1,1000}" * 200 + "b", "a" * 200),
        ("((((a{1000}){1000}){1000}){1000}){1000}", "a" * 200),
        ("a{4294967290}", "a" * 200),
    ],
)
def test_what_is_endless_elsewhere_is_quick(pattern: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MOST_STEPS", 10_000)
    assert Pattern(pattern).matches(name) is False


def test_what_takes_too_many_steps_is_an_error_each_time() -> None:
    pattern = Pattern("(?=(a|b)*" * 20 + ")" * 20 + "x")
    for _ in range(2):
        with pytest.raises(ConfigError, match="too many steps"):
            pattern.matches("a" * 200)
    assert not pattern.matches("")


@pytest.mark.parametrize(
    "text",
    [
        "(",
        "[",
        "*",
        "a{99999999999999999999}",
        "(" * 4000 + ")" * 4000,
        "x" * 10_001,
        r"(a)\1",
        "(?>a+)",
        "(?:ab)*+",
        "(?P<a",
    ],
)
def test_what_cannot_be_used_is_refused_in_few_words(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Pattern(text)
    assert len(str(caught.value)) < 300
