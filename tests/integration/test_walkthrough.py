"""docs/walkthrough.md, run as it stands from top to bottom, with ports of its own; what it says is printed is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.broker import ROOT
from tests.harness.pages import free_ports, run_steps

PAGE = ROOT / "docs" / "walkthrough.md"
PORTS = ("2181", "9091", "9092", "9093")
SECONDS = 150


def steps(text: str) -> list[tuple[str, str | None]]:
    """What is run, as lines for bash, and what it prints: None where the page does not say."""
    found: list[tuple[str, str | None]] = []
    for kind, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        if kind == "text":
            assert found and found[-1][1] is None, "what is printed follows what is run"
            found[-1] = (found[-1][0], body)
        elif kind == "python":
            found.append((f"python - <<'END'\n{body}END\n", None))
        else:
            assert kind == "sh", kind
            found.append((body, None))
    return found


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(SECONDS + 30)
def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """In one shell that ends at the first command that fails; nothing is left running."""
    ports = free_ports(PORTS)
    text = re.sub(rf"\b({'|'.join(PORTS)})\b", lambda found: ports[found[1]], PAGE.read_text())
    plan = steps(text)
    assert len(plan) > 12
    printed, _ = run_steps([body for body, _ in plan], tmp_path, SECONDS)
    for (body, expected), shown in zip(plan, printed, strict=False):
        if expected is not None:
            pattern = ".*".join(map(re.escape, expected.split("…")))
            assert re.fullmatch(pattern, shown), f"{body}\nprints\n{shown}\ninstead of\n{expected}"
