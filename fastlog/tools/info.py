"""``fastlog info``: what is installed here, which code paths are taken, and what is missing for what."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from importlib import metadata

import click

from fastlog import __version__
from fastlog.config import BrokerConfig
from fastlog.durability import promise
from fastlog.errors import FastlogError
from fastlog.installation import how_to_install
from fastlog.tools import options

_PACKAGES = (
    ("numpy", "arrays", "pip install numpy"),
    ("python-snappy", "snappy", "pip install python-snappy"),
    ("cramjam", "lz4 and zstd", "pip install cramjam"),
    ("kazoo", "ZooKeeper", "pip install kazoo"),
    ("pyarrow", "Arrow record batches", how_to_install("arrow")),
    ("prometheus_client", "/metrics of a broker", how_to_install("metrics")),
    ("rich", "the screen of fastlog top", how_to_install("top")),
    ("deltalake", "tables that Spark jobs fill", how_to_install("spark")),
    ("pyspark", "Spark, and ZooKeeper's own server", how_to_install("spark")),
)


@click.command(
    cls=options.Command,
    name="info",
    examples=("fastlog info", "fastlog info --json | jq -r .checksums"),
)
@options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object.")
def info_command(as_json: bool) -> None:
    """Show version, compiled paths and optional packages; good in bug reports."""
    found = information()
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, value in found.items():
        click.echo(f"{name:20}{value}")


def information() -> dict[str, str]:
    """What is installed, by name, as text: versions of packages, how checksums are made, Java and ZooKeeper."""
    from fastlog import _crc

    found = {
        "fastlog": __version__,
        "python": f"{platform.python_version()} ({platform.system()} {platform.release()}, {platform.machine()})",
        "code": "compiled; there is no slower path",
        "promised": f"by default, {promise(BrokerConfig())}; a broker's log says what its own settings do",
        "checksums": f"{_crc.implementation()} (of {', '.join(_crc.implementations())})",
    }
    for package, use, remedy in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = f"missing, needed for {use}: {remedy}"
    found["java"] = _or_reason(_java)
    found["zookeeper server"] = _or_reason(_zookeeper)
    return found


def _java() -> str:
    from fastlog.java import find_java

    return find_java()


def _zookeeper() -> str:
    from fastlog.zkserver.jars import find_class_path

    return find_class_path().origin


def _or_reason(find: Callable[[], str]) -> str:
    try:
        return find()
    except FastlogError as error:
        return f"missing: {' '.join(str(error).split())}"
