"""The history checker of the fault tests finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness import raw_client as raw
from tests.harness.history import History

PLACE = ("t", 0)
A, B, C, D = (b"%c 0" % letter for letter in b"abcd")
SETS = [raw.entry(payload) for payload in (A, B, C)]
SIZE = len(SETS[0])
WHOLE = b"".join(SETS)


def recorded() -> History:
    """Three messages of one sender, two acknowledged, one of them flushed, and the first two shown."""
    history = History()
    history.sent(PLACE, "p", [A])
    history.acked(PLACE, 0, SIZE, SETS[0], flushed=True)
    history.sent(PLACE, "p", [B])
    history.acked(PLACE, SIZE, 2 * SIZE, SETS[1])
    history.sent(PLACE, "p", [C])
    history.shown(PLACE, 0, SETS[0] + SETS[1])
    return history


def unseen() -> History:
    """The same before any consumer came."""
    history = History()
    history.sent(PLACE, "p", [A, B, C])
    history.acked(PLACE, 0, SIZE, SETS[0], flushed=True)
    history.acked(PLACE, SIZE, 2 * SIZE, SETS[1])
    return history


@pytest.mark.parametrize("stored", [WHOLE, WHOLE[: 2 * SIZE]])
def test_a_sound_log(stored: bytes) -> None:
    """What was not acknowledged may be there or not."""
    assert recorded().check({PLACE: stored}) == []


@pytest.mark.parametrize(
    ("stored", "broken"),
    [
        (SETS[0], "I-1"),
        (SETS[0], "I-3"),
        (b"", "I-1"),
        (SETS[1] + SETS[0], "I-1"),
        (WHOLE + SETS[2][:5], "I-6"),
        (WHOLE + SETS[2], "is there twice"),
        (WHOLE + raw.entry(D), "nobody sent"),
        (SETS[0] + SETS[1][:-1] + b"?" + SETS[2], "I-4"),
    ],
)
def test_a_broken_log(stored: bytes, broken: str) -> None:
    """Loss, damage, half messages, duplicates and inventions are named."""
    assert any(broken in line for line in recorded().check({PLACE: stored}))


def test_order() -> None:
    """A sender's messages in another order than it sent them."""
    history = History()
    history.sent(PLACE, "p", [A, B])
    history.sent(PLACE, "q", [C])
    assert history.check({PLACE: SETS[0] + SETS[2] + SETS[1]}) == []
    assert "follows its" in history.check({PLACE: SETS[1] + SETS[2] + SETS[0]})[0]


def test_compressed_sets() -> None:
    """Payloads inside wrappers count like any other."""
    history = History()
    history.sent(PLACE, "p", [A, B])
    for codec in (raw.GZIP, raw.SNAPPY):
        assert history.check({PLACE: raw.message_set([A, B], codec=codec)}) == []
        assert "follows its" in history.check({PLACE: raw.message_set([B, A], codec=codec)})[0]


def test_power_loss() -> None:
    """Only what was not flushed may be missing, from the end, up to the bound."""
    assert unseen().check({PLACE: SETS[0]}, power_loss=1) == []
    assert "I-2" in unseen().check({PLACE: SETS[0]}, power_loss=0)[0]
    assert "I-1" in unseen().check({PLACE: b""}, power_loss=2)[0]
    assert "I-1" in unseen().check({PLACE: SETS[0] + SETS[2]}, power_loss=2)[0]


@pytest.mark.parametrize(
    ("happens", "broken"),
    [
        (lambda history: history.visible(PLACE, SIZE, 2 * SIZE), "I-3"),
        (lambda history: history.stopped(PLACE, SIZE), "I-5"),
        (lambda history: (history.stopped(PLACE, 2 * SIZE), history.visible(PLACE, 3 * SIZE)), "I-5"),
        (lambda history: (history.stopped(PLACE, 2 * SIZE), history.shown(PLACE, 2 * SIZE, SETS[2])), "I-5"),
        (lambda history: history.shown(PLACE, SIZE, SETS[2]), "I-3"),
        (lambda history: history.acked(PLACE, 2 * SIZE, 4 * SIZE, SETS[2]), "I-1"),
    ],
)
def test_what_clients_were_told(happens: Callable[[History], object], broken: str) -> None:
    """An end that goes back or passes a failed flush, other bytes at one offset, an answer that cannot be."""
    history = recorded()
    happens(history)
    (line,) = history.check({PLACE: WHOLE})
    assert broken in line


def test_a_restart_lets_a_stopped_partition_go_on() -> None:
    history = recorded()
    history.stopped(PLACE, 2 * SIZE)
    history.restarted()
    history.visible(PLACE, 3 * SIZE)
    assert history.check({PLACE: WHOLE}) == []


def test_what_is_shown_again_is_held_against_what_was_shown_and_kept_once() -> None:
    history = recorded()
    for _ in range(1000):
        history.shown(PLACE, 0, WHOLE)
        history.shown(PLACE, SIZE, SETS[1])
    assert history.shown_bytes() == 2 * SIZE + 1000 * (3 * SIZE + SIZE)
    (partition,) = history._partitions.values()
    assert (bytes(partition.image), partition.apart) == (WHOLE, [])
    assert history.check({PLACE: WHOLE}) == []
    assert "not there any more" in history.check({PLACE: WHOLE[: 2 * SIZE]})[-1]


def test_what_is_shown_beyond_the_rest_is_looked_at_too() -> None:
    history = unseen()
    history.shown(PLACE, 2 * SIZE, SETS[2])
    assert history.check({PLACE: WHOLE}) == []
    assert [line for line in history.check({PLACE: WHOLE[: 2 * SIZE] + SETS[0]}) if "not there any more" in line]


def test_the_first_shown_is_what_must_be_there() -> None:
    history = recorded()
    history.shown(PLACE, SIZE, SETS[2] + SETS[1])
    assert len(history.check({PLACE: WHOLE[: 2 * SIZE]})) == 3
