"""T-24: the names that 0.7.2 accepts are accepted, the others are refused with a reason that is safe to log."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastlog.topics import valid_topic

LEGAL = [
    *"abzAZ059_-",
    *" !\"#$%&'()*+,:;<=>?@[\\]^`{|}~",  # odd, but 0.7.2 forbids none of them
    *("...", ".a", "a.", "a..b", "..a", "-", "--", "-0", "a-0", "a-", "a-b-c-12", "0", "-1", "2147483648-0"),
    *("con", "CON", "nul", "aux", "prn", "com1", "lpt1", "desktop.ini", "lost+found", ".lock", ".kafka_cleanshutdown"),
    *(
        "~",
        "~root",
        "$HOME",
        "${PATH}",
        "`id`",
        "$(id)",
        "a b",
        " a",
        "a ",
        "*",
        "?",
        "a|b",
        "a;b",
        "a&b",
        "-rf",
        "--help",
    ),
    *(
        "%2e%2e%2f",
        "%00",
        "..%5c",
        "..\\",
        "\\..\\..\\x",
        "C:\\x",
        "C:",
        "file:x",
        "a\\b",
        "&lt;",
        "<script>",
        "' OR 1=1",
    ),
    *("{}", "{0}", "%s", "%n%n%n", "%(x)s", "\\n", "\\x00", "\\u0000", "null", "None", "true", "NaN", "1e309", "0x10"),
    *("é", "e\u0301", "ñ", "ß", "ſ", "İ", "ı", "日本語", "トピック", "тема", "θέμα", "نص", "שלום", "हिन्दी", "한국어"),
    *(
        "\u00a0",
        "\u00ad",
        "\u2024",
        "\u2024\u2024",
        "\u2025",
        "\u200b",
        "\u200e",
        "\u202e",
        "\u2028",
        "\u2029",
        "\u2044",
    ),
    *(
        "\u2215",
        "\u29f8",
        "\uff0f",
        "\uff0e",
        "\uff0e\uff0e",
        "\u3000",
        "\ufeff",
        "\ufb01",
        "\uf900",
        "\ud7ff",
        "\uffef",
    ),
    *("\ufdd0", "\ufefe", "\u0300", "\u00a0a", "a\u0085".replace("\u0085", "\u00a0"), "\u1680", "\u180e", "\u205f"),
    *("a" * 100, "a" * 249, "a" * 252, "a" * 253, "-" * 253, "é" * 126, "日" * 84, "a.b_c-d", "my_topic", "test-topic"),
]

ILLEGAL_CHARACTERS = [
    "/",
    *(chr(code) for code in range(0x20)),
    *(chr(code) for code in range(0x7F, 0xA0)),
    *("\ud800", "\ud805", "\udbff", "\udc00", "\udc80", "\udcff", "\udfff", "\ue000", "\ue123", "\uf000", "\uf8ff"),
    *(chr(code) for code in range(0xFFF0, 0x10000)),
    *("\U00010000", "\U0001f600", "\U0001d11e", "\U000e0001", "\U000f0000", "\U0010ffff"),
]

ILLEGAL = [
    *("", ".", "..", "/", "//", "/etc/passwd", "../x", "../../x", "a/../b", "./a", "a/", "/a", "a/b", "..//", "~/x"),
    *("a\nb", "a\r\nlevel=error forged", "\x1b[31mred", "a\0", "\0a", "x\0.kafka", "a\tb", "\x7f", "\x9bA", "\u0085"),
    *(
        "a" * 254,
        "a" * 255,
        "a" * 256,
        "a" * 1000,
        "a" * 100_000,
        "é" * 127,
        "é" * 255,
        "日" * 85,
        "日" * 255,
        "é" * 256,
    ),
    *("topic\U0001f600", "\U0001f600" * 200, "a\ud83d", "\ude00a", b"\xff\xfe".decode("utf-8", "surrogateescape")),
]


def test_the_table_is_long_enough() -> None:
    rows = {*LEGAL, *ILLEGAL, *ILLEGAL_CHARACTERS}
    assert len(rows) >= 200
    assert not {*LEGAL} & {*ILLEGAL, *ILLEGAL_CHARACTERS}


@pytest.mark.parametrize("name", LEGAL, ids=ascii)
def test_legal_names(name: str) -> None:
    assert valid_topic(name) is None


@pytest.mark.parametrize("name", ILLEGAL, ids=lambda name: ascii(name)[:40])
def test_illegal_names(name: str) -> None:
    reason = valid_topic(name)
    assert reason is not None
    assert reason.isascii()
    assert reason.isprintable()
    assert len(reason) < 120


@pytest.mark.parametrize("character", ILLEGAL_CHARACTERS, ids=ascii)
def test_illegal_characters(character: str) -> None:
    """Alone, first, last or in the middle, the character is found and named by number, never repeated."""
    for name in (character, character + "a", "a" + character, "a" + character + "b"):
        reason = valid_topic(name)
        assert reason is not None
        assert f"U+{ord(character):04X} at index {name.index(character)}" in reason


@pytest.mark.parametrize("code", [0x1F, 0x20, 0x2E, 0x2F, 0x30, 0x7E, 0x7F, 0x9F, 0xA0, 0xD7FF, 0xD800, 0xF8FF])
def test_borders_of_the_forbidden_ranges(code: int) -> None:
    inside = code in (0x1F, 0x2F, 0x7F, 0x9F, 0xD800, 0xF8FF)
    assert (valid_topic("a" + chr(code)) is not None) == inside


def test_longest_name_is_a_setting() -> None:
    """The limit counts characters; the name of the directory counts bytes, and no setting lifts its limit."""
    assert valid_topic("a" * 10, 10) is None
    assert valid_topic("é" * 10, 10) is None
    reason = valid_topic("a" * 11, 10)
    assert reason is not None
    assert "11 characters, more than 10" in reason
    assert valid_topic("a" * 300, 1000) is not None


def test_directory_name_holds_the_partition_too() -> None:
    assert valid_topic("a" * 253, partition=9) is None
    reason = valid_topic("a" * 253, partition=10)
    assert reason is not None
    assert "256 bytes" in reason
    assert valid_topic("a" * 252, partition=10) is None


def units(name: str) -> list[int]:
    """The UTF-16 units of a name, as Java sees it."""
    data = name.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[index : index + 2], "big") for index in range(0, len(data), 2)]


def accepted_by_java(name: str) -> bool:
    forbidden = [(0x2F, 0x2F), (0, 0x1F), (0x7F, 0x9F), (0xD800, 0xF8FF), (0xFFF0, 0xFFFF)]
    found = units(name)
    if not 1 <= len(found) <= 255 or name in (".", ".."):
        return False
    return not any(low <= unit <= high for unit in found for low, high in forbidden)


@given(st.text(st.characters(codec=None), max_size=300) | st.text(st.sampled_from("./-a\x80é\U0001f600"), max_size=5))
@example("\U00010000")
@example("a" * 255)
@settings(max_examples=300, deadline=None)
def test_agrees_with_the_rule_on_units(name: str) -> None:
    """Accepted means accepted by 0.7.2's rule on UTF-16 units, and short enough for a directory's name."""
    expected = accepted_by_java(name) and len(name.encode("utf-8")) <= 253
    assert (valid_topic(name) is None) == expected
