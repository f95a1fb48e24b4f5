"""A broker that knows the toy format: it registers it before anything is forked."""

from __future__ import annotations

from fastlog.tools.broker_command import main
from tests import toy_format

if __name__ == "__main__":
    toy_format.register()
    main()
