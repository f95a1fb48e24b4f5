"""What is said of supported Pythons, and what files of packaging/ and the build say, agrees."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.harness.checkout import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGING = ROOT / "packaging"


def test_wheels_are_built_for_the_pythons_that_are_supported() -> None:
    classified = {found[1] for text in PROJECT["project"]["classifiers"] if (found := re.search(r":: (3\.\d+)$", text))}
    wheels = PROJECT["tool"]["cibuildwheel"]
    assert {f"3.{minor}" for minor in re.findall(r"cp3(\d+)-\*", wheels["build"])} == classified
    assert PROJECT["project"]["requires-python"] == f">={min(classified, key=lambda text: int(text[2:]))}"
    assert wheels["linux"]["archs"] == ["x86_64", "aarch64"]


def test_the_same_wheels_are_built_without_containers() -> None:
    """By their names and by what they run on; a name that none has is said, and nothing is begun."""
    script, wheels = ROOT / "scripts" / "build-wheels", PROJECT["tool"]["cibuildwheel"]
    listed = subprocess.run([script, "--list"], capture_output=True, text=True, check=True).stdout.split()
    platforms = {f"{kind}linux_{arch}" for kind in ("many", "musl") for arch in wheels["linux"]["archs"]}
    pythons = [pattern.removesuffix("-*") for pattern in wheels["build"].split()]
    assert sorted(listed) == sorted(f"{python}-{platform}" for python in pythons for platform in platforms)
    images = {image for name, image in wheels["linux"].items() if name.endswith("-image")}
    assert set(re.findall(r"=((?:many|musl)linux_\d_\d+)", script.read_text())) == images
    refused = subprocess.run([script, "cp310-*"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr) == (
        2, "fastlog: no wheel is called cp310-*; scripts/build-wheels --list names them\n"
    )  # fmt: skip


def test_what_the_container_copies_and_where_it_keeps_data_is_as_documented() -> None:
    text = (PACKAGING / "Containerfile").read_text()
    for source in re.findall(r"^COPY (packaging/\S+)", text, re.M):
        assert (ROOT / source).is_file()
    unit = (PACKAGING / "fastlog-broker.service").read_text()
    page = (ROOT / "docs" / "install.md").read_text()
    for path in ("/etc/fastlog/server.properties", "/var/lib/fastlog/data", "/opt/fastlog"):
        assert path in text and path in unit and f"| `{path}` |" in page
    assert re.search(r"^USER (?!root|0\b)", text, re.M)


class Ready(BaseHTTPRequestHandler):
    """``/ready`` of a broker; what it was asked with is kept by the server."""

    code, body = 200, b"ready\n"

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))  # type: ignore[attr-defined]
        self.send_response(self.code)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.parametrize("token", [None, "secret"])
@pytest.mark.parametrize(
    ("code", "body", "ends_with"), [(200, b"ready\n", 0), (503, b"stopping\n", 1), (401, b"a token is needed\n", 1)]
)
def test_the_health_check_of_the_container(
    token: str | None, code: int, body: bytes, ends_with: int, tmp_path: Path
) -> None:
    """It asks /ready, with the token where there is one, and says why it is not well."""
    server = HTTPServer(("127.0.0.1", 0), type("Answers", (Ready,), {"code": code, "body": body}))
    server.asked = []  # type: ignore[attr-defined]
    place = tmp_path / "monitor.token"
    if token is not None:
        place.write_text(f"{token}\n")
    program = (PACKAGING / "container-ready").read_text()
    assert program.count("127.0.0.1:9080") == program.count('"/etc/fastlog/monitor.token"') == 1
    program = program.replace("127.0.0.1:9080", f"127.0.0.1:{server.server_port}")
    program = program.replace("/etc/fastlog/monitor.token", str(place))
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    thread.join()
    server.server_close()
    assert server.asked == [("/ready", None if token is None else "Bearer secret")]  # type: ignore[attr-defined]
    assert (done.returncode, done.stderr) == (ends_with, "" if code == 200 else body.decode())


def test_the_health_check_of_a_broker_that_is_not_there() -> None:
    program = (PACKAGING / "container-ready").read_text().replace(":9080", ":1")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "refused" in done.stderr and "Traceback" not in done.stderr
