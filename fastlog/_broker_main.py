"""Starts a broker with as few imports as can be: what ``fastlog.testing`` runs in a fresh interpreter.

Arguments: a descriptor that gets the port once connections are taken, and a JSON object with the settings by property
name (``properties``) and by field (``fields``). Standard input is a pipe whose other end the tests hold: the broker
stops when they are gone, however they ended.
"""

from __future__ import annotations

import gc

gc.disable()  # nothing that an import makes is garbage

import dataclasses  # noqa: E402
import fcntl  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

from fastlog import __version__  # noqa: E402
from fastlog.broker import run_broker  # noqa: E402
from fastlog.config import BrokerConfig  # noqa: E402
from fastlog.errors import ConfigError  # noqa: E402

CANNOT_USE_SETTINGS = 2


def main() -> int:
    """Run the broker; the exit code of the process."""
    ready_fd, given = int(sys.argv[1]), json.loads(sys.argv[2])
    try:
        config = made_config(given["properties"], given["fields"])
    except (ConfigError, TypeError) as error:
        print(f"fastlog-broker: {error}", file=sys.stderr)
        return CANNOT_USE_SETTINGS
    gc.freeze()  # so that no collection looks through what the imports made
    gc.enable()

    def on_ready(port: int) -> None:
        os.write(ready_fd, b"%d\n" % port)
        os.close(ready_fd)
        _stop_with_the_tests()

    return run_broker(config, on_ready, version=__version__)


def made_config(properties: dict[str, str], fields: dict[str, Any]) -> BrokerConfig:
    """The settings by property name and by field; a property's name may have underscores instead of dots.

    Raises:
        ConfigError: one is unknown or cannot be used.
    """
    names = {item.name: item for item in dataclasses.fields(BrokerConfig)}
    by_field: dict[str, Any] = {}
    by_property = dict(properties)
    for name, value in fields.items():
        if name in names:
            by_field[name] = tuple(value) if isinstance(value, list) else value
        else:
            by_property[name.replace("_", ".")] = str(value).lower() if isinstance(value, bool) else str(value)
    return dataclasses.replace(BrokerConfig.from_properties(by_property), **by_field)


def _stop_with_the_tests() -> None:
    """Get SIGTERM when the other end of standard input closes. Not a death signal: that would come for a thread."""
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    gone = select.poll()
    gone.register(0, 0)
    if gone.poll(0):  # they went before the signal was asked for
        os.kill(os.getpid(), signal.SIGTERM)
