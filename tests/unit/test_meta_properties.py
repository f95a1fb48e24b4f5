"""Which cluster a log directory belongs to: made once, the same in every directory, never made up where it is lost."""

from __future__ import annotations

import base64
import errno
import re
from pathlib import Path

import pytest

from fastlog.errors import LogError
from fastlog.log import meta_properties
from fastlog.log.discovery import scan_log_dirs
from fastlog.log.files import FileOps
from fastlog.log.meta_properties import new_id, settle_cluster_id
from tests.harness.faulty_files import FaultyFileOps

ID = "MkU3OEVBNTcwNTJENDM2Qk"
OTHER = "4L6g3nShT-eMCtK--X86sw"


def directories(root: Path, *texts: str | None) -> list[Path]:
    """One log directory for each text, with the file where there is one."""
    made = []
    for number, text in enumerate(texts):
        path = root / str(number)
        path.mkdir()
        if text is not None:
            (path / "meta.properties").write_text(text)
        made.append(path)
    return made


def shown(directory: Path) -> dict[str, str]:
    lines = (directory / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_an_id_is_a_uuid_in_kafkas_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {new_id() for _ in range(200)}
    assert len(made) == 200
    for each in made:
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", each)
        assert base64.urlsafe_b64decode(each + "==")[6] >> 4 == 4


def test_the_first_start_makes_it_and_the_next_finds_it(tmp_path: Path) -> None:
    (log,) = directories(tmp_path, None)
    made = settle_cluster_id([log], 7, FileOps())
    assert shown(log) == {"version": "1", "cluster.id": made, "node.id": "7"}
    assert settle_cluster_id([log], 7, FileOps()) == made
    assert scan_log_dirs([log]) == ([], [])


def test_a_start_that_finds_everything_writes_nothing(tmp_path: Path) -> None:
    files = FaultyFileOps()
    logs = directories(tmp_path, None, None)
    settle_cluster_id(logs, 7, files)
    written = files.calls["write"]
    settle_cluster_id(logs, 7, files)
    assert files.calls["write"] == written == 2


def test_it_is_durable_before_it_is_told(tmp_path: Path) -> None:
    files = FaultyFileOps()
    (log,) = directories(tmp_path, None)
    settle_cluster_id([log], 0, files)
    assert [kind for kind, _ in files.order][-4:] == ["write", "fdatasync", "rename", "fsync_dir"]


def test_a_directory_that_is_added_joins_the_others(tmp_path: Path) -> None:
    logs = directories(tmp_path, None, f"version=1\ncluster.id={ID}\nnode.id=3\ndirectory.id={OTHER}\n", None)
    assert settle_cluster_id(logs, 3, FileOps()) == ID
    assert [shown(each)["cluster.id"] for each in logs] == [ID] * 3
    assert shown(logs[1])["directory.id"] == OTHER


def test_the_nodes_id_follows_the_setting(tmp_path: Path) -> None:
    """What an older Kafka calls ``broker.id`` goes; what else stands there stays."""
    (log,) = directories(tmp_path, f"#a comment\n\nversion=0\n broker.id = 1 \ncluster.id={ID}\nmore=x=y\n")
    assert settle_cluster_id([log], 4, FileOps()) == ID
    assert shown(log) == {"version": "1", "cluster.id": ID, "node.id": "4", "more": "x=y"}
    assert settle_cluster_id([log], 5, FileOps()) == ID
    assert shown(log)["node.id"] == "5"


def test_directories_of_different_clusters_are_refused_and_left_alone(tmp_path: Path) -> None:
    texts = [f"version=1\ncluster.id={each}\nnode.id=1\n" for each in (ID, OTHER)]
    logs = directories(tmp_path, *texts, None)
    with pytest.raises(LogError, match=f"{re.escape(str(logs[0]))} to {ID}, .* to {OTHER}; remove meta.properties"):
        settle_cluster_id(logs, 1, FileOps())
    assert [(each / "meta.properties").read_text() for each in logs[:2]] == texts
    assert not (logs[2] / "meta.properties").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"cluster.id={ID}\n",
        f"version=2\ncluster.id={ID}\n",
        "version=1\n",
        f"version=1\ncluster.id={ID}x\n",
        "version=1\ncluster.id=\n",
        f"version=1\ncluster.id={ID[:21]}/\n",
    ],
)
def test_a_file_that_is_not_understood_is_no_reason_for_another_id(tmp_path: Path, text: str) -> None:
    """Clients would take the broker for another cluster."""
    logs = directories(tmp_path, text, None)
    with pytest.raises(LogError, match="restore it from a backup, or remove it"):
        settle_cluster_id(logs, 1, FileOps())
    assert (logs[0] / "meta.properties").read_text() == text


def test_a_file_of_other_bytes_is_refused_too(tmp_path: Path) -> None:
    (log,) = directories(tmp_path, None)
    (log / "meta.properties").write_bytes(b"version=1\ncluster.id=\xff")
    with pytest.raises(LogError, match="not UTF-8"):
        settle_cluster_id([log], 1, FileOps())
    (log / "meta.properties").write_bytes(b"#" * (meta_properties.MAX_BYTES + 1))
    with pytest.raises(OSError, match="more than"):
        settle_cluster_id([log], 1, FileOps())


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (log,) = directories(tmp_path, None)
    files = FaultyFileOps()
    files.fail("rename", 1, errno.EIO)
    with pytest.raises(OSError):
        settle_cluster_id([log], 1, files)
    assert not (log / "meta.properties").exists()
    settle_cluster_id([log], 1, files)
    assert [each.name for each in log.iterdir()] == ["meta.properties"]
