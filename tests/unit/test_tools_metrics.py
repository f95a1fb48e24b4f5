"""``fastlog metrics``: what it prints speaks of names that a broker has, and of labels that they have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.command_process import run
from tests.harness.metrics_page import Row, documented

SELECTOR = re.compile(r"\b((?:fastlog|kafka)_\w+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)")
OF_PROMETHEUS = {"instance"}  # which it gives to all that it scrapes


def printed(name: str) -> str:
    code, out, _ = run("metrics", name)
    assert code == 0
    return out.decode()


def expressions(name: str) -> list[str]:
    if name == "rules":
        return re.findall(r"^        expr: (.+)$", printed("rules"), re.M)
    dashboard = json.loads(printed("dashboard"))
    variables = [item["query"]["query"] for item in dashboard["templating"]["list"] if item["type"] == "query"]
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]] + variables


def known() -> dict[str, Row]:
    """The names of samples; a test of integration holds the documents against a page."""
    every, with_zookeeper = documented()
    found = every | with_zookeeper
    histograms = {name: row for name, row in found.items() if row.kind == "histogram"}
    return found | {f"{name}{end}": row for name, row in histograms.items() for end in ("_bucket", "_sum", "_count")}


@pytest.mark.parametrize("name", ["dashboard", "rules"])
def test_every_name_and_label_is_one_of_a_broker(name: str) -> None:
    rows = known()
    said = expressions(name)
    assert len(said) >= 10
    for text in said:
        used = SELECTOR.findall(text)
        assert used, text
        had = set(OF_PROMETHEUS)
        for metric, selector in used:
            assert metric in rows, text
            labels = set().union(*rows[metric].labels)
            assert set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", selector)) <= labels | OF_PROMETHEUS, text
            had |= labels
        for names in GROUPING.findall(text):
            assert set(re.split(r",\s*", names)) <= had, text


@pytest.mark.parametrize("name", ["dashboard", "rules"])
def test_a_counter_is_looked_at_as_it_grows(name: str) -> None:
    """Its value says only how long the broker has been running."""
    rows = known()
    for text in expressions(name):
        for metric, _ in SELECTOR.findall(text):
            if rows[metric].kind != "gauge" and not text.startswith("label_values("):
                assert re.search(rf"(?:rate|increase)\({metric}\b", text), text


def test_panels_have_places_of_their_own() -> None:
    dashboard = json.loads(printed("dashboard"))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells and max(x for x, _ in cells) < 24
        taken |= cells


def test_alerts_say_what_is_wrong(tmp_path: Path) -> None:
    """Each has an expression, a severity and a sentence; where Prometheus's own tool is, it takes them."""
    text = printed("rules")
    alerts = text.split("- alert: ")[1:]
    assert len(alerts) == len(expressions("rules")) == len({alert.split()[0] for alert in alerts})
    for alert in alerts:
        assert re.search(r"labels: \{severity: (critical|warning)\}", alert) and "summary: " in alert
        assert "{{ $labels.instance }}" in alert
    path = tmp_path / "rules.yml"
    path.write_text(text)
    promtool = shutil.which("promtool")
    if promtool:
        subprocess.run([promtool, "check", "rules", str(path)], check=True, capture_output=True)
