"""Spark as tests start it: with little memory, and so that what each of its processes would do anew is done once."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path

from tests.harness.broker import ROOT

LOCAL_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m -XX:+UseSerialGC"
        " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    ),
    "spark.ui.enabled": "false",
}
"""Of a driver with little memory, whose Java starts soon: it takes the 15,000 classes of Spark without a check, and
keeps all that it has compiled."""


def quick_home() -> Path:
    """A home of Spark, for ``SPARK_HOME``, whose Python modules are the files that pip has installed and compiled.

    In the real one they are an archive, where Spark's Python processes look first: each of them, and there are several
    for every query, would compile what it imports from there, which takes a second. Safe to call again, from any
    process.
    """
    import py4j  # type: ignore[import-untyped]
    import pyspark

    package = Path(pyspark.__file__).parent
    home = ROOT / ".tmp" / f"spark-{pyspark.__version__}-{zlib.crc32(bytes(package)):08x}"
    links = {home / name: package / name for name in ("bin", "jars")}
    for archive in (package / "python" / "lib").glob("*.zip"):
        module = package if archive.stem == package.name else Path(py4j.__file__).parent
        links[home / "python" / "lib" / archive.name / module.name] = module
    for link, there in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(there)
    return home
