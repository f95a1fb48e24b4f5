"""Where tables are: a directory of this machine, or a place in an object store or in HDFS, that a URL names.

Directories are Python's own business. All else goes through the object stores of Delta's library, so that a table's
log and its files are reached with the same options and credentials. Those never stand in a message: whatever a store
has said passes through ``TableLocation.plain``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fastlog.errors import ConfigError, MissingDependencyError, TableUnavailableError
from fastlog.installation import how_to_install

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem  # type: ignore[import-untyped]

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "hdfs")
"""Of URLs that name tables elsewhere."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)")
_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|\\")
"""In the name of a directory: Delta's library writes there, and then looks in another one."""
_PATTERN = re.compile(r"[\[\]{}*?\\]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_XML_ERROR = re.compile(r"<\?xml.*?<Code>(.*?)</Code>.*?<Message>(.*?)</Message>.*", re.DOTALL)
_SECRET = re.compile(r"key|secret|token|password|sas|credential|account", re.IGNORECASE)
_CLOUDS = ("AWS_", "AZURE_", "GOOGLE_")
_SHORTEST_SECRET = 4  # what is shorter is found in any text
_MOST_TOLD = 500
_OVERWRITING = {
    # Options with which two writers may both write one version of a table: the first one's would be gone.
    "aws_s3_allow_unsafe_rename": ("true", "1", "t", "yes", "y", "on"),
    "allow_unsafe_rename": ("true", "1", "t", "yes", "y", "on"),
    "aws_conditional_put": ("disabled",),
    "conditional_put": ("disabled",),
}


@dataclass(frozen=True)
class TableLocation:
    """A place for a table. May be sent to other processes, with its options."""

    text: str
    """An absolute path, or a URL."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For the object store, as Delta's library names them; credentials may be among them."""

    def __str__(self) -> str:
        return self.text

    @property
    def is_local(self) -> bool:
        """Whether it is a directory of this machine, which may be mounted."""
        return self.text.startswith("/")

    @property
    def directory(self) -> Path:
        """The directory; only of one that ``is_local``."""
        assert self.is_local, self.text
        return Path(self.text)

    @property
    def given_options(self) -> dict[str, str] | None:
        """The options as Delta's library takes them: None where there are none."""
        return dict(self.options) or None

    def filesystem(self) -> FileSystem:
        """For pyarrow, with paths relative to the table, as they are in the store."""
        from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

        if self.is_local:
            return SubTreeFileSystem(self.text, LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        with self.reached():
            return PyFileSystem(DeltaStorageHandler(self.text, self.given_options))

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files that are part of no table, and will not be. One that stays in a store costs room alone: no
        reader sees it."""
        if self.is_local:
            for path in paths:
                (self.directory / path).unlink(missing_ok=True)
            return
        store = self.filesystem()
        for path in paths:
            with contextlib.suppress(OSError):
                store.delete_file(path)

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Around what asks an object store: its errors come in one line without credentials; a directory's are let
        through as they are.

        Raises:
            TableUnavailableError: the store does not answer, or refuses.
        """
        if self.is_local:
            yield
            return
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError) as error:
            # Not chained: what the library has said may have a credential in it.
            raise TableUnavailableError(f"{self}: {self.plain(error)}") from None

    def plain(self, error: BaseException) -> str:
        """What an error says, in one line and without credentials."""
        text = _COLOURS.sub("", str(error))
        text = _XML_ERROR.sub(r"\1: \2", text)
        lines = [line.replace("↳", "").strip() for line in text.splitlines()]
        text = ": ".join(line for line in lines if line) or type(error).__name__
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text[:_MOST_TOLD]

    def _secrets(self) -> set[str]:
        found = {value for name, value in self.options.items() if _SECRET.search(name)}
        found |= {value for name, value in os.environ.items() if name.startswith(_CLOUDS) and _SECRET.search(name)}
        # A token in a URL has parts, which stand there among others, and are not always written in the same way.
        found |= {part for value in found if "=" in value for part in re.split(r"[?&]", value)}
        found |= {part.partition("=")[2] for part in found if part.startswith("sig=")}
        found |= {unquote(value) for value in found}
        return {value for value in found if len(value) >= _SHORTEST_SECRET}


def located(place: TableLocation | Path | str, options: Mapping[str, str] | None = None) -> TableLocation:
    """The location that a path, a ``file:`` URL, or a URL of an object store or of HDFS means.

    Raises:
        ConfigError: it is a URL of something else, or with credentials in it, or a directory that Delta's library does
            not find; the options are for a directory, or let one writer overwrite what another has written.
    """
    if isinstance(place, TableLocation):
        return place
    given = dict(options or {})
    text = str(place)
    url = _URL.match(text)
    if url is None or url[1].lower() not in SCHEMES:
        directory = local_path(place).absolute()
        if given:
            raise ConfigError(f"--storage-option {next(iter(given))}: {text} is a directory: it takes none")
        if _MISREAD.search(str(directory)):
            raise ConfigError(
                f"{directory}: Delta's library finds no table where a directory has a backslash, or % and two digits,"
                " in its name: choose another directory"
            )
        return TableLocation(str(directory))
    scheme = url[1].lower()
    rest = text[url.end() :]
    if url[2] != "//" or not rest.partition("/")[0]:
        raise ConfigError(f"{text}: write {scheme}://BUCKET/TABLE")
    if "?" in rest or "#" in rest or ":" in rest.partition("/")[0].rpartition("@")[0]:
        raise ConfigError(
            f"{scheme}://…: a URL of a table names a place alone; credentials are for the environment, or for"
            " --storage-option"
        )
    for name, value in [*os.environ.items(), *given.items()]:
        if value.strip().lower() in _OVERWRITING.get(name.lower(), ()):
            raise ConfigError(f"{name}={value}: with it two writers may overwrite what the other has added: unset it")
    return TableLocation(f"{scheme}://{rest.rstrip('/')}", given)


def local_path(place: Path | str) -> Path:
    """The path that a text or a ``file:`` URL means.

    Raises:
        ConfigError: it is a URL of something else, such as an object store. As a path it would be a directory of that
            name, here.
    """
    text = str(place)
    url = _URL.match(text)  # with one slash also: as a Path it has no more, and Hadoop writes it so
    if url is None:
        return Path(place)
    if url[1].lower() != "file":
        where = "in a directory of this machine, or mounted on it"
        is_elsewhere = url[1].lower() in SCHEMES
        told = f"has to be {where}" if is_elsewhere else f"is neither {where}, nor at a URL of {', '.join(SCHEMES)}"
        raise ConfigError(f"{_without_credentials(text)}: {told}")
    rest = unquote(text[url.end() :])
    host, slash, path = rest.partition("/") if url[2] == "//" else ("", "/", rest)
    if host not in ("", "localhost") or not slash:
        raise ConfigError(f"{text}: is at another machine; write file:///path for one here")
    return Path(f"/{path.lstrip('/')}")


def _without_credentials(url: str) -> str:
    """A URL without what may be a secret in it: a password, or a token behind the path."""
    head = re.split(r"[?#]", url, maxsplit=1)[0]
    text = re.sub(r"^([^/]*//[^/@]*):[^/]*@", r"\1:***@", head)
    return text if head == url else f"{text}?***"


def spark_path(path: Path) -> str:
    """A path as Spark takes it, also where its own file system is another one."""
    return f"file://{path.absolute()}"


def spark_pattern(path: Path) -> str:
    """The same for what Spark reads, which are patterns: of the one path alone."""
    return _PATTERN.sub(r"\\\g<0>", spark_path(path))


def check_library() -> None:
    """Raise ``MissingDependencyError`` unless Delta's library is installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"tables need Delta's library, which is not installed ({error}): {how_to_install('spark')}"
        ) from error


def sync(path: Path) -> None:
    """Bring a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Output:
    """Where a task writes files: below a directory, or below a location of an object store, where they stay at once.

    A name is relative, with ``/``. Raises ``TableUnavailableError`` as ``TableLocation.reached``.
    """

    def __init__(self, place: Path | TableLocation) -> None:
        """Raises ``ConfigError`` where this process has no such directory."""
        self._place = place
        self._streams: dict[str, Any] = {}
        self._begun: dict[str, int] = {}
        if isinstance(place, Path) and not place.is_dir():
            raise ConfigError(f"{place}: a worker does not see what the driver made: is the directory shared?")

    def open(self, name: str) -> Any:
        """Open a file for pyarrow to write to: a path, or a stream of the object store."""
        if isinstance(self._place, Path):
            path = self._place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            return path
        with self._place.reached():
            self._streams[name] = self._place.filesystem().open_output_stream(name)
        return self._streams[name]

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Around what pyarrow does with a file."""
        if isinstance(self._place, Path):
            yield
            return
        with self._place.reached():
            yield

    def begin_sync(self, name: str) -> None:
        """Have what was written of a file since the last call go to the disk, so that ``finish`` waits for the rest."""
        if not isinstance(self._place, Path):
            return
        descriptor = os.open(self._place / name, os.O_RDONLY)
        try:
            begun, size = self._begun.get(name, 0), os.fstat(descriptor).st_size
            with contextlib.suppress(OSError):  # a file system that takes no advice writes the file at its end
                # Linux begins to write what is dirty, and lets go of what is not; what fails then is told to ``sync``
                os.posix_fadvise(descriptor, begun, size - begun, os.POSIX_FADV_DONTNEED)
            self._begun[name] = size
        finally:
            os.close(descriptor)

    def finish(self, name: str) -> int:
        """The size of a file that was closed by pyarrow, once it is whole and where it has to be."""
        if isinstance(self._place, Path):
            sync(self._place / name)
            self._begun.pop(name, None)
            return (self._place / name).stat().st_size
        with self._place.reached():
            stream = self._streams.pop(name)
            size: int = stream.tell()
            stream.close()
            stored = self._place.filesystem().get_file_info(name).size
            if stored != size:
                raise TableUnavailableError(f"{self._place}: {size} bytes of {name} were sent, and it has {stored}")
        return size
