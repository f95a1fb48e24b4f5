"""The ``fastlog`` command in a process that knows the toy format."""

from __future__ import annotations

from fastlog.tools.cli import main
from tests import toy_format

if __name__ == "__main__":
    toy_format.register()
    main()
