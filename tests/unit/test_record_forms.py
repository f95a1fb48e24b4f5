"""What ``fastlog consume`` makes of a record."""

from __future__ import annotations

import json

import pytest

from fastlog.record_batches import Record
from fastlog.tools import record_forms

RECORD = Record(b"k\xff", "ä".encode(), 1234, ((b"a", b"1"), (b"b", None)), 7)
NOTHING = Record(None, None, -1, (), 8)


@pytest.mark.parametrize(
    ("template", "made"),
    [
        (r"%t[%p]@%o %k=%s\n", b"t[3]@7 k\xff=\xc3\xa4\n"),
        (r"%S %K %T %h 100%%", b"2 2 1234 a=1,b=NULL 100%"),
        (r"\t\r\0\\n\x41\xff", b"\t\r\0\\nA\xff"),
        ("", b""),
        ("plain ü", "plain ü".encode()),
    ],
)
def test_a_template(template: str, made: bytes) -> None:
    assert record_forms.template_form(template)("t", 3, RECORD) == made


def test_what_is_not_there_is_empty() -> None:
    assert record_forms.template_form("<%s|%k|%S|%K|%T|%h>")("t", 0, NOTHING) == b"<||-1|-1|-1|>"


@pytest.mark.parametrize(
    ("template", "named"), [("%z", "%z"), (r"a\q", r"\q"), ("100%", "%"), ("a\\", "\\"), (r"\x4", r"\x")]
)
def test_a_template_that_means_nothing(template: str, named: str) -> None:
    with pytest.raises(ValueError) as refused:
        record_forms.template_form(template)
    assert str(refused.value).startswith(f"{named} means nothing")


def test_json_has_everything() -> None:
    assert json.loads(record_forms.json_line("t", 3, RECORD)) == {
        "topic": "t", "partition": 3, "offset": 7, "next_offset": 8, "payload": "ä", "base64": False,
        "key": "a/8=", "key_base64": True, "timestamp": 1234,
        "headers": [{"name": "a", "value": "1", "base64": False}, {"name": "b", "value": None, "base64": False}],
    }  # fmt: skip
    told = json.loads(record_forms.json_line("t", 3, NOTHING))
    assert (told["payload"], told["key"], told["base64"], told["headers"]) == (None, None, False, [])


def test_lines() -> None:
    assert record_forms.value_line("t", 3, RECORD) == "ä".encode()
    assert record_forms.value_line("t", 3, NOTHING) == b""
    assert record_forms.offsets_line("t", 3, RECORD) == b"3\t7\t\xc3\xa4"
    assert record_forms.prefixed_value("t", 3, RECORD) == b"\0\0\0\2\xc3\xa4"
    assert record_forms.prefixed_value("t", 3, NOTHING) == b"\0\0\0\0"
    assert record_forms.checksum_line("t", 3, Record(None, b"hello")) == b"checksum:907060870"
    assert record_forms.checksum_form("x")("t", 3, Record(None, b"hello")) == b"x-checksum:907060870"
