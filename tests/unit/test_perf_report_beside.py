"""fastlog beside Apache Kafka: what python -m perf.beside_kafka prints, read and shown."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perf.__main__ import main
from perf.figures import beside
from perf.figures.reading import ResultsError
from perf.figures.results import save
from perf.report.beside import plots, table
from perf.report.page import images, parts, render
from tests.harness.perf_results import one, result, texts

END_TO_END = "from produce to consume at 10,000/s"


def figure(ours: float, theirs: float, *ratios: float) -> dict[str, Any]:
    return {"fastlog": ours, "kafka": theirs, "ratio": 0.123, "ratios": list(ratios)}


PRINTED: dict[str, Any] = {
    "messages": 1_000_000,
    "rounds": 3,
    "rows": {
        "java, read, 12 partitions": {
            "rate": figure(1_345_895.02, 1_161_440.1, 0.9, 1.84, 1.1),
            "broker_cpu_per_million": figure(0.07, 0.18, 0.3, 0.4, 0.5),
            "broker_cpu_but_flushes": figure(0.06, 0.18, 0.3, 0.4, 0.5),
            "machine_cpu_per_million": figure(1.1, 1.3, 0.8, 0.9, 1.0),
        },
        f"{END_TO_END}, 12 partitions": {
            "rate": figure(8306.4, 7892.5, 1.0, 1.1, 1.2),
            "broker_cpu_per_million": figure(84.7, 83.3, 1.0, 1.1, 1.2),
            "p99_ms": figure(56.7, 1546.2, 0.03, 0.05, 0.04),
            "p999_ms": figure(87.1, 1577.0, 0.03, 0.05, 0.04),
            "share_of_pace": figure(1.0, 0.9, 1.1),
        },
        "java, read, 1 partitions": {"rate": figure(7e5, 8e5, 0.9), "broker_cpu_per_million": figure(0.0, 0.4)},
    },
    "brokers": {
        "fastlog": {"first_answer_seconds": 0.324, "memory_pss_bytes": 76_596_224},
        "kafka": {"first_answer_seconds": 2.04, "memory_pss_bytes": 1_253_723_136},
    },
}
SHORT: dict[str, Any] = {
    **PRINTED,
    "rows": {name: row for name, row in PRINTED["rows"].items() if name.endswith(" 1 partitions")},
}
COLD: dict[str, Any] = {
    "gigabytes": 10.0,
    "rounds": 3,
    "medians": {"fastlog": {"reader_share_of_disk": 0.8}, "kafka": {"reader_share_of_disk": 0.4}},
    "turns": {
        "fastlog": [
            {"disk_mb_per_second": 1000.0 + n, "reader_share_of_disk": 0.7 + n / 10, "p99_ms_alone": 4.0 - n}
            for n in range(3)
        ],
        "kafka": [{"disk_mb_per_second": 1000.0, "reader_share_of_disk": 0.4, "p99_ms_alone": 8.0} for _ in range(3)],
    },
}


def test_both_kinds_of_file_are_known() -> None:
    """And told from results with series, and from what is neither."""
    assert beside.is_one(PRINTED) and beside.is_one(COLD)
    for other in ({"schema": 1, "rows": []}, {}, {"a": {"rows": 1}}, [], "rows", None):
        assert not beside.is_one(other)


def test_figures_say_what_they_are() -> None:
    """Unit and direction by their names; the ratio is the median of the rounds'."""
    found = {(one.row, one.name): one for one in beside.read(PRINTED).figures}
    rate = found["java, read, 12 partitions", "rate"]
    assert (rate.unit, rate.better, rate.ratio) == ("messages/s", "higher", 1.1)
    assert rate.values == {"fastlog": (1_345_895.02,), "kafka": (1_161_440.1,)} and rate.ratios == (0.9, 1.84, 1.1)
    told = {name: (one.unit, one.better) for (_, name), one in found.items()}
    assert told == {
        "rate": ("messages/s", "higher"), "broker_cpu_per_million": ("s", "lower"), "p99_ms": ("ms", "lower"),
        "broker_cpu_but_flushes": ("s", "lower"), "machine_cpu_per_million": ("s", "lower"),
        "share_of_pace": ("ratio", "higher"),
        "p999_ms": ("ms", "lower"), "first_answer_seconds": ("s", "lower"), "memory_pss_bytes": ("bytes", "lower"),
    }  # fmt: skip
    assert found["java, read, 1 partitions", "broker_cpu_per_million"].ratio is None
    memory = found[beside.BROKERS, "memory_pss_bytes"]
    assert memory.ratio == pytest.approx(0.0611, rel=0.001) and memory.values["fastlog"] == (76_596_224,)


def test_turns_of_a_cold_read() -> None:
    """Every turn counts, not the medians that stand beside them; ratios are those of the turns that both had."""
    found = {one.name: one for one in beside.read(COLD).figures}
    assert {name: (one.unit, one.better) for name, one in found.items()} == {
        "disk_mb_per_second": ("MB/s", "higher"), "reader_share_of_disk": ("ratio", "higher"),
        "p99_ms_alone": ("ms", "lower"),
    }  # fmt: skip
    share = found["reader_share_of_disk"]
    assert share.values["fastlog"] == pytest.approx((0.7, 0.8, 0.9)) and share.ratio == pytest.approx(2.0)
    alone = deepcopy(COLD)
    del alone["turns"]["kafka"]
    assert all(one.ratio is None and list(one.values) == ["fastlog"] for one in beside.read(alone).figures)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("rounds",), "3", "rounds: '3' is no number"),
        (("messages",), None, "messages: None is no number"),
        (("rows",), [], "rows: not an object"),
        (("rows", "java, read, 1 partitions"), 1, "rows.java, read, 1 partitions: not an object"),
        (("rows", "java, read, 1 partitions", "rate"), {"fastlog": 1.0, "ratios": []}, "rate.kafka: missing"),
        (("rows", "java, read, 1 partitions", "rate", "ratios"), 3, "rate.ratios: not a list"),
        (("rows", "java, read, 1 partitions", "rate", "ratios"), [1, "x"], r"rate.ratios\[1\]: 'x' is no number"),
        (("brokers", "kafka", "first_answer_seconds"), True, r"brokers.kafka\[0\].first_answer_seconds: True is no"),
        (("turns",), {"fastlog": 1}, "gigabytes: missing"),
    ],
)
def test_what_is_damaged_is_refused(path: tuple[str, ...], value: object, message: str) -> None:
    """With the place at which it is."""
    damaged = deepcopy(PRINTED)
    inner = damaged
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(ResultsError, match=message):
        beside.read(damaged)


def test_damaged_turns_are_refused() -> None:
    """Likewise."""
    for turns, message in (
        ({"fastlog": {}}, "turns.fastlog: not a list"),
        ({"fastlog": [3]}, r"turns.fastlog\[0\]: not an object"),
        ({"fastlog": [{"p50_ms": "x"}]}, r"turns.fastlog\[0\].p50_ms: 'x' is no number"),
    ):
        with pytest.raises(ResultsError, match=message):
            beside.read({**COLD, "turns": turns})


def test_pairs_of_bars() -> None:
    """A plot for each kind of figure and number of partitions; a pace that was chosen is shown as no rate."""
    found = {plot.title: plot for plot in plots(beside.read(PRINTED))}
    processor = "Broker processor time per million records"
    assert list(found) == [
        "Rate, 12 partitions", f"{processor}, 12 partitions", "The same without its flushes, 12 partitions",
        "Processor time of the machine per million records, with the client, 12 partitions",
        "Latency, 12 partitions", "Share of pace, 12 partitions", "Rate, 1 partitions",
        f"{processor}, 1 partitions", "Each broker",
    ]  # fmt: skip
    said = {title: re.sub(r"[\u00a0\u202f]", " ", plot.description) for title, plot in found.items()}
    rate = "java, read: 1.10 × Apache Kafka (0.900 – 1.84): fastlog 1.35 M msg/s, Apache Kafka 1.16 M msg/s."
    assert said["Rate, 12 partitions"] == rate
    latency = said["Latency, 12 partitions"]
    assert f"{END_TO_END}, p99: 0.0400 × Apache Kafka (0.0300 – 0.0500): fastlog 56.7 ms" in latency
    assert f"{END_TO_END}, p99.9: " in latency
    assert said[f"{processor}, 1 partitions"] == "java, read: fastlog 0 s, Apache Kafka 0.400 s."
    assert "from its start to its first answer: 0.159 × Apache Kafka: fastlog 0.324 s" in said["Each broker"]
    assert "memory of all its processes: 0.0611 × Apache Kafka: fastlog 76.6 MB" in said["Each broker"]
    assert (
        "Less is better." in found["Each broker"].notes and "Less is better." not in found["Rate, 1 partitions"].notes
    )
    assert found["Each broker"].again == ("python -m perf.beside_kafka",)


def test_each_pair_has_its_own_axis() -> None:
    """The longer bar of each ends at the same place, whatever the units and sizes."""
    (both,) = (plot for plot in plots(beside.read(PRINTED)) if plot.title == "Each broker")
    (axes,) = both.figure.axes
    widths = sorted(round(bar.get_width(), 3) for bar in axes.patches)  # type: ignore[attr-defined]
    assert widths == [0.061, 0.159, 1.0, 1.0]


def test_a_system_that_was_not_there() -> None:
    """Of a cold read without Apache Kafka it is said that it is absent, and no ratio is made up."""
    alone = deepcopy(COLD)
    del alone["turns"]["kafka"]
    read = beside.read(alone)
    (shown,) = plots(read)
    assert shown.title == "Read from a cold disk beside producers"
    assert "Less is better." not in shown.notes  # of some of its pairs it is, of others it is not
    assert "reader share of disk: fastlog 0.800, Apache Kafka not measured." in shown.description
    assert "fastlog 1,001\u00a0MB/s" in shown.description
    assert "reader share of disk 0.800 – – – – –" in texts(table(read))


def test_every_number_is_in_the_table() -> None:
    """The row once, then each figure with both medians, the ratio and the outermost rounds."""
    shown = texts(table(beside.read(PRINTED)))
    assert "fastlog ÷ Apache Kafka" in shown
    row = "java, read, 12 partitions rate 1.35 M msg/s 1.16 M msg/s 1.10 0.900 – 1.84 broker cpu per million 0.0700 s"
    assert row in shown and shown.count("java, read, 12 partitions") == 1
    assert "p99.9 87.1 ms 1,577 ms 0.0400 0.0300 – 0.0500" in shown
    assert "rate 8.31 k msg/s 7.89 k msg/s" in shown


def test_a_page_of_results_and_of_this() -> None:
    """Side by side in one page, or alone; titles that came from a file stay text."""
    hostile = deepcopy(PRINTED)
    hostile["rows"] = {"<script>x</script>\x00, 12 partitions": SHORT["rows"]["java, read, 1 partitions"]}
    page = render([result(one())], [beside.read(SHORT), beside.read(COLD), beside.read(hostile)])
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) and {"beside", "beside-1", "beside-2", "producer"} <= set(ids)
    assert "<script" not in page and "\x00" not in page and "&lt;script&gt;x" in page
    text = texts(page)
    assert "3 rounds of 1,000,000 records of 200 bytes" in text and "10 GB read from the disk" in text
    alone = render([], [beside.read(SHORT)])
    assert "<h1>fastlog beside Apache Kafka</h1>" in alone and "Published figures" not in alone
    assert "Measured" not in texts(alone)
    with pytest.raises(ValueError):
        render([], [])


@pytest.mark.slow
def test_images_of_every_plot() -> None:
    """A file for each, named by section and title; two of one name keep apart."""
    measured = result(one(), *(one(scenario=f"s{m}", section="sweep", parameters={"m": m}) for m in (1, 2)))
    found = images(parts([measured], [beside.read(PRINTED), beside.read(PRINTED)]))
    assert {"beside-rate-12-partitions.svg", "beside-1-rate-12-partitions.svg", "sweep-t.svg"} <= set(found)
    assert len(found) == 2 + 18
    for image in found.values():
        root = ET.fromstring(image)
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and root[0].text
        assert b"var(" not in image
    twice = images(
        parts(
            [],
            [
                beside.read(
                    {
                        **PRINTED,
                        "rows": {"a b, 1 partitions": {"rate": figure(1, 1), "x!": figure(1, 1), "x?": figure(1, 1)}},
                    }
                )
            ],
        )
    )
    assert {"beside-x-1-partitions.svg", "beside-x-1-partitions-2.svg"} < set(twice)


def test_the_command_takes_both(tmp_path: Path) -> None:
    """In one call, with images beside the page; a damaged one is named and nothing is written."""
    save(result(one()), tmp_path / "a.json")
    (tmp_path / "b.json").write_text(json.dumps(SHORT))
    (tmp_path / "c.json").write_text(json.dumps({**PRINTED, "rounds": []}))
    out, pictures = tmp_path / "out.html", tmp_path / "new" / "pictures"
    ran = CliRunner().invoke(
        main,
        ["report", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--out", str(out), "--images", str(pictures)],
    )
    assert ran.exit_code == 0, ran.output
    assert out.read_text() == render([result(one())], [beside.read(SHORT)])
    names = {path.name for path in pictures.iterdir()}
    assert {"producer-messages-per-second-every-scenario.svg", "beside-each-broker.svg"} < names and len(names) == 4
    out.unlink()
    refused = CliRunner().invoke(
        main, ["report", str(tmp_path / "c.json"), "--out", str(out), "--images", str(tmp_path / "x")]
    )
    assert "c.json: rounds: [] is no number" in str(refused.exception)
    assert not out.exists() and not (tmp_path / "x").exists()


@pytest.mark.slow
def test_without_matplotlib_the_command_says_how_to_get_it(tmp_path: Path) -> None:
    """It comes with an extra; the other commands do without."""
    save(result(one()), tmp_path / "a.json")
    without = "import runpy, sys; sys.modules['matplotlib'] = None; runpy.run_module('perf', run_name='__main__')"
    command = [sys.executable, "-c", without, "report", str(tmp_path / "a.json"), "--out", str(tmp_path / "r.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "matplotlib is missing" in done.stderr and "[perf]" in done.stderr
    assert not (tmp_path / "r.html").exists()
    compared = [*command[:3], "compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]
    assert subprocess.run(compared, capture_output=True, check=False).returncode == 0
