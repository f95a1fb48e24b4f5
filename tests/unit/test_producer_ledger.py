"""What the threads of a producer share: of each failure that nobody was told about, somebody is told."""

from __future__ import annotations

import pytest

from fastlog.errors import ClosedError, DeliveryError
from fastlog.producer import ledger as ledger_module
from fastlog.producer._buffer import Quota
from fastlog.producer.hooks import Delivery
from fastlog.producer.ledger import Ledger


def fail(ledger: Ledger, messages: int) -> None:
    ledger.failed(Delivery("t", 0, 0, -1, -1, messages, ClosedError("gone")), reported=False)


def test_a_failure_that_comes_while_others_are_raised_is_left_to_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one call is at it, another raises the same, in a signal handler or a thread, and then a message fails."""
    ledger = Ledger(Quota(10, 1000), None)
    fail(ledger, 1)

    def made_late(text: str, messages: int, cause: Exception) -> DeliveryError:
        monkeypatch.undo()
        with pytest.raises(DeliveryError, match="1 message was"):
            ledger.raise_unreported()
        fail(ledger, 2)
        return DeliveryError(text, messages, cause)

    monkeypatch.setattr(ledger_module, "DeliveryError", made_late)
    with pytest.raises(DeliveryError, match="1 message was"):
        ledger.raise_unreported()
    with pytest.raises(DeliveryError, match="2 messages"):
        ledger.raise_unreported()
    ledger.raise_unreported()
