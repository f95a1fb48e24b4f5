"""Nothing that others named commands a terminal or a log; what programs read stays exact."""

from __future__ import annotations

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import escaping, message
from fastlog.counts import counted, listed
from fastlog.escaping import EscapingFormatter, in_json, printable
from fastlog.limited_log import LimitedLog
from fastlog.tools import report
from tests.harness.command_process import run
from tests.harness.fake_broker import FakeBroker

HOSTILE = "a\x1b]0;pwned\x07\x1b[31mred\u202egnp\n\tb"
ESCAPED = r"a\x1b]0;pwned\x07\x1b[31mred\u202egnp\n\tb"


def test_what_is_not_printable_is_escaped() -> None:
    assert printable(HOSTILE) == ESCAPED
    assert printable("größe-日本 ☂") == "größe-日本 ☂"
    assert printable("a\nb\x1b", "\n") == "a\nb\\x1b"
    assert printable("\ud800") == r"\ud800" and printable("x" * 10, most=3) == "xxx…"


@given(st.text(st.characters(exclude_categories=())))
def test_json_is_exact_and_printable(text: str) -> None:
    found = in_json({"topic": text})
    assert json.loads(found) == {"topic": text} and found.isprintable()


def test_log_lines_and_notes_are_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    log = escaping.logger("fastlog.test_escaping")
    log.addHandler(handler)
    log.propagate = False
    try:
        log.warning("partition=%s offset=%d", HOSTILE, 5)
        LimitedLog(log).warning("kind", "path=%s", HOSTILE * 1000)
        handler.setFormatter(EscapingFormatter())
        logging.Logger.handle(log, log.makeRecord(log.name, logging.INFO, "", 0, "topic=%s", (HOSTILE,), None))
    finally:
        log.removeHandler(handler)
    report.note(HOSTILE)
    said = out.getvalue() + capfd.readouterr().err
    assert "\x1b" not in said and "\x07" not in said and "\u202e" not in said and len(said) < 5000
    assert said.count(r"\x1b[31mred\u202egnp") > 3


def test_commands_escape_names_that_a_broker_tells() -> None:
    with FakeBroker() as fake:
        fake.logs[HOSTILE, 0] = message.encode_set([b"x"])
        common = ("--brokers", fake.address)
        code, out, _ = run("topics", "list", *common, "--no-headers")
        assert code == 0 and out.split(b"\t")[0] == ESCAPED.encode() and out.count(b"\n") == 1
        code, out, _ = run("topics", "list", *common, "--json")
        assert json.loads(out)["topic"] == HOSTILE and out.rstrip(b"\n").decode().isprintable()
        code, _, err = run("topics", "describe", HOSTILE[:-1], *common)
        assert code == 2 and "\x1b" not in err and "\u202e" not in err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((1, "message"), "1 message"),
        ((0, "message"), "0 messages"),
        ((2, "message"), "2 messages"),
        ((1, "entry"), "1 entry"),
        ((3, "entry"), "3 entries"),
        ((1, "batch"), "1 batch"),
        ((2, "batch"), "2 batches"),
        ((2, "index"), "2 indexes"),
        ((2, "crash"), "2 crashes"),
        ((1, "message", "was"), "1 message was"),
        ((2, "message", "was"), "2 messages were"),
        ((0, "offset", "is"), "0 offsets are"),
        ((1, "offset", "has"), "1 offset has"),
        ((5, "offset", "has"), "5 offsets have"),
        ((5, "offset", "came"), "5 offsets came"),
    ],
)
def test_one_thing_is_not_counted_as_several(given: tuple[int, str] | tuple[int, str, str], expected: str) -> None:
    assert counted(*given) == expected


def test_the_first_of_many() -> None:
    names = ["a", "b", "c"]
    assert [listed(names, most) for most in (4, 3, 2)] == ["a, b, c", "a, b, c", "a, b and 1 more"]
    assert listed(names, 1, separator="; ", noun="topics") == "a and 2 more topics"
    assert listed([], 3) == ""
