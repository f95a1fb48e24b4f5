"""Pauses between tries: how they grow, by how much they are shortened, and when they begin anew."""

from __future__ import annotations

import pytest

from fastlog.retry import Backoff, pause_after


def test_pauses_double_up_to_the_longest_and_begin_anew() -> None:
    backoff = Backoff(0.25, 1.5)
    assert backoff.is_first
    assert [backoff.next() for _ in range(5)] == [0.25, 0.5, 1.0, 1.5, 1.5]
    assert not backoff.is_first and backoff.seconds == 1.5
    backoff.reset()
    assert backoff.is_first and backoff.seconds == backoff.next() == 0.25


def test_a_pause_is_shortened_by_the_share_at_most_and_the_next_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    backoff = Backoff(1.0, 8.0, 0.25)
    monkeypatch.setattr("random.uniform", lambda low, high: low)
    assert [backoff.next(), backoff.next()] == [0.75, 1.5]
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    assert [backoff.next(), backoff.next()] == [4.0, 8.0]


def test_who_counts_failures_has_the_same_pauses() -> None:
    """However many there have been."""
    backoff = Backoff(0.25, 1.5)
    assert [pause_after(failures, 0.25, 1.5) for failures in range(1, 6)] == [backoff.next() for _ in range(5)]
    assert pause_after(10**6, 0.25, 1.5) == 1.5
