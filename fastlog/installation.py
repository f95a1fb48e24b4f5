"""The name fastlog is installed by, and the command that installs more of it."""

from __future__ import annotations

import shlex
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "fastlog-broker"
"""What pip calls it. The name of the import, ``fastlog``, is that of somebody else's package there."""

_ROOT = Path(__file__).resolve().parents[1]


def how_to_install(extra: str) -> str:
    """The command that adds what an extra of pyproject.toml brings, such as ``arrow`` or ``metrics``.

    Where fastlog is installed, from a checkout or not, pip keeps it and adds the rest. A checkout that only stands in
    the path is named by its directory.
    """
    try:
        metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        if (_ROOT / "pyproject.toml").is_file():
            return f"pip install -e {shlex.quote(f'{_ROOT}[{extra}]')}"
    return f"pip install '{DISTRIBUTION}[{extra}]'"
