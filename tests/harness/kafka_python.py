"""kafka-python in the process of a test: what it does not close itself."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def sockets_may_stay_open() -> Iterator[None]:
    """Around a function that makes clients and closes them: what they leave is freed here, and is no error.

    A client of 3.0 that is closed while it connects to another broker, or anew, closes the socket of that never
    (``ConnectionManager._build_transport``): the search for garbage finds it, in whichever test that is.
    """
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
