"""Commands in the test's own process: as a user would run them, without the time that an interpreter takes to start."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from fastlog.tools import signals
from fastlog.tools.cli import fastlog
from fastlog.tools.report import run


class Ran(NamedTuple):
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The objects of ``--json``."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def table(self) -> list[list[str]]:
        """The fields of each line behind the first one."""
        return [line.split("\t") for line in self.out.splitlines()[1:]]

    def refused(self) -> list[str]:
        """The three lines of an error."""
        found = self.err.strip().split("\n")[-3:]
        assert found[1].startswith("  why: ") and found[2].startswith("  do:  "), self
        return found


class Commands:
    """Runs ``fastlog …`` and gives what it said, with ``capfd``."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> Ran:
        self._capture.readouterr()
        try:
            with pytest.raises(SystemExit) as ended:
                run(fastlog, "fastlog", arguments)
        finally:
            signals.uninstall()
        out, err = self._capture.readouterr()
        assert "Traceback" not in err, err
        code = ended.value.code
        assert isinstance(code, int)
        return Ran(code, out, err)
