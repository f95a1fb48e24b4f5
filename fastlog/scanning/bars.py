"""Bars that show how far it is; by whichever library is installed, and nothing where none is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], object]
"""Called with how much was read since the last call, in the unit of the bar."""
Bar = Callable[[int, str], AbstractContextManager[Advance]]
"""Called with the end and the unit, it gives what moves a bar on: ``progress_bar``, or ``no_bar``."""


@contextmanager
def progress_bar(total: int, unit: str) -> Iterator[Advance]:
    """What moves a bar on, to which ``total`` is the end; ``unit`` is what is counted: bytes, or something else."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        pass
    else:
        bar = tqdm(total=total, unit="B" if unit == "bytes" else f" {unit}", unit_scale=True)
        try:
            yield bar.update
        finally:
            bar.close()
        return
    try:
        from rich.progress import Progress
    except ImportError:
        with no_bar(total, unit) as advance:
            yield advance
        return
    bar = Progress(transient=True)
    task = bar.add_task(unit, total=total)
    bar.start()
    try:
        yield lambda came: bar.advance(task, came)
    finally:
        bar.stop()


@contextmanager
def no_bar(total: int, unit: str) -> Iterator[Advance]:
    """The same as ``progress_bar``, without showing anything."""
    yield lambda came: None
