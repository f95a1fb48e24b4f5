"""ActiveMQ: the paper's other peer. A queue in KahaDB, driven by a JMS client compiled against the package's jars."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import ClassVar

from perf.peers.base import Child, Figures, PeerFailed, figures, free_port, run

HERE = Path(__file__).parent
BUILD = HERE / "build"
HOME = Path("/usr/share/activemq")
CLIENT = HERE / "JmsClient.java"
QUEUE = "fastlog-peer"
# What the package's own start script opens to it from Java 9 on.
OPENED = (
    *("--add-reads=java.xml=java.logging", "--add-opens=java.base/java.security=ALL-UNNAMED"),
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("net", "lang", "util", "util.concurrent")),
    *("--add-opens=java.base/java.util.concurrent.atomic=ALL-UNNAMED",),
    *("--add-opens=java.naming/javax.naming.spi=ALL-UNNAMED", "--add-opens=java.rmi/sun.rmi.transport.tcp=ALL-UNNAMED"),
)


def configuration(directory: Path, port: int) -> str:
    """The text of activemq.xml.

    ``enableJournalDiskSyncs`` off writes every message to the journal and leaves the disk to the page cache. A consumer
    with ``optimizeAcknowledge`` stalls when a page (``maxPageSize``, 200) holds fewer messages than it lets lie
    unacknowledged.
    """
    return f"""\
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
    http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
    http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="fastlog-peer" useJmx="false" persistent="true"
      dataDirectory="{directory}/data">
    <destinationPolicy>
      <policyMap>
        <policyEntries>
          <policyEntry queue=">" maxPageSize="5000"/>
        </policyEntries>
      </policyMap>
    </destinationPolicy>
    <persistenceAdapter>
      <kahaDB directory="{directory}/data/kahadb" enableJournalDiskSyncs="false"/>
    </persistenceAdapter>
    <systemUsage>
      <systemUsage>
        <storeUsage><storeUsage limit="20 gb"/></storeUsage>
        <tempUsage><tempUsage limit="1 gb"/></tempUsage>
      </systemUsage>
    </systemUsage>
    <transportConnectors>
      <transportConnector name="openwire" uri="tcp://127.0.0.1:{port}"/>
    </transportConnectors>
  </broker>
</beans>
"""


def version() -> str:
    """With the number that the package's jar carries in its name."""
    names = sorted(path.stem for path in Path("/usr/share/java").glob("activemq-broker-[0-9]*.jar"))
    return f"ActiveMQ {names[-1].rpartition('-')[2]}" if names else "ActiveMQ"


def build_client() -> Path:
    """The directory with the compiled client; compiles only when its source is another one."""
    place = BUILD / f"JmsClient-{hashlib.sha256(CLIENT.read_bytes()).hexdigest()[:16]}"
    if not (place / "JmsClient.class").exists():
        place.mkdir(parents=True, exist_ok=True)
        run("javac", ["javac", "-nowarn", "-cp", f"{HOME}/lib/*", "-d", str(place), str(CLIENT)])
    return place


class ActiveMQ:
    """A queue of persistent messages. JMS sends single messages, so ``batch`` changes nothing."""

    name: ClassVar[str] = "activemq"
    title: ClassVar[str] = "ActiveMQ"
    default_messages: ClassVar[int] = 300_000

    def __init__(self) -> None:
        self._broker: Child | None = None
        self._port = 0

    def available(self) -> str | None:
        if not (HOME / "bin" / "activemq.jar").exists():
            return "activemq is not installed: apt-get install activemq"
        if shutil.which("java") is None or shutil.which("javac") is None:
            return "ActiveMQ's client needs a JDK: apt-get install default-jdk-headless"
        return None

    def start(self, directory: Path) -> None:
        if self._broker is not None:
            raise PeerFailed("ActiveMQ is already started")
        self._port = free_port()
        settings = directory / "activemq.xml"
        settings.write_text(configuration(directory, self._port))
        properties = {"home": HOME, "base": directory, "conf": directory, "data": directory / "data"}
        command = ["java", "-Xms1g", "-Xmx4g", *OPENED]
        command += [f"-Dactivemq.{name}={value}" for name, value in properties.items()]
        command += ["-jar", str(HOME / "bin" / "activemq.jar"), "start", f"xbean:file:{settings}"]
        self._broker = Child("activemq", command, {}, directory / "activemq.log")
        try:
            self._broker.wait_port(self._port)
        except BaseException:
            self.stop()
            raise

    def produce(self, messages: int, size: int = 200, batch: int = 50) -> Figures:
        return self._run("produce", messages, size)

    def consume(self, messages: int) -> Figures:
        return self._run("consume", messages, 0)

    def _run(self, mode: str, messages: int, size: int) -> Figures:
        if self._broker is None:
            raise PeerFailed("ActiveMQ is not started")
        command = ["java", "-Xms512m", "-cp", f"{build_client()}:{HOME}/lib/*", "JmsClient", mode]
        command += [f"tcp://127.0.0.1:{self._port}", QUEUE, str(messages), str(size)]
        return figures(run("JmsClient", command), messages, client="activemq-client", broker=version())

    def stop(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.stop()
